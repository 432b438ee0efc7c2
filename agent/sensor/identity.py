"""What decides whether loaded or compiled probes are the right ones: one key.

In: the probe sources, the modules that compile them, the table of hooks, the running
kernel's BTF, bcc's version, forbidden rungs. Out: a short hash of all of them. The
daemon computes it without bcc and without parsing BTF, so checking what is pinned costs
it nothing.
"""

import hashlib
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from agent.errors import LoadError
from agent.sensor import sources
from agent.sensor.btf import VMLINUX

_MAKERS = ("btf.py", "compiler.py", "headers.py", "hooks.py", "sources.py")
"""Modules whose text decides what is compiled; two of them the daemon never imports."""


def object_key(forbidden: Iterable[str] = (), btf: Path = VMLINUX) -> str:
    """Return the key; LoadError when this kernel offers no BTF."""
    given = [_bcc_version(), *sorted(forbidden)]
    digest = hashlib.sha256("\0".join(given).encode())
    folder = sources.probe_folder()
    files = [Path(__file__).with_name(name) for name in _MAKERS]
    files += [folder / name for name in sources.SOURCES]
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
