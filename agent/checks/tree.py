"""The answer about one process as lines: who, whose child, the tree, the touches.

In: the document of agent.checks.process. Out: lines that are safe to print, whatever
bytes an attacker chose for names and arguments.
"""

from collections.abc import Iterator
from typing import Any

from agent.events import ChainEnd, Verdict
from agent.process.drift import Kind
from agent.sinks.text import safe, sentence

_MEANING = {
    Verdict.CONSISTENT: "its parent is its parent",
    Verdict.TRACED: "a tracer holds it; its parent is its parent",
    Verdict.REPARENTED: "its parent ended, and one that may do so took it over",
    Verdict.CLONE_PARENT: "it was born as a sibling of who started it",
    Verdict.FORGED: "this can't be",
    Verdict.HIDDEN_FROM_PROC: "the kernel has it, and /proc does not show it",
    Verdict.ONLY_IN_PROC: "/proc shows it, and the kernel has no such process",
    Verdict.STALE_PID: "it is gone, and its pid is another's",
    Verdict.UNKNOWN_BEFORE_START: "nothing speaks against it, its birth was not seen",
}
_ROLES = {
    "creator": "started by",
    "birth_parent": "born to",
    "exited": "orphaned by",
    "real_parent": "child of",
    "tracer": "traced by",
}
_ENDS = {
    ChainEnd.UNKNOWN_PARENT: "who comes before is not known",
    ChainEnd.DEPTH: "there are more of them before",
    ChainEnd.CYCLE: "before it the records go round in a circle",
}


class Tree:
    """The document of agent.checks.process, for a person."""

    def __init__(self, document: dict[str, Any]) -> None:
        """Show this document."""
        self._told = document

    def lines(self) -> Iterator[str]:
        """Return who it is, whose child, and then the ancestors as a tree."""
        told = self._told
        about = "" if told["entity_is_exact"] else "  (start to the clock tick only)"
        yield f"{_who(told)}  {told['entity_id']}{about}"
        yield from (f"  {what:<11} {said}" for what, said in self._facts() if said)
        yield from self._alarms()
        yield from self._ancestors()
        yield from self._touches()
        if broken := told["records_not_chained"]:
            yield f"  {broken} records do not verify and were left out: ir-check verify"
        yield from (f"  {sentence(one)}" for one in told["notes"])
        if told["records_used"]:
            yield "  the chain of the log was not verified as a whole: ir-check verify"

    def _facts(self) -> Iterator[tuple[str, str]]:
        told = self._told
        yield "life", _life(told)
        if user := told["user"]:
            name = f" ({safe(user['name'])})" if "name" in user else ""
            yield "user", f"{user['id']}{name}"
        source = f"  ({told['program_source']})"
        if told["executable"]:
            yield "executable", f"{safe(told['executable'])}{source}"
        if told["args"]:
            cut = " ... (more was not recorded)" if told["args_cut"] else ""
            yield "arguments", " ".join(map(safe, told["args"])) + cut + source
        yield "parentage", self._verdict()
        for role, word in _ROLES.items():
            if one := told["evidence"].get(role):
                yield f"  {word}", self._person(one)
        yield from self._sources()

    def _verdict(self) -> str:
        told = self._told
        verdict = told["verdict"]
        if verdict is None:
            return "not known"
        why = told["evidence"].get("reason") or _MEANING[verdict]
        if now := told["pid_is_now"]:
            why += f": {_who(now)}, born {now['start']}"
        return f"{verdict}: {sentence(why)}  ({told['verdict_source']})"

    def _person(self, one: dict[str, Any]) -> str:
        end = f", ended {one['ended']}" if one.get("ended") else ""
        return f"{_who(one)}{end}  ({one['source']})"

    def _sources(self) -> Iterator[tuple[str, str]]:
        if kernel := self._told["kernel"]:
            tracer = f"traced by {kernel['parent']}" if kernel["ptrace"] else "untraced"
            yield "kernel says", f"child of {kernel['real_parent']}, {tracer}"
        if proc := self._told["proc"]:
            tracer = f"traced by {proc['tracer']}" if proc["tracer"] else "untraced"
            zombie = ", ended and not waited for" if proc["zombie"] else ""
            yield "/proc says", f"child of {proc['ppid']}, {tracer}{zombie}"
        if self._told["covered"]:
            yield "/proc says", "not believed, and looks not told: it is covered"

    def _alarms(self) -> Iterator[str]:
        for said in self._told["covered"]:
            yield f"  COVERED     {sentence(said)}"
        for said in self._told["disagreements"]:
            yield f"  ALERT       {said}"
        for one in self._told["looks"]:
            label = "looks" if one["kind"] == Kind.UNCHANGED else one["weight"].upper()
            yield f"  {label:<11} {_look(one)}"
        for one in self._told["alerts"]:
            said = f"{one['kind']}: {sentence(one['reason'])}"
            yield f"  ALERT       {said}, {one['at']}  (record {one['record']})"

    def _ancestors(self) -> Iterator[str]:
        told = self._told
        yield "  ancestors, by birth where it was seen:"
        people = [*reversed(told["lineage"]), told]
        before = _ENDS.get(told["lineage_end"])
        if before:
            yield f"    ({before})"
        for depth, one in enumerate(people):
            branch = "   " * (depth - 1) + "└─ " if depth else ""
            yield f"    {branch}{_who(one)}  {_life(one)}{_oddity(one)}"

    def _touches(self) -> Iterator[str]:
        touches = self._told["touched_by"]
        yield "  reached into by:" if touches else "  no access to it is on record"
        for one in touches:
            error = f" {one['error']}" if one["error"] else ""
            denied = f", denied by {one['denied']}" if one["denied"] else ""
            times = f"{one['count']} times, from {one['first']} to {one['last']}"
            when = f"once, {one['first']}" if one["count"] == 1 else times
            how = f"{one['action']}: {one['outcome']}{error}{denied}"
            yield f"    {_who(one)}  {how}, {when}  (record {one['record']})"


