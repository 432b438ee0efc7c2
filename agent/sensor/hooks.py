"""What the agent senses, and by which hooks of the kernel: a table, best rung first.

In: nothing. Out: SENSES, which the loader climbs and `ir-agent status` shows. A rung is
taken because the kernel accepted it and a synthetic event proved it, never because of a
version number.
"""

import re
from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

import msgspec

from agent.sensor.sources import (
    ANY_CALLS,
    BIRTHS_ONLY_TYPED,
    BIRTHS_PLAIN,
    BIRTHS_TYPED,
    BY_FUNCTION,
    BY_KPROBE,
    BY_TRACEPOINT,
    WALKS_PLAIN,
    Variant,
)


class How(StrEnum):
    """How a program is attached."""

    TYPED_TRACEPOINT = "typed raw tracepoint"
    RAW_TRACEPOINT = "raw tracepoint"
    TRACEPOINT = "tracepoint"
    FENTRY = "fentry"
    FEXIT = "fexit"
    KPROBE = "kprobe"
    KRETPROBE = "kretprobe"
    LSM = "LSM"
    FMOD_RET = "fmod_ret"
    ITERATOR = "iterator"
    TEST_RUN = "test run"
    ON_REQUEST = "on request"


class Hook(NamedTuple):
    """One program at one place in the kernel; `target` is the kernel's name for it.

    `proof` names the synthetic event that shows it to fire (agent.sensor.selftest). An
    `optional` hook is for a call that not every kernel has: a rung is whole without it.
    `variants` are the texts that have the program, any of which will do.
    """

    program: str
    how: How
    target: str
    proof: str
    variants: tuple[Variant, ...]
    optional: bool = False

    @property
    def tracepoint(self) -> str:
        """The kernel's name without the word that tells two programs at it apart."""
        return self.target.partition(" ")[0]

    @property
    def pin(self) -> str:
        """Name in the pin folder; bpffs allows no dots."""
        return re.sub(r"[^\w-]", "_", f"{self.program}__{self.how}__{self.target}")


class Rung(NamedTuple):
    """Hooks that give a sense together; `unseen` is what this rung does not give.

    `denied` is the wire's number for a rung of the guard (enum ir_denied).
    """

    name: str
    hooks: tuple[Hook, ...]
    unseen: str = ""
    denied: int = 0


class Sense(NamedTuple):
    """One thing to be known or done, and the ways to it, best first."""

    name: str
    rungs: tuple[Rung, ...]


class HookState(msgspec.Struct, frozen=True):
    """What became of one hook; `reason` says why it was refused, in one line.

    `unseen` is what its rung does not see even when it works. `proven_ns` is when it
    was seen to fire (CLOCK_BOOTTIME, 0: it was not), `instructions` is how many the
    verifier followed to accept the program.
    """

    sense: str
    rung: str
    program: str
    target: str
    attached: bool
    pin: str
    proven: bool = False
    reason: str = ""
    unseen: str = ""
    optional: bool = False
    proven_ns: int = 0
    instructions: int = 0


def _tracepoint(
    program: str, target: str, proof: str, *variants: tuple[Variant, ...]
) -> tuple[Rung, ...]:
    """Return the rungs of a scheduler tracepoint; typed reads cost a tenth."""
    names = ("tp_btf", How.TYPED_TRACEPOINT), ("raw_tracepoint", How.RAW_TRACEPOINT)
    return tuple(
        Rung(name, (Hook(program, how, target, proof, texts),))
        for (name, how), texts in zip(names, variants, strict=True)
    )


def _life(program: str, target: str, proof: str) -> tuple[Rung, ...]:
    """Return the rungs of exec, fork and exit.

    The last one is for kernels that are locked down for confidentiality.
    """
    by_type = f"{target} by type"
    hook = Hook(program, How.TYPED_TRACEPOINT, by_type, proof, (BIRTHS_ONLY_TYPED,))
    return (
        *_tracepoint(program, target, proof, (BIRTHS_TYPED,), (BIRTHS_PLAIN,)),
        Rung(
            "type_only",
            (hook,),
            "paths and names, numbers in nested pid namespaces, memfd",
        ),
    )


