"""Recorded training jobs as events, put through the ledger and the roles.

In: the lines of shared/corpora/training, or events that a test made. Out: what roles
say after each event. The recorder told the path a program was called by; here stand the
files that such paths lead to on Debian, since the kernel tells those.
"""

import json
import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from agent.events import Event, Process, ProcessKey, Task
from agent.process.ledger import Ledger
from agent.process.lineage import Lineages
from agent.role import Role
from agent.training.roles import Roles
from tests.builders import SECOND, a_fork, a_prctl, a_task, an_exec, an_exit, an_image

STREAMS = (
    Path(__file__).parents[3] / "shared" / "corpora" / "training" / "exec-streams.jsonl"
)
PYTHON = b"/opt/python3.11/bin/python3.11"
SHELL = b"/usr/bin/dash"
_LEADS_TO = {
    b"sh": SHELL,
    b"g++": b"/usr/bin/x86_64-linux-gnu-g++-12",
    b"c++": b"/usr/bin/x86_64-linux-gnu-g++-12",
    b"gcc": b"/usr/bin/x86_64-linux-gnu-gcc-12",
    b"as": b"/usr/bin/x86_64-linux-gnu-as",
    b"ld": b"/usr/bin/x86_64-linux-gnu-ld.bfd",
}
UID = 1000

# what the labelling of shared/workloads calls them
LABELS = {
    "launcher": {Role.LAUNCHER, Role.MPI_LAUNCHER},
    "rank": {Role.RANK},
    "rank-wrapper": {Role.RANK_WRAPPER},
    "main-script": {Role.SCRIPT},
    "spawned-worker": {Role.WORKER},
    "forkserver": {Role.FORKSERVER},
    "resource-tracker": {Role.RESOURCE_TRACKER},
    "shm-manager": {Role.SHM_MANAGER},
    "compile-worker-pool": {Role.COMPILE_POOL},
    "compiler": {Role.COMPILER},
    "inductor-isa-check": {Role.ISA_CHECK},
    "environment-probe": {Role.PROBE},
    "shell": {Role.SHELL},
    "logger-daemon": {Role.LOGGER},
    "debugger": {Role.DEBUGGER},
    "other": {Role.OTHER},
}


class Node:
    """A node's ledger and roles, as the pipeline joins them."""

    def __init__(self, scheduled: Callable[[int], bytes] | None = None) -> None:
        self.ledger = Ledger()
        self.lineages = Lineages(self.ledger)
        self.roles = Roles(scheduled) if scheduled else Roles()

    def take(self, event: Event) -> Process:
        process = self.ledger.apply(event)
        self.roles.classify(event, process, self.lineages.of(process))
        return process

    def role(self, key: ProcessKey) -> Role:
        return self.entry(key).role

    def entry(self, key: ProcessKey) -> Process:
        found = self.ledger.get(key)
        assert found is not None
        return found


@cache
def jobs() -> dict[str, list[dict[str, Any]]]:
    """The lines of each recorded job, in order; empty where there is no recording."""
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    if STREAMS.exists():
        for line in STREAMS.read_text().splitlines():
            one = json.loads(line)
            found[one["job"]].append(one)
    return dict(found)


def executable(line: dict[str, Any]) -> bytes:
    """The file that the kernel would have told for an exec."""
    path = os.fsencode(line["file"])
    argv = [word.encode() for word in line["argv"]]
    if len(argv) > 1 and argv[1] == path:  # a script: its interpreter runs
        path = argv[0]
    name = path.rpartition(b"/")[2]
    return PYTHON if name.startswith(b"python") else _LEADS_TO.get(name, path)


