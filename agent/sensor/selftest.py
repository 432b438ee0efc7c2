"""Prove each hook by a synthetic event: a program that attached may never fire.

In: the names of proofs, and the maps and links of the hooks as attached. Out: which of
the proofs were seen. Every proof runs in a child made for it, and all of them have
ended when this returns; their events stay in the ring, so the daemon records them like
any other.
"""

import os
import signal
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from agent.errors import DecodeError
from agent.events import (
    Access,
    AccessKind,
    Event,
    Exec,
    ExecFailed,
    Exit,
    Fork,
    Prctl,
    Seen,
    Task,
)
from agent.sensor import guard, synthetic, tasks
from agent.sensor.attach import RING, Attached
from agent.sensor.decode import ArgvPiece, decode
from agent.sensor.ringbuf import RingReader
from agent.sensor.synthetic import child, ended, int_80, refused, started

_DEADLINE_S = 2.0
_EPERM = 1


class Proof(NamedTuple):
    """What a child does, and the event that shows it was seen."""

    act: Callable[[], None]
    event: str


_PROOFS = {
    "exec": Proof(synthetic.exec_true, "exec"),
    "fork": Proof(synthetic.exec_true, "fork"),
    "exit": Proof(synthetic.exec_true, "exit"),
    "execve": Proof(synthetic.exec_nowhere, "exec_failed"),
    "execveat": Proof(synthetic.execat_nowhere, "exec_failed"),
    "ptrace": Proof(synthetic.be_traced, "ptrace_traceme"),
    "process_vm_readv": Proof(synthetic.read_parent, "process_vm_read"),
    "process_vm_writev": Proof(synthetic.write_parent, "process_vm_write"),
    "pidfd_getfd": Proof(synthetic.copy_descriptor, "pidfd_getfd"),
    "prctl": Proof(synthetic.rename, "prctl"),
    "prctl compat": Proof(int_80("prctl"), "prctl"),
    "execve compat": Proof(int_80("execve"), "exec_failed"),
    "execveat compat": Proof(int_80("execveat"), "exec_failed"),
    "ptrace compat": Proof(int_80("ptrace"), "ptrace_traceme"),
    "process_vm_readv compat": Proof(int_80("process_vm_readv"), "process_vm_read"),
    "process_vm_writev compat": Proof(int_80("process_vm_writev"), "process_vm_write"),
    "pidfd_getfd compat": Proof(int_80("pidfd_getfd"), "pidfd_getfd"),
    "mem_open": Proof(synthetic.open_own_memory, "mem_open"),
    "refused open": Proof(refused(synthetic.openat_it), "mem_open"),
    "open": Proof(refused(synthetic.open_it), "mem_open"),
    "creat": Proof(refused(synthetic.creat_it), "mem_open"),
    "openat": Proof(refused(synthetic.openat_it), "mem_open"),
    "openat2": Proof(refused(synthetic.openat2_it), "mem_open"),
    "trace_inherited": Proof(synthetic.trace_a_birth, "trace_inherited"),
}


