"""Attach one hook: find its place, load its program for it, link the two.

In: hooks, compiled probes and the kernel's BTF. Out: descriptors of links and maps.
Whatever the kernel refuses is an OSError or a LoadError that says what and why; nothing
is left of a hook that was refused.
"""

import errno
import os
import re
import resource
import struct
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from agent.errors import LoadError, NotPermittedError
from agent.sensor import bpf, perf, pins
from agent.sensor.btf import FUNC, TYPEDEF, Btf
from agent.sensor.compiler import Compiler, Object, Program
from agent.sensor.headers import PREEMPT_DISABLE, PREEMPT_ENABLE
from agent.sensor.hooks import MACHINE_PREFIXES, Hook, How

RING = "events"
_ZERO = bytes(4)
_LSM_LIST = Path("/sys/kernel/security/lsm")
_CALL, _KERNEL_FUNCTION, _NOTHING = 0x85, 2, bytes((0x05, 0, 0, 0, 0, 0, 0, 0))
_TRIVIAL = bytes((0xB7, 0, 0, 0, 0, 0, 0, 0, 0x95, 0, 0, 0, 0, 0, 0, 0))
"""r0 = 0; exit."""

_TYPES = {
    How.TYPED_TRACEPOINT: (bpf.PROG_TRACING, bpf.ATTACH_TRACE_RAW_TP),
    How.RAW_TRACEPOINT: (bpf.PROG_RAW_TRACEPOINT, 0),
    How.TRACEPOINT: (bpf.PROG_TRACEPOINT, 0),
    How.FENTRY: (bpf.PROG_TRACING, bpf.ATTACH_TRACE_FENTRY),
    How.FEXIT: (bpf.PROG_TRACING, bpf.ATTACH_TRACE_FEXIT),
    How.KPROBE: (bpf.PROG_KPROBE, 0),
    How.KRETPROBE: (bpf.PROG_KPROBE, 0),
    How.LSM: (bpf.PROG_LSM, bpf.ATTACH_LSM),
    How.FMOD_RET: (bpf.PROG_TRACING, bpf.ATTACH_MODIFY_RETURN),
    How.ITERATOR: (bpf.PROG_TRACING, bpf.ATTACH_TRACE_ITER),
    How.TEST_RUN: (bpf.PROG_RAW_TRACEPOINT, 0),
    How.ON_REQUEST: (bpf.PROG_RAW_TRACEPOINT, 0),
}
_FOR_ONE_PLACE = {how for how, (_, attach_type) in _TYPES.items() if attach_type}
_PREEMPTIBLE = {How.FENTRY, How.FEXIT, How.LSM, How.FMOD_RET}
_PREEMPTION = {
    PREEMPT_DISABLE: "bpf_preempt_disable",
    PREEMPT_ENABLE: "bpf_preempt_enable",
}


class Attached(NamedTuple):
    """What keeps a hook alive, and how many instructions the verifier followed."""

    fd: int
    instructions: int
    is_link: bool = True

    def close(self) -> None:
        """Detach, unless it is pinned."""
        os.close(self.fd)


