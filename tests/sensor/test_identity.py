"""The key of what is loaded: another one whenever something else would be loaded."""

import shutil
from pathlib import Path

import pytest

from agent.errors import LoadError
from agent.sensor import sources
from agent.sensor.identity import object_key


@pytest.fixture
def btf(tmp_path: Path) -> Path:
    path = tmp_path / "vmlinux"
    path.write_bytes(b"types")
    return path


def test_the_key_is_that_of_a_pin_folder(btf: Path) -> None:
    key = object_key((), btf)
    assert len(key) == 32
    assert key == object_key((), btf)


def test_forbidden_rungs_change_the_key_and_their_order_does_not(btf: Path) -> None:
    keys = {object_key(one, btf) for one in ((), ("lsm",), ("fentry",))}
    assert len(keys) == 3
    both = object_key(("lsm", "fentry"), btf)
    assert both == object_key(["fentry", "lsm"], btf)
    assert both not in keys


def test_another_kernel_has_another_key(btf: Path) -> None:
    before = object_key((), btf)
    btf.write_bytes(b"other types")
    assert object_key((), btf) != before


def test_a_kernel_without_type_information_is_told(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="offers no BTF"):
        object_key((), tmp_path / "none")


@pytest.mark.parametrize("name", sources.SOURCES)
def test_every_source_of_the_probes_is_in_the_key(
    name: str, btf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(shutil.copytree(sources.probe_folder(), tmp_path / "probes"))
    monkeypatch.setattr(sources, "probe_folder", lambda: folder)
    before = object_key((), btf)
    with (folder / name).open("a") as file:
        file.write("\n")
    assert object_key((), btf) != before


def test_all_files_of_the_probes_are_compiled_somewhere() -> None:
    files = {path.name for path in sources.probe_folder().glob("*.[ch]")}
    assert files == set(sources.SOURCES)
