"""The probes' C headers read as tables, so that tests encode by event.h itself.

In: the text of event.h, and of struct definitions elsewhere in the probes. Out: the
members of every struct in order, and the values of every enumerator and flag.
tests/abi proves with a compiler that this reading is the right one.
"""

import re
import struct
from functools import cache
from pathlib import Path

PROBES = Path(__file__).parents[1] / "probes"

FORMATS = {"u8": "B", "u16": "H", "u32": "I", "u64": "Q", "s32": "i", "s64": "q"}
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_STRUCT = re.compile(r"^struct (\w+) \{\n.*?^\};", re.DOTALL | re.MULTILINE)
_MEMBER = re.compile(r"^\t(struct )?(\w+) (\w+)(?:\[([^\]]+)\])?;", re.MULTILINE)
_ENUMERATOR = re.compile(r"^\t(IR_\w+) = (\d+),", re.MULTILINE)
_DEFINE = re.compile(r"^#define (IR_(?:F|EXE|TASK)_\w+)\s+(0x[0-9a-f]+)", re.MULTILINE)
_VERSION = re.compile(r"^#define IR_WIRE_VERSION (\d+)$", re.MULTILINE)


def source(name: str) -> str:
    """One file of the probes, without its comments."""
    return _COMMENT.sub("", (PROBES / name).read_text())


@cache
def definitions(name: str = "event.h") -> dict[str, str]:
    """The C text of every struct that a file defines, by its name."""
    return {found[1]: found[0] for found in _STRUCT.finditer(source(name))}


@cache
def constants() -> dict[str, int]:
    """Enumerators, flags and the version of event.h by their names."""
    text = source("event.h")
    values = {name: int(value) for name, value in _ENUMERATOR.findall(text)}
    values |= {name: int(value, 16) for name, value in _DEFINE.findall(text)}
    return values | {"IR_WIRE_VERSION": int(_VERSION.findall(text)[0])}


def _count(text: str) -> int:
    """The length of an array, as `6` or `IR_KINDS + 1`."""
    return sum(constants().get(word) or int(word) for word in text.split(" + "))


@cache
def members(name: str) -> tuple[tuple[str, str], ...]:
    """Every plain member with its struct format; nested ones as `task.comm`."""
    flat: list[tuple[str, str]] = []
    for nested, kind, member, length in _MEMBER.findall(definitions()[name]):
        if nested:
            flat += [(f"{member}.{inner}", form) for inner, form in members(kind)]
        elif kind == "char":
            flat.append((member, f"{length}s"))
        else:
            count = str(_count(length)) if length else ""
            flat.append((member, f"{count}{FORMATS[kind]}"))
    return tuple(flat)


@cache
def layout(name: str) -> struct.Struct:
    """The struct as Python packs it: event.h spells out all padding."""
    return struct.Struct("<" + "".join(form for _, form in members(name)))
