"""Restarting is not a blind spot: the probes go on, and nothing is told twice.

In: a daemon that ends, is killed, or is started a second time while programs run.
Out: records of all they did, in order, each once, under one unbroken chain. After
`unload` nothing of the agent is left in the kernel.
"""

import ctypes
import json
import os
import signal
import struct
import subprocess  # noqa: TID251 - the storm runs beside the test
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.kernel

KILLS = 20
# One worker needs about a second for these: longer than from kill to kill.
STORM_EXECS = "5000"


def test_what_happens_while_the_daemon_is_down_is_recorded_in_order(
    agent_factory, trigger
):
    agent = agent_factory().start()
    seen = trigger("exit_with", 0)
    agent.fence()
    assert agent.stop() == 0
    assert agent.pins.is_dir()
    missed = [trigger("exit_with", code, expect=code) for code in range(20)]
    agent.start()
    agent.fence()
    codes = []
    for ran in missed:
        records = agent.records(pid=ran.pid)
        assert [r["event.action"] for r in records] == ["fork", "exec", "exit"]
        assert all(r["ir.kernel.backlog"] is True for r in records)
        assert len({r["process.entity_id"] for r in records}) == 1
        records[1].assert_argv(
            [os.fsencode(trigger.path("exit_with")), str(ran.status).encode()]
        )
        codes.append((records[2]["event.sequence"], records[2]["process.exit_code"]))
    assert [code for _, code in sorted(codes)] == list(range(20))
    for record in agent.records(pid=seen.pid):
        assert not record.get("ir.kernel.backlog")
    assert agent.stop() == 0
    agent.verify()


def test_what_happens_after_a_restart_is_no_backlog(agent_factory, trigger):
    agent = agent_factory().start()
    assert agent.stop() == 0
    agent.start()
    agent.fence()
    ran = trigger("exit_with", 0)
    for record in agent.find(pid=ran.pid):
        assert not record.get("ir.kernel.backlog")


def test_a_process_that_lives_through_a_restart_keeps_its_key(agent_factory, trigger):
    agent = agent_factory().start()
    with trigger.hold([trigger.path("report"), "lives"]) as held:
        agent.fence()
        assert agent.stop() == 0
        agent.start()
    records = agent.find(pid=held.pid)
    assert [r["event.action"] for r in records] == ["fork", "exec", "exit"]
    assert len({r["process.entity_id"] for r in records}) == 1
    assert records[2]["process.executable"] == trigger.path("report")


def test_the_records_say_when_the_agent_started_and_stopped(agent_factory):
    agent = agent_factory().start()
    assert agent.stop() == 0
    agent.start()
    assert agent.stop() == 0
    actions = [r["event.action"] for r in agent.all()]
    shown = [action for action in actions if action.startswith("agent-")]
    assert shown == ["agent-start", "agent-stop"] * 2


def test_time_without_probes_is_a_gap_and_not_silence(agent_factory, trigger):
    agent = agent_factory().start()
    assert agent.stop() == 0
    agent.unload()
    ran = trigger("exit_with", 0)
    agent.start()
    assert agent.find(pid=ran.pid) == []
    assert len(agent.records(action="gap")) == 1


@pytest.mark.parametrize("shared", ["state", "pins"])
def test_a_second_agent_on_the_same_folder_is_refused(agent_factory, trigger, shared):
    first, second = agent_factory().start(), agent_factory()
    setattr(second, shared, getattr(first, shared))
    refused = second.command("run")
    assert refused.returncode == 2
    assert str(getattr(first, shared)) in refused.stderr
    assert "Traceback" not in refused.stderr
    ran = trigger("exit_with", 0)
    actions = [r["event.action"] for r in first.find(pid=ran.pid)]
    assert actions == ["fork", "exec", "exit"]
    assert first.stop() == 0
    first.verify()


def test_two_agents_on_the_same_hooks_both_see_everything(agent_factory, trigger):
    """Programs that run on one CPU at the same hook must not push each other out."""
    agents = [agent_factory().start() for _ in range(2)]
    trigger("exec_many", trigger.path("true"), 1000)
    for agent in agents:
        for action in ("exec", "exit"):
            records = agent.find(action=action, executable=trigger.path("true"))
            assert len(records) == 1000
        assert agent.records(action="loss") == []


def last_line(agent):
    """Where the last whole line on disk is, and what it says: it may never change."""
    path = max((agent.state / "records").glob("*.jsonl"))
    data = path.read_bytes()
    end = data.rfind(b"\n")
    start = data.rfind(b"\n", 0, end) + 1
    return path, start, data[start : end + 1]


