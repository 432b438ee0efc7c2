"""The same programs give the same events, whichever rung and kernel saw them.

In: one list of programs, run under an agent for each way the ladder can stand. Out:
what was recorded, without what differs from run to run, against one list that is kept
(golden_rungs.json, the same for all kernels and rungs). Where a rung tells a field
differently, DIFFERENCES says so, field by field. Rewrite the list with
IR_REWRITE=1 on the kernel of this machine, and read what changed.
"""

import json
import os
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from agent.sensor import btf
from tests.kernel import ladder
from tests.kernel.conftest import Agent

pytestmark = pytest.mark.kernel

GOLDEN = Path(__file__).with_name("golden_rungs.json")
NOBODY = 65534
OTHERS = {"user": NOBODY, "group": NOBODY, "extra_groups": []}

CALLS = ("ptrace", "failed exec", "prctl")
# name: rungs that are forbidden, and rungs that must then be in use
WAYS = {
    "best": ((), {}),
    "kprobe": (("fentry",), dict.fromkeys(CALLS, "kprobe")),
    "tracepoint": (("fentry", "kprobe"), dict.fromkeys(CALLS, "tracepoint")),
    "raw_tracepoint": (("tp_btf",), {"exec": "raw_tracepoint"}),
}

# rung of the sense "memory file" or kernel, field: what it says in its place
DIFFERENCES = {
    # the address space is gone by then; since 6.16 the hook comes before
    ("before 6.16", "flags of an exit"): "no_mm",
    # it looks at the file while it is being opened: there is no descriptor yet
    ("fentry", "result"): "0 instead of the descriptor",
    # it has the path that the kernel copied, so it is not the caller's word
    ("fentry", "flags"): "no caller_memory",
}

ROLES = ("child", "parent", "born")
ACTS = [
    ("run", "report", ["a", "", "b c"], {}),
    ("failed exec", "exec_failing", ["/nonexistent/program", "a", ""], {}),
    ("failed exec refused", "exec_failing", ["/etc/passwd", "x"], {}),
    ("exit", "exit_with", [0], {}),
    ("attach", "attach", ["TARGET"], {}),
    ("attach refused", "attach", ["TARGET"], OTHERS),
    ("seize", "seize", ["TARGET"], {}),
    ("seize refused", "seize", ["TARGET"], OTHERS),
    ("read", "read_memory", ["TARGET", 1], {}),
    ("read refused", "read_memory", ["TARGET", 1], OTHERS),
    ("write", "write_memory", ["TARGET"], {}),
    ("write refused", "write_memory", ["TARGET"], OTHERS),
    ("take", "take_descriptor", ["TARGET", 1], {}),
    ("take refused", "take_descriptor", ["TARGET", 1], OTHERS),
    ("open", "open_memory", ["/proc/TARGET/mem"], {}),
    ("open thread", "open_memory", ["/proc/TARGET/task/TARGET/mem"], {}),
    ("open refused", "open_memory", ["/proc/TARGET/mem"], OTHERS),
    ("open dots refused", "open_memory", ["/proc/self/../TARGET/mem"], OTHERS),
    ("open anew", "open_memory_anew", ["/proc/TARGET/mem"], {}),
    ("open anew refused", "open_memory_anew", ["/proc/TARGET/mem"], OTHERS),
    ("traceme", "traceme", [], {}),
    ("inherited", "trace_children", [], {}),
    ("vfork", "vfork_and_exec", ["/bin/true"], {}),
    ("sibling", "fork_as_sibling", [], {}),
    ("rename", "rename_self", ["another name"], {}),
]


@pytest.fixture(scope="module", params=WAYS)
def standing(request, trigger):
    """An agent whose ladder stands in one way, and on what its memory sense stands."""
    forbidden, expected = WAYS[request.param]
    for rung in expected.values():
        ladder.known(rung)
    options = ["--forbid", ",".join(forbidden)]
    with tempfile.TemporaryDirectory(prefix="ir-agent-test-") as name:
        agent = Agent(Path(name), trigger.path("exit_with"), *options)
        try:
            agent.start()
            senses = ladder.senses(agent.runtime)
            for sense, rung in expected.items():
                if senses.get(sense, {}).get("rung") != rung:
                    ladder.unavailable(rung, ladder.why_not(agent.runtime, rung))
            yield agent, senses["memory file"]["rung"]
        finally:
            agent.clean()


