"""The lab itself, without any machine: its list, its archive, its initrd, its verdicts.

In: made-up modules, mirrors and JUnit files. Out: what the lab makes of them. What it
starts is ended whatever happens, and a guest that proved nothing is not well.
"""

import re
import struct
import sys
from collections import Counter
from pathlib import Path
from typing import ClassVar

import pytest

from tests.kernel import figures
from tests.vm import lab, machine, report
from tests.vm.archive import MODULE_FOLDERS, NoKernelError, fetch, mirrors
from tests.vm.initrd import entry, in_order, initrd, needs
from tests.vm.kernels import EXCLUDED, NAMES, SUPPORTED
from tests.vm.machine import Outcome, program

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/kernels.md").read_text()
VARIANTS = ("full", "default-lsm")
WELL = Outcome(0, "", 2.0, 60.0)
URIS = """\
'http://mirror.example/debian/dists/bookworm/InRelease' list_one 0
'http://mirror.example/debian/dists/bookworm-updates/InRelease' list_two 0
'http://safe.example/sec/dists/bookworm-security/InRelease' list_three 0
'http://mirror.example/debian/dists/bookworm/main/binary-amd64/Packages.xz' four 0
"""
JUNIT = """\
<testsuites><testsuite>
<testcase classname="tests.kernel.test_a" name="test_one" time="1.5"/>
<testcase classname="tests.kernel.test_a" name="test_two" time="2">
<skipped message="for a reason"/></testcase>
<testcase classname="tests.kernel.test_b" name="test_three" time="4">
<failure message="assert  1
 == 2">long</failure></testcase>
</testsuite></testsuites>
"""


def parsed(*words):
    return lab.parser().parse_args(words)


def names(*words):
    return [guest.name for guest in lab.selected(parsed(*words))]


# the list


def test_the_page_shows_the_list_of_kernels():
    rows = re.findall(r"(?m)^\| `([\w.]+)` \| `([\w-]+)` \| `([\w.-]+)` \|", PAGE)
    assert rows == [(one.name, one.suite, one.package) for one in SUPPORTED]


def test_the_page_shows_every_variant_and_every_exclusion():
    for variant in lab.VARIANTS:
        assert f"| `{variant.name}` | {', '.join(variant.kernels)} |" in PAGE
    for one in EXCLUDED:
        assert f"| `{one.test.partition('::')[2]}` | {one.reason} |" in PAGE


def test_the_page_shows_what_was_proven_where():
    assert "\n".join(figures.matrix()) in PAGE


def test_every_exclusion_is_of_a_test_that_exists():
    for one in EXCLUDED:
        file, _, name = one.test.partition("::")
        assert f"def {name.partition('[')[0]}(" in (ROOT / file).read_text()
        assert set(one.kernels) <= set(NAMES)
        assert set(one.variants) <= {variant.name for variant in lab.VARIANTS}


@pytest.mark.parametrize("variant", lab.VARIANTS, ids=lambda one: one.name)
def test_every_variant_has_test_files_and_known_kernels(variant):
    assert variant.tests
    files = [test.partition("::")[0] for test in variant.tests]
    assert [file for file in files if not (ROOT / file).exists()] == []
    assert set(variant.kernels) <= set(NAMES)


def test_every_kernel_runs_all_tests():
    assert lab.VARIANTS[0].kernels == NAMES


def test_a_kernel_can_be_asked_for():
    assert names("--kernel", "6.12") == ["6.12-full", "6.12-tampered"]
    assert "5.10-default-lsm" in names("--kernel", "5.10")


def test_tests_asked_for_run_in_the_full_guest_unless_another_is_named():
    asked = ("--kernel", "6.1", "tests/kernel/test_access.py")
    [guest] = lab.selected(parsed(*asked))
    assert guest.name == "6.1-full"
    assert guest.tests == ("tests/kernel/test_access.py",)
    assert names("--variant", "integrity", *asked) == ["6.1-integrity"]


def test_an_exclusion_counts_only_where_its_file_runs():
    full, short = (parsed("--kernel", "5.10", "--variant", one) for one in VARIANTS)
    files = {one.partition("::")[0] for one in lab.selected(full)[0].excluded}
    assert files
    assert files <= set(lab.selected(full)[0].tests)
    assert lab.selected(short)[0].excluded == []


# the archive


def of(name):
    return next(kernel for kernel in SUPPORTED if kernel.name == name)


def test_mirrors_are_those_of_the_machines_own_apt():
    assert mirrors(URIS, of("newest")) == ["http://mirror.example/debian"]
    assert mirrors(URIS, of("6.1"))[0] == "http://safe.example/sec"


def test_security_updates_are_guessed_beside_the_main_archive():
    main = URIS.splitlines()[0]
    assert mirrors(main, of("5.10")) == ["http://mirror.example/debian-security"]
    assert mirrors("", of("5.10")) == []


def test_a_kernel_in_the_cache_is_enough(tmp_path):
    folder = tmp_path / "6.1"
    folder.mkdir()
    (folder / "package").write_text(f"image\n{' '.join(MODULE_FOLDERS)}\n")
    found = fetch(tmp_path, of("6.1"))
    assert found[:2] == (folder, "image")


def test_without_apt_and_cache_there_is_no_kernel(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoKernelError, match="apt-get"):
        fetch(tmp_path / "cache", of("6.1"))
    assert lab.fetched([of("6.1")], tmp_path)["6.1"]


# the initrd


