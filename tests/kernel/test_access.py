"""Whoever reaches into another process, or tries to, is recorded with both ends.

In: programs that attach, read, write and take descriptors, as root and as nobody.
Out: one `access` record an attempt, with tracer and target under the very keys that
their own `exec` and `fork` records have. A refusal is a record as well.
"""

import os
from pathlib import Path

import pytest

from tests.kernel import ladder
from tests.kernel.conftest import WAYS

pytestmark = pytest.mark.kernel

NOBODY = 65534
OTHERS = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
FIRST_FREE_PID = int(Path("/proc/sys/kernel/pid_max").read_text())


@pytest.fixture
def target(trigger):
    """A root process that stands still."""
    with trigger.hold([trigger.path("report"), "target"]) as held:
        yield held


@pytest.fixture
def memory_path(target, place):
    """Every way to name a target's memory: (path, folder to start from or None)."""
    (place / "link").symlink_to(f"/proc/{target.pid}/mem")
    (place / "folder").symlink_to(f"/proc/{target.pid}")
    return {
        "absolute": (f"/proc/{target.pid}/mem", None),
        "thread": (f"/proc/{target.pid}/task/{target.pid}/mem", None),
        "dots": (f"/proc/self/../{target.pid}/mem", None),
        "slashes": (f"//proc///{target.pid}//mem", None),
        "relative to /proc": (f"{target.pid}/mem", "/proc"),
        "relative to the process": ("mem", f"/proc/{target.pid}"),
        "symlink": (str(place / "link"), None),
        "symlink to the folder": (str(place / "folder" / "mem"), None),
    }


# What a refused open was about is known by its path alone (probes/access.c): these
# spellings name a target without asking the file system,
PLAIN = ["absolute", "thread", "relative to /proc", "relative to the process"]
# these are recorded with the path and no target, since only the file system knows it,
ODD = ["dots", "slashes"]
# and these are not seen when refused, which `ir-agent status` says of this rung.
LINKED = ["symlink", "symlink to the folder"]


def accesses(agent, tracer):
    """All access records of one tracer, of whatever kind."""
    return [r for r in agent.find(pid=tracer) if r.get("ir.access") is not None]


def only_access(agent, ran, action):
    found = accesses(agent, ran.pid)
    assert [record["event.action"] for record in found] == [action]
    record = found[0]
    assert record["event.type"] == ["access"]
    assert record["event.category"] == ["process"]
    assert record["ir.access.count"] == 1
    begun = agent.one(action="exec", pid=ran.pid)
    assert record["process.entity_id"] == begun["process.entity_id"]
    assert record["process.executable"] == begun["process.executable"]
    return record


def assert_success(record, ran):
    assert ran.facts["errno"] == 0
    assert record["event.outcome"] == "success"
    assert record.get("error.code") is None


def assert_refused(record, ran, error):
    assert os.strerror(ran.facts["errno"])
    assert record["event.outcome"] == "failure"
    assert record["error.code"] == error


def assert_target(agent, record, target):
    begun = agent.one(action="exec", pid=target.pid)
    assert record["ir.target.pid"] == target.pid
    assert record["ir.target.entity_id"] == begun["process.entity_id"]
    assert record["ir.target.name"] == begun["process.name"]
    assert record["ir.target.user.id"] == "0"


@pytest.mark.parametrize(("action", "name", "args"), WAYS)
def test_an_access_is_recorded_once_with_tracer_and_target(
    agent, trigger, target, action, name, args
):
    ran = trigger(name, target.pid, *args)
    record = only_access(agent, ran, action)
    assert_success(record, ran)
    assert_target(agent, record, target)
    assert record["ir.target.thread.id"] == target.pid
    assert record["ir.access.requested_pid"] == target.pid
    assert record["ir.access.result"] == ran.facts["result"]


def test_a_target_is_described_as_fully_as_in_its_own_records(agent, trigger, target):
    ran = trigger("attach", target.pid)
    record = only_access(agent, ran, "ptrace-attach")
    begun = agent.one(action="exec", pid=target.pid)
    for name in ("executable", "start", "vpid", "user", "group", "parent"):
        assert record[f"ir.target.{name}"] == begun[f"process.{name}"], name


