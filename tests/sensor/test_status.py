"""What is said of the hooks: what the loader found, unless the pin is gone since."""

from pathlib import Path

import msgspec
import pytest

from agent.sensor import status
from agent.sensor.hooks import SENSES, HookState, How
from tests.hook_states import MOMENT, all_hooks, of, sense_of


@pytest.fixture
def runtime(tmp_path: Path) -> Path:
    return tmp_path / "runtime"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A pin folder where every hook is."""
    pins = tmp_path / "pins"
    for part in ("links", "programs"):
        (pins / part).mkdir(parents=True)
    for sense in SENSES:
        for rung in sense.rungs:
            for hook in rung.hooks:
                part = "programs" if hook.how is How.TEST_RUN else "links"
                (pins / part / hook.pin).touch()
    return pins


def standing(states: list[HookState]) -> status.Standing:
    [one] = status.standings(states)
    return one


def test_what_was_saved_is_what_is_said(runtime: Path, folder: Path) -> None:
    states = all_hooks()
    status.save(runtime, states)
    assert status.current(runtime, folder) == states
    assert status.reported(runtime) == states


def test_all_rungs_that_were_tried_are_said(runtime: Path, folder: Path) -> None:
    sense = sense_of("ptrace")
    refused = of(sense, sense.rungs[0], attached=False, proven=False, reason="no")
    states = refused + of(sense, sense.rungs[2])
    status.save(runtime, states)
    current = status.current(runtime, folder)
    assert [one for one in current if one.sense == "ptrace"] == states


def test_a_hook_whose_pin_is_gone_is_not_attached(runtime: Path, folder: Path) -> None:
    states = all_hooks()
    status.save(runtime, states)
    lost = SENSES[0].rungs[0].hooks[0].pin
    (folder / "links" / lost).unlink()
    found, *others = status.current(runtime, folder)
    assert (found.attached, found.proven, found.proven_ns) == (False, False, 0)
    assert "gone" in found.reason
    assert others == states[1:]


def test_a_program_that_is_run_on_request_has_a_pin_of_its_own(
    runtime: Path, folder: Path
) -> None:
    sense = sense_of("task list")
    states = of(sense, sense.rungs[1])
    status.save(runtime, states)
    mine = [one for one in status.current(runtime, folder) if one.sense == sense.name]
    assert mine == states
    (folder / "programs" / sense.rungs[1].hooks[0].pin).unlink()
    mine = [one for one in status.current(runtime, folder) if one.sense == sense.name]
    assert [one.attached for one in mine] == [False]


def test_without_a_file_a_pinned_hook_is_attached_and_not_proven(
    runtime: Path, folder: Path
) -> None:
    """The loader may have been killed after it had pinned everything."""
    current = status.current(runtime, folder)
    assert current
    assert all(one.attached for one in current)
    assert not any(one.proven for one in current)
    assert status.exit_code(current) == 1


def test_without_a_file_the_rung_that_is_pinned_is_the_one_said(
    runtime: Path, tmp_path: Path
) -> None:
    rung = sense_of("ptrace").rungs[2]
    (tmp_path / "pins" / "links").mkdir(parents=True)
    (tmp_path / "pins" / "links" / rung.hooks[0].pin).touch()
    current = status.current(runtime, tmp_path / "pins")
    mine = [one for one in current if one.sense == "ptrace"]
    assert {one.rung for one in mine} == {rung.name}
    assert [one.attached for one in mine] == [True, False]


def test_without_a_file_and_pins_no_hook_is_attached(
    runtime: Path, tmp_path: Path
) -> None:
    current = status.current(runtime, tmp_path / "nothing")
    assert {one.reason for one in current} == {"not loaded"}
    assert not any(one.attached for one in current)
    assert status.exit_code(current) == 2


@pytest.mark.parametrize("content", [b"", b"[", b'[{"sense":1}]', b'{"a":1}'])
def test_a_damaged_file_is_no_file(runtime: Path, folder: Path, content: bytes) -> None:
    status.save(runtime, all_hooks())
    (path,) = runtime.iterdir()
    path.write_bytes(content)
    assert status.reported(runtime) == []
    assert not any(one.proven for one in status.current(runtime, folder))


def test_unloading_forgets_and_may_be_done_twice(runtime: Path, folder: Path) -> None:
    status.save(runtime, all_hooks())
    status.forget(runtime)
    status.forget(runtime)
    assert list(runtime.iterdir()) == []
    assert not any(one.proven for one in status.current(runtime, folder))


def test_exit_codes_say_how_much_is_proven() -> None:
    proven, attached = all_hooks(), all_hooks(proven=False)
    missing = all_hooks(attached=False, proven=False)
    assert status.exit_code(proven) == 0
    assert status.exit_code(proven[1:] + attached[:1]) == 1
    assert status.exit_code(proven[1:] + missing[:1]) == 1
    assert status.exit_code(attached) == 1
    assert status.exit_code(missing) == 2


def test_an_optional_hook_that_is_missing_is_no_fault() -> None:
    states = all_hooks()
    without = [
        msgspec.structs.replace(
            one, attached=False, proven=False, reason="no such call"
        )
        if one.optional
        else one
        for one in states
    ]
    assert without != states
    assert status.exit_code(without) == 0
    assert status.missing(without) == []


def test_a_sense_stands_where_its_hooks_are_attached() -> None:
    sense = sense_of("ptrace")
    best, _, last = sense.rungs
    states = of(sense, best, attached=False, proven=False, reason="BTF has no such")
    told = standing(states + of(sense, last))
    assert (told.rung, told.state) == ("tracepoint", "proven")
    assert told.proven_ns == MOMENT
    assert told.better == {"fentry": "BTF has no such"}
    assert told.lacking == []
    assert told.lost == last.unseen


def test_a_sense_is_proven_only_when_the_last_of_its_hooks_was() -> None:
    sense = sense_of("ptrace")
    first, second, *_ = of(sense, sense.rungs[2])
    later = msgspec.structs.replace(second, proven_ns=MOMENT + 5)
    assert standing([first, later]).proven_ns == MOMENT + 5
    silent = msgspec.structs.replace(second, proven=False, proven_ns=0)
    told = standing([first, silent])
    assert told.state == "partly proven"
    assert told.lacking == [f"{second.target}: not seen to fire"]


def test_a_sense_without_a_hook_gives_nothing_and_says_why() -> None:
    sense = sense_of("fork")
    states = [
        one
        for rung in sense.rungs
        for one in of(sense, rung, attached=False, proven=False, reason="EPERM")
    ]
    told = standing(states)
    assert (told.rung, told.state, told.lost) == ("", "missing", "everything")
    assert told.better == {rung.name: "EPERM" for rung in sense.rungs[:-1]}
    assert told.proven_ns == 0
    assert told.lacking == ["sched_process_fork by type: EPERM"]
    assert status.missing(states) == ["fork: sched_process_fork by type: EPERM"]


def test_senses_are_told_in_the_order_of_the_table() -> None:
    told = [one.sense for one in status.standings(all_hooks())]
    assert told == [sense.name for sense in SENSES]
