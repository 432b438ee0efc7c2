"""Rules in force: detections, exceptions, counters, rules that raise, new rules."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from agent.detection.engine import EVERY, EXCERPT, Engine
from agent.detection.fields import Connection, FileChange, Surroundings
from agent.detection.rule import Filter, Rule, parse_rules
from agent.detection.ruleset import RuleSet, build, load, read
from agent.errors import RulesError
from agent.events import AccessKind
from tests.builders import (
    a_failed_exec,
    a_fork,
    a_process,
    a_task,
    an_access,
    an_exec,
    an_image,
)

NOTHING = Surroundings()


def rule_text(number: int, detection: str, category: str = "process_creation") -> str:
    log = f"service: {category}" if category == "auditd" else f"category: {category}"
    return f"""\
title: Rule {number}
id: 00000000-0000-0000-0000-{number:012}
level: high
author: somebody
license: DRL 1.1
tags: [attack.execution]
logsource: {{{log}}}
detection:
  s: {detection}
  condition: s
"""


def filter_text(number: int, detection: str, category: str = "process_creation") -> str:
    log = f"service: {category}" if category == "auditd" else f"category: {category}"
    return f"""\
title: Exception
logsource: {{{log}}}
filter:
  rules: [00000000-0000-0000-0000-{number:012}]
  s: {detection}
  condition: not s
