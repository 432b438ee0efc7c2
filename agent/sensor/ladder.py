"""The climb: each sense stands on the best rung that this kernel accepts and proves.

In: a sense, something that attaches hooks and something that proves them. Out: the rung
it stands on, and for every hook tried what became of it. A rung is left, and its hooks
detached, before the next one is tried: no event is ever reported by two of them.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

import msgspec

from agent import clock
from agent.errors import LoadError
from agent.sensor.attach import Attached, Attacher
from agent.sensor.hooks import Hook, HookState, Rung, Sense


class Tried(NamedTuple):
    """One rung as it was tried: what became of its hooks, and what holds them."""

    rung: Rung
    states: list[HookState]
    links: dict[str, Attached]

    @property
    def whole(self) -> bool:
        """Whether all that the rung needs is attached."""
        return all(state.attached or state.optional for state in self.states)

    @property
    def worth(self) -> int:
        """How many of its hooks were seen to fire."""
        return sum(state.proven for state in self.states)


class Ladder:
    """The climb of one sense."""

    def __init__(
        self, sense: Sense, attacher: Attacher, forbidden: Collection[str]
    ) -> None:
        """Begin above the best rung."""
        self._sense, self._attacher, self._forbidden = sense, attacher, forbidden
        self._left = list(sense.rungs)
        self._refused: list[Tried] = []
        self.standing: Tried | None = None

    def step(self) -> bool:
        """Take the next rung that can be attached whole; False when none is left."""
        while self._left:
            tried = self._try(self._left.pop(0))
            if tried.whole:
                self.standing = tried
                return True
            refused = next(s for s in tried.states if not (s.attached or s.optional))
            self._leave(tried, f"{refused.target}: {refused.reason}")
        return False

    def _try(self, rung: Rung) -> Tried:
        if rung.name in self._forbidden:
            why = "forbidden by the configuration"
            return Tried(rung, [self._state(rung, one, why) for one in rung.hooks], {})
        states, links = [], {}
        for hook in rung.hooks:
            try:
                held = self._attacher.attach(hook)
            except (OSError, LoadError, KeyError) as error:
                reason = " ".join(str(error).split())
                states.append(self._state(rung, hook, reason))
            else:
                links[hook.pin] = held
                state = self._state(rung, hook)
                states.append(
                    msgspec.structs.replace(state, instructions=held.instructions)
                )
        if rung.denied:
            self._attacher.guard_by(rung.denied)
        return Tried(rung, states, links)

    def _state(self, rung: Rung, hook: Hook, reason: str = "") -> HookState:
        return HookState(
            self._sense.name,
            rung.name,
            hook.program,
            self._attacher.place(hook),
            not reason,
            hook.pin,
            reason=reason,
            unseen=rung.unseen,
            optional=hook.optional,
        )

    def judge(self, proven: Collection[str], *, last: bool = False) -> bool:
        """Hold the rung against what was seen; False when it has to be left."""
        if self.standing is None:
            return True
        now = clock.boot_ns()
        rung, states, links = self.standing
        seen = [
            msgspec.structs.replace(state, proven=True, proven_ns=now)
            if state.attached and hook.proof in proven
            else state
            for state, hook in zip(states, rung.hooks, strict=True)
        ]
        self.standing = Tried(rung, seen, links)
        if last or all(state.proven or state.optional for state in seen):
            return True
        self._leave(self.standing, "attached, but it did not fire")
        self.standing = None
        return False

    def _leave(self, tried: Tried, why: str) -> None:
        """Detach a rung; what its hooks lacked is kept for the responder."""
        for held in tried.links.values():
            held.close()
        self._refused.append(
            tried._replace(
                states=[
                    state
                    if state.proven or not state.attached
                    else msgspec.structs.replace(state, reason=why)
                    for state in tried.states
                ],
                links={},
            )
        )

    def settle(self) -> bool:
        """Without a whole rung, stand on the one that gives most; whether it did."""
        best = max(self._refused, key=_worth, default=None)
        if self.standing is not None or best is None or not any(_worth(best)):
            return False
        self._refused.remove(best)
        self.standing = self._try(best.rung)
        return True

    @property
    def links(self) -> dict[str, Attached]:
        """What holds the rung it stands on, by the names of the pins."""
        return self.standing.links if self.standing else {}

    @property
    def states(self) -> list[HookState]:
        """What became of every hook that was tried, best rung first."""
        gone = {"attached": False, "proven": False, "proven_ns": 0}
        refused = [
            msgspec.structs.replace(state, **gone)
            for tried in self._refused
            for state in tried.states
        ]
        all_of_them = refused + (self.standing.states if self.standing else [])
        order = [rung.name for rung in self._sense.rungs]
        return sorted(all_of_them, key=lambda state: order.index(state.rung))


def _worth(tried: Tried) -> tuple[int, int]:
    return tried.worth, sum(state.attached for state in tried.states)


def climb(ladders: Sequence[Ladder], prove: Callable[[set[str]], set[str]]) -> None:
    """Let every sense find its rung: attach all, prove all, and again for the rest.

    `prove` returns which of the named proofs were seen.
    """
    moving = list(ladders)
    while moving := [ladder for ladder in moving if ladder.step()]:
        proven = prove(_proofs(moving))
        moving = [ladder for ladder in moving if not ladder.judge(proven)]
    partial = [ladder for ladder in ladders if ladder.settle()]
    proven = prove(_proofs(partial))
    for ladder in partial:
        ladder.judge(proven, last=True)


def _proofs(ladders: Iterable[Ladder]) -> set[str]:
    return {
        hook.proof
        for ladder in ladders
        if ladder.standing
        for hook in ladder.standing.rung.hooks
    }
