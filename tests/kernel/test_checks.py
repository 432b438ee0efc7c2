"""What a responder is told of real processes, by the kernel and a real agent's records.

In: orphans, daemons, traced ones, pids that are used again, disguises, and asking
without root. Out: the documents of `ir-check`, held against what the programs told.
"""

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess  # noqa: TID251 - runs ir-check as a responder does
import sys
from pathlib import Path

import pytest

from tests.kernel.conftest import PATIENCE_S

pytestmark = pytest.mark.kernel

CHECK = str(Path(sys.executable).with_name("ir-check"))
SLEEP = ("/bin/sleep", "60")
NOBODY_UID = 65534


def command(agent, *words):
    """The command line of `ir-check WORDS` for the folders of an agent."""
    places = ["--state", agent.state, "--pins", agent.pins]
    if words[0] != "process":
        places += ["--runtime", agent.runtime]
    return [CHECK, *map(str, (*words, *places))]


def answer(agent, *words, under=(), **options):
    """Exit code and document of `ir-check WORDS --json`; its lines are harmless."""
    argv = [*under, *command(agent, *words)]
    done = subprocess.run(
        argv, capture_output=True, text=True, check=False, timeout=120, **options
    )
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert all(line.isprintable() for line in lines), lines
    told = subprocess.run(
        [*argv, "--json"],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        **options,
    )
    assert told.returncode == done.returncode
    return done.returncode, json.loads(told.stdout), lines


def about(agent, who, **options):
    """What is told of one process, when all that has happened is on disk."""
    agent.fence()
    code, document, lines = answer(agent, "process", who, **options)
    return code, document, "\n".join(lines)


def pids(people):
    return [one["pid"] for one in people]


@pytest.fixture
def daemon(trigger):
    """Starts programs whose parent ends at once; returns both pids, ends them after."""
    started = []

    def start(*argv):
        script = f"{shlex.join(argv)} >/dev/null 2>&1 </dev/null & echo $!"
        ran = trigger.run(["/bin/sh", "-c", script])
        started.append(os.pidfd_open(int(ran.stdout)))
        return ran.pid, int(ran.stdout)

    yield start
    for pidfd in started:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        os.close(pidfd)


SEIZE = """
import ctypes, sys
libc = ctypes.CDLL(None, use_errno=True)
failed = libc.ptrace(0x4206, int(sys.argv[1]), None, None)
print(ctypes.get_errno() if failed else 0, flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def tracing(pid):
    """Trace a process for as long as the block; gives the tracer's pid."""
    argv = [sys.executable, "-c", SEIZE, str(pid)]
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe) as tracer:
        assert tracer.stdout.readline() == b"0\n"
        yield tracer.pid
        tracer.communicate(timeout=PATIENCE_S)


# whose child


def test_a_child_is_consistent_by_the_kernel_with_its_creator_on_record(agent, trigger):
    with trigger.hold(["/bin/cat"]) as held:
        code, told, text = about(agent, held.pid)
        birth = agent.one(action="fork", pid=held.pid)
        program = agent.one(action="exec", pid=held.pid)
    assert (code, told["verdict"], told["verdict_source"]) == (
        0,
        "consistent",
        "kernel",
    )
    assert told["entity_id"] == program["process.entity_id"]
    numbers = {"birth": birth["event.sequence"], "program": program["event.sequence"]}
    assert told["records"] == numbers
    assert told["evidence"]["creator"]["pid"] == os.getpid()
    assert told["evidence"]["creator"]["source"] == f"record {numbers['birth']}"
    assert told["evidence"]["real_parent"]["source"] == "kernel"
    assert told["kernel"]["real_parent"] == told["proc"]["ppid"] == os.getpid()
    assert [one["kind"] for one in told["looks"]] == ["unchanged"]
    assert told["lineage_end"] == "root"
    assert (told["touched_by"], told["notes"], told["alerts"]) == ([], [], [])
    assert "no access to it is on record" in text


def test_a_daemon_has_its_creator_who_ended_and_who_reaps_it(agent, daemon):
    middle, last = daemon(*SLEEP)
    code, told, text = about(agent, last)
    end = agent.one(action="exit", pid=middle)
    assert (code, told["verdict"]) == (0, "reparented")
    evidence = told["evidence"]
    assert evidence["creator"]["pid"] == evidence["birth_parent"]["pid"] == middle
    assert evidence["exited"]["pid"] == middle
    assert evidence["exited"]["ended"] == end["@timestamp"]
    assert evidence["exited"]["source"] == f"record {end['event.sequence']}"
    assert evidence["real_parent"]["pid"] == told["kernel"]["real_parent"]
    assert told["kernel"]["real_parent"] == told["proc"]["ppid"] != middle
    assert pids(told["lineage"])[:2] == [middle, os.getpid()]
    assert re.search(rf"orphaned by +sh\[{middle}\], ended {end['@timestamp']}", text)


