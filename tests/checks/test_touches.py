"""How often somebody reached into a process, when the kernel folds the repeats."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.checks.touches import touches
from agent.events import Access, AccessKind, Denied
from agent.sinks.record import ClockMap, Host, Renderer
from tests.builders import ALONE, NOW, SECOND, a_process, a_task, an_access

WALL_NS = 1_800_000_000_000_000_000


def record(event: Access, number: int = 1, slewed_ns: int = 0) -> dict[str, Any]:
    """An access as it is recorded; the wall clock was slewed by so much until then."""
    clock = ClockMap(WALL_NS + slewed_ns, "synchronised", 0, 1)
    renderer = Renderer(Host("m", "node", "b00t", "0", {}), clock)
    told: dict[str, Any] = json.loads(
        renderer.render(event, a_process(), ALONE, number, (a_process(), ALONE))
    )
    return told


def burst(first_ns: int, *counts: int, **facts: Any) -> list[Access]:
    """The events of one burst, one a second, each with the count so far."""
    times = [first_ns + n * SECOND for n in range(len(counts))]
    return [
        an_access(count=count, first_ns=first_ns, last_ns=at, bt_ns=at, **facts)
        for at, count in zip(times, counts, strict=True)
    ]


def counted(*events: Access, slew_ns: int = 0) -> list[int]:
    told = [record(one, n, n * slew_ns) for n, one in enumerate(events)]
    return [one["count"] for one in touches(told)]


def test_nobody_is_nobody() -> None:
    assert touches([]) == []


def test_the_last_count_of_a_burst_is_how_many_there_were() -> None:
    assert counted(*burst(NOW, 1, 7000, 15_003)) == [15_003]


@pytest.mark.parametrize("slew_ns", [0, 3, -499, 10_000_000])
def test_a_burst_is_one_while_the_wall_clock_is_slewed(slew_ns: int) -> None:
    assert counted(*burst(NOW, 1, 50, 90), slew_ns=slew_ns) == [90]


def test_what_is_told_again_by_the_next_run_of_the_agent_counts_once() -> None:
    first = burst(NOW, 1, 9)
    assert counted(*first, first[-1], first[0]) == [9]


def test_bursts_add_up() -> None:
    again = burst(NOW + 60 * SECOND, 1, 5)
    assert counted(*burst(NOW, 1, 9), *again, *burst(NOW + 200 * SECOND, 1)) == [15]


def test_each_thread_has_a_burst_of_its_own() -> None:
    threads = [a_task(2000, tid=2000 + n) for n in range(3)]
    events = [burst(NOW, 1, 4, target=one) for one in threads]
    assert counted(*(event for one in events for event in one)) == [12]


def test_who_how_and_what_came_of_it_are_told_apart() -> None:
    other = a_task(1001)
    events = [
        *burst(NOW, 1, 3),
        *burst(NOW, 1, task=other),
        *burst(NOW, 1, kind=AccessKind.PTRACE_SEIZE),
        *burst(NOW, 1, result=-1),
        *burst(NOW, 1, result=-3),
        *burst(NOW, 1, result=-1, denied=Denied.LSM),
    ]
    told = touches([record(one, n) for n, one in enumerate(events)])
    assert [one["count"] for one in told] == [3, 1, 1, 1, 1, 1]
    assert [one["pid"] for one in told] == [1000, 1001, 1000, 1000, 1000, 1000]
    assert [one["error"] for one in told] == ["", "", "", "EPERM", "ESRCH", "EPERM"]
    assert [one["denied"] for one in told] == ["", "", "", "", "", "lsm"]


def test_the_first_and_the_last_time_are_named_with_their_records() -> None:
    events = [*burst(NOW, 1, 2), *burst(NOW + 60 * SECOND, 1, 2, 3)]
    records = [record(one, 100 + n) for n, one in enumerate(events)]
    [told] = touches(records)
    assert (told["record"], told["last_record"]) == (100, 104)
    assert told["first"] == records[0]["ir"]["access"]["first"]
    assert told["last"] == records[-1]["@timestamp"]
    assert told["name"] == "bash"


@given(
    st.lists(
        st.tuples(st.integers(1, 1 << 40), st.lists(st.integers(1, 999), min_size=1)),
        max_size=5,
        unique_by=lambda one: one[0],
    ),
    st.integers(-1000, 1000),
)
def test_any_bursts_have_the_sum_of_their_last_counts(
    bursts: list[tuple[int, list[int]]], slew_ns: int
) -> None:
    events = [
        event for first, counts in bursts for event in burst(first, *sorted(counts))
    ]
    expected = [sum(max(counts) for _, counts in bursts)] if bursts else []
    assert counted(*events, slew_ns=slew_ns) == expected