class Replay:
    """One recorded job, event by event."""

    def __init__(self, lines: list[dict[str, Any]], node: Node | None = None) -> None:
        self.node = node or Node()
        self._lines = lines
        self._keys: dict[int, ProcessKey] = {}

    def run(self) -> Iterator[tuple[dict[str, Any], Process]]:
        """Each line that is an event, with the process as it is after it."""
        for line in self._lines:
            if line["ev"] in ("fork", "exec", "exit"):
                yield line, self.node.take(self._event(line))

    def _event(self, line: dict[str, Any]) -> Event:
        at = int(line["t"] * SECOND) + 200 * SECOND
        if line["ev"] == "fork":
            child = line["child"]
            self._keys[child] = ProcessKey(child, at)
            task = self._task(child, line["pid"], line["comm"])
            return a_fork(task, bt_ns=at)
        task = self._task(line["pid"], line["ppid"], line["comm"])
        if line["ev"] == "exit":
            return an_exit(task, bt_ns=at)
        return an_exec(
            *(word.encode() for word in line["argv"]),
            task=task,
            bt_ns=at,
            executable=executable(line),
            invoked=os.fsencode(line["file"]),
            environment=tuple(one.encode() for one in line["env"]),
        )

    def _task(self, pid: int, ppid: int, comm: str) -> Task:
        key = self._key(pid)
        image = an_image(comm.encode()[:15], uid=UID, euid=UID)
        return a_task(
            pid, start_ns=key.start_ns, real_parent=self._key(ppid), image=image
        )

    def _key(self, pid: int) -> ProcessKey:
        return self._keys.setdefault(pid, ProcessKey(pid, 100 * SECOND))


class Cast:
    """Processes made by hand: who is born, what runs, who ends."""

    def __init__(self, node: Node | None = None, uid: int = UID) -> None:
        self.node = node or Node()
        self._uid = uid
        self._pid = 1000
        self._cgroup: dict[ProcessKey, int] = {}

    def born(self, parent: ProcessKey, clone_flags: int = 0) -> ProcessKey:
        """A child of `parent`."""
        self._pid += 1
        key = ProcessKey(self._pid, self._pid * SECOND)
        self._cgroup[key] = self._cgroup.get(parent, 77)
        task = self._task(key, parent, b"x")
        self.node.take(a_fork(task, clone_flags=clone_flags))
        return key

    def runs(self, key: ProcessKey, path: bytes, *args: bytes, **more: Any) -> Role:
        """The process executes `path` with argv[0] and `args`; returns its role."""
        return self.node.take(self.program(key, path, *args, **more)).role

    def program(self, key: ProcessKey, path: bytes, *args: bytes, **more: Any) -> Event:
        """The exec of `runs`, not taken in yet."""
        entry = self.node.ledger.get(key)
        parent = entry.real_parent if entry else more.pop("parent")
        file = {name: more.pop(name) for name in ("memfd", "deleted") if name in more}
        file |= {"uid": more.pop("uid", self._uid)}
        self._cgroup[key] = more.pop("cgroup", self._cgroup.get(key, 77))
        env = tuple(b"%b=%b" % one for one in more.pop("env", {}).items())
        return an_exec(
            path,
            *args,
            task=self._task(key, parent, path.rpartition(b"/")[2][:15], **file),
            executable=path,
            environment=env,
        )

    def ends(self, key: ProcessKey, comm: bytes = b"x") -> None:
        """The process ends, under that name."""
        task = self._task(key, self.node.entry(key).real_parent, comm)
        self.node.take(an_exit(task))

    def names(self, key: ProcessKey, comm: bytes) -> Role:
        """The process names itself; returns its role."""
        task = self._task(key, self.node.entry(key).real_parent, comm)
        return self.node.take(a_prctl(task)).role

    def child(self, parent: ProcessKey, path: bytes, *args: bytes, **more: Any) -> Any:
        """A child of `parent` that runs `path`: its key."""
        key = self.born(parent)
        self.runs(key, path, *args, **more)
        return key

    def _task(
        self, key: ProcessKey, parent: ProcessKey, comm: bytes, **changes: Any
    ) -> Task:
        uid = changes.pop("uid", self._uid)
        image = an_image(
            comm, uid=uid, euid=uid, cgroup_id=self._cgroup.get(key, 77), **changes
        )
        return a_task(key.tgid, start_ns=key.start_ns, real_parent=parent, image=image)
