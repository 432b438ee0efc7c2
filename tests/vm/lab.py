"""The step that runs the kernel tests on every supported kernel, in virtual machines.

In: the tables below and kernels.py. Out: a table on the terminal, each guest's output
and JUnit file in .cache/vm, and an exit status that is 0 only when all guests are well,
or when this machine can't have any, which is said in one line.
"""

import argparse
import compileall
import contextlib
import fcntl
import os
import platform
import shlex
import shutil
import signal
import subprocess  # noqa: TID251 - runs deploy/setup-vm
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.kernel.conftest import build_all
from tests.vm import report
from tests.vm.archive import Found, NoKernelError, cache_folder, fetch
from tests.vm.compiled import compile_all, types_of
from tests.vm.kernels import EXCLUDED, NAMES, SUPPORTED, Kernel
from tests.vm.machine import LAB, Machine, Order, Outcome, missing, run_all

# The test files: one line each.
SHORT = (
    "tests/kernel/test_birth_and_death.py",
    "tests/kernel/test_access.py",
)
HELD_OFF = (
    "tests/kernel/test_guard.py::test_a_debugger_is_held_off",
    "tests/kernel/test_guard.py::test_the_guard_holds_while_the_daemon_is_dead",
)
RUNG = "tests/kernel/test_rungs.py::test_each_rung_is_proven_by_itself"
FULL = (
    *SHORT,
    "tests/kernel/test_argv.py",
    "tests/kernel/test_exec_kinds.py",
    *(f"{test}[lsm]" for test in HELD_OFF),
    f"{RUNG}[tp_btf]",
    f"{RUNG}[fentry]",
)
WITHOUT_LSM = (
    *(f"{test}[fmod_ret]" for test in HELD_OFF),
    f"{RUNG}[fmod_ret]",
)
LADDER = (
    "tests/kernel/test_rungs.py",
    "tests/kernel/test_golden_rungs.py",
    "tests/kernel/test_guard.py",
)
CONFIDENTIAL = ("tests/vm/test_guest_confidentiality.py",)
NO_RESOURCE = ("tests/vm/test_guest_memlock.py",)
TAMPERED = ("tests/vm/test_guest_tampered.py",)

WITHOUT_BPF = "lsm=lockdown,capability,yama"
WITH_BPF = f"{WITHOUT_BPF},bpf"
# What a service without the capability starts with on an old kernel (64 KiB).
DROP_RESOURCE = (
    "ulimit -l 64; setpriv --bounding-set=-sys_resource --inh-caps=-sys_resource --"
)


class Variant(NamedTuple):
    """A way to set up a guest: the kernel's options, and what the tests run under.

    `refuses`: rungs that can't be had so. `by_hand`: it runs only when it is named.
    `surgery`: tests may ask for edits of the kernel's objects.
    """

    name: str
    kernels: tuple[str, ...]
    tests: tuple[str, ...]
    options: str = WITH_BPF
    under: str = ""
    refuses: tuple[str, ...] = ()
    by_hand: bool = False
    surgery: bool = False


VARIANTS = (
    Variant("full", NAMES, FULL),
    Variant("default-lsm", ("5.10",), WITHOUT_LSM, options="", refuses=("lsm",)),
    Variant("no-bpf-lsm", ("6.1",), WITHOUT_LSM, WITHOUT_BPF, refuses=("lsm",)),
    Variant("integrity", ("6.1",), SHORT, f"{WITH_BPF} lockdown=integrity"),
    Variant(
        "confidentiality",
        ("6.1",),
        CONFIDENTIAL,
        f"{WITH_BPF} lockdown=confidentiality",
    ),
    Variant("no-resource", ("5.10", "6.1"), NO_RESOURCE, under=DROP_RESOURCE),
    Variant("tampered", ("5.10", "6.12"), TAMPERED, surgery=True),
    Variant("ladder", NAMES, LADDER, by_hand=True),
)

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / ".cache/vm"
PROBES = RESULTS / "probes"
PYTEST = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")
AT_ONCE = 2
LIMIT_S = 720.0