class _Call(NamedTuple):
    """A system call: the programs on it, and its functions for 32-bit callers.

    `compat` has every name that one of the kernels gives that function, without the
    machine's prefix.
    """

    name: str
    program: str
    result: str
    compat: tuple[str, ...]


_EXECVE = _Call("execve", "execve", "exec", ("compat_sys_execve",))
_EXECVEAT = _Call("execveat", "execveat", "exec", ("compat_sys_execveat",))
_PTRACE = _Call("ptrace", "ptrace", "access", ("compat_sys_ptrace",))
_PIDFD_GETFD = _Call("pidfd_getfd", "getfd", "access", ("sys_pidfd_getfd",))
_PRCTL = _Call("prctl", "prctl", "prctl", ("sys_prctl",))
_VM_READ, _VM_WRITE = (
    _Call(
        f"process_vm_{name}",
        program,
        "access",
        (f"sys_process_vm_{name}", f"compat_sys_process_vm_{name}"),
    )
    for name, program in (("readv", "vm_read"), ("writev", "vm_write"))
)

MACHINE_PREFIXES = {"x86_64": ("__x64_", "__ia32_"), "aarch64": ("__arm64_",) * 2}
"""What the functions of system calls begin with: of 64-bit callers, of 32-bit ones."""

GUARD = "guard"
"""The sense that is no sense: keeping others out of guarded processes."""

_COMPAT = "compat"
_INT_80 = "system calls made the 32-bit way (on x86-64 int $0x80), by any program"
_X32 = "system calls of the x32 ABI, where a kernel has it"


def _functions(
    name: str, ways: tuple[How, How], variant: Variant, calls: Iterable[_Call]
) -> Rung:
    """Return the rung at the kernel's functions of some calls.

    A target of 'native:' or 'compat:' stands for the machine's own name (loader).
    """
    before, after = ways
    hooks: list[Hook] = []
    for call in calls:
        places = [(f"native:sys_{call.name}", call.name, "", False)]
        places += [
            (f"{_COMPAT}:{one}", f"{call.name} {_COMPAT}", f"_{_COMPAT}", True)
            for one in call.compat
        ]
        for target, proof, suffix, optional in places:
            # results first: a call remembered must find who takes it up
            end = Hook(
                f"{call.result}_result", after, target, proof, (variant,), optional
            )
            start = end._replace(program=f"{call.program}_enter{suffix}", how=before)
            hooks += [end, start]
    return Rung(name, tuple(hooks), _X32)


def _tracepoints(calls: Iterable[_Call]) -> Rung:
    hooks: list[Hook] = []
    for call in calls:
        end = Hook(
            f"{call.result}_result",
            How.TRACEPOINT,
            f"syscalls:sys_exit_{call.name}",
            call.name,
            (BY_TRACEPOINT,),
        )
        start = end._replace(
            program=f"{call.program}_enter", target=f"syscalls:sys_enter_{call.name}"
        )
        hooks += [end, start]
    return Rung("tracepoint", tuple(hooks), _INT_80)


def _calls(*calls: _Call) -> tuple[Rung, ...]:
    """Return all rungs of some system calls."""
    return (
        _functions("fentry", (How.FENTRY, How.FEXIT), BY_FUNCTION, calls),
        _functions("kprobe", (How.KPROBE, How.KRETPROBE), BY_KPROBE, calls),
        _tracepoints(calls),
    )


def _open(call: str, *, optional: bool) -> tuple[Hook, Hook]:
    enter = "openat_path_enter" if call.startswith("openat") else "open_path_enter"
    end = Hook(
        "open_result",
        How.TRACEPOINT,
        f"syscalls:sys_exit_{call}",
        call,
        (BY_TRACEPOINT,),
        optional,
    )
    start = end._replace(program=enter, target=f"syscalls:sys_enter_{call}")
    return end, start


def _opened(program: str, how: How, target: str, proof: str) -> Hook:
    return Hook(program, how, target, proof, (BY_FUNCTION,))


