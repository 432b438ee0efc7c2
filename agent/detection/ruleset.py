"""Folders of rules and filters as one set that is ready to be asked, or as errors.

In: folders. Out: RuleSet. `load` is all or nothing; `read` and `build` let the caller
decide. Files are *.yml and *.yaml in any depth, but for response.yaml: no rule.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from agent.detection.condition import Tree
from agent.detection.logsource import KINDS, allowed, check_filter, served
from agent.detection.matcher import Matcher
from agent.detection.rule import MAX_BYTES, Filter, Rule, parse_rules
from agent.errors import RuleError, RulesError

NOT_RULES = frozenset({"response.yaml", "response.yml"})


class Reading(NamedTuple):
    """What folders hold: what can be used, and of everything else why not."""

    rules: list[Rule]
    filters: list[Filter]
    errors: list[RuleError]


class Ask(NamedTuple):
    """A rule as it is asked of events, and what must hold by the filters as well."""

    rule: Rule
    tree: Tree
    allowed: tuple[Tree, ...]


class RuleSet(NamedTuple):
    """Rules ready to be asked: by kind of event a matcher and what its numbers mean."""

    rules: tuple[Rule, ...]
    filters: tuple[Filter, ...]
    asks: dict[str, list[Ask]]
    matchers: dict[str, Matcher]


def files_in(folders: Iterable[Path]) -> list[Path]:
    """Return the files that are taken for rules, in the order of their names."""
    return [
        path
        for folder in folders
        for path in sorted(folder.rglob("*.y*ml"))
        if path.suffix in (".yml", ".yaml") and path.name not in NOT_RULES
    ]


def read(folders: Iterable[Path]) -> Reading:
    """Read folders; what is wrong with one file keeps no other from being read."""
    reading = Reading([], [], [])
    for folder in folders:
        if not folder.is_dir():
            reading.errors.append(RuleError(str(folder), 0, "no such folder"))
        for path in files_in([folder]):
            try:
                documents = read_file(path)
            except RuleError as error:
                reading.errors.append(error)
                continue
            reading.rules.extend(one for one in documents if isinstance(one, Rule))
            reading.filters.extend(one for one in documents if isinstance(one, Filter))
    return reading


def read_file(path: Path) -> list[Rule | Filter]:
    """Return what a file holds if all of it can be used; else RuleError."""
    documents = parse_rules(_bytes(path), str(path))
    for one in documents:
        if isinstance(one, Rule):
            served(one)
        else:
            check_filter(one)
    return documents


def _bytes(path: Path) -> bytes:
    try:
        if not path.is_file():
            raise RuleError(str(path), 0, "no regular file")
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except OSError as error:
        raise RuleError(str(path), 0, str(error.strerror)) from error


def build(rules: Sequence[Rule], filters: Sequence[Filter] = ()) -> RuleSet:
    """Make a set of rules; RulesError says of each that can't be in it why not."""
    errors = contradictions(rules, filters)
    asks: dict[str, list[Ask]] = {}
    for rule in rules:
        try:
            kind, tree = served(rule)
            extra = [allowed(rule, one) for one in filters if rule.id in one.rules]
            asks.setdefault(kind.name, []).append(Ask(rule, tree, tuple(extra)))
        except RuleError as error:
            errors.append(error)
    if errors:
        raise RulesError(errors)
    matchers = {
        kind.name: Matcher((ask.tree for ask in asks[kind.name]), kind.sorting)
        for kind in KINDS
        if kind.name in asks
    }
    return RuleSet(tuple(rules), tuple(filters), asks, matchers)


def load(folders: Iterable[Path]) -> RuleSet:
    """Read folders and make a set of all that is there; RulesError for any error."""
    reading = read(folders)
    errors = reading.errors + contradictions(reading.rules, reading.filters)
    if errors:
        raise RulesError(errors)
    return build(reading.rules, reading.filters)


def contradictions(rules: Sequence[Rule], filters: Sequence[Filter]) -> list[RuleError]:
    """Return what is wrong between rules and filters: ids, and exceptions."""
    errors = []
    known: dict[str, Rule | Filter] = {}
    everything: list[Rule | Filter] = [*rules, *filters]
    for one in everything:
        if one.id and (other := known.setdefault(one.id, one)) is not one:
            reason = f"the id {one.id} is that of {other.file}:{other.line}"
            errors.append(RuleError(one.file, one.line, reason))
    for exception in filters:
        for rule in rules:
            if rule.id in exception.rules and not _same_log(exception, rule):
                reason = f"rule {rule.id} is about another log source"
                line = exception.logsource.line
                errors.append(RuleError(exception.file, line, reason))
    return errors


def _same_log(one: Filter, rule: Rule) -> bool:
    asked, there = one.logsource.named(), rule.logsource.named()
    return all(word in ("", there[name]) for name, word in asked.items())
