"""The daemon's second thread: what may be slow, beside the path of events.

In: the log to be made durable, the clocks, the views of all processes. Out: the clock
and the last sighting, for the other thread to take when it has time.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import structlog

from agent.node import read_clock
from agent.sinks.segment import SegmentWriter
from agent.sweep import Sighting, Sweep

SYNC_S = 0.25
"""How long a record may be in the page cache only."""
_CLOCK_TURNS = round(1 / SYNC_S)
_WATCH_EVERY = 60
"""Sweeps from one watch of the scheduler to the next."""
_ANCHOR_TOLERANCE_NS = 100_000
"""Reading two clocks together is not exact; smaller moves are noise."""
log = structlog.get_logger()


class Slow:
    """Runs beside the path; each attribute is written by one of the two threads."""

    def __init__(self, records: SegmentWriter, sweep: Sweep, seconds: float) -> None:
        """Sweep every so many seconds; the sweep is this thread's alone from now on."""
        self._log, self._sweep, self._seconds = records, sweep, seconds
        self.clock = read_clock()
        self.sighting: Sighting | None = None
        """The last sweep's; whoever takes it sets None."""
        self.searching = False
        """Set by the other thread: watch the scheduler at the next sweep."""
        self.sweeps = 0
        self.sweep_ns = 0
        """CPU time of all sweeps."""

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run for as long as the block, and end before the log closes."""
        ended = threading.Event()
        thread = threading.Thread(target=self._run, args=(ended,), name="slow")
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _run(self, ended: threading.Event) -> None:
        turn, sweep_at = 0, 0.0
        while not ended.wait(SYNC_S):
            turn += 1
            try:
                self._log.sync()
            except OSError as error:
                log.error("sync_failed", reason=str(error))  # noqa: TRY400
            if turn % _CLOCK_TURNS == 0:
                self._read_clock()
            if time.monotonic() >= sweep_at:
                self._take()
                sweep_at = time.monotonic() + self._seconds

    def _read_clock(self) -> None:
        fresh = read_clock()
        moved = abs(fresh.offset_ns - self.clock.offset_ns)
        if moved > _ANCHOR_TOLERANCE_NS or fresh[1:] != self.clock[1:]:
            self.clock = fresh

    def _take(self) -> None:
        if self.sighting is not None:
            return  # the other thread is busy: nothing that it has not seen is replaced
        began = time.thread_time_ns()
        watch = self.searching or self.sweeps % _WATCH_EVERY == 0
        try:
            self.sighting = self._sweep.take(watch=watch)
        except OSError as error:
            log.error("sweep_failed", reason=str(error))  # noqa: TRY400
        self.sweeps += 1
        self.sweep_ns += time.thread_time_ns() - began
