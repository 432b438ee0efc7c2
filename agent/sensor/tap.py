"""The daemon's end of the pins: everything the kernel has to tell, nothing loaded.

In: a pin folder and the positions a former run had reached. Out: events and losses in
order, and the checkpoint that lets the next run go on after them. The ring's space is
given back only by `commit`, after the records of what was polled are on disk.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from agent.events import Event, Loss
from agent.sensor import bpf, pins, wire
from agent.sensor.folds import Folds
from agent.sensor.ringbuf import RingReader
from agent.sensor.stream import CpuState, Position, Stream, read_cpu_states

_ZERO = bytes(4)
_ARGV_PATIENCE_NS = 1_000_000_000


class Polled(NamedTuple):
    """What one look at the kernel gave; `more` says that the ring was not empty."""

    events: list[Event]
    losses: list[Loss]
    more: bool


class Tap:
    """The one consumer of one pin folder."""

    def __init__(
        self,
        folder: Path,
        positions: Mapping[int, Position],
        started_ns: int,
        now: Callable[[], int],
        before: Mapping[int, dict[str, int]] | None = None,
    ) -> None:
        """Open the pins; what happened before `started_ns` is marked as backlog.

        `before` is what `taken_over` was in a former run.
        """
        self._folder = folder
        self._now = now
        self._events = pins.open_map(folder, "events")
        self._states = pins.open_map(folder, "cpu_state")
        self._folds = Folds(folder)
        self._ring = RingReader(self._events)
        self._cpus = _possible_cpus()
        self._stream = Stream(positions, started_ns, now)
        self._missed = self._misses()
        self._end_ns = 0
        self._end = self._ring.position
        self.taken_over = before
        """Losses by CPU when the first run of these records took over the pins from
        one with other records; None if they were always ours."""
        if before is None and not positions and self._end:
            states = self._cpu_states()
            self.taken_over = {cpu: state.lost for cpu, state in enumerate(states)}
        if self.taken_over is not None:
            self._stream.begin_in_the_middle(self.taken_over)

    def wait(self, seconds: float) -> None:
        """Sleep until there is something to poll, a wake-up, or for that long."""
        self._ring.wait(seconds)

    def wake_on(self, fd: int) -> None:
        """Let `wait` return when `fd` becomes readable, too."""
        self._ring.wake_on(fd)

    def begin_at(self, bt_ns: int) -> None:
        """Leave out what happened before: the ring that was replaced had it."""
        self._stream.begin_at(bt_ns)

    def end_at(self, bt_ns: int) -> None:
        """Leave out what happened from then on: the ring that replaced this has it."""
        self._end_ns = bt_ns

    def poll(self) -> Polled:
        """Take what is in the ring now; a gap in it is explained at once."""
        batch = self._ring.read()
        self._end = batch.end
        events = self._stream.feed(batch)
        if self._end_ns:
            events = [event for event in events if event.bt_ns < self._end_ns]
        losses = self._reconcile() if self._stream.gap else []
        return Polled(events, losses, bool(batch.records))

    @property
    def behind(self) -> bool:
        """Whether there is more in the ring already than the last batch could hold."""
        return not self._ring.drained

    @property
    def produced(self) -> int:
        """Position in the ring up to which there is something by now."""
        return self._ring.produced

    def has_polled(self, position: int) -> bool:
        """Whether all that stood before this position was polled."""
        return self._end >= position

    def settle(self) -> Polled:
        """Once a second: what no record in the ring would ever bring up.

        The end of a burst of folded accesses, an exec whose argv stopped arriving,
        losses after which nothing came, and programs that the kernel skipped.
        """
        now = self._now()
        events: list[Event] = []
        if self._ring.drained:  # else the rest of an argv may lie ahead
            events += self._stream.expire(now - _ARGV_PATIENCE_NS)
        events += self._folds.collect(now)
        return Polled(events, [*self._reconcile(), *self._skipped(now)], False)

    def _reconcile(self) -> list[Loss]:
        drained = self._ring.drained
        return self._stream.reconcile(self._cpu_states(), drained=drained)

    def _cpu_states(self) -> list[CpuState]:
        raw = bpf.lookup(self._states, _ZERO, self._cpus * wire.CPU_STATE.size)
        return read_cpu_states(raw)

    def _skipped(self, now: int) -> list[Loss]:
        """Programs that did not run because one was running on that CPU already."""
        missed = self._misses()
        news = {
            name: count - self._missed.get(name, 0)
            for name, count in missed.items()
            if count > self._missed.get(name, 0)
        }
        self._missed |= missed  # pins that were away for a while come back
        since = now - 2 * _ARGV_PATIENCE_NS
        return [Loss("recursion", news, since, now, ())] if news else []

    def _misses(self) -> dict[str, int]:
        told = bpf.program_infos(self._folder / "links")
        return {name: info.recursion_misses for name, info in told.items()}

    def commit(self) -> None:
        """Give back the ring's space up to what has been polled completely."""
        self._ring.commit(self._stream.committable(self._end))

    def checkpoint(self) -> dict[str, Any]:
        """Return what the next run needs to go on after what was polled so far."""
        return {str(cpu): at for cpu, at in self._stream.checkpoint().items()}

    def counters(self) -> dict[str, int]:
        """Return what this end of the path has counted."""
        return {
            "ring_bytes": self._ring.size,
            "unread_bytes": self._ring.unread,
            "undecodable": self._stream.undecodable,
            "replayed": self._stream.replayed,
        }

    def close(self) -> None:
        """Close everything; the pins stay."""
        self._ring.close()
        self._folds.close()
        os.close(self._states)
        os.close(self._events)


def decode_checkpoint(raw: Mapping[str, Any]) -> dict[int, Position]:
    """Read back what `checkpoint` returned, after its way through JSON."""
    return {int(cpu): msgspec.convert(at, Position) for cpu, at in raw.items()}


def _possible_cpus() -> int:
    """Count possible CPUs: a per-CPU value holds one entry for each of them."""
    last = Path("/sys/devices/system/cpu/possible").read_text().strip()
    return int(last.rpartition("-")[2]) + 1
