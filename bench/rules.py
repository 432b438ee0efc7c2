"""Microseconds an event of the rule matcher, at the public rules and at 5,000.

Rules are the public ones for Linux programs, beside the checkout; more of them are
made by changing letters of their values, every second copy with other names of
programs as well. Events are 95 % ordinary (compilers, shells, training, housekeeping)
and 5 % made to fit rules. Printed are CPU time an event of the matcher alone (from
event to hits) and of the whole engine (to detections), and how many times as long a
plain walk of every tree takes over the same events. The fastest of several runs counts.

    bench/rules.py [--events N] [--repeat R] [--many RULES]
"""

import argparse
import gc
import random
import string
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).parents[1]))  # events as the tests make them

from agent.detection.condition import And, Atom, Not, Or, Tree, holds
from agent.detection.engine import Engine
from agent.detection.facts import Facts
from agent.detection.fields import EXEC, Surroundings
from agent.detection.logsource import KINDS, served
from agent.detection.matcher import Matcher
from agent.detection.necessary import GRAM
from agent.detection.rule import Rule
from agent.detection.ruleset import RuleSet, build, read
from agent.detection.value import Text
from agent.events import ChainEnd, Lineage
from tests.builders import INIT, a_process, an_exec
from tests.detection.sigma_events import USERS, Program, programs

CORPUS = Path(__file__).parents[2] / "shared/corpora/sigma"
GCC = "/usr/lib/gcc/x86_64-linux-gnu/12/"
CC1 = (
    "cc1 -quiet -imultiarch x86_64-linux-gnu -D __CUDA__ -I /usr/local/cuda/include "
    "/tmp/tmpxft_0002c1/main.c -quiet -dumpbase main.c -mtune=generic -O3 -fPIC "
    "-fasynchronous-unwind-tables -o /tmp/ccK2hQ{}.s"
)
SPAWN = (
    "python3 -c from multiprocessing.spawn import spawn_main; "
    "spawn_main(tracker_fd={}, pipe_handle=11) --multiprocessing-fork"
)
ORDINARY = (
    (
        "gcc",
        f"{GCC}cc1",
        CC1,
    ),
    ("gcc", "/usr/bin/as", "as --64 -o /tmp/cc8XNb{}.o /tmp/ccK2hQ{}.s"),
    ("gcc", f"{GCC}collect2", "collect2 -plugin liblto_plugin.so -shared -o k{}.so"),
    ("ninja", "/bin/sh", "sh -c nvcc -O3 -c k{}.cu -o k{}.o --expt-relaxed-constexpr"),
    (
        "nvcc",
        "/usr/local/cuda/bin/ptxas",
        "ptxas -arch=sm_90 -m64 k{}.ptx -o k{}.cubin",
    ),
    ("torchrun", "/usr/bin/python3.11", "python3 -u train.py --lr 0.001 --steps {}"),
    (
        "python3",
        "/usr/bin/python3.11",
        SPAWN,
    ),
    ("bash", "/usr/bin/ls", "ls --color=auto run-{}"),
    ("bash", "/usr/bin/git", "git rev-parse HEAD~{}"),
    ("slurmstepd", "/bin/bash", "/bin/bash /var/spool/slurmd/job{}/slurm_script"),
    ("cron", "/usr/sbin/logrotate", "logrotate /etc/logrotate.conf"),
    ("nvidia-healthd", "/usr/bin/nvidia-smi", "nvidia-smi --query-gpu=uuid -i {}"),
    ("python3", "/sbin/ldconfig", "ldconfig -p"),
    ("sh", "/usr/bin/sed", "sed -e s/a/{}/"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=2000)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--many", type=int, default=5000)
    given = parser.parse_args()
    if not CORPUS.is_dir():
        sys.exit(f"no public rules at {CORPUS}")
    everything = read([CORPUS]).rules
    rules = [one for one in everything if one.logsource.category == "process_creation"]
    events = list(stream([served(one).tree for one in rules], given.events))
    gc.freeze()
    print("rules   build ms   matcher us   engine us   plain walk us    ratio   hits %")
    for some in (rules, everything, list(copies(rules, given.many))):
        report(some, events, given.repeat)


def stream(trees: list[Tree], count: int) -> Iterator[Program]:
    """Yield events: nineteen ordinary ones to each that is made for rules."""
    chance = random.Random(7)
    made = programs(trees, count, seed=7)
    for number, hostile in zip(range(count), made, strict=True):
        yield hostile if number % 20 == 0 else ordinary(chance)


def ordinary(chance: random.Random) -> Program:
    parent, path, line = chance.choice(ORDINARY)
    argv = line.replace("{}", str(chance.randrange(10**6))).encode().split(b" ")
    event = an_exec(*argv, executable=path.encode(), invoked=path.encode())
    program = f"/usr/bin/{parent}".encode()
    above = a_process(INIT, executable=program, argv=parent.encode() + b"\0")
    return Program(event, Surroundings(Lineage((above,), ChainEnd.ROOT), users=USERS))


def copies(rules: list[Rule], many: int) -> Iterator[Rule]:
    """Yield the rules, then changed copies of them, until there are as many."""
    for number in range(many):
        turn, place = divmod(number, len(rules))
        rule = rules[place]
        if turn:
            tree = changed(rule.tree, turn)
            rule = msgspec.structs.replace(rule, tree=tree, id=f"{rule.id}-{turn}")
        yield rule


def changed(tree: Tree, turn: int) -> Tree:
    match tree:
        case Atom():
            return changed_atom(tree, turn)
        case Not():
            return Not(changed(tree.of, turn))
        case And() | Or():
            return type(tree)(tuple(changed(one, turn) for one in tree.of))


def changed_atom(atom: Atom, turn: int) -> Atom:
    if atom.field.endswith("Image") and turn % 2:
        return atom
    letters = string.ascii_lowercase
    shift = turn % 25 + 1
    other = str.maketrans(letters, letters[shift:] + letters[:shift])
    test = atom.test
    if isinstance(test, Text) and len(test.value) >= GRAM:
        return Atom(atom.field, Text(test.how, test.value.translate(other)))
    return atom


def report(rules: list[Rule], events: list[Program], repeat: int) -> None:
    begun = time.process_time()
    built = build(rules)
    spent = (time.process_time() - begun) * 1e3
    matcher = built.matchers["exec"]
    engine = Engine(built)
    quick = fastest(events, repeat, lambda one: matched(matcher, one))
    whole = fastest(events, repeat, lambda one: engine.evaluate(*one))
    few = events[:: max(1, len(rules) // 50)]
    slow = fastest(few, 2, lambda one: walked(built, one))
    hits = sum(1 for one in events if matched(matcher, one)) / len(events)
    print(
        f"{len(rules):>5} {spent:>10.0f} {quick:>12.1f} {whole:>11.1f} {slow:>15.1f} "
        f"{slow / quick:>8.1f} {hits:>8.1%}"
    )


def fastest(
    events: list[Program], repeat: int, do: Callable[[Program], object]
) -> float:
    """Return the microseconds of CPU an event of the fastest run."""
    best = float("inf")
    for _ in range(repeat):
        begun = time.process_time()
        for one in events:
            do(one)
        best = min(best, time.process_time() - begun)
    return best / len(events) * 1e6


def matched(matcher: Matcher, one: Program) -> list[object]:
    return list(matcher.match(Facts(one.event, one.around, EXEC)))


def walked(built: RuleSet, one: Program) -> list[bool]:
    raw = Facts(one.event, one.around, EXEC).raw
    return [holds(ask.tree, raw) for ask in built.asks[KINDS[0].name]]


if __name__ == "__main__":
    main()
