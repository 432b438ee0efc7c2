"""Which of our events serve a rule, and what is left of the rule for each of them.

In: a rule or a filter. Out: the kinds of event with the tree for each, in which what is
the same for all events of the kind is decided already; or a RuleError that says which
log, field or record this agent does not have.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from agent.detection.condition import And, Atom, Not, Or, Tree, atoms, either
from agent.detection.fields import (
    EXEC,
    EXECVE,
    FILE_EVENT,
    KEYWORDS,
    NETWORK_CONNECTION,
    PROCESS_ACCESS,
    PROCESS_CREATION,
    SYSCALL,
    SYSCALL_VALUES,
    Getter,
    is_field,
)
from agent.detection.necessary import Sorting
from agent.detection.rule import Filter, Rule
from agent.errors import RuleError


class Kind(NamedTuple):
    """One kind of event: its name, its fields, and how its rules are sorted."""

    name: str
    fields: Mapping[str, Getter]
    sorting: Sorting


class _Log(NamedTuple):
    """One kind of record that rules are written for, made from one kind of event.

    `same` are fields that never differ, `keywords` is the field of all values.
    """

    kind: Kind
    name: str
    fields: Mapping[str, Getter]
    same: Mapping[str, str]
    keywords: str = KEYWORDS


_ARGUMENTS = frozenset(f"a{number}" for number in range(32))
_EXEC = Kind(
    "exec",
    EXEC,
    Sorting(
        names=("Image", "ParentImage", "a0"),
        texts=("CommandLine", "Image"),
        within=frozenset({KEYWORDS, "exe"}) | _ARGUMENTS,
    ),
)
_ACCESS = Kind("access", PROCESS_ACCESS, Sorting(("SourceImage", "TargetImage")))
_CONNECTION = Kind("connection", NETWORK_CONNECTION, Sorting(("Image",)))
_FILE = Kind("file", FILE_EVENT, Sorting(("Image",), ("TargetFilename",)))
KINDS = (_EXEC, _ACCESS, _CONNECTION, _FILE)
_CALL = {"type": "SYSCALL", "SYSCALL": "execve", "success": "yes", "exit": "0"}
_LOGS = {
    ("process_creation", ""): (_Log(_EXEC, "process_creation", PROCESS_CREATION, {}),),
    ("process_access", ""): (_Log(_ACCESS, "process_access", PROCESS_ACCESS, {}),),
    ("network_connection", ""): (
        _Log(_CONNECTION, "network_connection", NETWORK_CONNECTION, {}),
    ),
    ("file_event", ""): (_Log(_FILE, "file_event", FILE_EVENT, {}),),
    ("", "auditd"): (
        _Log(_EXEC, "EXECVE", EXECVE, {"type": "EXECVE"}),
        _Log(_EXEC, "SYSCALL", SYSCALL, _CALL, SYSCALL_VALUES),
    ),
}
"""By category and service; each log's fields are among those of its kind."""


class Served(NamedTuple):
    """A kind of event, and the tree that is asked of it."""

    kind: Kind
    tree: Tree


def served(rule: Rule) -> Served:
    """Return what a rule is asked of; RuleError when nothing can ever set it off."""
    logs = _logs(rule)
    trees = []
    for log, tree in _parts(rule, logs):
        if tree is True:
            raise RuleError(rule.file, rule.line, f"it fits every {log.name} record")
        if not isinstance(tree, bool):
            trees.append(tree)
    if not trees:
        reason = f"no event gives what it asks: {', '.join(lacking(rule))}"
        raise RuleError(rule.file, min(rule.lines.values()), reason)
    return Served(logs[0].kind, either(trees))


def allowed(rule: Rule, exception: Filter) -> Tree:
    """Return what must hold so that a filter does not except a rule's event.

    Where several records are made of one event, rule and filter are asked of the same.
    """
    found: list[Tree] = []
    logs = _logs(rule)
    if len(logs) == 1:
        return exception.tree
    for (_, tree), (_, extra) in zip(
        _parts(rule, logs), _parts(exception, logs), strict=True
    ):
        both_ = [one for one in (tree, extra) if not isinstance(one, bool)]
        if tree is not False and extra is not False:
            found.append(And(tuple(both_)))
    return Or(tuple(found))


def check_filter(one: Filter) -> None:
    """Raise RuleError when a filter is about a log or a field that is not there."""
    list(_parts(one, _logs(one)))


def lacking(rule: Rule | Filter) -> list[str]:
    """Return what a rule asks that no event gives, in a reader's words."""
    return sorted(set(_asked(rule, _logs(rule))))


def _logs(rule: Rule | Filter) -> tuple[_Log, ...]:
    source = rule.logsource
    logs = _LOGS.get((source.category, source.service))
    if logs is None or source.product not in ("", "linux"):
        told = [f"{name} {word}" for name, word in source.named().items() if word]
        reason = f"no such log here: {', '.join(told) or 'none'}"
        raise RuleError(rule.file, source.line, reason)
    return logs


def _parts(
    rule: Rule | Filter, logs: tuple[_Log, ...]
) -> Iterator[tuple[_Log, Tree | bool]]:
    """Yield for each log what is left of a rule there."""
    if len(logs) == 1:
        _check_fields(rule, logs[0])
        yield logs[0], rule.tree
        return
    for log in logs:
        yield log, _decided(rule.tree, log)


def _check_fields(rule: Rule | Filter, log: _Log) -> None:
    for name, tree in rule.selections.items():
        for atom in atoms(tree):
            if not is_field(atom.field, log.fields):
                line = rule.lines.get(name, rule.line)
                what = f"field {atom.field!r}" if atom.field else "keywords"
                raise RuleError(rule.file, line, f"{log.name} has no {what} here")


def _decided(tree: Tree, log: _Log) -> Tree | bool:
    """Return a tree without what is known beforehand of all records of a log."""
    match tree:
        case Atom():
            return _decided_atom(tree, log)
        case Not():
            inner = _decided(tree.of, log)
            return not inner if isinstance(inner, bool) else Not(inner)
        case And() | Or():
            stop = isinstance(tree, Or)
            parts = [_decided(one, log) for one in tree.of]
            if stop in parts:
                return stop
            left = tuple(one for one in parts if not isinstance(one, bool))
            if len(left) <= 1:
                return left[0] if left else not stop
            return type(tree)(left)


def _decided_atom(atom: Atom, log: _Log) -> Tree | bool:
    if atom.field in log.same:
        return atom.test.fits(log.same[atom.field])
    if atom.field == KEYWORDS:
        return Atom(log.keywords, atom.test)
    return atom if is_field(atom.field, log.fields) else False


def _asked(rule: Rule | Filter, logs: tuple[_Log, ...]) -> Iterator[str]:
    """Yield what no record has: values of fixed fields, and fields."""
    for atom in atoms(rule.tree):
        fixed = {one.same[atom.field] for one in logs if atom.field in one.same}
        if fixed:
            if not any(atom.test.fits(one) for one in fixed):
                value = getattr(atom.test, "value", "").upper()
                yield f"{atom.field} {value}"
        elif atom.field and not any(is_field(atom.field, one.fields) for one in logs):
            yield f"field {atom.field}"
