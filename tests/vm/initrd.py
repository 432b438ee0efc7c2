"""Make the initrd of a guest: busybox, a script, and the modules of its kernel.

In: a folder of the cache. Out: the bytes of a cpio archive, in the form that kernels
read ("newc"). Nothing on disk but the inputs, so none of it has to be root's.
"""

import re
import stat
from collections.abc import Iterator
from pathlib import Path

BUSYBOX = Path("/bin/busybox")
INIT = Path(__file__).with_name("guest_init")
# What mounts the host's folders; a kernel that has one built in has no file of it.
WANTED = ("virtio_pci", "virtiofs", "overlay")
FOLDERS = ("bin", "dev", "proc", "sys", "modules")
CONSOLE = (5, 1)


def initrd(kernel: Path) -> bytes:
    """Make the initrd for the kernel in this folder."""
    modules = list(in_order(kernel))
    order = "".join(f"{path.name}\n" for path in modules).encode()
    entries = [entry(name, stat.S_IFDIR | 0o755) for name in FOLDERS]
    entries += [
        entry("dev/console", stat.S_IFCHR | 0o600, device=CONSOLE),
        entry("init", stat.S_IFREG | 0o755, INIT.read_bytes()),
        entry("bin/busybox", stat.S_IFREG | 0o755, BUSYBOX.read_bytes()),
        entry("modules/order", stat.S_IFREG | 0o644, order),
    ]
    entries += [
        entry(f"modules/{path.name}", stat.S_IFREG | 0o644, path.read_bytes())
        for path in modules
    ]
    return b"".join([*entries, entry("TRAILER!!!", 0)])


def in_order(kernel: Path) -> Iterator[Path]:
    """The modules to be loaded, each one after those it needs."""
    given: set[str] = set()

    def with_needs(name: str) -> Iterator[Path]:
        path = kernel / f"{name.replace('-', '_')}.ko"
        if path.name in given or not path.exists():
            return
        given.add(path.name)
        for need in needs(path.read_bytes()):
            yield from with_needs(need)
        yield path

    for name in WANTED:
        yield from with_needs(name)


def needs(module: bytes) -> list[str]:
    """The modules that a module says it depends on."""
    found = re.search(rb"\0depends=([^\0]*)\0", module)
    return found[1].decode().split(",") if found and found[1] else []


def entry(
    name: str, mode: int, content: bytes = b"", device: tuple[int, int] = (0, 0)
) -> bytes:
    """One entry of the archive; names and contents end on a multiple of four."""
    path = name.encode() + b"\0"
    # ino, mode, uid, gid, nlink, mtime, size, device of the file, its own, name, check
    numbers = (0, mode, 0, 0, 1, 0, len(content), 0, 0, *device, len(path), 0)
    header = b"070701" + b"".join(b"%08x" % number for number in numbers)
    return _padded(header + path) + _padded(content)


def _padded(part: bytes) -> bytes:
    return part + bytes(-len(part) % 4)
