"""The two statements of the wire format agree: event.h as a compiler sees it, wire.py.

A C program that includes event.h prints every offset, size and constant; nothing here
trusts a reading of the header by hand, not even the one the other tests encode with.
"""

import re
import struct
import subprocess  # noqa: TID251 - runs the compiler
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from agent.events import AccessKind, Flag
from agent.sensor import wire
from tests.wire_header import PROBES, constants, definitions, layout, members

# -Wpadded: padding that is not spelled out would differ between compilers
FLAGS = ("-std=gnu11", "-Wall", "-Wextra", "-Werror", "-Wpadded", f"-I{PROBES}")
ELSEWHERE = {
    "cpu_state": "fill.h",
    "fold_key": "access.c",
    "fold": "access.c",
}
"""Structs of maps that user space reads, and the file that defines them."""
STRUCTS = [*definitions(), *ELSEWHERE]
_PLAIN = re.compile(r"^\t(?:struct )?\w+ (\w+)(?:\[[^\]]+\])?;", re.MULTILINE)


class Place(NamedTuple):
    """Where a member lies, in bytes."""

    offset: int
    size: int


class Compiled(NamedTuple):
    """What the compiler says."""

    places: dict[str, Place]
    constants: dict[str, int]


def _text(name: str) -> str:
    return definitions(ELSEWHERE.get(name, "event.h"))[name]


def _member_names(name: str) -> list[str]:
    return _PLAIN.findall(_text(name))


_HEAD = """#include <stddef.h>
#include <stdio.h>
#include "event.h"
#define PRINT(name, offset, size) printf("struct %s %zu %zu\\n", name, offset, size)
#define SIZE(s) PRINT(#s, (size_t)0, sizeof(struct s))
#define MEMBER(s, m) PRINT(#s "." #m, offsetof(struct s, m), sizeof(((struct s *)0)->m))
"""


