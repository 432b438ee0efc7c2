"""Is every process's parent its parent? The kernel, /proc and the agent's ledger.

In: the pins of an agent, its records, and this machine. Out: who is traced and by whom,
whom two sources give different parents, and what the agent's last census said. Without
root or pins only /proc can be asked, which is said.
"""

import os
import time
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

from agent import clock
from agent.checks.finding import CRITICAL, OK, UNKNOWN, WARNING, Finding, gravest
from agent.events import Task, Verdict
from agent.process.parentage import contradiction
from agent.process.proc import Proc
from agent.sinks.search import Record, Search, of_actions
from agent.sinks.text import safe, sentence, text
from agent.sweep import Sweep

_PAUSE_S = 0.05
_BEATS_MISSED, _USUAL_S = 3, 10.0
_NEWEST = 2
"""Segments that are searched for what the agent said last."""


def check(folder: Path, state: Path) -> Finding:
    """Look now, and at what the agent has recorded."""
    now = (
        _kernel(folder)
        if os.geteuid() == 0
        else _by_proc("only /proc was asked: the kernel takes root")
    )
    agent = _census(state)
    lines = [*now.lines, *agent.lines]
    code = gravest((now.exit_code, agent.exit_code))
    return Finding(lines, {"now": now.document, "agent": agent.document}, code)


def _kernel(folder: Path) -> Finding:
    sweep = Sweep(folder)
    try:
        tasks = sweep.views.tasks()
        if not tasks:
            return _by_proc("only /proc was asked: no probes are loaded")
        sweep.doubt()
        wrong = [
            {"pid": one.key.tgid, "reason": one.why}
            for one in sweep.compare(sweep.views.listing(changes=False))
            if one.kind is Verdict.FORGED
        ]
        wrong += _contradictions(sweep, tasks)
        doubts = "; ".join(one.text for one in sweep.doubts)
        note = "" if sweep.comparable else f"not compared with /proc: {doubts}"
    finally:
        sweep.close()
    names = {task.key.tgid: task.image.comm for task in tasks}
    traced = [
        {
            "pid": one.key.tgid,
            "name": text(one.image.comm),
            "tracer": {
                "pid": one.parent.tgid,
                "name": text(names.get(one.parent.tgid, b"")),
            },
        }
        for one in tasks
        if one.ptrace
    ]
    return _now(len(tasks), "kernel", traced, wrong, note)


def _contradictions(sweep: Sweep, tasks: Iterable[Task]) -> list[dict[str, Any]]:
    """Find facts that can't be, and are so a moment later, too."""
    doubted = {task.key: why for task in tasks if (why := contradiction(task))}
    if not doubted:
        return []
    time.sleep(_PAUSE_S)
    return [
        {"pid": task.key.tgid, "reason": why}
        for task in sweep.views.tasks()
        if task.key in doubted and (why := contradiction(task))
    ]


def _by_proc(note: str) -> Finding:
    """Say who is traced by the word of /proc, which is all that can be had."""
    with Proc.mounted() as proc:
        pids = proc.pids()
        traced = [
            {"pid": pid, "name": _name(proc, pid), "tracer": _who(proc, tracer)}
            for pid in sorted(pids)
            if (tracer := proc.tracer(pid))
        ]
    return _now(len(pids), "/proc", traced, [], note)


def _who(proc: Proc, pid: int) -> dict[str, Any]:
    return {"pid": pid, "name": _name(proc, pid)}


def _name(proc: Proc, pid: int) -> str:
    stat = proc.stat(pid)
    return text(stat.comm) if stat else ""


def _now(
    count: int,
    source: str,
    traced: list[dict[str, Any]],
    wrong: list[dict[str, Any]],
    note: str,
) -> Finding:
    lines = [f"parentage: {count} processes by {source}, {len(traced)} traced"]
    lines += [
        f"  traced: {safe(one['name'])}[{one['pid']}]"
        f" by {safe(one['tracer']['name'])}[{one['tracer']['pid']}]"
        for one in traced
    ]
    lines += [f"  FORGED: pid {one['pid']}: {one['reason']}" for one in wrong]
    lines += [f"  {sentence(note)}"] if note else []
    document = {
        "processes": count,
        "source": source,
        "traced": traced,
        "forged": wrong,
        "note": note,
    }
    code = CRITICAL if wrong else WARNING if traced else UNKNOWN if note else OK
    return Finding(lines, document, code)


def _census(state: Path) -> Finding:
    """Say what the agent's last heartbeat and its alerts in these records say."""
    search = Search(state / "records", newest=_NEWEST)
    beat = search.last(of_actions("heartbeat"))
    if beat is None:
        note = search.unread or "no agent has counted any in the newest records"
        return Finding([f"  births: {note}"], {"note": note}, UNKNOWN)
    told: dict[str, Any] = {"verdicts": {}, "births_unseen": 0, "ends_unseen": 0}
    told |= beat["ir"]["heartbeat"]  # an older agent counts less
    verdicts = ", ".join(f"{n} {kind}" for kind, n in sorted(told["verdicts"].items()))
    forged = [
        {"pid": one["process"]["pid"], "entity_id": one["process"]["entity_id"]}
        | {"reason": one["ir"]["discrepancy"]["reason"], "at": one["@timestamp"]}
        for one in search.find(of_actions("discrepancy"))
        if one["ir"]["discrepancy"]["kind"] == Verdict.FORGED
    ]
    silent = _silence(beat, search.last(of_actions("agent-start")))
    lines = [
        f"  births, by the agent at {beat['@timestamp']}: {verdicts or 'as usual'}"
    ]
    lines += [f"  {silent}"] if silent else []
    lines += [
        f"  FORGED: {one['entity_id']}: {sentence(one['reason'])}, {one['at']}"
        for one in forged
    ]
    document = {
        "at": beat["@timestamp"],
        "verdicts": told["verdicts"],
        "births_unseen": told["births_unseen"],
        "ends_unseen": told["ends_unseen"],
        "forged": forged,
        "note": silent,
    }
    code = CRITICAL if forged else WARNING if silent else OK
    return Finding(lines, document, code)


def _silence(beat: Record, start: Record | None) -> str:
    """Say that the agent has not been heard of for longer than it should."""
    if beat["host"]["boot"]["id"] != clock.boot_id():
        return "that was before this boot: no agent has recorded since"
    config = start["ir"]["agent"]["config"] if start else {}
    now = (clock.boot_ns() + clock.wall_anchor().offset_ns) / 1e9
    seconds = now - datetime.fromisoformat(beat["@timestamp"]).timestamp()
    if seconds < _BEATS_MISSED * config.get("heartbeat_seconds", _USUAL_S):
        return ""
    return f"no agent is at work: it was heard of {seconds:.0f} s ago the last time"
