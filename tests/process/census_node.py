"""A machine under census: the kernel's model, and a ledger that hears and lists.

In: what processes do, and what a rootkit does to lists and tasks. Out: what a census
says. A listing is taken at one moment and held against the ledger at another, as the
two threads of the agent do it.
"""

import copy
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import msgspec

from agent.events import (
    Discrepancy,
    Event,
    Exec,
    Fork,
    Listing,
    ProcessKey,
    Seen,
    Task,
    Verdict,
)
from agent.process.census import Census
from agent.process.ledger import Ledger
from agent.process.lineage import Lineages
from agent.process.parentage import Parentages
from agent.process.procfs import Description
from tests.builders import IMAGE, SECOND
from tests.process.kernel_model import Being, Kernel


def nothing(_: Task) -> Description:
    """/proc has no word for anybody."""
    return Description(b"", b"")


class CensusNode:
    """One machine; `edits` are what somebody has made of tasks."""

    def __init__(
        self,
        ledger: Ledger,
        before: Callable[[Kernel], object] = lambda _: None,
        describe: Callable[[Task], Description] = nothing,
    ) -> None:
        """Start the agent where `before` has happened."""
        self.kernel, self.ledger = Kernel(SECOND // 20), ledger
        self.edits: dict[ProcessKey, Mapping[str, Any]] = {}
        self.hidden: set[ProcessKey] = set()
        self._listed: set[Task] = set()
        before(self.kernel)
        for task in self.kernel.listing().changed:
            ledger.observe(task, b"", b"")
        ledger.snapshot_ns = self.kernel.tick()
        self.parentages = Parentages(
            ledger, Lineages(ledger), self.kernel.alive, self.kernel.reaps
        )
        self.census = Census(ledger, self.parentages, describe, self.kernel.now)
        self.suspects: dict[ProcessKey, Exec | Fork] = {}

    def twin(self) -> "CensusNode":
        """Another machine with the same past."""
        return copy.deepcopy(self, {id(IMAGE): IMAGE})

    def born(self, creator: Being | None = None, **how: Any) -> Being:
        """Have a child born, and its birth told."""
        creator = creator or self.kernel.init
        event = self.kernel.fork(creator, creator.inside, **how)
        assert event is not None
        self.tell(event)
        return self.kernel.beings[-1]

    def ends(self, one: Being, *, lost: bool = False, waited: bool = True) -> None:
        events = self.kernel.exit(one)
        if not lost:
            for event in events:
                self.tell(event)
        if waited:
            self.kernel.reap(one)

    def runs(self, one: Being, **edit: Any) -> None:
        """It runs a program; the event has its task with these changes."""
        event = self.kernel.exec(one)
        task = msgspec.structs.replace(event.task, **edit)
        self.tell(msgspec.structs.replace(event, task=task))

    def tell(self, event: Event) -> None:
        """Apply and judge an event, as the path does."""
        entry = self.ledger.apply(event)
        if isinstance(event, Exec | Fork):
            told = self.parentages.of(entry, event.task, event.bt_ns)
            if told.verdict is Verdict.FORGED:
                self.suspects[entry.key] = event

    def sleep(self, seconds: int = 2) -> None:
        self.kernel.now += seconds * SECOND

    def list_all(self) -> Listing:
        """Take a listing, with what was done to it."""
        taken = self.kernel.tick()
        shown = [one for one in self.kernel.beings if one.key not in self.hidden]
        tasks = [
            msgspec.structs.replace(
                self.kernel.task(one), **self.edits.get(one.key, {})
            )
            for one in shown
        ]
        changed = [task for task in tasks if task not in self._listed]
        self._listed = set(tasks)
        return Listing(
            taken,
            {task.key.tgid: task.key.start_ns for task in tasks},
            {task.key.tgid: task.real_parent.tgid for task in tasks},
            changed,
        )

    def watch(self, *who: Being) -> list[Seen]:
        """See these run."""
        return [Seen(one.key, self.kernel.tick(), one.key.tgid, b"x") for one in who]

    def hold(self, listing: Listing, ran: Collection[Seen] = ()) -> list[Discrepancy]:
        suspects, self.suspects = self.suspects, {}
        return self.census.take(listing, suspects.values(), ran)

    def sweep(self, *ran: Being) -> list[Discrepancy]:
        """Take a listing and hold it at once; these are seen to run after it."""
        listing = self.list_all()
        return self.hold(listing, self.watch(*ran))


def kinds(found: Iterable[Discrepancy]) -> list[tuple[ProcessKey, str]]:
    return [(one.key, str(one.kind)) for one in found]
