"""A BTF image taken apart, so that a part of it can be made an image of its own.

In: a whole image, and the numbers of the types that are wanted. Out: an image that
holds these whole, with everything they need to be laid out, and numbers of its own.

Whole means: what lies inside a type is whole too. What is only pointed at is kept by
name and size, and a pointer to a function keeps its prototype.
"""

import struct
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from agent.sensor.btf import (
    ARRAY,
    DATASEC,
    DECL_TAG,
    ENUM,
    ENUM64,
    INT,
    PROTO,
    PTR,
    STRUCT,
    UNION,
    VAR,
)
from tests.btf_blob import MAGIC

FWD, FLOAT = 7, 16
# one row of what follows a type's head: n is a name, t a type, any other a number
_ROW = {INT: ".", ARRAY: "tt.", STRUCT: "nt.", UNION: "nt.", ENUM: "n.", PROTO: "nt"}
_ROW |= {VAR: ".", DATASEC: "t..", DECL_TAG: ".", ENUM64: "n.."}
_ONE_ROW = {INT, ARRAY, VAR, DECL_TAG}
_LISTS = {STRUCT, UNION, ENUM, ENUM64}
_SIZED = {INT, ARRAY, FWD, DATASEC, FLOAT} | _LISTS
_ROWS = 0xFFFF


class Node(NamedTuple):
    """One type as it is stored; `size` is a type's number for kinds without a size."""

    name: int
    info: int
    size: int
    words: tuple[int, ...]

    @property
    def kind(self) -> int:
        """INT, PTR and so on."""
        return self.info >> 24 & 31

    @property
    def meaning(self) -> str:
        """What each word is."""
        row = _ROW.get(self.kind, ".")
        return row * (len(self.words) // len(row))

    def types(self) -> list[int]:
        """Return the numbers of the types that this one is made of; 0 is void."""
        inside = [
            word
            for word, what in zip(self.words, self.meaning, strict=True)
            if what == "t"
        ]
        return inside if self.kind in _SIZED else [self.size, *inside]

    def emptied(self) -> "Node":
        """Return it by name and size alone, where it is a list of members."""
        if self.kind not in _LISTS:
            return self
        return self._replace(info=self.info & ~_ROWS, words=())


def _node(raw: bytes, at: int) -> Node:
    name, info, size = struct.unpack_from("<III", raw, at)
    kind = info >> 24 & 31
    rows = 1 if kind in _ONE_ROW else info & _ROWS
    count = rows * len(_ROW.get(kind, ""))
    return Node(name, info, size, struct.unpack_from(f"<{count}I", raw, at + 12))


class _Strings:
    """The names of an image that is being written."""

    def __init__(self, old: bytes) -> None:
        self._old = old
        self._new: dict[bytes, int] = {b"": 0}
        self.size = 1

    def moved(self, at: int) -> int:
        name = self._old[at : self._old.index(b"\0", at)]
        if name not in self._new:
            self._new[name] = self.size
            self.size += len(name) + 1
        return self._new[name]

    def bytes(self) -> bytes:
        return b"".join(name + b"\0" for name in self._new)


class Image:
    """All types of an image, by their numbers."""

    def __init__(self, raw: bytes) -> None:
        """Take `raw` apart."""
        header, types, size, strings, strings_size = struct.unpack_from("<5I", raw, 4)
        self._strings = raw[header + strings : header + strings + strings_size]
        self.nodes = [Node(0, 0, 0, ())]
        at, end = header + types, header + types + size
        while at < end:
            self.nodes.append(_node(raw, at))
            at += 12 + 4 * len(self.nodes[-1].words)

    def named(self) -> dict[tuple[int, str], int]:
        """Return the number of each kind and name; of two alike the first counts."""
        numbers: dict[tuple[int, str], int] = {}
        for number, node in enumerate(self.nodes):
            if node.name:
                end = self._strings.index(b"\0", node.name)
                name = self._strings[node.name : end].decode()
                numbers.setdefault((node.kind, name), number)
        return numbers

    def needed(self, roots: Iterable[int]) -> dict[int, bool]:
        """Return the numbers of `roots` and all they need, and which of it is whole."""
        whole = {0: True}
        ahead = [(root, True) for root in roots]
        while ahead:
            number, wanted = ahead.pop()
            if whole.get(number) in (True, wanted):
                continue
            whole[number] = wanted
            node = self.nodes[number]
            if wanted or node.kind not in _LISTS:
                inside = wanted and node.kind not in (PTR, PROTO)
                ahead += [(inner, inside) for inner in node.types()]
        return whole

    def part(self, whole: Mapping[int, bool]) -> bytes:
        """Return an image of these types alone, in the order they have here."""
        order = sorted(whole)
        number = {old: new for new, old in enumerate(order)}
        strings, types = _Strings(self._strings), bytearray()
        for old in order[1:]:
            node = self.nodes[old] if whole[old] else self.nodes[old].emptied()
            types += _written(node, number, strings)
        sizes = (24, 0, len(types), len(types), strings.size)
        return MAGIC + struct.pack("<5I", *sizes) + bytes(types) + strings.bytes()


def _written(node: Node, number: Mapping[int, int], strings: _Strings) -> bytes:
    def moved(word: int, what: str) -> int:
        if what == "n":
            return strings.moved(word)
        return number[word] if what == "t" else word

    size = moved(node.size, "." if node.kind in _SIZED else "t")
    words = [moved(*pair) for pair in zip(node.words, node.meaning, strict=True)]
    head = (strings.moved(node.name), node.info, size)
    return struct.pack(f"<{3 + len(words)}I", *head, *words)
