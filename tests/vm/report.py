"""What came out of the guests: read their JUnit files, judge each, print tables.

In: a guest's share and how the guest ended. Out: a `Result`, whose `wrong` is empty
only when tests ran, all of them passed, and none was skipped for what the guest lacks.
"""

import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from tests.vm.machine import Outcome

# A guest has its host's libraries, and a host need not have those for 32-bit programs.
MAY_SKIP = (
    "this machine's gcc cannot build",
    "the kernel of this virtual machine refuses",  # IR_REFUSED, a list of its own
    "this rung sees only the ways that the senses see",
    "the caller would be the guarded process itself",
    "gdb is not installed",
)
SLOWEST = 12
SHOWN, SAID = 10, 300
LINES = 40


class Report(NamedTuple):
    """A JUnit file in short: each failed test and its words, and reasons to skip."""

    tests: int
    failed: tuple[tuple[str, str], ...]
    skipped: tuple[str, ...]
    seconds: Counter[str]


class Result(NamedTuple):
    """One guest's row."""

    guest: str
    outcome: Outcome
    report: Report
    excluded: int
    wrong: str


NOTHING = Report(0, (), (), Counter())


def read(path: Path) -> Report:
    """Read a JUnit file; one that is missing or cut off has no test in it."""
    try:
        cases = list(ET.parse(path).iter("testcase"))
    except (OSError, ET.ParseError):
        return NOTHING
    seconds: Counter[str] = Counter()
    for case in cases:
        file = f"{case.get('classname', '').replace('.', '/')}.py"
        seconds[file] += float(case.get("time", 0))
    skips = [skip.get("message", "") for case in cases for skip in case.iter("skipped")]
    failed = [
        (case.get("name", ""), " ".join(bad.get("message", "").split())[:SAID])
        for case in cases
        for bad in (*case.iter("failure"), *case.iter("error"))
    ]
    return Report(len(cases), tuple(failed), tuple(skips), seconds)


def judge(outcome: Outcome, report: Report) -> str:
    """Say what is wrong with a guest, or nothing."""
    unmet = [why for why in report.skipped if not why.startswith(MAY_SKIP)]
    if outcome.wrong:
        return outcome.wrong
    if report.failed:
        return f"{len(report.failed)} failed"
    if report.tests == len(report.skipped):
        return "no test ran"
    if unmet:
        return f"{len(unmet)} skipped: {unmet[0]}"
    return f"pytest ended with {outcome.status}" if outcome.status else ""


def table(results: Iterable[Result]) -> Iterator[str]:
    """One line a guest."""
    yield f"{'GUEST':22} TESTS FAILED SKIPPED EXCLUDED  BOOT   ALL  RESULT"
    for guest, outcome, report, excluded, wrong in results:
        counts = (report.tests, len(report.failed), len(report.skipped), excluded)
        yield (
            f"{guest:22} {'{:5} {:6} {:7} {:8}'.format(*counts)} "
            f"{outcome.boot_s:4.0f}s {outcome.all_s:4.0f}s  {wrong or 'ok'}"
        )


def skips(results: Iterable[Result]) -> Iterator[str]:
    """One line for each reason to skip in a guest."""
    for result in results:
        for reason, count in Counter(result.report.skipped).items():
            yield f"{result.guest}: {count} skipped: {reason}"


def slowest(results: Iterable[Result]) -> Iterator[str]:
    """The test files that took longest, and in which guest; the first one of a guest
    also pays for the start of its agent."""
    rows = [
        (seconds, file, result.guest)
        for result in results
        for file, seconds in result.report.seconds.items()
    ]
    for seconds, file, guest in sorted(rows, reverse=True)[:SLOWEST]:
        yield f"{seconds:5.0f}s  {file}  {guest}"


def _by_words(failed: Iterable[tuple[str, str]]) -> Iterator[str]:
    """One line for all tests that failed alike, such as those without an agent."""
    alike: dict[str, list[str]] = {}
    for name, words in failed:
        alike.setdefault(words, []).append(name)
    for words, (first, *more) in alike.items():
        yield f"{first}{f' and {len(more)} more' if more else ''}: {words}"


def reasons(report: Report, *logs: Path) -> list[str]:
    """What to show of a guest that is not well: its failures, or the end of a log."""
    if report.failed:
        return [*_by_words(report.failed)][:SHOWN]
    for log in logs:
        if log.exists() and (text := log.read_text(errors="replace").strip()):
            return text.splitlines()[-LINES:]
    return []
