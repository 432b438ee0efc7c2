"""What an ordinary node does all day, as activities that can be repeated.

A folder comes in; commands go out, a round of them at a time. Nothing here hides
anything or does what an attacker would, so an agent that raises an alarm is wrong. What
an activity changes on the machine its last commands take back.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import DEVNULL, run

import storm

Command = list[str]
PACKAGES = ("hello", "figlet", "tree")
SOURCES = 300
APT = ("env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-qq", "-y")
ORPHANS = "(sleep 0.3 & exec sleep 0.1) & (setsid sleep 0.3 &) ; sleep 0.4"
DOUBLE_FORKS = "for i in $(seq 40); do (setsid sleep 0.4 & :) ; (sleep 0.2 &) ; done"
TREE = "for i in 1 2 3; do (sleep 0.1 &); /bin/true; done; sleep 0.2"
NAMESPACES = (
    ("-fp", "--kill-child", "--mount-proc"),
    ("-m", "-n", "-u", "-i", "-fp", "--kill-child"),
    ("-U", "-r", "-fp", "--kill-child", "--mount-proc"),
    ("-fp", "--kill-child", "unshare", "-fp", "--kill-child", "--mount-proc"),
)
POOLS = """
import multiprocessing, sys
if __name__ == "__main__":
    for way in ("fork", "spawn", "forkserver"):
        with multiprocessing.get_context(way).Pool(4) as pool:
            assert sum(pool.map(abs, range(-100, 0))) == 5050
"""


@dataclass(frozen=True, slots=True)
class Activity:
    """`missing` says why it can't be had here; `last` is run after the last round."""

    missing: Callable[[], str]
    prepare: Callable[[Path], None]
    round: Callable[[Path], list[Command]]
    last: list[Command] = field(default_factory=list)


def _without(*programs: str) -> Callable[[], str]:
    def missing() -> str:
        lacking = [one for one in programs if shutil.which(one) is None]
        return f"not installed: {', '.join(lacking)}" if lacking else ""

    return missing


def _nothing(_folder: Path) -> None:
    pass


def _spare_packages() -> list[str]:
    """Which of the packages are not there, so that nobody misses them afterwards."""
    return [
        name
        for name in PACKAGES
        if run(["dpkg", "-s", name], stdout=DEVNULL, stderr=DEVNULL).returncode  # noqa: PLW1510 - the status is the answer
    ]


def _no_packages() -> str:
    if os.geteuid() != 0:
        return "installing takes root"
    if reason := _without("apt-get", "dpkg")():
        return reason
    return "" if _spare_packages() else f"all installed: {', '.join(PACKAGES)}"


def packages() -> Activity:
    """Install and remove small packages, with their maintainer scripts and triggers."""
    spare = [] if _no_packages() else _spare_packages()
    install = [*APT, "install", "--no-install-recommends", *spare]
    purge = [*APT, "purge", *spare]
    return Activity(_no_packages, _nothing, lambda _: [install, purge], [purge])


def _sources(folder: Path) -> None:
    names = [f"part{number}" for number in range(SOURCES)]
    for name in names:
        text = f"int {name}(int x) {{ return x * {len(name)} + 1; }}\n"
        (folder / f"{name}.c").write_text(text)
    objects = " ".join(f"{name}.o" for name in names)
    rule = f"all.a: {objects}\n\tar rcs $@ $^\nclean:\n\trm -f *.o all.a\n"
    (folder / "Makefile").write_text(rule)


def make() -> Activity:
    """Build a C project of a few hundred files, eight at a time."""
    build: list[Command] = [["make", "-s", "-j8"], ["make", "-s", "clean"]]
    return Activity(_without("make", "cc", "ar"), _sources, lambda _: build)


def forks() -> Activity:
    """Fork and exec at full rate for a moment, then leave daemons and orphans."""

    def one_round(folder: Path) -> list[Command]:
        full_rate = [str(folder / "storm"), "--seconds", "1", str(folder / "true")]
        return [full_rate, ["sh", "-c", DOUBLE_FORKS], ["sleep", "0.5"]]

    def prepare(folder: Path) -> None:
        storm.build(folder)

    return Activity(_without("gcc", "setsid"), prepare, one_round)


def containers() -> Activity:
    """Namespaces of every kind, nested ones too, whose inits reap orphans."""
    inner = ["sh", "-c", ORPHANS]
    ways = [["unshare", *how, *inner] for how in NAMESPACES]
    return Activity(_without("unshare", "setsid"), _nothing, lambda _: ways)


def strace() -> Activity:
    """Trace a tree of processes, and one that is let go alive."""
    trace = ["strace", "-f", "-o", "/dev/null", "sh", "-c"]
    leave = ["timeout", "-s", "INT", "0.2", *trace, "sleep 0.4"]
    rounds = [[*trace, TREE], ["sh", "-c", '"$@" || :', "sh", *leave]]
    return Activity(_without("strace", "timeout"), _nothing, lambda _: rounds)


def python() -> Activity:
    """Pools of workers in each way that multiprocessing starts them."""

    def prepare(folder: Path) -> None:
        (folder / "pools.py").write_text(POOLS)

    commands: list[Command] = [[sys.executable, "pools.py"]]
    return Activity(lambda: "", prepare, lambda _: commands)


def workloads(folder: Path, interpreter: str) -> Activity:
    """Real training jobs; `interpreter` is a Python that has torch."""

    def missing() -> str:
        if not (folder / "ddp_dataloader.py").exists():
            return f"no training jobs in {folder}"
        tried = run([interpreter, "-c", "import torch"], stderr=DEVNULL)  # noqa: PLW1510 - the status is the answer
        return f"{interpreter} has no torch" if tried.returncode else ""

    launch = [interpreter, "-m", "torch.distributed.run", "--nproc-per-node=2"]
    quiet = ["env", "PYTHONDONTWRITEBYTECODE=1", "OMP_NUM_THREADS=1"]
    jobs = [
        [*launch, str(folder / "ddp_dataloader.py"), "--steps", "100"],
        [*launch, str(folder / "fsdp2_checkpoint.py"), "--dir", "checkpoints"],
        [*launch, str(folder / "rpc_tensorpipe.py")],
        [interpreter, str(folder / "compile_workers.py")],
    ]
    rounds = [[*quiet, *job] for job in jobs]
    return Activity(missing, _nothing, lambda _: rounds)


def shell(command: str) -> Activity:
    """Whatever a shell runs."""
    return Activity(lambda: "", _nothing, lambda _: [["sh", "-c", command]])
