"""The ledger held against the kernel's own list of processes, again and again.

In: listings, in order, each when all events before it were applied. Out: whom the list
gives a parent that can't be, and who runs though the list does not have it; what looks
wrong once is looked at again in the next listing. The ledger is mended on the way: who
was never met is observed, and whose end was not seen is taken as ended.
"""

from collections import Counter
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from agent.events import (
    Discrepancy,
    Listing,
    Parentage,
    ProcessKey,
    Reported,
    Seen,
    Task,
    Verdict,
)
from agent.process.ledger import Ledger
from agent.process.parentage import Parentages
from agent.process.procfs import Description

RAN_UNLISTED = "ran_unlisted"
"""The scheduler ran it, or it acted, and no list of the kernel has it."""

_MARGIN_NS = 1_000_000_000
"""A process has its start time some time before it is in the list."""
_MAX_KEPT = 4096
_USUAL = (Verdict.CONSISTENT, Verdict.UNKNOWN_BEFORE_START)


class _Doubt(NamedTuple):
    """Looked forged at `first_ns`: in a listing, as this task, or at an event."""

    first_ns: int
    task: Task | None


class Census:
    """One ledger's censuses; for the thread that owns it."""

    def __init__(
        self,
        ledger: Ledger,
        parentages: Parentages,
        describe: Callable[[Task], Description],
        began_ns: int,
    ) -> None:
        """Begin; who was born after `began_ns` should have been met by its birth."""
        self._ledger, self._parentages = ledger, parentages
        self._describe, self._began_ns = describe, began_ns
        self._doubted: dict[ProcessKey, _Doubt] = {}
        self._vanished: dict[ProcessKey, int] = {}
        self._ran: dict[ProcessKey, int] = {}
        self._runs: set[ProcessKey] = set()
        self._told: dict[tuple[ProcessKey, str], None] = {}
        self._odd: dict[ProcessKey, Verdict] = {}
        self.births_unseen = 0
        """Processes born in our time that only the list told of."""
        self.ends_unseen = 0
        """Processes that the list lost without an event of their end."""

    @property
    def searching(self) -> bool:
        """Whether somebody is gone from the list, and the scheduler may know of him."""
        told = self._told
        return bool(self._vanished) or any(
            (key, RAN_UNLISTED) not in told for key in self._runs
        )

    @property
    def verdicts(self) -> dict[str, int]:
        """How many of the living have which of the verdicts that are not the usual."""
        return dict(Counter(self._odd.values()))

    def take(
        self, listing: Listing, suspects: Collection[Reported], ran: Collection[Seen]
    ) -> list[Discrepancy]:
        """Take a listing in, with what events and the scheduler say.

        `suspects` are events whose task looked forged, `ran` who ran after the listing.
        Returns what two looks have shown by now, each once.
        """
        found = self._forged(listing, suspects)
        found += self._unlisted(listing, ran)
        found += self._revived(listing)
        self._bury(listing)
        return self.first_told(found)

    def first_told(self, found: list[Discrepancy]) -> list[Discrepancy]:
        """Keep what was not told of the same process before."""
        fresh = []
        for one in found:
            about = one.key, one.kind
            if about not in self._told and not self._is_hidden_and_runs(one):
                fresh.append(one)
            self._told.pop(about, None)  # who is found again is forgotten last
            self._told[about] = None
        _trim(self._told)
        return fresh

    def _is_hidden_and_runs(self, one: Discrepancy) -> bool:
        """Whether it was told as hidden, and in which list it still is."""
        hidden = (one.key, Verdict.HIDDEN_FROM_PROC)
        return one.kind == RAN_UNLISTED and hidden in self._told

    def _forged(
        self, listing: Listing, suspects: Collection[Reported]
    ) -> list[Discrepancy]:
        """Judge who has changed; who was doubted before has its second look."""
        doubted, self._doubted, found = self._doubted, {}, []
        for event in suspects:
            later = event.bt_ns >= listing.taken_ns  # the next list is the second look
            by_event = self._doubted if later else doubted
            by_event.setdefault(event.task.key, _Doubt(event.bt_ns, None))
        for task in _looked_at(listing, doubted):
            told = self._judge(task)
            doubt = doubted.get(task.key)
            if told is None or told.verdict is not Verdict.FORGED:
                continue
            if doubt is None:
                self._doubted[task.key] = _Doubt(listing.taken_ns, task)
            else:
                self._odd[task.key] = Verdict.FORGED
                found.append(_disowned(task, told, doubt.first_ns, listing.taken_ns))
        return found

    def _judge(self, task: Task) -> Parentage | None:
        """Judge by the ledger, mending it; None for who came and went meanwhile."""
        entry = self._ledger.get(task.key)
        if entry is not None:
            self._ledger.observe(task, b"", b"")
        elif self._parentages.lives(task.key):
            self.births_unseen += task.key.start_ns > self._began_ns
            entry = self._ledger.observe(task, *self._describe(task))
        else:
            return None
        told = self._parentages.of(entry, task)
        if told.verdict in _USUAL:
            self._odd.pop(task.key, None)
        elif told.verdict is not Verdict.FORGED:  # that counts when it is confirmed
            self._odd[task.key] = told.verdict
        return told

    def _unlisted(self, listing: Listing, ran: Collection[Seen]) -> list[Discrepancy]:
        """Find who ran after a listing that should have had it, and did so before."""
        found = []
        self._runs = set()
        for seen in unlisted(listing, ran):
            key = seen.key
            self._runs.add(key)
            first_ns = self._ran.setdefault(key, seen.bt_ns)
            if first_ns < listing.taken_ns:
                found.append(
                    Discrepancy(
                        key,
                        RAN_UNLISTED,
                        "the scheduler ran it, and the kernel's list does not have it",
                        first_ns,
                        seen.bt_ns,
                        {"scheduler": True, "task list": False},
                        comm=seen.comm,
                    )
                )
        _trim(self._ran)
        return found

    def _revived(self, listing: Listing) -> list[Discrepancy]:
        """Find who was met after two listings had lost it."""
        revived, self._ledger.revived = self._ledger.revived, {}
        self.ends_unseen -= len(revived)
        why = "the kernel's list had lost it, and it was not gone"
        views = {"task list": False, "birth ledger": True}
        now = listing.taken_ns
        return [
            Discrepancy(key, RAN_UNLISTED, why, lost_ns, now, views)
            for key, lost_ns in revived.items()
        ]

    def _bury(self, listing: Listing) -> None:
        """Take as ended who was missing from this listing and the one before."""
        if not listing.starts:
            return
        before, self._vanished = self._vanished, {}
        for entry in list(self._ledger.living()):
            key = entry.key
            if _lists(listing, key) or key in self._runs:
                continue
            if key in before:
                self._ledger.end_unseen(entry, before[key])
                self.ends_unseen += 1
            elif key.start_ns < listing.taken_ns - _MARGIN_NS:
                self._vanished[key] = listing.taken_ns
        self._odd = {
            key: verdict for key, verdict in self._odd.items() if _lists(listing, key)
        }


