"""Records found by what they say, without decoding the others.

In: the folder of a log, and a pattern of the writer's own text. Out: the records whose
line matches and is chained to the line before it. A line that is not is counted and
never shown; whether the whole chain holds is for `verify` to say.
"""

import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from agent.sinks.chain import (
    GENESIS,
    SUFFIX_BYTES,
    Position,
    claim,
    link,
    segment_names,
    suffix,
)

Record = dict[str, Any]
_BLOCK = 8 << 20


def of_processes(entities: Collection[str]) -> "re.Pattern[bytes]":
    """Match the records about these processes."""
    return _entities(b"process", entities)


def of_targets(entities: Collection[str]) -> "re.Pattern[bytes]":
    """Match the records in which one of these processes was reached into."""
    return _entities(b"target", entities)


def of_either(*patterns: "re.Pattern[bytes]") -> "re.Pattern[bytes]":
    """Match the records that one of these matches: a log is read once for all."""
    return re.compile(b"|".join(one.pattern for one in patterns))


def of_pids(pids: Collection[int], boot: str) -> "re.Pattern[bytes]":
    """Match the records about processes that had one of these pids in this boot."""
    numbers = b"|".join(b"%d" % pid for pid in pids)
    about = rb'"process":\{"pid":(?:%b),"entity_id":"%b-'
    return re.compile(about % (numbers, re.escape(boot.encode())))


def of_actions(*actions: str) -> "re.Pattern[bytes]":
    """Match the records of these actions."""
    names = b"|".join(re.escape(name.encode()) for name in actions)
    return re.compile(rb'"action":"(?:%b)"' % names)


def _entities(role: bytes, entities: Collection[str]) -> "re.Pattern[bytes]":
    """Match what no argument can imitate: within a string, quotes are escaped."""
    names = b"|".join(re.escape(one.encode()) for one in entities)
    return re.compile(rb'"%b":\{"pid":\d+,"entity_id":"(?:%b)"' % (role, names))


class Search:
    """Searches of one log, newest segments last."""

    def __init__(self, directory: Path, *, newest: int = 0) -> None:
        """Search all segments of a folder, or the `newest` so many of them."""
        self._paths: list[Path] = []
        self._broken: set[tuple[Path, int]] = set()
        self.unread = ""
        """Why there is nothing to search, or not all of it; empty when all was read."""
        try:
            names = segment_names(directory)
        except OSError as error:
            self.unread = f"{directory}: {error.strerror}"
        else:
            self._paths = [directory / name for name in names[-newest:]]
            self.unread = "" if names else f"{directory}: there are no records"

    @property
    def broken(self) -> int:
        """How many lines matched and are not chained to the line before."""
        return len(self._broken)

    def find(self, wanted: "re.Pattern[bytes]") -> Iterator[Record]:
        """Yield matching records, oldest first."""
        for path in self._paths:
            yield from self._in_segment(path, wanted)

    def last(self, wanted: "re.Pattern[bytes]") -> Record | None:
        """Return the newest matching record."""
        for path in reversed(self._paths):
            *_, found = None, *self._in_segment(path, wanted)
            if found:
                return found
        return None

    def _in_segment(self, path: Path, wanted: "re.Pattern[bytes]") -> Iterator[Record]:
        try:
            with path.open("rb") as file:
                for at, before, lines in _blocks(file):
                    yield from self._in_block(path, at, before, lines, wanted)
        except OSError as error:
            self.unread = f"{path}: {error.strerror}"

    def _in_block(
        self,
        path: Path,
        at: int,
        before: bytes,
        lines: bytes,
        wanted: "re.Pattern[bytes]",
    ) -> Iterator[Record]:
        end = 0
        while match := wanted.search(lines, end):
            begin = lines.rfind(b"\n", 0, match.start()) + 1
            end = lines.find(b"\n", match.end()) + 1
            previous = lines[max(0, begin - SUFFIX_BYTES) : begin] or before
            if found := _checked(previous, lines[begin:end]):
                yield found
            else:
                self._broken.add((path, at + begin))


def _blocks(file: BinaryIO) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield whole lines: their offset, the end of the line before, and they.

    A torn tail is no line. Not mapped into memory: a writer that takes back what the
    disk refused cuts the file, and whoever touches a map behind its end is killed.
    """
    at, before, rest = 0, b"", b""
    while block := file.read(_BLOCK):
        whole, newline, tail = block.rpartition(b"\n")
        if not newline:
            rest += block
            continue
        lines = rest + whole + newline
        yield at, before, lines
        at, before, rest = at + len(lines), lines[-SUFFIX_BYTES:], tail


def _checked(before: bytes, line: bytes) -> Record | None:
    """Decode a line that follows on the one that ends so; None when it does not."""
    position = claim(before) if before else Position(0, GENESIS)
    body = line[:-SUFFIX_BYTES] + b"}"
    if position is None or line[-SUFFIX_BYTES:] != suffix(
        position.sequence, link(position, body)
    ):
        return None
    found: Record = msgspec.json.decode(body)
    return found
