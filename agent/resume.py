"""What the newest segment says about where a former run stopped.

In: the lines of that segment, while the writer verifies them. Out: the positions the
sensor goes on from, and when the last record was made. It reads only its own fields,
and a line without them changes nothing.
"""

from typing import Any

import msgspec

from agent.sensor.stream import Position
from agent.sensor.tap import decode_checkpoint


class _Kernel(msgspec.Struct):
    cpu: int
    seq: int
    parts: int


class _Clock(msgspec.Struct):
    bt_ns: int


class _Segment(msgspec.Struct):
    boot_id: str = ""
    load_id: str = ""
    positions: dict[str, Any] = msgspec.field(default_factory=dict)
    taken_over: dict[int, dict[str, int]] | None = None


class _Agent(msgspec.Struct):
    load_id: str = ""
    taken_over: dict[int, dict[str, int]] | None = None


class _Ir(msgspec.Struct):
    agent: _Agent | None = None
    segment: _Segment | None = None
    kernel: _Kernel | None = None
    clock: _Clock | None = None
    positions: dict[str, Any] | None = None


class _Record(msgspec.Struct):
    timestamp: str = msgspec.field(default="", name="@timestamp")
    ir: _Ir | None = None


_decode = msgspec.json.Decoder(_Record).decode


class Resume:
    """Collects, line by line, where the former run was."""

    def __init__(self) -> None:
        """Know nothing yet."""
        self.boot_id = ""
        self.load_id = ""
        self.positions: dict[int, Position] = {}
        self.taken_over: dict[int, dict[str, int]] | None = None
        """Tap.taken_over of the run that began these records, if it did so."""
        self.last_record = ""
        """Wall time text of the last record; empty when there is none."""

    def line(self, _sequence: int, body: bytes) -> None:
        """Take in one verified line (SegmentWriter's `replay`)."""
        try:
            self._take(_decode(body))
        except (msgspec.DecodeError, ValueError):
            return

    def _take(self, record: _Record) -> None:
        self.last_record = record.timestamp or self.last_record
        ir = record.ir
        if ir is None:
            return
        if ir.segment:
            positions = decode_checkpoint(ir.segment.positions)
            self.boot_id, self.load_id = ir.segment.boot_id, ir.segment.load_id
            self.positions = positions
            if ir.segment.taken_over is not None:
                self.taken_over = ir.segment.taken_over
        if ir.agent and ir.agent.load_id != self.load_id:
            self.load_id, self.positions = ir.agent.load_id, {}
            self.taken_over = None
        if ir.agent and ir.agent.taken_over is not None:
            self.taken_over = ir.agent.taken_over
        if ir.positions:
            self.positions.update(decode_checkpoint(ir.positions))
        if ir.kernel and ir.clock:
            self._advance(ir.kernel, ir.clock.bt_ns)

    def _advance(self, kernel: _Kernel, bt_ns: int) -> None:
        if not kernel.seq:
            return
        position = self.positions.get(kernel.cpu) or self._begin(kernel)
        last = kernel.seq + kernel.parts - 1
        if last > position.seq:
            position.balance += kernel.seq - position.seq - 1
            position.seq, position.bt_ns = last, bt_ns

    def _begin(self, kernel: _Kernel) -> Position:
        """Start from nothing, or where another run's records had ended."""
        position = Position()
        if self.taken_over is not None:
            lost = self.taken_over.get(kernel.cpu, {})
            position = Position(kernel.seq - 1, accounted=dict(lost))
        self.positions[kernel.cpu] = position
        return position

    @property
    def checkpoint(self) -> dict[str, Position]:
        """Return the positions as a segment's header holds them."""
        return {str(cpu): at for cpu, at in self.positions.items()}

    def for_loading(self, load_id: str) -> dict[int, Position]:
        """Return the positions if they belong to this loading of the probes."""
        return self.positions if load_id == self.load_id else {}
