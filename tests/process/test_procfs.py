"""What /proc is believed: only about the very process that was asked about."""

import os
import shutil
import subprocess  # noqa: TID251 - starts processes to look at
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent.events import Task
from agent.process.procfs import Description, alive, describe, reaps
from tests.builders import SECOND, a_key, a_task

TICK_NS = SECOND // os.sysconf("SC_CLK_TCK")
NOTHING = Description(b"", b"")


def start_ns(pid: int) -> int:
    """When a process started, as exactly as /proc says."""
    stat = Path(f"/proc/{pid}/stat").read_bytes()
    return int(stat.rpartition(b") ")[2].split()[19]) * TICK_NS


def task_of(pid: int) -> Task:
    return a_task(pid, start_ns=start_ns(pid))


@contextmanager
def running(program: Path) -> Iterator[int]:
    """A copy of sleep under another name, which ends with the block."""
    shutil.copy(shutil.which("sleep") or "/bin/sleep", program)
    with subprocess.Popen([program, "600"]) as child:
        try:
            # the kernel lets its parent go on before argv is in its place
            while not Path(f"/proc/{child.pid}/cmdline").read_bytes():
                assert child.poll() is None
            yield child.pid
        finally:
            child.kill()


def test_the_own_process_is_described() -> None:
    found = describe(task_of(os.getpid()))
    assert found.executable == os.fsencode(os.path.realpath(sys.executable))
    assert found.argv == Path("/proc/self/cmdline").read_bytes()


def test_another_start_within_a_tick_is_the_same_process() -> None:
    task = a_task(os.getpid(), start_ns=start_ns(os.getpid()) + TICK_NS - 1)
    assert describe(task) != NOTHING


@pytest.mark.parametrize("ticks", [-1, 1, 1000])
def test_another_process_with_that_pid_is_not_described(ticks: int) -> None:
    own = start_ns(os.getpid())
    task = a_task(os.getpid(), start_ns=max(0, own + ticks * TICK_NS))
    assert describe(task) == NOTHING


@pytest.mark.parametrize("name", ["a) S 1 (b", "x y z", ") ", "(("])
def test_brackets_and_blanks_in_a_name_do_not_shift_its_start(
    tmp_path: Path, name: str
) -> None:
    program = tmp_path / name
    with running(program) as pid:
        found = describe(task_of(pid))
    assert found.executable == os.fsencode(program)
    assert found.argv == os.fsencode(program) + b"\0" + b"600\0"


def test_a_process_that_is_gone_has_no_description(tmp_path: Path) -> None:
    with running(tmp_path / "soon-gone") as pid:
        task = task_of(pid)
    assert describe(task) == NOTHING


def test_a_process_whose_start_can_t_be_read_has_no_description(tmp_path: Path) -> None:
    folder = tmp_path / str(os.getpid())
    folder.mkdir()
    (folder / "cmdline").write_bytes(b"x\0")
    for stat in (b"", b"1 (x", b"1 (x) S 1", b"1 (x) " + b"x " * 30):
        (folder / "stat").write_bytes(stat)
        assert describe(task_of(os.getpid()), tmp_path) == NOTHING


def test_a_kernel_thread_has_no_program() -> None:
    if not Path("/proc/2/comm").exists():
        pytest.skip("kernel threads are not shown here")
    if Path("/proc/2/cmdline").read_bytes():
        pytest.skip("pid 2 is no kernel thread here")
    assert describe(task_of(2)) == NOTHING


def test_who_has_ended_and_was_not_waited_for_does_not_live() -> None:
    """Its parent is another one by now, which nobody has forged."""
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        key = a_key(child.pid, start_ns(child.pid))
        assert Path(f"/proc/{child.pid}/stat").read_bytes().split()[2] == b"Z"
        assert not alive(key)
        assert not reaps(key)


def test_a_process_whose_first_thread_has_ended_lives() -> None:
    program = """
import ctypes, sys, threading
threading.Thread(target=sys.stdin.read).start()
ctypes.CDLL(None).pthread_exit(None)
"""
    argv = [sys.executable, "-c", program]
    with subprocess.Popen(argv, stdin=subprocess.PIPE) as child:
        stat = Path(f"/proc/{child.pid}/stat")
        try:
            while stat.read_bytes().rpartition(b") ")[2][:1] != b"Z":
                assert child.poll() is None
            assert alive(a_key(child.pid, start_ns(child.pid)))
        finally:
            child.kill()


@pytest.mark.parametrize("ticks", [-1, 1])
def test_who_has_the_pid_at_another_time_is_not_the_one_that_lives(ticks: int) -> None:
    own = start_ns(os.getpid())
    assert alive(a_key(os.getpid(), own))
    assert not alive(a_key(os.getpid(), own + ticks * TICK_NS))
