"""What must be so for a tree to hold: the keys that rules are sorted by.

In: a tree, and the fields to sort by. Out: keys of which at least one is there whenever
the tree holds, the ones least to be expected in ordinary events; None where there are
none. Only what is necessary counts: half of an `or` never does.
"""

from typing import NamedTuple

from agent.detection.condition import And, Atom, Not, Or, Tree
from agent.detection.value import Regex, Shape, Test, Text

GRAM = 4
"""Bytes of a piece of text."""
_NAME, _ORDINARY, _LONG = 20, 300, 2
_ORDINARY_TEXT = """
/usr /bin /etc /tmp /var /lib /opt /dev /home home ome/ /proc roc/ /root oot/ /sys
usr/ bin/ etc/ tmp/ var/ lib/ opt/ dev/ http ttps tps: ://w pyth ytho thon .com
sbin bash
"""
COMMON = frozenset(_ORDINARY_TEXT.split())


class Key(NamedTuple):
    """The path in `field` ends in the name `text`; without a field, `text` is there."""

    field: str
    text: str


class Sorting(NamedTuple):
    """What rules of one kind of event are sorted by.

    `names` are fields whose last part of a path is a key. Pieces of the fields `texts`
    are keys, also for tests of the fields `within`: these are never anything else than
    a part of one of them. Texts of less than `shortest` bytes are no keys.
    """

    names: tuple[str, ...]
    texts: tuple[str, ...] = ()
    within: frozenset[str] = frozenset()
    shortest: int = GRAM + 1


def keys(tree: Tree, sorting: Sorting) -> frozenset[Key] | None:
    """Return keys of which one must be there."""
    match tree:
        case Atom():
            key = _key(tree, sorting)
            return None if key is None else frozenset({key})
        case Not():
            return None
        case And():
            found = [keys(one, sorting) for one in tree.of]
            known = [one for one in found if one is not None]
            return min(known, key=_expected, default=None)
        case Or():
            every: set[Key] = set()
            for one in tree.of:
                some = keys(one, sorting)
                if some is None:
                    return None
                every |= some
            return frozenset(every)


def _expected(some: frozenset[Key]) -> int:
    """Rate how often one of these is there in ordinary events."""
    return sum(_NAME if one.field else _expected_text(one.text) for one in some)


def _expected_text(text: str) -> int:
    pieces = {text[at : at + GRAM] for at in range(len(text) - GRAM + 1)}
    if pieces <= COMMON:
        return _ORDINARY
    return max(_LONG, 640 >> min(len(text), 10))  # 5 characters: as rare as a name


def _key(atom: Atom, sorting: Sorting) -> Key | None:
    if atom.field in sorting.names and (name := _basename(atom)):
        return Key(atom.field, name)
    if atom.field in sorting.texts or atom.field in sorting.within:
        text = _text(atom.test)
        size = len(text.encode("utf-8", "surrogateescape"))
        return Key("", text) if size >= sorting.shortest else None
    return None


def _basename(atom: Atom) -> str:
    test = atom.test
    if isinstance(test, Text) and (
        test.how == "equals" or (test.how == "endswith" and "/" in test.value)
    ):
        return test.value.rpartition("/")[2]
    return ""


def _text(test: Test) -> str:
    """Return what must be in the lower-case text for a test to fit, "" for nothing."""
    match test:
        case Text():
            return test.value
        case Shape():
            return max(test.literals, key=len, default="")
        case Regex():
            found = test.within[0] if len(test.within) == 1 else ""
            return found.lower() if found.isascii() else ""
        case _:
            return ""
