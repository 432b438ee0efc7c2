"""Events as the tests need them, and as the kernel would send them.

In: what matters to a test. Out: events with ordinary values for the rest, records
encoded by event.h, and batches as the ring holds them. Nothing here is shared with the
decoder, so an error of one is not an error of both.
"""

import struct
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from agent.events import (
    NOBODY,
    Access,
    AccessKind,
    ChainEnd,
    Context,
    Denied,
    Event,
    Exec,
    ExecFailed,
    Executable,
    Exit,
    Flag,
    Fork,
    Image,
    Lineage,
    Prctl,
    PrctlOption,
    Process,
    ProcessKey,
    Task,
)
from agent.sensor.ringbuf import Batch
from agent.sensor.stream import CpuState, Position
from agent.sensor.tap import Polled
from tests.wire_header import constants, layout, members

SECOND = 1_000_000_000
STARTED = 100 * SECOND
"""When the ordinary process of these tests was born."""
NOW = 200 * SECOND
"""When the ordinary event of these tests happened."""
HOST_USER_NS = 4026531837
UNSET = 0xFFFFFFFF
HEADER = struct.Struct("<II")

# One object each for equal values: whoever compares by identity sees the same.
CONTEXT = Context(
    cgroup_id=77,
    cap_inheritable=0,
    cap_permitted=0x1FFFFFFFFFF,
    cap_effective=0x1FFFFFFFFFF,
    cap_bounding=0x1FFFFFFFFFF,
    cap_ambient=0,
    loginuid=UNSET,
    sessionid=UNSET,
    uid=0,
    gid=0,
    suid=0,
    sgid=0,
    euid=0,
    egid=0,
    fsuid=0,
    fsgid=0,
    ns_uts=4026531838,
    ns_ipc=4026531839,
    ns_mnt=4026531841,
    ns_pid=4026531836,
    ns_net=4026531840,
    ns_cgroup=4026531835,
    ns_time=4026531834,
    ns_user=HOST_USER_NS,
    ns_level=0,
)
EXECUTABLE = Executable(
    ino=1234,
    dev=8 << 20 | 1,
    nlink=1,
    uid=0,
    mode=0o100755,
    memfd=False,
    deleted=False,
)
IMAGE = Image(b"bash", EXECUTABLE, CONTEXT)


def plain(value: Any) -> Any:
    """A value as built-in types, so that events compare by what they say."""
    return type(value).__name__, msgspec.to_builtins(value, builtin_types=(bytes,))


def an_image(comm: bytes = b"bash", **changes: Any) -> Image:
    """An image; `changes` are of its executable, or of its context (`uid` is)."""
    own = set(Executable.__struct_fields__) - {"uid"}
    file = {name: changes.pop(name) for name in own & set(changes)}
    return Image(
        comm,
        msgspec.structs.replace(EXECUTABLE, **file),
        msgspec.structs.replace(CONTEXT, **changes),
    )


def a_key(tgid: int, start_ns: int = STARTED) -> ProcessKey:
    return ProcessKey(tgid, start_ns)


INIT = a_key(1, 5)


def a_task(tgid: int = 1000, **changes: Any) -> Task:
    """An ordinary root process, a child of pid 1."""
    start = changes.pop("start_ns", STARTED)
    real_parent = changes.pop("real_parent", INIT)
    values: dict[str, Any] = {
        "key": ProcessKey(tgid, start),
        "real_parent": real_parent,
        "parent": real_parent,
        "tid": tgid,
        "pgid": tgid,
        "sid": tgid,
        "vpid": tgid,
        "ptrace": 0,
        "leader": tgid,
        "kernel": False,
        "image": IMAGE,
    }
    return Task(**(values | changes))