def test_a_traced_one_has_its_tracer_by_kernel_by_proc_and_by_record(agent, trigger):
    with trigger.hold(["/bin/cat"]) as held, tracing(held.pid) as tracer:
        code, told, text = about(agent, held.pid)
        audit, checks, lines = answer(agent, "host", "--only", "parentage")
    seize = agent.one(action="ptrace-seize", pid=tracer)
    assert (code, told["verdict"], told["verdict_source"]) == (1, "traced", "kernel")
    assert told["evidence"]["tracer"]["pid"] == tracer
    assert told["evidence"]["tracer"]["source"] == "kernel"
    assert told["kernel"]["parent"] == told["proc"]["tracer"] == tracer
    assert told["kernel"]["real_parent"] == told["proc"]["ppid"] == os.getpid()
    [touch] = told["touched_by"]
    assert (touch["pid"], touch["action"], touch["count"]) == (
        tracer,
        "ptrace-seize",
        1,
    )
    assert touch["record"] == seize["event.sequence"]
    assert f"traced by {tracer}" in text
    # and the audit of the node names both
    assert audit == 1
    [traced] = [
        one for one in checks["parentage"]["now"]["traced"] if one["pid"] == held.pid
    ]
    assert traced["name"] == "cat"
    assert traced["tracer"]["pid"] == tracer
    assert any(f"traced: cat[{held.pid}] by " in line for line in lines)


NEST = """
import os, sys
told = os.dup(2)
for _ in range(int(sys.argv[1]) - 1):
    child = os.fork()
    if child:
        os.close(0)
        os.waitpid(child, 0)
        os._exit(0)
os.write(told, b'{"last": %d}\\n' % os.getpid())
sys.stdin.read()
"""


def test_forty_generations_are_all_there(agent, trigger):
    with trigger.hold([sys.executable, "-c", NEST, "40"], told=True) as held:
        _, told, text = about(agent, held.facts["last"])
    chain = pids(told["lineage"])
    assert chain[38] == held.pid
    assert (chain[-1], told["lineage_end"]) == (1, "root")
    assert len(set(chain)) == len(chain)
    assert all(f"[{pid}]" in text for pid in chain)


# who it was


def test_a_dead_one_is_told_by_its_records(agent, trigger):
    words = ["\x1b]0;evil\x07", b"a\nb", b"\xff\xfe", ""]
    ran = trigger.run(["/bin/sh", "-c", "exit 7", *words], expect=7)
    code, told, text = about(agent, ran.pid)
    program = agent.one(action="exec", pid=ran.pid)
    end = agent.one(action="exit", pid=ran.pid)
    assert (code, told["lives"], told["exit_code"]) == (0, False, 7)
    assert told["args"] == program["process.args"]
    assert told["ended"] == end["process.end"]
    assert told["verdict_source"] == f"record {program['event.sequence']}"
    assert (told["kernel"], told["proc"], told["looks"]) == (None, None, [])
    assert told["entity_id"] == program["process.entity_id"]
    assert r"'\x1b]0;evil\x07'" in text
    by_entity = about(agent, told["entity_id"])[1]
    assert by_entity | {"asked": ""} == told | {"asked": ""}


TAKE_PID = """
import ctypes, os, struct, sys
pid = ctypes.c_int(int(sys.argv[1]))
args = struct.pack("QQQQQQQQQQ", 0, 0, 0, 0, 17, 0, 0, 0, ctypes.addressof(pid), 1)
libc = ctypes.CDLL(None, use_errno=True)
child = libc.syscall(435, args, len(args))
if not child:
    sys.stdin.read()
    os._exit(0)
os.write(2, b'{"pid": %d}\\n' % child)
os.close(0)
os.waitpid(child, 0)
"""


