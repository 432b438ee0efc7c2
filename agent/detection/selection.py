"""The selections of a rule: maps, lists and values with modifiers, to trees.

In: the nodes of one selection. Out: its tree. A list is an Or, with `all` an And; a map
is an And; values without a field are keywords. Every modifier but `contains`,
`startswith`, `endswith`, `re`, `cidr` and `all` is refused by name.
"""

from typing import NamedTuple

from agent.detection.condition import Atom, Tree, both, either
from agent.detection.value import a_test

MAX_VALUES = 20_000
"""Values of one rule."""
_COMPARISONS = ("contains", "startswith", "endswith", "re", "cidr")
_UNCLEAR = frozenset({"yes", "no", "on", "off", "y", "n"})
_EMPTY = frozenset({"", "~", "null"})


class Node(NamedTuple):
    """A piece of a YAML document, and the line it begins in, counted from 1.

    `value` is a text as it is written, a list, or a map; `plain` is a text that stands
    there without quotes.
    """

    value: "str | list[Node] | dict[str, tuple[int, Node]]"
    line: int
    plain: bool = False


class WrongError(Exception):
    """Something in a document is wrong: in which line, and why."""

    def __init__(self, line: int, reason: str) -> None:
        """Keep both."""
        super().__init__(reason)
        self.line = line
        self.reason = reason


def a_tree(node: Node) -> Tree:
    """Return the tree of a selection; WrongError says what is wrong with it."""
    if isinstance(node.value, list):
        if any(isinstance(one.value, list) for one in node.value):
            raise WrongError(node.line, "a list within a list")
        trees = [a_tree(one) for one in _filled(node)]
        return either(trees)
    if isinstance(node.value, dict):
        if not node.value:
            raise WrongError(node.line, "an empty selection")
        return both([_field(key, *there) for key, there in node.value.items()])
    return _atom("", node, "")


def _filled(node: Node) -> "list[Node]":
    if not isinstance(node.value, list) or not node.value:
        raise WrongError(node.line, "an empty list")
    return node.value


def _field(key: str, line: int, node: Node) -> Tree:
    field, *modifiers = key.split("|")
    every, comparison = _understood(modifiers, line)
    if comparison in ("re", "cidr") and not field:
        raise WrongError(line, f"the modifier {comparison!r} needs a field")
    if isinstance(node.value, dict):
        raise WrongError(line, f"{key}: expected a value or a list of values")
    nodes = _filled(node) if isinstance(node.value, list) else [node]
    if every and not isinstance(node.value, list):
        raise WrongError(line, f"{key}: `all` of a single value")
    trees: list[Tree] = [_atom(field, one, comparison) for one in nodes]
    return both(trees) if every else either(trees)


def _understood(modifiers: list[str], line: int) -> tuple[bool, str]:
    for one in modifiers:
        if one not in (*_COMPARISONS, "all"):
            raise WrongError(line, f"the modifier {one!r} is not supported")
    comparisons = [one for one in modifiers if one != "all"]
    if len(comparisons) > 1 or len(modifiers) - len(comparisons) > 1:
        raise WrongError(line, f"the modifiers {'|'.join(modifiers)!r} contradict")
    return len(comparisons) < len(modifiers), "".join(comparisons)


def _atom(field: str, node: Node, comparison: str) -> Atom:
    if not isinstance(node.value, str):
        raise WrongError(node.line, "a map or a list where a value is expected")
    value = node.value
    if node.plain:
        if value.lower() in _UNCLEAR:
            reason = f"{value} without quotes is a truth value in YAML: quote it"
            raise WrongError(node.line, reason)
        if value.lower() in _EMPTY:
            raise WrongError(node.line, "the value null is not supported")
    try:
        how = comparison if field or comparison else "contains"  # a keyword
        return Atom(field, a_test(value, how))
    except ValueError as error:
        raise WrongError(node.line, f"{value[:64]!r}: {error}") from error
