"""The condition of a rule: its words to an immutable tree, and what the tree says.

In: a condition's text and the trees of its selections. Out: one tree of And, Or, Not
and Atom. The grammar is `not`, `and`, `or` (in this order of strength), parentheses,
names, and `1 of` or `all of` names with `*` or `them`; every other word is refused.
"""

import re
from collections.abc import Iterator, Mapping
from fnmatch import translate
from typing import NamedTuple, Protocol

import msgspec

from agent.detection.value import Test

MAX_DEPTH = 32
MAX_WORDS = 1000
MULTIPLE = frozenset({"", "SYSCALL.values", "Ancestors", "TargetAncestors"})
"""Fields of many values, NUL between them; "" is all values of a record (keywords)."""


class Atom(msgspec.Struct, frozen=True):
    """A test of one field; the field "" is every value there is: a keyword."""

    field: str
    test: Test


class And(msgspec.Struct, frozen=True):
    """All of these hold."""

    of: tuple["Tree", ...]


class Or(msgspec.Struct, frozen=True):
    """At least one of these holds."""

    of: tuple["Tree", ...]


class Not(msgspec.Struct, frozen=True):
    """The opposite holds; a field that is missing makes that so."""

    of: "Tree"


Tree = Atom | And | Or | Not


class Raw(Protocol):
    """The fields of one event as they are; None for one that it does not have."""

    def __getitem__(self, field: str, /) -> str | None:
        """Return the text of a field."""


def values(atom: Atom, raw: Raw) -> list[str]:
    """Return the texts that an atom is asked of."""
    text = raw[atom.field]
    if text is None:
        return []
    return text.split("\0") if atom.field in MULTIPLE else [text]


def holds(tree: Tree, raw: Raw) -> bool:
    """Say whether a tree is true of an event: slow, and the measure of the fast."""
    match tree:
        case Atom():
            return any(tree.test.fits(one) for one in values(tree, raw))
        case And():
            return all(holds(one, raw) for one in tree.of)
        case Or():
            return any(holds(one, raw) for one in tree.of)
        case Not():
            return not holds(tree.of, raw)


def supporters(tree: Tree, raw: Raw) -> Iterator[Atom]:
    """Yield the atoms that made a tree true, those that had to be false left out."""
    match tree:
        case Atom():
            if holds(tree, raw):
                yield tree
        case And() | Or():
            for one in tree.of:
                if holds(one, raw):
                    yield from supporters(one, raw)
        case Not():
            return


def atoms(tree: Tree) -> Iterator[Atom]:
    """Yield every atom."""
    match tree:
        case Atom():
            yield tree
        case Not():
            yield from atoms(tree.of)
        case And() | Or():
            for one in tree.of:
                yield from atoms(one)


def both(trees: list[Tree]) -> Tree:
    """Return the And of some trees, or the only one."""
    return trees[0] if len(trees) == 1 else And(tuple(trees))


def either(trees: list[Tree]) -> Tree:
    """Return the Or of some trees, or the only one."""
    return trees[0] if len(trees) == 1 else Or(tuple(trees))


class Parsed(NamedTuple):
    """A condition as a tree, and the names of the selections that it used."""

    tree: Tree
    used: frozenset[str]


def parse(text: str, selections: Mapping[str, Tree]) -> Parsed:
    """Parse a condition; ValueError says which word is wrong and why."""
    words = _words(text)
    parser = _Parser(words, selections)
    tree = parser.either(0)
    if parser.word is not None:
        raise ValueError(f"{parser.word!r} is not expected here")
    return Parsed(tree, frozenset(parser.used))


def _words(text: str) -> list[str]:
    if "|" in text:
        raise ValueError("a pipe: aggregations are not supported")
    words = re.findall(r"[()]|[^\s()]+", text)
    if not words:
        raise ValueError("the condition is empty")
    if len(words) > MAX_WORDS:
        raise ValueError(f"more than {MAX_WORDS} words")
    return words


class _Parser:
    """One pass over the words, one method for each strength."""

    def __init__(self, words: list[str], selections: Mapping[str, Tree]) -> None:
        self._words = words
        self._at = 0
        self._selections = selections
        self.used: set[str] = set()

    @property
    def word(self) -> str | None:
        """The next word."""
        return self._words[self._at] if self._at < len(self._words) else None

    def _take(self) -> str:
        word = self.word
        if word is None:
            raise ValueError("the condition ends too early")
        self._at += 1
        return word

    def either(self, depth: int) -> Tree:
        """Parse terms with `or` between them."""
        if depth > MAX_DEPTH:
            raise ValueError(f"more than {MAX_DEPTH} parentheses or nots deep")
        trees = [self._both(depth)]
        while self.word == "or":
            self._take()
            trees.append(self._both(depth))
        return either(trees)

    def _both(self, depth: int) -> Tree:
        trees = [self._not(depth)]
        while self.word == "and":
            self._take()
            trees.append(self._not(depth))
        return both(trees)

    def _not(self, depth: int) -> Tree:
        word = self._take()
        if word == "not":
            if depth > MAX_DEPTH:
                raise ValueError(f"more than {MAX_DEPTH} parentheses or nots deep")
            return Not(self._not(depth + 1))
        if word == "(":
            tree = self.either(depth + 1)
            if self._take() != ")":
                raise ValueError("a parenthesis is not closed")
            return tree
        if self.word == "of":
            return self._of(word)
        return self._named(word)

    def _of(self, how_many: str) -> Tree:
        self._take()
        pattern = self._take()
        if how_many not in ("1", "any", "all"):
            raise ValueError(f"{how_many!r} of: only `1 of` and `all of` are supported")
        names = self._matching(pattern)
        self.used.update(names)
        trees = [self._selections[name] for name in names]
        return both(trees) if how_many == "all" else either(trees)

    def _matching(self, pattern: str) -> list[str]:
        fits = re.compile(translate("*" if pattern == "them" else pattern)).match
        names = [
            name
            for name in self._selections
            if fits(name) and (pattern.startswith("_") or not name.startswith("_"))
        ]
        if not names:
            raise ValueError(f"no selection is called {pattern!r}")
        return names

    def _named(self, word: str) -> Tree:
        if word not in self._selections:
            raise ValueError(f"there is no selection {word!r}")
        self.used.add(word)
        return self._selections[word]
