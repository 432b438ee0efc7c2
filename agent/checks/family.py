"""One process and its ancestors, as the records of this node and the kernel know them.

In: an entity, a search of the records, and who lives. Out: a ledger made of the same
events that the agent had, so that the same code judges, and for each process the
records that say so. Only records about these processes are read.
"""

import base64
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from agent.events import (
    NOBODY,
    Context,
    Event,
    Exec,
    Executable,
    Exit,
    Fork,
    Image,
    Parentage,
    Process,
    ProcessKey,
    Task,
)
from agent.process import procfs
from agent.process.ledger import Ledger
from agent.process.lineage import Lineages
from agent.process.parentage import Parentages
from agent.sinks.search import Record, Search, of_processes

_NO_FILE = Executable(0, 0, 0, 0, 0, memfd=False, deleted=False)
_CONTEXT = Context(*[0] * 25)
_DEPTH = 64
"""Generations that are followed; a chain that is longer is said to be."""


class Member(msgspec.Struct):
    """What the records say of one process: the last of each kind, and how many."""

    birth: Record | None = None
    program: Record | None = None
    end: Record | None = None
    last: Record | None = None
    records: int = 0


class Family:
    """A process, its ancestors by birth, and whoever is named beside them."""

    def __init__(
        self, search: Search, live: Callable[[int], Task | None], boot: str
    ) -> None:
        """Search these records; `live` gives the kernel's task of a pid."""
        self._search, self._live, self._boot = search, live, boot
        self.ledger = Ledger()
        self.members: dict[ProcessKey, Member] = {}
        self.tasks: dict[ProcessKey, Task] = {}
        """Those that live, as the kernel has them now."""
        lineages = Lineages(self.ledger)
        self._parentages = Parentages(self.ledger, lineages, procfs.alive, procfs.reaps)

    def entity(self, key: ProcessKey) -> str:
        """Return the entity id of a process of this boot."""
        return f"{self._boot}-{key.tgid}-{key.start_ns:x}"

    def gather(self, key: ProcessKey) -> None:
        """Find a process and, as far as anybody knows, all of its ancestors."""
        events: list[tuple[int, Event]] = []
        wanted, known = {key}, {NOBODY}
        for _ in range(_DEPTH):
            wanted -= known
            if not wanted:
                break
            known |= wanted
            entities = {self.entity(one) for one in wanted}
            for record in self._search.find(of_processes(entities)):
                self._note(record)
                if event := replayed(record):
                    events.append((record["event"]["sequence"], event))
            wanted = {one for key in wanted for one in self._related(key)}
        for _, event in sorted(events, key=lambda one: one[0]):
            self.ledger.apply(event)
        for one in known - {NOBODY}:
            self._observe(one)
        self._climb(key)

    def _note(self, record: Record) -> None:
        member = self.members.setdefault(key_of(record["process"]), Member())
        member.records += 1
        member.last = record
        match record["event"]["action"]:
            case "fork":
                member.birth = record
            case "exec":
                member.program = record
            case "exit":
                member.end = record

    def _related(self, key: ProcessKey) -> Iterator[ProcessKey]:
        """Name the processes that records of this one speak of, and its parent now."""
        member = self.members.get(key, Member())
        for record in filter(None, (member.birth, member.program, member.last)):
            if "parent" in record["process"]:
                yield key_of(record["process"]["parent"])
            about = record["ir"]
            named = [*about.get("parentage", {}).values(), about.get("creator")]
            named += about.get("ancestry", {}).get("chain", ())
            for one in named:
                if isinstance(one, dict) and one.get("entity_id", "").startswith(
                    self._boot
                ):
                    yield key_of(one)

    def _observe(self, key: ProcessKey) -> Task | None:
        """Take the kernel's word of who lives."""
        task = self._live(key.tgid)
        if task is None or task.key != key:
            return None
        self.tasks[key] = task
        if self.ledger.get(key) is None:
            self.ledger.observe(task, *procfs.describe(task))
        else:
            self.ledger.observe(task, b"", b"")
        return task

    def _climb(self, key: ProcessKey) -> None:
        """Follow the parents, by birth and of now, of whom the records do not know."""
        for start in (
            key,
            *([self.tasks[key].real_parent] if key in self.tasks else []),
        ):
            at, depth = start, 0
            while at != NOBODY and depth < _DEPTH:
                entry = self.ledger.get(at)
                if entry is None and self._observe(at) is None:
                    break
                entry = self.ledger.get(at)
                at, depth = entry.real_parent if entry else NOBODY, depth + 1

    def chain(self, key: ProcessKey) -> list[ProcessKey]:
        """Return a process and its known ancestors by birth, nearest first."""
        found: list[ProcessKey] = []
        while key != NOBODY and key not in found and len(found) < _DEPTH:
            found.append(key)
            entry = self.ledger.get(key)
            key = entry.real_parent if entry else NOBODY
        return found

    def is_whole(self, key: ProcessKey) -> bool:
        """Whether the chain of ancestors ends at a process that has no parent."""
        entry = self.ledger.get(self.chain(key)[-1])
        return entry is not None and entry.real_parent == NOBODY

    def verdict(self, key: ProcessKey) -> Parentage | None:
        """Judge a process that lives; None for one that does not."""
        entry, task = self.ledger.get(key), self.tasks.get(key)
        return self._parentages.of(entry, task) if entry and task else None

    def process(self, key: ProcessKey) -> Process | None:
        """Return the entry of a process."""
        return self.ledger.get(key)


def key_of(about: dict[str, Any]) -> ProcessKey:
    """Return the key of a process by its entity id; NOBODY for none."""
    _, _, rest = about.get("entity_id", "").partition("-")
    tgid, _, start = rest.partition("-")
    return ProcessKey(int(tgid), int(start, 16)) if start else NOBODY


def replayed(record: Record) -> Event | None:
    """Return the event a record was made of, for a ledger; None for other records."""
    process, about = record["process"], record["ir"]
    task = _task(process, about)
    at = (0, 0, about["clock"]["bt_ns"], 0, 1, False, task, b"")
    match record["event"]["action"]:
        case "fork":
            return Fork(*at, key_of(about["creator"]), about["creator"]["tid"], 0)
        case "exec":
            argv, executable = raw_argv(record), _bytes(process.get("executable", ""))
            size = about["argv"]["bytes"]
            return Exec(
                *at,
                task.tid,
                len(process["args"]),
                size,
                argv,
                executable,
                b"",
                b"",
                (),
            )
        case "exit":
            return Exit(*at, process.get("exit_code", 0) << 8)
    return None


def _task(process: dict[str, Any], about: dict[str, Any]) -> Task:
    key, parent = key_of(process), key_of(process.get("parent", {}))
    tracer = key_of(about.get("tracer", {}))
    context = msgspec.structs.replace(_CONTEXT, euid=int(process["user"]["id"]))
    return Task(
        key,
        parent,
        parent if tracer == NOBODY else tracer,
        process["thread"]["id"],
        pgid=0,
        sid=0,
        vpid=process["vpid"],
        ptrace=int(tracer != NOBODY),
        leader=key.tgid,
        kernel=False,
        image=Image(_bytes(process["name"]), _NO_FILE, context),
    )


def raw_argv(record: Record) -> bytes:
    """Return the bytes of argv that a record holds, NUL after each argument."""
    if exact := record["ir"]["argv"].get("raw_base64"):
        args = [base64.b64decode(one) for one in exact]
    else:
        args = [_bytes(one) for one in record["process"]["args"]]
    return b"".join(one + b"\0" for one in args)


def _bytes(said: str) -> bytes:
    return said.encode("utf-8", "surrogateescape")
