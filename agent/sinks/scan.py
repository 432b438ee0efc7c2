"""Reading segments: verify each line, locate each fault, follow a log that grows.

Comes in: segment files, whole, damaged or still being written.
Goes out: the lines that verify, and where and why the others do not.
Never: a body that does not verify, or one fault that hides what comes after it.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import IO, NamedTuple

import msgspec

from agent.errors import CorruptError
from agent.sinks.chain import (
    GENESIS,
    MAX_LINE,
    MIN_LINE,
    SUFFIX_BYTES,
    Position,
    claim,
    decode_header,
    first_sequence,
    link,
    segment_names,
    suffix,
)


class Line(NamedTuple):
    """A line that verifies; `body` is the JSON object as it was given to the writer."""

    sequence: int
    body: bytes
    offset: int


class Fault(msgspec.Struct, frozen=True):
    """One run of lines that do not verify.

    `line` counts from 1 and `offset` in bytes from 0 within `file`; `sequence` is the
    number expected there. `lines` and `bytes` measure the run; both are 0 when the
    lines are there but do not continue the segment before, and `line` too when the
    whole file does not belong. A run includes the line after a changed hash: it may be
    intact, but nothing is left to verify it with.
    """

    file: str
    line: int
    offset: int
    sequence: int
    reason: str
    lines: int = 0
    bytes: int = 0

    @property
    def end(self) -> int:
        """The offset of the first byte after the run."""
        return self.offset + self.bytes

    def __str__(self) -> str:
        """Say where the fault is and what was expected there, in one line."""
        if not self.line:
            return f"{self.file}: {self.reason}"
        where = f"{self.file}: line {self.line}, byte {self.offset}"
        size = f" ({self.lines} lines, {self.bytes} bytes)" if self.lines > 1 else ""
        return f"{where}: expected sequence {self.sequence}: {self.reason}{size}"


class Scan:
    """One pass over a segment, which goes on after damage and says where it was.

    `lines` yields what verifies; `faults` holds the rest. After a broken line the scan
    takes that line's own chain field as the truth to go on from, so that one changed
    byte costs one line and not the rest of the file. `position` and `offset` are where
    the next line is expected. A last line without its newline is not consumed: `tail`
    is its size in bytes, and a later `lines` reads it again.
    """

    def __init__(self, name: str, expected: Position | None = None) -> None:
        """Prepare for the file `name`, which must start at `expected` when given."""
        self.name = name
        self.faults: list[Fault] = []
        self.position = expected or Position(first_sequence(name), GENESIS)
        self.offset = 0
        self.tail = 0
        self._expected = expected
        self._line = 1
        self._begun = False
        self._empty = False

    def lines(self, file: IO[bytes], *, strict: bool = False) -> Iterator[Line]:
        """Yield the lines of `file` that verify, from where the last pass ended.

        With `strict`, raise CorruptError at the first line of each fault; calling
        again goes on behind it.
        """
        self.tail = 0
        file.seek(self.offset)
        if not self._begun:
            self._begin(file, strict=strict)
        for line in iter(partial(file.readline, MAX_LINE), b""):
            at, offset = self.position, self.offset
            body = line[:-SUFFIX_BYTES] + b"}"
            digest = link(at, body)
            if line[-SUFFIX_BYTES:] == suffix(at[0], digest):
                self.position = Position(at[0] + 1, digest)
                self.offset = offset + len(line)
                self._line += 1
                yield Line(at[0], body, offset)
            elif _unfinished(line):
                self.tail = len(line)
            else:
                self._skip(line, self._why(line, digest), strict=strict)

    def finish(self, *, strict: bool = False) -> None:
        """Make a fault of what no writer will complete: this segment has a successor.

        With `strict`, raise it as CorruptError too. Look at `resume` before.
        """
        if self.unfinished:
            reason = "ends in an unfinished line, though a segment follows"
            self._fault(reason, 1, self.tail)
            self.offset += self.tail
            self._line += 1
            self.tail = 0
            self._empty = False
            self._complain(strict=strict)

    @property
    def unfinished(self) -> bool:
        """Whether the segment ends in a line without its newline, or is empty."""
        return self.tail > 0 or self._empty

    @property
    def records(self) -> int:
        """How many lines verified."""
        return self._line - 1 - sum(fault.lines for fault in self.faults)

    @property
    def resume(self) -> Position:
        """Where the stream goes on in the segment that follows this one.

        The same as `position` unless the last line is broken. Its number then counts
        only if the damaged bytes have room for it, for it may be what was changed; else
        all numbers count as used that the bytes have room for, since records with them
        may have left the node.
        """
        last = self.faults[-1] if self.faults else None
        if last is None or last.end != self.offset or last.lines == 0:
            return self.position
        limit = last.sequence + max(1, last.bytes // MIN_LINE)
        if last.sequence < self.position.sequence <= limit:
            return self.position
        return Position(limit, self.position.previous)

    def _begin(self, file: IO[bytes], *, strict: bool) -> None:
        """Take the position from the header line, which `lines` then verifies."""
        line = file.readline(MAX_LINE)
        self._empty = not line
        if not line or _unfinished(line):
            file.seek(0)
            return
        self._begun = True
        try:
            found = decode_header(line)
        except ValueError as error:
            self._skip(line, f"not a header: {error}", strict=strict)
            return
        file.seek(0)
        if mismatch := self._mismatch(found):
            self._fault(mismatch)
        self.position = found
        if mismatch:
            self._complain(strict=strict)

    def _mismatch(self, found: Position) -> str:
        if found.sequence != (named := first_sequence(self.name)):
            return f"the header says {found.sequence}, the file name {named}"
        if self._expected is None or found == self._expected:
            return ""
        if found.sequence != self._expected.sequence:
            return f"starts at {found.sequence}: what was between is missing"
        expected, previous = self._expected.previous.hex(), found.previous.hex()
        return f"follows on the hash {previous}, not on {expected}"

    def _why(self, line: bytes, digest: bytes) -> str:
        """Say what is wrong with a line whose hash should have been `digest`."""
        after = claim(line)
        if after is None:
            return "no chain field at the end of the line"
        if after.sequence != self.position.sequence + 1:
            return f"the line says sequence {after.sequence - 1}"
        if after.previous != digest:
            return f"its hash is not {digest.hex()}"
        return "the line does not end in a newline"

    def _skip(self, line: bytes, reason: str, *, strict: bool) -> None:
        """Go behind a line that does not verify, on the word of its own chain field."""
        self._fault(reason, 1, len(line))
        self.offset += len(line)
        self._line += 1
        self.position = claim(line) or self.position
        self._complain(strict=strict)

    def _fault(self, reason: str, lines: int = 0, size: int = 0) -> None:
        """Record a fault here, as part of the one before when that ends here."""
        last = self.faults[-1] if self.faults else None
        if last is not None and last.end == self.offset:
            grown = {"lines": last.lines + lines, "bytes": last.bytes + size}
            self.faults[-1] = msgspec.structs.replace(last, **grown)
        else:
            at = (self._line, self.offset, self.position.sequence)
            self.faults.append(Fault(self.name, *at, reason, lines, size))

    def _complain(self, *, strict: bool) -> None:
        if strict and self.faults[-1].lines <= 1:
            raise CorruptError(str(self.faults[-1]))


def _unfinished(line: bytes) -> bool:
    """Whether a writer may still be at it: neither a newline nor a whole line."""
    return not line.endswith(b"\n") and len(line) < MAX_LINE and claim(line) is None


def read(path: Path) -> Iterator[Line]:
    """Yield the lines of one segment, header first, each as soon as it verifies.

    Raises CorruptError at the first that does not, with file, line, byte offset and
    what was expected. An unfinished last line ends the iteration without an error: the
    segment may be in writing. What the segment follows on is not looked at.
    """
    scan = Scan(path.name)
    with path.open("rb") as file:
        yield from scan.lines(file, strict=True)


class Follower:
    """Reads a log that is being written, across rotations, and never waits.

    Yields header lines like any other, so the sequence has no gaps: a gap is damage.
    """

    def __init__(self, directory: Path, start: int = 0) -> None:
        """Prepare to yield the lines of `directory` with sequence `start` and above."""
        self._directory = directory
        self._start = start
        self._scan: Scan | None = None

    def poll(self) -> Iterator[tuple[int, bytes]]:
        """Yield (sequence, body) of all that is there now; the caller sleeps and polls.

        Raises CorruptError once for each fault; the next poll goes on behind it.
        """
        while True:
            # Listed before reading: what has a successor now gets no more lines.
            later = self._later()
            scan = self._scan
            if scan is not None:
                yield from self._rest(scan)
            if not later:
                return
            self._scan = Scan(later[0], scan.resume if scan is not None else None)
            if scan is not None:
                scan.finish(strict=True)

    def _later(self) -> list[str]:
        names = segment_names(self._directory)
        if self._scan is not None:
            return [name for name in names if name > self._scan.name]
        older = [name for name in names if first_sequence(name) <= self._start]
        return names[max(0, len(older) - 1) :]

    def _rest(self, scan: Scan) -> Iterator[tuple[int, bytes]]:
        try:
            file = (self._directory / scan.name).open("rb")
        except FileNotFoundError:
            return  # removed by retention; the next header shows what was not read
        with file:
            for line in scan.lines(file, strict=True):
                if line.sequence >= self._start:
                    yield line.sequence, line.body
