"""Pins that somebody removes, replaces or moves are put back, and that is told once.

In: real links, maps and programs, pinned in a BPF file system of the test's own. Out:
what a watch tells of what was done to them, and what is pinned afterwards.
"""

import os
import shutil
import subprocess  # noqa: TID251 - mounts what the pins lie in
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from agent.errors import BusyError
from agent.sensor import bpf, pins
from agent.sensor.btf import FUNC, Btf
from agent.sensor.hooks import How
from agent.sensor.watch import Tampering, Watch

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(os.geteuid() != 0, reason="pins BPF objects"),
]

NOTHING = bytes((0xB7, 0, 0, 0, 0, 0, 0, 0, 0x95, 0, 0, 0, 0, 0, 0, 0))
"""r0 = 0; exit."""
LINK = "links/a__iterator__bpf_iter_task"
TRACED = "links/b__fentry__bpf_iter_task"
MAP, PROGRAM = "maps/counts", "programs/walk"
ALL = [LINK, TRACED, MAP, "maps/meta", PROGRAM]
EVERYTHING = sorted([".", *pins.Parts._fields, *ALL])


def mount(place: Path) -> None:
    subprocess.run(["mount", "-t", "bpf", "ir-test", place], check=True)


@pytest.fixture
def bpffs(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "bpf"
    place.mkdir()
    mount(place)
    yield place
    while place.is_mount():
        subprocess.run(["umount", "--lazy", place], check=True)


@pytest.fixture(scope="module")
def task_iterator() -> int:
    """The kernel's number of the type of an iterator over tasks."""
    number = Btf.of_kernel().find(FUNC, "bpf_iter_task")
    assert number is not None
    return number


@pytest.fixture
def a_program(task_iterator: int) -> Iterator[Callable[[], int]]:
    """Makes programs that an iterator can run; closes them."""
    with ExitStack() as stack:

        def make() -> int:
            kind, place = bpf.PROG_TRACING, bpf.ATTACH_TRACE_ITER
            made = bpf.prog_load("nothing", kind, NOTHING, place, task_iterator)
            stack.callback(os.close, made.fd)
            return made.fd

        yield make


def a_map() -> int:
    return bpf.map_create("counts", bpf.MapSpec(bpf.MAP_ARRAY, 4, 8, 1, 0))


@pytest.fixture
def folder(bpffs: Path, a_program: Callable[[], int]) -> Path:
    """Published pins, which nothing but their names keeps alive."""
    made, program = bpffs / "agent", a_program()
    held = {
        pin: bpf.link_create(program, 0, bpf.ATTACH_TRACE_ITER)
        for pin in (LINK, TRACED)
    }
    links = {Path(pin).name: fd for pin, fd in held.items()}
    counts = a_map()
    pins.publish(made, "key", pins.Parts({"counts": counts}, links, {"walk": program}))
    for fd in (counts, *held.values()):
        os.close(fd)
    return made


@pytest.fixture
def watch(folder: Path) -> Iterator[Watch]:
    """A watch of the owner of the pins."""
    with pins.owned(folder):
        made = Watch(folder, {})
        yield made
        made.close()


def numbers(folder: Path) -> dict[str, tuple[str, int]]:
    """Which object each pin has."""
    found = {}
    for pin in ALL:
        fd = bpf.get(folder / pin)
        found[pin] = bpf.identify(fd)
        os.close(fd)
    return found


def looks(watch: Watch) -> list[Tampering]:
    """What a watch tells in so many looks that each of its checks had its turn."""
    return [told for _ in range(5) for told in watch.look()]


def test_pins_that_nobody_touches_are_not_told_of(folder: Path, watch: Watch) -> None:
    before = numbers(folder)
    assert looks(watch) + looks(watch) == []
    assert numbers(folder) == before


@pytest.mark.parametrize("pin", ALL)
def test_a_pin_that_is_removed_is_put_back_with_its_object(
    folder: Path, watch: Watch, pin: str
) -> None:
    before = numbers(folder)
    (folder / pin).unlink()
    assert watch.look() == [Tampering("missing", [pin], True, "")]
    assert numbers(folder) == before
    assert looks(watch) == []


def test_another_object_in_the_place_of_a_pin_gives_way(
    folder: Path, watch: Watch
) -> None:
    before, other = numbers(folder), a_map()
    (folder / LINK).unlink()
    bpf.pin(other, folder / LINK)
    bpf.pin(other, folder / "other")
    (folder / "other").rename(folder / MAP)
    os.close(other)
    assert watch.look() == [Tampering("replaced", [LINK, MAP], True, "")]
    assert numbers(folder) == before
    assert looks(watch) == []


def test_a_link_to_the_pin_is_not_the_pin(folder: Path, watch: Watch) -> None:
    """Whoever removes the pins by their names would leave the object."""
    (folder / MAP).rename(folder / "moved")
    (folder / MAP).symlink_to(folder / "moved")
    told = [Tampering("replaced", [MAP], True, "")]
    told += [Tampering("foreign", ["moved"], False, "not ours; left alone")]
    assert looks(watch) == told
    assert not (folder / MAP).is_symlink()


def test_another_pin_of_the_same_object_is_as_good(folder: Path, watch: Watch) -> None:
    fd = bpf.get(folder / MAP)
    (folder / MAP).unlink()
    bpf.pin(fd, folder / MAP)
    os.close(fd)
    assert looks(watch) == []
    (folder / MAP).unlink()
    assert watch.look() == [Tampering("missing", [MAP], True, "")]


def test_an_empty_folder_or_a_link_to_elsewhere_is_put_right(
    folder: Path, watch: Watch
) -> None:
    before = numbers(folder)
    (folder / LINK).unlink()
    (folder / LINK).mkdir()
    (folder / "maps").rename(folder.parent / "maps")
    (folder / "maps").symlink_to(folder.parent / "maps")
    assert watch.look() == [
        Tampering("replaced", [LINK, "maps"], True, ""),
        Tampering("missing", [MAP, "maps/meta"], True, ""),
    ]
    assert not (folder / "maps").is_symlink()
    assert numbers(folder) == before


def test_a_folder_that_is_removed_is_made_again_and_owned(
    folder: Path, watch: Watch
) -> None:
    before = numbers(folder)
    shutil.rmtree(folder)
    assert watch.look() == [Tampering("missing", EVERYTHING, True, "")]
    assert numbers(folder) == before
    for made in (folder, *(folder / part for part in pins.Parts._fields)):
        assert made.stat().st_mode & 0o777 == 0o700
    with pytest.raises(BusyError), pins.owned(folder):
        pass
    assert looks(watch) == []


def test_a_folder_that_is_moved_away_and_back_stays_owned(
    folder: Path, watch: Watch
) -> None:
    away = folder.with_name("away")
    folder.rename(away)
    assert watch.look() == [Tampering("missing", EVERYTHING, True, "")]
    shutil.rmtree(folder)
    away.rename(folder)
    before = numbers(folder)
    [told] = watch.look()
    assert (told.what, told.pins[0], told.put_back) == ("replaced", ".", True)
    assert numbers(folder) == before
    with pytest.raises(BusyError), pins.owned(folder):
        pass
    assert looks(watch) == []


def test_pins_of_another_agent_in_the_same_place_are_left_alone(
    folder: Path, watch: Watch
) -> None:
    before = numbers(folder)
    shutil.rmtree(folder)
    folder.mkdir()
    with pins.owned(folder):
        [replaced, missing] = looks(watch)
        assert (replaced.what, replaced.pins) == ("replaced", ["."])
        assert (missing.what, missing.pins) == ("missing", EVERYTHING[1:])
        for told in (replaced, missing):
            assert not told.put_back
            assert told.reason.endswith("an agent is reading these pins")
        assert list(folder.iterdir()) == []
    assert [(one.what, one.put_back) for one in looks(watch)] == [
        ("replaced", True),
        ("missing", True),
    ]
    assert numbers(folder) == before


def test_what_cannot_be_put_back_is_told_once_until_it_can(
    folder: Path, watch: Watch
) -> None:
    (folder / MAP).unlink()
    (folder / MAP / "full").mkdir(parents=True)
    assert looks(watch) == [Tampering("replaced", [MAP], False, "Directory not empty")]
    assert looks(watch) == []
    (folder / MAP / "full").rmdir()
    assert watch.look() == [Tampering("replaced", [MAP], True, "")]


def test_a_file_system_that_is_taken_away_is_told_and_told_again_when_it_is_back(
    folder: Path, watch: Watch
) -> None:
    before = numbers(folder)
    bpffs = folder.parent
    subprocess.run(["umount", "--lazy", bpffs], check=True)
    [told] = looks(watch)
    assert (told.what, told.pins, told.put_back) == ("missing", EVERYTHING, False)
    assert told.reason == f"{bpffs} is not in a BPF file system"
    assert list(bpffs.iterdir()) == []
    mount(bpffs)
    assert watch.look() == [Tampering("missing", EVERYTHING, True, "")]
    assert numbers(folder) == before


def test_what_comes_back_without_the_watch_is_told(folder: Path, watch: Watch) -> None:
    away = folder.with_name("away")
    folder.rename(away)
    subprocess.run(["mount", "-t", "tmpfs", "ir-test", folder.parent], check=True)
    [told] = watch.look()
    assert not told.put_back
    subprocess.run(["umount", folder.parent], check=True)
    away.rename(folder)
    assert watch.look() == [Tampering("missing", EVERYTHING, True, "as it was again")]


def test_a_name_that_is_not_ours_is_told_and_left_alone(
    folder: Path, watch: Watch
) -> None:
    other = a_map()
    bpf.pin(other, folder / "links" / os.fsdecode(b"x\xff"))
    os.close(other)
    (folder / "more").mkdir()
    names = ["links/x\\xff", "more"]
    stranger = Tampering("foreign", names, False, "not ours; left alone")
    assert looks(watch) == [stranger]
    assert looks(watch) == []
    (folder / "more").rmdir()
    assert looks(watch) == [Tampering("foreign", ["more"], True, "as it was again")]


def test_of_very_many_names_some_are_told(folder: Path, watch: Watch) -> None:
    for number in range(500):
        (folder / "maps" / f"x{number}").mkdir()
    [told] = looks(watch)
    assert 100 <= len(told.pins) <= 120


def test_a_link_that_is_made_to_run_another_program_runs_its_own_again(
    folder: Path, watch: Watch, a_program: Callable[[], int]
) -> None:
    link = bpf.get(folder / LINK)
    own = bpf.link_program(link)
    bpf.link_update(link, a_program())
    assert bpf.link_program(link) != own
    assert looks(watch) == [Tampering("swapped", [LINK], True, "")]
    assert bpf.link_program(link) == own
    os.close(link)
    assert looks(watch) == []


def test_a_switch_that_turns_hooks_off_is_told_with_the_hooks_it_concerns(
    folder: Path, tmp_path: Path
) -> None:
    switch, missing = tmp_path / "enabled", tmp_path / "missing"
    switch.write_text("1\n")
    watch = Watch(folder, {switch: (How.FENTRY,), missing: (How.ITERATOR,)})
    assert looks(watch) == []
    switch.write_text("0\n")
    off = Tampering("switched-off", [TRACED], False, f"{switch} is 0")
    assert looks(watch) == [off]
    assert looks(watch) == []
    switch.write_text("1\n")
    well = Tampering("switched-off", [TRACED], True, "as it was again")
    assert looks(watch) == [well]
    watch.close()


def test_a_watch_that_ends_leaves_the_pins_and_no_descriptor(folder: Path) -> None:
    before, held = numbers(folder), os.listdir("/proc/self/fd")  # noqa: PTH208
    watch = Watch(folder, {})
    shutil.rmtree(folder)
    watch.look()
    watch.close()
    assert numbers(folder) == before
    assert os.listdir("/proc/self/fd") == held  # noqa: PTH208
    with pins.owned(folder):
        pins.unload(folder)
    assert not folder.exists()