def _who(one: dict[str, Any]) -> str:
    return f"{safe(one['name']) if one['name'] else '?'}[{one['pid']}]"


def _look(one: dict[str, Any]) -> str:
    """Say what has changed, and to what where that is a name or a command line."""
    if one["kind"] == Kind.UNCHANGED:
        return str(one["reason"])
    now = one["now"].rstrip("\0").replace("\0", " ")
    to = f": now {safe(now)}" if now and one["kind"] != Kind.ARGV0_DIFFERS else ""
    return f"{one['kind']}: {sentence(one['reason'])}{to}"


def _life(one: dict[str, Any]) -> str:
    """Say from when to when, with the records of both."""
    born = f"born {one['start']}{_record(one, 'birth')}"
    if one["ended"]:
        how = one["signal"] or f"exit code {one['exit_code']}"
        return f"{born}, ended {one['ended']}, {how}{_record(one, 'end')}"
    if one["lives"] is None:
        return f"{born}, whether it lives can't be said"
    return (
        f"{born}, lives" if one["lives"] else f"{born}, gone: its end is not on record"
    )


def _record(one: dict[str, Any], kind: str) -> str:
    number = one["records"].get(kind)
    return "" if number is None else f" (record {number})"


def _oddity(one: dict[str, Any]) -> str:
    """Say what is not as usual about somebody's parent, with the other's name."""
    if one["parentage"] in (None, Verdict.CONSISTENT):
        return ""
    if one["parentage"] == Verdict.UNKNOWN_BEFORE_START:
        return ", birth not seen"
    roles = {Verdict.REPARENTED: "real_parent", Verdict.TRACED: "tracer"}
    other = one["evidence"].get(roles.get(one["parentage"], ""))
    word = {Verdict.REPARENTED: "to", Verdict.TRACED: "by"}.get(one["parentage"], "")
    return f", {one['parentage']}" + (f" {word} {_who(other)}" if other else "")
