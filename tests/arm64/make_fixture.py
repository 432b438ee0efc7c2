"""Make vmlinux-VERSION.btf: what the agent needs of an arm64 kernel's type information.

    python -m tests.arm64.make_fixture [6.1 | 6.12 ...]

In: the agent's tables, and a kernel package of this distribution for arm64, which is
downloaded. Out: the fixture, and beside it a text that says what it is and that it
agrees with the whole. Run it again when test_arm64.py says that the tables have grown.
"""

import hashlib
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from agent.errors import LoadError
from agent.sensor import headers
from agent.sensor.btf import FUNC, STRUCT, TYPEDEF, Btf
from agent.sensor.hooks import MACHINE_PREFIXES, SENSES
from agent.sensor.sources import Variant
from tests.arm64.btf_image import Image
from tests.arm64.kernel_package import (
    ARCHITECTURE,
    Package,
    btf_of,
    download,
    kernel_of,
    unpacked,
)

FOLDER = Path(__file__).parent
NEWEST = {"6.1": "linux-image-cloud-arm64", "6.12": "linux-image-6.12-cloud-arm64"}
"""What to install for the newest kernel of a version, in Debian 12."""

MACHINE = "aarch64"
"""As os.uname().machine says it there."""
Root = tuple[int, str]

HOOKS = sorted(
    {hook for sense in SENSES for rung in sense.rungs for hook in rung.hooks}
)
VARIANTS = tuple(dict.fromkeys(text for hook in HOOKS for text in hook.variants))
MEMBERS = {
    name: tuple(
        dict.fromkeys(
            member
            for variant in VARIANTS
            for member in headers.members(variant, MACHINE).get(name, ())
        )
    )
    for variant in VARIANTS
    for name in headers.members(variant, MACHINE)
}
"""What the probes read on such a machine, in any of their variants."""
STRUCTS = ("pt_regs", "user_pt_regs", "filename", "list_head")
FUNCTIONS = ("do_filp_open", "pidfs_alloc_file")
# places in the kernel that a hook may be moved to; more than are used, so that the
# fixture outlives most changes of the tables
_FAMILIES = {
    FUNC: re.compile(
        r"(bpf_lsm|security)_(bprm|cred|file|kernel|mmap|ptrace|task)_\w+|bpf_iter_\w+"
    ),
    TYPEDEF: re.compile(r"btf_trace_(sched|signal|sys|task)_\w+"),
}
_CALLS = re.compile(r"sys_(?:enter|exit)_(\w+)")


def places(target: str) -> Iterator[Root]:
    """Yield what a hook's target may be called in the type information."""
    way, _, name = target.partition(" ")[0].rpartition(":")
    prefixes = dict(zip(("native", "compat"), MACHINE_PREFIXES[MACHINE], strict=True))
    if call := _CALLS.fullmatch(name):
        yield FUNC, f"{prefixes['native']}sys_{call[1]}"
    for one in name.split("|"):
        yield FUNC, prefixes.get(way, "") + one
    yield TYPEDEF, f"btf_trace_{name}"


def targets() -> set[str]:
    """Return what all hooks are attached to, as the table has it."""
    return {hook.target for hook in HOOKS}


def required() -> list[Root]:
    """List what must be in a fixture, unless the kernel itself lacks it."""
    structs = [(STRUCT, name) for name in dict.fromkeys((*MEMBERS, *STRUCTS))]
    return [*structs, *((FUNC, name) for name in FUNCTIONS)]


def _roots(named: Iterable[Root]) -> set[Root]:
    wanted = {place for target in targets() for place in places(target)}
    wanted |= set(required())
    of_families = {
        (kind, name)
        for kind, name in named
        if (family := _FAMILIES.get(kind)) and family.fullmatch(name)
    }
    return wanted & set(named) | of_families


def _layout(btf: Btf, name: str) -> list[tuple[str, int, int, tuple[str, int]]]:
    known = frozenset(MEMBERS)
    return [
        (member, where.offset, where.bits, btf.declare(where.type_id, known))
        for member, where in btf.struct(name)[1].items()
    ]


def _header(btf: Btf, variant: Variant, machine: str) -> str:
    """Return the header of a variant, or why it can't be made."""
    try:
        return headers.generate(btf, variant, machine)
    except LoadError as error:
        return str(error)


def difference(
    whole: Btf, part: Btf, structs: Iterable[str], machine: str = MACHINE
) -> str | None:
    """Return what differs between two images; None when nothing does.

    Compared are size, and each member's name, place and declaration of the structs,
    and the header that each variant of the probes is compiled with.
    """
    for name in structs:
        if whole.struct(name)[0] != part.struct(name)[0]:
            return f"the size of struct {name}"
        if _layout(whole, name) != _layout(part, name):
            return f"the members of struct {name}"
    for variant in VARIANTS:
        if _header(whole, variant, machine) != _header(part, variant, machine):
            return f"the header of {variant.name}"
    return None


def prune(raw: bytes) -> tuple[bytes, list[str]]:
    """Return what is needed of an image, and the names of the structs kept whole."""
    image = Image(raw)
    named = image.named()
    whole = image.needed(named[root] for root in _roots(named))
    structs = [
        name
        for (kind, name), number in named.items()
        if kind == STRUCT and whole.get(number)
    ]
    return image.part(whole), structs


def _about(package: Package, raw: bytes, part: bytes, structs: list[str]) -> str:
    btf = Btf(part)
    lines = [
        "Part of the type information (BTF) of a Linux kernel, which is GPL-2.0-only.",
        "",
        f"package: {package.name} {package.version} {ARCHITECTURE}",
        f"package-sha256: {package.sha256}",
        f"whole-sha256: {hashlib.sha256(raw).hexdigest()}",
        f"whole-bytes: {len(raw)}",
        f"part-sha256: {hashlib.sha256(part).hexdigest()}",
        f"part-bytes: {len(part)}",
        *(f"absent: {name}" for kind, name in required() if not btf.find(kind, name)),
        "",
        "Made by tests/arm64/make_fixture.py, which compared part and whole: the size",
        f"and every member's place and declaration are the same in {len(structs)}",
        "structs, and so are the headers that the probes are compiled with. What these",
        "structs only point at is there by name and size.",
    ]
    return "\n".join(lines) + "\n"


def make(version: str, newest: str) -> Path:
    """Write fixture and text of one version."""
    with tempfile.TemporaryDirectory(prefix="ir-agent-kernel-") as folder:
        package = download(newest, Path(folder))
        raw = btf_of(unpacked(kernel_of(package.path)))
    if not re.match(rf"{re.escape(version)}\.\d", package.version):
        raise LookupError(f"{newest} is {package.version} here, not {version}")
    part, structs = prune(raw)
    if found := difference(Btf(raw), Btf(part), structs):
        raise ValueError(f"part and whole differ in {found}")
    path = FOLDER / f"vmlinux-{version}.btf"
    path.write_bytes(part)
    path.with_suffix(".txt").write_text(_about(package, raw, part, structs))
    return path


if __name__ == "__main__":
    for asked in sys.argv[1:] or NEWEST:
        sys.stdout.write(f"{make(asked, NEWEST[asked])}\n")
