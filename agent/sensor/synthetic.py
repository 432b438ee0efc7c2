"""What the self-test does in children of its own, so that every hook has its event.

In: nothing. Out: functions, each for a child to run; they reach only into the process
that forked them or into a child of their own, and all of those have ended when they
return.
"""

import ctypes
import mmap
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

MARK = "ir-agent-selftest"
"""argv[0] of every program that a proof starts."""

_NOWHERE = "/nonexistent/ir-agent-selftest"
_TRUE = ("/bin/true", "/usr/bin/true")
_PTRACE_TRACEME, _PTRACE_ATTACH = 0, 16
_PTRACE_GETEVENTMSG, _PTRACE_SEIZE = 0x4201, 0x4206
_PTRACE_O_TRACEFORK = 2
_WALL = 0x40000000  # a tracer waits for children that are not its own, too
_AT_FDCWD = -100
_PR_SET_NAME = 15
_PIDFD_GETFD, _OPENAT2 = 438, 437  # on every architecture
_OPEN, _CREAT = {"x86_64": 2}, {"x86_64": 85}  # not on newer architectures
_NOBODY = 65534
_libc = ctypes.CDLL(None, use_errno=True)
_byte = ctypes.create_string_buffer(b"x", 1)
"""Lies at the same address in this process and in its forked children."""


