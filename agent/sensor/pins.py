"""The pin folder in bpffs: how loader and daemon meet without knowing each other.

In: descriptors from the loader. Out: descriptors for the daemon, and the identity of
what is loaded. A folder is published whole or not at all, and removing it removes
every program, link and map it held.
"""

import ctypes
import fcntl
import hashlib
import os
import secrets
import struct
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from agent import clock
from agent.errors import BusyError, LoadError, NotPermittedError, UsageError
from agent.sensor import bpf

_BPF_FS_MAGIC = 0xCAFE4A11
_META = struct.Struct("<32s16sQ32s")
_KEY = bytes(4)


class Loaded(NamedTuple):
    """What a pin folder holds: object key, id of this loading, boot time of it.

    `whole` says that each pin is there, and is the very object that was loaded.
    """

    object_key: str
    load_id: str
    loaded_ns: int
    whole: bool


class Parts(NamedTuple):
    """Descriptors by name: what collects, what it fills, what is run on request."""

    maps: Mapping[str, int]
    links: Mapping[str, int]
    programs: Mapping[str, int]


def mount(kind: str, place: Path) -> None:
    """Mount a kernel file system (bpf, tracefs); NotPermittedError when refused."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(kind.encode(), os.fsencode(place), kind.encode(), 0, None) < 0:
        reason = os.strerror(ctypes.get_errno())
        raise NotPermittedError(f"{place} is not mounted, and can't be: {reason}")


def require_bpffs(folder: Path) -> None:
    """Make sure that `folder` lies in bpffs; mounts /sys/fs/bpf when nothing is."""
    parent = folder.parent
    if "." in folder.name:
        raise UsageError(f"{folder}: names in a BPF file system have no dots")
    if not _is_bpffs(parent) and parent == Path("/sys/fs/bpf"):
        mount("bpf", parent)
    if not _is_bpffs(parent):
        raise LoadError(f"{parent} is not in a BPF file system")


def _is_bpffs(folder: Path) -> bool:
    class Statfs(ctypes.Structure):
        _fields_ = (("f_type", ctypes.c_long), ("rest", ctypes.c_char * 248))

    found = Statfs()
    if ctypes.CDLL(None).statfs(os.fsencode(folder), ctypes.byref(found)) < 0:
        return False
    return bool(found.f_type == _BPF_FS_MAGIC)


def publish(folder: Path, object_key: str, parts: Parts) -> None:
    """Pin everything, then give the folder its name in one step.

    `parts` are the descriptors by folder and name. What was pinned there before is
    removed only after the new probes are attached, so nothing goes unseen in between.
    """
    require_bpffs(folder)
    fresh, old = _beside(folder, "new"), _beside(folder, "old")
    remove(fresh)
    remove(old)
    fresh.mkdir(mode=0o700)
    meta = bpf.map_create("meta", bpf.MapSpec(bpf.MAP_ARRAY, 4, _META.size, 1, 0))
    load_id = secrets.token_bytes(16)
    told = object_key.encode(), load_id, clock.boot_ns(), _digest(parts)
    bpf.update(meta, _KEY, _META.pack(*told))
    for part, names in parts._asdict().items():
        (fresh / part).mkdir(mode=0o700)
        for name, fd in names.items():
            bpf.pin(fd, fresh / part / name)
    bpf.pin(meta, fresh / "maps" / "meta")
    if folder.exists():
        folder.rename(old)
    fresh.rename(folder)
    remove(old)


def _digest(parts: Parts) -> bytes:
    """Return a hash of which objects of the kernel stand under which names."""
    lines = [
        f"{part}/{name} {_kind(kind)} {number}"
        for part, names in parts._asdict().items()
        for name, fd in names.items()
        for kind, number in [bpf.identify(fd)]
    ]
    return hashlib.sha256("\n".join(sorted(lines)).encode()).digest()


def _kind(told: str) -> str:
    """Name a kind; the kernel calls a link by other names while it is new."""
    return next((kind for kind in ("map", "prog") if kind in told), "link")


def _digest_of(folder: Path) -> bytes:
    """Return the same of what is pinned now; empty when a pin can't be opened."""
    with ExitStack() as opened:

        def fd_of(path: Path) -> int:
            fd = bpf.get(path)
            opened.callback(os.close, fd)
            return fd

        try:
            found = {
                part: {
                    name: fd_of(folder / part / name) for name in _names(folder / part)
                }
                for part in Parts._fields
            }
        except OSError:
            return b""
        found["maps"].pop("meta", None)
        return _digest(Parts(**found))


def _beside(folder: Path, suffix: str) -> Path:
    """Name a sibling; bpffs refuses dots in names."""
    return folder.with_name(f"{folder.name}-{suffix}")


@contextmanager
def owned(folder: Path) -> Iterator[None]:
    """Be the one process that reads or replaces these pins; BusyError if one is."""
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield  # nothing is pinned, so nobody reads it
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise BusyError(f"{folder}: an agent is reading these pins") from None
    finally:
        os.close(fd)


def unload(folder: Path) -> None:
    """Remove a pin folder, and what a loader that was killed left beside it."""
    for one in (folder, _beside(folder, "new"), _beside(folder, "old")):
        remove(one)


def remove(folder: Path) -> None:
    """Remove a pin folder and with it everything that only it kept alive.

    UsageError for a folder that is not one of ours: nothing in it is touched.
    """
    if not folder.exists():
        return
    _require_ours(folder)
    for part in Parts._fields:
        if (folder / part).is_dir():
            for pin in (folder / part).iterdir():
                pin.unlink()
            (folder / part).rmdir()
    folder.rmdir()


def _require_ours(folder: Path) -> None:
    names = {path.name for path in folder.iterdir()}
    if not _is_bpffs(folder) or folder.is_symlink() or not names <= {*Parts._fields}:
        raise UsageError(f"{folder} is not a pin folder of this agent; left alone")


def loaded(folder: Path) -> Loaded | None:
    """Say what is pinned here; None when nothing usable is."""
    try:
        fd = bpf.get(folder / "maps" / "meta")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError as error:
        raise NotPermittedError(f"{folder} may not be read: {error}") from error
    try:
        key, load_id, at, digest = _META.unpack(bpf.lookup(fd, _KEY, _META.size))
    finally:
        os.close(fd)
    return Loaded(key.decode(), load_id.hex(), at, digest == _digest_of(folder))


def open_map(folder: Path, name: str) -> int:
    """Open one of the pinned maps; returns its descriptor."""
    return bpf.get(folder / "maps" / name)


def links(folder: Path) -> list[str]:
    """List the names of the pinned links."""
    return _names(folder / "links")


def programs(folder: Path) -> list[str]:
    """List the names of the programs that are run on request."""
    return _names(folder / "programs")


def _names(folder: Path) -> list[str]:
    try:
        return sorted(path.name for path in folder.iterdir())
    except OSError:
        return []
