"""Writing a log: append records to hash-chained segments, and recover after a crash.

Comes in: encoded JSON objects in batches, and a caller that says what a header adds.
Goes out: segment files as `agent.sinks.chain` describes them, and evidence files.
Never: a partial line left behind, a byte thrown away, or a sequence number given twice
to lines that were written whole.
"""

import contextlib
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Self

import msgspec

from agent.errors import CorruptError
from agent.sinks.chain import (
    MAX_SEQUENCE,
    Position,
    encode_header,
    first_sequence,
    frame,
    segment_name,
    segment_names,
)
from agent.sinks.folder import Folder, write
from agent.sinks.scan import Fault, Scan

# What the caller adds to a segment's header, asked for when the segment begins.
HeaderMembers = Callable[[], Mapping[str, object]]
# Takes (sequence, body) of each line that the newest segment holds.
Replay = Callable[[int, bytes], None]


class Recovery(msgspec.Struct, frozen=True):
    """What `SegmentWriter.open` found at the end of the log, to be put on record.

    `bytes` were moved to the files `evidence`: lines that were never written whole.
    `faults` are damage that was left where it is. The stream goes on at `sequence`.
    """

    evidence: tuple[str, ...]
    bytes: int
    faults: tuple[Fault, ...]
    sequence: int


class SegmentWriter:
    """The one writer of a log folder.

    Threads: `append` and `close` belong to one thread; `sync` may be called from any
    other at the same time. The two share one lock, and only for "which descriptor is
    open": `sync` holds it during fdatasync, rotation while it swaps descriptors, plain
    appends never take it. What `append` has returned from, a later `sync` makes
    durable, in whichever segment it lies: rotation syncs the segment it leaves.
    """

    def __init__(
        self, folder: Folder, header: HeaderMembers, max_bytes: int, end: "_End"
    ) -> None:
        """Use `open`, which finds out where the log ends."""
        self.recovered = end.recovery
        self._folder = folder
        self._header = header
        self._max_bytes = max_bytes
        self._at = end.position
        self._fd = -1
        self._fd_lock = threading.Lock()
        # What an earlier writer left may not be durable yet: the first sync sees to it.
        self._size = self._written = end.size
        self._synced = 0
        self._sync_error: OSError | None = None
        self._ragged = False
        if end.name:
            self._fd = folder.open(end.name, os.O_WRONLY | os.O_APPEND)
        else:
            self._start_segment()
        self._full = self._size >= max_bytes

    @classmethod
    def open(
        cls,
        directory: Path,
        header: HeaderMembers,
        max_bytes: int = 64 << 20,
        replay: Replay | None = None,
    ) -> Self:
        """Lock `directory` (created 0700 if missing), recover, and go on or begin.

        `header` gives the caller's members of each new segment's header. A segment of
        `max_bytes` or more is full: the batch after it goes into a new one. The newest
        segment is verified, and each of its lines that verifies, header included, is
        given to `replay(sequence, body)`.

        A last line without its end, a torn tail, is moved into a file
        `<segment>.torn-<offset>` and cut off; a segment without a whole line is moved
        as it is, and the one before is looked at. A line that has its end but does not
        verify is damage, not a crash. Nothing of such a file is touched, since it is
        evidence and its later lines may still verify. A new segment follows on the
        last line as it stands there, so that no sequence number is given out again
        and `verify` shows this one fault, at its place, for ever. `recovered` says
        what was done; it is None after a clean end.

        Raises BusyError when another writer holds the folder, CorruptError when a file
        name leaves no sequence numbers to go on with, and OSError.
        """
        folder = Folder(directory)
        try:
            return cls(folder, header, max_bytes, _find_end(folder, replay))
        except BaseException:
            folder.close()
            raise

    @property
    def next_sequence(self) -> int:
        """The number that the next body given to `append` will get."""
        return self._at.sequence + self._full

    @property
    def full(self) -> bool:
        """Whether the next `append` begins a new segment, and asks for its header."""
        return self._full

    @property
    def removed(self) -> bool:
        """Whether somebody has deleted the segment that is being written."""
        return self._fd >= 0 and os.fstat(self._fd).st_nlink == 0

    def append(self, bodies: Sequence[bytes]) -> None:
        """Write `bodies`, encoded JSON objects, as the next lines with one write(2).

        They are in the page cache afterwards; `sync` makes them durable. Raises
        ValueError for a body that is no compact JSON object, and OSError when the disk
        is full or fails: then none of them is in the log, `next_sequence` is what it
        was, and the same bodies may be appended again later. Do append the same ones:
        a reader may have seen the first of them before they were taken back.
        """
        if self._ragged:
            self._cut_back()
        if self._full and bodies:
            self._rotate()
        data, at = frame(self._at, bodies)
        try:
            write(self._fd, data)
        except BaseException:
            self._ragged = True
            with contextlib.suppress(OSError):  # then the next append tries again
                self._cut_back()
            raise
        self._at = at
        self._size += len(data)
        self._written += len(data)
        # Decided here and not in `append`'s beginning, where the other thread's failed
        # sync could come between the caller's look at `next_sequence` and the batch.
        self._full = self._size >= self._max_bytes or self._sync_error is not None

    def sync(self) -> None:
        """Make everything appended so far durable; no system call if it is already.

        Raises OSError. After a failed fdatasync the kernel may have dropped the pages
        and would report success next time, so the error is repeated until `append` has
        moved on to a new segment, which it does after its next batch.
        """
        with self._fd_lock:
            if self._sync_error is not None:
                raise self._sync_error
            written = self._written
            if written == self._synced:
                return
            try:
                os.fdatasync(self._fd)
            except OSError as error:
                self._sync_error = error
                raise
            self._synced = written

    def close(self) -> None:
        """Sync, and give the folder free. Does nothing the second time."""
        if self._fd < 0:
            return
        try:
            self.sync()
        finally:
            with self._fd_lock:
                os.close(self._fd)
                self._fd = -1
                self._synced = self._written
            self._folder.close()

    def __enter__(self) -> Self:
        """Return the writer, which is closed at the end of the block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the writer."""
        self.close()

    def _cut_back(self) -> None:
        os.ftruncate(self._fd, self._size)
        self._ragged = False

    def _rotate(self) -> None:
        # Before the successor exists: a lost tail in a segment that has one is damage.
        # After an error that was reported already, the new segment is the way out.
        if self._sync_error is None:
            self.sync()
        self._start_segment()
        self._full = False

    def _start_segment(self) -> None:
        """Create the next segment with its header; on failure nothing has changed."""
        name = segment_name(self._at.sequence)
        line, after = frame(self._at, [encode_header(self._at, self._header())])
        fd = self._folder.open(name, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL)
        try:
            write(fd, line)
            self._folder.sync()
        except BaseException:
            os.close(fd)
            self._folder.remove(name)
            raise
        with self._fd_lock:
            left, self._fd = self._fd, fd
            self._synced = self._written
            self._written += len(line)
            self._sync_error = None
        if left >= 0:
            os.close(left)
        self._at = after
        self._size = len(line)


