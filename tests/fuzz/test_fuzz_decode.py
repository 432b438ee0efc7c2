"""Any bytes at all in the place of a record: an event, or a clear error."""

import struct

from hypothesis import example, given, settings
from hypothesis import strategies as st

from agent.sensor import wire
from tests.builders import (
    a_failed_exec,
    a_fork,
    a_prctl,
    an_access,
    an_exec,
    an_exit,
    encode,
    encode_piece,
    plain,
)
from tests.fuzz.decode_target import one_input
from tests.strategies import events

RECORDS = [
    encode(an_exec(b"sh", b"-c", environment=(b"RANK=1",), interpreter=b"/bin/sh")),
    encode_piece(an_exec(), 2, 4096, b"more\0"),
    encode(a_failed_exec(b"a", b"b")),
    encode(a_fork()),
    encode(an_exit()),
    encode(an_access(path=b"/proc/1/mem")),
    encode(a_prctl()),
]
FIXED = {
    kind: one.size
    for kind, one in zip(
        wire.Kind,
        (
            *(wire.EXEC, wire.ARGV, wire.EXEC_FAILED, wire.FORK, wire.EXIT),
            *(wire.ACCESS, wire.PRCTL),
        ),
        strict=True,
    )
}


def with_honest_head(kind: int, body: bytes) -> bytes:
    """A record whose version, kind and size are right, and nothing else need be."""
    head = struct.pack("<HHI", wire.VERSION, kind, len(body) + 8)
    return head + body


# The head's first eight bytes right, and noise of about the right length: far more gets
# past the first checks than of noise alone.
honest = st.sampled_from(list(wire.Kind)).flatmap(
    lambda kind: st.builds(
        with_honest_head,
        st.just(kind),
        st.binary(min_size=FIXED[kind] - 8, max_size=FIXED[kind] + 8),
    )
)


def lengths_made_right(record: bytes) -> bytes:
    """Set the first variable length so that the record is filled, where it can be."""
    kind = record[2]
    if kind not in FIXED or len(record) < FIXED[kind]:
        return record
    count = {1: 6, 3: 4, 6: 4}.get(kind, 2)
    lengths = [len(record) - FIXED[kind]] + [0] * (count - 1)
    at = FIXED[kind] - 4 * count
    return record[:at] + struct.pack(f"<{count}I", *lengths) + record[FIXED[kind] :]


def changed(record: bytes, changes: list[tuple[int, int]]) -> bytes:
    mutable = bytearray(record)
    for at, value in changes:
        mutable[at % len(mutable)] = value
    return bytes(mutable)


CHANGES = st.lists(
    st.tuples(st.integers(0, 2000), st.integers(0, 255)), min_size=1, max_size=4
)


@settings(deadline=None, max_examples=300)
@given(st.binary(max_size=900))
@example(b"")
@example(bytes(600))
@example(b"\xff" * 600)
def test_any_bytes_are_an_event_or_a_clear_error(data: bytes) -> None:
    one_input(data)


@settings(deadline=None, max_examples=300)
@given(honest)
def test_noise_behind_a_right_head_is_an_event_or_a_clear_error(data: bytes) -> None:
    one_input(data)
    filled = lengths_made_right(data)
    found = one_input(filled)
    assert found is not None or filled[2] in (wire.Kind.ACCESS, wire.Kind.PRCTL)


@settings(deadline=None, max_examples=400)
@given(st.sampled_from(RECORDS), CHANGES)
def test_a_changed_record_is_an_event_or_a_clear_error(
    record: bytes, changes: list[tuple[int, int]]
) -> None:
    one_input(changed(record, changes))


@settings(deadline=None, max_examples=200)
@given(st.sampled_from(RECORDS), st.sampled_from(RECORDS), st.integers(0, 700))
def test_two_records_cut_together_are_an_event_or_a_clear_error(
    first: bytes, second: bytes, at: int
) -> None:
    one_input(first[:at] + second[at:])


@settings(deadline=None, max_examples=100)
@given(events())
def test_whatever_the_kernel_sends_is_an_event(event: object) -> None:
    found = one_input(encode(event))  # type: ignore[arg-type]
    assert plain(found) == plain(event)
