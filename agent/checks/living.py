"""Who lives now: asked of the kernel, or of /proc where the kernel can't be asked.

In: what is pinned, and a /proc. Out: Tasks, and from which source they are. A /proc
knows a start only to the clock tick, so a key that the records have is taken for it.
"""

import time
from collections.abc import Iterable
from typing import Any

import msgspec

from agent.events import NOBODY, Context, Executable, Image, ProcessKey, Task
from agent.process.mounts import FOREIGN, NOT_COMPARABLE, Doubt, DoubtKind
from agent.process.proc import TICK_NS, Proc, Stat
from agent.sensor.tasks import TaskViews

NO_FILE = Executable(0, 0, 0, 0, 0, memfd=False, deleted=False)
_CONTEXT = Context(*[0] * 25)
_LOOKS, _PAUSE_S = 3, 0.05
_NOT_COMPARABLE = NOT_COMPARABLE | {DoubtKind.STACKED}
_COVERED = {DoubtKind.COVERED, DoubtKind.COVERED_BELOW}


class Living:
    """The processes of this machine as they are now."""

    def __init__(
        self,
        views: TaskViews | None,
        proc: Proc,
        private: Proc | None,
        why_not: str = "",
    ) -> None:
        """Ask these; `why_not` says why there are no views of the kernel.

        `private` is a /proc of our own, None where there can be none: it tells what
        the mounted one is, and of whom something is mounted over there.
        """
        self._views, self._proc, self._private = views, proc, private
        self._doubts = proc.doubts(private or proc)
        kinds = {one.kind for one in self._doubts}
        self.comparable = not _NOT_COMPARABLE & kinds
        """Whether /proc shows the same processes as the kernel, by the same starts."""
        self._foreign = bool(FOREIGN & kinds)
        self.why_not = why_not
        """Why the kernel is not asked; empty when it is."""
        self._exact: dict[tuple[int, int], ProcessKey] = {}

    @property
    def source(self) -> str:
        """Whose word a Task is."""
        return "/proc" if self.why_not else "kernel"

    def believed(self, pid: int) -> bool:
        """Whether a Task of this process can be held against the records."""
        by_proc = self.comparable and (self._private or not self.covers(pid))
        return not self.why_not or bool(by_proc)

    def misses_none(self, pid: int) -> bool:
        """Whether a process that is not shown by this number is gone."""
        return self.comparable and self.believed(pid)

    @property
    def incomparable(self) -> list[str]:
        """Why /proc can't be compared; empty where it can."""
        return [one.text for one in self._doubts if one.kind in _NOT_COMPARABLE]

    def covers(self, pid: int) -> list[Doubt]:
        """Return what is mounted over the folder of a process, or over files in it."""
        return [one for one in self._doubts if one.kind in _COVERED and one.pid == pid]

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
        stat, status = self._stat(pid), self._source(pid).status(pid)
        if stat is None or status is None:
            return None
        parent, tracer = self._key(stat.ppid), self._key(status.tracer)
        return plain_task(self._of(stat), parent, tracer, stat.comm, kernel=stat.kernel)

    def shown(self, key: ProcessKey) -> Stat | None:
        """Return what /proc shows of this very process."""
        stat = self._stat(key.tgid)
        same = stat is not None and stat.start_ticks == key.start_ns // TICK_NS
        return stat if same else None

    def parents(self, pid: int) -> list[int]:
        """Return the ancestors of now by /proc, nearest first."""
        found: list[int] = []
        while (stat := self._stat(pid)) and stat.ppid not in (0, *found):
            pid = stat.ppid
            found.append(pid)
        return found

    def by_proc(self, key: ProcessKey) -> dict[str, Any] | None:
        """Return what /proc says of whose child this process is, and who traces it.

        None also where something is mounted over it there, which may say anything.
        """
        if self.covers(key.tgid):
            return None
        stat, status = self.shown(key), self._proc.status(key.tgid)
        if stat is None or status is None:
            return None
        return {
            "ppid": stat.ppid,
            "tracer": status.tracer,
            "zombie": stat.ended,
        }

    def differs(self, key: ProcessKey) -> tuple[bool, bool]:
        """Return whether the kernel and /proc have it, as far as they say so thrice.

        Where they agree in one of the looks, or only one can be asked, both do.
        """
        if not self.comparable:
            told = None if self.why_not else self.task(key.tgid)
            return (told is not None and told.key == key,) * 2
        for looks in range(_LOOKS):
            time.sleep(_PAUSE_S if looks else 0)
            told, shown = self.task(key.tgid), self.shown(key)
            by_kernel = told is not None and told.key == key
            if by_kernel == (shown is not None):
                break
        covered = any(one.kind is DoubtKind.COVERED for one in self.covers(key.tgid))
        return by_kernel, shown is not None and not (by_kernel and covered)

    def disagreements(self, key: ProcessKey) -> list[str]:
        """Say in what kernel and /proc differ, as far as they do so in each look.

        Of parents and tracers; empty where one of the two can't be asked or believed.
        """
        found: dict[str, str] = {}
        for looks in range(_LOOKS):
            time.sleep(_PAUSE_S if looks else 0)
            now = self._disagreements(key)
            found = {what: now[what] for what in now if not looks or what in found}
            if not found:
                break
        return [*found.values()]

    def _disagreements(self, key: ProcessKey) -> dict[str, str]:
        asked = self.comparable and not self.why_not
        shown = self.by_proc(key) if asked else None
        task = self.task(key.tgid) if shown else None
        if task is None or task.key != key or shown is None:
            return {}
        told = {
            "parent": (task.real_parent.tgid, shown["ppid"]),
            "tracer": (task.parent.tgid if task.ptrace else 0, shown["tracer"]),
        }
        return {
            what: f"its {what} is {by_kernel or 'nobody'} by kernel,"
            f" {by_proc or 'nobody'} by /proc"
            for what, (by_kernel, by_proc) in told.items()
            if by_kernel not in (by_proc, self._process(by_proc))
        }

    def _process(self, tid: int) -> int:
        """Return of which process a thread is: /proc names the one that traces."""
        status = self._source(tid).status(tid) if tid else None
        return status.tgid if status else tid

    def _source(self, pid: int) -> Proc:
        return (self.covers(pid) and self._private) or self._proc

    def _stat(self, pid: int) -> Stat | None:
        if self._foreign:
            return None
        stat = self._source(pid).stat(pid)
        return stat if stat and stat.pid == pid else None

    def _of(self, stat: Stat) -> ProcessKey:
        rounded = ProcessKey(stat.pid, stat.start_ticks * TICK_NS)
        return self._exact.get((stat.pid, stat.start_ticks), rounded)

    def _key(self, pid: int) -> ProcessKey:
        stat = self._stat(pid) if pid else None
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
