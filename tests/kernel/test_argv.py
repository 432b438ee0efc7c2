"""argv is evidence: what a program was given is what its record says, byte for byte.

In: programs that report their own /proc/self/cmdline, the kernel's word. Out: a
comparison with the `exec` record of the same process. Nothing here may pass because
a record is missing: each test asks for exactly one.
"""

import ctypes
import os
import shutil
from pathlib import Path

import pytest

pytestmark = pytest.mark.kernel


@pytest.fixture
def record_of(agent, trigger):
    """Runs `report` with `argv`; its record, which has to agree with its own report."""

    def run(argv, **options):
        options.setdefault("executable", trigger.path("report"))
        ran = trigger.run(argv, **options)
        record = agent.one(action="exec", pid=ran.pid, executable=options["executable"])
        record.assert_argv(ran.reported)
        assert record.argv == [os.fsencode(argument) for argument in argv]
        return record

    return run


def numbered(count):
    return [f"argument-{number}" for number in range(count)]


@pytest.mark.parametrize("count", [1, 2, 19, 20, 21, 25, 60, 128, 129, 1000])
def test_every_argument_is_kept_whatever_their_number(record_of, count):
    record_of(numbered(count))


def test_exactly_twenty_arguments_carry_no_mark_of_truncation(record_of):
    record = record_of(numbered(20))
    assert record["process.args"] == numbered(20)
    assert "..." not in record["process.command_line"]


@pytest.mark.parametrize("size", [127, 128, 300, 4095, 4096, 6_000, 10_240, 120 * 1024])
def test_one_long_argument_is_kept_whole_and_in_one_piece(record_of, size):
    long = "".join(chr(ord("a") + position % 26) for position in range(size))
    assert record_of(["report", long, "after"])["process.args"][1] == long


@pytest.mark.parametrize("size", [4_096, 4_097, 28_672, 28_673])
def test_an_argv_that_ends_where_a_part_of_it_ends_is_kept_whole(record_of, size):
    record_of(["report", "x" * (size - len("report") - 2)])


def test_a_mebibyte_of_arguments_is_kept_whole(record_of):
    large = [f"{number:04}" + "x" * 65_531 for number in range(16)]
    assert sum(len(argument) + 1 for argument in large) == 1 << 20
    record_of(large)


def test_seventy_thousand_arguments_are_counted_and_kept(record_of):
    assert record_of(["report", *["a"] * 69_999])["ir.argv.count"] == 70_000


@pytest.mark.parametrize(
    "argv",
    [
        ["report", "", "real-argument"],
        ["report", "a", "", "b"],
        ["report", "a", ""],
        ["report", "", "", ""],
        ["", ""],
    ],
)
def test_an_empty_argument_is_an_argument(record_of, argv):
    assert record_of(argv)["process.args"] == argv


def test_a_trailing_empty_argument_of_echo_is_kept(agent, trigger):
    ran = trigger.run(["/bin/echo", "a", ""])
    record = agent.one(action="exec", pid=ran.pid)
    record.assert_argv([b"/bin/echo", b"a", b""])


def test_arguments_with_spaces_are_told_apart(record_of):
    first = record_of(["report", "a b", "c"])
    second = record_of(["report", "a", "b c"])
    assert first["process.args"] != second["process.args"]
    assert first["ir.argv.sha256"] != second["ir.argv.sha256"]


@pytest.mark.parametrize(
    "text",
    ["two\nlines", "\x1b[2J\x1b]0;title\x07", "tab\tquote\"'\\", "ünï-çødé-火", "\x7f"],
)
def test_text_that_breaks_terminals_and_lines_is_kept_as_it_is(record_of, text):
    record = record_of(["report", text])
    assert record["process.args"] == ["report", text]
    assert record.get("ir.argv.raw_base64") is None


