"""The type information of a kernel for another machine, from this distribution.

In: the name of a package that depends on the newest kernel of its kind. Out: which
package that is, and the raw BTF inside its kernel. The machine's own apt sources and
keys are used with a package state of our own, so nothing that is installed here, and
no list of the system's apt, is touched.
"""

import gzip
import hashlib
import re
import struct
import subprocess  # noqa: TID251 - apt and dpkg-deb are programs
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ARCHITECTURE = "arm64"
# the hooks are cleared because those of the system clean the system's own folders
_CONFIGURATION = """#clear APT::Update;
#clear APT::Architectures;
APT::Architecture "{architecture}";
APT::Architectures {{ "{architecture}"; }};
APT::Sandbox::User "root";
Acquire::Languages "none";
Acquire::Retries "3";
Dir::State "{folder}/state";
Dir::State::status "/dev/null";
Dir::Cache "{folder}/cache";
"""
_BTF_START = b"\x9f\xeb\x01\x00" + struct.pack("<I", 24)
_GZIP, _ZSTD, _EFI_COMPRESSED = b"\x1f\x8b\x08", b"\x28\xb5\x2f\xfd", b"zimg"


class Package(NamedTuple):
    """A package as it was downloaded."""

    name: str
    version: str
    sha256: str
    path: Path


class _Apt:
    def __init__(self, folder: Path) -> None:
        for part in ("state/lists/partial", "cache/archives/partial"):
            (folder / part).mkdir(parents=True)
        text = _CONFIGURATION.format(folder=folder, architecture=ARCHITECTURE)
        self._configuration = folder / "apt.conf"
        self._configuration.write_text(text)
        self._folder = folder

    def run(self, tool: str, *arguments: str) -> str:
        done = subprocess.run(
            [tool, "-qq", "-c", self._configuration, *arguments],
            check=False,  # one source of many that fails is no error yet
            stdout=subprocess.PIPE,
            text=True,
            cwd=self._folder,
        )
        return done.stdout

    def about(self, package: str, field: str) -> str:
        text = self.run("apt-cache", "show", "--no-all-versions", package)
        found = re.search(rf"^{field}: (.*)$", text, re.MULTILINE)
        if found is None:
            raise LookupError(f"no {package} for {ARCHITECTURE} in the apt sources")
        return found[1]


def download(newest: str, folder: Path) -> Package:
    """Download the kernel that package `newest` depends on, into an empty folder."""
    apt = _Apt(folder)
    apt.run("apt-get", "update")
    depends = apt.about(newest, "Depends")
    image = re.search(r"linux-image-\S+", depends)
    if image is None:
        raise LookupError(f"{newest} depends on no kernel but on {depends}")
    apt.run("apt-get", "download", image[0])
    path = next(folder.glob("linux-image-*.deb"))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return Package(image[0], apt.about(image[0], "Version"), digest, path)


def kernel_of(package: Path) -> bytes:
    """Return the boot image in a package."""
    command = ["dpkg-deb", "--fsys-tarfile", str(package)]
    quiet = subprocess.DEVNULL  # it complains of a reader that has enough
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=quiet) as unpacker,
        tarfile.open(fileobj=unpacker.stdout, mode="r|") as archive,
    ):
        for member in archive:
            if member.isfile() and member.name.startswith("./boot/vmlinuz"):
                file = archive.extractfile(member)
                return file.read() if file else b""
    raise LookupError(f"no kernel in {package.name}")


def _payload(image: bytes) -> bytes:
    """Return what an EFI image that unpacks itself holds; any other image is itself."""
    if image[4:8] != _EFI_COMPRESSED:
        return image
    start, size = struct.unpack_from("<II", image, 8)
    return image[start : start + size]


def unpacked(image: bytes) -> bytes:
    """Return the kernel as it lies in memory."""
    inner = _payload(image)
    if inner.startswith(_GZIP):
        return gzip.decompress(inner)
    if inner.startswith(_ZSTD):
        command = ["zstd", "-dcq"]
        return subprocess.run(
            command, check=True, input=inner, capture_output=True
        ).stdout
    return inner


def _candidates(kernel: bytes) -> Iterator[bytes]:
    at = kernel.find(_BTF_START)
    while at >= 0:
        types, types_size, strings, size = struct.unpack_from("<4I", kernel, at + 8)
        end = at + 24 + strings + size
        # types first and strings right after them, which begin and end with a NUL
        adjacent = types == 0 and strings == types_size
        if adjacent and end <= len(kernel) and size and not kernel[end - 1]:
            yield kernel[at:end]
        at = kernel.find(_BTF_START, at + 1)


def btf_of(kernel: bytes) -> bytes:
    """Return the type information in a kernel: the largest that the magic leads to."""
    found = max(_candidates(kernel), key=len, default=None)
    if found is None:
        raise LookupError("no type information in this kernel")
    return found