def unlisted(listing: Listing, ran: Collection[Seen]) -> list[Seen]:
    """Return who ran after a listing that should have had it; one may be a race."""
    return [
        seen
        for seen in ran
        if seen.key.start_ns < listing.taken_ns - _MARGIN_NS
        and seen.bt_ns >= listing.taken_ns
        and not _lists(listing, seen.key)
    ]


def _lists(listing: Listing, key: ProcessKey) -> bool:
    return listing.starts.get(key.tgid) == key.start_ns


def _looked_at(listing: Listing, doubted: dict[ProcessKey, _Doubt]) -> list[Task]:
    """Return who has changed, and the doubted who have not, as this listing has them.

    Not by an event's word: unless the listing says that it changed, it is as it was
    when it was judged, so the event saw something that has passed.
    """
    changed = {task.key for task in listing.changed}
    again = [
        doubt.task
        for key, doubt in doubted.items()
        if doubt.task and key not in changed and _lists(listing, key)
    ]
    return listing.changed + again


def _trim(kept: dict[Any, Any]) -> None:
    while len(kept) > _MAX_KEPT:
        del kept[next(iter(kept))]


def _disowned(
    task: Task, told: Parentage, first_ns: int, confirmed_ns: int
) -> Discrepancy:
    return Discrepancy(
        task.key,
        told.verdict,
        told.why,
        first_ns,
        confirmed_ns,
        parentage=told,
        comm=task.image.comm,
    )
