"""The periodic sweep: all views of all processes, taken where slowness does no harm.

In: the kernel's lists (sensor) and /proc (process), both as they are. Out: a Sighting
for the thread that owns the ledger. Nothing here knows the ledger, and nothing here is
on the path of events.
"""

import time
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

from agent.errors import NotPermittedError
from agent.events import Discrepancy, Listing, ProcessKey, Seen, Verdict
from agent.process import crossview
from agent.process.crossview import Look, Turns
from agent.process.mounts import NOT_COMPARABLE, Doubt, DoubtKind
from agent.process.proc import TICK_NS, Proc
from agent.sensor.tasks import TaskViews

_PPIDS_EACH = 32
"""Parents by /proc, asked for so many processes a sweep in turn: it costs most."""
_WATCH_S = 0.1
_PAUSE_S = 0.05


class Sighting(NamedTuple):
    """What one sweep saw; `ran` is empty unless the scheduler was watched.

    `covered` are processes over whose folder in /proc something is mounted, `doubts`
    all other reasons not to believe /proc; both are told once for as long as they hold.
    """

    listing: Listing
    differences: list[Discrepancy]
    ran: list[Seen]
    covered: list[Discrepancy]
    doubts: list[Doubt]


class Sweep:
    """Takes all views again and again; for one thread."""

    def __init__(self, folder: Path, place: Path = Path("/proc")) -> None:
        """Open the views pinned in `folder`, and a /proc."""
        self._opened = ExitStack()
        self.views = TaskViews(folder)
        self._opened.callback(self.views.close)
        self.proc = self._opened.enter_context(Proc.mounted(place))
        self.private: Proc | None = None
        with suppress(NotPermittedError, OSError):  # before 5.2 there is none
            self.private = self._opened.enter_context(Proc.private())
        self._turns = Turns(_PPIDS_EACH)
        self._told: set[Doubt] = set()
        self._covered: set[int] = set()
        self.doubts: list[Doubt] = []
        """Why not to believe the mounted /proc, as of the last sweep."""
        self.comparable = True
        """Whether /proc shows the same processes as the kernel's list."""

    def close(self) -> None:
        """Close everything."""
        self._opened.close()

    def take(self, *, watch: bool) -> Sighting:
        """Take all views; `watch` the scheduler, too."""
        self.doubt()
        listing = self.views.listing()
        ran = self.views.ran(_WATCH_S) if watch else []
        differences: list[Discrepancy] = []
        if self.comparable and listing.starts:
            first = self._look(listing, self._turns.next(listing.starts))
            differences = crossview.confirmed(first, lambda: self._again(first))
        fresh = [one for one in self.doubts if one not in self._told]
        self._told = set(self.doubts)
        covers = _covers(fresh, listing)
        others = [one for one in fresh if one not in covers]
        return Sighting(listing, differences, ran, [*covers.values()], others)

    def covered(self, listing: Listing) -> list[Discrepancy]:
        """Return those over whose folder in /proc something is mounted."""
        return [*_covers(self.doubts, listing).values()]

    def doubt(self) -> None:
        """Ask again how far the mounted /proc can be believed."""
        self.doubts = self.proc.doubts(self.private or self.proc)
        self.comparable = not NOT_COMPARABLE & {one.kind for one in self.doubts}
        self._covered = {one.pid for one in self.doubts}

    def compare(self, listing: Listing) -> list[Discrepancy]:
        """Hold all views against each other, for each process its parent, too."""
        if not self.comparable:
            return []
        first = self._look(listing, list(listing.starts))
        return crossview.confirmed(first, lambda: self._again(first))

    def _look(self, listing: Listing, share: list[int]) -> Look:
        """Look once, with one listing for before and after.

        Our own procfs is not asked: it can only explain what is found to be missing.
        """
        chain = self.views.chain() if self.views.independent else None
        pids, parents = self.proc.pids(), self._parents(share)
        return Look(listing, chain, pids, None, parents, listing, self._start_of)

    def _again(self, first: Look) -> Look:
        time.sleep(_PAUSE_S)
        before = self.views.listing(changes=False)
        look = self._look(before, list(first.ppids))
        private = self.private.pids() if self.private else None
        after = self.views.listing(changes=False)
        return look._replace(private=private, after=after)

    def _parents(self, share: list[int]) -> dict[int, int]:
        # what is mounted over a folder may be a FUSE that makes us wait
        told = ((pid, self.proc.stat(pid)) for pid in share if pid not in self._covered)
        return {pid: stat.ppid for pid, stat in told if stat and stat.pid == pid}

    def _start_of(self, pid: int) -> int | None:
        if pid not in self._covered and (stat := self.proc.stat(pid)):
            return stat.start_ticks * TICK_NS
        return 0 if pid in self.proc.pids() else None


def _covers(doubts: Iterable[Doubt], listing: Listing) -> dict[Doubt, Discrepancy]:
    """Say of whom a doubt is; no race can mount something, so one look is enough."""
    return {
        one: Discrepancy(
            ProcessKey(one.pid, listing.starts[one.pid]),
            Verdict.HIDDEN_FROM_PROC,
            one.text,
            listing.taken_ns,
            listing.taken_ns,
            {crossview.LIST: True, crossview.PROC: False},
        )
        for one in doubts
        if one.kind is DoubtKind.COVERED and one.pid in listing.starts
    }
