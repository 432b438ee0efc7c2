"""What is wrong or doubtful with rule files, one answer a file.

In: folders. Out: for each file its findings, with line. An error keeps a rule from
being loaded, a warning does not: a selection that nobody uses or that nothing can fit,
what a reader of an alert will miss, a tag that nobody will find, an exception that
rests on what anybody can choose.
"""

import re
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Literal, NamedTuple

from agent.detection.condition import MULTIPLE, And, Atom, Not, Or, Tree
from agent.detection.fields import ENVIRONMENT
from agent.detection.logsource import lacking
from agent.detection.rule import Filter, Rule
from agent.detection.ruleset import contradictions, files_in, read_file
from agent.detection.value import Regex, Text
from agent.errors import RuleError

_WANTED = ("level", "author", "tags", "falsepositives")
_MAX_PARTS = 200
"""Tests of one `and` that are held against each other: it takes the square of time."""
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_TAG = re.compile(r"[a-z0-9-]+\.[a-z0-9_.-]+")
_ATTACK = re.compile(r"attack\.(t\d{4}(\.\d{3})?|[gs]\d{4}|ta\d{4}|[a-z]+(-[a-z]+)*)")
_CHOSEN = """
CommandLine ParentCommandLine SourceCommandLine TargetCommandLine OriginalInvoked
CurrentDirectory Role ParentRole SourceRole TargetRole JobId comm argc
"""
_LABELS = frozenset(_CHOSEN.split())
"""Fields that a process chooses for itself: these describe and never exempt."""


class Finding(NamedTuple):
    """Something about a file; an error keeps it from being loaded."""

    line: int
    severity: Literal["error", "warning"]
    text: str


class Linted(NamedTuple):
    """One file, how many rules and filters it holds, and what is to be said of it."""

    file: str
    documents: int
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether it can be loaded."""
        return all(one.severity != "error" for one in self.findings)

    def lines(self) -> list[str]:
        """Return it for a reader: a line for each finding, or one that all is well."""
        if not self.findings:
            return [f"{self.file}: ok"]
        return [
            f"{self.file}:{one.line}: {one.severity}: {one.text}"
            for one in self.findings
        ]


def lint(folders: Iterable[Path]) -> list[Linted]:
    """Look at every file; what is wrong between files is said of the later one."""
    found: dict[str, list[Finding]] = {}
    documents: dict[str, list[Rule | Filter]] = {}
    for path in files_in(folders):
        try:
            documents[str(path)] = read_file(path)
            found[str(path)] = []
        except RuleError as error:
            found[str(path)] = [_error(error)]
    everything = [one for some in documents.values() for one in some]
    rules = [one for one in everything if isinstance(one, Rule)]
    filters = [one for one in everything if isinstance(one, Filter)]
    for wrong in contradictions(rules, filters):
        found[wrong.file].append(_error(wrong))
    known = frozenset(rule.id for rule in rules)
    for rule in everything:
        warnings = _of_rule(rule) if isinstance(rule, Rule) else _of_filter(rule, known)
        found[rule.file] += [*warnings, *_of_selections(rule)]
    return [
        Linted(file, len(documents.get(file, ())), tuple(sorted(findings)))
        for file, findings in found.items()
    ]


def _error(error: RuleError) -> Finding:
    return Finding(error.line, "error", error.reason)


def _warning(line: int, text: str) -> Finding:
    return Finding(line, "warning", text)


def _of_rule(rule: Rule) -> Iterator[Finding]:
    for key in _WANTED:
        if key not in rule.stated:
            yield _warning(rule.line, f"{key!r} is missing")
    if not _UUID.fullmatch(rule.id):
        yield _warning(rule.line, f"the id {rule.id!r} is no UUID")
    for tag in rule.tags:
        shape = _ATTACK if tag.lower().startswith("attack.") else _TAG
        if not shape.fullmatch(tag):
            yield _warning(rule.line, f"the tag {tag!r} has not the shape of one")
    if missing := lacking(rule):
        said = ", ".join(missing)
        yield _warning(rule.line, f"in part only: no event gives {said}")


def _of_filter(one: Filter, known: frozenset[str]) -> Iterator[Finding]:
    for identity in one.rules:
        if identity not in known:
            yield _warning(one.line, f"there is no rule {identity}")
    if all(_is_label(field) for field in one.fields):
        said = ", ".join(sorted(one.fields))
        yield _warning(one.line, f"it rests on what anybody can choose: {said}")


def _is_label(field: str) -> bool:
    argument = field[:1] == "a" and field[1:].isdecimal()
    return field in _LABELS or not field or argument or field.startswith(ENVIRONMENT)


def _of_selections(rule: Rule | Filter) -> Iterator[Finding]:
    impossible = {name for name, one in rule.selections.items() if _is_impossible(one)}
    for name, line in rule.lines.items():
        if name not in rule.used:
            yield _warning(line, f"selection {name!r} is not used")
        if name in impossible:
            yield _warning(line, f"nothing can fit selection {name!r}")
    if not impossible and _is_impossible(rule.tree):
        yield _warning(rule.line, "nothing can fit the condition")


def _is_impossible(tree: Tree) -> bool:
    """Say whether a tree asks of one field what no single value can be."""
    match tree:
        case Atom() | Not():
            return False
        case Or():
            return all(_is_impossible(one) for one in tree.of)
        case And():
            parts = list(islice(_parts(tree), _MAX_PARTS))
            return any(_is_impossible(one) for one in parts) or any(
                all(any(_excludes(two, field, one) for two in parts) for one in values)
                for field, values in map(_only, parts)
                if values
            )


def _parts(tree: And) -> Iterator[Tree]:
    for one in tree.of:
        if isinstance(one, And):
            yield from _parts(one)
        else:
            yield one


def _only(tree: Tree) -> tuple[str, list[str]]:
    """Return the only values that a tree lets a field have, if it names them."""
    atoms = tree.of if isinstance(tree, Or) else (tree,)
    fields, values = set(), []
    for one in atoms:
        if not isinstance(one, Atom) or not isinstance(one.test, Text):
            return "", []
        if one.test.how != "equals" or one.field in MULTIPLE:
            return "", []
        fields.add(one.field)
        values.append(one.test.value)
    return (fields.pop(), values) if len(fields) == 1 else ("", [])


def _excludes(tree: Tree, field: str, value: str) -> bool:
    """Say whether a tree can't hold where a field has this value."""
    match tree:
        case Atom():
            told = tree.field == field and not isinstance(tree.test, Regex)
            return told and not tree.test.fits(value)
        case Not():
            inner = tree.of
            return (
                isinstance(inner, Atom)
                and inner.field == field
                and not isinstance(inner.test, Regex)
                and inner.test.fits(value)
            )
        case And():
            return any(_excludes(one, field, value) for one in tree.of)
        case Or():
            return all(_excludes(one, field, value) for one in tree.of)
