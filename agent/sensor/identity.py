"""What decides whether loaded or compiled probes are the right ones: one key.

In: the probe sources, the generator of their header, the running kernel's BTF, bcc's
version. Out: a short hash of all of them. The daemon computes it without bcc and
without parsing BTF, so checking what is pinned costs it nothing.
"""

import hashlib
import sys
from importlib import metadata
from pathlib import Path

from agent.errors import LoadError
from agent.sensor import headers
from agent.sensor.btf import VMLINUX

SOURCES = (
    "event.h",
    "fill.h",
    "calls.h",
    "exec.c",
    "process.c",
    "access.c",
    "memory.c",
)
"""In the order in which they are compiled, as one text."""


def probe_folder() -> Path:
    """Find the probe sources: beside the package, or installed as data."""
    for folder in (
        Path(__file__).parents[2] / "probes",
        Path(sys.prefix) / "share/ir-agent/probes",
    ):
        if (folder / SOURCES[0]).exists():
            return folder
    raise LoadError("the probe sources are not installed")


def object_key(btf: Path = VMLINUX) -> str:
    """Return the key; LoadError when this kernel offers no BTF."""
    digest = hashlib.sha256(_bcc_version().encode())
    folder = probe_folder()
    files = [Path(headers.__file__), *(folder / name for name in SOURCES)]
    for path in files:
        digest.update(path.read_bytes())
    try:
        with btf.open("rb") as types:
            while piece := types.read(1 << 20):
                digest.update(piece)
    except OSError as error:
        raise LoadError(f"this kernel offers no BTF: {error}") from error
    return digest.hexdigest()[:32]


def _bcc_version() -> str:
    try:
        return metadata.version("bcc")
    except metadata.PackageNotFoundError:
        return "none"
