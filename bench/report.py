"""From rounds of storms to the sentences a reader wants.

Rounds come in, in the order they ran; costs by party, the ratio to auditd and what was
lost go out, printed. It can never compare rounds of different times: each is held
against the two bare storms around its turn, and the median of those differences is
shown with the lowest and the highest.

Why so: on a shared machine the bare storm alone drifts by a third within minutes, and
two neighbouring ones differ by 5 to 10 %. Smaller effects need more rounds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import cost
from arm import Evidence

BUDGET = 1 / 6
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Round:
    """One storm under one arm; `storm` is its own report. settled: see cost.settle."""

    arm: str
    storm: dict[str, Any]
    cpu: cost.Cpu
    settled: bool = True
    memory: cost.Memory | None = None
    evidence: Evidence | None = None

    @property
    def execs(self) -> int:
        """The storm's own count."""
        return int(self.storm["execs"])

    @property
    def complete(self) -> bool:
        """Whoever was there recorded each exec once, and dropped nothing."""
        return self.evidence is None or self.evidence.complete(self.execs)

    @property
    def rate(self) -> float:
        """Execs a second."""
        return self.execs / self.storm["wall_ns"] * 1e9

    @property
    def path_us(self) -> float:
        """CPU of the storm and its programs for each exec."""
        return float(sum(self.storm["cpu_ns"].values())) / self.execs / 1e3

    @property
    def p50_us(self) -> float:
        """Wall time from fork to waitpid, median."""
        return float(self.storm["latency_ns"]["p50"]) / 1e3

    def us(self, seconds: float) -> float:
        """Seconds of the whole round as microseconds an exec."""
        return seconds / self.execs * 1e6


@dataclass(frozen=True, slots=True)
class Added:
    """What an arm added to the bare storms around it, in microseconds an exec.

    p50 is wall time; machine is all CPU of everyone, neighbours too; rate is a ratio.
    """

    daemon: float
    kernel: float
    path: float
    p50: float
    machine: float
    rate: float

    @property
    def total(self) -> float:
        """All parties: the headline."""
        return self.daemon + self.kernel + self.path


def added(before: Round, arm: Round, after: Round) -> Added:
    """Compare a round with the mean of the bare storms around it."""

    def bare(figure: Callable[[Round], float]) -> float:
        return (figure(before) + figure(after)) / 2

    def more(figure: Callable[[Round], float]) -> float:
        return figure(arm) - bare(figure)

    return Added(
        daemon=arm.us(arm.cpu.daemon_s),
        kernel=more(lambda turn: turn.us(turn.cpu.kernel_s)),
        path=more(lambda turn: turn.path_us),
        p50=more(lambda turn: turn.p50_us),
        machine=more(lambda turn: turn.us(turn.cpu.busy_s)),
        rate=arm.rate / bare(lambda turn: turn.rate),
    )


def _line(name: str, values: list[float], form: str = "9.1f") -> None:
    low, high = min(values), max(values)
    print(f"  {name:30}{median(values):{form}}   [{low:{form}} ..{high:{form}} ]")


def _print_bare(rounds: list[Round]) -> None:
    print("\nstorm alone")
    _line("execs a second", [r.rate for r in rounds], "9.0f")
    _line("wall p50 µs", [r.p50_us for r in rounds])
    _line("wall p99 µs", [r.storm["latency_ns"]["p99"] / 1e3 for r in rounds])
    _line("CPU of the exec path µs", [r.path_us for r in rounds])


def _print_costs(more: list[Added]) -> None:
    _line("daemon CPU", [a.daemon for a in more])
    _line("+ kernel threads", [a.kernel for a in more])
    _line("+ added in the exec path", [a.path for a in more])
    _line("= all parties", [a.total for a in more])
    print("  beside it:")
    _line("added to wall p50", [a.p50 for a in more])
    _line("added CPU, whole machine", [a.machine for a in more])
    _line("rate, of the bare storm's", [a.rate for a in more], "9.1%")


def _print_evidence(rounds: list[Round]) -> None:
    for turn in rounds:
        if not (turn.evidence and turn.memory):
            continue
        found, memory = turn.evidence, turn.memory
        verdict = "complete" if turn.complete else "NOT COMPLETE"
        late = "" if turn.settled else ", still writing when it was ended"
        print(
            f"  {verdict}: {found.execs} recorded ({found.distinct} distinct) of "
            f"{turn.execs} execs, {found.lost} reported lost{late}\n"
            f"    {found.size / max(found.events, 1):.0f} bytes an event, "
            f"{found.size / turn.execs:.0f} an exec; memory MiB: "
            f"{memory.rss / MIB:.1f}, peak {memory.peak / MIB:.1f}, "
            f"anonymous {memory.anonymous / MIB:.1f}"
        )


def _print_ratio(agent: list[Added], auditd: list[Added], *, fair: bool) -> None:
    ratio = median(a.total for a in agent) / median(a.total for a in auditd)
    verdict = f"{'within' if ratio <= BUDGET else 'OVER'} {BUDGET:.3f}"
    if not fair:  # who drops events is cheap
        verdict = "worth nothing: somebody's records are not complete"
    print(f"\nagent / auditd, all parties: {ratio:.3f}, {verdict}")
    pairs = zip(agent, auditd, strict=True)
    ratios = [ours.total / theirs.total for ours, theirs in pairs]
    _line("round by round", ratios, "9.3f")


def show(rounds: list[Round]) -> None:
    """Print everything; needs the bare storms among the rounds to tell costs."""
    by_arm: dict[str, list[Round]] = {}
    for turn in rounds:
        by_arm.setdefault(turn.arm, []).append(turn)
    bare = by_arm.pop("none", [])
    if bare:
        _print_bare(bare)
    differences = {}
    for arm, turns in by_arm.items():
        print(f"\n{arm}, µs an exec: median of the rounds [lowest .. highest]")
        if bare:
            differences[arm] = list(map(added, bare, turns, bare[1:]))
            _print_costs(differences[arm])
        _print_evidence(turns)
    if {"agent", "auditd"} <= differences.keys():
        fair = all(turn.complete for turn in rounds)
        _print_ratio(differences["agent"], differences["auditd"], fair=fair)
    steal = sum(turn.cpu.steal_s for turn in rounds)
    wall = sum(turn.storm["wall_ns"] for turn in rounds) / 1e9
    print(f"\nstolen by the host while measuring: {steal:.1f} s in {wall:.0f} s")
