"""The balance of numbers against a naive model, whatever is lost and whenever it dies.

The model is a kernel that numbers events and may lose them in two ways: counted, as a
full ring, or not counted at all, as no kernel should. It knows what it lost. The stream
sees only records and counters, and must tell the same.
"""

from collections import Counter
from typing import Any, NamedTuple

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from agent.events import Event, Exec, Flag, Loss
from agent.sensor.stream import CpuState, Position, Stream
from agent.sensor.tap import decode_checkpoint
from tests.builders import a_batch, a_task, an_exec, an_exit, encode, in_pieces, in_ring

CPUS = 3
FIRST, CHUNK = 16, 16
FATES = st.sampled_from(["sent", "sent", "sent", "lost", "dropped"])
cpus = st.integers(0, CPUS - 1)


class Lost(NamedTuple):
    """One number that never came: whose, of what kind, and when."""

    cpu: int
    kind: str
    at_ns: int


class Kernel:
    """Numbers events per CPU, and knows what became of each."""

    def __init__(self) -> None:
        self.ring: list[bytes] = []
        self.now = 0
        self.seq: Counter[int] = Counter()
        self.counted: dict[int, Counter[str]] = {cpu: Counter() for cpu in range(CPUS)}
        self.last_lost = [0] * CPUS
        self.untold: list[Lost] = []
        self.dropped = 0

    def emit(self, cpu: int, kind: str, raw: bytes, fate: str) -> None:
        self.seq[cpu] += 1
        if fate == "sent":
            self.ring.append(raw)
        elif fate == "lost":
            self.counted[cpu][kind] += 1
            self.last_lost[cpu] = self.now
            self.untold.append(Lost(cpu, kind, self.now))
        else:
            self.dropped += 1

    def states(self) -> list[CpuState]:
        return [
            CpuState(self.seq[cpu], dict(self.counted[cpu]), self.last_lost[cpu])
            for cpu in range(CPUS)
        ]


class StreamMachine(RuleBasedStateMachine):
    """Emits, loses, reads, dies and resumes in any order."""

    @initialize()
    def begin(self) -> None:
        self.kernel = Kernel()
        self.stream = self._stream({})
        self.read_to = self.committed = self.unknown = 0
        self.expected: dict[tuple[int, int], tuple[bytes, bool]] = {}
        self.given: dict[tuple[int, int], Event] = {}
        self.last: Counter[int] = Counter()

    def _stream(self, positions: dict[int, Position]) -> Stream:
        return Stream(positions, 0, lambda: self.kernel.now)

    @rule(cpu=cpus, fate=FATES)
    def a_process_ends(self, cpu: int, fate: str) -> None:
        kernel = self.kernel
        kernel.now += 1
        event = an_exit(cpu=cpu, seq=kernel.seq[cpu] + 1, bt_ns=kernel.now)
        if fate == "sent":
            self.expected[cpu, event.seq] = (b"", False)
        kernel.emit(cpu, "exit", encode(event), fate)

    @rule(cpu=cpus, fates=st.lists(FATES, min_size=2, max_size=4))
    def a_program_with_a_long_argv_runs(self, cpu: int, fates: list[str]) -> None:
        kernel = self.kernel
        kernel.now += 1
        seq = kernel.seq[cpu] + 1
        length = FIRST + CHUNK * (len(fates) - 1)
        args = bytes(range(65, 65 + length - 1))
        task = a_task(100 + cpu, start_ns=kernel.now)
        event = an_exec(args, task=task, cpu=cpu, seq=seq, bt_ns=kernel.now)
        if fates[0] == "sent":
            whole = all(fate == "sent" for fate in fates)
            self.expected[cpu, seq] = (event.argv, not whole)
        records = in_pieces(event, FIRST, CHUNK)
        for number, (raw, fate) in enumerate(zip(records, fates, strict=True)):
            kernel.emit(cpu, "argv" if number else "exec", raw, fate)

    @precondition(lambda self: self.read_to < len(self.kernel.ring))
    @rule(some=st.integers(1, 6), commit=st.booleans())
    def poll(self, some: int, commit: bool) -> None:
        records = self.kernel.ring[self.read_to :][:some]
        batch = a_batch(*records, start=self._position(self.read_to))
        self.read_to += len(records)
        self._give(self.stream.feed(batch))
        if self.stream.gap:
            self._reconcile()
        if commit:
            self.committed = self.stream.committable(batch.end)

    @rule()
    def settle(self) -> None:
        if self._drained:
            self._give(self.stream.expire(self.kernel.now + 1))
        self._reconcile()

    @property
    def _drained(self) -> bool:
        return self.read_to == len(self.kernel.ring)

    def _position(self, index: int) -> int:
        return len(in_ring(*self.kernel.ring[:index]))

    @rule()
    def crash_and_resume(self) -> None:
        self.stream = self._stream(decode_checkpoint(self._written()))
        ends = [self._position(index) for index in range(len(self.kernel.ring) + 1)]
        self.read_to = ends.index(self.committed)

    def _written(self) -> Any:
        positions = {str(cpu): at for cpu, at in self.stream.checkpoint().items()}
        return msgspec.json.decode(msgspec.json.encode(positions))

    def _give(self, events: list[Event]) -> None:
        for event in events:
            assert (event.cpu, event.seq) not in self.given
            assert event.seq > self.last[event.cpu]
            self.last[event.cpu] = event.seq
            self.given[event.cpu, event.seq] = event

    def _reconcile(self) -> None:
        for loss in self.stream.reconcile(self.kernel.states(), drained=self._drained):
            if loss.cause == "unknown":
                self.unknown += loss.count
            else:
                self._tell(loss)
        assert self.kernel.untold == []
        assert self.unknown <= self.kernel.dropped, "more is told than was lost"

    def _tell(self, loss: Loss) -> None:
        """Whatever the kernel counted so far is told, once, and lies in its time."""
        lost = self.kernel.untold
        assert loss.kinds == Counter(one.kind for one in lost)
        assert set(loss.cpus) == {one.cpu for one in lost}
        assert all(loss.start_ns <= one.at_ns <= loss.end_ns for one in lost)
        self.kernel.untold = []

    @invariant()
    def nothing_is_made_up(self) -> None:
        assert set(self.given) <= set(self.expected)

    def teardown(self) -> None:
        if not hasattr(self, "kernel"):
            return
        for cpu in range(CPUS):  # behind the last loss there must be something to see
            self.a_process_ends(cpu, "sent")
        while self.read_to < len(self.kernel.ring):
            self.poll(6, commit=False)
        self._give(self.stream.expire(1 << 60))
        self._reconcile()
        assert self.unknown == self.kernel.dropped
        assert set(self.given) == set(self.expected)
        for place, (argv, cut) in self.expected.items():
            event = self.given[place]
            if isinstance(event, Exec):
                assert bool(event.flags & Flag.ARGV_CUT) == cut
                assert argv.startswith(event.argv)
                assert cut == (argv != event.argv)


TestStream = StreamMachine.TestCase
TestStream.settings = settings(
    deadline=None, max_examples=60, stateful_step_count=40, report_multiple_bugs=False
)