def told(record, names):
    """What a record says, with pids as roles and without times and numbers."""
    access = dict(record.get("ir.access") or {})
    for name in ("first", "last"):
        access.pop(name, None)
    if access.get("kind") in ("mem-open", "pidfd-getfd") and access["result"] > 0:
        access["result"] = "a descriptor"
    target = record.get("ir.target.pid")
    facts = {
        "action": record["event.action"],
        "type": record["event.type"],
        "outcome": record.get("event.outcome"),
        "error": record.get("error.code"),
        "exit_code": record.get("process.exit_code"),
        "args": record.get("process.args"),
        "user": record["process.user.id"],
        "target": names.get(target, "another") if target else None,
        "flags": sorted(record.get("ir.kernel.flags") or []),
        "access": access or None,
        "prctl": record.get("ir.prctl"),
        "verdict": record.get("ir.parentage.verdict"),
        "thread": (record.get("ir.target.thread.id") == target) if target else None,
    }
    requested = access.pop("requested_pid", None)
    if requested is not None:
        access["requested"] = names.get(requested, requested and "another")
    return {name: value for name, value in facts.items() if value is not None}


@cache
def exit_keeps_mm():
    return btf.Btf.of_kernel().parameters("btf_trace_sched_process_exit") > 2


def as_kept(facts, memory_rung):
    """What the rung and the kernel of the kept list would have told."""
    if facts["action"] == "exit":
        flags = [one for one in facts["flags"] if one != "no_mm"]
        assert exit_keeps_mm() or flags != facts["flags"]
        return {**facts, "flags": flags}
    if facts["action"] != "mem-open" or memory_rung == "tracepoint":
        return facts
    access, flags = facts["access"], facts.get("flags", [])
    assert (memory_rung, "result") in DIFFERENCES
    if access["result"] == 0:
        access = {**access, "result": "a descriptor"}
    elif "path" in access:
        assert "caller_memory" not in flags
        flags = sorted([*flags, "caller_memory"])
    return {**facts, "access": access, "flags": flags}


def plain(value, folder, pid):
    """Text without what is this run's own."""
    text = json.dumps(value).replace(str(folder), "FOLDER").replace(str(pid), "TARGET")
    return json.loads(text)


def tell_all(agent, memory_rung, trigger) -> dict[str, list[Any]]:
    story: dict[str, list[Any]] = {}
    for name, program, args, who in ACTS:
        with trigger.hold([trigger.path("report"), "target"]) as target:
            agent.forget()
            words = [str(word).replace("TARGET", str(target.pid)) for word in args]
            ran = trigger(program, *words, **who)
            names = {target.pid: "target", ran.pid: "caller"}
            names |= {ran.facts[f]: f for f in ROLES if f in ran.facts}
            found = [
                as_kept(told(record, names), memory_rung)
                for record in agent.find()
                if record.get("process.pid") in {ran.pid, *names} - {target.pid}
                or record.get("ir.target.pid") == target.pid
            ]
            found = plain(found, trigger.folder, target.pid)
            story[name] = sorted(found, key=json.dumps)  # two CPUs, no one order
    return story


def test_every_rung_tells_the_same_story(standing, trigger):
    agent, memory_rung = standing
    story = tell_all(agent, memory_rung, trigger)
    if os.environ.get("IR_REWRITE") and not ladder.IN_LAB:
        GOLDEN.write_text(json.dumps(story, indent=1, sort_keys=True) + "\n")
    kept = json.loads(GOLDEN.read_text())
    assert list(kept) == sorted(story)
    for name in kept:
        assert story[name] == kept[name], name
