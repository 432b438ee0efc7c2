"""What a rule asks of one text: four plain comparisons, a shape, `re`, a network.

In: a value of a rule and its modifier. Out: a frozen test. Strings compare without
regard to case, `re` with it and anywhere in the text; `*` and `?` are wildcards, a
backslash takes their meaning from them and from itself.
"""

import re
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Literal

import msgspec

from agent.detection.regex import exponent, literals

NEAR = 1024
"""Characters of the beginning and of the end that a slow pattern sees."""
SLOW = 1.5
"""From this exponent on a pattern is slow."""
How = Literal["equals", "startswith", "endswith", "contains"]
_ANY, _ONE = 0, 1


class Text(msgspec.Struct, frozen=True):
    """The text is, begins with, ends with or contains `value`, which is lower case."""

    how: How
    value: str

    def fits(self, raw: str) -> bool:
        """Compare without regard to case."""
        low = raw.lower()
        if self.how == "equals":
            return low == self.value
        if self.how == "contains":
            return self.value in low
        if self.how == "startswith":
            return low.startswith(self.value)
        return low.endswith(self.value)


class Shape(msgspec.Struct, frozen=True):
    """The whole text is these pieces with anything between them.

    `pieces` are regular expressions of a fixed length over lower-case text, `lengths`
    their characters, `literals` the plain strings in them.
    """

    pieces: tuple[str, ...]
    lengths: tuple[int, ...]
    literals: tuple[str, ...]

    def fits(self, raw: str) -> bool:
        """Find each piece after the one before it, leftmost first: never goes back."""
        low = raw.lower()
        last = len(low) - self.lengths[-1]
        if len(self.pieces) == 1:
            return last == 0 and compiled(self.pieces[0]).match(low) is not None
        if compiled(self.pieces[0]).match(low) is None:
            return False
        at = self.lengths[0]
        for piece in self.pieces[1:-1]:
            found = compiled(piece).search(low, at)
            if found is None:
                return False
            at = found.end()
        return last >= at and compiled(self.pieces[-1]).match(low, last) is not None


class Regex(msgspec.Struct, frozen=True):
    """`pattern` is found in the text; `power` is the exponent of its worst case.

    One of `within` must be in the text for that; without any nothing is known.
    """

    pattern: str
    power: float
    within: tuple[str, ...]

    def fits(self, raw: str) -> bool:
        """Search the text as it is; only its ends where the pattern may be slow."""
        return compiled(self.pattern).search(self.seen(raw)) is not None

    def seen(self, raw: str) -> str:
        """Return what of a text the pattern is let at."""
        return near(raw) if self.power >= SLOW else raw


class Network(msgspec.Struct, frozen=True):
    """The text is an address in this network."""

    text: str

    def fits(self, raw: str) -> bool:
        """Return whether it is; what is no address is in no network."""
        try:
            address = ip_address(raw)
        except ValueError:
            return False
        return address in network(self.text)


Test = Text | Shape | Regex | Network


def near(raw: str) -> str:
    """Return a text without its middle, NUL in its place, when it is long."""
    return raw if len(raw) <= 2 * NEAR else f"{raw[:NEAR]}\0{raw[-NEAR:]}"


@lru_cache(maxsize=16384)
def compiled(pattern: str) -> re.Pattern[str]:
    """Return a compiled pattern."""
    return re.compile(pattern)


@lru_cache(maxsize=4096)
def network(text: str) -> IPv4Network | IPv6Network:
    """Return a network; ValueError when it is none."""
    return ip_network(text)


def a_test(value: str, modifier: str) -> Test:
    """Return the test of a value; `modifier` is "" for equality.

    ValueError says what is wrong with the value.
    """
    if "\0" in value:
        raise ValueError("NUL is in no value that a program can have")
    if modifier == "re":
        return Regex(value, exponent(value), literals(value))
    if modifier == "cidr":
        network(value)
        return Network(value)
    tokens = _tokens(value)
    if modifier in ("startswith", "contains"):
        tokens.append(_ANY)
    if modifier in ("endswith", "contains"):
        tokens.insert(0, _ANY)
    return _simplest(tokens)


def _tokens(value: str) -> list[str | int]:
    """Return characters in lower case, and wildcards."""
    tokens: list[str | int] = []
    value = value.lower()
    rest = iter(enumerate(value))
    for place, one in rest:
        if one == "\\" and value[place + 1 : place + 2] in ("*", "?", "\\"):
            next(rest)
            tokens.append(value[place + 1])
        elif one == "*":
            tokens.append(_ANY)
        else:
            tokens.append(_ONE if one == "?" else one)
    return tokens


def _simplest(tokens: list[str | int]) -> Test:
    pieces: list[list[str | int]] = [[]]
    for token in tokens:
        if token != _ANY:
            pieces[-1].append(token)
        elif len(pieces) == 1 or pieces[-1]:  # ** is *
            pieces.append([])
    ends = {(True, False): "endswith", (False, True): "startswith"}
    full = [one for one in pieces if one]
    if _ONE not in tokens and len(full) <= 1:
        value = "".join(str(one) for one in full[0]) if full else ""
        if len(pieces) == 1:
            return Text("equals", value)
        how = ends.get((not pieces[0], not pieces[-1]), "contains")
        return Text(how, value)  # type: ignore[arg-type]
    return Shape(
        tuple(_expression(one) for one in pieces),
        tuple(map(len, pieces)),
        tuple(literal for one in pieces for literal in _literals(one)),
    )


def _expression(piece: list[str | int]) -> str:
    return "(?s)" + "".join(
        "." if one == _ONE else re.escape(str(one)) for one in piece
    )


def _literals(piece: list[str | int]) -> list[str]:
    plain = "".join("\0" if one == _ONE else str(one) for one in piece)
    return [one for one in plain.split("\0") if one]
