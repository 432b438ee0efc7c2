"""Who a process is, by records that a test wrote and by /proc: no probe is loaded here.

In: records about real children and about processes that there never were. Out: the
document and the lines. tests/kernel/test_checks.py asks a real agent and the kernel.
"""

import json
import os
import subprocess  # noqa: TID251 - somebody to ask about
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agent import clock
from agent.checks import process
from agent.checks.finding import CRITICAL, UNKNOWN, WARNING, Finding
from agent.events import (
    ChainEnd,
    Discrepancy,
    Event,
    Exec,
    Flag,
    Lineage,
    ProcessKey,
    Verdict,
)
from agent.process.ledger import Ledger
from agent.process.lineage import Lineages
from agent.process.look import look
from agent.process.parentage import Parentages
from agent.process.proc import parse_stat
from agent.sinks.record import ClockMap, Host, Renderer
from agent.sinks.segment import SegmentWriter
from tests.builders import (
    HOST_USER_NS,
    INIT,
    NOW,
    SECOND,
    a_fork,
    a_task,
    an_access,
    an_exec,
    an_exit,
    an_image,
)
from tests.process.private_mounts import in_a_child, lose_rights, needs_root

BOOT = clock.boot_id()
TICK_NS = SECOND // os.sysconf("SC_CLK_TCK")
LATE = (1 << 22) + 5
"""Above all pids that there may be: nobody has it."""
HOSTILE = b"\x1b]0;evil\x07\n\xff\xe2\x80\xae"


def entity(key: ProcessKey, boot: str = BOOT) -> str:
    return f"{boot.replace('-', '')[:12]}-{key.tgid}-{key.start_ns:x}"


def key_by_proc(pid: int, rest_ns: int = 4711) -> ProcessKey:
    """The key of a living process, with a rest that /proc does not show."""
    stat = parse_stat(Path(f"/proc/{pid}/stat").read_bytes())
    return ProcessKey(pid, stat.start_ticks * TICK_NS + rest_ns)


def write(state: Path, told: Iterable[Event | Discrepancy], boot: str = BOOT) -> None:
    """Record these as the agent does, with their ancestors and verdicts."""
    host = Host("m", "node", boot, "0", {"user": HOST_USER_NS})
    offset_ns = clock.wall_anchor().offset_ns
    renderer = Renderer(host, ClockMap(offset_ns, "synchronised", 0, 1))
    ledger = Ledger()
    lineages = Lineages(ledger)
    judge = Parentages(ledger, lineages, lambda _: False, lambda _: False)
    with SegmentWriter.open(state / "records", dict) as log:
        for one in told:
            number = log.next_sequence
            if isinstance(one, Discrepancy):
                log.append([renderer.discrepancy(one, None, number)])
                continue
            entry, target = ledger.apply(one), None
            if hasattr(one, "target") and (named := ledger.get(one.target.key)):
                target = (named, Lineage((), ChainEnd.ROOT))
            line, parentage = lineages.of(entry), judge.of(entry, one.task)
            log.append([renderer.render(one, entry, line, number, target, parentage)])


Ask = Callable[[object], Finding]


@pytest.fixture
def ask(tmp_path: Path) -> Ask:
    """Ask about somebody, by the records that were written here."""
    return lambda who: process.check(str(who), tmp_path / "pins", tmp_path)


@pytest.fixture
def child() -> Iterator[int]:
    """A process that lives as long as the test."""
    pipe = subprocess.PIPE
    with subprocess.Popen(["/bin/cat", "-"], stdin=pipe, stdout=pipe) as running:
        assert running.stdin
        assert running.stdout
        running.stdin.write(b".")
        running.stdin.flush()
        running.stdout.read(1)  # Popen may return in the middle of exec
        yield running.pid


def document(found: Finding) -> dict[str, Any]:
    """The document as `--json` prints it; the lines are fit for a terminal."""
    assert all(line.isprintable() for line in found.lines)
    told: dict[str, Any] = json.loads(msgspec.json.encode(found.document))
    return told


def a_life(
    key: ProcessKey, *argv: bytes, parent: ProcessKey = INIT, **facts: Any
) -> list[Event]:
    """Birth, program and end of a process."""
    comm = facts.pop("comm", b"prog")
    image, status = an_image(comm), facts.pop("status", 0)
    task = a_task(
        key.tgid, start_ns=key.start_ns, real_parent=parent, image=image, **facts
    )
    later = {"bt_ns": NOW + SECOND}
    return [
        a_fork(task),
        an_exec(*argv, task=task, executable=b"/opt/prog"),
        an_exit(task, status=status, **later),
    ]


# nobody


