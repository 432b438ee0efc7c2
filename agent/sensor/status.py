"""The state of every hook, kept for whoever asks later.

In: what the loader found and proved. Out: the same as a file in the runtime folder, as
a table or as JSON, held against the links that are pinned now. A hook whose link is
gone is never shown as attached.
"""

from pathlib import Path

import msgspec

from agent.sensor import pins
from agent.sensor.hooks import SENSES, HookState, Sense, pin_name

_FILE = "hooks.json"


def save(runtime: Path, states: list[HookState]) -> None:
    """Write the states into the runtime folder."""
    runtime.mkdir(mode=0o755, parents=True, exist_ok=True)
    fresh = runtime / f"{_FILE}.new"
    fresh.write_bytes(msgspec.json.encode(states))
    fresh.rename(runtime / _FILE)


def forget(runtime: Path) -> None:
    """Remove the file."""
    (runtime / _FILE).unlink(missing_ok=True)


def current(runtime: Path, folder: Path) -> list[HookState]:
    """Return the hooks of every sense: as the loader left them, if still pinned."""
    pinned = set(pins.links(folder))
    tried: dict[str, list[HookState]] = {}
    for state in _kept(runtime):
        tried.setdefault(state.sense, []).append(state)
    states = []
    for sense in SENSES:
        for known in tried.get(sense.name) or _unheard_of(sense, pinned):
            if known.attached and pin_name(known.program, known.target) not in pinned:
                gone = {
                    "attached": False,
                    "proven": False,
                    "reason": "its link is gone",
                }
                known = msgspec.structs.replace(known, **gone)  # noqa: PLW2901
            states.append(known)
    return states


def _unheard_of(sense: Sense, pinned: set[str]) -> list[HookState]:
    """Judge by the links alone: no loader has left word, or it was killed."""
    best, states = sense.rungs[0], []
    for hook in best.hooks:
        there = hook.pin in pinned
        why = "pinned, but no loader has proven it" if there else "not loaded"
        states.append(
            HookState(
                sense.name, best.name, hook.program, hook.target, there, reason=why
            )
        )
    return states


def missing(states: list[HookState]) -> list[str]:
    """Name the senses that no rung gives completely, with the reason of one hook."""
    lacking = []
    for sense in SENSES:
        mine = [state for state in states if state.sense == sense.name]
        rungs = {state.rung for state in mine}
        if not any(
            all(state.proven for state in mine if state.rung == rung) for rung in rungs
        ):
            reason = next((state.reason for state in mine if not state.proven), "")
            lacking.append(f"{sense.name}: {reason or 'not proven'}")
    return lacking


def _kept(runtime: Path) -> list[HookState]:
    try:
        return msgspec.json.decode((runtime / _FILE).read_bytes(), type=list[HookState])
    except (OSError, msgspec.DecodeError):
        return []


def exit_code(states: list[HookState]) -> int:
    """0 when every sense is given and proven, 1 when one is not, 2 for none at all."""
    if not missing(states):
        return 0
    return 1 if any(state.attached for state in states) else 2


def render(states: list[HookState], *, as_json: bool) -> str:
    """Return a table for a person, or one JSON document."""
    if as_json:
        return msgspec.json.encode({"hooks": states}).decode()
    rows = [("SENSE", "HOOK", "STATE", "WHY")]
    rows += [(one.sense, one.target, _word(one), one.reason) for one in states]
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    lines = [
        "  ".join([*(row[i].ljust(widths[i]) for i in range(3)), row[3]]).rstrip()
        for row in rows
    ]
    unseen = {one.sense: one.unseen for one in states if one.attached and one.unseen}
    lines += [f"not seen by {sense}: {what}" for sense, what in unseen.items()]
    return "\n".join(lines)


def _word(state: HookState) -> str:
    if not state.attached:
        return "missing"
    return "proven" if state.proven else "attached, not proven"
