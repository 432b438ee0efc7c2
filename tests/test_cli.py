"""The commands as a person meets them: exit codes, and what reaches the terminal."""

import contextlib
import json
import os
import re
import subprocess  # noqa: TID251 - runs the commands
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent import check, control
from agent.commandline import progress
from agent.events import ChainEnd, Discrepancy, Lineage, Loss
from agent.process.ledger import Ledger
from agent.sinks import own
from agent.sinks.chain import segment_names
from agent.sinks.record import ClockMap, Host, Renderer
from agent.sinks.segment import SegmentWriter
from agent.sinks.text import Users
from agent.view import LiveView
from tests.builders import (
    ALONE,
    HOST_USER_NS,
    NOW,
    a_failed_exec,
    a_fork,
    a_key,
    a_process,
    a_task,
    an_access,
    an_exec,
    an_exit,
    an_image,
)

ROOT = Path(__file__).parents[1]
CHECKS = ("probes", "parentage", "hidden")
NOBODY_UID = 65534
HOSTILE = b"\x1b[2J\n\r\x7f\xc2\x9b31m\xe2\x80\xae\xff"
STEERING = "\x1b\r\x7f\x9b\u202e"
"""What changes a terminal: escape sequences, and text that turns round."""
EVENTS = [
    an_exec(b"ls", b"-l", b"two words", task=a_task(1000, image=an_image(b"ls"))),
    a_failed_exec(b"nope", errno=13),
    a_fork(a_task(1001)),
    an_access(a_task(2000, image=an_image(b"python3"))),
    an_exec(b"rm", HOSTILE, task=a_task(1002, image=an_image(HOSTILE[:15]))),
    an_exit(),
]


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A state folder with one record of each of EVENTS, and a loss."""
    renderer = Renderer(
        Host("m", "node", "b00t", "0", {"user": HOST_USER_NS}),
        ClockMap(1_800_000_000_000_000_000, "synchronised", 0, 1),
    )
    ledger = Ledger()
    with SegmentWriter.open(tmp_path / "records", dict) as log:
        for event in EVENTS:
            process = ledger.apply(event)
            log.append([renderer.render(event, process, ALONE, log.next_sequence)])
        lost = own.loss(Loss("ring full", {"exec": 2}, NOW, NOW, (0,)), 0, {})
        log.append([renderer.envelope(NOW, log.next_sequence, lost)])
    return tmp_path


@pytest.fixture
def ir_check(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, list[str], str]]:
    """Run `ir-check` on that state; exit code, lines of output, errors."""

    def run(*argv: str) -> tuple[int, list[str], str]:
        code = check.main([*argv, "--state", str(state)])
        output, errors = capsys.readouterr()
        return code, output.splitlines(), errors

    return run


Check = Callable[..., tuple[int, list[str], str]]


def damage(state: Path) -> None:
    """Change one byte in the middle of the log."""
    name = segment_names(state / "records")[0]
    path = state / "records" / name
    data = bytearray(path.read_bytes())
    at = data.index(b"exec-failed")
    data[at] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    "argv",
    [
        ["no-such-command"],
        ["--only", "nonsense"],
        ["--only", ""],
        ["--only", "probes,"],
        ["host", "--only", "probes,nonsense"],
        ["--no-such-option"],
        ["records", "--no-such-option"],
        ["records", "--where", "novalue"],
        ["records", "--where", "=value"],
        ["records", "--state", "/nonexistent"],
        ["verify", "one", "two"],
    ],
)
def test_a_wrong_command_line_of_ir_check_is_64_and_says_why(
    argv: list[str], capsys: pytest.CaptureFixture[str], state: Path
) -> None:
    given = [*argv, "--state", str(state)] if "--where" in argv else argv
    assert exit_code(check.main, given) == 64
    output, errors = capsys.readouterr()
    assert output == ""
    assert "ir-check" in errors


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["no-such-command"],
        ["run", "--for", "soon"],
        ["run", "--ring-bytes", "5000"],
        ["status", "--config", "/nonexistent.yaml"],
        ["load", "extra"],
        ["load", "--forbid", "nonsense"],
        ["status", "--forbid", "lsm", "--forbid", "LSM"],
    ],
)
def test_a_wrong_command_line_of_ir_agent_is_64_and_says_why(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(control.main, argv) == 64
    assert "ir-agent" in capsys.readouterr().err


def exit_code(main: Callable[[list[str]], int], argv: list[str]) -> Any:
    """The code a command ends with, whether it returns it or exits."""
    try:
        return main(argv)
    except SystemExit as end:
        return end.code


@pytest.mark.parametrize("main", [check.main, control.main])
def test_help_is_0(
    main: Callable[[list[str]], int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(main, ["--help"]) == 0
    assert "usage: ir-" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["load", "unload", "status", "run"])
def test_without_root_it_is_not_permitted(command: str, tmp_path: Path) -> None:
    if os.geteuid():
        pytest.skip("becoming another user needs root")
    places = [f"--{name}={tmp_path / name}" for name in ("state", "runtime", "pins")]
    argv = [sys.executable, "-m", "agent", command, *places]
    as_nobody: dict[str, Any] = {"user": NOBODY_UID, "group": NOBODY_UID}
    try:
        done = subprocess.run(
            argv,
            check=False,
            capture_output=True,
            text=True,
            cwd=ROOT,
            extra_groups=[],
            **as_nobody,
        )
    except PermissionError:
        pytest.skip("nobody may not run this interpreter")
    if "No module named" in done.stderr:
        pytest.skip("nobody may not read the agent")
    assert done.returncode == 77
    assert done.stderr.strip() == "ir-agent: loading and reading probes needs root"


Audit = Callable[..., tuple[int, str]]


@pytest.fixture
def host(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Audit:
    """Audit a node where nothing is loaded; exit code and output."""
    places = [f"--{name}={tmp_path / name}" for name in ("state", "runtime", "pins")]

    def run(*argv: str) -> tuple[int, str]:
        code = check.main([*argv, *places])
        output, errors = capsys.readouterr()
        assert errors == ""
        return code, output

    return run


NOTHING_LOADED = 3 if os.geteuid() else 2


def test_a_node_is_audited_where_no_command_is_named(host: Audit) -> None:
    code, said = host()
    assert code == NOTHING_LOADED
    assert said.split()[:3] == ["SENSE", "RUNG", "STATE"]
    parts = [part.splitlines()[0] for part in said.split("\n\n")]
    for part, name in zip(parts[-2:], ("parentage", "hidden"), strict=True):
        assert part.startswith(f"{name}: ")
    assert host("host")[0] == code
    assert host("host", "--only", "probes") == host("--only", "probes")


@pytest.mark.parametrize("names", [["hidden"], ["hidden", "probes"], list(CHECKS)])
def test_the_audit_is_one_document_keyed_by_check(
    host: Audit, names: list[str]
) -> None:
    code, said = host("--only", ",".join(names), "--json")
    assert code in (NOTHING_LOADED, 3)
    assert list(json.loads(said)) == names


def test_the_audit_of_the_probes_has_stable_keys(host: Audit) -> None:
    code, said = host("--only", "probes", "--json")
    assert code == NOTHING_LOADED
    document = json.loads(said)["probes"]
    assert list(document) == ["senses", "hooks", "note"]
    keys = ["sense", "rung", "state", "proven_ns", "better", "lacking", "lost"]
    for sense in document["senses"]:
        assert list(sense) == [*keys, "proven_at"]
    always = {"sense", "rung", "program", "target", "attached", "pin"}
    assert all(always <= hook.keys() for hook in document["hooks"])


def test_a_check_that_can_t_look_keeps_no_other_from_it(
    host: Audit, tmp_path: Path
) -> None:
    """Somebody's file lies where the pins should be."""
    (tmp_path / "pins" / "programs").mkdir(parents=True)
    (tmp_path / "pins" / "programs" / "walk_chain").touch()
    code, said = host("--only", "hidden,parentage,probes", "--json")
    document = json.loads(said)
    assert list(document) == ["hidden", "parentage", "probes"]
    assert code == NOTHING_LOADED
    if os.geteuid() == 0:
        assert set(document["hidden"]) == set(document["parentage"]) == {"note"}
    assert document["probes"]["senses"] or os.geteuid()


