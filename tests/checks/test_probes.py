"""What a responder is told of the hook ladder: which rung, since when, and why."""

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agent import clock
from agent.checks.finding import Finding
from agent.checks.probes import check, finding
from agent.sensor import status
from agent.sensor.hooks import SENSES, HookState
from agent.sinks.text import rfc3339
from tests.hook_states import MOMENT, all_hooks, of, sense_of

NOT_ROOT = 1000


def on_the_second_rung() -> list[HookState]:
    """ptrace by kprobe, since a function is missing."""
    sense = sense_of("ptrace")
    fentry, kprobe, _ = sense.rungs
    refused = of(
        sense, fentry, attached=False, proven=False, reason="this BTF has no such call"
    )
    return refused + of(sense, kprobe)


def rows(text: str) -> dict[str, list[str]]:
    """The table's rows by their senses, cut where the columns of the heading are."""
    heading, *lines = text.partition("\n\n")[0].splitlines()
    places = [heading.index(one) for one in ("SENSE", "RUNG", "STATE", "PROVEN AT")]
    cuts = list(zip(places, [*places[1:], None], strict=True))
    cells = [[line[a:b].strip() for a, b in cuts] for line in lines]
    return {sense: rest for sense, *rest in cells}


def notes(text: str) -> list[str]:
    return text.partition("\n\n")[2].splitlines()


def told(found: Finding) -> Any:
    """The document, as it comes out of `--json`."""
    return json.loads(msgspec.json.encode(found.document))


def hooks(found: Finding) -> list[HookState]:
    return msgspec.convert(told(found)["hooks"], list[HookState])


def as_table(states: list[HookState], note: str = "") -> str:
    return "\n".join(finding(states, note).lines)


@pytest.fixture
def moment(monkeypatch: pytest.MonkeyPatch) -> str:
    """MOMENT as wall time, on a clock that does not go on."""
    anchor = clock.wall_anchor()
    monkeypatch.setattr(clock, "wall_anchor", lambda: anchor)
    return rfc3339(round(anchor.offset_ns + MOMENT, -6))[:-7] + "Z"


def test_the_table_has_a_row_for_every_sense(moment: str) -> None:
    found = rows(as_table(all_hooks()))
    assert list(found) == [sense.name for sense in SENSES]
    for sense in SENSES:
        assert found[sense.name] == [sense.rungs[0].name, "proven", moment]


def test_why_a_better_rung_is_not_in_use_is_told(moment: str) -> None:
    text = as_table(on_the_second_rung())
    assert rows(text) == {"ptrace": ["kprobe", "proven", moment]}
    assert "ptrace: not fentry: this BTF has no such call" in notes(text)


def test_what_a_rung_does_not_give_is_told() -> None:
    sense = sense_of("ptrace")
    last = sense.rungs[2]
    text = as_table(of(sense, last))
    assert last.unseen
    assert notes(text) == [f"ptrace: not given by tracepoint: {last.unseen}"]


def test_a_hook_that_did_not_fire_is_told_by_its_place() -> None:
    sense = sense_of("ptrace")
    fired, silent, *_ = of(sense, sense.rungs[2])
    silent = msgspec.structs.replace(silent, proven=False, proven_ns=0)
    text = as_table([fired, silent])
    assert rows(text)["ptrace"][:2] == ["tracepoint", "partly proven"]
    assert f"ptrace: {silent.target}: not seen to fire" in notes(text)


def test_a_sense_without_a_rung_has_a_dash_and_no_moment() -> None:
    sense = sense_of("task list")
    states = of(sense, sense.rungs[1], attached=False, proven=False, reason="EPERM")
    text = as_table(states)
    assert rows(text) == {"task list": ["-", "missing", ""]}
    assert notes(text) == ["task list: task list: EPERM"]


def test_no_line_ends_in_blanks_and_the_note_is_last() -> None:
    text = as_table(on_the_second_rung(), "as the loader left it")
    assert all(line == line.rstrip() for line in text.splitlines())
    assert text.splitlines()[-1] == "as the loader left it"


def test_without_anything_to_say_the_table_is_all() -> None:
    sense = sense_of("fork")
    assert len(as_table(of(sense, sense.rungs[0])).splitlines()) == 2


def test_the_json_form_is_one_document_of_senses_and_hooks(moment: str) -> None:
    states = on_the_second_rung()
    document = told(finding(states, "n"))
    assert document.keys() == {"senses", "hooks", "note"}
    assert document["note"] == "n"
    assert document["hooks"] == [msgspec.to_builtins(one) for one in states]
    [sense] = document["senses"]
    assert sense == {
        "sense": "ptrace",
        "rung": "kprobe",
        "state": "proven",
        "proven_ns": MOMENT,
        "proven_at": moment,
        "better": {"fentry": "this BTF has no such call"},
        "lacking": [],
        "lost": sense_of("ptrace").rungs[1].unseen,
    }


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    """A runtime folder, and a pin folder where all best hooks are."""
    links = tmp_path / "pins" / "links"
    links.mkdir(parents=True)
    for one in all_hooks():
        (links / one.pin).touch()
    return tmp_path / "run", tmp_path / "pins"


def be(monkeypatch: pytest.MonkeyPatch, uid: int) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: uid)


@pytest.mark.parametrize("uid", [0, NOT_ROOT])
@pytest.mark.parametrize(
    ("facts", "code"),
    [({}, 0), ({"proven": False}, 1), ({"attached": False, "proven": False}, 2)],
)
def test_the_exit_code_says_how_much_is_proven(
    uid: int,
    facts: dict[str, bool],
    code: int,
    places: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    be(monkeypatch, uid)
    runtime, folder = places
    status.save(runtime, all_hooks(**facts))
    found = check(runtime, folder)
    assert found.exit_code == code
    assert hooks(found) == all_hooks(**facts)


def test_root_holds_it_against_the_pins_and_nobody_else_can(
    places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime, folder = places
    status.save(runtime, all_hooks())
    (folder / "links" / all_hooks()[0].pin).unlink()
    be(monkeypatch, 0)
    found = check(runtime, folder)
    assert (found.exit_code, told(found)["note"]) == (1, "")
    assert hooks(found)[0].reason == "its link is gone"
    be(monkeypatch, NOT_ROOT)
    found = check(runtime, folder)
    assert (found.exit_code, hooks(found)) == (0, all_hooks())
    assert "only root may look at the pins" in told(found)["note"]


def test_who_is_not_root_and_finds_no_word_could_not_look(
    places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    be(monkeypatch, NOT_ROOT)
    found = check(*places)
    assert (found.exit_code, hooks(found)) == (3, [])
    assert "only root" in told(found)["note"]
    assert told(found) == {"senses": [], "hooks": [], "note": found.lines[-1]}


def test_nothing_is_loaded_is_2_for_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    be(monkeypatch, 0)
    found = check(tmp_path / "run", tmp_path / "pins")
    assert found.exit_code == 2
    assert {one.reason for one in hooks(found)} == {"not loaded"}
    assert "\n".join(found.lines).count("missing") == len(SENSES)
