"""The climb: the best rung that is proven, and a true word on every one that is not."""

from collections.abc import Collection

import pytest

from agent.errors import LoadError, NotPermittedError
from agent.sensor.hooks import Hook, HookState, How, Rung, Sense
from agent.sensor.ladder import Ladder, climb
from agent.sensor.sources import BY_FUNCTION

INSTRUCTIONS = 321


class Kernel:
    """A kernel that refuses some hooks, and where some never fire.

    In: the names of programs. Out: in `journal`, what was asked of it, in order.
    """

    def __init__(self) -> None:
        self.refuses: dict[str, Exception] = {}
        self.silent: set[str] = set()
        self.attached: set[str] = set()
        self.journal: list[str] = []
        self.asked: list[set[str]] = []

    def place(self, hook: Hook) -> str:
        return f"here_{hook.target}"

    def attach(self, hook: Hook) -> "Link":
        if error := self.refuses.get(hook.program):
            self.journal.append(f"refuse {hook.program}")
            raise error
        assert hook.program not in self.attached
        self.attached.add(hook.program)
        self.journal.append(f"attach {hook.program}")
        return Link(hook.program, self)

    def guard_by(self, rung: int) -> None:
        self.journal.append(f"guard by {rung}")

    def prove(self, names: Collection[str]) -> set[str]:
        """Every proof is named as its program."""
        if names:
            self.asked.append(set(names))
        return {one for one in names if one in self.attached} - self.silent


class Link:
    """What holds a hook of that kernel, in the shape of an Attached."""

    is_link, instructions = True, INSTRUCTIONS

    def __init__(self, program: str, kernel: Kernel) -> None:
        self.program, self.kernel = program, kernel

    def close(self) -> None:
        self.kernel.attached.remove(self.program)
        self.kernel.journal.append(f"detach {self.program}")


def hook(program: str, *, optional: bool = False) -> Hook:
    return Hook(program, How.FENTRY, "call", program, (BY_FUNCTION,), optional)


def rung(name: str, *hooks: Hook, unseen: str = "", denied: int = 0) -> Rung:
    return Rung(name, hooks, unseen, denied)


THREE = Sense(
    "ptrace",
    (
        rung("fentry", hook("result_a"), hook("enter_a"), unseen="x32"),
        rung("kprobe", hook("result_b"), hook("enter_b")),
        rung("tracepoint", hook("result_c"), hook("enter_c"), unseen="int 80"),
    ),
)


@pytest.fixture
def kernel() -> Kernel:
    return Kernel()


def climbed(
    kernel: Kernel, *senses: Sense, forbidden: Collection[str] = ()
) -> list[Ladder]:
    ladders = [Ladder(sense, kernel, forbidden) for sense in senses]
    climb(ladders, kernel.prove)
    return ladders


def rung_of(ladder: Ladder) -> str:
    return ladder.standing.rung.name if ladder.standing else ""


def of_rung(ladder: Ladder, name: str) -> list[HookState]:
    return [state for state in ladder.states if state.rung == name]


def test_the_best_rung_is_taken_and_no_other_is_tried(kernel: Kernel) -> None:
    [ladder] = climbed(kernel, THREE)
    assert rung_of(ladder) == "fentry"
    assert kernel.journal == ["attach result_a", "attach enter_a"]
    assert kernel.asked == [{"result_a", "enter_a"}]
    assert ladder.states == [
        HookState(
            sense="ptrace",
            rung="fentry",
            program=program,
            target="here_call",
            attached=True,
            pin=f"{program}__fentry__call",
            proven=True,
            unseen="x32",
            proven_ns=ladder.states[0].proven_ns,
            instructions=INSTRUCTIONS,
        )
        for program in ("result_a", "enter_a")
    ]
    assert ladder.states[0].proven_ns > 0
    assert ladder.links.keys() == {"result_a__fentry__call", "enter_a__fentry__call"}


@pytest.mark.parametrize(
    "error",
    [LoadError("BTF has no\n  x"), OSError(22, "Invalid argument"), KeyError("x")],
    ids=lambda error: type(error).__name__,
)
def test_a_refused_rung_is_left_for_the_next_and_its_reason_is_kept(
    kernel: Kernel, error: Exception
) -> None:
    kernel.refuses["enter_a"] = error
    [ladder] = climbed(kernel, THREE)
    assert rung_of(ladder) == "kprobe"
    refused = of_rung(ladder, "fentry")[1]
    assert refused.reason == " ".join(str(error).split())
    assert (refused.attached, refused.proven, refused.instructions) == (False, False, 0)
    assert [state.rung for state in ladder.states] == ["fentry"] * 2 + ["kprobe"] * 2


def test_what_a_refused_rung_held_is_detached_before_the_next_is_tried(
    kernel: Kernel,
) -> None:
    kernel.refuses["enter_a"] = LoadError("no")
    climbed(kernel, THREE)
    assert kernel.journal == [
        "attach result_a",
        "refuse enter_a",
        "detach result_a",
        "attach result_b",
        "attach enter_b",
    ]


def test_a_kernel_that_permits_nothing_ends_the_climb(kernel: Kernel) -> None:
    """Without maps no rung can be had: going on would give a list of the same."""
    kernel.refuses["result_a"] = NotPermittedError("no maps")
    with pytest.raises(NotPermittedError):
        climbed(kernel, THREE)


