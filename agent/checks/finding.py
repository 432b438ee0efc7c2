"""What a check returns: the same for all of them.

In: what was found. Out: lines for a person, a document for a program, and an exit code.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

OK, WARNING, CRITICAL, UNKNOWN = 0, 1, 2, 3
"""Exit codes; unknown: it could not be looked at."""

_GRAVITY = (OK, UNKNOWN, WARNING, CRITICAL)


class Finding(NamedTuple):
    """What one check found."""

    lines: list[str]
    document: dict[str, Any]
    exit_code: int


def gravest(codes: Iterable[int]) -> int:
    """Return the exit code that says most: critical, warning, unknown, ok."""
    return max(codes, key=_GRAVITY.index, default=OK)
