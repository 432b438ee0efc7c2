"""The census: what two looks show is told once, and the ledger is mended on the way."""

from collections.abc import Sized
from typing import Any

import pytest

from agent.events import Discrepancy, Listing, ProcessKey, Verdict
from agent.process.census import RAN_UNLISTED
from agent.process.ledger import END_UNSEEN, Ledger
from agent.process.procfs import Description
from tests.builders import SECOND, an_access
from tests.process.census_node import CensusNode, kinds
from tests.process.kernel_model import Kernel


@pytest.fixture
def node() -> CensusNode:
    return CensusNode(Ledger())


def entry_of(node: CensusNode, key: ProcessKey) -> Any:
    found = node.ledger.get(key)
    assert found is not None
    return found


# who has a parent that can't be


def test_a_forged_parent_is_told_after_two_looks_and_once(node: CensusNode) -> None:
    victim, thief = node.born(), node.born()
    assert node.sweep() == []
    node.edits[victim.key] = {"real_parent": thief.key}
    assert node.sweep() == []
    [found] = node.sweep()
    assert (found.key, found.kind) == (victim.key, Verdict.FORGED)
    assert found.why == "its parent 1 lives"
    assert found.parentage is not None
    assert (found.parentage.parent, found.parentage.why) == (thief.key, found.why)
    assert found.first_ns < found.confirmed_ns
    assert node.census.verdicts == {"forged": 1}
    node.edits[victim.key] = {"real_parent": thief.key, "ptrace": 1}
    assert [node.sweep() for _ in range(3)] == [[], [], []]


def test_an_event_is_the_first_of_the_two_looks(node: CensusNode) -> None:
    victim, thief = node.born(), node.born()
    node.edits[victim.key] = {"real_parent": thief.key}
    node.runs(victim, real_parent=thief.key)
    at = node.kernel.now
    [found] = node.sweep()
    assert (found.kind, found.first_ns) == (Verdict.FORGED, at)


def test_an_event_after_the_list_waits_for_the_next_one(node: CensusNode) -> None:
    victim, thief = node.born(), node.born()
    listing = node.list_all()
    node.edits[victim.key] = {"real_parent": thief.key}
    node.runs(victim, real_parent=thief.key)
    assert node.hold(listing) == []
    assert kinds(node.sweep()) == [(victim.key, "forged")]


TORN = [{"parent": ProcessKey(2, 3)}, {"leader": 40}]


@pytest.mark.parametrize("torn", TORN)
@pytest.mark.parametrize("listed", [True, False])
def test_an_event_that_was_read_in_the_middle_of_a_change_is_no_forgery(
    node: CensusNode, torn: dict[str, Any], *, listed: bool
) -> None:
    """A tracer let go between two reads; the list knows no change of it."""
    victim = node.born()
    if listed:
        node.sweep()
    node.runs(victim, **torn)
    assert node.suspects
    assert [node.sweep() for _ in range(4)] == [[]] * 4
    assert node.census.verdicts == {}


@pytest.mark.parametrize("torn", TORN)
def test_a_list_that_was_read_in_the_middle_of_a_change_is_no_forgery(
    node: CensusNode, torn: dict[str, Any]
) -> None:
    victim = node.born()
    node.edits[victim.key] = torn
    assert node.sweep() == []
    assert node.census.verdicts == {}
    del node.edits[victim.key]
    assert [node.sweep() for _ in range(3)] == [[]] * 3


def test_who_ends_before_the_second_look_is_not_told(node: CensusNode) -> None:
    victim, thief = node.born(), node.born()
    node.edits[victim.key] = {"real_parent": thief.key}
    node.sweep()
    node.ends(victim)
    assert node.sweep() == []


def test_the_unusual_are_counted_while_they_last(node: CensusNode) -> None:
    mother = node.born()
    child, other = node.born(mother), node.born()
    other.tracer = mother
    node.sweep()
    assert node.census.verdicts == {"traced": 1}
    node.ends(mother)
    node.sweep()
    assert node.census.verdicts == {"reparented": 1}
    node.ends(child)
    node.sweep()
    assert node.census.verdicts == {}


# who is not in the list


def test_who_runs_and_is_in_no_list_is_told_at_the_second_time(
    node: CensusNode,
) -> None:
    hidden, other = node.born(), node.born()
    node.hidden.add(hidden.key)
    node.sleep()
    assert node.sweep(hidden, other) == []
    assert node.census.searching
    [found] = node.sweep(other, hidden)
    assert (found.key, found.kind) == (hidden.key, RAN_UNLISTED)
    assert found.views == {"scheduler": True, "task list": False}
    assert (found.comm, found.first_ns < found.confirmed_ns) == (b"x", True)
    assert [node.sweep(hidden) for _ in range(3)] == [[]] * 3
    assert not node.census.searching
    assert node.census.ends_unseen == 0