def _program() -> str:
    lines = [_HEAD, *(_text(name) for name in ELSEWHERE), "int main(void)", "{"]
    for name in STRUCTS:
        lines.append(f"SIZE({name});")
        lines += [f"MEMBER({name}, {member});" for member in _member_names(name)]
    lines += [
        f'printf("constant {name} %d 0\\n", (int){name});' for name in constants()
    ]
    return "\n".join([*lines, "return 0;", "}", ""])


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    folder = tmp_path_factory.mktemp("abi")
    (folder / "layout.c").write_text(_program())
    command = ["cc", *FLAGS, "-o", folder / "layout", folder / "layout.c"]
    built = subprocess.run(command, check=False, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    output = subprocess.run([folder / "layout"], check=True, capture_output=True).stdout
    found = Compiled({}, {})
    for line in output.decode().splitlines():
        what, name, first, second = line.split()
        if what == "struct":
            found.places[name] = Place(int(first), int(second))
        else:
            found.constants[name] = int(first)
    return found


def _values(form: str) -> Iterator[str]:
    """Split a struct format into one format for each value that it unpacks to."""
    for count, kind in re.findall(r"(\d*)([a-zA-Z])", form):
        if kind == "s":
            yield f"{count}s"
        else:
            yield from [kind] * int(count or 1)


def _places(one: struct.Struct, names: tuple[str, ...]) -> dict[str, Place]:
    """Name the values of a struct of wire.py; the last name takes all that is left."""
    forms = list(_values(one.format))
    groups = [*([form] for form in forms[: len(names) - 1]), forms[len(names) - 1 :]]
    places, at = {}, 0
    for name, group in zip(names, groups, strict=True):
        size = struct.calcsize("<" + "".join(group))
        places[name] = Place(at, size)
        at += size
    assert at == one.size
    return places


def _moved(places: dict[str, Place], by: int, prefix: str = "") -> dict[str, Place]:
    return {prefix + name: Place(by + at, size) for name, (at, size) in places.items()}


def _task() -> dict[str, Place]:
    """All members of a task: the blocks that are decoded by themselves put in place."""
    own = _places(wire.TASK, wire.TASK_FIELDS)
    image = own.pop(wire.TASK_FIELDS[-1])
    blocks = _places(wire.IMAGE, wire.IMAGE_FIELDS)
    assert image.size == wire.IMAGE.size
    executable, context = (blocks.pop(name) for name in wire.IMAGE_FIELDS[-2:])
    own |= _moved(blocks, image.offset)
    for block, layout_, names, prefix in (
        (executable, wire.EXECUTABLE, wire.EXECUTABLE_FIELDS, "exe_"),
        (context, wire.CONTEXT, wire.CONTEXT_FIELDS, ""),
    ):
        assert block.size == layout_.size
        own |= _moved(_places(layout_, names), image.offset + block.offset, prefix)
    return own


def _event(one: struct.Struct, tasks: tuple[str, ...], names: tuple[str, ...]) -> dict:
    """The members of an event, its head and its tasks each as one."""
    head, task = len(wire.HEAD_FIELDS), len(wire.TASK_FIELDS)
    before = [*wire.HEAD_FIELDS, *(f"{who}{i}" for who in tasks for i in range(task))]
    every = _places(one, (*before, *names))
    merged = {"head": Place(0, sum(every[name].size for name in before[:head]))}
    for who in tasks:
        own = [every[f"{who}{i}"] for i in range(task)]
        merged[who] = Place(own[0].offset, sum(place.size for place in own))
    return merged | {name: every[name] for name in names}


def _cpu_state() -> dict[str, Place]:
    kinds = [f"lost{kind}" for kind in range(16)]
    every = _places(wire.CPU_STATE, ("seq", *kinds, "last_lost_ns"))
    lost = Place(every["lost0"].offset, sum(every[kind].size for kind in kinds))
    return {"seq": every["seq"], "lost": lost, "last_lost_ns": every["last_lost_ns"]}


STATED = {
    "ir_head": _places(wire.HEAD, wire.HEAD_FIELDS),
    "ir_task": _task(),
    "ir_exec": _event(wire.EXEC, ("task",), wire.EXEC_FIELDS),
    "ir_argv": _event(wire.ARGV, (), wire.ARGV_FIELDS),
    "ir_exec_failed": _event(wire.EXEC_FAILED, ("task",), wire.EXEC_FAILED_FIELDS),
    "ir_fork": _event(wire.FORK, ("task",), wire.FORK_FIELDS),
    "ir_exit": _event(wire.EXIT, ("task",), wire.EXIT_FIELDS),
    "ir_access_event": _event(wire.ACCESS, ("task", "target"), wire.ACCESS_FIELDS),
    "ir_prctl": _event(wire.PRCTL, ("task",), wire.PRCTL_FIELDS),
    "ir_seen": _places(wire.SEEN, wire.SEEN_FIELDS),
    "cpu_state": _cpu_state(),
}
"""What wire.py says, struct by struct."""


def test_every_struct_of_the_header_has_its_layout_in_wire_py() -> None:
    assert set(STRUCTS) - {"fold", "fold_key"} == set(STATED)


@pytest.mark.parametrize("name", STATED)
def test_every_member_lies_where_wire_py_says(compiled: Compiled, name: str) -> None:
    members_ = {
        member: compiled.places[f"{name}.{member}"] for member in _member_names(name)
    }
    assert STATED[name] == members_
    assert sum(place.size for place in members_.values()) == compiled.places[name].size


@pytest.mark.parametrize("name", definitions())
def test_the_tests_encode_by_the_compiler_s_layout(
    compiled: Compiled, name: str
) -> None:
    assert layout(name).size == compiled.places[name].size
    plain = [member for member, _ in members(name) if "." not in member]
    at = 0
    for member, form in members(name):
        if member in plain:
            where = compiled.places[f"{name}.{member}"]
            assert where == Place(at, struct.calcsize(f"<{form}"))
        at += struct.calcsize(f"<{form}")


def test_a_fold_is_two_numbers_and_then_the_event(compiled: Compiled) -> None:
    places = compiled.places
    assert places["fold.e"] == Place(wire.FOLD.size, places["ir_access_event"].size)
    sent = {name: places[f"fold.{name}"] for name in ("sent_ns", "sent_count")}
    assert sent == _places(wire.FOLD, ("sent_ns", "sent_count"))
    assert places["fold_key"].size == wire.FOLD_KEY_SIZE


def test_every_kind_and_every_flag_has_the_same_number_on_both_sides(
    compiled: Compiled,
) -> None:
    found = compiled.constants
    assert found == constants()
    flags = {name: value for name, value in found.items() if name.startswith("IR_F_")}
    assert flags == {f"IR_F_{flag.name}": flag.value for flag in Flag}
    kinds = {f"IR_{kind.name}": kind.value for kind in wire.Kind}
    assert kinds == {name: found[name] for name in kinds}
    assert found["IR_KINDS"] == len(kinds) + 1
    assert found["IR_WIRE_VERSION"] == wire.VERSION


def test_every_access_has_the_same_number_on_both_sides(compiled: Compiled) -> None:
    block = re.search(r"enum ir_access \{(.*?)\}", (PROBES / "event.h").read_text(), 16)
    assert block is not None
    named = re.findall(r"^\tIR_(\w+) =", block[1], re.MULTILINE)
    words = {"VM_READ": "PROCESS_VM_READ", "VM_WRITE": "PROCESS_VM_WRITE"}
    values = {words.get(one, one): compiled.constants[f"IR_{one}"] for one in named}
    assert values == {kind.name: kind.value for kind in AccessKind}


def test_flags_are_one_bit_each() -> None:
    assert all(flag.bit_count() == 1 for flag in Flag)
    assert len({flag.value for flag in Flag}) == len(Flag)


def test_a_lost_kind_has_its_own_counter(compiled: Compiled) -> None:
    lost = compiled.places["cpu_state.lost"].size // 8
    assert lost > max(wire.Kind)
    assert lost == compiled.constants["IR_KIND_SLOTS"]
    assert lost.bit_count() == 1  # the probes count at `kind & (slots - 1)`
