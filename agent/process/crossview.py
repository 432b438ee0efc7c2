"""Which processes do not all views have? A difference counts when it is no race.

In: looks, each with the kernel's list before and after the other views. Out: who is
missing where, or is there only. Who is in the list before and after lived all the time
between, so a view that was read between must have it; and whatever differs must differ
again, for the same process, in a second look.
"""

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from agent.events import Discrepancy, Listing, ProcessKey, Verdict

LIST, CHAIN, PROC, PRIVATE = "task list", "task chain", "/proc", "private /proc"

HIDDEN_FROM_LIST, HIDDEN_FROM_CHAIN = "hidden_from_list", "hidden_from_chain"
"""Taken out of one of the kernel's own structures; in /proc like anybody else."""


class Look(NamedTuple):
    """One look at all views; a view that could not be had is None.

    `chain` has start times by tgid, `proc` and `private` are pids. `ppids` has what
    /proc says of the parents of some. `start_of` gives the start (ns, to the clock
    tick) that /proc shows for a pid, or None.
    """

    before: Listing
    chain: Mapping[int, int] | None
    proc: AbstractSet[int]
    private: AbstractSet[int] | None
    ppids: Mapping[int, int]
    after: Listing
    start_of: Callable[[int], int | None]


class Difference(NamedTuple):
    """What is wrong with one process, and which views have it."""

    kind: str
    why: str
    views: dict[str, bool]


def compare(look: Look) -> dict[ProcessKey, Difference]:
    """Return who is not in all views alike."""
    return _hidden(look) | _only_in_proc(look) | _not_listed(look) | _misnamed(look)


def _hidden(look: Look) -> dict[ProcessKey, Difference]:
    """Find who is in the kernel's list all the time, and missing elsewhere."""
    starts, after = look.before.starts, look.after.starts
    missing = starts.keys() - look.proc
    if look.private is not None:
        missing |= starts.keys() - look.private
    if look.chain is not None:
        missing |= {tgid for tgid, _ in starts.items() - look.chain.items()}
    return {
        ProcessKey(tgid, starts[tgid]): _describe(look, tgid, starts[tgid])
        for tgid in missing
        if after.get(tgid) == starts[tgid]
    }


def _describe(look: Look, tgid: int, start: int) -> Difference:
    views = _views(look, tgid, start)
    if not views[PROC]:
        beside = views.get(PRIVATE, False)
        why = "/proc does not list it" + (", one of our own does" if beside else "")
        return Difference(Verdict.HIDDEN_FROM_PROC, why, views)
    if not views.get(CHAIN, True):
        why = "the kernel's chain of tasks does not hold it"
        return Difference(HIDDEN_FROM_CHAIN, why, views)
    why = "a /proc of our own does not list it, though the mounted one does"
    return Difference(Verdict.HIDDEN_FROM_PROC, why, views)


def _only_in_proc(look: Look) -> dict[ProcessKey, Difference]:
    """Find folders of /proc for which the kernel has no process."""
    found = {}
    for pid in look.proc - look.before.starts.keys() - look.after.starts.keys():
        if look.chain is None or pid not in look.chain:
            start = look.start_of(pid) or 0
            views = _views(look, pid, start)
            why = "/proc lists it, and the kernel has no such process"
            found[ProcessKey(pid, start)] = Difference(Verdict.ONLY_IN_PROC, why, views)
    return found


def _not_listed(look: Look) -> dict[ProcessKey, Difference]:
    """Find who stands in the chain of tasks and is not in the list."""
    if look.chain is None:
        return {}
    found = {}
    for tgid, start in look.chain.items() - look.before.starts.items():
        if look.after.starts.get(tgid) == start:
            continue
        views = _views(look, tgid, start)
        kind = HIDDEN_FROM_LIST if views[PROC] else Verdict.HIDDEN_FROM_PROC
        why = "the kernel's list of processes does not have it; its chain of tasks does"
        found[ProcessKey(tgid, start)] = Difference(kind, why, views)
    return found


def _misnamed(look: Look) -> dict[ProcessKey, Difference]:
    """Find whom /proc gives another parent than the kernel does all the time."""
    found = {}
    for tgid, ppid in look.ppids.items():
        start, parent = look.before.starts.get(tgid), look.before.parents.get(tgid)
        steady = look.after.starts.get(tgid) == start
        if start and steady and look.after.parents.get(tgid) == parent != ppid:
            why = f"/proc names {ppid} as its parent, the kernel {parent}"
            views = _views(look, tgid, start)
            found[ProcessKey(tgid, start)] = Difference(Verdict.FORGED, why, views)
    return found


def _views(look: Look, tgid: int, start: int) -> dict[str, bool]:
    lists = look.before.starts, look.after.starts
    views = {LIST: any(one.get(tgid) == start for one in lists)}
    if look.chain is not None:
        views[CHAIN] = look.chain.get(tgid) == start
    views[PROC] = tgid in look.proc
    if look.private is not None:
        views[PRIVATE] = tgid in look.private
    return views


def confirmed(first: Look, again: Callable[[], Look]) -> list[Discrepancy]:
    """Return what a first look shows, and two more show again for the same process.

    `again` takes another look, a moment later. The first may be a cheap one, with one
    listing for both.
    """
    doubted = compare(first)
    if not doubted:
        return []
    for _ in range(2):
        look = again()
        now = compare(look)
        doubted = {
            key: now[key]
            for key, difference in doubted.items()
            if key in now and now[key].kind == difference.kind
        }
        if not doubted:
            return []
    return [
        Discrepancy(
            key,
            found.kind,
            found.why,
            first.before.taken_ns,
            look.after.taken_ns,
            found.views,
        )
        for key, found in doubted.items()
    ]
