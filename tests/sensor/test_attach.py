"""One hook at its place: what the place is called, and what is put into the code."""

import os
import struct
from types import SimpleNamespace

import pytest

from agent.errors import LoadError
from agent.sensor import attach
from agent.sensor.attach import Attacher, is_native_too
from agent.sensor.btf import FUNC, Btf
from agent.sensor.compiler import Program
from agent.sensor.headers import PREEMPT_DISABLE, PREEMPT_ENABLE
from agent.sensor.hooks import SENSES, Hook, How
from agent.sensor.sources import BY_FUNCTION
from tests.btf_blob import Blob

CALL, MOV_IMM, EXIT, LD_IMM64 = 0x85, 0xB7, 0x95, 0x18
KERNEL_FUNCTION, MAP_FD = 2, 1
KTIME = 5
"""A helper that every kernel has, by its number."""
NOTHING = struct.pack("<BBhi", 0x05, 0, 0, 0)
"""A jump to the next instruction."""


def op(code: int, dst: int = 0, src: int = 0, value: int = 0) -> bytes:
    return struct.pack("<BBhI", code, src << 4 | dst, 0, value)


def a_kernel(*functions: str) -> Btf:
    blob = Blob()
    blob.int_("int", 4)
    for name in functions:
        blob.function(name, 1)
    return Btf(blob.bytes())


def attacher(*functions: str) -> Attacher:
    return Attacher(None, a_kernel(*functions), 4096, {})


def at(target: str, how: How = How.FENTRY) -> Hook:
    return Hook("program", how, target, "proof", (BY_FUNCTION,))


@pytest.fixture(params=["x86_64", "aarch64"])
def machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    name = str(request.param)
    be(monkeypatch, name)
    return name


def be(monkeypatch: pytest.MonkeyPatch, machine: str, version: str = "#1 SMP") -> None:
    facts = SimpleNamespace(machine=machine, version=version)
    monkeypatch.setattr(os, "uname", lambda: facts)


@pytest.mark.parametrize(
    ("target", "on_x86", "on_arm"),
    [
        ("native:sys_ptrace", "__x64_sys_ptrace", "__arm64_sys_ptrace"),
        (
            "compat:compat_sys_ptrace",
            "__ia32_compat_sys_ptrace",
            "__arm64_compat_sys_ptrace",
        ),
        (
            "compat:sys_pidfd_getfd",
            "__ia32_sys_pidfd_getfd",
            "__arm64_sys_pidfd_getfd",
        ),
    ],
)
def test_the_function_of_a_call_has_the_prefix_of_the_machine(
    machine: str, target: str, on_x86: str, on_arm: str
) -> None:
    expected = on_x86 if machine == "x86_64" else on_arm
    assert attacher().place(at(target)) == expected


def test_a_place_of_its_own_name_is_left_as_it_is(machine: str) -> None:
    assert machine
    for name in ("mem_open", "syscalls:sys_exit_openat", "bpf_lsm_ptrace_traceme"):
        assert attacher().place(at(name)) == name


@pytest.mark.parametrize(
    ("have", "expected"),
    [
        (["do_filp_open"], "do_filp_open"),
        (["do_file_open"], "do_file_open"),
        (["do_file_open", "do_filp_open"], "do_filp_open"),
        ([], "do_filp_open"),
    ],
)
def test_of_alternatives_it_is_the_first_that_the_kernel_has(
    have: list[str], expected: str
) -> None:
    assert attacher(*have).place(at("do_filp_open|do_file_open")) == expected


def test_every_place_of_the_table_has_a_plain_name(machine: str) -> None:
    assert machine
    here = attacher()
    hooks = [hook for sense in SENSES for rung in sense.rungs for hook in rung.hooks]
    for hook in hooks:
        place = here.place(hook)
        assert not place.startswith(("native:", "compat:"))
        assert "|" not in place


