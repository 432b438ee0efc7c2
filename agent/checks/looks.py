"""What a process looks like now, against the record of its last exec.

In: that record, or None where there is none, and a living process. Out: findings of
agent.process.drift, as values for a document.
"""

from pathlib import Path

import msgspec

from agent.checks.family import raw_argv
from agent.events import ProcessKey
from agent.process import drift
from agent.process.drift import Born, Finding, Kind, Now
from agent.process.look import InstalledPrograms, kernel_threads, look
from agent.process.proc import TICK_NS
from agent.sinks.search import Record
from agent.sinks.text import text

_EVIDENCE = 256


def looks(key: ProcessKey, program: Record | None) -> list[dict[str, str]]:
    """Hold what a process looks like now against its last exec; empty when it ended.

    Without a record of that, tell only who looks like a kernel thread and is none.
    """
    now = look(key.tgid)
    if now is None or now.start_ticks != key.start_ns // TICK_NS:
        return []
    # a record has the text of names and paths, so that is what can be compared
    now = msgspec.structs.replace(
        now, comm=_shown(now.comm), executable=_shown(now.executable)
    )
    programs = InstalledPrograms(Path("/proc") / str(key.tgid))
    names = kernel_threads()
    found = (
        drift.judge(_born(program), now, programs, names)
        if program
        else _lookalike(now, names)
    )
    return [
        {"kind": one.kind, "weight": one.weight, "reason": one.why}
        | {"was": text(one.was), "now": text(one.now)}
        for one in found
    ]


def _lookalike(now: Now, kernel_threads: frozenset[bytes]) -> list[Finding]:
    """Say what needs no record: only a process with memory can imitate a thread."""
    if now.kernel_thread or not now.has_memory:
        return []
    title = (now.cmdline or b"").partition(b"\0")[0]
    told = ((now.comm, "named like a kernel thread"), (title, "titled like one"))
    return [
        Finding(Kind.KERNEL_THREAD_LOOKALIKE, b"", said[:_EVIDENCE], why)
        for said, why in told
        if drift.imitates_kernel(said, kernel_threads)
    ]


def _shown(raw: bytes) -> bytes:
    return text(raw).encode()


def _born(program: Record) -> Born:
    process, about = program["process"], program["ir"]
    argv, cut = raw_argv(program), about["argv"]["truncated"]
    major, _, minor = about["exe"]["device"].partition(":")
    return Born(
        executable=process.get("executable", "").encode(),
        # the end of an argument that was cut is not known, and neither is the digest
        argv=argv[:-1] if cut else argv,
        argv_bytes=about["argv"]["bytes"],
        comm=process["name"].encode(),
        file=drift.File(int(about["exe"]["inode"]), int(major) << 20 | int(minor)),
        argv_sha256=b"" if cut else bytes.fromhex(about["argv"]["sha256"]),
        invoked=about["exec"]["path"].encode(),
        interpreter=about["exec"].get("interpreter", "").encode(),
        memfd=about["exe"]["memfd"],
    )
