"""The vocabulary: what the kernel reported, as frozen values without behaviour.

Everything that travels between stages is one of these. Paths, names and argv stay
bytes until a record is made of them. Times are nanoseconds of CLOCK_BOOTTIME, ids are
the kernel's own numbers in the host's namespaces.
"""

from enum import IntEnum, StrEnum
from typing import Literal

import msgspec

from agent.role import Role


class ProcessKey(msgspec.Struct, frozen=True, gc=False):
    """Who a process is, on one boot: its tgid and when it started.

    `start_ns` is task_struct.start_boottime of the group leader. A tgid alone is
    never an identity. The key (0, 0) means that the kernel named nobody.
    """

    tgid: int
    start_ns: int


NOBODY = ProcessKey(0, 0)


class Flag(IntEnum):
    """What is incomplete or unusual about one event (IR_F_* of probes/event.h)."""

    ARGV_FAULT = 0x0001
    ARGV_CUT = 0x0002
    ENV_CUT = 0x0004
    EXE_CUT = 0x0008
    CWD_CUT = 0x0010
    NAME_CUT = 0x0020
    CALLER_MEMORY = 0x0040
    NO_MM = 0x0080
    TARGET_GONE = 0x0100
    NONLEADER = 0x0200
    COMPAT = 0x0400
    CORE_DUMPED = 0x0800
    PATH_IS_TARGET = 0x1000


class AccessKind(IntEnum):
    """The ways into another process (enum ir_access of probes/event.h)."""

    PTRACE_ATTACH = 1
    PTRACE_SEIZE = 2
    PTRACE_TRACEME = 3
    PROCESS_VM_READ = 4
    PROCESS_VM_WRITE = 5
    MEM_OPEN = 6
    PIDFD_GETFD = 7
    TRACE_INHERITED = 8
    OTHER_ACCESS = 9


class PrctlOption(IntEnum):
    """What a process may change about itself by prctl(2): its name, its argv."""

    SET_NAME = 15
    SET_MM = 35


class Denied(IntEnum):
    """Which rung of the guard refused an access (enum ir_denied of probes/event.h)."""

    NOT = 0
    LSM = 1
    FMOD_RET = 2
    SIGNAL = 3


class Executable(msgspec.Struct, frozen=True, gc=False, eq=False):
    """The file a process runs; all zeros without an address space.

    `dev` is major << 20 | minor, `mode` is st_mode. Equal ones are one object.
    """

    ino: int
    dev: int
    nlink: int
    uid: int
    mode: int
    memfd: bool
    deleted: bool


class Context(msgspec.Struct, frozen=True, gc=False, eq=False):
    """Where and as whom a process runs; equal ones are one object.

    Capability sets are bit masks, namespaces are inode numbers (0: none any more),
    `ns_level` is the depth of the pid namespace below the host's.
    """

    cgroup_id: int
    cap_inheritable: int
    cap_permitted: int
    cap_effective: int
    cap_bounding: int
    cap_ambient: int
    loginuid: int
    sessionid: int
    uid: int
    gid: int
    suid: int
    sgid: int
    euid: int
    egid: int
    fsuid: int
    fsgid: int
    ns_uts: int
    ns_ipc: int
    ns_mnt: int
    ns_pid: int
    ns_net: int
    ns_cgroup: int
    ns_time: int
    ns_user: int
    ns_level: int


class Image(msgspec.Struct, frozen=True, gc=False, eq=False):
    """What a process is made of, apart from its numbers; equal ones are one object."""

    comm: bytes
    executable: Executable
    context: Context


class Task(msgspec.Struct, frozen=True, gc=False):
    """One process as the kernel held it at the moment of an event.

    `real_parent` is whose child it is, `parent` is who is told of its state changes:
    the tracer while it is traced. `vpid` is the pid in its own pid namespace, `ptrace`
    is 0 when it is not traced. `leader` is the pid of its thread group's leader, which
    is the tgid unless somebody edited it; `kernel` says that it is a kernel thread.
    """

    key: ProcessKey
    real_parent: ProcessKey
    parent: ProcessKey
    tid: int
    pgid: int
    sid: int
    vpid: int
    ptrace: int
    leader: int
    kernel: bool
    image: Image


class Seen(msgspec.Struct, frozen=True, gc=False):
    """One process as a view saw it that knows no more: when, and by which thread."""

    key: ProcessKey
    bt_ns: int
    tid: int
    comm: bytes


class Listing(msgspec.Struct, frozen=True, gc=False, eq=False):
    """All processes by the kernel's own list, begun at `taken_ns` (CLOCK_BOOTTIME).

    `starts` has each one's start time (ns), `parents` its real_parent's tgid, both by
    tgid; `changed` are those that are new, or in any fact not as in the one before.
    """

    taken_ns: int
    starts: dict[int, int]
    parents: dict[int, int]
    changed: list[Task]


class Reported(msgspec.Struct, frozen=True, gc=False):
    """What every event has: where it stood in the stream, and whom it is about.

    `seq` counts per CPU from 1 since the probes were loaded, and `parts` is how many
    consecutive numbers the event used: enough to prove that none is missing. `bt_ns`
    is CLOCK_BOOTTIME, `flags` are Flag bits, `backlog` says that it happened while no
    daemon was running.
    """

    cpu: int
    seq: int
    bt_ns: int
    flags: int
    parts: int
    backlog: bool
    task: Task
    cwd: bytes


