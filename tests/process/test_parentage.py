"""Whose child is it: each verdict, what it is drawn from, and what is no forgery."""

from typing import Any

import msgspec
import pytest

from agent.events import NOBODY, Event, Parentage, Process, ProcessKey, Task, Verdict
from agent.process.ledger import Ledger
from agent.process.lineage import Lineages
from agent.process.parentage import Parentages
from tests.builders import INIT, NOW, SECOND, a_fork, a_key, a_task, an_exec, an_exit

GRANNY, MOTHER, CHILD, STRANGER = map(a_key, (10, 20, 30, 40))


class Node:
    """A ledger of one family: init, granny, mother, child, and a stranger."""

    def __init__(self, *births: tuple[ProcessKey, ProcessKey]) -> None:
        self.ledger = Ledger()
        self.ledger.observe(task_of(INIT, NOBODY), b"", b"")
        self.living = {INIT}
        self.inits: set[ProcessKey] = set()
        self.now = NOW
        self.parentages = Parentages(
            self.ledger,
            Lineages(self.ledger),
            self.living.__contains__,
            self.inits.__contains__,
        )
        family = (GRANNY, INIT), (MOTHER, GRANNY), (CHILD, MOTHER), (STRANGER, INIT)
        for key, parent in births or family:
            self.born(key, parent)

    def born(self, key: ProcessKey, parent: ProcessKey, **fork: Any) -> Parentage:
        self.living.add(key)
        return self.tell(a_fork(task_of(key, parent), **fork))

    def ends(self, key: ProcessKey, *, lost: bool = False) -> None:
        entry = self.ledger.get(key)
        assert entry is not None
        self.living.remove(key)
        if not lost:
            self.tell(an_exit(task_of(key, entry.parent)))

    def tell(self, event: Event, **changes: Any) -> Parentage:
        """What is said at an event, a moment after the one before."""
        self.now += 1
        event = msgspec.structs.replace(event, **({"bt_ns": self.now} | changes))
        entry = self.ledger.apply(event)
        return self.parentages.of(entry, event.task, event.bt_ns)

    def runs(self, key: ProcessKey, parent: ProcessKey, /, **task: Any) -> Parentage:
        """What is said when it runs a program as the child of this one."""
        return self.tell(an_exec(b"x", task=task_of(key, parent, **task)))

    def listed(self, key: ProcessKey, parent: ProcessKey, /, **task: Any) -> Parentage:
        """What is said when the kernel's list has it as the child of this one."""
        now = task_of(key, parent, **task)
        return self.parentages.of(self.ledger.observe(now, b"", b""), now)

    def entry(self, key: ProcessKey) -> Process:
        found = self.ledger.get(key)
        assert found is not None
        return found


def task_of(key: ProcessKey, parent: ProcessKey, /, **changes: Any) -> Task:
    return a_task(key.tgid, start_ns=key.start_ns, real_parent=parent, **changes)


# what is as it should be


def test_the_child_of_its_creator_is_consistent() -> None:
    node = Node()
    assert node.runs(CHILD, MOTHER).verdict is Verdict.CONSISTENT
    assert node.runs(INIT, NOBODY).verdict is Verdict.CONSISTENT


def test_a_sibling_by_clone_names_its_creator() -> None:
    told = Node().born(a_key(31), MOTHER, creator=CHILD)
    assert told.verdict is Verdict.CLONE_PARENT
    assert (told.creator, told.birth_parent, told.parent) == (CHILD, MOTHER, MOTHER)


def test_who_was_there_before_is_unknown() -> None:
    told = Node().listed(a_key(31), MOTHER)
    assert told.verdict is Verdict.UNKNOWN_BEFORE_START
    assert (told.creator, told.birth_parent, told.parent) == (NOBODY, MOTHER, MOTHER)


@pytest.mark.parametrize("tracer", [STRANGER, MOTHER])
def test_a_tracer_is_named_and_the_parent_stays(tracer: ProcessKey) -> None:
    """PTRACE_TRACEME makes the parent the tracer."""
    told = Node().runs(CHILD, MOTHER, parent=tracer, ptrace=1)
    assert told.verdict is Verdict.TRACED
    assert (told.tracer, told.parent, told.exited) == (tracer, MOTHER, NOBODY)