class Prover:
    """Proves hooks of one loading; `held` says which are attached, by their pin."""

    def __init__(
        self, maps: Mapping[str, int], held: Callable[[], Mapping[str, Attached]]
    ) -> None:
        """Read from these maps as they come to be."""
        self._maps, self._held = maps, held
        self._apart = {
            "task list": self._walks,
            "walk_chain": self._sees_itself_in_the_chain,
            "tell_task": self._tells_itself,
            "on_switch": self._sees_itself_run,
            "guarded access": self._refuses_access,
            "guarded traceme": self._refuses_traceme,
            "guarded by signal": self._kills_and_spares,
        }

    def prove(self, names: Collection[str]) -> set[str]:
        """Do what these proofs need, and return those that were seen."""
        proven = {name for name in self._apart if name in names and self._apart[name]()}
        told = {name: _PROOFS[name] for name in names if name in _PROOFS}
        if not told:
            return proven
        ring = RingReader(self._maps[RING])
        try:
            acts = {proof.act: child(proof.act) for proof in told.values()}
            wanted = {(acts[p.act], p.event): name for name, p in told.items()}
            return proven | _seen(ring, wanted)
        finally:
            ring.close()

    def _walks(self) -> bool:
        return any(task.key.tgid == os.getpid() for task in self._tasks())

    def _sees_itself_in_the_chain(self) -> bool:
        return os.getpid() in tasks.chain(*self._requested("walk_chain"))

    def _tells_itself(self) -> bool:
        found = tasks.one(*self._requested("tell_task"), os.getpid())
        return found is not None and found.key.tgid == os.getpid()

    def _sees_itself_run(self) -> bool:
        program = self._requested("on_switch")
        with tasks.scheduled(*program) as seen:
            return _comes_true(lambda: os.getpid() in _pids(seen()))

    def _requested(self, name: str) -> tuple[int, int]:
        """Return a program that is only used when asked for, and the ring it fills."""
        pins = self._held()
        held = next(pins[pin].fd for pin in pins if pin.startswith(name))
        return held, self._maps["walked"]

    def _tasks(self) -> list[Task]:
        walked = self._maps.get("walked", -1)
        return [
            task
            for pin, held in self._held().items()
            for task in tasks.listed(pin, held.fd, walked)
        ]

    @contextmanager
    def _guarded(self, pid: int) -> Iterator[None]:
        """Guard a child, if the kernel's list of tasks tells its key."""
        keys = [task.key for task in self._tasks() if task.key.tgid == pid]
        for key in keys:
            guard.protect(self._maps["guard_trials"], key)
        try:
            yield
        finally:
            for key in keys:
                guard.release(self._maps["guard_trials"], key)

    def _refuses_access(self) -> bool:
        """Whether one is kept out of a guarded process, and not of another one."""
        target = started(signal.pause)
        with ended(target):
            if _status(synthetic.seize(target)) != 0:
                return False
            with self._guarded(target):
                return _status(synthetic.seize(target)) == _EPERM

    def _refuses_traceme(self) -> bool:
        hold, release = os.pipe()
        target = started(synthetic.ask_when_told(hold))
        with self._guarded(target):
            os.write(release, b"x")
            _, status = os.waitpid(target, 0)
        os.close(hold)
        os.close(release)
        return os.waitstatus_to_exitcode(status) == _EPERM

    def _kills_and_spares(self) -> bool:
        """Whether the caller dies of its attach, and the target is not left stopped."""
        target = started(signal.pause)
        with ended(target), self._guarded(target):
            if _status(synthetic.attach(target)) != -signal.SIGKILL:
                return False
            return _comes_true(lambda: not _is_stopped(target))


def _pids(seen: Iterable[Seen]) -> set[int]:
    return {one.key.tgid for one in seen}


def _status(act: Callable[[], None]) -> int:
    """Do something in a child; its exit status, negative for a signal."""
    _, status = os.waitpid(started(act), 0)
    return os.waitstatus_to_exitcode(status)


def _is_stopped(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat").read_text()
    return stat.rpartition(") ")[2][0] in "tT"


def _comes_true(holds: Callable[[], bool]) -> bool:
    until = time.monotonic() + _DEADLINE_S
    while not holds():
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


def _seen(ring: RingReader, wanted: Mapping[tuple[int, str], str]) -> set[str]:
    """Name the proofs whose event is in the ring, by actor and kind."""
    seen: set[tuple[int, str]] = set()
    until = time.monotonic() + _DEADLINE_S
    while not wanted.keys() <= seen and time.monotonic() < until:
        batch = ring.read()
        for at, size in batch.records:
            with suppress(DecodeError):
                seen.add(_told(decode(batch.data, at, size)))
        if not batch.records:
            ring.wait(0.05)
    return {name for who, name in wanted.items() if who in seen}


def _told(event: Event | ArgvPiece) -> tuple[int, str]:
    """Return who did what."""
    if isinstance(event, ArgvPiece):
        return 0, ""
    actor, name = event.task.key.tgid, _EVENT_NAMES.get(type(event), "")
    if isinstance(event, Access):
        name = event.kind.name.lower()
        if event.kind is AccessKind.PTRACE_TRACEME:
            actor = event.target.key.tgid
    return actor, name


_EVENT_NAMES = {
    Exec: "exec",
    ExecFailed: "exec_failed",
    Fork: "fork",
    Exit: "exit",
    Prctl: "prctl",
}
