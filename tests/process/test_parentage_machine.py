"""Parentage over every history that the kernel allows, and over what it does not.

In: a model of the kernel's rules, whose events may be lost, late, or older than the
snapshot, and a ledger of any size. Out: a legal history never looks forged; one edit of
it always does, and the reason names who.
"""

import copy
from collections.abc import Iterable

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from agent.events import (
    NOBODY,
    ChainEnd,
    Event,
    Exec,
    Exit,
    Fork,
    Parentage,
    Task,
    Verdict,
)
from agent.process.ledger import Ledger
from agent.process.lineage import Lineages
from agent.process.parentage import Parentages
from tests.builders import an_exec
from tests.process.kernel_model import Being, Kernel

picks = st.integers(0, 1000)


def judge_of(ledger: Ledger, kernel: Kernel) -> Parentages:
    return Parentages(ledger, Lineages(ledger), kernel.alive, kernel.reaps)


def expected(one: Being) -> Verdict:
    """What is true of it now, if all of it was seen."""
    if one.tracer:
        return Verdict.TRACED
    if one.reaper_key != one.birth:
        return Verdict.REPARENTED
    if one.creator == one.birth:
        return Verdict.CONSISTENT
    seen = one.creator != NOBODY
    return Verdict.CLONE_PARENT if seen else Verdict.UNKNOWN_BEFORE_START