@pytest.mark.parametrize("reaper", [GRANNY, INIT])
def test_an_orphan_goes_to_an_ancestor_that_reaps(reaper: ProcessKey) -> None:
    node = Node()
    node.ends(MOTHER)
    told = node.runs(CHILD, reaper)
    assert told.verdict is Verdict.REPARENTED
    assert (told.birth_parent, told.parent) == (MOTHER, reaper)
    assert (told.exited, told.exited_ns) == (MOTHER, node.entry(MOTHER).exited_ns)


def test_an_end_that_was_lost_makes_an_orphan_too() -> None:
    node = Node()
    node.ends(MOTHER, lost=True)
    told = node.runs(CHILD, GRANNY)
    assert (told.verdict, told.exited) == (Verdict.REPARENTED, MOTHER)
    assert told.exited_ns == 0


def test_of_two_ends_the_last_one_made_it_the_child_of_now() -> None:
    node = Node()
    node.ends(MOTHER)
    node.runs(CHILD, GRANNY)
    node.ends(GRANNY)
    told = node.runs(CHILD, INIT)
    assert (told.verdict, told.exited) == (Verdict.REPARENTED, GRANNY)
    assert told.birth_parent == MOTHER


def test_who_was_put_into_a_container_is_reaped_by_its_init() -> None:
    """By setns(2): the init is no ancestor, and takes over all the same."""
    node = Node()
    node.inits.add(STRANGER)
    node.ends(MOTHER)
    assert node.runs(CHILD, STRANGER).verdict is Verdict.REPARENTED


def test_against_a_chain_that_breaks_off_nothing_is_said() -> None:
    node = Node((MOTHER, GRANNY), (CHILD, MOTHER), (STRANGER, INIT))
    node.ends(MOTHER)
    assert node.runs(CHILD, STRANGER).verdict is Verdict.REPARENTED


def test_a_traced_orphan_is_traced_and_says_who_ended() -> None:
    node = Node()
    node.ends(MOTHER)
    told = node.runs(CHILD, GRANNY, parent=STRANGER, ptrace=1)
    assert told.verdict is Verdict.TRACED
    assert (told.tracer, told.parent, told.exited) == (STRANGER, GRANNY, MOTHER)


# what can't be


def forged(told: Parentage, why: str) -> None:
    assert (told.verdict, told.why) == (Verdict.FORGED, why)


@pytest.mark.parametrize("thief", [STRANGER, GRANNY, INIT, a_key(99)])
@pytest.mark.parametrize("beside", [{}, {"parent": MOTHER}])
def test_nobody_gets_another_parent_while_his_own_lives(
    thief: ProcessKey, beside: dict[str, Any]
) -> None:
    """Also when only one of the two pointers was rewritten, and to a ghost."""
    told = Node().runs(CHILD, thief, **beside)
    forged(told, "its parent 20 lives")
    assert (told.birth_parent, told.parent) == (MOTHER, thief)


def test_the_reaper_that_lives_keeps_its_orphan() -> None:
    node = Node()
    node.ends(MOTHER)
    node.runs(CHILD, GRANNY)
    forged(node.runs(CHILD, INIT), "its parent 10 lives")


def test_an_accomplice_that_ends_does_not_make_an_orphan() -> None:
    """A theft in two steps: the thief ends, and what he stole goes on to init."""
    node = Node()
    node.runs(CHILD, STRANGER)
    node.ends(STRANGER)
    forged(node.runs(CHILD, INIT), "its parent 20 lives")


@pytest.mark.parametrize("heard", [True, False])
def test_an_orphan_does_not_go_to_a_stranger(*, heard: bool) -> None:
    node = Node()
    node.ends(MOTHER, lost=not heard)
    told = node.runs(CHILD, STRANGER)
    forged(told, "40 is no ancestor of its parent 20")
    assert told.exited == MOTHER


def test_an_orphan_does_not_go_to_who_has_ended() -> None:
    node = Node()
    node.ends(MOTHER)
    node.ends(STRANGER)
    forged(node.runs(CHILD, STRANGER), "40 is no ancestor of its parent 20")


def test_a_ghost_is_no_ancestor() -> None:
    node = Node()
    node.ends(MOTHER)
    forged(node.runs(CHILD, a_key(99)), "99 is no ancestor of its parent 20")


def test_a_parent_with_that_pid_at_another_time_is_another() -> None:
    node = Node()
    node.ends(MOTHER)
    again = a_key(GRANNY.tgid, GRANNY.start_ns + SECOND)
    forged(node.runs(CHILD, again), "10 is no ancestor of its parent 20")


def test_pid_1_has_no_parent() -> None:
    forged(Node().runs(INIT, STRANGER), "40 is no ancestor of its parent 0")


