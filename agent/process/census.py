"""The ledger held against the kernel's own list of processes, again and again.

In: listings, in order, each when all events before it were applied. Out: whom the list
gives a parent that can't be, and who runs though the list does not have it; what looks
wrong once is looked at again in the next listing. The ledger is mended on the way: who
was never met is observed, and whose end was not seen is taken as ended.
"""

from collections import Counter
from collections.abc import Callable, Collection

from agent.events import (
    Discrepancy,
    Listing,
    Parentage,
    Process,
    ProcessKey,
    Seen,
    Task,
    Verdict,
)
from agent.process.ledger import Ledger
from agent.process.parentage import Parentages
from agent.process.procfs import Description

RAN_UNLISTED = "ran_unlisted"
"""The scheduler ran it, and no list of the kernel has it."""

_MARGIN_NS = 1_000_000_000
"""A process has its start time some time before it is in the list."""
_MAX_TOLD = 4096
_USUAL = (Verdict.CONSISTENT, Verdict.UNKNOWN_BEFORE_START)


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
        self._doubted: dict[ProcessKey, tuple[Task, int]] = {}
        self._vanished: dict[ProcessKey, int] = {}
        self._told: dict[tuple[ProcessKey, str], None] = {}
        self._odd: dict[ProcessKey, Verdict] = {}
        self._ran: dict[ProcessKey, int] = {}
        self.births_unseen = 0
        """Processes born in our time that only the list told of."""
        self.ends_unseen = 0
        """Processes that the list lost without an event of their end."""

    @property
    def searching(self) -> bool:
        """Whether somebody is gone from the list, and the scheduler may know of him."""
        return bool(self._vanished or self._ran)

    @property
    def verdicts(self) -> dict[str, int]:
        """How many of the living have which of the verdicts that are not the usual."""
        return dict(Counter(self._odd.values()))

    def take(
        self, listing: Listing, suspects: Collection[Task], ran: Collection[Seen]
    ) -> list[Discrepancy]:
        """Take a listing in; `suspects` looked forged at an event, `ran` have run.

        Returns what two listings have shown by now, each once.
        """
        found = self._second_look(listing)
        for task in listing.changed:
            if self._judge(task).verdict is Verdict.FORGED:
                self._doubted.setdefault(task.key, (task, listing.taken_ns))
        for task in suspects:
            self._doubted.setdefault(task.key, (task, task.key.start_ns))
        found += self._unlisted(listing, ran)
        found += self._revived(listing)
        self._bury(listing)
        return self.first_told(found)

    def first_told(self, found: list[Discrepancy]) -> list[Discrepancy]:
        """Keep what was not told of the same process before."""
        fresh = [one for one in found if (one.key, one.kind) not in self._told]
        self._told.update(dict.fromkeys((one.key, one.kind) for one in fresh))
        while len(self._told) > _MAX_TOLD:
            del self._told[next(iter(self._told))]
        return fresh

    def _judge(self, task: Task) -> Parentage:
        entry = self._ledger.get(task.key)
        if entry is None:
            self.births_unseen += task.key.start_ns > self._began_ns
            described = self._describe(task)
            entry = self._ledger.observe(task, *described)
        else:
            self._ledger.observe(task, b"", b"")
        told = self._parentages.of(entry, task)
        if told.verdict in _USUAL:
            self._odd.pop(task.key, None)
        else:
            self._odd[task.key] = told.verdict
        return told

    def _second_look(self, listing: Listing) -> list[Discrepancy]:
        """Judge the doubted by this listing; who is not in it has ended."""
        changed = {task.key: task for task in listing.changed}
        found = []
        doubted, self._doubted = self._doubted, {}
        for key, (task, first_ns) in doubted.items():
            if listing.starts.get(key.tgid) != key.start_ns:
                continue
            now = changed.get(key, task)
            told = self._judge(now)
            if told.verdict is Verdict.FORGED:
                found.append(
                    Discrepancy(
                        key,
                        told.verdict,
                        told.why,
                        first_ns,
                        listing.taken_ns,
                        parentage=told,
                        comm=now.image.comm,
                    )
                )
        return found

    def _unlisted(self, listing: Listing, ran: Collection[Seen]) -> list[Discrepancy]:
        """Find who ran after a listing that should have had it, twice."""
        found, before = [], self._ran
        self._ran = {}
        for seen in ran:
            key = seen.key
            old = key.start_ns < listing.taken_ns - _MARGIN_NS
            listed = listing.starts.get(key.tgid) == key.start_ns
            if listed or not old or seen.bt_ns < listing.taken_ns:
                continue
            self._ran[key] = seen.bt_ns
            self._vanished.pop(key, None)
            if key in before:
                found.append(
                    Discrepancy(
                        key,
                        RAN_UNLISTED,
                        "the scheduler ran it, and the kernel's list does not have it",
                        before[key],
                        seen.bt_ns,
                        {"scheduler": True, "task list": False},
                        comm=seen.comm,
                    )
                )
        return found

    def _revived(self, listing: Listing) -> list[Discrepancy]:
        """Find who acted after two listings had lost it."""
        revived, self._ledger.revived = self._ledger.revived, []
        why = "an event of it came after the kernel's list had lost it"
        views = {"task list": False, "birth ledger": True}
        at = listing.taken_ns
        return [Discrepancy(key, RAN_UNLISTED, why, at, at, views) for key in revived]

    def _bury(self, listing: Listing) -> None:
        """Take as ended who was missing from this listing and the one before."""
        if not listing.starts:
            return
        before, self._vanished = self._vanished, {}
        for entry in list(self._ledger.living()):
            key = entry.key
            if listing.starts.get(key.tgid) == key.start_ns or key in self._ran:
                continue
            if key in before:
                self._end(entry, before[key])
            elif key.start_ns < listing.taken_ns - _MARGIN_NS:
                self._vanished[key] = listing.taken_ns
        self._odd = {
            key: verdict
            for key, verdict in self._odd.items()
            if listing.starts.get(key.tgid) == key.start_ns
        }

    def _end(self, entry: Process, at_ns: int) -> None:
        self._ledger.end_unseen(entry, at_ns)
        self.ends_unseen += 1
