"""One /proc as a source: what it shows of each process, and why to doubt that.

In: a mounted procfs, or one of our own that nobody else can reach. Out: what it says
now, as values, and the doubts: each way in which a /proc can show less than there is.
A process that is gone, and a file that is none of procfs, are None and no error.
"""

import ctypes
import errno
import os
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from agent.errors import NotPermittedError
from agent.process.mounts import Doubt, DoubtKind, mount_doubts, printable

_libc = ctypes.CDLL(None, use_errno=True)

# not in every libc; one table of numbers for all machines since these were added
_FSOPEN, _FSCONFIG, _FSMOUNT = 430, 431, 432
_CLOEXEC, _CONFIG_CREATE, _NOSUID_NODEV_NOEXEC = 1, 6, 2 | 4 | 8
_PROC_MAGIC, _PROC_ROOT_INODE = 0x9FA0, 1
_INITIAL_PID_NAMESPACE = "pid:[4026531836]"
_INITIAL_TIME_NAMESPACE = "time:[4026531834]"
TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
"""A start in /proc is a whole number of these."""
_PF_KTHREAD = 0x00200000
_ENDED = ("Z", "X")
"""States of a thread that has ended; the first may end before the others."""
# what is mounted there may be a pipe that nobody writes to, or a link
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
_LIMIT = 32 << 20  # a list of 100,000 mounts, the most that a kernel allows, has 10 MiB
_OWN_FAULT = {errno.EBADF, errno.EMFILE, errno.ENFILE, errno.ENOMEM}
"""Errors that say nothing about the process that was asked for."""


class Stat(NamedTuple):
    """One line of /proc/PID/stat; `pid` is another's where a folder covers that of PID.

    `start_ticks` are clock ticks (SC_CLK_TCK a second) since boot, `threads` counts one
    that has ended and was not waited for, `kernel` says that it is a kernel thread; the
    `comm` of one may be longer than the 15 bytes of others.
    """

    pid: int
    comm: bytes
    state: str
    ppid: int
    threads: int
    start_ticks: int
    kernel: bool

    @property
    def ended(self) -> bool:
        """Whether all of its threads have, and nobody has waited for it."""
        return self.state in _ENDED and self.threads <= 1


class Status(NamedTuple):
    """Of /proc/PID/status: 0 for no tracer, `tgid` differs from PID in other threads.

    `pids` are its numbers in the pid namespace of this procfs, and in each one below;
    empty on a kernel without pid namespaces.
    """

    tgid: int
    ppid: int
    tracer: int
    pids: tuple[int, ...]


