"""The watch over the agent's own pins: what somebody takes away is put back.

In: a pin folder, as it is when the watch begins. Out: each difference from that, once,
and whether it could be undone. The watch holds a descriptor of every link, program and
map, so a hook goes on firing while its pin is gone.
"""

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, suppress
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from agent.errors import AgentError
from agent.sensor import bpf, pins
from agent.sensor.hooks import How

_EVERY = 5
"""Looks from one to the next that costs more."""
_MOST_STRANGERS = 100
_WELL = "as it was again"
_SELF = "."
_FOLDERS = (_SELF, *pins.Parts._fields)

_BY_KPROBE = (How.KPROBE, How.KRETPROBE)
_BY_FTRACE = (How.FENTRY, How.FEXIT, How.FMOD_RET, How.LSM, *_BY_KPROBE)
SWITCHES = {
    Path("/proc/sys/kernel/ftrace_enabled"): _BY_FTRACE,
    Path("/sys/kernel/debug/kprobes/enabled"): _BY_KPROBE,
}
"""What turns hooks off while their links look as ever, and hooks of which kinds."""


class Tampering(msgspec.Struct, frozen=True):
    """One difference, and the pins (relative to the pin folder) that show it.

    `what` is `missing`, `replaced` (something else stands there), `foreign` (a name
    that was not there), `swapped` (a link runs another program), `switched-off`, or
    `changed` (all of it, while no agent ran; the probes were loaded anew).
    `put_back`: it is as it was. `reason` says why it could not be put back, or that it
    came back without the agent.
    """

    what: str
    pins: list[str]
    put_back: bool
    reason: str


class _Trouble(NamedTuple):
    what: str
    put_back: bool
    reason: str


class _Held(NamedTuple):
    """One object: its descriptor, what the kernel calls it; of a link, its program."""

    fd: int
    identity: tuple[str, int]
    program: int = -1
    program_id: int = 0


_Troubles = dict[str, _Trouble]


