"""Views against each other: no race is a difference, and whoever is hidden is one.

In: a machine on which processes come and go while each view is read, piece by piece and
in any order. Out: what differs though all views are honest is never confirmed.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.events import Discrepancy, Listing, ProcessKey, Verdict
from agent.process.crossview import (
    CHAIN,
    HIDDEN_FROM_CHAIN,
    HIDDEN_FROM_LIST,
    LIST,
    PRIVATE,
    PROC,
    Look,
    Turns,
    compare,
    confirmed,
)

TICK = 10_000_000
PAUSE = 5 * TICK
PIDS = range(2, 8)
"""Few, so that they are used again and again."""
BETWEEN = [CHAIN, PROC, PRIVATE, "parents"]
VICTIM, BORN = 9, 50 * TICK + 3

Event = tuple[int, int, int]
"""What happens while a view is read: who ends, who is born, by whom; 0 for nobody."""


@dataclass
class Machine:
    """Processes that come and go while they are looked at, in two halves a view."""

    events: Iterator[Event]
    hidden_from: set[str] = field(default_factory=set)
    ghost: int = 0
    liar: int = 0
    now: int = 100 * TICK + 3
    starts: dict[int, int] = field(default_factory=lambda: {1: 5, VICTIM: BORN})
    parents: dict[int, int] = field(default_factory=lambda: {1: 0, VICTIM: 1})

    def _happen(self) -> None:
        self.now += TICK // 3
        ends, born, parent = next(self.events, (0, 0, 0))
        if self.starts.keys() >= {ends, 1} and ends in PIDS:
            del self.starts[ends], self.parents[ends]
            for pid, its in self.parents.items():
                self.parents[pid] = 1 if its == ends else its
        if born in PIDS and born not in self.starts:
            self.starts[born] = self.now
            self.parents[born] = parent if parent in self.starts else 1

    def _read(self, view: str) -> dict[int, tuple[int, int]]:
        """Start and parent of each, the lower half of the pids before the upper."""
        read: dict[int, tuple[int, int]] = {}
        for half in (range(5), range(5, VICTIM + 1)):
            self._happen()
            read |= {
                pid: (start, self.parents[pid])
                for pid, start in self.starts.items()
                if pid in half and not (pid == VICTIM and view in self.hidden_from)
            }
        return read

    def listing(self) -> Listing:
        taken, read = self.now, self._read(LIST)
        starts = {pid: start for pid, (start, _) in read.items()}
        return Listing(taken, starts, {pid: it[1] for pid, it in read.items()}, [])

    def _shown(self, view: str) -> set[int]:
        return set(self._read(view)) | ({self.ghost} if self.ghost else set())

    def start_of(self, pid: int) -> int | None:
        if pid in self.starts:
            return self.starts[pid] // TICK * TICK
        return 0 if pid == self.ghost else None

    def look(
        self, order: Iterable[str], before: Listing, absent: Iterable[str]
    ) -> Look:
        seen: dict[str, Any] = dict.fromkeys(BETWEEN)
        for view in order:
            if view in (PROC, PRIVATE):
                seen[view] = self._shown(view)
            elif view == CHAIN:
                seen[view] = {pid: it[0] for pid, it in self._read(view).items()}
            else:
                seen[view] = {pid: it[1] for pid, it in self._read(view).items()}
                if self.liar:
                    seen[view][VICTIM] = self.liar
        for view in absent:
            seen[view] = None
        views = (seen[view] for view in BETWEEN)
        return Look(before, *views, before, self.start_of)  # type: ignore[call-arg]


def found(
    machine: Machine, orders: list[list[str]], absent: Iterable[str] = ()
) -> list[Discrepancy]:
    """What is confirmed after a cheap look and the two that may follow."""
    first, *rest = orders
    left = iter(rest)

    def again() -> Look:
        machine.now += PAUSE
        look = machine.look(next(left), machine.listing(), absent)
        return look._replace(after=machine.listing())

    return confirmed(machine.look(first, machine.listing(), absent), again)


pids = st.sampled_from([0, *PIDS])
events = st.lists(st.tuples(pids, pids, pids), min_size=20, max_size=60).map(iter)
orders = st.lists(st.permutations(BETWEEN), min_size=3, max_size=3)
absent = st.sets(st.sampled_from([CHAIN, PRIVATE]))


@given(events, orders, absent)
def test_honest_views_never_differ(
    events: Iterator[Event], orders: list[list[str]], absent: set[str]
) -> None:
    assert found(Machine(events), orders, absent) == []


@given(events, st.permutations(BETWEEN), absent)
def test_one_look_between_two_lists_shows_only_who_was_born_and_ended_in_it(
    events: Iterator[Event], order: list[str], absent: set[str]
) -> None:
    machine = Machine(events)
    look = machine.look(order, machine.listing(), absent)
    look = look._replace(after=machine.listing())
    for key, difference in compare(look).items():
        if key.start_ns > look.after.taken_ns - TICK:
            continue  # it got the pid of one that had ended, while we were asking
        assert difference.views[CHAIN]
        assert not difference.views[LIST]
        assert machine.starts.get(key.tgid) != key.start_ns


KINDS = {
    LIST: HIDDEN_FROM_LIST,
    CHAIN: HIDDEN_FROM_CHAIN,
    PROC: Verdict.HIDDEN_FROM_PROC,
    PRIVATE: Verdict.HIDDEN_FROM_PROC,
}


@given(events, orders, st.sampled_from(sorted(KINDS)))
def test_who_is_missing_from_one_view_is_found_there_and_nobody_else(
    events: Iterator[Event], orders: list[list[str]], view: str
) -> None:
    machine = Machine(events, hidden_from={view})
    [one] = found(machine, orders)
    assert one.key == ProcessKey(VICTIM, BORN)
    assert one.kind == KINDS[view]
    assert one.views == {each: each != view for each in KINDS}
    assert one.first_ns < one.confirmed_ns


@pytest.mark.parametrize(
    ("missing", "without", "kind", "why"),
    [
        ({PROC, PRIVATE}, set(), "hidden_from_proc", "/proc does not list it"),
        ({PROC}, set(), "hidden_from_proc", "/proc does not list it, one of our own"),
        ({PROC}, {PRIVATE}, "hidden_from_proc", "/proc does not list it"),
        ({PROC, CHAIN}, set(), "hidden_from_proc", "/proc does not list it, one of"),
        ({CHAIN, PRIVATE}, set(), HIDDEN_FROM_CHAIN, "the kernel's chain of tasks"),
        ({PRIVATE}, {CHAIN}, "hidden_from_proc", "a /proc of our own does not"),
        ({LIST, PROC}, set(), "hidden_from_proc", "the kernel's list of processes"),
        ({LIST, PROC, PRIVATE}, set(), "hidden_from_proc", "the kernel's list"),
        ({LIST, CHAIN}, set(), "only_in_proc", "/proc lists it, and the kernel"),
        ({LIST}, {CHAIN}, "only_in_proc", "/proc lists it, and the kernel"),
    ],
)
def test_who_is_missing_from_several_views_is_named_by_the_worst(
    missing: set[str], without: set[str], kind: str, why: str
) -> None:
    machine = Machine(iter(()), hidden_from=missing)
    [one] = found(machine, [BETWEEN] * 3, without)
    assert one.kind == kind
    assert one.why.startswith(why)
    assert one.views == {each: each not in missing for each in KINDS.keys() - without}


@given(events, orders, absent)
def test_a_folder_without_a_process_is_found(
    events: Iterator[Event], orders: list[list[str]], absent: set[str]
) -> None:
    """Also when nothing can be read in it, as when somebody has only made a folder."""
    [one] = found(Machine(events, ghost=77), orders, absent)
    assert (one.key, one.kind) == (ProcessKey(77, 0), Verdict.ONLY_IN_PROC)
    assert one.views[PROC]
    assert not one.views[LIST]


@given(events, orders, st.sampled_from([{PROC}, set(), {CHAIN}]))
def test_a_parent_that_only_proc_names_is_forged(
    events: Iterator[Event], orders: list[list[str]], hidden_from: set[str]
) -> None:
    """Unless there is worse to say of that process."""
    [one] = found(Machine(events, hidden_from=hidden_from, liar=6), orders)
    assert one.key == ProcessKey(VICTIM, BORN)
    if hidden_from:
        assert one.kind in (Verdict.HIDDEN_FROM_PROC, HIDDEN_FROM_CHAIN)
    else:
        assert (one.kind, one.views) == (Verdict.FORGED, {})
        assert one.why == "/proc names 6 as its parent, the kernel 1"


@pytest.mark.parametrize(
    ("start", "parent", "forged"), [(7, 1, True), (7, 5, False), (8, 1, False)]
)
def test_a_parent_is_compared_where_process_and_parent_stayed(
    *, start: int, parent: int, forged: bool
) -> None:
    """It may be an orphan since, or another process with this pid."""
    before = Listing(10, {3: 7}, {3: 1}, [])
    after = Listing(20, {3: start}, {3: parent}, [])
    look = Look(before, None, {3}, None, {3: 5}, after, lambda _: None)
    expected = {ProcessKey(3, 7): Verdict.FORGED} if forged else {}
    assert {key: one.kind for key, one in compare(look).items()} == expected


@given(events, orders, st.sampled_from(sorted(KINDS)), st.integers(1, 2))
def test_what_a_later_look_does_not_show_is_not_told(
    events: Iterator[Event], orders: list[list[str]], view: str, looks: int
) -> None:
    machine = Machine(events)
    hidden = iter([{view}] * looks + [set()] * 3)
    first, left = orders[0], iter(orders[1:])

    def look(order: list[str]) -> Look:
        machine.now += PAUSE
        machine.hidden_from = next(hidden)
        seen = machine.look(order, machine.listing(), ())
        return seen._replace(after=machine.listing())

    assert confirmed(look(first), lambda: look(next(left))) == []


def test_another_kind_of_difference_is_not_the_same_one() -> None:
    machine = Machine(iter(()))
    views = iter([PROC, CHAIN, PROC])

    def look() -> Look:
        machine.hidden_from = {next(views)}
        seen = machine.look(BETWEEN, machine.listing(), ())
        return seen._replace(after=machine.listing())

    assert confirmed(look(), look) == []


def test_without_a_difference_nobody_looks_again() -> None:
    def again() -> Look:
        raise AssertionError

    machine = Machine(iter(()))
    first = machine.look(BETWEEN, machine.listing(), ())
    assert compare(first) == {}
    assert confirmed(first, again) == []


# whose turn it is


@given(
    st.lists(st.sets(st.integers(1, 40), min_size=1), min_size=1), st.integers(1, 50)
)
def test_only_who_is_there_has_a_turn_and_not_two_at_once(
    crowds: list[set[int]], each: int
) -> None:
    turns = Turns(each)
    for crowd in crowds:
        turn = turns.next(dict.fromkeys(crowd))
        assert crowd.issuperset(turn)
        assert len(turn) <= each


@given(st.integers(1, 12), st.lists(st.sets(st.integers(0, 39)), min_size=1))
def test_everybody_who_stays_has_a_turn_however_many_come_and_go(
    each: int, passing: list[set[int]]
) -> None:
    """Somebody in line has ended at nearly every turn."""
    turns, stay = Turns(each), set(range(0, 80, 2))
    asked: set[int] = set()
    for number in range(2 * 80 // each + 2):
        odd = {2 * one + 1 for one in passing[number % len(passing)]}
        asked.update(turns.next(dict.fromkeys(sorted(stay | odd))))
    assert asked >= stay
