"""A kernel whose objects were edited: a forged parent, a process out of its lists.

In: a guest of the variant `tampered`, whose host edits what a test asks for. Out: each
edit is what a rootkit's would be, by the kernel's own word, and is undone; and an agent
that looks as often as it can tells of each, once, and of nothing else.
"""

import contextlib
import mmap
import os
import signal
import struct
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.kernel.conftest import Agent, Held, sweeping_config, until
from tests.vm import ask
from tests.vm.surgery import SurgeryError

pytestmark = pytest.mark.kernel

UIDS = (61001, 61002)
# Counts in a page that the test reads, and ends when its stdin does. Told to, it
# becomes another program, which ends so too.
COUNT = """
import mmap, os, select, signal, struct, sys
signal.signal(signal.SIGUSR1, lambda *_: os.execv(sys.argv[3], [sys.argv[3], "anew"]))
page = mmap.mmap(os.open(sys.argv[1], os.O_RDWR), 24)
os.setuid(int(sys.argv[2]))
counted = told = 0
def tell(*_):
    global told
    told += 1
signal.signal(signal.SIGCHLD, tell)
while not select.select([0], [], [], 0.01)[0]:
    counted += 1
    page[:] = struct.pack("<3q", counted, told, os.getppid())
"""


@dataclass(frozen=True)
class Counting(Held):
    """A process that counts, the only one of its user."""

    page: mmap.mmap = field(kw_only=True)
    uid: int = field(kw_only=True)
    pidfd: int = field(kw_only=True)  # leads to it when no number does

    def says(self):
        """How far it has counted, deaths it was told of, and its parent's pid."""
        return struct.unpack("<3q", self.page[:])

    def assert_runs(self):
        """It counts on from now; twice, so that all it says is of now too."""
        counted = self.says()[0]
        until(lambda: self.says()[0] > counted + 1, f"process {self.pid} to count on")

    def kill(self):
        """End it; it is a zombie until the fixture's end."""
        signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def execute(self):
        """Have it become another program."""
        signal.pidfd_send_signal(self.pidfd, signal.SIGUSR1)


@contextlib.contextmanager
def counting(trigger, file, uid):
    """A process that counts until the block ends."""
    file.write_bytes(bytes(24))
    argv = [sys.executable, "-I", "-S", "-c", COUNT]
    with (
        file.open("r+b") as opened,
        mmap.mmap(opened.fileno(), 24) as page,
        trigger.hold([*argv, str(file), str(uid), trigger.path("report")]) as held,
    ):
        pidfd = os.pidfd_open(held.pid)
        try:
            process = Counting(held.pid, page=page, uid=uid, pidfd=pidfd)
            process.assert_runs()
            yield process
        finally:
            os.close(pidfd)


@pytest.fixture(scope="module")
def _watching(trigger, tmp_path_factory):
    folder = tmp_path_factory.mktemp("agent")
    options = ("--config", str(sweeping_config(folder)))
    agent = Agent(folder, trigger.path("exit_with"), *options)
    try:
        yield agent.start()
        assert agent.stop() == 0
        agent.unload()
    finally:
        agent.clean()


@pytest.fixture
def agent(_watching):
    """An agent that sees what is edited, with only the records of this test."""
    _watching.forget()
    return _watching


@pytest.fixture
def child(trigger, tmp_path):
    """A child of this process, which edits may be of."""
    with counting(trigger, tmp_path / "child", UIDS[0]) as process:
        yield process


@pytest.fixture
def stranger(trigger, tmp_path):
    """One that has no children, and may be said to have some."""
    with counting(trigger, tmp_path / "stranger", UIDS[1]) as process:
        yield process


@pytest.fixture
def operate(child, stranger):  # noqa: ARG001 - both outlive what is edited in them
    """Has an edit made, and returns what undoes it; the end undoes what is left."""
    with contextlib.ExitStack() as edits:

        def make(edit, **args):
            undo = edits.enter_context(contextlib.ExitStack())
            undo.callback(ask.operate(edit, **args))
            return undo.close

        yield make


