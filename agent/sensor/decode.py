"""Bytes of one record to an Event: pure, total, bounded.

In: bytes from the ring. Out: an Event, or a piece of argv that belongs to an exec
before it. Any bytes whatever give one of these or a DecodeError; nothing is read
beyond the record's own size and nothing missing is filled in.
"""

import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import msgspec

from agent.errors import DecodeError
from agent.events import (
    Access,
    AccessKind,
    Context,
    Denied,
    Event,
    Exec,
    ExecFailed,
    Executable,
    Exit,
    Flag,
    Fork,
    Image,
    Prctl,
    PrctlOption,
    ProcessKey,
    Task,
)
from agent.sensor import wire
from agent.sensor.headers import ENVIRONMENT

_ENVIRONMENT = frozenset(name.encode() for name in ENVIRONMENT)
_HEAD_VALUES = len(wire.HEAD_FIELDS)
_BODY = _HEAD_VALUES + len(wire.TASK_FIELDS)
_KINDS = len(wire.Kind)
_MEMFD, _DELETED = 1, 2
_KERNEL = 1
_KIND_AT = 2  # of the low byte of `kind` in the head
_ARGV_FAULT = int(Flag.ARGV_FAULT)
_EXE_CUT, _CWD_CUT = int(Flag.EXE_CUT), int(Flag.CWD_CUT)


class ArgvPiece(msgspec.Struct, frozen=True, gc=False):
    """More bytes of the argv of the exec that came before it on the same CPU."""

    cpu: int
    seq: int
    bt_ns: int
    key: ProcessKey
    offset: int
    argv: bytes


def decode(raw: bytes, at: int, size: int) -> Event | ArgvPiece:
    """Decode the record of `size` bytes at `at`; DecodeError says what is wrong."""
    if size < wire.HEAD.size or at < 0 or at + size > len(raw):
        raise DecodeError(f"{size} bytes at {at} of {len(raw)} are no record")
    rule = _RULES.get(raw[at + _KIND_AT])
    if rule is None:
        raise DecodeError(f"unknown kind {raw[at + _KIND_AT]}")
    layout, build, lengths = rule
    if size < layout.size:
        raise DecodeError(f"a record of {size} bytes, shorter than its fixed part")
    values = layout.unpack_from(raw, at)
    if values[0] != wire.VERSION or values[1] > _KINDS or values[2] != size:
        raise DecodeError(f"version {values[0]}, {values[2]} bytes: expected {size}")
    begin = at + layout.size
    if begin + sum(values[-lengths:]) != at + size:
        raise DecodeError("the variable fields do not fill the record")
    return build(values, raw, begin)


def decode_folded(raw: bytes) -> tuple[Access, int]:
    """Decode an entry of the map `folds`: the event, and how much of it was sent.

    The event's count is that of all accesses so far; the second value is the count
    that the last event sent through the ring had.
    """
    _, sent = wire.FOLD.unpack_from(raw)
    values = wire.ACCESS.unpack_from(raw, wire.FOLD.size)
    event = _access((*values[:-4], 0, 0, 0, 0), b"", 0)
    return msgspec.structs.replace(event, cwd=b""), sent  # not kept in the map


@lru_cache(maxsize=1024)
def _executable_facts(raw: bytes) -> Executable:
    ino, dev, nlink, uid, mode, flags, _ = wire.EXECUTABLE.unpack(raw)
    memfd, deleted = bool(flags & _MEMFD), bool(flags & _DELETED)
    return Executable(ino, dev, nlink, uid, mode, memfd, deleted)


@lru_cache(maxsize=1024)
def _context(raw: bytes) -> Context:
    return Context(*wire.CONTEXT.unpack(raw)[:-1])


@lru_cache(maxsize=2048)
def _image(raw: bytes) -> Image:
    comm, executable, context = wire.IMAGE.unpack(raw)
    return Image(
        comm.partition(b"\0")[0], _executable_facts(executable), _context(context)
    )


def task(  # noqa: PLR0913, PLR0917 - a row of the wire format
    start: int,
    real_start: int,
    parent_start: int,
    tgid: int,
    tid: int,
    real_tgid: int,
    parent_tgid: int,
    pgid: int,
    sid: int,
    vpid: int,
    ptrace: int,
    leader: int,
    bits: int,
    image: bytes,
) -> Task:
    """Build a task from what wire.TASK unpacks to."""
    real_parent = parent = ProcessKey(real_tgid, real_start)
    if parent_start != real_start or parent_tgid != real_tgid:
        parent = ProcessKey(parent_tgid, parent_start)
    return Task(
        ProcessKey(tgid, start),
        real_parent,
        parent,
        tid,
        pgid,
        sid,
        vpid,
        ptrace,
        leader,
        bits & _KERNEL != 0,
        _image(image),
    )


@lru_cache(maxsize=1024)
def _path(leaf_first: bytes) -> bytes:
    """Turn the kernel's walk, leaf first with NUL after each name, into a path."""
    names = leaf_first.split(b"\0")[-2::-1]
    return b"/" + b"/".join(names)


@lru_cache(maxsize=1024)
def _cut_path(leaf_first: bytes) -> bytes:
    """Turn a walk that did not reach the root into a path that stays relative."""
    return _path(leaf_first)[1:]


def _cwd(flags: int, walk: bytes) -> bytes:
    return _cut_path(walk) if flags & _CWD_CUT else _path(walk)


def _executable(flags: int, memfd: bool, walk: bytes) -> bytes:
    if flags & _EXE_CUT or memfd:
        return _cut_path(walk)
    return _path(walk)


