"""Verifying, reading and following: what is found, where, and what is let through."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.errors import CorruptError
from agent.sinks.chain import segment_name, segment_names
from agent.sinks.scan import Follower, read
from agent.sinks.segment import SegmentWriter
from agent.sinks.verify import Report, verify


def write(folder: Path, first: int, count: int, max_bytes: int = 900) -> None:
    """Append `count` bodies numbered from `first`; about four make a segment."""
    with SegmentWriter.open(folder, lambda: {"boot_id": "b"}, max_bytes) as log:
        for number in range(first, first + count):
            log.append([json.dumps({"n": number, "pad": "x" * 60}).encode()])


def edit(path: Path, change: Callable[[list[bytes]], list[bytes]]) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(change(lines)))


def places(report: Report) -> list[tuple[str, int, int]]:
    return [(fault.file, fault.line, fault.lines) for fault in report.faults]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log of four segments with four records each."""
    folder = tmp_path / "log"
    write(folder, 0, 16)
    assert [int(name[:16], 16) for name in segment_names(folder)] == [0, 5, 10, 15]
    return folder


def test_a_whole_log_has_no_fault(log: Path) -> None:
    report = verify(log)
    assert report.faults == report.evidence == ()
    assert (report.segments, report.records, report.torn) == (4, 20, False)
    assert (report.starts_at, report.ends_at) == (0, 19)
    assert report.bytes == sum(
        (log / name).stat().st_size for name in segment_names(log)
    )
    last_line = (log / segment_names(log)[-1]).read_bytes().splitlines()[-1]
    assert last_line.endswith(report.last_hash.encode() + b'"}')


def test_an_empty_folder_is_an_empty_log(tmp_path: Path) -> None:
    report = verify(tmp_path)
    assert (report.segments, report.starts_at, report.ends_at) == (0, None, None)
    assert report.faults == ()
    assert list(Follower(tmp_path).poll()) == []


def test_a_changed_byte_is_found_wherever_it_is(log: Path) -> None:
    for name in segment_names(log)[1:]:
        data = (log / name).read_bytes()
        for offset in range(0, len(data), 7):
            (log / name).write_bytes(
                data[:offset] + bytes([data[offset] ^ 4]) + data[offset + 1 :]
            )
            first, *more = verify(log).faults
            assert first.file == name
            assert first.offset <= offset < first.end
            assert first.lines <= 2
            # The next header does not follow on a hash that was changed.
            assert sum(fault.lines for fault in more) == 0
        (log / name).write_bytes(data)


@pytest.mark.parametrize(
    ("change", "line", "reason"),
    [
        (lambda lines: lines[:2] + lines[3:], 3, "says sequence 8"),
        (lambda lines: [*lines[:2], lines[3], lines[2], lines[4]], 3, "sequence 8"),
        (lambda lines: lines[:2] + lines[1:], 3, "says sequence 6"),
        (lambda lines: [*lines[:2], b'{"a":1}\n', *lines[2:]], 3, "no chain field"),
        (lambda lines: [*lines[:4], lines[4][:-30]], 5, "unfinished line"),
        (lambda lines: lines[1:], 1, "not a header"),
        (lambda _: [], 1, "unfinished line"),
    ],
    ids=["removed", "swapped", "twice", "added", "torn", "no-header", "emptied"],
)
def test_changed_lines_are_found_in_their_place(
    log: Path,
    change: Callable[[list[bytes]], list[bytes]],
    line: int,
    reason: str,
) -> None:
    edit(log / segment_name(5), change)
    fault = verify(log).faults[0]
    assert (fault.file, fault.line) == (segment_name(5), line)
    assert reason in fault.reason
    assert f"{segment_name(5)}: line {line}, byte {fault.offset}" in str(fault)


def test_a_segment_cut_at_a_line_shows_where_the_next_one_begins(log: Path) -> None:
    edit(log / segment_name(5), lambda lines: lines[:-2])
    (fault,) = verify(log).faults
    assert (fault.file, fault.line, fault.sequence) == (segment_name(10), 1, 8)
    assert "starts at 10" in fault.reason


def test_a_missing_segment_between_others_is_found(log: Path) -> None:
    (log / segment_name(5)).unlink()
    (fault,) = verify(log).faults
    assert (fault.file, fault.line, fault.sequence) == (segment_name(10), 1, 5)


def test_a_log_may_have_lost_its_oldest_segments(log: Path) -> None:
    (log / segment_name(0)).unlink()
    report = verify(log)
    assert report.faults == ()
    assert (report.starts_at, report.ends_at, report.records) == (5, 19, 15)


def test_a_renamed_segment_is_found(log: Path) -> None:
    (log / segment_name(15)).rename(log / segment_name(16))
    (fault,) = verify(log).faults
    assert (fault.file, fault.line) == (segment_name(16), 1)
    assert "the header says 15, the file name 16" in fault.reason


