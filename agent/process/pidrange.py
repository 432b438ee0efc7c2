"""Which processes exist, asked of the kernel number by number.

In: a range of pids, and a procfs in which threads are told from processes. Out: which
of them exist, by two calls that have nothing in common but the kernel's table of pids:
whoever hides a process from one of them shows it by the difference.
"""

import errno
import os
import select
from collections.abc import Callable, Collection, Iterable
from contextlib import ExitStack
from typing import NamedTuple

from agent.errors import NotPermittedError
from agent.process.proc import Proc

PID_LIMIT = 1 << 22
"""No pid of any 64-bit kernel reaches this, whatever pid_max is now or was before."""
_BLOCK = 1 << 14
_LOOKS = 3
_HELD = 256
"""Processes watched at a time; each takes a descriptor."""
_NOT_A_LEADER = {errno.EINVAL, errno.ENOENT}
"""What pidfd_open says of a thread that leads no process: older kernels, newer ones."""


class Existing(NamedTuple):
    """Processes by the call that found them, and the threads, which are no processes.

    A process that only one call found, in each of three looks, is in one set only.
    """

    by_pidfd: set[int]
    by_group: set[int]
    threads: set[int]


def existing(
    first: int, last: int, tell: Callable[[int, int], None], proc: Proc
) -> Existing:
    """Find the processes and threads with a pid from `first` to `last`, both included.

    `tell(done, total)` is called after each 16,384 numbers and at the end. `proc` tells
    threads from processes and should be a private one: a mount over /proc/PID can make
    a process look like a thread. NotPermittedError when there is no pidfd_open here.
    """
    _require_pidfd()
    pids = range(max(first, 1), min(last + 1, PID_LIMIT))
    found = Existing(set(), set(), set())
    for start in range(0, len(pids), _BLOCK):
        block = pids[start : start + _BLOCK]
        _look(block, proc, found)
        tell(start + len(block), len(pids))
    return found


def unlisted(pids: Iterable[int], shown: Proc, proc: Proc) -> set[int]:
    """Of these processes, keep those that `shown` does not list though they live.

    Each was missing twice, and lived from before the second listing to after it: a
    process that was born or has ended meanwhile is never among them. `proc` tells
    threads from processes, as above.
    """
    missing = sorted(set(pids) - shown.pids())
    return {
        pid
        for start in range(0, len(missing), _HELD)
        for pid in _outlived(missing[start : start + _HELD], shown, proc)
    }


def _require_pidfd() -> None:
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.EPERM):
            raise
        raise NotPermittedError(f"no pidfd_open here: {error.strerror}") from error


def _look(pids: Collection[int], proc: Proc, found: Existing) -> None:
    """Add who is there; where the calls differ, one of them may have come too late."""
    for looks_left in reversed(range(_LOOKS)):
        leaders, known = _by_pidfd(pids), _by_group(pids)
        threads = {tid for tid in known - leaders if _is_thread(tid, proc)}
        differ = (leaders ^ known) - threads
        open_ = differ if looks_left else set()
        found.by_pidfd.update(leaders - open_)
        found.by_group.update(known - threads - open_)
        found.threads.update(threads)
        pids = open_
        if not pids:
            return


def _by_pidfd(pids: Iterable[int]) -> set[int]:
    found = set()
    for pid in pids:
        try:
            os.close(os.pidfd_open(pid))
            found.add(pid)
        except ProcessLookupError:
            pass
        except OSError as error:
            if error.errno not in _NOT_A_LEADER:
                raise
    return found


def _by_group(pids: Iterable[int]) -> set[int]:
    found = set()
    for pid in pids:
        try:
            os.getpgid(pid)
        except ProcessLookupError:
            continue
        except PermissionError:
            pass  # who is refused has found someone
        found.add(pid)
    return found


def _is_thread(tid: int, proc: Proc) -> bool:
    status = proc.status(tid)
    return status is not None and status.tgid != tid


def _outlived(pids: list[int], shown: Proc, proc: Proc) -> set[int]:
    with ExitStack() as held:
        watched = {pid: fd for pid in pids if (fd := _held(pid, held)) is not None}
        # a process that is hidden from pidfd_open can't be held, only asked for again
        others = _by_group(pid for pid in pids if pid not in watched)
        listed = shown.pids()
        alive = {pid for pid, fd in watched.items() if not _ended(fd)}
        again = {pid for pid in _by_group(others) if not _is_thread(pid, proc)}
        return (alive | again) - listed


def _held(pid: int, held: ExitStack) -> int | None:
    try:
        fd = os.pidfd_open(pid)
    except OSError as error:
        if error.errno in {errno.ESRCH, *_NOT_A_LEADER}:
            return None
        raise
    held.callback(os.close, fd)
    return fd


def _ended(pidfd: int) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))
