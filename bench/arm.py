"""What the arms of the storm share: a daemon beside it, and what that left on disk.

Counts come in from an arm's reader; a verdict on completeness goes out. It can never
call a storm complete that has a lost, a doubled or an invented exec in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class UnavailableError(Exception):
    """Why an arm cannot run on this machine."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """Execs of the storm's program found, in all and each once; events of any kind.

    lost is what the daemon or the kernel itself says it dropped; size is in bytes.
    """

    execs: int
    distinct: int
    events: int
    lost: int
    size: int

    def complete(self, truth: int) -> bool:
        """Each exec is there exactly once, and nothing says it was dropped."""
        return self.execs == self.distinct == truth and not self.lost


class Daemon(Protocol):
    """What runs beside the storm."""

    pid: int

    def evidence(self) -> Evidence:
        """Count what it left on disk, after its end."""
