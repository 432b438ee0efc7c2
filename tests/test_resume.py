"""Going on after a crash: from the records alone, nothing twice and nothing missing."""

import json
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.pipeline import Pipeline
from agent.process.ledger import Ledger
from agent.resume import Resume
from agent.sensor.stream import Position
from agent.sensor.tap import Tap
from agent.sinks import own
from agent.sinks.batch import Batch
from agent.sinks.chain import segment_names
from agent.sinks.record import ClockMap, Host, Renderer
from agent.sinks.scan import read
from agent.sinks.segment import SegmentWriter
from tests.builders import ALONE, NOW, an_exec, an_exit, encode, in_pieces
from tests.memory_ring import MemoryRing, MemoryTap

HOST = Host("m" * 32, "node", "b00t", "0.1.0", {})
CLOCK = ClockMap(1_800_000_000_000_000_000, "synchronised", 0, 1)
LOAD = "1" * 32
OTHER_LOAD = "2" * 32


def a_header(load_id: str = LOAD, **positions: Any) -> bytes:
    segment = {"boot_id": "b00t", "load_id": load_id, "positions": positions}
    return msgspec.json.encode({"ir": {"segment": segment}})


def a_record(cpu: int, seq: int, parts: int = 1, bt_ns: int = NOW) -> bytes:
    kernel = {"cpu": cpu, "seq": seq, "parts": parts}
    ir = {"kernel": kernel, "clock": {"bt_ns": bt_ns}}
    return msgspec.json.encode({"@timestamp": f"at {bt_ns}", "ir": ir})


def a_start(load_id: str) -> bytes:
    return msgspec.json.encode({"ir": {"agent": {"load_id": load_id}}})


def after(*lines: bytes) -> Resume:
    resume = Resume()
    for number, line in enumerate(lines):
        resume.line(number, line)
    return resume


def test_without_a_line_nothing_is_known() -> None:
    resume = after()
    assert (resume.boot_id, resume.load_id, resume.last_record) == ("", "", "")
    assert resume.for_loading(LOAD) == {}


def test_the_last_number_of_each_cpu_is_where_it_goes_on() -> None:
    resume = after(a_header(), a_record(0, 5), a_record(3, 1), a_record(0, 6))
    seqs = {cpu: at.seq for cpu, at in resume.for_loading(LOAD).items()}
    assert seqs == {0: 6, 3: 1}
    assert resume.last_record == f"at {NOW}"


def test_an_exec_in_pieces_is_over_after_its_last_piece() -> None:
    resume = after(a_header(), a_record(0, 5, parts=4))
    assert resume.for_loading(LOAD)[0].seq == 8


def test_positions_never_go_back() -> None:
    resume = after(a_header(**{"0": {"seq": 9}}), a_record(0, 5))
    assert resume.for_loading(LOAD)[0].seq == 9


def test_what_never_was_in_the_ring_moves_nothing() -> None:
    resume = after(a_header(**{"0": {"seq": 9}}), a_record(0, 0, parts=0))
    assert resume.for_loading(LOAD)[0].seq == 9


def test_a_loss_brings_what_was_accounted_for() -> None:
    position = {"seq": 7, "bt_ns": 5, "accounted": {"exec": 2}, "balance": -1}
    loss = msgspec.json.encode({"ir": {"positions": {"0": position}}})
    resume = after(a_header(), a_record(0, 5), loss)
    assert resume.for_loading(LOAD)[0] == Position(7, 5, {"exec": 2}, -1)


def test_positions_of_another_loading_are_not_used() -> None:
    resume = after(a_header(), a_record(0, 5))
    assert resume.for_loading(OTHER_LOAD) == {}


def test_a_new_loading_begins_anew_within_a_segment() -> None:
    resume = after(a_header(), a_record(0, 50), a_start(OTHER_LOAD), a_record(0, 2))
    assert resume.for_loading(LOAD) == {}
    assert resume.for_loading(OTHER_LOAD)[0].seq == 2


def test_a_start_with_the_same_loading_goes_on() -> None:
    resume = after(a_header(), a_record(0, 50), a_start(LOAD))
    assert resume.for_loading(LOAD)[0].seq == 50


def test_a_header_holds_the_positions_of_the_segments_before_it() -> None:
    first = after(a_header(), a_record(0, 5, bt_ns=7), a_record(1, 6))
    positions = {cpu: msgspec.to_builtins(at) for cpu, at in first.checkpoint.items()}
    assert after(a_header(**positions)).for_loading(LOAD) == first.for_loading(LOAD)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"ir":null}',
        b'{"ir":{"kernel":{"cpu":"x"}}}',
        b'{"ir":{"positions":{"x":{}}}}',
        b'{"ir":{"positions":{"0":7}}}',
        b'{"ir":{"positions":{"0":{"seq":"x"}}}}',
        b'{"ir":{"segment":{"positions":{"0":[]}}}}',
        b"[" * 5000,
    ],
)
def test_a_line_that_is_not_ours_changes_nothing(line: bytes) -> None:
    resume = after(a_header(), a_record(0, 5), line)
    assert resume.for_loading(LOAD)[0].seq == 5


