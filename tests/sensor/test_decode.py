"""One record to one event: exact, bounded, and with nothing filled in."""

import struct

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.errors import DecodeError
from agent.events import NOBODY, Access, Denied, Event, Exec, ExecFailed, Flag
from agent.sensor.decode import ArgvPiece, decode, decode_folded
from tests.builders import (
    NO_TASK,
    a_failed_exec,
    a_fork,
    a_key,
    a_task,
    an_access,
    an_exec,
    an_exit,
    an_image,
    encode,
    encode_fold,
    encode_piece,
    plain,
)
from tests.strategies import events

EVENTS = [an_exec(b"sh"), a_failed_exec(b"x"), a_fork(), an_exit(), an_access()]


def decoded(raw: bytes) -> Event:
    event = decode(raw, 0, len(raw))
    assert not isinstance(event, ArgvPiece)
    return event


def the_exec(raw: bytes) -> Exec:
    event = decoded(raw)
    assert isinstance(event, Exec)
    return event


@given(events())
def test_decoding_gives_back_what_was_encoded(event: Event) -> None:
    assert plain(decoded(encode(event))) == plain(event)


@given(events(), st.binary(max_size=40), st.binary(max_size=40))
def test_a_record_is_read_where_it_lies_and_not_beyond(
    event: Event, before: bytes, after: bytes
) -> None:
    raw = encode(event)
    found = decode(before + raw + after, len(before), len(raw))
    assert plain(found) == plain(event)


@pytest.mark.parametrize(
    ("walk", "path"),
    [
        (b"bash\0bin\0usr\0", b"/usr/bin/bash"),
        (b"sh\0", b"/sh"),
        (b"", b"/"),
        (b"b\nc\0\xff\0", b"/\xff/b\nc"),
    ],
)
def test_a_walk_from_the_leaf_is_turned_round(walk: bytes, path: bytes) -> None:
    event = an_exec(executable=path, cwd=path)
    raw = encode(event)
    assert raw.count(walk) >= 2
    assert (the_exec(raw).executable, the_exec(raw).cwd) == (path, path)


def test_a_walk_that_did_not_reach_the_root_stays_relative() -> None:
    flags = Flag.EXE_CUT | Flag.CWD_CUT
    event = the_exec(encode(an_exec(executable=b"a/b", cwd=b"c/d", flags=flags)))
    assert (event.executable, event.cwd) == (b"a/b", b"c/d")


def test_a_memory_file_has_a_name_and_no_place_under_the_root() -> None:
    task = a_task(image=an_image(memfd=True))
    event = the_exec(encode(an_exec(task=task, executable=b"memfd:a/b")))
    assert event.executable == b"memfd:a/b"
    assert event.task.image.executable.memfd


def test_only_wanted_variables_come_through_the_kernel_s_rough_filter() -> None:
    sent = (
        b"LD_PRELOAD=/x.so",
        b"LD_PRELOADER=1",  # the first eight bytes are those of LD_PRELOAD
        b"LD_LIBRARY_PATHS=1",
        b"RANK=3",
        b"MASTER_A",  # cut before its name was complete
        b"WORLD_SIZE=",
    )
    raw = encode(an_exec(environment=sent))
    kept = (b"LD_PRELOAD=/x.so", b"RANK=3", b"WORLD_SIZE=")
    assert the_exec(raw).environment == kept


def test_argv_that_could_not_be_read_is_empty_and_not_what_the_buffer_held() -> None:
    raw = encode(an_exec(b"left", b"over", flags=int(Flag.ARGV_FAULT)))
    assert b"over" in raw
    event = the_exec(raw)
    assert (event.argv, event.argv_bytes) == (b"", len(b"left over "))


def test_no_empty_argument_and_no_odd_byte_of_argv_is_lost() -> None:
    event = the_exec(encode(an_exec(b"", b"\xff\n", b"", b"")))
    assert (event.argv, event.argc) == (b"\0\xff\n\0\0\0", 4)
    assert the_exec(encode(an_exec())).argv == b""


def test_a_piece_says_whose_it_is_and_where_it_belongs() -> None:
    event = an_exec(cpu=3, seq=7)
    raw = encode_piece(event, 9, 4096, b"tail\0")
    piece = decode(raw, 0, len(raw))
    assert isinstance(piece, ArgvPiece)
    assert (piece.cpu, piece.seq, piece.key) == (3, 9, event.task.key)
    assert (piece.offset, piece.argv) == (4096, b"tail\0")


def test_a_piece_that_could_not_be_read_has_no_bytes() -> None:
    raw = encode_piece(an_exec(), 2, 4096, b"stale", flags=int(Flag.ARGV_FAULT))
    piece = decode(raw, 0, len(raw))
    assert isinstance(piece, ArgvPiece)
    assert piece.argv == b""