def test_the_other_who_has_its_pid_now_is_named(agent, trigger):
    ran = trigger("exit_with", 0)
    first = agent.one(action="fork", pid=ran.pid)["process.entity_id"]
    argv = [sys.executable, "-c", TAKE_PID, str(ran.pid)]
    with trigger.hold(argv, told=True) as held:
        assert held.facts["pid"] == ran.pid
        code, told, text = about(agent, first)
        second = about(agent, ran.pid)[1]
    assert (code, told["verdict"]) == (3, "stale_pid")
    assert told["pid_is_now"]["entity_id"] == second["entity_id"] != first
    assert told["pid_is_now"]["name"] == second["name"]
    assert told["executable"] == trigger.path("exit_with")
    assert f"another's: {second['name']}[{ran.pid}]" in text


def test_one_from_before_the_agent_is_told_by_the_kernel(agent_factory, trigger):
    agent = agent_factory()
    with trigger.hold(["/bin/cat"]) as held:
        agent.start()
        code, told, text = about(agent, held.pid)
    assert (code, told["verdict"]) == (3, "unknown_before_start")
    assert (told["args"], told["program_source"]) == (["/bin/cat"], "/proc")
    assert told["evidence"].keys() == {"real_parent"}
    assert (told["records"], told["looks"]) == ({}, [])
    assert told["lineage_end"] == "root"
    assert "its birth was not seen" in text


def test_a_command_line_that_was_overwritten_is_told_with_what_it_is_now(
    agent, trigger, place
):
    path = shutil.copy(trigger.path("retitle"), place / "miner")
    with trigger.hold([str(path), "sh -c true"], told=True) as held:
        code, told, text = about(agent, held.pid)
    assert code == 1
    [found] = told["looks"]
    assert (found["kind"], found["weight"]) == ("disguised_argv", "alarm")
    assert told["args"] == [str(path), "sh -c true"]
    assert "ALARM       disguised_argv: " in text
    assert "now 'sh -c true'" in text


@pytest.mark.parametrize("comm", ["\x1b]0;evil", "a\nb", "kworker/0:1"])
def test_a_name_that_it_gave_itself_is_printed_harmlessly(agent, trigger, comm):
    with trigger.hold([trigger.path("rename_self"), comm], told=True) as held:
        _, told, _ = about(agent, held.pid)
        shown = held.proc("comm")
    assert told["name"].encode() == shown.removesuffix(b"\n")
    assert told["looks"][0]["now"] == told["name"]


def test_accesses_are_counted_over_two_runs_of_the_agent(agent_factory, trigger):
    agent = agent_factory().start()
    with trigger.hold(["/bin/cat"]) as held:
        trigger("read_memory", held.pid, 100)
        agent.wait(2, action="process-vm-read", target=held.pid)
        trigger("attach", held.pid)
        agent.stop()
        trigger("read_memory", held.pid, 50)
        agent.start()
        agent.wait(4, action="process-vm-read", target=held.pid)
        _, told, text = about(agent, held.pid)
    found = [(one["action"], one["count"]) for one in told["touched_by"]]
    assert found == [
        *(("process-vm-read", 100), ("ptrace-attach", 1), ("process-vm-read", 50)),
    ]
    assert "process-vm-read: success, 100 times, from " in text


# how far it can be told


@pytest.fixture
def as_nobody():
    """How to run a program as somebody who may do nothing."""
    options = {"user": NOBODY_UID, "group": NOBODY_UID, "extra_groups": []}
    try:
        done = subprocess.run(
            [CHECK, "--help"], capture_output=True, check=False, **options
        )
    except PermissionError:
        pytest.skip("nobody may not run this interpreter")
    if done.returncode:
        pytest.skip("nobody may not read the agent")
    return options


def test_without_root_proc_tells_and_what_was_not_asked_is_said(
    agent, trigger, as_nobody
):
    with trigger.hold(["/bin/cat", "-"]) as held:
        code, told, text = about(agent, held.pid, **as_nobody)
        audit, checks, lines = answer(agent, "host", **as_nobody)
    assert code == 3
    assert (told["name"], told["args"]) == ("cat", ["/bin/cat", "-"])
    assert told["verdict_source"] == "/proc"
    assert pids(told["lineage"])[:2] == [os.getpid(), os.getppid()]
    assert "the kernel was not asked: that takes root" in text
    assert "Permission denied" in text
    assert audit in (1, 3)
    assert checks.keys() == {"probes", "parentage", "hidden"}
    assert checks["parentage"]["now"]["source"] == "/proc"
    assert "Permission denied" in checks["parentage"]["agent"]["note"]
    assert "hidden: only root may read the kernel's own lists" in lines


