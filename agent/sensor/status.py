"""The state of every hook and sense, kept for whoever asks later.

In: what the loader found and proved. Out: the same as a file in the runtime folder,
held against the pins that are there now. A hook whose pin is gone is never shown as
attached.
"""

from collections.abc import Iterable
from pathlib import Path

import msgspec

from agent.sensor import pins
from agent.sensor.hooks import SENSES, HookState, Sense

_FILE = "hooks.json"
_PROVEN, _PARTLY, _ATTACHED = "proven", "partly proven", "attached, not proven"
_MISSING = "missing"


class Standing(msgspec.Struct, frozen=True):
    """Where one sense stands on its ladder.

    `better` says of each better rung why it is not in use, `lacking` of each hook of
    this rung that does not work why, `lost` what the rung does not give even when it
    works. `proven_ns` is when all its hooks had been seen to fire (CLOCK_BOOTTIME).
    """

    sense: str
    rung: str
    state: str
    proven_ns: int
    better: dict[str, str]
    lacking: list[str]
    lost: str


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
    pinned = {*pins.links(folder), *pins.programs(folder)}
    tried: dict[str, list[HookState]] = {}
    for state in reported(runtime):
        tried.setdefault(state.sense, []).append(state)
    states = []
    for sense in SENSES:
        for known in tried.get(sense.name) or _unheard_of(sense, pinned):
            if known.attached and known.pin not in pinned:
                gone = {
                    "attached": False,
                    "proven": False,
                    "proven_ns": 0,
                    "reason": "its link is gone",
                }
                known = msgspec.structs.replace(known, **gone)  # noqa: PLW2901
            states.append(known)
    return states


def _unheard_of(sense: Sense, pinned: set[str]) -> list[HookState]:
    """Judge by the pins alone: no loader has left word, or it was killed."""
    rungs = [r for r in sense.rungs if any(hook.pin in pinned for hook in r.hooks)]
    rung, states = (rungs or sense.rungs)[0], []
    for hook in rung.hooks:
        there = hook.pin in pinned
        why = "pinned, but no loader has proven it" if there else "not loaded"
        states.append(
            HookState(
                sense.name,
                rung.name,
                hook.program,
                hook.target,
                there,
                hook.pin,
                reason=why,
                unseen=rung.unseen,
                optional=hook.optional,
            )
        )
    return states


def standings(states: Iterable[HookState]) -> list[Standing]:
    """Say for each sense where it stands, in the order of the table of hooks."""
    by_sense: dict[str, list[HookState]] = {}
    for state in states:
        by_sense.setdefault(state.sense, []).append(state)
    return [_standing(name, mine) for name, mine in by_sense.items()]


def _standing(sense: str, states: list[HookState]) -> Standing:
    rung = next((s.rung for s in states if s.attached), "")
    mine = [s for s in states if s.rung == (rung or states[-1].rung)]
    wanted = [s for s in mine if s.attached or not s.optional]
    proven = [s for s in wanted if s.proven]
    when = max((s.proven_ns for s in proven), default=0)
    better: dict[str, str] = {}
    for state in states:
        if state.rung == mine[0].rung:
            break
        if state.reason and not state.optional:
            better.setdefault(state.rung, state.reason)
    return Standing(
        sense,
        rung,
        _word(wanted, proven, attached=bool(rung)),
        when,
        better,
        list(dict.fromkeys(_lack(state) for state in wanted if not state.proven)),
        mine[0].unseen if rung else "everything",
    )


def _lack(state: HookState) -> str:
    return f"{state.target}: {state.reason or 'not seen to fire'}"


def _word(wanted: list[HookState], proven: list[HookState], *, attached: bool) -> str:
    if not attached:
        return _MISSING
    if all(state.proven or state.optional for state in wanted):
        return _PROVEN
    return _PARTLY if proven else _ATTACHED


def missing(states: Iterable[HookState]) -> list[str]:
    """Name the senses that no rung gives completely, with the reason of one hook."""
    return [
        f"{one.sense}: {(*one.lacking, 'not proven')[0]}"
        for one in standings(states)
        if one.state != _PROVEN
    ]


def reported(runtime: Path) -> list[HookState]:
    """Return the hooks as the loader left them, whether or not they are still there."""
    try:
        return msgspec.json.decode((runtime / _FILE).read_bytes(), type=list[HookState])
    except (OSError, msgspec.DecodeError):
        return []


def exit_code(states: list[HookState]) -> int:
    """0 when every sense is given and proven, 1 when one is not, 2 for none at all."""
    if not missing(states):
        return 0
    return 1 if any(state.attached for state in states) else 2
