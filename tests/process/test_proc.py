"""A /proc: what it says is taken as it is, and each way to make it lie is a doubt."""

import errno
import os
import resource
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.errors import NotPermittedError
from agent.process.mounts import (
    Doubt,
    DoubtKind,
    Mount,
    mount_doubts,
    parse_mountinfo,
)
from agent.process.proc import Proc, Stat, Status, parse_stat, parse_status
from tests.process.private_mounts import (
    LIBC,
    NEW_PIDS,
    NEW_TIME,
    bind,
    in_a_child,
    in_own_mounts,
    lose_rights,
    mount,
    needs_root,
    unshare,
    waiting,
)
from tests.strategies import u32, u64, words

PROC = Path("/proc")
PR_SET_NAME, PTRACE_TRACEME = 15, 0


def doubts(path: Path = PROC) -> list[Doubt]:
    with Proc.mounted(path) as shown, Proc.private() as witness:
        return shown.doubts(witness)


def kinds(found: list[Doubt]) -> list[tuple[DoubtKind, int]]:
    return [(one.kind, one.pid) for one in found]


# What it says of processes


def test_the_own_process_is_shown() -> None:
    with Proc.mounted() as proc:
        own, status = proc.stat(os.getpid()), proc.status(os.getpid())
        assert os.getpid() in proc.pids()
    assert own is not None
    assert (own.pid, own.ppid, own.kernel) == (os.getpid(), os.getppid(), False)
    assert own.comm == Path("/proc/self/comm").read_bytes()[:-1]
    assert own.state == "R"
    assert status is not None
    assert (status.tgid, status.ppid) == (os.getpid(), os.getppid())
    assert status.pids[0] == os.getpid()


def test_a_kernel_thread_is_told_from_a_program() -> None:
    if not Path("/proc/2/comm").exists() or Path("/proc/2/cmdline").read_bytes():
        pytest.skip("kernel threads are not shown here")
    with Proc.mounted() as proc:
        thread = proc.stat(2)
    assert thread is not None
    assert (thread.comm, thread.ppid, thread.kernel) == (b"kthreadd", 0, True)


@pytest.mark.parametrize(
    "comm", [b"a) S 1 (b", b") ", b"((", b"x\nTgid:\t1", b"\xff\x01 \t\\", b"", b" "]
)
def test_a_name_of_any_bytes_changes_nothing_else(comm: bytes) -> None:
    with (
        waiting(lambda: LIBC.prctl(PR_SET_NAME, comm)) as pid,
        Proc.mounted() as proc,
    ):
        stat, status = proc.stat(pid), proc.status(pid)
    assert stat is not None
    assert (stat.pid, stat.comm, stat.ppid) == (pid, comm, os.getpid())
    assert status is not None
    assert (status.tgid, status.ppid) == (pid, os.getpid())


def test_a_thread_is_not_listed_and_names_its_process() -> None:
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait)
    thread.start()
    try:
        tid = thread.native_id or 0
        with Proc.mounted() as proc:
            status = proc.status(tid)
            assert tid not in proc.pids()
    finally:
        ended.set()
        thread.join()
    assert status is not None
    assert status.tgid == os.getpid() != tid


def test_who_traces_a_process_is_shown() -> None:
    with (
        waiting(lambda: LIBC.ptrace(PTRACE_TRACEME, 0, None, None)) as pid,
        Proc.mounted() as proc,
    ):
        assert proc.tracer(pid) == os.getpid()
        assert proc.tracer(os.getpid()) == 0


def test_a_process_that_is_gone_is_none() -> None:
    with waiting() as pid:
        pass
    with Proc.mounted() as proc:
        assert (proc.stat(pid), proc.status(pid), proc.tracer(pid)) == (None, None, 0)


def test_who_has_no_descriptor_left_does_not_call_a_process_gone() -> None:
    def work() -> int | None:
        with Proc.mounted() as proc:
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
            try:
                proc.stat(os.getpid())
            except OSError as error:
                return error.errno
        return None

    assert in_a_child(work) == errno.EMFILE


def test_a_closed_one_says_so() -> None:
    proc = Proc.mounted()
    proc.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        proc.stat(os.getpid())


def test_the_bound_of_pids_is_read() -> None:
    with Proc.mounted() as proc:
        assert proc.pid_max() == int(Path("/proc/sys/kernel/pid_max").read_text())


