"""An agent that looks as often as it can, beside everything that an honest node does.

Options come in; counts of events, sweeps, verdicts and alarms go out, printed; the exit
status is 1 when there was an alarm, or the agent came to grief, else 0. It can never
leave its agent, probes, packages or folders behind, after Ctrl-C too: what an activity
has begun is brought to its end first. Needs root.

Each activity is repeated in a thread of its own until the time is over, so that they
meet each other in ever new ways. One that this machine can't do is left out, which is
said; a round that failed is counted, and is no alarm.

    bench/false_alarms.py [--seconds S] [--activities packages,make,...]
                          [--python PYTHON-WITH-TORCH] [--command SHELL-COMMAND]...
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import DEVNULL, Popen, TimeoutExpired
from typing import Any

import activities
import arm_agent
import storm
from activities import Activity, Command
from arm import UnavailableError

WORKLOADS = Path(__file__).parents[2] / "shared" / "workloads"
LIMIT_S = 300.0
"""How long a command may take; then it is killed with all of its session."""
BUILT_IN: dict[str, Callable[[], Activity]] = {
    "packages": activities.packages,
    "make": activities.make,
    "forks": activities.forks,
    "containers": activities.containers,
    "strace": activities.strace,
    "python": activities.python,
}


@dataclass(slots=True)
class Done:
    """How an activity went; `trouble` is what its last failed command said."""

    rounds: int = 0
    failed: int = 0
    trouble: str = ""


@dataclass(slots=True)
class Told:
    """What the agent's records say; `beat` is the last heartbeat."""

    actions: Counter[str] = field(default_factory=Counter)
    verdicts: Counter[str] = field(default_factory=Counter)
    alarms: list[dict[str, Any]] = field(default_factory=list)
    beat: dict[str, Any] = field(default_factory=dict)

    def add(self, record: dict[str, Any]) -> None:
        """Count one line of a segment."""
        action = record.get("event", {}).get("action")
        if action is None:
            return
        self.actions[action] += 1
        if verdict := record["ir"].get("parentage", {}).get("verdict"):
            self.verdicts[verdict] += action != "discrepancy"
        if record["event"]["kind"] == "alert":
            self.alarms.append(record)
        self.beat = record["ir"].get("heartbeat", self.beat)


def finish(command: Command, folder: Path) -> str:
    """Run a command to its end; what it said if it failed."""
    said = folder / "stderr"
    with said.open("wb") as errors:
        process = Popen(
            command,
            cwd=folder,
            stdin=DEVNULL,
            stdout=DEVNULL,
            stderr=errors,
            start_new_session=True,  # Ctrl-C is for us: what has begun comes to its end
        )
    try:
        status = process.wait(LIMIT_S)
    except TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return f"{command[0]}: not done within {LIMIT_S:.0f} s"
    words = said.read_text(errors="replace").strip().splitlines()[-1:] or ["no reason"]
    return f"{command[0]}: status {status}: {words[0]}" if status else ""


def repeat(activity: Activity, folder: Path, ended: threading.Event) -> Done:
    """Do an activity again and again; the round that has begun is finished."""
    done = Done()
    try:
        activity.prepare(folder)
        while not ended.is_set():
            trouble = ""
            for command in activity.round(folder):
                trouble = trouble or finish(command, folder)
            done.rounds += 1
            done.failed += bool(trouble)
            done.trouble = trouble or done.trouble
            ended.wait(0.1)
    finally:
        for command in activity.last:
            finish(command, folder)
    return done


def bustle(
    chosen: dict[str, Activity], folder: Path, seconds: float
) -> dict[str, Done]:
    """Do all activities at once for so long."""
    ended = threading.Event()
    running = {}
    with ThreadPoolExecutor(max(1, len(chosen))) as pool:
        try:
            for name, activity in chosen.items():
                own = folder / name
                own.mkdir()
                running[name] = pool.submit(repeat, activity, own, ended)
            ended.wait(seconds)
        finally:
            ended.set()
    return {name: one.result() for name, one in running.items()}


