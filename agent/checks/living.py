"""Who lives now: asked of the kernel, or of /proc where the kernel can't be asked.

In: what is pinned, and a /proc. Out: Tasks, and from which source they are. A /proc
knows a start only to the clock tick, so a key that the records have is taken for it.
"""

import os
import time
from collections.abc import Iterable
from typing import Any

import msgspec

from agent.events import NOBODY, Context, Executable, Image, ProcessKey, Task
from agent.process.proc import Proc, Stat
from agent.sensor.tasks import TaskViews

TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
NO_FILE = Executable(0, 0, 0, 0, 0, memfd=False, deleted=False)
_CONTEXT = Context(*[0] * 25)
_ENDED = ("Z", "X")
_LOOKS, _PAUSE_S = 3, 0.05


class Living:
    """The processes of this machine as they are now."""

    def __init__(self, views: TaskViews | None, proc: Proc, why_not: str = "") -> None:
        """Ask these; `why_not` says why there are no views of the kernel."""
        self._views, self._proc = views, proc
        self.why_not = why_not
        """Why the kernel is not asked; empty when it is."""
        self._exact: dict[tuple[int, int], ProcessKey] = {}

    @property
    def source(self) -> str:
        """Whose word a Task is."""
        return "/proc" if self.why_not else "kernel"

    def learn(self, keys: Iterable[ProcessKey]) -> None:
        """Take these keys for what /proc shows of them."""
        self._exact |= {(key.tgid, key.start_ns // TICK_NS): key for key in keys}

    def is_exact(self, key: ProcessKey) -> bool:
        """Whether a key is one that the kernel gave, now or in a record."""
        known = self._exact.get((key.tgid, key.start_ns // TICK_NS))
        return not self.why_not or known == key

    def task(self, pid: int) -> Task | None:
        """Return the process that has this pid."""
        if self._views and not self.why_not:
            return self._views.one(pid)
        stat, status = self._proc.stat(pid), self._proc.status(pid)
        if stat is None or status is None:
            return None
        parent, tracer = self._key(stat.ppid), self._key(status.tracer)
        return plain_task(self._of(stat), parent, tracer, stat.comm, kernel=stat.kernel)

    def shown(self, key: ProcessKey) -> Stat | None:
        """Return what /proc shows of this very process."""
        stat = self._proc.stat(key.tgid)
        same = stat is not None and stat.start_ticks == key.start_ns // TICK_NS
        return stat if same else None

    def parents(self, pid: int) -> list[int]:
        """Return the ancestors of now by /proc, nearest first."""
        found: list[int] = []
        while (stat := self._proc.stat(pid)) and stat.ppid not in (0, *found):
            pid = stat.ppid
            found.append(pid)
        return found

    def by_proc(self, key: ProcessKey) -> dict[str, Any] | None:
        """Return what /proc says of whose child this process is, and who traces it."""
        stat, status = self.shown(key), self._proc.status(key.tgid)
        if stat is None or status is None:
            return None
        return {
            "ppid": stat.ppid,
            "tracer": status.tracer,
            "zombie": stat.state in _ENDED and stat.threads <= 1,
        }

    def differs(self, key: ProcessKey) -> tuple[bool, bool]:
        """Return whether the kernel and /proc have it, as far as they say so thrice.

        Where they agree in one of the looks, or only /proc can be asked, both do.
        """
        for looks in range(_LOOKS):
            time.sleep(_PAUSE_S if looks else 0)
            told, shown = self.task(key.tgid), self.shown(key)
            by_kernel = told is not None and told.key == key
            if by_kernel == (shown is not None):
                break
        return by_kernel, shown is not None

    def _of(self, stat: Stat) -> ProcessKey:
        rounded = ProcessKey(stat.pid, stat.start_ticks * TICK_NS)
        return self._exact.get((stat.pid, stat.start_ticks), rounded)

    def _key(self, pid: int) -> ProcessKey:
        stat = self._proc.stat(pid) if pid else None
        return self._of(stat) if stat else NOBODY


def plain_task(
    key: ProcessKey,
    parent: ProcessKey,
    tracer: ProcessKey,
    comm: bytes,
    euid: int = 0,
    *,
    kernel: bool = False,
) -> Task:
    """Return a Task of what is known of one, for a ledger."""
    traced = tracer != NOBODY
    context = msgspec.structs.replace(_CONTEXT, euid=euid)
    return Task(
        key,
        parent,
        tracer if traced else parent,
        key.tgid,
        pgid=0,
        sid=0,
        vpid=key.tgid,
        ptrace=int(traced),
        leader=key.tgid,
        kernel=kernel,
        image=Image(comm, NO_FILE, context),
    )
