"""Is this process's parent its parent? A verdict of a closed set, with its evidence.

In: what the ledger knows of the birth, and a task as the kernel holds it now. Out: a
Parentage. The kernel gives a process another parent in one case only: the parent has
ended, and an ancestor that reaps, or the init of the pid namespace, takes over. Whoever
has another parent without that was given it by somebody else.
"""

from collections.abc import Callable

from agent.events import (
    NOBODY,
    ChainEnd,
    Parentage,
    Process,
    ProcessKey,
    Task,
    Verdict,
)
from agent.process.ledger import END_UNSEEN, Ledger
from agent.process.lineage import Lineages

_CONSISTENT = Parentage(Verdict.CONSISTENT)


class Parentages:
    """Judges processes of one ledger.

    `alive` says whether this very process still lives, `reaps` whether it is the init
    of a pid namespace; both are asked only where the ledger does not explain a parent.
    """

    def __init__(
        self,
        ledger: Ledger,
        lineages: Lineages,
        alive: Callable[[ProcessKey], bool],
        reaps: Callable[[ProcessKey], bool],
    ) -> None:
        """Judge by this ledger."""
        self._ledger, self._lineages = ledger, lineages
        self._alive, self._reaps = alive, reaps

    def of(self, process: Process, task: Task, at_ns: int = 0) -> Parentage:
        """Judge by its entry and the kernel's word of it; one look may be a race.

        `at_ns` says when an event gave that word (CLOCK_BOOTTIME), 0 that it is of now.
        """
        parent = task.real_parent
        if (
            process.creator == parent
            and not task.ptrace
            and task.parent == parent
            and process.real_parent == parent
            and task.leader == task.key.tgid
        ):
            return _CONSISTENT
        return self._weigh(process, task, behind=0 < at_ns < self._ledger.snapshot_ns)

    def _weigh(self, process: Process, task: Task, *, behind: bool) -> Parentage:
        moved = task.real_parent != process.real_parent
        if behind and process.known == "observed":
            moved = False  # what the snapshot said is the later word
        left = _before(process, task.real_parent) if moved else NOBODY
        gone = self._ledger.get(left)
        why = ""
        if moved and not behind:
            why = self._usurped(process, task.real_parent, left)
        why = why or contradiction(task)
        return Parentage(
            Verdict.FORGED if why else _verdict(process, task, moved=moved),
            process.creator,
            process.real_parent,
            task.real_parent,
            task.parent if task.ptrace else NOBODY,
            left,
            gone.exited_ns if gone else 0,
            why,
        )

    def _usurped(self, process: Process, parent: ProcessKey, left: ProcessKey) -> str:
        """Say why this one can't have become its parent, or nothing."""
        for one in (process.real_parent, left):
            if self.lives(one):
                return f"its parent {one.tgid} lives"
        if not self._may_reap(process, parent):
            return f"{parent.tgid} is no ancestor of its parent {left.tgid}"
        return ""

    def lives(self, key: ProcessKey) -> bool:
        """Whether it has not ended, by its event or else by what is there now."""
        entry = self._ledger.get(key)
        if entry is not None and entry.exited_ns and entry.status != END_UNSEEN:
            return False
        return self._alive(key)  # its end may have been lost, or be none

    def _may_reap(self, process: Process, reaper: ProcessKey) -> bool:
        lineage = self._lineages.of(process)
        if lineage.end is not ChainEnd.ROOT:
            return True  # the chain breaks off: nothing is known against it
        known = any(reaper == ancestor.key for ancestor in lineage.ancestors)
        return known or reaper.tgid == 1 or self._reaps(reaper)


def contradiction(task: Task) -> str:
    """Say what can't be in the facts of one task alone, or nothing."""
    if task.leader != task.key.tgid:
        return f"its thread group's leader is {task.leader}"
    if task.parent != task.real_parent and not task.ptrace:
        return f"parent is {task.parent.tgid}, and nobody traces it"
    return ""


def _before(process: Process, parent: ProcessKey) -> ProcessKey:
    """Whose child it was before, as far as it was heard of."""
    before = process.orphaned_by
    return process.real_parent if before in (NOBODY, parent) else before


def _verdict(process: Process, task: Task, *, moved: bool) -> Verdict:
    """Choose the one that says most; the others are in the evidence."""
    if task.ptrace:
        return Verdict.TRACED
    if moved:
        return Verdict.REPARENTED
    if process.creator == NOBODY:
        return Verdict.UNKNOWN_BEFORE_START
    if process.creator != process.real_parent:
        return Verdict.CLONE_PARENT
    return Verdict.CONSISTENT
