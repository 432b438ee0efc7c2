"""Events as records: the one place where internal values become the published schema.

In: an event, the ledger's entry of its process, and the ancestors as values. Out: one
compact JSON object in ECS 9.4, own fields under `ir`. Nothing is rendered twice that
repeats, and no byte of the kernel reaches the text unescaped.

The templates below are the schema; docs/records.md explains each field.
"""

import base64
import errno
import hashlib
import signal
from typing import NamedTuple

import msgspec

from agent.events import (
    Access,
    AccessKind,
    Event,
    Exec,
    ExecFailed,
    Exit,
    Flag,
    Fork,
    Lineage,
    Process,
    ProcessKey,
    Source,
    Task,
)
from agent.sinks.text import (
    RecordIds,
    Users,
    executable,
    flags,
    quote,
    quoted,
    rfc3339,
    surroundings,
    text,
)

ECS_VERSION = "9.4.0"
_encode = msgspec.json.Encoder().encode
_MAX_BRIEFS = 8192
_CUT = Flag.ARGV_FAULT | Flag.ARGV_CUT
_CLONE = {
    0x100: "CLONE_VM",
    0x200: "CLONE_FS",
    0x400: "CLONE_FILES",
    0x800: "CLONE_SIGHAND",
    0x2000: "CLONE_PTRACE",
    0x8000: "CLONE_PARENT",
    0x20000: "CLONE_NEWNS",
    0x2000000: "CLONE_NEWCGROUP",
    0x4000000: "CLONE_NEWUTS",
    0x8000000: "CLONE_NEWIPC",
    0x10000000: "CLONE_NEWUSER",
    0x20000000: "CLONE_NEWPID",
    0x40000000: "CLONE_NEWNET",
}
_ACCESS_ACTIONS = {
    AccessKind.PTRACE_ATTACH: "ptrace-attach",
    AccessKind.PTRACE_SEIZE: "ptrace-seize",
    AccessKind.PTRACE_TRACEME: "ptrace-traceme",
    AccessKind.PROCESS_VM_READ: "process-vm-read",
    AccessKind.PROCESS_VM_WRITE: "process-vm-write",
    AccessKind.MEM_OPEN: "mem-open",
    AccessKind.PIDFD_GETFD: "pidfd-getfd",
    AccessKind.TRACE_INHERITED: "trace-inherited",
}


def action(kind: AccessKind) -> str:
    """Return the event.action of an access."""
    return _ACCESS_ACTIONS[kind]


class Host(NamedTuple):
    """Whose records these are; ids as text."""

    machine_id: str
    name: str
    boot_id: str
    agent_version: str
    user_ns: int


class ClockMap(NamedTuple):
    """How boot time becomes wall time, and how good that is (agent.clock)."""

    offset_ns: int
    state: str
    clock_offset_ns: int
    error_ns: int | None


class _Brief(NamedTuple):
    revision: int
    short: str
    full: str


