"""Searching a log finds what reading all of it finds, and nothing that was changed.

In: records of any events, written by the writer itself into several segments, then
changed, torn and cut. Out: what a search gives, held against a decode of every line.
"""

import json
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.events import ChainEnd, Event, Lineage, ProcessKey
from agent.process.ledger import Ledger
from agent.sinks import search
from agent.sinks.chain import segment_name, segment_names
from agent.sinks.record import ClockMap, Host, Renderer
from agent.sinks.scan import Follower
from agent.sinks.search import Search, of_actions, of_pids, of_processes, of_targets
from agent.sinks.segment import SegmentWriter
from tests.builders import a_key, a_task, an_access, an_exec, an_image
from tests.strategies import events

BOOT = "b00tb00tb00t"
WHO = ProcessKey(1000, 100_000_000_000)
OTHER = ProcessKey(2000, 100_000_000_000)
FEW = [WHO, OTHER, ProcessKey(1000, 7), ProcessKey(100, 100_000_000_000)]
"""Keys of which one is the beginning of another, in every way."""


def entity(key: ProcessKey) -> str:
    return f"{BOOT}-{key.tgid}-{key.start_ns:x}"


def imitation(role: bytes, key: ProcessKey) -> bytes:
    """The text that a search looks for."""
    who = f'{{"pid":{key.tgid},"entity_id":"{entity(key)}"'
    return b'"%b":%b,"action":"exec"' % (role, who.encode())


IMITATIONS = [
    before + imitation(role, WHO) + after
    for role in (b"process", b"target")
    for before in (b"", b"\\", b'\\"', b'",', b"\n")
    for after in (b"", b"}", b"\\")
]


@st.composite
def told(draw: Any) -> Event:
    """Any event, of few processes, with words that look like a record of one."""
    event: Any = draw(events())
    task = msgspec.structs.replace(event.task, key=draw(st.sampled_from(FEW)))
    changes: dict[str, Any] = {"task": task}
    if hasattr(event, "argv") and draw(st.booleans()):
        words = draw(st.lists(st.sampled_from(IMITATIONS), max_size=3))
        argv = b"".join(word + b"\0" for word in words)
        changes |= {"argv": argv, "argc": len(words)}
        if hasattr(event, "argv_bytes"):
            changes["argv_bytes"] = len(argv)
    if hasattr(event, "target"):
        key = draw(st.sampled_from(FEW))
        changes["target"] = msgspec.structs.replace(event.target, key=key)
    changed: Event = msgspec.structs.replace(event, **changes)
    return changed


def write(folder: Path, told: Iterable[Event], segment_bytes: int = 1 << 20) -> None:
    renderer = Renderer(
        Host("m", "node", BOOT, "0", {}), ClockMap(0, "synchronised", 0, 1)
    )
    ledger, line = Ledger(), Lineage((), ChainEnd.UNKNOWN_PARENT)
    with SegmentWriter.open(folder, dict, segment_bytes) as log:
        for event in told:
            target = None
            process = ledger.apply(event)
            if hasattr(event, "target"):
                named = ledger.get(event.target.key)
                target = (named, line) if named else None
            number = log.next_sequence
            log.append([renderer.render(event, process, line, number, target)])


def all_records(folder: Path) -> Iterator[dict[str, Any]]:
    for _, body in Follower(folder).poll():
        yield json.loads(body)


def said(record: dict[str, Any], *path: str) -> Any:
    value: Any = record
    for name in path:
        value = value.get(name, {})
    return value


