"""The tail of folded accesses: what the kernel counted but had no reason to send.

In: the pinned map `folds`. Out: Access events whose count is the true one once a burst
has ended. Counts only grow, so reporting one twice after a restart adds nothing that
is not true; an entry goes away when its pair has been quiet.
"""

import os
from pathlib import Path

import msgspec

from agent.events import Access
from agent.sensor import bpf, pins, wire
from agent.sensor.decode import decode_folded

_SETTLED_NS = 1_000_000_000
"""Older than this, the kernel sends no more of a burst by itself."""
_IDLE_NS = 10_000_000_000
"""Older than this, an entry makes room for others."""


class Folds:
    """Reads the map `folds` of one pin folder."""

    def __init__(self, folder: Path) -> None:
        """Open the map; without one, no hook could be had that would fill it."""
        try:
            self._fd = pins.open_map(folder, "folds")
        except FileNotFoundError:
            self._fd = -1
            return
        self._size = bpf.map_spec(self._fd).value_size
        self._reported: dict[bytes, int] = {}

    def collect(self, now_ns: int) -> list[Access]:
        """Return one event for each pair with accesses that nobody was told of."""
        events: list[Access] = []
        if self._fd < 0:
            return events
        for key in list(bpf.keys(self._fd, wire.FOLD_KEY_SIZE)):
            try:
                raw = bpf.lookup(self._fd, key, self._size)
            except OSError:
                continue  # deleted since the keys were listed
            event, sent = decode_folded(raw)
            if now_ns - event.last_ns > _IDLE_NS:
                raw = bpf.take(self._fd, key, self._size) or raw
                event, sent = decode_folded(raw)
            told = max(sent, self._reported.get(key, 0))
            if event.count > told and now_ns - event.last_ns > _SETTLED_NS:
                events.append(_without_place(event))
                self._reported[key] = event.count
            if now_ns - event.last_ns > _IDLE_NS:
                self._reported.pop(key, None)
        return events

    def close(self) -> None:
        """Close the map's descriptor."""
        if self._fd >= 0:
            os.close(self._fd)


def _without_place(event: Access) -> Access:
    """Give it number 0, since it never was in the ring, and its last access's time."""
    return msgspec.structs.replace(event, seq=0, parts=0, bt_ns=event.last_ns)
