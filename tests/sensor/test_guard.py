"""Who is guarded and who is permitted: packed as the kernel's side reads it."""

import os
import re
import struct
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent import clock
from agent.errors import UsageError
from agent.events import ProcessKey
from agent.sensor import bpf, guard
from agent.sensor.guard import Guarded, Permit
from tests.wire_header import FORMATS, source

u32, u64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
permits = st.builds(
    Permit, st.none() | st.tuples(u64, u32), st.none() | u32, st.none() | u64
).filter(lambda one: one != Permit())


class Maps:
    """Hash maps of a kernel, by descriptor; bpf's functions on them."""

    def __init__(self) -> None:
        self.held: dict[int, dict[bytes, bytes]] = {3: {}, 4: {}}

    def update(self, fd: int, key: bytes, value: bytes) -> None:
        self.held[fd][key] = value

    def delete(self, fd: int, key: bytes) -> bool:
        return self.held[fd].pop(key, None) is not None

    def peek(self, fd: int, key: bytes, size: int) -> bytes | None:
        value = self.held[fd].get(key)
        assert value is None or len(value) == size
        return value

    def keys(self, fd: int, size: int) -> Iterator[bytes]:
        assert all(len(key) == size for key in self.held[fd])
        return iter(self.held[fd])


GUARDS, PERMITS = 3, 4


@pytest.fixture
def maps(monkeypatch: pytest.MonkeyPatch) -> Maps:
    return standing_in(monkeypatch.setattr)


def standing_in(put: Callable[[object, str, object], None]) -> Maps:
    made = Maps()
    for name in ("update", "delete", "peek", "keys"):
        put(bpf, name, getattr(made, name))
    return made


def layout(name: str) -> struct.Struct:
    """A struct of probes/guard.h."""
    [body] = re.findall(rf"(?ms)^struct {name} \{{\n(.*?)^\}}", source("guard.h"))
    kinds = re.findall(r"(?m)^\t(\w+) \w+;", body)
    return struct.Struct("<" + "".join(FORMATS[kind] for kind in kinds))


def facts() -> dict[str, int]:
    """The bits of probes/guard.h that say which facts a permit names."""
    found = re.findall(r"(?m)^#define PERMIT_(\w+)\s+(\d+)", source("guard.h"))
    return {name: int(value) for name, value in found}


def test_a_permit_that_names_nobody_is_refused(maps: Maps) -> None:
    for act in (guard.permit, guard.forbid):
        with pytest.raises(UsageError, match="names nobody"):
            act(PERMITS, Permit())
    assert maps.held[PERMITS] == {}


@pytest.mark.parametrize(
    ("who", "bits"),
    [
        (Permit(executable=(0, 0)), ["EXECUTABLE"]),
        (Permit(uid=0), ["USER"]),
        (Permit(cgroup_id=0), ["CGROUP"]),
        (Permit((9, 0x0FE00001), 1000, 77), ["EXECUTABLE", "USER", "CGROUP"]),
    ],
)
def test_a_permit_is_packed_as_the_probes_read_it(
    maps: Maps, who: Permit, bits: list[str]
) -> None:
    """A uid or an inode of 0 is a fact like any other, and not a missing one."""
    guard.permit(PERMITS, who)
    [raw] = maps.held[PERMITS]
    assert len(raw) == layout("permit").size
    ino, cgroup, dev, uid, said, pad = layout("permit").unpack(raw)
    assert (ino, dev) == (who.executable or (0, 0))
    assert (uid, cgroup) == (who.uid or 0, who.cgroup_id or 0)
    assert (said, pad) == (sum(facts()[bit] for bit in bits), 0)


def test_a_permit_says_when_it_was_given(maps: Maps) -> None:
    before = clock.boot_ns()
    guard.permit(PERMITS, Permit(uid=5))
    [value] = maps.held[PERMITS].values()
    assert before <= struct.unpack("<Q", value)[0] <= clock.boot_ns()


@given(given_=st.sets(permits, max_size=5))
def test_permits_come_back_as_they_were_given(given_: set[Permit]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        standing_in(patch.setattr)
        for who in given_:
            guard.permit(PERMITS, who)
        assert sorted(map(repr, guard.permits(PERMITS))) == sorted(map(repr, given_))
        for who in given_:
            assert guard.forbid(PERMITS, who)
            assert not guard.forbid(PERMITS, who)
        assert guard.permits(PERMITS) == []


@given(who=permits, other=permits)
def test_two_permits_that_differ_are_two_keys(who: Permit, other: Permit) -> None:
    assert (guard._permit(who) == guard._permit(other)) is (who == other)


@given(keys=st.sets(st.builds(ProcessKey, u32, u64), max_size=5))
def test_guarded_processes_come_back_as_they_were_given(keys: set[ProcessKey]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        maps = standing_in(patch.setattr)
        for key in keys:
            guard.protect(GUARDS, key)
        found = guard.guarded(GUARDS)
        assert {one.key for one in found} == keys
        assert all((one.refused, one.last_ns) == (0, 0) for one in found)
        for key in keys:
            assert guard.release(GUARDS, key)
            assert not guard.release(GUARDS, key)
        assert maps.held[GUARDS] == {}


def test_a_process_key_is_packed_as_the_probes_read_it(maps: Maps) -> None:
    guard.protect(GUARDS, ProcessKey(tgid=7, start_ns=1 << 40))
    [(key, value)] = maps.held[GUARDS].items()
    assert layout("process_key").unpack(key) == (1 << 40, 7, 0)
    assert layout("guard").unpack(value) == (0, 0)


def test_what_the_kernel_counted_is_told(maps: Maps) -> None:
    key = ProcessKey(7, 8)
    guard.protect(GUARDS, key)
    maps.held[GUARDS] = dict.fromkeys(maps.held[GUARDS], layout("guard").pack(3, 99))
    assert guard.guarded(GUARDS) == [Guarded(key, 3, 99)]


def test_one_that_ends_while_the_list_is_made_is_left_out(
    maps: Maps, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard.protect(GUARDS, ProcessKey(7, 8))
    monkeypatch.setattr(bpf, "peek", lambda *_: None)
    assert guard.guarded(GUARDS) == []
    assert maps.held[GUARDS]


def test_a_device_is_packed_as_the_kernel_has_it() -> None:
    """A file's st_dev is encoded otherwise; events and records have the kernel's."""
    device = os.makedev(254, 1)
    inside = os.major(device) << 20 | os.minor(device)
    raw = guard._permit(Permit(executable=(9, inside)))
    assert layout("permit").unpack(raw)[2] == 0x0FE00001