@pytest.mark.parametrize(
    "raw",
    [b"\xff\xfe", b"half \xc3", b"\xed\xa0\x80", b"\xf5\x80\x80\x80", b"\xc0\xaf"],
)
def test_bytes_that_are_not_utf8_are_kept_beside_the_text(record_of, raw):
    record = record_of([b"report", raw, b"plain"])
    assert len(record["process.args"]) == 3
    assert record["process.args"][2] == "plain"
    assert len(record["ir.argv.raw_base64"]) == 3


def test_a_character_that_lies_across_two_parts_is_one_character(record_of):
    for size in range(4_080, 4_090):
        record = record_of(["report", "x" * size + "火"])
        assert record.get("ir.argv.raw_base64") is None


def test_no_argument_at_all_is_the_one_empty_argument_of_the_kernel(agent, trigger):
    ran = trigger("exec_without_args", trigger.path("report"))
    record = agent.one(action="exec", pid=ran.pid, executable=trigger.path("report"))
    assert ran.reported == [b""]
    record.assert_argv([b""])


def test_arguments_of_execl_are_kept(agent, trigger):
    ran = trigger("exec_by_list", trigger.path("report"))
    record = agent.one(action="exec", pid=ran.pid, executable=trigger.path("report"))
    record.assert_argv([b"ls", b"-l"])


def test_a_held_program_has_the_cmdline_that_its_record_says(agent, trigger):
    argv = ["held", "", "a b", "\n", "z" * 5_000]
    with trigger.hold(argv, executable=trigger.path("report")) as held:
        cmdline = held.proc("cmdline")
        record = agent.one(action="exec", pid=held.pid)
    record.assert_argv(cmdline.split(b"\0")[:-1])


def test_a_long_program_name_is_cut_in_comm_only(agent, trigger, place):
    program = place / "a-program-name-of-30-characters"[:30]
    os.link(trigger.path("report"), program)
    with trigger.hold([str(program), "get"]) as held:
        record = agent.one(action="exec", pid=held.pid)
        comm = held.proc("comm").decode().strip()
    record.assert_argv([os.fsencode(program), b"get"])
    assert record["process.name"] == comm == program.name[:15]
    assert record["process.executable"] == str(program)


def test_an_executable_path_of_200_characters_is_kept(agent, trigger, place):
    folder = place / ("d" * 100)
    folder.mkdir()
    program = folder / ("p" * (199 - len(str(folder))))
    os.link(trigger.path("report"), program)
    assert len(str(program)) == 200
    ran = trigger.run([str(program)])
    record = agent.one(action="exec", pid=ran.pid)
    assert record["process.executable"] == record["ir.exec.path"] == str(program)


def test_an_executable_forty_folders_deep_is_named_or_said_to_be_cut(
    agent, trigger, place
):
    program = place.joinpath(*(f"folder{number}" for number in range(40)), "deep")
    program.parent.mkdir(parents=True)
    os.link(trigger.path("report"), program)
    ran = trigger.run([str(program)])
    record = agent.one(action="exec", pid=ran.pid)
    assert record["process.executable"] == record["ir.exec.path"] == str(program)


def test_a_relative_path_gives_an_absolute_executable_and_the_folder(
    agent, trigger, place
):
    os.link(trigger.path("report"), place / "x")
    ran = trigger.run(["/bin/sh", "-c", f"cd {place} && exec ./x"])
    record = agent.one(action="exec", pid=ran.pid, executable=str(place / "x"))
    record.assert_argv([b"./x"])
    assert record["ir.exec.path"] == "./x"
    assert record["process.working_directory"] == str(place)


def test_the_folder_is_right_for_a_program_without_arguments(agent, trigger, place):
    with trigger.hold([trigger.path("report")], cwd=place) as held:
        record = agent.one(action="exec", pid=held.pid)
        shown = Path(f"/proc/{held.pid}/cwd").readlink()
    assert record["process.working_directory"] == str(shown)
    assert record["process.working_directory"] == str(place)


def test_the_root_folder_is_a_slash(agent, trigger):
    ran = trigger.run([trigger.path("report")], cwd="/")
    record = agent.one(action="exec", pid=ran.pid)
    assert record["process.working_directory"] == "/"


