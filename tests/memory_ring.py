"""The kernel's end of the path without a kernel: a ring in memory, and a tap of it.

In: records, and what was lost. Out: what a tap gives, made by the real stream. The ring
outlives its taps as the real one outlives the daemon, so a test may end a run anywhere
and begin another.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from agent.sensor.stream import CpuState, Position, Stream
from agent.sensor.tap import Polled
from tests.builders import NOW, SECOND, batch_of, in_ring

CPUS = 4
LATER = NOW + 3600 * SECOND


class MemoryRing:
    """Records in the order of the ring, and the counters beside it."""

    def __init__(self, *records: bytes) -> None:
        self._records: list[bytes] = []
        self.committed = 0
        self.lost: list[Counter[str]] = [Counter() for _ in range(CPUS)]
        self.last_lost = [0] * CPUS
        self.put(*records)

    def put(self, *records: bytes) -> None:
        self._records += [in_ring(one) for one in records]

    def lose(self, cpu: int, kind: str, at_ns: int, count: int = 1) -> None:
        """Count an event that found no room, as the probes do."""
        self.lost[cpu][kind] += count
        self.last_lost[cpu] = at_ns

    @property
    def data(self) -> bytes:
        return b"".join(self._records)

    def states(self) -> list[CpuState]:
        return [
            CpuState(0, dict(self.lost[cpu]), self.last_lost[cpu])
            for cpu in range(CPUS)
        ]

    def after(self, position: int, most: int) -> bytes:
        """The bytes of up to `most` records that begin at a ring position."""
        at, some = 0, []
        for one in self._records:
            if at >= position and len(some) < most:
                some.append(one)
            at += len(one)
        return b"".join(some)


class MemoryTap:
    """What agent.sensor.tap is to the pinned ring, for a MemoryRing."""

    def __init__(
        self,
        ring: MemoryRing,
        positions: Mapping[int, Position] | None = None,
        most: int = 4,
    ) -> None:
        self._ring, self._most = ring, most
        self._stream = Stream(positions or {}, 0, lambda: LATER)
        self._position = self._end = ring.committed

    def poll(self) -> Polled:
        batch = batch_of(self._ring.after(self._position, self._most), self._position)
        self._position = self._end = batch.end
        events = self._stream.feed(batch)
        losses = self._reconcile() if self._stream.gap else []
        return Polled(events, losses, bool(batch.records))

    def settle(self) -> Polled:
        drained = self._position == len(self._ring.data)
        events = self._stream.expire(1 << 62) if drained else []
        return Polled(list(events), self._reconcile(), False)

    def _reconcile(self) -> Any:
        drained = self._position == len(self._ring.data)
        return self._stream.reconcile(self._ring.states(), drained=drained)

    def commit(self) -> None:
        self._ring.committed = self._stream.committable(self._end)

    def checkpoint(self) -> dict[str, Any]:
        return {str(cpu): at for cpu, at in self._stream.checkpoint().items()}
