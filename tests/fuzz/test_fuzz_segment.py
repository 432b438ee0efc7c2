"""Any bytes at all in the place of a segment: found, kept, and written on behind."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st

from agent.sinks.chain import GENESIS, Position, encode_header, evidence_name, frame
from agent.sinks.scan import read
from agent.sinks.segment import SegmentWriter
from agent.sinks.verify import verify
from tests.fuzz.segment_target import NAME, one_input


def good_lines(count: int) -> list[bytes]:
    """A header and `count` lines that verify."""
    at = Position(0, GENESIS)
    bodies = [encode_header(at, {}), *(b'{"n":%d}' % n for n in range(count))]
    lines = []
    for body in bodies:
        line, at = frame(at, [body])
        lines.append(line)
    return lines


LINES = good_lines(6)
GOOD = b"".join(LINES)
ENDS = [sum(map(len, LINES[:count])) for count in range(len(LINES) + 1)]


@contextmanager
def folder_with(data: bytes) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / NAME).write_bytes(data)
        yield Path(name)


def spliced(parts: list[bytes]) -> bytes:
    return b"".join(parts)


# Whole lines, pieces of lines, and noise, in any order: far nearer to a real segment
# than random bytes, which never come past the header.
pieces = st.one_of(
    st.sampled_from(LINES),
    st.sampled_from([LINES[0], b"\n", b"\0" * 64, b"{}\n", b'{"a":1}\n']),
    st.builds(lambda line, cut: line[:cut], st.sampled_from(LINES), st.integers(0, 99)),
    st.binary(max_size=120),
)


@settings(deadline=None, max_examples=150)
@given(st.binary(max_size=600))
@example(b"")
@example(b"\n" * 300)
@example(b"[" * 5000 + b"\n")
@example(b'{"ir":' * 5000 + b"\n")
def test_any_bytes_are_lines_or_a_clear_error(data: bytes) -> None:
    one_input(data)


@settings(deadline=None, max_examples=250)
@given(st.lists(pieces, max_size=9).map(spliced))
@example(GOOD)
@example(GOOD.replace(b'"first":0', b'"first":9223372036854775807', 1))
@example(LINES[1].replace(b"0000000000000001:", b"7fffffffffffffff:"))
@example(frame(Position(5, GENESIS), [encode_header(Position(5, GENESIS), {})])[0])
def test_any_mixture_of_lines_is_lines_or_a_clear_error(data: bytes) -> None:
    one_input(data)


@settings(deadline=None, max_examples=150)
@given(st.integers(0, len(GOOD)))
def test_any_cut_recovers_the_whole_lines_before_it(cut: int) -> None:
    intact = max(end for end in ENDS if end <= cut)
    with folder_with(GOOD[:cut]) as folder:
        with SegmentWriter.open(folder, dict) as log:
            assert (log.recovered is None) == (cut in ENDS[1:])
        if intact:
            assert (folder / NAME).read_bytes() == GOOD[:intact]
            assert len(list(read(folder / NAME))) == ENDS.index(intact)
        evidence = folder / evidence_name(NAME, intact)
        kept = evidence.read_bytes() if evidence.exists() else b""
        assert kept == GOOD[intact:cut]
        assert verify(folder).faults == ()


@settings(deadline=None, max_examples=300)
@given(st.integers(0, len(GOOD) - 1), st.integers(1, 255))
def test_any_changed_byte_is_a_located_fault(offset: int, bits: int) -> None:
    data = GOOD[:offset] + bytes([GOOD[offset] ^ bits]) + GOOD[offset + 1 :]
    with folder_with(data) as folder:
        report = verify(folder)
        assert report.faults[0].offset <= offset < report.faults[0].end
        assert report.torn is False
    one_input(data)
