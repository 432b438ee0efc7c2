"""An exec storm without a witness, under the agent, and under auditd, in turns.

Options come in; a table, the ratio of the agent's cost to auditd's and, with --json,
every raw number go out. It can never leave anything running, loaded or changed behind:
daemons, probes, audit rules and folders are taken back, after Ctrl-C too.

Arms take turns (A B C A B C ...), so that a neighbour who comes or goes meets all of
them. What a number means is told in `cost.py`, what the storm does in `storm.c`.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from subprocess import run
from types import FrameType
from typing import Any, NoReturn

import arm_agent
import arm_auditd
import cost
import report
from arm import Daemon, UnavailableError
from report import Round

HERE = Path(__file__).parent
SCRATCH = "/var/tmp"  # on a disk: /tmp may be memory
ARMS = ("none", "agent", "auditd")

RUNNING: dict[str, Callable[[Path], AbstractContextManager[Daemon]]] = {
    "agent": arm_agent.running,
    "auditd": arm_auditd.running,
}
CHECK: dict[str, Callable[[], None]] = {
    "none": lambda: None,
    "agent": arm_agent.check,
    "auditd": arm_auditd.check,
}


def build(folder: Path) -> list[str]:
    """Compile the storm and its program into a folder; both paths, in that order."""
    storm, true = folder / "storm", folder / "true"
    gcc = ["gcc", "-O2", "-static"]
    run([*gcc, "-o", storm, HERE / "storm.c"], check=True)
    run([*gcc, "-nostdlib", "-o", true, HERE / "true.c"], check=True)
    return [str(storm), str(true)]


def _storm(built: list[str], seconds: float) -> dict[str, Any]:
    storm, true = built
    command = [storm, "--seconds", str(seconds), true]
    said: dict[str, Any] = json.loads(
        run(command, check=True, capture_output=True).stdout
    )
    return said


def _bare(built: list[str], seconds: float) -> Round:
    before = cost.look()
    storm = _storm(built, seconds)
    cost.settle(None)
    return Round("none", storm, cost.between(before, cost.look(), None))


def _witnessed(arm: str, built: list[str], seconds: float) -> Round:
    with tempfile.TemporaryDirectory(dir=SCRATCH, prefix=f"storm-{arm}-") as folder:
        with RUNNING[arm](Path(folder)) as daemon:
            before = cost.look()
            storm = _storm(built, seconds)
            settled = cost.settle(daemon.pid)
            cpu = cost.between(before, cost.look(), daemon.pid)
            memory = cost.memory(daemon.pid)
        return Round(arm, storm, cpu, settled, memory, daemon.evidence())


def _turn(arm: str, built: list[str], seconds: float) -> Round:
    bare = arm == "none"
    turn = _bare(built, seconds) if bare else _witnessed(arm, built, seconds)
    print(f"{arm:7}{turn.rate:8.0f} execs/s", file=sys.stderr)
    return turn


def measure(arms: list[str], rounds: int, seconds: float) -> list[Round]:
    """Run every arm once in each round, and a last bare storm to close the last one."""
    order = arms * rounds + ["none"] * ("none" in arms)
    with tempfile.TemporaryDirectory(dir=SCRATCH, prefix="storm-build-") as folder:
        built = build(Path(folder))
        if "auditd" in arms:
            with arm_auditd.running(Path(folder)):
                pass  # from here on audit was enabled once: see arm_auditd
        return [_turn(arm, built, seconds) for arm in order]


def usable(arms: list[str]) -> list[str]:
    """Keep the arms that can run here; say why of the others."""
    kept = []
    for arm in arms:
        try:
            CHECK[arm]()
        except UnavailableError as reason:
            print(f"{arm}: left out: {reason}", file=sys.stderr)
        else:
            kept.append(arm)
    return kept


def _arms(text: str) -> list[str]:
    arms = text.split(",")
    if unknown := set(arms) - set(ARMS):
        raise argparse.ArgumentTypeError(f"no such arm: {', '.join(sorted(unknown))}")
    return arms


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--seconds", type=float, default=5.0, help="of each storm")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--arms", type=_arms, default=list(ARMS), help=",".join(ARMS))
    parser.add_argument("--json", type=Path, metavar="FILE", help="all raw numbers")
    return parser.parse_args()


def _end(number: int, _frame: FrameType | None) -> NoReturn:
    # Deaf from here on: a second Ctrl-C must not cut the clearing up short.
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    raise SystemExit(128 + number)


def main() -> None:
    options = _options()
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, _end)
    arms = usable(options.arms)
    if not arms:
        raise SystemExit("storm: no arm can run here")
    try:
        rounds = measure(arms, options.rounds, options.seconds)
    except UnavailableError as reason:
        raise SystemExit(f"storm: {reason}") from reason
    report.show(rounds)
    if options.json:
        raw = json.dumps([asdict(turn) for turn in rounds], indent=1)
        options.json.write_text(raw + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
