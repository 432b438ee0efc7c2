"""Verifying a log: every record is there, in order, as it was written, or it is not.

Comes in: a folder of segments, also while a writer is at work in it.
Goes out: one report with every fault, located.
Never: a pass for a folder where one byte of an older record was changed.
"""

from collections import deque
from pathlib import Path

import msgspec

from agent.sinks.chain import (
    GENESIS,
    LOCK_NAME,
    Position,
    first_sequence,
    is_evidence,
    segment_names,
)
from agent.sinks.scan import Fault, Scan


class Report(msgspec.Struct, frozen=True):
    """What `verify` found in a folder.

    `records` counts the lines that verify, headers included; `bytes` is the size of all
    segments. `starts_at` is above 0 when older segments were removed (retention does
    that); like `ends_at` it is None in an empty log. `last_hash` (hex) is what an
    anchor outside of the node must hold for `ends_at`. `torn`: the newest segment ends
    in an unfinished line, which is normal while a writer runs and after a crash.
    `evidence` names the torn tails that recoveries moved aside.
    """

    segments: int
    records: int
    bytes: int
    starts_at: int | None
    ends_at: int | None
    last_hash: str
    faults: tuple[Fault, ...]
    evidence: tuple[str, ...]
    torn: bool


def verify(directory: Path) -> Report:
    """Verify every segment in `directory` and report all that is wrong, in order.

    Finds a changed byte, a line removed, added or moved, the cut end of a segment that
    has a successor, a segment removed from between others or renamed, and files that
    do not belong. It cannot find that newest records were cut off: that takes an anchor
    of (`ends_at`, `last_hash`) outside of the node. Raises OSError if it cannot read.
    """
    names = segment_names(directory)
    scans: list[Scan] = []
    for name in names:
        expected = scans[-1].resume if scans else _genesis(name)
        scan = Scan(name, expected)
        try:
            with (directory / name).open("rb") as file:
                deque(scan.lines(file), maxlen=0)
        except FileNotFoundError:
            continue  # retention was faster; a gap shows at the next header
        if scans:
            scans[-1].finish()
        scans.append(scan)
    return _report(scans, *_others(directory, names))


def _genesis(name: str) -> Position | None:
    """Return where a log begins, unless its oldest segments were removed."""
    return None if first_sequence(name) else Position(0, GENESIS)


def _others(directory: Path, names: list[str]) -> tuple[tuple[str, ...], list[Fault]]:
    """Return the evidence files, and a fault for each file that does not belong."""
    others = sorted({path.name for path in directory.iterdir()} - {*names, LOCK_NAME})
    evidence = tuple(name for name in others if is_evidence(name))
    # A segment that was started since `names` was listed is no stranger.
    strangers = set(others) - set(evidence) - set(segment_names(directory))
    reason = "not a file of this log"
    return evidence, [Fault(name, 0, 0, 0, reason) for name in sorted(strangers)]


def _report(
    scans: list[Scan], evidence: tuple[str, ...], strangers: list[Fault]
) -> Report:
    last = scans[-1].resume if scans else Position(0, GENESIS)
    starts_at = first_sequence(scans[0].name) if scans else None
    return Report(
        segments=len(scans),
        records=sum(scan.records for scan in scans),
        bytes=sum(scan.offset + scan.tail for scan in scans),
        starts_at=starts_at,
        ends_at=last.sequence - 1 if last.sequence != (starts_at or 0) else None,
        last_hash=last.previous.hex(),
        faults=(*(fault for scan in scans for fault in scan.faults), *strangers),
        evidence=evidence,
        torn=bool(scans) and scans[-1].unfinished,
    )
