"""Who touches the agent's pins leaves a record and changes nothing.

In: a real agent whose pins are removed, replaced and surrounded while it runs. Out:
events without a gap, an alert for each thing done, and the same pins as before.
"""

import os
import re
import shutil
import signal
from pathlib import Path

import pytest

from agent.sensor import bpf

pytestmark = pytest.mark.kernel

ALERT = "agent-tampering"
HEARTBEAT = "heartbeat"


def numbers(agent):
    """The kernel's kind and number of the object of each pin."""
    found = {}
    for pin in agent.pins.rglob("*"):
        if not pin.is_file():
            continue
        fd = bpf.get(pin)
        about = Path(f"/proc/self/fdinfo/{fd}").read_text()
        os.close(fd)
        [told] = re.findall(r"(?m)^((?:map|prog|link)_id:\t\d+)", about)[:1]
        found[str(pin.relative_to(agent.pins))] = told
    return found


def links(agent):
    return {pin: of for pin, of in numbers(agent).items() if pin.startswith("links/")}


def alerts(agent):
    """What was told of tampering until now."""
    agent.fence()
    return [record["ir.tampering"] for record in agent.records(action=ALERT)]


def actions(agent, ran):
    return [record["event.action"] for record in agent.find(pid=ran.pid)]


@pytest.fixture
def watched(agent_factory):
    """A running agent of this test alone."""
    return agent_factory().start()


def test_a_hook_whose_pin_is_removed_goes_on_firing_and_is_pinned_again(
    watched, trigger
):
    agent, before = watched, numbers(watched)
    [gone] = (agent.pins / "links").glob("on_exec__*")
    programs = [trigger("exit_with", 0)]
    # a daemon that stands still can't have put it back before the next program ran
    agent.process.send_signal(signal.SIGSTOP)
    gone.unlink()
    programs.append(trigger("exit_with", 0))
    assert not gone.exists()
    agent.process.send_signal(signal.SIGCONT)
    [record] = agent.wait(action=ALERT)
    programs.append(trigger("exit_with", 0))
    for ran in programs:
        assert actions(agent, ran) == ["fork", "exec", "exit"]
    assert record["event.kind"] == "alert"
    pin = str(gone.relative_to(agent.pins))
    told = {"what": "missing", "pins": [pin], "put_back": True, "reason": ""}
    assert alerts(agent) == [told]
    assert numbers(agent) == before
    assert agent.records(action="loss") == []
    assert agent.stop() == 0
    assert numbers(agent) == before
    agent.verify()


def test_all_pins_that_are_removed_come_back_and_stay_in_one_hand(
    watched, agent_factory, trigger
):
    agent, before = watched, numbers(watched)
    agent.process.send_signal(signal.SIGSTOP)
    shutil.rmtree(agent.pins)
    ran = trigger("exit_with", 0)
    agent.process.send_signal(signal.SIGCONT)
    agent.wait(action=ALERT)
    assert actions(agent, ran) == ["fork", "exec", "exit"]
    [told] = alerts(agent)
    assert told["pins"] == sorted([".", "links", "maps", "programs", *before])
    assert (told["what"], told["put_back"]) == ("missing", True)
    assert numbers(agent) == before
    assert agent.pins.stat().st_mode & 0o777 == 0o700
    other = agent_factory()
    other.pins = agent.pins
    for command in ("run", "unload"):
        refused = other.command(command)
        assert (refused.returncode, str(agent.pins) in refused.stderr) == (2, True)
    assert agent.stop() == 0
    agent.unload()


def test_another_object_under_the_name_of_a_hook_gives_way(watched, trigger):
    agent, before = watched, numbers(watched)
    [ours] = (agent.pins / "links").glob("on_fork__*")
    other = bpf.map_create("other", bpf.MapSpec(bpf.MAP_ARRAY, 4, 4, 1, 0))
    place = agent.pins.with_name(f"{agent.pins.name}-other")
    try:
        bpf.pin(other, place)
        place.rename(ours)
    finally:
        os.close(other)
        place.unlink(missing_ok=True)
    agent.wait(action=ALERT)
    [told] = alerts(agent)
    assert (told["what"], told["put_back"]) == ("replaced", True)
    assert told["pins"] == [str(ours.relative_to(agent.pins))]
    assert numbers(agent) == before
    assert actions(agent, trigger("exit_with", 0)) == ["fork", "exec", "exit"]


def test_what_lies_among_the_hooks_and_is_none_does_not_end_the_agent(watched, trigger):
    agent = watched
    stranger = agent.pins / "links" / "stranger"
    stranger.mkdir()
    agent.wait(action=ALERT)
    [told] = alerts(agent)
    assert (told["what"], told["put_back"]) == ("foreign", False)
    assert told["pins"] == ["links/stranger"]
    assert stranger.exists()
    stranger.rmdir()
    agent.wait(2, action=ALERT)
    assert alerts(agent)[1]["reason"] == "as it was again"
    assert actions(agent, trigger("exit_with", 0)) == ["fork", "exec", "exit"]
    assert agent.stop() == 0


def test_an_agent_that_is_left_alone_and_replaces_its_own_probes_tells_of_nothing(
    agent_factory, trigger
):
    agent = agent_factory().start()
    before = links(agent)
    assert agent.stop() == 0
    agent.options = ("--forbid", "test_run")
    agent.start()
    assert not set(links(agent).values()) & set(before.values())
    beats = len(agent.records(action=HEARTBEAT))
    trigger("exec_many", trigger.path("true"), 200)
    agent.wait(beats + 1, action=HEARTBEAT)
    assert alerts(agent) == []
    assert agent.stop() == 0


def test_what_was_changed_while_no_agent_ran_is_told_and_loaded_anew(watched, trigger):
    """Its own end would be told as each program's, and no program at all."""
    agent = watched
    assert agent.stop() == 0
    [exec_] = (agent.pins / "links").glob("on_exec__*")
    [exit_] = (agent.pins / "links").glob("on_exit__*")
    exec_.unlink()
    os.link(exit_, exec_)
    agent.start()
    ran = trigger("exit_with", 0)
    agent.fence()
    assert actions(agent, ran) == ["fork", "exec", "exit"]
    [told] = alerts(agent)
    assert (told["what"], told["put_back"]) == ("changed", True)
    assert agent.stop() == 0
    agent.start()
    assert [one["what"] for one in alerts(agent)] == ["changed"]