def test_a_segment_of_another_log_does_not_fit_in(log: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    write(other, 100, 16)
    (log / segment_name(5)).write_bytes((other / segment_name(5)).read_bytes())
    report = verify(log)
    assert places(report) == [(segment_name(5), 1, 0), (segment_name(10), 1, 0)]
    assert all("follows on the hash" in fault.reason for fault in report.faults)


def test_a_log_that_claims_to_begin_must_follow_on_nothing(log: Path) -> None:
    text = (log / segment_name(0)).read_bytes()
    (log / segment_name(0)).write_bytes(text.replace(b"0" * 64, b"1" * 64, 1))
    assert verify(log).faults[0].line == 1


def test_a_header_of_another_version_is_no_header(log: Path) -> None:
    edit(
        log / segment_name(5),
        lambda lines: [lines[0].replace(b'"version":1', b'"version":2'), *lines[1:]],
    )
    (fault,) = verify(log).faults
    assert "not a header: Invalid enum value 2" in fault.reason


def test_every_fault_is_reported_and_the_rest_still_counts(log: Path) -> None:
    for name in (segment_name(0), segment_name(10)):
        edit(log / name, lambda lines: [*lines[:2], b"?" + lines[2][1:], *lines[3:]])
    (log / "notes.txt").write_bytes(b"")
    report = verify(log)
    assert places(report) == [
        (segment_name(0), 3, 1),
        (segment_name(10), 3, 1),
        ("notes.txt", 0, 0),
    ]
    assert str(report.faults[-1]) == "notes.txt: not a file of this log"
    assert report.records == 18


def test_evidence_of_a_recovery_is_listed_and_no_fault(log: Path) -> None:
    with (log / segment_name(15)).open("ab") as file:
        file.write(b'{"half')
    report = verify(log)
    assert (report.torn, report.faults, report.records) == (True, (), 20)
    write(log, 16, 1)
    report = verify(log)
    assert (report.torn, report.faults) == (False, ())
    assert [name.split(".torn-")[0] for name in report.evidence] == [segment_name(15)]


def test_a_changed_last_newline_is_damage_and_not_a_torn_tail(log: Path) -> None:
    path = log / segment_name(15)
    path.write_bytes(path.read_bytes()[:-1] + b" ")
    report = verify(log)
    assert report.torn is False
    assert places(report) == [(segment_name(15), 5, 1)]
    assert report.faults[0].reason == "the line does not end in a newline"


def test_reading_stops_at_damage_and_says_where(log: Path) -> None:
    path = log / segment_name(5)
    edit(path, lambda lines: [*lines[:2], b"?" + lines[2][1:], *lines[3:]])
    lines = read(path)
    assert [next(lines).sequence for _ in range(2)] == [5, 6]
    expected = rf"{segment_name(5)}: line 3, byte \d+: expected sequence 7: its hash"
    with pytest.raises(CorruptError, match=expected):
        next(lines)


def test_reading_ends_before_an_unfinished_line(log: Path) -> None:
    path = log / segment_name(15)
    path.write_bytes(path.read_bytes()[:-1])
    assert [line.sequence for line in read(path)] == [15, 16, 17, 18]


def test_only_a_segment_can_be_read(log: Path) -> None:
    (log / "notes").write_bytes(b"")
    with pytest.raises(CorruptError, match="not the name of a segment"):
        next(read(log / "notes"))


def sequences(follower: Follower) -> list[int]:
    return [sequence for sequence, _ in follower.poll()]


@pytest.mark.parametrize("start", [0, 4, 5, 7, 19, 25])
def test_a_follower_yields_all_from_its_start_on(log: Path, start: int) -> None:
    follower = Follower(log, start)
    assert sequences(follower) == list(range(start, 20))
    assert sequences(follower) == []
    write(log, 16, 9)
    assert sequences(follower) == list(range(max(20, start), 32))


def test_a_follower_begins_with_the_oldest_that_is_left(log: Path) -> None:
    (log / segment_name(0)).unlink()
    assert sequences(Follower(log, 2)) == list(range(5, 20))


def test_a_follower_waits_for_the_end_of_a_line(log: Path) -> None:
    path = log / segment_name(15)
    whole = path.read_bytes()
    follower = Follower(log, 18)
    for size in (0, 10, len(whole) - 200, len(whole) - 1):
        path.write_bytes(whole[:size])
        assert 19 not in sequences(follower)
    path.write_bytes(whole)
    assert sequences(follower) == [19]


def test_a_follower_tells_each_fault_once_and_goes_on(log: Path) -> None:
    edit(log / segment_name(5), lambda lines: [*lines[:2], b"?\n", *lines[3:]])
    edit(log / segment_name(10), lambda lines: [*lines[:-1], lines[-1][:-5]])
    (log / segment_name(15)).rename(log / segment_name(16))
    follower, seen, told = Follower(log), [], []
    for _ in range(10):
        try:
            for sequence, _body in follower.poll():
                seen.append(sequence)
        except CorruptError as error:
            told.append(str(error).split(":")[0])
    assert told == [segment_name(5), segment_name(10), segment_name(16)]
    assert seen == [0, 1, 2, 3, 4, 5, 6, 9, 10, 11, 12, 13, *range(15, 20)]


def test_a_follower_that_retention_overtakes_says_what_it_missed(log: Path) -> None:
    follower = Follower(log)
    poll = follower.poll()
    assert next(poll)[0] == 0
    for first in (0, 5, 10):
        (log / segment_name(first)).unlink()
    with pytest.raises(CorruptError, match="expected sequence 5: starts at 15"):
        list(poll)
    assert sequences(follower) == list(range(15, 20))
