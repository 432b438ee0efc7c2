"""docs/records.md names every field of every record, and no field that none has.

In: records of all kinds with every member they can have, made by the renderer. Out:
what the page has and they don't, and the other way round.
"""

import json
import re
from typing import Any

import pytest

from agent.events import (
    AccessKind,
    ChainEnd,
    Denied,
    Discrepancy,
    Flag,
    Lineage,
    Loss,
    Parentage,
    PrctlOption,
    Verdict,
)
from agent.process import census, crossview, drift
from agent.process.mounts import DoubtKind
from agent.sinks import own
from agent.sinks.record import ClockMap, Host, Renderer, action
from agent.sinks.text import NAMESPACES
from tests.builders import (
    HOST_USER_NS,
    a_failed_exec,
    a_fork,
    a_key,
    a_prctl,
    a_process,
    a_task,
    an_access,
    an_exec,
    an_exit,
    an_image,
)
from tests.test_docs import (
    RECORDS,
    documented,
    known,
    paths,
    section,
    table,
    undocumented,
    words,
)

KEY, CREATOR = a_key(1000), a_key(900)
STRANGE = an_image(
    b"x",
    euid=1,
    suid=2,
    gid=3,
    sgid=4,
    loginuid=9,
    sessionid=1,
    **{f"ns_{name}": 5 for name in NAMESPACES if name != "user"},
    ns_level=1,
    cap_inheritable=1,
    cap_ambient=1,
)
UNNAMED = a_task(image=an_image(b"x", ns_user=5))
TRACED = a_task(1000, real_parent=CREATOR, image=STRANGE, ptrace=1, parent=a_key(77))
EVERY_FLAG = sum(Flag)
EVENTS = [
    an_exec(
        b"\xff",
        task=TRACED,
        flags=EVERY_FLAG,
        backlog=True,
        interpreter=b"/bin/sh",
        environment=(b"RANK=1",),
    ),
    a_failed_exec(b"\xff", flags=EVERY_FLAG),
    a_fork(task=UNNAMED, clone_flags=0x100),
    an_exit(),
    an_exit(status=6),
    an_access(
        kind=AccessKind.MEM_OPEN,
        result=-13,
        denied=Denied.LSM,
        path=b"/proc/1/mem",
        target=a_task(2000, real_parent=CREATOR, image=STRANGE),
    ),
    a_prctl(),
    a_prctl(option=PrctlOption.SET_MM, argument=8, result=-1),
]
ODD = [
    Parentage(
        verdict,
        creator=CREATOR,
        birth_parent=CREATOR,
        parent=a_key(1),
        tracer=a_key(77),
        exited=CREATOR,
        exited_ns=1,
        why="something",
    )
    for verdict in (Verdict.REPARENTED, Verdict.FORGED)
]


@pytest.fixture
def renderer() -> Renderer:
    host = Host(
        "id", "name", "boot-id", "0.1.0", dict.fromkeys(NAMESPACES, HOST_USER_NS)
    )
    return Renderer(host, ClockMap(1, "synchronised", 2, 3))


@pytest.fixture
def rendered(renderer: Renderer) -> list[Any]:
    """Records of all kinds of events that have every member a record can have."""
    parent = a_process(CREATOR)
    line = Lineage((parent,), ChainEnd.ROOT)
    process, target = a_process(KEY), (a_process(a_key(2000)), line)
    texts = [renderer.render(event, process, line, 1, target) for event in EVENTS]
    texts += [
        renderer.render(a_fork(), process, line, 1, None, parentage)
        for parentage in ODD
    ]
    views = {crossview.LIST: True, crossview.PROC: False}
    found = Discrepancy(KEY, Verdict.FORGED, "why", 1, 2, views, ODD[-1])
    texts.append(renderer.discrepancy(found, process, 1))
    return [json.loads(text) for text in texts]


def test_every_field_of_an_event_is_documented(rendered: list[Any]) -> None:
    for record in rendered:
        assert undocumented(record) == set()


def test_every_documented_field_of_an_event_exists(rendered: list[Any]) -> None:
    real = set().union(*map(paths, rendered))
    about_the_agent = ("loss", "positions", "heartbeat", "agent", "gap", "recovered")
    about_the_agent += ("segment", "tampering", "doubt")
    stated = {
        name
        for name in known() - {"_c"}
        if not name.startswith(tuple(f"ir.{part}." for part in about_the_agent))
    }
    assert stated - real == set()


def test_every_field_of_a_loss_is_documented(renderer: Renderer) -> None:
    position = {"seq": 1, "bt_ns": 1, "accounted": {"exec": 1}, "balance": 0}
    body = own.loss(Loss("ring full", {"exec": 1}, 1, 2, (0,)), 0, {"0": position})
    record = json.loads(renderer.envelope(2, 1, body))
    assert undocumented(record) == set()
    assert {name for name in documented() if ".loss." in name} <= {
        name.replace("cpus", "cpus[]") for name in paths(record)
    }


def test_every_action_and_flag_is_documented(rendered: list[Any]) -> None:
    text = RECORDS.read_text()
    for record in rendered:
        assert f"`{record['event']['action']}`" in text
    for kind in AccessKind:
        assert f"`{action(kind)}`" in text
    for flag in Flag:
        assert f"| `{flag.name.lower()}` |" in text


def test_every_rung_of_the_guard_and_every_type_of_event_is_documented(
    rendered: list[Any],
) -> None:
    [row] = re.findall(r"(?m)^\| `ir.access.denied` \|(.*)$", RECORDS.read_text())
    for by in Denied:
        assert (f"`{by.name.lower()}`" in row) is (by is not Denied.NOT)
    [row] = re.findall(r"(?m)^\| `event.type` \|(.*)$", RECORDS.read_text())
    types = {json.dumps(one["event"]["type"]).replace(" ", "") for one in rendered}
    assert '["access","denied"]' in types
    assert types <= set(re.findall(r"`(\[.*?\])`", row))


def test_every_verdict_is_documented_once() -> None:
    heading = r"Parentage: is its parent its parent\?"
    rows = table(RECORDS, heading, first="verdict")
    assert sorted(word for row in rows for word in words(row[0])) == sorted(Verdict)


def test_every_kind_of_discrepancy_and_every_view_is_documented() -> None:
    text = section(RECORDS, "discrepancy: sources disagree about a process")
    [row] = re.findall(r"(?m)^\| `ir.discrepancy.kind` \|(.*)$", text)
    kinds = {Verdict.FORGED, Verdict.HIDDEN_FROM_PROC, Verdict.ONLY_IN_PROC}
    kinds |= {crossview.HIDDEN_FROM_LIST, crossview.HIDDEN_FROM_CHAIN}
    kinds |= {census.RAN_UNLISTED, drift.Kind.KERNEL_THREAD_LOOKALIKE}
    assert set(words(row)) == kinds
    for view in (crossview.LIST, crossview.CHAIN, crossview.PROC, crossview.PRIVATE):
        assert f"`{view}`" in text


def test_every_doubt_about_proc_is_documented() -> None:
    [row] = re.findall(r"(?m)^\| `ir.doubt.kind` \|(.*)$", RECORDS.read_text())
    assert set(words(row)) == set(DoubtKind)
