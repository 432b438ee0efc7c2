"""Verdicts and discrepancies in records: who each name means, and nothing twice."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.events import (
    NOBODY,
    Discrepancy,
    Parentage,
    Process,
    ProcessKey,
    Verdict,
)
from agent.process.crossview import CHAIN, LIST, PROC
from agent.sinks.record import Renderer
from tests.builders import ALONE, NOW, SECOND, a_fork, a_key, a_process
from tests.sinks.ecs import assert_ecs
from tests.sinks.test_record import CLOCK, HOST, rendered
from tests.strategies import comms, keys, times

CREATOR, BIRTH, PARENT, TRACER = map(a_key, (500, 600, 700, 800))
NAMES = {"creator", "birth_parent", "reaper", "tracer", "exited"}


def told(parentage: Parentage) -> dict[str, Any]:
    """What the record of a birth says of this verdict."""
    event = a_fork()
    renderer = Renderer(HOST, CLOCK)
    entry = a_process(event.task.key)
    record = json.loads(renderer.render(event, entry, ALONE, 7, None, parentage))
    assert_ecs(record)
    found: dict[str, Any] = record["ir"]["parentage"]
    return found


def entity(key: ProcessKey) -> dict[str, Any]:
    return {"pid": key.tgid, "entity_id": Renderer(HOST, CLOCK).entity(key)}


def a_discrepancy(key: ProcessKey, **changes: Any) -> Discrepancy:
    values: dict[str, Any] = {
        "kind": Verdict.HIDDEN_FROM_PROC,
        "why": "/proc does not list it",
        "first_ns": NOW - SECOND,
        "confirmed_ns": NOW,
        "views": {LIST: True, CHAIN: True, PROC: False},
    }
    return Discrepancy(key, **(values | changes))


def disagreed(found: Discrepancy, process: Process | None = None) -> dict[str, Any]:
    """The record of a discrepancy, decoded; ECS is checked on the way."""
    text = Renderer(HOST, CLOCK).discrepancy(found, process, 7)
    assert b"\n" not in text
    record: dict[str, Any] = json.loads(text)
    assert_ecs(record)
    return record


def test_the_usual_verdict_is_a_word_and_no_more() -> None:
    usual = Parentage(Verdict.CONSISTENT, PARENT, PARENT, PARENT)
    assert told(usual) == {"verdict": "consistent"}


def test_an_event_that_nobody_judged_has_no_verdict() -> None:
    assert "parentage" not in rendered(a_fork())["ir"]


def test_a_birth_nobody_saw_names_no_creator() -> None:
    unseen = Parentage(Verdict.UNKNOWN_BEFORE_START, NOBODY, PARENT, PARENT)
    assert told(unseen) == {"verdict": "unknown_before_start"}


def test_a_sibling_by_clone_names_who_made_it() -> None:
    sibling = Parentage(Verdict.CLONE_PARENT, CREATOR, PARENT, PARENT)
    assert told(sibling) == {"verdict": "clone_parent", "creator": entity(CREATOR)}


def test_an_orphan_names_its_parents_before_and_now_and_the_end() -> None:
    orphan = Parentage(
        Verdict.REPARENTED, BIRTH, BIRTH, PARENT, exited=BIRTH, exited_ns=NOW
    )
    assert told(orphan) == {
        "verdict": "reparented",
        "creator": entity(BIRTH),
        "birth_parent": entity(BIRTH),
        "reaper": entity(PARENT),
        "exited": {**entity(BIRTH), "end": Renderer(HOST, CLOCK).wall(NOW)},
    }


def test_an_end_that_was_not_seen_has_no_time() -> None:
    orphan = Parentage(Verdict.REPARENTED, NOBODY, BIRTH, PARENT, exited=BIRTH)
    assert told(orphan)["exited"] == entity(BIRTH)


def test_a_tracer_is_named() -> None:
    traced = Parentage(Verdict.TRACED, PARENT, PARENT, PARENT, tracer=TRACER)
    assert told(traced) == {"verdict": "traced", "tracer": entity(TRACER)}


def test_a_forged_parent_is_no_reaper_and_says_what_cannot_be() -> None:
    why = "its parent 600 lives"
    forged = Parentage(Verdict.FORGED, BIRTH, BIRTH, PARENT, exited=BIRTH, why=why)
    found = told(forged)
    assert "reaper" not in found
    assert (found["reason"], found["birth_parent"]) == (why, entity(BIRTH))


@given(
    st.builds(Parentage, st.sampled_from(Verdict), *[keys] * 5, times, st.text()),
)
def test_whatever_a_verdict_says_no_name_is_invented(parentage: Parentage) -> None:
    found = told(parentage)
    said = {parentage.creator, parentage.birth_parent, parentage.parent}
    said |= {parentage.tracer, parentage.exited}
    assert found["verdict"] == parentage.verdict
    for name in found.keys() & NAMES:
        assert {k: found[name][k] for k in ("pid", "entity_id")} in map(entity, said)
    if parentage.verdict is not Verdict.CONSISTENT:
        assert found.get("reason", "") == parentage.why


def test_a_discrepancy_is_an_alert_that_names_process_and_views() -> None:
    key = a_key(1234)
    entry = a_process(key, comm=b"miner", executable=b"/tmp/miner")
    record = disagreed(a_discrepancy(key), entry)
    event = record["event"]
    assert (event["kind"], event["action"], event["sequence"]) == (
        "alert",
        "discrepancy",
        7,
    )
    assert record["process"] == {
        **entity(key),
        "name": "miner",
        "executable": "/tmp/miner",
    }
    found = record["ir"]["discrepancy"]
    assert found["kind"] == "hidden_from_proc"
    assert (found["seen_by"], found["missing_from"]) == ([LIST, CHAIN], [PROC])
    assert found["first"] < found["confirmed"] == record["@timestamp"]
    assert record["ir"]["clock"]["bt_ns"] == NOW
    assert "parentage" not in record["ir"]


def test_without_an_entry_the_name_is_what_the_view_told() -> None:
    record = disagreed(a_discrepancy(a_key(1234), comm=b"ghost"))
    assert record["process"] == {**entity(a_key(1234)), "name": "ghost"}


def test_a_forged_parent_brings_its_verdict() -> None:
    forged = Parentage(Verdict.FORGED, BIRTH, BIRTH, PARENT, exited=BIRTH, why="why")
    found = a_discrepancy(
        a_key(1234), kind=Verdict.FORGED, views={}, parentage=forged, why="why"
    )
    record = disagreed(found)
    ir = record["ir"]
    assert record["process"]["parent"] == entity(PARENT)
    assert ir["parentage"] == told(forged)
    assert ir["discrepancy"]["seen_by"] == ir["discrepancy"]["missing_from"] == []


@given(comms, st.text(), st.dictionaries(st.text(), st.booleans()))
def test_no_name_and_no_reason_breaks_out_of_its_string(
    comm: bytes, why: str, views: dict[str, bool]
) -> None:
    found = a_discrepancy(a_key(1234), comm=comm, why=why, views=views)
    record = disagreed(found)
    assert record["process"]["name"] == comm.decode("utf-8", "backslashreplace")
    about = record["ir"]["discrepancy"]
    assert about["reason"] == why
    assert {**dict.fromkeys(about["seen_by"], True)} == {
        v: 1 for v in views if views[v]
    }
    assert set(about["missing_from"]) == {view for view in views if not views[view]}


@pytest.mark.parametrize("verdict", list(Verdict))
def test_every_verdict_is_told_by_its_word(verdict: Verdict) -> None:
    assert told(Parentage(verdict))["verdict"] == verdict
