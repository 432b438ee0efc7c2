"""The condition grammar, and what it refuses."""

import contextlib

import pytest

from agent.detection.condition import And, Atom, Not, Or, Tree, parse
from agent.detection.value import Text

A, B, C = (Atom(name, Text("equals", name)) for name in "abc")
ABC: dict[str, Tree] = {"sel_a": A, "sel_b": B, "_c": C}


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("sel_a", A),
        ("not sel_a", Not(A)),
        ("not not sel_a", Not(Not(A))),
        ("sel_a and sel_b", And((A, B))),
        ("sel_a or sel_b and _c", Or((A, And((B, C))))),
        ("(sel_a or sel_b) and _c", And((Or((A, B)), C))),
        ("(sel_a or sel_b)and(_c)", And((Or((A, B)), C))),
        ("not sel_a and sel_b", And((Not(A), B))),
        ("not (sel_a and sel_b)", Not(And((A, B)))),
        ("1 of sel_*", Or((A, B))),
        ("any of sel_*", Or((A, B))),
        ("all of sel_*", And((A, B))),
        ("1 of them", Or((A, B))),
        ("all of them", And((A, B))),
        ("1 of sel_a", A),
        ("1 of _*", C),
        ("sel_a and not 1 of sel_b*", And((A, Not(B)))),
        ("  sel_a\n  and\tsel_b ", And((A, B))),
    ],
)
def test_a_condition_is_a_tree(text: str, tree: Tree) -> None:
    assert parse(text, ABC).tree == tree


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty"),
        ("   ", "empty"),
        ("sel_x", "no selection 'sel_x'"),
        ("sel_a sel_b", "'sel_b' is not expected"),
        ("sel_a and", "too early"),
        ("and sel_a", "no selection 'and'"),
        ("sel_a AND sel_b", "'AND' is not expected"),
        ("(sel_a", "too early"),
        ("(sel_a sel_b)", "not closed"),
        ("sel_a)", r"'\)' is not expected"),
        ("2 of sel_*", "only `1 of` and `all of`"),
        ("1 of x_*", "no selection is called"),
        ("1 of", "too early"),
        ("sel_a | count() > 5", "aggregations"),
        ("sel_a near sel_b", "'near' is not expected"),
        ("not", "too early"),
    ],
)
def test_what_is_no_condition_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse(text, ABC)


@pytest.mark.parametrize(
    "text",
    [
        "(" * 5000 + "sel_a" + ")" * 5000,
        "(" * 400 + "sel_a" + ")" * 400,
        "not " * 900 + "sel_a",
        "sel_a and " * 5000 + "sel_a",
        "1 of " + "*" * 5000,
    ],
)
def test_a_monstrous_condition_is_refused_or_parsed_and_never_overflows(
    text: str,
) -> None:
    with contextlib.suppress(ValueError):
        parse(text, ABC)


def test_used_selections_are_told() -> None:
    assert parse("sel_a and not 1 of _*", ABC).used == {"sel_a", "_c"}
