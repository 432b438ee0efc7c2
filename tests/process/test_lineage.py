"""Ancestors: nearest first, finite, never invented, and why there are no more."""

from agent.events import NOBODY, ChainEnd, Lineage, ProcessKey
from agent.process.ledger import Ledger
from agent.process.lineage import MAX_DEPTH, Lineages
from tests.builders import (
    INIT,
    a_fork,
    a_key,
    a_prctl,
    a_task,
    an_exec,
    an_exit,
    an_image,
)


def born(
    ledger: Ledger, tgid: int, parent: ProcessKey, comm: bytes = b"x"
) -> ProcessKey:
    task = a_task(tgid, real_parent=parent, image=an_image(comm))
    return ledger.apply(a_fork(task)).key


def lineage(ledger: Ledger, key: ProcessKey, asked: Lineages | None = None) -> Lineage:
    entry = ledger.get(key)
    assert entry is not None
    return (asked or Lineages(ledger)).of(entry)


def names(found: Lineage) -> list[bytes]:
    return [one.comm for one in found.ancestors]


def a_node() -> tuple[Ledger, ProcessKey]:
    """A ledger that knows pid 1."""
    ledger = Ledger()
    task = a_task(1, start_ns=5, real_parent=NOBODY, image=an_image(b"init"))
    return ledger, ledger.observe(task, b"/sbin/init", b"init\0").key


def test_ancestors_come_nearest_first_and_end_at_the_root() -> None:
    ledger, init = a_node()
    shell = born(ledger, 10, init, b"sshd")
    tool = born(ledger, 11, shell, b"bash")
    found = lineage(ledger, born(ledger, 12, tool))
    assert names(found) == [b"bash", b"sshd", b"init"]
    assert found.end is ChainEnd.ROOT


def test_the_root_has_no_ancestors() -> None:
    ledger, init = a_node()
    found = lineage(ledger, init)
    assert (names(found), found.end) == ([], ChainEnd.ROOT)


def test_a_parent_that_nobody_met_is_not_invented() -> None:
    ledger = Ledger()
    shell = born(ledger, 10, a_key(9), b"bash")
    found = lineage(ledger, born(ledger, 11, shell))
    assert names(found) == [b"bash"]
    assert found.end is ChainEnd.UNKNOWN_PARENT


def test_a_parent_s_pid_under_another_start_is_another_process() -> None:
    ledger, init = a_node()
    born(ledger, 10, init)
    found = lineage(ledger, born(ledger, 11, a_key(10, start_ns=1)))
    assert (names(found), found.end) == ([], ChainEnd.UNKNOWN_PARENT)


def test_a_chain_ends_at_its_greatest_depth() -> None:
    ledger, key = a_node()
    for tgid in range(2, MAX_DEPTH + 10):
        key = born(ledger, tgid, key)
    found = lineage(ledger, key)
    assert (len(found.ancestors), found.end) == (MAX_DEPTH, ChainEnd.DEPTH)


def test_a_cycle_is_finite_and_called_one() -> None:
    ledger = Ledger()
    born(ledger, 10, a_key(11))
    found = lineage(ledger, born(ledger, 11, a_key(10)))
    assert found.end is ChainEnd.CYCLE
    assert len(found.ancestors) <= MAX_DEPTH


def test_its_own_parent_is_a_cycle() -> None:
    ledger = Ledger()
    assert lineage(ledger, born(ledger, 10, a_key(10))).end is ChainEnd.CYCLE


def test_siblings_share_one_answer() -> None:
    ledger, init = a_node()
    asked = Lineages(ledger)
    first, second = born(ledger, 10, init), born(ledger, 11, init)
    assert lineage(ledger, first, asked) is lineage(ledger, second, asked)


def test_a_dead_parent_is_an_ancestor_still() -> None:
    ledger, init = a_node()
    shell = born(ledger, 10, init, b"bash")
    child = born(ledger, 11, shell)
    ledger.apply(an_exit(a_task(10)))
    assert names(lineage(ledger, child)) == [b"bash", b"init"]


def test_a_new_program_of_an_ancestor_is_a_new_answer() -> None:
    """Whoever keeps text for an answer must not keep the old name."""
    ledger, init = a_node()
    asked = Lineages(ledger)
    shell = born(ledger, 10, init, b"bash")
    child = born(ledger, 11, shell)
    before = lineage(ledger, child, asked)
    ledger.apply(an_exec(b"n", task=a_task(10, image=an_image(b"nginx"))))
    after = lineage(ledger, child, asked)
    assert after is not before
    assert names(after) == [b"nginx", b"init"]


def test_a_new_name_of_an_ancestor_is_a_new_answer() -> None:
    ledger, init = a_node()
    asked = Lineages(ledger)
    shell = born(ledger, 10, init, b"bash")
    child = born(ledger, 11, shell)
    before = lineage(ledger, child, asked)
    assert names(before) == [b"bash", b"init"]
    task = a_task(10, real_parent=init, image=an_image(b"kworker"))
    assert ledger.apply(a_prctl(task)).key == shell
    after = lineage(ledger, child, asked)
    assert names(after) == [b"kworker", b"init"]
    assert after is not before


def test_a_new_program_is_a_new_answer_also_after_all_children_were_forgotten() -> None:
    ledger = Ledger(exited=0)
    asked = Lineages(ledger)
    shell = born(ledger, 10, INIT, b"bash")
    before = lineage(ledger, born(ledger, 11, shell), asked)
    ledger.apply(an_exit(a_task(11, real_parent=shell)))
    ledger.apply(an_exec(b"n", task=a_task(10, image=an_image(b"nginx"))))
    after = lineage(ledger, born(ledger, 12, shell), asked)
    assert after is not before


def test_a_parent_met_late_is_an_ancestor_from_then_on() -> None:
    ledger = Ledger()
    asked = Lineages(ledger)
    child = born(ledger, 11, a_key(10))
    assert lineage(ledger, child, asked).end is ChainEnd.UNKNOWN_PARENT
    ledger.apply(an_exec(b"b", task=a_task(10, image=an_image(b"bash"))))
    assert names(lineage(ledger, child, asked)) == [b"bash"]


def test_a_forgotten_ancestor_is_an_unknown_parent() -> None:
    ledger = Ledger(capacity=2, exited=2)
    asked = Lineages(ledger)
    child = born(ledger, 11, born(ledger, 10, INIT, b"bash"))
    assert names(lineage(ledger, child, asked)) == [b"bash"]
    ledger.apply(an_exit(a_task(10)))
    born(ledger, 12, INIT)
    found = lineage(ledger, child, asked)
    assert (names(found), found.end) == ([], ChainEnd.UNKNOWN_PARENT)
