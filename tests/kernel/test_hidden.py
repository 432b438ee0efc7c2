"""Who is missing where, by an agent that looks as often as it can.

In: storms of everything that makes processes, and a /proc that shows less than there
is, staged where no other process sees it. Out: `discrepancy` and `proc-doubted`
records: none of them for a storm, and one for each thing that is wrong. A name that
ends in `_replay_N` is row N of the corpus of what went wrong elsewhere.
"""

import contextlib
import os
import shutil
import subprocess  # noqa: TID251 - the tests run the programs they are about
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.kernel.conftest import until

pytestmark = pytest.mark.kernel

SWEEPS = 8
FAMILIES = ("exits", "killed", "reused", "subreaper", "inside", "entered")
LIVES_ON = ("/bin/sleep", "0.4")
"""Longer than two looks, so that a family is looked at in its middle."""
INNER = "(sleep 0.3 & exec sleep 0.1) & (setsid sleep 0.3 &) ; sleep 0.4"
NAMESPACES = (
    ("-fp", "--kill-child", "--mount-proc"),
    ("-m", "-fp", "--kill-child"),
    ("-U", "-r", "-fp", "--kill-child", "--mount-proc"),
    ("-fp", "--kill-child", "unshare", "-fp", "--kill-child", "--mount-proc"),
)
OWN_MOUNTS = ("unshare", "--mount", "--propagation", "private")


def sweeps(agent):
    """How many sweeps the agent's last word tells of."""
    beats = agent.records(action="heartbeat")
    return beats[-1]["ir.heartbeat.sweeps"] if beats else 0


def let_it_sweep(agent, times=3):
    """Return when so many more sweeps have been told of."""
    wanted = sweeps(agent) + times
    until(lambda: sweeps(agent) >= wanted, f"{wanted} sweeps")


def told_of(agent, pid):
    """The discrepancies about one process, as soon as there is one."""
    return agent.wait(action="discrepancy", pid=pid)


# nothing is hidden


def burst(trigger):
    trigger("exec_many", trigger.path("true"), 200)


def families(trigger):
    """Everything that loses its parent, all at once."""
    with ThreadPoolExecutor(len(FAMILIES)) as pool:
        ran = [pool.submit(trigger, "orphan", way, *LIVES_ON) for way in FAMILIES]
    for one in ran:
        one.result()


def traced(trigger):
    for who in ("parent", "stranger"):
        trigger("trace_exec", who, *LIVES_ON)
    trigger("start_by", "leader", "sibling", *LIVES_ON)
    trigger("start_by", "alone", "fork", *LIVES_ON)
    if strace := shutil.which("strace"):
        # it gives up at times when an orphan that it traces ends
        shell = f"{strace} -f -o /dev/null sh -c '(sleep 0.1 &) ; sleep 0.1' || :"
        trigger.run(["/bin/sh", "-c", shell])


def containers(trigger):
    with ThreadPoolExecutor(len(NAMESPACES)) as pool:
        argvs = [["unshare", *how, "/bin/sh", "-c", INNER] for how in NAMESPACES]
        ran = [pool.submit(trigger.run, argv) for argv in argvs]
    for one in ran:
        one.result()


def test_a_storm_of_births_deaths_and_containers_is_no_alarm(sweeping, trigger):
    agent = sweeping().start()
    begun = sweeps(agent)
    with ThreadPoolExecutor(4) as pool:
        while sweeps(agent) < begun + SWEEPS:
            parts = (burst, families, traced, containers)
            for one in [pool.submit(part, trigger) for part in parts]:
                one.result()
    agent.fence()
    let_it_sweep(agent)
    assert agent.records(action="discrepancy") == []
    assert agent.records(action="proc-doubted") == []
    beat = agent.records(action="heartbeat")[-1]["ir.heartbeat"]
    assert (beat["discrepancies"], beat["lost"]) == (0, 0)
    assert (beat["births_unseen"], beat["ends_unseen"]) == (0, 0)
    assert "forged" not in beat["verdicts"]
    found = {record.get("ir.parentage.verdict") for record in agent.records()}
    assert found >= {"consistent", "clone_parent", "reparented", "traced"}
    assert "forged" not in found


