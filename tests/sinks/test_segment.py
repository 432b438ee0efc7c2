"""The writer: what is appended, when it rotates, who may write, and what fails."""

import ctypes
import errno
import json
import os
import resource
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent.errors import BusyError
from agent.sinks.chain import segment_names
from agent.sinks.scan import read
from agent.sinks.segment import SegmentWriter
from agent.sinks.verify import verify

MNT_DETACH = 2


def body(number: int, pad: int = 0) -> bytes:
    return json.dumps({"n": number, "pad": "x" * pad}).encode()


def open_log(folder: Path, max_bytes: int = 1 << 20) -> SegmentWriter:
    return SegmentWriter.open(folder, lambda: {"boot_id": "b00"}, max_bytes)


def numbers(folder: Path) -> list[tuple[int, int]]:
    """Every (sequence, n) of the log, in order, headers left out."""
    lines = [line for name in segment_names(folder) for line in read(folder / name)]
    parsed = [(line.sequence, json.loads(line.body)) for line in lines]
    return [(sequence, value["n"]) for sequence, value in parsed if "n" in value]


@contextmanager
def small_file_system(at: Path, size: int) -> Iterator[Path]:
    """A tmpfs of `size` bytes, unmounted at the end whatever happens."""
    if os.geteuid() != 0:
        pytest.skip("mounting a tmpfs needs root")
    at.mkdir()
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"size={size}".encode()
    if libc.mount(b"none", bytes(at), b"tmpfs", 0, options):
        pytest.skip(f"no tmpfs here: {os.strerror(ctypes.get_errno())}")
    try:
        yield at
    finally:
        libc.umount2(bytes(at), MNT_DETACH)


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_line_is_plain_json_with_the_chain_field_last(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.append([body(1)])
    header, line = (tmp_path / "0000000000000000.jsonl").read_bytes().splitlines()
    assert json.loads(line)["n"] == 1
    assert line[-90:].startswith(b',"_c":"0000000000000001:')
    segment = json.loads(header)["ir"]["segment"]
    assert segment == {
        "version": 1,
        "hash": "sha256",
        "first": 0,
        "previous_hash": "0" * 64,
        "boot_id": "b00",
    }


def test_nobody_but_the_owner_may_read_a_log(tmp_path: Path) -> None:
    folder = tmp_path / "state" / "records"
    with open_log(folder) as log:
        log.append([body(1)])
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}


def test_next_sequence_is_the_number_that_the_next_body_gets(tmp_path: Path) -> None:
    with open_log(tmp_path, max_bytes=1000) as log:
        said = []
        for number in range(40):
            said.append((log.next_sequence, number))
            log.append([body(number, pad=50)])
    assert numbers(tmp_path) == said
    assert len(segment_names(tmp_path)) > 5


def test_each_segment_asks_for_the_checkpoint_of_its_moment(tmp_path: Path) -> None:
    asked = []

    def header() -> dict[str, object]:
        asked.append(len(asked))
        return {"checkpoint": asked[-1]}

    with SegmentWriter.open(tmp_path, header, max_bytes=600) as log:
        for number in range(9):
            log.append([body(number, pad=100)])
    headers = [next(read(tmp_path / name)).body for name in segment_names(tmp_path)]
    points = [json.loads(line)["ir"]["segment"]["checkpoint"] for line in headers]
    assert points == asked == list(range(len(points)))
    assert len(points) > 1


def test_a_batch_is_one_run_of_numbers_and_never_split(tmp_path: Path) -> None:
    with open_log(tmp_path, max_bytes=500) as log:
        log.append([body(number, pad=100) for number in range(10)])
        log.append([])
        log.append([body(10)])
    first, second = segment_names(tmp_path)
    assert len(list(read(tmp_path / first))) == 11
    assert len(list(read(tmp_path / second))) == 2


def test_a_reopened_log_goes_on_in_the_same_segment(tmp_path: Path) -> None:
    for number in range(3):
        with open_log(tmp_path) as log:
            assert log.recovered is None
            log.append([body(number)])
    assert numbers(tmp_path) == [(1, 0), (2, 1), (3, 2)]
    assert verify(tmp_path).segments == 1


