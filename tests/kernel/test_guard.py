"""A guarded process is out of everybody's reach but the permitted, and shows it.

In: an agent on each rung of the guard, a process that it guards, and programs that
reach into it. Out: what became of them, and records that say who refused.
"""

import contextlib
import os
import signal
import subprocess  # noqa: TID251 - runs debuggers and readers of /proc
import tempfile
from pathlib import Path
from shutil import which
from typing import NamedTuple

import pytest

from agent.errors import UsageError
from agent.events import ProcessKey
from agent.sensor import bpf, guard, pins, tasks
from agent.sensor.guard import Permit
from tests.kernel import ladder
from tests.kernel.conftest import WAYS, Agent, until

pytestmark = pytest.mark.kernel

NOBODY = 65534


class Guard(NamedTuple):
    """An agent whose guard stands on a known rung, and its maps."""

    agent: Agent
    rung: str
    guards: int
    permits: int

    def protect(self, pid: int) -> ProcessKey:
        with contextlib.closing(tasks.TaskViews(self.agent.pins)) as views:
            [task] = [one for one in views.tasks() if one.key.tgid == pid]
        guard.protect(self.guards, task.key)
        return task.key

    @property
    def kills(self) -> bool:
        return self.rung == "signal"


@pytest.fixture(scope="module", params=["lsm", "fmod_ret", "signal"])
def guarded(request, trigger):
    rung = request.param
    ladder.known(rung)
    with tempfile.TemporaryDirectory(prefix="ir-agent-test-") as name:
        options = ladder.forbid_all_but("guard", rung)
        agent = Agent(Path(name), trigger.path("exit_with"), *options)
        try:
            agent.start()
            if ladder.senses(agent.runtime).get("guard", {}).get("rung") != rung:
                ladder.unavailable(rung, ladder.why_not(agent.runtime, rung))
            maps = guard.open_maps(agent.pins)
            yield Guard(agent, rung, maps["guards"], maps["permits"])
            for fd in maps.values():
                os.close(fd)
        finally:
            agent.clean()


@pytest.fixture
def target(guarded, trigger):
    """A guarded process that stands still."""
    guarded.agent.forget()
    with trigger.hold([trigger.path("report"), "target"]) as held:
        key = guarded.protect(held.pid)
        yield held
        guard.release(guarded.guards, key)


@pytest.fixture
def permitted(guarded):
    """Permits somebody for the time of a test."""
    given = []

    def permit(**who):
        given.append(Permit(**who))
        guard.permit(guarded.permits, given[-1])

    yield permit
    for who in given:
        guard.forbid(guarded.permits, who)


def is_untouched(held):
    """It runs, nobody traces it, and no stop is left in it."""
    state = held.status("State")[0]
    return state in ("S", "R") and held.status("TracerPid") == ["0"]


def refused(guarded, trigger, name, *args, errno=1, **options):
    """Run a program that is to be held off, in the way of this rung."""
    if guarded.kills:
        return trigger(name, *args, expect=-signal.SIGKILL, **options)
    ran = trigger(name, *args, **options)
    assert ran.facts["errno"] == errno
    return ran


def only_access(guarded, ran, action):
    found = [
        r for r in guarded.agent.find(pid=ran.pid) if r.get("ir.access") is not None
    ]
    assert [record["event.action"] for record in found] == [action]
    return found[0]


@pytest.mark.parametrize(("action", "name", "args"), WAYS)
def test_an_access_to_a_guarded_process_is_refused_and_the_record_says_by_whom(
    guarded, trigger, target, action, name, args
):
    ran = refused(guarded, trigger, name, target.pid, *args)
    until(lambda: is_untouched(target), "the target to run on")
    record = only_access(guarded, ran, action)
    assert record["ir.access.denied"] == guarded.rung
    assert record["event.type"] == ["access", "denied"]
    assert record["ir.target.pid"] == target.pid
    if not guarded.kills:
        assert record["event.outcome"] == "failure"
        assert record["error.code"] == "EPERM"


