"""Verdicts on parentage and discrepancies as members of a record.

In: a Parentage or a Discrepancy, and how a process is named. Out: JSON text; what is as
usual, or is `process.parent` already, is left out, so that a record of an ordinary
process grows by one short member.
"""

from collections.abc import Callable

from agent.events import NOBODY, Discrepancy, Parentage, ProcessKey, Verdict
from agent.sinks.text import quote

Name = Callable[[ProcessKey], str]
"""Returns the members that name a process: its pid and entity id."""


def parentage(told: Parentage, name: Name, wall: Callable[[int], str]) -> str:
    """Return the member "parentage" with its comma."""
    if told.verdict is Verdict.CONSISTENT:
        return '"parentage":{"verdict":"consistent"},'
    parts = [f'"verdict":"{told.verdict}"']
    reparented = told.verdict is Verdict.REPARENTED
    for role, key in (
        ("creator", told.creator if told.creator != told.parent else NOBODY),
        ("birth_parent", told.birth_parent if told.exited != NOBODY else NOBODY),
        ("reaper", told.parent if reparented else NOBODY),
        ("tracer", told.tracer),
    ):
        if key != NOBODY:
            parts.append(f'"{role}":{{{name(key)}}}')
    if told.exited != NOBODY:
        at = f',"end":"{wall(told.exited_ns)}"' if told.exited_ns else ""
        parts.append(f'"exited":{{{name(told.exited)}{at}}}')
    if told.why:
        parts.append(f'"reason":{quote(told.why)}')
    return f'"parentage":{{{",".join(parts)}}},'


def discrepancy(found: Discrepancy, wall: Callable[[int], str]) -> str:
    """Return the member "discrepancy"."""
    there = ",".join(quote(view) for view, has in found.views.items() if has)
    missing = ",".join(quote(view) for view, has in found.views.items() if not has)
    return (
        f'"discrepancy":{{"kind":"{found.kind}","reason":{quote(found.why)},'
        f'"seen_by":[{there}],"missing_from":[{missing}],'
        f'"first":"{wall(found.first_ns)}",'
        f'"confirmed":"{wall(found.confirmed_ns)}"}}'
    )