def _reported(changes: dict[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = {
        "cpu": 0,
        "seq": 1,
        "bt_ns": NOW,
        "flags": 0,
        "parts": 1,
        "backlog": False,
        "cwd": b"/root",
    }
    return values | changes


def an_exec(*args: bytes, task: Task | None = None, **changes: Any) -> Exec:
    """A program that runs with these arguments, all of them captured."""
    argv = b"".join(arg + b"\0" for arg in args)
    values = {
        "old_tid": (task or a_task()).tid,
        "argc": len(args),
        "argv_bytes": len(argv),
        "argv": argv,
        "executable": b"/usr/bin/bash",
        "invoked": b"/usr/bin/bash",
        "interpreter": b"",
        "environment": (),
    }
    return Exec(task=task or a_task(), **_reported(values | changes))


def a_failed_exec(*args: bytes, task: Task | None = None, **changes: Any) -> ExecFailed:
    argv = b"".join(arg + b"\0" for arg in args)
    values = {"errno": 2, "argc": len(args), "path": b"/bin/none", "argv": argv}
    values["flags"] = int(Flag.CALLER_MEMORY)
    return ExecFailed(task=task or a_task(), **_reported(values | changes))


def a_fork(task: Task | None = None, **changes: Any) -> Fork:
    task = task or a_task()
    values = {"creator": task.real_parent, "clone_flags": 0}
    values["creator_tid"] = task.real_parent.tgid
    return Fork(task=task, **_reported(values | changes))


def an_exit(task: Task | None = None, **changes: Any) -> Exit:
    return Exit(task=task or a_task(), **_reported({"status": 0} | changes))


def a_prctl(task: Task | None = None, **changes: Any) -> Prctl:
    values = {"option": PrctlOption.SET_NAME, "argument": 0, "result": 0, "count": 1}
    return Prctl(task=task or a_task(), **_reported(values | changes))


def an_access(
    target: Task | None = None, task: Task | None = None, **changes: Any
) -> Access:
    values = {
        "kind": AccessKind.PTRACE_ATTACH,
        "result": 0,
        "count": 1,
        "first_ns": NOW,
        "last_ns": NOW,
        "requested_pid": 2000,
        "detail": 0,
        "denied": Denied.NOT,
        "path": b"",
    }
    target = target or a_task(2000)
    return Access(target=target, task=task or a_task(), **_reported(values | changes))


def a_process(key: ProcessKey | None = None, **changes: Any) -> Process:
    """An entry of the ledger."""
    values: dict[str, Any] = {
        "key": key or a_key(1000),
        "known": "seen",
        "real_parent": INIT,
        "parent": INIT,
        "comm": b"bash",
        "executable": b"/usr/bin/bash",
    }
    return Process(**(values | changes))


ALONE = Lineage((), ChainEnd.UNKNOWN_PARENT)
NO_TASK = a_task(
    0,
    start_ns=0,
    real_parent=NOBODY,
    image=Image(b"", Executable(*[0] * 5, False, False), Context(*[0] * 25)),
)
"""The target of an access to nobody: zeros all through."""


def _walk(path: bytes) -> bytes:
    """A path as the kernel walks it: leaf first, NUL after each name."""
    names = [name for name in path.split(b"/") if name]
    return b"".join(name + b"\0" for name in reversed(names))


def _executable_walk(event: Exec) -> bytes:
    if event.task.image.executable.memfd:
        return event.executable + b"\0"  # one name, whatever is in it
    return _walk(event.executable)


def _z(text: bytes) -> bytes:
    return text + b"\0" if text else b""


def _task_values(prefix: str, task: Task) -> dict[str, Any]:
    file, context = task.image.executable, task.image.context
    values = {
        **{name: getattr(task, name) for name in ("tid", "pgid", "sid", "vpid")},
        "ptrace": task.ptrace,
        "leader": task.leader,
        "bits": task.kernel * constants()["IR_TASK_KERNEL"],
        "comm": task.image.comm,
        "start_ns": task.key.start_ns,
        "tgid": task.key.tgid,
        "real_parent_start_ns": task.real_parent.start_ns,
        "real_parent_tgid": task.real_parent.tgid,
        "parent_start_ns": task.parent.start_ns,
        "parent_tgid": task.parent.tgid,
        **{f"exe_{name}": getattr(file, name) for name in ("ino", "dev", "nlink")},
        "exe_uid": file.uid,
        "exe_mode": file.mode,
        "exe_flags": file.memfd * constants()["IR_EXE_MEMFD"]
        | file.deleted * constants()["IR_EXE_DELETED"],
        **msgspec.structs.asdict(context),
    }
    return {f"{prefix}.{name}": value for name, value in values.items()}


def record(
    kind: str, values: Mapping[str, Any], fields: Iterable[bytes] = (), flags: int = 0
) -> bytes:
    """Encode one record by event.h; members that are not given are 0."""
    struct_name = "ir_access_event" if kind == "access" else f"ir_{kind}"
    given, parts = dict(values), list(fields)
    body = b"".join(parts)
    given["head.version"] = constants()["IR_WIRE_VERSION"]
    given["head.kind"] = constants()[f"IR_{kind.upper()}"]
    given["head.size"] = layout(struct_name).size + len(body)
    given["head.flags"] = flags
    flat: list[Any] = []
    for name, form in members(struct_name):
        if name == "len":
            lengths = [len(part) for part in parts]
            flat += lengths + [0] * (int(form[:-1]) - len(lengths))
        else:
            flat.append(given.pop(name, b"" if form.endswith("s") else 0))
    assert not given, f"{struct_name} has no {', '.join(given)}"
    return layout(struct_name).pack(*flat) + body


def _head(event: Any) -> dict[str, Any]:
    return {f"head.{name}": getattr(event, name) for name in ("cpu", "seq", "bt_ns")}


def encode(event: Event, first: int | None = None) -> bytes:
    """The record of an event; an exec's with the first `first` bytes of argv."""
    values = _head(event) | _task_values("task", event.task)
    cwd, flags = _walk(event.cwd), event.flags
    match event:
        case Exec():
            names = ("argv_bytes", "argc", "old_tid")
            values |= {name: getattr(event, name) for name in names}
            environment = b"".join(map(_z, event.environment))
            fields = [_executable_walk(event), cwd, _z(event.invoked)]
            fields += [_z(event.interpreter), environment, event.argv[:first]]
            return record("exec", values, fields, flags)
        case ExecFailed():
            values |= {"error": -event.errno, "argc": event.argc}
            return record(
                "exec_failed", values, (cwd, _z(event.path), event.argv), flags
            )
        case Fork():
            values |= {
                "creator_start_ns": event.creator.start_ns,
                "creator_tgid": event.creator.tgid,
                "creator_tid": event.creator_tid,
                "clone_flags": event.clone_flags,
            }
            return record("fork", values, (cwd,), flags)
        case Exit():
            return record("exit", values | {"status": event.status}, (cwd,), flags)
        case Access():
            return record("access", values | _access(event), _paths(event), flags)
        case Prctl():
            names = ("option", "argument", "result", "count")
            values |= {name: getattr(event, name) for name in names}
            return record("prctl", values, (cwd,), flags)


def _paths(event: Access) -> tuple[bytes, ...]:
    return _walk(event.cwd), b"", _z(event.path)


def _access(event: Access) -> dict[str, Any]:
    names = ("first_ns", "last_ns", "count", "result", "requested_pid")
    names += ("detail", "denied")
    values = {name: getattr(event, name) for name in names}
    return values | {"access": event.kind} | _task_values("target", event.target)


def encode_fold(event: Access, sent_ns: int, sent_count: int) -> bytes:
    """An entry of the map `folds`."""
    values = _head(event) | _task_values("task", event.task) | _access(event)
    return struct.pack("<QQ", sent_ns, sent_count) + record("access", values)


def encode_piece(event: Exec, seq: int, offset: int, argv: bytes, **head: int) -> bytes:
    """The record of `argv`, which continues the argv of `event` at `offset`."""
    flags = head.pop("flags", 0)
    values = _head(event) | {
        "head.seq": seq,
        "start_ns": event.task.key.start_ns,
        "tgid": event.task.key.tgid,
        "tid": event.task.tid,
        "offset": offset,
    }
    return record("argv", values, (argv,), flags)


def in_pieces(event: Exec, first: int, chunk: int) -> list[bytes]:
    """All records of an exec whose argv does not fit into the first `first` bytes."""
    records = [encode(event, first)]
    for number, at in enumerate(range(first, len(event.argv), chunk), 1):
        argv = event.argv[at : at + chunk]
        records.append(encode_piece(event, event.seq + number, at, argv))
    return records


def in_ring(*records: bytes) -> bytes:
    """Records as the ring holds them: length and page before each, 8 bytes aligned."""
    return b"".join(
        HEADER.pack(len(one), 0) + one + bytes(-len(one) % 8) for one in records
    )


def a_batch(*records: bytes, start: int = 0) -> Batch:
    """What RingReader gives for these records, read from ring position `start`."""
    return batch_of(in_ring(*records), start)


def batch_of(data: bytes, start: int = 0) -> Batch:
    """The batch of these bytes of a ring."""
    at, found = 0, []
    while at < len(data):
        size, _ = HEADER.unpack_from(data, at)
        found.append((at + HEADER.size, size))
        at += (size + HEADER.size + 7) & ~7
    return Batch(data, found, start, start + len(data))


def counters(*lost: Mapping[str, int], last_lost_ns: int = NOW) -> list[CpuState]:
    """The kernel's loss counters, one mapping of kinds for each CPU."""
    return [CpuState(0, dict(kinds), last_lost_ns if kinds else 0) for kinds in lost]


class FakeTap:
    """The end of the path before the pipeline: gives out what a test put in.

    It counts what was committed as the real one does: up to the last poll.
    """

    def __init__(self, *polls: Polled) -> None:
        self.polls = list(polls)
        self.settled: list[Polled] = []
        self.polled = 0
        self.committed = 0
        self.positions: dict[str, Position] = {}

    def poll(self) -> Polled:
        if not self.polls:
            return Polled([], [], False)
        self.polled += 1
        polled = self.polls.pop(0)
        self._advance(polled)
        return polled

    def settle(self) -> Polled:
        polled = self.settled.pop(0) if self.settled else Polled([], [], False)
        self._advance(polled)
        return polled

    def commit(self) -> None:
        self.committed = self.polled

    def checkpoint(self) -> dict[str, Any]:
        return {cpu: msgspec.structs.replace(at) for cpu, at in self.positions.items()}

    def _advance(self, polled: Polled) -> None:
        for event in polled.events:
            at = self.positions.setdefault(str(event.cpu), Position())
            at.seq, at.bt_ns = event.seq + event.parts - 1, event.bt_ns
        for loss in polled.losses:
            for cpu in loss.cpus:
                at = self.positions.setdefault(str(cpu), Position())
                for kind, count in loss.kinds.items():
                    at.accounted[kind] = at.accounted.get(kind, 0) + count
