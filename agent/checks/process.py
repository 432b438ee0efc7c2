"""Who a process is, whose child, whether that is true, and what touched it.

In: a pid or an entity id, the pins and records of an agent, and this machine. Out: the
process with a verdict on its parentage and on its identity, its ancestors by birth as a
tree, and the accesses to it. Each claim names its source: kernel, /proc, or a record.
"""

import os
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from agent import clock
from agent.checks.family import Family, Member, key_of, raw_argv
from agent.checks.finding import CRITICAL, OK, UNKNOWN, WARNING, Finding
from agent.checks.tree import Tree
from agent.errors import UsageError
from agent.events import NOBODY, Parentage, ProcessKey, Task, Verdict
from agent.process import drift
from agent.process.drift import Born, Weight
from agent.process.look import InstalledPrograms, kernel_threads, look
from agent.process.proc import Proc
from agent.sensor.tasks import TaskViews
from agent.sinks.search import Record, Search, of_pid, of_targets
from agent.sinks.text import rfc3339, text

_ENTITY = re.compile(r"([0-9a-f]{12})-(\d+)-([0-9a-f]+)")
_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_WRONG = {Verdict.FORGED, Verdict.HIDDEN_FROM_PROC, Verdict.ONLY_IN_PROC}


def check(who: str, folder: Path, state: Path) -> Finding:
    """Look at one process, living or dead; UsageError when nobody knows it."""
    with ExitStack() as opened:
        views = None
        if os.geteuid() == 0:
            views = TaskViews(folder)
            opened.callback(views.close)
        proc = opened.enter_context(Proc.mounted())
        search = Search(state / "records")
        return _Inquiry(views, proc, search).answer(who)


