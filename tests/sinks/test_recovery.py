"""Opening a log after a crash or damage: what is kept, what is cut, what is said."""

import json
import os
import random
import signal
import time
from pathlib import Path

import pytest

from agent.errors import CorruptError
from agent.sinks.chain import evidence_name, segment_name, segment_names
from agent.sinks.scan import read
from agent.sinks.segment import SegmentWriter
from agent.sinks.verify import verify

FIRST = segment_name(0)


def body(number: int) -> bytes:
    return json.dumps({"n": number}).encode()


def open_log(folder: Path, max_bytes: int = 1 << 20) -> SegmentWriter:
    return SegmentWriter.open(folder, dict, max_bytes)


def write_log(folder: Path, count: int, max_bytes: int = 1 << 20) -> list[bytes]:
    """Write bodies 0 to `count` - 1 and return the lines of the last segment."""
    with open_log(folder, max_bytes) as log:
        for number in range(count):
            log.append([body(number)])
    return (folder / segment_names(folder)[-1]).read_bytes().splitlines(keepends=True)


def change(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def bodies(folder: Path) -> list[int]:
    lines = [line for name in segment_names(folder) for line in read(folder / name)]
    parsed = [json.loads(line.body) for line in lines]
    return [value["n"] for value in parsed if "n" in value]


def test_a_torn_tail_is_kept_as_evidence_at_every_byte(tmp_path: Path) -> None:
    lines = write_log(tmp_path / "whole", 3)
    data = b"".join(lines)
    ends = [sum(map(len, lines[:count])) for count in range(len(lines) + 1)]
    for cut in range(len(data)):
        folder = tmp_path / str(cut)
        folder.mkdir()
        (folder / FIRST).write_bytes(data[:cut])
        intact = max(end for end in ends if end <= cut)
        with open_log(folder) as log:
            if cut in ends[1:]:
                assert log.recovered is None
            else:
                evidence = evidence_name(FIRST, intact)
                assert log.recovered is not None
                assert log.recovered.evidence == (evidence,)
                assert log.recovered.bytes == cut - intact
                assert log.recovered.sequence == ends.index(intact)
                assert (folder / evidence).read_bytes() == data[intact:cut]
            log.append([body(99)])
        assert verify(folder).faults == ()
        assert bodies(folder) == [*range(max(0, ends.index(intact) - 1)), 99]


@pytest.mark.parametrize("at_line", [0, 1, 3])
def test_a_page_of_zeros_is_a_torn_tail(tmp_path: Path, at_line: int) -> None:
    lines = write_log(tmp_path, 3)
    (tmp_path / FIRST).write_bytes(b"".join(lines[:at_line]) + bytes(4096))
    with open_log(tmp_path) as log:
        assert log.recovered is not None
        assert log.recovered.bytes == 4096
        assert log.recovered.sequence == at_line
    assert verify(tmp_path).faults == ()


@pytest.mark.parametrize("left", [0, 1, 100, -1])
def test_a_segment_without_a_header_gives_way_to_the_one_before(
    tmp_path: Path, left: int
) -> None:
    write_log(tmp_path, 9, max_bytes=600)
    last = tmp_path / segment_names(tmp_path)[-1]
    header = last.read_bytes().splitlines(keepends=True)[0]
    last.write_bytes(header[:left])
    before = verify(tmp_path)
    assert before.torn
    with open_log(tmp_path, max_bytes=600) as log:
        assert log.recovered is not None
        assert log.recovered.evidence == (evidence_name(last.name, 0),)
        assert log.recovered.sequence == int(last.name[:16], 16)
        log.append([body(99)])
    assert bodies(tmp_path)[-1] == 99
    assert verify(tmp_path).faults == ()


def test_evidence_is_never_overwritten(tmp_path: Path) -> None:
    size = len(b"".join(write_log(tmp_path, 1)))
    for text in (b"first", b"second", b"third"):
        with (tmp_path / FIRST).open("ab") as file:
            file.write(text)
        open_log(tmp_path).close()
    names = [evidence_name(FIRST, size, again) for again in range(3)]
    kept = [(tmp_path / name).read_bytes() for name in names]
    assert kept == [b"first", b"second", b"third"]
    assert verify(tmp_path).evidence == tuple(names)


def test_every_intact_line_of_the_newest_segment_is_replayed(tmp_path: Path) -> None:
    write_log(tmp_path, 9, max_bytes=600)
    last = tmp_path / segment_names(tmp_path)[-1]
    expected = [(line.sequence, line.body) for line in read(last)]
    with last.open("ab") as file:
        file.write(b'{"torn')
    replayed = []
    log = SegmentWriter.open(
        tmp_path, dict, replay=lambda sequence, data: replayed.append((sequence, data))
    )
    log.close()
    assert replayed == expected


# A byte in the body, the number, the hash and the line's end; of the header, a line
# between others, the last but one and the last line.
@pytest.mark.parametrize("back", [93, 80, 30, 1])
@pytest.mark.parametrize("number", [0, 2, 4, 5])
def test_damage_is_left_in_place_and_the_log_goes_on_behind_it(
    tmp_path: Path, number: int, back: int
) -> None:
    lines = write_log(tmp_path, 5)
    change(tmp_path / FIRST, sum(map(len, lines[: number + 1])) - back)
    damaged = (tmp_path / FIRST).read_bytes()
    with open_log(tmp_path) as log:
        assert log.recovered is not None
        assert [fault.line for fault in log.recovered.faults] == [number + 1]
        assert log.recovered.evidence == ()
        assert log.recovered.sequence == 6
        log.append([body(99)])
    assert (tmp_path / FIRST).read_bytes() == damaged
    assert segment_names(tmp_path) == [FIRST, segment_name(6)]
    faults = verify(tmp_path).faults
    assert [(fault.file, fault.line) for fault in faults] == [(FIRST, number + 1)]
    with open_log(tmp_path) as log:
        assert log.recovered is None
        assert log.next_sequence == 8


def test_a_wild_number_in_a_damaged_line_is_not_taken_over(tmp_path: Path) -> None:
    lines = write_log(tmp_path, 5)
    data = bytearray(b"".join(lines))
    data[len(data) - 84] = ord("3")  # the highest digit of the last sequence number
    (tmp_path / FIRST).write_bytes(data)
    with open_log(tmp_path) as log:
        assert log.next_sequence == 7
    assert [fault.line for fault in verify(tmp_path).faults] == [6]


def test_lines_behind_damage_are_replayed(tmp_path: Path) -> None:
    lines = write_log(tmp_path, 5)
    change(tmp_path / FIRST, len(lines[0]) + 5)
    replayed: list[int] = []
    SegmentWriter.open(
        tmp_path, dict, replay=lambda sequence, _: replayed.append(sequence)
    ).close()
    assert replayed == [0, 2, 3, 4, 5]


def test_a_torn_tail_behind_damage_stays_there_too(tmp_path: Path) -> None:
    lines = write_log(tmp_path, 5)
    change(tmp_path / FIRST, len(lines[0]) + 5)
    with (tmp_path / FIRST).open("ab") as file:
        file.write(b'{"n":')
    open_log(tmp_path).close()
    report = verify(tmp_path)
    assert [fault.line for fault in report.faults] == [2, 7]
    assert report.evidence == ()


def test_a_number_that_a_file_name_claims_is_not_given_out_again(
    tmp_path: Path,
) -> None:
    lines = write_log(tmp_path, 5)
    (tmp_path / FIRST).write_bytes(b"".join(lines[:3]))
    (tmp_path / segment_name(6)).write_bytes(b"")
    with open_log(tmp_path) as log:
        assert log.next_sequence == 7
    faults = verify(tmp_path).faults
    assert [(fault.file, fault.line, fault.sequence) for fault in faults] == [
        (segment_name(6), 1, 3)
    ]


def test_a_name_that_leaves_no_numbers_is_refused_and_kept(tmp_path: Path) -> None:
    write_log(tmp_path, 1)
    end = tmp_path / "7fffffffffffffff.jsonl"
    end.write_bytes((tmp_path / FIRST).read_bytes())
    with pytest.raises(CorruptError, match="claims to be at sequence"):
        open_log(tmp_path)
    end.unlink()
    open_log(tmp_path).close()


def _append_until_killed(folder: Path, acknowledge: int) -> None:
    """Run in a child: append, sync, then say each number on the pipe."""
    with open_log(folder, max_bytes=20_000) as log:
        while True:
            first = log.next_sequence
            log.append([body(first), body(first + 1)])
            log.sync()
            os.write(acknowledge, b"%d\n%d\n" % (first, first + 1))


def _run_and_kill(folder: Path, after: float) -> list[int]:
    """Start a writer, SIGKILL it after a while, and return what it acknowledged."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            _append_until_killed(folder, writing)
        finally:
            os._exit(1)
    os.close(writing)
    pidfd = os.pidfd_open(child)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.readline()
        time.sleep(after)
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        said += pipe.read()
    os.waitpid(child, 0)
    os.close(pidfd)
    return [int(line) for line in said.splitlines(keepends=True) if line[-1:] == b"\n"]


def test_what_was_acknowledged_survives_twenty_kills(tmp_path: Path) -> None:
    chance = random.Random(20)
    acknowledged: list[int] = []
    for _ in range(20):
        acknowledged += _run_and_kill(tmp_path, chance.uniform(0, 0.08))
    open_log(tmp_path).close()
    report = verify(tmp_path)
    there = {
        line.sequence: line.body
        for name in segment_names(tmp_path)
        for line in read(tmp_path / name)
    }
    assert report.faults == ()
    assert sorted(there) == list(range(report.records))
    assert len(acknowledged) >= 20
    assert [n for n in acknowledged if there.get(n) != body(n)] == []
