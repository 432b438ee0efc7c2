"""Whose child is it, and is that true? The verdict in the records of real families.

In: programs that start others in every way there is, lose their parents, are traced,
live in pid namespaces, and whose parents' pids are used again. Out: `ir.parentage` in
their records, with who, when and why, held against what the programs told. A name that
ends in `_replay_N` is row N of the corpus of what went wrong elsewhere.
"""

import os
import shutil
from collections import Counter

import pytest

pytestmark = pytest.mark.kernel

# `echo` is the shell's own: one process, which tells whom it takes for its parent
TELL_PARENT = ("/bin/sh", "-c", "echo $PPID")


def starts(trigger, who, how):
    """A program was started in a way: what was told of that, and by the program."""
    ran = trigger("start_by", who, how, *TELL_PARENT)
    return ran.facts, int(ran.stdout)


def orphans(trigger, way, *program):
    """A program that was executed after its parent had ended in a way."""
    return trigger("orphan", way, *(program or TELL_PARENT))


def named(record, path):
    """The pid and the entity of who stands at `path`."""
    return record[f"{path}.pid"], record[f"{path}.entity_id"]


def itself(record):
    return named(record, "process")


def assert_adopted(agent, record, middle, reaper, way="exits"):
    """The middle one is named with its end, and the reaper beside it."""
    gone = agent.one(action="exit", pid=middle)
    assert gone.get("ir.exit.signal") == ("SIGKILL" if way == "killed" else None)
    parentage = record["ir.parentage"]
    assert parentage["verdict"] == "reparented"
    assert named(record, "ir.parentage.exited") == itself(gone)
    assert parentage["exited"]["end"] == gone["process.end"]
    assert named(record, "ir.parentage.birth_parent") == itself(gone)
    assert named(record, "ir.parentage.reaper") == named(record, "process.parent")
    assert parentage["reaper"]["pid"] == reaper
    assert not {"tracer", "reason"} & parentage.keys()


def assert_still_descends_from(record, *pids):
    """The ancestors are those by birth, whoever reaps it now."""
    chain = [one["pid"] for one in record["ir.ancestry.chain"]]
    assert chain[: len(pids)] == list(pids)


# whose parent is whom he was born by


@pytest.mark.parametrize("how", ["fork", "vfork"])
@pytest.mark.parametrize("who", ["leader", "thread", "alone"])
def test_a_parent_is_the_process_whichever_thread_forks_replay_64_67(
    agent, trigger, who, how
):
    facts, told = starts(trigger, who, how)
    for action in ("fork", "exec"):
        record = agent.one(action=action, pid=facts["child"])
        assert record["ir.parentage"] == {"verdict": "consistent"}
        assert record["process.parent.pid"] == facts["creator"] == told
    assert (facts["tid"] == facts["creator"]) is (who == "leader")


@pytest.mark.parametrize("who", ["leader", "thread"])
def test_a_sibling_has_its_creator_beside_its_parent_replay_66(agent, trigger, who):
    facts, told = starts(trigger, who, "sibling")
    creator = agent.one(action="fork", pid=facts["creator"])
    for action in ("fork", "exec"):
        record = agent.one(action=action, pid=facts["child"])
        assert record["ir.parentage.verdict"] == "clone_parent"
        assert named(record, "ir.parentage.creator") == itself(creator)
        assert named(record, "process.parent") == named(creator, "process.parent")
        assert record["process.parent.pid"] == told != facts["creator"]
        assert not {"reaper", "exited", "tracer"} & record["ir.parentage"].keys()


def test_every_birth_names_its_creator_and_nobody_is_number_0_replay_65_77_81(
    agent, trigger
):
    trigger("exec_many", trigger.path("true"), 300)
    for _ in range(20):
        orphans(trigger, "exits", trigger.path("true"))
    agent.fence()
    for action in ("fork", "exec", "exit"):
        records = agent.records(action=action)
        assert len(records) >= 320
        for record in records:
            assert record["process.pid"] != 0
            assert record["process.parent.pid"] != 0
    executed = agent.records(action="exec", executable=trigger.path("true"))
    births = {itself(record) for record in agent.records(action="fork")}
    assert len(executed) == 320
    assert {itself(record) for record in executed} < births
    verdicts = Counter(record["ir.parentage.verdict"] for record in executed)
    assert verdicts == {"consistent": 300, "reparented": 20}


def test_all_ancestors_are_in_the_record_of_a_program_replay_86(agent, trigger):
    inner = f"{trigger.path('true')}; :"
    ran = trigger.run(["/bin/sh", "-c", f"/bin/sh -c '{inner}'; :"])
    record = agent.one(action="exec", executable=trigger.path("true"))
    middle = record["process.parent.pid"]
    assert agent.one(action="fork", pid=middle)["process.parent.pid"] == ran.pid
    assert_still_descends_from(record, middle, ran.pid, os.getpid())


# whose parent has ended


@pytest.mark.parametrize("way", ["exits", "killed"])
def test_an_orphan_names_who_ended_and_who_took_over_replay_77(agent, trigger, way):
    ran = orphans(trigger, way)
    record = agent.one(action="exec", pid=ran.facts["last"])
    assert_adopted(agent, record, ran.facts["middle"], int(ran.stdout), way)
    assert int(ran.stdout) != ran.pid
    assert_still_descends_from(record, ran.facts["middle"], ran.pid)
    born = agent.one(action="fork", pid=ran.facts["last"])
    assert born["ir.parentage"] == {"verdict": "consistent"}


