"""What each Sigma field is of our events, and what is known around an event.

In: an event, and Surroundings as plain values. Out: tables of functions by the field's
name, one table for each kind of event. A field that an event does not have is None.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from agent.events import (
    AccessKind,
    Exec,
    Lineage,
    Parentage,
    Process,
    Task,
)

HEAD, TAIL = 8192, 4096
"""Bytes of the beginning and of the end of a long text that rules see."""
ENVIRONMENT = "Env."
"""Before the name of a variable: the field of its value."""
KEYWORDS = ""
"""The field of all values of a record, NUL between them: here of the arguments."""
SYSCALL_VALUES = "SYSCALL.values"
"""The same of the record of the call."""
Getter = Callable[[Any, "Surroundings"], str | None]


class Surroundings(NamedTuple):
    """What is known around an event and not part of it; defaults where nothing is.

    `process` is the ledger's entry of the event's task, `target` an access's target,
    each with its ancestors. `parent_invoked` is the path that the parent was started
    by. `users` has account names by uid. Roles and job are words of the training stage.
    """

    lineage: Lineage | None = None
    process: Process | None = None
    target: Process | None = None
    target_lineage: Lineage | None = None
    parent_invoked: bytes = b""
    users: Mapping[int, str] = {}
    parentage: Parentage | None = None
    role: str = ""
    parent_role: str = ""
    target_role: str = ""
    job_id: str = ""


class Connection(NamedTuple):
    """An outgoing or accepted connection of `process`; addresses as text."""

    process: Process
    protocol: str
    initiated: bool
    source_ip: str
    source_port: int
    destination_ip: str
    destination_port: int


class FileChange(NamedTuple):
    """A file that `process` created, wrote or changed otherwise, by its whole path."""

    process: Process
    path: bytes
    change: str


def text(data: bytes) -> str:
    """Return bytes as text without losing any; without the middle when it is long."""
    if len(data) > HEAD + TAIL:
        data = b"%b\0%b" % (data[:HEAD], data[-TAIL:])
    return data.decode("utf-8", "surrogateescape")


@lru_cache(maxsize=1024)
def _known(data: bytes) -> str | None:
    """Return a path or so as text; the same few come again and again."""
    return text(data) if data else None


def _word(word: str) -> str | None:
    return word or None


def _truth(value: bool) -> str:
    return "true" if value else "false"


def _seen(argv: bytes) -> list[bytes]:
    """Return arguments without the last NUL; without the middle when they are long."""
    size = len(argv) - argv.endswith(b"\0")
    if size <= HEAD + TAIL:
        return [argv[:size]]
    return [argv[:HEAD], argv[size - TAIL : size]]


def _joined(argv: bytes) -> str:
    """Return arguments with one blank between them."""
    return "\0".join([text(one.replace(b"\0", b" ")) for one in _seen(argv)])


def _command_line(process: Process | None) -> str | None:
    return _joined(process.argv) if process and process.argv else None


def _user(around: Surroundings, uid: int) -> str:
    return around.users.get(uid) or str(uid)


def _parent(around: Surroundings, task: Task) -> Process | None:
    chain = around.lineage.ancestors if around.lineage else ()
    return chain[0] if chain and chain[0].key == task.real_parent else None


def _of_parent(get: Callable[[Process, Surroundings], str | None]) -> Getter:
    def field(event: Exec, around: Surroundings) -> str | None:
        parent = _parent(around, event.task)
        return get(parent, around) if parent else None

    return field


def _ancestors(lineage: Lineage | None) -> str | None:
    """Return the executables of all ancestors, nearest first, NUL between them."""
    if lineage is None or not lineage.ancestors:
        return None
    return text(b"\0".join(one.executable for one in lineage.ancestors))


_OF_TASK: dict[str, Getter] = {
    "ProcessId": lambda event, _: str(event.task.key.tgid),
    "ParentProcessId": lambda event, _: str(event.task.real_parent.tgid),
    "LogonId": lambda event, _: str(event.task.image.context.uid),
    "Uid": lambda event, _: str(event.task.image.context.uid),
    "EffectiveUid": lambda event, _: str(event.task.image.context.euid),
    "CgroupId": lambda event, _: str(event.task.image.context.cgroup_id),
    "Memfd": lambda event, _: _truth(event.task.image.executable.memfd),
    "Deleted": lambda event, _: _truth(event.task.image.executable.deleted),
    "ExecutableOwner": lambda event, _: str(event.task.image.executable.uid),
    "CurrentDirectory": lambda event, _: _known(event.cwd),
}
_AROUND: dict[str, Getter] = {
    "Role": lambda _, around: _word(around.role),
    "ParentRole": lambda _, around: _word(around.parent_role),
    "JobId": lambda _, around: _word(around.job_id),
    "Ancestors": lambda _, around: _ancestors(around.lineage),
    "Verdict": lambda _, around: (
        str(around.parentage.verdict) if around.parentage else None
    ),
}
PROCESS_CREATION: dict[str, Getter] = {
    **_OF_TASK,
    **_AROUND,
    "Image": lambda event, _: _known(event.executable),
    "OriginalInvoked": lambda event, _: _known(event.invoked),
    "Interpreter": lambda event, _: _known(event.interpreter),
    "CommandLine": lambda event, _: _joined(event.argv),
    "User": lambda event, around: _user(around, event.task.image.context.uid),
    "ParentImage": _of_parent(lambda parent, _: _known(parent.executable)),
    "ParentCommandLine": _of_parent(lambda parent, _: _command_line(parent)),
    "ParentUser": _of_parent(lambda parent, around: _user(around, parent.uid)),
}
_RESULTS = {True: "success", False: "failure"}
PROCESS_ACCESS: dict[str, Getter] = {
    **_OF_TASK,
    **_AROUND,
    "SourceProcessId": _OF_TASK["ProcessId"],
    "TargetProcessId": lambda event, _: str(event.target.key.tgid),
    "SourceImage": lambda _, around: _of(around.process, "executable"),
    "TargetImage": lambda _, around: _of(around.target, "executable"),
    "SourceCommandLine": lambda _, around: _command_line(around.process),
    "TargetCommandLine": lambda _, around: _command_line(around.target),
    "SourceUser": lambda event, around: _user(around, event.task.image.context.uid),
    "TargetUser": lambda event, around: _user(around, event.target.image.context.uid),
    "SourceRole": _AROUND["Role"],
    "TargetRole": lambda _, around: _word(around.target_role),
    "TargetAncestors": lambda _, around: _ancestors(around.target_lineage),
    "GrantedAccess": lambda event, _: access_name(event.kind),
    "AccessDetail": lambda event, _: str(event.detail),
    "Outcome": lambda event, _: _RESULTS[event.result >= 0],
    "Denied": lambda event, _: event.denied.name.lower(),
    "Path": lambda event, _: _known(event.path),
}
_OF_ENTRY: dict[str, Getter] = {
    **_AROUND,
    "Image": lambda facts, _: _of(facts.process, "executable"),
    "CommandLine": lambda facts, _: _command_line(facts.process),
    "ProcessId": lambda facts, _: str(facts.process.key.tgid),
    "User": lambda facts, around: _user(around, facts.process.uid),
    "Uid": lambda facts, _: str(facts.process.uid),
}
NETWORK_CONNECTION: dict[str, Getter] = {
    **_OF_ENTRY,
    "Protocol": lambda facts, _: facts.protocol,
    "Initiated": lambda facts, _: _truth(facts.initiated),
    "SourceIp": lambda facts, _: facts.source_ip,
    "SourcePort": lambda facts, _: str(facts.source_port),
    "DestinationIp": lambda facts, _: facts.destination_ip,
    "DestinationPort": lambda facts, _: str(facts.destination_port),
}
FILE_EVENT: dict[str, Getter] = {
    **_OF_ENTRY,
    "TargetFilename": lambda facts, _: _known(facts.path),
    "Change": lambda facts, _: facts.change,
}
EXECVE: dict[str, Getter] = {
    "argc": lambda event, _: str(event.argc),
    KEYWORDS: lambda event, _: "\0".join(map(text, _seen(event.argv))),
}
"""The auditd record of a program's arguments; its fields a0, a1, … come by number."""
SYSCALL: dict[str, Getter] = {
    "pid": _OF_TASK["ProcessId"],
    "ppid": _OF_TASK["ParentProcessId"],
    "auid": lambda event, _: str(event.task.image.context.loginuid),
    "ses": lambda event, _: str(event.task.image.context.sessionid),
    "comm": lambda event, _: text(event.task.image.comm),
    "exe": lambda event, _: _known(event.executable),
    SYSCALL_VALUES: lambda event, _: text(
        event.task.image.comm + b"\0" + event.executable
    ),
}
"""The auditd record of the call of the same program."""
for _id in ("uid", "gid", "euid", "egid", "suid", "sgid", "fsuid", "fsgid"):
    SYSCALL[_id] = lambda event, _, name=_id: str(  # type: ignore[misc]
        getattr(event.task.image.context, name)
    )
