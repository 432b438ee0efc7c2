"""Processes as values for a document: who each is, and from where that is known.

In: a family, and who lives. Out: names, programs, times and evidence, each with the
number of the record that says so, or with the source that was asked now.
"""

from typing import Any

from agent import clock
from agent.checks.family import Family, Member, key_of, on_record
from agent.checks.living import Living
from agent.events import NOBODY, Parentage, ProcessKey, Task
from agent.sinks.text import rfc3339, text


class People:
    """Names everybody by one clock: the same start is the same text everywhere."""

    def __init__(self, family: Family, living: Living) -> None:
        """Tell of this family."""
        self._family, self._living = family, living
        self._wall_ns = clock.wall_anchor().offset_ns

    def person(self, key: ProcessKey) -> dict[str, Any]:
        """Return who somebody is, how it began and ended, and its parentage."""
        member = self._family.member(key)
        end = member.end
        parentage, evidence = self._parentage(key)
        return {
            **self._name(key),
            **self._program(key),
            "user": self._user(key),
            "lives": self._lives(key) if end is None else False,
            "ended": end["@timestamp"] if end else None,
            "exit_code": end["process"].get("exit_code") if end else None,
            "signal": end["ir"].get("exit", {}).get("signal") if end else None,
            "parentage": parentage,
            "evidence": evidence,
            "records": member.numbers,
        }

    def stranger(self, task: Task) -> dict[str, Any]:
        """Return who has a pid now that another one had."""
        name = text(task.image.comm)
        return self._name(task.key) | {"name": name, "source": self._living.source}

    def facts(self, task: Task) -> dict[str, Any]:
        """Return what the kernel holds of its parentage."""
        return {
            "real_parent": task.real_parent.tgid,
            "parent": task.parent.tgid,
            "leader": task.leader,
            "ptrace": task.ptrace,
            "kernel_thread": task.kernel,
            "name": text(task.image.comm),
        }

    def _name(self, key: ProcessKey) -> dict[str, Any]:
        entry, task = self._family.ledger.get(key), self._family.tasks.get(key)
        comm = task.image.comm if task else entry.comm if entry else b""
        return {
            "pid": key.tgid,
            "name": text(comm),
            "entity_id": self._family.entity(key),
            "start": self._start(key),
        }

    def _start(self, key: ProcessKey) -> str:
        """Return it as the records have it; what is reckoned now has no such digits."""
        if last := self._family.member(key).last:
            return str(last["process"]["start"])
        return rfc3339(round(key.start_ns + self._wall_ns, -6))[:-7] + "Z"

    def _lives(self, key: ProcessKey) -> bool | None:
        """Say whether it does; None where that it is not shown says nothing."""
        if key in self._family.tasks or self._living.shown(key) is not None:
            return True
        return False if self._living.misses_none(key.tgid) else None

    def _user(self, key: ProcessKey) -> dict[str, str] | None:
        if last := self._family.member(key).last:
            user: dict[str, str] = last["process"]["user"]
            return user
        task = self._family.tasks.get(key)
        euid = task.image.context.euid if task and not self._living.why_not else None
        return None if euid is None else {"id": str(euid)}

    def _program(self, key: ProcessKey) -> dict[str, Any]:
        """Return executable and argv by its exec, or else by what is known instead."""
        if program := self._family.member(key).program:
            process, argv = program["process"], program["ir"]["argv"]
            return {
                "executable": process.get("executable", ""),
                "args": process["args"],
                "args_cut": argv["truncated"],
                "program_source": on_record(program),
            }
        entry = self._family.ledger.get(key)
        raw = entry.argv if entry else b""
        path = text(entry.executable) if entry else ""
        born = entry is not None and entry.creator != NOBODY
        source = "that of its creator: it has executed none" if born else "/proc"
        return {
            "executable": path,
            "args": text(raw.removesuffix(b"\0")).split("\0") if raw else [],
            "args_cut": entry is not None and len(raw) < entry.argv_bytes,
            "program_source": source if path or raw else "",
        }

    def _parentage(self, key: ProcessKey) -> tuple[str | None, dict[str, Any]]:
        """Return its verdict and who is who, by what is true now or by its records."""
        member, told = self._family.member(key), self._family.verdict(key)
        verdict = told.verdict if told else member.verdict[0]
        now = self._now(key, told) if told else _last(member)
        people = now | _by_birth(member)
        if told and told.exited != NOBODY and "birth_parent" not in people:
            source = on_record(member.judged) or "first met as"
            people["birth_parent"] = (told.birth_parent, source)
        evidence = {
            role: self._name(one) | {"source": source}
            for role, (one, source) in people.items()
            if one != NOBODY
        }
        if gone := evidence.get("exited"):
            end = self._family.member(people["exited"][0]).end
            gone["ended"] = end["@timestamp"] if end else None
        why = told.why if told else _reason(member)
        return verdict, evidence | ({"reason": why} if why else {})

    def _now(self, key: ProcessKey, told: Parentage) -> "Who":
        end = self._family.member(told.exited).end
        parent = self._family.tasks[key].real_parent
        return {
            "exited": (told.exited, on_record(end) or "its end is not on record"),
            "real_parent": (parent, self._living.source),
            "tracer": (told.tracer, self._living.source),
        }


Who = dict[str, tuple[ProcessKey, str]]
"""Who is what to a process, and whose word that is."""


def _by_birth(member: Member) -> Who:
    birth = member.birth
    if birth is None:
        return {}
    return {
        "creator": (key_of(birth["ir"]["creator"]), on_record(birth)),
        "birth_parent": (key_of(birth["process"]["parent"]), on_record(birth)),
    }


def _last(member: Member) -> Who:
    """Return what the last records say of one that has ended."""
    found: Who = {}
    if judged := member.judged:
        told = judged["ir"].get("parentage", {})
        for role in ("birth_parent", "exited", "tracer"):
            if role in told:
                found[role] = (key_of(told[role]), on_record(judged))
    if last := member.last:
        parent = key_of(last["process"].get("parent", {}))
        found["real_parent"] = (parent, on_record(last))
    return found


def _reason(member: Member) -> str:
    told = member.judged["ir"].get("parentage", {}) if member.judged else {}
    return str(told.get("reason", ""))
