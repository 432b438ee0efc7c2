"""From ring batches to events in order, and proof of what is missing.

In: batches of the ring and the kernel's own loss counters. Out: events, each exec with
its whole argv, and Loss values. Per CPU, numbers run without a gap: what is neither an
event nor counted by the kernel becomes a Loss of cause `unknown`, what was recorded
before a crash is not given out twice, and nothing is ever missing without a Loss.
"""

from collections.abc import Callable, Mapping

import msgspec

from agent.errors import DecodeError
from agent.events import Event, Exec, Flag, Loss
from agent.sensor import wire
from agent.sensor.decode import ArgvPiece, decode
from agent.sensor.ringbuf import Batch

_KINDS = [""] + [wire.KIND_NAMES[kind] for kind in wire.Kind]
_LONG = (Exec, ArgvPiece)
"""Kinds that may be one piece of several."""
MAX_PENDING = 8 << 20
"""More argv than the kernel accepts: where assembly stops, flagged."""


class Position(msgspec.Struct):
    """How far one CPU's events are known.

    `seq` and `bt_ns` are of the last event given out; `accounted` is what the kernel
    had counted as lost, by kind, when losses were last reported; `balance` is how many
    numbers were missing in the stream less what was reported as lost.
    """

    seq: int = 0
    bt_ns: int = 0
    accounted: dict[str, int] = msgspec.field(default_factory=dict)
    balance: int = 0


class CpuState(msgspec.Struct, frozen=True):
    """The kernel's counters of one CPU (struct cpu_state of probes/fill.h)."""

    seq: int
    lost: dict[str, int]
    last_lost_ns: int


def read_cpu_states(raw: bytes) -> list[CpuState]:
    """Decode the per-CPU value of the map `cpu_state`, one entry a possible CPU."""
    states = []
    for at in range(0, len(raw), wire.CPU_STATE.size):
        seq, *lost, last = wire.CPU_STATE.unpack_from(raw, at)
        by_kind = {_KINDS[kind]: lost[kind] for kind in wire.Kind if lost[kind]}
        states.append(CpuState(seq, by_kind, last))
    return states


class _Pending(msgspec.Struct):
    """An exec whose argv is still arriving, and where its record stands in the ring."""

    event: Exec
    position: int
    pieces: list[bytes]
    length: int
    parts: int = 1
    missing: int = 0