@pytest.mark.parametrize(("action", "name", "args"), WAYS)
def test_a_refused_access_is_recorded_once_with_tracer_and_target(
    agent, trigger, target, action, name, args
):
    ran = trigger(name, target.pid, *args, **OTHERS)
    assert ran.facts["errno"] == 1
    record = only_access(agent, ran, action)
    assert_refused(record, ran, "EPERM")
    assert_target(agent, record, target)
    assert record["process.user.id"] == str(NOBODY)


@pytest.mark.parametrize("form", [*PLAIN, *ODD, *LINKED])
def test_an_open_of_memory_is_recorded_however_it_is_named(
    agent, trigger, target, memory_path, form
):
    path, folder = memory_path[form]
    ran = trigger("open_memory", path, *([folder] if folder else []))
    record = only_access(agent, ran, "mem-open")
    assert_success(record, ran)
    assert_target(agent, record, target)


def test_an_open_of_memory_has_the_descriptor_as_its_result(agent, trigger, target):
    ran = trigger("open_memory", f"/proc/{target.pid}/mem")
    record = only_access(agent, ran, "mem-open")
    rung = ladder.senses(agent.runtime)["memory file"]["rung"]
    # fentry looks at the file while it is being opened, before it has a descriptor
    expected = 0 if rung == "fentry" else ran.facts["result"]
    assert record["ir.access.result"] == expected


@pytest.mark.parametrize("form", [*PLAIN, *ODD])
def test_a_refused_open_of_memory_is_recorded_however_it_is_named(
    agent, trigger, memory_path, form
):
    path, folder = memory_path[form]
    ran = trigger("open_memory", path, *([folder] if folder else []), **OTHERS)
    assert ran.facts["errno"] == 13
    record = only_access(agent, ran, "mem-open")
    assert_refused(record, ran, "EACCES")
    assert record["process.user.id"] == str(NOBODY)


def test_a_refused_open_of_memory_does_not_name_a_process_it_only_passed_by(
    agent, trigger, target
):
    ran = trigger("open_memory", f"/proc/1/../{target.pid}/mem", **OTHERS)
    record = only_access(agent, ran, "mem-open")
    assert record.get("ir.target.pid") in (None, target.pid)


@pytest.mark.parametrize("form", PLAIN)
def test_a_refused_open_of_memory_names_its_target(
    agent, trigger, target, memory_path, form
):
    path, folder = memory_path[form]
    ran = trigger("open_memory", path, *([folder] if folder else []), **OTHERS)
    assert_target(agent, only_access(agent, ran, "mem-open"), target)


@pytest.mark.parametrize("form", ODD)
def test_a_refused_open_by_an_odd_path_names_nobody_but_keeps_the_path(
    agent, trigger, memory_path, form
):
    path, _ = memory_path[form]
    ran = trigger("open_memory", path, **OTHERS)
    record = only_access(agent, ran, "mem-open")
    assert record.get("ir.target") is None
    assert record["ir.access.path"] == path
    assert "target_gone" in record["ir.kernel.flags"]


@pytest.mark.parametrize("who", [{}, OTHERS])
def test_an_open_of_memory_with_openat2_is_recorded(agent, trigger, target, who):
    ran = trigger("open_memory_anew", f"/proc/{target.pid}/mem", **who)
    record = only_access(agent, ran, "mem-open")
    assert (record["event.outcome"] == "failure") is bool(who)
    assert_target(agent, record, target)


def test_an_open_of_a_file_that_is_only_called_mem_is_no_access(agent, trigger, place):
    (place / "mem").write_text("no process")
    ran = trigger("open_memory", place / "mem")
    assert accesses(agent, ran.pid) == []


def test_a_refused_open_of_a_file_that_is_only_called_mem_is_no_access(
    agent, trigger, place
):
    (place / "mem").write_text("no process")
    (place / "mem").chmod(0o600)
    ran = trigger("open_memory", place / "mem", **OTHERS)
    assert ran.facts["errno"] == 13
    assert accesses(agent, ran.pid) == []


def test_reading_what_proc_shows_to_everyone_is_no_access(agent, trigger, target):
    argv = ["/bin/cat", *(f"/proc/{target.pid}/{n}" for n in ("status", "maps"))]
    ran = trigger.run(argv)
    assert accesses(agent, ran.pid) == []


def test_a_process_that_asks_to_be_traced_names_its_parent_as_the_tracer(
    agent, trigger
):
    ran = trigger("traceme")
    record = only_access(agent, ran, "ptrace-traceme")
    assert_success(record, ran)
    born = agent.one(action="fork", pid=ran.facts["child"])
    assert record["ir.target.pid"] == ran.facts["child"]
    assert record["ir.target.entity_id"] == born["process.entity_id"]


