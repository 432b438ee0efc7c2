"""The ledger: one entry a process, kept as long as somebody may ask, and bounded."""

import pytest

from agent.events import NOBODY, Event, ProcessKey
from agent.process.ledger import KEPT_ARGV, Ledger
from tests.builders import (
    INIT,
    NO_TASK,
    NOW,
    SECOND,
    STARTED,
    a_failed_exec,
    a_fork,
    a_key,
    a_task,
    an_access,
    an_exec,
    an_exit,
    an_image,
)

SHELL, CHILD = a_key(1000), a_key(1001)
child_task = a_task(1001, real_parent=SHELL, image=an_image(b"child", euid=7))


def a_ledger(*events: Event) -> Ledger:
    ledger = Ledger()
    for event in events:
        ledger.apply(event)
    return ledger


def test_a_birth_tells_whose_child_and_by_whom() -> None:
    creator = a_key(1500)
    ledger = a_ledger(a_fork(child_task, creator=creator))
    entry = ledger.get(CHILD)
    assert entry is not None
    assert (entry.known, entry.real_parent, entry.creator) == ("seen", SHELL, creator)
    assert (entry.comm, entry.uid, entry.cgroup_id) == (b"child", 7, 77)


def test_a_child_runs_the_program_of_its_creator_until_its_own() -> None:
    shell = an_exec(b"sh", b"-c", executable=b"/bin/sh", task=a_task(1000))
    ledger = a_ledger(shell, a_fork(child_task, creator=SHELL))
    entry = ledger.get(CHILD)
    assert entry is not None
    assert (entry.executable, entry.argv) == (b"/bin/sh", b"sh\0-c\0")
    ledger.apply(an_exec(b"ls", executable=b"/bin/ls", task=child_task, bt_ns=NOW))
    assert (entry.executable, entry.argv) == (b"/bin/ls", b"ls\0")


def test_a_program_changes_name_and_user_and_not_the_birth() -> None:
    ledger = a_ledger(a_fork(child_task, creator=SHELL))
    later = a_task(1001, real_parent=INIT, image=an_image(b"sudo", euid=0))
    entry = ledger.apply(an_exec(b"sudo", task=later))
    assert (entry.comm, entry.uid) == (b"sudo", 0)
    assert (entry.real_parent, entry.creator) == (SHELL, SHELL)


def test_an_end_keeps_the_entry_with_its_time_and_status() -> None:
    ledger = a_ledger(an_exec(b"x"), an_exit(status=256, bt_ns=NOW + 5))
    entry = ledger.get(SHELL)
    assert entry is not None
    assert (entry.exited_ns, entry.status, entry.comm) == (NOW + 5, 256, b"bash")
    assert list(ledger.living()) == []


def test_of_two_ends_the_first_counts() -> None:
    ledger = a_ledger(an_exit(bt_ns=NOW), an_exit(bt_ns=NOW + 9))
    entry = ledger.get(SHELL)
    assert entry is not None
    assert entry.exited_ns == NOW


def test_a_reused_pid_is_another_process() -> None:
    later = a_task(1000, start_ns=STARTED + 90 * SECOND)
    ledger = a_ledger(an_exec(b"old"), an_exit(), a_fork(later))
    old, new = ledger.get(SHELL), ledger.by_tgid(1000)
    assert old is not None
    assert new is not None
    assert (old.argv, new.argv) == (b"old\0", b"")
    assert new.key == later.key
    assert len(ledger) == 2


def test_a_reused_pid_ends_a_process_whose_end_was_lost() -> None:
    start = STARTED + 90 * SECOND
    ledger = a_ledger(an_exec(b"old"), a_fork(a_task(1000, start_ns=start)))
    old = ledger.get(SHELL)
    assert old is not None
    assert old.exited_ns == start
    assert [one.key.start_ns for one in ledger.living()] == [start]


def test_a_late_word_of_the_last_owner_of_a_pid_changes_nothing_for_the_new_one() -> (
    None
):
    new = a_task(1000, start_ns=STARTED + 90 * SECOND)
    ledger = a_ledger(a_fork(new), an_exit(a_task(1000)))
    entry = ledger.by_tgid(1000)
    assert entry is not None
    assert (entry.key, entry.exited_ns) == (new.key, 0)


def test_two_living_processes_never_have_one_pid() -> None:
    new = a_task(1000, start_ns=STARTED + 90 * SECOND)
    ledger = a_ledger(a_fork(new), an_exec(b"late", task=a_task(1000)))
    assert [one.key for one in ledger.living()] == [new.key]


@pytest.mark.parametrize(
    "event", [an_exec(b"x"), a_failed_exec(b"x"), a_fork(), an_exit(), an_access()]
)
def test_an_event_about_a_stranger_makes_an_entry_and_no_guess(event: Event) -> None:
    entry = Ledger().apply(event)
    assert (entry.key, entry.known) == (event.task.key, "seen")


