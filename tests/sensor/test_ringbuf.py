"""The reader on a real ring buffer: in order, whole, and kept until committed."""

import os
import threading
from collections.abc import Iterator

import pytest

from agent.errors import LoadError
from agent.sensor import bpf
from agent.sensor.ringbuf import Batch, RingReader
from tests.sensor.ring_source import RingSource

SIZE = 100
SPACE = 112
"""Bytes of the ring that a record of SIZE takes: its header, and alignment."""
PATIENCE_S = 30.0


class Ring:
    """A ring of one page, its writer, and readers of it."""

    def __init__(self) -> None:
        page = os.sysconf("SC_PAGE_SIZE")
        spec = bpf.MapSpec(bpf.MAP_RINGBUF, 0, 0, page, 0)
        self.fd = bpf.map_create("test_ring", spec)
        self.source = RingSource(self.fd, SIZE)
        self.reader = RingReader(self.fd)
        self.places = page // SPACE

    def fill(self, start: int, count: int) -> int:
        """Write numbered records; returns how many found room."""
        return sum(self.source.write(record(start + i)) for i in range(count))

    def reopen(self) -> RingReader:
        self.reader.close()
        self.reader = RingReader(self.fd)
        return self.reader

    def close(self) -> None:
        self.reader.close()
        self.source.close()
        os.close(self.fd)


@pytest.fixture
def ring() -> Iterator[Ring]:
    if os.geteuid():
        pytest.skip("loading a program needs root")
    try:
        one = Ring()
    except (OSError, LoadError) as error:
        pytest.skip(f"this kernel lets us load no program: {error}")
    yield one
    one.close()


def record(number: int) -> bytes:
    return number.to_bytes(4, "little") + bytes([number % 251]) * (SIZE - 4)


def contents(batch: Batch) -> list[bytes]:
    return [batch.data[at : at + size] for at, size in batch.records]


def numbers(batch: Batch) -> list[int]:
    for one in contents(batch):
        assert one == record(int.from_bytes(one[:4], "little"))
    return [int.from_bytes(one[:4], "little") for one in contents(batch)]


def test_records_come_whole_and_in_order(ring: Ring) -> None:
    ring.fill(0, 5)
    assert not ring.reader.drained
    assert numbers(ring.reader.read()) == [0, 1, 2, 3, 4]
    assert ring.reader.drained
    assert ring.reader.unread == 0


def test_an_empty_ring_gives_an_empty_batch(ring: Ring) -> None:
    batch = ring.reader.read()
    assert (batch.records, batch.data, batch.start) == ([], b"", batch.end)


def test_a_record_s_ring_position_is_where_its_space_begins(ring: Ring) -> None:
    ring.fill(0, 3)
    batch = ring.reader.read()
    places = [batch.position(at) for at, _ in batch.records]
    assert places == [batch.start, batch.start + SPACE, batch.start + 2 * SPACE]
    assert batch.end == batch.start + 3 * SPACE


def test_what_was_read_and_not_committed_is_read_again_by_the_next_reader(
    ring: Ring,
) -> None:
    ring.fill(0, 4)
    ring.reader.read()
    assert numbers(ring.reopen().read()) == [0, 1, 2, 3]


def test_a_commit_in_the_middle_keeps_what_is_behind_it(ring: Ring) -> None:
    ring.fill(0, 4)
    batch = ring.reader.read()
    ring.reader.commit(batch.position(batch.records[2][0]))
    reader = ring.reopen()
    assert reader.position == batch.position(batch.records[2][0])
    assert numbers(reader.read()) == [2, 3]


def test_the_kernel_gets_its_space_back_only_by_a_commit(ring: Ring) -> None:
    written = ring.fill(0, ring.places + 5)
    assert written < ring.places + 5
    batch = ring.reader.read()
    assert numbers(batch) == list(range(written))
    assert ring.fill(written, 1) == 0
    ring.reader.commit(batch.end)
    assert ring.fill(written, 1) == 1
    assert numbers(ring.reader.read()) == [written]


def test_records_that_lie_across_the_end_of_the_ring_are_whole(ring: Ring) -> None:
    seen: list[int] = []
    for turn in range(40):
        assert ring.fill(turn * 7, 7) == 7
        batch = ring.reader.read()
        seen += numbers(batch)
        ring.reader.commit(batch.end)
    assert seen == list(range(280))
    assert batch.end > 4 * ring.reader.size


def test_a_record_that_was_given_up_is_passed_over(ring: Ring) -> None:
    ring.fill(0, 1)
    ring.source.give_up()
    ring.fill(1, 1)
    batch = ring.reader.read()
    assert numbers(batch) == [0, 1]
    assert batch.end == batch.start + 3 * SPACE


def waits(reader: RingReader) -> bool:
    """Whether waiting for ever is still going on."""
    thread = threading.Thread(target=reader.wait, args=(3600,), daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    return thread.is_alive()


def test_waiting_ends_when_something_is_there(ring: Ring) -> None:
    ring.fill(0, 1)
    assert not waits(ring.reader)


def test_waiting_ends_when_it_is_woken(ring: Ring) -> None:
    awake, wake = os.pipe()
    ring.reader.wake_on(awake)
    os.write(wake, b"x")
    assert not waits(ring.reader)
    os.close(wake)
    os.close(awake)
