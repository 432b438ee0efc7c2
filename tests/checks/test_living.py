"""Whose word is taken: of the kernel, of /proc, or of neither where they can't agree.

In: real processes, and a kernel that a test plays, so that it can say anything. Out:
what is said of them, also where the mounted /proc is covered or of other namespaces.
"""

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from agent.checks import process
from agent.checks.family import Family
from agent.checks.finding import CRITICAL, UNKNOWN, WARNING, Finding
from agent.checks.living import Living
from agent.events import NOBODY, ProcessKey, Task
from agent.process.proc import Proc
from agent.sensor.tasks import TaskViews
from agent.sinks.search import Search
from tests.builders import INIT, a_fork, a_task
from tests.checks.test_process import (
    BOOT,
    LATE,
    a_life,
    document,
    entity,
    key_by_proc,
    write,
)
from tests.process.private_mounts import (
    LIBC,
    NEW_PIDS,
    NEW_TIME,
    bind,
    checked,
    in_a_child,
    in_own_mounts,
    mount,
    needs_root,
    unshare,
    waiting,
)

PROC = Path("/proc")
SEIZE, DETACH = 0x4206, 17


class Kernel:
    """Says of every pid what a test wants it to."""

    def __init__(self, task: Task | None) -> None:
        self.task = task

    def one(self, pid: int) -> Task | None:
        return self.task if self.task and self.task.key.tgid == pid else None


def living(task: Task | None) -> Living:
    """By this kernel and the machine's /proc; its descriptors last as the test does."""
    views = cast("TaskViews", Kernel(task))
    return Living(views, Proc.mounted(), Proc.private())


def told(pid: int, parent: int, tracer: int = 0) -> Task:
    """The Task of a real process, with these as parent and tracer."""
    key, real_parent = key_by_proc(pid), ProcessKey(parent, 1)
    task = a_task(pid, start_ns=key.start_ns, real_parent=real_parent)
    held = {"parent": ProcessKey(tracer, 1), "ptrace": 1} if tracer else {}
    return msgspec.structs.replace(task, **held)


@pytest.fixture
def child() -> Iterator[int]:
    with waiting() as pid:
        yield pid


def ask(who: object, state: Path) -> Finding:
    return process.check(str(who), state / "pins", state)


# Kernel against /proc


@needs_root
def test_two_sources_that_agree_say_nothing(child: int) -> None:
    task = told(child, os.getpid())
    assert living(task).disagreements(task.key) == []


@needs_root
def test_a_parent_that_differs_is_told_with_both(child: int) -> None:
    task = told(child, 1)
    said = f"its parent is 1 by kernel, {os.getpid()} by /proc"
    assert living(task).disagreements(task.key) == [said]


@needs_root
def test_a_tracer_that_proc_does_not_show_is_told(child: int) -> None:
    task = told(child, os.getpid(), tracer=1)
    said = "its tracer is 1 by kernel, nobody by /proc"
    assert living(task).disagreements(task.key) == [said]


@needs_root
def test_a_thread_that_traces_is_its_process(child: int) -> None:
    found: list[list[str]] = []

    def trace() -> None:
        checked(LIBC.ptrace(SEIZE, child, None, None))
        task = told(child, os.getpid(), tracer=os.getpid())
        found.append(living(task).disagreements(task.key))

    thread = threading.Thread(target=trace)
    thread.start()
    thread.join()
    assert found == [[]]


def shown_in(work: Callable[[], Any], flags: int) -> Any:
    def apart() -> Any:
        unshare(flags)
        if flags == NEW_TIME:
            Path("/proc/self/timens_offsets").write_text("boottime 4711 0\n")
        return in_a_child(work)

    return in_own_mounts(apart)


@needs_root
@pytest.mark.parametrize("flags", [NEW_TIME, NEW_PIDS])
def test_where_proc_can_t_be_compared_the_kernel_s_word_stands(
    child: int, flags: int
) -> None:
    task = told(child, 1)

    def work() -> tuple[Any, ...]:
        here = living(task)
        gone = living(None)
        return (
            here.differs(task.key),
            here.disagreements(task.key),
            gone.misses_none(child),
        )

    assert shown_in(work, flags) == ((True, True), [], False)


@needs_root
@pytest.mark.parametrize("flags", [NEW_TIME, NEW_PIDS])
def test_by_a_proc_that_can_t_be_compared_nobody_is_gone_or_consistent(
    child: int, tmp_path: Path, flags: int
) -> None:
    key, parent = key_by_proc(child), key_by_proc(os.getpid())
    task = a_task(child, start_ns=key.start_ns, real_parent=parent)
    write(tmp_path, [a_fork(task)])
    found = shown_in(lambda: ask(entity(key), tmp_path), flags)
    shown = document(found)
    assert (found.exit_code, shown["lives"]) == (UNKNOWN, None)
    assert shown["verdict_source"].startswith("record ")
    assert any("/proc can't be compared: " in one for one in found.lines)
    assert not any("gone" in line for line in found.lines)


