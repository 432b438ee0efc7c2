"""Who reached into a process: accesses from the records, counted as they happened.

In: the records of accesses to one process. Out: one entry for each process, way and
answer. The kernel folds repeats, and each record of a burst has the count so far: what
adds up is the last count of each burst, also over several runs of the agent.
"""

import calendar
import time
from collections.abc import Iterable
from typing import Any

from agent.sinks.search import Record

_DIGITS = 9
_SECOND_NS = 1_000_000_000


def touches(records: Iterable[Record]) -> list[dict[str, Any]]:
    """Return who did what, how often and when; in the order of the first time."""
    told: dict[tuple[str, ...], dict[str, Any]] = {}
    bursts: dict[tuple[Any, ...], int] = {}
    for record in records:
        way = _way(record)
        one = told.setdefault(way, _entry(record))
        access, burst = record["ir"]["access"], (*way, *_burst(record))
        counted = bursts.get(burst, 0)
        bursts[burst] = max(counted, access["count"])
        one["count"] += bursts[burst] - counted
        one["last"] = max(one["last"], access["last"])
        one["last_record"] = record["event"]["sequence"]
    return list(told.values())


def _way(record: Record) -> tuple[str, ...]:
    who, event = record["process"], record["event"]
    code = record.get("error", {}).get("code", "")
    denied = record["ir"]["access"].get("denied", "")
    return who["entity_id"], event["action"], event["outcome"], code, denied


def _burst(record: Record) -> tuple[Any, ...]:
    """Tell bursts apart: by thread and the boot time of the first access.

    Its wall time is another one in each record: the clock is slewed meanwhile.
    """
    access = record["ir"]["access"]
    age = _ns(record["@timestamp"]) - _ns(access["first"])
    first_ns = record["ir"]["clock"]["bt_ns"] - age
    return record["ir"]["target"]["thread"]["id"], first_ns


def _entry(record: Record) -> dict[str, Any]:
    who, event, access = record["process"], record["event"], record["ir"]["access"]
    return {
        "pid": who["pid"],
        "name": who["name"],
        "entity_id": who["entity_id"],
        "action": event["action"],
        "outcome": event["outcome"],
        "error": record.get("error", {}).get("code", ""),
        "denied": access.get("denied", ""),
        "count": 0,
        "first": access["first"],
        "last": access["last"],
        "record": event["sequence"],
        "last_record": event["sequence"],
    }


def _ns(stamp: str) -> int:
    """Return a time of a record as ns since 1970."""
    whole, _, rest = stamp.rstrip("Z").partition(".")
    seconds = calendar.timegm(time.strptime(whole, "%Y-%m-%dT%H:%M:%S"))
    return seconds * _SECOND_NS + int(rest[:_DIGITS].ljust(_DIGITS, "0"))
