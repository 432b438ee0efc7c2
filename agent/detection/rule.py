"""Sigma files: YAML text to rules and filters, or to an error with file and line.

In: the bytes of a file. Out: Rule and Filter. Aliases, a key that is there twice, deep
nesting, long files, correlations, time frames and everything else that this agent does
not do are refused by name; nothing in a detection is ignored.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

import msgspec
import yaml

from agent.detection.condition import Tree, atoms, parse
from agent.detection.selection import MAX_VALUES, Node, WrongError, a_tree
from agent.errors import RuleError

MAX_BYTES = 512 << 10
"""Of one file."""
MAX_NESTING = 12
LEVELS = ("informational", "low", "medium", "high", "critical")
DEFAULT_LEVEL = "medium"
"""The level of a rule that states none."""
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_NOT_OURS = {
    "correlation": "correlation rules are not supported",
    "action": "collections of rules (`action`) are not supported",
}
_STATUS = ("stable", "test", "experimental", "deprecated", "unsupported")


class Logsource(NamedTuple):
    """Which events a rule is about; "" where it does not say."""

    product: str
    category: str
    service: str
    line: int

    def named(self) -> dict[str, str]:
        """Return what it says by name, without the line."""
        return {"product": self[0], "category": self[1], "service": self[2]}


class Rule(msgspec.Struct, frozen=True, eq=False):
    """One rule; `line` is where its document begins, `lines` where each selection."""

    id: str
    title: str
    level: str
    status: str
    author: str
    license: str
    references: tuple[str, ...]
    tags: tuple[str, ...]
    falsepositives: tuple[str, ...]
    logsource: Logsource
    tree: Tree
    selections: dict[str, Tree]
    used: frozenset[str]
    lines: dict[str, int]
    stated: frozenset[str]
    file: str
    line: int

    @property
    def fields(self) -> frozenset[str]:
        """The fields that the rule looks at."""
        return frozenset(one.field for one in atoms(self.tree))


class Filter(msgspec.Struct, frozen=True, eq=False):
    """An exception: the rules named here count only where `tree` holds as well."""

    id: str
    title: str
    rules: tuple[str, ...]
    logsource: Logsource
    tree: Tree
    selections: dict[str, Tree]
    used: frozenset[str]
    lines: dict[str, int]
    file: str
    line: int

    @property
    def fields(self) -> frozenset[str]:
        """The fields that the filter looks at."""
        return frozenset(one.field for one in atoms(self.tree))


def parse_rules(source: bytes, file: str) -> list[Rule | Filter]:
    """Return what a file holds; RuleError names file, line and reason."""
    try:
        found = [_document(one, file) for one in _documents(_text(source))]
    except WrongError as error:
        raise RuleError(file, error.line, error.reason) from error
    if not found:
        raise RuleError(file, 1, "no document")
    return found


def _text(source: bytes) -> str:
    if len(source) > MAX_BYTES:
        raise WrongError(1, f"longer than {MAX_BYTES} bytes")
    if b"\0" in source:
        raise WrongError(_line_of(source, source.index(b"\0")), "a NUL")
    try:
        return source.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise WrongError(_line_of(source, error.start), "not UTF-8") from error


def _line_of(source: bytes, place: int) -> int:
    return source.count(b"\n", 0, place) + 1


def _documents(text: str) -> Iterator[Node]:
    try:
        events = iter(yaml.parse(text, Loader=_LOADER))
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                yield _node(next(events), events, 0, [0])
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise WrongError(line, str(error.problem or error.context)) from error
    except yaml.YAMLError as error:
        place = getattr(error, "position", 0)
        raise WrongError(text.count("\n", 0, place) + 1, str(error)) from error


def _node(event: Any, events: Iterator[Any], depth: int, count: list[int]) -> Node:
    """Build one node from the events that follow; `count` has the nodes so far."""
    line = event.start_mark.line + 1
    count[0] += 1
    if depth > MAX_NESTING:
        raise WrongError(line, f"nested more than {MAX_NESTING} deep")
    if count[0] > 2 * MAX_VALUES:
        raise WrongError(line, f"more than {2 * MAX_VALUES} values")
    if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
        raise WrongError(line, "anchors and aliases are not supported")
    if getattr(event, "tag", None) not in (None, "!"):
        raise WrongError(line, f"the tag {event.tag!r} is not supported")
    if isinstance(event, yaml.SequenceStartEvent):
        return Node(_sequence(events, depth, count), line)
    if isinstance(event, yaml.MappingStartEvent):
        return Node(_mapping(events, depth, count), line)
    return Node(event.value, line, plain=bool(event.implicit[0]))


def _sequence(events: Iterator[Any], depth: int, count: list[int]) -> list[Node]:
    found = []
    while not isinstance(event := next(events), yaml.SequenceEndEvent):
        found.append(_node(event, events, depth + 1, count))
    return found


def _mapping(
    events: Iterator[Any], depth: int, count: list[int]
) -> dict[str, tuple[int, Node]]:
    found: dict[str, tuple[int, Node]] = {}
    while not isinstance(event := next(events), yaml.MappingEndEvent):
        key = _node(event, events, depth + 1, count)
        if not isinstance(key.value, str):
            raise WrongError(key.line, "a key that is no text")
        if key.value in found or key.value == "<<":
            reason = f"{key.value!r} stands here a second time"
            raise WrongError(key.line, reason if key.value in found else "a merge key")
        found[key.value] = key.line, _node(next(events), events, depth + 1, count)
    return found


class _Document:
    """One document's map, with answers that name the line of what is wrong."""

    def __init__(self, node: Node) -> None:
        if not isinstance(node.value, dict):
            raise WrongError(node.line, "expected keys with values")
        self.keys = node.value
        self.line = node.line

    def text(self, key: str, default: str | None = None) -> str:
        """Return a text; WrongError when it is missing and there is no default."""
        if key not in self.keys:
            if default is None:
                raise WrongError(self.line, f"{key!r} is missing")
            return default
        line, node = self.keys[key]
        if not isinstance(node.value, str) or not node.value.strip():
            raise WrongError(line, f"{key!r} must be a text")
        return node.value.strip()

    def texts(self, key: str) -> tuple[str, ...]:
        """Return a list of texts, of which a single one need not be a list."""
        if key not in self.keys:
            return ()
        line, node = self.keys[key]
        nodes = node.value if isinstance(node.value, list) else [node]
        found = [one.value for one in nodes if isinstance(one.value, str)]
        if len(found) != len(nodes):
            raise WrongError(line, f"{key!r} must be a list of texts")
        return tuple(found)

    def inner(self, key: str) -> "_Document":
        """Return a map within this one."""
        if key not in self.keys:
            raise WrongError(self.line, f"{key!r} is missing")
        return _Document(self.keys[key][1])

    def one_of(self, key: str, known: tuple[str, ...], default: str) -> str:
        """Return one of the known words."""
        word = self.text(key, default)
        if word not in (*known, default):
            reason = f"{key!r} is {word!r}, not one of {', '.join(known)}"
            raise WrongError(self.keys[key][0], reason)
        return word


