"""Every rung of the hook ladder that this kernel can have gives the same senses.

In: the table of hooks with all but one rung struck out. Out: the self-test's word that
each hook still fires. The better rung must never be the only one that works.
"""

import os
from pathlib import Path

import pytest

from agent.sensor import loader, pins
from agent.sensor.hooks import SENSES, How, Sense

pytestmark = pytest.mark.kernel


def only(how: How) -> tuple[Sense, ...]:
    """The senses that can be had in this way, and no other way to have them."""
    found = []
    for sense in SENSES:
        rungs = tuple(rung for rung in sense.rungs if rung.hooks[0].how is how)
        if rungs:
            found.append(Sense(sense.name, rungs))
    return tuple(found)


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    """Each variant of the probes is compiled once."""
    return tmp_path_factory.mktemp("probes")


@pytest.mark.parametrize("how", list(How))
def test_each_rung_is_attached_and_proven_by_itself(how, monkeypatch, agent, cache):
    del agent  # its fixture says whether this machine can load probes at all
    folder = Path(f"/sys/fs/bpf/ir-agent-rung-{os.getpid()}")
    monkeypatch.setattr(loader, "SENSES", only(how))
    try:
        states = loader.load(folder, 1 << 20, cache)
        assert states
        assert [s for s in states if not (s.attached and s.proven)] == []
        assert {s.rung for s in states} == {
            rung.name for sense in only(how) for rung in sense.rungs
        }
    finally:
        pins.remove(folder)


def test_a_refused_hook_says_why_and_takes_no_other_one_down(monkeypatch, agent, cache):
    del agent
    folder = Path(f"/sys/fs/bpf/ir-agent-rung-{os.getpid()}")
    exec_sense = SENSES[0]
    broken = exec_sense.rungs[1].hooks[0]._replace(target="no_such_tracepoint")
    senses = (Sense("broken", (exec_sense.rungs[1]._replace(hooks=(broken,)),)),)
    monkeypatch.setattr(loader, "SENSES", senses + SENSES[1:2])
    try:
        states = {one.sense: one for one in loader.load(folder, 1 << 20, cache)}
    finally:
        pins.remove(folder)
    assert not states["broken"].attached
    assert "no_such_tracepoint" in states["broken"].reason
    assert states["fork"].attached
    assert states["fork"].proven
    assert not folder.exists()
