"""Records: valid JSON in the shape of ECS, exact, and never of another process."""

import base64
import hashlib
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.events import (
    AccessKind,
    ChainEnd,
    Denied,
    Event,
    Flag,
    Lineage,
    Loss,
    PrctlOption,
    Process,
)
from agent.sinks import own
from agent.sinks.record import ClockMap, Host, Renderer, action
from tests.builders import (
    ALONE,
    CONTEXT,
    HOST_USER_NS,
    INIT,
    NO_TASK,
    NOW,
    SECOND,
    STARTED,
    UNSET,
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
from tests.sinks.ecs import assert_ecs
from tests.strategies import arguments, events, keys, names, paths, words

OFFSET = 1_800_000_000 * SECOND
CLOCK = ClockMap(OFFSET, "synchronised", 1500, 2_000_000)
NAMESPACES = {
    name: getattr(CONTEXT, f"ns_{name}")
    for name in ("pid", "mnt", "net", "user", "uts", "ipc", "cgroup", "time")
}
HOST = Host("m" * 32, "node-1", "b1e7-0000-1111-2222", "0.1.0", NAMESPACES)
EXACT = words(max_size=60)

Target = tuple[Process, Lineage] | None


def rendered(
    event: Event,
    process: Process | None = None,
    lineage: Lineage = ALONE,
    target: Target = None,
    renderer: Renderer | None = None,
) -> dict[str, Any]:
    """The record of an event, decoded; ECS is checked on the way."""
    renderer = renderer or Renderer(HOST, CLOCK)
    entry = process or a_process(event.task.key)
    text = renderer.render(event, entry, lineage, 7, target)
    assert b"\n" not in text
    record: dict[str, Any] = json.loads(text)
    assert_ecs(record)
    return record


def shown(raw: bytes) -> str:
    r"""Bytes as a record shows them: what is not UTF-8 is \xNN."""
    return raw.decode("utf-8", "backslashreplace")


@given(events(), st.builds(a_process, st.none(), executable=paths, comm=names))
def test_every_event_is_valid_json_in_the_shape_of_ecs(
    event: Event, process: Process
) -> None:
    record = rendered(event, process)
    assert record["event"]["sequence"] == 7
    assert record["process"]["pid"] == event.task.key.tgid
    kernel = record["ir"]["kernel"]
    place = (event.cpu, event.seq, event.parts)
    assert (kernel["cpu"], kernel["seq"], kernel["parts"]) == place
    assert record["ir"]["clock"]["bt_ns"] == event.bt_ns


@given(events(), st.builds(a_process, st.none(), executable=paths))
def test_names_and_paths_come_back_as_they_went_in(
    event: Event, process: Process
) -> None:
    about = rendered(event, process)["process"]
    assert about["name"] == shown(event.task.image.comm)
    assert about["executable"] == shown(process.executable)
    assert about.get("working_directory", "") == shown(event.cwd)


@given(arguments)
def test_arguments_come_back_as_they_went_in(args: list[bytes]) -> None:
    record = rendered(an_exec(*args))
    process, argv = record["process"], record["ir"]["argv"]
    whole = b"".join(arg + b"\0" for arg in args)
    assert process["args"] == [shown(arg) for arg in args]
    assert process["args_count"] == argv["count"] == len(args)
    assert process["command_line"] == " ".join(process["args"])
    assert argv["bytes"] == len(whole)
    assert argv["sha256"] == hashlib.sha256(whole).hexdigest()
    assert argv["truncated"] is False


@given(arguments)
def test_bytes_that_are_no_text_are_there_exactly(args: list[bytes]) -> None:
    for event in (an_exec(*args), a_failed_exec(*args)):
        exact = rendered(event)["ir"]["argv"].get("raw_base64")
        if any("\\x" in shown(arg) and b"\\x" not in arg for arg in args):
            assert exact is not None
        if exact is not None:
            assert [base64.b64decode(one) for one in exact] == args


@pytest.mark.parametrize(
    "nasty",
    [b'"', b"\\", b"\n", b"\r", b"\x1b[31m", b"\x7f", b"%s%n", b"{}", b"\t", b"</x>"],
)
def test_no_byte_of_an_attacker_s_choice_breaks_out_of_its_string(nasty: bytes) -> None:
    image = an_image(nasty)
    event = an_exec(
        nasty,
        task=a_task(image=image),
        cwd=b"/" + nasty,
        invoked=nasty,
        interpreter=nasty,
        environment=(b"RANK=" + nasty,),
    )
    process = a_process(executable=nasty, comm=nasty)
    record = rendered(event, process, Lineage((process,), ChainEnd.ROOT))
    text = nasty.decode()
    assert record["process"]["args"] == [text]
    assert record["process"]["env_vars"] == ["RANK=" + text]
    assert record["process"]["executable"] == text
    started = record["ir"]["exec"]
    assert (started["path"], started["interpreter"]) == (text, text)
    assert record["ir"]["ancestry"]["chain"][0]["name"] == text


def test_argv_that_is_not_whole_says_so_and_why() -> None:
    flags = int(Flag.ARGV_CUT | Flag.ENV_CUT)
    event = an_exec(b"a", b"bc", argc=9, argv_bytes=900, flags=flags)
    event = msgspec.structs.replace(event, argv=b"a\0b")
    record = rendered(event)
    argv = record["ir"]["argv"]
    assert (argv["truncated"], argv["reasons"]) == (True, ["argv_cut"])
    assert (argv["count"], argv["bytes"]) == (9, 900)
    assert record["process"]["args"] == ["a", "b"]
    assert argv["sha256"] == hashlib.sha256(b"a\0b").hexdigest()
    assert record["ir"]["kernel"]["flags"] == ["argv_cut", "env_cut"]


def test_argv_that_could_not_be_read_is_absent_and_not_invented() -> None:
    event = an_exec(argc=3, argv_bytes=30, flags=int(Flag.ARGV_FAULT))
    record = rendered(event)
    assert record["process"]["args"] == []
    assert record["ir"]["argv"]["reasons"] == ["argv_fault"]


def test_a_program_without_arguments_has_an_empty_array() -> None:
    record = rendered(an_exec())
    assert (record["process"]["args"], record["ir"]["argv"]["count"]) == ([], 0)
    assert record["ir"]["argv"]["sha256"] == hashlib.sha256(b"").hexdigest()


def test_a_failed_exec_is_the_caller_s_word_and_names_its_error() -> None:
    record = rendered(a_failed_exec(b"x", b"", errno=13, path=b"/root/x"))
    assert record["event"]["outcome"] == "failure"
    assert record["event"]["action"] == "exec-failed"
    assert record["error"] == {"code": "EACCES"}
    assert record["ir"]["argv"]["caller_memory"] is True
    assert record["ir"]["exec"] == {"path": "/root/x"}
    assert record["process"]["args"] == ["x", ""]


def test_an_errno_without_a_name_is_a_number() -> None:
    assert rendered(a_failed_exec(errno=4000))["error"] == {"code": "4000"}


def test_an_exec_says_how_it_was_started() -> None:
    flags = int(Flag.NONLEADER | Flag.COMPAT)
    event = an_exec(invoked=b"./run.sh", interpreter=b"/bin/sh", flags=flags)
    assert rendered(event)["ir"]["exec"] == {
        "path": "./run.sh",
        "interpreter": "/bin/sh",
        "non_leader": True,
        "compat": True,
    }


@pytest.mark.parametrize(("status", "code"), [(0, 0), (1 << 8, 1), (255 << 8, 255)])
def test_a_process_that_ended_by_itself_has_its_exit_code(
    status: int, code: int
) -> None:
    record = rendered(an_exit(status=status, bt_ns=NOW))
    assert record["process"]["exit_code"] == code
    assert record["process"]["end"] == record["@timestamp"]
    assert record["event"]["type"] == ["end"]
    assert "exit" not in record["ir"]


@pytest.mark.parametrize(
    ("status", "name", "core"),
    [(9, "SIGKILL", False), (11 | 128, "SIGSEGV", True), (0x7E, "SIG126", False)],
)
def test_a_process_that_was_killed_has_the_signal_and_no_exit_code(
    status: int, name: str, core: bool
) -> None:
    record = rendered(an_exit(status=status))
    assert record["ir"]["exit"] == {"signal": name, "core_dumped": core}
    assert "exit_code" not in record["process"]


def test_a_birth_names_its_creator_and_its_flags() -> None:
    creator = a_key(500)
    flags = 0x8000 | 0x20000000
    event = a_fork(creator=creator, creator_tid=501, clone_flags=flags)
    ir = rendered(event)["ir"]
    entity = Renderer(HOST, CLOCK).entity(creator)
    assert ir["creator"] == {"pid": 500, "entity_id": entity, "tid": 501}
    assert ir["clone_flags"] == ["CLONE_PARENT", "CLONE_NEWPID"]


@pytest.mark.parametrize("kind", list(AccessKind))
def test_every_access_has_an_action_of_its_own(kind: AccessKind) -> None:
    record = rendered(an_access(kind=kind))
    assert record["event"]["action"] == record["ir"]["access"]["kind"] == action(kind)
    assert record["event"]["type"] == ["access"]
    assert len({action(one) for one in AccessKind}) == len(AccessKind)


def test_an_access_says_who_was_reached_into_and_how_often() -> None:
    target = a_task(2000, image=an_image(b"python3", euid=7, ns_user=1), tid=2001)
    entry = a_process(target.key, executable=b"/usr/bin/python3")
    event = an_access(
        target, count=15_000, first_ns=NOW - SECOND, last_ns=NOW, path=b"/proc/2000/mem"
    )
    ir = rendered(event, target=(entry, ALONE))["ir"]
    whom = ir["target"]
    assert (whom["pid"], whom["name"], whom["thread"]["id"]) == (2000, "python3", 2001)
    assert whom["user"] == {"id": "7"}
    assert whom["executable"] == "/usr/bin/python3"
    access = ir["access"]
    assert (access["count"], access["path"]) == (15_000, "/proc/2000/mem")
    assert access["first"] < access["last"]


def test_a_refused_access_is_a_failure_with_its_error() -> None:
    record = rendered(an_access(result=-1))
    assert (record["event"]["outcome"], record["error"]["code"]) == ("failure", "EPERM")
    assert "error" not in rendered(an_access(result=8))


@pytest.mark.parametrize("by", [one for one in Denied if one])
def test_an_access_that_the_guard_refused_says_by_which_rung(by: Denied) -> None:
    record = rendered(an_access(result=-1, denied=by))
    assert record["event"]["type"] == ["access", "denied"]
    assert record["ir"]["access"]["denied"] == by.name.lower()
    assert (record["event"]["outcome"], record["error"]["code"]) == ("failure", "EPERM")


def test_an_access_that_only_the_kernel_refused_is_not_called_denied() -> None:
    record = rendered(an_access(result=-1))
    assert record["event"]["type"] == ["access"]
    assert "denied" not in record["ir"]["access"]


def test_a_caller_that_was_killed_for_it_may_have_succeeded() -> None:
    """The signal comes at the start of the call, and is taken at its end."""
    record = rendered(an_access(result=0, denied=Denied.SIGNAL))
    assert record["event"]["outcome"] == "success"
    assert record["event"]["type"] == ["access", "denied"]
    access = record["ir"]["access"]
    assert (access["result"], access["denied"]) == (0, "signal")


def test_a_new_name_is_told_with_how_often_it_was_changed() -> None:
    record = rendered(a_prctl(a_task(image=an_image(b"kworker/0:1")), count=12))
    assert record["event"]["action"] == "prctl-set-name"
    assert (record["event"]["type"], record["event"]["outcome"]) == (
        ["change"],
        "success",
    )
    assert record["process"]["name"] == "kworker/0:1"
    assert record["ir"]["prctl"] == {"count": 12, "result": 0}
    assert record["ir"]["ancestry"] == {"end": "unknown parent", "chain": []}


@pytest.mark.parametrize(
    ("argument", "name"), [(8, "ARG_START"), (15, "MAP_SIZE"), (0, "0"), (16, "16")]
)
def test_a_move_of_the_arguments_names_what_was_moved(argument: int, name: str) -> None:
    event = a_prctl(option=PrctlOption.SET_MM, argument=argument, result=-1)
    record = rendered(event)
    assert record["event"]["action"] == "prctl-set-mm"
    assert (record["event"]["outcome"], record["error"]["code"]) == ("failure", "EPERM")
    assert record["ir"]["prctl"] == {"count": 1, "result": -1, "field": name}


def test_an_access_to_nobody_has_no_target() -> None:
    event = an_access(NO_TASK, result=-3, flags=int(Flag.TARGET_GONE))
    assert "target" not in rendered(event)["ir"]


def test_who_traces_is_named_only_while_it_traces() -> None:
    tracer = a_key(900)
    traced = a_task(parent=tracer, ptrace=1)
    ir = rendered(a_fork(traced))["ir"]
    assert ir["tracer"]["pid"] == 900
    assert "tracer" not in rendered(a_fork(a_task(parent=tracer)))["ir"]


def test_the_parent_is_the_real_one_and_named_only_if_it_is_known() -> None:
    parent = a_process(INIT, comm=b"init", executable=b"/sbin/init")
    task = a_task(parent=a_key(900), ptrace=1)
    known = Lineage((parent,), ChainEnd.ROOT)
    about = rendered(a_fork(task), lineage=known)["process"]["parent"]
    assert (about["pid"], about["name"], about["executable"]) == (
        1,
        "init",
        "/sbin/init",
    )
    stranger = rendered(a_fork(task))["process"]["parent"]
    assert set(stranger) == {"pid", "entity_id"}


def test_a_reparented_process_does_not_get_the_name_of_its_first_parent() -> None:
    birth = a_process(a_key(50), comm=b"bash")
    task = a_task(real_parent=INIT)
    lineage = Lineage((birth,), ChainEnd.UNKNOWN_PARENT)
    about = rendered(an_exit(task), lineage=lineage)["process"]["parent"]
    assert about["pid"] == 1
    assert "name" not in about


def test_a_parent_s_program_that_is_not_known_is_absent() -> None:
    parent = a_process(INIT, comm=b"kthreadd", executable=b"")
    lineage = Lineage((parent,), ChainEnd.ROOT)
    about = rendered(a_fork(), lineage=lineage)["process"]["parent"]
    assert "executable" not in about


def test_a_path_that_is_not_known_is_absent() -> None:
    about = rendered(an_exit(cwd=b""), a_process(executable=b""))["process"]
    assert "executable" not in about
    assert "working_directory" not in about


def test_ancestors_come_nearest_first_with_the_reason_of_the_end() -> None:
    chain = tuple(a_process(a_key(n), comm=b"p%d" % n) for n in (3, 2, 1))
    ancestry = rendered(an_exec(), lineage=Lineage(chain, ChainEnd.DEPTH))["ir"][
        "ancestry"
    ]
    assert [one["name"] for one in ancestry["chain"]] == ["p3", "p2", "p1"]
    assert ancestry["end"] == "depth"


def test_an_entity_is_the_boot_the_pid_and_the_start() -> None:
    renderer = Renderer(HOST, CLOCK)
    entity = rendered(an_exit())["process"]["entity_id"]
    assert entity == renderer.entity(a_key(1000)) == f"b1e700001111-1000-{STARTED:x}"
    assert renderer.entity(a_key(1000, STARTED + 1)) != entity


def test_ids_that_are_the_effective_ones_are_told_once() -> None:
    about = rendered(an_exit())["process"]
    assert (about["user"], about["group"]) == ({"id": "0", "name": "root"}, {"id": "0"})
    assert "real_user" not in about
    task = a_task(image=an_image(uid=1, suid=2, gid=3, sgid=4, ns_user=1))
    about = rendered(an_exit(task))["process"]
    told = {name: about[name]["id"] for name in ("real_user", "saved_user")}
    assert told == {"real_user": "1", "saved_user": "2"}
    assert about["real_group"] == {"id": "3"}
    assert about["saved_group"] == {"id": "4"}


def test_a_user_of_another_namespace_has_no_name_of_ours() -> None:
    task = a_task(image=an_image(ns_user=HOST_USER_NS + 1))
    assert rendered(an_exit(task))["process"]["user"] == {"id": "0"}


def test_capabilities_namespaces_and_login_are_told_where_they_say_something() -> None:
    plain = rendered(an_exit())["ir"]
    assert plain["ns"] == {}
    assert "login" not in plain
    assert plain["caps"]["effective"] == "000001ffffffffff"
    assert "ambient" not in plain["caps"]
    image = an_image(
        ns_pid=99, ns_level=1, loginuid=7, sessionid=3, cap_ambient=1 << 21
    )
    ir = rendered(an_exit(a_task(image=image)))["ir"]
    assert ir["ns"] == {"pid": 99, "pid_level": 1}
    assert ir["login"] == {"uid": "7", "session": 3}
    assert ir["caps"]["ambient"] == "0000000000200000"
    assert image.context.loginuid != UNSET


def test_a_program_is_told_by_its_file() -> None:
    image = an_image(ino=5, dev=259 << 20 | 3, nlink=0, mode=0o104755, deleted=True)
    exe = rendered(an_exit(a_task(image=image)))["ir"]["exe"]
    assert (exe["inode"], exe["device"], exe["nlink"]) == ("5", "259:3", 0)
    assert (exe["mode"], exe["deleted"], exe["memfd"]) == ("4755", True, False)


def test_backlog_and_flags_are_told_only_when_there_is_something_to_tell() -> None:
    assert set(rendered(an_exit())["ir"]["kernel"]) == {"cpu", "seq", "parts"}
    odd = rendered(an_exit(flags=int(Flag.NO_MM), backlog=True))["ir"]["kernel"]
    assert (odd["backlog"], odd["flags"]) == (True, ["no_mm"])


def test_wall_time_is_boot_time_and_the_offset_to_the_nanosecond() -> None:
    record = rendered(an_exit(bt_ns=NOW + 123_456_789))
    assert record["@timestamp"] == "2027-01-15T08:03:20.123456789Z"
    assert record["process"]["start"] == "2027-01-15T08:01:40.000000000Z"


def test_the_clock_s_state_and_bound_are_in_every_record() -> None:
    clock = rendered(an_exit())["ir"]["clock"]
    assert clock == {
        "bt_ns": NOW,
        "offset_ns": 1500,
        "error_ns": 2_000_000,
        "source": "kernel",
        "state": "synchronised",
    }
    unknown = Renderer(HOST, ClockMap(OFFSET, "unsynchronised", 0, None))
    assert rendered(an_exit(), renderer=unknown)["ir"]["clock"]["error_ns"] is None


def without(record: dict[str, Any], *names_: str) -> dict[str, Any]:
    """A copy of a record without the members of these names, wherever they are."""

    def copy(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: copy(v) for k, v in value.items() if k not in names_}
        return [copy(one) for one in value] if isinstance(value, list) else value

    result: dict[str, Any] = copy(record)
    return result


def test_another_clock_changes_times_and_nothing_else() -> None:
    parent = a_process(INIT)
    lineage, event = Lineage((parent,), ChainEnd.ROOT), an_exec(b"x")
    renderer = Renderer(HOST, CLOCK)
    before = rendered(event, lineage=lineage, renderer=renderer)
    renderer.set_clock(ClockMap(OFFSET + 3600 * SECOND, "unsynchronised", 5, None))
    after = rendered(event, lineage=lineage, renderer=renderer)
    times = ("@timestamp", "start", "clock", "id")
    assert without(before, *times) == without(after, *times)
    for path in (("process", "start"), ("process", "parent", "start"), ("@timestamp",)):
        one, other = before, after
        for name in path:
            one, other = one[name], other[name]
        assert one != other
        assert int(str(other)[11:13]) == (int(str(one)[11:13]) + 1) % 24


def test_ids_are_unique_and_in_order_of_time() -> None:
    renderer = Renderer(HOST, CLOCK)
    ids = [
        rendered(an_exit(bt_ns=NOW + n * 300_000), renderer=renderer)["event"]["id"]
        for n in range(50)
    ]
    assert sorted(set(ids)) == ids


IMAGES = [an_image(name, euid=uid) for name in (b"a", b"b") for uid in (0, 7)]
FEW_KEYS = [a_key(tgid, start) for tgid in (1, 2) for start in (5, 6)]
CHAINS = [
    Lineage((a_process(key, comm=b"c%d" % n, executable=b"/c%d" % n),), ChainEnd.ROOT)
    for n, key in enumerate(FEW_KEYS)
]
ENTRIES = st.builds(
    a_process,
    st.sampled_from(FEW_KEYS),
    executable=st.sampled_from([b"/x", b"/y", b""]),
)
FEW = st.sampled_from(FEW_KEYS)
TASKS = st.builds(
    lambda key, parent, tracer, ptrace, image: a_task(
        key.tgid,
        start_ns=key.start_ns,
        real_parent=parent,
        parent=tracer,
        ptrace=ptrace,
        image=image,
    ),
    FEW,
    FEW,
    FEW,
    st.integers(0, 1),
    st.sampled_from(IMAGES),
)
CWDS = st.sampled_from([b"/", b"/home", b""])
KINDS = st.one_of(
    st.builds(lambda task, cwd: an_exec(b"x", task=task, cwd=cwd), TASKS, CWDS),
    st.builds(lambda task, cwd: an_exit(task, cwd=cwd), TASKS, CWDS),
    st.builds(lambda task, cwd: a_fork(task, cwd=cwd), TASKS, CWDS),
    st.builds(
        lambda task, target, cwd: an_access(target, task, cwd=cwd), TASKS, TASKS, CWDS
    ),
)
SITUATIONS = st.tuples(
    KINDS,
    ENTRIES,
    st.sampled_from(CHAINS),
    st.none() | st.tuples(ENTRIES, st.sampled_from(CHAINS)),
)


@settings(deadline=None)
@given(st.lists(SITUATIONS, max_size=12))
def test_kept_text_is_never_that_of_another_process(
    situations: list[tuple[Event, Process, Lineage, Target]],
) -> None:
    kept = Renderer(HOST, CLOCK)
    for event, process, lineage, target in situations:
        record = rendered(event, process, lineage, target, kept)
        fresh = rendered(event, process, lineage, target)
        record["event"].pop("id")
        fresh["event"].pop("id")
        assert record == fresh


@settings(deadline=None, max_examples=30)
@given(st.lists(st.tuples(events(), keys), max_size=10))
def test_kept_text_is_never_that_of_another_stranger(
    some: list[tuple[Event, Any]],
) -> None:
    kept = Renderer(HOST, CLOCK)
    for event, key in some + some:
        process = a_process(key, executable=event.cwd)
        record, fresh = (
            rendered(event, process, renderer=kept),
            rendered(event, process),
        )
        assert without(record, "id") == without(fresh, "id")


def test_a_record_about_the_agent_is_ecs_too() -> None:
    renderer = Renderer(HOST, CLOCK)
    body = own.own("agent-start", "state", {"agent": {"pid": 7}})
    record = json.loads(renderer.envelope(NOW, 3, body))
    assert_ecs(record)
    assert (record["event"]["action"], record["event"]["kind"]) == (
        "agent-start",
        "state",
    )
    assert record["ir"] == {"agent": {"pid": 7}}


def test_a_loss_tells_cause_count_and_time() -> None:
    lost = Loss("ring full", {"exec": 2, "fork": 1}, NOW - SECOND, NOW, (0, 3))
    body = own.loss(lost, OFFSET, {"0": {"seq": 9}})
    record = json.loads(Renderer(HOST, CLOCK).envelope(NOW, 3, body))
    assert_ecs(record)
    assert record["event"]["kind"] == "pipeline_error"
    loss = record["ir"]["loss"]
    assert (loss["cause"], loss["count"]) == ("ring full", 3)
    assert (loss["kinds"], loss["cpus"]) == ({"exec": 2, "fork": 1}, [0, 3])
    assert (loss["start_bt_ns"], loss["end_bt_ns"]) == (NOW - SECOND, NOW)
    assert loss["end"] == record["@timestamp"]
    assert record["ir"]["positions"] == {"0": {"seq": 9}}