class _Inquiry:
    """One question, and what is needed to answer it."""

    def __init__(self, views: TaskViews | None, proc: Proc, search: Search) -> None:
        self._proc, self._search = proc, search
        self._boot = clock.boot_id().replace("-", "")[:12]
        self._kernel = views is not None and views.views["task chain"]
        live = views.one if views else _nobody
        self._live = live
        self._family = Family(search, live, self._boot)

    def answer(self, who: str) -> Finding:
        key = self._whom(who)
        self._family.gather(key)
        document = self._document(key)
        return Finding([*Tree(document).lines()], document, _code(document))

    def _whom(self, who: str) -> ProcessKey:
        if match := _ENTITY.fullmatch(who):
            if match[1] != self._boot:
                raise UsageError(f"{who} is of another boot; this one is {self._boot}")
            return ProcessKey(int(match[2]), int(match[3], 16))
        if not who.isdigit():
            raise UsageError(f"{who!r} is neither a pid nor an entity id")
        pid = int(who)
        if task := self._live(pid):
            return task.key
        return self._by_record(pid)

    def _by_record(self, pid: int) -> ProcessKey:
        """Take the process that /proc shows, or else the last one with this pid."""
        stat = self._proc.stat(pid)
        start = stat.start_ticks * _TICK_NS if stat else 0
        last = self._search.last(of_pid(pid))
        known = key_of(last["process"]) if last else NOBODY
        if stat and known.start_ns // _TICK_NS != stat.start_ticks:
            return ProcessKey(pid, start)
        if known == NOBODY:
            raise UsageError(f"there is no process {pid}, and no record of one here")
        return known

    def _document(self, key: ProcessKey) -> dict[str, Any]:
        family = self._family
        now, told = self._live(key.tgid), family.verdict(key)
        stale = now is not None and now.key != key
        verdict = Verdict.STALE_PID if stale else self._verdict(key, told)
        lineage = [self._person(one) for one in family.chain(key)]
        return {
            **self._person(key),
            "verdict": str(verdict) if verdict else None,
            "pid_is_now": self._name(now.key) if now and stale else None,
            "kernel": self._facts(family.tasks.get(key)),
            "proc": self._of_proc(key),
            "drift": self._drift(key),
            "lineage": lineage[1:],
            "lineage_is_whole": family.is_whole(key),
            "touched_by": [*self._touched(key)],
            "records_not_chained": self._search.broken,
            "kernel_was_asked": self._kernel,
        }

    def _verdict(self, key: ProcessKey, told: Parentage | None) -> str | None:
        """Take what is true now, or what was recorded last."""
        stat = self._proc.stat(key.tgid)
        if told is not None:
            return told.verdict if stat else Verdict.HIDDEN_FROM_PROC
        if self._kernel and stat and stat.start_ticks == key.start_ns // _TICK_NS:
            return Verdict.ONLY_IN_PROC
        member = self._family.members.get(key, Member())
        last = member.program or member.birth
        return last["ir"].get("parentage", {}).get("verdict") if last else None

    def _person(self, key: ProcessKey) -> dict[str, Any]:
        """Return who somebody is, and from where that is known."""
        family = self._family
        entry, member = family.process(key), family.members.get(key, Member())
        about = {
            **self._name(key),
            "executable": text(entry.executable) if entry else "",
            "args": text(entry.argv[:-1]).split("\0") if entry and entry.argv else [],
            "runs": key in family.tasks or self._runs(key),
            "records": {
                name: record["event"]["sequence"]
                for name in ("birth", "program", "end")
                if (record := getattr(member, name))
            },
        }
        if member.end:
            about["ended"] = member.end["@timestamp"]
        told = family.verdict(key)
        about["parentage"] = str(told.verdict) if told else None
        return about | {"evidence": self._evidence(told)}

    def _name(self, key: ProcessKey) -> dict[str, Any]:
        entry = self._family.process(key)
        start = rfc3339(key.start_ns + clock.wall_anchor().offset_ns)
        name = text(entry.comm) if entry else ""
        entity = self._family.entity(key)
        return {"pid": key.tgid, "name": name, "entity_id": entity, "start": start}

    def _runs(self, key: ProcessKey) -> bool:
        stat = self._proc.stat(key.tgid)
        return stat is not None and stat.start_ticks == key.start_ns // _TICK_NS

    def _evidence(self, told: Parentage | None) -> dict[str, Any]:
        if told is None:
            return {}
        people = {
            "creator": told.creator,
            "birth_parent": told.birth_parent,
            "real_parent": told.parent,
            "tracer": told.tracer,
            "exited": told.exited,
        }
        found: dict[str, Any] = {
            role: self._name(key) for role, key in people.items() if key != NOBODY
        }
        if told.exited_ns:
            at = rfc3339(told.exited_ns + clock.wall_anchor().offset_ns)
            found["exited"]["end"] = at
        return found | ({"reason": told.why} if told.why else {})

    def _facts(self, task: Task | None) -> dict[str, Any] | None:
        if task is None:
            return None
        return {
            "real_parent": task.real_parent.tgid,
            "parent": task.parent.tgid,
            "leader": task.leader,
            "ptrace": task.ptrace,
            "kernel_thread": task.kernel,
            "name": text(task.image.comm),
        }

    def _of_proc(self, key: ProcessKey) -> dict[str, Any] | None:
        if not self._runs(key):
            return None
        stat, status = self._proc.stat(key.tgid), self._proc.status(key.tgid)
        if stat is None or status is None:
            return None
        return {"ppid": stat.ppid, "tracer": status.tracer, "name": text(stat.comm)}

    def _drift(self, key: ProcessKey) -> list[dict[str, str]]:
        """Hold what it looks like now against its last exec."""
        member = self._family.members.get(key, Member())
        now = look(key.tgid) if self._runs(key) else None
        if now is None or member.program is None:
            return []
        programs = InstalledPrograms(Path("/proc") / str(key.tgid))
        found = drift.judge(_born(member.program), now, programs, kernel_threads())
        return [
            {"kind": one.kind, "weight": one.weight, "reason": one.why}
            | {"was": text(one.was), "now": text(one.now)}
            for one in found
        ]

    def _touched(self, key: ProcessKey) -> Iterator[dict[str, Any]]:
        """Return who reached into it, by whom and way; folded counts are summed up."""
        told: dict[tuple[str, str, str], dict[str, Any]] = {}
        wanted = of_targets({self._family.entity(key)})
        for record in self._search.find(wanted):
            who, event = record["process"], record["event"]
            way = (who["entity_id"], event["action"], event["outcome"])
            one = told.setdefault(
                way,
                {
                    "pid": who["pid"],
                    "name": who["name"],
                    "entity_id": who["entity_id"],
                    "action": event["action"],
                    "outcome": event["outcome"],
                    "first": record["@timestamp"],
                    "record": event["sequence"],
                },
            )
            one["last"] = record["@timestamp"]
            one["count"] = max(one.get("count", 0), record["ir"]["access"]["count"])
        yield from told.values()


def _nobody(_pid: int) -> Task | None:
    return None


def _born(program: Record) -> Born:
    process, about = program["process"], program["ir"]
    major, _, minor = about["exe"]["device"].partition(":")
    return Born(
        executable=process.get("executable", "").encode("utf-8", "surrogateescape"),
        argv=raw_argv(program),
        argv_bytes=about["argv"]["bytes"],
        comm=process["name"].encode("utf-8", "surrogateescape"),
        file=drift.File(int(about["exe"]["inode"]), int(major) << 20 | int(minor)),
        argv_sha256=bytes.fromhex(about["argv"]["sha256"]),
        invoked=about["exec"]["path"].encode("utf-8", "surrogateescape"),
        interpreter=about["exec"].get("interpreter", "").encode(),
        memfd=about["exe"]["memfd"],
    )


def _code(document: dict[str, Any]) -> int:
    verdict = document["verdict"]
    if verdict in _WRONG:
        return CRITICAL
    alarms = any(one["weight"] is Weight.ALARM for one in document["drift"])
    if alarms or verdict == Verdict.TRACED or document["records_not_chained"]:
        return WARNING
    known = verdict not in (None, Verdict.UNKNOWN_BEFORE_START, Verdict.STALE_PID)
    return OK if known else UNKNOWN
