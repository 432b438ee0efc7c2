"""The list of all processes as the kernel has it, whichever rung gives it.

In: a pinned task iterator, or a pinned program to be run. Out: one Task for each
process. The iterator shows the processes of its reader's pid namespace, the program
those of the whole machine.
"""

import os
from contextlib import ExitStack
from pathlib import Path

from agent.events import Task
from agent.sensor import bpf, pins, wire
from agent.sensor.decode import task
from agent.sensor.ringbuf import RingReader

_ITERATOR, _PROGRAM = "bpf_iter__task", "walk_tasks"
_ROUND, _GONE = 1, 2
_RUNS = 1 << 16
_TGID = wire.TASK_FIELDS.index("tgid")


def snapshot(folder: Path) -> list[Task]:
    """List every process by what is pinned; empty when the kernel refused all rungs."""
    with ExitStack() as opened:

        def fd_of(path: Path) -> int:
            fd = bpf.get(path)
            opened.callback(os.close, fd)
            return fd

        for name in pins.links(folder):
            if name.startswith(_ITERATOR):
                return listed(name, fd_of(folder / "links" / name), -1)
        for name in pins.programs(folder):
            ring = fd_of(folder / "maps" / "walked")
            return listed(name, fd_of(folder / "programs" / name), ring)
    return []


def listed(pin: str, fd: int, walked: int) -> list[Task]:
    """List every process by one object; `walked` is the ring that the program fills.

    Empty for objects that list no processes.
    """
    if pin.startswith(_ITERATOR):
        raw = bpf.read_iterator(fd)
    elif pin.startswith(_PROGRAM):
        raw = b"".join(_walk(fd, walked))
    else:
        return []
    size = wire.TASK.size
    whole = len(raw) - len(raw) % size
    return [task(*values) for values in wire.TASK.iter_unpack(raw[:whole])]


def _walk(program: int, walked: int) -> list[bytes]:
    """Run the program until it has come round; it goes on after the last it told.

    When that one has ended meanwhile, it goes on after the one before, so a process may
    be told twice: each is kept once.
    """
    ring = RingReader(walked)
    told: dict[int, bytes] = {}
    trail: list[int] = []
    try:
        for _ in range(_RUNS):
            answer = bpf.test_run(program, trail[-1] if trail else 0)
            for raw in _taken(ring):
                tgid = wire.TASK.unpack(raw)[_TGID]
                told[tgid] = raw
                trail.append(tgid)
            if answer == _ROUND:
                break
            if answer == _GONE:
                trail.pop()
    finally:
        ring.close()
    return list(told.values())


def _taken(ring: RingReader) -> list[bytes]:
    batch = ring.read()
    taken = [bytes(batch.data[at : at + size]) for at, size in batch.records]
    ring.commit(batch.end)
    return taken
