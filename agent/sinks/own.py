"""Records about the agent itself: start, stop, loss, gap, recovery, heartbeat.

In: numbers and small values. Out: the part of a record that Renderer.envelope wraps.
They are as much part of the gapless stream as what the kernel reported: a reader can
tell from the records alone when the agent was watching and what it did not see.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from agent.events import Loss
from agent.sinks.text import rfc3339

_encode = msgspec.json.Encoder(order="deterministic").encode


def own(action: str, kind: str, details: Mapping[str, Any], outcome: str = "") -> str:
    """Return the body of a record of the agent; `kind` is an ECS event.kind."""
    told = f',"outcome":"{outcome}"' if outcome else ""
    return (
        f'"kind":"{kind}","category":["host"],"type":["info"],'
        f'"action":"{action}"{told}}},"ir":{_encode(details).decode()}'
    )


def loss(lost: Loss, wall_offset_ns: int, positions: Mapping[str, Any]) -> str:
    """Return the body of a loss: cause, counts, and the time in which all of it lies.

    `positions` is what the sensor must know to go on after a crash without counting
    this loss again.
    """
    details = {
        "cause": lost.cause,
        "count": lost.count,
        "kinds": lost.kinds,
        "start": rfc3339(lost.start_ns + wall_offset_ns),
        "end": rfc3339(lost.end_ns + wall_offset_ns),
        "start_bt_ns": lost.start_ns,
        "end_bt_ns": lost.end_ns,
        "cpus": lost.cpus,
    }
    return own("loss", "pipeline_error", {"loss": details, "positions": positions})