def test_equal_images_are_one_object() -> None:
    first, second = (decoded(encode(a_fork(a_task(tgid)))) for tgid in (1, 2))
    assert first.task.image is second.task.image
    other = decoded(encode(a_fork(a_task(3, image=an_image(euid=5)))))
    assert other.task.image.context is not first.task.image.context
    assert other.task.image.executable is first.task.image.executable


def test_a_tracer_is_the_parent_and_not_the_real_one() -> None:
    tracer = a_key(500, 9)
    task = decoded(encode(a_fork(a_task(parent=tracer, ptrace=1)))).task
    assert (task.real_parent, task.parent, task.ptrace) == (a_key(1, 5), tracer, 1)


def test_an_access_to_nobody_has_zeros_for_its_target() -> None:
    sent = an_access(NO_TASK, result=-3, flags=int(Flag.TARGET_GONE))
    event = decoded(encode(sent))
    assert isinstance(event, Access)
    assert event.target.key == NOBODY
    assert plain(event) == plain(sent)


def test_a_failed_exec_has_a_positive_errno() -> None:
    event = decoded(encode(a_failed_exec(b"a", b"", errno=13)))
    assert isinstance(event, ExecFailed)
    assert (event.errno, event.argv, event.path) == (13, b"a\0\0", b"/bin/none")


def test_what_stayed_in_the_fold_map_is_an_access_and_how_much_was_sent() -> None:
    sent = an_access(count=15_000)
    event, told = decode_folded(encode_fold(sent, sent_ns=5, sent_count=14_000))
    assert plain(event) == plain(msgspec.structs.replace(sent, cwd=b""))
    assert told == 14_000


@pytest.mark.parametrize("event", EVENTS, ids=lambda one: type(one).__name__)
def test_a_record_cut_anywhere_is_an_error(event: Event) -> None:
    raw = encode(event)
    for size in range(len(raw)):
        with pytest.raises(DecodeError):
            decode(raw, 0, size)
        with pytest.raises(DecodeError):
            decode(raw[:size], 0, len(raw))


@pytest.mark.parametrize("event", EVENTS, ids=lambda one: type(one).__name__)
def test_a_byte_too_many_is_an_error(event: Event) -> None:
    raw = bytearray(encode(event) + b"\0")
    with pytest.raises(DecodeError):
        decode(bytes(raw), 0, len(raw))
    struct.pack_into("<I", raw, 4, len(raw))  # even when the head agrees
    with pytest.raises(DecodeError, match="do not fill the record"):
        decode(bytes(raw), 0, len(raw))


@pytest.mark.parametrize(
    ("at", "form", "value", "reason"),
    [
        (0, "<H", 1, "version 1"),
        (2, "<H", 0, "unknown kind 0"),
        (2, "<H", 8, "unknown kind 8"),
        (4, "<I", 40, "40 bytes"),
    ],
)
def test_a_head_that_is_not_ours_is_an_error_that_says_why(
    at: int, form: str, value: int, reason: str
) -> None:
    raw = bytearray(encode(an_exit()))
    struct.pack_into(form, raw, at, value)
    with pytest.raises(DecodeError, match=reason):
        decode(bytes(raw), 0, len(raw))


def test_a_kind_is_all_sixteen_bits_of_it() -> None:
    raw = bytearray(encode(an_exit()))
    raw[3] = 1
    with pytest.raises(DecodeError):
        decode(bytes(raw), 0, len(raw))


def test_an_access_of_a_kind_that_does_not_exist_is_an_error() -> None:
    good = an_access()
    raw = bytearray(encode(good))
    at = raw.rindex(struct.pack("<II", good.kind, good.requested_pid))
    struct.pack_into("<I", raw, at, 99)
    with pytest.raises(DecodeError, match="unknown access 99"):
        decode(bytes(raw), 0, len(raw))


@pytest.mark.parametrize("by", Denied)
def test_an_access_says_by_which_rung_of_the_guard_it_was_refused(by: Denied) -> None:
    event = decoded(encode(an_access(denied=by)))
    assert isinstance(event, Access)
    assert event.denied is by


def test_a_rung_of_the_guard_that_does_not_exist_is_an_error() -> None:
    good = an_access()
    raw = bytearray(encode(good))
    at = raw.rindex(struct.pack("<II", good.kind, good.requested_pid)) + 12
    struct.pack_into("<I", raw, at, 4)
    with pytest.raises(DecodeError, match="denied 4"):
        decode(bytes(raw), 0, len(raw))


@pytest.mark.parametrize("at", [-1, 1, 10_000])
def test_a_place_outside_the_bytes_is_an_error(at: int) -> None:
    raw = encode(an_exit())
    with pytest.raises(DecodeError):
        decode(raw, at, len(raw))
