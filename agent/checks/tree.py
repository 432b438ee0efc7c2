"""The answer about one process as lines: who, whose child, the tree, the touches.

In: the document of agent.checks.process. Out: lines that are safe to print, whatever
bytes an attacker chose for names and arguments.
"""

from collections.abc import Iterator
from typing import Any

from agent.events import Verdict
from agent.sinks.text import safe, sentence


class Tree:
    """The document of agent.checks.process, for a person."""

    def __init__(self, document: dict[str, Any]) -> None:
        """Show this document."""
        self._told = document

    def lines(self) -> Iterator[str]:
        """Return who it is, whose child, and then the ancestors as a tree."""
        told = self._told
        yield f"{_who(told)}  {told['entity_id']}"
        yield f"  {_state(told)}"
        if told["args"] or told["executable"]:
            words = " ".join(map(safe, told["args"]))
            yield f"  program     {safe(told['executable'])}: {words}{_source(told)}"
        yield f"  parentage   {told['verdict'] or 'not known'}{self._because()}"
        yield from self._evidence()
        yield from self._sources()
        yield from (
            f"  {one['weight']:<10}  {one['kind']}: {sentence(one['reason'])}"
            for one in told["drift"]
        )
        yield from self._ancestors()
        yield from self._touches()
        if broken := told["records_not_chained"]:
            yield f"  {broken} records do not verify and were left out: ir-check verify"

    def _because(self) -> str:
        told = self._told
        if told["pid_is_now"]:
            now = told["pid_is_now"]
            return f": pid {told['pid']} is {_who(now)} since {now['start']}"
        reason = told["evidence"].get("reason", "")
        return f": {sentence(reason)}" if reason else ""

    def _evidence(self) -> Iterator[str]:
        words = {
            "creator": "created by",
            "birth_parent": "born of",
            "exited": "who ended",
            "real_parent": "child of",
            "tracer": "traced by",
        }
        for role, word in words.items():
            if one := self._told["evidence"].get(role):
                end = f" at {one['end']}" if "end" in one else ""
                source = "kernel" if role in ("real_parent", "tracer") else "ledger"
                yield f"    {word:<11} {_who(one)}{end}  ({source})"

    def _sources(self) -> Iterator[str]:
        if kernel := self._told["kernel"]:
            yield (
                f"    kernel      real_parent {kernel['real_parent']}, parent"
                f" {kernel['parent']}, leader {kernel['leader']},"
                f" ptrace {kernel['ptrace']}"
            )
        elif not self._told["kernel_was_asked"]:
            yield "    kernel      not asked: that takes root and loaded probes"
        if proc := self._told["proc"]:
            yield f"    /proc       PPid {proc['ppid']}, TracerPid {proc['tracer']}"

    def _ancestors(self) -> Iterator[str]:
        yield "  lineage, by birth:"
        people = [*reversed(self._told["lineage"]), self._told]
        if not self._told["lineage_is_whole"]:
            yield "    its parent is not known"
        for depth, one in enumerate(people):
            branch = "   " * (depth - 1) + "└─ " if depth else ""
            yield f"    {branch}{_who(one)}  {_state(one)}{_oddity(one)}"

    def _touches(self) -> Iterator[str]:
        touches = self._told["touched_by"]
        yield "  touched by:" if touches else "  touched by nobody, as far as recorded"
        for one in touches:
            yield (
                f"    {_who(one)}  {one['action']} {one['outcome']},"
                f" {one['count']} times, last {one['last']}  (record {one['record']})"
            )


def _who(one: dict[str, Any]) -> str:
    return f"{safe(one['name']) or '?'}[{one['pid']}]"


def _state(one: dict[str, Any]) -> str:
    if "ended" in one:
        return f"ended {one['ended']}{_source(one, 'end')}"
    return f"since {one['start']}" if one["runs"] else "not running, its end unseen"


def _oddity(one: dict[str, Any]) -> str:
    """Say what is not as usual about somebody's parent, with the other's name."""
    if one["parentage"] in (None, Verdict.CONSISTENT):
        return ""
    roles = {Verdict.REPARENTED: "real_parent", Verdict.TRACED: "tracer"}
    other = one["evidence"].get(roles.get(one["parentage"], ""))
    word = {Verdict.REPARENTED: "to", Verdict.TRACED: "by"}.get(one["parentage"], "")
    return f"  {one['parentage']}" + (f" {word} {_who(other)}" if other else "")


def _source(one: dict[str, Any], kind: str = "program") -> str:
    number = one["records"].get(kind)
    return f"  (record {number})" if number is not None else ""
