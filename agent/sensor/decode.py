"""Bytes of one record to an Event: pure, total, bounded.

In: bytes from the ring. Out: an Event, or a piece of argv that belongs to an exec
before it. Any bytes whatever give one of these or a DecodeError; nothing is read
beyond the record's own size and nothing missing is filled in.
"""

import struct
from functools import lru_cache
from typing import Any

import msgspec

from agent.errors import DecodeError
from agent.events import (
    Access,
    AccessKind,
    Context,
    Event,
    Exec,
    ExecFailed,
    Executable,
    Exit,
    Flag,
    Fork,
    ProcessKey,
    Source,
    Task,
)
from agent.sensor import wire
from agent.sensor.headers import ENVIRONMENT

_ENVIRONMENT = frozenset(name.encode() for name in ENVIRONMENT)
_HEAD_VALUES = len(wire.HEAD_FIELDS)
_BODY = _HEAD_VALUES + len(wire.TASK_FIELDS)
_MEMFD, _DELETED = 1, 2


class ArgvPiece(msgspec.Struct, frozen=True, gc=False):
    """More bytes of the argv of the exec that came before it on the same CPU."""

    source: Source
    key: ProcessKey
    offset: int
    argv: bytes


def decode(raw: bytes, at: int, size: int) -> Event | ArgvPiece:
    """Decode the record of `size` bytes at `at`; DecodeError says what is wrong."""
    try:
        head = wire.HEAD.unpack_from(raw, at)
    except struct.error as error:
        raise DecodeError(f"a record of {size} bytes has no head") from error
    version, kind, stated = head[:3]
    if version != wire.VERSION:
        raise DecodeError(f"wire version {version}, expected {wire.VERSION}")
    if stated != size or at + size > len(raw):
        raise DecodeError(f"the head says {stated} bytes, the ring {size}")
    rule = _RULES.get(kind)
    if rule is None:
        raise DecodeError(f"unknown kind {kind}")
    layout, build, fields = rule
    if size < layout.size:
        raise DecodeError(f"kind {kind} needs {layout.size} bytes, has {size}")
    values = layout.unpack_from(raw, at)
    return build(values, _variable(raw, at + layout.size, at + size, values[-fields:]))


def decode_folded(raw: bytes) -> tuple[Access, int]:
    """Decode an entry of the map `folds`: the event, and how much of it was sent.

    The event's count is that of all accesses so far; the second value is the count
    that the last event sent through the ring had.
    """
    _, sent = wire.FOLD.unpack_from(raw)
    values = wire.ACCESS.unpack_from(raw, wire.FOLD.size)
    return _access(values, [b""] * 4), sent


def _variable(raw: bytes, at: int, end: int, lengths: tuple[int, ...]) -> list[bytes]:
    """Cut the variable fields; together they fill the record exactly."""
    fields = []
    for length in lengths:
        fields.append(raw[at : at + length])
        at += length
    if at != end:
        raise DecodeError(f"variable fields end {at - end:+d} bytes off the record")
    return fields


def _source(v: tuple[Any, ...]) -> Source:
    return Source(v[3], v[5], v[6], v[4])


@lru_cache(maxsize=4096)
def _executable_facts(raw: bytes) -> Executable:
    ino, dev, nlink, uid, mode, flags, _ = wire.EXECUTABLE.unpack(raw)
    memfd, deleted = bool(flags & _MEMFD), bool(flags & _DELETED)
    return Executable(ino, dev, nlink, uid, mode, memfd, deleted)


@lru_cache(maxsize=4096)
def _context(raw: bytes) -> Context:
    return Context(*wire.CONTEXT.unpack(raw)[:-1])


@lru_cache(maxsize=4096)
def _comm(raw: bytes) -> bytes:
    return raw.partition(b"\0")[0]


def task(values: tuple[Any, ...]) -> Task:
    """Build a task from what wire.TASK unpacks to."""
    start, real_start, parent_start, tgid, tid, real, parent, *rest = values
    pgid, sid, vpid, ptrace, comm, executable, context = rest
    return Task(
        ProcessKey(tgid, start),
        ProcessKey(real, real_start),
        ProcessKey(parent, parent_start),
        tid,
        pgid,
        sid,
        vpid,
        ptrace,
        _comm(comm),
        _executable_facts(executable),
        _context(context),
    )