def test_a_folder_that_is_no_procfs_shows_only_what_looks_like_one(
    tmp_path: Path,
) -> None:
    for name in ("12", "012", "0", "1a", "²", "self", "-3"):
        (tmp_path / name).mkdir()
    with Proc.mounted(tmp_path) as proc:
        assert proc.pids() == {12}
        assert (proc.stat(12), proc.pid_max(), proc.mountinfo()) == (None, 0, b"")


# One of our own


@needs_root
def test_a_private_one_shows_what_the_mounted_one_shows() -> None:
    with waiting() as pid, Proc.private() as private, Proc.mounted() as mounted:
        assert {1, os.getpid(), pid} <= private.pids()
        assert private.stat(pid) == mounted.stat(pid)
        assert private.status(pid) == mounted.status(pid)
        assert private.doubts(private) == []


def mounted_over(proc: Proc) -> bool:
    try:
        mount("tmpfs", Path(f"/proc/self/fd/{proc._fd}/1"))
    except OSError:
        return False
    return True


@needs_root
def test_nothing_can_be_mounted_over_a_private_one() -> None:
    def work() -> tuple[bool, bool, Stat | None, Stat | None]:
        with Proc.private() as private, Proc.mounted() as mounted:
            done = mounted_over(private), mounted_over(mounted)
            return *done, private.stat(1), mounted.stat(1)

    over_private, over_mounted, true, covered = in_own_mounts(work)
    assert (over_private, over_mounted) == (False, True)
    assert true is not None
    assert covered is None


def test_who_may_not_mount_gets_no_private_one() -> None:
    def work() -> None:
        if os.geteuid() == 0:
            lose_rights()
        Proc.private()

    with pytest.raises(NotPermittedError, match="no procfs of our own: fsopen: "):
        in_a_child(work)


# What is mounted over it


@needs_root
def test_a_tmpfs_over_a_process_is_a_doubt_and_its_files_are_none() -> None:
    with waiting() as pid:

        def work() -> tuple[list[Doubt], object, object, bool]:
            mount("tmpfs", PROC / str(pid), source="a b\\c\x1b")
            with Proc.mounted() as shown, Proc.private() as own:
                return (
                    shown.doubts(own),
                    (shown.stat(pid), shown.status(pid)),
                    own.stat(pid),
                    pid in shown.pids(),
                )

        found, covered, true, listed = in_own_mounts(work)
    text = rf"a tmpfs (source a b\\c\x1b) is mounted over /proc/{pid}"
    assert found == [Doubt(DoubtKind.COVERED, pid, text)]
    assert covered == (None, None)
    assert isinstance(true, Stat)
    assert listed


@needs_root
def test_the_folder_of_another_process_over_a_process_is_a_doubt() -> None:
    with waiting() as pid, waiting() as other:

        def work() -> tuple[list[Doubt], Stat | None, Stat | None]:
            bind(PROC / str(other), PROC / str(pid))
            with Proc.mounted() as shown, Proc.private() as own:
                return shown.doubts(own), shown.stat(pid), own.stat(pid)

        found, lie, true = in_own_mounts(work)
    text = f"/{other} of a proc (source proc) is mounted over /proc/{pid}"
    assert found == [Doubt(DoubtKind.COVERED, pid, text)]
    assert lie is not None
    assert true is not None
    assert (lie.pid, true.pid) == (other, pid)


def _pipe(place: Path) -> None:
    os.mkfifo(place)


def _socket(place: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(place))


def _endless(place: Path) -> None:
    place.touch()
    bind(Path("/dev/zero"), place)


@needs_root
@pytest.mark.parametrize(
    "make",
    [
        _pipe,
        _socket,
        _endless,
        Path.mkdir,
        lambda place: place.symlink_to("/proc/1/stat"),
        lambda place: place.write_bytes(b"(" * 9000),
    ],
    ids=["pipe", "socket", "endless", "folder", "link", "garbage"],
)
def test_whatever_lies_in_a_mount_over_a_process_is_none(
    make: Callable[[Path], object],
) -> None:
    with waiting() as pid:

        def work() -> object:
            mount("tmpfs", PROC / str(pid))
            make(PROC / str(pid) / "stat")
            make(PROC / str(pid) / "status")
            with Proc.mounted() as shown:
                return shown.stat(pid), shown.status(pid), shown.tracer(pid)

        assert in_own_mounts(work) == (None, None, 0)


