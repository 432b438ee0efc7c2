"""Who exists: found by two calls, and who hides from one of them is told."""

import ctypes
import errno
import os
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from agent.errors import NotPermittedError
from agent.process.pidrange import PID_LIMIT, Existing, existing, unlisted
from agent.process.proc import Proc
from tests.process.private_mounts import (
    LIBC,
    checked,
    end,
    in_a_child,
    in_own_mounts,
    lose_rights,
    mount,
    needs_root,
    waiting,
)

PIDFD_OPEN = 434
GETPGID = {"x86_64": 121, "aarch64": 155}
NO_NEW_PRIVILEGES, SECCOMP = 38, 22


def look(first: int, last: int) -> Existing:
    with Proc.mounted() as proc:
        return existing(first, last, lambda _done, _total: None, proc)


def refuse(call: int, pid: int, error: int = errno.ESRCH) -> None:
    """Have the kernel deny, in this process, that a pid exists: 0 for every pid."""
    program = [
        (0x20, 0, 0, 0),  # the call's number
        (0x15, 0, 3, call),
        (0x20, 0, 0, 16),  # its first argument
        (0x15, 0 if pid else 1, 1 if pid else 0, pid),
        (0x06, 0, 0, 0x00050000 | error),
        (0x06, 0, 0, 0x7FFF0000),
    ]
    if not pid:
        program[3] = (0x15, 0, 0, 0)  # any
    raw = ctypes.create_string_buffer(
        b"".join(struct.pack("=HBBI", *line) for line in program)
    )
    filter_ = struct.pack("@HP", len(program), ctypes.addressof(raw))
    checked(LIBC.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0))
    checked(LIBC.prctl(SECCOMP, 2, filter_, 0, 0))


@contextmanager
def a_zombie() -> Iterator[int]:
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    try:
        yield child
    finally:
        os.waitpid(child, 0)


@contextmanager
def a_thread() -> Iterator[int]:
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait)
    thread.start()
    try:
        yield thread.native_id or 0
    finally:
        ended.set()
        thread.join()


@contextmanager
def a_storm() -> Iterator[Callable[[], object]]:
    """A child that forks all the time; the function waits for one more birth."""
    ready, done = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.close(ready)
            while os.write(done, b"."):
                one = os.fork()
                if one:
                    os.waitpid(one, 0)
                else:
                    os._exit(0)
        finally:
            os._exit(1)
    os.close(done)
    try:
        yield lambda: checked(len(os.read(ready, 1)) - 1)
    finally:
        os.close(ready)
        end(child)


# The range


def test_every_process_is_found_by_both_calls_and_threads_are_told_apart() -> None:
    with waiting() as child, a_zombie() as zombie, a_thread() as tid:
        found = look(1, PID_LIMIT >> 4)
    assert {1, os.getpid(), child, zombie} <= found.by_pidfd & found.by_group
    assert tid in found.threads
    assert found.threads.isdisjoint(found.by_pidfd | found.by_group)


def test_who_has_ended_is_not_found() -> None:
    with waiting() as child:
        assert look(child, child) == ({child}, {child}, set())
    assert look(child, child) == (set(), set(), set())


def test_both_ends_belong_to_the_range() -> None:
    with waiting() as child:
        assert look(child - 1, child).by_pidfd >= {child}
        assert look(child, child + 1).by_pidfd >= {child}
        assert child not in look(child + 1, child + 9).by_pidfd
        assert child not in look(child - 1, child - 1).by_pidfd


def test_numbers_that_no_process_can_have_are_not_asked_for() -> None:
    assert look(-5, 0) == look(7, 6) == (set(), set(), set())
    assert look(PID_LIMIT - 3, 1 << 70) == (set(), set(), set())


def test_progress_is_told_up_to_the_end() -> None:
    told = []
    with Proc.mounted() as proc:
        existing(100_001, 140_000, lambda *one: told.append(one), proc)
    assert told == [(16384, 40_000), (32768, 40_000), (40_000, 40_000)]


def test_no_descriptor_is_left() -> None:
    before = {one.name for one in Path("/proc/self/fd").iterdir()}
    with waiting():
        found = look(1, 32768)
    with Proc.mounted() as proc:
        unlisted(found.by_pidfd, proc, proc)
    assert {one.name for one in Path("/proc/self/fd").iterdir()} == before


@pytest.mark.parametrize("error", [errno.ESRCH, errno.EINVAL, errno.ENOENT])
def test_who_hides_from_one_call_is_found_by_the_other(error: int) -> None:
    with waiting() as child:

        def work() -> Existing:
            refuse(PIDFD_OPEN, child, error)
            return look(child, child)

        assert in_a_child(work) == (set(), {child}, set())


def test_who_hides_from_the_other_call_is_found_by_the_first() -> None:
    call = GETPGID.get(os.uname().machine)
    if call is None:
        pytest.skip("getpgid has no known number here")
    with waiting() as child:

        def work() -> Existing:
            refuse(call, child)
            return look(child, child)

        assert in_a_child(work) == ({child}, set(), set())


def test_who_is_refused_has_found_someone() -> None:
    call = GETPGID.get(os.uname().machine)
    if call is None:
        pytest.skip("getpgid has no known number here")
    with waiting() as child:

        def work() -> Existing:
            refuse(call, child, errno.EPERM)
            return look(child, child)

        assert in_a_child(work) == ({child}, {child}, set())


@pytest.mark.parametrize("error", [errno.ENOSYS, errno.EPERM])
def test_a_kernel_without_the_call_is_told(error: int) -> None:
    def work() -> None:
        refuse(PIDFD_OPEN, 0, error)
        look(1, 10)

    with pytest.raises(NotPermittedError, match="no pidfd_open here"):
        in_a_child(work)


# Who is not listed


def test_nobody_is_missing_from_an_honest_list_in_a_storm_of_births() -> None:
    with a_storm() as blows, Proc.mounted() as proc:
        for _ in range(10):
            blows()
            found = look(1, proc.pid_max())
            assert unlisted(found.by_pidfd | found.by_group, proc, proc) == set()


def test_who_lives_and_is_not_listed_is_told_but_not_who_has_ended(
    tmp_path: Path,
) -> None:
    with waiting() as gone:
        pass
    with (
        ExitStack() as many,
        a_zombie() as zombie,
        a_thread() as tid,
        Proc.mounted(tmp_path) as nobody,
        Proc.mounted() as proc,
    ):
        living = {many.enter_context(waiting()) for _ in range(300)}
        asked = living | {gone, zombie, tid, os.getpid()}
        assert unlisted(asked, nobody, proc) == living | {os.getpid()}


@needs_root
def test_who_hides_from_the_list_and_from_one_call_is_told(tmp_path: Path) -> None:
    with waiting() as child:

        def work() -> tuple[set[int], set[int]]:
            mount("proc", tmp_path, "hidepid=2")
            with Proc.mounted() as honest, Proc.mounted(tmp_path) as hiding:
                lose_rights()
                refuse(PIDFD_OPEN, child)
                asked = {child, os.getpid()}
                return (
                    unlisted(asked, honest, honest),
                    unlisted(asked, hiding, honest),
                )

        assert in_own_mounts(work) == (set(), {child})
