"""Which probe sources are compiled together, and in which variants.

In: nothing. Out: the table that loader and header generator share. A variant is one
text for the compiler, and so one thing that can be refused: what it needs and a kernel
lacks takes no other variant down.
"""

import sys
from pathlib import Path
from typing import NamedTuple

from agent.errors import LoadError

COMMON = ("event.h", "fill.h", "path.h", "calls.h", "guard.h")
BIRTHS = (*COMMON, "exec.c", "process.c")
WALKS = (*COMMON, "walk.c")
CALLS = (*COMMON, "failed.c", "access.c", "memory.c", "prctl.c", "guard.c")


class Variant(NamedTuple):
    """One text: its sources in order, and how they are meant (-D of the probes).

    `typed` lets programs read by type, which they then must be loaded with, `only`
    makes them read in no other way; `way` is how system calls are seen (IR_BY_* of
    probes/calls.h).
    """

    name: str
    files: tuple[str, ...]
    typed: bool = False
    way: int = 0
    only: bool = False


BIRTHS_TYPED = Variant("births-typed", BIRTHS, typed=True)
BIRTHS_ONLY_TYPED = Variant("births-only-typed", BIRTHS, typed=True, only=True)
BIRTHS_PLAIN = Variant("births-plain", BIRTHS)
WALKS_PLAIN = Variant("walks-plain", WALKS)
BY_TRACEPOINT = Variant("calls-tracepoint", CALLS, way=0)
BY_FUNCTION = Variant("calls-function", CALLS, way=1)
BY_KPROBE = Variant("calls-kprobe", CALLS, way=2)
ANY_CALLS = (BY_FUNCTION, BY_KPROBE, BY_TRACEPOINT)

SOURCES = tuple(dict.fromkeys((*BIRTHS, *WALKS, *CALLS)))
"""All of them, each once."""


def probe_folder() -> Path:
    """Find the probe sources: beside the package, or installed as data."""
    for folder in (
        Path(__file__).parents[2] / "probes",
        Path(sys.prefix) / "share/ir-agent/probes",
    ):
        if (folder / SOURCES[0]).exists():
            return folder
    raise LoadError("the probe sources are not installed")
