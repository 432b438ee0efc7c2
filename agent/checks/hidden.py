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
from agent.events import Discrepancy, Listing, Verdict
from agent.process import pidrange
from agent.process.census import RAN_UNLISTED, unlisted
from agent.sinks.text import safe, sentence, text
from agent.sweep import Sweep

_WATCH_S = 0.5
Tell = Callable[[int, int], None]


def check(folder: Path, tell: Tell | None) -> Finding:
    """Look; with `tell`, which is told (done, total) of the pids, look deep."""
    if os.geteuid():
        return _unknown("only root may read the kernel's own lists")
    sweep = Sweep(folder)
    try:
        sweep.doubt()
        listing = sweep.views.listing(changes=False)
        found = [_told(sweep, one) for one in _compared(sweep, listing)]
        notes = _lacking(sweep)
        if tell:
            known = {one["pid"] for one in found}
            deeper, refused = _deep(sweep, listing, tell)
            found += [one for one in deeper if one["pid"] not in known]
            notes += refused
        return _finding(sweep, listing, found, notes, deep=tell is not None)
    finally:
        sweep.close()


def _unknown(note: str) -> Finding:
    return Finding([f"hidden: {note}"], {"notes": [note]}, UNKNOWN)


def _compared(sweep: Sweep, listing: Listing) -> list[Discrepancy]:
    """Hold the views against each other; who has two parents is not hidden.

    Of processes that are covered in /proc as well, what the views say is kept.
    """
    if not (listing.starts and sweep.comparable):
        return []
    found = [one for one in sweep.compare(listing) if one.kind != Verdict.FORGED]
    covered = {one.key.tgid: one for one in sweep.covered(listing)}
    known = {one.key.tgid for one in found}
    return found + [covered[pid] for pid in sorted(covered.keys() - known)]


def _told(sweep: Sweep, one: Discrepancy) -> dict[str, Any]:
    task = sweep.views.one(one.key.tgid)
    return {
        "pid": one.key.tgid,
        "name": text(task.image.comm) if task else "",
        "kind": str(one.kind),
        "reason": one.why,
        "seen_by": [view for view, has in one.views.items() if has],
        "missing_from": [view for view, has in one.views.items() if not has],
    }


def _lacking(sweep: Sweep) -> list[str]:
    """Say what was not looked at."""
    views = sweep.views.views
    notes = [f"{view}, no probes here give it" for view in views if not views[view]]
    if not sweep.comparable:
        notes.append("/proc, which is not one that shows all processes")
    return notes


def _finding(
    sweep: Sweep,
    listing: Listing,
    found: list[dict[str, Any]],
    notes: list[str],
    *,
    deep: bool,
) -> Finding:
    doubts = [{"kind": str(one.kind), "text": one.text} for one in sweep.doubts]
    count, look = len(listing.starts), "deep look" if deep else "look"
    lines = [f"hidden: {look} at {count} processes by kernel, {len(found)} hidden"]
    lines += [
        f"  {one['kind'].upper()}: {safe(one['name'] or '?')}[{one['pid']}]:"
        f" {sentence(one['reason'])}"
        for one in found
    ]
    lines += [f"  doubt: {sentence(one['text'])}" for one in doubts]
    lines += [f"  not looked at: {one}" for one in notes]
    if sweep.views.init:
        lines.append("  pid 1 is taken by number: this kernel's iterator leaves it out")
    document = {
        "processes": count,
        "deep": deep,
        "hidden": found,
        "doubts": doubts,
        "views": sweep.views.views,
        "notes": notes,
    }
    looked = OK if count and sweep.comparable else UNKNOWN
    return Finding(
        lines, document, CRITICAL if found else WARNING if doubts else looked
    )


def _deep(
    sweep: Sweep, listing: Listing, tell: Tell
) -> tuple[list[dict[str, Any]], list[str]]:
    """Ask for numbers and watch who runs; also returns what could not be done."""
    notes = []
    try:
        found = _by_number(sweep, tell)
    except NotPermittedError as error:
        found, notes = [], [f"every pid there may be: {error}"]
    return found + (_by_scheduler(sweep, listing) if listing.starts else []), notes


def _by_number(sweep: Sweep, tell: Tell) -> list[dict[str, Any]]:
    """Ask for every pid there may be; find who answers and is not listed."""
    shown, witness = sweep.proc, sweep.private or sweep.proc
    there = pidrange.existing(1, pidrange.PID_LIMIT, tell, witness)
    missing = pidrange.unlisted(there.by_pidfd | there.by_group, shown, witness)
    views = {"pidfd_open": there.by_pidfd, "getpgid": there.by_group}
    return [
        {
            "pid": pid,
            "name": "",
            "kind": str(Verdict.HIDDEN_FROM_PROC),
            "reason": "it answers to its number, and /proc does not list it",
            "seen_by": [name for name, pids in views.items() if pid in pids],
            "missing_from": ["/proc"],
        }
        for pid in sorted(missing)
    ]


def _by_scheduler(sweep: Sweep, listing: Listing) -> list[dict[str, Any]]:
    """Watch twice who runs; find who was there before and is not in the list."""
    first = {one.key for one in unlisted(listing, sweep.views.ran(_WATCH_S))}
    if not first:
        return []
    listing = sweep.views.listing(changes=False)
    again = {one.key: one for one in unlisted(listing, sweep.views.ran(_WATCH_S))}
    return [
        {
            "pid": key.tgid,
            "name": text(seen.comm),
            "kind": RAN_UNLISTED,
            "reason": "it runs, and no list of the kernel has it",
            "seen_by": ["scheduler"],
            "missing_from": ["task list"],
        }
        for key, seen in again.items()
        if key in first
    ]