@pytest.mark.parametrize("name", ["a b", "ü", "line\nbreak", "deleted (deleted)"])
def test_a_strange_executable_name_is_kept(agent, trigger, place, name):
    os.link(trigger.path("report"), place / name)
    ran = trigger.run([str(place / name)])
    record = agent.one(action="exec", pid=ran.pid)
    assert record["process.executable"] == str(place / name)
    assert record["ir.exe.deleted"] is False


def test_the_script_text_of_a_shell_is_kept(agent, trigger):
    script = ": " + " ".join(f"word{number}" for number in range(1_200)) + "; exit 0"
    ran = trigger.run(["/bin/bash", "-c", script, "name", "argument"])
    record = agent.one(action="exec", pid=ran.pid)
    record.assert_argv([b"/bin/bash", b"-c", script.encode(), b"name", b"argument"])


def test_argv_is_what_it_was_before_the_program_overwrote_it(agent, trigger):
    ran = trigger("overwrite_args", "secret", "word")
    assert ran.reported[1:] == [b"x" * 6, b"x" * 4]
    record = agent.one(action="exec", pid=ran.pid)
    argv = [os.fsencode(trigger.path("overwrite_args")), b"secret", b"word"]
    record.assert_argv(argv)


def test_another_thread_cannot_make_the_record_lie(agent, trigger):
    """Whatever of the rewritten argument the kernel copied is what is recorded."""
    torn = 0
    for _ in range(40):
        ran = trigger("exec_while_rewriting", trigger.path("report"))
        record = agent.one(
            action="exec", pid=ran.pid, executable=trigger.path("report")
        )
        record.assert_argv(ran.reported)
        torn += len(set(ran.reported[1])) == 2
    assert torn, "the other thread never wrote while the kernel copied"


def test_two_thousand_short_programs_all_have_their_argv(agent, trigger):
    trigger("exec_many", trigger.path("true"), 2000)
    records = agent.find(action="exec", executable=trigger.path("true"))
    expected = [[trigger.path("true"), str(number)] for number in range(2000)]
    assert [record["process.args"] for record in records] == expected


def test_only_the_chosen_environment_is_kept(agent, trigger):
    chosen = {
        "LD_PRELOAD": "",
        "LD_AUDIT": "",
        "LD_LIBRARY_PATH": "/nowhere",
        "RANK": "3",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "8",
        "MASTER_ADDR": "node-0",
        "MASTER_PORT": "29500",
        "TORCHELASTIC_RUN_ID": "run",
        "SLURM_JOB_ID": "4711",
        "PYTHONPATH": "/some/where",
        "CUDA_INJECTION64_PATH": "/lib.so",
    }
    others = {
        "SECRET": "s3cr3t",
        "LD_PRELOADED": "no",
        "RANKED": "no",
        "MASTER_ADDRESS": "no",
        "AWS_SECRET_ACCESS_KEY": "s3cr3t",
    }
    mixed = dict(sorted({**chosen, **others}.items()))
    ran = trigger.run([trigger.path("report")], env=mixed)
    record = agent.one(action="exec", pid=ran.pid)
    expected = {f"{name}={value}" for name, value in chosen.items()}
    assert set(record["process.env_vars"]) == expected
    assert "s3cr3t" not in str(record)


def test_a_chosen_variable_behind_an_empty_string_is_kept(agent, trigger):
    environment = (b"A=1", b"", b"LD_PRELOAD=/lib/x.so")
    program = trigger.path("report")
    pid = os.fork()
    if pid == 0:
        exec_with(program, environment)
    os.waitpid(pid, 0)
    record = agent.one(action="exec", pid=pid)
    assert record["process.env_vars"] == ["LD_PRELOAD=/lib/x.so"]