@needs_root
def test_a_mount_over_one_file_of_a_process_is_a_doubt() -> None:
    with waiting() as pid:

        def work() -> list[Doubt]:
            bind(Path("/dev/null"), PROC / f"{pid}/task/{pid}/cmdline")
            return doubts()

        found = in_own_mounts(work)
    assert kinds(found) == [(DoubtKind.COVERED_BELOW, pid)]
    assert found[0].text.endswith(f" is mounted over /proc/{pid}/task/{pid}/cmdline")


@needs_root
def test_a_second_procfs_over_proc_is_a_doubt() -> None:
    def work() -> list[Doubt]:
        mount("proc", PROC, "hidepid=2", source="second")
        return doubts()

    found = in_own_mounts(work)
    assert kinds(found) == [(DoubtKind.STACKED, 0), (DoubtKind.HIDEPID, 0)]
    assert found[0].text.startswith("a proc (source second) is mounted over a proc ")


@needs_root
def test_a_tmpfs_over_proc_is_a_doubt_and_can_t_cover_the_list_of_mounts() -> None:
    def work() -> list[Doubt]:
        mount("tmpfs", PROC)
        return doubts()

    found = kinds(in_own_mounts(work))
    assert found == [(DoubtKind.NOT_PROCFS, 0), (DoubtKind.STACKED, 0)]


@needs_root
def test_the_folder_of_a_process_over_proc_is_a_doubt() -> None:
    def work() -> list[Doubt]:
        bind(PROC / "1", PROC)
        return doubts()

    assert kinds(in_own_mounts(work)) == [(DoubtKind.PART, 0), (DoubtKind.STACKED, 0)]


@needs_root
@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("hidepid=2", [DoubtKind.HIDEPID]),
        ("hidepid=1", [DoubtKind.HIDEPID]),
        ("hidepid=0", []),
        ("subset=pid", [DoubtKind.SUBSET]),
        ("subset=pid,hidepid=2", [DoubtKind.HIDEPID, DoubtKind.SUBSET]),
    ],
)
def test_options_that_hide_are_doubts(
    tmp_path: Path, option: str, expected: list[DoubtKind]
) -> None:
    def work() -> list[Doubt]:
        mount("proc", tmp_path, option)
        return doubts(tmp_path)

    try:
        found = in_own_mounts(work)
    except OSError as error:
        pytest.skip(f"this kernel has no {option}: {error}")
    assert sorted(one.kind for one in found) == sorted(expected)


@needs_root
def test_a_private_one_hides_nothing_from_who_has_lost_its_rights(
    tmp_path: Path,
) -> None:
    with waiting() as pid:

        def work() -> tuple[bool, bool]:
            mount("proc", tmp_path, "hidepid=2")
            with Proc.mounted(tmp_path) as shown, Proc.private() as own:
                lose_rights()
                return pid in shown.pids(), pid in own.pids()

        assert in_own_mounts(work) == (False, True)


@needs_root
def test_the_procfs_of_a_namespace_below_is_a_doubt(tmp_path: Path) -> None:
    def work() -> list[Doubt]:
        unshare(NEW_PIDS)
        with waiting(lambda: mount("proc", tmp_path)):
            return doubts(tmp_path)

    found = in_own_mounts(work)
    assert kinds(found) == [(DoubtKind.OTHER_NAMESPACE, 0)]
    assert found[0].text.endswith("which shows this process not at all")


@needs_root
def test_inside_a_namespace_both_its_own_procfs_and_the_machine_s_are_doubts() -> None:
    def inside() -> tuple[list[Doubt], list[Doubt], int]:
        with Proc.private() as own:
            return doubts(), own.doubts(own), os.getpid()

    def work() -> tuple[list[Doubt], list[Doubt], int]:
        unshare(NEW_PIDS)
        return in_a_child(inside)

    machine, own, pid = in_own_mounts(work)
    assert pid == 1
    assert kinds(machine) == [(DoubtKind.OTHER_NAMESPACE, 0)]
    assert kinds(own) == [(DoubtKind.INNER_NAMESPACE, 0)]


@needs_root
def test_a_time_namespace_is_a_doubt() -> None:
    def work() -> list[Doubt]:
        unshare(NEW_TIME)
        return in_a_child(doubts)

    assert kinds(in_a_child(work)) == [(DoubtKind.TIME_NAMESPACE, 0)]


def test_a_list_of_mounts_that_can_t_be_read_is_a_doubt(tmp_path: Path) -> None:
    with Proc.mounted() as shown, Proc.mounted(tmp_path) as witness:
        found = shown.doubts(witness)
    assert (DoubtKind.UNREADABLE, 0) in kinds(found)


