"""One process and its ancestors, as the records of this node and the kernel know them.

In: an entity, a search of the records, and who lives. Out: a ledger made of the same
events that the agent had, so that the same code judges, and for each process the
records that say so. Only records about these processes are read.
"""

import base64
import time
from collections.abc import Iterator
from typing import Any

import msgspec

from agent.checks.living import Living, plain_task
from agent.events import (
    NOBODY,
    ChainEnd,
    Event,
    Exec,
    Exit,
    Fork,
    Parentage,
    ProcessKey,
    Task,
    Verdict,
)
from agent.process import procfs
from agent.process.ledger import Ledger
from agent.process.lineage import Lineages
from agent.process.look import look
from agent.process.parentage import Parentages
from agent.process.proc import TICK_NS
from agent.sinks.search import (
    Record,
    Search,
    of_either,
    of_processes,
    of_targets,
)

_PAUSE_S = 0.05
_DEPTH = 64
"""Generations that are followed; a chain that is longer is said to be."""


class Member(msgspec.Struct):
    """What the records say of one process: the last of each kind, and the alerts."""

    birth: Record | None = None
    program: Record | None = None
    end: Record | None = None
    last: Record | None = None
    alerts: list[Record] = msgspec.field(default_factory=list)

    @property
    def judged(self) -> Record | None:
        """The last record with a verdict on its parentage."""
        return self.program or self.birth

    @property
    def verdict(self) -> tuple[str | None, str]:
        """That verdict, and which record it is."""
        told = self.judged["ir"].get("parentage", {}) if self.judged else {}
        return told.get("verdict"), on_record(self.judged) if told else ""

    @property
    def numbers(self) -> dict[str, int]:
        """The numbers of its records, by what they tell."""
        told = {"birth": self.birth, "program": self.program, "end": self.end}
        return {name: one["event"]["sequence"] for name, one in told.items() if one}


class Family:
    """A process, its ancestors by birth, and whoever is named beside them."""

    def __init__(self, search: Search, living: Living, boot: str) -> None:
        """Search these records; entity ids of this boot begin with `boot`."""
        self._search, self._living, self._boot = search, living, boot
        self.ledger = Ledger()
        self.members: dict[ProcessKey, Member] = {}
        self.touches: list[Record] = []
        """Those in which the process was reached into."""
        self.tasks: dict[ProcessKey, Task] = {}
        """Those that live, as they are now."""
        lineages = Lineages(self.ledger)
        self._parentages = Parentages(self.ledger, lineages, procfs.alive, self._reaps)

    def _reaps(self, key: ProcessKey) -> bool:
        # a /proc that can't be compared speaks against nobody
        return not self._living.comparable or procfs.reaps(key)

    def entity(self, key: ProcessKey) -> str:
        """Return the entity id of a process of this boot."""
        return f"{self._boot}-{key.tgid}-{key.start_ns:x}"

    def gather(self, key: ProcessKey) -> None:
        """Find a process, its ancestors as far as anybody knows, and its accesses."""
        wanted, known = {key, *self._living_ancestors(key)} - {NOBODY}, {NOBODY}
        told = self._records(wanted, touched=key)
        for _ in range(_DEPTH):
            known |= wanted
            wanted = {one for key in wanted for one in self._related(key)} - known
            if not wanted:
                break
            self._living.learn(wanted)
            told += self._records(wanted)
        for _, event in sorted(told, key=lambda one: one[0]):
            self.ledger.apply(event)
        for one in known - {NOBODY}:
            self._observe(one)
        self._climb(key)

    def _records(
        self, wanted: set[ProcessKey], touched: ProcessKey | None = None
    ) -> list[tuple[int, Event]]:
        """Read the log once for these and for accesses to one; returns their events."""
        about = of_processes({self.entity(one) for one in wanted})
        if touched:
            about = of_either(about, of_targets({self.entity(touched)}))
        found = []
        for record in self._search.find(about):
            if touched and key_of(record["ir"].get("target", {})) == touched:
                self.touches.append(record)
            if key_of(record["process"]) in wanted:
                self._note(record)
                if event := replayed(record):
                    found.append((record["event"]["sequence"], event))
        return found

    def _living_ancestors(self, key: ProcessKey) -> list[ProcessKey]:
        """Return who they are now, so that one search finds the records of all."""
        task, found = self._living.task(key.tgid), [key]
        while task and task.key == found[-1] and len(found) < _DEPTH:
            found.append(task.real_parent)
            task = self._living.task(task.real_parent.tgid)
        return found

    def _note(self, record: Record) -> None:
        member = self.members.setdefault(key_of(record["process"]), Member())
        if record["event"]["action"] == "discrepancy":
            member.alerts.append(record)
            return
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
        member = self.member(key)
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
        """Take the word of now of who lives."""
        task = self._living.task(key.tgid)
        if task is None or task.key != key:
            return None
        self.tasks[key] = task
        if self.ledger.get(key) is None and not self._living.covers(key.tgid):
            self.ledger.observe(task, *_described(key))
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

    def chain(self, key: ProcessKey) -> tuple[list[ProcessKey], ChainEnd]:
        """Return a process, its ancestors by birth, and why there are no more."""
        found: list[ProcessKey] = []
        while len(found) < _DEPTH:
            found.append(key)
            entry = self.ledger.get(key)
            if entry is None:
                return found, ChainEnd.UNKNOWN_PARENT
            key = entry.real_parent
            if key == NOBODY:
                return found, ChainEnd.ROOT
            if key in found:
                return found, ChainEnd.CYCLE
        return found, ChainEnd.DEPTH

    def verdict(self, key: ProcessKey) -> Parentage | None:
        """Judge a process that lives; None for one that does not, or nobody can tell.

        What could be a race is judged again a moment later.
        """
        if not self._living.believed(key.tgid):
            return None
        entry, task = self.ledger.get(key), self.tasks.get(key)
        told = self._parentages.of(entry, task) if entry and task else None
        if told and told.verdict is Verdict.FORGED and entry:
            time.sleep(_PAUSE_S)
            if task := self._observe(key):
                told = self._parentages.of(entry, task)
        return told

    def member(self, key: ProcessKey) -> Member:
        """Return what the records say of a process, be it nothing."""
        return self.members.get(key) or Member()

    def knows(self, key: ProcessKey) -> bool:
        """Whether anybody but the asker speaks of this process."""
        return key in self.members or key in self.tasks