@pytest.mark.parametrize(
    "name",
    ["x86_64", "aarch64"],
)
def test_no_two_hooks_of_a_rung_are_at_one_place_in_one_way(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is counted there would be counted twice."""
    be(monkeypatch, name)
    here = attacher()
    for rung in (rung for sense in SENSES for rung in sense.rungs):
        for how in {hook.how for hook in rung.hooks}:
            mine = [(hook, here.place(hook)) for hook in rung.hooks if hook.how is how]
            taken = [at for hook, at in mine if not is_native_too(hook, at)]
            assert len(set(taken)) == len(taken), rung.name


def linked(here: Attacher, *code: bytes, maps: list[tuple[int, str]] = []) -> bytes:  # noqa: B006 - never changed
    return here._linked(Program(b"".join(code), maps))


def test_calls_to_forbid_preemption_become_the_kernel_s_own_functions() -> None:
    names = ("other", "bpf_preempt_disable", "bpf_preempt_enable")
    here, btf = attacher(*names), a_kernel(*names)
    ids = [btf.find(FUNC, name) or 0 for name in names]
    code = linked(
        here,
        op(CALL, value=PREEMPT_DISABLE),
        op(CALL, value=KTIME),
        op(CALL, value=PREEMPT_ENABLE),
        op(EXIT),
    )
    assert code == b"".join(
        [
            op(CALL, src=KERNEL_FUNCTION, value=ids[1]),
            op(CALL, value=KTIME),
            op(CALL, src=KERNEL_FUNCTION, value=ids[2]),
            op(EXIT),
        ]
    )


def test_a_kernel_without_these_functions_gets_nothing_in_their_place() -> None:
    code = linked(
        attacher("other"),
        op(CALL, value=PREEMPT_DISABLE),
        op(CALL, value=KTIME),
        op(CALL, value=PREEMPT_ENABLE),
        op(EXIT),
    )
    assert code == NOTHING + op(CALL, value=KTIME) + NOTHING + op(EXIT)


def test_a_number_that_only_looks_like_such_a_call_stays() -> None:
    constants = [
        op(MOV_IMM, value=PREEMPT_DISABLE),
        op(LD_IMM64, 1, 0, PREEMPT_ENABLE) + op(0, value=PREEMPT_DISABLE),
        op(EXIT),
    ]
    assert linked(attacher("bpf_preempt_disable"), *constants) == b"".join(constants)


def test_maps_are_put_in_by_their_names() -> None:
    here = attacher()
    here.maps |= {"events": 11, "folds": 12}
    load = op(LD_IMM64, 1, MAP_FD) + bytes(8)
    code = linked(here, load, op(EXIT), load, maps=[(24, "events"), (0, "folds")])
    expected = op(LD_IMM64, 1, MAP_FD, 12) + bytes(8) + op(EXIT)
    assert code == expected + op(LD_IMM64, 1, MAP_FD, 11) + bytes(8)


def test_what_is_linked_is_not_the_compiled_object_itself() -> None:
    """It is loaded again for each place, with other maps in the next loading."""
    program = Program(op(CALL, value=PREEMPT_DISABLE) + op(EXIT), [])
    attacher()._linked(program)
    assert program.code == op(CALL, value=PREEMPT_DISABLE) + op(EXIT)


PREEMPTIBLE = [How.FENTRY, How.FEXIT, How.LSM, How.FMOD_RET]


@pytest.mark.parametrize("how", PREEMPTIBLE)
def test_a_kernel_that_can_preempt_such_a_program_refuses_it(
    how: How, monkeypatch: pytest.MonkeyPatch
) -> None:
    be(monkeypatch, "x86_64", "#1 SMP PREEMPT_DYNAMIC")
    monkeypatch.setattr(attach, "_runs_voluntary", lambda: False)
    with pytest.raises(LoadError, match="no bpf_preempt_disable"):
        attacher()._require(at("mem_open", how), "mem_open")


@pytest.mark.parametrize(
    ("version", "voluntary", "functions", "whole"),
    [
        ("#1 SMP Debian", False, [], True),
        ("#1 SMP PREEMPT_DYNAMIC", True, [], True),
        ("#1 SMP PREEMPT", False, ["bpf_preempt_disable"], True),
        ("#1 SMP PREEMPT", False, [], False),
        ("#1 SMP PREEMPT_RT", False, [], False),
    ],
)
def test_a_program_is_whole_where_nothing_preempts_it_or_it_can_forbid_that(
    version: str,
    voluntary: bool,
    functions: list[str],
    whole: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    be(monkeypatch, "x86_64", version)
    monkeypatch.setattr(attach, "_runs_voluntary", lambda: voluntary)
    assert attacher(*functions)._can_be_whole() is whole


def test_a_function_that_the_kernel_lacks_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    be(monkeypatch, "x86_64")
    with pytest.raises(LoadError, match="BTF has no mem_open"):
        attacher("other")._require(at("mem_open"), "mem_open")
    hook = at("sched_process_exec traced", How.TYPED_TRACEPOINT)
    with pytest.raises(LoadError, match="BTF has no btf_trace_sched_process_exec"):
        attacher()._require(hook, hook.target)


def test_an_lsm_program_is_refused_where_bpf_is_no_active_lsm(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """It would attach and never run."""
    said = tmp_path_factory.mktemp("securityfs") / "lsm"
    monkeypatch.setattr(attach, "_LSM_LIST", said)
    attach._require_bpf_lsm()  # not mounted: the proof will tell
    said.write_text("lockdown,yama,bpf\n")
    attach._require_bpf_lsm()
    said.write_text("lockdown,yama,not_bpf\n")
    with pytest.raises(LoadError, match=r"lockdown,yama,not_bpf.*lsm="):
        attach._require_bpf_lsm()