@needs_root
def test_a_parent_that_such_a_proc_does_not_know_is_not_forged(
    child: int, tmp_path: Path
) -> None:
    start = key_by_proc(child).start_ns
    born = a_task(child, start_ns=start, real_parent=ProcessKey(LATE, 5))
    init = a_task(1, start_ns=INIT.start_ns, real_parent=NOBODY)
    parent = a_life(ProcessKey(LATE, 5), b"parent")
    write(tmp_path, [a_fork(init), *parent, a_fork(born)])
    task = told(child, os.getpid())

    def verdict() -> str:
        here = living(task)
        boot = BOOT.replace("-", "")[:12]
        family = Family(Search(tmp_path / "records"), here, boot)
        family.gather(task.key)
        judged = family.verdict(task.key)
        return str(judged.verdict) if judged else ""

    assert in_a_child(verdict) == "forged"
    assert shown_in(verdict, NEW_TIME) == "reparented"


@needs_root
def test_in_a_foreign_proc_a_pid_is_nobody_s(child: int, tmp_path: Path) -> None:
    found = shown_in(lambda: ask(child, tmp_path), NEW_PIDS)
    assert found.exit_code == UNKNOWN
    assert "whether it is a process can't be said" in found.lines[0]


@needs_root
def test_in_a_time_namespace_who_is_shown_has_no_verdict(
    child: int, tmp_path: Path
) -> None:
    found = shown_in(lambda: ask(child, tmp_path), NEW_TIME)
    shown = document(found)
    assert (found.exit_code, shown["lives"], shown["verdict"]) == (UNKNOWN, True, None)


# What is mounted over it


@needs_root
def test_one_whose_folder_is_covered_is_hidden(child: int, tmp_path: Path) -> None:
    def work() -> Finding:
        mount("tmpfs", PROC / str(child), source="veil")
        return ask(child, tmp_path)

    found = in_own_mounts(work)
    shown = document(found)
    assert found.exit_code == CRITICAL
    assert (shown["verdict"], shown["proc"]) == ("hidden_from_proc", None)
    over = f"a tmpfs (source veil) is mounted over /proc/{child}"
    assert (shown["covered"], shown["looks"]) == ([over], [])
    assert f"  COVERED     {over}" in found.lines
    assert shown["evidence"]["real_parent"]["pid"] == os.getpid()


@needs_root
def test_of_a_covered_file_it_is_said_and_it_is_not_read(
    child: int, tmp_path: Path
) -> None:
    def work() -> Finding:
        bind(PROC / "1/stat", PROC / f"{child}/stat")
        return ask(child, tmp_path)

    found = in_own_mounts(work)
    shown = document(found)
    assert found.exit_code == WARNING
    assert shown["verdict"] == "unknown_before_start"
    assert shown["evidence"]["real_parent"]["pid"] == os.getpid()
    [over] = shown["covered"]
    assert over.endswith(f"is mounted over /proc/{child}/stat")
    assert any("not believed" in line for line in found.lines)


@needs_root
def test_a_cover_of_a_parent_is_not_the_child_s(child: int, tmp_path: Path) -> None:
    parent = os.getpid()

    def work() -> Finding:
        mount("tmpfs", PROC / str(parent))
        return ask(child, tmp_path)

    shown = document(in_own_mounts(work))
    assert shown["covered"] == []
    assert [one["pid"] for one in shown["lineage"]][:1] == [parent]


# What needs no record


def _comm(name: bytes) -> Callable[[], object]:
    return lambda: Path("/proc/self/comm").write_bytes(name)


@needs_root
def test_without_an_exec_a_name_of_a_kernel_thread_is_an_alarm(tmp_path: Path) -> None:
    with waiting(_comm(b"kworker/0:1")) as pid:
        found = ask(pid, tmp_path)
    [look] = document(found)["looks"]
    assert (look["kind"], look["weight"]) == ("kernel_thread_lookalike", "alarm")
    assert found.exit_code == WARNING


def test_without_an_exec_any_other_name_is_none(tmp_path: Path) -> None:
    with waiting(_comm(b"worker/0:1")) as pid:
        assert document(ask(pid, tmp_path))["looks"] == []


def test_who_used_records_says_that_their_chain_was_not_verified(
    child: int, tmp_path: Path
) -> None:
    said = "  the chain of the log was not verified as a whole: ir-check verify"
    assert said not in ask(child, tmp_path).lines
    task = a_task(child, start_ns=key_by_proc(child).start_ns)
    write(tmp_path, [a_fork(task)])
    assert ask(child, tmp_path).lines[-1] == said