class Attacher:
    """One loading under way: maps and programs as they are needed."""

    def __init__(
        self, compiler: Compiler, btf: Btf, ring_bytes: int, kept: Mapping[str, int]
    ) -> None:
        """Use the maps in `kept` as they are; make all others anew."""
        self._compiler, self._btf = compiler, btf
        self._programs: dict[tuple[str, int], bpf.Program] = {}
        self._kept = kept
        self.maps = {
            RING: _make(RING, bpf.MapSpec(bpf.MAP_RINGBUF, 0, 0, ring_bytes, 0))
        }

    def place(self, hook: Hook) -> str:
        """Return the name that this kernel gives the place of a hook.

        Of alternatives the one it has; the first one when it has none.
        """
        before, colon, name = hook.target.partition(":")
        if colon and before in ("native", "compat"):
            native, compat = MACHINE_PREFIXES.get(os.uname().machine, ("", ""))
            return (compat if before == "compat" else native) + name
        names = hook.target.split("|")
        return next((n for n in names if self._btf.find(FUNC, n)), names[0])

    def attach(self, hook: Hook) -> Attached:
        """Attach; OSError or LoadError when this kernel refuses it."""
        place = self.place(hook)
        self._require(hook, place)
        program = self._program(hook, place)
        match hook.how:
            case How.TEST_RUN | How.ON_REQUEST:
                return Attached(os.dup(program.fd), program.instructions, False)
            case How.RAW_TRACEPOINT:
                link = bpf.attach_raw_tracepoint(program.fd, hook.tracepoint)
            case How.ITERATOR:
                link = bpf.link_create(program.fd, 0, bpf.ATTACH_TRACE_ITER)
            case How.TRACEPOINT | How.KPROBE | How.KRETPROBE:
                link = _link_event(program.fd, _event(hook, place))
            case _:
                link = bpf.attach_raw_tracepoint(program.fd, None)
        return Attached(link, program.instructions)

    def guard_by(self, rung: int) -> None:
        """Tell the guard how it refuses (enum ir_denied)."""
        if (fd := self.maps.get("guard_rung")) is not None:
            bpf.update(fd, _ZERO, struct.pack("<I", rung))

    def _require(self, hook: Hook, place: str) -> None:
        """Raise what can be known before the probes are compiled."""
        if hook.how in _PREEMPTIBLE and not self._can_be_whole():
            raise LoadError(
                "this kernel may preempt such a program and has no bpf_preempt_disable;"
                " preempt=voluntary, which debugfs has to show, would do"
            )
        if is_native_too(hook, place):
            raise LoadError(f"{place} is also what 64-bit callers come to")
        if hook.how is How.LSM:
            _require_bpf_lsm()
        if hook.how in _FOR_ONE_PLACE:
            kind, attach_type = _TYPES[hook.how]
            btf_id = self._btf_id(hook, place)
            if hook.how in _PREEMPTIBLE:
                trial = f"any {hook.how} program"
                os.close(bpf.prog_load(trial, kind, _TRIVIAL, attach_type, btf_id).fd)
        if hook.how in (How.KPROBE, How.KRETPROBE):
            os.close(_event(hook, place))

    def _can_be_whole(self) -> bool:
        """Whether nothing can preempt a program, or the program can forbid it."""
        return (
            "PREEMPT" not in os.uname().version
            or self._btf.find(FUNC, _PREEMPTION[PREEMPT_DISABLE]) is not None
            or _runs_voluntary()
        )

    def _btf_id(self, hook: Hook, place: str) -> int:
        kind, name = FUNC, place
        if hook.how is How.TYPED_TRACEPOINT:
            kind, name = TYPEDEF, f"btf_trace_{hook.tracepoint}"
        btf_id = self._btf.find(kind, name)
        if btf_id is None:
            raise LoadError(f"this kernel's BTF has no {name}")
        return btf_id

    def _program(self, hook: Hook, place: str) -> bpf.Program:
        """Load a program, or take the one that was loaded for other places.

        One for a single place is loaded anew each time: 5.10 attaches it only once.
        """
        compiled = self._compiler.object(hook.variants)
        self._make_maps(compiled)
        kind, attach_type = _TYPES[hook.how]
        key = (hook.program, kind)
        if attach_type:
            self._programs.pop(key, None)
        if key not in self._programs:
            code = self._linked(compiled.programs[hook.program])
            btf_id = self._btf_id(hook, place) if attach_type else 0
            self._programs[key] = bpf.prog_load(
                hook.program, kind, code, attach_type, btf_id
            )
        return self._programs[key]

    def _make_maps(self, compiled: Object) -> None:
        for name, spec in compiled.maps.items():
            if name in self.maps:
                continue
            if name in self._kept:
                self.maps[name] = self._take_over(name, spec)
                continue
            self.maps[name] = _make(name, spec)

    def _take_over(self, name: str, spec: bpf.MapSpec) -> int:
        if bpf.map_spec(self._kept[name]) != spec:
            raise LoadError(
                f"the loaded probes keep {name} in another layout; unload them first"
            )
        return self._kept[name]

    def _linked(self, program: Program) -> bytes:
        """Put this loading's maps and this kernel's functions into the code."""
        code = bytearray(program.code)
        for at, name in program.maps:
            struct.pack_into("<I", code, at + 4, self.maps[name])
        for at in range(0, len(code), 8):
            (number,) = struct.unpack_from("<I", code, at + 4)
            if code[at] == _CALL and number in _PREEMPTION:
                function = self._btf.find(FUNC, _PREEMPTION[number])
                if function is None:
                    code[at : at + 8] = _NOTHING
                else:
                    code[at + 1] = _KERNEL_FUNCTION << 4
                    struct.pack_into("<I", code, at + 4, function)
        return bytes(code)


def _make(name: str, spec: bpf.MapSpec) -> int:
    """Create a map; before 5.11 its memory counts as locked."""
    infinite = resource.RLIM_INFINITY
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (infinite, infinite))
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    try:
        return bpf.map_create(name, spec)
    except PermissionError as error:
        hint = "" if limit == infinite else f"; RLIMIT_MEMLOCK is {limit} bytes"
        raise NotPermittedError(
            f"the kernel lets this process create no BPF map: {error}{hint}"
        ) from error


def is_native_too(hook: Hook, place: str) -> bool:
    """Whether a function for 32-bit callers is also that of the others (arm64)."""
    native, _ = MACHINE_PREFIXES.get(os.uname().machine, ("", ""))
    return hook.target == f"compat:{place.removeprefix(native)}"


def _require_bpf_lsm() -> None:
    """Raise unless bpf is an active LSM: without it, programs attach and never run."""
    try:
        active = _LSM_LIST.read_text().strip()
    except OSError:
        return  # securityfs is not mounted; the proof will tell
    if "bpf" not in active.split(","):
        raise LoadError(f"bpf is not among the active LSMs ({active}); boot with lsm=")


def _runs_voluntary() -> bool:
    """Whether a kernel that could be preemptible was told not to be."""
    try:
        said = Path("/sys/kernel/debug/sched/preempt").read_text()
    except OSError:
        return False
    return bool(re.search(r"\((none|voluntary)\)", said))


def _event(hook: Hook, place: str) -> int:
    if hook.how is How.TRACEPOINT:
        return perf.tracepoint_event(tracefs(), *place.split(":"))
    return perf.kprobe_event(place, returned=hook.how is How.KRETPROBE)


def _link_event(program: int, event: int) -> int:
    try:
        return bpf.link_create(program, event, bpf.ATTACH_PERF_EVENT)
    except OSError as error:
        if error.errno == errno.EINVAL:
            raise LoadError("this kernel has no links to perf events") from error
        raise
    finally:
        os.close(event)


def tracefs() -> Path:
    """Where tracefs is mounted; mounts it in its own place when it is not."""
    for place in (Path("/sys/kernel/tracing"), Path("/sys/kernel/debug/tracing")):
        if (place / "events").is_dir():
            return place
    try:
        pins.mount("tracefs", Path("/sys/kernel/tracing"))
    except NotPermittedError as error:
        raise LoadError(f"tracefs shows no events: {error}") from error
    return Path("/sys/kernel/tracing")
