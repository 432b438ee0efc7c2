"""The hash chain of a log: how a line, a header and a file name are written and read.

Comes in: a position in the stream and one encoded JSON object.
Goes out: the framed line, and the position after it.
Never: two different streams of bodies with the same hash at the end.

A line is `<body without its final brace>,"_c":"<sequence, 16 hex>:<hash, 64 hex>"}`
and a newline, with hash = SHA-256(hash of the line before + sequence as 8 bytes, big
endian + body). The line is plain JSON and its last 91 bytes are the chain field, so
nothing but a header line is ever parsed. A segment is a file of such lines; its name
is the sequence number of its first line, the header, which carries the hash that it
continues from. The first line of a log follows on 32 zero bytes.
"""

import os
import re
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Final, Literal, NamedTuple

import msgspec

from agent.errors import CorruptError

GENESIS: Final = bytes(32)
LOCK_NAME: Final = "writer.lock"
SUFFIX_BYTES: Final = 91
MIN_LINE: Final = len(b'{"":0') + SUFFIX_BYTES
MAX_LINE: Final = 64 << 20
# JSON readers keep signed 64-bit integers; larger names and numbers are not ours.
MAX_SEQUENCE: Final = (1 << 63) - 1

_SUFFIX = b',"_c":"%016x:%b"}\n'
# The last byte is left open: a whole line whose newline was changed is still a line.
_CLAIM = re.compile(rb',"_c":"([0-7][0-9a-f]{15}):([0-9a-f]{64})"}.', re.DOTALL)
_SEGMENT = re.compile(r"[0-7][0-9a-f]{15}\.jsonl")
_EVIDENCE = re.compile(r"[0-7][0-9a-f]{15}\.jsonl\.torn-\d+(\.\d+)?")
_EMPTY = sha256()


class Position(NamedTuple):
    """A place in the stream: the next line's sequence number and the hash before it."""

    sequence: int
    previous: bytes


class _Segment(msgspec.Struct):
    version: Literal[1]
    hash: Literal["sha256"]
    first: Annotated[int, msgspec.Meta(ge=0, le=MAX_SEQUENCE)]
    previous_hash: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]


class _Ir(msgspec.Struct):
    segment: _Segment


class _Header(msgspec.Struct):
    ir: _Ir


_decode_header = msgspec.json.Decoder(_Header).decode


def link(at: Position, body: bytes) -> bytes:
    """Return the 32-byte hash of the line that has `body` at the position `at`."""
    # A copy: OpenSSL 3 looks the algorithm up anew for each fresh object.
    digest = _EMPTY.copy()
    digest.update(at[1] + at[0].to_bytes(8, "big") + body)
    return digest.digest()


def suffix(sequence: int, digest: bytes) -> bytes:
    """Return the last 91 bytes of the line with this number and 32-byte hash."""
    return _SUFFIX % (sequence, digest.hex().encode())


def frame(at: Position, bodies: Sequence[bytes]) -> tuple[bytes, Position]:
    """Return `bodies` as lines from the position `at` on, and the position after them.

    A body is one compact JSON object with at least one member and no raw newline;
    anything else raises ValueError. The rest of its JSON is taken on trust.
    """
    sequence, previous = at
    copy = _EMPTY.copy
    lines: list[bytes] = []
    for body in bodies:
        if not (body.startswith(b'{"') and body.endswith(b"}")) or b"\n" in body:
            raise ValueError(f"not a compact JSON object on one line: {body[:80]!r}")
        if len(body) > MAX_LINE - SUFFIX_BYTES:
            raise ValueError(f"{len(body)} bytes: a line has at most {MAX_LINE}")
        digest = copy()
        digest.update(previous + sequence.to_bytes(8, "big") + body)
        previous = digest.digest()
        lines += (body[:-1], _SUFFIX % (sequence, previous.hex().encode()))
        sequence += 1
    return b"".join(lines), Position(sequence, previous)


def claim(line: bytes) -> Position | None:
    """Return the position after `line` on the word of its chain field, unverified.

    None when there is no such field at its end. The final newline may be another byte.
    """
    field = _CLAIM.fullmatch(line, max(0, len(line) - SUFFIX_BYTES))
    if field is None:
        return None
    return Position(int(field[1], 16) + 1, bytes.fromhex(field[2].decode()))


def encode_header(at: Position, extra: Mapping[str, object]) -> bytes:
    """Return the body of the header line at `at`, with the members of `extra` added.

    Raises ValueError if `extra` has a member that the header itself needs.
    """
    own: dict[str, object] = {
        "version": 1,
        "hash": "sha256",
        "first": at.sequence,
        "previous_hash": at.previous.hex(),
    }
    if taken := own.keys() & extra.keys():
        raise ValueError(f"a header has its own {', '.join(sorted(taken))}")
    return msgspec.json.encode({"ir": {"segment": {**own, **extra}}})


def decode_header(line: bytes) -> Position:
    """Return the position that a header line says it has; ValueError if it is none."""
    try:
        segment = _decode_header(line).ir.segment
    except RecursionError as error:
        raise ValueError(str(error)) from error
    return Position(segment.first, bytes.fromhex(segment.previous_hash))


def segment_name(first: int) -> str:
    """Return the file name of the segment whose first line has sequence `first`."""
    return f"{first:016x}.jsonl"


def first_sequence(name: str) -> int:
    """Return the first sequence that a segment's file name says, or CorruptError."""
    if not _SEGMENT.fullmatch(name):
        raise CorruptError(f"{name}: not the name of a segment, <16 hex digits>.jsonl")
    return int(name[:16], 16)


def segment_names(directory: Path) -> list[str]:
    """Return the names of all segments in `directory`, oldest first; OSError."""
    with os.scandir(directory) as entries:
        names = [
            entry.name for entry in entries if entry.is_file(follow_symlinks=False)
        ]
    return sorted(filter(_SEGMENT.fullmatch, names))


def evidence_name(name: str, offset: int, again: int = 0) -> str:
    """Return the name for the torn tail of segment `name` that begins at `offset`."""
    return f"{name}.torn-{offset}" + (f".{again}" if again else "")


def is_evidence(name: str) -> bool:
    """Whether a file of this name is a torn tail that a recovery moved aside."""
    return _EVIDENCE.fullmatch(name) is not None
