"""Programs that change what they look like, and what is found of them afterwards.

In: programs that overwrite, move and lock away their arguments, take other names, and
do away with their executables. Out: the findings about them, as the kernel and /proc
let them be seen. No probe is needed: what was executed is known here.
"""

import contextlib
import json
import os
import shutil
import subprocess  # noqa: TID251 - the tests run the programs they are about
from pathlib import Path

import pytest

from agent.process.drift import Born, File, Kind, Weight, judge
from agent.process.look import InstalledPrograms, kernel_threads, look
from tests.kernel.conftest import PATIENCE_S, until


def file_at(path):
    """Its numbers, on a file system that makes up none of its own."""
    status = Path(path).stat()
    return File(status.st_ino, os.major(status.st_dev) << 20 | os.minor(status.st_dev))


class Subject:
    """A running program: how it was executed, and what is found of it now."""

    def __init__(self, argv, file, process):
        raw = b"".join(os.fsencode(one) + b"\0" for one in argv)
        comm = os.fsencode(Path(argv[0]).name)[:15]
        self.born = Born(os.fsencode(argv[0]), raw, len(raw), comm, file)
        self.facts = json.loads(process.stderr.readline())
        self.pid = process.pid

    def now(self):
        now = look(self.pid, PATIENCE_S)
        assert now is not None
        assert now.unanswered == ()
        return now

    def findings(self):
        programs = InstalledPrograms(Path(f"/proc/{self.pid}"), PATIENCE_S)
        return judge(self.born, self.now(), programs, kernel_threads())

    def kinds(self):
        return [one.kind for one in self.findings()]

    def is_alarm(self):
        return any(one.weight is Weight.ALARM for one in self.findings())


@pytest.fixture
def running(trigger, place):
    """Starts a copy of a trigger; it has done its deed, and ends after the test."""
    with contextlib.ExitStack() as ended:

        def start(program, *args, name="subject"):
            path = shutil.copy(trigger.path(program), place / name)
            argv, file = [str(path), *map(str, args)], file_at(path)
            process = subprocess.Popen(
                argv, stdin=subprocess.PIPE, stderr=subprocess.PIPE
            )
            ended.callback(process.communicate, timeout=PATIENCE_S)
            return Subject(argv, file, process)

        yield start


def test_a_program_that_stays_what_it_is_is_unchanged(running):
    subject = running("rename_self", "subject")
    assert subject.kinds() == [Kind.UNCHANGED]
    assert subject.now().cmdline == subject.born.argv
    assert subject.now().file == subject.born.file


def test_the_title_of_a_server_is_a_title(running):
    subject = running("retitle", "postgres: writer process", name="postgres")
    assert subject.kinds() == [Kind.RETITLED]
    assert subject.now().cmdline.startswith(b"postgres: writer process")


@pytest.mark.parametrize("program", ["retitle", "move_args"])
@pytest.mark.parametrize("title", ["sh -c true", "/bin/sh", "-sh"])
def test_the_title_of_another_program_is_a_disguise(running, program, title):
    subject = running(program, title)
    assert subject.kinds() == [Kind.DISGUISED_ARGV]
    assert subject.findings()[0].now.startswith(title.encode())


@pytest.mark.parametrize("program", ["retitle", "move_args"])
def test_the_title_of_a_kernel_thread_is_a_disguise(running, program):
    assert running(program, "[kworker/0:1]").kinds() == [Kind.KERNEL_THREAD_LOOKALIKE]


def test_a_command_line_that_was_erased_is_an_alarm(running):
    subject = running("retitle")
    assert subject.kinds() == [Kind.ARGV_ERASED]
    assert subject.is_alarm()


def test_a_command_line_that_no_memory_is_behind_is_an_alarm(running):
    """The kernel reads nothing there, so ps shows what it shows of a kernel thread."""
    subject = running("move_args")
    if subject.facts["errno"]:
        pytest.skip(f"userfaultfd: {os.strerror(subject.facts['errno'])}")
    assert subject.now().cmdline_bytes == 100
    assert subject.kinds() == [Kind.ARGV_ERASED]


