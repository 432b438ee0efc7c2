"""The peer: the distribution's auditd with a rule on execve.

Nothing comes in but a folder to log to; a running auditd and, at the end, a count of
what it wrote go out. It can never leave the kernel's audit state other than found:
rules are taken back by their own text, `enabled` and the backlog limit are set back,
auditd is ended by pid, whatever happened in between.

Two things no program can take back: the kernel's counters (`lost`, time waited), and
that audit was ever enabled, after which each fork allocates an audit context until the
next boot. So `storm.py` enables it once before the first round: all arms then stand on
the same ground, and auditd looks a little cheaper than on a machine that never had it.
"""

from __future__ import annotations

import mmap
import os
import re
import shutil
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from subprocess import (
    DEVNULL,
    Popen,
    run,
)
from typing import TYPE_CHECKING

from arm import Evidence, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator

CONFIG = Path("/etc/audit/auditd.conf")
RULES = tuple(
    f"always,exit -F arch={arch} -S execve,execveat -k exec" for arch in ("b64", "b32")
)
BACKLOG = 65536
START_LIMIT_S = 10.0
STOP_LIMIT_S = 60.0

# By default five files of 8 MB are kept, less than one round writes. Nothing else in
# the configuration is changed but the place.
MINE = {"log_file": "{folder}/audit.log", "num_logs": "99"}

OURS = rb'type=EXECVE [^\n]*argc=3 a0="true" a1="(\d+)" a2="(\d+)"'


def _auditctl(arguments: str) -> str:
    # A session of its own, as for auditd: Ctrl-C must not stop the clearing up.
    done = run(
        ["auditctl", *arguments.split()],
        check=True,
        capture_output=True,
        text=True,
        start_new_session=True,
    )
    return done.stdout


def _status() -> dict[str, int]:
    pairs = (line.split()[:2] for line in _auditctl("-s").splitlines())
    return {name: int(value) for name, value in pairs if value.isdigit()}


def check() -> None:
    """Raise UnavailableError when auditd cannot run here as the only one."""
    if os.geteuid() != 0:
        raise UnavailableError("audit rules need root")
    if not (shutil.which("auditd") and shutil.which("auditctl")):
        raise UnavailableError("auditd is not installed (apt-get install auditd)")
    status = _status()
    if status["pid"]:
        raise UnavailableError(f"an auditd runs already (pid {status['pid']})")
    if status["enabled"] > 1:
        raise UnavailableError("the audit configuration is locked until the next boot")
    if _auditctl("-l").strip() != "No rules":
        raise UnavailableError("audit rules are loaded already")


def _configure(folder: Path) -> None:
    text = CONFIG.read_text(encoding="utf-8")
    for key, value in MINE.items():
        line = f"{key} = {value.format(folder=folder)}"
        text = re.sub(rf"^{key} *=.*$", line, text, flags=re.MULTILINE)
    (folder / "auditd.conf").write_text(text, encoding="utf-8")


@contextmanager
def _daemon(folder: Path) -> Iterator[Popen[bytes]]:
    # A session of its own: Ctrl-C must not end it before the rules are gone.
    command = ["auditd", "-n", "-s", "nochange", "-c", str(folder)]
    process = Popen(command, stdout=DEVNULL, stderr=DEVNULL, start_new_session=True)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(STOP_LIMIT_S)


def _wait_until_connected(process: Popen[bytes]) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while _status()["pid"] != process.pid:
        if process.poll() is not None or time.monotonic() > deadline:
            raise UnavailableError("auditd did not start (the system log says why)")
        time.sleep(0.05)


@contextmanager
def running(folder: Path) -> Iterator[Auditd]:
    """Run auditd with the execve rules on; the audit state is as before afterwards."""
    check()
    before = _status()
    _configure(folder)
    with ExitStack() as undo:
        process = undo.enter_context(_daemon(folder))
        _wait_until_connected(process)
        state = f"-b {before['backlog_limit']} -e {before['enabled']}"
        undo.callback(_auditctl, state)
        _auditctl(f"-b {BACKLOG} -e 1")
        for rule in RULES:
            undo.callback(_auditctl, f"-d {rule}")
            _auditctl(f"-a {rule}")
        auditd = Auditd(process.pid, folder)
        yield auditd
        auditd.lost = _status()["lost"] - before["lost"]


class Auditd:
    """The auditd that an arm measures; `lost` is set when it ends."""

    def __init__(self, pid: int, folder: Path) -> None:
        """Take its pid and the folder of its logs."""
        self.pid = pid
        self.lost = 0
        self._folder = folder

    def evidence(self) -> Evidence:
        """Count what is in the logs, after its end."""
        seen: list[tuple[bytes, bytes]] = []
        events = size = 0
        for path in self._folder.glob("audit.log*"):
            with path.open("rb") as file:
                if not (length := path.stat().st_size):
                    continue
                with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as log:
                    seen += re.findall(OURS, log)
                    events += len(re.findall(rb"^type=SYSCALL", log, re.MULTILINE))
                size += length
        return Evidence(
            execs=len(seen),
            distinct=len(set(seen)),
            events=events,
            lost=self.lost,
            size=size,
        )