def on_record(record: Record | None) -> str:
    """Name a record as a source; nothing for none."""
    return f"record {record['event']['sequence']}" if record else ""


def key_of(about: dict[str, Any]) -> ProcessKey:
    """Return the key of a process by its entity id; NOBODY for none."""
    _, _, rest = about.get("entity_id", "").partition("-")
    tgid, _, start = rest.partition("-")
    return ProcessKey(int(tgid), int(start, 16)) if start else NOBODY


def _described(key: ProcessKey) -> tuple[bytes, bytes]:
    """Return executable and argv of one that lives, without waiting for it."""
    now = look(key.tgid)
    if now is None or now.start_ticks != key.start_ns // TICK_NS:
        return b"", b""
    return now.executable, now.cmdline or b""


def replayed(record: Record) -> Event | None:
    """Return the event a record was made of, for a ledger; None for other records."""
    action = record["event"]["action"]
    if action not in ("fork", "exec", "exit"):
        return None
    process, about = record["process"], record["ir"]
    at = (0, 0, about["clock"]["bt_ns"], 0, 1, False, _task(process, about), b"")
    if action == "fork":
        return Fork(*at, key_of(about["creator"]), about["creator"]["tid"], 0)
    if action == "exit":
        return Exit(*at, process.get("exit_code", 0) << 8)
    argv, executable = raw_argv(record), _bytes(process.get("executable", ""))
    sizes = (process["thread"]["id"], len(process["args"]), about["argv"]["bytes"])
    return Exec(*at, *sizes, argv, executable, b"", b"", ())


def _task(process: dict[str, Any], about: dict[str, Any]) -> Task:
    return plain_task(
        key_of(process),
        key_of(process.get("parent", {})),
        key_of(about.get("tracer", {})),
        _bytes(process["name"]),
        int(process["user"]["id"]),
    )


def raw_argv(record: Record) -> bytes:
    """Return the bytes of argv that a record holds, NUL after each whole argument."""
    if exact := record["ir"]["argv"].get("raw_base64"):
        args = [base64.b64decode(one) for one in exact]
    else:
        args = [_bytes(one) for one in record["process"]["args"]]
    return b"".join(one + b"\0" for one in args)[: record["ir"]["argv"]["bytes"]]


def _bytes(said: str) -> bytes:
    return said.encode("utf-8", "surrogateescape")
