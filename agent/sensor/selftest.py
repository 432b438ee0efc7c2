"""Prove each hook by a synthetic event: a program that attached may never fire.

In: the hooks as attached, and the ring they write to. Out: the same hooks, each marked
proven or not. Every proof runs in a child made for it, reaches only into this process
or a child of its own, and all of them have ended when this returns; their events stay
in the ring, so the daemon records them like any other.
"""

import ctypes
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import NamedTuple

import msgspec

from agent.errors import DecodeError
from agent.events import Access, AccessKind, Event, Exec, ExecFailed, Exit, Fork
from agent.sensor import bpf, wire
from agent.sensor.decode import ArgvPiece, decode
from agent.sensor.hooks import HookState
from agent.sensor.ringbuf import RingReader

MARK = "ir-agent-selftest"
"""argv[0] of every program that a proof starts."""

_NOWHERE = "/nonexistent/ir-agent-selftest"
_TRUE = ("/bin/true", "/usr/bin/true")
_PTRACE_TRACEME, _PTRACE_GETEVENTMSG, _PTRACE_SEIZE = 0, 0x4201, 0x4206
_PTRACE_O_TRACEFORK = 2
_WALL = 0x40000000  # a tracer waits for children that are not its own, too
_AT_FDCWD = -100
_PIDFD_GETFD, _OPENAT2 = 438, 437  # on every architecture
_OPEN, _CREAT = {"x86_64": 2}, {"x86_64": 85}  # not on newer architectures
_NOBODY = 65534
_DEADLINE_S = 2.0
_libc = ctypes.CDLL(None, use_errno=True)
_byte = ctypes.create_string_buffer(b"x", 1)
"""Lies at the same address in this process and in its forked children."""


