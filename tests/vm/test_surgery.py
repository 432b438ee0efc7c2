"""The edits of a guest's kernel, and how its stub is spoken to, without any guest.

In: a made-up kernel's memory, and a stub that answers what it is told to. Out: an edit
changes what it is meant to change and nothing else, and its undoing leaves no trace.
"""

import contextlib
import json
import socket
import threading
from pathlib import Path

import pytest

from agent.sensor.btf import Btf
from tests.vm.stub import Stub, StubError, packet, stopped
from tests.vm.surgery import EDITS, Kernel, Surgeon, SurgeryError

TYPES = Btf.of_kernel(Path(__file__).parents[1] / "arm64/vmlinux-6.12.btf")
START = 0xFFFF_8880_0000_0000
NODE, STRUCT = 0x1000, 0x2000
ROOT, LEAVES, TASKS = 0x2000, 0x3000, 0x10000
SYMBOLS = {"init_task": 0, "init_pid_ns": 0xA000, "tasklist_lock": 0xC000}
PIDS = (1, 7, 64, 130, 4095)


class Ram:
    """A kernel's memory."""

    def __init__(self):
        self.content = bytearray(0x20000)

    def read(self, at, size):
        return bytes(self.content[at - START : at - START + size])

    def write(self, at, content):
        self.content[at - START : at - START + len(content)] = content


def offset(struct, member):
    return TYPES.struct(struct)[1][member].offset


@pytest.fixture
def kernel():
    """A kernel with an idr of two levels, and a list, of the processes PIDS."""
    symbols = {name: START + at for name, at in SYMBOLS.items()}
    made = Kernel(Ram(), TYPES, symbols, {})
    head = sum(
        offset(*one)
        for one in (("pid_namespace", "idr"), ("idr", "idr_rt"), ("xarray", "xa_head"))
    )
    made._point(symbols["init_pid_ns"] + head, START + ROOT + 2)
    made.memory.write(START + ROOT + offset("xa_node", "shift"), b"\x06")
    linked = symbols["init_task"] + offset("task_struct", "tasks")
    made._point(linked, linked)
    made._point(linked + 8, linked)
    for index, pid in enumerate(PIDS):
        add(made, pid, index)
    return made


def add(kernel, pid, index):
    """One more process, a child of the first."""
    task = START + TASKS + index * STRUCT
    entry = task + 0x1000
    leaf = START + LEAVES + min(pid >> 6, 4) * NODE
    slots = offset("xa_node", "slots")
    kernel._point(START + ROOT + slots + 8 * (pid >> 6), leaf + 2)
    kernel._point(leaf + slots + 8 * (pid & 63), entry)
    kernel._point(
        entry + offset("pid", "tasks"), task + offset("task_struct", "pid_links")
    )
    kernel.memory.write(task + offset("task_struct", "pid"), pid.to_bytes(4, "little"))
    for member in ("real_parent", "parent"):
        kernel._point(task + offset("task_struct", member), START + TASKS)
    own, head = (one + offset("task_struct", "tasks") for one in (task, START))
    last = kernel._pointer(head + 8)
    for at, to in ((own, head), (own + 8, last), (last, own), (head + 8, own)):
        kernel._point(at, to)


def listed(kernel, way=0):
    """The processes in the order of the list, or against it."""
    head = START + offset("task_struct", "tasks")
    at = kernel._pointer(head + way)
    while at != head:
        yield kernel._pid(at - offset("task_struct", "tasks"))
        at = kernel._pointer(at + way)


def undo(kernel, request):
    return EDITS[request["edit"]](kernel, **request["args"])


def changed(before, after):
    """The addresses of the words that differ."""
    return {
        START + at
        for at in range(0, len(before), 8)
        if before[at : at + 8] != after[at : at + 8]
    }


@pytest.mark.parametrize("pid", PIDS)
def test_a_process_is_found_by_its_number(kernel, pid):
    assert kernel.task(pid) == START + TASKS + PIDS.index(pid) * STRUCT


@pytest.mark.parametrize(("pid", "why"), [(8, "empty"), (600, "empty"), (4096, "ends")])
def test_one_that_is_not_there_is_not_found(kernel, pid, why):
    with pytest.raises(SurgeryError, match=why):
        kernel.task(pid)


def test_what_is_not_the_process_is_not_edited(kernel):
    kernel.memory.write(kernel.task(7) + offset("task_struct", "pid"), b"\x08")
    before = bytes(kernel.memory.content)
    with pytest.raises(SurgeryError, match="is not process 7"):
        kernel.hide_from_list(7)
    assert kernel.memory.content == before


@pytest.mark.parametrize("member", ["real_parent", "parent"])
def test_a_forged_parent_is_one_pointer(kernel, member):
    before = bytes(kernel.memory.content)
    back = EDITS[f"set_{member}"](kernel, pid=130, new_parent_pid=64)
    place = kernel.task(130) + offset("task_struct", member)
    assert kernel._pointer(place) == kernel.task(64)
    assert changed(before, kernel.memory.content) == {place}
    undo(kernel, back)
    assert kernel.memory.content == before


