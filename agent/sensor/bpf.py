"""The bpf(2) system call through libbpf's low-level functions: objects by descriptor.

In: plain integers, bytes and paths. Out: file descriptors and map values. libbpf comes
with the distribution's bcc but needs neither bcc nor LLVM; a failed call is an OSError
with the errno the kernel gave.
"""

import ctypes
import errno
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

from agent.errors import LoadError

MAP_ARRAY, MAP_RINGBUF = 2, 27
PROG_KPROBE, PROG_TRACEPOINT, PROG_RAW_TRACEPOINT = 2, 5, 17
PROG_TRACING, PROG_LSM = 26, 29
ATTACH_TRACE_RAW_TP, ATTACH_TRACE_FENTRY, ATTACH_TRACE_FEXIT = 23, 24, 25
ATTACH_MODIFY_RETURN, ATTACH_LSM, ATTACH_TRACE_ITER, ATTACH_PERF_EVENT = 26, 27, 28, 41
_LOG_BYTES = 1 << 20
_LOG_TAIL = 400
_LOG_REASONS, _LOG_COUNTS = 1, 4
_COUNTS_BYTES = 1024


class _ProgLoadOpts(ctypes.Structure):
    """struct bpf_prog_load_opts of libbpf 1.0; later fields are optional by `sz`."""

    _fields_ = (
        ("sz", ctypes.c_size_t),
        ("attempts", ctypes.c_int),
        ("expected_attach_type", ctypes.c_int),
        ("prog_btf_fd", ctypes.c_uint32),
        ("prog_flags", ctypes.c_uint32),
        ("prog_ifindex", ctypes.c_uint32),
        ("kern_version", ctypes.c_uint32),
        ("attach_btf_id", ctypes.c_uint32),
        ("attach_prog_fd", ctypes.c_uint32),
        ("attach_btf_obj_fd", ctypes.c_uint32),
        ("fd_array", ctypes.c_void_p),
        ("func_info", ctypes.c_void_p),
        ("func_info_cnt", ctypes.c_uint32),
        ("func_info_rec_size", ctypes.c_uint32),
        ("line_info", ctypes.c_void_p),
        ("line_info_cnt", ctypes.c_uint32),
        ("line_info_rec_size", ctypes.c_uint32),
        ("log_level", ctypes.c_uint32),
        ("log_size", ctypes.c_uint32),
        ("log_buf", ctypes.c_void_p),
    )


class _MapCreateOpts(ctypes.Structure):
    """The head of struct bpf_map_create_opts; the rest is optional by `sz`."""

    _fields_ = (
        ("sz", ctypes.c_size_t),
        ("btf_and_inner_map", ctypes.c_uint32 * 5),
        ("map_flags", ctypes.c_uint32),
    )


class _MapInfo(ctypes.Structure):
    """The head of struct bpf_map_info."""

    _fields_ = (
        ("type", ctypes.c_uint32),
        ("id", ctypes.c_uint32),
        ("key_size", ctypes.c_uint32),
        ("value_size", ctypes.c_uint32),
        ("max_entries", ctypes.c_uint32),
        ("map_flags", ctypes.c_uint32),
        ("name", ctypes.c_char * 16),
    )


class MapSpec(NamedTuple):
    """What a map is made of; sizes in bytes."""

    type: int
    key_size: int
    value_size: int
    max_entries: int
    flags: int


@cache
def _lib() -> ctypes.CDLL:
    try:
        return ctypes.CDLL("libbpf.so.1", use_errno=True)
    except OSError as error:
        raise LoadError(f"libbpf 1.x is not installed: {error}") from error


def checked(result: int, what: str) -> int:
    """Return the result of a system call; OSError with its errno when it failed."""
    if result < 0:
        number = ctypes.get_errno() or -result
        raise OSError(number, os.strerror(number), what)
    return result


def get(path: Path) -> int:
    """Open a pinned map, program or link; returns its descriptor."""
    return checked(_lib().bpf_obj_get(os.fsencode(path)), str(path))


def pin(fd: int, path: Path) -> None:
    """Give an object a name in bpffs, so that it outlives its descriptor."""
    checked(_lib().bpf_obj_pin(fd, os.fsencode(path)), str(path))


def map_create(name: str, spec: MapSpec) -> int:
    """Create a map; returns its descriptor."""
    opts = _MapCreateOpts(sz=ctypes.sizeof(_MapCreateOpts), map_flags=spec.flags)
    return checked(
        _lib().bpf_map_create(
            spec.type,
            name.encode()[:15],
            spec.key_size,
            spec.value_size,
            spec.max_entries,
            ctypes.byref(opts),
        ),
        f"map {name}",
    )


