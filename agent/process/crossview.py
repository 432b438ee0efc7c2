"""Which processes do not all views have? A difference counts when it is no race.

In: looks, each with the kernel's list before and after the other views. Out: who is
missing where, or is there only. Who is in the list before and after lived all the time
between, so a view that was read between must have it; and whatever differs must differ
again, for the same process, in a second look.
"""

from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from itertools import islice
from typing import NamedTuple

from agent.events import Discrepancy, Listing, ProcessKey, Verdict

LIST, CHAIN, PROC, PRIVATE = "task list", "task chain", "/proc", "private /proc"

HIDDEN_FROM_LIST, HIDDEN_FROM_CHAIN = "hidden_from_list", "hidden_from_chain"
"""Taken out of one of the kernel's own structures; in /proc like anybody else."""


class Look(NamedTuple):
    """One look at all views; a view that could not be had is None.

    `chain` has start times by tgid, `proc` and `private` are pids. `ppids` has what
    /proc says of the parents of some. `start_of` gives the start (ns, to the clock
    tick) that /proc shows for a pid: 0 when it shows none, None when it does not list
    the pid any more.
    """

    before: Listing
    chain: Mapping[int, int] | None
    proc: AbstractSet[int]
    private: AbstractSet[int] | None
    ppids: Mapping[int, int]
    after: Listing
    start_of: Callable[[int], int | None]


class Difference(NamedTuple):
    """What is wrong with one process; `views` says which have it, unless all do."""

    kind: str
    why: str
    views: dict[str, bool]


class Turns:
    """Whose turn it is, where asking everybody at every look would cost too much."""

    def __init__(self, each: int) -> None:
        """Give so many turns at a time."""
        self._each = each
        self._rest: Iterator[int] = iter(())

    def next(self, everybody: Mapping[int, object]) -> list[int]:
        """Return some who are there; each one's turn comes before anybody's second."""
        turn = list(islice(self._rest, self._each))
        if len(turn) < self._each:
            self._rest = iter(everybody)
            turn += islice(self._rest, self._each - len(turn))
        return [pid for pid in turn if pid in everybody]


def compare(look: Look) -> dict[ProcessKey, Difference]:
    """Return who is not in all views alike."""
    keys = _missing(look) | _only_in_chain(look) | _only_in_proc(look)
    differing = {key: _difference(_views(look, key)) for key in keys}
    return _misnamed(look) | differing


def _missing(look: Look) -> set[ProcessKey]:
    """Find who is in the kernel's list all the time, and missing elsewhere."""
    starts, after = look.before.starts, look.after.starts
    missing = starts.keys() - look.proc
    if look.private is not None:
        missing |= starts.keys() - look.private
    if look.chain is not None:
        missing |= {tgid for tgid, _ in starts.items() - look.chain.items()}
    return {
        ProcessKey(tgid, starts[tgid])
        for tgid in missing
        if after.get(tgid) == starts[tgid]
    }


def _only_in_chain(look: Look) -> set[ProcessKey]:
    """Find who stands in the chain of tasks and is not in the list."""
    chain = look.chain or {}
    return {
        ProcessKey(tgid, start)
        for tgid, start in chain.items() - look.before.starts.items()
        if look.after.starts.get(tgid) != start
    }


def _only_in_proc(look: Look) -> set[ProcessKey]:
    """Find folders of /proc for which the kernel has no process."""
    unlisted = look.proc - look.after.starts.keys() - (look.chain or {}).keys()
    starts = {pid: look.start_of(pid) for pid in unlisted}  # None: it ended meanwhile
    return {ProcessKey(pid, at) for pid, at in starts.items() if at is not None}


def _difference(views: dict[str, bool]) -> Difference:
    """Say what it is called that these views have a process and those have not."""
    kind: str = Verdict.HIDDEN_FROM_PROC
    if not views[LIST] and not views.get(CHAIN):
        kind = Verdict.ONLY_IN_PROC
        why = "/proc lists it, and the kernel has no such process"
    elif not views[LIST]:
        why = "the kernel's list of processes does not have it; its chain of tasks does"
        kind = HIDDEN_FROM_LIST if views[PROC] else kind
    elif not views[PROC]:
        beside = views.get(PRIVATE, False)
        why = "/proc does not list it" + (", one of our own does" if beside else "")
    elif not views.get(CHAIN, True):
        kind, why = HIDDEN_FROM_CHAIN, "the kernel's chain of tasks does not hold it"
    else:
        why = "a /proc of our own does not list it, though the mounted one does"
    return Difference(kind, why, views)


def _misnamed(look: Look) -> dict[ProcessKey, Difference]:
    """Find whom /proc gives another parent than the kernel does all the time."""
    found = {}
    for tgid, ppid in look.ppids.items():
        start, parent = look.before.starts.get(tgid), look.before.parents.get(tgid)
        steady = look.after.starts.get(tgid) == start
        if start and steady and look.after.parents.get(tgid) == parent != ppid:
            why = f"/proc names {ppid} as its parent, the kernel {parent}"
            found[ProcessKey(tgid, start)] = Difference(Verdict.FORGED, why, {})
    return found


def _views(look: Look, key: ProcessKey) -> dict[str, bool]:
    tgid, start = key.tgid, key.start_ns
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
