"""The short-lived loader: compile the probes, load, attach, pin and prove them.

In: the probe sources and the running kernel's BTF. Out: a pin folder in bpffs that
keeps collecting after this process is gone, and the state of every hook. It is the
only module that imports bcc, and only when no compiled object of the same probes,
kernel and bcc is at hand; a hook that is refused never takes another one down.
"""

import ctypes
import hashlib
import os
import stat
import struct
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from agent.errors import LoadError, NotPermittedError
from agent.sensor import bpf, headers, pins
from agent.sensor.btf import FUNC, TYPEDEF, Btf
from agent.sensor.hooks import SENSES, Hook, HookState, How, Rung, Sense
from agent.sensor.identity import SOURCES, object_key, probe_folder
from agent.sensor.selftest import prove

RING = "events"
_LD_IMM64, _PSEUDO_MAPS = 0x18, (1, 2)
_TYPES = {
    How.TYPED_TRACEPOINT: bpf.PROG_TRACING,
    How.RAW_TRACEPOINT: bpf.PROG_RAW_TRACEPOINT,
    How.TRACEPOINT: bpf.PROG_TRACEPOINT,
    How.ITERATOR: bpf.PROG_TRACING,
}


class Program(msgspec.Struct, frozen=True):
    """Instructions, and where (byte offset) they refer to which map."""

    code: bytes
    maps: list[tuple[int, str]]


class Object(msgspec.Struct, frozen=True):
    """Compiled probes, free of anything that dies with the process that made them."""

    maps: dict[str, bpf.MapSpec]
    programs: dict[str, Program]


def probe_text(btf: Btf, *, typed: bool) -> str:
    """Return all probes as one C text, with the header made for this kernel.

    One text because compiling it costs hardly more than compiling one probe. `typed`
    lets the tracepoint programs read by type, which they then must be loaded with. The
    #line marks make bcc's messages name the real file and line.
    """
    folder = probe_folder()
    options = f"#define RING_PAGES 1\n#define IR_TYPED {int(typed)}\n"
    parts = [headers.generate(btf), options]
    parts += [f'#line 1 "{name}"\n{(folder / name).read_text()}' for name in SOURCES]
    return "".join(parts)


