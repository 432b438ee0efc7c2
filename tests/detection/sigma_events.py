"""Program starts made from the values of rules, so that rules fit some of them.

In: trees and a random generator. Out: events with their surroundings, in ASCII: most
have what one rule asks, some have it in another case, some lack one thing, some have
what two rules ask.
"""

import random
import string
from collections.abc import Iterator
from typing import NamedTuple

from agent.detection.condition import And, Atom, Not, Or, Tree
from agent.detection.fields import Surroundings
from agent.detection.value import Regex, Shape, Text
from agent.events import ChainEnd, Exec, Lineage
from tests.builders import INIT, a_process, a_task, an_exec, an_image

USERS = {0: "root", 33: "www-data", 1000: "trainer"}
_PROGRAMS = ("/usr/bin/dash", "/usr/bin/python3.11", "/usr/bin/x86_64-linux-gnu-gcc-12")
_LINES = (
    "cc1 -quiet -O2 /tmp/tmpxft_0000/main.c -o /tmp/cc12345.s",
    "python3 train.py --lr 0.001",
    "sh -c gcc -shared -o kernel.so main.c",
    "ls",
)
_EXAMPLES = {
    "(.){200,}": "x" * 220,
    "-D": "-D",
    r"\s-[FTd]\s": " -F ",
    r"\s-O\s": " -O ",
}


class Program(NamedTuple):
    """One event with what is known around it."""

    event: Exec
    around: Surroundings


def programs(trees: list[Tree], count: int, seed: int) -> Iterator[Program]:
    """Yield events, the same for the same seed."""
    chance = random.Random(seed)
    for _ in range(count):
        wishes = _Wishes(chance)
        if chance.random() < 0.9:
            wishes.satisfy(chance.choice(trees))
        if chance.random() < 0.1:
            wishes.satisfy(chance.choice(trees))
        yield wishes.program()


class _Wishes:
    """What the fields must begin with, contain and end in."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._parts: dict[str, list[tuple[int, str]]] = {}

    def satisfy(self, tree: Tree) -> None:
        match tree:
            case Atom():
                if self._chance.random() < 0.97:
                    self._wish(tree)
            case And():
                for one in tree.of:
                    self.satisfy(one)
            case Or():
                self.satisfy(self._chance.choice(tree.of))
            case Not():
                if self._chance.random() < 0.1:
                    self.satisfy(tree.of)

    def _wish(self, atom: Atom) -> None:
        place, value = _example(atom.test, self._chance)
        self._parts.setdefault(atom.field, []).append((place, value))

    def _text(self, field: str, default: str) -> str:
        parts = self._parts.get(field)
        if parts is None:
            return default
        whole = [value for place, value in parts if place == 3]
        if whole:
            return self._cased(whole[0])
        gap = self._chance.choice(["", " ", " x", "/"])
        middle = [value for place, value in parts if place == 1]
        self._chance.shuffle(middle)
        first = [value for place, value in parts if place == 0]
        last = [value for place, value in parts if place == 2]
        filler = "".join(self._chance.choices(string.ascii_lowercase + " -/.", k=4))
        path = ["/opt"] if field.endswith("Image") and not first else []
        return self._cased(gap.join([*path, *first, *middle, filler, *last]))

    def _cased(self, text: str) -> str:
        return text.upper() if self._chance.random() < 0.05 else text

    def program(self) -> Program:
        default = self._chance.choice(_PROGRAMS)
        image = self._text("Image", default).encode()
        line = self._text("CommandLine", self._chance.choice(_LINES)).encode()
        user = self._text("User", self._chance.choice(["root", "trainer"]))
        uid = {name: number for number, name in USERS.items()}.get(user.lower(), 1000)
        parent = a_process(
            INIT,
            executable=self._text("ParentImage", default).encode(),
            argv=self._text("ParentCommandLine", "bash").encode() + b"\0",
        )
        event = an_exec(
            *line.split(b" "),
            task=a_task(image=an_image(uid=uid, euid=uid)),
            executable=image,
            invoked=image,
            cwd=self._text("CurrentDirectory", "/root").encode(),
        )
        lineage = Lineage((parent,), ChainEnd.ROOT)
        return Program(event, Surroundings(lineage, users=USERS))


def _example(test: object, chance: random.Random) -> tuple[int, str]:
    """Return where in a text something must stand (3: it is the text), and what."""
    match test:
        case Text():
            places = {"startswith": 0, "contains": 1, "endswith": 2, "equals": 3}
            return places[test.how], test.value
        case Shape():
            return 1, chance.choice(["", "x", " y "]).join(test.literals)
        case Regex():
            return 1, _EXAMPLES.get(test.pattern, "10.0.0.1 -i -d ")
    raise TypeError(test)
