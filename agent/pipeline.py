"""The path of data on one page: kernel, ledger, record, segment.

In: what the tap polls. Out: records in the log, in the order of the stream, and an
optional view of the same. An event is decoded once, applied once and encoded once; the
kernel gets its ring space back only when the records have been written.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any

from agent.events import Access, Event, Lineage, Loss, Process
from agent.process.ledger import Ledger
from agent.process.lineage import Lineages
from agent.sensor.tap import Polled, Tap
from agent.sinks import own
from agent.sinks.record import ClockMap, Renderer
from agent.sinks.segment import SegmentWriter

COALESCE_S = 0.01
"""After a batch, wait this long for more: one write for many events. The first event
after a pause is taken at once."""
RETRY_S = 0.5
"""How long to wait before writing again what the disk refused."""
View = Callable[[Event, Process, Lineage], None]


class Pipeline:
    """Moves events from the tap to the log; owned by one thread."""

    def __init__(
        self,
        tap: Tap,
        ledger: Ledger,
        renderer: Renderer,
        log: SegmentWriter,
        clock: ClockMap,
    ) -> None:
        """Join the stages; `clock` is what the renderer was made with."""
        self.tap, self.ledger, self.log = tap, ledger, log
        self.view: View | None = None
        self._lineages = Lineages(ledger)
        self._renderer, self._clock = renderer, clock
        self._bodies: list[bytes] = []
        self.checkpoint = tap.checkpoint()
        """What is on disk, as of the last time that a segment was full."""
        self.events = 0
        """Events recorded by this run."""
        self.lost = 0
        """Events reported as lost by this run."""
        self.refusal = ""
        """What the disk said the last time."""
        self.write_errors = 0
        """How often the disk refused a batch, which was then kept and tried again."""

    @property
    def waiting(self) -> int:
        """How many records the disk has refused so far; they are kept."""
        return len(self._bodies)

    def switch(self, tap: Tap) -> None:
        """Go on with another tap; everything of the old one is recorded."""
        self.tap = tap
        self.checkpoint = tap.checkpoint()

    def step(self) -> bool:
        """Poll, apply, record, commit; False when there was nothing to do."""
        if self._bodies and not self.flush():
            time.sleep(RETRY_S)
            return False
        polled = self.tap.poll()
        self._record(polled)
        if self.flush():
            self.tap.commit()
        return polled.more

    def settle(self) -> None:
        """Once a second: record what the ring alone would never bring up."""
        if not self._bodies:
            self._record(self.tap.settle())
            if self.flush():
                self.tap.commit()

    def _record(self, polled: Polled) -> None:
        for event in polled.events:
            process = self.ledger.apply(event)
            chain = self._lineages.of(process)
            target = self._target(event) if type(event) is Access else None
            body = self._renderer.render(event, process, chain, self._next(), target)
            self._bodies.append(body)
            if self.view:
                self.view(event, process, chain)
        for lost in polled.losses:
            self._lose(lost)
        self.events += len(polled.events)

    def _target(self, event: Access) -> tuple[Process, Lineage] | None:
        found = self.ledger.get(event.target.key)
        return (found, self._lineages.of(found)) if found else None

    def _lose(self, lost: Loss) -> None:
        self.lost += lost.count
        positions = self.tap.checkpoint()
        of_cpus = {str(cpu): positions[str(cpu)] for cpu in lost.cpus}
        body = own.loss(lost, self._clock.offset_ns, of_cpus)
        self._bodies.append(self._renderer.envelope(lost.end_ns, self._next(), body))

    def tell(
        self, action: str, details: Mapping[str, Any], bt_ns: int, kind: str = "state"
    ) -> None:
        """Record something about the agent itself, with the next batch."""
        body = own.own(action, kind, details)
        self._bodies.append(self._renderer.envelope(bt_ns, self._next(), body))

    def set_clock(self, clock: ClockMap) -> None:
        """Convert boot time to wall time by this from now on."""
        if clock != self._clock:
            self._clock = clock
            self._renderer.set_clock(clock)

    def _next(self) -> int:
        return self.log.next_sequence + len(self._bodies)

    def flush(self) -> bool:
        """Write what is waiting; False when the disk refuses, nothing is dropped."""
        if self._bodies:
            try:
                self.log.append(self._bodies)
            except OSError as error:
                self.write_errors += 1
                self.refusal = str(error)
                return False
            self._bodies = []
            if self.log.full:
                self.checkpoint = self.tap.checkpoint()
        return True