def test_how_far_it_is_is_shown_on_a_terminal_only(
    capsys: pytest.CaptureFixture[str],
) -> None:
    tell = progress("pids")
    tell(1, 4)
    assert capsys.readouterr() == ("", "")
    ours, theirs = os.openpty()
    with os.fdopen(theirs, "w") as terminal:
        with contextlib.redirect_stderr(terminal):
            for done in (0, 2048, 4096):
                tell(done, 4096)
        shown = os.read(ours, 4096).decode()
    os.close(ours)
    bars = [part for part in re.split(r"[\r\n]+", shown) if part]
    assert [bar.count("#") for bar in bars] == [0, 20, 40]
    assert bars[-1].endswith("4,096 of 4,096 pids")
    assert shown.endswith("\n")


@pytest.mark.parametrize("who", ["²", "4711x", "", "-", "0123456789ab-1-2z", "\x1b]0;"])
def test_who_is_neither_a_pid_nor_an_entity_is_64_and_harmless(
    capsys: pytest.CaptureFixture[str], who: str
) -> None:
    assert exit_code(check.main, ["process", "--", who]) == 64
    output, errors = capsys.readouterr()
    assert output == ""
    assert "neither a pid nor an entity id" in errors
    assert errors.removesuffix("\n").isprintable()


