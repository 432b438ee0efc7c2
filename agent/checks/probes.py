"""The hook ladder of this node: which rung each sense stands on, since when, and why.

In: the runtime folder and the pin folder of an agent. Out: a table for a person or one
JSON document, and an exit code: 0 when every sense is given and proven, 1 when one is
not, 2 when none is, 3 when it could not be looked at.
"""

import os
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from agent import clock
from agent.sensor import status
from agent.sensor.hooks import HookState
from agent.sensor.status import Standing
from agent.sinks.text import rfc3339

_COULD_NOT_LOOK = 3


class Finding(NamedTuple):
    """What the check found; `note` says what it could not see."""

    states: list[HookState]
    note: str
    exit_code: int


def check(runtime: Path, folder: Path) -> Finding:
    """Look at the hooks of one agent; only root can hold them against the pins."""
    if os.geteuid() == 0:
        states = status.current(runtime, folder)
        return Finding(states, "", status.exit_code(states))
    states = status.reported(runtime)
    if not states:
        note = "no loader has left word here, and only root may look at the pins"
        return Finding([], note, _COULD_NOT_LOOK)
    note = "as the loader left it: only root may look at the pins"
    return Finding(states, note, status.exit_code(states))


def render(finding: Finding, *, as_json: bool) -> str:
    """Return a table for a person, or one JSON document."""
    senses = status.standings(finding.states)
    if as_json:
        return msgspec.json.encode(_document(finding, senses)).decode()
    rows = [("SENSE", "RUNG", "STATE", "PROVEN AT")]
    rows += [(s.sense, s.rung or "-", s.state, _when(s.proven_ns)) for s in senses]
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    lines = [
        "  ".join([*(row[i].ljust(widths[i]) for i in range(3)), row[3]]).rstrip()
        for row in rows
    ]
    notes = [note for sense in senses for note in _notes(sense)]
    notes += [finding.note] if finding.note else []
    return "\n".join([*lines, *([""] if notes else []), *notes])


def _document(finding: Finding, senses: list[Standing]) -> dict[str, Any]:
    told = [
        {**msgspec.structs.asdict(one), "proven_at": _when(one.proven_ns)}
        for one in senses
    ]
    return {"senses": told, "hooks": finding.states, "note": finding.note}


def _when(bt_ns: int) -> str:
    """Return wall time to the millisecond: finer, it would differ by the asking."""
    if not bt_ns:
        return ""
    moment = clock.wall_anchor().offset_ns + bt_ns
    return rfc3339(round(moment, -6))[:-7] + "Z"


def _notes(sense: Standing) -> list[str]:
    """Say why this rung, what of it fails, and what it does not give."""
    notes = [f"{sense.sense}: not {rung}: {why}" for rung, why in sense.better.items()]
    notes += [f"{sense.sense}: {hook}" for hook in sense.lacking]
    if sense.rung and sense.lost:
        notes.append(f"{sense.sense}: not given by {sense.rung}: {sense.lost}")
    return notes
