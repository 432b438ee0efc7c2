"""The ledger: every process of this node by its key, and how it is known.

In: events in the order of the stream, and a snapshot of what ran before. Out: one
entry a process, with the facts of its birth kept through its parent's death. The
number of entries is bounded, a tgid that is used again opens a new entry, and an event
about a process that was never met makes an entry instead of a guess.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, Literal

from agent.events import (
    NOBODY,
    Access,
    Event,
    Exec,
    ExecFailed,
    Exit,
    Fork,
    Prctl,
    Process,
    ProcessKey,
    Reported,
    Task,
)

KEPT_ARGV = 4096
"""Bytes of argv an entry keeps; the whole is in the exec's record."""

END_UNSEEN = -1
"""The status of a process whose end no event told of."""
_KEPT_UNSEEN = 4096


class Ledger:
    """A bounded table of processes; `capacity` counts the living and the dead."""

    def __init__(self, capacity: int = 65536, exited: int = 4096) -> None:
        """Keep at most `capacity` entries, of them `exited` that are dead leaves."""
        self._capacity = capacity
        self._keep_exited = exited
        self._entries: dict[ProcessKey, Process] = {}
        self._by_tgid: dict[int, ProcessKey] = {}
        # the dead, oldest first: those with children in the table, and the leaves
        # (OrderedDict: the first key of a dict that others were deleted from is slow)
        self._ancestors: OrderedDict[ProcessKey, None] = OrderedDict()
        self._leaves: OrderedDict[ProcessKey, None] = OrderedDict()
        # parents that are not in the table, and how many entries are their children
        self._awaited: dict[ProcessKey, int] = {}
        self._rules: dict[type, Callable[[Any], Process]] = {
            Exec: self._exec,
            Fork: self._fork,
            Exit: self._exit,
            ExecFailed: self._exec_failed,
            Access: self._access,
            Prctl: self._prctl,
        }
        self.missing: set[ProcessKey] = set()
        """Keys that were asked for in vain since `kinship` changed."""
        self.kinship = 0
        """Changes whenever an answer about ancestors may have changed."""
        self.snapshot_ns = 0
        """When the snapshot was taken: what it said is later than events of before."""
        # whose end was taken for granted, and when; kept longer than their entries
        self._unseen: dict[ProcessKey, int] = {}
        self.revived: dict[ProcessKey, int] = {}
        """Who was met after its end was taken for granted, and since when it had been;
        the reader empties it."""
        self.evicted_living = 0
        """Entries of living processes given up for the capacity."""
        self.evicted_ancestors = 0
        """Entries of dead parents given up while children of theirs were known."""

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self._entries)

    def get(self, key: ProcessKey) -> Process | None:
        """Return the entry of this very process."""
        return self._entries.get(key)

    def by_tgid(self, tgid: int) -> Process | None:
        """Return the entry of the process that has this pid now, or had it last."""
        key = self._by_tgid.get(tgid)
        return self._entries.get(key) if key else None

    def living(self) -> Iterator[Process]:
        """List the processes that are not known to have ended, oldest first."""
        return (one for one in self._entries.values() if not one.exited_ns)

    def apply(self, event: Event) -> Process:
        """Take in an event; returns the entry of the process it is about."""
        return self._rules[type(event)](event)

    def observe(self, task: Task, executable: bytes, argv: bytes) -> Process:
        """Take in one process of a snapshot; what events told is not overwritten."""
        entry = self._entries.get(task.key)
        if entry is None:
            self.kinship += 1
            entry = self._open(task, "observed")
            entry.executable, entry.argv = executable, argv[:KEPT_ARGV]
            entry.argv_bytes = len(argv)
        self._hear(entry, task.real_parent)
        return entry

    def ended_before(self, entry: Process, at_ns: int) -> None:
        """Take as ended who was in a snapshot because nobody had waited for it yet."""
        entry.status = END_UNSEEN
        self._end(entry, at_ns)

    def end_unseen(self, entry: Process, at_ns: int) -> None:
        """Take a process as ended that no list of the kernel has any more."""
        entry.status = END_UNSEEN
        self._end(entry, at_ns)
        self._unseen[entry.key] = at_ns
        if len(self._unseen) > _KEPT_UNSEEN:
            del self._unseen[next(iter(self._unseen))]

    def _exec(self, event: Exec) -> Process:
        entry = self._heard_of(event)
        entry.comm = event.task.image.comm
        entry.executable = event.executable
        entry.argv = event.argv[:KEPT_ARGV]
        entry.argv_bytes = event.argv_bytes
        entry.uid = event.task.image.context.euid
        if entry.forebear:
            self.kinship += 1
        return entry

    def _fork(self, event: Fork) -> Process:
        entry = self._met(event.task)
        if entry.known == "observed" or entry.real_parent != event.task.real_parent:
            self._born(entry, event.task.real_parent)
        entry.creator = event.creator
        creator = self._entries.get(event.creator)
        if creator and not entry.executable:  # else its own program was told before
            entry.executable, entry.argv = creator.executable, creator.argv
            entry.argv_bytes = creator.argv_bytes
        return entry

    def _born(self, entry: Process, parent: ProcessKey) -> None:
        """Take the word of a birth that a snapshot, or a program, was ahead of."""
        self._leave(entry)
        entry.known, entry.real_parent, entry.parent = "seen", parent, parent
        entry.orphaned_by = NOBODY
        self._adopt(entry)
        if entry.forebear:
            self.kinship += 1
        self._trim()  # a dead one may have lost its last child

    def _exit(self, event: Exit) -> Process:
        entry = self._heard_of(event)
        if entry.exited_ns and entry.status == END_UNSEEN:
            entry.exited_ns = event.bt_ns
        entry.status = event.status
        self._end(entry, event.bt_ns)
        return entry

    def _exec_failed(self, event: ExecFailed) -> Process:
        return self._heard_of(event)

    def _access(self, event: Access) -> Process:
        if event.target.key != NOBODY:
            self._met(event.target)
        return self._met(event.task)

    def _prctl(self, event: Prctl) -> Process:
        entry = self._heard_of(event)
        entry.comm = event.task.image.comm
        if entry.forebear:
            self.kinship += 1
        return entry

    def _met(self, task: Task) -> Process:
        return self._entries.get(task.key) or self._open(task, "seen")

    def _heard_of(self, event: Reported) -> Process:
        """Return the entry, following the process to its parent of now.

        Not for accesses: when repeats of one are told, its tasks are as of the first.
        """
        entry = self._met(event.task)
        if entry.known == "observed" and event.bt_ns < self.snapshot_ns:
            return entry
        self._hear(entry, event.task.real_parent)
        return entry

    def _hear(self, entry: Process, parent: ProcessKey) -> None:
        """Note whose child a process is by now, and whose it was."""
        if entry.key in self._unseen:
            self._revive(entry)
        if parent == entry.parent:
            return
        named = self._entries.get(parent)
        if named and named.exited_ns and named.status != END_UNSEEN:
            return  # nobody becomes the child of the dead: a late word of before
        entry.orphaned_by, entry.parent = entry.parent, parent

    def _revive(self, entry: Process) -> None:
        """Take back an end that nobody saw, unless another one has its pid by now."""
        lost_ns = self._unseen.pop(entry.key)
        if self._by_tgid.get(entry.key.tgid) != entry.key:
            return
        self.revived[entry.key] = lost_ns
        if entry.status == END_UNSEEN:
            entry.exited_ns = entry.status = 0
            self._ancestors.pop(entry.key, None)
            self._leaves.pop(entry.key, None)

    def _open(self, task: Task, known: Literal["seen", "observed"]) -> Process:
        key = task.key
        before = self.by_tgid(key.tgid)
        entry = Process(
            key,
            known,
            task.real_parent,
            task.real_parent,
            comm=task.image.comm,
            uid=task.image.context.euid,
            cgroup_id=task.image.context.cgroup_id,
        )
        self._entries[key] = entry
        entry.children = self._awaited.pop(key, 0)
        entry.forebear = entry.children > 0
        if key in self.missing:
            self.kinship += 1
        self._adopt(entry)
        # only now may anyone be forgotten: the parent has this child to be kept for
        if before is None:
            self._by_tgid[key.tgid] = key
        elif before.key.start_ns <= key.start_ns:
            self._by_tgid[key.tgid] = key
            self._end(before, key.start_ns)  # its exit was lost, its pid is not
        else:
            self._end(entry, before.key.start_ns)  # a late word of who had the pid
        self._trim()
        return entry

    def _adopt(self, entry: Process) -> None:
        parent = self._entries.get(entry.real_parent)
        if parent is None:
            waiting = self._awaited.get(entry.real_parent, 0)
            self._awaited[entry.real_parent] = waiting + 1
            return
        parent.children += 1
        parent.forebear = True
        if self._leaves.pop(parent.key, entry.key) is None:
            self._ancestors[parent.key] = None

    def _end(self, entry: Process, at_ns: int) -> None:
        if entry.exited_ns:
            return
        entry.exited_ns = at_ns
        (self._ancestors if entry.children else self._leaves)[entry.key] = None
        self._trim()

    def _trim(self) -> None:
        while len(self._leaves) > self._keep_exited:
            self._evict(next(iter(self._leaves)))
        while len(self._entries) > self._capacity:
            if self._leaves:
                self._evict(next(iter(self._leaves)))
            elif self._ancestors:
                self.evicted_ancestors += 1
                self._evict(next(iter(self._ancestors)))
            else:
                self.evicted_living += 1
                self._evict(next(iter(self._entries)))

    def _evict(self, key: ProcessKey) -> None:
        entry = self._entries.pop(key)
        if entry.children:
            self.kinship += 1
            self._awaited[key] = entry.children
            self._ancestors.pop(key, None)
        self._leaves.pop(key, None)
        if self._by_tgid.get(key.tgid) == key:
            del self._by_tgid[key.tgid]
        self._leave(entry)

    def _leave(self, entry: Process) -> None:
        key = entry.real_parent
        parent = self._entries.get(key)
        if parent is None:
            self._awaited[key] -= 1
            if not self._awaited[key]:
                del self._awaited[key]
            return
        parent.children -= 1
        if not parent.children and self._ancestors.pop(key, key) is None:
            self._leaves[key] = None