@pytest.mark.parametrize("pid", PIDS)
def test_the_list_passes_by_one_that_still_points_into_it(kernel, pid):
    own = kernel.task(pid) + offset("task_struct", "tasks")
    links = kernel.memory.read(own, 16)
    back = kernel.hide_from_list(pid)
    others = [one for one in PIDS if one != pid]
    assert [*listed(kernel)] == others
    assert [*listed(kernel, 8)] == others[::-1]
    assert kernel.memory.read(own, 16) == links
    undo(kernel, back)
    assert [*listed(kernel)] == [*others, pid]
    assert [*listed(kernel, 8)] == [pid, *others[::-1]]


def test_one_is_shown_in_the_list_when_all_around_it_are_gone(kernel):
    back = kernel.hide_from_list(64)
    for pid in PIDS:
        if pid != 64:
            kernel.hide_from_list(pid)
    undo(kernel, back)
    assert [*listed(kernel)] == [*listed(kernel, 8)] == [64]


@pytest.mark.parametrize("pid", PIDS)
def test_out_of_the_idr_is_one_slot_and_the_edits_still_find_it(kernel, pid):
    before, task = bytes(kernel.memory.content), kernel.task(pid)
    back = kernel.hide_from_idr(pid)
    assert len(changed(before, kernel.memory.content)) == 1
    with pytest.raises(SurgeryError, match="empty"):
        Kernel(kernel.memory, TYPES, kernel.symbols, {}).task(pid)
    assert kernel.task(pid) == task
    undo(kernel, back)
    assert kernel.memory.content == before
    assert not kernel.hidden


@pytest.mark.parametrize("place", ["list", "idr"])
def test_nothing_is_hidden_or_shown_twice(kernel, place):
    hide, show = (EDITS[f"{verb}_{place}"] for verb in ("hide_from", "show_in"))
    with pytest.raises(SurgeryError, match="is in"):
        show(kernel, 7)
    hide(kernel, 7)
    with pytest.raises(SurgeryError, match="is not in"):
        hide(kernel, 7)


def test_a_kernel_amid_a_change_is_known_by_its_lock(kernel):
    assert not kernel.is_amid_change()
    kernel.memory.write(kernel.symbols["tasklist_lock"], b"\xff")
    assert kernel.is_amid_change()


# what is asked for, and answered


@pytest.mark.parametrize(
    "asked", ["{", "[]", "{}", '{"edit": "sew", "args": {}, "symbols": {}}']
)
def test_what_cannot_be_done_is_answered(tmp_path, asked):
    (tmp_path / "request-1").write_text(asked)
    Surgeon(tmp_path, tmp_path / "no-stub", tmp_path / "no-types").serve()
    [answer] = tmp_path.iterdir()
    assert answer.name == "answer-1"
    assert [*json.loads(answer.read_text())] == ["error"]


# the stub


@contextlib.contextmanager
def a_stub(path, *answers):
    """A stub that gives these answers in turn, in pieces; what it was asked."""
    asked = []
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        thread = threading.Thread(target=serve, args=(listening, answers, asked))
        thread.start()
        try:
            yield asked
        finally:
            # A listener that is shut down accepts no more, also one that waits.
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()


def serve(listening, answers, asked):
    with contextlib.suppress(OSError):
        connection, _ = listening.accept()
        with connection, connection.makefile("rb", buffering=0) as heard:
            for answer in answers:
                asked.append(one_packet(heard))
                for piece in (b"+", answer[:2], answer[2:]):
                    connection.sendall(piece)
            connection.shutdown(socket.SHUT_WR)
            heard.readall()


def one_packet(heard):
    """A packet, without what acknowledges the one before."""
    said = b""
    while said[-3:-2] != b"#":
        said += heard.read(1)
    return said.lstrip(b"+")


def test_a_packet_is_followed_by_its_sum():
    assert packet(b"") == b"$#00"
    assert packet(b"OK") == b"$OK#9a"
    assert packet(b"vMustReplyEmpty") == b"$vMustReplyEmpty#3a"


def test_memory_is_read_and_written_while_the_guest_stands_still(tmp_path):
    answers = (packet(b"0102"), packet(b"OK"), packet(b"OK"))
    with (
        a_stub(tmp_path / "stub", *answers) as asked,
        stopped(tmp_path / "stub") as stub,
    ):
        assert stub.read(0xFFFF888000000000, 2) == b"\1\2"
        stub.write(0x10, b"\xff\0")
    words = (b"mffff888000000000,2", b"M10,2:ff00", b"D")
    assert asked == [packet(one) for one in words]


def test_what_the_stub_says_unasked_is_no_answer(tmp_path):
    answers = (packet(b"T02thread:01;") + packet(b"ff"), packet(b"OK"))
    with a_stub(tmp_path / "stub", *answers), stopped(tmp_path / "stub") as stub:
        assert stub.read(0, 1) == b"\xff"


@pytest.mark.parametrize(
    ("answer", "why"),
    [(packet(b"E14"), "can't be read: E14"), (b"$0102#00", "sum"), (b"", "gone")],
)
def test_memory_that_cannot_be_read_is_an_error(tmp_path, answer, why):
    with a_stub(tmp_path / "stub", answer), socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(tmp_path / "stub"))
        with pytest.raises(StubError, match=why):
            Stub(connection).read(0, 2)


def test_the_guest_goes_on_when_an_edit_fails(tmp_path):
    answers = (packet(b"E14"), packet(b"OK"))
    with a_stub(tmp_path / "stub", *answers) as asked:
        path = tmp_path / "stub"
        with pytest.raises(StubError, match="written"), stopped(path) as stub:
            stub.write(0, b"\0")
    assert asked[-1] == packet(b"D")
