"""Guarded processes: whom the kernel keeps others out of, and who is permitted.

In: process keys and permits. Out: entries of two pinned maps, which hold while no
daemon runs and are taken over by the next loading. A process that ends leaves the map
by itself; a full map is an error to the caller, never a process that is silently open.
"""

import struct
from pathlib import Path
from typing import NamedTuple

from agent import clock
from agent.errors import UsageError
from agent.events import ProcessKey
from agent.sensor import bpf, pins

MAPS = ("guards", "permits")
_KEY = struct.Struct("<QII")
_GUARD = struct.Struct("<QQ")
_PERMIT = struct.Struct("<QQ4I")
_EXECUTABLE, _USER, _CGROUP = 1, 2, 4


class Permit(NamedTuple):
    """Who may reach into guarded processes: all facts that are given have to hold.

    An executable is (inode, device as major << 20 | minor), a user is a real uid, a
    cgroup an id of cgroup v2 (the inode of its folder), itself and not those below it.
    """

    executable: tuple[int, int] | None = None
    uid: int | None = None
    cgroup_id: int | None = None


class Guarded(NamedTuple):
    """One guarded process: accesses refused so far, and when the last one was."""

    key: ProcessKey
    refused: int
    last_ns: int


def open_maps(folder: Path) -> dict[str, int]:
    """Open the guard's maps of a pin folder, as far as they are there."""
    found = {}
    for name in MAPS:
        try:
            found[name] = pins.open_map(folder, name)
        except FileNotFoundError:
            continue
    return found


def protect(guards: int, key: ProcessKey) -> None:
    """Keep everybody but the permitted out of a process; OSError when 4,096 are."""
    bpf.update(guards, _pack(key), _GUARD.pack(0, 0))


def release(guards: int, key: ProcessKey) -> bool:
    """Open a process again; False when it was not guarded (any more)."""
    return bpf.delete(guards, _pack(key))


def guarded(guards: int) -> list[Guarded]:
    """List the guarded processes."""
    found = []
    for raw in list(bpf.keys(guards, _KEY.size)):
        start_ns, tgid, _ = _KEY.unpack(raw)
        value = bpf.peek(guards, raw, _GUARD.size)
        if value is not None:
            found.append(Guarded(ProcessKey(tgid, start_ns), *_GUARD.unpack(value)))
    return found


def permit(permits: int, who: Permit) -> None:
    """Let somebody reach into every guarded process."""
    bpf.update(permits, _permit(who), struct.pack("<Q", clock.boot_ns()))


def forbid(permits: int, who: Permit) -> bool:
    """Take a permit back; False when there was none like it."""
    return bpf.delete(permits, _permit(who))


def permits(fd: int) -> list[Permit]:
    """List the permits."""
    found = []
    for raw in list(bpf.keys(fd, _PERMIT.size)):
        ino, cgroup, dev, uid, facts, _ = _PERMIT.unpack(raw)
        found.append(
            Permit(
                (ino, dev) if facts & _EXECUTABLE else None,
                uid if facts & _USER else None,
                cgroup if facts & _CGROUP else None,
            )
        )
    return found


def _pack(key: ProcessKey) -> bytes:
    return _KEY.pack(key.start_ns, key.tgid, 0)


def _permit(who: Permit) -> bytes:
    ino, dev = who.executable or (0, 0)
    facts = _EXECUTABLE * (who.executable is not None)
    facts |= _USER * (who.uid is not None) | _CGROUP * (who.cgroup_id is not None)
    if not facts:
        raise UsageError("a permit names nobody: give an executable, a uid or a cgroup")
    return _PERMIT.pack(ino, who.cgroup_id or 0, dev, who.uid or 0, facts, 0)