class _IoVec(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


class Proof(NamedTuple):
    """What a child does, and which kernel targets each event of it proves."""

    act: Callable[[], None]
    proves: Mapping[str, tuple[str, ...]]


def prove(
    states: list[HookState], maps: Mapping[str, int], links: Mapping[str, int]
) -> list[HookState]:
    """Trigger every hook and mark those whose event was seen."""
    ring = RingReader(maps["events"])
    try:
        proven = _seen(ring, {_child(proof.act): proof for proof in _PROOFS})
    finally:
        ring.close()
    if _walk(links):
        proven.add("bpf_iter_task")
    return [
        msgspec.structs.replace(s, proven=s.attached and s.target in proven)
        for s in states
    ]


def _child(act: Callable[[], None]) -> int:
    """Do something in a child process and wait for its end; returns its pid."""
    pid = os.fork()
    if pid == 0:
        try:
            act()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    return pid


def _exec_true() -> None:
    for path in _TRUE:
        with suppress(OSError):
            os.execve(path, [MARK], {})  # noqa: S606


def _exec_nowhere() -> None:
    os.execve(_NOWHERE, [MARK], {})  # noqa: S606


def _execat_nowhere() -> None:
    argv = (ctypes.c_char_p * 2)(MARK.encode(), None)
    _libc.execveat(_AT_FDCWD, _NOWHERE.encode(), argv, (ctypes.c_char_p * 1)(), 0)


def _be_traced() -> None:
    _libc.ptrace(_PTRACE_TRACEME, 0, 0, 0)


def _read_parent() -> None:
    vec = ctypes.byref(_IoVec(ctypes.addressof(_byte), 1))
    _libc.process_vm_readv(os.getppid(), vec, 1, vec, 1, 0)


def _write_parent() -> None:
    vec = ctypes.byref(_IoVec(ctypes.addressof(_byte), 1))
    _libc.process_vm_writev(os.getppid(), vec, 1, vec, 1, 0)


def _copy_descriptor() -> None:
    _libc.syscall(_PIDFD_GETFD, os.pidfd_open(os.getppid()), 0, 0)


def _refused(opens: Callable[[bytes], object]) -> Callable[[], None]:
    """Try to open the parent's memory as nobody, who may not."""

    def act() -> None:
        path = b"/proc/%d/mem" % os.getppid()
        os.setgroups([])
        os.setresgid(_NOBODY, _NOBODY, _NOBODY)
        os.setresuid(_NOBODY, _NOBODY, _NOBODY)
        opens(path)

    return act


def _open(path: bytes) -> None:
    if number := _OPEN.get(os.uname().machine):
        _libc.syscall(number, path, os.O_RDONLY)


def _creat(path: bytes) -> None:
    if number := _CREAT.get(os.uname().machine):
        _libc.syscall(number, path, 0o600)


def _openat2(path: bytes) -> None:
    how = (ctypes.c_uint64 * 3)(os.O_RDONLY, 0, 0)
    _libc.syscall(_OPENAT2, _AT_FDCWD, path, ctypes.byref(how), 24)


def _trace_a_birth() -> None:
    """Seize a child and let it fork: the grandchild is born traced."""
    hold, release = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(release)
        os.read(hold, 1)
        os.fork()
        signal.pause()
    with _ended(pid):
        if _libc.ptrace(_PTRACE_SEIZE, pid, 0, _PTRACE_O_TRACEFORK) == 0:
            os.close(release)
            os.waitpid(pid, 0)  # it stops when it has forked
            born = ctypes.c_ulong()
            _libc.ptrace(_PTRACE_GETEVENTMSG, pid, 0, ctypes.byref(born))
            with _ended(born.value):
                pass


@contextmanager
def _ended(pid: int) -> Iterator[None]:
    """Hold a process by its pidfd and end it afterwards, whatever happened."""
    pidfd = os.pidfd_open(pid)
    try:
        yield
    finally:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        os.waitpid(pid, _WALL)
        os.close(pidfd)


def _both(*names: str) -> tuple[str, ...]:
    return tuple(
        f"syscalls:sys_{way}_{name}" for way in ("enter", "exit") for name in names
    )


_PROOFS = (
    Proof(
        _exec_true,
        {
            "exec": ("sched_process_exec",),
            "fork": ("sched_process_fork",),
            "exit": ("sched_process_exit",),
        },
    ),
    Proof(_exec_nowhere, {"exec_failed": _both("execve")}),
    Proof(_execat_nowhere, {"exec_failed": _both("execveat")}),
    Proof(_be_traced, {"ptrace_traceme": _both("ptrace")}),
    Proof(_read_parent, {"process_vm_read": _both("process_vm_readv")}),
    Proof(_write_parent, {"process_vm_write": _both("process_vm_writev")}),
    Proof(_copy_descriptor, {"pidfd_getfd": _both("pidfd_getfd")}),
    Proof(_refused(_open), {"mem_open": _both("open")}),
    Proof(_refused(_creat), {"mem_open": _both("creat")}),
    Proof(
        _refused(lambda path: os.open(path, os.O_RDONLY)),
        {"mem_open": _both("openat")},
    ),
    Proof(_refused(_openat2), {"mem_open": _both("openat2")}),
    Proof(_trace_a_birth, {"trace_inherited": ("sched_process_fork traced",)}),
)


def _seen(ring: RingReader, proofs: Mapping[int, Proof]) -> set[str]:
    """Name the targets whose synthetic event is in the ring; commits nothing."""
    proven: set[str] = set()
    wanted = {t for p in proofs.values() for some in p.proves.values() for t in some}
    until = time.monotonic() + _DEADLINE_S
    while not wanted <= proven and time.monotonic() < until:
        batch = ring.read()
        for at, size in batch.records:
            with suppress(DecodeError):
                proven.update(_proven(decode(batch.data, at, size), proofs))
        if not batch.records:
            ring.wait(0.05)
    return proven


def _proven(event: Event | ArgvPiece, proofs: Mapping[int, Proof]) -> tuple[str, ...]:
    if isinstance(event, ArgvPiece):
        return ()
    actor, name = event.task.key.tgid, _EVENT_NAMES.get(type(event), "")
    if isinstance(event, Access):
        name = event.kind.name.lower()
        if event.kind is AccessKind.PTRACE_TRACEME:
            actor = event.target.key.tgid
    proof = proofs.get(actor)
    return proof.proves.get(name, ()) if proof else ()


_EVENT_NAMES = {Exec: "exec", ExecFailed: "exec_failed", Fork: "fork", Exit: "exit"}


def _walk(links: Mapping[str, int]) -> bool:
    """Run the task iterator and look for this process in it."""
    for name, link in links.items():
        if name.startswith("bpf_iter__task"):
            tasks = bpf.read_iterator(link)
            return any(
                wire.TASK.unpack_from(tasks, at)[_TGID] == os.getpid()
                for at in range(0, len(tasks), wire.TASK.size)
            )
    return False


_TGID = 3
"""Which value of an unpacked task is its tgid."""