def in_proc(pid):
    """Which ways by number lead to it: a name in /proc, the folder of it, a pidfd."""
    proc = Path("/proc")
    # A folder that was looked at stays in the kernel's cache of names, and is found
    # there; the kernel drops it only when it was not used for some rounds.
    for _ in range(5):
        (proc / "sys/vm/drop_caches").write_text("2")
    found = {"name"} if proc / str(pid) in proc.iterdir() else set()
    if (proc / str(pid)).exists():
        found.add("folder")
    with contextlib.suppress(ProcessLookupError):
        os.close(os.pidfd_open(pid))
        found.add("pidfd")
    return found


EVERYWHERE = {"name", "folder", "pidfd"}


def is_in_list(process):
    """Whether the kernel finds it by going through the list of all processes."""
    try:
        os.getpriority(os.PRIO_USER, process.uid)
    except ProcessLookupError:
        return False
    return True


# the edits, by the kernel's own word


def test_a_forged_parent_is_what_the_kernel_says(child, stranger, operate):
    assert child.status("PPid") == [str(os.getpid())]
    undo = operate("set_real_parent", pid=child.pid, new_parent_pid=stranger.pid)
    assert child.status("PPid") == [str(stranger.pid)]
    child.assert_runs()
    assert child.says()[2] == stranger.pid
    undo()
    assert child.status("PPid") == [str(os.getpid())]


def test_a_forged_parent_is_told_of_the_end(child, stranger, operate):
    undo = operate("set_parent", pid=child.pid, new_parent_pid=stranger.pid)
    assert child.status("PPid") == [str(os.getpid())]
    child.kill()
    until(lambda: stranger.says()[1] == 1, "the stranger to be told of the end")
    undo()  # who reaps it has to be its parent in every way


def test_out_of_the_idr_no_number_leads_to_it_and_it_runs(child, operate):
    assert in_proc(child.pid) == EVERYWHERE
    undo = operate("hide_from_idr", pid=child.pid)
    until(lambda: not in_proc(child.pid), "no number to lead to it")
    assert is_in_list(child)
    child.assert_runs()
    undo()
    assert in_proc(child.pid) == EVERYWHERE


def test_out_of_the_list_numbers_lead_to_it(child, operate):
    assert is_in_list(child)
    undo = operate("hide_from_list", pid=child.pid)
    assert not is_in_list(child)
    assert in_proc(child.pid) == EVERYWHERE
    child.assert_runs()
    undo()
    assert is_in_list(child)


def test_out_of_both_nothing_leads_to_it_and_it_runs(child, operate):
    shown = [
        operate(edit, pid=child.pid) for edit in ("hide_from_idr", "hide_from_list")
    ]
    until(lambda: not in_proc(child.pid), "no number to lead to it")
    assert not is_in_list(child)
    child.assert_runs()
    for undo in shown:
        undo()
    assert (in_proc(child.pid), is_in_list(child)) == (EVERYWHERE, True)


def test_what_cannot_be_done_is_said(child, operate):
    with pytest.raises(SurgeryError, match="no process 4194304"):
        operate("hide_from_idr", pid=4194304)
    with pytest.raises(SurgeryError, match="is in the list"):
        operate("show_in_list", pid=child.pid)
    with pytest.raises(SurgeryError, match="sew"):
        operate("sew", pid=child.pid)


# the same, by the agent's word


def told(agent, pid, kind):
    """The discrepancy of this kind about a process, as soon as it is there."""
    [record] = agent.wait(action="discrepancy", pid=pid, kind=kind)
    assert record["event.kind"] == "alert"
    return record


def executed(agent, process):
    """The record of what a process became when it was told to."""
    process.execute()
    [record] = agent.wait(action="exec", pid=process.pid, executable=report(agent))
    return record


def report(agent):
    return str(Path(agent._fence).with_name("report"))


