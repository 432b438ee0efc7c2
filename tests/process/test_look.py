"""What is asked of a living process, and of the programs around it.

In: real processes, and folders of programs. Out: what the kernel says of them, within
a time that nobody else decides.
"""

import os
import signal
import subprocess  # noqa: TID251 - starts processes to look at
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent.process import look as looking
from agent.process.drift import READ_LIMIT, File, Program
from agent.process.look import InstalledPrograms, kernel_threads, look


@contextmanager
def running(*argv: str | bytes | Path, **options: object) -> Iterator[int]:
    """Run a program that tells a line when it is there, and ends with the block."""
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, **options
    ) as child:
        assert child.stdout
        try:
            assert child.stdout.readline()
            yield child.pid
        finally:
            child.kill()


WAITING = "import sys; print(1, flush=True); sys.stdin.read()"


def numbers(path: Path | str) -> File:
    """Of a file on a file system that has no numbers of its own making."""
    status = Path(path).stat()
    return File(status.st_ino, os.major(status.st_dev) << 20 | os.minor(status.st_dev))


def test_a_process_is_what_the_kernel_says() -> None:
    with running(sys.executable, "-c", WAITING, "a", "", "b c") as pid:
        now = look(pid, 30.0)
        assert now is not None
        assert now.cmdline == Path(f"/proc/{pid}/cmdline").read_bytes()
        assert now.cmdline_bytes == len(now.cmdline)
        assert now.comm == Path(f"/proc/{pid}/comm").read_bytes()[:-1]
        link = Path(f"/proc/{pid}/exe")
        assert now.executable == os.fsencode(link.readlink())
        assert now.file.ino == link.stat().st_ino
        assert (now.deleted, now.kernel_thread, now.has_memory) == (False, False, True)
        assert now.unanswered == ()


def test_a_command_line_is_read_up_to_a_limit() -> None:
    large = ["x" * 100_000] * 12
    with running(sys.executable, "-c", WAITING, *large) as pid:
        now = look(pid, 30.0)
        assert now is not None
        assert now.cmdline is not None
        assert len(now.cmdline) == READ_LIMIT
        assert now.cmdline_bytes > 1_200_000


def test_a_process_that_is_gone_is_none() -> None:
    with running(sys.executable, "-c", WAITING) as pid:
        pass
    assert look(pid) is None


def test_what_has_ended_and_is_not_forgotten_has_no_memory() -> None:
    pid = os.fork()
    if not pid:
        os._exit(0)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    now = look(pid, 30.0)
    os.waitpid(pid, 0)
    assert now is not None
    assert (now.has_memory, now.kernel_thread, now.cmdline) == (False, False, b"")


def test_kernel_threads_are_known_by_their_flag() -> None:
    names = kernel_threads()
    if b"kthreadd" not in names:
        pytest.skip("kernel threads are not shown here")
    assert Path("/proc/self/comm").read_bytes()[:-1] not in names
    now = look(2, 30.0)
    assert now is not None
    assert (now.comm, now.kernel_thread) == (b"kthreadd", True)
    assert (now.has_memory, now.executable) == (False, b"")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder in which programs are looked for."""
    monkeypatch.setattr(looking, "FOLDERS", (os.fsencode(tmp_path),))
    return tmp_path


def put(path: Path, text: str, mode: int = 0o755) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def test_a_program_is_found_by_its_name_and_by_its_path(folder: Path) -> None:
    program = put(folder / "native", "\x7fELF")
    (folder / "other-name").symlink_to(program)
    programs = InstalledPrograms(limit_s=30.0)
    expected = Program(numbers(program))
    for name in (b"native", b"other-name", os.fsencode(program)):
        assert programs(name) == expected


def test_what_can_t_be_run_is_no_program(folder: Path) -> None:
    put(folder / "data", "\x7fELF", 0o644)
    (folder / "folder").mkdir()
    os.mkfifo(folder / "pipe", 0o755)
    (folder / "dangling").symlink_to("nowhere")
    programs = InstalledPrograms(limit_s=30.0)
    names = [b"data", b"folder", b"pipe", b"dangling", b"missing", b"", b"a/b", b"a\0b"]
    for name in [*names, b"x" * 300, os.fsencode(folder / "missing")]:
        assert programs(name) is None


def test_a_script_is_its_interpreter(folder: Path) -> None:
    native = put(folder / "inter3", "\x7fELF")
    put(folder / "direct", f"#!{native} -x\ntext\n")
    put(folder / "by-env", "#!/usr/bin/env -S A=b inter3 -x\n")
    put(folder / "by-script", f"#!{folder / 'direct'}\n")
    put(folder / "endless", f"#!{folder / 'endless'}\n")
    put(folder / "broken", "#!\n")
    put(folder / "nobody", "#!/nowhere/at-all\n")
    programs = InstalledPrograms(limit_s=30.0)
    expected = Program(numbers(native), b"inter3")
    for name in (b"direct", b"by-env", b"by-script"):
        assert programs(name) == expected
    assert programs(b"endless") is None
    assert programs(b"nobody") is None
    assert programs(b"broken") == Program(numbers(folder / "broken"))


def test_a_name_that_the_kernel_has_cut_is_found_by_its_beginning(folder: Path) -> None:
    program = put(folder / "systemd-journald", "\x7fELF")
    programs = InstalledPrograms(limit_s=30.0)
    assert programs(b"systemd-journal") == Program(numbers(program))
    assert programs(b"systemd-journa") is None


@contextmanager
def living_in(root: Path) -> Iterator[int]:
    """A process with another root folder, which ends with the block."""
    ready, tell = os.pipe()
    pid = os.fork()
    if not pid:
        os.chroot(root)
        os.write(tell, b".")
        os.closerange(3, 1 << 16)
        signal.pause()
    pidfd = os.pidfd_open(pid)
    try:
        assert os.read(ready, 1) == b"."
        yield pid
    finally:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        os.waitpid(pid, 0)
        for one in (pidfd, ready, tell):
            os.close(one)


def test_programs_are_those_of_the_process_s_own_root(folder: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("entering another root needs CAP_SYS_CHROOT")
    root = folder / "root"
    inside = root / folder.relative_to("/")
    inside.mkdir(parents=True)
    put(folder / "same", "\x7fELF outside")
    program = put(inside / "same", "\x7fELF inside")
    (inside / "linked").symlink_to(folder / "same")  # absolute: in its own root
    with living_in(root) as pid:
        programs = InstalledPrograms(Path(f"/proc/{pid}"), 30.0)
        for name in (b"same", b"linked", os.fsencode(folder / "same")):
            assert programs(name) == Program(numbers(program))
        (inside / "same").unlink()
        assert programs(b"same") == programs(b"linked")  # asked for once
        assert InstalledPrograms(Path(f"/proc/{pid}"), 30.0)(b"same") is None


def test_of_a_process_that_is_gone_no_program_is_known() -> None:
    with running(sys.executable, "-c", WAITING) as pid:
        pass
    assert InstalledPrograms(Path(f"/proc/{pid}"), 30.0)(b"sh") is None
