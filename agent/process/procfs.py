"""What /proc says about a process that was running before the agent.

In: a task as the kernel's own list gave it. Out: its executable and argv, if /proc
still shows the same process. What /proc gives is the process's word of now, not of
its exec, so the ledger marks it `observed`.
"""

import os
from pathlib import Path
from typing import NamedTuple

import psutil

from agent.events import Task

_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")


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
        if (
            _start_ticks((folder / "stat").read_bytes())
            == task.key.start_ns // _TICK_NS
        ):
            return Description(executable, argv)
    except (OSError, psutil.Error, ValueError, IndexError):
        pass
    return Description(b"", b"")


def _start_ticks(stat: bytes) -> int:
    """Take field 22; the name in field 2 may hold blanks and brackets."""
    return int(stat[stat.rindex(b")") + 2 :].split()[19])