@pytest.mark.parametrize("who", [LATE, 0, 4294967296, 9999999999])
def test_nobody_is_could_not_look_and_says_so(ask: Ask, who: int) -> None:
    found = ask(who)
    assert found.exit_code == UNKNOWN
    assert found.lines[0] == f"{who}: no process, and no record of one"
    told = document(found)
    assert list(told) == ["asked", "notes"]
    assert told["asked"] == str(who)
    assert told["notes"] == found.lines


@pytest.mark.parametrize("start", [1, (1 << 64) - 1])
def test_an_entity_that_nobody_heard_of_is_nobody(ask: Ask, start: int) -> None:
    found = ask(entity(ProcessKey(LATE, start)))
    assert found.exit_code == UNKNOWN
    assert found.lines[0].endswith(": no process, and no record of one")


def test_one_of_another_boot_is_not_taken_for_one_of_this(
    ask: Ask, tmp_path: Path
) -> None:
    boot = "01234567-89ab-cdef-0123-456789abcdef"
    key = ProcessKey(LATE, NOW)
    write(tmp_path, a_life(key, b"then"), boot)
    assert ask(LATE).exit_code == UNKNOWN
    assert ask(LATE).lines[0].endswith("no record of one")
    found = ask(entity(key, boot))
    assert found.exit_code == UNKNOWN
    assert "of another boot" in found.lines[0]
    assert f"--where process.entity_id={entity(key, boot)}" in found.lines[0]


# the dead


def test_a_dead_one_has_its_argv_its_birth_and_its_end(
    ask: Ask, tmp_path: Path
) -> None:
    key = ProcessKey(LATE, NOW)
    write(tmp_path, a_life(key, b"prog", b"a b", b"", status=3 << 8))
    for who in (LATE, entity(key)):
        found = ask(who)
        told = document(found)
        assert told["args"] == ["prog", "a b", ""]
        assert (told["executable"], told["name"]) == ("/opt/prog", "prog")
        assert (told["exit_code"], told["signal"], told["lives"]) == (3, None, False)
        assert told["records"] == {"birth": 1, "program": 2, "end": 3}
        assert (told["verdict"], told["verdict_source"]) == ("consistent", "record 2")
        assert told["entity_id"] == entity(key)
        text = "\n".join(found.lines)
        assert "arguments   prog 'a b' ''  (record 2)" in text
        assert f"(record 1), ended {told['ended']}, exit code 3 (record 3)" in text


def test_one_that_was_killed_has_its_signal(ask: Ask, tmp_path: Path) -> None:
    write(tmp_path, a_life(ProcessKey(LATE, NOW), b"prog", status=9))
    found = ask(LATE)
    assert document(found)["signal"] == "SIGKILL"
    assert ", SIGKILL (record 3)" in found.lines[1]


def test_of_one_whose_end_is_missing_it_is_said(ask: Ask, tmp_path: Path) -> None:
    write(tmp_path, a_life(ProcessKey(LATE, NOW), b"prog")[:2])
    found = ask(LATE)
    assert found.lines[1].endswith(", gone: its end is not on record")
    assert (document(found)["lives"], document(found)["ended"]) == (False, None)


def test_the_last_one_that_had_the_pid_is_meant(ask: Ask, tmp_path: Path) -> None:
    first, last = ProcessKey(LATE, NOW), ProcessKey(LATE, NOW + 9)
    write(tmp_path, [*a_life(first, b"first"), *a_life(last, b"last")])
    assert document(ask(LATE))["args"] == ["last"]
    assert document(ask(entity(first)))["args"] == ["first"]


def test_arguments_that_were_cut_are_not_shown_as_all(ask: Ask, tmp_path: Path) -> None:
    born, program, end = a_life(ProcessKey(LATE, NOW), b"prog", b"begin")
    assert isinstance(program, Exec)
    cut = {"argv": program.argv[:-3], "flags": int(Flag.ARGV_CUT)}
    write(tmp_path, [born, msgspec.structs.replace(program, **cut), end])
    found = ask(LATE)
    assert document(found)["args_cut"] is True
    assert any("more was not recorded" in line for line in found.lines)


def test_whatever_an_attacker_chose_is_printed_harmlessly(
    ask: Ask, tmp_path: Path
) -> None:
    key = ProcessKey(LATE, NOW)
    attacker = a_task(LATE + 1, image=an_image(HOSTILE[:15]))
    victim = a_task(LATE, start_ns=NOW, image=an_image(b"]0;evil"))
    life = a_life(key, HOSTILE, b"]0;evil", comm=b"\x1b]0;evil\x07")
    life[1] = msgspec.structs.replace(life[1], executable=b"/tmp/" + HOSTILE)
    write(tmp_path, [*life[:2], an_access(victim, attacker), life[2]])
    found = ask(LATE)
    told = document(found)
    assert told["name"] == "\x1b]0;evil\x07"
    assert told["args"][1] == "]0;evil"
    assert told["args"][0].startswith("\x1b]0;evil\x07\n\\xff")
    assert told["touched_by"][0]["name"].startswith("\x1b]0;evil")
    assert r"\x1b]0;evil" in found.lines[0]


