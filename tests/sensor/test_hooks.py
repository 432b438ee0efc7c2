"""The table of hooks: nothing in it may collide, in the kernel's names or in ours."""

import re

import pytest

from agent.sensor.hooks import SENSES, Hook, Sense
from agent.sensor.sources import SOURCES
from tests.wire_header import source

HOOKS = [hook for sense in SENSES for rung in sense.rungs for hook in rung.hooks]
BPFFS_NAME = re.compile(r"[A-Za-z0-9_-]{1,255}")  # bpffs refuses names with a dot


def taken_together(sense: Sense) -> list[list[Hook]]:
    return [list(rung.hooks) for rung in sense.rungs]


def test_no_two_hooks_that_may_be_attached_together_share_a_pin() -> None:
    by_sense = [[hook.pin for rung in s.rungs for hook in rung.hooks] for s in SENSES]
    distinct = [set(pins) for pins in by_sense]
    assert sum(map(len, distinct)) == len(set().union(*distinct))
    for sense in SENSES:
        for hooks in taken_together(sense):
            assert len({hook.pin for hook in hooks}) == len(hooks)


@pytest.mark.parametrize("hook", HOOKS, ids=lambda hook: hook.pin)
def test_a_pin_has_a_name_that_bpffs_takes(hook: Hook) -> None:
    assert BPFFS_NAME.fullmatch(hook.pin)


def test_the_name_of_a_pin_tells_its_program() -> None:
    assert all(hook.pin.startswith(f"{hook.program}__") for hook in HOOKS)


@pytest.mark.parametrize("program", sorted({hook.program for hook in HOOKS}))
def test_every_program_of_the_table_is_in_the_probes(program: str) -> None:
    text = "".join(source(name) for name in SOURCES if name.endswith(".c"))
    defined = set(re.findall(r"^int (\w+)\(", text, re.MULTILINE))
    for call in re.findall(r"^ON_CALL\((\w+)\)", text, re.MULTILINE):
        defined |= {f"{call}_enter", f"{call}_enter_compat"}
    calls = re.findall(r"^AFTER_CALL\((\w+)\)", text, re.MULTILINE)
    defined |= {f"{call}_result" for call in calls}
    iterators = re.findall(r"^BPF_ITER\((\w+)\)", text, re.MULTILINE)
    assert program in defined | {f"bpf_iter__{name}" for name in iterators}


def test_program_names_are_told_apart_by_what_the_kernel_keeps_of_them() -> None:
    programs = {hook.program for hook in HOOKS}
    assert len({program[:15] for program in programs}) == len(programs)


def test_every_sense_has_its_own_name_and_a_rung() -> None:
    assert len({sense.name for sense in SENSES}) == len(SENSES)
    assert all(sense.rungs and all(r.hooks for r in sense.rungs) for sense in SENSES)


def test_a_hook_says_the_kernel_s_name_of_its_place() -> None:
    for hook in HOOKS:
        assert " " not in hook.tracepoint
        assert hook.target.startswith(hook.tracepoint)