def test_who_had_ended_before_the_agent_has_no_end_that_it_missed(sweeping, trigger):
    argv = [trigger.path("exit_with"), "0"]
    with contextlib.ExitStack() as stack:
        ended = [stack.enter_context(subprocess.Popen(argv)) for _ in range(5)]
        for process in ended:  # without reaping it
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        agent = sweeping().start()
        let_it_sweep(agent)
    let_it_sweep(agent)
    beat = agent.records(action="heartbeat")[-1]["ir.heartbeat"]
    assert (beat["ends_unseen"], beat["discrepancies"]) == (0, 0)


# a /proc that shows less, or something else


@contextlib.contextmanager
def strangers(trigger, count):
    """Processes that live until the block ends."""
    with contextlib.ExitStack() as stack:
        argv = [trigger.path("report")]
        yield [stack.enter_context(trigger.hold(argv)) for _ in range(count)]


def assert_hidden(record, process, reason):
    found = record["ir.discrepancy"]
    assert record["event.kind"] == "alert"
    assert found["kind"] == "hidden_from_proc"
    assert reason in found["reason"]
    assert record["process.pid"] == process.pid
    assert "task list" in found["seen_by"]
    assert "/proc" in found["missing_from"]


def mount_inside(agent, *how):
    """Mount where only the agent sees it; its end undoes that."""
    argv = ["nsenter", f"--mount=/proc/{agent.pid}/ns/mnt", "mount", *how]
    subprocess.run(argv, check=True)


def test_a_mount_over_a_process_is_told_once_for_each_mount(sweeping, trigger):
    agent = sweeping()
    with strangers(trigger, 3) as (covered, replaced, other):
        cover = f"mount -t tmpfs -o size=64k veil /proc/{covered.pid}"
        agent.start(*OWN_MOUNTS, "sh", "-c", f'{cover}; exec "$@"', "sh")
        [record] = told_of(agent, covered.pid)
        over = f"is mounted over /proc/{covered.pid}"
        assert_hidden(record, covered, f"a tmpfs (source veil) {over}")
        mount_inside(agent, "--bind", f"/proc/{other.pid}", f"/proc/{replaced.pid}")
        [record] = told_of(agent, replaced.pid)
        over = f"is mounted over /proc/{replaced.pid}"
        assert_hidden(record, replaced, f"/{other.pid} of a proc (source proc) {over}")
        mount_inside(agent, "--bind", "/dev/null", f"/proc/{other.pid}/cmdline")
        [doubt] = agent.wait(action="proc-doubted")  # it is shown, and not hidden
        assert doubt["ir.doubt.kind"] == "covered below"
        assert f"over /proc/{other.pid}/cmdline" in doubt["ir.doubt.reason"]
        let_it_sweep(agent)
    let_it_sweep(agent)
    assert len(agent.records(action="discrepancy")) == 2
    assert len(agent.records(action="proc-doubted")) == 1


def test_what_is_mounted_over_proc_is_doubted_once_and_stops_nothing(sweeping, trigger):
    agent = sweeping().start(*OWN_MOUNTS)
    for how, kinds in (
        (("-t", "proc", "-o", "hidepid=2", "partial"), {"stacked", "hidepid"}),
        (("-t", "tmpfs", "empty"), {"stacked"}),
    ):
        before = len(agent.records(action="proc-doubted"))
        mount_inside(agent, *how, "/proc")
        doubts = agent.wait(before + len(kinds), action="proc-doubted")[before:]
        told = {record["ir.doubt.kind"]: record["ir.doubt.reason"] for record in doubts}
        assert told.keys() == kinds
        assert f"(source {how[-1]}) is mounted over" in told["stacked"]
        assert {record["event.kind"] for record in doubts} == {"alert"}
        let_it_sweep(agent)
        assert len(agent.records(action="proc-doubted")) == before + len(kinds)
    trigger("exec_many", trigger.path("true"), 300)  # more than a segment holds
    agent.fence()
    assert len(agent.records(executable=trigger.path("true"), action="exec")) == 300
    assert agent.records(action="discrepancy") == []
    assert agent.stop() == 0
    agent.verify()


def test_who_is_left_out_of_a_listing_is_told_replay_144_145(sweeping, trigger):
    agent = sweeping()
    with strangers(trigger, 1) as [hidden]:
        library = trigger.path("hide_name.so")
        agent.start("env", f"HIDDEN={hidden.pid}", f"LD_PRELOAD={library}")
        [record] = told_of(agent, hidden.pid)
        assert_hidden(record, hidden, "/proc does not list it")
        let_it_sweep(agent)
        assert len(agent.records(action="discrepancy")) == 1