class Watch:
    """Holds what a pin folder holds, and compares; for the owner of the pins."""

    def __init__(
        self, folder: Path, switches: Mapping[Path, Collection[How]] = SWITCHES
    ) -> None:
        """Open every pin; the caller owns the folder (`pins.owned`)."""
        self._folder, self._switches = folder, switches
        self._inodes: dict[str, int] = {}
        self._held: dict[str, _Held] = {}
        self._lock = ExitStack()
        self._looks = 0
        self._checks = (self._pins, self._programs, self._strangers, self._switched)
        self._standing: list[_Troubles] = [{} for _ in self._checks]
        for pin in (*_FOLDERS, *self._names()):
            with suppress(OSError):  # what can't be opened is not ours
                if pin not in _FOLDERS:
                    self._held[pin] = _hold(
                        folder / pin, is_link=pin.startswith("links/")
                    )
                self._inodes[pin] = self._inode(pin)
        self._owned = self._inodes.get(_SELF, 0)

    def close(self) -> None:
        """Let go of everything; the pins stay."""
        for one in self._held.values():
            os.close(one.fd)
            if one.program >= 0:
                os.close(one.program)
        self._held.clear()
        self._lock.close()

    def look(self) -> list[Tampering]:
        """Compare, mend, and tell what has changed since the last look.

        Once a second is meant. Pins are compared at each look, the rest at every fifth.
        """
        due = self._checks if self._looks % _EVERY == 0 else self._checks[:1]
        self._looks += 1
        return [
            one
            for number, check in enumerate(due)
            for one in self._told(number, check())
        ]

    def _told(self, number: int, found: _Troubles) -> list[Tampering]:
        """Leave out what stands since an earlier look; add what stands no more."""
        before = self._standing[number]
        self._standing[number] = {p: t for p, t in found.items() if not t.put_back}
        well = {p: _Trouble(t.what, True, _WELL) for p, t in before.items()}
        groups: dict[_Trouble, list[str]] = {}
        for pin, trouble in sorted({**well, **found}.items()):
            if trouble != before.get(pin):
                groups.setdefault(trouble, []).append(pin)
        return [
            Tampering(t.what, [_shown(pin) for pin in where], t.put_back, t.reason)
            for t, where in groups.items()
        ]

    def _pins(self) -> _Troubles:
        """Find and mend in one go: a folder is in its place before what is in it."""
        troubles: _Troubles = {}
        refused = ""
        for pin in self._inodes:
            if what := self._wrong(pin):
                reason = refused or _reason(self._put_back, pin)
                troubles[pin] = _Trouble(what, not reason, reason)
                refused = reason if pin == _SELF else refused
        return troubles

    def _wrong(self, pin: str) -> str:
        try:
            inode = self._inode(pin)
        except OSError:
            return "missing"
        if inode == self._inodes[pin] or self._same(pin, inode):
            return ""
        return "replaced"

    def _same(self, pin: str, inode: int) -> bool:
        """Whether this other pin has our object; if so, it is ours from now on."""
        place = self._folder / pin
        if pin not in self._held or place.is_symlink():
            return False
        try:
            fd = bpf.get(place)
        except OSError:
            return False
        try:
            same = bpf.identify(fd) == self._held[pin].identity
        finally:
            os.close(fd)
        if same:
            self._inodes[pin] = inode
        return same

    def _take_folder(self) -> None:
        """Make the pin folder if there is none, and own it; BusyError if another does.

        The one that was there at the start stays owned, wherever it is now.
        """
        pins.require_bpffs(self._folder)
        _make_folder(self._folder)
        if self._inode(_SELF) != self._owned:
            self._lock.close()
            self._lock.enter_context(pins.owned(self._folder))

    def _put_back(self, pin: str) -> None:
        place = self._folder / pin
        if pin == _SELF:
            self._take_folder()
        elif pin in _FOLDERS:
            _make_folder(place)
        else:
            _remove(place)
            bpf.pin(self._held[pin].fd, place)
        self._inodes[pin] = self._inode(pin)

    def _programs(self) -> _Troubles:
        """Find links that run another program; only an iterator's can be changed."""
        troubles: _Troubles = {}
        for pin, one in self._held.items():
            if one.program_id and bpf.link_program(one.fd) != one.program_id:
                reason = _reason(bpf.link_update, one.fd, one.program)
                troubles[pin] = _Trouble("swapped", not reason, reason)
        return troubles

    def _strangers(self) -> _Troubles:
        """Find names that were not there; of very many, some are enough."""
        stranger = _Trouble("foreign", False, "not ours; left alone")
        names = islice(self._names(), len(self._inodes) + _MOST_STRANGERS)
        return {pin: stranger for pin in names if pin not in self._inodes}

    def _switched(self) -> _Troubles:
        troubles: _Troubles = {}
        for switch, ways in self._switches.items():
            if not _is_off(switch):
                continue
            trouble = _Trouble("switched-off", False, f"{switch} is 0")
            marks = [f"__{how}__" for how in ways]
            concerned = [p for p in self._held if any(mark in p for mark in marks)]
            troubles.update(dict.fromkeys(concerned, trouble))
        return troubles

    def _names(self) -> Iterator[str]:
        for part in _FOLDERS:
            with suppress(OSError), os.scandir(self._folder / part) as entries:
                for entry in entries:
                    yield entry.name if part == _SELF else f"{part}/{entry.name}"

    def _inode(self, pin: str) -> int:
        return os.lstat(f"{self._folder}/{pin}").st_ino


def _hold(pinned: Path, *, is_link: bool) -> _Held:
    fd = bpf.get(pinned)
    held = _Held(fd, bpf.identify(fd))
    if not is_link:
        return held
    number = bpf.link_program(fd)
    program = -1
    with suppress(OSError):  # needs CAP_SYS_ADMIN
        program = bpf.program_by_id(number)
    return held._replace(program=program, program_id=number)


def _reason(act: Callable[..., None], *args: Any) -> str:
    """Do it; returns why it could not be done, or nothing."""
    try:
        act(*args)
    except OSError as error:
        return error.strerror or str(error)
    except AgentError as error:
        return str(error)
    return ""


def _make_folder(place: Path) -> None:
    if place.is_symlink() or not place.is_dir():
        place.unlink(missing_ok=True)
        place.mkdir(mode=0o700)


def _remove(place: Path) -> None:
    """Remove what stands in a pin's place; of folders only empty ones."""
    with suppress(FileNotFoundError):
        if place.is_dir() and not place.is_symlink():
            place.rmdir()
        else:
            place.unlink()


def _is_off(switch: Path) -> bool:
    """Whether a switch stands at 0; a kernel without it can't be switched off so."""
    try:
        return switch.read_text().strip() == "0"
    except OSError:
        return False


def _shown(pin: str) -> str:
    """Show bytes that are not UTF-8 as records show them."""
    return os.fsencode(pin).decode(errors="backslashreplace")
