"""What a daemon costs everybody: its own CPU, the kernel's threads, the paying caller.

A storm's report and two looks at /proc come in; seconds of CPU per party go out. It
can never book the same second to two parties of one cost: daemon and kernel threads
are told apart by PF_KTHREAD, the storm by its own getrusage.

The added time in the exec path is taken as CPU of the storm and its programs, not as
wall time: the storm fills every CPU, so wall time would count the daemon's share of
the CPUs a second time, and every neighbour's too. The kernel books that CPU by the
scheduler's clock (steal taken out), not by ticks. Softirq time is in whatever task it
interrupted. What a daemon leaves dirty in the page cache for later is in nobody's sum.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

PF_KTHREAD = 0x0020_0000
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
MICRO = 1e6

SETTLE_S = 0.5
SETTLE_BYTES = 4096
SETTLE_LIMIT_S = 60.0


@dataclass(frozen=True, slots=True)
class Task:
    """One process or kernel thread at one look; CPU in seconds, user + system."""

    pid: int
    parent: int
    start: int
    kernel: bool
    own_s: float
    reaped_s: float


@dataclass(frozen=True, slots=True)
class Look:
    """All tasks and the whole machine at one moment."""

    tasks: dict[tuple[int, int], Task]
    busy_s: float
    steal_s: float


@dataclass(frozen=True, slots=True)
class Cpu:
    """Seconds of CPU between two looks, by party; `busy` is the whole machine."""

    daemon_s: float
    kernel_s: float
    busy_s: float
    steal_s: float


@dataclass(frozen=True, slots=True)
class Memory:
    """A daemon's memory in bytes: now, at its highest, and its private part."""

    rss: int
    peak: int
    anonymous: int


def _task(pid: str) -> Task | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text.rpartition(")")[2].split()
    user, system, reaped_user, reaped_system = map(int, fields[11:15])
    return Task(
        pid=int(pid),
        parent=int(fields[1]),
        start=int(fields[19]),
        kernel=bool(int(fields[6]) & PF_KTHREAD),
        own_s=(user + system) * TICK_S,
        reaped_s=(reaped_user + reaped_system) * TICK_S,
    )


def look() -> Look:
    """Read every task's CPU and the machine's."""
    found = (_task(path.name) for path in Path("/proc").glob("[0-9]*"))
    tasks = {(task.pid, task.start): task for task in found if task}
    machine = Path("/proc/stat").read_text(encoding="utf-8").split("\n", 1)[0].split()
    user, nice, system, _idle, _wait, irq, softirq, steal = map(int, machine[1:9])
    busy = user + nice + system + irq + softirq
    return Look(tasks, busy * TICK_S, steal * TICK_S)


def _kernel_s(before: Look, after: Look) -> float:
    total = 0.0
    for key, task in after.tasks.items():
        if task.kernel:
            earlier = before.tasks.get(key)
            total += task.own_s - (earlier.own_s if earlier else 0.0)
    return total


def _tree_s(seen: Look, root: int) -> float:
    """CPU of a process and its living descendants, with the children they reaped."""
    family, grown = {root}, True
    while grown:
        more = {t.pid for t in seen.tasks.values() if t.parent in family} - family
        family |= more
        grown = bool(more)
    members = (task for task in seen.tasks.values() if task.pid in family)
    return sum(task.own_s + task.reaped_s for task in members)


def between(before: Look, after: Look, daemon: int | None) -> Cpu:
    """Who used how much from one look to the next; daemon: its pid, if there is one."""
    used = _tree_s(after, daemon) - _tree_s(before, daemon) if daemon else 0.0
    return Cpu(
        daemon_s=used,
        kernel_s=_kernel_s(before, after),
        busy_s=after.busy_s - before.busy_s,
        steal_s=after.steal_s - before.steal_s,
    )


def memory(pid: int) -> Memory:
    """VmRSS, VmHWM and RssAnon of a process."""
    text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    fields = dict(line.split(":", 1) for line in text.splitlines())
    rss, peak, anonymous = (
        int(fields[name].split()[0]) * 1024 for name in ("VmRSS", "VmHWM", "RssAnon")
    )
    return Memory(rss, peak, anonymous)


def _written(pid: int) -> int:
    text = Path(f"/proc/{pid}/io").read_text(encoding="utf-8")
    fields = dict(line.split(": ") for line in text.splitlines())
    return int(fields["wchar"])


def settle(daemon: int | None) -> bool:
    """Wait until the daemon has caught up: it writes no more. False: it never did.

    The backlog a storm leaves is part of its cost. Without a daemon this waits just as
    long, so that the kernel's own clearing up is in every arm's sum.
    """
    deadline = time.monotonic() + SETTLE_LIMIT_S
    while time.monotonic() < deadline:
        before = _written(daemon) if daemon else 0
        time.sleep(SETTLE_S)
        if not daemon or _written(daemon) - before < SETTLE_BYTES:
            return True
    return False
