"""The one door to time: boot time, wall time, and how good the clock is now.

In: the kernel's clocks and adjtimex(2). Out: times in nanoseconds, and the
state of the clock with an error bound. Reading is all it does: no clock is ever
set, and an unknown state is never a good one.
"""

import ctypes
import errno
import time
from functools import cache
from typing import NamedTuple

_STA_UNSYNC, _STA_NANO, _TIME_ERROR = 0x40, 0x2000, 5


class _Timex(ctypes.Structure):
    """struct timex of adjtimex(2), the same on every 64-bit architecture."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("constant", ctypes.c_long),
        ("precision", ctypes.c_long),
        ("tolerance", ctypes.c_long),
        ("time", ctypes.c_long * 2),
        ("tick", ctypes.c_long),
        ("rest", ctypes.c_long * 20),
    )


class ClockState(NamedTuple):
    """What the kernel says of its own clock.

    `offset_ns` is what it is still slewing away, `error_ns` the bound it gives
    (None: it gives none), `state` is `synchronised`, `unsynchronised` or `unknown`.
    """

    state: str
    offset_ns: int
    error_ns: int | None


class WallAnchor(NamedTuple):
    """Wall time less boot time, ns, and how exactly the two were read together."""

    offset_ns: int
    uncertainty_ns: int


def boot_ns() -> int:
    """Nanoseconds since boot, suspend included (CLOCK_BOOTTIME)."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def wall_anchor() -> WallAnchor:
    """Read CLOCK_REALTIME between two reads of CLOCK_BOOTTIME; best of three."""
    best = WallAnchor(0, 1 << 62)
    for _ in range(3):
        before = boot_ns()
        wall = time.clock_gettime_ns(time.CLOCK_REALTIME)
        after = boot_ns()
        if after - before < best.uncertainty_ns:
            best = WallAnchor(wall - (before + after) // 2, after - before)
    return best


def kernel_state() -> ClockState:
    """Ask adjtimex(2) without changing anything."""
    timex = _Timex()
    result = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(timex))
    if result < 0:
        return ClockState(f"unknown: {errno.errorcode[ctypes.get_errno()]}", 0, None)
    unit = 1 if timex.status & _STA_NANO else 1000
    offset = timex.offset * unit
    if result == _TIME_ERROR or timex.status & _STA_UNSYNC:
        return ClockState("unsynchronised", offset, None)
    return ClockState("synchronised", offset, timex.maxerror * 1000)


@cache  # /proc may be covered when a new segment asks for it
def boot_id() -> str:
    """Return the kernel's random id of this boot."""
    with open("/proc/sys/kernel/random/boot_id") as file:  # noqa: PTH123
        return file.read().strip()