def test_a_discrepancy_on_record_is_critical_and_shown(
    ask: Ask, tmp_path: Path
) -> None:
    key = ProcessKey(LATE, NOW)
    why = "the kernel's chain of tasks does not hold it"
    hidden = Discrepancy(key, Verdict.HIDDEN_FROM_PROC, why, NOW, NOW + 1)
    write(tmp_path, [*a_life(key, b"prog"), hidden])
    found = ask(LATE)
    assert found.exit_code == CRITICAL
    [told] = document(found)["alerts"]
    assert (told["kind"], told["reason"], told["record"]) == (
        *("hidden_from_proc", why),
        4,
    )
    assert any(line.startswith("  ALERT ") and why in line for line in found.lines)


def test_a_record_that_was_changed_is_said_and_left_out(
    ask: Ask, tmp_path: Path
) -> None:
    write(tmp_path, a_life(ProcessKey(LATE, NOW), b"prog", b"innocent"))
    [segment] = (tmp_path / "records").glob("*.jsonl")
    text = segment.read_bytes()
    segment.write_bytes(text.replace(b'"innocent"', b'"innocenT"'))
    found = ask(LATE)
    assert found.exit_code == WARNING
    assert document(found)["records_not_chained"] == 1
    assert document(found)["args"] == []
    assert any("1 records do not verify" in line for line in found.lines)


# the ancestors


def generations(count: int) -> list[Event]:
    """A chain of children, each of the one before; the last is LATE."""
    keys = [INIT, *(ProcessKey(LATE - n, NOW - n) for n in reversed(range(count)))]
    return [
        event
        for parent, key in pairwise(keys)
        for event in a_life(key, b"%d" % key.tgid, parent=parent)[:2]
    ]


@pytest.mark.parametrize("forks_only", [True, False])
def test_forty_generations_are_all_shown(
    ask: Ask, tmp_path: Path, *, forks_only: bool
) -> None:
    told = [one for one in generations(40) if not (forks_only and type(one) is Exec)]
    write(tmp_path, told)
    found = ask(LATE)
    lineage = document(found)["lineage"]
    assert [one["pid"] for one in lineage[:39]] == [LATE - n for n in range(1, 40)]
    assert [one["pid"] for one in lineage[39:]] == [1]
    assert [f"[{LATE - n}]" in "\n".join(found.lines) for n in range(40)]


def test_of_more_generations_than_are_followed_it_is_said(
    ask: Ask, tmp_path: Path
) -> None:
    write(tmp_path, generations(80))
    found = ask(LATE)
    assert document(found)["lineage_end"] == "depth"
    assert "    (there are more of them before)" in found.lines


def test_where_a_parent_is_not_known_the_chain_says_so(
    ask: Ask, tmp_path: Path
) -> None:
    lost = ProcessKey(LATE - 1, NOW - 5)
    write(tmp_path, a_life(ProcessKey(LATE, NOW), b"prog", parent=lost))
    found = ask(LATE)
    told = document(found)
    assert told["lineage_end"] == "unknown parent"
    assert [one["pid"] for one in told["lineage"]] == [lost.tgid]
    assert "    (who comes before is not known)" in found.lines


# the living, by /proc


def lives_on_record(pid: int, *argv: bytes, **facts: int) -> list[Event]:
    """Birth and program of a real child of this process, as they were; or `facts`."""
    now = look(pid)
    assert now is not None
    file = {"ino": now.file.ino, "dev": now.file.dev} | facts
    key, parent = key_by_proc(pid), key_by_proc(os.getpid())
    image = an_image(now.comm, **file)
    task = a_task(pid, start_ns=key.start_ns, real_parent=parent, image=image)
    return [
        a_fork(task),
        an_exec(*argv, task=task, executable=now.executable, invoked=now.executable),
    ]


