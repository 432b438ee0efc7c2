"""The hook ladder of this node: which rung each sense stands on, since when, and why.

In: the runtime folder and the pin folder of an agent. Out: a table for a person or one
JSON document, and an exit code: 0 when every sense is given and proven, 1 when one is
not, 2 when none is, 3 when it could not be looked at.
"""

import os
from pathlib import Path
from typing import Any

import msgspec

from agent import clock
from agent.checks.finding import UNKNOWN, Finding
from agent.sensor import status
from agent.sensor.hooks import HookState
from agent.sensor.status import Standing
from agent.sinks.text import rfc3339


def check(runtime: Path, folder: Path) -> Finding:
    """Look at the hooks of one agent; only root can hold them against the pins."""
    if os.geteuid() == 0:
        return finding(status.current(runtime, folder))
    states = status.reported(runtime)
    if not states:
        note = "no loader has left word here, and only root may look at the pins"
        return finding([], note)._replace(exit_code=UNKNOWN)
    return finding(states, "as the loader left it: only root may look at the pins")


def finding(states: list[HookState], note: str = "") -> Finding:
    """Say of hooks where each sense stands; `note` is what could not be seen."""
    senses = status.standings(states)
    return Finding(
        _table(senses, note), _document(states, senses, note), status.exit_code(states)
    )


def _table(senses: list[Standing], note: str) -> list[str]:
    rows = [("SENSE", "RUNG", "STATE", "PROVEN AT")]
    rows += [(s.sense, s.rung or "-", s.state, _when(s.proven_ns)) for s in senses]
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    lines = [
        "  ".join([*(row[i].ljust(widths[i]) for i in range(3)), row[3]]).rstrip()
        for row in rows
    ]
    notes = [one for sense in senses for one in _notes(sense)]
    notes += [note] if note else []
    return [*lines, *([""] if notes else []), *notes]


def _document(
    states: list[HookState], senses: list[Standing], note: str
) -> dict[str, Any]:
    told = [
        {**msgspec.structs.asdict(one), "proven_at": _when(one.proven_ns)}
        for one in senses
    ]
    return {"senses": told, "hooks": states, "note": note}


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