def test_the_target_of_an_access_is_met_by_it() -> None:
    target = a_task(2000, image=an_image(b"python3"))
    entry = a_ledger(an_access(target)).get(target.key)
    assert entry is not None
    assert (entry.known, entry.comm) == ("seen", b"python3")


def test_an_access_to_nobody_makes_no_entry_of_nobody() -> None:
    ledger = a_ledger(an_access(NO_TASK))
    assert ledger.get(NOBODY) is None
    assert len(ledger) == 1


def test_a_snapshot_is_told_apart_from_what_was_seen() -> None:
    ledger = Ledger()
    entry = ledger.observe(a_task(1000), b"/bin/sh", b"sh\0")
    assert (entry.known, entry.executable, entry.argv) == (
        "observed",
        b"/bin/sh",
        b"sh\0",
    )


def test_a_snapshot_does_not_overwrite_what_events_told() -> None:
    ledger = a_ledger(an_exec(b"true", executable=b"/bin/true"))
    entry = ledger.observe(a_task(1000), b"/bin/forged", b"forged\0")
    assert (entry.known, entry.executable, entry.argv) == (
        "seen",
        b"/bin/true",
        b"true\0",
    )


def test_an_entry_keeps_the_beginning_of_a_long_argv() -> None:
    ledger = a_ledger(an_exec(b"y" * 3 * KEPT_ARGV))
    entry = ledger.get(SHELL)
    assert entry is not None
    assert entry.argv == b"y" * KEPT_ARGV


def a_family(ledger: Ledger, children: int) -> None:
    ledger.apply(a_fork(a_task(1000)))
    for tgid in range(1001, 1001 + children):
        ledger.apply(a_fork(a_task(tgid, real_parent=SHELL)))


def test_a_dead_parent_answers_as_long_as_a_child_of_it_is_known() -> None:
    ledger = Ledger(exited=2)
    a_family(ledger, 1)
    ledger.apply(an_exit(a_task(1000)))
    for tgid in range(5000, 5100):
        ledger.apply(a_fork(a_task(tgid)))
        ledger.apply(an_exit(a_task(tgid)))
    assert ledger.get(SHELL) is not None
    ledger.apply(an_exit(a_task(1001, real_parent=SHELL)))
    for tgid in range(6000, 6100):
        ledger.apply(a_fork(a_task(tgid)))
        ledger.apply(an_exit(a_task(tgid)))
    assert ledger.get(SHELL) is None
    assert len(ledger) <= 3


def test_dead_leaves_go_first_then_dead_parents_then_the_oldest_living() -> None:
    ledger = Ledger(capacity=4, exited=4)
    a_family(ledger, 2)
    leaf = a_task(3000)
    ledger.apply(a_fork(leaf))
    ledger.apply(an_exit(leaf))
    ledger.apply(an_exit(a_task(1000)))
    ledger.apply(a_fork(a_task(4000)))
    assert ledger.get(leaf.key) is None
    assert ledger.get(SHELL) is not None
    ledger.apply(a_fork(a_task(4001)))
    assert ledger.get(SHELL) is None
    assert (ledger.evicted_ancestors, ledger.evicted_living) == (1, 0)
    ledger.apply(a_fork(a_task(4002)))
    assert ledger.get(CHILD) is None
    assert ledger.evicted_living == 1
    assert len(ledger) == 4


def test_a_parent_met_late_is_kept_for_all_its_children() -> None:
    """Its entry was opened after one child's; that one's end must not count twice."""
    ledger = Ledger(exited=0)
    early, late = (a_task(tgid, real_parent=SHELL) for tgid in (1001, 1002))
    for event in (a_fork(early), a_fork(a_task(1000)), a_fork(late)):
        ledger.apply(event)
    ledger.apply(an_exit(early))
    ledger.apply(an_exit(a_task(1000)))
    assert ledger.get(late.key) is not None
    assert ledger.get(SHELL) is not None


def test_a_parent_is_kept_for_the_child_that_takes_the_pid_of_its_last_one() -> None:
    """The old child is forgotten while the new one is opened, and the parent not."""
    ledger = Ledger(capacity=3, exited=0)
    for key, parent in (
        (ProcessKey(1, 1), NOBODY),
        (ProcessKey(3, 1), ProcessKey(1, 1)),
        (ProcessKey(1, 2), NOBODY),
        (ProcessKey(3, 2), ProcessKey(1, 1)),
    ):
        ledger.apply(
            a_failed_exec(
                task=a_task(key.tgid, start_ns=key.start_ns, real_parent=parent)
            )
        )
    assert ledger.get(ProcessKey(1, 1)) is not None
    assert ledger.get(ProcessKey(3, 1)) is None