def assert_nothing_more(agent, *kinds, amid=()):
    """After three more sweeps these discrepancies are all there are.

    `amid`: those that there may be between two edits.
    """
    beats = agent.records(action="heartbeat")
    wanted = (beats[-1]["ir.heartbeat.sweeps"] if beats else 0) + 3

    def swept():
        beats = agent.records(action="heartbeat")
        return beats and beats[-1]["ir.heartbeat.sweeps"] >= wanted

    until(swept, "three more sweeps")
    found = [one["ir.discrepancy.kind"] for one in agent.records(action="discrepancy")]
    assert sorted(kind for kind in found if kind not in amid) == sorted(kinds)
    assert agent.records(action="proc-doubted") == []


def test_the_agent_tells_of_a_forged_parent_and_names_both(
    agent, child, stranger, operate
):
    birth = agent.one(action="exec", pid=child.pid)
    undo = operate("set_real_parent", pid=child.pid, new_parent_pid=stranger.pid)
    record = told(agent, child.pid, "forged")
    assert record["process.entity_id"] == birth["process.entity_id"]
    assert record["process.parent.pid"] == stranger.pid
    assert record["ir.parentage.birth_parent.pid"] == os.getpid()
    assert str(os.getpid()) in record["ir.discrepancy.reason"]
    after = executed(agent, child)
    assert after["ir.parentage.verdict"] == "forged"
    assert after["process.parent.pid"] == stranger.pid
    assert after["ir.parentage.birth_parent.pid"] == os.getpid()
    assert after["ir.parentage.reason"]
    undo()
    assert_nothing_more(agent, "forged")


def test_the_agent_tells_who_would_be_told_of_the_end(agent, child, stranger, operate):
    undo = operate("set_parent", pid=child.pid, new_parent_pid=stranger.pid)
    record = told(agent, child.pid, "forged")
    assert record["process.parent.pid"] == os.getpid()
    assert str(stranger.pid) in record["ir.discrepancy.reason"]
    after = executed(agent, child)
    assert after["ir.parentage.verdict"] == "forged"
    undo()
    assert_nothing_more(agent, "forged")


def test_the_agent_tells_who_is_out_of_the_idr(agent, child, operate):
    undo = operate("hide_from_idr", pid=child.pid)
    record = told(agent, child.pid, "hidden_from_proc")
    assert record["process.name"].startswith("python")
    found = record["ir.discrepancy"]
    assert "task chain" in found["seen_by"]
    assert {"task list", "/proc"} <= set(found["missing_from"])
    assert executed(agent, child)["process.entity_id"] == record["process.entity_id"]
    undo()
    assert_nothing_more(agent, "hidden_from_proc")


def test_the_agent_tells_who_is_out_of_the_chain(agent, child, operate):
    undo = operate("hide_from_list", pid=child.pid)
    record = told(agent, child.pid, "hidden_from_chain")
    found = record["ir.discrepancy"]
    assert {"task list", "/proc"} <= set(found["seen_by"])
    assert found["missing_from"] == ["task chain"]
    undo()
    assert_nothing_more(agent, "hidden_from_chain")


def test_the_agent_tells_who_runs_and_is_nowhere(agent, child, operate):
    birth = agent.one(action="exec", pid=child.pid)
    shown = [
        operate(edit, pid=child.pid) for edit in ("hide_from_idr", "hide_from_list")
    ]
    record = told(agent, child.pid, "ran_unlisted")
    assert record["process.entity_id"] == birth["process.entity_id"]
    assert "scheduler" in record["ir.discrepancy.seen_by"]
    assert "task list" in record["ir.discrepancy.missing_from"]
    child.assert_runs()
    after = executed(agent, child)
    assert after["process.entity_id"] == birth["process.entity_id"]
    assert after["ir.parentage"] == {"verdict": "consistent"}
    assert after["process.parent.pid"] == os.getpid()
    for undo in shown:
        undo()
    amid = ("hidden_from_proc", "hidden_from_chain")
    assert_nothing_more(agent, "ran_unlisted", amid=amid)