class Renderer:
    """Renders the records of one writer; not for two threads."""

    def __init__(self, host: Host, clock: ClockMap) -> None:
        """Prepare what is the same in all records of this host."""
        self._users = Users(host.user_ns)
        self._ids = RecordIds()
        self._boot = host.boot_id.replace("-", "")[:12]
        self._common = (
            f'"ecs":{{"version":"{ECS_VERSION}"}},"host":{{"id":{quote(host.machine_id)},'
            f'"name":{quote(host.name)},"boot":{{"id":{quote(host.boot_id)}}}}},'
            f'"agent":{{"type":"ir-agent","version":{quote(host.agent_version)}}}'
        )
        self._briefs: dict[ProcessKey, _Brief] = {}
        self._offset = 0
        self._clock = ""
        self.set_clock(clock)

    def set_clock(self, clock: ClockMap) -> None:
        """Convert with these values from now on."""
        if clock.offset_ns != self._offset:
            self._briefs.clear()  # they hold start times in wall time
        self._offset = clock.offset_ns
        error = "null" if clock.error_ns is None else clock.error_ns
        self._clock = (
            f'"offset_ns":{clock.clock_offset_ns},"error_ns":{error},'
            f'"source":"kernel","state":{quote(clock.state)}'
        )

    def wall(self, bt_ns: int) -> str:
        """Return boot time as wall time text."""
        return rfc3339(bt_ns + self._offset)

    def entity(self, key: ProcessKey) -> str:
        """Return the id of a process that no other process of any node ever has."""
        return f"{self._boot}-{key[0]}-{key[1]:x}"

    def render(
        self, event: Event, process: Process, lineage: Lineage, sequence: int
    ) -> bytes:
        """Return the record of an event; `process` is the entry of `event.task`."""
        match event:
            case Exec():
                body = self._exec(event, process, lineage)
            case Fork():
                body = self._fork(event, process, lineage)
            case Exit():
                body = self._exit(event, process, lineage)
            case ExecFailed():
                body = self._exec_failed(event, process, lineage)
            case Access():
                body = self._access(event, process, lineage)
        return self.envelope(event.source.bt_ns, sequence, body)

    def envelope(self, bt_ns: int, sequence: int, body: str) -> bytes:
        """Put around `body`, which begins inside "event", what every record has."""
        wall = bt_ns + self._offset
        return (
            f'{{"@timestamp":"{rfc3339(wall)}",{self._common},'
            f'"event":{{"id":"{self._ids(wall)}","sequence":{sequence},{body}}}'
        ).encode()

    def _exec(self, event: Exec, process: Process, lineage: Lineage) -> str:
        task = event.task
        args = event.argv.split(b"\0")
        if not args[-1]:
            args.pop()
        words = [text(arg) for arg in args]
        env = ""
        if event.environment:
            env = (
                f',"env_vars":{_encode([text(e) for e in event.environment]).decode()}'
            )
        return (
            '"kind":"event","category":["process"],"type":["start"],"action":"exec",'
            f'"outcome":"success"}},"process":{{{self._who(task, process)},'
            f'"args":{_encode(words).decode()},"args_count":{len(args)},'
            f'"command_line":{quote(" ".join(words))},'
            f'"working_directory":{quoted(event.cwd)}{env},'
            f"{self._kin(task, lineage)}}},"
            f'"ir":{{"argv":{_argv(event, args)},"exec":{_how(event)},'
            f"{executable(task.executable)},"
            f'"ancestry":{self._ancestry(lineage)},{self._rest(event.source, task)}}}'
        )

    def _exec_failed(self, event: ExecFailed, process: Process, chain: Lineage) -> str:
        task = event.task
        args = event.argv.split(b"\0")[:-1]
        words = [text(arg) for arg in args]
        code = errno.errorcode.get(event.errno, str(event.errno))
        return (
            '"kind":"event","category":["process"],"type":["start"],'
            '"action":"exec-failed","outcome":"failure"},'
            f'"error":{{"code":"{code}"}},"process":{{{self._who(task, process)},'
            f'"args":{_encode(words).decode()},"args_count":{len(args)},'
            f'"command_line":{quote(" ".join(words))},'
            f'"working_directory":{quoted(event.cwd)},{self._kin(task, chain)}}},'
            f'"ir":{{"argv":{_caller_argv(event, args)},'
            f'"exec":{{"path":{quoted(event.path)}}},{executable(task.executable)},'
            f"{self._rest(event.source, task)}}}"
        )

    def _fork(self, event: Fork, process: Process, lineage: Lineage) -> str:
        task, creator = event.task, event.creator
        return (
            '"kind":"event","category":["process"],"type":["start"],"action":"fork",'
            f'"outcome":"success"}},"process":{{{self._who(task, process)},'
            f'"working_directory":{quoted(event.cwd)},{self._kin(task, lineage)}}},'
            f'"ir":{{"creator":{{"pid":{creator.tgid},"tid":{event.creator_tid},'
            f'"entity_id":"{self.entity(creator)}"}},'
            f'"clone_flags":{_clone_flags(event.clone_flags)},'
            f"{self._rest(event.source, task)}}}"
        )

    def _exit(self, event: Exit, process: Process, lineage: Lineage) -> str:
        task, number = event.task, event.status & 0x7F
        code = "" if number else f',"exit_code":{event.status >> 8 & 0xFF}'
        how = ""
        if number:
            core = "true" if event.status & 0x80 else "false"
            how = f'"exit":{{"signal":"{_signal(number)}","core_dumped":{core}}},'
        return (
            '"kind":"event","category":["process"],"type":["end"],"action":"exit",'
            f'"outcome":"success"}},"process":{{{self._who(task, process)}{code},'
            f'"end":"{self.wall(event.source.bt_ns)}",'
            f'"working_directory":{quoted(event.cwd)},{self._kin(task, lineage)}}},'
            f'"ir":{{{how}{self._rest(event.source, task)}}}'
        )

    def _access(self, event: Access, process: Process, lineage: Lineage) -> str:
        task, target = event.task, event.target
        outcome, error = "success", ""
        if event.result < 0:
            code = errno.errorcode.get(-event.result, str(-event.result))
            outcome, error = "failure", f'"error":{{"code":"{code}"}},'
        what = action(event.kind)
        path = f',"path":{quoted(event.path)}' if event.path else ""
        whom = ""
        if target.key.tgid:
            whom = f'"target":{{{self._identity(target)}}},'
        return (
            f'"kind":"event","category":["process"],"type":["access"],'
            f'"action":"{what}","outcome":"{outcome}"}},{error}'
            f'"process":{{{self._who(task, process)},'
            f'"working_directory":{quoted(event.cwd)},{self._kin(task, lineage)}}},'
            f'"ir":{{{whom}"access":{{"kind":"{what}","count":{event.count},'
            f'"result":{event.result},"requested_pid":{event.requested_pid},'
            f'"detail":{event.detail},"first":"{self.wall(event.first_ns)}",'
            f'"last":"{self.wall(event.last_ns)}"{path}}},'
            f'"ancestry":{self._ancestry(lineage)},{self._rest(event.source, task)}}}'
        )

    def _identity(self, task: Task) -> str:
        """Return the members that say who a process is, by the kernel's word alone."""
        key = task.key
        return (
            f'"pid":{key[0]},"entity_id":"{self.entity(key)}",'
            f'"start":"{rfc3339(key[1] + self._offset)}","name":{quoted(task.comm)},'
            f'"thread":{{"id":{task.tid}}},"vpid":{task.vpid},'
            f"{self._users.of(task.context)}"
        )

    def _who(self, task: Task, process: Process) -> str:
        return f'{self._identity(task)},"executable":{quoted(process.executable)}'

    def _kin(self, task: Task, lineage: Lineage) -> str:
        """Return the members that say whose child it is, and in which session."""
        if lineage.ancestors and lineage.ancestors[0].key == task.real_parent:
            parent = self._brief(lineage.ancestors[0]).full
        else:
            parent = self._bare(task.real_parent)
        return (
            f'"parent":{{{parent}}},"group_leader":{{"pid":{task.pgid}}},'
            f'"session_leader":{{"pid":{task.sid}}}'
        )

    def _rest(self, source: Source, task: Task) -> str:
        """Return the members of "ir" that every event has."""
        tracer = ""
        if task.ptrace:
            tracer = f'"tracer":{{{self._bare(task.parent)}}},'
        odd = f',"flags":{flags(source.flags)}' if source.flags else ""
        late = ',"backlog":true' if source.backlog else ""
        return (
            f'{tracer}{surroundings(task.context)},"kernel":{{"cpu":{source.cpu},'
            f'"seq":{source.seq},"parts":{source.parts}{late}{odd}}},'
            f'"clock":{{"bt_ns":{source.bt_ns},{self._clock}}}'
        )

    def _bare(self, key: ProcessKey) -> str:
        return f'"pid":{key[0]},"entity_id":"{self.entity(key)}"'

    def _brief(self, process: Process) -> _Brief:
        kept = self._briefs.get(process.key)
        if kept is None or kept.revision != process.revision:
            if len(self._briefs) >= _MAX_BRIEFS:
                self._briefs.clear()
            short = f'{self._bare(process.key)},"name":{quoted(process.comm)}'
            full = (
                f'{short},"start":"{self.wall(process.key.start_ns)}",'
                f'"executable":{quoted(process.executable)}'
            )
            kept = self._briefs[process.key] = _Brief(process.revision, short, full)
        return kept

    def _ancestry(self, lineage: Lineage) -> str:
        chain = "},{".join([self._brief(one).short for one in lineage.ancestors])
        chain = f"{{{chain}}}" if chain else ""
        return f'{{"end":"{lineage.end}","chain":[{chain}]}}'