class _IoVec(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


# i386 numbers; only a 64-bit x86 process can make calls the 32-bit way
_INT_80 = {
    "ptrace": 26,
    "execve": 11,
    "execveat": 358,
    "process_vm_readv": 347,
    "process_vm_writev": 348,
    "pidfd_getfd": 438,
    "prctl": 172,
}
_INT_80_CODE = bytes.fromhex("53 89f8 89f3 87ca 4489c6 31ff cd80 5b c3")
"""int call(nr, a, b, c, d): the arguments in the registers of the i386 way, then it."""


def child(act: Callable[[], None]) -> int:
    """Do something in a child process and wait for its end; returns its pid."""
    pid = started(act)
    os.waitpid(pid, 0)
    return pid


def exec_true() -> None:
    """Run a program that exists."""
    for path in _TRUE:
        with suppress(OSError):
            os.execve(path, [MARK], {})  # noqa: S606


def exec_nowhere() -> None:
    """Run a program that does not exist."""
    os.execve(_NOWHERE, [MARK], {})  # noqa: S606


def execat_nowhere() -> None:
    """Run by execveat a program that does not exist."""
    argv = (ctypes.c_char_p * 2)(MARK.encode(), None)
    _libc.execveat(_AT_FDCWD, _NOWHERE.encode(), argv, (ctypes.c_char_p * 1)(), 0)


def be_traced() -> None:
    """Ask to be traced by the parent."""
    _libc.ptrace(_PTRACE_TRACEME, 0, 0, 0)


def read_parent() -> None:
    """Read one byte of the parent's memory."""
    vec = ctypes.byref(_IoVec(ctypes.addressof(_byte), 1))
    _libc.process_vm_readv(os.getppid(), vec, 1, vec, 1, 0)


def write_parent() -> None:
    """Write one byte of the parent's memory, as it is."""
    vec = ctypes.byref(_IoVec(ctypes.addressof(_byte), 1))
    _libc.process_vm_writev(os.getppid(), vec, 1, vec, 1, 0)


def rename() -> None:
    """Take a name, as any process may."""
    _libc.prctl(_PR_SET_NAME, MARK.encode()[:15], 0, 0, 0)


def copy_descriptor() -> None:
    """Copy a descriptor of the parent's."""
    _libc.syscall(_PIDFD_GETFD, os.pidfd_open(os.getppid()), 0, 0)


def refused(opens: Callable[[bytes], object]) -> Callable[[], None]:
    """Try to open the parent's memory as nobody, who may not."""

    def act() -> None:
        path = b"/proc/%d/mem" % os.getppid()
        os.setgroups([])
        os.setresgid(_NOBODY, _NOBODY, _NOBODY)
        os.setresuid(_NOBODY, _NOBODY, _NOBODY)
        opens(path)

    return act


def open_it(path: bytes) -> None:
    """Open by open(2), where the machine has it."""
    if number := _OPEN.get(os.uname().machine):
        _libc.syscall(number, path, os.O_RDONLY)


def creat_it(path: bytes) -> None:
    """Open by creat(2), where the machine has it."""
    if number := _CREAT.get(os.uname().machine):
        _libc.syscall(number, path, 0o600)


def openat2_it(path: bytes) -> None:
    """Open by openat2(2)."""
    how = (ctypes.c_uint64 * 3)(os.O_RDONLY, 0, 0)
    _libc.syscall(_OPENAT2, _AT_FDCWD, path, ctypes.byref(how), 24)


def trace_a_birth() -> None:
    """Seize a child and let it fork: the grandchild is born traced."""
    hold, release = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(release)
        os.read(hold, 1)
        os.fork()
        signal.pause()
    with ended(pid):
        if _libc.ptrace(_PTRACE_SEIZE, pid, 0, _PTRACE_O_TRACEFORK) == 0:
            os.close(release)
            os.waitpid(pid, 0)  # it stops when it has forked
            born = ctypes.c_ulong()
            _libc.ptrace(_PTRACE_GETEVENTMSG, pid, 0, ctypes.byref(born))
            with ended(born.value):
                pass


@contextmanager
def ended(pid: int) -> Iterator[None]:
    """Hold a process by its pidfd and end it afterwards, whatever happened."""
    pidfd = os.pidfd_open(pid)
    try:
        yield
    finally:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        os.waitpid(pid, _WALL)
        os.close(pidfd)


def openat_it(path: bytes) -> None:
    """Open by the call that libc uses."""
    os.open(path, os.O_RDONLY)


def open_own_memory() -> None:
    """Open the memory of the process that forked this one, which is allowed."""
    os.close(os.open(b"/proc/%d/mem" % os.getppid(), os.O_RDONLY))


def int_80(call: str) -> Callable[[], None]:
    """Make a call the 32-bit way, about the process that forked this one.

    All that is asked for fails or does nothing; on other machines nothing is called.
    """

    def act() -> None:
        if os.uname().machine != "x86_64":
            return
        page = mmap.mmap(-1, mmap.PAGESIZE, prot=7)
        page.write(_INT_80_CODE)
        address = ctypes.addressof(ctypes.c_char.from_buffer(page))
        made = ctypes.CFUNCTYPE(*[ctypes.c_int] * 6)(address)
        whom = 0 if call.startswith(("exec", "ptrace")) else os.getppid()
        if call == "pidfd_getfd":
            whom = os.pidfd_open(whom)
        if call == "prctl":
            whom = _PR_SET_NAME  # from address 0: refused
        made(_INT_80[call], whom, 0, 0, 0)

    return act


def seize(pid: int) -> Callable[[], None]:
    """Attach to a process without stopping it; the child ends with the errno."""
    return lambda: _ptrace(_PTRACE_SEIZE, pid)


def attach(pid: int) -> Callable[[], None]:
    """Attach to a process, which stops it; the child ends with the errno."""
    return lambda: _ptrace(_PTRACE_ATTACH, pid)


def ask_when_told(hold: int) -> Callable[[], None]:
    """Ask to be traced once `hold` can be read; the child ends with the errno."""

    def act() -> None:
        os.read(hold, 1)
        _ptrace(_PTRACE_TRACEME, 0)

    return act


def _ptrace(request: int, pid: int) -> NoReturn:
    ctypes.set_errno(0)
    _libc.ptrace(request, pid, 0, 0)
    os._exit(ctypes.get_errno())


def started(act: Callable[[], None]) -> int:
    """Do something in a child that the caller will wait for; returns its pid."""
    pid = os.fork()
    if pid == 0:
        try:
            act()
        finally:
            os._exit(0)
    return pid
