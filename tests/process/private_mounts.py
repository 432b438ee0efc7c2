"""Child processes for tests that mount: what they mount goes when they end.

In: a function. Out: what it returned, in a child with a mount namespace of its own. The
machine's own mounts are never touched, whatever becomes of the test.
"""

import ctypes
import os
import pickle
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

T = TypeVar("T")
LIBC = ctypes.CDLL(None, use_errno=True)
NEW_MOUNTS, NEW_PIDS, NEW_TIME = 0x00020000, 0x20000000, 0x00000080
BIND, PRIVATE = 0x1000, 1 << 18 | 0x4000
NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounts, which needs root")


def checked(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def unshare(flags: int) -> None:
    checked(LIBC.unshare(flags))


def lose_rights() -> None:
    """Become nobody, for good."""
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)


def mount(kind: str, place: Path, options: str = "", source: str = "none") -> None:
    name = kind.encode()
    place_ = os.fsencode(place)
    checked(LIBC.mount(source.encode(), place_, name, 0, options.encode()))


def bind(what: Path, place: Path) -> None:
    checked(LIBC.mount(os.fsencode(what), os.fsencode(place), None, BIND, None))


def in_a_child(work: Callable[[], T]) -> T:
    """Run `work` in a fork; what it returns or raises comes back."""
    there, here = os.pipe()
    child = os.fork()
    if not child:
        _run(work, here)
    os.close(here)
    with os.fdopen(there, "rb") as pipe:
        raw = pipe.read()
    os.waitpid(child, 0)
    result, error = pickle.loads(raw) if raw else (None, AssertionError("it died"))
    if error is not None:
        raise error
    return result


def _run(work: Callable[[], T], pipe: int) -> None:
    signal.alarm(60)
    result, error = None, None
    try:
        result = work()
    except BaseException as raised:  # noqa: BLE001 - told to the parent
        error = raised
    try:
        os.write(pipe, pickle.dumps((result, error)))
    finally:
        os._exit(0)


def in_own_mounts(work: Callable[[], T]) -> T:
    """Run `work` in a fork whose mounts nobody else sees."""

    def alone() -> T:
        unshare(NEW_MOUNTS)
        checked(LIBC.mount(None, b"/", None, PRIVATE, None))
        return work()

    return in_a_child(alone)


@contextmanager
def waiting(before: Callable[[], object] = lambda: None) -> Iterator[int]:
    """A child that did `before` and then waits; it ends with the block."""
    ready, done = os.pipe()
    child = os.fork()
    if not child:
        try:
            signal.alarm(60)
            before()
            os.write(done, b".")
            signal.pause()
        finally:
            os._exit(1)
    try:
        os.close(done)
        assert os.read(ready, 1), "it failed before it could wait"
        yield child
    finally:
        os.close(ready)
        end(child)


def end(child: int) -> None:
    """Kill a child of ours, which keeps its number until it is waited for."""
    pidfd = os.pidfd_open(child)
    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    os.close(pidfd)
    os.waitpid(child, 0)
