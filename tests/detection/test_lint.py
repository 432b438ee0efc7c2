"""What `lint` says of rule files: each doubt with its line, of good ones nothing."""

from pathlib import Path

import pytest

from agent.detection.lint import Linted, lint

GOOD = """\
title: A shell
id: 00000000-0000-0000-0000-000000000001
level: high
author: somebody
tags: [attack.execution, attack.t1059.004, attack.g0016, cve.2024-3094, detection.x]
falsepositives: [none]
logsource: {category: process_creation}
detection:
  selection:
    Image: [/bin/sh, /bin/bash]
    CommandLine|contains: x
  filter: {User: root}
  condition: selection and not filter
"""
EXCEPTION = """\
title: Not by root
logsource: {category: process_creation}
filter:
  rules: [00000000-0000-0000-0000-000000000001]
  s: {Uid: 0}
  condition: not s
"""


def looked_at(folder: Path, text: str) -> Linted:
    (folder / "a.yml").write_text(text)
    (found,) = lint([folder])
    return found


def test_a_good_file_gets_no_word(tmp_path: Path) -> None:
    found = looked_at(tmp_path, f"{GOOD}---\n{EXCEPTION}")
    assert found == (str(tmp_path / "a.yml"), 2, ())
    assert found.ok
    assert found.lines() == [f"{tmp_path}/a.yml: ok"]


@pytest.mark.parametrize(
    ("old", "new", "line", "text"),
    [
        ("level: high\n", "", 1, "'level' is missing"),
        ("author: somebody\n", "", 1, "'author' is missing"),
        ("falsepositives: [none]\n", "", 1, "'falsepositives' is missing"),
        ("attack.t1059.004", "attack.t10590", 1, "the tag 'attack.t10590'"),
        ("attack.t1059.004", "attack.T1059", 1, "the tag 'attack.T1059'"),
        ("attack.t1059.004", "T1059", 1, "the tag 'T1059'"),
        ("000000000001\n", "1\n", 1, "no UUID"),
        (" and not filter", "", 12, "selection 'filter' is not used"),
        ("    CommandLine", "    Image|endswith: /zsh\n    CommandLine", 9, "nothing"),
        ("{User: root}", "{Uid|all: [0, 1]}", 12, "nothing can fit selection"),
        ("{User: root}", "{Image|startswith: /bin/}", 1, "nothing can fit the cond"),
    ],
)
def test_a_doubt_is_told_with_its_line(
    tmp_path: Path, old: str, new: str, line: int, text: str
) -> None:
    found = looked_at(tmp_path, GOOD.replace(old, new))
    assert found.ok
    told = [
        one for one in found.findings if one.text.startswith(text) or text in one.text
    ]
    assert [(one.line, one.severity) for one in told] == [(line, "warning")]


def test_what_can_fit_is_not_doubted(tmp_path: Path) -> None:
    more = "    Image|startswith: [/bin/ba, /x]\n    Image|re: '^/BIN'\n    CommandLine"
    assert looked_at(tmp_path, GOOD.replace("    CommandLine", more)).findings == ()


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ("000000000001]", "000000000002]", "there is no rule"),
        ("{Uid: 0}", "{CommandLine: x}", "what anybody can choose: CommandLine"),
        ("{Uid: 0}", "{Role: rank, Env.X: z}", "what anybody can choose: Env.X, Role"),
    ],
)
def test_an_exception_is_doubted(tmp_path: Path, old: str, new: str, text: str) -> None:
    found = looked_at(tmp_path, f"{GOOD}---\n{EXCEPTION.replace(old, new)}")
    (told,) = found.findings
    assert (told.line, told.severity) == (15, "warning")
    assert text in told.text


def test_an_error_is_told_and_keeps_no_other_file_from_being_looked_at(
    tmp_path: Path,
) -> None:
    (tmp_path / "b.yml").write_text(GOOD.replace("not filter", "not filtre"))
    (tmp_path / "c.yml").write_text(GOOD)
    (tmp_path / "d.yml").write_text(f"#\n{GOOD}")
    wrong, good, twice = lint([tmp_path])
    assert [(one.line, one.severity) for one in wrong.findings] == [(13, "error")]
    assert (wrong.ok, wrong.documents, good.ok) == (False, 0, True)
    assert twice.findings[0][:2] == (2, "error")
    assert wrong.lines() == [
        f"{tmp_path}/b.yml:13: error: condition: there is no selection 'filtre'"
    ]


def test_a_rule_that_is_served_in_part_is_told(tmp_path: Path) -> None:
    text = GOOD.replace("category: process_creation", "service: auditd").replace(
        "{User: root}", "[{type: PATH, name: x}, {type: EXECVE, a1: z}]"
    )
    text = text.replace("Image", "a0").replace("CommandLine", "a1")
    (told,) = looked_at(tmp_path, text).findings
    assert told.text == "in part only: no event gives field name, type PATH"
