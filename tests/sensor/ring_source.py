"""Something that writes into a ring buffer: only the kernel may, so a program does it.

In: a ring buffer map, and the size of its records. Out: a BPF program that copies a
packet it is run with into the ring, once for each run. It is attached to nothing.
"""

import ctypes
import os
import struct

from agent.sensor import bpf

SOCKET_FILTER = 1
_TEST_RUN = 10
_BPF_CALL = {"x86_64": 321, "aarch64": 280}  # bpf(2) in the system call tables
_ETHERNET = bytes(14)  # the kernel takes it off before the program runs
LOAD_BYTES, RING_OUTPUT, RING_RESERVE, RING_DISCARD = 26, 130, 131, 133  # helpers
MOV_IMM, MOV, ADD_IMM, CALL, EXIT, LD_IMM64 = 0xB7, 0xBF, 0x07, 0x85, 0x95, 0x18
SKIP_IF_ZERO = 0x15
FRAME = 10


def _op(code: int, dst: int = 0, src: int = 0, value: int = 0, skip: int = 0) -> bytes:
    return struct.pack("<BBhi", code, src << 4 | dst, skip, value)


def _stack(dst: int, size: int) -> bytes:
    return _op(MOV, dst, FRAME) + _op(ADD_IMM, dst, 0, -size)


def _program(ring: int, size: int) -> bytes:
    """skb_load_bytes(skb, 0, stack, size); return ringbuf_output(ring, stack, size)."""
    room = size + -size % 8
    return b"".join(
        [
            _op(MOV_IMM, 2, 0, 0),
            _stack(3, room),
            _op(MOV_IMM, 4, 0, size),
            _op(CALL, value=LOAD_BYTES),
            _op(LD_IMM64, 1, 1, ring) + bytes(8),
            _stack(2, room),
            _op(MOV_IMM, 3, 0, size),
            _op(MOV_IMM, 4, 0, 0),
            _op(CALL, value=RING_OUTPUT),
            _op(EXIT),
        ]
    )


def _giving_up(ring: int, size: int) -> bytes:
    """ringbuf_discard(ringbuf_reserve(ring, size)); return 0."""
    return b"".join(
        [
            _op(LD_IMM64, 1, 1, ring) + bytes(8),
            _op(MOV_IMM, 2, 0, size),
            _op(MOV_IMM, 3, 0, 0),
            _op(CALL, value=RING_RESERVE),
            _op(SKIP_IF_ZERO, skip=3),
            _op(MOV, 1, 0),
            _op(MOV_IMM, 2, 0, 0),
            _op(CALL, value=RING_DISCARD),
            _op(MOV_IMM),
            _op(EXIT),
        ]
    )


class RingSource:
    """Writes records of `size` bytes (at most 512) into a ring buffer."""

    def __init__(self, ring: int, size: int) -> None:
        """OSError or LoadError when this process may not load a program."""
        self._size = size
        code = _program(ring, size)
        self._writes = bpf.prog_load("ring_source", SOCKET_FILTER, code).fd
        code = _giving_up(ring, size)
        self._gives_up = bpf.prog_load("ring_discard", SOCKET_FILTER, code).fd

    def write(self, record: bytes) -> bool:
        """Write one record; False when the ring is full."""
        return self._run(self._writes, record) == 0

    def give_up(self) -> None:
        """Take the space of a record, and do not write it."""
        assert self._run(self._gives_up, b"") == 0

    def _run(self, program: int, record: bytes) -> int:
        packet = ctypes.create_string_buffer(
            _ETHERNET + record.ljust(self._size, b"\0")
        )
        attr = ctypes.create_string_buffer(128)
        place, size = ctypes.addressof(packet), len(_ETHERNET) + self._size
        struct.pack_into("<IIIIQ", attr, 0, program, 0, size, 0, place)
        libc = ctypes.CDLL(None, use_errno=True)
        number = _BPF_CALL[os.uname().machine]
        if libc.syscall(number, _TEST_RUN, attr, len(attr)) < 0:
            raise OSError(ctypes.get_errno(), "the program could not be run")
        (result,) = struct.unpack_from("<i", attr, 4)
        return int(result)

    def close(self) -> None:
        os.close(self._writes)
        os.close(self._gives_up)
