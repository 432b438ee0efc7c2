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
from agent.process.ledger import Ledger
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

    def of(self, process: Process, task: Task) -> Parentage:
        """Judge by its entry and the kernel's word of it; one look may be a race."""
        parent = task.real_parent
        if (
            process.creator == parent
            and not task.ptrace
            and task.parent == parent
            and process.real_parent == parent
        ):
            return _CONSISTENT
        return self._weigh(process, task)

    def _weigh(self, process: Process, task: Task) -> Parentage:
        moved = task.real_parent != process.real_parent
        left = process.orphaned_by if moved else NOBODY
        gone = self._ledger.get(left)
        why = self._contradiction(process, task, left)
        return Parentage(
            _verdict(process, task, forged=bool(why)),
            process.creator,
            process.real_parent,
            task.real_parent,
            task.parent if task.ptrace else NOBODY,
            left,
            gone.exited_ns if gone else 0,
            why,
        )

    def _contradiction(self, process: Process, task: Task, left: ProcessKey) -> str:
        """Say what can't be, or nothing."""
        if why := contradiction(task):
            return why
        if left == NOBODY:
            return ""
        if self._lives(left):
            return f"its parent {left.tgid} lives"
        if not self._may_reap(process, task.real_parent):
            return f"{task.real_parent.tgid} is no ancestor of its parent {left.tgid}"
        return ""

    def _lives(self, key: ProcessKey) -> bool:
        entry = self._ledger.get(key)
        if entry is not None and entry.exited_ns:
            return False
        return self._alive(key)  # its end may have been lost

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


def _verdict(process: Process, task: Task, *, forged: bool) -> Verdict:
    """Choose the one that says most; the others are in the evidence."""
    if forged:
        return Verdict.FORGED
    if task.ptrace:
        return Verdict.TRACED
    if task.real_parent != process.real_parent:
        return Verdict.REPARENTED
    if process.creator == NOBODY:
        return Verdict.UNKNOWN_BEFORE_START
    if process.creator != process.real_parent:
        return Verdict.CLONE_PARENT
    return Verdict.CONSISTENT
