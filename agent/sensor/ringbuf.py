"""Read the pinned BPF ring buffer, and give its space back only when told to.

In: the descriptor of a ring buffer map. Out: batches of whole records, in the order
in which the kernel reserved them. The kernel's consumer position moves only by
`commit`, so what was read and not yet recorded is read again after a crash
(docs/decisions/0002-ring-reader.md says why libbpf's reader can't do this).
"""

import ctypes
import mmap
import os
import select
import struct
from typing import NamedTuple

from agent.sensor import bpf

_BUSY, _DISCARD, _HEADER = 1 << 31, 1 << 30, 8
_LENGTH = struct.Struct("<I").unpack_from
MAX_BATCH = 1 << 17
"""Bytes copied out of the ring at a time: some 400 events, which as records need five
times as much."""


class Batch(NamedTuple):
    """Some records: their bytes, where each begins and how long it is.

    `start` and `end` are ring positions; `start + offset - 8` is a record's own.
    """

    data: bytes
    records: list[tuple[int, int]]
    start: int
    end: int

    def position(self, offset: int) -> int:
        """Return the ring position of the record whose bytes begin at `offset`."""
        return self.start + offset - _HEADER


class RingReader:
    """The only consumer of one ring buffer."""

    def __init__(self, fd: int) -> None:
        """Map the ring; `fd` stays the caller's."""
        self.size = bpf.map_spec(fd).max_entries
        page = mmap.PAGESIZE
        self._consumer_page = mmap.mmap(fd, page, mmap.MAP_SHARED)
        # the kernel offers the data twice in a row, so that no record wraps; mapped
        # once it counts once as our memory, and joining two ends is rare
        self._ring = mmap.mmap(
            fd, page + self.size, mmap.MAP_SHARED, mmap.PROT_READ, offset=page
        )
        self._consumer = ctypes.c_uint64.from_buffer(self._consumer_page)
        self._producer = memoryview(self._ring)[:8].cast("Q")
        self._data = page
        self._epoll = select.epoll()
        self._epoll.register(fd, select.EPOLLIN)
        self.position = self._consumer.value
        """Where the next batch begins."""

    def wait(self, seconds: float) -> None:
        """Sleep until the kernel says that there is something, or for that long."""
        self._epoll.poll(seconds)

    def wake_on(self, fd: int) -> None:
        """Let `wait` return when `fd` becomes readable, too."""
        self._epoll.register(fd, select.EPOLLIN)

    @property
    def drained(self) -> bool:
        """Whether everything the kernel has produced so far was read."""
        return self.position >= self._producer[0]

    @property
    def produced(self) -> int:
        """Position up to which the kernel has filled it."""
        return self._producer[0]

    @property
    def unread(self) -> int:
        """Bytes in the ring that no batch has held yet."""
        return self._producer[0] - self.position

    def read(self) -> Batch:
        """Copy the next whole records, at least one if there is any; may be empty."""
        start, produced = self.position, self._producer[0]
        _fence()
        records = []
        at = start
        while at < produced and at - start < MAX_BATCH:
            (length,) = _LENGTH(self._ring, self._data + at % self.size)
            if length & _BUSY:
                break
            size = length & ~_DISCARD
            if not length & _DISCARD:
                records.append((at - start + _HEADER, size))
            at += (size + _HEADER + 7) & ~7
        _fence()
        self.position = at
        return Batch(self._copy(start, at), records, start, at)

    def take(self) -> bytes:
        """Copy and give back all there is, headers included; nobody may be writing."""
        _fence()
        start, end = self.position, self._producer[0]
        data = self._copy(start, end)
        self.position = end
        self.commit(end)
        return data

    def _copy(self, start: int, end: int) -> bytes:
        first, size = start % self.size, end - start
        until = min(self.size - first, size)
        at = self._data + first
        data = self._ring[at : at + until]
        if until < size:
            data += self._ring[self._data : self._data + size - until]
        return data

    def commit(self, position: int) -> None:
        """Give the space before this position back to the kernel."""
        _fence()
        self._consumer.value = position

    def close(self) -> None:
        """Unmap; the consumer position stays in the map."""
        self._epoll.close()
        self._producer.release()
        self._ring.close()
        del self._consumer
        self._consumer_page.close()


_MEMBARRIER = {"aarch64": 283}
_GLOBAL_EXPEDITED = 1 << 1


def _no_fence() -> None:
    """x86 orders loads with loads and stores after loads by itself."""


def _membarrier() -> None:
    """Fence fully by membarrier(2): nothing in Python or libc is one for sure."""
    ctypes.CDLL(None).syscall(_MEMBARRIER[os.uname().machine], _GLOBAL_EXPEDITED, 0, 0)


_fence = _no_fence if os.uname().machine == "x86_64" else _membarrier
