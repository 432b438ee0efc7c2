"""The daemon as an operator meets it: small, patient with a full disk, and alone.

In: real daemons with storms, small disks and wrong commands. Out: what their records,
their exit status and /proc say. No time is measured here; bench/ does that.
"""

import contextlib
import json
import os
import subprocess  # noqa: TID251 - the tests run the programs they are about
from pathlib import Path

import pytest

pytestmark = pytest.mark.kernel

EXECS = 100_000
MEMORY_KIB = 60 * 1024
DISK_BYTES = 6 << 20


def status_kib(pid: int, key: str) -> int:
    """One of the sizes in /proc/PID/status."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1])
    raise AssertionError(f"no {key} in /proc/{pid}/status")


@pytest.mark.slow
def test_the_daemon_stays_small_after_a_hundred_thousand_processes(
    agent_factory, trigger
):
    agent = agent_factory().start()
    trigger.run(
        [trigger.path("storm"), "--execs", str(EXECS), trigger.path("true")],
    )
    agent.fence()
    tally = agent.tally()
    assert tally.counts["exec"] + tally.lost["exec"] >= EXECS
    assert status_kib(agent.pid, "VmHWM") <= MEMORY_KIB
    beat = agent.wait(2, action="heartbeat")[-1]
    assert beat["ir.heartbeat.processes"] < EXECS // 4
    assert agent.stop() == 0


def test_the_daemon_has_neither_bcc_nor_llvm_in_its_memory(agent):
    maps = Path(f"/proc/{agent.pid}/maps").read_text().lower()
    assert "libbpf" in maps
    assert "libbcc" not in maps
    assert "llvm" not in maps


@pytest.fixture
def small_disk(tmp_path):
    """A folder that holds six megabytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "ir-test", folder]
    subprocess.run(mount, check=True)
    try:
        yield folder
    finally:
        # whoever still holds a file there: the folder goes when they let go
        subprocess.run(["umount", "--lazy", folder], check=True)


def fill(path):
    """Write until the disk takes no more."""
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4096)):
            pass
    assert os.statvfs(path).f_bavail == 0


def test_a_full_disk_loses_nothing_that_is_not_reported(
    agent_factory, trigger, small_disk
):
    agent = agent_factory()
    agent.use_state(small_disk / "state")
    agent.start()
    full = small_disk / "full"
    fill(full)
    trigger("exec_many", trigger.path("true"), 300)
    agent.wait_for_log("records_not_written")
    full.unlink()
    agent.fence()
    beats = agent.wait(2, action="heartbeat")
    assert beats[-1]["ir.heartbeat.write_errors"] > 0
    executed = [
        record
        for record in agent.records(action="exec")
        if record["process.executable"] == trigger.path("true")
    ]
    assert len(executed) + agent.tally().lost["exec"] == 300
    assert agent.tally().lost == {}
    assert agent.stop() == 0
    agent.verify()


def test_status_tells_of_every_hook_and_notices_a_link_that_is_gone(
    agent_factory,
):
    agent = agent_factory()
    assert agent.command("load").returncode == 0
    told = agent.command("status", "--json")
    hooks = json.loads(told.stdout)["hooks"]
    assert told.returncode == 0
    assert all(hook["proven"] for hook in hooks if hook["attached"])
    [gone] = (agent.pins / "links").glob("on_exit__*")
    gone.unlink()
    told = agent.command("status")
    assert told.returncode == 1
    lines = [line for line in told.stdout.splitlines() if "its link is gone" in line]
    assert len(lines) == 1
    assert lines[0].startswith("exit: ")


def test_unload_of_nothing_is_no_error_and_status_of_nothing_is_one(agent_factory):
    agent = agent_factory()
    assert agent.command("unload").returncode == 0
    told = agent.command("status")
    assert told.returncode == 2
    assert "not loaded" in told.stdout


def test_an_ordinary_user_is_told_that_it_takes_root(agent_factory):
    agent = agent_factory()
    done = subprocess.run(
        agent.argv("run"),
        user=65534,
        group=65534,
        extra_groups=[],
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
    )
    assert done.returncode == 77
    assert "root" in done.stderr


def test_the_daemon_ends_by_itself_when_it_was_told_for_how_long(agent_factory):
    agent = agent_factory("--for", "1")
    agent.start()
    assert agent.process.wait(30) == 0
    agent.process = None
    assert agent.records(action="agent-stop")
    agent.verify()
    assert list((agent.pins / "links").iterdir())
