"""A tree as the text of a Python function: the same answer, some forty times as fast.

In: a tree. Out: the text of `def test(low, raw)`, and the constants that it names.
Values of a rule enter the text by repr only. What costs little is asked first, and a
field is fetched when it is first needed.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from agent.detection.condition import MULTIPLE, And, Atom, Not, Or, Tree, atoms
from agent.detection.value import (
    SLOW,
    Network,
    Regex,
    Shape,
    Test,
    Text,
    compiled,
    near,
)

Constants = dict[str, Any]


def cost(tree: Tree) -> int:
    """Return how long a tree may take, roughly in units of 20 ns."""
    match tree:
        case Atom():
            return _cost(tree.test) * (4 if tree.field in MULTIPLE else 1)
        case Not():
            return cost(tree.of)
        case And() | Or():
            return sum(map(cost, tree.of))


def _cost(test: Test) -> int:
    match test:
        case Text():
            return 3 if test.how == "contains" else 1
        case Shape() | Network():
            return 30
        case Regex():
            return 50 if test.power < SLOW else 500


def function(name: str, tree: Tree, constants: Constants) -> str:
    """Return the text of a function; adds what it needs to `constants`."""
    lines = [f"def {name}(low, raw):"]
    fetched: dict[str, str] = {}
    parts = sorted(tree.of, key=cost) if isinstance(tree, And) else [tree]
    for part in parts:
        for field in sorted({one.field for one in atoms(part)} - set(fetched)):
            fetched[field] = f"f{len(fetched)}"
            lines.append(f"    {fetched[field]} = low[{field!r}]")
        said = _Writer(fetched, constants).expression(part)
        lines.append(f"    if not ({said}):\n        return False")
    lines.append("    return True\n")
    return "\n".join(lines)


def together(name: str, trees: dict[int, Tree], constants: Constants) -> str:
    """Return the text of one function that appends the numbers of trees that hold."""
    asked = [{one.field for one in atoms(tree)} for tree in trees.values()]
    often = Counter(field for fields in asked for field in fields)
    shared = sorted(field for field, times in often.items() if times > 1)
    fetched = {field: f"low[{field!r}]" for field in often}
    lines = [f"def {name}(low, raw, found):"]
    for number, field in enumerate(shared):
        lines.append(f"    f{number} = {fetched[field]}")
        fetched[field] = f"f{number}"
    writer = _Writer(fetched, constants)
    for number, tree in trees.items():
        said = writer.expression(tree)
        lines.append(f"    if {said}:\n        found.append({number})")
    return "\n".join([*lines, "    return found\n"])


class _Writer:
    """Writes expressions over fetched fields."""

    def __init__(self, fetched: dict[str, str], constants: Constants) -> None:
        self._fetched = fetched
        self._constants = constants
        constants["near"] = near

    def expression(self, tree: Tree) -> str:
        """Return an expression that is true exactly where the tree holds."""
        match tree:
            case Atom():
                return self._some(tree.field, [tree.test])
            case Not():
                return f"not ({self.expression(tree.of)})"
            case And():
                parts = sorted(tree.of, key=cost)
                return " and ".join(f"({self.expression(one)})" for one in parts)
            case Or():
                return self._either(tree)

    def _either(self, tree: Or) -> str:
        """Join tests of one field, which can share a comparison."""
        together: dict[str, list[Test]] = {}
        parts = []
        for one in sorted(tree.of, key=cost):
            if isinstance(one, Atom):
                together.setdefault(one.field, []).append(one.test)
            else:
                parts.append(f"({self.expression(one)})")
        first = [self._some(field, tests) for field, tests in together.items()]
        return " or ".join([*first, *parts])

    def _some(self, field: str, tests: list[Test]) -> str:
        """Return whether any of the tests fits the field."""
        if field in MULTIPLE:
            return self._some_of_many(field, tests)
        parts = []
        present = [one for one in tests if one.fits("")]
        absent = [one for one in tests if not one.fits("")]
        if absent:
            parts.append(self._joined(absent, self._fetched[field], f"raw[{field!r}]"))
        if present:  # these fit a field that is empty, and must not one that is missing
            said = self._joined(present, self._fetched[field], f"raw[{field!r}]")
            parts.append(f"raw[{field!r}] is not None and ({said})")
        return " or ".join(f"({one})" for one in parts)

    def _some_of_many(self, field: str, tests: list[Test]) -> str:
        parts, others = [], []
        for test in tests:
            if isinstance(test, Text) and test.how == "contains" and test.value:
                parts.append(f"{test.value!r} in {self._fetched[field]}")
            else:
                others.append(test)
        if others:
            said = self._joined(others, "v.lower()", "v")
            many = f"raw[{field!r}].split('\\0')"
            parts.append(
                f"raw[{field!r}] is not None and any(({said}) for v in {many})"
            )
        return " or ".join(f"({one})" for one in parts)

    def _joined(self, tests: Iterable[Test], low: str, raw: str) -> str:
        affixes: dict[str, list[str]] = {}
        parts = []
        for test in tests:
            if isinstance(test, Text) and test.how != "contains":
                affixes.setdefault(test.how, []).append(test.value)
            else:
                parts.append(self._one(test, low, raw))
        return " or ".join([*(_affix(low, *one) for one in affixes.items()), *parts])

    def _one(self, test: Test, low: str, raw: str) -> str:
        match test:
            case Text():
                return f"{test.value!r} in {low}"
            case Regex():
                text = raw if test.power < SLOW else f"near({raw})"
                search = self._constant(compiled(test.pattern).search)
                first = " or ".join(f"{one!r} in {raw}" for one in test.within)
                if not first:
                    first = "True" if test.fits("") or raw == "v" else low
                elif raw != "v":
                    first = f"{low} and ({first})"
                return f"({first}) and {search}({text}) is not None"
            case Shape() | Network():
                return f"{self._constant(test.fits)}({low})"

    def _constant(self, value: Any) -> str:
        name = f"c{len(self._constants)}"
        self._constants[name] = value
        return name


def _affix(low: str, how: str, values: list[str]) -> str:
    if how == "equals":
        return (
            f"{low} in {set(values)!r}"
            if len(values) > 1
            else f"{low} == {values[0]!r}"
        )
    given = repr(tuple(values)) if len(values) > 1 else repr(values[0])
    return f"{low}.{how}({given})"
