"""The generated functions and their sorting say what a plain walk of the tree says."""

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.detection.condition import And, Atom, Not, Or, Tree, holds
from agent.detection.facts import INVOKED, RESOLVED, Facts
from agent.detection.fields import EXEC, HEAD, TAIL, Surroundings
from agent.detection.logsource import KINDS, served
from agent.detection.matcher import Hit, Matcher
from agent.detection.value import a_test
from agent.events import ChainEnd, Lineage
from tests.builders import INIT, a_process, an_exec
from tests.detection.sigma_corpus import needs_corpus, process_rules
from tests.detection.sigma_events import programs

SORTING = KINDS[0].sorting
WORDS = ["sh", "/sh", "/bin/sh", "bash", "-c", "curl", "/tmp/x", "Train.py", "a b", ""]
VALUES = st.one_of(
    st.sampled_from(WORDS),
    st.tuples(
        st.sampled_from(WORDS), st.sampled_from("*? "), st.sampled_from(WORDS)
    ).map("".join),
)
PLAIN = ("Image", "CommandLine", "ParentImage", "a0", "a1", "exe", "comm", "Env.X")
FIELDS = st.sampled_from([*PLAIN, "", "Ancestors", "SYSCALL.values", "Role"])
MODIFIERS = st.sampled_from(["", "contains", "startswith", "endswith"])
ATOMS = st.one_of(
    st.builds(lambda f, v, m: Atom(f, a_test(v, m)), FIELDS, VALUES, MODIFIERS),
    st.builds(
        lambda f, p: Atom(f, a_test(p, "re")),
        FIELDS,
        st.sampled_from(["sh", "^sh", "S", "^$", "x*", "a.*b", r"\s-c$"]),
    ),
    st.just(Atom("Role", a_test("10.0.0.0/8", "cidr"))),
)
TREES: st.SearchStrategy[Tree] = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=4).map(lambda some: And(tuple(some))),
        st.lists(inner, min_size=1, max_size=4).map(lambda some: Or(tuple(some))),
        inner.map(Not),
    ),
    max_leaves=12,
)
PATHS = st.sampled_from(
    [b"", b"/bin/sh", b"/bin/SH", b"/usr/bin/dash", b"/tmp/x", b"sh", b"./bash", b"/"]
)
ARGUMENTS = st.lists(
    st.one_of(st.sampled_from([one.encode() for one in WORDS]), st.binary(max_size=6)),
    max_size=5,
)


@st.composite
def events(draw: st.DrawFn) -> tuple[Any, Surroundings]:
    arguments = [one.replace(b"\0", b"") for one in draw(ARGUMENTS)]
    event = an_exec(
        *arguments,
        executable=draw(PATHS),
        invoked=draw(PATHS),
        cwd=draw(st.sampled_from([b"/bin", b"/"])),
        environment=draw(st.sampled_from([(), (b"X=/tmp/x",), (b"X=",)])),
    )
    parent = a_process(INIT, executable=draw(PATHS), argv=draw(PATHS))
    lineage = draw(st.sampled_from([None, Lineage((parent,), ChainEnd.ROOT)]))
    role = draw(st.sampled_from(["", "rank", "10.1.2.3"]))
    around = Surroundings(lineage, parent_invoked=draw(PATHS), role=role)
    return event, around


def naively(trees: list[Tree], facts: Facts) -> list[tuple[int, str]]:
    """What a walk of each tree says, under each view: the first view counts."""
    found = {}
    for number, tree in enumerate(trees):
        if holds(tree, facts.raw):
            found[number] = RESOLVED
    for _ in facts.other_views():
        for number, tree in enumerate(trees):
            if number not in found and holds(tree, facts.raw):
                found[number] = INVOKED
    return sorted(found.items())


def pairs(hits: list[Hit]) -> list[tuple[int, str]]:
    assert len({hit.number for hit in hits}) == len(hits)
    return sorted((hit.number, hit.view) for hit in hits)


@settings(max_examples=250, deadline=None)
@given(st.lists(TREES, min_size=1, max_size=6), events())
def test_the_matcher_says_what_a_plain_walk_says(
    trees: list[Tree], event: tuple[Any, Surroundings]
) -> None:
    quick = pairs(Matcher(trees, SORTING).match(Facts(*event, EXEC)))
    assert quick == naively(trees, Facts(*event, EXEC))


@needs_corpus
def test_the_public_rules_say_what_a_plain_walk_says() -> None:
    trees = [served(rule).tree for rule in process_rules()]
    matcher = Matcher(trees, SORTING)
    for event, around in programs(trees, 300, seed=2):
        quick = pairs(matcher.match(Facts(event, around, EXEC)))
        assert quick == naively(trees, Facts(event, around, EXEC))


