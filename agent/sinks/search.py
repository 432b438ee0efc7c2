"""Records found by what they say, without decoding the others.

In: the folder of a log, and a pattern of the writer's own text. Out: the records whose
line matches and is chained to the line before it. A line that is not is counted and
never shown; whether the whole chain holds is for `verify` to say.
"""

import mmap
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

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


def of_processes(entities: Collection[str]) -> "re.Pattern[bytes]":
    """Match the records about these processes."""
    return _entities(b"process", entities)


def of_targets(entities: Collection[str]) -> "re.Pattern[bytes]":
    """Match the records in which one of these processes was reached into."""
    return _entities(b"target", entities)


def of_pid(pid: int) -> "re.Pattern[bytes]":
    """Match the records about processes that had this pid."""
    return re.compile(rb'"process":\{"pid":%d,' % pid)


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
        names = segment_names(directory) if directory.is_dir() else []
        self._paths = [directory / name for name in names[-newest:]]
        self.broken = 0
        """Lines that matched and are not chained to the line before."""

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
        with path.open("rb") as file:
            if not file.seek(0, 2):
                return
            with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as text:
                at = 0
                while match := wanted.search(text, at):
                    begin = text.rfind(b"\n", 0, match.start()) + 1
                    at = text.find(b"\n", match.end()) + 1 or len(text)
                    if found := self._checked(text, begin, at):
                        yield found

    def _checked(self, text: mmap.mmap, begin: int, end: int) -> Record | None:
        """Decode a line that follows on the one before; a torn tail is no line."""
        line = text[begin:end]
        if not line.endswith(b"\n"):
            return None
        before = text[max(0, begin - SUFFIX_BYTES) : begin]
        position = claim(before) if begin else Position(0, GENESIS)
        body = line[:-SUFFIX_BYTES] + b"}"
        if position is not None and line[-SUFFIX_BYTES:] == suffix(
            position.sequence, link(position, body)
        ):
            found: Record = msgspec.json.decode(body)
            return found
        self.broken += 1
        return None
