"""What the kernel has of all processes: its list, the chain of tasks, who is scheduled.

In: what is pinned to be read or run on request. Out: Tasks, and Seen for the views that
know only keys. The iterator shows the processes of its reader's pid namespace and goes
by their numbers, as /proc does; the chain is another structure, of the whole machine;
and whoever runs is seen by the scheduler, wherever else it is missing.
"""

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from agent import clock
from agent.events import Listing, ProcessKey, Seen, Task
from agent.sensor import bpf, pins, wire
from agent.sensor.decode import task
from agent.sensor.ringbuf import RingReader

_ITERATOR, _PROGRAM = "bpf_iter__task", "walk_tasks"
_CHAIN, _ONE, _SCHEDULER = "walk_chain", "tell_task", "on_switch"
_INIT = 1
_SCHED_SWITCH = "sched_switch"
_ROUND, _GONE = 1, 2
_RUNS = 1 << 16
_TICK_S = 0.01
_TGID = wire.TASK_FIELDS.index("tgid")
# what the chain tells, as it lies in the ring: a header of one quad before each
_SEEN_QUADS = wire.SEEN.size // 8 + 1
_SEEN_TGID_WORD = 2 + wire.SEEN_FIELDS.index("tgid") * 2
_WORDS = wire.TASK.size // 4
# the first three fields are times of two words each
_TGID_WORD = _TGID + 3
_PARENT_WORD = wire.TASK_FIELDS.index("real_parent_tgid") + 3