def test_a_list_of_mounts_without_end_is_not_read_in_part(tmp_path: Path) -> None:
    (tmp_path / "self").mkdir()
    with (tmp_path / "self/mountinfo").open("wb") as file:
        file.write(b"22 1 0:21 / /proc rw - proc proc rw\n")
        file.truncate(1 << 30)
    with Proc.mounted(tmp_path) as witness:
        assert witness.mountinfo() == b""


def test_what_containers_mount_below_proc_is_no_doubt() -> None:
    lines = [
        "22 1 0:21 / /proc rw shared:5 - proc proc rw",
        "30 22 0:30 / /proc/sys/fs/binfmt_misc rw - binfmt_misc none rw",
        "31 22 0:31 / /proc/kcore rw - tmpfs tmpfs rw",
        "32 22 0:32 /proc/meminfo /proc/meminfo rw - fuse.lxcfs lxcfs rw",
        "33 1 0:33 / /procs/12 rw - tmpfs tmpfs rw",
        "34 1 0:21 / /other/proc rw - proc proc rw,hidepid=2",
    ]
    assert mount_doubts("\n".join(lines).encode()) == []


# Any bytes


def stat_line(stat: Stat) -> bytes:
    flags = 0x200000 if stat.kernel else 0x400100
    rest = f"{stat.state} {stat.ppid} 1 1 0 -1 {flags} " + "0 " * 10
    tail = f"{stat.threads} 0 {stat.start_ticks} 9 {1 << 63} 0\n"
    return b"%d (%s) %s" % (stat.pid, stat.comm, (rest + tail).encode())


@given(
    st.builds(
        Stat, u32, words(), st.sampled_from("RSDTtXZPI"), u32, u32, u64, st.booleans()
    )
)
def test_a_stat_comes_back_whatever_the_name(stat: Stat) -> None:
    assert parse_stat(stat_line(stat)) == stat


@given(words(), st.builds(Status, u32, u32, u32, st.lists(u32).map(tuple)))
def test_a_status_comes_back_whatever_the_name(comm: bytes, status: Status) -> None:
    shown = comm.replace(b"\\", b"\\\\").replace(b"\n", b"\\n")
    pids = "\t".join(map(str, status.pids))
    text = (
        f"Tgid:\t{status.tgid}\nNgid:\t0\nPid:\t7\nPPid:\t{status.ppid}\n"
        f"TracerPid:\t{status.tracer}\nGroups:\t0 1 \nNSpid:\t{pids}\n"
    )
    assert parse_status(b"Name:\t" + shown + b"\n" + text.encode()) == status


def escaped(raw: bytes) -> bytes:
    return b"".join(
        b"\\%03o" % byte if byte in b" \t\n\\#" else bytes([byte]) for byte in raw
    )


@given(
    st.lists(
        st.builds(Mount, u32, u32, words(), words(), words(), words(), words()),
        max_size=4,
    ),
    st.sampled_from([b"", b" shared:3", b" shared:3 master:4 unbindable"]),
)
def test_a_list_of_mounts_comes_back(mounts: list[Mount], tags: bytes) -> None:
    lines = []
    for one in mounts:
        root, at, kind, source, options = map(escaped, one[2:])
        lines.append(
            b"%d %d 0:1 %s %s rw%s - %s %s %s\n"
            % (one.id, one.parent, root, at, tags, kind, source, options)
        )
    assert parse_mountinfo(b"".join(lines)) == mounts


lines_ = st.lists(
    st.sampled_from(
        [b"1 ", b"(", b") ", b"S ", b"- ", b"\n", b"Tgid:", b"\\040", b"/proc ", b"-1 "]
    )
    | st.binary(max_size=6),
    max_size=40,
).map(b"".join)


@given(lines_)
@pytest.mark.parametrize("parse", [parse_stat, parse_status, parse_mountinfo])
def test_any_bytes_are_taken_apart_or_refused(
    parse: Callable[[bytes], object], raw: bytes
) -> None:
    try:
        parse(raw)
    except ValueError:
        return


@given(lines_)
def test_any_list_of_mounts_gives_doubts_that_can_be_printed(raw: bytes) -> None:
    prefix = b"22 1 0:21 / /proc rw - proc proc rw\n23 22 0:1 / /proc/7 rw - "
    for one in mount_doubts(prefix + raw + b" x rw"):
        assert one.text.isprintable()
        assert one.text.encode()