def test_it_need_not_run_at_every_look(node: CensusNode) -> None:
    """Who sleeps most of the time is seen seldom; each time is as good a proof."""
    hidden = node.born()
    node.hidden.add(hidden.key)
    node.sleep()
    assert [node.sweep(hidden), node.sweep(), node.sweep()] == [[]] * 3
    assert kinds(node.sweep(hidden)) == [(hidden.key, RAN_UNLISTED)]


def test_two_words_of_one_watch_are_one_look(node: CensusNode) -> None:
    hidden = node.born()
    node.hidden.add(hidden.key)
    node.sleep()
    assert node.sweep(hidden, hidden) == []


def test_who_ran_before_the_list_or_is_young_may_be_missing(node: CensusNode) -> None:
    old = node.born()
    node.sleep()
    young = node.born()
    for _ in range(3):
        ran = node.watch(old)
        node.hidden = {old.key, young.key}
        listing = node.list_all()
        assert node.hold(listing, ran + node.watch(young)) == []
        node.hidden.clear()
        node.sweep()


def test_a_last_breath_after_the_end_is_no_hiding(node: CensusNode) -> None:
    """The scheduler leaves a process for the last time when no list has it."""
    one = node.born()
    node.sleep()
    node.ends(one)
    assert node.sweep(one) == []
    assert [node.sweep() for _ in range(3)] == [[]] * 3
    assert not node.census.searching


def test_a_lost_end_is_mended_by_two_lists(node: CensusNode) -> None:
    one, other = node.born(), node.born()
    node.ends(one, lost=True)
    node.sleep()
    lost = node.list_all()
    assert node.hold(lost) == []
    assert node.census.searching
    assert entry_of(node, one.key).exited_ns == 0
    assert node.sweep() == []
    entry = entry_of(node, one.key)
    assert (entry.exited_ns, entry.status) == (lost.taken_ns, END_UNSEEN)
    assert not entry_of(node, other.key).exited_ns
    assert node.census.ends_unseen == 1
    assert not node.census.searching


def test_who_is_back_in_the_second_list_has_not_ended(node: CensusNode) -> None:
    one = node.born()
    node.sleep()
    for _ in range(3):
        node.hidden = {one.key}
        assert node.sweep() == []
        node.hidden = set()
        assert node.sweep() == []
    assert node.census.ends_unseen == 0


def test_a_birth_that_the_list_did_not_have_yet_is_no_end(node: CensusNode) -> None:
    for _ in range(3):
        listing = node.list_all()
        one = node.born()
        assert node.hold(listing) == []
        assert not entry_of(node, one.key).exited_ns
        assert not node.census.searching


def test_no_list_at_all_is_no_end(node: CensusNode) -> None:
    node.born()
    node.sleep()
    nobody = Listing(node.kernel.now, {}, {}, [])
    assert [node.hold(nobody) for _ in range(3)] == [[]] * 3
    assert node.census.ends_unseen == 0


ACTS = ["runs", "ends", "listed"]


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("exited", [0, 4096])
def test_who_is_there_after_its_end_was_taken_for_granted_was_hidden(
    act: str, exited: int
) -> None:
    """Also when so many have ended since that the ledger has forgotten it."""
    node = CensusNode(Ledger(exited=exited))
    hidden = node.born()
    node.hidden.add(hidden.key)
    node.sleep()
    lost = node.list_all()
    node.hold(lost)
    node.sweep()
    assert node.census.ends_unseen == 1
    if act == "runs":
        node.runs(hidden)
    elif act == "ends":
        node.ends(hidden)
    else:
        node.hidden.clear()
    [found] = node.sweep()
    assert (found.key, found.kind) == (hidden.key, RAN_UNLISTED)
    assert (found.first_ns, found.why) == (
        lost.taken_ns,
        "the kernel's list had lost it, and it was not gone",
    )
    assert found.views == {"task list": False, "birth ledger": True}
    assert node.census.ends_unseen == 0
    entry = node.ledger.get(hidden.key)
    assert (entry is not None and not entry.exited_ns) == (act != "ends")
    assert [node.sweep(hidden) for _ in range(4)] == [[]] * 4


