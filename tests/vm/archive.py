"""Get kernels from the distribution's archive, without touching the machine's own apt.

In: the mirrors that the machine's apt is set up with. Out: a cache with one folder a
kernel, holding `vmlinuz`, the modules a guest needs, and the name of the package. Other
suites than the installed one are asked of the same mirrors, through an apt that keeps
its lists and its state in the cache; signatures are checked as ever.
"""

import fcntl
import lzma
import os
import re
import shutil
import subprocess  # noqa: TID251 - apt and dpkg are programs
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

from tests.vm.kernels import Kernel

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
MODULE_FOLDERS = ("drivers/virtio", "fs/fuse", "fs/overlayfs")
FRESH_S = 24 * 3600.0
PATIENCE_S = 180.0


class NoKernelError(Exception):
    """A kernel can't be had."""


class Found(NamedTuple):
    """A kernel in the cache; `note` says how it came there."""

    folder: Path
    package: str
    note: str


def cache_folder() -> Path:
    """Where kernels are kept from one checkout to the next."""
    above = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    return Path(above) / "ir-agent-kernels"


def fetch(cache: Path, kernel: Kernel) -> Found:
    """Bring a kernel into the cache, or keep what is there; NoKernelError."""
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _fetch(cache, kernel)


def _fetch(cache: Path, kernel: Kernel) -> Found:
    folder = cache / kernel.name
    kept = _kept(folder)
    if kept and time.time() - (folder / "package").stat().st_mtime < FRESH_S:  # noqa: TID251 - a file's time is wall time
        return Found(folder, kept, "in the cache")
    try:
        return _from_mirrors(cache, kernel, kept)
    except NoKernelError as error:
        if kept:
            return Found(folder, kept, f"in the cache; {error}")
        raise


def _kept(folder: Path) -> str:
    """Name the package that is in the cache with all that is wanted of it, or ""."""
    try:
        package, modules = (folder / "package").read_text().splitlines()
    except (OSError, ValueError):
        return ""
    return package if modules == " ".join(MODULE_FOLDERS) else ""


def _from_mirrors(cache: Path, kernel: Kernel, kept: str) -> Found:
    wrong = "apt knows no mirror"
    for mirror in mirrors(_configured(), kernel):
        try:
            return _from(Apt(cache / ".apt", mirror, kernel.suite), kept, cache, kernel)
        except NoKernelError as error:
            wrong = str(error)
    raise NoKernelError(wrong)


def _configured() -> str:
    """Ask apt for the addresses it would update from; it goes nowhere for that."""
    return _run(["apt-get", "update", "--print-uris"])


def mirrors(uris: str, kernel: Kernel) -> list[str]:
    """List the mirrors that may have a suite, out of what apt prints; best first.

    The archive of security updates lies beside the main one on most mirrors, so it is
    guessed where apt has none. A wrong guess fails by its signature.
    """
    found = re.findall(r"(?m)^'([^']+?)/dists/([^/']+)(?:/updates)?/InRelease'", uris)
    security = [base for base, suite in found if suite.endswith("-security")]
    main = [base for base, suite in found if not suite.endswith("-security")]
    wanted = security if kernel.security else main
    if kernel.security:
        wanted += [f"{base}-security" for base in main if base.endswith("/debian")]
    return list(dict.fromkeys(wanted))


