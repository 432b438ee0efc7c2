"""Who a process is, whose child, whether that is true, and what touched it.

In: a pid or an entity id, the pins and records of an agent, and this machine. Out: the
process with a verdict on its parentage and on its identity, its ancestors by birth as a
tree, and the accesses to it. Each claim names its source: kernel, /proc, or a record.
"""

import os
import re
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from agent import clock
from agent.checks.family import Family, key_of
from agent.checks.finding import CRITICAL, OK, UNKNOWN, WARNING, Finding
from agent.checks.living import Living
from agent.checks.looks import looks
from agent.checks.people import People
from agent.checks.touches import touches
from agent.checks.tree import Tree
from agent.errors import NotPermittedError, UsageError
from agent.events import ProcessKey, Verdict
from agent.process.drift import Weight
from agent.process.proc import Proc
from agent.sensor.tasks import TaskViews
from agent.sinks.search import Search, of_pids

_ENTITY = re.compile(r"([0-9a-f]{12})-([0-9]{1,10})-([0-9a-f]{1,16})")
_PID = re.compile(r"[0-9]{1,10}")
_MAX_PID = (1 << 31) - 1
_WRONG = {Verdict.FORGED, Verdict.HIDDEN_FROM_PROC, Verdict.ONLY_IN_PROC}
_UNPROVEN = {None, Verdict.UNKNOWN_BEFORE_START, Verdict.STALE_PID}


def check(who: str, folder: Path, state: Path) -> Finding:
    """Look at one process, living or dead; UsageError for neither a pid nor an id."""
    with ExitStack() as opened:
        views, why_not = _views(folder)
        if views:
            opened.callback(views.close)
        proc = opened.enter_context(Proc.mounted())
        private = None
        with suppress(NotPermittedError, OSError):  # before 5.2 there is none
            private = opened.enter_context(Proc.private())
        living = Living(views, proc, private, why_not)
        return _Inquiry(living, Search(state / "records")).answer(who)


def _views(folder: Path) -> tuple[TaskViews | None, str]:
    """Open the kernel's views, or say why it can't be asked."""
    if os.geteuid():
        return None, "that takes root"
    try:
        views = TaskViews(folder)
    except OSError as error:
        return None, f"{folder}: {error.strerror}"
    if views.views["task chain"]:
        return views, ""
    views.close()
    return None, f"no probes that can tell are loaded in {folder}"


