"""The path of data on one page: kernel, ledger, record, segment.

In: what the tap polls. Out: records in the log, in the order of the stream, and an
optional view of the same. An event is decoded once, applied once and encoded once; the
kernel gets its ring space back only when the records have been written.
"""

import time
from collections.abc import Callable

from agent.events import (
    Access,
    Discrepancy,
    Event,
    Exec,
    Fork,
    Lineage,
    Parentage,
    Process,
    ProcessKey,
    Verdict,
)
from agent.process import procfs
from agent.process.ledger import Ledger
from agent.process.lineage import Lineages
from agent.process.parentage import Parentages
from agent.sensor.tap import Polled, Tap
from agent.sinks.batch import Batch
from agent.sinks.segment import SegmentWriter

COALESCE_S = 0.01
"""After a batch, wait this long for more: one write for many events. The first event
after a pause is taken at once."""
RETRY_S = 0.5
"""How long to wait before writing again what the disk refused."""
MAX_SUSPECTS = 4096
"""Who looked forged and waits for the next sweep; the record says it of all."""
View = Callable[[Event, Process, Lineage], None]


class Pipeline:
    """Moves events from the tap to the log; owned by one thread."""

    def __init__(
        self, tap: Tap, ledger: Ledger, batch: Batch, log: SegmentWriter
    ) -> None:
        """Join the stages; `batch` writes to `log`."""
        self.tap, self.ledger, self.batch, self.log = tap, ledger, batch, log
        self.view: View | None = None
        self._lineages = Lineages(ledger)
        self.parentages = Parentages(ledger, self._lineages, procfs.alive, procfs.reaps)
        self.checkpoint = tap.checkpoint()
        """What is on disk, as of the last time that a segment was full."""
        self.events = 0
        """Events recorded by this run."""
        self.lost = 0
        """Events reported as lost by this run."""
        self.suspects: dict[ProcessKey, Exec | Fork] = {}
        """Who looked forged at which event, and was not looked at again yet."""
        self.discrepancies = 0
        """How often sources were found to disagree about a process."""

    def switch(self, tap: Tap) -> None:
        """Go on with another tap; everything of the old one is recorded."""
        self.tap = tap
        self.checkpoint = tap.checkpoint()

    def step(self) -> bool:
        """Poll, apply, record, commit; False when there was nothing to do."""
        if self.batch and not self.flush():
            time.sleep(RETRY_S)
            return False
        polled = self.tap.poll()
        self._record(polled)
        if self.flush():
            self.tap.commit()
        return polled.more

    def settle(self) -> None:
        """Once a second: record what the ring alone would never bring up."""
        if not self.batch:
            self._record(self.tap.settle())
            if self.flush():
                self.tap.commit()

    def _record(self, polled: Polled) -> None:
        for event in polled.events:
            process = self.ledger.apply(event)
            chain = self._lineages.of(process)
            target = self._target(event) if type(event) is Access else None
            told = self._parentage(event, process)
            self.batch.event(event, process, chain, target, told)
            if self.view:
                self.view(event, process, chain)
        for lost in polled.losses:
            self.lost += lost.count
            positions = self.tap.checkpoint()
            self.batch.loss(lost, {str(cpu): positions[str(cpu)] for cpu in lost.cpus})
        self.events += len(polled.events)

    def _target(self, event: Access) -> tuple[Process, Lineage] | None:
        found = self.ledger.get(event.target.key)
        return (found, self._lineages.of(found)) if found else None

    def _parentage(self, event: Event, process: Process) -> Parentage | None:
        """Judge at birth and at each program; a forged one is looked at once more."""
        if type(event) is not Exec and type(event) is not Fork:
            return None
        told = self.parentages.of(process, event.task, event.bt_ns)
        if told.verdict is Verdict.FORGED and len(self.suspects) < MAX_SUSPECTS:
            self.suspects[process.key] = event
        return told

    def disagree(self, found: Discrepancy) -> None:
        """Record that sources disagree about a process, with the next batch."""
        self.batch.discrepancy(found, self.ledger.get(found.key))
        self.discrepancies += 1

    def flush(self) -> bool:
        """Write what is waiting; False when the disk refuses, nothing is dropped."""
        if not self.batch.flush():
            return False
        if self.log.full:
            self.checkpoint = self.tap.checkpoint()
        return True
