"""What the agent senses, and by which hooks of the kernel: a table, best rung first.

In: nothing. Out: SENSES, which the loader works through and `ir-agent status` shows.
A rung is taken because the kernel accepted and proved it, never because of a version
number.
"""

from enum import StrEnum
from typing import NamedTuple

import msgspec


class How(StrEnum):
    """How a program is attached."""

    TYPED_TRACEPOINT = "typed raw tracepoint"
    RAW_TRACEPOINT = "raw tracepoint"
    TRACEPOINT = "tracepoint"
    ITERATOR = "iterator"


def pin_name(program: str, target: str) -> str:
    """Name the link of a program at a target; bpffs allows no dots."""
    return f"{program}__{target.partition(' ')[0]}".replace(":", "_")


class Hook(NamedTuple):
    """One program at one place in the kernel; `target` is the kernel's name for it."""

    program: str
    how: How
    target: str

    @property
    def tracepoint(self) -> str:
        """The kernel's name without the word that tells two programs at it apart."""
        return self.target.partition(" ")[0]

    @property
    def pin(self) -> str:
        """Name of the link in the pin folder."""
        return pin_name(self.program, self.target)


class Rung(NamedTuple):
    """Hooks that give a sense together; `unseen` is what this rung does not see."""

    name: str
    hooks: tuple[Hook, ...]
    unseen: str = ""


class Sense(NamedTuple):
    """One thing to be known, and the ways to know it, best first."""

    name: str
    rungs: tuple[Rung, ...]


class HookState(msgspec.Struct, frozen=True):
    """What became of one hook; `reason` says why it was refused, in one line.

    `unseen` is what its rung does not see even when it works.
    """

    sense: str
    rung: str
    program: str
    target: str
    attached: bool
    proven: bool = False
    reason: str = ""
    unseen: str = ""


def _tracepoint(program: str, target: str) -> tuple[Rung, ...]:
    """Return the rungs of a scheduler tracepoint; typed reads cost a tenth."""
    return tuple(
        Rung(how, (Hook(program, how, target),))
        for how in (How.TYPED_TRACEPOINT, How.RAW_TRACEPOINT)
    )


def _call(program: str, target: str) -> Hook:
    return Hook(program, How.TRACEPOINT, f"syscalls:{target}")


_NO_COMPAT = "system calls made the 32-bit way (int $0x80), by any program"

SENSES = (
    Sense("exec", _tracepoint("on_exec", "sched_process_exec")),
    Sense("fork", _tracepoint("on_fork", "sched_process_fork")),
    Sense("exit", _tracepoint("on_exit", "sched_process_exit")),
    Sense(
        "failed exec",
        (
            Rung(
                "system call tracepoints",
                # results first: a call remembered must find who takes it up
                (
                    _call("exec_result", "sys_exit_execve"),
                    _call("exec_result", "sys_exit_execveat"),
                    _call("execve_enter", "sys_enter_execve"),
                    _call("execveat_enter", "sys_enter_execveat"),
                ),
                _NO_COMPAT,
            ),
        ),
    ),
    Sense(
        "ptrace",
        (
            Rung(
                "system call tracepoints",
                (
                    _call("access_result", "sys_exit_ptrace"),
                    _call("ptrace_enter", "sys_enter_ptrace"),
                ),
                _NO_COMPAT,
            ),
        ),
    ),
    Sense(
        "process_vm",
        (
            Rung(
                "system call tracepoints",
                (
                    _call("access_result", "sys_exit_process_vm_readv"),
                    _call("access_result", "sys_exit_process_vm_writev"),
                    _call("vm_read_enter", "sys_enter_process_vm_readv"),
                    _call("vm_write_enter", "sys_enter_process_vm_writev"),
                ),
                _NO_COMPAT,
            ),
        ),
    ),
    Sense(
        "pidfd_getfd",
        (
            Rung(
                "system call tracepoints",
                (
                    _call("access_result", "sys_exit_pidfd_getfd"),
                    _call("pidfd_getfd_enter", "sys_enter_pidfd_getfd"),
                ),
                _NO_COMPAT,
            ),
        ),
    ),
    Sense(
        "memory file",
        (
            Rung(
                "system call tracepoints",
                (
                    _call("open_result", "sys_exit_openat"),
                    _call("open_result", "sys_exit_openat2"),
                    _call("open_result", "sys_exit_open"),
                    _call("open_result", "sys_exit_creat"),
                    _call("openat_path_enter", "sys_enter_openat"),
                    _call("openat_path_enter", "sys_enter_openat2"),
                    _call("open_path_enter", "sys_enter_open"),
                    _call("open_path_enter", "sys_enter_creat"),
                ),
                f"{_NO_COMPAT}; opens by io_uring; refused ones by links or odd paths",
            ),
        ),
    ),
    Sense(
        "inherited tracing",
        _tracepoint("on_fork_traced", "sched_process_fork traced"),
    ),
    Sense(
        "task list",
        (
            Rung(
                "task iterator",
                (Hook("bpf_iter__task", How.ITERATOR, "bpf_iter_task"),),
            ),
        ),
    ),
)