def map_spec(fd: int) -> MapSpec:
    """Ask the kernel what a map is made of."""
    info = _MapInfo()
    _info(fd, info)
    return MapSpec(
        info.type, info.key_size, info.value_size, info.max_entries, info.map_flags
    )


def lookup(fd: int, key: bytes, size: int) -> bytes:
    """Read one value of `size` bytes (all CPUs' together for a per-CPU map)."""
    value = ctypes.create_string_buffer(size)
    checked(_lib().bpf_map_lookup_elem(fd, key, value), "map lookup")
    return value.raw


def update(fd: int, key: bytes, value: bytes) -> None:
    """Write one value."""
    checked(_lib().bpf_map_update_elem(fd, key, value, 0), "map update")


def peek(fd: int, key: bytes, size: int) -> bytes | None:
    """Read one value; None when there is no such key (any more)."""
    value = ctypes.create_string_buffer(size)
    return None if _lib().bpf_map_lookup_elem(fd, key, value) < 0 else value.raw


def delete(fd: int, key: bytes) -> bool:
    """Remove one key; False when it was not there."""
    return bool(_lib().bpf_map_delete_elem(fd, key) == 0)


def take(fd: int, key: bytes, size: int) -> bytes | None:
    """Read one value and delete it; None when it is gone already.

    In one step since 5.14; before, a change in between is lost.
    """
    value = ctypes.create_string_buffer(size)
    if _lib().bpf_map_lookup_and_delete_elem(fd, key, value) == 0:
        return value.raw
    found = peek(fd, key, size)
    return found if found is not None and delete(fd, key) else None


def keys(fd: int, key_size: int) -> Iterator[bytes]:
    """List the keys of a hash; one deleted meanwhile may restart the list."""
    key: bytes | None = None
    following = ctypes.create_string_buffer(key_size)
    while _lib().bpf_map_get_next_key(fd, key, following) == 0:
        key = following.raw
        yield key


class Program(NamedTuple):
    """A loaded program, and how many instructions the verifier followed for it."""

    fd: int
    instructions: int


def prog_load(
    name: str, kind: int, code: bytes, attach_type: int = 0, btf_id: int = 0
) -> Program:
    """Load a program.

    The verifier's whole log is asked for only after a failure: it costs time.
    LoadError carries the errno's name and the end of that log.
    """
    fd, log = _load(name, kind, code, (attach_type, btf_id), _LOG_COUNTS)
    if fd >= 0:
        counted = re.search(r"processed (\d+) insns", log)
        return Program(fd, int(counted[1]) if counted else 0)
    _, log = _load(name, kind, code, (attach_type, btf_id), _LOG_REASONS)
    raise LoadError(_refusal(name, -fd, log))


