"""Records on their way to the log: numbered in order, and kept until they are written.

In: events with what is known of them, losses, discrepancies, and the agent's own words.
Out: appended lines. What the disk refuses stays here and is tried again; nothing is
dropped, and a number once given is kept.
"""

from collections.abc import Mapping
from typing import Any

from agent.events import Discrepancy, Event, Lineage, Loss, Parentage, Process
from agent.sinks import own
from agent.sinks.record import ClockMap, Renderer
from agent.sinks.segment import SegmentWriter

Target = tuple[Process, Lineage]


class Batch:
    """The records of one writer that are not in the log yet."""

    def __init__(self, renderer: Renderer, log: SegmentWriter, clock: ClockMap) -> None:
        """Begin empty; `clock` is what the renderer was made with."""
        self._renderer, self._log, self._clock = renderer, log, clock
        self._bodies: list[bytes] = []
        self.refusal = ""
        """What the disk said the last time."""
        self.write_errors = 0
        """How often the disk refused a batch, which was then kept and tried again."""

    def __len__(self) -> int:
        """Return how many records wait."""
        return len(self._bodies)

    def event(
        self,
        event: Event,
        process: Process,
        lineage: Lineage,
        target: Target | None,
        told: Parentage | None,
    ) -> None:
        """Add the record of an event (Renderer.render)."""
        self._bodies.append(
            self._renderer.render(event, process, lineage, self._next(), target, told)
        )

    def loss(self, lost: Loss, positions: Mapping[str, Any]) -> None:
        """Add the record of a loss, with the positions that account for it."""
        body = own.loss(lost, self._clock.offset_ns, positions)
        self._add(lost.end_ns, body)

    def discrepancy(self, found: Discrepancy, process: Process | None) -> None:
        """Add the record of a discrepancy; `process` is its entry, if it has one."""
        self._bodies.append(self._renderer.discrepancy(found, process, self._next()))

    def tell(
        self, action: str, details: Mapping[str, Any], bt_ns: int, kind: str = "state"
    ) -> None:
        """Add a record about the agent itself; `kind` is an ECS event.kind."""
        self._add(bt_ns, own.own(action, kind, details))

    def _add(self, bt_ns: int, body: str) -> None:
        self._bodies.append(self._renderer.envelope(bt_ns, self._next(), body))

    def _next(self) -> int:
        return self._log.next_sequence + len(self._bodies)

    def set_clock(self, clock: ClockMap) -> None:
        """Convert boot time to wall time by this from now on."""
        if clock != self._clock:
            self._clock = clock
            self._renderer.set_clock(clock)

    def flush(self) -> bool:
        """Write what waits; False when the disk refuses, nothing is dropped."""
        if self._bodies:
            try:
                self._log.append(self._bodies)
            except OSError as error:
                self.write_errors += 1
                self.refusal = str(error)
                return False
            self._bodies = []
        return True
