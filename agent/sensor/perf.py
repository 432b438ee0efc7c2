"""Tracepoints and probes as perf events, which BPF programs can be linked to.

In: the kernel's name for a place. Out: a file descriptor. A place that the kernel does
not have is an OSError or a LoadError that names it.
"""

import ctypes
import os
from pathlib import Path

from agent.errors import LoadError
from agent.sensor.bpf import checked


class _PerfEventAttr(ctypes.Structure):
    """The head of struct perf_event_attr, as first published (64 bytes).

    A probe's function is named by the last two members.
    """

    _fields_ = (
        ("type", ctypes.c_uint32),
        ("size", ctypes.c_uint32),
        ("config", ctypes.c_uint64),
        ("sample_period", ctypes.c_uint64),
        ("rest", ctypes.c_uint64 * 3),
        ("bp_type", ctypes.c_uint64),
        ("config1", ctypes.c_uint64),
    )


# perf_event_open has no libc function; numbers from the kernel's syscall tables
_PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241}
_PERF_TYPE_TRACEPOINT = 2
_PERF_FLAG_FD_CLOEXEC = 8


def tracepoint_event(tracing: Path, category: str, name: str) -> int:
    """Open a tracepoint as a perf event, which a link can then be attached to.

    `tracing` is where tracefs is mounted. OSError when the kernel lacks it.
    """
    identifier = int((tracing / "events" / category / name / "id").read_text())
    attr = _PerfEventAttr(
        type=_PERF_TYPE_TRACEPOINT, size=64, config=identifier, sample_period=1
    )
    return _perf_event(attr, f"{category}:{name}")


def kprobe_event(function: str, *, returned: bool) -> int:
    """Open a probe on a kernel function, or on its return, as a perf event.

    LoadError when the kernel has no kprobes, OSError when it has no such function.
    """
    source = Path("/sys/bus/event_source/devices/kprobe")
    if not source.exists():
        raise LoadError("this kernel has no kprobes")
    bit = (source / "format/retprobe").read_text().strip().removeprefix("config:")
    name = ctypes.create_string_buffer(function.encode())
    attr = _PerfEventAttr(
        type=int((source / "type").read_text()),
        size=64,
        config=int(returned) << int(bit),
        sample_period=1,
        config1=ctypes.addressof(name),
    )
    return _perf_event(attr, function)


def _perf_event(attr: _PerfEventAttr, what: str) -> int:
    machine = os.uname().machine
    if machine not in _PERF_EVENT_OPEN:
        raise LoadError(f"perf_event_open has no known number on {machine}")
    libc = ctypes.CDLL(None, use_errno=True)
    return checked(
        libc.syscall(
            _PERF_EVENT_OPEN[machine],
            ctypes.byref(attr),
            -1,
            0,
            -1,
            _PERF_FLAG_FD_CLOEXEC,
        ),
        what,
    )
