"""What a value of a rule fits: case, wildcards, backslashes, networks, patterns."""

import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.detection.value import NEAR, Shape, Text, a_test


@pytest.mark.parametrize(
    ("value", "modifier", "text", "fits"),
    [
        ("Bash", "", "bASH", True),
        ("bash", "", "bash ", False),
        ("", "", "", True),
        ("", "", "x", False),
        ("*", "", "", True),
        ("*", "", "anything", True),
        ("/sh", "endswith", "/bin/SH", True),
        ("/sh", "endswith", "/bin/sh2", False),
        ("/BIN", "startswith", "/bin/sh", True),
        ("in/s", "contains", "/bin/sh", True),
        ("*in/s*", "", "/bin/sh", True),
        ("/bin*", "", "/bin/sh", True),
        ("*sh", "", "/bin/sh", True),
        ("/*/sh", "", "/bin/sh", True),
        ("/*/sh", "", "/bin/zsh", False),
        ("/*/sh", "", "/sh", False),
        ("a?c", "", "abc", True),
        ("a?c", "", "ac", False),
        ("a?c", "", "a\nc", True),
        ("a*b*c", "", "a b\nc", True),
        ("a*bc*bc", "", "abc", False),
        ("a*bc*bc", "", "abcbc", True),
        ("ab*ba", "", "aba", False),
        ("?*?", "", "x", False),
        ("?*?", "", "xy", True),
        ("**", "", "", True),
        (r"a\*c", "", "a*c", True),
        (r"a\*c", "", "abc", False),
        (r"a\?", "endswith", "a?", True),
        (r"a\\b", "", r"a\b", True),
        (r"a\b", "", r"a\b", True),
        (r"a\\*", "", "a\\xyz", True),
        ("a.c", "", "abc", False),
        ("É", "", "é", True),
        ("İ*x*", "", "İax", True),
        ("-D", "re", "x -D", True),
        ("-D", "re", "x -d", False),
        ("^x", "re", "yx", False),
        ("(?i)-d", "re", "-D", True),
        ("10.0.0.0/8", "cidr", "10.2.3.4", True),
        ("10.0.0.0/8", "cidr", "11.2.3.4", False),
        ("10.0.0.0/8", "cidr", "nobody", False),
        ("10.0.0.0/8", "cidr", "::1", False),
        ("fe80::/10", "cidr", "fe80::1", True),
    ],
)
def test_a_value_fits_a_text(value: str, modifier: str, text: str, fits: bool) -> None:
    assert a_test(value, modifier).fits(text) is fits


@pytest.mark.parametrize(
    ("value", "modifier", "reason"),
    [
        ("a\0b", "", "NUL"),
        ("10.0.0.1/8", "cidr", "host bits"),
        ("x", "cidr", "does not appear"),
        ("(", "re", "no regular expression"),
        ("(a+)+", "re", "exponential"),
    ],
)
def test_a_value_that_can_not_be_is_refused(
    value: str, modifier: str, reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        a_test(value, modifier)


def test_wildcards_at_the_ends_are_plain_comparisons() -> None:
    assert a_test("*a*", "") == a_test("a", "contains") == Text("contains", "a")
    assert a_test("a*", "endswith") == Text("contains", "a")
    assert isinstance(a_test("a*b", ""), Shape)


def _as_regex(pattern: str) -> str:
    parts = {"*": ".*", "?": "."}
    return "".join(parts.get(one) or re.escape(one) for one in pattern)


@given(st.text("ab*?", max_size=8), st.text("abc\n", max_size=10))
def test_a_shape_fits_what_the_same_regular_expression_fits(
    pattern: str, text: str
) -> None:
    wanted = re.fullmatch(_as_regex(pattern), text, re.DOTALL) is not None
    assert a_test(pattern, "").fits(text) is wanted


@given(st.text(string.printable, max_size=12))
def test_any_value_gives_a_test_that_can_be_asked(value: str) -> None:
    for modifier in ("", "contains", "startswith", "endswith"):
        assert a_test(value, modifier).fits("some text") in (True, False)


def test_many_wildcards_take_no_time_that_grows_with_their_number() -> None:
    test = a_test("a*" * 40 + "b", "")
    assert test.fits("a" * 12_000) is False
    assert test.fits("a" * 12_000 + "b") is True


def test_a_slow_pattern_sees_both_ends_of_a_long_text() -> None:
    test = a_test("x.*y", "re")
    assert test.fits("x" + "_" * 3 * NEAR + "y") is True
    assert test.fits("_" * NEAR + "xy" + "_" * 2 * NEAR) is False
    assert a_test("xy", "re").fits("_" * NEAR + "xy" + "_" * 2 * NEAR) is True
