"""Questions about ancestry: always finite, always saying where the chain breaks off.

In: the ledger and a process. Out: the ancestors by birth, nearest first, and why there
are no more of them. A parent that the ledger does not know is never invented.
"""

from agent.events import NOBODY, ChainEnd, Lineage, Process, ProcessKey
from agent.process.ledger import Ledger

MAX_DEPTH = 32
_MAX_KEPT = 8192


class Lineages:
    """Answers for one ledger; siblings share one answer until kinship changes."""

    def __init__(self, ledger: Ledger) -> None:
        """Keep nothing yet."""
        self._ledger = ledger
        self._kept: dict[ProcessKey, Lineage] = {}
        self._kinship = ledger.kinship

    def of(self, process: Process) -> Lineage:
        """Return the ancestors of a process, at most MAX_DEPTH of them."""
        if self._kinship != self._ledger.kinship or len(self._kept) > _MAX_KEPT:
            self._kept.clear()
            self._ledger.missing.clear()
            self._kinship = self._ledger.kinship
        parent = process.real_parent
        found = self._kept.get(parent)
        if found is None or self._met_anew(found):
            found = self._kept[parent] = self._follow(parent)
        return found

    def _met_anew(self, kept: Lineage) -> bool:
        """Whether the parent was forgotten, and its entry is another one by now.

        The others need no look: whose child is in the table is not forgotten unless
        kinship says so.
        """
        if not kept.ancestors:
            return False
        now = self._ledger.get(kept.ancestors[0].key)
        return now is not None and now is not kept.ancestors[0]

    def _follow(self, key: ProcessKey) -> Lineage:
        chain: list[Process] = []
        while len(chain) < MAX_DEPTH:
            if key == NOBODY:
                return Lineage(tuple(chain), ChainEnd.ROOT)
            parent = self._ledger.get(key)
            if parent is None:
                self._ledger.missing.add(key)
                return Lineage(tuple(chain), ChainEnd.UNKNOWN_PARENT)
            chain.append(parent)
            key = parent.real_parent
        distinct = len({one.key for one in chain})
        end = ChainEnd.DEPTH if distinct == len(chain) else ChainEnd.CYCLE
        return Lineage(tuple(chain), end)
