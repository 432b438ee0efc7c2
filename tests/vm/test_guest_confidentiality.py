"""A kernel locked down for confidentiality: probes may read no kernel memory freely.

In: a guest with `lockdown=confidentiality`. Out: the agent says which hooks it lacks
and why, and what it calls proven does record. Nothing dies without a reason.
"""

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.kernel

TYPED = {"exec", "fork", "exit", "task list"}


def states(status):
    """What each sense is, and the senses of which there is more to say."""
    table, _, said = status.partition("\n\n")
    rows = [re.split(r"\s{2,}", line) for line in table.splitlines()[1:]]
    return {row[0]: row[2] for row in rows}, {
        line.partition(":")[0] for line in said.splitlines()
    }


def test_this_kernel_is_locked_down():
    modes = Path("/sys/kernel/security/lockdown").read_text()
    assert re.search(r"\[(\w+)\]", modes)[1] == "confidentiality"


def test_what_is_read_by_type_is_recorded_and_the_rest_says_why_not(
    agent_factory, trigger
):
    agent = agent_factory().start()
    ran = trigger("exit_with", 7, expect=7)
    # Not by a fence: it is known by its path, which takes free reading.
    [died] = agent.wait(action="exit", pid=ran.pid)
    assert died["process.exit_code"] == 7
    [begun] = agent.records(action="exec", pid=ran.pid)
    begun.assert_argv([trigger.path("exit_with").encode(), b"7"])
    state, explained = states(agent.command("status").stdout)
    assert {name for name in state if state[name] == "proven"} >= TYPED
    assert set(state) - explained <= TYPED