class _End(NamedTuple):
    """Where a log ends: in the segment `name` at `size` bytes, or in a new one."""

    position: Position
    name: str
    size: int
    recovery: Recovery | None


def _find_end(folder: Folder, replay: Replay | None) -> _End:
    """Look through the newest segments, newest first, until one has a whole line."""
    evidence: list[str] = []
    moved = floor = 0
    scan = Scan(segment_name(0))
    for name in reversed(segment_names(folder.path)):
        scan = _scan(folder, name, replay)
        if scan.unfinished and not scan.faults:
            evidence.append(folder.set_aside(name, scan.offset))
            moved += scan.tail
        if scan.offset:
            floor = max(floor, first_sequence(name) + 1)
            break
        floor = max(floor, first_sequence(name))
        scan = Scan(segment_name(floor))
    position = _not_below(floor, scan.resume)
    recovery = Recovery(tuple(evidence), moved, tuple(scan.faults), position.sequence)
    goes_on = scan.offset > 0 and not scan.faults and position == scan.resume
    return _End(
        position,
        scan.name if goes_on else "",
        scan.offset,
        recovery if evidence or scan.faults else None,
    )


def _not_below(floor: int, position: Position) -> Position:
    """Return where to go on, given the number that a file name has claimed already."""
    sequence = max(position.sequence, floor)
    if sequence > MAX_SEQUENCE // 2:
        raise CorruptError(f"the log claims to be at sequence {sequence}")
    return Position(sequence, position.previous)


def _scan(folder: Folder, name: str, replay: Replay | None) -> Scan:
    scan = Scan(name)
    with os.fdopen(folder.open(name, os.O_RDONLY), "rb") as file:
        for line in scan.lines(file):
            if replay is not None:
                replay(line.sequence, line.body)
    return scan