def test_a_parent_with_fewer_rights_is_refused_as_the_tracer(agent, trigger):
    ran = trigger("traceme", NOBODY)
    assert ran.facts["errno"] == 1
    record = only_access(agent, ran, "ptrace-traceme")
    assert_refused(record, ran, "EPERM")
    assert record["process.user.id"] == str(NOBODY)
    assert record["ir.target.pid"] == ran.facts["child"]
    assert record["ir.target.user.id"] == "0"


def test_a_child_that_is_born_traced_is_recorded(agent, trigger):
    ran = trigger("trace_children")
    found = {r["event.action"]: r for r in accesses(agent, ran.pid)}
    assert sorted(found) == ["ptrace-seize", "trace-inherited"]
    born = agent.one(action="fork", pid=ran.facts["born"])
    inherited = found["trace-inherited"]
    assert inherited["ir.target.pid"] == ran.facts["born"]
    assert inherited["ir.target.entity_id"] == born["process.entity_id"]
    assert found["ptrace-seize"]["ir.target.pid"] == ran.facts["parent"]


def test_a_traced_child_still_has_the_parent_that_forked_it(agent, trigger):
    ran = trigger("trace_children")
    born = agent.one(action="fork", pid=ran.facts["born"])
    assert born["process.parent.pid"] == ran.facts["parent"]
    assert born["ir.creator.pid"] == ran.facts["parent"]


@pytest.mark.parametrize(
    ("action", "name", "args"), [way for way in WAYS if way[1] != "take_descriptor"]
)
def test_an_access_to_a_thread_names_its_process_and_the_thread(
    agent, trigger, action, name, args
):
    with trigger.hold([trigger.path("hold_thread")], told=True) as held:
        tid = held.facts["tid"]
        ran = trigger(name, tid, *args)
        record = only_access(agent, ran, action)
        assert_success(record, ran)
        assert_target(agent, record, held)
    assert tid != held.pid
    assert record["ir.target.thread.id"] == tid
    assert record["ir.access.requested_pid"] == tid


def test_an_open_of_the_memory_of_a_thread_names_its_process(agent, trigger):
    with trigger.hold([trigger.path("hold_thread")], told=True) as held:
        path = f"/proc/{held.pid}/task/{held.facts['tid']}/mem"
        ran = trigger("open_memory", path)
        record = only_access(agent, ran, "mem-open")
        assert_success(record, ran)
        assert_target(agent, record, held)
    assert record["ir.target.thread.id"] == held.facts["tid"]


@pytest.mark.parametrize(
    ("action", "name", "args"), [way for way in WAYS if way[1] != "take_descriptor"]
)
def test_an_attempt_on_a_pid_that_nobody_has_is_recorded_without_a_target(
    agent, trigger, action, name, args
):
    ran = trigger(name, FIRST_FREE_PID, *args)
    assert ran.facts["errno"] == 3
    record = only_access(agent, ran, action)
    assert_refused(record, ran, "ESRCH")
    assert record["ir.access.requested_pid"] == FIRST_FREE_PID
    assert record.get("ir.target.entity_id") is None


def test_a_burst_of_reads_folds_into_few_records_that_count_all_of_them(
    agent, trigger, target
):
    ran = trigger("read_memory", target.pid, 1000)
    facts = {"action": "process-vm-read", "pid": ran.pid}

    def counts():
        return [record["ir.access.count"] for record in agent.records(**facts)]

    agent.wait(2, **facts)  # the rest is told by a later second
    agent.fence()
    assert counts()[0] == 1
    assert counts()[-1] == 1000
    assert counts() == sorted(counts())
    assert len(counts()) <= 5
    for record in agent.records(**facts):
        assert_target(agent, record, target)


def test_two_kinds_of_access_do_not_fold_into_each_other(agent, trigger, target):
    for _ in range(3):
        for name, args in (("read_memory", [1]), ("write_memory", [])):
            ran = trigger(name, target.pid, *args)
            assert len(accesses(agent, ran.pid)) == 1


def test_a_refusal_does_not_fold_into_a_success(agent, trigger, target):
    for who, outcome in (({}, "success"), (OTHERS, "failure"), ({}, "success")):
        ran = trigger("read_memory", target.pid, 1, **who)
        [record] = accesses(agent, ran.pid)
        assert record["event.outcome"] == outcome
