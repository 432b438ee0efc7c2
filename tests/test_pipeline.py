"""The path in user space: order, numbers, and nothing given up for a full disk."""

import errno
import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent import pipeline
from agent.events import Event, Lineage, Loss, Process
from agent.pipeline import Pipeline
from agent.process.ledger import Ledger
from agent.process.lineage import Lineages
from agent.sensor.tap import Polled, Tap
from agent.sinks.batch import Batch
from agent.sinks.chain import segment_names
from agent.sinks.record import ClockMap, Host, Renderer
from agent.sinks.scan import read
from agent.sinks.segment import SegmentWriter
from agent.sinks.verify import verify
from tests.builders import (
    INIT,
    NOW,
    SECOND,
    FakeTap,
    a_fork,
    a_key,
    a_task,
    an_access,
    an_exec,
    an_exit,
    an_image,
)

HOST = Host("m" * 32, "node", "b00t", "0.1.0", {})
CLOCK = ClockMap(1_800_000_000 * SECOND, "synchronised", 0, 1)
ARGUMENT_MAX = 128 << 10
"""Bytes of one argument, its NUL included (MAX_ARG_STRLEN)."""
ARGV_MAX = 6 << 20
"""Bytes of a whole argv that the kernel accepts (three quarters of _STK_LIM)."""


class Course:
    """A pipeline from a fake tap into a real log."""

    def __init__(self, folder: Path, *polls: Polled, max_bytes: int = 1 << 20) -> None:
        self.folder = folder
        self.tap = FakeTap(*polls)
        self.headers: list[dict[str, Any]] = []
        self.log = SegmentWriter.open(folder, self._header, max_bytes)
        self.ledger = Ledger()
        tap = cast("Tap", self.tap)
        renderer = Renderer(HOST, CLOCK)
        batch = Batch(renderer, self.log, CLOCK)
        self.pipeline = Pipeline(tap, self.ledger, batch, self.log)

    def _header(self) -> dict[str, Any]:
        # the first header is asked for before there is a pipeline
        made = getattr(self, "pipeline", None)
        return {"positions": made.checkpoint if made else {}}

    def records(self) -> list[dict[str, Any]]:
        """Every line on disk that is no header, and its number in the chain."""
        lines = [
            line
            for name in segment_names(self.folder)
            for line in read(self.folder / name)
        ]
        parsed = [(line.sequence, json.loads(line.body)) for line in lines]
        events = [(number, one) for number, one in parsed if "event" in one]
        assert all(one["event"]["sequence"] == number for number, one in events)
        return [one for _, one in events]

    def numbers(self) -> list[int]:
        return [one["ir"]["kernel"]["seq"] for one in self.records()]


Start = Callable[..., Course]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    made: list[Course] = []

    def make(*polls: Polled, max_bytes: int = 1 << 20) -> Course:
        made.append(Course(tmp_path / "records", *polls, max_bytes=max_bytes))
        return made[-1]

    yield make
    for one in made:
        one.log.close()


def a_poll(*events: Event, losses: tuple[Loss, ...] = (), more: bool = True) -> Polled:
    return Polled(list(events), list(losses), more)


def exits(*numbers: int) -> Polled:
    return a_poll(*(an_exit(seq=n, bt_ns=NOW + n) for n in numbers))


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch) -> Callable[[SegmentWriter, int], None]:
    """Let a log refuse its next appends, as a full disk does."""
    monkeypatch.setattr(pipeline, "RETRY_S", 0)

    def refuse(log: SegmentWriter, times: int) -> None:
        write, left = log.append, itertools.count(times, -1)

        def append(bodies: list[bytes]) -> None:
            if next(left) > 0:
                raise OSError(errno.ENOSPC, "no space left")
            write(bodies)

        monkeypatch.setattr(log, "append", append)

    return refuse


def test_records_are_in_the_order_of_the_stream_and_numbered_without_a_gap(
    start: Start,
) -> None:
    path = start(exits(1, 2), exits(3))
    assert [path.pipeline.step() for _ in range(3)] == [True, True, False]
    assert path.numbers() == [1, 2, 3]
    numbers = [one["event"]["sequence"] for one in path.records()]
    assert numbers == [1, 2, 3]  # 0 is the header
    assert path.pipeline.events == 3


