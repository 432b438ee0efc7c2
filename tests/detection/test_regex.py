"""Which patterns are refused, and that the accepted ones stay within their bound."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.detection.regex import exponent, literals

EXPONENTIAL = "exponential"
SQUARE = "square"


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("(a+)+", EXPONENTIAL),
        ("(a*)*b", EXPONENTIAL),
        ("(a|a)*b", EXPONENTIAL),
        ("(a|aa)+$", EXPONENTIAL),
        ("(.*)*", EXPONENTIAL),
        (r"(\w+\s?)+x", EXPONENTIAL),
        ("(x+x+)+y", EXPONENTIAL),
        ("(a?){2,30}b", EXPONENTIAL),
        ("(a?a?){20}b", EXPONENTIAL),
        ("(?i)(s+\u017f+)+x", EXPONENTIAL),
        ("((a|b)+|a)+c", EXPONENTIAL),
        ("a.*b.*c", SQUARE),
        (r"\s*\s*\s*x", SQUARE),
        ("a.{0,500}b.{0,500}c.{0,500}d", SQUARE),
        ("(?=a)b", "look-around"),
        ("(?<!a)b", "look-around"),
        (r"(a)\1", "reference"),
        ("(?>a)", "atomic"),
        ("a*+", "possessive"),
        ("(?i:a)", "flags for a part"),
        ("(?a)a", "flag `a`"),
        ("(", "no regular expression"),
        ("a{3,1}", "no regular expression"),
        ("[z-a]", "no regular expression"),
        ("a{20000}", "repeat of more"),
        ("a" * 2000, "more than 1024"),
        ("(" * 500 + "a" + ")" * 500, "no regular expression|exponential|more than"),
    ],
)
def test_a_pattern_that_may_be_slow_or_strange_is_refused(
    pattern: str, reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        exponent(pattern)


@pytest.mark.parametrize(
    ("pattern", "power"),
    [
        ("abc", 1),
        ("^abc", 1),
        (".*abc", 1),
        ("(a|b)c", 1),
        ("a.*b", 2),
        ("^a.*b", 1),
        ("([a-z]+,)+x", 2),
        (r"(\d+\.)*x", 2),
        (r"[^/]{100,}$", 2),
        ("^a.*b.*c", 2),
        (r"(\w|\d)+x", 2),
    ],
)
def test_a_pattern_has_the_exponent_of_its_worst_text(
    pattern: str, power: float
) -> None:
    assert exponent(pattern) == power


PIECES = st.sampled_from(
    [
        *("a", "b", ".", "[ab]", "[^a]", "a*", "b+", ".*", "(ab)*", "(a|b)*", "(a|ab)"),
        *("(a*b)*", "a?", "(a?b)+", "(b|a*)", "a{2,5}", "(?:a+|b)*", "(aa)*", r"\w*"),
    ]
)


@settings(deadline=None)
@given(st.lists(PIECES, max_size=5).map("".join), st.sampled_from(["", "*", "+"]))
def test_what_is_accepted_ends(pattern: str, repeat: str) -> None:
    """A text that makes exponential patterns run for years; accepted ones return."""
    whole = f"({pattern}){repeat}!" if repeat and pattern else f"{pattern}!"
    try:
        exponent(whole)
    except ValueError:
        return
    for text in ("a" * 60, "ab" * 30, "aab" * 20, "b" * 60):
        assert re.search(whole, text) is None


@pytest.mark.parametrize(
    ("pattern", "within"),
    [
        ("abc", ("abc",)),
        ("a(b)c?d", ("ab",)),
        ("-(W|R) *x", ("-R", "-W")),
        ("https://[0-9]", ("https://",)),
        ("a|b", ("a", "b")),
        ("ab|cd", ()),
        ("[a-z]x[^b]", ("x",)),
        ("(?i)abc", ()),
        (".*", ()),
    ],
)
def test_what_must_be_in_the_text_is_told(
    pattern: str, within: tuple[str, ...]
) -> None:
    assert literals(pattern) == within


@given(st.lists(PIECES, max_size=5).map("".join), st.text("ab", max_size=8))
def test_what_fits_has_one_of_the_texts_in_it(pattern: str, text: str) -> None:
    within = literals(pattern)
    if re.search(pattern, text) and within:
        assert any(one in text for one in within)