class ParentageMachine(RuleBasedStateMachine):
    """Processes that do what they like, and a ledger that hears of it."""

    @initialize(
        sizes=st.sampled_from([(5000, 5000)] * 3 + [(5000, 0), (12, 3), (6, 0)]),
        lossy=st.booleans(),
        before=st.integers(0, 3),
        backlog=st.sampled_from([False, False, True]),
        first=st.lists(picks, min_size=2, max_size=6),
    )
    def boot(
        self,
        sizes: tuple[int, int],
        before: int,
        first: list[int],
        *,
        backlog: bool,
        lossy: bool,
    ) -> None:
        """Some are there before the probes, and some before the agent."""
        self.kernel = Kernel()
        self.ledger = Ledger(*sizes)
        self.parentages = judge_of(self.ledger, self.kernel)
        self.lossy = lossy
        self.exact = not lossy and sizes == (5000, 5000)
        self.started = self.collecting = False
        self.waiting: list[tuple[Event, Verdict | None]] = []
        self.stale: list[Task] = []
        self.ends: dict[object, int] = {}
        for pick in first[:before]:
            self.fork(pick, 1, 0, 1, sibling=False)
        self.collecting = True
        if not backlog:
            self.start_the_agent()
        for pick in first[before:]:
            self.fork(pick, 1, 0, 1, sibling=False)

    # the agent's side

    @precondition(lambda self: not self.started)
    @rule()
    def start_the_agent(self) -> None:
        listing = self.kernel.listing()
        for task in listing.changed:
            self.ledger.observe(task, b"", b"")
        self.ledger.snapshot_ns = self.kernel.tick()
        if self.waiting:
            self.exact = False
        for one in self.kernel.beings:
            one.creator, one.birth = NOBODY, one.reaper_key
        self.started = True
        self.flush()

    def _emit(self, events: Iterable[Event], lost: int, later: int) -> None:
        for number, event in enumerate(events):
            gone = self.lossy and lost >> number % 10 & 1
            if self.collecting and not gone:
                one = self.kernel.find(event.task.key)
                truth = expected(one) if one else None
                self.waiting.append((event, truth))
        if self.started and later % 3:
            self.flush()

    def flush(self) -> None:
        for event, truth in self.waiting:
            entry = self.ledger.apply(event)
            if isinstance(event, Exit):
                self.ends[event.task.key] = event.bt_ns
            if not isinstance(event, Exec | Fork):
                continue
            told = self.parentages.of(entry, event.task, event.bt_ns)
            assert told.verdict is not Verdict.FORGED, told
            if self.exact:
                assert told.verdict is truth, told
                self._assert_evidence(event, told)
        self.waiting.clear()

    def _assert_evidence(self, event: Event, told: Parentage) -> None:
        if told.exited == NOBODY:
            assert told.verdict is not Verdict.REPARENTED
            return
        assert told.exited != told.parent == event.task.real_parent
        assert told.exited_ns == self.ends.get(told.exited, 0)

    # the kernel's side

    def _living(self, pick: int) -> Being:
        """Seldom pid 1, of which there is not much to tell."""
        living = self.kernel.living()
        if len(living) > 1 and pick % 8:
            living = living[1:]
        return living[pick // 8 % len(living)]

    @rule(who=picks, where=picks, sibling=st.booleans(), lost=picks, later=picks)
    def fork(
        self, who: int, where: int, lost: int, later: int, *, sibling: bool
    ) -> None:
        creator = self._living(who)
        others = [None, *self.kernel.namespaces_for(creator)]
        # mostly at home
        inside = creator.inside if where % 3 else others[where % len(others)]
        event = self.kernel.fork(creator, inside, clone_parent=sibling)
        if event:
            self._emit([event], lost, later)

    @rule(who=picks, lost=picks, later=picks)
    def exec_(self, who: int, lost: int, later: int) -> None:
        self._emit([self.kernel.exec(self._living(who))], lost, later)

    @rule(who=picks, lost=picks, later=picks)
    def exit(self, who: int, lost: int, later: int) -> None:
        one = self._living(who)
        if one is not self.kernel.init:
            self._emit(self.kernel.exit(one), lost, later)

    @rule(who=picks, lost=picks, later=picks, again=picks)
    def orphan_and_exec(self, who: int, lost: int, later: int, again: int) -> None:
        """Somebody's parent ends, and it runs a program."""
        one = self._living(who)
        if one.parent and one.parent is not self.kernel.init and one.parent.lives:
            self._emit(self.kernel.exit(one.parent), lost, later)
            if one.lives:
                self._emit([self.kernel.exec(one)], 0, again)

    @rule(kind=st.sampled_from(["wait", "reap", "trace", "untrace"]), a=picks, b=picks)
    def change(self, kind: str, a: int, b: int) -> None:
        self.kernel.change(kind, self._living(a), self._living(b), a)

    # listings

    @precondition(lambda self: self.started)
    @rule()
    def list_and_judge(self) -> None:
        self.flush()
        for task in self.kernel.listing().changed:
            entry = self.ledger.observe(task, b"", b"")
            told = self.parentages.of(entry, task)
            assert told.verdict is not Verdict.FORGED, told

    @precondition(lambda self: self.started)
    @rule()
    def list_now_and_observe_later(self) -> None:
        self.stale = self.kernel.listing().changed

    @rule()
    def observe_what_was_listed_before(self) -> None:
        self.flush() if self.started else None
        for task in self.stale:
            self.ledger.observe(task, b"", b"")
        self.stale = []

    # edits

    def _edited(self, task: Task) -> Parentage:
        """What is said of the same history with this task at its end."""
        ledger = copy.deepcopy(self.ledger)
        event = an_exec(b"x", task=task, bt_ns=self.kernel.now + 1)
        entry = ledger.apply(event)
        return judge_of(ledger, self.kernel).of(entry, task, event.bt_ns)

    def _victim(self, pick: int) -> tuple[Being, Task] | None:
        """Somebody whose entry is up to date."""
        self.flush()
        one = self._living(pick)
        entry = self.ledger.get(one.key)
        up_to_date = entry is not None and not entry.exited_ns and one.parent
        return (one, self.kernel.task(one)) if up_to_date else None

    @precondition(lambda self: self.started)
    @rule(who=picks, whose=picks, both=st.booleans())
    def rewrite_real_parent(self, who: int, whose: int, *, both: bool) -> None:
        """Its parent lives, so no other can be its parent."""
        found, other = self._victim(who), self._living(whose)
        if found is None or other.key in (found[1].real_parent, found[1].key):
            return
        one, task = found
        entry = self.ledger.get(one.key)
        assert entry is not None
        parent = task.real_parent
        if parent not in (entry.parent, entry.real_parent):
            return  # nobody has told who is robbed
        changes = {"real_parent": other.key}
        if both and not one.tracer:
            changes["parent"] = other.key
        told = self._edited(msgspec.structs.replace(task, **changes))
        assert told.verdict is Verdict.FORGED
        assert told.parent == other.key
        if self.kernel.alive(parent):
            assert told.why == f"its parent {parent.tgid} lives"

    @precondition(lambda self: self.started)
    @rule(who=picks, whose=picks)
    def give_an_orphan_to_a_stranger(self, who: int, whose: int) -> None:
        """Its parent ends, and somebody takes over who may not."""
        found, other = self._victim(who), self._living(whose)
        if found is None:
            return
        one, task = found
        entry, robbed = self.ledger.get(one.key), one.parent
        assert entry is not None
        assert robbed is not None
        lineage = Lineages(self.ledger).of(entry)
        family = {ancestor.key for ancestor in lineage.ancestors} | {one.key}
        heard = entry.parent == robbed.key == entry.real_parent
        strange = other.key not in family and not other.is_init
        if lineage.end is not ChainEnd.ROOT or not heard or not strange:
            return
        if robbed is self.kernel.init or not robbed.lives:
            return
        robbed.lives = False
        try:
            changes = {"real_parent": other.key, "parent": other.key, "ptrace": 0}
            told = self._edited(msgspec.structs.replace(task, **changes))
        finally:
            robbed.lives = True
        assert told.verdict is Verdict.FORGED
        assert told.why == (
            f"{other.key.tgid} is no ancestor of its parent {robbed.key.tgid}"
        )
        assert told.exited == robbed.key

    @precondition(lambda self: self.started)
    @rule(who=picks, whose=picks)
    def rewrite_parent_alone(self, who: int, whose: int) -> None:
        found, other = self._victim(who), self._living(whose)
        if found is None or other.key == found[1].real_parent:
            return
        _, task = found
        edited = msgspec.structs.replace(task, parent=other.key, ptrace=0)
        told = self._edited(edited)
        assert told.verdict is Verdict.FORGED
        assert told.why == f"parent is {other.key.tgid}, and nobody traces it"

    @precondition(lambda self: self.started)
    @rule(who=picks, leader=st.integers(20, 30))
    def rewrite_the_leader(self, who: int, leader: int) -> None:
        if found := self._victim(who):
            told = self._edited(msgspec.structs.replace(found[1], leader=leader))
            assert told.verdict is Verdict.FORGED
            assert told.why == f"its thread group's leader is {leader}"


TestParentage = ParentageMachine.TestCase
TestParentage.settings = settings(
    deadline=None,
    max_examples=250,
    stateful_step_count=40,
    report_multiple_bugs=False,
)
