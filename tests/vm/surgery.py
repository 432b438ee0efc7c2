"""Edit the objects of a guest's kernel from the outside, as a rootkit does inside.

In: what tests in the guest ask for (ask.py), the kernel's BTF, and the guest's memory
through its stub. Out: the edit, made while all CPUs stand still, and an answer in the
share that says how it is undone, or why there was none. A process that ends while it is
hidden or has a forged parent may take its kernel with it: undo first.
"""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from agent.errors import LoadError
from agent.sensor.btf import Btf
from tests.vm.stub import StubError, stopped

SYMBOLS = ("init_task", "init_pid_ns", "tasklist_lock")
"""Whose addresses come with a request: the guest knows where its kernel lies."""
REQUEST, ANSWER = "request-", "answer-"
TRIES, PAUSE_S = 50, 0.01
POINTER = 8
# How the kernel's xarray marks an entry that points to a node (include/linux/xarray.h).
_MARK, _NODE, _NO_NODE_BELOW = 3, 2, 4096

Undo = dict[str, Any]


class SurgeryError(Exception):
    """An edit can't be made."""


class Memory(Protocol):
    """A kernel's memory."""

    def read(self, at: int, size: int) -> bytes:
        """Return the bytes from an address on."""

    def write(self, at: int, content: bytes) -> None:
        """Put bytes at an address."""


class Slot(NamedTuple):
    """Where an entry of the idr lies, and what it points to: a struct pid."""

    at: int
    entry: int


@dataclass(frozen=True)
class Kernel:
    """A kernel that stands still. `hidden` is what was taken out of its idr, by pid."""

    memory: Memory
    types: Btf
    symbols: Mapping[str, int]
    hidden: dict[int, Slot]

    def is_amid_change(self) -> bool:
        """Whether a CPU holds the lock of the list of processes, or waits for it."""
        return self._pointer(self.symbols["tasklist_lock"]) != 0

    def task(self, pid: int) -> int:
        """Find the address of a process's task_struct; SurgeryError."""
        first = self._pointer(self._slot(pid).entry + self._offset("pid", "tasks"))
        task = first - self._offset("task_struct", "pid_links")
        if self._pid(task) != pid:
            raise SurgeryError(f"what lies at {task:#x} is not process {pid}")
        return task

    def set_real_parent(self, pid: int, new_parent_pid: int) -> Undo:
        """Forge who made a process: PPid, and what getppid() says."""
        was = self._set_parent(pid, new_parent_pid, "real_parent")
        return _request("set_real_parent", pid=pid, new_parent_pid=was)

    def set_parent(self, pid: int, new_parent_pid: int) -> Undo:
        """Forge who is told of a process's end."""
        was = self._set_parent(pid, new_parent_pid, "parent")
        return _request("set_parent", pid=pid, new_parent_pid=was)

    def hide_from_list(self, pid: int) -> Undo:
        """Have the list of all processes pass by one, which still points into it."""
        own = self._in_list(self.task(pid))
        if not self._is_linked(own):
            raise SurgeryError(f"process {pid} is not in the list")
        after, before = self._pointer(own), self._pointer(own + POINTER)
        self._point(before, after)
        self._point(after + POINTER, before)
        return _request("show_in_list", pid=pid)

    def show_in_list(self, pid: int) -> Undo:
        """Put a process at the end of the list; where it was may be gone."""
        own = self._in_list(self.task(pid))
        if self._is_linked(own):
            raise SurgeryError(f"process {pid} is in the list")
        head = self._in_list(self.symbols["init_task"])
        last = self._pointer(head + POINTER)
        self._point(own, head)
        self._point(own + POINTER, last)
        self._point(last, own)
        self._point(head + POINTER, own)
        return _request("hide_from_list", pid=pid)

    def hide_from_idr(self, pid: int) -> Undo:
        """Have nobody find a process by its number; the number is not given anew."""
        if pid in self.hidden:
            raise SurgeryError(f"process {pid} is not in the idr")
        slot = self._slot(pid)
        self._point(slot.at, 0)
        self.hidden[pid] = slot
        return _request("show_in_idr", pid=pid)

    def show_in_idr(self, pid: int) -> Undo:
        """Write a process's entry back."""
        if pid not in self.hidden:
            raise SurgeryError(f"process {pid} is in the idr, or never was")
        self._point(*self.hidden.pop(pid))
        return _request("hide_from_idr", pid=pid)

    def _set_parent(self, pid: int, new_parent_pid: int, member: str) -> int:
        at = self.task(pid) + self._offset("task_struct", member)
        was = self._pid(self._pointer(at))
        self._point(at, self.task(new_parent_pid))
        return was

    def _slot(self, pid: int) -> Slot:
        """Find a number's entry as the kernel's find_pid_ns() does."""
        if pid in self.hidden:
            return self.hidden[pid]
        at = self.symbols["init_pid_ns"] + self._offset("pid_namespace", "idr")
        at += self._offset("idr", "idr_rt") + self._offset("xarray", "xa_head")
        left = pid
        while (entry := self._pointer(at)) & _MARK == _NODE and entry > _NO_NODE_BELOW:
            node = entry - _NODE
            shift = self.memory.read(node + self._offset("xa_node", "shift"), 1)[0]
            index, left = left >> shift, left & ((1 << shift) - 1)
            if index >= self._width:
                raise SurgeryError(f"no process {pid}: the idr ends before it")
            at = node + self._offset("xa_node", "slots") + POINTER * index
        if not entry:
            raise SurgeryError(f"no process {pid}: its slot is empty")
        return Slot(at, entry)

    @property
    def _width(self) -> int:
        slots = self.types.struct("xa_node")[1]["slots"]
        return self.types.array_length(slots.type_id)

    def _in_list(self, task: int) -> int:
        return task + self._offset("task_struct", "tasks")

    def _is_linked(self, own: int) -> bool:
        after, before = self._pointer(own), self._pointer(own + POINTER)
        return self._pointer(after + POINTER) == own == self._pointer(before)

    def _pid(self, task: int) -> int:
        at = task + self._offset("task_struct", "pid")
        return int.from_bytes(self.memory.read(at, 4), "little")

    def _offset(self, struct: str, member: str) -> int:
        return self.types.struct(struct)[1][member].offset

    def _pointer(self, at: int) -> int:
        return int.from_bytes(self.memory.read(at, POINTER), "little")

    def _point(self, at: int, to: int) -> None:
        self.memory.write(at, to.to_bytes(POINTER, "little"))