"""


def rules(*texts: str) -> RuleSet:
    documents = [one for text in texts for one in parse_rules(text.encode(), "a.yml")]
    return build(
        [one for one in documents if isinstance(one, Rule)],
        [one for one in documents if isinstance(one, Filter)],
    )


def identity(number: int) -> str:
    return f"00000000-0000-0000-0000-{number:012}"


SHELL = rule_text(1, "{Image|endswith: /sh, CommandLine|contains: secret}")
EVENT = an_exec(b"sh", b"-c", b"Secret", executable=b"/bin/sh", invoked=b"/bin/sh")


def test_a_detection_says_which_rule_and_why() -> None:
    (found,) = Engine(rules(SHELL)).evaluate(EVENT, NOTHING)
    assert (found.rule, found.title, found.level) == (identity(1), "Rule 1", "high")
    assert (found.author, found.license) == ("somebody", "DRL 1.1")
    assert (found.tags, found.file) == (("attack.execution",), "a.yml")
    assert found.fields == (("Image", b"/bin/sh"), ("CommandLine", b"sh -c Secret"))
    assert found.view == "resolved"


def test_a_detection_shows_the_view_that_fitted() -> None:
    event = an_exec(b"sh", b"secret", executable=b"/bin/dash", invoked=b"/bin/sh")
    (found,) = Engine(rules(SHELL)).evaluate(event, NOTHING)
    assert found.view == "invoked"
    assert dict(found.fields)["Image"] == b"/bin/sh"


def test_a_detection_shows_the_beginning_of_a_value_byte_by_byte() -> None:
    event = an_exec(b"\xff" + b"secret" * 200, executable=b"/bin/sh")
    (found,) = Engine(rules(SHELL)).evaluate(event, NOTHING)
    value = dict(found.fields)["CommandLine"]
    assert value == (b"\xff" + b"secret" * 200)[:EXCERPT]


@pytest.mark.parametrize("event", [a_fork(), a_failed_exec(b"x")])
def test_other_events_are_asked_nothing(event: object) -> None:
    engine = Engine(rules(SHELL))
    assert engine.evaluate(event, NOTHING) == ()  # type: ignore[arg-type]
    assert engine.events == 0


def test_each_kind_of_event_has_its_rules() -> None:
    engine = Engine(
        rules(
            rule_text(1, "{GrantedAccess: ptrace-attach}", "process_access"),
            rule_text(2, "{DestinationPort: 4444}", "network_connection"),
            rule_text(3, "{TargetFilename|startswith: /etc/cron}", "file_event"),
            rule_text(4, "{type: EXECVE, a0: sh}", "auditd"),
            rule_text(5, "{type: SYSCALL, euid: 33}", "auditd"),
        )
    )
    process = a_process()
    of_33 = an_exec(b"x", task=a_task(image=an_image(euid=33)))
    told = [
        engine.evaluate(event, NOTHING)
        for event in (
            an_access(kind=AccessKind.PTRACE_ATTACH),
            Connection(process, "tcp", True, "::1", 1, "::1", 4444),
            FileChange(process, b"/etc/cron.d/x", "write"),
            an_exec(b"sh"),
            of_33,
            an_access(kind=AccessKind.MEM_OPEN),
        )
    ]
    found = [[one.title for one in some] for some in told]
    assert found == [["Rule 1"], ["Rule 2"], ["Rule 3"], ["Rule 4"], ["Rule 5"], []]


def test_records_of_the_audit_log_are_asked_one_by_one() -> None:
    """A rule never fits by one half in EXECVE and one half in SYSCALL."""
    engine = Engine(
        rules(
            rule_text(1, "{a0: sh, exe: /bin/sh}", "auditd").replace(
                "a0: sh, exe", "exe"
            ),
            rule_text(2, "[{a0: sh}, {exe: /bin/sh}]", "auditd"),
            rule_text(3, "[secret]", "auditd"),
        )
    )
    assert [one.title for one in engine.evaluate(EVENT, NOTHING)] == [
        "Rule 1",
        "Rule 2",
        "Rule 3",
    ]
    with pytest.raises(RulesError, match="no event gives"):
        rules(rule_text(4, "{a0: sh, exe: /bin/sh}", "auditd"))


def test_what_no_record_has_is_not_there() -> None:
    text = rule_text(1, "{type: EXECVE, a0: sh}", "auditd")
    text = text.replace("  condition: s", "  f: {key: x}\n  condition: s and not f")
    assert len(Engine(rules(text)).evaluate(EVENT, NOTHING)) == 1


@pytest.mark.parametrize("category", ["process_creation", "auditd"])
def test_an_exception_silences_its_rule_and_is_counted(category: str) -> None:
    field = {"process_creation": "Uid", "auditd": "uid"}[category]
    wanted = {"process_creation": "{Image: /bin/sh}", "auditd": "{exe: /bin/sh}"}
    texts = [rule_text(number, wanted[category], category) for number in (1, 2)]
    engine = Engine(rules(*texts, filter_text(1, f"{{{field}: 0}}", category)))
    assert [one.title for one in engine.evaluate(EVENT, NOTHING)] == ["Rule 2"]
    other = an_exec(b"sh", task=a_task(image=an_image(uid=1000)), executable=b"/bin/sh")
    assert len(engine.evaluate(other, NOTHING)) == 2
    assert engine.counts()[identity(1)][:2] == (1, 1)
    assert engine.counts()[identity(2)][:2] == (2, 0)


@pytest.mark.parametrize(
    ("excepted", "silenced"), [("/bin/dash", True), ("/bin/sh", False)]
)
def test_an_exception_sees_the_file_and_not_the_path_it_was_started_by(
    excepted: str, silenced: bool
) -> None:
    engine = Engine(rules(SHELL, filter_text(1, f"{{Image: {excepted}}}")))
    event = an_exec(b"sh", b"secret", executable=b"/bin/dash", invoked=b"/bin/sh")
    assert (engine.evaluate(event, NOTHING) == ()) is silenced


class _Failing(Mapping[int, str]):
    """Account names that can't be read."""

    def __getitem__(self, uid: int) -> str:
        raise OSError("no such service")

    def __iter__(self) -> Iterator[int]:
        return iter(())

    def __len__(self) -> int:
        return 0


def test_a_rule_that_raises_is_disabled_and_told_of_once() -> None:
    engine = Engine(rules(rule_text(2, "{User: root}"), SHELL))
    for _ in range(3):
        found = engine.evaluate(EVENT, Surroundings(users=_Failing()))
        assert [one.title for one in found] == ["Rule 1"]
    (told,) = engine.disabled
    assert (told.rule, told.error) == (identity(2), "OSError: no such service")
    engine.disabled.clear()
    assert len(engine.evaluate(EVENT, NOTHING)) == 1
    engine.swap(rules(rule_text(2, "{User: '0'}"), SHELL))
    assert len(engine.evaluate(EVENT, NOTHING)) == 2


@pytest.mark.parametrize(
    "detection", ["{Image|endswith: /sh}", "{CommandLine|contains: sh}"]
)
def test_an_exception_that_raises_disables_its_rule(detection: str) -> None:
    """Also one that is found neither by a name nor by a piece of text."""
    engine = Engine(rules(rule_text(1, detection), filter_text(1, "{User: root}")))
    for users in (_Failing(), {0: "trainer"}):
        assert engine.evaluate(EVENT, Surroundings(users=users)) == ()
    assert [one.rule for one in engine.disabled] == [identity(1)]


