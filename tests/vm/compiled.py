"""Compile the probes for other kernels than the running one.

In: the folders of those kernels. Out: a folder of compiled probes for each, as the
agent keeps them itself: their names tell of the kernel, bcc and sources they are made
for, so none is used wrongly. What takes a second here takes ten in a guest.
"""

import contextlib
import shutil
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from agent.errors import LoadError
from agent.sensor import sources
from agent.sensor.btf import Btf
from agent.sensor.compiler import Compiler
from agent.sensor.identity import object_key
from tests.vm.machine import LAB, Machine, Order, Outcome, run_all

BOOT_S = 60.0


def types_of(kernels: Mapping[str, Path], work: Path, at_once: int) -> dict[str, Path]:
    """Each kernel's BTF, kept beside it; to get it the kernel is booted once."""

    def boot(name: str) -> Machine:
        for folder in (work / f"{name}-types", work / f"{name}-share"):
            folder.mkdir()
        share, script = work / f"{name}-share", f"cp /sys/kernel/btf/vmlinux {LAB}/btf"
        order = Order(kernels[name], "", script, work, share, BOOT_S)
        return Machine(order, work / f"{name}-types")

    def keep(name: str, outcome: Outcome) -> None:
        if outcome.status == 0:
            shutil.copy(work / f"{name}-share/btf", kernels[name] / "btf.new")
            (kernels[name] / "btf.new").rename(kernels[name] / "btf")

    files = {name: folder / "btf" for name, folder in kernels.items()}
    run_all([name for name in files if not files[name].exists()], boot, keep, at_once)
    return {name: file for name, file in files.items() if file.exists()}


def compile_all(pairs: Mapping[Path, Path], at_once: int) -> None:
    """Compile for each BTF file, into the folder that goes with it."""
    with ProcessPoolExecutor(at_once) as pool:
        list(pool.map(_compile, pairs, pairs.values()))


def _compile(btf: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    compiler = Compiler(Btf.of_kernel(btf), object_key(btf=btf), folder)
    for variant in vars(sources).values():
        if isinstance(variant, sources.Variant):
            # What this kernel can't have, the agent of a guest says better.
            with contextlib.suppress(LoadError):
                compiler.object((variant,))