def _argv(event: Exec, args: list[bytes]) -> str:
    """Return "argv": how much there was, its hash, and what is missing of it."""
    cut = len(event.argv) != event.argv_bytes or event.source.flags & _CUT
    reasons = f',"reasons":{flags(event.source.flags & _CUT)}' if cut else ""
    return (
        f'{{"count":{event.argc},"bytes":{event.argv_bytes},'
        f'"sha256":"{hashlib.sha256(event.argv).hexdigest()}",'
        f'"truncated":{"true" if cut else "false"}{reasons}{_exact(args)}}}'
    )


def _caller_argv(event: ExecFailed, args: list[bytes]) -> str:
    cut = event.source.flags & _CUT
    reasons = f',"reasons":{flags(cut)}' if cut else ""
    return (
        f'{{"count":{event.argc},"bytes":{len(event.argv)},'
        f'"sha256":"{hashlib.sha256(event.argv).hexdigest()}",'
        f'"truncated":{"true" if cut else "false"}{reasons},"caller_memory":true'
        f"{_exact(args)}}}"
    )


def _exact(args: list[bytes]) -> str:
    """Return the member with the exact bytes, when text can't hold them."""
    if b"".join(args).isascii():
        return ""
    try:
        for arg in args:
            arg.decode()
    except UnicodeDecodeError:
        exact = [base64.b64encode(arg).decode() for arg in args]
        return f',"raw_base64":{_encode(exact).decode()}'
    return ""


def _how(event: Exec) -> str:
    """Return "exec": how the program was started."""
    flag_bits = event.source.flags
    leader = "true" if flag_bits & Flag.NONLEADER else "false"
    compat = "true" if flag_bits & Flag.COMPAT else "false"
    script = ""
    if event.interpreter:
        script = f',"interpreter":{quoted(event.interpreter)}'
    return (
        f'{{"path":{quoted(event.invoked)}{script},'
        f'"non_leader":{leader},"compat":{compat}}}'
    )


def _clone_flags(bits: int) -> str:
    names = [name for bit, name in _CLONE.items() if bits & bit]
    return _encode(names).decode()


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIGRT{number}"
