"""Every public rule for Linux programs says of an event what another engine says.

The other engine is pySigma's SQLite backend: each rule as a query, all events as rows.
IR_ORACLE_EVENTS sets how many events are generated.
"""

import os
import re
import sqlite3
import warnings
from pathlib import Path
from typing import Any

import pytest

from agent.detection.facts import Facts
from agent.detection.fields import EXEC
from agent.detection.logsource import served
from agent.detection.ruleset import build
from tests.detection.sigma_corpus import needs_corpus, process_rules
from tests.detection.sigma_events import Program, programs

EVENTS = int(os.environ.get("IR_ORACLE_EVENTS", "2000"))
FIELDS = (
    "Image",
    "CommandLine",
    "ParentImage",
    "ParentCommandLine",
    "User",
    "CurrentDirectory",
    "LogonId",
)


def queries(files: list[str]) -> list[str]:
    """One SQL query for each rule file."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of packages that are not ours
        sqlite = pytest.importorskip("sigma.backends.sqlite", reason="no pySigma here")
        collection = pytest.importorskip("sigma.collection")
        backend = sqlite.sqliteBackend()
        found = []
        for file in files:
            text = Path(file).read_text(encoding="utf-8")
            found += backend.convert(collection.SigmaCollection.from_yaml(text))
    return found


def table(made: list[Program]) -> sqlite3.Connection:
    database = sqlite3.connect(":memory:")
    database.create_function("REGEXP", 2, _found)
    columns = ", ".join(f"{name} TEXT COLLATE NOCASE" for name in FIELDS)
    database.execute(f"CREATE TABLE logs (number INTEGER, {columns})")
    marks = ", ".join("?" * (len(FIELDS) + 1))
    database.executemany(
        f"INSERT INTO logs VALUES ({marks})",
        ((number, *_row(one)) for number, one in enumerate(made)),
    )
    return database


def _found(pattern: str, text: str) -> bool:
    return re.search(pattern, text) is not None


def _row(one: Program) -> list[str]:
    raw = Facts(one.event, one.around, EXEC).raw
    return [raw[name] or "" for name in FIELDS]


def their_hits(database: sqlite3.Connection, query: str) -> set[int]:
    numbered = query.replace("SELECT *", "SELECT number").replace(
        "<TABLE_NAME>", "logs"
    )
    return {number for (number,) in database.execute(numbered)}


@needs_corpus
def test_all_144_rules_for_programs_agree_with_another_engine() -> None:
    rules = process_rules()
    asked = queries([rule.file for rule in rules])
    assert len(asked) == len(rules) == 144
    made = list(programs([served(rule).tree for rule in rules], EVENTS, seed=1))
    ours: list[set[int]] = [set() for _ in rules]
    matcher = build(rules).matchers["exec"]
    for number, one in enumerate(made):
        for hit in matcher.match(Facts(one.event, one.around, EXEC)):
            ours[hit.number].add(number)
    database = table(made)
    differing: dict[str, Any] = {}
    for rule, query, mine in zip(rules, asked, ours, strict=True):
        theirs = their_hits(database, query)
        if theirs != mine:
            differing[rule.file] = sorted(theirs ^ mine)[:5]
    database.close()
    assert differing == {}
    assert sum(1 for one in ours if one) >= min(140, EVENTS // 15)