class Guest(NamedTuple):
    """One machine to boot, and the tests to run in it."""

    kernel: Kernel
    variant: Variant
    tests: tuple[str, ...]

    @property
    def name(self) -> str:
        """What it is called in tables and folders."""
        return f"{self.kernel.name}-{self.variant.name}"

    @property
    def excluded(self) -> list[str]:
        """The tests that it is let off."""
        facts = (self.kernel.name, self.variant.name)
        files = {test.partition("::")[0] for test in self.tests}
        return [
            one.test
            for one in EXCLUDED
            if one.covers(*facts) and one.test.partition("::")[0] in files
        ]


def say(line: str) -> None:
    """Print a line now, also into a pipe."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def selected(options: argparse.Namespace) -> list[Guest]:
    """The guests that the command line asks for, longest first."""
    named = options.variant or ([VARIANTS[0].name] if options.tests else [])
    return [
        Guest(kernel, variant, tuple(options.tests) or variant.tests)
        for variant in VARIANTS
        for kernel in SUPPORTED
        if kernel.name in variant.kernels
        and (not options.kernel or kernel.name in options.kernel)
        and (variant.name in named if named else not variant.by_hand)
    ]


def unusable() -> str:
    """Why this machine can't run guests, or nothing."""
    if os.geteuid() != 0:
        return "only root can serve this machine's files to a guest"
    if platform.machine() != "x86_64":
        return f"the guests are x86-64, and this machine is {platform.machine()}"
    done = subprocess.run(
        [ROOT / "deploy/setup-vm"], stderr=subprocess.PIPE, text=True, check=False
    )
    if lacking := missing():
        said = done.stderr.strip().splitlines()
        return " ".join([f"{', '.join(lacking)} missing;", *said[-1:]])
    return ""


def fetched(kernels: Iterable[Kernel], cache: Path) -> dict[str, Found | str]:
    """Each kernel in the cache, or why it can't be had."""
    found: dict[str, Found | str] = {}
    for kernel in kernels:
        try:
            found[kernel.name] = fetch(cache, kernel)
        except NoKernelError as error:
            found[kernel.name] = str(error)
        match found[kernel.name]:
            case Found(_, package, note):
                say(f"{kernel.name:8} {package} ({note})")
            case why:
                say(f"{kernel.name:8} can't be had: {why}")
    return found


