"""What an attacker or a careless operator does to the agent, and what must come of it.

In: programs in folders too deep to name, opens by every call, commands at the wrong
moment, pins of another version. Out: a record, a flag or a refusal; never silence, and
never a file that is not ours removed.
"""

import contextlib
import os
import shutil
import signal
import subprocess  # noqa: TID251 - the tests run the programs they are about
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.kernel

ROOT = Path(__file__).parents[2]


@pytest.fixture
def deep(place, trigger):
    """Folders of 255 letters inside each other, and a program in the deepest."""

    @contextlib.contextmanager
    def make(depth):
        home = os.open(".", os.O_RDONLY)
        os.chdir(place)
        try:
            for _ in range(depth):
                Path("d" * 255).mkdir()
                os.chdir("d" * 255)
            shutil.copy(trigger.path("exit_with"), "program")
            yield
        finally:
            os.fchdir(home)
            os.close(home)

    return make


@pytest.mark.parametrize("depth", [10, 30, 41, 60])
def test_a_program_is_recorded_however_deep_it_lies(agent, trigger, deep, depth):
    with deep(depth):
        ran = trigger.run(["./program", "0"])
    record = agent.one(action="exec", pid=ran.pid)
    record.assert_argv([b"./program", b"0"])
    assert record["process.executable"].endswith("/program")
    flags = record.get("ir.kernel.flags", [])
    whole = record["process.executable"].startswith("/")
    assert whole is ("exe_cut" not in flags)
    assert whole is (depth == 10)


def test_an_open_of_memory_with_creat_is_recorded(agent, trigger):
    creat = 85
    if os.uname().machine != "x86_64":
        pytest.skip("no creat(2) on this architecture")
    with trigger.hold([trigger.path("report")]) as held:
        code = (
            "import ctypes,sys;"
            f"sys.exit(ctypes.CDLL(None).syscall({creat},b'/proc/{held.pid}/mem',0)<0)"
        )
        ran = trigger.run([sys.executable, "-c", code])
        record = agent.one(action="mem-open", pid=ran.pid)
    assert record["ir.target.pid"] == held.pid


def test_an_open_for_writing_is_no_repeat_of_one_for_reading(agent, trigger):
    with trigger.hold([trigger.path("report")]) as held:
        code = (
            f"import os;p='/proc/{held.pid}/mem';"
            "os.open(p,os.O_RDONLY);os.open(p,os.O_RDWR);os.open(p,os.O_RDWR)"
        )
        ran = trigger.run([sys.executable, "-c", code])
        agent.fence()
        seen = agent.records(action="mem-open", pid=ran.pid)
    modes = {record["ir.access.detail"] & os.O_ACCMODE for record in seen}
    assert modes == {os.O_RDONLY, os.O_RDWR}


@pytest.mark.parametrize("command", ["load", "unload"])
def test_pins_that_a_daemon_reads_are_neither_replaced_nor_removed(
    agent, trigger, command
):
    done = agent.command(command)
    assert done.returncode == 2
    assert "reading these pins" in done.stderr
    ran = trigger("exit_with", 7, expect=7)
    assert agent.one(action="exit", pid=ran.pid)["process.exit_code"] == 7


def test_unload_leaves_a_folder_alone_that_holds_no_pins(agent_factory, tmp_path):
    agent = agent_factory()
    victim = tmp_path / "victim"
    (victim / "maps").mkdir(parents=True)
    (victim / "maps" / "letter").write_text("dear")
    argv = [*agent.argv("unload")[:-1], str(victim)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 64
    assert (victim / "maps" / "letter").read_text() == "dear"


def test_a_package_in_the_current_folder_is_not_run(agent_factory, tmp_path):
    evil = tmp_path / "evil" / "agent"
    evil.mkdir(parents=True)
    proof = tmp_path / "proof"
    for name in ("__init__.py", "__main__.py"):
        (evil / name).write_text(f"open({str(proof)!r}, 'w')")
    agent = agent_factory("--for", "1")
    done = subprocess.run(
        [*agent.argv("run"), *agent.options],
        cwd=evil.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not proof.exists()


@pytest.fixture
def another_version(tmp_path):
    """The environment in which `agent` is a copy with other probes."""
    copy = tmp_path / "copy"
    for name in ("agent", "probes"):
        shutil.copytree(ROOT / name, copy / name)
    with (copy / "probes" / "calls.h").open("a") as source:
        source.write("/* another version */\n")
    return {**os.environ, "PYTHONPATH": str(copy)}


def test_an_upgrade_loses_nothing_and_counts_nothing_twice(
    agent_factory, trigger, another_version
):
    agent = agent_factory().start()
    assert agent.stop() == 0
    trigger("exec_many", trigger.path("true"), 300)
    argv = [trigger.path("exec_many"), trigger.path("true"), "3000"]
    with subprocess.Popen(argv) as busy:
        agent.start(env=another_version)
        assert busy.wait(120) == 0
    agent.fence()
    ended = [
        (record["process.entity_id"], record["event.action"])
        for record in agent.all()
        if record.get("process.executable") == trigger.path("true")
        and record["event.action"] in ("exec", "exit")
    ]
    assert len(ended) == len(set(ended)) == 2 * 3300
    assert agent.records(action="gap")[0]["ir.gap.cause"] == "probes replaced"
    assert agent.records(action="loss") == []
    assert agent.stop() == 0
    agent.verify()


def test_taking_over_pins_from_other_records_invents_no_loss(agent_factory, trigger):
    first = agent_factory().start()
    trigger("exec_many", trigger.path("true"), 200)
    first.fence()
    assert first.stop() == 0
    second = agent_factory()
    second.pins = first.pins
    for how in (signal.SIGKILL, signal.SIGTERM, signal.SIGTERM):
        second.start()
        trigger("exec_many", trigger.path("true"), 10)
        second.fence()
        second.stop(how)
    causes = [record["ir.gap.cause"] for record in second.records(action="gap")]
    assert causes == ["another run read these pins before"]
    assert second.records(action="loss") == []
    second.verify()


def test_a_daemon_whose_records_are_removed_ends_with_an_error(agent_factory):
    agent = agent_factory().start()
    shutil.rmtree(agent.state / "records")
    assert agent.process.wait(30) == 2
    agent.process = None


def test_a_view_that_nobody_reads_does_not_end_the_recording(agent_factory, trigger):
    agent = agent_factory("--show")
    reader, writer = os.pipe()
    os.close(reader)
    agent.start(stdout=writer)
    os.close(writer)
    ran = trigger("exit_with", 7, expect=7)
    assert agent.one(action="exit", pid=ran.pid)["process.exit_code"] == 7
    assert agent.stop() == 0


def test_a_path_too_long_for_the_kernel_is_flagged_as_cut(agent, trigger):
    code = "import os; os.execv('/' + 'x' * 5000, ['x'])"
    ran = trigger.run([sys.executable, "-c", code], expect=1)
    record = agent.one(action="exec-failed", pid=ran.pid)
    assert record["error.code"] == "ENAMETOOLONG"
    assert "name_cut" in record["ir.kernel.flags"]


def test_a_damaged_kept_object_is_compiled_anew(agent_factory):
    agent = agent_factory()
    assert agent.command("load").returncode == 0
    (kept,) = (agent.state / "probes").glob("*-typed.json")
    whole = kept.read_bytes()
    kept.write_bytes(whole.replace(b'"maps":{', b'"maps":{}, "x":{', 1))
    assert agent.command("load").returncode == 0
    assert kept.read_bytes() == whole