EXEC = {
    **EXECVE,
    **SYSCALL,
    **PROCESS_CREATION,
    "a0": lambda event, _: _first_argument(event),
}
"""All that is asked of a program that runs: rules of three logs at one go."""


def _of(process: Process | None, member: str) -> str | None:
    return _known(getattr(process, member)) if process else None


def access_name(kind: AccessKind) -> str:
    """Return the word for an access that records have as event.action."""
    return kind.name.lower().replace("_", "-")


def _first_argument(event: Exec) -> str | None:
    """Return the argument that every program's rules are sorted by."""
    end = event.argv.find(b"\0", 0, HEAD)
    return _known(event.argv[:end]) or "" if end >= 0 and event.argc else None


def _argument(event: Exec, number: int) -> str | None:
    """Return one argument; None for one that lies beyond what rules see."""
    parts = event.argv[:HEAD].split(b"\0", number + 1)
    if number >= event.argc or len(parts) <= number + 1:
        return None
    return text(parts[number])


def _variable(event: Exec, name: str) -> str | None:
    start = name.encode() + b"="
    for one in event.environment:
        if one.startswith(start):
            return text(one[len(start) :])
    return None


def is_field(name: str, table: Mapping[str, Getter]) -> bool:
    """Say whether events of a table have a field of this name, or may have it."""
    if name in table:
        return True
    if table is EXECVE:
        return _number(name) is not None
    return table is PROCESS_CREATION and name[: len(ENVIRONMENT)] == ENVIRONMENT


def _number(name: str) -> int | None:
    """Return n of the field an; None when it is another field."""
    digits = name[1:] if name[:1] == "a" else ""
    return int(digits) if digits.isascii() and digits.isdecimal() else None


def by_pattern(event: Any, name: str) -> str | None:
    """Return a field of a program that is not in the table: of arguments, variables."""
    if name.startswith(ENVIRONMENT):
        return _variable(event, name[len(ENVIRONMENT) :])
    number = _number(name)
    return None if number is None else _argument(event, number)


def was_cut(event: Exec) -> bool:
    """Say whether rules see only beginning and end of the arguments."""
    return len(event.argv) > HEAD + TAIL and len(_seen(event.argv)) > 1
