"""The guard of `re`: how slow a pattern can get, told from its shape before it runs.

In: a regular expression. Out: the exponent of its worst case, or a ValueError that
names what is refused. Python's engine backtracks and can't be interrupted, and both
rule and text may be an attacker's: a pattern that can take exponential time, or more
than the square of the text's length, never gets to run.
"""

import re
from collections.abc import Sequence
from functools import cache
from math import log
from re import _constants as op  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any

MAX_PATTERN = 1024
"""Characters of a pattern."""
MAX_REPEAT = 10_000
"""The largest number in a counted repeat."""
LARGEST = 2.0
"""The largest exponent that is accepted."""
_MANY = 4096
"""A repeat with as many choices counts as one power of the text's length."""
_FEW = 4
"""So many texts are looked for before a pattern is."""
_OTHER = 256
_ALL = frozenset(range(_OTHER + 1))
"""Latin-1, and one number for every other character."""
_REPEATS = (op.MAX_REPEAT, op.MIN_REPEAT)
_ZERO_WIDTH = (op.AT,)
_CHARACTERS = (op.LITERAL, op.NOT_LITERAL, op.ANY, op.IN)
_REFUSED = {
    op.ASSERT: "look-around",
    op.ASSERT_NOT: "look-around",
    op.GROUPREF: "a reference to a group",
    op.GROUPREF_EXISTS: "a reference to a group",
    op.ATOMIC_GROUP: "an atomic group",
    op.POSSESSIVE_REPEAT: "a possessive repeat",
}
_Item = tuple[Any, Any]


def exponent(pattern: str) -> float:
    """Return k, where a search takes at most some n**k steps for n characters.

    ValueError says why a pattern is refused.
    """
    if len(pattern) > MAX_PATTERN:
        raise ValueError(f"a pattern of more than {MAX_PATTERN} characters")
    try:
        return _exponent(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"no regular expression: {error}") from error


def _exponent(pattern: str) -> float:
    re.compile(pattern)
    parsed = _parser.parse(pattern)
    fold = bool(parsed.state.flags & re.IGNORECASE)
    if parsed.state.flags & re.ASCII:
        raise ValueError("the flag `a` is not supported")
    items = _plain(list(parsed))
    _check(items, fold)
    starts = 0 if items and items[0] == (op.AT, op.AT_BEGINNING) else 1
    found = starts + _degree(_stripped(items), [], 0, fold)
    if found > LARGEST:
        raise ValueError(
            "it may take more than the square of the text's length; let what follows "
            "a repeat begin with a character that the repeat does not match"
        )
    return max(1.0, found)


def literals(pattern: str) -> tuple[str, ...]:
    """Return texts of which one is in whatever an accepted pattern fits.

    They are as long as the pattern tells without choices; () where it tells nothing.
    """
    parsed = _parser.parse(pattern)
    best: list[str] = []
    if not parsed.state.flags & re.IGNORECASE:
        now: list[str] = []
        for item in _plain(list(parsed)):
            more = _letters(item)
            longer = [one + letter for one in now or [""] for letter in more]
            now = longer if len(longer) <= _FEW else more
            if now and (not best or len(now[0]) > len(best[0])):
                best = now
    return tuple(sorted(set(best)))


def _letters(item: _Item) -> list[str]:
    """Return the few characters that an item can be; [] for more or for none."""
    code, argument = item
    if code is op.LITERAL:
        return [chr(argument)]
    if code is op.IN and all(kind is op.LITERAL for kind, _ in argument):
        found = [chr(value) for _, value in argument]
        return found if len(found) <= _FEW else []
    return []


def _plain(items: list[_Item]) -> list[_Item]:
    """Put the items of a group where the group stands."""
    flat: list[_Item] = []
    for code, argument in items:
        if code is op.SUBPATTERN:
            if argument[1] or argument[2]:
                raise ValueError("flags for a part of a pattern are not supported")
            flat += _plain(list(argument[-1]))
        else:
            flat.append((code, argument))
    return flat


def _stripped(items: list[_Item]) -> list[_Item]:
    """Leave out a `.*` at the beginning: a search skips what it must anyhow."""
    while items and items[0][0] in _REPEATS and items[0][1][0] == 0:
        body = list(items[0][1][2])
        if len(body) != 1 or body[0][0] is not op.ANY:
            break
        items = items[1:]
    return items


def _check(items: list[_Item], fold: bool) -> None:
    for code, argument in items:
        if code in _REFUSED:
            raise ValueError(f"{_REFUSED[code]} is not supported")
        if code is op.BRANCH:
            for branch in argument[1]:
                _check(_plain(list(branch)), fold)
        if code in _REPEATS:
            least, most, body = argument
            if least > MAX_REPEAT or (most != op.MAXREPEAT and most > MAX_REPEAT):
                raise ValueError(f"a repeat of more than {MAX_REPEAT}")
            inner = _plain(list(body))
            _check(inner, fold)
            if most > 1 and not _certain(inner, inner, fold):
                raise ValueError(
                    "a repeat within a repeat, or alternatives that begin alike within "
                    "one: it may take exponential time"
                )