class _Inquiry:
    """One question, and what is needed to answer it."""

    def __init__(self, living: Living, search: Search) -> None:
        self._living, self._search = living, search
        self._boot = clock.boot_id().replace("-", "")[:12]
        self._family = Family(search, living, self._boot)
        self._people = People(self._family, living)

    def answer(self, who: str) -> Finding:
        key = self._whom(who)
        if key is None:
            return self._nobody(who, "", int(who) if who.isdecimal() else 0)
        if isinstance(key, str):
            return self._nobody(who, key, 0)
        self._family.gather(key)
        if not self._family.knows(key):
            return self._nobody(who, "", key.tgid)
        document = {"asked": who, **self._document(key)}
        return Finding([*Tree(document).lines()], document, _code(document))

    def _nobody(self, who: str, why: str, pid: int) -> Finding:
        """Say that there is nobody, or why that can't be said."""
        known = self._living.misses_none(pid)
        nobody = "no process" if known else "whether it is a process can't be said"
        notes = [f"{who}: {why or f'{nobody}, and no record of one'}", *self._notes()]
        covered = [one.text for one in self._living.covers(pid)]
        notes += covered
        code = WARNING if covered else UNKNOWN
        return Finding(notes, {"asked": who, "notes": notes}, code)

    def _whom(self, who: str) -> ProcessKey | str | None:
        """Return whom this names; None for nobody, or why that can't be said."""
        if match := _ENTITY.fullmatch(who):
            if match[1] != self._boot:
                see = f"ir-check records --where process.entity_id={who}"
                return f"of another boot; this one is {self._boot}. Try {see}"
            key = ProcessKey(int(match[2]), int(match[3], 16))
            self._living.learn([key])
            return key if 0 < key.tgid <= _MAX_PID else None
        if not _PID.fullmatch(who):
            raise UsageError(f"{who!r} is neither a pid nor an entity id")
        return self._by_pid(int(who)) if 0 < int(who) <= _MAX_PID else None

    def _by_pid(self, pid: int) -> ProcessKey | None:
        """Take who has this pid now, or else who had it last."""
        if self._living.why_not:  # /proc gives no exact key; the records do
            pids = [pid, *self._living.parents(pid)]
            found = self._search.find(of_pids(pids, self._boot))
            self._living.learn(key_of(record["process"]) for record in found)
        if task := self._living.task(pid):
            return task.key
        last = self._search.last(of_pids([pid], self._boot))
        return key_of(last["process"]) if last else None

    def _document(self, key: ProcessKey) -> dict[str, Any]:
        living, family, people = self._living, self._family, self._people
        verdict, source = self._verdict(key)
        now, program = family.tasks.get(key), family.member(key).program
        chain, end = family.chain(key)
        person, *lineage = [people.person(one) for one in chain]
        other = living.task(key.tgid) if verdict == Verdict.STALE_PID else None
        return {
            **person,
            "entity_is_exact": living.is_exact(key) or program is not None,
            "verdict": verdict,
            "verdict_source": source,
            "pid_is_now": people.stranger(other) if other else None,
            "kernel": None if living.why_not or not now else people.facts(now),
            "proc": living.by_proc(key),
            "covered": (covered := [one.text for one in living.covers(key.tgid)]),
            "disagreements": living.disagreements(key),
            "looks": looks(key, program) if person["lives"] and not covered else [],
            "alerts": [_alert(one) for one in family.member(key).alerts],
            "lineage": lineage,
            "lineage_end": end,
            "touched_by": touches(family.touches),
            "records_used": bool(family.members or family.touches),
            "records_not_chained": self._search.broken,
            "notes": self._notes(),
        }

    def _verdict(self, key: ProcessKey) -> tuple[str | None, str]:
        """Return what is true now, or was recorded last, and whose word that is."""
        by_kernel, by_proc = self._living.differs(key)
        if by_kernel and not by_proc:
            source = "our own /proc" if self._living.why_not else "kernel"
            return Verdict.HIDDEN_FROM_PROC, f"{source}, /proc"
        if by_proc and not by_kernel:
            return Verdict.ONLY_IN_PROC, "kernel, /proc"
        if by_kernel and (told := self._family.verdict(key)):
            return told.verdict, self._living.source
        known = self._living.misses_none(key.tgid)
        if known and not by_kernel and self._living.task(key.tgid):
            return Verdict.STALE_PID, self._living.source
        return self._family.member(key).verdict

    def _notes(self) -> list[str]:
        """Say what was not asked, and why."""
        notes = [f"/proc can't be compared: {why}" for why in self._living.incomparable]
        if self._living.why_not:
            notes.append(f"the kernel was not asked: {self._living.why_not}")
        if self._search.unread:
            notes.append(f"its past is not known: {self._search.unread}")
        return notes


def _alert(record: dict[str, Any]) -> dict[str, Any]:
    told = record["ir"]["discrepancy"]
    return {
        "kind": told["kind"],
        "reason": told["reason"],
        "at": record["@timestamp"],
        "record": record["event"]["sequence"],
    }


def _code(document: dict[str, Any]) -> int:
    verdict = document["verdict"]
    if verdict in _WRONG or document["alerts"] or document["disagreements"]:
        return CRITICAL
    alarms = any(one["weight"] == Weight.ALARM for one in document["looks"])
    doubted = document["covered"] or document["records_not_chained"]
    if alarms or doubted or verdict == Verdict.TRACED:
        return WARNING
    return UNKNOWN if verdict in _UNPROVEN or document["notes"] else OK
