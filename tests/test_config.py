"""The configuration: taken whole, or refused with file, line and reason."""

import os
from pathlib import Path

import pytest

from agent import config
from agent.config import Config, check, read_config
from agent.errors import UsageError
from agent.sensor.hooks import RUNGS, SENSES


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "agent.yaml"
    path.touch(0o644)
    return path


def refused(path: Path | None, text: str | None = None) -> str:
    if path and text is not None:
        path.write_text(text)
    with pytest.raises(UsageError) as caught:
        read_config(path)
    return str(caught.value)


def test_without_a_file_the_defaults_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config, "DEFAULT_PATH", tmp_path / "none.yaml")
    assert read_config(None) == Config()
    assert Config().records == Path("/var/lib/ir-agent/records")


def test_the_default_file_is_read_when_it_is_there(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text("processes: 7\n")
    monkeypatch.setattr(config, "DEFAULT_PATH", file)
    assert read_config(None).processes == 7


def test_a_named_file_must_be_there(tmp_path: Path) -> None:
    path = tmp_path / "none.yaml"
    assert refused(path) == f"{path}: No such file or directory"


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n"])
def test_an_empty_file_is_the_defaults(file: Path, text: str) -> None:
    file.write_text(text)
    assert read_config(file) == Config()


def test_every_key_can_be_set(file: Path) -> None:
    file.write_text(
        "state: /s\nruntime: /r\npins: /p\nring_bytes: 65536\n"
        "segment_bytes: 5000\nprocesses: 9\nheartbeat_seconds: 2.5\n"
        "sweep_seconds: 3.5\nnice: 5\n"
        "forbidden_rungs: [fentry, lsm]\n"
    )
    numbers = (65536, 5000, 9, 2.5, 3.5, 5)
    expected = Config("/s", "/r", "/p", *numbers, ("fentry", "lsm"))
    assert read_config(file) == expected
    assert len(file.read_text().splitlines()) == len(Config.__struct_fields__)


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("state: /s\nrnig_bytes: 1\n", 2, "unknown key 'rnig_bytes'"),
        ("\n\nprocesses: many\n", 3, "Expected `int`, got `str`"),
        ("state: 7\n", 1, "Expected `str`, got `int`"),
        ("state:\n", 1, "Expected `str`, got `null`"),
        ("processes: true\n", 1, "Expected `int`, got `bool`"),
        ("processes: [1]\n", 1, "Expected `int`, got `array`"),
        ("x: 1\n---\ny: 2\n", 2, "but found another document"),
        ("state: /s\n  bad: 1\n", 2, "mapping values are not allowed here"),
        ("processes: 1\nprocesses: 2\n", 2, "processes"),
        ("- a\n", 1, "expected keys with values"),
        ("just words\n", 1, "expected keys with values"),
        ("? [a]\n: 1\n", 1, ""),
        ("processes: 0\n", 1, "processes must lie between"),
        ("segment_bytes: -1\n", 1, "segment_bytes must lie between"),
        ("heartbeat_seconds: 0\n", 1, "heartbeat_seconds must lie between"),
        ("sweep_seconds: 0\n", 1, "sweep_seconds must lie between"),
        ("heartbeat_seconds: .nan\n", 1, "heartbeat_seconds"),
        ("heartbeat_seconds: .inf\n", 1, "heartbeat_seconds"),
        ("ring_bytes: 4095\n", 1, "ring_bytes must lie between"),
        ("ring_bytes: 12288\n", 1, "power of two"),
        ("ring_bytes: 0\n", 1, "ring_bytes must lie between"),
        ("ring_bytes: -4096\n", 1, "ring_bytes must lie between"),
        ("forbidden_rungs: fentry\n", 1, "Expected `array`, got `str`"),
        ("nice: 1\nforbidden_rungs: [1]\n", 2, "Expected `str`, got `int`"),
        ("nice: 1\nforbidden_rungs: [lsm, fentri]\n", 2, "no rung 'fentri'"),
        ("\nforbidden_rungs:\n  - lsm\n  - LSM\n", 2, "no rung 'LSM'"),
        ("forbidden_rungs: ['']\n", 1, "no rung ''"),
    ],
)
def test_what_is_wrong_is_refused_with_its_line_and_reason(
    file: Path, text: str, line: int, reason: str
) -> None:
    message = refused(file, text)
    assert message.startswith(f"{file}:{line}: ")
    assert reason in message


def test_who_forbids_a_rung_that_does_not_exist_is_told_which_there_are(
    file: Path,
) -> None:
    message = refused(file, "nice: 1\nforbidden_rungs: [kprobes]\n")
    place, _, known = message.partition("there are ")
    assert place == f"{file}:2: there is no rung 'kprobes'; "
    rungs = {rung.name for sense in SENSES for rung in sense.rungs}
    assert len(rungs) > 5
    assert set(known.split(", ")) == rungs


def test_every_rung_can_be_forbidden(file: Path) -> None:
    file.write_text(f"forbidden_rungs: [{', '.join(RUNGS)}]\n")
    assert read_config(file).forbidden_rungs == RUNGS


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"a: \x01\n", b"\x00"])
def test_bytes_that_are_no_yaml_are_refused_with_the_file(
    file: Path, content: bytes
) -> None:
    file.write_bytes(content)
    assert refused(file).startswith(str(file))


def test_a_python_object_in_yaml_is_refused(file: Path) -> None:
    message = refused(file, "state: !!python/object/apply:os.getcwd []\n")
    assert message.startswith(f"{file}:1: ")


@pytest.mark.parametrize("mode", [0o664, 0o646, 0o666, 0o777])
def test_a_file_that_others_may_write_is_refused(file: Path, mode: int) -> None:
    file.chmod(mode)
    assert "group or others may write it" in refused(file)


def test_a_file_of_another_user_is_refused(file: Path) -> None:
    if os.geteuid():
        pytest.skip("giving a file away needs root")
    os.chown(file, 65534, 65534)
    assert "belongs to uid 65534" in refused(file)


def test_a_folder_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    assert refused(tmp_path) == f"{tmp_path}: Is a directory"


def test_values_of_the_command_line_are_checked_as_those_of_a_file() -> None:
    place = Path("command line")
    assert check({"ring_bytes": 4096}, place).ring_bytes == 4096
    with pytest.raises(UsageError, match=r"^command line: ring_bytes must be a power"):
        check({"ring_bytes": 5000}, place)
    assert check({"forbidden_rungs": ["lsm"]}, place).forbidden_rungs == ("lsm",)
    with pytest.raises(UsageError, match=r"^command line: there is no rung 'x'"):
        check({"forbidden_rungs": ["x"]}, place)


def test_a_usage_error_is_exit_code_64() -> None:
    assert UsageError.exit_code == 64
