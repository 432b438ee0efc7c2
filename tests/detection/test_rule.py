"""Sigma files: what is read from them, and the error that each wrong one gets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.detection.condition import And, Atom, Not, Or
from agent.detection.rule import MAX_BYTES, MAX_NESTING, Filter, Rule, parse_rules
from agent.detection.value import Text
from agent.errors import RuleError

RULE = """\
title: A shell
id: 00000000-0000-0000-0000-000000000001
status: test
level: high
author: somebody
license: DRL 1.1
references: [https://example.org]
tags: [attack.execution, attack.t1059.004]
falsepositives:
  - Administrators
logsource:
  product: linux
  category: process_creation
detection:
  selection:
    Image|endswith: '/sh'
    CommandLine|contains|all: [a, B]
  filter:
    - User: root
    - LogonId: 0
  condition: selection and not filter
"""
FILTER = """\
title: Not by root
logsource: {category: process_creation}
filter:
  rules:
    - 00000000-0000-0000-0000-000000000001
  selection:
    Uid: 0
  condition: not selection
"""


def one(text: str) -> Rule:
    (rule,) = parse_rules(text.encode(), "rules/a.yml")
    assert isinstance(rule, Rule)
    return rule


def refusal(text: str | bytes) -> str:
    source = text.encode() if isinstance(text, str) else text
    with pytest.raises(RuleError) as caught:
        parse_rules(source, "a.yml")
    return str(caught.value)


def with_detection(text: str) -> str:
    """A rule with this under `detection:`, which stands in line 4."""
    head = "title: t\nid: i\nlogsource: {category: process_creation}\ndetection:\n"
    return head + text


def test_a_rule_has_what_the_file_says() -> None:
    rule = one(RULE)
    assert (rule.title, rule.level, rule.status) == ("A shell", "high", "test")
    assert (rule.author, rule.license) == ("somebody", "DRL 1.1")
    assert rule.references == ("https://example.org",)
    assert rule.tags == ("attack.execution", "attack.t1059.004")
    assert rule.falsepositives == ("Administrators",)
    assert rule.logsource[:3] == ("linux", "process_creation", "")
    assert rule.fields == {"Image", "CommandLine", "User", "LogonId"}
    assert (rule.file, rule.line) == ("rules/a.yml", 1)
    assert rule.lines == {"selection": 15, "filter": 18}
    contains = Text("contains", "a"), Text("contains", "b")
    assert rule.tree == And(
        (
            And(
                (
                    Atom("Image", Text("endswith", "/sh")),
                    And(tuple(Atom("CommandLine", one) for one in contains)),
                )
            ),
            Not(
                Or(
                    (
                        Atom("User", Text("equals", "root")),
                        Atom("LogonId", Text("equals", "0")),
                    )
                )
            ),
        )
    )


def test_a_filter_names_rules_and_what_must_hold_as_well() -> None:
    (found,) = parse_rules(FILTER.encode(), "f.yml")
    assert isinstance(found, Filter)
    assert found.rules == ("00000000-0000-0000-0000-000000000001",)
    assert found.tree == Not(Atom("Uid", Text("equals", "0")))


def test_a_file_may_hold_several_documents() -> None:
    second = RULE.replace("0001", "0002")
    found = parse_rules(f"---\n{RULE}---\n{second}---\n{FILTER}".encode(), "a.yml")
    assert [type(each) for each in found] == [Rule, Rule, Filter]
    assert [each.line for each in found] == [2, 24, 46]


def test_keywords_are_values_without_a_field() -> None:
    detection = "  k: [a, b]\n  all:\n    '|all': [c, d]\n  condition: k and all\n"
    rule = one(with_detection(detection))
    a, b, c, d = (Atom("", Text("contains", letter)) for letter in "abcd")
    assert rule.tree == And((Or((a, b)), And((c, d))))


def test_truth_and_numbers_are_the_texts_that_fields_have() -> None:
    detection = "  s: {Memfd: True, Uid: 007}\n  condition: s\n"
    assert one(with_detection(detection.replace("True", "true"))).tree == And(
        (Atom("Memfd", Text("equals", "true")), Atom("Uid", Text("equals", "007")))
    )


@pytest.mark.parametrize(
    ("detection", "line", "reason"),
    [
        ("  s: {Image|base64: x}\n  condition: s\n", 5, "'base64' is not supported"),
        ("  s: {Image|windash: x}\n  condition: s\n", 5, "'windash' is not supported"),
        ("  s: {Image|re|i: x}\n  condition: s\n", 5, "'i' is not supported"),
        ("  s: {Image|exists: true}\n  condition: s\n", 5, "'exists' is not"),
        ("  s: {Image|cased: x}\n  condition: s\n", 5, "'cased' is not supported"),
        ("  s: {'Image|': x}\n  condition: s\n", 5, "'' is not supported"),
        ("  s: {Image|contains|re: x}\n  condition: s\n", 5, "contradict"),
        ("  s: {Image|all: x}\n  condition: s\n", 5, "`all` of a single value"),
        ("  s: {'|re': x}\n  condition: s\n", 5, "'re' needs a field"),
        ("  s:\n    Image:\n      - a\n      -\n  condition: s\n", 8, "null"),
        ("  s: {Image: yes}\n  condition: s\n", 5, "quote it"),
        ("  s: {Image: []}\n  condition: s\n", 5, "empty list"),
        ("  s: {}\n  condition: s\n", 5, "empty selection"),
        ("  s: {Image: {a: b}}\n  condition: s\n", 5, "expected a value"),
        ("  s: {Image: [[a]]}\n  condition: s\n", 5, "a list where a value"),
        ("  s: [[a]]\n  condition: s\n", 5, "a list within a list"),
        ("  s: {Image|re: '(a+)+'}\n  condition: s\n", 5, "exponential"),
        ("  s: {Image|cidr: x}\n  condition: s\n", 5, "does not appear"),
        ('  s: {Image: "a\\0b"}\n  condition: s\n', 5, "NUL"),
        ("  s: {Image: a}\n  condition: s or t\n", 6, "no selection 't'"),
        ("  s: {Image: a}\n  condition: [s, s]\n", 6, "list of conditions"),
        ("  s: {Image: a}\n  condition: s | count() > 3\n", 6, "aggregations"),
        ("  s: {Image: a}\n", 5, "'condition' is missing"),
        ("  s: {Image: a}\n  timeframe: 5m\n  condition: s\n", 6, "time frame"),
        ("  s: {Image: a, Image: b}\n  condition: s\n", 5, "a second time"),
        ("  s: &x {Image: a}\n  t: *x\n  condition: s\n", 5, "anchors and aliases"),
        ("  s: {<<: {Image: a}}\n  condition: s\n", 5, "merge key"),
        ("  s: {Image: !!python/name:os.system x}\n  condition: s\n", 5, "the tag"),
        ("  s: {Image: !!binary aGk=}\n  condition: s\n", 5, "the tag"),
        ("  s: {? [a] : b}\n  condition: s\n", 5, "a key that is no text"),
        ("  s: {Image: 'a\n  condition: s\n", 7, "end of stream"),
        ("\ts: x\n  condition: s\n", 5, "token"),
    ],
)
def test_a_wrong_detection_is_refused_with_its_line(
    detection: str, line: int, reason: str
) -> None:
    said = refusal(with_detection(detection))
    assert said.startswith(f"a.yml:{line}: ")
    assert reason in said


@pytest.mark.parametrize(
    ("old", "new", "line", "reason"),
    [
        ("level: high", "level: huge", 4, "not one of informational"),
        ("level: high", "level: [high]", 4, "'level' must be a text"),
        ("status: test", "status: odd", 3, "'status' is 'odd'"),
        ("title: A shell", "titel: A shell", 1, "'title' is missing"),
        ("title: A shell", "title: ''", 1, "'title' must be a text"),
        ("title: A shell", "correlation: {}", 1, "correlation rules"),
        ("title: A shell", "action: global", 1, "collections of rules"),
        ("  product: linux", "  produkt: linux", 12, "'produkt' is not supported"),
        ("tags: [attack.exec", "tags: [{a: b}, exec", 8, "list of texts"),
        ("detection:", "detektion:", 1, "'detection' is missing"),
        ("logsource:", "logsauce:", 1, "'logsource' is missing"),
        ("author: somebody", "title: somebody", 5, "a second time"),
    ],
)
def test_a_wrong_rule_is_refused_with_its_line(
    old: str, new: str, line: int, reason: str
) -> None:
    said = refusal(RULE.replace(old, new))
    assert said.startswith(f"a.yml:{line}: ")
    assert reason in said


def test_a_filter_must_name_rules() -> None:
    text = FILTER.replace("  rules:\n    - 00000000-0000-0000-0000-000000000001\n", "")
    assert "must name its `rules`" in refusal(text)


LAUGHS = "a: &a [x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n"
    for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (LAUGHS.encode(), "a.yml:1: anchors and aliases"),
        (b"a: &a [*a]\n", "a.yml:1: anchors"),
        (b"[" * 100_000, "a.yml:1: "),
        (b"{a: " * 100_000, f"a.yml:1: nested more than {MAX_NESTING}"),
        (b"- " * 100_000, "a.yml:1: nested"),
        (b"? " * 100_000, "a.yml:1: nested"),
        (b"a: [" + b"x, " * 150_000 + b"]", "a.yml:1: more than 40000 values"),
        (b"x" * 10_000_000, f"a.yml:1: longer than {MAX_BYTES}"),
        (b"title: " + b"x" * (MAX_BYTES - 10), "a.yml:1: 'detection' is missing"),
        (b"title: a\nid: \xff\n", "a.yml:2: not UTF-8"),
        (b"title: a\nid: b\0\n", "a.yml:2: a NUL"),
        (b"title: a\nid: \x07\n", "a.yml:"),
        ("title: a\nid: \ud800\n".encode(errors="surrogatepass"), "a.yml:2: not UTF-8"),
        (b"", "a.yml:1: no document"),
        (b"# nothing\n", "a.yml:1: no document"),
        (b"--- x\n", "a.yml:1: expected keys"),
        (b"- a\n", "a.yml:1: expected keys"),
        (b"%YAML 9.9\n---\na: b\n", "a.yml:"),
        (b"a: b: c\n", "a.yml:1: "),
        (b"\xff\xfet\0i\0", "a.yml:1: a NUL"),
    ],
)
def test_hostile_bytes_get_a_clear_error(source: bytes, said: str) -> None:
    assert refusal(source).startswith(said)


def test_a_condition_that_multiplies_selections_is_refused() -> None:
    values = ", ".join(f"v{number}" for number in range(5000))
    condition = " or ".join(["1 of *"] * 200)
    text = with_detection(f"  s: {{Image: [{values}]}}\n  condition: {condition}\n")
    assert "more than 20000 values" in refusal(text)


def test_a_byte_order_mark_is_no_error() -> None:
    assert parse_rules(b"\xef\xbb\xbf" + RULE.encode(), "a.yml")


def line_of_error(source: bytes) -> int:
    """The line of the error that a file gets; 1 when it gets none."""
    try:
        return len(parse_rules(source, "a.yml")) and 1
    except RuleError as error:
        return error.line


@given(st.binary(max_size=200))
def test_any_bytes_give_rules_or_a_rule_error(source: bytes) -> None:
    assert line_of_error(source) >= 1


@given(st.data())
def test_a_rule_with_a_changed_piece_gives_a_rule_or_a_rule_error(
    data: st.DataObject,
) -> None:
    at = data.draw(st.integers(0, len(RULE)))
    until = data.draw(st.integers(at, min(len(RULE), at + 20)))
    piece = data.draw(st.text(":-[]{}|&*!%#'\"\n a\\", max_size=6))
    assert line_of_error((RULE[:at] + piece + RULE[until:]).encode()) >= 1