def _guard(
    name: str, how: How, prefix: str, denied: int, variants: tuple[Variant, ...]
) -> Rung:
    return Rung(
        name,
        (
            Hook(
                "guard_access",
                how,
                f"{prefix}ptrace_access_check",
                "guarded access",
                variants,
            ),
            Hook(
                "guard_traceme",
                how,
                f"{prefix}ptrace_traceme",
                "guarded traceme",
                variants,
            ),
        ),
        denied=denied,
    )


def _requested(program: str, how: How, target: str) -> Hook:
    """Return a program that is only pinned, and used on request."""
    return Hook(program, how, target, program, (WALKS_PLAIN,))


_CHAIN = (
    _requested("walk_chain", How.TEST_RUN, "task chain"),
    _requested("tell_task", How.TEST_RUN, "one task"),
)
_SCHEDULER = (_requested("on_switch", How.ON_REQUEST, "sched_switch"),)

SENSES = (
    Sense("exec", _life("on_exec", "sched_process_exec", "exec")),
    Sense("fork", _life("on_fork", "sched_process_fork", "fork")),
    Sense("exit", _life("on_exit", "sched_process_exit", "exit")),
    Sense("failed exec", _calls(_EXECVE, _EXECVEAT)),
    Sense("ptrace", _calls(_PTRACE)),
    Sense("process_vm", _calls(_VM_READ, _VM_WRITE)),
    Sense("pidfd_getfd", _calls(_PIDFD_GETFD)),
    Sense("prctl", _calls(_PRCTL)),
    Sense(
        "memory file",
        (
            Rung(
                "fentry",
                (
                    _opened("mem_open_result", How.FEXIT, "mem_open", "mem_open"),
                    _opened("mem_open_enter", How.FENTRY, "mem_open", "mem_open"),
                    _opened(
                        "file_open_result",
                        How.FEXIT,
                        "do_filp_open|do_file_open",
                        "refused open",
                    ),
                ),
                "refused opens by links or odd paths",
            ),
            # no rung of kprobes: at every open they cost more than the tracepoints
            Rung(
                "tracepoint",
                (
                    *_open("openat", optional=False),
                    *_open("openat2", optional=False),
                    *_open("open", optional=True),
                    *_open("creat", optional=True),
                ),
                f"{_INT_80}; opens by io_uring; refused ones by links or odd paths",
            ),
        ),
    ),
    Sense(
        "inherited tracing",
        _tracepoint(
            "on_fork_traced",
            "sched_process_fork traced",
            "trace_inherited",
            ANY_CALLS,
            ANY_CALLS,
        ),
    ),
    Sense(
        "task list",
        (
            Rung(
                "iterator",
                (
                    Hook(
                        "bpf_iter__task",
                        How.ITERATOR,
                        "bpf_iter_task",
                        "task list",
                        (BIRTHS_ONLY_TYPED, BIRTHS_TYPED),
                    ),
                ),
            ),
            Rung(
                "test_run",
                (
                    Hook(
                        "walk_tasks",
                        How.TEST_RUN,
                        "task list",
                        "task list",
                        (WALKS_PLAIN,),
                    ),
                ),
                "a consistent moment: it is read in pieces",
            ),
        ),
    ),
    Sense("task chain", (Rung("test_run", _CHAIN),)),
    Sense("scheduler", (Rung("on_request", _SCHEDULER),)),
    Sense(
        GUARD,
        (
            _guard("lsm", How.LSM, "bpf_lsm_", 1, (BY_FUNCTION,)),
            _guard("fmod_ret", How.FMOD_RET, "security_", 2, (BY_FUNCTION,)),
            Rung(
                "signal",
                (
                    Hook(
                        "spare_target",
                        How.RAW_TRACEPOINT,
                        "signal_deliver",
                        "guarded by signal",
                        ANY_CALLS,
                    ),
                ),
                "refusal beforehand: the caller is killed on its way out, what it wrote"
                " stays written; ways in that no sense knows; a guarded process that"
                " asks to be traced",
                denied=3,
            ),
        ),
    ),
)

RUNGS = tuple(dict.fromkeys(rung.name for sense in SENSES for rung in sense.rungs))
"""The names of all rungs: what a configuration may forbid."""
