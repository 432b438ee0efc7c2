"""Is every process there? All views of this machine's processes against each other.

In: the pins of an agent and this machine. Out: who is missing from a view, how far each
view can be believed, and what could not be looked at. `deep` asks for every pid there
may be, and watches the scheduler.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agent.checks.finding import CRITICAL, OK, UNKNOWN, WARNING, Finding
from agent.errors import NotPermittedError
from agent.events import Discrepancy, Listing, Seen
from agent.process import pidrange
from agent.process.census import RAN_UNLISTED
from agent.sinks.text import safe, sentence, text
from agent.sweep import Sweep

_WATCH_S = 0.5
_MARGIN_NS = 1_000_000_000
Tell = Callable[[int, int], None]


def check(folder: Path, tell: Tell | None) -> Finding:
    """Look; with `tell`, which is told (done, total) of the pids, look deep."""
    if os.geteuid():
        return _unknown("only root may read the kernel's own lists")
    sweep = Sweep(folder)
    try:
        sweep.doubt()
        listing = sweep.views.listing(changes=False)
        found = [_told(one) for one in sweep.compare(listing)] if listing.starts else []
        if tell and listing.starts:
            found += _deep(sweep, listing, tell)
        return _finding(sweep, listing, found, deep=tell is not None)
    finally:
        sweep.close()


def _unknown(note: str) -> Finding:
    return Finding([f"hidden: {note}"], {"note": note}, UNKNOWN)


def _told(one: Discrepancy) -> dict[str, Any]:
    return {
        "pid": one.key.tgid,
        "kind": str(one.kind),
        "reason": one.why,
        "seen_by": [view for view, has in one.views.items() if has],
        "missing_from": [view for view, has in one.views.items() if not has],
    }


def _finding(
    sweep: Sweep, listing: Listing, found: list[dict[str, Any]], *, deep: bool
) -> Finding:
    views = sweep.views.views
    doubts = [{"kind": str(one.kind), "text": one.text} for one in sweep.doubts]
    lacking = [view for view, there in views.items() if not there]
    look = "deep look" if deep else "look"
    lines = [f"hidden: {look} at {len(listing.starts)} processes: {len(found)} hidden"]
    lines += [
        f"  {one['kind'].upper()}: pid {one['pid']}: {one['reason']}" for one in found
    ]
    lines += [f"  doubt: {sentence(one['text'])}" for one in doubts]
    lines += [
        f"  not looked at, this agent's probes don't give it: {one}" for one in lacking
    ]
    if sweep.views.init:
        lines.append(
            "  this kernel's iterator leaves out pid 1; it is taken from elsewhere"
        )
    document = {
        "processes": len(listing.starts),
        "deep": deep,
        "hidden": found,
        "doubts": doubts,
        "views": views,
    }
    code = CRITICAL if found else WARNING if doubts else OK
    return Finding(lines, document, code if listing.starts or found else UNKNOWN)


def _deep(sweep: Sweep, listing: Listing, tell: Tell) -> list[dict[str, Any]]:
    return [*_by_number(sweep, tell), *_by_scheduler(sweep, listing)]


def _by_number(sweep: Sweep, tell: Tell) -> list[dict[str, Any]]:
    """Ask for every pid there may be; find who answers and is not listed."""
    shown, witness = sweep.proc, sweep.private or sweep.proc
    try:
        there = pidrange.existing(1, pidrange.PID_LIMIT, tell, witness)
    except NotPermittedError:
        return []
    missing = pidrange.unlisted(there.by_pidfd | there.by_group, shown, witness)
    views = {"pidfd_open": there.by_pidfd, "getpgid": there.by_group}
    return [
        {
            "pid": pid,
            "kind": "hidden_from_proc",
            "reason": "it answers to its number, and /proc does not list it",
            "seen_by": [name for name, pids in views.items() if pid in pids],
            "missing_from": ["/proc"],
        }
        for pid in sorted(missing)
    ]


def _by_scheduler(sweep: Sweep, listing: Listing) -> list[dict[str, Any]]:
    """Watch twice who runs; find who was there before and is not in the list."""

    def unlisted(listing: Listing) -> dict[Any, Seen]:
        return {
            seen.key: seen
            for seen in sweep.views.ran(_WATCH_S)
            if listing.starts.get(seen.key.tgid) != seen.key.start_ns
            and seen.key.start_ns < listing.taken_ns - _MARGIN_NS
        }

    first = unlisted(listing)
    again = unlisted(sweep.views.listing(changes=False)) if first else {}
    return [
        {
            "pid": seen.key.tgid,
            "kind": RAN_UNLISTED,
            "reason": f"{safe(text(seen.comm))} runs, and no list of the kernel has it",
            "seen_by": ["scheduler"],
            "missing_from": ["task list"],
        }
        for key, seen in again.items()
        if key in first
    ]
