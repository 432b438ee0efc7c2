"""What /proc says about a process that was running before the agent.

In: a task as the kernel's own list gave it. Out: its executable and argv, if /proc
still shows the same process. What /proc gives is the process's word of now, not of
its exec, so the ledger marks it `observed`.
"""

import os
from pathlib import Path
from typing import NamedTuple

import psutil

from agent.events import ProcessKey, Task
from agent.process.proc import parse_stat, parse_status

_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_ENDED = ("Z", "X")
"""States of a thread that has ended; the first may end before the others."""


class Description(NamedTuple):
    """Executable path, and argv as raw memory (NUL after every argument)."""

    executable: bytes
    argv: bytes


def describe(task: Task, proc: Path = Path("/proc")) -> Description:
    """Read executable and argv; empty where the process is gone or has none."""
    folder = proc / str(task.key.tgid)
    try:
        argv = (folder / "cmdline").read_bytes()
        executable = os.fsencode(psutil.Process(task.key.tgid).exe())
        stat = parse_stat((folder / "stat").read_bytes())
        if stat.start_ticks == task.key.start_ns // _TICK_NS:
            return Description(executable, argv)
    except (OSError, psutil.Error, ValueError):
        pass
    return Description(b"", b"")


def alive(key: ProcessKey, proc: Path = Path("/proc")) -> bool:
    """Whether /proc shows this very process, and a thread of it has not ended."""
    try:
        stat = parse_stat((proc / str(key.tgid) / "stat").read_bytes())
    except (OSError, ValueError):
        return False
    ended = stat.state in _ENDED and stat.threads <= 1
    return stat.start_ticks == key.start_ns // _TICK_NS and not ended


def reaps(key: ProcessKey, proc: Path = Path("/proc")) -> bool:
    """Whether this process is the init of a pid namespace."""
    try:
        status = parse_status((proc / str(key.tgid) / "status").read_bytes())
    except (OSError, ValueError):
        return False
    return status.pids[-1:] == (1,) and alive(key, proc)
