"""What a list of mounts holds against a /proc.

In: a mountinfo, as /proc/PID/mountinfo gives it. Out: each mount, or each reason not to
believe the procfs at a place. Any bytes whatever give that or a ValueError; texts of
others are made fit to be printed.
"""

import os
import re
from enum import StrEnum
from typing import NamedTuple


class DoubtKind(StrEnum):
    """In which way a /proc can show less, or something else, than there is."""

    HIDEPID = "hidepid"
    SUBSET = "subset"
    COVERED = "covered"
    COVERED_BELOW = "covered below"
    STACKED = "stacked"
    PART = "part"
    NOT_PROCFS = "not procfs"
    OTHER_NAMESPACE = "other namespace"
    INNER_NAMESPACE = "inner namespace"
    TIME_NAMESPACE = "time namespace"
    UNREADABLE = "mounts unreadable"


FOREIGN = {DoubtKind.NOT_PROCFS, DoubtKind.PART, DoubtKind.OTHER_NAMESPACE}
"""Of such a /proc the numbers are not those that are asked for."""
NOT_COMPARABLE = FOREIGN | {DoubtKind.INNER_NAMESPACE, DoubtKind.TIME_NAMESPACE}
"""Such a one shows other processes than the kernel has, or by other starts."""


class Doubt(NamedTuple):
    """One reason not to believe a /proc; `pid` where it is about one process, or 0."""

    kind: DoubtKind
    pid: int
    text: str


class Mount(NamedTuple):
    """One mount of a mountinfo: `root` is the part of it that is seen at `at`."""

    id: int
    parent: int
    root: bytes
    at: bytes
    kind: bytes
    source: bytes
    options: bytes


def parse_mountinfo(raw: bytes) -> list[Mount]:
    """Take a mountinfo apart, in its order; ValueError when it is not one."""
    return [_mount(line.split(b" ")) for line in raw.split(b"\n") if line]


def _mount(fields: list[bytes]) -> Mount:
    dash = fields.index(b"-", 6)
    kind, source, options = fields[dash + 1 : dash + 4]
    root, at = fields[3:5]
    return Mount(
        int(fields[0]),
        int(fields[1]),
        *map(_unescaped, (root, at, kind, source, options)),
    )


def _unescaped(field: bytes) -> bytes:
    return re.sub(rb"\\([0-3][0-7]{2})", lambda one: bytes([int(one[1], 8)]), field)


def mount_doubts(mountinfo: bytes, place: bytes = b"/proc") -> list[Doubt]:
    """Say what a list of mounts holds against the procfs at `place`."""
    try:
        mounts = parse_mountinfo(mountinfo)
    except ValueError:
        mounts = []
    if not mounts:
        text = "the list of mounts can't be read"
        return [Doubt(DoubtKind.UNREADABLE, 0, text)]
    there = {one.id: one for one in mounts if one.at == place}
    below = {one.parent for one in there.values()}
    found = []
    for one in mounts:
        if one.id in there and one.parent in there:
            found.append(_stacked(one, there[one.parent]))
        if one.id in there and one.id not in below:
            found += _options(one)
        found += _covered(one, place)
    return found


def _stacked(one: Mount, under: Mount) -> Doubt:
    text = f"{_named(one)} is mounted over {_named(under)} at {printable(one.at)}"
    return Doubt(DoubtKind.STACKED, 0, text)


def _options(one: Mount) -> list[Doubt]:
    kinds = {b"hidepid": DoubtKind.HIDEPID, b"subset": DoubtKind.SUBSET}
    found = []
    for option in one.options.split(b","):
        kind = kinds.get(option.partition(b"=")[0])
        if kind and one.kind == b"proc":
            text = f"{printable(one.at)} is mounted with {printable(option)}"
            found.append(Doubt(kind, 0, text))
    return found


def _covered(one: Mount, place: bytes) -> list[Doubt]:
    """Tell of a mount over a process or its files; others hide nothing of one."""
    folder = re.fullmatch(re.escape(place) + rb"/(\d{1,10})(/.*)?", one.at, re.DOTALL)
    if folder is None:
        return []
    text = f"{_named(one)} is mounted over {printable(one.at)}"
    kind = DoubtKind.COVERED_BELOW if folder[2] else DoubtKind.COVERED
    return [Doubt(kind, int(folder[1]), text)]


def _named(one: Mount) -> str:
    whole = f"a {printable(one.kind)} (source {printable(one.source)})"
    return whole if one.root == b"/" else f"{printable(one.root)} of {whole}"


def printable(raw: bytes) -> str:
    """Make bytes of others fit for a sentence: what can't be printed is escaped."""
    text = os.fsdecode(raw)
    return text if text.isprintable() else ascii(text)[1:-1]
