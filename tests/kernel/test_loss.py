"""Nothing is lost in silence: records and reported losses add up to what happened.

In: a storm of programs that counts itself. Out: the same numbers in the records, or
in the loss records when the ring was too small. What a stranger's process adds to a
loss while the test looks is never taken for an error of the agent.
"""

import contextlib
import json
import os
import signal
from collections import Counter
from datetime import datetime
from pathlib import Path

import pytest

pytestmark = pytest.mark.kernel

SECONDS = os.environ.get("IR_STORM_SECONDS", "10")
SMALL_RING = ("--ring-bytes", str(1 << 20))
OVERFLOWING_EXECS = 3_000
ROUNDS = 8


def storm(trigger, *options):
    """Run one storm; its own count."""
    ran = trigger.run([trigger.path("storm"), *options, trigger.path("true")])
    truth = json.loads(ran.stdout)
    assert truth["failed"] == 0
    return truth


@pytest.mark.slow
@pytest.mark.parametrize("how", ["fork", "vfork"])
def test_a_storm_is_recorded_to_the_last_process(agent_factory, trigger, how):
    agent = agent_factory().start()
    options = ["--vfork"] if how == "vfork" else []
    truth = storm(trigger, "--seconds", SECONDS, *options)
    agent.fence()
    tally = agent.tally()
    assert [record["ir.loss"] for record in tally.losses] == []
    assert tally.counts["fork"] == truth["forks"]
    assert tally.counts["exec"] == truth["execs"]
    assert tally.counts["exit"] == truth["exits"]
    assert len(tally.runs) == truth["execs"]
    for action in ("worker-fork", "worker-exit"):
        assert tally.counts[action] == truth["workers"]
    assert agent.stop() == 0
    agent.verify()
    agent.unload()


def births():
    """How many tasks this machine has ever made, and which processes live."""
    for line in Path("/proc/stat").read_text().splitlines():
        if line.startswith("processes "):
            alive = {path for path in Path("/proc").iterdir() if path.name.isdecimal()}
            return int(line.split()[1]), alive
    raise AssertionError("/proc/stat without processes")


@contextlib.contextmanager
def stopped(agent):
    """The daemon does not read while the block runs."""
    agent.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        agent.process.send_signal(signal.SIGCONT)


def overflow(agent, trigger):
    """A storm that nobody reads: its count, and whether nothing else happened."""
    reported = len(agent.records(action="loss"))
    made, alive = births()
    with stopped(agent):
        truth = storm(trigger, "--execs", str(OVERFLOWING_EXECS))
    agent.wait(reported + 1, action="loss")  # before that, the fence would be lost too
    agent.fence()
    made_after, alive_after = births()
    own = truth["forks"] + truth["workers"] + 2  # the storm, the fence's program
    return truth, made_after - made == own and alive <= alive_after


def unaccounted(tally, truths):
    """By kind: what happened, less what is recorded, less what is reported as lost."""
    workers = sum(truth["workers"] for truth in truths)
    happened = {
        "fork": sum(truth["forks"] for truth in truths) + workers,
        "exec": sum(truth["execs"] for truth in truths) + len(truths),
        "exit": sum(truth["exits"] for truth in truths) + workers + len(truths),
    }
    result = Counter()
    for kind, count in happened.items():
        seen = sum(tally.counts[who + kind] for who in ("", "worker-", "storm-"))
        assert seen < count, "the ring did not overflow"
        result[kind] = count - seen - tally.lost[kind]
    return result


def test_a_full_ring_is_reported_to_the_last_record(agent_factory, trigger):
    agent = agent_factory(*SMALL_RING).start()
    assert not agent.tally().lost
    truths, before = [], Counter()
    for _ in range(ROUNDS):
        truth, quiet = overflow(agent, trigger)
        truths.append(truth)
        after = unaccounted(agent.tally(), truths)
        # Below zero: a stranger's process was lost as well.
        assert max(after.values()) <= 0, f"lost in silence: {after}"
        if quiet:
            break
        before = after
    else:
        pytest.skip("other programs ran all the time: only the lower bound was seen")
    assert after == before
    assert agent.stop() == 0
    agent.verify()


def test_a_loss_names_its_cause_its_count_and_its_time(agent_factory, trigger):
    agent = agent_factory(*SMALL_RING).start()
    overflow(agent, trigger)
    losses = agent.find(action="loss")
    assert losses
    for record in losses:
        assert record["event.kind"] == "pipeline_error"
        loss = record["ir.loss"]
        assert "ring" in loss["cause"]
        assert loss["count"] == sum(loss["kinds"].values()) > 0
        start, end = (datetime.fromisoformat(loss[name]) for name in ("start", "end"))
        assert start <= end
        assert loss["cpus"]


def test_the_agent_goes_on_after_a_loss(agent_factory, trigger):
    agent = agent_factory(*SMALL_RING).start()
    overflow(agent, trigger)
    ran = trigger("exit_with", 7, expect=7)
    assert agent.one(action="exit", pid=ran.pid)["process.exit_code"] == 7
    reported = agent.tally().lost
    trigger("exec_many", trigger.path("true"), 100)
    agent.fence()
    assert agent.tally().lost == reported
