"""A census over every history that the kernel allows, and over what it does not.

In: a model of the kernel, events that may be lost or read in the middle of a change,
and lists that are held against the ledger late. Out: nothing is ever told of a legal
history, what was lost is mended, and what a rootkit does is told once.
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from agent.events import Event, Fork, Listing, ProcessKey
from agent.process.census import RAN_UNLISTED
from agent.process.ledger import Ledger
from tests.process.census_node import CensusNode, kinds
from tests.process.kernel_model import Being, Kernel

picks = st.integers(0, 1000)
WHOLE = (5000, 5000)


class CensusMachine(RuleBasedStateMachine):
    """Processes that do what they like, and an agent that sweeps now and then."""

    @initialize(
        sizes=st.sampled_from([WHOLE, WHOLE, (8, 2), (12, 0)]),
        lossy=st.booleans(),
        old=st.integers(0, 4),
    )
    def boot(self, sizes: tuple[int, int], old: int, *, lossy: bool) -> None:
        def before(kernel: Kernel) -> None:
            for _ in range(old):
                kernel.fork(kernel.beings[-1], kernel.init)

        self.node = CensusNode(Ledger(*sizes), before)
        self.kernel, self.lossy = self.node.kernel, lossy
        self.whole = sizes == WHOLE
        self.listing: Listing | None = None
        self.torn: set[ProcessKey] = set()
        self.lost_births = self.lost_ends = 0

    def _emit(self, events: list[Event], lost: int) -> None:
        for number, event in enumerate(events):
            if self.lossy and lost >> number % 10 & 1:
                self.lost_births += isinstance(event, Fork)
                self.lost_ends += not isinstance(event, Fork)
            else:
                self.node.tell(event)

    def _living(self, pick: int) -> Being:
        living = self.kernel.living()
        if len(living) > 1 and pick % 8:
            living = living[1:]
        return living[pick // 8 % len(living)]

    # what processes do

    @rule(who=picks, where=picks, sibling=st.booleans(), lost=picks)
    def fork(self, who: int, where: int, lost: int, *, sibling: bool) -> None:
        creator = self._living(who)
        others = [None, *self.kernel.namespaces_for(creator)]
        inside = creator.inside if where % 3 else others[where % len(others)]
        event = self.kernel.fork(creator, inside, clone_parent=sibling)
        if event:
            self._emit([event], lost)

    @rule(who=picks)
    def exec_(self, who: int) -> None:
        self.node.runs(self._living(who))

    @rule(who=picks, lost=picks, waited=st.booleans())
    def exit(self, who: int, lost: int, *, waited: bool) -> None:
        one = self._living(who)
        if one is not self.kernel.init:
            self._emit(self.kernel.exit(one), lost)
            if waited:
                self.kernel.reap(one)

    @rule(kind=st.sampled_from(["wait", "reap", "trace", "untrace"]), a=picks, b=picks)
    def change(self, kind: str, a: int, b: int) -> None:
        self.kernel.change(kind, self._living(a), self._living(b), a)

    @rule(who=picks, whom=picks)
    def be_read_in_the_middle_of_a_change(self, who: int, whom: int) -> None:
        """A tracer let go between two reads of an event; once in a lifetime."""
        one, other = self._living(who), self._living(whom)
        if one is not other and one.key not in self.torn:
            self.torn.add(one.key)
            self.node.runs(one, parent=other.key, ptrace=0)

    @rule()
    def sleep(self) -> None:
        self.node.sleep()

    # what the agent does

    @rule()
    def list_all(self) -> None:
        """The sweep; nothing is listed anew before it was held."""
        if self.listing is None:
            self.listing = self.node.list_all()

    @rule(ran=st.lists(picks, max_size=4))
    def hold(self, ran: list[int]) -> None:
        if self.listing is None:
            self.listing = self.node.list_all()
        seen = self.node.watch(*map(self._living, ran))
        assert self.node.hold(self.listing, seen) == []
        self.listing = None

    @invariant()
    def nothing_is_counted_that_was_not_lost(self) -> None:
        census = self.node.census
        assert census.ends_unseen >= 0
        if self.whole:
            assert census.births_unseen <= self.lost_births
            assert census.ends_unseen <= self.lost_ends
        assert "forged" not in census.verdicts

    @precondition(lambda self: self.whole)
    @rule()
    def after_two_lists_the_ledger_knows_who_lives(self) -> None:
        self.hold([])
        for _ in range(2):
            self.node.sleep()
            self.hold([])
        living = {entry.key for entry in self.node.ledger.living()}
        assert living >= {one.key for one in self.kernel.living()}
        assert living <= {one.key for one in self.kernel.beings}  # or zombies

    # what a rootkit does, on a machine with the same past

    def _twin(self, pick: int) -> tuple[CensusNode, Being] | None:
        """Another such machine, and somebody on it whom the ledger knows."""
        self.hold([])
        self.node.sleep()
        self.hold([])
        self.node.sleep()
        one = self._living(pick)
        entry = self.node.ledger.get(one.key)
        if one is self.kernel.init or entry is None or one.tracer:
            return None
        twin = self.node.twin()
        found = twin.kernel.find(one.key)
        return (twin, found) if found and self._is_known(one) else None

    def _is_known(self, one: Being) -> bool:
        entry = self.node.ledger.get(one.key)
        if entry is None or entry.exited_ns:
            return False
        return one.reaper_key in (entry.parent, entry.real_parent)

    @rule(who=picks, whose=picks, by_event=st.booleans())
    def forge_a_parent(self, who: int, whose: int, *, by_event: bool) -> None:
        if not (found := self._twin(who)):
            return
        twin, victim = found
        thief = self._living(whose).key
        if thief in (victim.key, victim.reaper_key):
            return
        edit = {"real_parent": thief}
        twin.edits[victim.key] = edit
        if by_event:
            twin.runs(victim, **edit)
        told = [twin.sweep() for _ in range(4)]
        expected = [(victim.key, "forged")]
        assert [kinds(one) for one in told] == [
            expected if at == (not by_event) else [] for at in range(4)
        ]
        [one] = told[not by_event]
        parent = victim.reaper_key
        if twin.kernel.alive(parent):
            assert one.why == f"its parent {parent.tgid} lives"

    @rule(who=picks, acts=st.booleans())
    def hide_from_the_list(self, who: int, *, acts: bool) -> None:
        if not (found := self._twin(who)):
            return
        twin, victim = found
        twin.hidden.add(victim.key)
        expected = [(victim.key, RAN_UNLISTED)]
        if acts:
            assert [twin.sweep(), twin.sweep()] == [[], []]
            twin.runs(victim)
            assert kinds(twin.sweep()) == expected
        else:
            assert twin.sweep(victim) == []
            assert kinds(twin.sweep(victim)) == expected
        assert [twin.sweep(victim) for _ in range(3)] == [[]] * 3


TestCensus = CensusMachine.TestCase
TestCensus.settings = settings(
    deadline=None,
    max_examples=200,
    stateful_step_count=40,
    report_multiple_bugs=False,
)
