"""One sweep over a thousand processes: CPU time of each view and of the census.

Options come in; milliseconds of this process's CPU go out, kernel time included, and
the whole as a fraction of what reading the same from /proc by psutil costs. Needs root.

    bench/sweep.py [--processes N] [--rounds R]
"""

from __future__ import annotations

import argparse
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import psutil

from agent import clock
from agent.process import procfs
from agent.process.census import Census
from agent.process.ledger import Ledger
from agent.process.lineage import Lineages
from agent.process.parentage import Parentages
from agent.sensor import loader, pins
from agent.sweep import Sweep

PINS = Path("/sys/fs/bpf/ir-agent-bench-sweep")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--processes", type=int, default=1000)
    options.add_argument("--rounds", type=int, default=40)
    given = options.parse_args()
    with loaded(), asleep(given.processes), sweeping() as sweep:
        report(sweep, given.rounds)


@contextmanager
def loaded() -> Iterator[None]:
    with tempfile.TemporaryDirectory() as cache:
        loader.load(PINS, 1 << 20, Path(cache))
        try:
            yield
        finally:
            pins.unload(PINS)


@contextmanager
def asleep(count: int) -> Iterator[None]:
    pidfds = []
    try:
        for _ in range(count):
            pid = os.fork()
            if not pid:
                signal.pause()
                os._exit(0)
            pidfds.append(os.pidfd_open(pid))
        yield
    finally:
        for pidfd in pidfds:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            os.waitid(os.P_PIDFD, pidfd, os.WEXITED)
            os.close(pidfd)


@contextmanager
def sweeping() -> Iterator[Sweep]:
    sweep = Sweep(PINS)
    try:
        yield sweep
    finally:
        sweep.close()


def report(sweep: Sweep, rounds: int) -> None:
    ledger = Ledger()
    parentages = Parentages(ledger, Lineages(ledger), procfs.alive, procfs.reaps)
    census = Census(ledger, parentages, procfs.describe, clock.boot_ns())
    first = sweep.take(watch=False)
    census.take(first.listing, (), ())  # everybody is met, once
    whole = cost(lambda: census.take(sweep.take(watch=False).listing, (), ()), rounds)
    rows = {
        "kernel's list": cost(sweep.views.listing, rounds),
        "chain of tasks": cost(sweep.views.chain, rounds),
        "readdir of /proc": cost(sweep.proc.pids, rounds),
        "one sweep and census": whole,
        "psutil: ppid, name, start": cost(by_psutil, max(3, rounds // 10)),
    }
    print(f"{len(first.listing.starts)} processes, median of {rounds}, ms of CPU")
    for name, spent in rows.items():
        print(f"  {name:<28} {spent:>8.2f}")
    print(f"  sweep / psutil               {whole / list(rows.values())[-1]:>8.3f}")


def by_psutil() -> None:
    for _ in psutil.process_iter(["ppid", "name", "create_time"]):
        pass
    psutil.process_iter.cache_clear()


def cost(work: Callable[[], object], rounds: int) -> float:
    spent = []
    for _ in range(rounds):
        begun = time.process_time_ns()
        work()
        spent.append((time.process_time_ns() - begun) / 1e6)
    return median(spent)


if __name__ == "__main__":
    main()
