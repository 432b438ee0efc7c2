"""Ask the host, from within a guest, to edit the objects of this kernel.

In: an edit's name and arguments, as in surgery.py. Out: once a call returns the edit is
made; what it returns undoes it. Only in a guest whose variant has surgery.
"""

import itertools
import json
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from tests.kernel.conftest import until
from tests.vm.machine import LAB
from tests.vm.surgery import ANSWER, REQUEST, SYMBOLS, SurgeryError, leave

SHARE = Path(LAB)
_numbers = itertools.count(1)


def operate(edit: str, **args: int) -> Callable[[], Any]:
    """Have an edit made, and return what undoes it; SurgeryError says why not."""
    name = f"{os.getpid()}-{next(_numbers)}.json"
    asked = {"edit": edit, "args": args, "symbols": symbols()}
    leave(SHARE, REQUEST + name, json.dumps(asked))
    until((SHARE / (ANSWER + name)).exists, f"the host to {edit}")
    answer = json.loads((SHARE / (ANSWER + name)).read_text())
    if "error" in answer:
        raise SurgeryError(answer["error"])
    undo = answer["undo"]
    return lambda: operate(undo["edit"], **undo["args"])


@cache
def symbols() -> dict[str, int]:
    """The addresses of what the host starts from, as this kernel tells them to root."""
    with Path("/proc/kallsyms").open() as lines:
        rows = (line.split() for line in lines)
        return {row[2]: int(row[0], 16) for row in rows if row[2] in SYMBOLS}
