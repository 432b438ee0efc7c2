"""Every rung of the hook ladder that this kernel can have gives the same senses.

In: the table of hooks with all but one rung struck out. Out: the self-test's word that
each hook still fires. The better rung must never be the only one that works.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.errors import LoadError
from agent.sensor import btf, loader, pins
from agent.sensor.hooks import GUARD, RUNGS, SENSES, How, Sense
from agent.sensor.sources import BIRTHS_PLAIN
from tests.kernel import figures, ladder

pytestmark = pytest.mark.kernel

TASK_LIST = next(sense for sense in SENSES if sense.name == "task list")


def only(rung: str) -> tuple[Sense, ...]:
    """The senses that can be had by this rung, and no other way to have them."""
    found = []
    for sense in SENSES:
        rungs = tuple(one for one in sense.rungs if one.name == rung)
        if rungs:
            found.append(Sense(sense.name, rungs))
    if any(sense.name == GUARD for sense in found):
        found.insert(0, TASK_LIST)  # whom to guard is found in it
    return tuple(found)


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    """Each variant of the probes is compiled once."""
    if compiled := os.environ.get("IR_PROBES"):
        return Path(compiled)
    return tmp_path_factory.mktemp("probes")


@pytest.fixture
def folder(agent) -> Iterator[Path]:
    del agent  # its fixture says whether this machine can load probes at all
    place = Path(f"/sys/fs/bpf/ir-agent-rung-{os.getpid()}")
    try:
        yield place
    finally:
        pins.unload(place)


@pytest.mark.parametrize("rung", RUNGS)
def test_each_rung_is_proven_by_itself(rung, monkeypatch, folder, cache):
    ladder.known(rung)
    senses = only(rung)
    if rung in ("signal", "raw_tracepoint"):
        # what dies by a signal is seen by the programs on system calls
        senses += tuple(s for s in SENSES if s.name in ("ptrace", "task list"))
    monkeypatch.setattr(loader, "SENSES", tuple(dict.fromkeys(senses)))
    try:
        states = loader.load(folder, 1 << 20, cache)
    except LoadError as error:
        ladder.unavailable(rung, str(error))
    mine = [s for s in states if s.rung == rung]
    if not any(s.attached for s in mine):
        ladder.unavailable(rung, mine[0].reason)
    assert [s for s in mine if not (s.proven or s.optional)] == []
    assert {s.sense for s in mine} == {
        s.name for s in only(rung) if s.rungs[0].name == rung
    }
    assert all(state.instructions for state in mine if state.attached)
    figures.hold(mine)


def test_every_compat_hook_that_is_attached_fires(monkeypatch, folder, cache):
    if os.uname().machine != "x86_64":
        pytest.skip("only x86-64 can make a 32-bit call from a 64-bit program")
    ladder.known("fentry")
    monkeypatch.setattr(loader, "SENSES", only("fentry"))
    try:
        states = loader.load(folder, 1 << 20, cache)
    except LoadError as error:
        ladder.unavailable("fentry", str(error))
    compat = [s for s in states if s.optional and s.attached]
    assert {s.sense for s in compat} >= {"failed exec", "ptrace", "process_vm"}
    # a kernel may have two functions for one call, and use one of them
    by_program = {(s.sense, s.program) for s in compat if s.proven}
    assert {(s.sense, s.program) for s in compat} == by_program


def test_a_refused_hook_says_why_and_takes_no_other_one_down(
    monkeypatch, folder, cache
):
    exec_sense = SENSES[0]
    broken = exec_sense.rungs[1].hooks[0]._replace(target="no_such_tracepoint")
    senses = (Sense("broken", (exec_sense.rungs[1]._replace(hooks=(broken,)),)),)
    monkeypatch.setattr(loader, "SENSES", senses + SENSES[1:2])
    states = {one.sense: one for one in loader.load(folder, 1 << 20, cache)}
    assert not states["broken"].attached
    assert "no_such_tracepoint" in states["broken"].reason
    assert states["fork"].attached
    assert states["fork"].proven


def test_a_hook_that_is_attached_and_never_fires_is_left_for_the_next_rung(
    monkeypatch, folder, cache
):
    """As BPF LSM programs are on a kernel that was booted without `bpf` in lsm=."""
    sense = SENSES[1]
    silent = (
        sense.rungs[0]
        .hooks[0]
        ._replace(
            how=How.RAW_TRACEPOINT,
            target="sched_pi_setprio",
            variants=(BIRTHS_PLAIN,),
        )
    )
    inert = sense.rungs[0]._replace(name="tp_btf", hooks=(silent,))
    monkeypatch.setattr(loader, "SENSES", (Sense("fork", (inert, sense.rungs[1])),))
    states = loader.load(folder, 1 << 20, cache)
    assert [(s.rung, s.attached, s.proven) for s in states] == [
        ("tp_btf", False, False),
        ("raw_tracepoint", True, True),
    ]
    assert "did not fire" in states[0].reason
    assert pins.links(folder) == [states[1].pin]


def test_a_forbidden_rung_is_not_taken(folder, cache):
    states = loader.load(folder, 1 << 20, cache, ["tp_btf"])
    taken = {s.sense: s.rung for s in states if s.attached}
    assert taken["exec"] == taken["fork"] == taken["exit"] == "raw_tracepoint"
    refused = {s.reason for s in states if s.rung == "tp_btf"}
    assert refused == {"forbidden by the configuration"}


LACKING = {
    # a member of struct task_struct that only programs on system calls read
    "fdt": (
        {"exec", "fork", "exit", "task list", "task chain", "scheduler"},
        "files_struct",
    ),
    # one that all programs read
    "loginuid": (set(), "task_struct"),
}


@pytest.mark.parametrize("member", LACKING)
def test_a_member_that_the_kernel_lacks_is_named_and_the_rest_goes_on(
    member, monkeypatch, folder
):
    still_given, struct = LACKING[member]
    whole = btf.VMLINUX.read_bytes()
    name = b"\0" + member.encode() + b"\0"
    assert whole.count(name) == 1
    lacking = btf.Btf(whole.replace(name, name[:-2] + b"_\0"))
    monkeypatch.setattr(btf.Btf, "of_kernel", lambda: lacking)
    says = f"no member {member} in {struct}"
    if not still_given:
        with pytest.raises(LoadError, match=says):
            loader.load(folder, 1 << 20, None)
        return
    states = loader.load(folder, 1 << 20, None)
    assert {s.sense for s in states if s.proven} == still_given
    for sense in ("ptrace", "failed exec", "prctl", "memory file", "inherited tracing"):
        reasons = [s.reason for s in states if s.sense == sense]
        assert any(says in reason for reason in reasons), reasons


def test_without_type_information_the_error_says_so(monkeypatch, folder, tmp_path):
    monkeypatch.setattr(btf.Btf.of_kernel.__func__, "__defaults__", (tmp_path / "no",))
    with pytest.raises(LoadError, match="this kernel offers no BTF"):
        loader.load(folder, 1 << 20, None)