EDITS = {
    edit.__name__: edit
    for edit in (
        Kernel.set_real_parent,
        Kernel.set_parent,
        Kernel.hide_from_list,
        Kernel.show_in_list,
        Kernel.hide_from_idr,
        Kernel.show_in_idr,
    )
}


def _request(edit: str, **args: int) -> Undo:
    return {"edit": edit, "args": args}


class Surgeon:
    """Does what one guest asks for. It is asked to look, and never waits for one."""

    def __init__(self, share: Path, stub: Path, types: Path) -> None:
        """Take a guest's share, its stub's socket, and its kernel's BTF."""
        self._share, self._stub, self._file = share, stub, types
        self._hidden: dict[int, Slot] = {}

    @cached_property
    def _types(self) -> Btf:
        return Btf.of_kernel(self._file)

    def serve(self) -> None:
        """Answer the requests that are there."""
        for request in self._share.glob(f"{REQUEST}*"):
            answer = json.dumps(self._answer(request.read_text()))
            request.unlink()
            leave(self._share, request.name.replace(REQUEST, ANSWER), answer)

    def _answer(self, text: str) -> dict[str, Any]:
        try:
            return {"undo": self._operate(**json.loads(text))}
        except (SurgeryError, StubError, LoadError, OSError) as error:
            return {"error": str(error)}
        except (KeyError, TypeError, ValueError) as error:  # not one that can be made
            return {"error": repr(error)}

    def _operate(
        self, edit: str, args: Mapping[str, int], symbols: Mapping[str, int]
    ) -> Undo:
        for _ in range(TRIES):
            with stopped(self._stub) as memory:
                kernel = Kernel(memory, self._types, symbols, self._hidden)
                if not kernel.is_amid_change():
                    return EDITS[edit](kernel, **args)
            time.sleep(PAUSE_S)
        raise SurgeryError("this kernel is never done changing its list of processes")


def leave(folder: Path, name: str, text: str) -> None:
    """Put a file into a folder at once and whole."""
    unfinished = folder / f".{name}"
    unfinished.write_text(text)
    unfinished.rename(folder / name)
