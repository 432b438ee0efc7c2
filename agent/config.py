"""The configuration file: read into one frozen value, or refused with file and line.

In: a YAML file. Out: Config. An unknown key, a wrong type or a file that others may
write is a UsageError that names the line; nothing is ignored and nothing is guessed.
"""

import os
import stat
from pathlib import Path
from typing import Any

import msgspec
import yaml

from agent.errors import UsageError
from agent.sensor.hooks import RUNGS

DEFAULT_PATH = Path("/etc/ir-agent/agent.yaml")


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything an operator may set; folders, sizes in bytes, nice as nice(2)."""

    state: str = "/var/lib/ir-agent"
    runtime: str = "/run/ir-agent"
    pins: str = "/sys/fs/bpf/ir-agent"
    ring_bytes: int = 16 << 20
    segment_bytes: int = 64 << 20
    processes: int = 65536
    heartbeat_seconds: float = 10.0
    sweep_seconds: float = 10.0
    nice: int = -10
    forbidden_rungs: tuple[str, ...] = ()

    @property
    def records(self) -> Path:
        """The folder of the record log."""
        return Path(self.state) / "records"

    @property
    def cache(self) -> Path:
        """The folder of compiled probes."""
        return Path(self.state) / "probes"


def read_config(path: Path | None) -> Config:
    """Read a file; None means the default one if it is there, else the defaults."""
    if path is None:
        if not DEFAULT_PATH.exists():
            return Config()
        path = DEFAULT_PATH
    try:
        with path.open("rb") as file:
            _require_safe(path, os.fstat(file.fileno()))
            source = file.read()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    return check(_parse(path, source), path, source)


def _require_safe(path: Path, about: os.stat_result) -> None:
    if about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise UsageError(f"{path}: group or others may write it; chmod go-w")
    if about.st_uid not in (0, os.geteuid()):
        raise UsageError(f"{path}: belongs to uid {about.st_uid}, not to root")


class _Loader(yaml.SafeLoader):
    """A safe loader that refuses a key that is there twice; the last would win."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> Any:
        """Build a mapping; MarkedYAMLError at the second of two equal keys."""
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if key.value in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"{key.value!r} stands here a second time",
                    problem_mark=key.start_mark,
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def _parse(path: Path, source: bytes) -> dict[str, Any]:
    try:
        values = yaml.load(source, _Loader)  # noqa: S506, TID251 - a safe loader
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 0
        raise UsageError(f"{path}:{line}: {error.problem}") from error
    except yaml.YAMLError as error:
        raise UsageError(f"{path}: {error}") from error
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise UsageError(f"{path}:1: expected keys with values")
    return values


def check(values: dict[str, Any], path: Path, source: bytes = b"") -> Config:
    """Turn values into a Config, or say which line is wrong and why."""
    known = Config.__struct_fields__
    for key in values:
        if key not in known:
            raise UsageError(f"{_where(path, source, key)}: unknown key {key!r}")
    for key, value in values.items():
        try:
            msgspec.convert({key: value}, Config)
        except msgspec.ValidationError as error:
            raise UsageError(f"{_where(path, source, key)}: {error}") from error
    config = msgspec.convert(values, Config)
    _check_sizes(config, path, source)
    return config


_RANGES = {
    "ring_bytes": (os.sysconf("SC_PAGE_SIZE"), 1 << 30),
    "segment_bytes": (4096, 1 << 40),
    "processes": (1, 1 << 24),
    "heartbeat_seconds": (0.1, 86400.0),
    "sweep_seconds": (0.1, 86400.0),
    "nice": (-20, 19),
}
"""From and to, both allowed."""


def _check_sizes(config: Config, path: Path, source: bytes) -> None:
    for key, (least, most) in _RANGES.items():
        if not least <= getattr(config, key) <= most:
            where = _where(path, source, key)
            raise UsageError(f"{where}: {key} must lie between {least} and {most}")
    if config.ring_bytes & (config.ring_bytes - 1):
        where = _where(path, source, "ring_bytes")
        raise UsageError(f"{where}: ring_bytes must be a power of two")
    for rung in config.forbidden_rungs:
        if rung not in RUNGS:
            where = _where(path, source, "forbidden_rungs")
            known = ", ".join(RUNGS)
            raise UsageError(f"{where}: there is no rung {rung!r}; there are {known}")
    for key in ("state", "runtime", "pins"):
        if not getattr(config, key):
            raise UsageError(f"{_where(path, source, key)}: {key} is empty")


def _where(path: Path, source: bytes, key: object) -> str:
    """Name file and line of a top-level key."""
    for number, line in enumerate(source.decode(errors="replace").splitlines(), 1):
        if line.partition(":")[0].strip(" \"'") == str(key):
            return f"{path}:{number}"
    return str(path)