def test_the_kernel_gets_its_space_back_after_the_write_and_not_before(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = start(exits(1))
    seen = []
    write = path.log.append

    def append(bodies: list[bytes]) -> None:
        seen.append(path.tap.committed)
        write(bodies)

    monkeypatch.setattr(path.log, "append", append)
    path.pipeline.step()
    assert (seen, path.tap.committed) == ([0], 1)


def test_what_the_disk_refuses_is_kept_and_nothing_is_committed(
    start: Start, refusing: Callable[[SegmentWriter, int], None]
) -> None:
    path = start(exits(1, 2), exits(3))
    refusing(path.log, 2)
    path.pipeline.step()
    assert (path.tap.committed, len(path.pipeline.batch)) == (0, 2)
    path.pipeline.step()
    assert (path.tap.committed, path.tap.polled, len(path.pipeline.batch)) == (0, 1, 2)
    assert path.records() == []
    path.pipeline.step()
    assert path.numbers() == [1, 2, 3]
    assert path.tap.committed == 2
    assert path.pipeline.batch.write_errors == 2


def test_nothing_more_is_taken_while_the_disk_refuses(
    start: Start, refusing: Callable[[SegmentWriter, int], None]
) -> None:
    path = start(exits(1), exits(2))
    path.tap.settled = [a_poll(an_access(seq=0, parts=0))]
    refusing(path.log, 3)
    path.pipeline.step()
    path.pipeline.settle()
    assert len(path.tap.settled) == 1
    assert path.tap.polled == 1


def test_a_refused_batch_gets_the_numbers_it_was_given_at_first(
    start: Start, refusing: Callable[[SegmentWriter, int], None]
) -> None:
    """Also when it is the first of a new segment, whose header takes a number."""
    path = start(exits(1), exits(2, 3), max_bytes=1)
    refusing(path.log, 1)
    path.pipeline.step()
    path.pipeline.step()
    path.pipeline.step()
    assert path.numbers() == [1, 2, 3]
    assert verify(path.folder).faults == ()


def test_a_loss_is_a_record_with_the_positions_that_go_with_it(start: Start) -> None:
    lost = Loss("ring full", {"exec": 3}, NOW, NOW + 5, (0,))
    path = start(a_poll(an_exit(seq=9), losses=(lost,)))
    path.pipeline.step()
    _, record = path.records()
    assert record["ir"]["loss"]["count"] == 3
    position = record["ir"]["positions"]["0"]
    assert (position["seq"], position["accounted"]) == (9, {"exec": 3})
    assert (path.pipeline.lost, path.pipeline.events) == (3, 1)


def test_what_settling_brings_up_is_recorded(start: Start) -> None:
    path = start()
    lost = Loss("recursion", {"on_exec": 1}, NOW, NOW, ())
    path.tap.settled = [a_poll(an_access(seq=0, parts=0), losses=(lost,))]
    path.pipeline.settle()
    actions = [one["event"]["action"] for one in path.records()]
    assert actions == ["ptrace-attach", "loss"]


def test_what_the_agent_tells_of_itself_is_in_the_same_sequence(start: Start) -> None:
    path = start(exits(1))
    path.pipeline.batch.tell("heartbeat", {"heartbeat": {"n": 1}}, NOW)
    path.pipeline.step()
    told, event = path.records()
    assert told["ir"] == {"heartbeat": {"n": 1}}
    sequence = event["event"]["sequence"]
    assert (event["ir"]["kernel"]["seq"], told["event"]["sequence"]) == (
        1,
        sequence - 1,
    )


def test_the_view_sees_every_event_with_its_process(start: Start) -> None:
    path, seen = start(exits(1, 2)), []
    path.pipeline.view = lambda event, process, _: seen.append((event, process))
    path.pipeline.step()
    assert [event.seq for event, _ in seen] == [1, 2]
    assert all(process is path.ledger.get(a_key(1000)) for _, process in seen)


def test_a_child_s_record_names_its_parent_s_program(start: Start) -> None:
    shell = a_task(1000, image=an_image(b"sshd"))
    child = a_task(1001, real_parent=shell.key)
    path = start(
        a_poll(
            an_exec(b"sshd", task=shell, executable=b"/usr/sbin/sshd"),
            a_fork(child),
            an_exec(b"id", task=child),
        )
    )
    path.pipeline.step()
    parent = path.records()[-1]["process"]["parent"]
    assert (parent["name"], parent["executable"]) == ("sshd", "/usr/sbin/sshd")


def test_another_clock_counts_from_the_next_record_on(start: Start) -> None:
    path = start(exits(1), exits(2))
    path.pipeline.step()
    later = CLOCK._replace(offset_ns=CLOCK.offset_ns + 86400 * SECOND, state="unknown")
    path.pipeline.batch.set_clock(later)
    path.pipeline.step()
    before, after = path.records()
    assert before["@timestamp"][:10] < after["@timestamp"][:10]
    states = [one["ir"]["clock"]["state"] for one in (before, after)]
    assert states == ["synchronised", "unknown"]


def test_the_longest_argv_that_the_kernel_accepts_is_a_record(start: Start) -> None:
    """Bytes that JSON can only escape make it longest."""
    args = [b"\x01" * (ARGUMENT_MAX - 1)] * (ARGV_MAX // ARGUMENT_MAX)
    path = start(a_poll(an_exec(*args)))
    path.pipeline.step()
    (record,) = path.records()
    assert record["ir"]["argv"]["bytes"] == ARGV_MAX
    assert [arg.encode() for arg in record["process"]["args"]] == args


BATCHES = st.lists(st.integers(1, 4), min_size=1, max_size=8)


@settings(deadline=None, max_examples=25)
@given(batches=BATCHES, max_bytes=st.integers(1, 6000), refused=st.integers(0, 7))
def test_a_header_never_claims_more_than_is_on_disk(
    tmp_path_factory: pytest.TempPathFactory,
    batches: list[int],
    max_bytes: int,
    refused: int,
) -> None:
    folder = tmp_path_factory.mktemp("log")
    counter = itertools.count(1)
    polls = [exits(*itertools.islice(counter, size)) for size in batches]
    path = Course(folder, *polls, max_bytes=max_bytes)
    write = path.log.append
    for number in range(len(batches)):
        if number == refused:
            _refuse_once(path)
        path.pipeline.step()
        path.log.append = write  # type: ignore[method-assign]
    path.pipeline.flush()
    path.log.close()
    _assert_headers_are_behind(folder)
    assert path.numbers() == list(range(1, sum(batches) + 1))


def _refuse_once(path: Course) -> None:
    def refuse(_bodies: list[bytes]) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    path.log.append = refuse  # type: ignore[method-assign,assignment]


def _assert_headers_are_behind(folder: Path) -> None:
    last = 0
    for name in segment_names(folder):
        for line in read(folder / name):
            record = json.loads(line.body)
            if "event" in record:
                last = record["ir"]["kernel"]["seq"]
            else:
                claimed = record["ir"]["segment"]["positions"].get("0", {"seq": 0})
                assert claimed["seq"] <= last


PIDS = [1000, 1001, 1002]
COMMS = [b"bash", b"sshd", b"nginx"]
STEPS = st.tuples(
    st.sampled_from(["fork", "exec", "exit", "access"]),
    st.sampled_from(PIDS),
    st.sampled_from(PIDS),
    st.sampled_from(COMMS),
)


def event_of(kind: str, tgid: int, other: int, comm: bytes) -> Event:
    parent = a_key(other) if other < tgid else INIT
    task = a_task(tgid, real_parent=parent, image=an_image(comm))
    if kind == "fork":
        return a_fork(task)
    if kind == "exec":
        return an_exec(comm, task=task, executable=b"/bin/" + comm)
    if kind == "exit":
        return an_exit(task)
    return an_access(a_task(other, image=an_image(comm)), task)


def told(
    renderer: Renderer, event: Event, process: Process, lineage: Lineage
) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(renderer.render(event, process, lineage, 1))
    del record["event"]["id"]
    return record


@settings(deadline=None)
@given(st.lists(STEPS, max_size=20), st.integers(0, 2))
def test_text_that_is_kept_is_never_out_of_date(
    steps: list[tuple[str, int, int, bytes]], exited: int
) -> None:
    """Records are as if everything in them had been looked up and written anew."""
    ledger = Ledger(exited=exited)
    lineages, kept = Lineages(ledger), Renderer(HOST, CLOCK)
    for step in steps:
        event = event_of(*step)
        process = ledger.apply(event)
        lineage, fresh = lineages.of(process), Lineages(ledger).of(process)
        if len(lineage.ancestors) > len(fresh.ancestors):
            fresh = lineage  # it knows of one that the table has forgotten since
        record = told(kept, event, process, lineage)
        assert record == told(Renderer(HOST, CLOCK), event, process, fresh)
