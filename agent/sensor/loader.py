"""The short-lived loader: load, attach, prove and pin the probes.

In: the table of hooks and the running kernel's BTF. Out: a pin folder in bpffs that
keeps collecting after this process is gone, and the state of every hook. A hook that is
refused never takes another one down.
"""

from collections.abc import Collection
from pathlib import Path

from agent.errors import LoadError
from agent.sensor import guard, pins
from agent.sensor.attach import Attached, Attacher
from agent.sensor.btf import Btf
from agent.sensor.compiler import Compiler
from agent.sensor.hooks import GUARD, SENSES, HookState
from agent.sensor.identity import object_key
from agent.sensor.ladder import Ladder, climb
from agent.sensor.selftest import Prover


def load(
    folder: Path,
    ring_bytes: int,
    cache: Path | None,
    forbidden: Collection[str] = (),
) -> list[HookState]:
    """Load everything into the pin folder, replacing what is there.

    `ring_bytes` is a power of two, at least a page; `forbidden` names rungs that are
    not to be taken. Who is guarded stays guarded. Returns the state of every hook,
    proven or not. LoadError when no hook at all could be attached.
    """
    btf, kept = Btf.of_kernel(), guard.open_maps(folder)
    attacher = Attacher(Compiler(btf, object_key(), cache), btf, ring_bytes, kept)
    ladders = [Ladder(sense, attacher, forbidden) for sense in SENSES]

    def held() -> dict[str, Attached]:
        return {pin: one for ladder in ladders for pin, one in ladder.links.items()}

    climb(ladders, Prover(attacher.maps, held).prove)
    states = [state for ladder in ladders for state in ladder.states]
    if not held():
        raise LoadError(f"no hook could be attached: {states[0].reason}")
    if not any(state.attached for state in states if state.sense == GUARD):
        attacher.guard_by(0)
    links = {pin: one.fd for pin, one in held().items() if one.is_link}
    programs = {pin: one.fd for pin, one in held().items() if not one.is_link}
    key = object_key(forbidden)
    maps = {**kept, **attacher.maps}  # who is guarded stays in them, used or not
    pins.publish(folder, key, pins.Parts(maps, links, programs))
    return states
