"""A process changes its name, or where its arguments lie: what is told, and how often.

In: programs that call prctl(2) from the leader, from a thread, without the right to,
and a million times. Out: their `prctl-set-name` and `prctl-set-mm` records, whose
numbers account for every call.
"""

import errno
import sys

import pytest

pytestmark = pytest.mark.kernel

NOBODY = 65534
FLOOD = 1_000_000


def test_a_new_name_of_the_leader_is_told_with_the_name(agent, trigger):
    ran = trigger("set_name", "leader", 0, "innocent")
    record = agent.one(action="prctl-set-name", pid=ran.pid)
    assert record["event.type"] == ["change"]
    assert record["event.outcome"] == "success"
    assert record["process.name"] == "innocent"
    assert record["process.executable"] == trigger.path("set_name")
    assert record["process.thread.id"] == ran.pid
    assert record["ir.prctl"] == {"count": 1, "result": 0}
    assert agent.one(action="exit", pid=ran.pid)["process.name"] == "innocent"


def test_a_name_of_another_thread_is_not_the_process_s(agent, trigger):
    ran = trigger("set_name", "thread", 3, "worker")
    assert agent.find(action="prctl-set-name", pid=ran.pid) == []
    assert agent.one(action="exit", pid=ran.pid)["process.name"] == "set_name"
    assert ran.facts["tid"] != ran.pid


def test_children_have_a_parent_of_the_new_name(agent, trigger):
    true = trigger.path("true")
    code = (
        f"import ctypes, subprocess; run = lambda: subprocess.run([{true!r}]); run();"
        "ctypes.CDLL(None).prctl(15, b'renamed'); run()"
    )
    trigger.run([sys.executable, "-c", code])
    before, after = agent.find(action="exec", executable=true)
    assert before["process.parent.name"].startswith("python")
    assert after["process.parent.name"] == "renamed"
    assert after["ir.ancestry.chain"][0]["name"] == "renamed"


def test_a_flood_of_names_is_few_records_that_count_all_calls(agent, trigger):
    ran = trigger("set_name", "leader", FLOOD, "flood")
    records = agent.find(action="prctl-set-name", pid=ran.pid)
    # one a second at most, and it says itself how many seconds there were
    assert 2 <= len(records) <= ran.facts["seconds"] + 1
    counts = [record["ir.prctl.count"] for record in records]
    assert counts == sorted(set(counts))
    assert (counts[0], counts[-1]) == (1, FLOOD + 1)
    names = [record["process.name"] for record in records]
    assert (names[0], names[-1]) == ("flood0", "flood")
    beat = agent.wait(action="heartbeat")[-1]
    assert beat["ir.heartbeat.lost"] == 0


def test_moved_arguments_are_told_with_the_field_and_the_result(agent, trigger):
    argv = [trigger.path("move_args"), "kworker/0:1"]
    with trigger.hold(argv, told=True) as held:
        moved = held.proc("cmdline")
    failed = held.facts["errno"]  # a kernel without checkpoints can't
    record = agent.one(action="prctl-set-mm", pid=held.pid)
    assert record["ir.prctl"] == {"count": 1, "result": -failed, "field": "MAP"}
    assert record["event.outcome"] == ("failure" if failed else "success")
    assert (moved == b"kworker/0:1\0") is (failed == 0)
    assert record["process.executable"] == trigger.path("move_args")


def test_a_move_that_is_refused_is_told_with_its_error(agent, trigger):
    ran = trigger("set_mm", NOBODY)
    assert ran.facts == {"begin": errno.EPERM, "end": errno.EPERM}
    record = agent.one(action="prctl-set-mm", pid=ran.pid)  # the second only counts
    assert record["event.outcome"] == "failure"
    assert record["error.code"] == "EPERM"
    fields = {"count": 1, "result": -errno.EPERM, "field": "ARG_START"}
    assert record["ir.prctl"] == fields
    assert record["process.user.id"] == str(NOBODY)
