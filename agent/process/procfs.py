"""What /proc says about a process that was running before the agent.

In: a task as the kernel's own list gave it. Out: its executable and argv, if /proc
still shows the same process. What /proc gives is the process's word of now, not of
its exec, so the ledger marks it `observed`.
"""

import os
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec
import psutil

from agent.events import ProcessKey, Task
from agent.process.asking import answers
from agent.process.proc import TICK_NS, Stat, parse_stat, parse_status


class Description(NamedTuple):
    """Executable path, and argv as raw memory (NUL after every argument)."""

    executable: bytes
    argv: bytes


_NOTHING = Description(b"", b"")

_LIMIT_S, _PATIENCE_S = 0.25, 5.0


def described(tasks: Sequence[Task]) -> Iterator[Description]:
    """Describe many; empty also where reading an argv would not end (agent.asking).

    A process can block whoever reads its arguments for as long as it likes.
    """
    told = answers([partial(_packed, task) for task in tasks], _LIMIT_S, _PATIENCE_S)
    for one in told:
        yield msgspec.msgpack.decode(one, type=Description) if one else _NOTHING


def _packed(task: Task) -> bytes:
    return msgspec.msgpack.encode(describe(task))


def program(task: Task) -> Description:
    """Read the executable alone, which nobody can block."""
    try:
        link = os.fsencode(Path(f"/proc/{task.key.tgid}/exe").readlink())
    except OSError:
        return _NOTHING
    path = link.removesuffix(b" (deleted)")
    return Description(path, b"") if alive(task.key) else _NOTHING


def describe(task: Task, proc: Path = Path("/proc")) -> Description:
    """Read executable and argv; empty where the process is gone or has none.

    May never return: for questions with a time limit, or of one's own processes.
    """
    folder = proc / str(task.key.tgid)
    try:
        argv = (folder / "cmdline").read_bytes()
        executable = os.fsencode(psutil.Process(task.key.tgid).exe())
        stat = parse_stat((folder / "stat").read_bytes())
        if stat.start_ticks == task.key.start_ns // TICK_NS:
            return Description(executable, argv)
    except (OSError, psutil.Error, ValueError):
        pass
    return _NOTHING


def alive(key: ProcessKey, proc: Path = Path("/proc")) -> bool:
    """Whether /proc shows this very process, and a thread of it has not ended."""
    stat = _stat(key, proc)
    return stat is not None and not stat.ended


def ended(key: ProcessKey, proc: Path = Path("/proc")) -> bool:
    """Whether /proc shows this very process as one that nobody has waited for."""
    stat = _stat(key, proc)
    return stat is not None and stat.ended


def _stat(key: ProcessKey, proc: Path) -> Stat | None:
    try:
        stat = parse_stat((proc / str(key.tgid) / "stat").read_bytes())
    except (OSError, ValueError):
        return None
    return stat if stat.start_ticks == key.start_ns // TICK_NS else None


def reaps(key: ProcessKey, proc: Path = Path("/proc")) -> bool:
    """Whether this process is the init of a pid namespace."""
    try:
        status = parse_status((proc / str(key.tgid) / "status").read_bytes())
    except (OSError, ValueError):
        return False
    return status.pids[-1:] == (1,) and alive(key, proc)