def test_without_probes_the_records_and_proc_tell(agent_factory, trigger):
    agent = agent_factory().start()
    with trigger.hold(["/bin/cat"]) as held:
        entity = agent.one(action="exec", pid=held.pid)["process.entity_id"]
        agent.stop()
        agent.unload()
        code, told, _ = answer(agent, "process", held.pid)
        audit, checks, lines = answer(agent, "host", "--only", "parentage,hidden")
    assert (code, told["verdict"], told["verdict_source"]) == (3, "consistent", "/proc")
    assert told["entity_id"] == entity
    assert told["entity_is_exact"]
    assert [one["kind"] for one in told["looks"]] == ["unchanged"]
    assert "no probes" in told["notes"][0]
    traced = checks["parentage"]["now"]["traced"]
    assert audit == (1 if traced else 3)
    assert any("no probes are loaded" in line for line in lines)
    assert checks["hidden"]["processes"] == 0
    assert "  not looked at: task list, no probes here give it" in lines


# the audit of the node


def test_a_quiet_machine_has_nobody_hidden_and_its_parents(sweeping):
    agent = sweeping().start()
    agent.wait(2, action="heartbeat")
    code, checks, lines = answer(agent, "host", "--only", "parentage,hidden")
    hidden, parentage = checks["hidden"], checks["parentage"]
    traced = parentage["now"]["traced"]  # whoever else is at work here
    assert (hidden["hidden"], parentage["now"]["forged"]) == ([], [])
    assert code == (1 if traced or hidden["doubts"] else 0)
    assert hidden["processes"] >= 10
    assert hidden["views"] == dict.fromkeys(
        ("task list", "task chain", "scheduler"), True
    )
    beat = agent.records(action="heartbeat")[-1]
    assert parentage["agent"]["at"] <= beat["@timestamp"]
    assert parentage["agent"]["births_unseen"] == 0
    assert parentage["agent"]["forged"] == []
    assert any(line.startswith("  births, by the agent at ") for line in lines)


def test_a_deep_look_shows_how_far_it_is_on_a_terminal_and_finds_nobody(agent):
    argv = [*command(agent, "host", "--only", "hidden"), "--deep", "--json"]
    ours, theirs = os.openpty()
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=theirs) as looking:
        os.close(theirs)
        shown = b"".join(iter(lambda: of_terminal(ours), b""))
        told = json.loads(looking.communicate(timeout=PATIENCE_S)[0])
    os.close(ours)
    assert (told["hidden"]["hidden"], told["hidden"]["deep"]) == ([], True)
    assert looking.returncode == (1 if told["hidden"]["doubts"] else 0)
    assert shown.count(b"[####") > 100
    assert b"[" + b"#" * 40 + b"] 4,194,303 of 4,194,303 pids" in shown
    piped = subprocess.run(argv, capture_output=True, check=False, timeout=PATIENCE_S)
    assert piped.stderr == b""


def of_terminal(fd):
    """What is there to be read; nothing when the other side is closed."""
    try:
        return os.read(fd, 65536)
    except OSError:
        return b""


def test_a_covered_process_is_hidden_and_a_covered_file_a_doubt(agent, trigger):
    with trigger.hold(["/bin/cat"]) as held:
        script = f'mount -t tmpfs none /proc/{held.pid} && exec "$@"'
        under = ["unshare", "-m", "/bin/sh", "-c", script, "sh"]
        code, checks, lines = answer(agent, "host", "--only", "hidden", under=under)
        _, told, _ = answer(agent, "process", held.pid, under=under)
        script = f'mount --bind /dev/null /proc/{held.pid}/maps && exec "$@"'
        below = ["unshare", "-m", "/bin/sh", "-c", script, "sh"]
        fewer, doubted, _ = answer(agent, "host", "--only", "hidden", under=below)
        file, _, _ = answer(agent, "process", held.pid, under=below)
    assert (fewer, doubted["hidden"]["hidden"], file) == (1, [], 1)
    [hidden] = checks["hidden"]["hidden"]
    assert (code, hidden["pid"], hidden["kind"]) == (2, held.pid, "hidden_from_proc")
    doubts = checks["hidden"]["doubts"]
    assert "covered" in [one["kind"] for one in doubts]
    assert any(f"/proc/{held.pid}" in one["text"] for one in doubts)
    assert any(line.startswith("  doubt: ") for line in lines)
    assert told["verdict"] == "hidden_from_proc"