def exec_with(program, environment):
    """Execute with an environment that os.execve would not make."""
    libc = ctypes.CDLL(None)
    argv = (ctypes.c_char_p * 2)(os.fsencode(program), None)
    strings = (ctypes.c_char_p * (len(environment) + 1))(*environment, None)
    libc.execve(os.fsencode(program), argv, strings)
    os._exit(1)


def test_a_chosen_variable_behind_a_large_environment_is_kept(agent, trigger):
    large = {f"FILLER_{number}": "x" * 3_000 for number in range(100)}
    ran = trigger.run([trigger.path("report")], env={**large, "RANK": "5"})
    record = agent.one(action="exec", pid=ran.pid)
    assert record["process.env_vars"] == ["RANK=5"]


def test_a_value_that_looks_like_a_chosen_variable_is_not_one(agent, trigger):
    tricky = {"A": "x" * 1_022 + "RANK=9", "B": "RANK=8"}
    ran = trigger.run([trigger.path("report")], env=tricky)
    record = agent.one(action="exec", pid=ran.pid)
    assert not record.get("process.env_vars")


def missing(place: Path) -> str:
    return str(place / "missing")


def test_a_program_that_does_not_exist_is_a_failed_exec(agent, trigger, place):
    argv = ["pretended", "", "a b"]
    for _ in range(3):  # a page that the kernel is just moving can't be read
        ran = trigger("exec_failing", missing(place), *argv)
        record = agent.one(action="exec-failed", pid=ran.pid)
        if not record["ir.argv.truncated"]:
            break
    assert ran.facts["errno"] == 2
    assert record["error.code"] == "ENOENT"
    assert record["event.outcome"] == "failure"
    assert record["ir.exec.path"] == missing(place)
    assert record["ir.argv.caller_memory"] is True
    assert record["ir.argv.truncated"] is False
    assert record["process.args"] == argv
    assert record["process.executable"] == trigger.path("exec_failing")


def test_a_file_without_the_right_to_execute_is_a_failed_exec(agent, trigger, place):
    shutil.copyfile(trigger.path("report"), place / "plain")
    ran = trigger("exec_failing", place / "plain", "plain")
    record = agent.one(action="exec-failed", pid=ran.pid)
    assert record["error.code"] == "EACCES"
    assert record["ir.exec.path"] == str(place / "plain")


def test_a_failed_exec_with_many_arguments_is_whole_or_says_that_it_is_cut(
    agent, trigger, place
):
    argv = numbered(500)
    ran = trigger("exec_failing", missing(place), *argv)
    record = agent.one(action="exec-failed", pid=ran.pid)
    args = record["process.args"]
    assert len(args) > 20
    assert args == argv[: len(args)]
    assert record["ir.argv.truncated"] is (len(args) < len(argv))
    assert bool(record.get("ir.argv.reasons")) is (len(args) < len(argv))


def test_an_argument_that_is_not_in_memory_is_read_or_flagged(agent, trigger, place):
    """A page of a file that nobody has touched yet: a probe cannot wait for it."""
    page = place / "page"
    page.write_bytes((b"z" * 4_000).ljust(4_096, b"\0"))
    ran = trigger("exec_failing_paged_out", missing(place), page)
    record = agent.one(action="exec-failed", pid=ran.pid)
    if record.argv == [os.fsencode(missing(place)), b"z" * 4_000]:
        assert record["ir.argv.truncated"] is False
    else:
        assert record["ir.argv.truncated"] is True
        assert record["ir.argv.reasons"]
        assert b"z" not in b"".join(record.argv[1:])


def test_a_bad_argument_pointer_is_flagged_and_nothing_is_invented(agent, trigger):
    ran = trigger("exec_failing_bad_pointer", "/bin/true")
    record = agent.one(action="exec-failed", pid=ran.pid)
    assert ran.facts["errno"] == 14
    assert record["error.code"] == "EFAULT"
    assert record["ir.argv.truncated"] is True
    assert record["ir.argv.reasons"]
    assert record["process.args"][0] == "before"
    assert not any(record["process.args"][1:])