class Compiler:
    """Gives compiled probes: from the cache if they are there, else by bcc."""

    def __init__(self, btf: Btf, key: str, cache: Path | None) -> None:
        """Keep objects in `cache` under `key`, which covers all they depend on."""
        self._btf, self._key, self._cache = btf, key, cache
        self._made: dict[bool, Object] = {}

    def object(self, *, typed: bool) -> Object:
        """Return the probes; LoadError when they can't be compiled."""
        if typed not in self._made:
            self._made[typed] = self._kept(typed) or self._compile(typed)
        return self._made[typed]

    def _path(self, typed: bool) -> Path | None:
        name = f"{self._key}-{'typed' if typed else 'plain'}.json"
        return self._cache / name if self._cache else None

    def _kept(self, typed: bool) -> Object | None:
        """Read what was kept; None unless it is whole, and only root could write it."""
        path = self._path(typed)
        try:
            if path is None or not _only_roots(path.parent):
                return None
            digest, _, body = path.read_bytes().partition(b"\n")
            if digest.decode() != hashlib.sha256(body).hexdigest():
                return None
            return msgspec.json.decode(body, type=Object)
        except (msgspec.DecodeError, ValueError, OSError):
            return None

    def _compile(self, typed: bool) -> Object:
        built = _compile(probe_text(self._btf, typed=typed))
        if path := self._path(typed):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            body = msgspec.json.encode(built)
            fresh = path.with_suffix(f".{os.getpid()}")
            fresh.write_bytes(hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
            fresh.rename(path)
            for other in path.parent.glob("*.json"):
                if not other.name.startswith(self._key):
                    other.unlink()  # of another kernel, bcc or version
        return built


def _only_roots(folder: Path) -> bool:
    """Whether nobody but root can put a file there: it becomes code in the kernel."""
    about = folder.stat()
    return about.st_uid == 0 and not about.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _compile(text: str) -> Object:
    try:
        import bcc  # noqa: PLC0415 - only on a cache miss: it brings 100 MB of LLVM
    except ImportError as error:
        raise LoadError("bcc is not installed; Debian: python3-bpfcc") from error

    class Quiet(bcc.BPF):  # type: ignore[misc]
        """A module that attaches nothing by the names of its functions."""

        def _trace_autoload(self) -> None:
            pass

    with tempfile.TemporaryDirectory(prefix="ir-agent-") as root:
        headers.write_tree(Path(root))
        os.environ["BCC_KERNEL_SOURCE"] = root
        try:
            module = Quiet(text=text.encode(), cflags=["-Wall", "-Wno-unused-function"])
        except Exception as error:
            raise LoadError(f"bcc could not compile the probes: {error}") from error
    return _extract(module, bcc.lib)


def _extract(module: Any, lib: Any) -> Object:
    lib.bpf_table_name.restype = ctypes.c_char_p
    handle = ctypes.c_void_p(module.module)
    names, maps = {}, {}
    for i in range(lib.bpf_num_tables(handle)):
        name = lib.bpf_table_name(handle, ctypes.c_size_t(i)).decode()
        fd = lib.bpf_table_fd_id(handle, ctypes.c_size_t(i))
        names[fd], maps[name] = name, bpf.map_spec(fd)
    programs = {}
    for i in range(lib.bpf_num_functions(handle)):
        function = lib.bpf_function_name(handle, ctypes.c_size_t(i))
        programs[function.decode()] = _by_name(module.dump_func(function), names)
    return Object(maps, programs)


def _by_name(code: bytes, names: Mapping[int, str]) -> Program:
    """Replace the descriptors of bcc's own maps by the maps' names."""
    text, references, at = bytearray(code), [], 0
    while at < len(text):
        if text[at] == _LD_IMM64:
            if text[at + 1] >> 4 in _PSEUDO_MAPS:
                (fd,) = struct.unpack_from("<I", text, at + 4)
                references.append((at, names[fd]))
                struct.pack_into("<I", text, at + 4, 0)
            at += 8
        at += 8
    return Program(bytes(text), references)


class Loading:
    """One loading under way: the maps, and programs as they are needed."""

    def __init__(self, compiler: Compiler, btf: Btf, ring_bytes: int) -> None:
        """Create the maps; LoadError or NotPermittedError when that is refused."""
        self._compiler, self._btf = compiler, btf
        self._programs: dict[tuple[str, How], int] = {}
        self.links: dict[str, int] = {}
        try:
            self.maps = {
                name: bpf.map_create(
                    name,
                    spec._replace(max_entries=ring_bytes) if name == RING else spec,
                )
                for name, spec in compiler.object(typed=True).maps.items()
            }
        except PermissionError as error:
            raise NotPermittedError(
                f"the kernel lets this process create no BPF map: {error}"
            ) from error

    def attach_all(self) -> list[HookState]:
        """Attach every sense by its best rung that the kernel accepts."""
        return [state for sense in SENSES for state in self._sense(sense)]

    def _sense(self, sense: Sense) -> list[HookState]:
        states: list[HookState] = []
        for rung in sense.rungs:
            tried = [self._hook(sense, rung, hook) for hook in rung.hooks]
            states += tried
            if any(state.attached for state in tried):
                break
        return states

    def _hook(self, sense: Sense, rung: Rung, hook: Hook) -> HookState:
        try:
            self.links[hook.pin] = self._attach(hook)
        except (OSError, LoadError, KeyError) as error:
            reason = " ".join(str(error).split())
            return _state(sense, rung, hook, reason)
        return _state(sense, rung, hook)

    def _attach(self, hook: Hook) -> int:
        program = self._program(hook)
        match hook.how:
            case How.TYPED_TRACEPOINT:
                return bpf.attach_raw_tracepoint(program, None)
            case How.RAW_TRACEPOINT:
                return bpf.attach_raw_tracepoint(program, hook.tracepoint)
            case How.ITERATOR:
                return bpf.link_create(program, 0, bpf.ATTACH_TRACE_ITER)
            case How.TRACEPOINT:
                event = bpf.tracepoint_event(tracefs(), *hook.target.split(":"))
                try:
                    return bpf.link_create(program, event, bpf.ATTACH_PERF_EVENT)
                finally:
                    os.close(event)

    def _program(self, hook: Hook) -> int:
        place = (hook.program, hook.how)
        if place not in self._programs:
            typed = hook.how is not How.RAW_TRACEPOINT
            program = self._compiler.object(typed=typed).programs[hook.program]
            code = bytearray(program.code)
            for at, name in program.maps:
                struct.pack_into("<I", code, at + 4, self.maps[name])
            attach_type, btf_id = self._attach_point(hook)
            self._programs[place] = bpf.prog_load(
                hook.program, _TYPES[hook.how], bytes(code), attach_type, btf_id
            )
        return self._programs[place]

    def _attach_point(self, hook: Hook) -> tuple[int, int]:
        """Return attach type and BTF id of programs that are loaded for one place."""
        match hook.how:
            case How.TYPED_TRACEPOINT:
                kind, name = TYPEDEF, f"btf_trace_{hook.tracepoint}"
                attach_type = bpf.ATTACH_TRACE_RAW_TP
            case How.ITERATOR:
                kind, name, attach_type = FUNC, hook.target, bpf.ATTACH_TRACE_ITER
            case _:
                return 0, 0
        btf_id = self._btf.find(kind, name)
        if btf_id is None:
            raise LoadError(f"this kernel's BTF has no {name}")
        return attach_type, btf_id


def _state(sense: Sense, rung: Rung, hook: Hook, reason: str = "") -> HookState:
    return HookState(
        sense.name,
        rung.name,
        hook.program,
        hook.target,
        not reason,
        reason=reason,
        unseen=rung.unseen,
    )


def tracefs() -> Path:
    """Where tracefs is mounted; mounts it in its own place when it is not."""
    for place in (Path("/sys/kernel/tracing"), Path("/sys/kernel/debug/tracing")):
        if (place / "events").is_dir():
            return place
    pins.mount("tracefs", Path("/sys/kernel/tracing"))
    return Path("/sys/kernel/tracing")


def load(folder: Path, ring_bytes: int, cache: Path | None) -> list[HookState]:
    """Load everything into the pin folder, replacing what is there.

    `ring_bytes` is a power of two, at least a page. Returns the state of every hook,
    proven or not. LoadError when no hook at all could be attached.
    """
    btf, key = Btf.of_kernel(), object_key()
    loading = Loading(Compiler(btf, key, cache), btf, ring_bytes)
    states = loading.attach_all()
    if not any(state.attached for state in states):
        raise LoadError(f"no hook could be attached: {states[0].reason}")
    pins.publish(folder, key, loading.maps, loading.links)
    return prove(states, loading.maps, loading.links)