@pytest.mark.parametrize("form", ["absolute", "link"])
def test_the_memory_file_of_a_guarded_process_is_not_opened(
    guarded, trigger, target, place, form
):
    path = f"/proc/{target.pid}/mem"
    if form == "link":
        (place / "link").symlink_to(path)
        path = str(place / "link")
    ran = refused(guarded, trigger, "open_memory", path, errno=13)
    record = only_access(guarded, ran, "mem-open")
    assert record["ir.access.denied"] == guarded.rung
    assert record["ir.target.pid"] == target.pid


def test_a_way_in_that_no_sense_knows_is_refused_and_recorded(guarded, target):
    if guarded.kills:
        pytest.skip("this rung sees only the ways that the senses see")
    path = f"/proc/{target.pid}/personality"
    with subprocess.Popen(
        ["/bin/cat", path], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        pass
    assert process.returncode == 1
    [record] = [
        r for r in guarded.agent.find(pid=process.pid) if r.get("ir.access") is not None
    ]
    assert record["event.action"] == "other-access"
    assert record["ir.access.denied"] == guarded.rung
    assert record["ir.target.pid"] == target.pid


def test_what_everybody_may_read_of_a_guarded_process_stays_readable(
    guarded, trigger, target
):
    argv = ["/bin/cat", *(f"/proc/{target.pid}/{n}" for n in ("status", "maps"))]
    ran = trigger.run(argv)
    assert ran.stdout
    assert [r for r in guarded.agent.find(pid=ran.pid) if r.get("ir.access")] == []


@pytest.mark.usefixtures("target")
@pytest.mark.parametrize(("action", "name", "args"), WAYS)
def test_other_processes_are_reached_as_before(guarded, trigger, action, name, args):
    with trigger.hold([trigger.path("report"), "another"]) as other:
        ran = trigger(name, other.pid, *args)
        assert ran.facts["errno"] == 0
        record = only_access(guarded, ran, action)
    assert record.get("ir.access.denied") is None
    assert record["event.type"] == ["access"]


def test_a_released_process_is_reached_again(guarded, trigger):
    with trigger.hold([trigger.path("report"), "target"]) as held:
        key = guarded.protect(held.pid)
        refused(guarded, trigger, "seize", held.pid)
        assert guard.release(guarded.guards, key)
        assert trigger("seize", held.pid).facts["errno"] == 0
        assert not guard.release(guarded.guards, key)


@pytest.fixture
def seize_itself(guarded, trigger):
    """Inode and device of a program by its records: stat(2) of an overlay differs."""
    ran = trigger("seize", os.getpid())
    record = guarded.agent.one(action="exec", pid=ran.pid)
    major, minor = map(int, record["ir.exe.device"].split(":"))
    return int(record["ir.exe.inode"]), major << 20 | minor


def own_cgroup():
    """The id of this process's cgroup of v2."""
    [path] = [
        line.strip().split(":", 2)[2]
        for line in Path("/proc/self/cgroup").read_text().splitlines()
        if line.startswith("0::")
    ]
    for mount in Path("/proc/self/mounts").read_text().splitlines():
        _, place, kind, *_ = mount.split()
        if kind == "cgroup2":
            return Path(place + path).stat().st_ino
    pytest.skip("cgroup v2 is not mounted")


def may(trigger, target):
    return trigger("seize", target.pid).facts["errno"] == 0


def test_a_permitted_executable_may(guarded, trigger, target, permitted, seize_itself):
    permitted(executable=seize_itself)
    assert may(trigger, target)
    refused(guarded, trigger, "attach", target.pid)


def test_a_permitted_user_may(trigger, target, permitted):
    permitted(uid=os.getuid())
    assert may(trigger, target)


def test_a_permitted_cgroup_may(trigger, target, permitted):
    permitted(cgroup_id=own_cgroup())
    assert may(trigger, target)


def test_all_facts_of_a_permit_have_to_hold(
    guarded, trigger, target, permitted, seize_itself
):
    permitted(executable=seize_itself, uid=NOBODY)
    permitted(uid=os.getuid(), cgroup_id=1 << 40)
    refused(guarded, trigger, "seize", target.pid)
    assert set(guard.permits(guarded.permits)) == {
        Permit(executable=seize_itself, uid=NOBODY),
        Permit(uid=os.getuid(), cgroup_id=1 << 40),
    }


def test_a_permit_taken_back_permits_nobody(guarded, trigger, target, permitted):
    permitted(uid=os.getuid())
    assert may(trigger, target)
    assert guard.forbid(guarded.permits, Permit(uid=os.getuid()))
    refused(guarded, trigger, "seize", target.pid)


def test_a_permit_that_names_nobody_is_refused(guarded):
    with pytest.raises(UsageError, match="names nobody"):
        guard.permit(guarded.permits, Permit())


def test_refusals_are_counted(guarded, trigger, target):
    for _ in range(3):
        refused(guarded, trigger, "seize", target.pid)
    [entry] = [g for g in guard.guarded(guarded.guards) if g.key.tgid == target.pid]
    assert entry.refused == 3
    assert entry.last_ns


def test_a_process_that_ends_is_guarded_no_more(guarded, trigger):
    with trigger.hold([trigger.path("report"), "target"]) as held:
        key = guarded.protect(held.pid)
        assert key in {one.key for one in guard.guarded(guarded.guards)}
    until(
        lambda: key not in {one.key for one in guard.guarded(guarded.guards)},
        "the entry to go",
    )


def test_a_guarded_process_does_not_let_itself_be_traced_by_a_stranger(
    guarded, trigger
):
    if guarded.kills:
        pytest.skip("the caller would be the guarded process itself")
    # the parent reaches into nobody: its child asks it to, when its stdin ends
    reader, writer = os.pipe()
    with subprocess.Popen(
        [trigger.path("ask_when_told")], stdin=reader, stderr=subprocess.PIPE
    ) as process:
        os.close(reader)
        until(lambda: Path(f"/proc/{process.pid}/cmdline").read_bytes(), "exec")
        key = guarded.protect(process.pid)
        os.close(writer)
        told = process.stderr.read()
    guard.release(guarded.guards, key)
    assert b'"errno": 1}' in told
    [record] = guarded.agent.find(action="ptrace-traceme", pid=os.getpid())[-1:]
    assert record["ir.access.denied"] == guarded.rung


def test_a_debugger_is_held_off(guarded, target):
    gdb = which("gdb")
    if gdb is None:
        pytest.skip("gdb is not installed")
    done = subprocess.run(
        [gdb, "-nx", "-batch", "-ex", "info proc", "-p", str(target.pid)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    if guarded.kills:
        assert done.returncode == -signal.SIGKILL
    else:
        assert "Operation not permitted" in done.stderr
    until(lambda: is_untouched(target), "the target to run on")


def test_the_guard_holds_while_the_daemon_is_dead(guarded, trigger, target):
    guarded.agent.stop(signal.SIGKILL)
    ran = refused(guarded, trigger, "attach", target.pid)
    until(lambda: is_untouched(target), "the target to run on")
    guarded.agent.start()
    record = only_access(guarded, ran, "ptrace-attach")
    assert record["ir.access.denied"] == guarded.rung


def test_a_new_loading_guards_whom_the_old_one_did(guarded, trigger, target):
    guarded.agent.stop()
    before = pins.loaded(guarded.agent.pins)
    options = ladder.forbid_all_but("guard", guarded.rung)
    done = guarded.agent.command("load", *options)
    assert done.returncode in (0, 1), done.stderr
    assert pins.loaded(guarded.agent.pins) != before
    refused(guarded, trigger, "seize", target.pid)
    guarded.agent.start()


def test_a_full_map_is_an_error_and_no_process_silently_open(guarded):
    room = bpf.map_spec(guarded.guards).max_entries - len(guard.guarded(guarded.guards))
    keys = [ProcessKey(1 << 22, start_ns) for start_ns in range(1, room + 2)]
    try:
        for key in keys[:-1]:
            guard.protect(guarded.guards, key)
        with pytest.raises(OSError, match="Argument list too long"):
            guard.protect(guarded.guards, keys[-1])
    finally:
        for key in keys:
            guard.release(guarded.guards, key)