def test_an_argument_that_looks_like_a_record_is_not_read_as_one() -> None:
    forged = a_header(OTHER_LOAD, **{"0": {"seq": 999}})
    event = an_exec(forged, cwd=b"/" + forged.replace(b"/", b""))
    renderer = Renderer(HOST, CLOCK)
    ledger = Ledger()
    process = ledger.apply(event)
    resume = after(a_header(), renderer.render(event, process, ALONE, 1))
    assert (resume.load_id, resume.for_loading(LOAD)[0].seq) == (LOAD, event.seq)


def test_positions_read_back_are_those_that_the_stream_had() -> None:
    """Also where a gap needed no loss record, since its loss was told ahead of it."""
    ring = MemoryRing(*(encode(an_exit(seq=n, bt_ns=NOW + n)) for n in (1, 3)))
    ring.lose(0, "exec", NOW + 2)
    ring.lose(0, "exec", NOW + 4)
    tap = MemoryTap(ring)
    renderer, resume = Renderer(HOST, CLOCK), after(a_header())

    def take(polled: Any) -> None:
        for event in polled.events:
            process = Ledger().apply(event)
            resume.line(0, renderer.render(event, process, ALONE, 0))
        for loss in polled.losses:
            resume.line(0, _loss(loss, tap))

    take(tap.poll())
    ring.put(encode(an_exit(seq=5, bt_ns=NOW + 5)))
    take(tap.poll())
    live = cast("dict[str, Position]", tap.checkpoint())["0"]
    assert resume.for_loading(LOAD)[0] == live


def _loss(loss: Any, tap: MemoryTap) -> bytes:
    body = own.loss(loss, 0, tap.checkpoint())
    return Renderer(HOST, CLOCK).envelope(NOW, 0, body)


class Node:
    """One ring and one log folder, on which runs of the agent follow each other."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ring = MemoryRing()
        self.seq: Counter[int] = Counter()
        self.sent: list[tuple[int, int]] = []
        self.lost = 0
        self.now = NOW

    def event(self, cpu: int, *, lost: bool) -> None:
        self.now += 1
        self.seq[cpu] += 1
        if lost:
            self.lost += 1
            self.ring.lose(cpu, "exit", self.now)
        else:
            self.sent.append((cpu, self.seq[cpu]))
            record = an_exit(cpu=cpu, seq=self.seq[cpu], bt_ns=self.now)
            self.ring.put(encode(record))

    def long_exec(self, cpu: int) -> None:
        self.now += 1
        seq = self.seq[cpu] + 1
        event = an_exec(b"x" * 63, cpu=cpu, seq=seq, bt_ns=self.now)
        records = in_pieces(event, 16, 16)
        self.seq[cpu] += len(records)
        self.sent.append((cpu, seq))
        self.ring.put(*records)

    def run(self, steps: int, *, commit_last: bool) -> None:
        """A run that dies after some steps, before or after its last commit."""
        resume = Resume()
        made: list[Pipeline] = []

        def header() -> dict[str, Any]:
            now = made[0].checkpoint if made else resume.checkpoint
            return {"boot_id": "b00t", "load_id": LOAD, "positions": now}

        log = SegmentWriter.open(self.folder, header, 5000, resume.line)
        tap = MemoryTap(self.ring, resume.for_loading(LOAD), most=3)
        batch = Batch(Renderer(HOST, CLOCK), log, CLOCK)
        made.append(Pipeline(cast("Tap", tap), Ledger(), batch, log))
        for number in range(steps):
            before = self.ring.committed
            made[0].step()
            if number == steps - 1 and not commit_last:
                self.ring.committed = before
        log.close()

    def finish(self) -> None:
        """A last run that sees everything, and something behind the last loss."""
        for cpu in list(self.seq):
            self.event(cpu, lost=False)
        self.run(len(self.sent) * 4 + 2, commit_last=True)

    def records(self) -> list[dict[str, Any]]:
        lines = [
            one for n in segment_names(self.folder) for one in read(self.folder / n)
        ]
        parsed = [json.loads(line.body) for line in lines]
        return [one["ir"] for one in parsed if "event" in one]


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("event"), st.integers(0, 2), st.booleans()),
        st.tuples(st.just("long"), st.integers(0, 2), st.booleans()),
        st.tuples(st.just("run"), st.integers(0, 4), st.booleans()),
    ),
    max_size=25,
)


@settings(deadline=None, max_examples=60)
@given(ACTIONS)
def test_whenever_it_dies_every_event_and_every_loss_is_on_record_once(
    actions: list[tuple[str, int, bool]],
) -> None:
    with tempfile.TemporaryDirectory() as name:
        node = Node(Path(name))
        for what, number, choice in actions:
            if what == "event":
                node.event(number, lost=choice)
            elif what == "long":
                node.long_exec(number)
            else:
                node.run(number, commit_last=choice)
        node.finish()
        records = node.records()
        events = [one["kernel"] for one in records if "kernel" in one]
        assert Counter((k["cpu"], k["seq"]) for k in events) == Counter(node.sent)
        losses = [one["loss"] for one in records if "loss" in one]
        assert sum(loss["count"] for loss in losses) == node.lost
        assert {loss["cause"] for loss in losses} <= {"ring full"}
        flags = [flag for k in events for flag in k.get("flags", [])]
        assert flags == []