def test_rules_take_turns_to_be_timed() -> None:
    engine = Engine(rules(SHELL, rule_text(2, "{Image: x}")))
    for _ in range(4 * EVERY):
        engine.evaluate(EVENT, NOTHING)
    for count in engine.counts().values():
        assert count.timed == 2
        assert count.nanoseconds > 0


def test_a_rule_that_raises_while_it_is_timed_is_disabled() -> None:
    engine = Engine(rules(rule_text(2, "{User: root, Image: /nowhere}")))
    for _ in range(EVERY):
        engine.evaluate(EVENT, NOTHING)
    assert engine.disabled == []
    engine = Engine(rules(rule_text(2, "{User: root}")))
    engine.events = EVERY - 1
    assert engine.evaluate(EVENT, Surroundings(users=_Failing())) == ()
    assert len(engine.disabled) == 1


def test_lines_of_which_the_middle_was_not_seen_are_counted() -> None:
    engine = Engine(rules(SHELL))
    engine.evaluate(EVENT, NOTHING)
    engine.evaluate(an_exec(b"x" * 20_000), NOTHING)
    assert (engine.events, engine.cut) == (2, 1)


def test_new_rules_count_anew() -> None:
    engine = Engine(rules(SHELL))
    engine.evaluate(EVENT, NOTHING)
    engine.swap(rules(SHELL, rule_text(2, "{Image: /bin/sh}")))
    assert len(engine.evaluate(EVENT, NOTHING)) == 2
    assert engine.counts()[identity(1)].matches == 1
    assert len(engine.rules.rules) == 2


def test_no_rules_say_nothing() -> None:
    assert Engine(rules()).evaluate(EVENT, NOTHING) == ()


def test_a_folder_is_loaded_whole_or_not_at_all(tmp_path: Path) -> None:
    (tmp_path / "deep/er").mkdir(parents=True)
    (tmp_path / "a.yml").write_text(SHELL)
    (tmp_path / "deep/er/b.yaml").write_text(filter_text(1, "{Uid: 0}"))
    (tmp_path / "response.yaml").write_text("- not a rule")
    (tmp_path / "notes.txt").write_text("not a rule")
    loaded = load([tmp_path])
    assert (len(loaded.rules), len(loaded.filters)) == (1, 1)
    (tmp_path / "c.yml").write_text("title: x\n")
    (tmp_path / "d.yml").mkdir()
    with pytest.raises(RulesError) as caught:
        load([tmp_path, tmp_path / "nowhere"])
    said = [str(error) for error in caught.value.errors]
    assert said == [
        f"{tmp_path}/c.yml:1: 'detection' is missing",
        f"{tmp_path}/d.yml:0: no regular file",
        f"{tmp_path}/nowhere:0: no such folder",
    ]
    reading = read([tmp_path])
    assert (len(reading.rules), len(reading.filters)) == (1, 1)
    assert len(reading.errors) == 2


def test_an_id_may_stand_only_once(tmp_path: Path) -> None:
    (tmp_path / "a.yml").write_text(SHELL)
    (tmp_path / "b.yml").write_text(f"# copy\n{SHELL}")
    with pytest.raises(RulesError) as caught:
        load([tmp_path])
    assert str(caught.value) == (
        f"{tmp_path}/b.yml:2: the id {identity(1)} is that of {tmp_path}/a.yml:1"
    )


@pytest.mark.parametrize(
    ("texts", "reason"),
    [
        ([SHELL, filter_text(1, "{DestinationPort: 1}", "network_connection")], "log"),
        (
            [rule_text(1, "{Imgae: x}")],
            "a.yml:9: process_creation has no field 'Imgae'",
        ),
        ([rule_text(1, "[word]")], "process_creation has no keywords"),
        ([rule_text(1, "{a0: x}", "dns")], "a.yml:7: no such log here: category dns"),
        ([rule_text(1, "{type: PATH}", "auditd")], "a.yml:9: no event gives"),
        ([rule_text(1, "{type: EXECVE}", "auditd")], "it fits every EXECVE record"),
    ],
)
def test_rules_that_no_event_can_serve_are_refused(
    texts: list[str], reason: str
) -> None:
    with pytest.raises(RulesError, match=reason):
        rules(*texts)