def test_a_check_that_does_not_exist_is_named_with_those_that_do(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert exit_code(check.main, ["--only", "nonsense"]) == 64
    assert "'nonsense': there is probes, parentage, hidden" in capsys.readouterr().err


def test_a_rung_that_does_not_exist_is_named_with_those_that_do(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert exit_code(control.main, ["status", "--forbid", "nonsense"]) == 64
    said = capsys.readouterr().err
    assert "there is no rung 'nonsense'; there are tp_btf, " in said


def test_rungs_forbidden_by_the_command_line_win_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "agent.yaml"
    file.touch(0o644)
    file.write_text("forbidden_rungs: [lsm, fentry]\n")
    given = ["load", "--config", str(file)]

    def forbidden(*argv: str) -> tuple[str, ...]:
        options = control._parser().parse_args([*given, *argv])
        return control._config(options).forbidden_rungs

    assert forbidden() == ("lsm", "fentry")
    assert forbidden("--forbid", "kprobe,signal") == ("kprobe", "signal")
    assert forbidden("--forbid", "") == ()


def test_every_record_is_a_line(ir_check: Check) -> None:
    code, lines, errors = ir_check("records")
    assert (code, errors) == (0, "")
    assert len(lines) == len(EVENTS) + 2  # the header, and the loss
    assert lines[0] == "-- new segment"
    assert "exec-failed" in lines[2]
    assert lines[2].endswith("EACCES")
    assert "ring full" in lines[-1]


def test_arguments_can_be_told_apart(ir_check: Check) -> None:
    _, lines, _ = ir_check("records", "--where", "process.args=two words")
    (line,) = lines
    assert line.endswith("ls[1000] ls -l 'two words'")


def test_nothing_that_steers_a_terminal_comes_out(ir_check: Check) -> None:
    _, lines, _ = ir_check("records")
    assert len(lines) == len(EVENTS) + 2
    for line in lines:
        assert not set(STEERING) & set(line)
        assert line.isprintable()
    assert "\\x1b[2J" in lines[5]
    assert "\\u202e" in lines[5]


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        (["event.action=exec"], [1, 5]),
        (["event.action=exec", "process.pid=1000"], [1]),
        (["process.args=-l"], [1]),
        (["event.category=process", "event.outcome=failure"], [2]),
        (["ir.argv.truncated=false"], [1, 2, 5]),
        (["ir.loss.kinds.exec=2"], [7]),
        (["process.user.id=0", "event.type=end"], [6]),
        (["no.such.field="], []),
        (["event=exec"], []),
        (["process.args=ls -l"], []),
    ],
)
def test_where_finds_by_field_and_value(
    ir_check: Check, conditions: list[str], expected: list[int]
) -> None:
    argv = [word for one in conditions for word in ("--where", one)]
    code, lines, _ = ir_check("records", "--json", *argv)
    assert code == 0
    assert [json.loads(line)["event"]["sequence"] for line in lines] == expected


def test_json_is_the_record_itself(ir_check: Check) -> None:
    _, lines, _ = ir_check("records", "--json")
    records = [json.loads(line) for line in lines]
    assert "segment" in records[0]["ir"]
    assert records[1]["process"]["args"] == ["ls", "-l", "two words"]