def _run(argv: list[str], folder: Path | None = None) -> str:
    """Run a program of the distribution and return what it said."""
    try:
        done = subprocess.run(
            argv,
            cwd=folder,
            check=True,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
    except subprocess.CalledProcessError as error:
        said = (error.stderr or error.stdout).strip().splitlines()
        words = [line for line in said if line.startswith("E:")] or said
        raise NoKernelError(words[0] if words else f"{argv[0]} failed") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoKernelError(str(error)) from error
    return done.stdout


class Apt:
    """An apt of its own, for one mirror and one suite."""

    def __init__(self, folder: Path, mirror: str, suite: str) -> None:
        """Keep all of its state in a folder."""
        root = folder / suite
        for name in ("etc/apt.conf.d", "etc/preferences.d"):
            (root / name).mkdir(parents=True, exist_ok=True)
        for name in ("state/lists/partial", "cache/archives/partial"):
            (root / name).mkdir(parents=True, exist_ok=True)
        source = f"deb [signed-by={KEYRING}] {mirror} {suite} main\n"
        (root / "etc/sources.list").write_text(source)
        settings = {
            "Dir::Etc": root / "etc",
            "Dir::Etc::sourcelist": root / "etc/sources.list",
            "Dir::Etc::sourceparts": "/dev/null",
            "Dir::State": root / "state",
            "Dir::State::status": "/dev/null",
            "Dir::Cache": root / "cache",
            "Acquire::Languages": "none",
            "Acquire::Retries": 2,
            "APT::Sandbox::User": "root",
            "APT::Update::Error-Mode": "any",
        }
        self._options = [f"-o{key}={value}" for key, value in settings.items()]

    def update(self) -> None:
        """Fetch the suite's list of packages where it has changed."""
        _run(["apt-get", *self._options, "update", "-q"])

    def depends(self, package: str) -> list[str]:
        """Name the packages that one needs."""
        said = _run(["apt-cache", *self._options, "show", package])
        line = re.search(r"(?m)^Depends: (.*)$", said)
        return [one.split()[0] for one in line[1].split(", ")] if line else []

    def download(self, packages: list[str], folder: Path) -> list[Path]:
        """Fetch packages into a folder."""
        _run(["apt-get", *self._options, "download", "-q", *packages], folder)
        return sorted(folder.glob("*.deb"))


def _from(apt: Apt, kept: str, cache: Path, kernel: Kernel) -> Found:
    apt.update()
    images = [
        name for name in apt.depends(kernel.package) if name.startswith("linux-image-")
    ]
    if not images:
        raise NoKernelError(f"{kernel.suite} has no {kernel.package}")
    folder, image = cache / kernel.name, images[0]
    note = "in the cache, still the newest"
    if image != kept:
        note = f"fetched, {_replace(apt, image, folder) / 1e6:.0f} MB"
    (folder / "package").write_text(f"{image}\n{' '.join(MODULE_FOLDERS)}\n")
    return Found(folder, image, note)


def _replace(apt: Apt, image: str, folder: Path) -> int:
    """Put an image in the place of what is in the cache; its size in bytes."""
    # Since 2026 an image is split into the kernel itself and its modules.
    parts = [one for one in apt.depends(image) if re.match(PARTS, one)] or [image]
    with tempfile.TemporaryDirectory(prefix=".new-", dir=folder.parent) as name:
        fresh = Path(name) / "kernel"
        fresh.mkdir()
        packages = apt.download(parts, Path(name))
        for package in packages:
            _unpack(package, fresh)
        if not (fresh / "vmlinuz").exists():
            raise NoKernelError(f"there is no vmlinuz in {' '.join(parts)}")
        shutil.rmtree(folder, ignore_errors=True)
        fresh.rename(folder)
        return sum(package.stat().st_size for package in packages)


PARTS = r"linux-(binary|modules)-\d"


def _unpack(package: Path, folder: Path) -> None:
    """Take out of a package what a guest needs."""
    argv = ["dpkg-deb", "--fsys-tarfile", str(package)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as unpacking:
        assert unpacking.stdout is not None
        with tarfile.open(fileobj=unpacking.stdout, mode="r|") as packed:
            for name, content in _wanted(packed):
                (folder / name).write_bytes(content)
        # dpkg-deb minds a reader that leaves before the padding at the end.
        unpacking.stdout.read()
    if unpacking.returncode:
        raise NoKernelError(f"dpkg-deb could not unpack {package.name}")


def _wanted(packed: tarfile.TarFile) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of the kernel and of its modules, unpacked."""
    below = "|".join(MODULE_FOLDERS)
    for member in packed:
        path = re.sub(r"^\./(usr/)?", "", member.name)
        kernel = re.fullmatch(r"(boot/vmlinuz-[^/]*|lib/modules/[^/]*/vmlinuz)", path)
        module = re.search(rf"/kernel/(?:{below})/([^/]*\.ko)(\.xz)?$", path)
        if member.isreg() and (kernel or module):
            content = _content(packed, member)
            if module and module[2]:
                content = lzma.decompress(content)
            yield (module[1].replace("-", "_") if module else "vmlinuz"), content


def _content(packed: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file: IO[bytes] | None = packed.extractfile(member)
    assert file is not None
    return file.read()
