"""What a process is at this moment, asked so that it can't keep the asker waiting.

In: a pid. Out: its `Now`, the names of all kernel threads, and what would run by a name
where that process lives. For a tool that a responder starts, not for the path of the
daemon: what can block is asked by a child process, 1 to 2 ms each.
"""

import contextlib
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from agent.process.asking import answer
from agent.process.drift import NO_FILE, READ_LIMIT, File, Now, Program

LIMIT_S = 1.0
"""Seconds that one question may take."""
FOLDERS = (
    b"/usr/local/sbin",
    b"/usr/local/bin",
    b"/usr/sbin",
    b"/usr/bin",
    b"/sbin",
    b"/bin",
    b"/usr/lib/systemd",
)
"""Where a bare name is looked for."""
_DELETED = b" (deleted)"
_PROC = Path("/proc")
_PF_KTHREAD = 0x00200000
_COMM = 15
_MAX_SCRIPTS = 4  # scripts that are interpreted by scripts; the kernel follows five
_FIRST_LINE = 256  # bytes of it that the kernel reads


class _Stat(NamedTuple):
    kernel_thread: bool
    start_ticks: int
    has_memory: bool
    cmdline_bytes: int


class _Executable(msgspec.Struct):
    path: bytes = b""
    deleted: bool = False
    file: File = NO_FILE
    at_path: File | None = None


def look(pid: int, limit_s: float = LIMIT_S, proc: Path = _PROC) -> Now | None:
    """Look at one process; None when there is none with this pid.

    Takes at most about twice `limit_s`, whatever the process has done to its memory or
    to its file system. Where its first thread has ended, another speaks for it.
    """
    folder = proc / str(pid)
    comm, first = _comm(folder), _stat(folder)
    if first is None:
        return None
    if not (first.has_memory or first.kernel_thread):
        folder = next(_threads_with_memory(folder), folder)
    before = _stat(folder) or first
    cmdline: bytes | None = b""
    told: bytes | None = b""
    if before.has_memory:
        cmdline = answer(lambda: _beginning(folder / "cmdline", READ_LIMIT), limit_s)
        told = answer(lambda: msgspec.msgpack.encode(_executable(folder)), limit_s)
    exe = msgspec.msgpack.decode(told, type=_Executable) if told else _Executable()
    # what has ended meanwhile has an empty command line, and hides nothing by that
    after = _stat(folder)
    answers = {"cmdline": cmdline, "exe": told}
    return Now(
        comm=comm,
        cmdline=cmdline,
        cmdline_bytes=before.cmdline_bytes,
        executable=exe.path,
        file=exe.file,
        at_path=exe.at_path,
        deleted=exe.deleted,
        kernel_thread=first.kernel_thread,
        has_memory=after is not None and after.has_memory,
        unanswered=tuple(name for name, answer in answers.items() if answer is None),
        start_ticks=first.start_ticks,
    )


def kernel_threads(proc: Path = _PROC) -> frozenset[bytes]:
    """List the names of the kernel's threads that live now."""
    found = [one for one in proc.iterdir() if one.name.isdigit()]
    return frozenset(_comm(one) for one in found if _is_kernel_thread(one)) - {b""}


class InstalledPrograms:
    """Says what would run by a name, where one process lives.

    A name is asked for once, and what does not answer in time is nothing. To ask in
    another root folder than our own needs CAP_SYS_CHROOT; without, there is nothing.
    """

    def __init__(self, folder: Path = _PROC / "self", limit_s: float = LIMIT_S) -> None:
        """Ask nothing yet; `folder` is that of the process in /proc."""
        self._folder = folder
        self._limit_s = limit_s
        self._known: dict[bytes, Program | None] = {}

    def __call__(self, name: bytes) -> Program | None:
        """Return what a path, or a bare name in FOLDERS, would run.

        A name of 15 bytes is also what the kernel keeps of longer ones.
        """
        if name not in self._known:
            told = answer(lambda: self._found(name), self._limit_s)
            found = msgspec.msgpack.decode(told, type=Program | None) if told else None
            self._known[name] = found
        return self._known[name]

    def _found(self, name: bytes) -> bytes:
        place = _Place(self._folder)
        place.enter()
        return msgspec.msgpack.encode(_program(name, place, _MAX_SCRIPTS))