def lines(records: Path) -> Iterator[dict[str, Any]]:
    for path in sorted(records.glob("*.jsonl")):
        with path.open("rb") as segment:
            yield from map(json.loads, segment)


def listen(records: Path) -> Told:
    """Read all segments of a run that has ended."""
    told = Told()
    for record in lines(records):
        told.add(record)
    return told


def watched(
    chosen: dict[str, Activity], asked: argparse.Namespace, folder: Path
) -> tuple[dict[str, Done], Told]:
    """Do the activities beside an agent; what it said of them."""
    config = folder / "agent.yaml"
    config.touch(mode=0o600)
    config.write_text(f"sweep_seconds: {asked.sweep}\nheartbeat_seconds: 1.0\n")
    place = folder / "activities"
    place.mkdir()
    with arm_agent.running(folder, "--config", str(config)):
        done = bustle(chosen, place, asked.seconds)
        time.sleep(3 * asked.sweep + 2)  # sweeps after the last of them
    return done, listen(folder / "state" / "records")


def show(done: dict[str, Done], told: Told) -> None:
    print("\nactivity       rounds  failed")
    for name, one in done.items():
        print(f"{name:14} {one.rounds:6} {one.failed:7}  {one.trouble[:100]}")
    beat = told.beat
    for title, counts in (("events", told.actions), ("verdicts", told.verdicts)):
        print(f"\n{title}:")
        for name, count in counts.most_common():
            print(f"  {count:9} {name}")
    print(
        f"\nsweeps {beat.get('sweeps', 0)}, with"
        f" {beat.get('sweep_cpu_ns', 0) / 1e6:.0f} ms of CPU in all;"
        f" lost {beat.get('lost')}, births unseen {beat.get('births_unseen')},"
        f" ends unseen {beat.get('ends_unseen')}"
    )
    print(f"alarms: {len(told.alarms)}")
    for alarm in told.alarms:
        about = alarm["ir"].get("discrepancy") or alarm["ir"]
        who = alarm.get("process", {})
        print(
            f"  {alarm['event']['action']} {who.get('pid')} {who.get('name')} {about}"
        )


def choose(asked: argparse.Namespace) -> dict[str, Activity]:
    """Take what was asked for and can be had; what can't is said."""
    chosen = {}
    for name in asked.activities:
        make = BUILT_IN.get(name)
        one = make() if make else activities.workloads(asked.workloads, asked.python)
        if reason := one.missing():
            print(f"{name}: left out: {reason}", file=sys.stderr)
        else:
            chosen[name] = one
    for number, command in enumerate(asked.command, 1):
        chosen[f"command-{number}"] = activities.shell(command)
    return chosen


def names(text: str) -> list[str]:
    wanted = [name for name in text.split(",") if name]
    for name in wanted:
        if name not in BUILT_IN and name != "workloads":
            raise argparse.ArgumentTypeError(f"there is no activity {name!r}")
    return wanted


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    every = [*BUILT_IN, "workloads"]
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--sweep", type=float, default=0.2, help="seconds")
    parser.add_argument(
        "--activities", type=names, default=every, help=f"of {','.join(every)}"
    )
    parser.add_argument("--workloads", type=Path, default=WORKLOADS)
    parser.add_argument("--python", default=sys.executable, help="one that has torch")
    parser.add_argument("--command", action="append", default=[], help="for a shell")
    return parser.parse_args()


def main() -> int:
    asked = options()
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    with ExitStack() as stack:
        folder = stack.enter_context(
            tempfile.TemporaryDirectory(dir=storm.SCRATCH, prefix="false-alarms-")
        )
        try:
            done, told = watched(choose(asked), asked, Path(folder))
        except UnavailableError as error:
            print(error, file=sys.stderr)
            return 1
    show(done, told)
    grief = not told.actions["agent-stop"] or not told.beat.get("sweeps")
    if grief:
        print("the agent did not come to its end, or never looked", file=sys.stderr)
    return 1 if grief or told.alarms else 0


if __name__ == "__main__":
    sys.exit(main())
