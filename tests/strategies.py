"""Whatever the kernel may send, for hypothesis.

In: nothing. Out: strategies for every kind of event, with bytes that no program would
choose for itself but that an attacker may.
"""

from typing import Any

from hypothesis import strategies as st

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
from agent.sensor.headers import ENVIRONMENT

u16, u32, u64 = (st.integers(0, (1 << bits) - 1) for bits in (16, 32, 64))
s32 = st.integers(-(1 << 31), (1 << 31) - 1)
s64 = st.integers(-(1 << 63), (1 << 63) - 1)
# Nanoseconds since boot or since 1970 that a calendar can hold.
times = st.integers(0, 1 << 61)

_NASTY = [b"\0", b"/", b" ", b"\n", b"\x1b[2J", b'"', b"\\", b"%s", b"\xff\xfe"]
_NASTY += ["\u202e".encode(), "é".encode(), b"\xed\xa0\x80", b"\xc3", b"a", b"{}"]


def words(without: bytes = b"\0", **sizes: int) -> st.SearchStrategy[bytes]:
    """Bytes without some of them, often nasty ones."""

    def clean(raw: bytes) -> bytes:
        return bytes(byte for byte in raw if byte not in without)

    nasty = st.lists(st.sampled_from(_NASTY), max_size=6).map(b"".join)
    minimum = sizes.get("min_size", 0)
    both = (nasty | st.binary(max_size=sizes.get("max_size", 24))).map(clean)
    return both.filter(lambda one: len(one) >= minimum)


names = words(b"\0/", min_size=1)
comms = words().map(lambda one: one[:15])
relative_paths = st.lists(names, min_size=1, max_size=4).map(b"/".join)
paths = st.lists(names, max_size=4).map(lambda all_: b"/" + b"/".join(all_))
arguments = st.lists(words(max_size=60), max_size=6)
keys = st.builds(ProcessKey, u32, times)
contexts = st.builds(Context, *[u64] * 6, *[u32] * 19)
executables = st.builds(
    Executable, u64, u32, u32, u32, u32, st.booleans(), st.booleans()
)
images = st.builds(Image, comms, executables, contexts)


@st.composite
def tasks(draw: Any, of: Any = images) -> Task:
    real_parent = draw(keys)
    parent = draw(st.just(real_parent) | keys)
    return Task(
        draw(keys),
        real_parent,
        parent,
        *draw(st.tuples(*[u32] * 6)),
        draw(st.booleans()),
        draw(of),
    )


def _cut(event_flags: int, flag: Flag) -> bool:
    return bool(event_flags & flag)


@st.composite
def _common(draw: Any, flags: Any, images_: Any) -> dict[str, Any]:
    bits = draw(flags)
    cwd = relative_paths if _cut(bits, Flag.CWD_CUT) else paths
    return {
        "cpu": draw(u32),
        "seq": draw(u64),
        "bt_ns": draw(times),
        "flags": bits,
        "parts": 1,
        "backlog": False,
        "task": draw(tasks(images_)),
        "cwd": draw(cwd),
    }


_FLAGS = st.lists(st.sampled_from(list(Flag)), max_size=4).map(
    lambda some: sum(map(int, set(some)))
)
_NO_FAULT = _FLAGS.map(lambda bits: bits & ~Flag.ARGV_FAULT)
_VARIABLES = st.builds(
    lambda name, value: name.encode() + b"=" + value,
    st.sampled_from(ENVIRONMENT),
    words(),
)


def _argv(args: list[bytes]) -> bytes:
    return b"".join(arg + b"\0" for arg in args)


@st.composite
def execs(draw: Any, images_: Any = images) -> Exec:
    """Execs whose argv is whole, or could not be read at all."""
    common = draw(_common(_FLAGS, images_))
    faulty = common["flags"] & Flag.ARGV_FAULT
    argv = b"" if faulty else _argv(draw(arguments))
    memfd = common["task"].image.executable.memfd
    executable: Any = relative_paths if _cut(common["flags"], Flag.EXE_CUT) else paths
    if memfd:
        executable = words(min_size=1).map(lambda name: b"memfd:" + name)
    return Exec(
        **common,
        old_tid=draw(u32),
        argc=draw(u32),
        argv_bytes=draw(u64) if faulty else len(argv),
        argv=argv,
        executable=draw(executable),
        invoked=draw(words()),
        interpreter=draw(words()),
        environment=tuple(draw(st.lists(_VARIABLES, max_size=3))),
    )


@st.composite
def failed_execs(draw: Any, images_: Any = images) -> ExecFailed:
    return ExecFailed(
        **draw(_common(_NO_FAULT, images_)),
        errno=draw(st.integers(1, 4095)),
        argc=draw(u32),
        path=draw(words()),
        argv=_argv(draw(arguments)),
    )


@st.composite
def forks(draw: Any, images_: Any = images) -> Fork:
    common = draw(_common(_FLAGS, images_))
    return Fork(
        **common, creator=draw(keys), creator_tid=draw(u32), clone_flags=draw(u64)
    )


@st.composite
def exits(draw: Any, images_: Any = images) -> Exit:
    return Exit(**draw(_common(_FLAGS, images_)), status=draw(u32))


@st.composite
def accesses(draw: Any, images_: Any = images) -> Access:
    return Access(
        **draw(_common(_FLAGS, images_)),
        target=draw(tasks(images_)),
        kind=draw(st.sampled_from(list(AccessKind))),
        result=draw(s64),
        count=draw(u64),
        first_ns=draw(times),
        last_ns=draw(times),
        requested_pid=draw(u32),
        detail=draw(u32),
        denied=draw(st.sampled_from(list(Denied))),
        path=draw(words()),
    )


@st.composite
def prctls(draw: Any, images_: Any = images) -> Prctl:
    return Prctl(
        **draw(_common(_FLAGS, images_)),
        option=draw(st.sampled_from(list(PrctlOption))),
        argument=draw(u32),
        result=draw(s64),
        count=draw(u64),
    )


def events(images_: Any = images) -> st.SearchStrategy[Event]:
    """Any event whatever, its processes made of `images_`."""
    kinds = (execs, failed_execs, forks, exits, accesses, prctls)
    return st.one_of([kind(images_) for kind in kinds])