class Stream:
    """One reading of one loading's events; `positions` is all that must survive it."""

    def __init__(
        self, positions: Mapping[int, Position], started_ns: int, now: Callable[[], int]
    ) -> None:
        """Go on after `positions`; events before `started_ns` are backlog."""
        self.positions = dict(positions)
        self._before: dict[int, dict[str, int]] | None = None
        self._started_ns = started_ns
        self._since_ns = 0
        self._now = now
        self._pending: dict[int, _Pending] = {}
        self._gaps: dict[int, tuple[int, int]] = {}
        self._unexplained = False
        self.undecodable = 0
        """Records of the ring that were not events."""
        self.replayed = 0
        """Records read a second time after a crash, and not given out again."""

    def begin_in_the_middle(self, lost: Mapping[int, dict[str, int]]) -> None:
        """Take over from a reader whose records are elsewhere.

        What it had read, and what was `lost` by CPU in its time, is its own to tell.
        """
        self._before = dict(lost)

    def begin_at(self, bt_ns: int) -> None:
        """Leave out what happened before: another ring had it, and was read."""
        self._since_ns = bt_ns

    def _begin(self, cpu: int) -> Position:
        accounted = self._before.get(cpu, {}) if self._before else {}
        position = self.positions[cpu] = Position(accounted=dict(accounted))
        return position

    @property
    def gap(self) -> bool:
        """Whether numbers are missing that no Loss has accounted for yet."""
        return self._unexplained

    def feed(self, batch: Batch) -> list[Event]:
        """Decode a batch; an exec comes out when its argv is complete."""
        events: list[Event] = []
        data, positions = batch.data, self.positions
        for at, size in batch.records:
            try:
                event = decode(data, at, size)
            except DecodeError:
                self.undecodable += 1
                continue
            cpu, seq = event.cpu, event.seq
            position = positions.get(cpu)
            if position is None or seq != position.seq + 1:
                position = self._jump(cpu, seq, event.bt_ns)
                if position is None:
                    self.replayed += 1
                    continue
            position.seq, position.bt_ns = seq, event.bt_ns
            if event.bt_ns < self._started_ns or self._pending or type(event) in _LONG:
                self._take(event, batch.position(at), events)
            else:
                events.append(event)  # type: ignore[arg-type]
        return events

    def committable(self, end: int) -> int:
        """Return up to where the ring's space may be given back."""
        return min([end, *(pending.position for pending in self._pending.values())])

    def checkpoint(self) -> dict[int, Position]:
        """Copy the positions, as far as events were given out whole."""
        return {cpu: self._whole(cpu, at) for cpu, at in self.positions.items()}

    def _whole(self, cpu: int, at: Position) -> Position:
        """Copy a position; before a pending exec, since it will be read again."""
        copy = msgspec.structs.replace(at, accounted=dict(at.accounted))
        if pending := self._pending.get(cpu):
            copy.seq, copy.bt_ns = pending.event.seq - 1, pending.event.bt_ns
            copy.balance -= pending.missing
        return copy

    def _jump(self, cpu: int, seq: int, bt_ns: int) -> Position | None:
        """Note the numbers missing before this one; None if it is not a new one."""
        position = self.positions.get(cpu)
        if position is None:
            position = self._begin(cpu)
            position.seq = 0 if self._before is None else seq - 1
        missing = seq - position.seq - 1
        if missing < 0:
            return None
        if missing:
            position.balance += missing
            if pending := self._pending.get(cpu):
                pending.missing += missing
            self._unexplained = True
            start, _ = self._gaps.get(cpu, (position.bt_ns, 0))
            self._gaps[cpu] = (start, bt_ns)
        return position

    def _take(self, event: Event | ArgvPiece, at: int, events: list[Event]) -> None:
        cpu = event.cpu
        pending = self._pending.get(cpu) if self._pending else None
        if isinstance(event, ArgvPiece):
            if pending is not None:
                self._join(cpu, pending, event, events)
            return
        if pending is not None:
            events.append(self._cut(cpu))
        if event.bt_ns < self._started_ns:
            if event.bt_ns < self._since_ns:
                return
            event = msgspec.structs.replace(event, backlog=True)
        if isinstance(event, Exec) and _continues(event):
            self._pending[cpu] = _Pending(event, at, [event.argv], len(event.argv))
        else:
            events.append(event)

    def _join(
        self, cpu: int, pending: _Pending, piece: ArgvPiece, events: list[Event]
    ) -> None:
        pending.parts += 1
        in_place = (
            piece.offset == pending.length and piece.key == pending.event.task.key
        )
        if piece.argv and in_place and pending.length < MAX_PENDING:
            pending.pieces.append(piece.argv)
            pending.length += len(piece.argv)
        last = piece.offset + len(piece.argv) >= pending.event.argv_bytes
        if pending.length >= pending.event.argv_bytes or last:
            events.append(self._cut(cpu))

    def _cut(self, cpu: int) -> Exec:
        """End the pending exec with what has arrived; flagged if that is not all."""
        pending = self._pending.pop(cpu)
        event, flags = pending.event, pending.event.flags
        if pending.length < event.argv_bytes:
            flags |= Flag.ARGV_CUT
        return msgspec.structs.replace(
            event,
            argv=b"".join(pending.pieces),
            flags=flags,
            parts=pending.parts,
        )

    def expire(self, older_than_ns: int) -> list[Event]:
        """Give out execs whose argv has stopped arriving (its tail was lost)."""
        return [
            self._cut(cpu)
            for cpu, pending in list(self._pending.items())
            if pending.event.bt_ns < older_than_ns
        ]

    def reconcile(self, states: list[CpuState], *, drained: bool) -> list[Loss]:
        """Hold the numbers missing in the stream against the kernel's counters.

        `states` must have been read after the events fed so far; `drained` says that
        the ring was empty after that. Returns what is newly known to be lost.
        """
        full = self._counted(states)
        odd = self._uncounted(states) if drained or self._unexplained else None
        self._unexplained = False
        # counted ahead of what was read: a gap may still hide an unknown one
        self._gaps = {
            cpu: gap for cpu, gap in self._gaps.items() if self.positions[cpu].balance
        }
        return [loss for loss in (full, odd) if loss]

    def _counted(self, states: list[CpuState]) -> Loss | None:
        kinds: dict[str, int] = {}
        cpus, start, end = [], self._now(), 0
        for cpu, state in enumerate(states):
            if not state.lost:
                continue
            position = self.positions.get(cpu) or self._begin(cpu)
            news = _newly(state.lost, position.accounted)
            if not news:
                continue
            cpus.append(cpu)
            start = min(start, self._gaps.get(cpu, (position.bt_ns, 0))[0])
            end = max(end, state.last_lost_ns)
            position.accounted = dict(state.lost)
            position.balance -= sum(news.values())
            for kind, count in news.items():
                kinds[kind] = kinds.get(kind, 0) + count
        return Loss("ring full", kinds, start, end, tuple(cpus)) if cpus else None

    def _uncounted(self, states: list[CpuState]) -> Loss | None:
        """Numbers missing that the kernel does not count as lost: never silent."""
        missing, cpus, start, end = 0, [], self._now(), 0
        for cpu, position in self.positions.items():
            if position.balance <= 0 or cpu >= len(states):
                continue
            missing += position.balance
            position.balance = 0
            cpus.append(cpu)
            first, last = self._gaps.get(cpu, (position.bt_ns, position.bt_ns))
            start, end = min(start, first), max(end, last)
        if not missing:
            return None
        return Loss("unknown", {"unknown": missing}, start, end, tuple(cpus))


def _continues(event: Exec) -> bool:
    """Whether argv pieces follow that can be put where they belong."""
    faulty = event.flags & Flag.ARGV_FAULT
    return event.argv_bytes > len(event.argv) and not faulty


def _newly(lost: Mapping[str, int], accounted: Mapping[str, int]) -> dict[str, int]:
    return {
        kind: count - accounted.get(kind, 0)
        for kind, count in lost.items()
        if count > accounted.get(kind, 0)
    }