class TaskViews:
    """Everything pinned that shows processes, opened once; for one thread."""

    def __init__(self, folder: Path) -> None:
        """Open what this kernel gave; a view that it refused is empty."""
        self._open = ExitStack()
        links = {name: folder / "links" / name for name in pins.links(folder)}
        programs = {name: folder / "programs" / name for name in pins.programs(folder)}
        self._list = self._pinned(links, _ITERATOR) or self._pinned(programs, _PROGRAM)
        self._chain = self._pinned(programs, _CHAIN)
        self._one = self._pinned(programs, _ONE)
        self._scheduler = self._pinned(programs, _SCHEDULER)
        self._ring = self._pinned({"walked": folder / "maps" / "walked"}, "walked")
        self._alone = folder / "programs"
        self._before: set[int] = set()
        self.init = self._init()
        """Pid 1, where this kernel's list leaves it out, as some do; else None."""

    def _pinned(self, paths: dict[str, Path], start: str) -> tuple[str, int] | None:
        for name, path in paths.items():
            if name.startswith(start) and path.exists():
                fd = bpf.get(path)
                self._open.callback(os.close, fd)
                return name, fd
        return None

    def close(self) -> None:
        """Close everything; the pins stay."""
        self._open.close()

    def _init(self) -> Task | None:
        if _INIT in self._starts(memoryview(self._read())):
            return None
        return self.one(_INIT)

    def one(self, pid: int) -> Task | None:
        """Return the process of a pid, in the caller's pid namespace; None for none."""
        if self._one is None:
            return None
        with self._walking() as ring:
            return one(self._one[1], ring, pid)

    def tasks(self) -> list[Task]:
        """List every process."""
        listed = list(_tasks(self._read()))
        return [self.init, *listed] if self.init else listed

    def listing(self, *, changes: bool = True) -> Listing:
        """List every process, decoding only what has changed since the last call.

        Without `changes` nothing is decoded, and nothing counts as told.
        """
        now, raw = clock.boot_ns(), self._read()
        words = memoryview(raw).cast("I")
        starts = self._starts(memoryview(raw))
        parents = words[_PARENT_WORD::_WORDS].tolist()
        changed = list(_tasks(self._changes(raw))) if changes else []
        by_tgid = dict(zip(starts, parents, strict=True))
        if self.init:
            starts[_INIT], by_tgid[_INIT] = self.init.key.start_ns, 0
        return Listing(now, starts, by_tgid, changed)

    def _starts(self, raw: memoryview) -> dict[int, int]:
        tgids = raw.cast("I")[_TGID_WORD::_WORDS].tolist()
        return dict(zip(tgids, raw.cast("Q")[:: _WORDS // 2].tolist(), strict=True))

    def _changes(self, raw: bytes) -> bytes:
        size = wire.TASK.size
        chunks = [raw[at : at + size] for at in range(0, len(raw), size)]
        # hashes: of a hundred thousand processes the bytes would be 27 MB
        known = [hash(chunk) for chunk in chunks]
        changed = [
            chunk
            for chunk, own in zip(chunks, known, strict=True)
            if own not in self._before
        ]
        self._before = set(known)
        return b"".join(changed)

    def _read(self) -> bytes:
        if self._list is None:
            return b""
        name, fd = self._list
        if name.startswith(_ITERATOR):
            return _whole(bpf.read_iterator(fd))
        with self._walking() as ring:
            return _walked(fd, ring)

    def chain(self) -> dict[int, int] | None:
        """Return the start of who stands in the chain of tasks; None: no such view."""
        if self._chain is None:
            return None
        with self._walking() as ring:
            return chain(self._chain[1], ring)

    def ran(self, seconds: float) -> list[Seen]:
        """Watch the scheduler for that long: who ran, each process at least once."""
        if self._scheduler is None:
            return []
        with self._walking() as ring, scheduled(self._scheduler[1], ring) as seen:
            until, found = time.monotonic() + seconds, []
            while time.monotonic() < until:
                time.sleep(_TICK_S)
                found += seen()
            return found

    @property
    def views(self) -> dict[str, bool]:
        """Which of the views this kernel gives."""
        return {
            "task list": self._list is not None,
            "task chain": self._chain is not None,
            "scheduler": self._scheduler is not None,
        }

    @property
    def independent(self) -> bool:
        """Whether list and chain are two structures of the kernel, and not one."""
        return self._list is not None and self._list[0].startswith(_ITERATOR)

    @contextmanager
    def _walking(self) -> Iterator[int]:
        """Be the only one who has programs fill the ring; `ir-check` is another."""
        lock = os.open(self._alone, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield self._ring[1] if self._ring else -1
        finally:
            os.close(lock)


def listed(pin: str, fd: int, walked: int) -> list[Task]:
    """List every process by one object; `walked` is the ring that the program fills.

    Empty for objects that list no processes.
    """
    if pin.startswith(_ITERATOR):
        return list(_tasks(_whole(bpf.read_iterator(fd))))
    if pin.startswith(_PROGRAM):
        return list(_tasks(_walked(fd, walked)))
    return []


def one(program: int, walked: int, pid: int) -> Task | None:
    """Ask one program for the process of a pid; `walked` is the ring it fills."""
    ring = RingReader(walked)
    try:
        _taken(ring)
        if bpf.test_run(program, pid):
            return None
        return next(_tasks(b"".join(_taken(ring))), None)
    finally:
        ring.close()


def chain(program: int, walked: int) -> dict[int, int]:
    """Walk the chain of all tasks by one program; `walked` is the ring it fills.

    Returns start times by tgid.
    """
    starts: dict[int, int] = {}

    def told(ring: RingReader) -> list[int]:
        raw = memoryview(ring.take())
        tgids = raw.cast("I")[_SEEN_TGID_WORD :: _SEEN_QUADS * 2].tolist()
        starts.update(zip(tgids, raw.cast("Q")[1::_SEEN_QUADS].tolist(), strict=True))
        return tgids

    _walk(program, walked, told)
    return starts


@contextmanager
def scheduled(program: int, walked: int) -> Iterator[Callable[[], list[Seen]]]:
    """Attach to the scheduler for as long as the block.

    What it gives returns who ran since it was last asked; a process is told once in
    50 ms at most.
    """
    ring = RingReader(walked)
    link = -1
    try:
        _taken(ring)
        link = bpf.attach_raw_tracepoint(program, _SCHED_SWITCH)
        yield lambda: [_seen(raw) for raw in _taken(ring)]
    finally:
        if link >= 0:
            os.close(link)
        ring.close()


def _whole(raw: bytes) -> bytes:
    return raw[: len(raw) - len(raw) % wire.TASK.size]


def _tasks(raw: bytes) -> Iterator[Task]:
    return (task(*values) for values in wire.TASK.iter_unpack(raw))


def _seen(raw: bytes) -> Seen:
    start, at, tgid, tid, comm = wire.SEEN.unpack(raw)
    return Seen(ProcessKey(tgid, start), at, tid, comm.partition(b"\0")[0])


def _walked(program: int, walked: int) -> bytes:
    """Walk the list of tasks by one program; a task that it tells twice counts once."""
    found: dict[int, bytes] = {}

    def told(ring: RingReader) -> list[int]:
        by_tgid = {wire.TASK.unpack(raw)[_TGID]: raw for raw in _taken(ring)}
        found.update(by_tgid)
        return list(by_tgid)

    _walk(program, walked, told)
    return b"".join(found.values())


def _walk(program: int, walked: int, told: Callable[[RingReader], list[int]]) -> None:
    """Run the program until it has come round; it goes on after the last it told.

    When that one can't be found (it has ended, or is hidden), it goes on after the one
    before. `told` takes what it tells out of the ring, and returns the tgids in order.
    """
    ring = RingReader(walked)
    trail: list[int] = []
    try:
        ring.take()  # what somebody left who was killed
        for _ in range(_RUNS):
            answer = bpf.test_run(program, trail[-1] if trail else 0)
            trail += told(ring)
            if answer == _ROUND:
                break
            if answer == _GONE:
                trail.pop()
    finally:
        ring.close()


def _taken(ring: RingReader) -> list[bytes]:
    batch = ring.read()
    taken = [bytes(batch.data[at : at + size]) for at, size in batch.records]
    ring.commit(batch.end)
    return taken
