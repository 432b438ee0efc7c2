"""Questions that may never be answered: they are asked in a child, with a time limit.

In: functions that read something of another process. Out: what they returned, or None
where that took too long. A thread would not do: the kernel may hold it in a hostile
file system where nothing can end it, and no program ends before its threads have.
"""

import contextlib
import os
import select
import signal
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

_DYING_S = 0.1
_SIZE = struct.Struct("<I")
Question = Callable[[], bytes]


def answer(question: Question, limit_s: float) -> bytes | None:
    """Ask one question; empty when it failed, None when it took longer than that."""
    [told] = answers([question], limit_s, limit_s)
    return told


def answers(
    questions: Sequence[Question], limit_s: float, patience_s: float
) -> Iterator[bytes | None]:
    """Ask many in turn, each for at most `limit_s`; empty where one failed.

    None where one took too long, and for all that are left once `patience_s` has been
    lost in that way: whoever blocks many of them does not block us as often.
    """
    asked = 0
    while asked < len(questions) and patience_s > 0:
        with _child(questions[asked:]) as reader:
            while asked < len(questions):
                begun = time.monotonic()
                told = _frame(reader, begun + limit_s)
                asked += 1
                yield told
                if told is None:
                    patience_s -= time.monotonic() - begun
                    break
    yield from (None for _ in questions[asked:])


@contextmanager
def _child(questions: Sequence[Question]) -> Iterator[int]:
    """Yield the pipe from a child that answers; it is killed at the end."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        _tell(questions, writer)
    os.close(writer)
    pidfd = os.pidfd_open(child)
    try:
        yield reader
    finally:
        os.close(reader)
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        _is_ready(pidfd, _DYING_S)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(child, os.WNOHANG)
        os.close(pidfd)


def _tell(questions: Sequence[Question], writer: int) -> NoReturn:
    try:
        os.dup2(writer, 0)
        os.closerange(1, 1 << 20)  # who hangs must hold nothing of ours
        for question in questions:
            told = b""
            with contextlib.suppress(OSError, ValueError):
                told = question()
            said = _SIZE.pack(len(told)) + told
            while said:
                said = said[os.write(0, said) :]
    finally:
        os._exit(0)


def _frame(reader: int, deadline: float) -> bytes | None:
    """Read one answer; empty when the child ended without it."""
    size = _exactly(reader, _SIZE.size, deadline)
    if not size:
        return size
    [length] = _SIZE.unpack(size)
    return _exactly(reader, length, deadline)


def _exactly(reader: int, size: int, deadline: float) -> bytes | None:
    parts = bytearray()
    while len(parts) < size:
        if not _is_ready(reader, deadline - time.monotonic()):
            return None
        part = os.read(reader, size - len(parts))
        if not part:
            return b""
        parts += part
    return bytes(parts)


def _is_ready(fd: int, seconds: float) -> bool:
    waiting = select.poll()
    waiting.register(fd, select.POLLIN)
    return bool(waiting.poll(max(0.0, seconds) * 1000))