def one_rule(field: str, value: str, modifier: str = "") -> Matcher:
    return Matcher([Atom(field, a_test(value, modifier))], SORTING)


def views(matcher: Matcher, event: Any, around: Surroundings) -> list[str]:
    return [hit.view for hit in matcher.match(Facts(event, around, EXEC))]


PARENT = a_process(INIT, executable=b"/usr/bin/dash")
AROUND = Surroundings(Lineage((PARENT,), ChainEnd.ROOT), parent_invoked=b"/bin/sh")
LINK = an_exec(b"x", executable=b"/usr/bin/python3.11", invoked=b"python3", cwd=b"/opt")


@pytest.mark.parametrize(
    ("field", "value", "modifier", "wanted"),
    [
        ("Image", "/python3.11", "endswith", [RESOLVED]),
        ("Image", "/opt/python3", "", [INVOKED]),
        ("Image", "/python3", "endswith", [INVOKED]),
        ("Image", "/opt/", "startswith", [INVOKED]),
        ("Image", "python3*", "contains", [RESOLVED]),
        ("Image", "/python2", "endswith", []),
        ("ParentImage", "/dash", "endswith", [RESOLVED]),
        ("ParentImage", "/sh", "endswith", [INVOKED]),
    ],
)
def test_who_runs_is_the_file_or_the_path_it_was_started_by(
    field: str, value: str, modifier: str, wanted: list[str]
) -> None:
    assert views(one_rule(field, value, modifier), LINK, AROUND) == wanted


def test_program_and_parent_are_seen_in_every_pair_of_views() -> None:
    trees = [
        And((Atom("Image", a_test(image, "")), Atom("ParentImage", a_test(parent, ""))))
        for image in ("/usr/bin/python3.11", "/opt/python3")
        for parent in ("/usr/bin/dash", "/bin/sh")
    ]
    hits = Matcher(trees, SORTING).match(Facts(LINK, AROUND, EXEC))
    assert pairs(hits) == [
        (0, RESOLVED),
        (1, INVOKED),
        (2, INVOKED),
        (3, INVOKED),
    ]
    assert [hit.seen.get("ParentImage") for hit in sorted(hits)] == [
        None,
        "/bin/sh",
        "/usr/bin/dash",
        "/bin/sh",
    ]


def test_afterwards_an_event_is_seen_as_at_first() -> None:
    facts = Facts(LINK, AROUND, EXEC)
    one_rule("Image", "/x").match(facts)
    assert facts.raw["Image"] == "/usr/bin/python3.11"
    assert facts.low["ParentImage"] == "/usr/bin/dash"


@pytest.mark.parametrize("size", [HEAD + TAIL, HEAD + TAIL + 1, 1 << 20])
def test_of_a_long_line_the_beginning_and_the_end_are_seen(size: int) -> None:
    line = b"begin" + b"." * (size - 8) + b"end"
    event = an_exec(line)
    for value in ("begin", "end"):
        assert views(one_rule("CommandLine", value, "contains"), event, AROUND)


def test_what_lies_between_is_not_seen() -> None:
    event = an_exec(b"." * HEAD + b"middle" + b"." * TAIL)
    assert views(one_rule("CommandLine", "middle", "contains"), event, AROUND) == []


def test_nothing_fits_over_the_cut_of_a_long_line() -> None:
    event = an_exec(b"a" * HEAD + b"x" * 100 + b"b" * TAIL)
    assert views(one_rule("CommandLine", "ab", "contains"), event, AROUND) == []


def test_values_of_a_rule_are_never_code() -> None:
    hostile = '\'); raise SystemExit #\\\n"""'
    matcher = one_rule("CommandLine", hostile, "contains")
    event = an_exec(hostile.replace("\\\\", "\\").encode())
    assert views(matcher, event, AROUND) == [RESOLVED]
    field = Matcher([Atom("x']; raise SystemExit #", a_test("a", ""))], SORTING)
    assert views(field, event, AROUND) == []


@pytest.mark.parametrize("seed", range(3))
def test_a_rule_of_many_values_finds_each(seed: int) -> None:
    chance = random.Random(seed)
    values = [f"needle{chance.randrange(10**9)}x" for _ in range(10_000)]
    tree = Or(tuple(Atom("CommandLine", a_test(one, "contains")) for one in values))
    matcher = Matcher([tree], SORTING)
    assert matcher.always == 0
    line = f"run {chance.choice(values)} now".encode()
    assert views(matcher, an_exec(line), AROUND) == [RESOLVED]
    assert views(matcher, an_exec(b"run needle now"), AROUND) == []
