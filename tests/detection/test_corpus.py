"""Which public Linux rules our events serve, and why the others are refused."""

from collections import Counter
from pathlib import Path

from agent.detection.ruleset import build
from tests.detection.sigma_corpus import needs_corpus, process_rules, reading

pytestmark = needs_corpus

SERVED = {
    "process_creation": 144,
    "auditd": 37,
    "file_event": 18,
    "network_connection": 2,
}
REFUSED = {
    "no such log here: product linux": 16,
    "no such log here: product linux, service auth": 1,
    "no such log here: product linux, service clamav": 1,
    "no such log here: product linux, service cron": 1,
    "no such log here: product linux, service guacamole": 1,
    "no such log here: product linux, service sshd": 3,
    "no such log here: product linux, service sudo": 1,
    "no such log here: product linux, service syslog": 2,
    "no such log here: product linux, service vsftpd": 1,
    "network_connection has no field 'DestinationHostname' here": 3,
    "no event gives what it asks: field key": 2,
    "no event gives what it asks: field name, field nametype, type PATH": 1,
    "no event gives what it asks: field name, type PATH": 8,
    "no event gives what it asks: field name, type PATH, type TTY, type USER_TTY": 1,
    "no event gives what it asks: field unit, type SERVICE_STOP": 1,
    "no event gives what it asks: SYSCALL MKNOD": 1,
    "no event gives what it asks: SYSCALL SOCKET": 1,
    "no event gives what it asks: SYSCALL SYSINFO": 1,
    "no event gives what it asks: SYSCALL SYSLOG": 1,
}


def test_201_of_248_rules_are_served() -> None:
    logs = (rule.logsource for rule in reading().rules)
    assert Counter(log.category or log.service for log in logs) == SERVED


def test_each_of_the_other_47_is_refused_with_a_reason_and_a_line() -> None:
    errors = reading().errors
    assert Counter(error.reason for error in errors) == REFUSED
    for error in errors:
        lines = Path(error.file).read_text(encoding="utf-8").splitlines()
        assert lines[error.line - 1].strip(), error


def test_no_public_rule_is_asked_of_every_event_without_need() -> None:
    """What has neither a name nor four bytes of text to be found by: few rules."""
    matchers = build(reading().rules).matchers
    assert matchers["exec"].always <= 6


def test_all_programs_rules_have_a_name_or_a_piece_of_text() -> None:
    assert len(process_rules()) == 144
    assert build(process_rules()).matchers["exec"].always <= 2
