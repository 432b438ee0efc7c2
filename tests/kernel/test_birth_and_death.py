"""Every birth has its true creator and parent, every death its true end, once.

In: programs that fork from threads, as siblings, into namespaces, and that end in
every way a process can. Out: their `fork` and `exit` records against what wait(2),
clone(2) and the programs themselves said. A thread is never taken for a process.
"""

import os
import signal
import time

import pytest

pytestmark = pytest.mark.kernel


def entity_of(agent, pid, action="exec"):
    return agent.one(action=action, pid=pid)["process.entity_id"]


def test_a_fork_names_the_child_and_its_parent(agent, trigger):
    ran = trigger("fork_once")
    born = agent.one(action="fork", pid=ran.facts["child"])
    parent = agent.one(action="exec", pid=ran.pid)
    assert born["event.type"] == ["start"]
    assert born["event.category"] == ["process"]
    assert born["process.parent.pid"] == born["ir.creator.pid"] == ran.pid
    assert born["process.parent.entity_id"] == parent["process.entity_id"]
    assert born["process.parent.start"] == parent["process.start"]
    assert born["process.parent.executable"] == parent["process.executable"]
    assert born["ir.creator.entity_id"] == parent["process.entity_id"]
    assert born["ir.creator.tid"] == ran.pid
    assert born["process.executable"] == trigger.path("fork_once")
    assert born["process.entity_id"] != parent["process.entity_id"]


def test_birth_program_and_death_come_in_this_order_under_one_key(agent, trigger):
    ran = trigger("exit_with", 0)
    records = agent.find(pid=ran.pid)
    assert [r["event.action"] for r in records] == ["fork", "exec", "exit"]
    assert len({r["process.entity_id"] for r in records}) == 1
    assert len({r["process.parent.entity_id"] for r in records}) == 1
    assert {r["process.parent.pid"] for r in records} == {os.getpid()}


def test_a_sibling_by_clone_parent_has_another_parent_than_creator(agent, trigger):
    ran = trigger("fork_as_sibling")
    born = agent.one(action="fork", pid=ran.facts["child"])
    assert born["process.parent.pid"] == ran.pid
    assert born["process.parent.entity_id"] == entity_of(agent, ran.pid)
    assert born["ir.creator.pid"] == ran.facts["creator"]
    creator = entity_of(agent, ran.facts["creator"], "fork")
    assert born["ir.creator.entity_id"] == creator
    assert "CLONE_PARENT" in born["ir.clone_flags"]


def test_an_ordinary_fork_has_no_clone_flag(agent, trigger):
    ran = trigger("fork_once")
    born = agent.one(action="fork", pid=ran.facts["child"])
    assert not born.get("ir.clone_flags")


def test_a_fork_by_a_thread_names_the_process_and_the_thread(agent, trigger):
    ran = trigger("fork_from_thread")
    born = agent.one(action="fork", pid=ran.facts["child"])
    assert born["ir.creator.pid"] == born["process.parent.pid"] == ran.pid
    assert born["ir.creator.tid"] == ran.facts["tid"] != ran.pid
    assert born["ir.creator.entity_id"] == entity_of(agent, ran.pid)


def test_a_thread_is_neither_born_nor_dead(agent, trigger):
    ran = trigger("start_thread")
    assert agent.find(pid=ran.facts["tid"]) == []
    actions = [r["event.action"] for r in agent.records(pid=ran.pid)]
    assert actions == ["fork", "exec", "exit"]


def test_a_child_of_vfork_shares_memory_until_it_executes(agent, trigger):
    ran = trigger("vfork_and_exec", trigger.path("report"), "one")
    child = ran.facts["child"]
    records = agent.find(pid=child)
    assert [r["event.action"] for r in records] == ["fork", "exec", "exit"]
    assert "CLONE_VM" in records[0]["ir.clone_flags"]
    assert records[0]["ir.creator.pid"] == ran.pid
    records[1].assert_argv(ran.reported)
    assert len({r["process.entity_id"] for r in records}) == 1