def unpacked(archive):
    """Name, mode and content of each entry."""
    found, at = {}, 0
    while at < len(archive):
        assert archive[at : at + 6] == b"070701"
        fields = struct.unpack_from("8s" * 13, archive, at + 6)
        _, mode, *_, size, _, _, _, _, name_size, _ = (int(one, 16) for one in fields)
        start = at + 110
        begin = -(-(start + name_size) // 4) * 4
        name = archive[start : start + name_size - 1].decode()
        found[name] = (mode, archive[begin : begin + size])
        at = -(-(begin + size) // 4) * 4
    return found


def test_an_entry_comes_out_as_it_went_in():
    archive = entry("a", 0o100644, b"12345") + entry("folder/b", 0o100755)
    assert unpacked(archive) == {"a": (0o100644, b"12345"), "folder/b": (0o100755, b"")}


@pytest.fixture
def kernel(tmp_path):
    """A kernel's folder, whose modules need each other."""
    for name, wants in {
        "virtio_pci": "virtio-ring,virtio",
        "virtio_ring": "virtio",
        "virtio": "",
        "virtiofs": "fuse",
        "fuse": "",
        "cuse": "fuse",
    }.items():
        (tmp_path / f"{name}.ko").write_bytes(b"ELF\0depends=" + wants.encode() + b"\0")
    return tmp_path


def test_modules_come_after_those_they_need(kernel):
    order = [path.stem for path in in_order(kernel)]
    assert order == ["virtio", "virtio_ring", "virtio_pci", "fuse", "virtiofs"]
    assert needs(b"ELF") == []


def test_the_initrd_holds_the_modules_and_their_order(kernel, monkeypatch):
    monkeypatch.setattr("tests.vm.initrd.BUSYBOX", kernel / "fuse.ko")
    found = unpacked(initrd(kernel))
    assert found["modules/order"][1].split()[0] == b"virtio.ko"
    assert found["modules/fuse.ko"][1] == (kernel / "fuse.ko").read_bytes()
    assert found["init"][0] == 0o100755


# verdicts


def a_report(tests=3, failed=(), skipped=()):
    return report.Report(tests, tuple(failed), tuple(skipped), Counter())


@pytest.mark.parametrize(
    ("outcome", "read", "wrong"),
    [
        (WELL, a_report(), ""),
        (WELL, a_report(skipped=[f"{report.MAY_SKIP[0]} it"]), ""),
        (WELL, a_report(skipped=["no such hook"]), "1 skipped: no such hook"),
        (WELL, a_report(failed=[("one", "no"), ("two", "no")]), "2 failed"),
        (WELL, a_report(1, skipped=["because"]), "no test ran"),
        (WELL, report.NOTHING, "no test ran"),
        (Outcome(2, "", 2, 9), a_report(), "pytest ended with 2"),
        (Outcome(None, "the guest died", 2, 9), a_report(), "the guest died"),
    ],
)
def test_a_guest_is_well_only_if_tests_ran_and_passed(outcome, read, wrong):
    assert report.judge(outcome, read) == wrong


def test_a_junit_file_is_read(tmp_path):
    (tmp_path / "junit.xml").write_text(JUNIT)
    read = report.read(tmp_path / "junit.xml")
    assert (read.tests, read.skipped) == (3, ("for a reason",))
    assert read.failed == (("test_three", "assert 1 == 2"),)
    assert read.seconds["tests/kernel/test_a.py"] == 3.5
    (tmp_path / "junit.xml").write_text(JUNIT[:100])
    assert report.read(tmp_path / "junit.xml") == report.NOTHING


def test_tests_that_fail_alike_are_one_line(tmp_path):
    read = a_report(failed=[("one", "no"), ("two", "why"), ("three", "no")])
    assert report.reasons(read) == ["one and 1 more: no", "two: why"]
    (tmp_path / "console").write_text("panic\n")
    logs = (tmp_path / "output", tmp_path / "console")
    assert report.reasons(report.NOTHING, *logs) == ["panic"]


# what runs is ended


class Guest:
    """A machine that ends when it is asked for the second time."""

    running: ClassVar[set["Guest"]] = set()
    most = 0

    def __init__(self):
        self.asked = 0
        self.running.add(self)
        Guest.most = max(Guest.most, len(self.running))

    def serve(self):
        assert self in self.running

    def outcome(self):
        self.asked += 1
        return WELL if self.asked > 1 else None

    def close(self):
        self.running.discard(self)


def test_only_so_many_guests_run_at_once_and_all_are_done(monkeypatch):
    monkeypatch.setattr(machine, "POLL_S", 0)
    done = []
    machine.run_all(range(5), lambda _: Guest(), lambda *ended: done.append(ended), 2)
    assert sorted(done) == [(number, WELL) for number in range(5)]
    assert (Guest.most, Guest.running) == (2, set())


def test_a_guest_is_ended_when_the_lab_is(monkeypatch):
    monkeypatch.setattr(machine, "POLL_S", 0)

    def interrupted(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        machine.run_all(range(5), lambda _: Guest(), interrupted, 2)
    assert Guest.running == set()


@pytest.mark.parametrize("code", ["", "import signal; signal.signal(15, print)"])
def test_a_program_lives_no_longer_than_its_block(tmp_path, monkeypatch, code):
    monkeypatch.setattr(machine, "GRACE_S", 0.2)
    script = f"import time; {code}\nprint('up', flush=True)\ntime.sleep(60)"
    log = tmp_path / "log"
    with program([sys.executable, "-c", script], log) as running:
        while b"up" not in log.read_bytes():
            assert running.poll() is None
    assert running.returncode is not None
