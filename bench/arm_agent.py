"""Our own side: the agent as a user runs it, with its records on disk.

A folder comes in; a running agent and, after its end, a count of what it recorded go
out. It can never leave probes behind: the pins are its own and are unloaded at the end.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen, run
from typing import TYPE_CHECKING

import msgspec
from arm import Evidence, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator

COMMAND = Path(__file__).parents[1] / ".venv" / "bin" / "ir-agent"
PINS = Path("/sys/fs/bpf") / f"ir-agent-bench-{os.getpid()}"
START_LIMIT_S = 60.0
STOP_LIMIT_S = 60.0
STORM_ARGC = 3


class _Event(msgspec.Struct):
    action: str = ""


class _Process(msgspec.Struct):
    args: list[str] = []


class _Loss(msgspec.Struct):
    count: int = 0


class _Own(msgspec.Struct):
    loss: _Loss = msgspec.field(default_factory=_Loss)


class _Record(msgspec.Struct):
    event: _Event = msgspec.field(default_factory=_Event)
    process: _Process = msgspec.field(default_factory=_Process)
    ir: _Own = msgspec.field(default_factory=_Own)


def check() -> None:
    """Raise UnavailableError with the reason when the agent cannot run here."""
    if not COMMAND.exists():
        raise UnavailableError(f"{COMMAND.name} is not installed (make setup)")
    if os.geteuid() != 0:
        raise UnavailableError("loading probes needs root")


def _ready(said: Path) -> bool:
    text = said.read_text(encoding="utf-8", errors="replace")
    return '"event": "ready"' in text or " ready" in text


def _wait_until_ready(process: Popen[bytes], said: Path) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while not _ready(said):
        if process.poll() is not None or time.monotonic() > deadline:
            last = said.read_text(encoding="utf-8", errors="replace")[-500:]
            raise UnavailableError(
                f"the agent did not get ready; its last words:\n{last}"
            )
        time.sleep(0.05)


@contextmanager
def _daemon(folder: Path, said: Path, more: tuple[str, ...]) -> Iterator[Popen[bytes]]:
    places = {"--state": folder / "state", "--runtime": folder / "run", "--pins": PINS}
    options = [*(str(part) for pair in places.items() for part in pair), *more]
    # A session of its own: Ctrl-C reaches it through the clearing up, not at once.
    with said.open("wb") as log:
        process = Popen(
            [COMMAND, "run", *options], stdout=log, stderr=log, start_new_session=True
        )
    try:
        yield process
    finally:
        process.terminate()
        process.wait(STOP_LIMIT_S)


@contextmanager
def running(folder: Path, *options: str) -> Iterator[Agent]:
    """Run the agent; no probe and no pin of it is left afterwards."""
    check()
    said = folder / "agent.log"
    try:
        with _daemon(folder, said, options) as process:
            _wait_until_ready(process, said)
            yield Agent(process.pid, folder / "state" / "records")
    finally:
        run([COMMAND, "unload", "--pins", PINS], check=True, start_new_session=True)


class Agent:
    """The agent that an arm measures."""

    def __init__(self, pid: int, records: Path) -> None:
        """Take its pid and the folder of its segments."""
        self.pid = pid
        self._records = records

    def evidence(self) -> Evidence:
        """Count what is in the segments, after its end."""
        decode = msgspec.json.Decoder(_Record).decode
        actions: Counter[str] = Counter()
        seen: list[tuple[str, str]] = []
        lost = size = 0
        for path in self._records.glob("*.jsonl"):
            size += path.stat().st_size
            with path.open("rb") as lines:
                for record in map(decode, lines):
                    actions[record.event.action] += 1
                    if record.event.action == "loss":
                        lost += record.ir.loss.count or 1  # said to be one: not none
                    args = record.process.args
                    if record.event.action == "exec" and _of_storm(args):
                        seen.append((args[1], args[2]))
        events = sum(actions[name] for name in ("fork", "exec", "exit"))
        return Evidence(len(seen), len(set(seen)), events, lost, size)


def _of_storm(args: list[str]) -> bool:
    return len(args) == STORM_ARGC and args[0] == "true"