def test_an_orphan_dies_under_the_reaper_that_adopted_it(agent, trigger):
    ran = trigger("fork_twice")
    last = ran.facts["last"]
    born = agent.one(action="fork", pid=last)
    died = agent.one(action="exit", pid=last)
    assert born["process.parent.pid"] == ran.facts["middle"]
    assert born["ir.creator.pid"] == ran.facts["middle"]
    assert ran.facts["reaper"] != ran.facts["middle"]
    assert died["process.parent.pid"] == ran.facts["reaper"]
    assert died["process.entity_id"] == born["process.entity_id"]


def test_the_first_process_of_a_pid_namespace_is_number_one_in_there(agent, trigger):
    ran = trigger("fork_into_pid_namespace")
    child = ran.facts["child"]
    born = agent.one(action="fork", pid=child)
    assert born["process.vpid"] == 1
    assert born["ir.creator.pid"] == ran.pid
    assert "CLONE_NEWPID" in born["ir.clone_flags"]
    assert agent.one(action="exit", pid=child)["process.vpid"] == 1
    assert agent.one(action="exec", pid=ran.pid)["process.vpid"] == ran.pid


@pytest.mark.parametrize("code", [0, 1, 7, 127, 255])
def test_an_exit_has_the_code_that_wait_gives(agent, trigger, code):
    ran = trigger("exit_with", code, expect=code)
    died = agent.one(action="exit", pid=ran.pid)
    assert died["process.exit_code"] == code
    assert died["event.type"] == ["end"]
    assert died.get("ir.exit.signal") is None
    assert died["process.executable"] == trigger.path("exit_with")


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGUSR1])
def test_a_killed_process_has_a_signal_and_no_exit_code(agent, trigger, how):
    with trigger.hold([trigger.path("report")]) as held:
        pidfd = os.pidfd_open(held.pid)
        signal.pidfd_send_signal(pidfd, how)
        os.close(pidfd)
    died = agent.one(action="exit", pid=held.pid)
    assert died["ir.exit.signal"] == how.name
    assert died["ir.exit.core_dumped"] is False
    assert died.get("process.exit_code") is None


def test_a_core_dump_is_said_where_wait_says_it(agent, trigger, place):
    ran = trigger("abort_child", cwd=place)
    died = agent.one(action="exit", pid=ran.facts["child"])
    assert died["ir.exit.signal"] == "SIGABRT"
    assert died["ir.exit.core_dumped"] is bool(ran.facts["core"])


def test_a_process_whose_leader_leaves_first_dies_once_and_with_its_code(
    agent, trigger
):
    ran = trigger("leader_leaves_first", 5, expect=5)
    died = agent.one(action="exit", pid=ran.pid)
    assert died["process.exit_code"] == 5
    assert died["process.entity_id"] == entity_of(agent, ran.pid)
    assert agent.records(action="exit", pid=ran.facts["tid"]) == []


def test_a_process_that_a_thread_ends_dies_once_and_with_its_code(agent, trigger):
    ran = trigger("exit_from_thread", 9, expect=9)
    died = agent.one(action="exit", pid=ran.pid)
    assert died["process.exit_code"] == 9
    assert died["process.entity_id"] == entity_of(agent, ran.pid)


def test_two_processes_with_one_pid_are_two_processes(agent, trigger):
    ran = trigger("reuse_pid")
    records = agent.find(pid=ran.facts["pid"])
    assert [r["event.action"] for r in records] == ["fork", "exit", "fork", "exit"]
    first, first_end, second, second_end = records
    assert first["process.entity_id"] != second["process.entity_id"]
    assert first["process.entity_id"] == first_end["process.entity_id"]
    assert second["process.entity_id"] == second_end["process.entity_id"]
    codes = [first_end["process.exit_code"], second_end["process.exit_code"]]
    assert codes == [1, 2]


def test_records_are_numbered_without_a_gap_and_on_the_clock_of_the_kernel(
    agent, trigger
):
    before = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    trigger("exec_many", trigger.path("true"), 50)
    agent.fence()
    agent.tally()  # looks at every number
    records = agent.records(executable=trigger.path("true"))
    moments = [record["ir.clock.bt_ns"] for record in records]
    assert len(moments) >= 100
    assert before < moments[0]
    assert moments == sorted(moments)
    assert moments[-1] < time.clock_gettime_ns(time.CLOCK_BOOTTIME)
