"""The live view of `ir-agent run --show`: one line an event, for a person.

In: an event, its process and its ancestors. Out: a line of text that is safe to print
whatever bytes an attacker put into argv. It shows programs and accesses; births and
deaths are in the records.
"""

import sys

from agent import clock
from agent.events import Access, Event, Exec, ExecFailed, Lineage, Process
from agent.sinks.record import action, error_name
from agent.sinks.text import Users, rfc3339, safe, text

_DIM, _RED, _YELLOW, _RESET = "\033[2m", "\033[31m", "\033[33m", "\033[0m"
_SHOWN_ANCESTORS = 4
_MAX_ARGS = 400


class LiveView:
    """Prints to standard output."""

    def __init__(self, users: Users, *, colour: bool) -> None:
        """Colour only where the output is a terminal."""
        self._users = users
        self._colour = colour
        self._gone = False

    def __call__(self, event: Event, process: Process, lineage: Lineage) -> None:
        """Print the line of an event, if it has one."""
        if self._gone:
            return
        try:
            if line := self._line(event, process, lineage):
                print(line, flush=True)  # noqa: T201 - this is the view
        except (OSError, ValueError, AttributeError):
            self._gone = True  # nobody looks any more; recording goes on
            sys.stdout = None

    def _line(self, event: Event, process: Process, lineage: Lineage) -> str:
        match event:
            case Exec():
                what, paint = words(event.argv), ""
            case ExecFailed():
                code, path = error_name(event.errno), safe(text(event.path))
                what, paint = f"{words(event.argv)}  {code}: {path}", _DIM
            case Access():
                whom = f"{safe(text(event.target.image.comm))}[{event.target.key.tgid}]"
                what, paint = f"{action(event.kind)} → {whom}", _YELLOW
                if event.result < 0:
                    what, paint = f"{what}  refused: {error_name(-event.result)}", _RED
                if event.denied:
                    what, paint = f"{what}  denied: {event.denied.name.lower()}", _RED
            case _:
                return ""
        moment = rfc3339(event.bt_ns + clock.wall_anchor().offset_ns)[11:23]
        who = self._users.name(event.task.image.context)
        head = f"{moment} {who:<10} {arrows(process, lineage)}"
        return (
            f"{paint}{head}  {what}{_RESET}"
            if paint and self._colour
            else (f"{head}  {what}")
        )


def arrows(process: Process, lineage: Lineage) -> str:
    """Return ancestors oldest first, as `sshd → bash → python3[412]`."""
    names = [one.comm for one in lineage.ancestors[:_SHOWN_ANCESTORS]]
    far = "… → " if len(lineage.ancestors) > _SHOWN_ANCESTORS else ""
    chain = "".join(f"{safe(text(name))} → " for name in reversed(names))
    return f"{far}{chain}{safe(text(process.comm))}[{process.key.tgid}]"


def words(argv: bytes) -> str:
    """Return arguments so that each can be told from the next, cut for the screen."""
    args = argv.split(b"\0")
    if not args[-1]:
        args.pop()
    line = " ".join(safe(text(arg)) for arg in args)
    return line if len(line) <= _MAX_ARGS else f"{line[:_MAX_ARGS]}…"