def command(guest: Guest, triggers: Path) -> str:
    """The shell's words that run a guest's tests there."""
    pytest = [*PYTEST, f"--junitxml={LAB}/junit.xml", *guest.tests]
    pytest += [word for test in guest.excluded for word in ("--deselect", test)]
    given = {"IR_TRIGGERS": triggers, "IR_PROBES": PROBES / guest.kernel.name}
    # In memory, not in the layered root: there a file's device is not its inode's.
    copies = [
        f"cp -r {shlex.quote(str(one))} /run/{name}" for name, one in given.items()
    ]
    facts = {name: f"/run/{name}" for name in given} | {
        "VMLAB": "1",
        "IR_REFUSED": ",".join((*guest.kernel.refuses, *guest.variant.refuses)),
        "IR_FIGURES": f"{LAB}/figures.json" if "IR_FIGURES" in os.environ else "",
        "VMLAB_VARIANT": guest.variant.name,
        # Loading hypothesis takes five seconds there, and no test in a guest uses it.
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    settings = " ".join(f"{name}={value}" for name, value in facts.items())
    words = [
        *copies,
        f"export {settings}",
        f"{guest.variant.under} {shlex.join(pytest)}",
    ]
    return "; ".join(words)


def share_of(guest: Guest) -> Path:
    """A guest's folder, with nothing in it from an earlier run."""
    folder = RESULTS / guest.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def start(guest: Guest, kernel: Path, work: Path, limit_s: float) -> Machine:
    """Boot a guest."""
    own = work / guest.name
    own.mkdir()
    script = command(guest, work / "triggers")
    options, share = guest.variant.options, share_of(guest)
    types = kernel / "btf" if guest.variant.surgery else None
    return Machine(Order(kernel, options, script, ROOT, share, limit_s, types), own)


def result_of(guest: Guest, outcome: Outcome) -> report.Result:
    """Judge a guest and say so; with what it said where something is wrong."""
    share = RESULTS / guest.name
    read = report.read(share / "junit.xml")
    wrong = report.judge(outcome, read)
    say(f"{guest.name}: {wrong or 'ok'}, {read.tests} tests, {outcome.all_s:.0f} s")
    if wrong:
        for line in report.reasons(read, share / "output", share / "console"):
            say(f"    {line}")
    return report.Result(guest.name, outcome, read, len(guest.excluded), wrong)


def summary(results: Sequence[report.Result]) -> Iterator[str]:
    """The tables at the end."""
    yield from report.table(results)
    yield from report.skips(results)
    yield "Slowest test files:"
    yield from report.slowest(results)


def prepare(kernels: Mapping[str, Path], work: Path, at_once: int) -> None:
    """Build here what a guest would be slow to build."""
    (work / "triggers").mkdir()
    build_all(work / "triggers")
    types = types_of(kernels, work, at_once)
    compile_all({types[name]: PROBES / name for name in types}, at_once)
    compileall.compile_dir(ROOT / "agent", quiet=2)
    keep_bytecode()


def keep_bytecode() -> None:
    """Have pytest compile the tests, with its asserts, whatever this shell forbids."""
    forbids = "PYTHONDONTWRITEBYTECODE"
    allowed = {name: os.environ[name] for name in os.environ if name != forbids}
    collect = [*PYTEST, "--collect-only", "tests/kernel", "tests/vm"]
    subprocess.run(
        collect, cwd=ROOT, env=allowed, stdout=subprocess.DEVNULL, check=False
    )


def run(options: argparse.Namespace, work: Path) -> int:
    """Fetch, boot, test, and tell; the exit status."""
    guests = selected(options)
    wanted = [kernel for kernel in SUPPORTED if any(g.kernel == kernel for g in guests)]
    found = fetched(wanted, options.cache)
    kernels = {
        name: one.folder for name, one in found.items() if isinstance(one, Found)
    }
    if not kernels:
        say("vm lab: skipped: no kernel is in the cache and none can be fetched")
        return 0
    lost = [one.name for one in wanted if one.name not in kernels and not one.moving]
    guests = [guest for guest in guests if guest.kernel.name in kernels]
    prepare(kernels, work, options.at_once)
    say(f"vm lab: {len(guests)} guests; their output is in {RESULTS}")
    results: list[report.Result] = []
    run_all(
        guests,
        lambda guest: start(guest, kernels[guest.kernel.name], work, options.limit),
        lambda guest, outcome: results.append(result_of(guest, outcome)),
        options.at_once,
    )
    for line in summary(results):
        say(line)
    return 1 if lost or not results or any(result.wrong for result in results) else 0


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(prog="tests.vm.lab", description=__doc__)
    names = [variant.name for variant in VARIANTS]
    made.add_argument("--kernel", action="append", choices=NAMES)
    made.add_argument("--variant", action="append", choices=names)
    made.add_argument("--at-once", type=int, default=AT_ONCE)
    made.add_argument("--limit", type=float, default=LIMIT_S, metavar="SECONDS")
    made.add_argument("--cache", type=Path, default=cache_folder())
    made.add_argument("tests", nargs="*")
    return made


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Keep a second lab out of the folders of this one; BlockingIOError for it."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    with (RESULTS / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


def main() -> int:
    """Run the lab, or say in one line why not."""
    options = parser().parse_args()
    # As Ctrl-C: what was started is ended on the way out.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if reason := unusable():
            say(f"vm lab: skipped: {reason}")
            return 0
        with alone(), tempfile.TemporaryDirectory(prefix="ir-vm-") as name:
            return run(options, Path(name))
    except BlockingIOError:
        say(f"vm lab: another one is at work in {RESULTS}")
        return 1
    except KeyboardInterrupt:
        say("vm lab: stopped")
        return 130


if __name__ == "__main__":
    sys.exit(main())