def test_a_late_word_of_whom_it_reached_into_is_no_sign_of_life(
    node: CensusNode,
) -> None:
    """Repeats of an access are told later, with both tasks as of the first."""
    one, other = node.born(), node.born()
    access = an_access(node.kernel.task(other), node.kernel.task(one))
    node.ends(one, lost=True)
    node.sleep()
    node.sweep()
    node.sweep()
    node.tell(access)
    assert node.sweep() == []
    assert entry_of(node, one.key).exited_ns


def test_who_has_the_pid_by_now_is_not_taken_for_the_one_before(
    node: CensusNode,
) -> None:
    one = node.born()
    last_word = node.kernel.exec(one)
    node.ends(one, lost=True)
    node.sleep()
    node.sweep()
    node.sweep()
    while node.born().key.tgid != one.key.tgid:
        pass
    node.tell(last_word)
    assert node.sweep() == []
    living = [entry.key.tgid for entry in node.ledger.living()]
    assert len(living) == len(set(living))


# births that nobody saw


def test_a_lost_birth_is_counted_and_observed() -> None:
    def describe(task: Any) -> Description:
        return Description(b"/bin/%d" % task.key.tgid, b"x\0")

    node = CensusNode(Ledger(), lambda kernel: kernel.fork(kernel.init, None), describe)
    node.kernel.fork(node.kernel.init, node.kernel.init)
    one = node.kernel.beings[-1]
    assert node.sweep() == []
    assert node.census.births_unseen == 1
    entry = entry_of(node, one.key)
    assert (entry.known, entry.executable) == ("observed", b"/bin/3")
    assert node.census.verdicts == {}
    node.sweep()
    assert node.census.births_unseen == 1


def test_who_was_there_before_us_is_no_lost_birth() -> None:
    """Three that the snapshot had, and a ledger that has forgotten them."""

    def before(kernel: Kernel) -> None:
        for _ in range(3):
            kernel.fork(kernel.init, kernel.init)

    node = CensusNode(Ledger(capacity=2), before)
    assert node.sweep() == []
    assert node.census.births_unseen == 0


def test_who_came_and_went_since_the_list_was_taken_is_no_lost_birth() -> None:
    """The ledger had it and has forgotten it again; it is not met anew as living."""
    node = CensusNode(Ledger(exited=0))
    one = node.born()
    listing = node.list_all()
    node.ends(one)
    assert node.ledger.get(one.key) is None
    assert node.hold(listing) == []
    node.sleep()
    assert [node.sweep() for _ in range(3)] == [[]] * 3
    assert (node.census.births_unseen, node.census.ends_unseen) == (0, 0)


# nothing twice, nothing without end


def a_find(tgid: int, kind: str = RAN_UNLISTED) -> Discrepancy:
    return Discrepancy(ProcessKey(tgid, 1), kind, "why", 1, 2)


def test_the_same_of_the_same_process_is_told_once(node: CensusNode) -> None:
    first_told = node.census.first_told
    one, other = a_find(7), a_find(8)
    assert first_told([one, a_find(7), other]) == [one, other]
    assert first_told([a_find(7), other]) == []
    assert kinds(first_told([a_find(7, "forged")])) == [(one.key, "forged")]


def test_of_whom_is_hidden_it_is_nothing_new_that_he_runs(node: CensusNode) -> None:
    first_told = node.census.first_told
    assert first_told([a_find(7, "hidden_from_proc")])
    assert first_told([a_find(7)]) == []
    assert first_told([a_find(8)])
    assert kinds(first_told([a_find(8, "hidden_from_proc")]))


def test_what_is_found_again_and_again_is_not_forgotten(node: CensusNode) -> None:
    first_told = node.census.first_told
    assert first_told([a_find(7)])
    for start in range(100, 10_000, 1000):
        many = [a_find(tgid) for tgid in range(start, start + 1000)]
        assert first_told([a_find(7), *many]) == many


def test_a_flood_of_findings_takes_no_memory_without_end(node: CensusNode) -> None:
    """More processes than there are pids on most machines, each hidden once."""
    node.sleep(100)
    listing = node.list_all()
    for start in range(10_000, 50_000, 5000):
        keys = [ProcessKey(tgid, SECOND) for tgid in range(start, start + 5000)]
        node.census.first_told([a_find(key.tgid) for key in keys])
        hidden = [node.watch(node.kernel.init)[0] for _ in keys]
        ran = [
            type(seen)(key, seen.bt_ns, key.tgid, b"x")
            for key, seen in zip(keys, hidden, strict=True)
        ]
        node.hold(listing, ran)
    kept = [one for one in vars(node.census).values() if isinstance(one, Sized)]
    assert max(map(len, kept)) <= 5000
    assert sum(map(len, kept)) <= 15_000