def test_a_rung_that_does_not_fire_is_left_and_detached_first(kernel: Kernel) -> None:
    kernel.silent = {"enter_a"}
    [ladder] = climbed(kernel, THREE)
    assert rung_of(ladder) == "kprobe"
    assert kernel.journal[2:] == [
        "detach result_a",
        "detach enter_a",
        "attach result_b",
        "attach enter_b",
    ]
    assert kernel.asked == [{"result_a", "enter_a"}, {"result_b", "enter_b"}]
    fired, silent = of_rung(ladder, "fentry")
    assert (silent.attached, silent.proven) == (False, False)
    assert silent.reason == "attached, but it did not fire"
    assert (fired.attached, fired.proven, fired.proven_ns) == (False, False, 0)
    assert kernel.attached == {"result_b", "enter_b"}


def test_a_hook_that_was_given_no_time_to_fire_is_not_said_to_be_silent(
    kernel: Kernel,
) -> None:
    kernel.refuses["enter_a"] = LoadError("BTF has no such function")
    [ladder] = climbed(kernel, THREE)
    assert kernel.asked == [{"result_b", "enter_b"}]
    assert "BTF has no such function" in of_rung(ladder, "fentry")[0].reason


def test_only_the_senses_that_have_to_go_on_are_proven_again(kernel: Kernel) -> None:
    other = Sense("fork", (rung("tp_btf", hook("on_fork")),))
    kernel.silent = {"enter_a"}
    ptrace, fork = climbed(kernel, THREE, other)
    assert (rung_of(ptrace), rung_of(fork)) == ("kprobe", "tp_btf")
    assert kernel.asked == [{"result_a", "enter_a", "on_fork"}, {"result_b", "enter_b"}]
    assert kernel.journal.count("attach on_fork") == 1


def test_a_forbidden_rung_is_not_even_tried(kernel: Kernel) -> None:
    [ladder] = climbed(kernel, THREE, forbidden=["fentry", "kprobe"])
    assert rung_of(ladder) == "tracepoint"
    assert kernel.journal == ["attach result_c", "attach enter_c"]
    for name in ("fentry", "kprobe"):
        states = of_rung(ladder, name)
        assert [one.reason for one in states] == ["forbidden by the configuration"] * 2
        assert not any(one.attached for one in states)


def test_where_every_rung_is_forbidden_none_is_taken(kernel: Kernel) -> None:
    names = [one.name for one in THREE.rungs]
    [ladder] = climbed(kernel, THREE, forbidden=names)
    assert ladder.standing is None
    assert (kernel.journal, ladder.links) == ([], {})
    assert len(ladder.states) == 6


OPTIONAL = Sense(
    "calls",
    (
        rung("fentry", hook("needed"), hook("compat", optional=True)),
        rung("tracepoint", hook("other")),
    ),
)


@pytest.mark.parametrize("how", ["refused", "silent"])
def test_a_rung_is_whole_without_its_optional_hooks(kernel: Kernel, how: str) -> None:
    if how == "refused":
        kernel.refuses["compat"] = LoadError("this kernel has no such call")
    else:
        kernel.silent = {"compat"}
    [ladder] = climbed(kernel, OPTIONAL)
    assert rung_of(ladder) == "fentry"
    needed, compat = ladder.states
    assert needed.proven
    assert (compat.attached, compat.proven) == (how == "silent", False)
    assert compat.optional


def test_an_optional_hook_does_not_make_up_for_a_needed_one(kernel: Kernel) -> None:
    kernel.silent = {"needed"}
    [ladder] = climbed(kernel, OPTIONAL)
    assert rung_of(ladder) == "tracepoint"


def test_without_a_whole_rung_it_stands_on_the_one_that_gives_most(
    kernel: Kernel,
) -> None:
    kernel.refuses = {"enter_a": LoadError("a"), "result_c": LoadError("c")}
    kernel.silent = {"enter_b"}
    [ladder] = climbed(kernel, THREE)
    assert rung_of(ladder) == "kprobe"  # a hook of the others was never proven
    assert kernel.attached == {"result_b", "enter_b"}
    fired, silent = of_rung(ladder, "kprobe")
    assert (fired.attached, fired.proven) == (True, True)
    assert (silent.attached, silent.proven) == (True, False)
    assert len(ladder.states) == 6
    assert ladder.links.keys() == {"result_b__fentry__call", "enter_b__fentry__call"}


def test_of_two_rungs_that_give_as_much_the_better_one_is_kept(kernel: Kernel) -> None:
    kernel.refuses = {f"enter_{one}": LoadError(one) for one in "abc"}
    [ladder] = climbed(kernel, THREE)
    assert rung_of(ladder) == "fentry"
    assert kernel.attached == {"result_a"}
    proven, refused = of_rung(ladder, "fentry")
    assert proven.proven
    assert (refused.attached, refused.reason) == (False, "a")


def test_where_nothing_can_be_attached_there_is_no_rung(kernel: Kernel) -> None:
    programs = [f"{kind}_{one}" for kind in ("enter", "result") for one in "abc"]
    kernel.refuses = {program: LoadError("EPERM") for program in programs}
    [ladder] = climbed(kernel, THREE)
    assert ladder.standing is None
    assert {state.reason for state in ladder.states} == {"EPERM"}
    assert kernel.attached == set()


def test_the_guard_knows_by_which_rung_it_refuses_before_it_is_proven(
    kernel: Kernel,
) -> None:
    rungs = (
        rung("lsm", hook("by_lsm"), denied=1),
        rung("signal", hook("by_signal"), denied=3),
    )
    kernel.silent = {"by_lsm"}
    [ladder] = climbed(kernel, Sense("guard", rungs))
    assert rung_of(ladder) == "signal"
    assert kernel.journal == [
        "attach by_lsm",
        "guard by 1",
        "detach by_lsm",
        "attach by_signal",
        "guard by 3",
    ]


def test_a_climb_without_senses_ends(kernel: Kernel) -> None:
    climb([], kernel.prove)
    assert kernel.asked == []