def test_a_second_writer_is_refused_and_told_who_holds_the_log(tmp_path: Path) -> None:
    with open_log(tmp_path), pytest.raises(BusyError) as caught:
        open_log(tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert f"pid {os.getpid()}" in str(caught.value)
    open_log(tmp_path).close()


@pytest.mark.parametrize(
    "bad", [b"", b"{}", b"[1]", b'{"a":1}\n', b'{"a":\n1}', b'{"a']
)
def test_what_is_no_object_on_one_line_is_refused_whole(
    tmp_path: Path, bad: bytes
) -> None:
    with open_log(tmp_path) as log:
        with pytest.raises(ValueError, match="not a compact JSON object"):
            log.append([body(1), bad])
        log.append([body(2)])
    assert numbers(tmp_path) == [(1, 2)]


def test_a_header_cannot_say_other_things_about_the_chain(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="previous_hash"):
        SegmentWriter.open(tmp_path, lambda: {"previous_hash": "0" * 64})
    assert segment_names(tmp_path) == []
    open_log(tmp_path).close()


def test_a_full_disk_leaves_no_half_line_and_the_log_goes_on(tmp_path: Path) -> None:
    batch = [body(number, pad=1000) for number in range(20)]
    with small_file_system(tmp_path / "fs", 64 << 10) as disk:
        (disk / "ballast").write_bytes(bytes(40 << 10))
        with open_log(disk / "log") as log:
            log.append([body(-1)])
            with pytest.raises(OSError) as caught:
                log.append(batch)
            assert caught.value.errno == errno.ENOSPC
            assert verify(disk / "log").torn is False
            assert log.next_sequence == 2
            (disk / "ballast").unlink()
            log.append(batch)
        report = verify(disk / "log")
        assert (report.faults, report.records) == ((), 22)


def test_a_segment_that_cannot_begin_leaves_nothing_behind(tmp_path: Path) -> None:
    with small_file_system(tmp_path / "fs", 32 << 10) as disk:
        with open_log(disk / "log", max_bytes=4096) as log:
            log.append([body(1, pad=4000)])
            with (disk / "ballast").open("wb", buffering=0) as ballast:
                while ballast.write(bytes(4096)) == 4096 and _room(disk):
                    pass
            expected = log.next_sequence
            with pytest.raises(OSError):
                log.append([body(2)])
            assert len(segment_names(disk / "log")) == 1
            assert log.next_sequence == expected
            (disk / "ballast").unlink()
            log.append([body(2)])
        assert numbers(disk / "log") == [(1, 1), (expected, 2)]
        assert verify(disk / "log").faults == ()


def _room(disk: Path) -> int:
    return os.statvfs(disk).f_bfree


def test_a_short_write_is_taken_back(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.append([body(1)])
        size = (tmp_path / segment_names(tmp_path)[0]).stat().st_size
        with file_size_limit(size + 150), pytest.raises(OSError) as caught:
            log.append([body(2, pad=100), body(3, pad=100)])
        assert caught.value.errno == errno.EFBIG
        assert (tmp_path / segment_names(tmp_path)[0]).stat().st_size == size
        log.append([body(2), body(3)])
    assert numbers(tmp_path) == [(1, 1), (2, 2), (3, 3)]


def test_a_half_line_that_cannot_be_cut_at_once_is_cut_before_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_fd: int, _size: int) -> None:
        raise OSError(errno.EIO, "no")

    with open_log(tmp_path) as log:
        size = (tmp_path / segment_names(tmp_path)[0]).stat().st_size
        with monkeypatch.context() as broken, file_size_limit(size + 50):
            broken.setattr(os, "ftruncate", refuse)
            with pytest.raises(OSError, match="File too large"):
                log.append([body(1)])
        assert verify(tmp_path).torn
        log.append([body(1)])
    assert numbers(tmp_path) == [(1, 1)]
    assert verify(tmp_path).faults == ()


def test_a_failed_sync_is_repeated_until_the_log_has_moved_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_fd: int) -> None:
        raise OSError(errno.EIO, "lost")

    with open_log(tmp_path) as log:
        log.append([body(1)])
        with monkeypatch.context() as broken:
            broken.setattr(os, "fdatasync", fail)
            with pytest.raises(OSError, match="lost"):
                log.sync()
        with pytest.raises(OSError, match="lost"):
            log.sync()
        log.append([body(2)])
        with pytest.raises(OSError, match="lost"):
            log.sync()
        expected = log.next_sequence
        log.append([body(3)])
        log.sync()
    assert numbers(tmp_path) == [(1, 1), (2, 2), (expected, 3)]
    assert len(segment_names(tmp_path)) == 2


def test_a_segment_is_left_only_when_all_of_it_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_fd: int) -> None:
        raise OSError(errno.EIO, "lost")

    with open_log(tmp_path, max_bytes=300) as log:
        log.append([body(1, pad=300)])
        expected = log.next_sequence
        with monkeypatch.context() as broken:
            broken.setattr(os, "fdatasync", fail)
            with pytest.raises(OSError, match="lost"):
                log.append([body(2)])
        assert len(segment_names(tmp_path)) == 1
        assert log.next_sequence == expected
        log.append([body(2)])
    assert numbers(tmp_path) == [(1, 1), (expected, 2)]


def test_a_sync_with_nothing_new_asks_nothing_of_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    fdatasync = os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda fd: (asked.append(fd), fdatasync(fd)))
    with open_log(tmp_path) as log:
        log.append([body(1)])
        log.sync()
        log.sync()
        log.sync()
    log.close()
    log.sync()
    assert len(asked) == 1


def test_another_thread_may_sync_through_rotations(tmp_path: Path) -> None:
    stop = threading.Event()
    failures: list[BaseException] = []

    def keep_syncing() -> None:
        try:
            while not stop.is_set():
                log.sync()
        except BaseException as error:  # noqa: BLE001 - reported by the test itself
            failures.append(error)

    with open_log(tmp_path, max_bytes=2000) as log:
        thread = threading.Thread(target=keep_syncing)
        thread.start()
        for number in range(450):
            log.append([body(number, pad=200)])
        stop.set()
        thread.join()
    report = verify(tmp_path)
    assert failures == []
    assert report.faults == ()
    assert report.segments > 30
    assert [number for _, number in numbers(tmp_path)] == list(range(450))


def test_a_link_in_the_place_of_a_segment_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_bytes(b"precious")
    folder = tmp_path / "log"
    folder.mkdir()
    (folder / "0000000000000000.jsonl").symlink_to(target)
    with pytest.raises(FileExistsError):
        open_log(folder)
    assert target.read_bytes() == b"precious"
    assert [fault.reason for fault in verify(folder).faults] == [
        "not a file of this log"
    ]


def test_a_link_in_the_place_of_the_lock_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_bytes(b"precious")
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "writer.lock").symlink_to(target)
    with pytest.raises(OSError, match="symbolic links"):
        open_log(tmp_path / "log")
    assert target.read_bytes() == b"precious"