def test_a_subreaper_takes_over_and_the_chain_stays_replay_75(agent, trigger):
    ran = orphans(trigger, "subreaper")
    record = agent.one(action="exec", pid=ran.facts["last"])
    assert_adopted(agent, record, ran.facts["middle"], ran.pid)
    assert int(ran.stdout) == ran.pid
    assert_still_descends_from(record, ran.facts["middle"], ran.pid)


def test_an_inner_init_reaps_inside_and_both_numbers_are_told_replay_70_80(
    agent, trigger
):
    orphans(trigger, "inside", trigger.path("true"))
    record = agent.one(action="exec", executable=trigger.path("true"))
    init = agent.one(action="fork", pid=record["process.parent.pid"])
    assert (record["process.vpid"], init["process.vpid"]) == (3, 1)
    assert record["process.pid"] != 3
    middle = record["ir.parentage.exited.pid"]
    assert agent.one(action="exit", pid=middle)["process.vpid"] == 2
    assert_adopted(agent, record, middle, init["process.pid"])
    assert_still_descends_from(record, middle, init["process.pid"])


def test_who_enters_a_container_keeps_the_parent_outside_replay_62(agent, trigger):
    ran = orphans(trigger, "entered")
    record = agent.one(action="exec", pid=ran.facts["last"])
    assert record["process.vpid"] == 2
    assert int(ran.stdout) == 0  # as seen from inside
    outside = agent.one(action="exit", pid=ran.facts["last"])["process.parent.pid"]
    assert_adopted(agent, record, ran.facts["middle"], outside)
    assert outside != 0
    assert_still_descends_from(record, ran.facts["middle"], ran.pid)


def test_who_has_a_dead_parents_pid_is_not_taken_for_it_replay_68(agent, trigger):
    ran = orphans(trigger, "reused")
    middle = ran.facts["middle"]
    first, second = agent.find(action="fork", pid=middle)
    assert first["process.entity_id"] != second["process.entity_id"]
    record = agent.one(action="exec", pid=ran.facts["last"])
    for role in ("exited", "birth_parent"):
        assert named(record, f"ir.parentage.{role}") == itself(first)
    [gone] = agent.records(action="exit", entity=first["process.entity_id"])
    assert record["ir.parentage.exited.end"] == gone["process.end"]
    assert record["ir.parentage.verdict"] == "reparented"
    assert record["ir.parentage.reaper.pid"] == int(ran.stdout)


def test_two_children_with_one_pid_are_told_apart_by_their_start(agent, trigger):
    ran = trigger("reuse_pid")
    first, second = agent.find(action="fork", pid=ran.facts["pid"])
    assert first["process.start"] < second["process.start"]
    for record in (first, second):
        assert record["ir.parentage"] == {"verdict": "consistent"}
        assert record["process.parent.pid"] == ran.pid


# who is traced


@pytest.mark.parametrize("who", ["parent", "stranger"])
def test_the_parent_stays_and_the_tracer_is_named_beside_it_replay_72(
    agent, trigger, who
):
    ran = trigger("trace_exec", who, *TELL_PARENT)
    record = agent.one(action="exec", pid=ran.facts["child"])
    assert record["process.parent.pid"] == int(ran.stdout) == ran.pid
    assert (ran.facts["tracer"] == ran.pid) is (who == "parent")
    tracer = agent.records(action="fork", pid=ran.facts["tracer"])[0]
    assert record["ir.parentage.verdict"] == "traced"
    assert named(record, "ir.parentage.tracer") == itself(tracer)
    assert not {"reaper", "exited", "reason"} & record["ir.parentage"].keys()


def test_all_of_a_tree_under_strace_have_their_parents_and_one_tracer(
    agent, trigger, tmp_path
):
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace is not installed")
    program = trigger.path("true")
    script = f"{program}; ({program} & wait); :"
    ran = trigger.run(
        [strace, "-f", "-o", tmp_path / "out", "/bin/sh", "-c", script],
    )
    first, second = agent.find(action="exec", executable=program)
    for record in (first, second):
        assert record["ir.parentage.verdict"] == "traced"
        assert record["ir.parentage.tracer.pid"] == ran.pid
        assert record["ir.parentage"].keys() == {"verdict", "tracer"}
    parents = [record["process.parent.pid"] for record in (first, second)]
    assert len({ran.pid, *parents}) == 3
    assert_still_descends_from(second, parents[1], parents[0], ran.pid)


# who was there before the agent


def test_who_was_born_before_the_agent_is_explained_as_far_as_it_is_known(
    agent_factory, trigger
):
    agent = agent_factory()
    script = ["/bin/sh", "-c", f"read _; exec {trigger.path('true')}"]
    family = [trigger.path("orphan")]
    with (
        trigger.hold(script) as old,
        trigger.hold([*family, "exits", *TELL_PARENT], told=True) as orphaned,
        trigger.hold([*family, "subreaper", *TELL_PARENT], told=True) as kept,
    ):
        agent.start()
    record = agent.one(action="exec", pid=old.pid)
    assert record["ir.parentage.verdict"] == "unknown_before_start"
    assert record["process.parent.pid"] == os.getpid()
    for held in (orphaned, kept):
        record = agent.one(action="exec", pid=held.facts["last"])
        reaper = agent.one(action="exit", pid=held.facts["last"])["process.parent.pid"]
        assert (reaper == held.pid) is (held is kept)
        assert_adopted(agent, record, held.facts["middle"], reaper)
        assert "creator" not in record["ir.parentage"]
    assert not agent.records(action="discrepancy")