def _load(
    name: str, kind: int, code: bytes, where: tuple[int, int], level: int
) -> tuple[int, str]:
    size = _LOG_BYTES if level == _LOG_REASONS else _COUNTS_BYTES
    log = ctypes.create_string_buffer(size)
    opts = _ProgLoadOpts(
        sz=ctypes.sizeof(_ProgLoadOpts),
        expected_attach_type=where[0],
        attach_btf_id=where[1],
        log_level=level,
        log_size=size,
        log_buf=ctypes.addressof(log),
    )
    fd: int = _lib().bpf_prog_load(
        kind,
        re.sub(r"\W", "_", name).encode()[:15],
        b"GPL",
        code,
        ctypes.c_size_t(len(code) // 8),
        ctypes.byref(opts),
    )
    return fd, log.value.decode(errors="replace")


def _refusal(name: str, number: int, log: str) -> str:
    said = log.strip().splitlines()
    reason = [line for line in said if not line.startswith("processed ")][-1:]
    text = f"{name}: {errno.errorcode.get(number, number)}"
    return f"{text}: {reason[0][:_LOG_TAIL]}" if reason else text


def attach_raw_tracepoint(prog: int, tracepoint: str | None) -> int:
    """Attach to a raw tracepoint; returns the link's descriptor.

    A typed program knows its tracepoint since it was loaded: None.
    """
    name = tracepoint.encode() if tracepoint else None
    return checked(_lib().bpf_raw_tracepoint_open(name, prog), str(tracepoint))


def link_create(prog: int, target: int, attach_type: int) -> int:
    """Attach a program to a perf event or an iterator; returns the link."""
    return checked(
        _lib().bpf_link_create(prog, target, attach_type, None), "link create"
    )


class _ProgInfo(ctypes.Structure):
    """struct bpf_prog_info up to recursion_misses (since 5.12); only what is read."""

    _fields_ = (
        ("type", ctypes.c_uint32),
        ("id", ctypes.c_uint32),
        ("before_name", ctypes.c_uint64 * 7),
        ("name", ctypes.c_char * 16),
        ("before_counts", ctypes.c_uint64 * 14),
        ("run_time_ns", ctypes.c_uint64),
        ("run_cnt", ctypes.c_uint64),
        ("recursion_misses", ctypes.c_uint64),
    )


class ProgramInfo(NamedTuple):
    """What the kernel counts of a program; times only while bpf_stats_enabled is set.

    `recursion_misses` is how often it was not run because it was running already.
    """

    run_time_ns: int
    run_cnt: int
    recursion_misses: int


class _LinkInfo(ctypes.Structure):
    """The head of struct bpf_link_info."""

    _fields_ = (
        ("type", ctypes.c_uint32),
        ("id", ctypes.c_uint32),
        ("prog_id", ctypes.c_uint32),
        ("rest", ctypes.c_uint8 * 64),
    )


def program_infos(links: Path) -> dict[str, ProgramInfo]:
    """Ask the kernel about the programs behind the pinned links, by their names.

    One that is loaded for several places counts for all of them together. Needs
    CAP_SYS_ADMIN; without it, or when the pins are gone, the answer is empty.
    """
    infos: dict[str, ProgramInfo] = {}
    pinned = links.iterdir() if links.is_dir() else ()
    for number in {_pinned_program(one) for one in pinned}:
        if told := _program(number):
            before = infos.get(told.name.decode(), ProgramInfo(0, 0, 0))
            infos[told.name.decode()] = ProgramInfo(
                before.run_time_ns + told.run_time_ns,
                before.run_cnt + told.run_cnt,
                before.recursion_misses + told.recursion_misses,
            )
    return infos


def _pinned_program(pinned: Path) -> int:
    """Return the number of a pinned link's program; 0 when it is gone, or no link."""
    with suppress(OSError):
        link = get(pinned)
        try:
            return link_program(link)
        finally:
            os.close(link)
    return 0


def _program(identifier: int) -> _ProgInfo | None:
    program = _lib().bpf_prog_get_fd_by_id(identifier)
    if program < 0:
        return None
    told = _ProgInfo()
    try:
        _info(program, told)
    finally:
        os.close(program)
    return told


def _info(fd: int, info: ctypes.Structure) -> None:
    size = ctypes.c_uint32(ctypes.sizeof(info))
    checked(
        _lib().bpf_obj_get_info_by_fd(fd, ctypes.byref(info), ctypes.byref(size)),
        "object info",
    )


def identify(fd: int) -> tuple[str, int]:
    """Say which object a descriptor stands for: its kind, its number among those."""
    about = _LinkInfo()  # type and id come first, whatever the kind
    _info(fd, about)
    return str(Path(f"/proc/self/fd/{fd}").readlink()), about.id


def link_program(link: int) -> int:
    """Return the number of the program that a link runs."""
    about = _LinkInfo()
    _info(link, about)
    return int(about.prog_id)


def link_update(link: int, program: int) -> None:
    """Let a link run another program; only some kinds of links allow it."""
    checked(_lib().bpf_link_update(link, program, None), "link update")


def program_by_id(number: int) -> int:
    """Open a loaded program by its number; returns its descriptor."""
    return checked(_lib().bpf_prog_get_fd_by_id(number), f"program {number}")


def read_iterator(link: int) -> bytes:
    """Run a BPF iterator once and return all that its program wrote."""
    fd = checked(_lib().bpf_iter_create(link), "iterator")
    with os.fdopen(fd, "rb", buffering=1 << 16) as output:
        return output.read()


class _TestRunOpts(ctypes.Structure):
    """The head of struct bpf_test_run_opts; the rest is optional by `sz`."""

    _fields_ = (
        ("sz", ctypes.c_size_t),
        ("data", ctypes.c_uint64 * 3),
        ("ctx_in", ctypes.c_void_p),
        ("ctx_out", ctypes.c_void_p),
        ("ctx_size_in", ctypes.c_uint32),
        ("ctx_size_out", ctypes.c_uint32),
        ("retval", ctypes.c_uint32),
    )


def test_run(prog: int, argument: int) -> int:
    """Run a raw tracepoint program once with one argument; returns what it returned."""
    context = (ctypes.c_uint64 * 2)(argument, 0)
    opts = _TestRunOpts(
        sz=ctypes.sizeof(_TestRunOpts),
        ctx_in=ctypes.addressof(context),
        ctx_size_in=ctypes.sizeof(context),
    )
    checked(_lib().bpf_prog_test_run_opts(prog, ctypes.byref(opts)), "test run")
    return int(opts.retval)
