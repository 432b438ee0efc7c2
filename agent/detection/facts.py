"""One event as its fields, made when a rule asks for them, under each view of who runs.

In: an event, its surroundings and the table of its fields. Out: Facts: the fields as
they are and in lower case. Who runs is the file that it is, and in another view the
path that it was started by; rules are asked under each.
"""

from collections.abc import Iterator, Mapping
from posixpath import join, normpath
from typing import Any

from agent.detection.fields import EXEC, Getter, Surroundings, by_pattern, text
from agent.events import Exec

RESOLVED, INVOKED = "resolved", "invoked"
_IMAGE, _PARENT = 1, 2
VIEWED = {"Image": _IMAGE, "ParentImage": _PARENT}
"""Fields that differ between views, a bit for each."""


class Fields(dict[str, str | None]):
    """The fields of one event as they are, made when first asked for."""

    __slots__ = ("around", "event", "table")

    def __init__(
        self, event: Any, around: Surroundings, table: Mapping[str, Getter]
    ) -> None:
        """Make none yet."""
        self.event = event
        self.around = around
        self.table = table

    def __missing__(self, name: str) -> str | None:
        """Make a field and keep it."""
        get = self.table.get(name)
        if get is not None:
            value = get(self.event, self.around)
        else:
            value = by_pattern(self.event, name) if self.table is EXEC else None
        self[name] = value
        return value


class Lowered(dict[str, str]):
    """The same in lower case; "" for a field that is missing."""

    __slots__ = ("raw",)

    def __init__(self, raw: Fields) -> None:
        """Make none yet."""
        self.raw = raw

    def __missing__(self, name: str) -> str:
        """Make a field and keep it."""
        value = self.raw[name]
        low = self[name] = value.lower() if value else ""
        return low


class Facts:
    """One event for all rules: `raw` and `low` are its fields under the view in force.

    Who runs can be seen in two ways: the file that it is, and the path by which it was
    started, which may be a link. The same of its parent.
    """

    __slots__ = ("low", "raw")

    def __init__(
        self, event: object, around: Surroundings, table: Mapping[str, Getter]
    ) -> None:
        """See who runs as the file that it is."""
        self.raw = Fields(event, around, table)
        self.low = Lowered(self.raw)

    def other_views(self) -> Iterator[tuple[int, str]]:
        """Take on each further view in turn.

        Yields the bits (VIEWED) of what differs in it, and the field that has just
        changed. Afterwards the event is seen as at first.
        """
        if self.raw.table is not EXEC:
            return
        event: Exec = self.raw.event
        resolved, image = self.raw["Image"], None
        if event.invoked != event.executable:
            image = _otherwise(resolved, event.invoked, event.cwd)
        if image is not None:
            self._set("Image", image)
            yield _IMAGE, "Image"
        if self.raw.around.parent_invoked:
            yield from self._views_of_parent(image is not None, resolved)
        if image is not None:
            self._set("Image", resolved)

    def _views_of_parent(
        self, twice: bool, resolved: str | None
    ) -> Iterator[tuple[int, str]]:
        before = self.raw["ParentImage"]
        parent = _otherwise(before, self.raw.around.parent_invoked, b"/")
        if parent is None:
            return
        self._set("ParentImage", parent)
        if twice:
            yield _PARENT, "ParentImage"
            self._set("Image", resolved)
        yield _PARENT, "ParentImage"
        self._set("ParentImage", before)

    def _set(self, name: str, value: str | None) -> None:
        self.raw[name] = value
        self.low.pop(name, None)


def _otherwise(resolved: str | None, invoked: bytes, cwd: bytes) -> str | None:
    if not invoked:
        return None
    path = _absolute(invoked, cwd)
    return None if path == resolved else path


def _absolute(path: bytes, cwd: bytes) -> str:
    whole = text(path)
    return whole if path.startswith(b"/") else normpath(join(text(cwd), whole))
