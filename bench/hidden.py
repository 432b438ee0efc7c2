"""Looking for hidden processes: our look at every pid, and unhide's, in turns.

Options come in; time, false alarms and unhide's time as a multiple of ours go out,
printed: on the quiet machine, then in a storm of births. It can never leave the storm
running, after Ctrl-C too. Needs root.

Nothing is hidden on the machine it runs on, so each alarm is a false one. Each look is
a program of its own, its start included: ours takes both calls for each pid below
pid_max, lists /proc, and looks again at whoever was missing. unhide's `brute` is left
out unless asked for: in a storm it does not come to its end.

    bench/hidden.py [--rounds R] [--tests quick,sys,brute] [--workers W]
"""

from __future__ import annotations

import argparse
import ctypes
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from subprocess import DEVNULL, PIPE, Popen, TimeoutExpired, run

import storm

from agent.process.pidrange import existing, unlisted
from agent.process.proc import Proc

PR_SET_CHILD_SUBREAPER = 36
OURS = "ours"
LOOK = "--one-look"
LIMIT = 120
"""Seconds that one look may take."""
ALARM = re.compile(r"^Found HIDDEN PID: (\d+)", re.MULTILINE)
"""What unhide prints, and what one look of ours prints for this script."""


@dataclass(frozen=True, slots=True)
class Look:
    """One look of one program: wall and CPU seconds, and how many it called hidden.

    births: processes and threads born meanwhile, on the whole machine.
    """

    wall: float
    cpu: float
    alarms: int
    births: int


def look() -> None:
    """Take one look of ours; prints as unhide does."""
    with Proc.private() as proc, Proc.mounted() as shown:
        found = existing(1, proc.pid_max(), lambda _done, _total: None, proc)
        disputed = found.by_pidfd ^ found.by_group
        missing = unlisted(found.by_pidfd | found.by_group, shown, proc)
    for pid in sorted(disputed | missing):
        print(f"Found HIDDEN PID: {pid}")


def command(arm: str, unhide: str) -> list[str]:
    if arm == OURS:
        return [sys.executable, __file__, LOOK]
    return [unhide, arm]


def births() -> int:
    """How many were born since the machine started."""
    return int(Path("/proc/stat").read_text().partition("\nprocesses ")[2].split()[0])


def once(arm: str, unhide: str) -> Look | None:
    """Take one look; None when it was not done within the limit."""
    before, born, begin = os.times(), births(), time.monotonic()
    try:
        done = run(  # noqa: PLW1510 - unhide's exit status says what it found
            command(arm, unhide), stdout=PIPE, text=True, timeout=LIMIT
        )
    except TimeoutExpired:
        print(f"{arm:7} cut off", file=sys.stderr)
        return None
    wall, after = time.monotonic() - begin, os.times()
    if arm == OURS:
        done.check_returncode()
    cpu = after.children_user - before.children_user
    cpu += after.children_system - before.children_system
    turn = Look(wall, cpu, len(set(ALARM.findall(done.stdout))), births() - born)
    print(f"{arm:7}{wall:8.2f} s{turn.alarms:7} alarms", file=sys.stderr)
    return turn


@contextmanager
def blowing(workers: int) -> Iterator[None]:
    """Fork and exec at the machine's full rate meanwhile."""
    with tempfile.TemporaryDirectory(dir=storm.SCRATCH, prefix="hidden-") as folder:
        program, true = storm.build(Path(folder))
        forever = [program, "--seconds", "86400", "--workers", str(workers), true]
        # its workers end with it, and are then ours to wait for
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        with Popen(forever, stdout=DEVNULL) as child:
            try:
                yield
            finally:
                child.kill()
                child.wait()
                reap()


def reap() -> None:
    with suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)


Looks = dict[str, list[Look | None]]


def measure(arms: list[str], rounds: int, unhide: str) -> Looks:
    """Let the arms take turns, so that a neighbour who comes meets all of them."""
    looks: Looks = {arm: [] for arm in arms}
    for _ in range(rounds):
        for arm, all_ in looks.items():
            all_.append(once(arm, unhide))
    return looks


def show(title: str, looks: Looks) -> None:
    print(f"\n{title}: median of the rounds [lowest .. highest]")
    ours = median(one.wall for one in looks[OURS] if one)
    for arm, all_ in looks.items():
        done = [one for one in all_ if one]
        if len(done) < len(all_):
            cut = len(all_) - len(done)
            print(f"  {arm:7} not done within {LIMIT} s in {cut} of {len(all_)} rounds")
            continue
        walls = [one.wall for one in done]
        alarms = [one.alarms for one in done]
        print(
            f"  {arm:7}{median(walls):8.2f} s [{min(walls):7.2f} ..{max(walls):7.2f} ]"
            f"{median(one.cpu for one in done):8.2f} s CPU"
            f"{median(walls) / ours:8.1f} x ours"
            f"{median(alarms):6.0f} false alarms [{min(alarms)} .. {max(alarms)}]"
            f"{median(one.births / one.wall for one in done):8.0f} births/s"
        )


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tests", default="quick,sys", help="of unhide")
    parser.add_argument(
        "--workers", type=int, default=os.cpu_count(), help="of the storm"
    )
    parser.add_argument(LOOK, action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    asked = options()
    if asked.one_look:
        return look()
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    arms = [OURS]
    unhide = shutil.which("unhide-linux") or shutil.which("unhide")
    if unhide:
        arms += asked.tests.split(",")
    else:
        print("unhide: left out: it is not installed (package unhide)", file=sys.stderr)
    print(f"pids below {Path('/proc/sys/kernel/pid_max').read_text().strip()}")
    for title, around in (("quiet", nullcontext()), ("storm", blowing(asked.workers))):
        with around:
            looks = measure(arms, asked.rounds, unhide or "")
        show(title, looks)
    return None


if __name__ == "__main__":
    main()