def _document(node: Node, file: str) -> Rule | Filter:
    document = _Document(node)
    for key, reason in _NOT_OURS.items():
        if key in document.keys:
            raise WrongError(document.keys[key][0], reason)
    if "filter" in document.keys:
        return _filter(document, file)
    return _rule(document, file)


def _rule(document: _Document, file: str) -> Rule:
    detection = document.inner("detection")
    found = _detection(detection, frozenset({"condition"}))
    return Rule(
        id=document.text("id"),
        title=document.text("title"),
        level=document.one_of("level", LEVELS, DEFAULT_LEVEL),
        status=document.one_of("status", _STATUS, ""),
        author=document.text("author", ""),
        license=document.text("license", ""),
        references=document.texts("references"),
        tags=document.texts("tags"),
        falsepositives=document.texts("falsepositives"),
        logsource=_logsource(document),
        stated=frozenset(document.keys),
        file=file,
        line=document.line,
        **found._asdict(),
    )


def _filter(document: _Document, file: str) -> Filter:
    inner = document.inner("filter")
    rules = inner.texts("rules")
    if not rules:
        raise WrongError(inner.line, "a filter must name its `rules` by id")
    found = _detection(inner, frozenset({"condition", "rules"}))
    return Filter(
        id=document.text("id", ""),
        title=document.text("title"),
        rules=rules,
        logsource=_logsource(document),
        file=file,
        line=document.line,
        **found._asdict(),
    )


class _Detection(NamedTuple):
    tree: Tree
    selections: dict[str, Tree]
    used: frozenset[str]
    lines: dict[str, int]


def _detection(document: _Document, reserved: frozenset[str]) -> _Detection:
    if "timeframe" in document.keys:
        line = document.keys["timeframe"][0]
        raise WrongError(line, "a time frame is not supported")
    selections, lines = {}, {}
    for name, (line, node) in document.keys.items():
        if name not in reserved:
            selections[name] = a_tree(node)
            lines[name] = line
    if "condition" not in document.keys:
        raise WrongError(document.line, "'condition' is missing")
    line, node = document.keys["condition"]
    if not isinstance(node.value, str):
        raise WrongError(line, "a list of conditions is not supported")
    try:
        tree, used = parse(node.value, selections)
    except ValueError as error:
        raise WrongError(line, f"condition: {error}") from error
    if next(islice(atoms(tree), MAX_VALUES, None), None) is not None:
        raise WrongError(line, f"more than {MAX_VALUES} values")
    return _Detection(tree, selections, used, lines)


def _logsource(document: _Document) -> Logsource:
    inner = document.inner("logsource")
    known = ("product", "category", "service")
    for key, (line, _) in inner.keys.items():
        if key not in (*known, "definition"):
            raise WrongError(line, f"logsource: {key!r} is not supported")
    product, category, service = (inner.text(key, "").lower() for key in known)
    return Logsource(product, category, service, document.keys["logsource"][0])