def test_the_name_of_a_kernel_thread_is_a_disguise(running):
    if not kernel_threads():
        pytest.skip("kernel threads are not shown here")
    subject = running("rename_self", "kworker/0:1")
    assert subject.kinds() == [Kind.KERNEL_THREAD_LOOKALIKE]


def test_the_name_of_another_program_is_a_disguise(running):
    assert running("rename_self", "sh").kinds() == [Kind.COMM_DISGUISED]


def test_a_name_that_is_no_program_s_is_a_title(running):
    assert running("rename_self", "pt_main_thread").kinds() == [Kind.RETITLED]


def test_an_executable_that_was_deleted_is_told(running):
    subject = running("replace_self")
    assert subject.kinds() == [Kind.EXE_DELETED]
    now = subject.now()
    assert (now.executable, now.file) == (subject.born.executable, subject.born.file)
    assert not subject.is_alarm()


def test_an_executable_that_was_replaced_is_told(running, place):
    other = place / "other"
    other.write_bytes(b"#!/bin/sh\n")
    expected = file_at(other)
    subject = running("replace_self", other)
    assert subject.kinds() == [Kind.EXE_REPLACED]
    assert subject.now().at_path == expected
    assert not subject.is_alarm()


def test_an_executable_that_was_moved_is_told(running, place):
    subject = running("replace_self", "away", place / "elsewhere (deleted)")
    assert subject.kinds() == [Kind.EXE_MOVED]
    assert subject.now().executable == os.fsencode(place / "elsewhere (deleted)")


def test_a_program_in_memory_is_told(trigger):
    argv = [trigger.path("exec_memfd"), trigger.path("ask_when_told"), "name"]
    with trigger.hold(argv) as held:
        until(lambda: held.proc("cmdline") == b"name\0", "the program in memory")
        now = look(held.pid, PATIENCE_S)
    assert now is not None
    assert (now.executable, now.deleted) == (b"/memfd:name", True)
    born = Born(b"memfd:name", b"name\0", 5, now.comm, now.file, memfd=True)
    assert [one.kind for one in judge(born, now, lambda _: None, frozenset())] == [
        Kind.MEMFD
    ]


def test_the_other_threads_speak_for_one_whose_first_thread_has_ended(running):
    subject = running("outlive_leader", "a")
    assert Path(f"/proc/{subject.pid}/cmdline").read_bytes() == b""
    assert subject.kinds() == [Kind.UNCHANGED]
    now = subject.now()
    assert (now.cmdline, now.has_memory) == (subject.born.argv, True)
    assert (now.executable, now.file) == (subject.born.executable, subject.born.file)


def test_one_that_locks_its_memory_can_t_keep_us_waiting(running, place):
    """Whoever reads its command line, ps too, waits until the file system answers."""
    (place / "silent").touch()
    subject = running("hold_memory", place / "silent")
    if subject.facts["errno"]:
        pytest.skip(f"FUSE: {os.strerror(subject.facts['errno'])}")
    pid = subject.facts["target"]

    def silent():
        now = look(pid, 0.2)
        return now if now and now.cmdline is None else None

    now = until(silent, f"the memory of {pid} to be locked")
    assert now.has_memory
    assert now.unanswered[0] == "cmdline"
    told = judge(subject.born, now, lambda _: None, frozenset())
    assert {one.kind for one in told} == {Kind.UNREADABLE}


def test_one_that_locks_its_memory_can_t_keep_an_agent_from_starting(
    running, place, agent_factory
):
    (place / "silent").touch()
    subject = running("hold_memory", place / "silent")
    if subject.facts["errno"]:
        pytest.skip(f"FUSE: {os.strerror(subject.facts['errno'])}")
    pid = subject.facts["target"]
    until(lambda: (now := look(pid, 0.2)) and now.cmdline is None, "a locked memory")
    agent = agent_factory()
    agent.start()
    agent.fence()
