"""Programs that bear the name of a kernel thread, as the kernel's list has them.

In: listings, in order. Out: whoever is named like one of the kernel's own threads in
two of them, has an address space, and is none. Nothing is asked of the process itself:
its command line may block whoever reads it, and is for `ir-check process` to look at.
"""

from agent.events import Discrepancy, Listing, ProcessKey, Task
from agent.process.drift import Kind, imitates_kernel


class Lookalikes:
    """The names of the kernel's threads, and who imitates one."""

    def __init__(self) -> None:
        """Know nobody yet."""
        self._threads: dict[int, bytes] = {}
        self._names: frozenset[bytes] = frozenset()
        self._doubted: dict[ProcessKey, int] = {}

    def take(self, listing: Listing) -> list[Discrepancy]:
        """Take a listing in; return whom two have shown now."""
        self._learn(listing)
        changed = {task.key: task for task in listing.changed}
        found, doubted = [], {}
        for key, task in changed.items():
            if key not in self._doubted and self._imitates(task):
                doubted[key] = listing.taken_ns
        for key, first_ns in self._doubted.items():
            if listing.starts.get(key.tgid) != key.start_ns:
                continue
            if key not in changed or self._imitates(changed[key]):
                found.append(_named(key, first_ns, listing.taken_ns))
        self._doubted = doubted
        return found

    def _learn(self, listing: Listing) -> None:
        names = {
            task.key.tgid: task.image.comm for task in listing.changed if task.kernel
        }
        gone = self._threads.keys() - listing.starts.keys()
        if names or gone:
            self._threads |= names
            for tgid in gone:
                del self._threads[tgid]
            self._names = frozenset(self._threads.values())

    def _imitates(self, task: Task) -> bool:
        # without an executable it is a helper that the kernel has just made of itself
        own = not task.kernel and task.image.executable.ino
        return bool(own) and imitates_kernel(task.image.comm, self._names)


def _named(key: ProcessKey, first_ns: int, confirmed_ns: int) -> Discrepancy:
    why = "named like a kernel thread, and it is a program with memory of its own"
    return Discrepancy(key, Kind.KERNEL_THREAD_LOOKALIKE, why, first_ns, confirmed_ns)
