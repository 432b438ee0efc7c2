"""Questions in a child: each is answered, or given up in time, and the rest go on."""

import os
import select
import time
from pathlib import Path

import pytest

from agent.process.asking import answer, answers


@pytest.mark.parametrize(
    ("question", "told"),
    [(lambda: b"told", b"told"), (lambda: bytes(3 << 20), bytes(3 << 20))],
)
def test_an_answer_comes_whole(question: object, told: bytes) -> None:
    assert answer(question, 30.0) == told  # type: ignore[arg-type]


def test_a_question_that_fails_is_answered_by_nothing() -> None:
    assert answer(lambda: Path("/nowhere").read_bytes(), 30.0) == b""


def children() -> set[int]:
    lists = Path("/proc/self/task").glob("*/children")
    return {int(pid) for one in lists for pid in one.read_text().split()}


def test_who_does_not_answer_is_ended() -> None:
    before = children()
    assert answer(lambda: os.read(os.pipe()[0], 1), 0.05) is None
    for pid in children() - before:
        waiting = select.poll()
        waiting.register(os.pidfd_open(pid))
        assert waiting.poll(30_000)
        os.waitpid(pid, 0)


def test_who_is_asked_holds_nothing_of_ours() -> None:
    folder = Path("/proc/self/fd")
    ours = [*os.pipe(), os.dup(1)]

    def held() -> bytes:
        return b" ".join(os.fsencode(one.name) for one in folder.iterdir())

    told = answer(held, 30.0) or b""
    for one in ours:
        os.close(one)
    assert len(told.split()) == 2  # where it answers, and the folder it reads
    assert told.split()[0] == b"0"


def never() -> bytes:
    return os.read(os.pipe()[0], 1)


def test_many_are_answered_in_their_order() -> None:
    questions = [lambda n=n: b"%d" % n * n for n in range(300)]
    assert list(answers(questions, 30.0, 30.0)) == [b"%d" % n * n for n in range(300)]


def test_after_one_that_is_never_answered_the_others_are() -> None:
    def failing() -> bytes:
        raise OSError

    questions = [lambda: b"a", never, failing, lambda: b"d", never]
    told = list(answers(questions, 0.05, 30.0))
    assert told == [b"a", None, b"", b"d", None]


def test_who_blocks_many_does_not_block_the_asker_as_often() -> None:
    asked = list(answers([never] * 10_000 + [lambda: b"a"], 0.02, 0.1))
    assert len(asked) == 10_001
    assert set(asked) == {None}


def test_nothing_asked_is_nothing_told() -> None:
    assert list(answers([], 1.0, 1.0)) == []


def test_an_asker_that_stops_listening_leaves_no_child() -> None:
    before = children()
    told = answers([lambda: b"a", lambda: time.sleep(60) or b""], 30.0, 30.0)
    assert next(told) == b"a"
    told.close()
    assert children() == before
