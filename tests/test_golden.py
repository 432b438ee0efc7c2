"""Whole stories, from the bytes of the ring to the records on disk.

tests/golden/STORY.ring holds the ring as the kernel would have left it, STORY.jsonl the
records without their random ids. `pytest tests/test_golden.py --update-golden` writes
both anew; what has changed is then to be read in the diff.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from agent.events import Event, ProcessKey, Task
from agent.pipeline import Pipeline
from agent.process.ledger import Ledger
from agent.sensor.tap import Tap
from agent.sinks.batch import Batch
from agent.sinks.chain import segment_names
from agent.sinks.record import ClockMap, Host, Renderer
from agent.sinks.scan import read
from agent.sinks.segment import SegmentWriter
from tests.builders import (
    CONTEXT,
    HEADER,
    INIT,
    NOW,
    SECOND,
    a_fork,
    a_key,
    a_task,
    an_exec,
    an_exit,
    an_image,
    encode,
    in_pieces,
)
from tests.memory_ring import MemoryRing, MemoryTap

FOLDER = Path(__file__).parent / "golden"
NAMESPACES = {
    name: getattr(CONTEXT, f"ns_{name}")
    for name in ("pid", "mnt", "net", "user", "uts", "ipc", "cgroup", "time")
}
HOST = Host(
    "0" * 32, "node-17", "5b1c7f9e-2f0a-4c7d-9d3e-8a6f0c1b2d3e", "0", NAMESPACES
)
CLOCK = ClockMap(1_800_000_000 * SECOND, "synchronised", 1500, 2_000_000)
NAMELESS = 64123
"""A user id without a name on any machine, so that records are the same on all."""
SHELL = a_task(
    500, start_ns=90 * SECOND, image=an_image(b"bash", uid=NAMELESS, euid=NAMELESS)
)


class Story:
    """Events of a machine with two CPUs, numbered and timed as they are told."""

    def __init__(self) -> None:
        self.ring = MemoryRing()
        self.now = NOW
        self._seq = {0: 0, 1: 0}

    def _place(self, cpu: int) -> dict[str, Any]:
        self.now += 1_000_000
        self._seq[cpu] += 1
        return {"cpu": cpu, "seq": self._seq[cpu], "bt_ns": self.now}

    def tell(
        self, make: Callable[..., Event], *args: Any, cpu: int = 0, **more: Any
    ) -> None:
        self.ring.put(encode(make(*args, **self._place(cpu), **more)))

    def tell_in_pieces(self, event: Callable[..., Any], *args: bytes, cpu: int) -> None:
        records = in_pieces(event(*args, **self._place(cpu)), 64, 64)
        self._seq[cpu] += len(records) - 1
        self.ring.put(*records)

    def lose(self, kind: str, count: int, cpu: int = 0) -> None:
        self.now += 1_000_000
        self._seq[cpu] += count
        self.ring.lose(cpu, kind, self.now, count)


def child_of(parent: ProcessKey, tgid: int, comm: bytes, start: int = NOW) -> Task:
    image = an_image(comm, uid=NAMELESS, euid=NAMELESS)
    return a_task(tgid, start_ns=start, real_parent=parent, image=image)


def double_fork_daemon(story: Story) -> None:
    """The middle process leaves; the daemon's birth parent stays the answer."""
    middle = child_of(SHELL.key, 600, b"bash")
    daemon = child_of(middle.key, 601, b"bash", NOW + 1)
    orphan = child_of(INIT, 601, b"bash", NOW + 1)
    story.tell(an_exec, b"bash", task=SHELL, executable=b"/usr/bin/bash")
    story.tell(a_fork, middle)
    story.tell(a_fork, daemon, cpu=1)
    story.tell(an_exit, middle)
    renamed = child_of(INIT, 601, b"miner", NOW + 1)
    story.tell(an_exec, b"[kworker/0:1]", task=renamed, executable=b"/tmp/.x/miner")
    story.tell(an_exit, orphan, status=9, cpu=1)


def exec_before_fork(story: Story) -> None:
    """Two CPUs: the child's program is in the ring before its birth is."""
    child = child_of(SHELL.key, 600, b"ls")
    story.tell(an_exec, b"bash", task=SHELL)
    story.tell(an_exec, b"ls", b"-l", task=child, executable=b"/usr/bin/ls", cpu=1)
    story.tell(a_fork, child_of(SHELL.key, 600, b"bash"))
    story.tell(an_exit, child, cpu=1)


def pid_reuse(story: Story) -> None:
    """The same pid twice, the first one's end lost with the ring full."""
    first = child_of(SHELL.key, 600, b"true", NOW)
    second = child_of(SHELL.key, 600, b"bash", NOW + SECOND)
    grandchild = child_of(second.key, 602, b"id", NOW + SECOND + 5)
    story.tell(an_exec, b"bash", task=SHELL)
    story.tell(an_exec, b"true", task=first, executable=b"/usr/bin/true")
    story.lose("exit", 1)
    story.tell(a_fork, second)
    story.tell(an_exec, b"id", task=grandchild, executable=b"/usr/bin/id")
    story.tell(an_exit, second)


def burst_with_loss(story: Story) -> None:
    """A ring that is full twice, on both CPUs."""
    story.tell(an_exec, b"bash", task=SHELL)
    for tgid in range(600, 604):
        story.tell(a_fork, child_of(SHELL.key, tgid, b"bash"), cpu=tgid % 2)
    story.lose("fork", 3, cpu=0)
    story.lose("exec", 2, cpu=1)
    for tgid in range(600, 604):
        story.tell(an_exit, child_of(SHELL.key, tgid, b"bash"), cpu=tgid % 2)
    story.lose("exit", 1, cpu=1)
    story.tell(an_exit, SHELL, cpu=1)


