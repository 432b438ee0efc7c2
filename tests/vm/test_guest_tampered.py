"""A kernel whose objects were edited: a forged parent, a process out of its lists.

In: a guest of the variant `tampered`, whose host edits what a test asks for. Out: each
edit is what a rootkit's would be, by the kernel's own word, and is undone.
"""

import contextlib
import mmap
import os
import signal
import struct
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.kernel.conftest import Held, until
from tests.vm import ask
from tests.vm.surgery import SurgeryError

pytestmark = pytest.mark.kernel

UIDS = (61001, 61002)
# Counts in a page that the test reads, and ends when its stdin does.
COUNT = """
import mmap, os, select, signal, struct, sys
page = mmap.mmap(os.open(sys.argv[1], os.O_RDWR), 24)
os.setuid(int(sys.argv[2]))
counted = told = 0
def tell(*_):
    global told
    told += 1
signal.signal(signal.SIGCHLD, tell)
while not select.select([0], [], [], 0.01)[0]:
    counted += 1
    page[:] = struct.pack("<3q", counted, told, os.getppid())
"""


@dataclass(frozen=True)
class Counting(Held):
    """A process that counts, the only one of its user."""

    page: mmap.mmap = field(kw_only=True)
    uid: int = field(kw_only=True)

    def says(self):
        """How far it has counted, deaths it was told of, and its parent's pid."""
        return struct.unpack("<3q", self.page[:])

    def assert_runs(self):
        """It counts on from now; twice, so that all it says is of now too."""
        counted = self.says()[0]
        until(lambda: self.says()[0] > counted + 1, f"process {self.pid} to count on")

    def kill(self):
        """End it; it is a zombie until the fixture's end."""
        pidfd = os.pidfd_open(self.pid)
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        os.close(pidfd)


@contextlib.contextmanager
def counting(trigger, file, uid):
    """A process that counts until the block ends."""
    file.write_bytes(bytes(24))
    argv = [sys.executable, "-I", "-S", "-c", COUNT, str(file), str(uid)]
    with (
        file.open("r+b") as opened,
        mmap.mmap(opened.fileno(), 24) as page,
        trigger.hold(argv) as held,
    ):
        process = Counting(held.pid, page=page, uid=uid)
        process.assert_runs()
        yield process


@pytest.fixture
def child(trigger, tmp_path):
    """A child of this process, which edits may be of."""
    with counting(trigger, tmp_path / "child", UIDS[0]) as process:
        yield process


@pytest.fixture
def stranger(trigger, tmp_path):
    """One that has no children, and may be said to have some."""
    with counting(trigger, tmp_path / "stranger", UIDS[1]) as process:
        yield process


@pytest.fixture
def operate(child, stranger):  # noqa: ARG001 - both outlive what is edited in them
    """Has an edit made, and returns what undoes it; the end undoes what is left."""
    with contextlib.ExitStack() as edits:

        def make(edit, **args):
            undo = edits.enter_context(contextlib.ExitStack())
            undo.callback(ask.operate(edit, **args))
            return undo.close

        yield make


def in_proc(pid):
    """Which ways by number lead to it: a name in /proc, the folder of it, a pidfd."""
    proc = Path("/proc")
    # A folder that was looked at stays in the kernel's cache of names, and is found
    # there; the kernel drops it only when it was not used for some rounds.
    for _ in range(5):
        (proc / "sys/vm/drop_caches").write_text("2")
    found = {"name"} if proc / str(pid) in proc.iterdir() else set()
    if (proc / str(pid)).exists():
        found.add("folder")
    with contextlib.suppress(ProcessLookupError):
        os.close(os.pidfd_open(pid))
        found.add("pidfd")
    return found


EVERYWHERE = {"name", "folder", "pidfd"}


def is_in_list(process):
    """Whether the kernel finds it by going through the list of all processes."""
    try:
        os.getpriority(os.PRIO_USER, process.uid)
    except ProcessLookupError:
        return False
    return True


# the edits, by the kernel's own word


def test_a_forged_parent_is_what_the_kernel_says(child, stranger, operate):
    assert child.status("PPid") == [str(os.getpid())]
    undo = operate("set_real_parent", pid=child.pid, new_parent_pid=stranger.pid)
    assert child.status("PPid") == [str(stranger.pid)]
    child.assert_runs()
    assert child.says()[2] == stranger.pid
    undo()
    assert child.status("PPid") == [str(os.getpid())]


def test_a_forged_parent_is_told_of_the_end(child, stranger, operate):
    undo = operate("set_parent", pid=child.pid, new_parent_pid=stranger.pid)
    assert child.status("PPid") == [str(os.getpid())]
    child.kill()
    until(lambda: stranger.says()[1] == 1, "the stranger to be told of the end")
    undo()  # who reaps it has to be its parent in every way


def test_out_of_the_idr_no_number_leads_to_it_and_it_runs(child, operate):
    assert in_proc(child.pid) == EVERYWHERE
    undo = operate("hide_from_idr", pid=child.pid)
    until(lambda: not in_proc(child.pid), "no number to lead to it")
    assert is_in_list(child)
    child.assert_runs()
    undo()
    assert in_proc(child.pid) == EVERYWHERE


def test_out_of_the_list_numbers_lead_to_it(child, operate):
    assert is_in_list(child)
    undo = operate("hide_from_list", pid=child.pid)
    assert not is_in_list(child)
    assert in_proc(child.pid) == EVERYWHERE
    child.assert_runs()
    undo()
    assert is_in_list(child)


def test_out_of_both_nothing_leads_to_it_and_it_runs(child, operate):
    shown = [
        operate(edit, pid=child.pid) for edit in ("hide_from_idr", "hide_from_list")
    ]
    until(lambda: not in_proc(child.pid), "no number to lead to it")
    assert not is_in_list(child)
    child.assert_runs()
    for undo in shown:
        undo()
    assert (in_proc(child.pid), is_in_list(child)) == (EVERYWHERE, True)


def test_what_cannot_be_done_is_said(child, operate):
    with pytest.raises(SurgeryError, match="no process 4194304"):
        operate("hide_from_idr", pid=4194304)
    with pytest.raises(SurgeryError, match="is in the list"):
        operate("show_in_list", pid=child.pid)
    with pytest.raises(SurgeryError, match="sew"):
        operate("sew", pid=child.pid)
