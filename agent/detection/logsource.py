"""Which of our events serve a rule, and what is left of the rule for each of them.

In: a rule or a filter. Out: the kinds of event with the tree for each, in which what is
the same for all events of the kind is decided already; or a RuleError that says which
log, field or record this agent does not have.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from agent.detection.condition import And, Atom, Not, Or, Tree, atoms
from agent.detection.fields import (
    EXECVE,
    FILE_EVENT,
    NETWORK_CONNECTION,
    PROCESS_ACCESS,
    PROCESS_CREATION,
    SYSCALL,
    Getter,
    is_field,
)
from agent.detection.necessary import Sorting
from agent.detection.rule import Filter, Rule
from agent.errors import RuleError


class Kind(NamedTuple):
    """One kind of event: its fields, those that never differ, how rules are sorted."""

    name: str
    fields: Mapping[str, Getter]
    same: Mapping[str, str]
    sorting: Sorting


_CREATION = Kind(
    "process_creation",
    PROCESS_CREATION,
    {},
    Sorting(("Image", "ParentImage"), ("CommandLine", "Image")),
)
_ACCESS = Kind(
    "process_access", PROCESS_ACCESS, {}, Sorting(("SourceImage", "TargetImage"), ())
)
_NETWORK = Kind("network_connection", NETWORK_CONNECTION, {}, Sorting(("Image",), ()))
_FILE = Kind("file_event", FILE_EVENT, {}, Sorting(("Image",), ("TargetFilename",)))
_EXECVE = Kind("auditd_execve", EXECVE, {"type": "EXECVE"}, Sorting(("a0",), ()))
_SYSCALL = Kind(
    "auditd_syscall",
    SYSCALL,
    {"type": "SYSCALL", "SYSCALL": "execve", "success": "yes", "exit": "0"},
    Sorting(("exe", "comm"), ()),
)
KINDS = (_CREATION, _ACCESS, _NETWORK, _FILE, _EXECVE, _SYSCALL)
_BY_CATEGORY = {one.name: (one,) for one in KINDS[:4]}
_BY_SERVICE = {"auditd": (_EXECVE, _SYSCALL)}


class Served(NamedTuple):
    """A kind of event, and the tree that is asked of it."""

    kind: Kind
    tree: Tree


def served(rule: Rule | Filter) -> tuple[Served, ...]:
    """Return what a rule is asked of; RuleError when nothing can ever set it off."""
    kinds = _kinds(rule)
    if kinds[0].name in _BY_CATEGORY:
        _check_fields(rule, kinds[0])
        return (Served(kinds[0], rule.tree),)
    found = []
    for kind in kinds:
        tree = _decided(rule.tree, kind)
        if tree is True:
            raise RuleError(rule.file, rule.line, f"it fits every {kind.name} record")
        if tree is not False:
            found.append(Served(kind, tree))
    if not found:
        reason = f"no event gives what it asks: {', '.join(lacking(rule))}"
        raise RuleError(rule.file, min(rule.lines.values()), reason)
    return tuple(found)


def check_filter(one: Filter) -> None:
    """Raise RuleError when a filter is about a log or a field that is not there."""
    kinds = _kinds(one)
    if kinds[0].name in _BY_CATEGORY:
        _check_fields(one, kinds[0])


def lacking(rule: Rule | Filter) -> list[str]:
    """Return what a rule asks that no event gives, in a reader's words."""
    return sorted(set(_asked(rule, _kinds(rule))))


def _kinds(rule: Rule | Filter) -> tuple[Kind, ...]:
    source = rule.logsource
    kinds: tuple[Kind, ...] | None = None
    if source.product in ("", "linux"):
        if source.category and not source.service:
            kinds = _BY_CATEGORY.get(source.category)
        elif source.service and not source.category:
            kinds = _BY_SERVICE.get(source.service)
    if kinds is None:
        told = [f"{name} {word}" for name, word in source.named().items() if word]
        reason = f"no such log here: {', '.join(told) or 'none'}"
        raise RuleError(rule.file, source.line, reason)
    return kinds


def _check_fields(rule: Rule | Filter, kind: Kind) -> None:
    for name, tree in rule.selections.items():
        for atom in atoms(tree):
            if not is_field(atom.field, kind.fields):
                line = rule.lines.get(name, rule.line)
                what = f"field {atom.field!r}" if atom.field else "keywords"
                reason = f"{kind.name} has no {what} here"
                raise RuleError(rule.file, line, reason)


def _decided(tree: Tree, kind: Kind) -> Tree | bool:
    """Return a tree without what is known beforehand of all events of a kind."""
    match tree:
        case Atom():
            if tree.field in kind.same:
                return tree.test.fits(kind.same[tree.field])
            return tree if is_field(tree.field, kind.fields) else False
        case Not():
            inner = _decided(tree.of, kind)
            return not inner if isinstance(inner, bool) else Not(inner)
        case And() | Or():
            stop = isinstance(tree, Or)
            parts = [_decided(one, kind) for one in tree.of]
            if stop in parts:
                return stop
            left = tuple(one for one in parts if not isinstance(one, bool))
            if len(left) <= 1:
                return left[0] if left else not stop
            return type(tree)(left)


def _asked(rule: Rule | Filter, kinds: tuple[Kind, ...]) -> Iterator[str]:
    """Yield what no record has: values of fixed fields, fields, in a reader's words."""
    for atom in atoms(rule.tree):
        fixed = {one.same[atom.field] for one in kinds if atom.field in one.same}
        if fixed:
            if not any(atom.test.fits(one) for one in fixed):
                value = getattr(atom.test, "value", "").upper()
                yield f"{atom.field} {value}"
        elif not any(is_field(atom.field, one.fields) for one in kinds):
            yield f"field {atom.field}"
