"""The ledger against a naive model, in any order that events may come or be missing."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from agent.events import NOBODY, Access, Event, Process, ProcessKey, Task
from agent.process.ledger import END_UNSEEN, Ledger
from agent.process.lineage import MAX_DEPTH, Lineages
from tests.builders import (
    a_failed_exec,
    a_fork,
    a_task,
    an_access,
    an_exec,
    an_exit,
)

# few pids and few start times, so that they meet again
tgids = st.integers(1, 6)
starts = st.integers(1, 4)
keys = st.builds(ProcessKey, tgids, starts)
# most parents are older, as in life; some claim what can't be
parents = st.just(ProcessKey(0, 0)) | keys


class LedgerMachine(RuleBasedStateMachine):
    """Events about anybody, in any order."""

    @initialize(capacity=st.integers(2, 30), exited=st.integers(0, 6))
    def begin(self, capacity: int, exited: int) -> None:
        self.capacity, self.exited = capacity, exited
        self.ledger = Ledger(capacity, exited)
        self.lineages = Lineages(self.ledger)
        self.now = 10
        self.needed: set[ProcessKey] = set()
        self.parents: dict[ProcessKey, ProcessKey] = {}

    def _apply(self, event: Event) -> Process:
        self.now += 1
        before = self.ledger.get(event.task.key)
        entry = self.ledger.apply(event)
        assert entry.key == event.task.key
        # who is reached into is met first, and may take the last place in the table
        assert before is None or before is entry or isinstance(event, Access)
        return entry

    def _task(self, key: ProcessKey, parent: ProcessKey) -> Task:
        """Mostly the child of the same parent; now and then it has another one."""
        if parent.start_ns % 2:
            parent = self.parents.setdefault(key, parent)
        return a_task(key.tgid, start_ns=key.start_ns, real_parent=parent)

    @rule(key=keys, parent=parents, creator=keys)
    def fork(self, key: ProcessKey, parent: ProcessKey, creator: ProcessKey) -> None:
        self._apply(a_fork(self._task(key, parent), creator=creator, bt_ns=self.now))

    @rule(key=keys, parent=parents)
    def exec_(self, key: ProcessKey, parent: ProcessKey) -> None:
        event = an_exec(b"%d" % self.now, task=self._task(key, parent), bt_ns=self.now)
        assert self._apply(event).argv == event.argv

    @rule(key=keys, parent=parents)
    def end(self, key: ProcessKey, parent: ProcessKey) -> None:
        event = an_exit(self._task(key, parent), bt_ns=self.now)
        assert self._apply(event).exited_ns

    @rule(key=keys, parent=parents, whom=keys)
    def reach_into(self, key: ProcessKey, parent: ProcessKey, whom: ProcessKey) -> None:
        self._apply(an_access(self._task(whom, parent), self._task(key, parent)))

    @rule(key=keys, parent=parents)
    def fail(self, key: ProcessKey, parent: ProcessKey) -> None:
        self._apply(a_failed_exec(task=self._task(key, parent)))

    @rule(key=keys, parent=parents)
    def observe(self, key: ProcessKey, parent: ProcessKey) -> None:
        before = self.ledger.get(key)
        entry = self.ledger.observe(self._task(key, parent), b"/x", b"x\0")
        assert entry.key == key
        assert before is None or before is entry

    @rule(key=keys)
    def be_missed(self, key: ProcessKey) -> None:
        """No list has it any more, and no event told of its end."""
        entry = self.ledger.get(key)
        if entry is not None and not entry.exited_ns:
            self.now += 1
            self.ledger.end_unseen(entry, self.now)
            assert (entry.exited_ns, entry.status) == (self.now, END_UNSEEN)

    @rule()
    def hear_who_was_not_gone(self) -> None:
        revived, self.ledger.revived = self.ledger.revived, {}
        assert all(lost_ns <= self.now for lost_ns in revived.values())

    @invariant()
    def who_has_moved_was_another_s_child_before(self) -> None:
        for entry in self._entries().values():
            assert entry.orphaned_by == NOBODY or entry.orphaned_by != entry.parent

    def _entries(self) -> dict[ProcessKey, Process]:
        every = [ProcessKey(t, s) for t in range(1, 7) for s in range(1, 5)]
        found = {key: self.ledger.get(key) for key in every}
        return {key: entry for key, entry in found.items() if entry is not None}

    @invariant()
    def it_is_bounded_and_counts_itself(self) -> None:
        entries = self._entries()
        assert len(self.ledger) == len(entries) <= self.capacity
        assert all(entry.key == key for key, entry in entries.items())

    @invariant()
    def dead_leaves_are_bounded(self) -> None:
        entries = self._entries()
        parents_ = {entry.real_parent for entry in entries.values()}
        leaves = [e for k, e in entries.items() if e.exited_ns and k not in parents_]
        assert len(leaves) <= self.exited

    @invariant()
    def the_living_are_those_without_an_end(self) -> None:
        living = {entry.key for entry in self.ledger.living()}
        assert living == {k for k, e in self._entries().items() if not e.exited_ns}
        assert len(living) == len({key.tgid for key in living})

    @invariant()
    def a_pid_is_the_living_process_that_has_it(self) -> None:
        for tgid in range(1, 7):
            entry = self.ledger.by_tgid(tgid)
            assert entry is None or entry.key.tgid == tgid
            living = [one for one in self.ledger.living() if one.key.tgid == tgid]
            assert not living or entry is living[0]

    @invariant()
    def a_dead_parent_is_there_unless_given_up_for_the_capacity(self) -> None:
        if len(self.ledger) == self.capacity or self._gave_up():
            return
        entries = self._entries()
        assert self._met_parents(entries) <= set(entries)

    def _gave_up(self) -> bool:
        return bool(self.ledger.evicted_ancestors or self.ledger.evicted_living)

    def _met_parents(self, entries: dict[ProcessKey, Process]) -> set[ProcessKey]:
        """Parents that were in the table at some time while a child was."""
        now = {one.real_parent for one in entries.values()}
        self.needed = {key for key in self.needed | set(entries) if key in now}
        return self.needed

    @invariant()
    def every_chain_is_finite_and_knows_what_a_fresh_one_knows(self) -> None:
        for entry in self._entries().values():
            kept = [one.key for one in self.lineages.of(entry).ancestors]
            fresh = [one.key for one in Lineages(self.ledger).of(entry).ancestors]
            assert len(kept) <= MAX_DEPTH
            # it may know of one that the table has forgotten since
            assert kept[: len(fresh)] == fresh


TestLedger = LedgerMachine.TestCase
TestLedger.settings = settings(
    deadline=None,
    max_examples=60,
    stateful_step_count=30,
    report_multiple_bugs=False,
)
