"""Questions about ancestry: always finite, always saying where the chain breaks off.

In: the ledger and a process key. Out: the ancestors by birth, nearest first, and why
there are no more of them. A parent that the ledger does not know is never invented.
"""

from agent.events import NOBODY, ChainEnd, Lineage, Process
from agent.process.ledger import Ledger

MAX_DEPTH = 32


def lineage(ledger: Ledger, process: Process, depth: int = MAX_DEPTH) -> Lineage:
    """Follow the parents at birth upwards, at most `depth` of them."""
    chain: list[Process] = []
    seen = {process.key}
    while len(chain) < depth:
        if process.real_parent == NOBODY:
            return Lineage(tuple(chain), ChainEnd.ROOT)
        parent = ledger.get(process.real_parent)
        if parent is None:
            return Lineage(tuple(chain), ChainEnd.UNKNOWN_PARENT)
        if parent.key in seen:
            return Lineage(tuple(chain), ChainEnd.CYCLE)
        seen.add(parent.key)
        chain.append(parent)
        process = parent
    return Lineage(tuple(chain), ChainEnd.DEPTH)