def argv_in_pieces(story: Story) -> None:
    """A long argv with bytes that are no text, while the other CPU goes on."""
    words = [
        b"train.py",
        b"",
        b"--name=\xff\xfe",
        b"a\nb",
        "é\u202e".encode(),
        b"x" * 150,
    ]
    task = child_of(SHELL.key, 600, b"python3")

    def python(*args: bytes, **place: Any) -> Any:
        return an_exec(*args, task=task, executable=b"/usr/bin/python3", **place)

    story.tell(an_exec, b"bash", task=SHELL)
    story.tell_in_pieces(python, b"python3", *words, cpu=0)
    story.tell(an_exit, SHELL, cpu=1)
    story.tell(an_exit, task, status=256)


STORIES = [
    double_fork_daemon,
    exec_before_fork,
    pid_reuse,
    burst_with_loss,
    argv_in_pieces,
]


def told(tell: Callable[[Story], None]) -> MemoryRing:
    story = Story()
    tell(story)
    return story.ring


def recorded(ring: MemoryRing, folder: Path) -> list[dict[str, Any]]:
    """What the pipeline makes of a ring; ids, which are random, left out."""
    with SegmentWriter.open(folder, dict) as log:
        batch = Batch(Renderer(HOST, CLOCK), log, CLOCK)
        pipeline = Pipeline(cast("Tap", MemoryTap(ring)), Ledger(), batch, log)
        while pipeline.step():
            pass
        pipeline.settle()
    lines = [line for name in segment_names(folder) for line in read(folder / name)]
    records = [json.loads(line.body) for line in lines]
    records = [record for record in records if "event" in record]
    for record in records:
        del record["event"]["id"]
    return records


def split(data: bytes) -> list[bytes]:
    """The records in the bytes of a ring."""
    at, found = 0, []
    while at < len(data):
        size, _ = HEADER.unpack_from(data, at)
        found.append(data[at + HEADER.size : at + HEADER.size + size])
        at += HEADER.size + size + -size % HEADER.size
    return found


@pytest.mark.parametrize("tell", STORIES, ids=lambda tell: tell.__name__)
def test_a_story_is_recorded_as_it_was_before(
    tell: Callable[[Story], None], tmp_path: Path, update_golden: bool
) -> None:
    ring_file = FOLDER / f"{tell.__name__}.ring"
    records_file = FOLDER / f"{tell.__name__}.jsonl"
    ring = told(tell)
    if update_golden:
        ring_file.write_bytes(ring.data)
        lines = [json.dumps(one) for one in recorded(ring, tmp_path / "new")]
        records_file.write_text("".join(f"{line}\n" for line in lines))
    kept = MemoryRing(*split(ring_file.read_bytes()))
    kept.lost, kept.last_lost = ring.lost, ring.last_lost
    expected = [json.loads(line) for line in records_file.read_text().splitlines()]
    assert recorded(kept, tmp_path / "records") == expected


@pytest.mark.parametrize("tell", STORIES, ids=lambda tell: tell.__name__)
def test_the_wire_format_is_still_that_of_the_kept_rings(
    tell: Callable[[Story], None],
) -> None:
    """A layout that changes must get a new version, and new golden files."""
    assert (FOLDER / f"{tell.__name__}.ring").read_bytes() == told(tell).data


def records_of(tell: Callable[[Story], None], folder: Path) -> list[dict[str, Any]]:
    return recorded(told(tell), folder)


def test_a_daemon_is_traced_to_the_shell_that_made_it(tmp_path: Path) -> None:
    records = records_of(double_fork_daemon, tmp_path)
    program = next(one for one in records if one["process"]["name"] == "miner")
    chain = [one["pid"] for one in program["ir"]["ancestry"]["chain"]]
    assert chain == [600, 500]
    assert program["process"]["parent"]["pid"] == 1


def test_a_program_without_a_birth_has_its_parent_all_the_same(tmp_path: Path) -> None:
    _, program, birth, _ = records_of(exec_before_fork, tmp_path)
    parents = [one["process"]["parent"]["pid"] for one in (program, birth)]
    assert parents == [500, 500]


def test_a_reused_pid_has_another_entity_and_its_own_children(tmp_path: Path) -> None:
    records = records_of(pid_reuse, tmp_path)
    entities = {
        one["process"]["entity_id"]
        for one in records
        if one.get("process", {}).get("pid") == 600
    }
    assert len(entities) == 2
    grandchild = next(
        one for one in records if one.get("process", {}).get("pid") == 602
    )
    nearest = grandchild["ir"]["ancestry"]["chain"][0]
    second = a_key(600, NOW + SECOND)
    assert nearest["entity_id"] == Renderer(HOST, CLOCK).entity(second)


def test_every_lost_event_of_a_burst_is_in_a_loss(tmp_path: Path) -> None:
    records = records_of(burst_with_loss, tmp_path)
    losses = [one["ir"]["loss"] for one in records if "loss" in one["ir"]]
    assert sum(loss["count"] for loss in losses) == 6
    assert {loss["cause"] for loss in losses} == {"ring full"}


def test_a_long_argv_is_one_array_of_exact_arguments(tmp_path: Path) -> None:
    records = records_of(argv_in_pieces, tmp_path)
    python = next(one for one in records if one["process"]["name"] == "python3")
    args = python["process"]["args"]
    assert args[:5] == ["python3", "train.py", "", r"--name=\xff\xfe", "a\nb"]
    assert len(args) == 7
