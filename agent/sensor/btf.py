"""Read the running kernel's type information (BTF) without bpftool or libbpf.

In: the bytes of /sys/kernel/btf/vmlinux. Out: sizes, member offsets and C types of
kernel structs, and which functions the kernel has. A name that does not exist is a
KeyError that says which; nothing is guessed.

Format: Documentation/bpf/btf.rst of the kernel.
"""

import struct
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from agent.errors import LoadError

VMLINUX = Path("/sys/kernel/btf/vmlinux")

INT, PTR, ARRAY, STRUCT, UNION, ENUM, FORWARD = 1, 2, 3, 4, 5, 6, 7
TYPEDEF, VOLATILE, CONST, RESTRICT, FUNC, PROTO = 8, 9, 10, 11, 12, 13
VAR, DATASEC, DECL_TAG, TYPE_TAG, ENUM64 = 14, 15, 17, 18, 19
_HEADER_BYTES = 24
_MODIFIERS = {TYPEDEF, VOLATILE, CONST, RESTRICT, TYPE_TAG}
_TRAILER = {INT: (0, 4), ARRAY: (0, 12), VAR: (0, 4), DECL_TAG: (0, 4)} | {
    STRUCT: (12, 0),
    UNION: (12, 0),
    ENUM: (8, 0),
    PROTO: (8, 0),
    DATASEC: (12, 0),
    ENUM64: (12, 0),
}
_NAMED = {STRUCT, UNION, FUNC, TYPEDEF}


class Type(NamedTuple):
    """One BTF type: kind, number of elements, kind flag, name, size or type id."""

    kind: int
    length: int
    flag: bool
    name: str
    size: int
    at: int


class Member(NamedTuple):
    """A struct member: byte offset, type id, and width in bits for a bit field."""

    offset: int
    type_id: int
    bits: int