class Exec(Reported, frozen=True, gc=False):
    """A new program runs in a process.

    `argv` is the raw memory arg_start..arg_end: NUL after every argument. It is
    shorter than `argv_bytes` when something could not be read or was lost.
    """

    old_tid: int
    argc: int
    argv_bytes: int
    argv: bytes
    executable: bytes
    invoked: bytes
    interpreter: bytes
    environment: tuple[bytes, ...]


class ExecFailed(Reported, frozen=True, gc=False):
    """execve or execveat returned an error; path and argv are the caller's word."""

    errno: int
    argc: int
    path: bytes
    argv: bytes


class Fork(Reported, frozen=True, gc=False):
    """A process was born: `task` is the child, `creator` called fork or clone.

    `clone_flags` are CLONE_* bits as the child shows them.
    """

    creator: ProcessKey
    creator_tid: int
    clone_flags: int


class Exit(Reported, frozen=True, gc=False):
    """The last thread of a process ended; `status` is as wait(2) gives it."""

    status: int


class Access(Reported, frozen=True, gc=False):
    """One process reached into another, or tried to.

    `count` accesses of this kind, pair and result happened between `first_ns` and
    `last_ns`; the first is an event at once, repeats fold into one a second.
    `result` is what the system call returned, a negative errno when refused. `denied`
    says that the guard refused it, and how.
    """

    target: Task
    kind: AccessKind
    result: int
    count: int
    first_ns: int
    last_ns: int
    requested_pid: int
    detail: int
    denied: Denied
    path: bytes


class Prctl(Reported, frozen=True, gc=False):
    """A process changed its own name, or where its arguments lie.

    `argument` is a PR_SET_MM_* or 0. `count` calls of this option were made so far: the
    first is an event at once, repeats within a second of it only count.
    """

    option: PrctlOption
    argument: int
    result: int
    count: int


class Loss(msgspec.Struct, frozen=True, gc=False):
    """Events known to be missing, all of them between `start_ns` and `end_ns`.

    `kinds` counts them by kind name; kind `unknown` where only the sequence tells.
    """

    cause: str
    kinds: dict[str, int]
    start_ns: int
    end_ns: int
    cpus: tuple[int, ...]

    @property
    def count(self) -> int:
        """How many events are missing."""
        return sum(self.kinds.values())


Event = Exec | ExecFailed | Fork | Exit | Access | Prctl


class Process(msgspec.Struct, gc=False):
    """What is known of one process.

    `known` is `seen` when an event told of it, `observed` when a snapshot did.
    `creator` called fork (NOBODY when the birth was not seen), `real_parent` is the
    parent at birth, `parent` whose child it was when it was last heard of, and
    `orphaned_by` the parent before that one. `argv` is the beginning of `argv_bytes`.
    `role` is what it is in a training job and `job` that job's launcher, NOBODY without
    one. Times are CLOCK_BOOTTIME ns, 0 for not (yet).
    """

    key: ProcessKey
    known: Literal["seen", "observed"]
    real_parent: ProcessKey
    parent: ProcessKey
    creator: ProcessKey = NOBODY
    orphaned_by: ProcessKey = NOBODY
    comm: bytes = b""
    executable: bytes = b""
    argv: bytes = b""
    argv_bytes: int = 0
    uid: int = 0
    cgroup_id: int = 0
    exited_ns: int = 0
    status: int = 0
    children: int = 0
    forebear: bool = False
    role: Role = Role.OTHER
    job: ProcessKey = NOBODY


class Verdict(StrEnum):
    """What the sources of a process's parentage say together: a closed set."""

    CONSISTENT = "consistent"
    TRACED = "traced"
    REPARENTED = "reparented"
    CLONE_PARENT = "clone_parent"
    FORGED = "forged"
    HIDDEN_FROM_PROC = "hidden_from_proc"
    ONLY_IN_PROC = "only_in_proc"
    STALE_PID = "stale_pid"
    UNKNOWN_BEFORE_START = "unknown_before_start"


class Parentage(msgspec.Struct, frozen=True, gc=False, eq=False):
    """A verdict on whose child a process is, with its evidence.

    `creator` called fork, `birth_parent` was the parent then, `parent` is it now:
    `real_parent` of the kernel. `tracer` holds it, `exited` is the parent whose end (at
    `exited_ns`, 0 when that was not seen) made `parent` its reaper; NOBODY where there
    is none. `why` says what is wrong with a forged one.
    """

    verdict: Verdict
    creator: ProcessKey = NOBODY
    birth_parent: ProcessKey = NOBODY
    parent: ProcessKey = NOBODY
    tracer: ProcessKey = NOBODY
    exited: ProcessKey = NOBODY
    exited_ns: int = 0
    why: str = ""


class Discrepancy(msgspec.Struct, frozen=True, gc=False, eq=False):
    """Sources disagree about a process, and did so again when asked a second time.

    `kind` is a Verdict, or what the process pretends to be. `views` says of each view
    whether it has the process; times are CLOCK_BOOTTIME ns of the two looks.
    """

    key: ProcessKey
    kind: str
    why: str
    first_ns: int
    confirmed_ns: int
    views: dict[str, bool] = {}
    parentage: Parentage | None = None
    comm: bytes = b""


class ChainEnd(StrEnum):
    """Why a chain of ancestors has no further link."""

    ROOT = "root"
    UNKNOWN_PARENT = "unknown parent"
    DEPTH = "depth"
    CYCLE = "cycle"


class Lineage(msgspec.Struct, frozen=True, gc=False, eq=False):
    """Ancestors nearest first, and why the chain ends after the last of them."""

    ancestors: tuple[Process, ...]
    end: ChainEnd
