"""What a kernel can give: which rungs a test may ask for here, and how to force one.

In: the table of hooks, and in a virtual machine the rungs that its kernel is known to
refuse (IR_REFUSED, names with commas). Out: command lines, and skips that say why.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from agent.sensor.hooks import RUNGS, SENSES

REFUSED = frozenset(filter(None, os.environ.get("IR_REFUSED", "").split(",")))
IN_LAB = "VMLAB" in os.environ


def forbid_all_but(sense: str, rung: str) -> list[str]:
    """Options that leave a sense only one rung; rungs of other names stay."""
    mine = next(one for one in SENSES if one.name == sense)
    assert rung in {one.name for one in mine.rungs}
    others = [one.name for one in mine.rungs if one.name != rung]
    return ["--forbid", ",".join(others)]


def known(rung: str) -> None:
    """Skip a rung that this kernel refuses; in a guest only those that are listed."""
    assert rung in RUNGS
    if rung in REFUSED:
        pytest.skip(f"the kernel of this virtual machine refuses {rung}, as is known")


def unavailable(rung: str, why: str) -> None:
    """A rung could not be had: natively that is no fault, in a guest it is."""
    assert not IN_LAB, f"{rung} is refused here, and that is not known: {why}"
    pytest.skip(f"this kernel refuses {rung}: {why}")


def senses(runtime: Path) -> dict[str, dict[str, Any]]:
    """What the loader left word of: for each sense, one hook of its rung."""
    states = json.loads((runtime / "hooks.json").read_bytes())
    found: dict[str, dict[str, Any]] = {}
    for state in states:
        if state["attached"]:
            found[state["sense"]] = state
    return found


def why_not(runtime: Path, rung: str) -> str:
    """The first reason that a hook of this rung was refused for."""
    states = json.loads((runtime / "hooks.json").read_bytes())
    reasons = [one.get("reason", "") for one in states if one["rung"] == rung]
    return next(filter(None, reasons), "")