class Proc:
    """An open procfs. Not to be listed by two threads at once."""

    def __init__(self, fd: int, path: Path | None) -> None:
        """Take over the descriptor of a folder; `path` is None where it has none."""
        self._fd = fd
        self.path = path

    @classmethod
    def mounted(cls, path: Path = Path("/proc")) -> Self:
        """Open the one that everybody sees; OSError when there is no such folder.

        Whatever is mounted over the folder of a process is what its files are read
        from. One doubt names each such mount; a FUSE among them can make us wait.
        """
        return cls(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), path)

    @classmethod
    def private(cls) -> Self:
        """Make one of our own, of our pid namespace; NotPermittedError when refused.

        It is in no mount namespace, so nothing can be mounted over it. It has options
        of its own (no hidepid) since Linux 5.8, before that those of the namespace.
        """
        context = _call("fsopen", _FSOPEN, b"proc", _CLOEXEC)
        try:
            _call("fsconfig", _FSCONFIG, context, _CONFIG_CREATE, None, None, 0)
            mount = _call("fsmount", _FSMOUNT, context, _CLOEXEC, _NOSUID_NODEV_NOEXEC)
        finally:
            os.close(context)
        try:
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
            return cls(os.open(".", flags, dir_fd=mount), None)
        finally:
            # the mount goes with its descriptor; what was opened in it stays readable
            os.close(mount)

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self._fd)

    def __enter__(self) -> Self:
        """Close at the end of the block."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close, whatever happened."""
        self.close()

    def pids(self) -> set[int]:
        """List the processes that it shows; threads have no name in the list.

        A process that lives from before the call to after it is in the list of a
        procfs that hides nothing.
        """
        names = os.listdir(self._fd)  # noqa: PTH208 - there is no path to it
        return {int(name) for name in names if _is_pid(name)}

    def stat(self, pid: int) -> Stat | None:
        """Read /proc/PID/stat; None when the process is gone, or it is not one."""
        try:
            return parse_stat(self._read(f"{pid}/stat"))
        except ValueError:
            return None

    def status(self, pid: int) -> Status | None:
        """Read /proc/PID/status, of any thread; None when it is gone, or is not one."""
        try:
            return parse_status(self._read(f"{pid}/status"))
        except ValueError:
            return None

    def tracer(self, pid: int) -> int:
        """Say who traces this process or thread: 0 for nobody, or when it is gone."""
        status = self.status(pid)
        return status.tracer if status else 0

    def pid_max(self) -> int:
        """Read the number below which the kernel gives new pids; 0 when not shown."""
        try:
            return int(self._read("sys/kernel/pid_max"))
        except ValueError:
            return 0

    def mountinfo(self) -> bytes:
        """Read the list of mounts of this process; empty when not shown."""
        return self._read("self/mountinfo")

    def doubts(self, witness: "Proc") -> list[Doubt]:
        """Say why not to believe this one; `witness` shows the mounts of this process.

        The witness should be a private one: who covers /proc/self, or all of /proc,
        covers the list of mounts too.
        """
        found = self._what_it_is() + witness.shifted()
        if self.path is not None:
            mountinfo = witness.mountinfo()
            found += mount_doubts(mountinfo, os.fsencode(self.path.resolve()))
        return found

    def _what_it_is(self) -> list[Doubt]:
        if _file_system(self._fd) != _PROC_MAGIC:
            return [Doubt(DoubtKind.NOT_PROCFS, 0, f"{self} is not a procfs")]
        if os.fstat(self._fd).st_ino != _PROC_ROOT_INODE:
            return [Doubt(DoubtKind.PART, 0, f"{self} is only a part of a procfs")]
        shown, own = self._link("self"), os.getpid()
        status = self.status(own)
        above = status and status.tgid == own and len(status.pids) > 1
        if shown != str(own) or above:
            who = f"as {shown}" if shown else "not at all"
            text = f"{self} is of another pid namespace, which shows this process {who}"
            return [Doubt(DoubtKind.OTHER_NAMESPACE, 0, text)]
        namespace = self._link("self/ns/pid")
        if namespace in ("", _INITIAL_PID_NAMESPACE):
            return []
        text = f"{self} shows one pid namespace of this machine, {namespace}, not all"
        return [Doubt(DoubtKind.INNER_NAMESPACE, 0, text)]

    def shifted(self) -> list[Doubt]:
        """Say whether the start times it shows are those of a time namespace."""
        namespace = self._link("self/ns/time")  # before 5.6 there is none
        if namespace in ("", _INITIAL_TIME_NAMESPACE):
            return []
        text = f"start times are shown as this process's {namespace} shifts them"
        return [Doubt(DoubtKind.TIME_NAMESPACE, 0, text)]

    def _link(self, name: str) -> str:
        try:
            return os.readlink(name, dir_fd=self._fd)
        except OSError:
            return ""

    def _read(self, name: str) -> bytes:
        """Read a file; empty when it is gone, can't be read, or is endless."""
        try:
            file = os.open(name, _READ, dir_fd=self._fd)
            try:
                return _content(file)
            finally:
                os.close(file)
        except OSError as error:
            if error.errno in _OWN_FAULT:
                raise
            return b""

    def __str__(self) -> str:
        """Name it in a sentence."""
        return printable(os.fsencode(self.path)) if self.path else "our own procfs"


def parse_stat(raw: bytes) -> Stat:
    """Take /proc/PID/stat apart; ValueError when it is not one.

    The name in its second field is any bytes but NUL, brackets and newlines too.
    """
    head, end, rest = raw.rpartition(b") ")
    pid, begin, comm = head.partition(b" (")
    fields = rest.split()
    if not (begin and end and len(fields) > 19):  # noqa: PLR2004 - up to field 22
        raise ValueError("not a stat of a process")
    return Stat(
        pid=int(pid),
        comm=comm,
        state=fields[0].decode("ascii"),
        ppid=int(fields[1]),
        threads=int(fields[17]),
        start_ticks=int(fields[19]),
        kernel=bool(int(fields[6]) & _PF_KTHREAD),
    )


def parse_status(raw: bytes) -> Status:
    """Take /proc/PID/status apart; ValueError when it is not one."""
    # a name comes first and has no line breaks; should one have, the last word counts
    lines = (line.partition(b":") for line in raw.split(b"\n"))
    table = {name: value for name, _, value in lines}
    return Status(
        tgid=int(table.get(b"Tgid", b"")),
        ppid=int(table.get(b"PPid", b"")),
        tracer=int(table.get(b"TracerPid", b"")),
        pids=tuple(map(int, table.get(b"NSpid", b"").split())),
    )


def _is_pid(name: str) -> bool:
    return name.isascii() and name.isdigit() and name[0] != "0"


def _content(file: int) -> bytes:
    """Read all of it or nothing: half a list of mounts would hide the other half."""
    pieces, size = [], 0
    while piece := os.read(file, 4096):
        pieces.append(piece)
        size += len(piece)
        if size > _LIMIT:
            return b""
    return b"".join(pieces)


def _file_system(fd: int) -> int:
    class Statfs(ctypes.Structure):
        _fields_ = (("f_type", ctypes.c_long), ("rest", ctypes.c_char * 248))

    found = Statfs()
    if _libc.fstatfs(fd, ctypes.byref(found)) < 0:
        raise OSError(ctypes.get_errno(), "fstatfs")
    return int(found.f_type)


def _call(name: str, number: int, *arguments: int | bytes | None) -> int:
    result = int(_libc.syscall(number, *arguments))
    if result < 0:
        reason = os.strerror(ctypes.get_errno())
        raise NotPermittedError(f"no procfs of our own: {name}: {reason}")
    return result