@lru_cache(maxsize=4096)
def _path(leaf_first: bytes) -> bytes:
    """Turn the kernel's walk, leaf first with NUL after each name, into a path."""
    names = leaf_first.split(b"\0")[-2::-1]
    return b"/" + b"/".join(names)


@lru_cache(maxsize=4096)
def _cut_path(leaf_first: bytes) -> bytes:
    """Turn a walk that did not reach the root into a path that stays relative."""
    return _path(leaf_first)[1:]


def _cwd(flags: int, walk: bytes) -> bytes:
    return _cut_path(walk) if flags & Flag.CWD_CUT else _path(walk)


def _executable(flags: int, memfd: bool, walk: bytes) -> bytes:
    if flags & Flag.EXE_CUT or memfd:
        return _cut_path(walk)
    return _path(walk)


@lru_cache(maxsize=1024)
def _environment(raw: bytes) -> tuple[bytes, ...]:
    """Keep the variables that are wanted; the kernel compared only eight bytes."""
    return tuple(
        one for one in raw.split(b"\0") if one.partition(b"=")[0] in _ENVIRONMENT
    )


def _exec(v: tuple[Any, ...], f: list[bytes]) -> Event:
    who = task(v[_HEAD_VALUES:_BODY])
    return Exec(
        _source(v),
        who,
        v[_BODY + 3],
        v[_BODY + 1],
        v[_BODY],
        b"" if v[4] & Flag.ARGV_FAULT else f[5],
        _executable(v[4], who.executable.memfd, f[0]),
        _cwd(v[4], f[1]),
        f[2][:-1],
        f[3][:-1],
        _environment(f[4]),
    )


def _argv(v: tuple[Any, ...], f: list[bytes]) -> ArgvPiece:
    start, tgid, _, offset = v[_HEAD_VALUES : _HEAD_VALUES + 4]
    argv = b"" if v[4] & Flag.ARGV_FAULT else f[0]
    return ArgvPiece(_source(v), ProcessKey(tgid, start), offset, argv)


def _exec_failed(v: tuple[Any, ...], f: list[bytes]) -> Event:
    return ExecFailed(
        _source(v),
        task(v[_HEAD_VALUES:_BODY]),
        -v[_BODY],
        v[_BODY + 1],
        _cwd(v[4], f[0]),
        f[1][:-1],
        f[2],
    )


def _fork(v: tuple[Any, ...], f: list[bytes]) -> Event:
    start, clone_flags, tgid, tid = v[_BODY : _BODY + 4]
    return Fork(
        _source(v),
        task(v[_HEAD_VALUES:_BODY]),
        ProcessKey(tgid, start),
        tid,
        clone_flags,
        _cwd(v[4], f[0]),
    )


def _exit(v: tuple[Any, ...], f: list[bytes]) -> Event:
    return Exit(_source(v), task(v[_HEAD_VALUES:_BODY]), v[_BODY], _cwd(v[4], f[0]))


def _access(v: tuple[Any, ...], f: list[bytes]) -> Access:
    first, last, count, result, kind, named, detail = v[-12:-5]
    try:
        access = AccessKind(kind)
    except ValueError as error:
        raise DecodeError(f"unknown access {kind}") from error
    return Access(
        source=_source(v),
        task=task(v[_HEAD_VALUES:_BODY]),
        target=task(v[_BODY : _BODY + len(wire.TASK_FIELDS)]),
        kind=access,
        result=result,
        count=count,
        first_ns=first,
        last_ns=last,
        requested_pid=named,
        detail=detail,
        cwd=_cwd(v[4], f[0]),
        path=f[2].partition(b"\0")[0],
    )


_RULES = {
    wire.Kind.EXEC: (wire.EXEC, _exec, 6),
    wire.Kind.ARGV: (wire.ARGV, _argv, 2),
    wire.Kind.EXEC_FAILED: (wire.EXEC_FAILED, _exec_failed, 4),
    wire.Kind.FORK: (wire.FORK, _fork, 2),
    wire.Kind.EXIT: (wire.EXIT, _exit, 2),
    wire.Kind.ACCESS: (wire.ACCESS, _access, 4),
}
