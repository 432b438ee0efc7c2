"""What is said of the hooks: what the loader found, unless the link is gone since."""

import json
from pathlib import Path

import msgspec
import pytest

from agent.sensor import status
from agent.sensor.hooks import SENSES, HookState


@pytest.fixture
def runtime(tmp_path: Path) -> Path:
    return tmp_path / "runtime"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A pin folder where a link of every hook is."""
    pins = tmp_path / "pins"
    (pins / "links").mkdir(parents=True)
    for sense in SENSES:
        for rung in sense.rungs:
            for hook in rung.hooks:
                (pins / "links" / hook.pin).touch()
    return pins


def all_hooks(*, attached: bool = True, proven: bool = True) -> list[HookState]:
    """The best rung of every sense, as the loader leaves it."""
    return [
        HookState(sense.name, rung.name, one.program, one.target, attached, proven)
        for sense in SENSES
        for rung in sense.rungs[:1]
        for one in rung.hooks
    ]


def test_what_was_saved_is_what_is_said(runtime: Path, folder: Path) -> None:
    states = all_hooks()
    status.save(runtime, states)
    current = status.current(runtime, folder)
    assert [one for one in current if one.attached] == states


def test_a_hook_whose_link_is_gone_is_not_attached(runtime: Path, folder: Path) -> None:
    status.save(runtime, all_hooks())
    hook = SENSES[0].rungs[0].hooks[0]
    (folder / "links" / hook.pin).unlink()
    found = [
        one
        for one in status.current(runtime, folder)
        if (one.sense, one.rung) == (SENSES[0].name, SENSES[0].rungs[0].name)
    ]
    assert [(one.attached, one.proven) for one in found] == [(False, False)]
    assert "gone" in found[0].reason


def test_without_a_file_a_pinned_hook_is_attached_and_not_proven(
    runtime: Path, folder: Path
) -> None:
    """The loader may have been killed after it had pinned everything."""
    current = status.current(runtime, folder)
    assert current
    assert all(one.attached for one in current)
    assert not any(one.proven for one in current)
    assert status.exit_code(current) == 1


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


def test_a_table_shows_every_hook_in_its_state_and_why() -> None:
    refused = msgspec.structs.replace(
        all_hooks(attached=False, proven=False)[0], reason="EPERM: no"
    )
    states = [refused, all_hooks(proven=False)[1], all_hooks()[2]]
    heading, *rows = status.render(states, as_json=False).splitlines()
    assert heading.split() == ["SENSE", "HOOK", "STATE", "WHY"]
    assert len(rows) == 3
    assert rows[0].endswith("EPERM: no")
    words = ("missing", "attached, not proven", "proven")
    for row, state, word in zip(rows, states, words, strict=True):
        assert state.target in row
        assert f" {word}" in row


def test_the_json_form_is_one_document_with_every_hook() -> None:
    states = all_hooks()
    document = json.loads(status.render(states, as_json=True))
    assert document == {"hooks": [msgspec.to_builtins(one) for one in states]}
