"""Who bears a kernel thread's name and is none."""

import pytest

from agent.events import Image, Listing, Task
from agent.process.lookalike import Lookalikes
from tests.builders import CONTEXT, SECOND, a_task, an_image

THREAD = a_task(20, kernel=True, image=an_image(b"kworker/0:1", ino=0))
SHELL = a_task(30, image=an_image(b"bash"))


def named(tgid: int, comm: bytes, **changes: int) -> Task:
    return a_task(tgid, image=an_image(comm, **changes))


def a_listing(at: int, *changed: Task, besides: tuple[Task, ...] = ()) -> Listing:
    starts = {task.key.tgid: task.key.start_ns for task in (*changed, *besides)}
    return Listing(at * SECOND, starts, {}, list(changed))


@pytest.mark.parametrize(
    "comm", [b"kworker/0:1", b"kworker/3:2H", b"[kthreadd]", b"[x]"]
)
def test_an_imitation_is_told_at_the_second_listing(comm: bytes) -> None:
    disguised, looked = named(40, comm), Lookalikes()
    assert looked.take(a_listing(200, THREAD, SHELL, disguised)) == []
    everybody = (THREAD, SHELL, disguised)
    [found] = looked.take(a_listing(210, besides=everybody))
    assert (found.key, found.kind) == (disguised.key, "kernel_thread_lookalike")
    assert (found.first_ns, found.confirmed_ns) == (200 * SECOND, 210 * SECOND)


def test_kernel_threads_and_ordinary_names_are_no_imitations() -> None:
    looked = Lookalikes()
    assert looked.take(a_listing(200, THREAD, SHELL, named(41, b"kworker"))) == []
    assert looked.take(a_listing(210, besides=(THREAD, SHELL, named(41, b"")))) == []


def test_a_name_that_was_only_passing_is_not_told() -> None:
    """A helper of the kernel's bears its maker's name until its program has its own."""
    looked = Lookalikes()
    looked.take(a_listing(200, THREAD, named(40, b"kworker/0:1")))
    again = a_listing(210, named(40, b"modprobe"), besides=(THREAD,))
    assert looked.take(again) == []
    assert looked.take(a_listing(220, besides=(THREAD, named(40, b"")))) == []


def test_a_helper_without_a_program_yet_is_not_doubted() -> None:
    looked, helper = Lookalikes(), named(40, b"kworker/0:1", ino=0)
    looked.take(a_listing(200, THREAD, helper))
    assert looked.take(a_listing(210, besides=(THREAD, helper))) == []


def test_another_process_with_the_pid_has_a_first_look_of_its_own() -> None:
    looked = Lookalikes()
    looked.take(a_listing(200, THREAD, named(40, b"kworker/0:1")))
    other = a_task(40, start_ns=205 * SECOND, image=an_image(b"kworker/0:1"))
    assert looked.take(a_listing(210, other, besides=(THREAD,))) == []
    assert len(looked.take(a_listing(220, besides=(THREAD, other)))) == 1


def test_names_of_threads_that_are_gone_are_free_again() -> None:
    looked = Lookalikes()
    looked.take(
        a_listing(
            200,
            a_task(
                20, kernel=True, image=Image(b"nfsd", an_image().executable, CONTEXT)
            ),
        )
    )
    looked.take(a_listing(210, named(40, b"nfsd")))
    assert looked.take(a_listing(220, besides=(named(40, b"nfsd"),))) == []
