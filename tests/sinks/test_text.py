"""Pieces of text: exact, complete, and safe on a terminal."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.events import Flag
from agent.sinks.text import (
    Stamps,
    Users,
    clone_flags,
    flags,
    quoted,
    rfc3339,
    safe,
    text,
)
from tests.builders import HOST_USER_NS, an_image
from tests.strategies import words

SECOND = 1_000_000_000
times = st.integers(0, 1 << 62)


@given(st.binary())
def test_text_is_utf_8_where_it_is_and_escapes_elsewhere(raw: bytes) -> None:
    shown = text(raw)
    if "\\x" not in shown:
        assert shown.encode() == raw
    assert json.loads(quoted(raw)) == shown


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_utf_8_is_not_touched(word: str) -> None:
    assert text(word.encode()) == word


@pytest.mark.parametrize(
    ("raw", "shown"),
    [(b"\xff", r"\xff"), (b"a\xc3", r"a\xc3"), (b"\xed\xa0\x80", r"\xed\xa0\x80")],
)
def test_every_byte_that_is_no_utf_8_is_shown(raw: bytes, shown: str) -> None:
    assert text(raw) == shown


@pytest.mark.parametrize(
    ("wall_ns", "shown"),
    [
        (0, "1970-01-01T00:00:00.000000000Z"),
        (1, "1970-01-01T00:00:00.000000001Z"),
        (951_782_400 * SECOND - 1, "2000-02-28T23:59:59.999999999Z"),
        (951_782_400 * SECOND, "2000-02-29T00:00:00.000000000Z"),
    ],
)
def test_a_time_is_rfc_3339_with_nine_digits(wall_ns: int, shown: str) -> None:
    assert rfc3339(wall_ns) == shown


@given(st.lists(times, min_size=1, max_size=20))
def test_a_stamp_is_the_time_whatever_came_before(moments: list[int]) -> None:
    stamps = Stamps()
    for moment in moments:
        shown, identifier = stamps(moment)
        assert shown == rfc3339(moment)
        head = identifier.replace("-", "")[:12]
        assert int(head, 16) == moment // 1_000_000


@given(st.lists(times, min_size=2, max_size=30))
def test_no_two_ids_of_a_writer_are_the_same(moments: list[int]) -> None:
    stamps = Stamps()
    ids = [stamps(moment)[1] for moment in moments]
    assert len(set(ids)) == len(ids)


@given(st.lists(st.integers(0, 10 * SECOND), min_size=2, max_size=30))
def test_ids_of_a_writer_sort_as_their_times(moments: list[int]) -> None:
    stamps = Stamps()
    ids = [stamps(moment)[1] for moment in sorted(moments)]
    assert sorted(ids) == ids


def test_two_writers_do_not_give_the_same_ids() -> None:
    one, other = Stamps(), Stamps()
    assert {one(n)[1] for n in range(50)}.isdisjoint(other(n)[1] for n in range(50))


@given(words())
def test_a_harmless_word_stays_and_no_other_reaches_a_terminal(raw: bytes) -> None:
    word = text(raw)
    shown = safe(word)
    assert shown.isprintable()
    assert " " not in shown or shown[0] in "\"'"
    if word.isprintable() and word and " " not in word:
        assert shown == word


@pytest.mark.parametrize(
    "nasty", ["\x1b[2J", "\u202e", "\n", "\r", "\0", "\x7f", "\x9b"]
)
def test_what_steers_a_terminal_is_escaped(nasty: str) -> None:
    shown = safe(f"rm{nasty}x")
    assert nasty not in shown
    assert shown.startswith("'rm\\")


def test_an_empty_word_can_be_seen() -> None:
    assert safe("") == "''"


def test_all_flags_have_a_name() -> None:
    every = sum(int(flag) for flag in Flag)
    assert json.loads(flags(every)) == [flag.name.lower() for flag in Flag]
    assert json.loads(flags(0)) == []


def test_clone_flags_have_their_names() -> None:
    assert json.loads(clone_flags(0)) == []
    assert json.loads(clone_flags(0x100 | 0x40000000)) == ["CLONE_VM", "CLONE_NEWNET"]


PASSWD = """root:x:0:0:root:/root:/bin/sh
toor:x:0:0::/root:/bin/sh
ada:x:1000:1000:Ada,,,:/home/ada:/bin/sh
broken
:x:
nobody:x:not-a-number:1::/:
quo"te:x:1001:1001::/:
"""


@pytest.fixture
def users(tmp_path: Path) -> Users:
    passwd = tmp_path / "passwd"
    passwd.write_text(PASSWD)
    return Users(HOST_USER_NS, passwd)


@pytest.mark.parametrize(
    ("uid", "name"), [(0, "root"), (1000, "ada"), (1001, 'quo"te'), (5, "5")]
)
def test_the_first_name_of_a_uid_is_its_name(users: Users, uid: int, name: str) -> None:
    context = an_image(euid=uid).context
    assert users.name(context) == name
    told = json.loads(users.user(context))
    assert told.get("name", told["id"]) == name


def test_without_a_passwd_file_users_are_numbers(tmp_path: Path) -> None:
    users = Users(HOST_USER_NS, tmp_path / "none")
    assert users.name(an_image(euid=0).context) == "0"


def test_a_number_of_another_user_namespace_has_no_name(users: Users) -> None:
    context = an_image(euid=1000, ns_user=1).context
    assert users.name(context) == "1000"
    assert json.loads(users.user(context)) == {"id": "1000"}