@lru_cache(maxsize=1024)
def _environment(raw: bytes) -> tuple[bytes, ...]:
    """Keep the variables that are wanted; the kernel compared only eight bytes."""
    return tuple(
        one for one in raw.split(b"\0") if one.partition(b"=")[0] in _ENVIRONMENT
    )


# Builders: `v` is the whole unpacked fixed part, `at` where the variable fields begin.
# The four kinds that come by the thousand take it apart in one assignment.


def _exec(v: tuple[Any, ...], raw: bytes, at: int) -> Event:
    _, _, _, cpu, flags, seq, bt_ns, *who, size, argc, _, old_tid, _ = v[:-6]
    exe, cwd, invoked, interpreter, env, argv = v[-6:]
    cwd_at = at + exe
    invoked_at = cwd_at + cwd
    interpreter_at = invoked_at + invoked
    env_at = interpreter_at + interpreter
    argv_at = env_at + env
    process = task(*who)
    return Exec(
        cpu,
        seq,
        bt_ns,
        flags,
        1,
        False,
        process,
        _cwd(flags, raw[cwd_at:invoked_at]),
        old_tid,
        argc,
        size,
        b"" if flags & _ARGV_FAULT else raw[argv_at : argv_at + argv],
        _executable(flags, process.image.executable.memfd, raw[at:cwd_at]),
        raw[invoked_at : interpreter_at - 1] if invoked else b"",
        raw[interpreter_at : env_at - 1] if interpreter else b"",
        _environment(raw[env_at:argv_at]) if env else (),
    )


def _argv(v: tuple[Any, ...], raw: bytes, at: int) -> ArgvPiece:
    _, _, _, cpu, flags, seq, bt_ns, start, tgid, _, offset, size, _ = v
    argv = b"" if flags & _ARGV_FAULT else raw[at : at + size]
    return ArgvPiece(cpu, seq, bt_ns, ProcessKey(tgid, start), offset, argv)


def _exec_failed(v: tuple[Any, ...], raw: bytes, at: int) -> Event:
    _, _, _, cpu, flags, seq, bt_ns, *who, error, argc, cwd, path, argv, _ = v
    path_at = at + cwd
    argv_at = path_at + path
    return ExecFailed(
        cpu,
        seq,
        bt_ns,
        flags,
        1,
        False,
        task(*who),
        _cwd(flags, raw[at:path_at]),
        -error,
        argc,
        raw[path_at : argv_at - 1] if path else b"",
        raw[argv_at : argv_at + argv],
    )


def _fork(v: tuple[Any, ...], raw: bytes, at: int) -> Event:
    _, _, _, cpu, flags, seq, bt_ns, *who, start, clone, tgid, tid, size, _ = v
    cwd, creator = _cwd(flags, raw[at : at + size]), ProcessKey(tgid, start)
    return Fork(cpu, seq, bt_ns, flags, 1, False, task(*who), cwd, creator, tid, clone)


def _exit(v: tuple[Any, ...], raw: bytes, at: int) -> Event:
    _, _, _, cpu, flags, seq, bt_ns, *who, status, _, size, _ = v
    cwd = _cwd(flags, raw[at : at + size])
    return Exit(cpu, seq, bt_ns, flags, 1, False, task(*who), cwd, status)


def _access(v: tuple[Any, ...], raw: bytes, at: int) -> Access:
    first, last, count, result, kind, named, detail, denied = v[-12:-4]
    try:
        access, by = AccessKind(kind), Denied(denied)
    except ValueError as error:
        raise DecodeError(f"unknown access {kind}, denied {denied}") from error
    path = at + v[-4] + v[-3]
    return Access(
        cpu=v[3],
        seq=v[5],
        bt_ns=v[6],
        flags=v[4],
        parts=1,
        backlog=False,
        task=task(*v[_HEAD_VALUES:_BODY]),
        cwd=_cwd(v[4], raw[at : at + v[-4]]),
        target=task(*v[_BODY : _BODY + len(wire.TASK_FIELDS)]),
        kind=access,
        result=result,
        count=count,
        first_ns=first,
        last_ns=last,
        requested_pid=named,
        detail=detail,
        denied=by,
        path=raw[path : path + v[-2]].partition(b"\0")[0],
    )


def _prctl(v: tuple[Any, ...], raw: bytes, at: int) -> Event:
    _, _, _, cpu, flags, seq, bt_ns, *who, result, count, option, argument, size, _ = v
    try:
        what = PrctlOption(option)
    except ValueError as error:
        raise DecodeError(f"unknown prctl option {option}") from error
    cwd = _cwd(flags, raw[at : at + size])
    about = (cpu, seq, bt_ns, flags, 1, False, task(*who), cwd)
    return Prctl(*about, what, argument, result, count)


_RULES: dict[int, tuple[struct.Struct, Callable[..., Event | ArgvPiece], int]] = {
    wire.Kind.EXEC: (wire.EXEC, _exec, 6),
    wire.Kind.ARGV: (wire.ARGV, _argv, 2),
    wire.Kind.EXEC_FAILED: (wire.EXEC_FAILED, _exec_failed, 4),
    wire.Kind.FORK: (wire.FORK, _fork, 2),
    wire.Kind.EXIT: (wire.EXIT, _exit, 2),
    wire.Kind.ACCESS: (wire.ACCESS, _access, 4),
    wire.Kind.PRCTL: (wire.PRCTL, _prctl, 2),
}