def test_without_records_and_kernel_proc_tells_and_that_is_said(
    ask: Ask, child: int
) -> None:
    found = ask(child)
    told = document(found)
    assert found.exit_code == UNKNOWN
    assert (told["name"], told["args"]) == ("cat", ["/bin/cat", "-"])
    assert told["program_source"] == "/proc"
    assert (told["verdict"], told["verdict_source"]) == (
        *("unknown_before_start",),
        "/proc",
    )
    assert told["evidence"]["real_parent"]["pid"] == os.getpid()
    assert told["proc"] == {"ppid": os.getpid(), "tracer": 0, "zombie": False}
    assert (told["kernel"], told["entity_is_exact"]) == (None, False)
    assert "(start to the clock tick only)" in found.lines[0]
    assert [one["pid"] for one in told["lineage"]][:2] == [os.getpid(), os.getppid()]
    assert told["lineage"][-1]["pid"] == 1
    assert any("the kernel was not asked: " in note for note in told["notes"])
    assert any(
        "there are no records" in one or "No such" in one for one in told["notes"]
    )


def test_a_record_gives_what_proc_does_not_know(
    ask: Ask, child: int, tmp_path: Path
) -> None:
    write(tmp_path, lives_on_record(child, b"/bin/cat", b"-"))
    for who in (child, entity(key_by_proc(child))):
        found = ask(who)
        told = document(found)
        assert told["entity_id"] == entity(key_by_proc(child))
        assert told["entity_is_exact"]
        assert (told["verdict"], told["verdict_source"]) == ("consistent", "/proc")
        assert told["evidence"]["creator"]["entity_id"] == (
            entity(key_by_proc(os.getpid()))
        )
        assert told["evidence"]["creator"]["source"] == "record 1"
        assert told["lives"]
        assert [one["kind"] for one in told["looks"]] == ["unchanged"]
        assert found.exit_code == UNKNOWN


def test_the_other_who_has_the_pid_now_is_named(
    ask: Ask, child: int, tmp_path: Path
) -> None:
    gone = ProcessKey(child, 4711)
    write(tmp_path, a_life(gone, b"before"))
    found = ask(entity(gone))
    told = document(found)
    assert told["verdict"] == "stale_pid"
    assert (told["pid_is_now"]["pid"], told["pid_is_now"]["name"]) == (child, "cat")
    assert told["pid_is_now"]["entity_id"] != told["entity_id"]
    assert told["args"] == ["before"]
    assert told["parentage"] == "consistent"
    assert told["proc"] is None
    assert any(f"another's: cat[{child}], born " in line for line in found.lines)
    assert document(ask(child))["args"] == ["/bin/cat", "-"]


def test_one_that_nobody_has_waited_for_is_said_to_have_ended(ask: Ask) -> None:
    ended = os.fork()
    if not ended:
        os._exit(0)
    try:
        os.waitid(os.P_PID, ended, os.WEXITED | os.WNOWAIT)
        found = ask(ended)
        assert document(found)["proc"]["zombie"] is True
        assert any("ended and not waited for" in line for line in found.lines)
    finally:
        os.waitpid(ended, 0)


def test_a_name_with_a_line_break_in_proc_is_printed_harmlessly(ask: Ask) -> None:
    def rename_and_ask() -> Finding:
        Path("/proc/self/comm").write_bytes(b"\x1b]0;evil\n")
        return ask(os.getpid())

    found = in_a_child(rename_and_ask)
    assert document(found)["name"].startswith("\x1b]0;evil")


def test_what_it_looks_like_is_held_against_its_record(
    ask: Ask, child: int, tmp_path: Path
) -> None:
    write(tmp_path, lives_on_record(child, b"/bin/cat", b"-", ino=4711))
    found = ask(child)
    assert [one["kind"] for one in document(found)["looks"]] == ["exe_exchanged"]
    assert found.exit_code == WARNING
    assert any(line.startswith("  ALARM ") for line in found.lines)


@needs_root
def test_who_may_not_read_the_records_gets_the_word_of_proc(
    ask: Ask, child: int, tmp_path: Path
) -> None:
    write(tmp_path, lives_on_record(child, b"/bin/cat"))
    (tmp_path / "records").chmod(0o700)

    def as_nobody() -> Finding:
        lose_rights()
        return ask(child)

    found = in_a_child(as_nobody)
    told = document(found)
    assert found.exit_code == UNKNOWN
    assert told["args"] == ["/bin/cat", "-"]
    assert told["evidence"]["real_parent"]["pid"] == os.getpid()
    assert "the kernel was not asked: that takes root" in told["notes"]
    assert any("Permission denied" in note for note in told["notes"])


def test_a_record_that_is_met_in_several_searches_is_counted_once(
    ask: Ask, tmp_path: Path
) -> None:
    write(tmp_path, generations(5))
    [segment] = (tmp_path / "records").glob("*.jsonl")
    births = b'"action":"fork","outcome":"success"'
    text = segment.read_bytes()
    segment.write_bytes(text.replace(births, births.replace(b"ss", b"SS")))
    assert document(ask(LATE))["records_not_chained"] == 5