def test_damage_is_told_and_the_other_records_are_shown(
    ir_check: Check, state: Path
) -> None:
    damage(state)
    code, lines, errors = ir_check("records", "--json")
    assert code == 2
    assert errors.startswith("ir-check: 0000000000000000.jsonl: line 3, byte ")
    actions = [json.loads(line).get("event", {}).get("action") for line in lines]
    assert actions.count("exec") == 2
    assert "exit" in actions
    assert "exec-failed" not in actions


def test_an_intact_log_verifies(ir_check: Check) -> None:
    code, lines, _ = ir_check("verify")
    assert code == 0
    assert lines[-1].startswith(f"intact: records 0 to {len(EVENTS) + 1} in 1 segments")


def test_a_damaged_log_does_not_verify_and_the_place_is_named(
    ir_check: Check, state: Path
) -> None:
    damage(state)
    code, lines, _ = ir_check("verify")
    assert code == 2
    assert lines[0].startswith("0000000000000000.jsonl: line 3, byte ")
    assert lines[-1].startswith("DAMAGED")
    code, document, _ = ir_check("verify", "--json")
    assert code == 2
    assert json.loads(document[0])["faults"][0]["line"] == 3


def test_where_nothing_can_be_looked_at_the_answer_is_unknown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    assert check.main(["verify", str(tmp_path / "empty")]) == 3
    assert "there are no records" in capsys.readouterr().out
    assert check.main(["verify", str(tmp_path / "none")]) == 3
    assert "No such file" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command",
    ["records", "host", "process 1"],
)
def test_a_reader_that_goes_away_is_no_error(state: Path, command: str) -> None:
    program = "import sys; from agent.check import main; sys.exit(main())"
    argv = [sys.executable, "-c", program, *command.split(), "--state", str(state)]
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        argv, check=False, stdout=writing, stderr=subprocess.PIPE, cwd=ROOT
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.fixture
def view() -> LiveView:
    return LiveView(Users(HOST_USER_NS), colour=False)


def test_the_view_shows_who_did_what(
    view: LiveView, capsys: pytest.CaptureFixture[str]
) -> None:
    shell, daemon = a_process(comm=b"bash"), a_process(comm=b"sshd")
    process = a_process(comm=b"ls")
    view(an_exec(b"ls", b"a b"), process, Lineage((shell, daemon), ChainEnd.ROOT))
    line = capsys.readouterr().out
    assert "root" in line
    assert line.endswith("sshd → bash → ls[1000]  ls 'a b'\n")


def test_the_view_says_what_was_refused(
    view: LiveView, capsys: pytest.CaptureFixture[str]
) -> None:
    view(an_access(a_task(7), result=-1), a_process(), ALONE)
    assert capsys.readouterr().out.endswith("ptrace-attach → bash[7]  refused: EPERM\n")


def test_the_view_leaves_births_and_deaths_to_the_records(
    view: LiveView, capsys: pytest.CaptureFixture[str]
) -> None:
    view(a_fork(), a_process(), ALONE)
    view(an_exit(), a_process(), ALONE)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "event",
    [
        an_exec(HOSTILE, HOSTILE * 200),
        a_failed_exec(HOSTILE, path=HOSTILE),
        an_access(a_task(7, image=an_image(HOSTILE))),
    ],
    ids=lambda event: type(event).__name__,
)
def test_nothing_that_steers_a_terminal_comes_into_view(
    view: LiveView, capsys: pytest.CaptureFixture[str], event: Any
) -> None:
    process = a_process(comm=HOSTILE)
    view(event, process, Lineage((process,) * 9, ChainEnd.DEPTH))
    output = capsys.readouterr().out
    assert output.count("\n") == 1
    assert output[:-1].isprintable()


def test_an_alert_is_a_line_as_well(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    renderer = Renderer(
        Host("m", "node", "b00t", "0", {"user": HOST_USER_NS}),
        ClockMap(1_800_000_000_000_000_000, "synchronised", 0, 1),
    )
    why = "its parent 7 lives"
    found = Discrepancy(a_key(1000), "forged", why, NOW, NOW, comm=HOSTILE[:15])
    with SegmentWriter.open(tmp_path / "records", dict) as log:
        log.append([renderer.discrepancy(found, None, log.next_sequence)])
    assert check.main(["records", "--state", str(tmp_path)]) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.endswith("FORGED: its parent 7 lives")
    assert not set(STEERING) & set(line)