Judge = Callable[[dict[str, Any]], bool]
SEARCHES: list[tuple[Any, Judge]] = [
    (
        of_processes({entity(WHO)}),
        lambda one: said(one, "process", "entity_id") == entity(WHO),
    ),
    (
        of_processes({entity(WHO), entity(OTHER)}),
        lambda one: said(one, "process", "entity_id") in (entity(WHO), entity(OTHER)),
    ),
    (
        of_targets({entity(WHO)}),
        lambda one: said(one, "ir", "target", "entity_id") == entity(WHO),
    ),
    (of_pids([100], BOOT), lambda one: said(one, "process", "pid") == 100),
    (of_pids([1000, 9], BOOT), lambda one: said(one, "process", "pid") == 1000),
    (of_pids([1000], "another"), lambda _: False),
    (
        of_actions("exec", "exit"),
        lambda one: said(one, "event", "action") in ("exec", "exit"),
    ),
]


@settings(max_examples=40)
@given(
    told=st.lists(told(), max_size=5),
    segment_bytes=st.sampled_from([500, 4000, 1 << 20]),
    block=st.sampled_from([1, 90, 1000, 1 << 20]),
)
def test_a_search_finds_what_reading_everything_finds(
    told: list[Event], segment_bytes: int, block: int
) -> None:
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "_BLOCK", block)
        folder = Path(name) / "records"
        write(folder, told, segment_bytes)
        everything = list(all_records(folder))
        for wanted, is_wanted in SEARCHES:
            found = Search(folder)
            expected = [one for one in everything if is_wanted(one)]
            assert list(found.find(wanted)) == expected
            assert found.last(wanted) == (expected[-1] if expected else None)
            assert (found.broken, found.unread) == (0, "")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log of several segments; every third record, the last too, is about WHO."""
    folder = tmp_path / "records"
    tasks = [a_task(key.tgid, start_ns=key.start_ns) for key in (WHO, *FEW[2:])]
    write(folder, [an_exec(b"a", task=tasks[n % 3]) for n in range(28)], 10_000)
    assert len(segment_names(folder)) > 3
    return folder


WANTED = of_processes({entity(WHO)})


def numbers(found: Iterable[dict[str, Any]]) -> list[int]:
    return [one["event"]["sequence"] for one in found]


def test_only_the_newest_segments_are_searched_when_no_more_are_asked_for(
    log: Path,
) -> None:
    whole = numbers(Search(log).find(WANTED))
    assert len(whole) == 10
    names = segment_names(log)
    for newest in range(1, len(names) + 2):
        first = int(names[-newest:][0][:16], 16)
        expected = [number for number in whole if number >= first]
        assert numbers(Search(log, newest=newest).find(WANTED)) == expected


def change(log: Path, number: int, edit: Callable[[bytes], bytes]) -> None:
    """Change the line with this number."""
    [name] = [one for one in segment_names(log) if int(one[:16], 16) <= number][-1:]
    lines = (log / name).read_bytes().splitlines(keepends=True)
    at = number - int(name[:16], 16)
    lines[at] = edit(lines[at])
    (log / name).write_bytes(b"".join(lines))


def other_args(line: bytes) -> bytes:
    assert b'"args":["a"]' in line
    return line.replace(b'"args":["a"]', b'"args":["b"]')


@pytest.mark.parametrize(
    "edit",
    [
        other_args,
        lambda line: line.replace(b'"_c":"0', b'"_c":"1'),
        lambda line: line[:-3] + (b"0" if line[-4:-3] != b"0" else b"1") + line[-2:],
        lambda line: line[:-92] + b"}\n",
        lambda line: line[:200] + b"\n" + line[200:],
    ],
    ids=["text", "number", "hash", "no chain field", "newline"],
)
def test_a_changed_line_is_counted_once_and_never_shown(
    log: Path, edit: Callable[[bytes], bytes]
) -> None:
    whole = numbers(Search(log).find(WANTED))
    changed = whole[4]
    change(log, changed, edit)
    found = Search(log)
    for _ in range(3):
        shown = numbers(found.find(WANTED))
        assert changed not in shown
        assert set(whole) - {changed} >= set(shown)
        assert found.broken == 1
    assert len(shown) == len(whole) - 1


def test_a_line_that_was_removed_costs_the_one_after_it(log: Path) -> None:
    whole = numbers(Search(log).find(WANTED))
    change(log, whole[4] - 1, lambda _: b"")
    found = Search(log)
    assert whole[4] not in numbers(found.find(WANTED))
    assert found.broken == 1


def test_the_first_line_of_a_segment_is_no_record_whatever_it_says(log: Path) -> None:
    whole = numbers(Search(log).find(WANTED))
    name = segment_names(log)[1]
    lines = (log / name).read_bytes().splitlines(keepends=True)
    (log / name).write_bytes(b"".join(lines[1:]))
    found = Search(log)
    assert set(numbers(found.find(WANTED))) <= set(whole)
    assert found.broken <= 1


def test_a_torn_tail_is_no_line_and_no_fault(log: Path) -> None:
    whole = numbers(Search(log).find(WANTED))
    last = log / segment_names(log)[-1]
    data = last.read_bytes()
    begin = data.rindex(b"\n", 0, -1) + 1
    assert int(data[-84:-68], 16) == whole[-1]
    for end in range(begin, len(data), 50):
        last.write_bytes(data[:end])
        found = Search(log)
        assert numbers(found.find(WANTED)) == whole[:-1]
        assert (found.broken, found.unread) == (0, "")


def test_an_empty_segment_has_nothing_and_is_no_fault(log: Path) -> None:
    whole = numbers(Search(log).find(WANTED))
    (log / segment_name(1 << 40)).touch()
    found = Search(log)
    assert numbers(found.find(WANTED)) == whole
    assert found.last(WANTED) is not None
    assert (found.broken, found.unread) == (0, "")


def test_a_segment_that_is_cut_while_it_is_read_ends_there(tmp_path: Path) -> None:
    """A writer takes back what the disk refused."""
    folder = tmp_path / "records"
    task = a_task(WHO.tgid, start_ns=WHO.start_ns)
    write(folder, [an_exec(b"x" * 100_000, task=task)] * 300, 1 << 30)
    [name] = segment_names(folder)
    found = Search(folder)
    shown = found.find(WANTED)
    next(shown)
    with (folder / name).open("r+b") as file:
        file.truncate(4096)
    assert 0 < len(list(shown)) < 299
    assert found.broken == 0


@pytest.mark.parametrize("folder", ["none", "file", "none/below"])
def test_where_no_records_are_is_said_and_is_no_error(
    tmp_path: Path, folder: str
) -> None:
    (tmp_path / "file").touch()
    found = Search(tmp_path / folder)
    assert list(found.find(WANTED)) == []
    assert found.last(WANTED) is None
    assert found.unread.startswith(f"{tmp_path / folder}: ")
    assert Search(tmp_path).unread == f"{tmp_path}: there are no records"


def test_a_segment_that_is_gone_is_said(log: Path) -> None:
    found = Search(log)
    gone = log / segment_names(log)[1]
    gone.unlink()
    assert len(numbers(found.find(WANTED))) > 0
    assert found.unread.startswith(f"{gone}: ")


def test_an_accessor_is_not_taken_for_a_target(tmp_path: Path) -> None:
    folder = tmp_path / "records"
    tasks = [a_task(key.tgid, start_ns=key.start_ns) for key in (WHO, OTHER)]
    write(folder, [an_access(tasks[1], tasks[0]), an_access(tasks[0], tasks[1])])
    found = Search(folder)
    assert numbers(found.find(of_targets({entity(WHO)}))) == [2]
    assert numbers(found.find(of_processes({entity(WHO)}))) == [1]


def test_a_name_of_a_process_can_t_end_the_search(tmp_path: Path) -> None:
    folder = tmp_path / "records"
    image = an_image(b'"process":{"p')
    task = a_task(WHO.tgid, start_ns=WHO.start_ns, image=image)
    write(folder, [an_exec(imitation(b"process", a_key(7)), task=task)])
    found = Search(folder)
    assert numbers(found.find(of_pids([7], BOOT))) == []
    assert numbers(found.find(WANTED)) == [1]
