"""States of hooks as a loader leaves them, for tests of what is said about them.

In: a rung of the table of hooks, and facts that differ. Out: one state for each hook.
"""

from typing import Any

from agent.sensor.hooks import SENSES, HookState, Rung, Sense

MOMENT = 77_000_000_000
"""When every hook was proven, boot time in ns."""


def of(sense: Sense, rung: Rung, **facts: Any) -> list[HookState]:
    """The hooks of one rung, attached and proven unless `facts` say otherwise."""
    values = {"attached": True, "proven": True, "proven_ns": MOMENT, **facts}
    if not values["proven"]:
        values["proven_ns"] = 0
    return [
        HookState(
            sense=sense.name,
            rung=rung.name,
            program=one.program,
            target=one.target,
            pin=one.pin,
            unseen=rung.unseen,
            optional=one.optional,
            **values,
        )
        for one in rung.hooks
    ]


def all_hooks(**facts: Any) -> list[HookState]:
    """The best rung of every sense."""
    return [state for sense in SENSES for state in of(sense, sense.rungs[0], **facts)]


def sense_of(name: str) -> Sense:
    """One row of the table of hooks."""
    return next(sense for sense in SENSES if sense.name == name)