def test_another_parent_without_a_tracer_cannot_be() -> None:
    told = Node().runs(CHILD, MOTHER, parent=STRANGER)
    forged(told, "parent is 40, and nobody traces it")


def test_a_thread_group_is_led_by_its_own_leader() -> None:
    """Also where everything else is as usual."""
    forged(Node().runs(CHILD, MOTHER, leader=40), "its thread group's leader is 40")
    told = Node().runs(CHILD, MOTHER, leader=40, parent=STRANGER, ptrace=1)
    forged(told, "its thread group's leader is 40")


def test_a_parent_that_is_only_taken_for_ended_keeps_its_children() -> None:
    """No list has it, so its end is taken for granted; but it lives, hidden."""
    node = Node()
    node.ledger.end_unseen(node.entry(MOTHER), node.now)
    forged(node.runs(CHILD, INIT), "its parent 20 lives")
    node.living.remove(MOTHER)
    assert node.runs(CHILD, INIT).verdict is Verdict.REPARENTED


# words that come late


def snapshot_of(node: Node, *family: tuple[ProcessKey, ProcessKey]) -> None:
    for key, parent in family:
        node.living.add(key)
        node.ledger.observe(task_of(key, parent), b"", b"")
    node.ledger.snapshot_ns = node.now


@pytest.mark.parametrize("listed", [True, False])
def test_a_program_from_before_the_snapshot_is_not_held_against_it(
    *, listed: bool
) -> None:
    """Its parent ended between; the event waited in the ring for the agent."""
    node = Node((GRANNY, INIT))
    snapshot_of(node, (CHILD, GRANNY))
    event = an_exec(b"x", task=task_of(CHILD, MOTHER))
    told = node.tell(event, bt_ns=node.ledger.snapshot_ns - 5)
    assert told.verdict is Verdict.UNKNOWN_BEFORE_START
    if listed:
        told = node.listed(CHILD, GRANNY)
        assert told.verdict is Verdict.UNKNOWN_BEFORE_START
    node.ends(GRANNY)
    told = node.runs(CHILD, INIT)
    assert (told.verdict, told.exited) == (Verdict.REPARENTED, GRANNY)


def test_a_reaper_from_before_the_snapshot_is_not_held_against_it() -> None:
    """It reaped, and ended; the snapshot has the ancestors of after its end."""
    node, reaper, middle = Node((CHILD, INIT)), a_key(50), a_key(51)
    snapshot_of(node, (GRANNY, INIT))
    then = node.ledger.snapshot_ns - 9
    node.tell(a_fork(task_of(middle, GRANNY)), bt_ns=then)
    node.tell(a_fork(task_of(a_key(52), middle)), bt_ns=then + 1)
    node.tell(an_exit(task_of(middle, GRANNY)), bt_ns=then + 2)
    orphan = task_of(a_key(52), reaper)
    told = node.tell(an_exec(b"x", task=orphan), bt_ns=then + 3)
    assert (told.verdict, told.exited) == (Verdict.REPARENTED, middle)


def test_what_is_forged_before_the_snapshot_is_found_in_the_list() -> None:
    node = Node()
    snapshot_of(node)
    event = an_exec(b"x", task=task_of(CHILD, STRANGER))
    node.tell(event, bt_ns=node.ledger.snapshot_ns - 1)
    forged(node.listed(CHILD, STRANGER), "its parent 20 lives")


def test_a_list_from_before_an_orphan_s_last_move_is_no_forgery() -> None:
    node = Node()
    node.ends(MOTHER)
    node.runs(CHILD, GRANNY)
    node.ends(GRANNY)
    node.runs(CHILD, INIT)
    told = node.listed(CHILD, GRANNY)
    assert (told.verdict, told.exited) == (Verdict.REPARENTED, MOTHER)
    told = node.runs(CHILD, INIT)
    assert (told.verdict, told.exited) == (Verdict.REPARENTED, GRANNY)


def test_a_birth_that_is_told_after_the_first_program_is_the_birth() -> None:
    """A sibling by clone runs, its parent ends, and then its creator gets on."""
    node = Node()
    twin = a_key(31)
    node.living.add(twin)
    node.ends(MOTHER)
    node.runs(twin, GRANNY)
    told = node.born(twin, MOTHER, creator=CHILD)
    assert told.verdict is Verdict.CLONE_PARENT
    told = node.runs(twin, GRANNY)
    assert (told.verdict, told.exited) == (Verdict.REPARENTED, MOTHER)
    assert told.creator == CHILD