class Btf:
    """The types of one kernel image."""

    def __init__(self, raw: bytes) -> None:
        """Index `raw`; LoadError when it is not little-endian BTF."""
        if len(raw) < _HEADER_BYTES or raw[:2] != b"\x9f\xeb":
            raise LoadError("not little-endian BTF")
        header, types, types_size, strings, strings_size = struct.unpack_from(
            "<5I", raw, 4
        )
        self._raw = raw
        self._strings = raw[header + strings : header + strings + strings_size]
        self._offsets = [0]
        self._named: dict[tuple[int, int], int] = {}
        self._index(header + types, header + types + types_size)
        self.struct = cache(self._struct)

    @classmethod
    def of_kernel(cls, path: Path = VMLINUX) -> "Btf":
        """Read the running kernel's; LoadError when it was built without BTF."""
        try:
            return cls(path.read_bytes())
        except OSError as error:
            raise LoadError(f"this kernel offers no BTF: {error}") from error

    def _index(self, at: int, end: int) -> None:
        unpack = struct.Struct("<II").unpack_from
        while at < end:
            name, info = unpack(self._raw, at)
            kind = info >> 24 & 31
            self._offsets.append(at)
            if name and kind in _NAMED:
                self._named.setdefault((kind, name), len(self._offsets) - 1)
            each, fixed = _TRAILER.get(kind, (0, 0))
            at += 12 + each * (info & 0xFFFF) + fixed

    def _name(self, at: int) -> str:
        return self._strings[at : self._strings.index(b"\0", at)].decode()

    def find(self, kind: int, name: str) -> int | None:
        """Return the type id of a named struct, union, function or typedef."""
        wanted = b"\0" + name.encode() + b"\0"
        at = self._strings.find(wanted)
        while at >= 0:
            if found := self._named.get((kind, at + 1)):
                return found
            at = self._strings.find(wanted, at + 1)
        return None

    def type(self, type_id: int) -> Type:
        """Return the type with this id."""
        at = self._offsets[type_id]
        name, info, size = struct.unpack_from("<III", self._raw, at)
        return Type(
            info >> 24 & 31,
            info & 0xFFFF,
            bool(info >> 31),
            self._name(name),
            size,
            at + 12,
        )

    def resolve(self, type_id: int) -> int:
        """Follow typedefs and qualifiers to the type itself; 0 is void."""
        while type_id and self.type(type_id).kind in _MODIFIERS:
            type_id = self.type(type_id).size
        return type_id

    def _members(self, type_id: int, base: int = 0) -> Iterator[tuple[str, Member]]:
        """Members in order, those of anonymous structs and unions among them."""
        outer = self.type(type_id)
        for i in range(outer.length):
            name, inner, offset = struct.unpack_from(
                "<III", self._raw, outer.at + 12 * i
            )
            bits = offset >> 24 if outer.flag else 0
            offset = base + ((offset & 0xFFFFFF) if outer.flag else offset) // 8
            resolved = self.resolve(inner)
            if name:
                yield self._name(name), Member(offset, inner, bits)
            elif resolved and self.type(resolved).kind in (STRUCT, UNION):
                yield from self._members(resolved, offset)

    def _struct(self, name: str) -> tuple[int, dict[str, Member]]:
        """Return size in bytes and members of a struct; KeyError when absent."""
        type_id = self.find(STRUCT, name)
        if type_id is None:
            raise KeyError(f"struct {name}")
        members: dict[str, Member] = {}
        for member, where in self._members(type_id):
            members.setdefault(member, where)
        return self.type(type_id).size, members

    def array_length(self, type_id: int) -> int:
        """Return the number of elements of an array type."""
        length: int = struct.unpack_from(
            "<III", self._raw, self.type(self.resolve(type_id)).at
        )[2]
        return length

    def hides_argument(self, function: str) -> bool:
        """Whether a function's first argument points to a struct it does not define.

        A program may not read such an argument; it is so where the type information
        was taken from a stand-in for a system call that a kernel may lack.
        """
        type_id = self.find(FUNC, function)
        if type_id is None:
            return False
        prototype = self.type(self.type(type_id).size)
        if not prototype.length:
            return False
        (first,) = struct.unpack_from("<I", self._raw, prototype.at + 4)
        pointer = self.type(self.resolve(first))
        return pointer.kind == PTR and self._kind(pointer.size) == FORWARD

    def _kind(self, type_id: int) -> int:
        resolved = self.resolve(type_id)
        return self.type(resolved).kind if resolved else 0

    def parameters(self, typedef: str) -> int:
        """Count the parameters of a tracepoint's type `btf_trace_NAME`."""
        type_id = self.find(TYPEDEF, typedef)
        if type_id is None:
            raise KeyError(f"typedef {typedef}")
        pointer = self.type(self.resolve(type_id))
        return self.type(self.resolve(pointer.size)).length

    def declare(self, type_id: int, known: frozenset[str]) -> tuple[str, int]:
        """Return a C declaration with %s for the name, and the size in bytes.

        A struct not in `known` becomes a number if it has the size of one, else an
        array of its bytes.
        """
        found = self.type(self.resolve(type_id))
        if found.kind == INT:
            return self._declare_int(found)
        if found.kind in (ENUM, ENUM64):
            return f"{'s' if found.flag else 'u'}{found.size * 8} %s", found.size
        if found.kind == PTR:
            return self._declare_pointer(found)
        if found.kind == ARRAY:
            return self._declare_array(found, known)
        return self._declare_struct(found, known)

    def _declare_struct(self, found: Type, known: frozenset[str]) -> tuple[str, int]:
        if found.kind == STRUCT and found.name in known:
            return f"struct {found.name} %s", found.size
        if found.kind == STRUCT and found.size in (4, 8):
            if found.size == self._widest(found):
                return f"u{found.size * 8} %s", found.size  # kuid_t and its kin
            return "u32 %s[2]", found.size  # kernel_cap_t before 6.3: aligned to 4
        return f"char %s[{found.size}]", found.size

    def _widest(self, found: Type) -> int:
        """Bytes of the first scalar inside, which decide how a struct is aligned."""
        (inner,) = struct.unpack_from("<I", self._raw, found.at + 4)
        while self.type(inner := self.resolve(inner)).kind in (ARRAY, STRUCT, UNION):
            inner_type = self.type(inner)
            at = inner_type.at + (0 if inner_type.kind == ARRAY else 4)
            (inner,) = struct.unpack_from("<I", self._raw, at)
        kind = self.type(inner)
        return 8 if kind.kind == PTR else kind.size

    def _declare_int(self, found: Type) -> tuple[str, int]:
        (encoding,) = struct.unpack_from("<I", self._raw, found.at)
        sign = "s" if encoding >> 24 & 1 else "u"
        return f"{sign}{found.size * 8} %s", found.size

    def _declare_pointer(self, found: Type) -> tuple[str, int]:
        inner = self.resolve(found.size)
        if inner and self.type(inner).kind == STRUCT and self.type(inner).name:
            return f"struct {self.type(inner).name} *%s", 8
        return "void *%s", 8

    def _declare_array(self, found: Type, known: frozenset[str]) -> tuple[str, int]:
        element, _, count = struct.unpack_from("<III", self._raw, found.at)
        text, size = self.declare(element, known)
        return text.replace("%s", f"%s[{count}]"), size * count
