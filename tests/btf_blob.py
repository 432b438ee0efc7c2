"""A kernel's type information, made by hand: for kernels that this machine is not.

In: types, one by one. Out: the bytes of a BTF image. The numbers of types are given
out in order from 1, as the format wants it.
"""

import struct
from collections.abc import Iterable, Mapping

from agent.sensor import headers
from agent.sensor.btf import ARRAY, FUNC, INT, PROTO, PTR, STRUCT, TYPEDEF, UNION
from agent.sensor.sources import BY_FUNCTION, BY_TRACEPOINT

MAGIC = b"\x9f\xeb\x01\x00"
SIGNED = 1 << 24


class Blob:
    """Types under construction."""

    def __init__(self) -> None:
        self._types = bytearray()
        self._strings = bytearray(b"\0")
        self.count = 0

    def _name(self, name: str) -> int:
        if not name:
            return 0
        at = len(self._strings)
        self._strings += name.encode() + b"\0"
        return at

    def add(
        self, kind: int, name: str, size: int, rest: bytes = b"", info: int = 0
    ) -> int:
        """A type of any kind; `size` is a size or a type, `info` length and flag."""
        head = struct.pack("<III", self._name(name), kind << 24 | info, size)
        self._types += head + rest
        self.count += 1
        return self.count

    def int_(self, name: str, size: int, encoding: int = 0) -> int:
        return self.add(INT, name, size, struct.pack("<I", encoding | size * 8))

    def pointer(self, to: int) -> int:
        return self.add(PTR, "", to)

    def array(self, of: int, length: int) -> int:
        return self.add(ARRAY, "", 0, struct.pack("<III", of, of, length))

    def compound(
        self,
        name: str,
        size: int,
        fields: Iterable[tuple[str, int, int]],
        *,
        kind: int = STRUCT,
        bit_fields: bool = False,
    ) -> int:
        """A struct or union of (name, type, offset in bits as the format has it)."""
        rest = [struct.pack("<III", self._name(n), t, off) for n, t, off in fields]
        return self.add(kind, name, size, b"".join(rest), len(rest) | bit_fields << 31)

    def typedef(self, name: str, of: int) -> int:
        return self.add(TYPEDEF, name, of)

    def function(self, name: str, parameters: int) -> int:
        prototype = self.prototype(parameters)
        return self.add(FUNC, name, prototype)

    def function_of(self, name: str, *parameters: int) -> int:
        """A function whose parameters are of these types."""
        rest = b"".join(struct.pack("<II", 0, one) for one in parameters)
        prototype = self.add(PROTO, "", 0, rest, len(parameters))
        return self.add(FUNC, name, prototype)

    def prototype(self, parameters: int) -> int:
        return self.add(PROTO, "", 0, struct.pack("<II", 0, 1) * parameters, parameters)

    def bytes(self) -> bytes:
        """The image: header, types, strings."""
        sizes = (24, 0, len(self._types), len(self._types), len(self._strings))
        header = struct.pack("<5I", *sizes)
        return MAGIC + header + bytes(self._types) + bytes(self._strings)


READ = {
    name: tuple(
        dict.fromkeys(
            one
            for variant in (BY_FUNCTION, BY_TRACEPOINT)
            for one in headers.members(variant, "x86_64").get(name, ())
        )
    )
    for variant in (BY_FUNCTION, BY_TRACEPOINT)
    for name in headers.members(variant, "x86_64")
}
"""What the probes read in any of their variants: members by struct."""


def wanted(name: str, read: Mapping[str, Iterable[str]] = READ) -> list[str]:
    """The members that the probes read of a struct, by their first names."""
    return [one.rstrip("?").partition("|")[0] for one in read[name]]


def a_kernel(
    without: Mapping[str, Iterable[str]] | None = None,
    renamed: Mapping[str, str] | None = None,
    exit_parameters: int = 2,
) -> Blob:
    """A kernel where all that the probes read is there, each as eight bytes.

    `without` maps a struct to the members that it lacks, `renamed` a member to the
    name it has here.
    """
    blob = Blob()
    word = blob.int_("long long unsigned int", 8)
    slots = blob.array(word, 64)
    for name in READ:
        missing = set((without or {}).get(name, ()))
        if name in missing:
            continue
        have = [one for one in wanted(name) if one not in missing]
        fields, at = [], 0
        for member in have:
            kind = slots if member == "slots" else word
            fields.append(((renamed or {}).get(member, member), kind, at * 8))
            at += 8 * (64 if member == "slots" else 1)
        blob.compound(name, at, fields)
    probe = blob.pointer(blob.prototype(exit_parameters))
    blob.typedef("btf_trace_sched_process_exit", probe)
    return blob


__all__ = ["SIGNED", "UNION", "Blob", "a_kernel", "wanted"]
