"""Events as records: the one place where internal values become the published schema.

In: an event, the ledger's entry of its process, and its ancestors as values. Out: one
compact JSON object in ECS 9.4, own fields under `ir`; docs/records.md explains each.
No byte of the kernel reaches the text unescaped.

Most of a record's text is the same for all events of one program, user and place. It is
made once and kept, so that a record costs a few microseconds and not twenty.
"""

import errno
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from agent.events import (
    Access,
    AccessKind,
    Discrepancy,
    Event,
    Exec,
    ExecFailed,
    Exit,
    Fork,
    Lineage,
    Parentage,
    Prctl,
    PrctlOption,
    Process,
    ProcessKey,
    Task,
)
from agent.sinks.argv import arguments, caller_facts, environment, facts
from agent.sinks.parentage import discrepancy, parentage
from agent.sinks.text import (
    Stamps,
    Users,
    capabilities,
    clone_flags,
    executable,
    exit_status,
    flags,
    how_started,
    namespaces,
    prctl_field,
    quote,
    quoted,
    rfc3339,
    session,
)

ECS_VERSION = "9.4.0"
_MAX_KEPT = 1024
_ACTIONS = {
    AccessKind.PTRACE_ATTACH: "ptrace-attach",
    AccessKind.PTRACE_SEIZE: "ptrace-seize",
    AccessKind.PTRACE_TRACEME: "ptrace-traceme",
    AccessKind.PROCESS_VM_READ: "process-vm-read",
    AccessKind.PROCESS_VM_WRITE: "process-vm-write",
    AccessKind.MEM_OPEN: "mem-open",
    AccessKind.PIDFD_GETFD: "pidfd-getfd",
    AccessKind.TRACE_INHERITED: "trace-inherited",
    AccessKind.OTHER_ACCESS: "other-access",
}
_PRCTL_ACTIONS = {
    PrctlOption.SET_NAME: "prctl-set-name",
    PrctlOption.SET_MM: "prctl-set-mm",
}
_RESTARTS = {
    512: "ERESTARTSYS",
    513: "ERESTARTNOINTR",
    514: "ERESTARTNOHAND",
    516: "ERESTART_RESTARTBLOCK",
}
"""The kernel's own: the call is made again, and its caller never sees them."""


def action(kind: AccessKind) -> str:
    """Return the event.action of an access."""
    return _ACTIONS[kind]


class Host(NamedTuple):
    """Whose records these are; ids as text, namespaces as inode numbers by name."""

    machine_id: str
    name: str
    boot_id: str
    agent_version: str
    namespaces: Mapping[str, int]


class ClockMap(NamedTuple):
    """How boot time becomes wall time, and how good that is (agent.clock)."""

    offset_ns: int
    state: str
    clock_offset_ns: int
    error_ns: int | None


class _Kept(NamedTuple):
    """Text that many events share: members of "process", of "ir", the ancestors."""

    process: str
    ir: str
    ancestry: str