class _Place:
    """Where a process lives, for a child that ends with its answer: nothing is closed.

    The numbers are those of fdinfo and mountinfo: the kernel's own, where stat(2) gives
    those of btrfs and overlayfs.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # who lives in a chroot is not shown the mount that this lies on
        lists = (folder / "mountinfo", _PROC / "self/mountinfo")
        self._mounts = b"".join(one.read_bytes() for one in lists)
        self._fdinfo = os.open("/proc/self/fdinfo", os.O_RDONLY | os.O_DIRECTORY)

    def enter(self) -> None:
        """Take the root folder of the process for one's own, if it is another."""
        mounts, root = self._folder / "ns/mnt", self._folder / "root"
        if not (mounts.samefile("/proc/self/ns/mnt") and root.samefile("/")):
            os.chroot(root)

    def file(self, path: bytes, flags: int = 0) -> File:
        """Identify the file at a path; OSError when nothing is there."""
        fd = os.open(path, os.O_PATH | flags)
        info = os.open(str(fd), os.O_RDONLY, dir_fd=self._fdinfo)
        told = dict(re.findall(rb"^(\w+):\s*(\d+)", os.read(info, 4096), re.MULTILINE))
        mount = rb"^%s \d+ (\d+):(\d+) " % told[b"mnt_id"]
        numbers = re.search(mount, self._mounts, re.MULTILINE)
        if b"ino" not in told or numbers is None:  # before Linux 5.14, or unmounted
            status = os.fstat(fd)
            device = os.major(status.st_dev) << 20 | os.minor(status.st_dev)
            return File(status.st_ino, device)
        return File(int(told[b"ino"]), int(numbers[1]) << 20 | int(numbers[2]))


def _executable(folder: Path) -> _Executable:
    """Read what a process runs; one file may really be called "x (deleted)"."""
    place, link = _Place(folder), os.fsencode(folder / "exe")
    path, file = os.readlink(link), place.file(link)  # noqa: PTH115 - bytes
    if not path.endswith(_DELETED):
        return _Executable(path, False, file)
    place.enter()
    if _at(place, path) == file:
        return _Executable(path, False, file)
    path = path.removesuffix(_DELETED)
    return _Executable(path, True, file, _at(place, path))


def _at(place: _Place, path: bytes) -> File | None:
    try:
        return place.file(path, os.O_NOFOLLOW)
    except OSError:
        return None


def _program(name: bytes, place: _Place, scripts: int) -> Program | None:
    path = next(filter(_is_executable, _paths(name)), None)
    if path is None:
        return None
    interpreter = _interpreter(path)
    if not interpreter:
        return Program(place.file(path))
    found = _program(interpreter, place, scripts - 1) if scripts else None
    last = interpreter.rpartition(b"/")[2]
    return Program(found.file, found.interpreter or last) if found else None


def _paths(name: bytes) -> Iterator[bytes]:
    if name.startswith(b"/"):
        yield name
    if not name or b"/" in name:
        return
    for folder in FOLDERS:
        yield folder + b"/" + name
        if len(name) == _COMM:
            with contextlib.suppress(OSError):
                names = os.listdir(folder)  # noqa: PTH208 - names that are bytes
                yield from (folder + b"/" + one for one in names if one[:_COMM] == name)


def _is_executable(path: bytes) -> bool:
    try:
        mode = os.stat(path).st_mode  # noqa: PTH116 - a path that is bytes
    except OSError:
        return False
    return stat.S_ISREG(mode) and bool(mode & 0o111)


def _interpreter(script: bytes) -> bytes:
    """Return what the first line names; env(1) is only the way to it."""
    line = _beginning(Path(os.fsdecode(script)), _FIRST_LINE).partition(b"\n")[0]
    words = line[2:].split() if line.startswith(b"#!") else []
    if words and words[0].endswith(b"/env"):
        words = [one for one in words[1:] if one[:1] != b"-" and b"=" not in one]
    return words[0] if words else b""


def _beginning(path: Path, limit: int) -> bytes:
    with path.open("rb") as file:
        return file.read(limit)


def _comm(folder: Path) -> bytes:
    try:
        return (folder / "comm").read_bytes().removesuffix(b"\n")
    except OSError:
        return b""


def _stat(folder: Path) -> _Stat | None:
    try:
        text = (folder / "stat").read_bytes()
    except OSError:
        return None
    # of fields 3 to 52; the name in field 2 may hold blanks and brackets
    fields = [int(one) for one in text[text.rindex(b")") + 4 :].split()]
    kernel = bool(fields[5] & _PF_KTHREAD)
    return _Stat(kernel, fields[18], fields[19] > 0, fields[45] - fields[44])


def _is_kernel_thread(folder: Path) -> bool:
    found = _stat(folder)
    return found is not None and found.kernel_thread


def _threads_with_memory(folder: Path) -> Iterator[Path]:
    with contextlib.suppress(OSError):
        for thread in (folder / "task").iterdir():
            found = _stat(thread)
            if found and found.has_memory:
                yield thread