def _certain(items: list[_Item], after: list[_Item], fold: bool) -> bool:
    """Whether one character always tells how to go on; `after` is what comes next."""
    for place, item in enumerate(items):
        rest = items[place + 1 :] + after
        if item[0] is op.BRANCH and not _certain_branch(item, rest, fold):
            return False
        if item[0] in _REPEATS and not _certain_repeat(item, rest, fold):
            return False
    return not (items is after and _nullable(items))


def _certain_branch(item: _Item, rest: list[_Item], fold: bool) -> bool:
    branches = [_plain(list(one)) for one in item[1][1]]
    firsts = [_first([*one, *rest], fold) for one in branches]
    return _disjoint(firsts) and all(_certain(one, rest, fold) for one in branches)


def _certain_repeat(item: _Item, rest: list[_Item], fold: bool) -> bool:
    least, most, body = item[1]
    inner = _plain(list(body))
    if least == most and not _nullable(inner):
        return _certain(inner, inner if most > 1 else rest, fold)
    return _disjoint([_first(inner, fold), _first(rest, fold)])


def _disjoint(sets: Sequence[frozenset[int]]) -> bool:
    return sum(map(len, sets)) == len(frozenset().union(*sets))


def _degree(items: list[_Item], next_: list[_Item], after: float, fold: bool) -> float:
    """Return the exponent of one attempt at one place of the text.

    `next_` follows these items and has the exponent `after`.
    """
    for place in reversed(range(len(items))):
        (code, argument), rest = items[place], items[place + 1 :] + next_
        if code is op.BRANCH:
            branches = [_plain(list(one)) for one in argument[1]]
            firsts = [_first([*one, *rest], fold) for one in branches]
            choice = 0 if _disjoint(firsts) else _weight(len(branches))
            after = choice + max(_degree(one, rest, after, fold) for one in branches)
        if code in _REPEATS and argument[0] != argument[1]:
            weight = _weight(argument[1] - argument[0] + 1)
            sets = [_first(_plain(list(argument[2])), fold), _first(rest, fold)]
            certain = not rest or _disjoint(sets)
            after = max(weight, after) if certain else weight + after
    return after


def _weight(choices: int) -> float:
    return min(1.0, log(choices, _MANY))


def _nullable(items: list[_Item]) -> bool:
    return all(_may_be_empty(one) for one in items)


def _may_be_empty(item: _Item) -> bool:
    code, argument = item
    if code in _ZERO_WIDTH:
        return True
    if code is op.BRANCH:
        return any(_nullable(_plain(list(one))) for one in argument[1])
    if code in _REPEATS:
        return bool(argument[0] == 0 or _nullable(_plain(list(argument[2]))))
    return False


def _first(items: list[_Item], fold: bool) -> frozenset[int]:
    """Return the characters that a match of these can begin with."""
    found: frozenset[int] = frozenset()
    for code, argument in items:
        if code is op.BRANCH:
            for branch in argument[1]:
                found |= _first(_plain(list(branch)), fold)
        elif code in _REPEATS:
            found |= _first(_plain(list(argument[2])), fold)
        elif code in _CHARACTERS:
            found |= _characters(code, _frozen(argument), fold)
        elif code not in _ZERO_WIDTH:
            return _ALL
        if not _may_be_empty((code, argument)):
            break
    return found


def _frozen(argument: Any) -> Any:
    return tuple(argument) if isinstance(argument, list) else argument


@cache
def _characters(code: Any, argument: Any, fold: bool) -> frozenset[int]:
    """Return these characters or more of them, never less."""
    if code is op.ANY:
        return _ALL
    if code is op.NOT_LITERAL:
        return _ALL - {argument}
    if code is op.LITERAL:
        return _folded({argument}, fold)
    found: set[int] = set()
    for kind, value in argument:
        found |= _member(kind, value)
    if argument[0][0] is op.NEGATE:
        return _ALL - {one for one in found if one < _OTHER}
    return _folded(found, fold)


def _member(kind: Any, value: Any) -> set[int]:
    if kind is op.LITERAL:
        return {value}
    if kind is op.RANGE:
        first, last = value
        return set(range(min(first, _OTHER), min(last, _OTHER) + 1))
    if kind is op.CATEGORY:
        letter = _CATEGORIES[value]
        return {one for one in _ALL if one == _OTHER or re.match(letter, chr(one))}
    return set()


_CATEGORIES = {
    op.CATEGORY_DIGIT: r"\d",
    op.CATEGORY_NOT_DIGIT: r"\D",
    op.CATEGORY_SPACE: r"\s",
    op.CATEGORY_NOT_SPACE: r"\S",
    op.CATEGORY_WORD: r"\w",
    op.CATEGORY_NOT_WORD: r"\W",
}


def _folded(found: set[int], fold: bool) -> frozenset[int]:
    """Return the set with everything above Latin-1 as one, in both cases if need be."""
    if fold:
        if any(one >= _OTHER for one in found):
            return _ALL
        found = found | {ord(case) for one in found for case in chr(one).swapcase()}
        found.add(_OTHER)  # some of these are another case of an ordinary letter
    return frozenset(min(one, _OTHER) for one in found)