class Renderer:
    """Renders the records of one writer; not for two threads."""

    def __init__(self, host: Host, clock: ClockMap) -> None:
        """Prepare what is the same in all records of this host."""
        self._host = host.namespaces
        self._users = Users(host.namespaces.get("user", 0))
        self._stamps = Stamps()
        self._boot = host.boot_id.replace("-", "")[:12]
        self._common = (
            f'"ecs":{{"version":"{ECS_VERSION}"}},"host":{{"id":{quote(host.machine_id)},'
            f'"name":{quote(host.name)},"boot":{{"id":{quote(host.boot_id)}}}}},'
            f'"agent":{{"type":"ir-agent","version":{quote(host.agent_version)}}}'
        )
        self._names: dict[ProcessKey, str] = {}
        self._kept: dict[tuple[Any, ...], _Kept] = {}
        self._parts: dict[type, Callable[[Any, _Kept, str], tuple[str, str, str]]] = {
            Exec: self._exec,
            ExecFailed: self._exec_failed,
            Fork: self._fork,
            Exit: self._exit,
            Prctl: self._prctl,
        }
        self._offset = 0
        self._clock = ""
        self.set_clock(clock)

    def set_clock(self, clock: ClockMap) -> None:
        """Convert with these values from now on."""
        self._offset = clock.offset_ns
        error = "null" if clock.error_ns is None else clock.error_ns
        self._clock = (
            f'"offset_ns":{clock.clock_offset_ns},"error_ns":{error},'
            f'"source":"kernel","state":{quote(clock.state)}'
        )
        self._names.clear()  # these hold wall time: the start of a process,
        self._kept.clear()  # and of its parent

    def wall(self, bt_ns: int) -> str:
        """Return boot time as wall time text."""
        return rfc3339(bt_ns + self._offset)

    def entity(self, key: ProcessKey) -> str:
        """Return the id of a process that no other process of any node ever has."""
        return f"{self._boot}-{key.tgid}-{key.start_ns:x}"

    def render(
        self,
        event: Event,
        process: Process,
        lineage: Lineage,
        sequence: int,
        target: tuple[Process, Lineage] | None = None,
        told: Parentage | None = None,
    ) -> bytes:
        """Return the record of an event; `process` is the entry of `event.task`.

        `target` is the entry of an access's target and its ancestors, `told` the
        verdict on the process's parentage.
        """
        task, bt_ns = event.task, event.bt_ns
        kept = self._known(task, process, lineage, event.cwd)
        moment, identifier = self._stamps(bt_ns + self._offset)
        if type(event) is Access:
            in_event, in_process, in_ir = self._access(event, kept, target)
        else:
            in_event, in_process, in_ir = self._parts[type(event)](event, kept, moment)
        if told is not None:
            in_ir += parentage(told, self._bare, self.wall)
        odd = _oddities(event) if event.flags or event.backlog else ""
        return (
            f'{{"@timestamp":"{moment}",{self._common},'
            f'"event":{{"id":"{identifier}","sequence":{sequence},'
            f'"kind":"event","category":["process"],{in_event}'
            f'"process":{{{self._numbers(task)},{in_process}{kept.process}}},'
            f'"ir":{{{in_ir}{kept.ir},'
            f'"kernel":{{"cpu":{event.cpu},"seq":{event.seq},"parts":{event.parts}{odd}}},'
            f'"clock":{{"bt_ns":{bt_ns},{self._clock}}}}}}}'
        ).encode()

    def discrepancy(
        self, found: Discrepancy, process: Process | None, sequence: int
    ) -> bytes:
        """Return the record of a discrepancy; `process` is its entry, if it has one."""
        comm, path = (
            (process.comm, process.executable) if process else (found.comm, b"")
        )
        told = parent = ""
        if about := found.parentage:
            told = parentage(about, self._bare, self.wall)
            parent = f',"parent":{{{self._bare(about.parent)}}}'
        body = (
            f'"kind":"alert","category":["process"],"type":["info"],'
            f'"action":"discrepancy"}},"process":{{{self._bare(found.key)},'
            f'{_path("executable", path)}"name":{quoted(comm)}{parent}}},'
            f'"ir":{{{told}{discrepancy(found, self.wall)},'
            f'"clock":{{"bt_ns":{found.confirmed_ns},{self._clock}}}}}'
        )
        return self.envelope(found.confirmed_ns, sequence, body)

    def envelope(self, bt_ns: int, sequence: int, body: str) -> bytes:
        """Put around `body`, which begins inside "event", what every record has."""
        moment, identifier = self._stamps(bt_ns + self._offset)
        return (
            f'{{"@timestamp":"{moment}",{self._common},'
            f'"event":{{"id":"{identifier}","sequence":{sequence},{body}}}'
        ).encode()

    def _numbers(self, task: Task) -> str:
        """Return the members that say which process, thread and session it is."""
        name = self._names.get(task.key) or self._name(task.key)
        return (
            f'{name},"thread":{{"id":{task.tid}}},"vpid":{task.vpid},'
            f'"group_leader":{{"pid":{task.pgid}}},"session_leader":{{"pid":{task.sid}}}'
        )

    def _known(
        self, task: Task, process: Process, lineage: Lineage, cwd: bytes
    ) -> _Kept:
        about = (
            task.image,
            process.executable,
            cwd,
            lineage,
            task.real_parent,
            task.ptrace and task.parent,
        )
        return self._kept.get(about) or self._keep(about)

    def _keep(self, about: tuple[Any, ...]) -> _Kept:
        image, path, cwd, lineage, parent, tracer = about
        traced = f'"tracer":{{{self._bare(tracer)}}},' if tracer else ""
        kept = _Kept(
            process=f'"name":{quoted(image.comm)},{self._users.of(image.context)},'
            f"{_path('executable', path)}{_path('working_directory', cwd)}"
            f'"parent":{{{self._parent(lineage, parent)}}}',
            ir=f"{traced}{executable(image.executable)},{capabilities(image.context)},"
            f"{namespaces(image.context, self._host)},{session(image.context)}",
            ancestry=self._ancestry(lineage),
        )
        if len(self._kept) >= _MAX_KEPT:
            self._kept.clear()
        self._kept[about] = kept
        return kept

    # What each kind has of its own: the end of "event" and what follows it, and
    # members of "process" and of "ir", each with its comma.

    def _exec(self, event: Exec, kept: _Kept, _moment: str) -> tuple[str, str, str]:
        args = event.argv.split(b"\0")
        if not args[-1]:
            args.pop()
        how = how_started(event.invoked, event.interpreter, event.flags)
        return (
            '"type":["start"],"action":"exec","outcome":"success"},',
            f"{arguments(args)}{environment(event.environment)}",
            f'"argv":{facts(event, args)},"exec":{how},"ancestry":{kept.ancestry},',
        )

    def _exec_failed(
        self, event: ExecFailed, _kept: _Kept, _moment: str
    ) -> tuple[str, str, str]:
        args = event.argv.split(b"\0")[:-1]
        argv, path = caller_facts(event, args), quoted(event.path)
        return (
            (
                '"type":["start"],"action":"exec-failed","outcome":"failure"},'
                f'"error":{{"code":"{error_name(event.errno)}"}},'
            ),
            arguments(args),
            f'"argv":{argv},"exec":{{"path":{path}}},',
        )

    def _fork(self, event: Fork, _kept: _Kept, _moment: str) -> tuple[str, str, str]:
        return (
            '"type":["start"],"action":"fork","outcome":"success"},',
            "",
            (
                f'"creator":{{{self._bare(event.creator)},"tid":{event.creator_tid}}},'
                f'"clone_flags":{clone_flags(event.clone_flags)},'
            ),
        )

    def _exit(self, event: Exit, _kept: _Kept, moment: str) -> tuple[str, str, str]:
        code, signalled = exit_status(event.status)
        return (
            '"type":["end"],"action":"exit","outcome":"success"},',
            f'"end":"{moment}",{code}',
            signalled,
        )

    def _prctl(self, event: Prctl, kept: _Kept, _moment: str) -> tuple[str, str, str]:
        outcome, error = "success", ""
        if event.result < 0:
            outcome = "failure"
            error = f'"error":{{"code":"{error_name(-event.result)}"}},'
        action_ = _PRCTL_ACTIONS[event.option]
        about = f'"count":{event.count},"result":{event.result}'
        if event.option is PrctlOption.SET_MM:
            about += f',"field":"{prctl_field(event.argument)}"'
        return (
            f'"type":["change"],"action":"{action_}","outcome":"{outcome}"}},{error}',
            "",
            f'"prctl":{{{about}}},"ancestry":{kept.ancestry},',
        )

    def _access(
        self, event: Access, kept: _Kept, target: tuple[Process, Lineage] | None
    ) -> tuple[str, str, str]:
        what = action(event.kind)
        outcome, error = "success", ""
        if event.result < 0:
            outcome = "failure"
            error = f'"error":{{"code":"{error_name(-event.result)}"}},'
        path = f',"path":{quoted(event.path)}' if event.path else ""
        whom = self._target(event.target, target)
        kinds = '"access"'
        if event.denied:
            kinds += ',"denied"'
            path += f',"denied":"{event.denied.name.lower()}"'
        return (
            f'"type":[{kinds}],"action":"{what}","outcome":"{outcome}"}},{error}',
            "",
            (
                f'{whom}"access":{{"kind":"{what}","count":{event.count},'
                f'"result":{event.result},"requested_pid":{event.requested_pid},'
                f'"detail":{event.detail},"first":"{self.wall(event.first_ns)}",'
                f'"last":"{self.wall(event.last_ns)}"{path}}},"ancestry":{kept.ancestry},'
            ),
        )

    def _name(self, key: ProcessKey) -> str:
        """Return the members that are the same in every record of a process."""
        if len(self._names) >= _MAX_KEPT:
            self._names.clear()
        members = f'{self._bare(key)},"start":"{self.wall(key.start_ns)}"'
        self._names[key] = members
        return members

    def _bare(self, key: ProcessKey) -> str:
        return f'"pid":{key.tgid},"entity_id":"{self.entity(key)}"'

    def _target(self, task: Task, target: tuple[Process, Lineage] | None) -> str:
        """Return the member that says who was reached into; its cwd is not asked."""
        if not task.key.tgid or target is None:
            return ""
        kept = self._known(task, *target, b"")
        return f'"target":{{{self._numbers(task)},{kept.process}}},'

    def _parent(self, lineage: Lineage, key: ProcessKey) -> str:
        """Return the members of the parent; its name only if the ledger knows it."""
        if not lineage.ancestors or lineage.ancestors[0].key != key:
            return self._bare(key)
        parent = lineage.ancestors[0]
        return (
            f'{self._bare(key)},"name":{quoted(parent.comm)},'
            f'"start":"{self.wall(key.start_ns)}"'
            f"{_also_path('executable', parent.executable)}"
        )

    def _ancestry(self, lineage: Lineage) -> str:
        """Return the object of all ancestors, nearest first."""
        chain = [
            f'{{{self._bare(one.key)},"name":{quoted(one.comm)}}}'
            for one in lineage.ancestors
        ]
        return f'{{"end":"{lineage.end}","chain":[{",".join(chain)}]}}'


def _oddities(event: Event) -> str:
    odd = f',"flags":{flags(event.flags)}' if event.flags else ""
    return f'{odd},"backlog":true' if event.backlog else odd


def _path(name: str, path: bytes) -> str:
    """Return a member with its comma; nothing for a path that is not known."""
    return f'"{name}":{quoted(path)},' if path else ""


def _also_path(name: str, path: bytes) -> str:
    return f',"{name}":{quoted(path)}' if path else ""


def error_name(number: int) -> str:
    """Return the name of an errno, or the number where it has none."""
    return errno.errorcode.get(number) or _RESTARTS.get(number, str(number))
