"""How many instructions the verifier follows for each program, kernel by kernel.

In: hooks as the loader left them. Out: a failure where a program needs a quarter more
than it did (verifier.json): the limit is one million, and a verifier's step costs time
at each start. Fewer is a failure as well, or the next growth would hide in it. With
IR_FIGURES=FILE they are written there instead, to be kept; set for the lab, each guest
of the variant `ladder` writes its own.
"""

import json
import os
from collections.abc import Iterable
from pathlib import Path

from agent.sensor.hooks import SENSES, HookState

KEPT = Path(__file__).with_name("verifier.json")
KERNEL = ".".join(os.uname().release.split(".")[:2])
TOLERATED = 0.25
LIMIT = 1_000_000


def told(states: Iterable[HookState]) -> dict[str, int]:
    """Instructions by rung and program; the most of all places of a program."""
    found: dict[str, int] = {}
    for state in states:
        if state.instructions:
            name = f"{state.rung} {state.program}"
            found[name] = max(found.get(name, 0), state.instructions)
    return found


def hold(states: Iterable[HookState]) -> None:
    """Hold them against what is kept for this kernel; one not kept yet is not held."""
    now = told(states)
    if place := os.environ.get("IR_FIGURES"):
        _keep(Path(place), now)
        return
    kept = json.loads(KEPT.read_text()).get(KERNEL, {})
    moved = {
        name: (kept[name], count)
        for name, count in now.items()
        if name in kept and not _is_near(count, kept[name])
    }
    assert moved == {}, f"instructions on {KERNEL}, before and now: {moved}"
    assert not kept or now.keys() <= kept.keys(), now.keys() - kept.keys()


def _is_near(count: int, before: int) -> bool:
    # a small program moves by a quarter with every line
    return abs(count - before) <= max(before * TOLERATED, 100)


def _keep(place: Path, now: dict[str, int]) -> None:
    kept = json.loads(place.read_text()) if place.exists() else {}
    mine = kept.setdefault(KERNEL, {})
    mine.update(now)
    kept[KERNEL] = dict(sorted(mine.items()))
    place.write_text(json.dumps(dict(sorted(kept.items())), indent=1) + "\n")


def matrix() -> list[str]:
    """Rows of a table: sense, rung, and on which kernels it was proven by itself."""
    kept = json.loads(KEPT.read_text())
    kernels = sorted(kept, key=lambda name: [int(part) for part in name.split(".")])
    rows = [f"| sense | rung | {' | '.join(kernels)} |"]
    rows.append("|---" * (2 + len(kernels)) + "|")
    for sense in SENSES:
        for rung in sense.rungs:
            needed = {f"{rung.name} {h.program}" for h in rung.hooks if not h.optional}
            had = ["Y" if needed <= kept[one].keys() else "" for one in kernels]
            rows.append(f"| {sense.name} | `{rung.name}` | {' | '.join(had)} |")
    return rows