def kill_in_a_storm(agent, trigger):
    """Kill and restart the daemon in a storm; its count, and what was on disk then."""
    argv = [trigger.path("storm"), "--workers", "1", "--execs", STORM_EXECS]
    before = last_line(agent)
    with subprocess.Popen([*argv, trigger.path("true")], stdout=-1) as storm:
        try:
            while (written := last_line(agent)) == before:
                time.sleep(0.01)
            assert storm.poll() is None, "the storm is too short"
            assert agent.stop(signal.SIGKILL) == -signal.SIGKILL
            agent.start()
            return json.loads(storm.communicate(timeout=120)[0]), written
        finally:
            storm.kill()


@pytest.mark.slow
def test_twenty_kills_in_storms_lose_nothing_and_count_nothing_twice(
    agent_factory, trigger
):
    agent = agent_factory().start()
    truths, written = [], []
    for _ in range(KILLS):
        truth, line = kill_in_a_storm(agent, trigger)
        truths.append(truth)
        written.append(line)
    agent.fence()
    assert agent.stop() == 0
    agent.verify()
    for path, start, line in written:
        assert path.read_bytes()[start : start + len(line)] == line
    tally = agent.tally()
    assert len(tally.runs) == tally.counts["exec"]
    for kind in ("fork", "exec", "exit"):
        missing = sum(truth[f"{kind}s"] for truth in truths) - tally.counts[kind]
        assert 0 <= missing <= tally.lost[kind], (kind, tally.lost, tally.counts)


LIBC = ctypes.CDLL(None, use_errno=True)
BPF_SYSCALL = {"x86_64": 321, "aarch64": 280}[os.uname().machine]
OBJ_GET, OBJ_GET_INFO_BY_FD = 7, 15
GET_FD_BY_ID = {"bpf-prog": 13, "bpf-map": 14, "bpf-link": 30}


def bpf(command, attributes):
    """bpf(2): a descriptor or 0, or OSError."""
    buffer = ctypes.create_string_buffer(attributes.ljust(64, b"\0"), 64)
    result = LIBC.syscall(BPF_SYSCALL, command, buffer, 64)
    if result < 0:
        raise OSError(ctypes.get_errno(), f"bpf({command})")
    return result


def identify(pin):
    """(kind, id) of all that a pin keeps alive: itself, and the program of a link."""
    name = ctypes.create_string_buffer(os.fsencode(pin))
    fd = bpf(OBJ_GET, struct.pack("QII", ctypes.addressof(name), 0, 0))
    try:
        kind = Path(f"/proc/self/fd/{fd}").readlink().name.removeprefix("anon_inode:")
        kind = kind.strip("[]").replace("_", "-")
        info = ctypes.create_string_buffer(12)
        where = struct.pack("IIQ", fd, 12, ctypes.addressof(info))
        bpf(OBJ_GET_INFO_BY_FD, where)
    finally:
        os.close(fd)
    _, number, third = struct.unpack("III", info.raw)
    return {(kind, number)} | ({("bpf-prog", third)} if kind == "bpf-link" else set())


def lives(kind, number):
    """Whether the kernel still has this object."""
    try:
        os.close(bpf(GET_FD_BY_ID[kind], struct.pack("III", number, 0, 0)))
    except FileNotFoundError:
        return False
    return True


def test_unload_leaves_nothing_in_the_kernel(agent_factory):
    agent = agent_factory().start()
    pins = [path for path in agent.pins.rglob("*") if path.is_file()]
    objects = set().union(*map(identify, pins))
    assert {kind for kind, _ in objects} >= {"bpf-map", "bpf-link", "bpf-prog"}
    assert agent.stop() == 0
    assert all(lives(*thing) for thing in objects)
    agent.unload()
    # The kernel frees programs and maps a little later, after a grace period.
    deadline = time.monotonic() + 10
    while any(lives(*thing) for thing in objects):
        assert time.monotonic() < deadline, [t for t in objects if lives(*t)]
        time.sleep(0.05)
    assert not agent.pins.exists()
    assert [
        path.name for path in Path(agent.runtime).rglob("*") if path.is_file()
    ] == []


def test_unload_twice_is_no_error(agent_factory):
    agent = agent_factory().start()
    assert agent.stop() == 0
    agent.unload()
    agent.unload()


def test_probes_that_were_loaded_before_are_used_as_they_are(agent_factory, trigger):
    agent = agent_factory()
    loaded = agent.command("load")
    assert loaded.returncode == 0, loaded.stderr
    before = {path.name for path in agent.pins.iterdir()}
    early = trigger("exit_with", 0)
    agent.start()
    assert {path.name for path in agent.pins.iterdir()} == before
    actions = [r["event.action"] for r in agent.find(pid=early.pid)]
    assert actions == ["fork", "exec", "exit"]
