"""Compiled probes: from the cache if they are there, else by bcc.

In: the probe sources and a kernel's BTF. Out: instructions and maps, free of anything
that dies with the process that made them. It is the only module that imports bcc, and
only when no compiled object of the same probes, kernel and bcc is at hand.
"""

import ctypes
import hashlib
import os
import stat
import struct
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from agent.errors import LoadError
from agent.sensor import bpf, headers
from agent.sensor.btf import Btf
from agent.sensor.sources import Variant, probe_folder

_LD_IMM64, _PSEUDO_MAPS = 0x18, (1, 2)


class Program(msgspec.Struct, frozen=True):
    """Instructions, and where (byte offset) they refer to which map."""

    code: bytes
    maps: list[tuple[int, str]]


class Object(msgspec.Struct, frozen=True):
    """One variant of the probes, compiled."""

    maps: dict[str, bpf.MapSpec]
    programs: dict[str, Program]


def probe_text(btf: Btf, variant: Variant, machine: str = "") -> str:
    """Return a variant as one C text, with the header made for this kernel.

    One text because compiling it costs hardly more than compiling one probe. The #line
    marks make bcc's messages name the real file and line. `machine` is what
    os.uname().machine says; the running one by default.
    """
    folder = probe_folder()
    options = f"#define RING_PAGES 1\n#define IR_TYPED {int(variant.typed)}\n"
    options += f"#define IR_WAY {variant.way}\n"
    options += f"#define IR_BY_TYPE_ONLY {int(variant.only)}\n"
    parts = [headers.generate(btf, variant, machine), options]
    parts += [
        f'#line 1 "{name}"\n{(folder / name).read_text()}' for name in variant.files
    ]
    return "".join(parts)


class Compiler:
    """Gives compiled probes, each variant once."""

    def __init__(self, btf: Btf, key: str, cache: Path | None) -> None:
        """Keep objects in `cache` under `key`, which covers all they depend on."""
        self._btf, self._key, self._cache = btf, key, cache
        self._made: dict[Variant, Object] = {}
        self._failed: dict[Variant, str] = {}

    def object(self, variants: tuple[Variant, ...]) -> Object:
        """Return one of these variants, at best one that is made already.

        LoadError when the last of them can't be compiled; it is not tried again.
        """
        variant = next((one for one in variants if one in self._made), variants[-1])
        if why := self._failed.get(variant):
            raise LoadError(why)
        if variant not in self._made:
            try:
                self._made[variant] = self._kept(variant) or self._compile(variant)
            except LoadError as error:
                self._failed[variant] = str(error)
                raise
        return self._made[variant]

    def _path(self, variant: Variant) -> Path | None:
        return self._cache / f"{self._key}-{variant.name}.json" if self._cache else None

    def _kept(self, variant: Variant) -> Object | None:
        """Read what was kept; None unless it is whole, and only root could write it."""
        path = self._path(variant)
        try:
            if path is None or not _only_roots(path.parent):
                return None
            digest, _, body = path.read_bytes().partition(b"\n")
            if digest.decode() != hashlib.sha256(body).hexdigest():
                return None
            return msgspec.json.decode(body, type=Object)
        except (msgspec.DecodeError, ValueError, OSError):
            return None

    def _compile(self, variant: Variant) -> Object:
        built = compile_text(probe_text(self._btf, variant))
        with suppress(OSError):  # a full disk is no reason to be blind
            self._keep(variant, built)
        return built

    def _keep(self, variant: Variant, built: Object) -> None:
        if path := self._path(variant):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            body = msgspec.json.encode(built)
            fresh = path.with_suffix(f".{os.getpid()}")
            fresh.write_bytes(hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
            fresh.rename(path)
            for other in path.parent.glob("*.json"):
                if not other.name.startswith(self._key):
                    other.unlink()  # of another kernel, bcc or version


def _only_roots(folder: Path) -> bool:
    """Whether nobody but root can put a file there: it becomes code in the kernel."""
    about = folder.stat()
    return about.st_uid == 0 and not about.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def compile_text(text: str) -> Object:
    """Compile one text by bcc; LoadError when bcc is missing or refuses it."""
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
