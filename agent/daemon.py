"""The daemon: build the stages in order, run the path, stop in reverse order.

In: a configuration. Out: records on disk until told to stop. It is the composition
root: configuration ends here, and the stages get plain arguments. Two threads: one runs
the path, the other does what may be slow (agent.slow); neither waits for the network.
"""

import gc
import os
import signal
import subprocess  # noqa: TID251 - the daemon starts the loader, and nothing else
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import structlog

from agent import clock
from agent.config import Config
from agent.errors import AgentError, CorruptError, LoadError, NotPermittedError
from agent.node import host_facts
from agent.pipeline import COALESCE_S, Pipeline, View
from agent.process import procfs
from agent.process.census import Census
from agent.process.ledger import Ledger
from agent.process.lookalike import Lookalikes
from agent.resume import Resume
from agent.sensor import pins, status
from agent.sensor.identity import object_key
from agent.sensor.pins import Loaded
from agent.sensor.tap import Tap
from agent.sensor.watch import Tampering, Watch
from agent.sinks.batch import Batch
from agent.sinks.record import Renderer
from agent.sinks.segment import SegmentWriter
from agent.slow import Slow
from agent.sweep import Sweep

SETTLE_NS = 1_000_000_000
log = structlog.get_logger()


class Daemon:
    """One run of the agent."""

    def __init__(self, config: Config, view: View | None = None) -> None:
        """Prepare; nothing is opened before `run`."""
        self._config = config
        self._view = view
        self._stop = threading.Event()
        self._resume = Resume()
        self._load_id = ""
        self._refusals = self._due = 0
        self._pipeline: Pipeline = None  # type: ignore[assignment]

    def run(self, seconds: float | None = None) -> None:
        """Run until SIGTERM, SIGINT, or for that long. The pins stay behind."""
        with ExitStack() as stack:
            self._build(stack)
            # a storm of processes must not starve the one that records it
            os.setpriority(os.PRIO_PROCESS, 0, self._config.nice)
            pipeline, started = self._pipeline, clock.boot_ns()
            until = started + int(seconds * 1e9) if seconds else None
            stack.enter_context(self._signals(pipeline.tap))
            stack.enter_context(self._slow.running())
            gc.freeze()  # what is built now stays: no collection looks at it again
            log.info("ready", records=str(self._config.records), **self._about())
            self._loop(until)
            self._finish()

    def _build(self, stack: ExitStack) -> None:
        """Open what is needed, in the order of who must not be disturbed by whom."""
        config, resume = self._config, self._resume
        folder = Path(config.pins)
        # open from now on: what is mounted over /proc later stops no heartbeat
        self._statm = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
        stack.callback(os.close, self._statm)
        self._log = SegmentWriter.open(
            config.records, self._header, config.segment_bytes, resume.line
        )
        stack.callback(self._log.close)
        before, old = pins.loaded(folder), None
        wanted = object_key(config.forbidden_rungs)
        with pins.owned(folder):  # somebody else's pins are not replaced
            if before and (before.object_key != wanted or not before.whole):
                old = self._tap(before, clock.boot_ns())
                stack.callback(old.close)
        self._loaded = require_loaded(config, wanted)
        stack.enter_context(pins.owned(folder))
        self._watch = Watch(folder)
        stack.callback(self._watch.close)
        started = clock.boot_ns()
        tap = self._tap(self._loaded, started)
        stack.callback(tap.close)
        sweep = Sweep(folder)
        stack.callback(sweep.close)
        self._slow = Slow(self._log, sweep, config.sweep_seconds)
        self._join(old or tap, sweep)
        if old:
            self._drain(old, tap)
        self._load_id = self._loaded.load_id
        self._say_start(before, started)

    def _join(self, tap: Tap, sweep: Sweep) -> None:
        """Make the path, and the ledger of those who live already."""
        ledger = Ledger(self._config.processes)
        snapshot = sweep.views.tasks()
        ledger.snapshot_ns = clock.boot_ns()
        for task, told in zip(snapshot, procfs.described(snapshot), strict=True):
            entry = ledger.observe(task, *told)
            if procfs.ended(task.key):
                ledger.ended_before(entry, ledger.snapshot_ns)
        self._host = host_facts()
        self._renderer = Renderer(self._host, self._slow.clock)
        batch = Batch(self._renderer, self._log, self._slow.clock)
        self._pipeline = Pipeline(tap, ledger, batch, self._log)
        self._pipeline.view = self._view
        parentages = self._pipeline.parentages
        self._lookalikes = Lookalikes()
        self._census = Census(ledger, parentages, procfs.program, clock.boot_ns())

    def _tap(self, loaded: Loaded, started: int) -> Tap:
        resume, same = self._resume, self._resume.load_id == loaded.load_id
        return Tap(
            Path(self._config.pins),
            resume.for_loading(loaded.load_id),
            started,
            clock.boot_ns,
            resume.taken_over if same else None,
        )

    def _drain(self, old: Tap, tap: Tap) -> None:
        """Record what the replaced probes had collected until the new ones took over.

        Both see what happens between; when the new pins were published, all of the
        new hooks were attached and none of the old ones removed, so that is the cut.
        """
        old.end_at(self._loaded.loaded_ns)
        tap.begin_at(self._loaded.loaded_ns)
        while self._pipeline.step():
            pass
        self._pipeline.settle()
        self._pipeline.switch(tap)

    def _header(self) -> Mapping[str, object]:
        """Return the caller's part of a segment's header."""
        pipeline = self._pipeline
        return {
            "boot_id": clock.boot_id(),
            "bt_ns": clock.boot_ns(),
            "wall_offset_ns": clock.wall_anchor().offset_ns,
            "load_id": self._load_id or self._resume.load_id,
            "positions": pipeline.checkpoint if pipeline else self._resume.checkpoint,
            "taken_over": self._taken_over(),
        }

    def _taken_over(self) -> Mapping[str, dict[str, int]] | None:
        pipeline = self._pipeline
        found = pipeline.tap.taken_over if pipeline else self._resume.taken_over
        return None if found is None else {str(cpu): one for cpu, one in found.items()}

    def _about(self) -> dict[str, Any]:
        return {
            "load_id": self._load_id,
            "processes": len(self._pipeline.ledger),
        }

    def _say_start(self, before: Loaded | None, started: int) -> None:
        tell, writer, resume = self._pipeline.batch.tell, self._log, self._resume
        about = {
            "pid": os.getpid(),
            "config": self._config,
            "host_namespaces": self._host.namespaces,
            "taken_over": self._taken_over(),
            "missing": self._missing(),
            **self._about(),
        }
        tell("agent-start", {"agent": about}, started)
        if before and not before.whole:
            why = "not what was loaded; somebody changed it while no agent ran"
            self._tell_tampering(
                Tampering("changed", [str(self._config.pins)], True, why), started
            )
        if writer.recovered:
            tell("log-recovered", {"recovered": writer.recovered}, started)
        if cause := self._gap_cause(before):
            gap = {
                "cause": cause,
                "start": resume.last_record or None,
                "end": self._renderer.wall(self._loaded.loaded_ns),
            }
            tell("gap", {"gap": gap}, started)

    def _missing(self) -> list[str]:
        """Name the senses that are not there, and say so in the log."""
        config = self._config
        states = status.current(Path(config.runtime), Path(config.pins))
        lacking = status.missing(states)
        if lacking:
            log.warning("senses_missing", senses=lacking)
        return lacking

    def _gap_cause(self, before: Loaded | None) -> str:
        """Say why the records do not go on where the last ones ended, if they don't."""
        resume = self._resume
        if self._pipeline.tap.taken_over is not None and resume.taken_over is None:
            return "another run read these pins before"
        if not resume.last_record or resume.load_id == self._load_id:
            return ""
        if resume.boot_id != clock.boot_id():
            return "reboot"
        return "probes replaced" if before else "probes not loaded"

    def _loop(self, until: int | None) -> None:
        pipeline, config = self._pipeline, self._config
        beat = int(config.heartbeat_seconds * 1e9)
        settle_at = beat_at = 0
        while not self._stop.is_set():
            now = clock.boot_ns()
            if until and now >= until:
                return
            if now >= settle_at:
                self._once_a_second()
                settle_at = now + SETTLE_NS
            if now >= beat_at:
                self._heartbeat(now)
                beat_at = now + beat
            if pipeline.step():
                if not pipeline.tap.behind:
                    time.sleep(COALESCE_S)
            else:
                wake_at = min(settle_at, until) if until else settle_at
                pipeline.tap.wait(max(0.0, (wake_at - now) / 1e9))

    def _pinned(self) -> int:
        """Count what is attached or can be run."""
        folder = Path(self._config.pins)
        return len(pins.links(folder)) + len(pins.programs(folder))

    def _once_a_second(self) -> None:
        pipeline = self._pipeline
        pipeline.batch.set_clock(self._slow.clock)
        self._look_for_tampering()  # before anybody reads the pins
        pipeline.settle()
        self._hold_census()
        if pipeline.batch.write_errors > self._refusals:
            self._refusals = pipeline.batch.write_errors
            log.error(
                "records_not_written",
                waiting=len(pipeline.batch),
                reason=pipeline.batch.refusal,
                records=str(self._config.records),
            )
        if self._log.removed:
            raise CorruptError(f"{self._config.records} was removed while in use")

    def _look_for_tampering(self) -> None:
        for found in self._watch.look():
            self._tell_tampering(found, clock.boot_ns())

    def _tell_tampering(self, found: Tampering, bt_ns: int) -> None:
        log.error(
            "agent_tampering",
            what=found.what,
            pins=len(found.pins),
            put_back=found.put_back,
            reason=found.reason,
        )
        details = {"tampering": found}
        self._pipeline.batch.tell("agent-tampering", details, bt_ns, "alert")

    def _hold_census(self) -> None:
        """Hold the ledger against the last sweep, once all events before it are in."""
        pipeline, sighting = self._pipeline, self._slow.sighting
        if sighting is None:
            return
        self._due = self._due or pipeline.tap.produced
        if not pipeline.tap.has_polled(self._due):
            return
        suspects, pipeline.suspects = pipeline.suspects, {}
        census = self._census
        found = census.take(sighting.listing, suspects.values(), sighting.ran)
        others = sighting.differences + self._lookalikes.take(sighting.listing)
        found += census.first_told(others) + sighting.covered
        for doubt in sighting.doubts:
            log.warning("proc_doubted", kind=doubt.kind, reason=doubt.text)
            told = {"kind": doubt.kind, "reason": doubt.text}
            at = sighting.listing.taken_ns
            pipeline.batch.tell("proc-doubted", {"doubt": told}, at, "alert")
        for one in found:
            log.error("discrepancy", pid=one.key.tgid, kind=one.kind, reason=one.why)
            pipeline.disagree(one)
        self._slow.searching = census.searching
        self._slow.sighting, self._due = None, 0

    def _heartbeat(self, now: int) -> None:
        ledger = self._pipeline.ledger
        details = {
            "events": self._pipeline.events,
            "lost": self._pipeline.lost,
            "write_errors": self._pipeline.batch.write_errors,
            "processes": len(ledger),
            "evicted_living": ledger.evicted_living,
            "evicted_ancestors": ledger.evicted_ancestors,
            "cpu_seconds": round(time.process_time(), 3),
            "resident_bytes": self._resident_bytes(),
            "hooks": self._pinned(),
            "discrepancies": self._pipeline.discrepancies,
            "births_unseen": self._census.births_unseen,
            "ends_unseen": self._census.ends_unseen,
            "verdicts": self._census.verdicts,
            "sweeps": self._slow.sweeps,
            "sweep_cpu_ns": self._slow.sweep_ns,
            **self._pipeline.tap.counters(),
        }
        self._pipeline.batch.tell("heartbeat", {"heartbeat": details}, now)

    def _resident_bytes(self) -> int:
        pages = int(os.pread(self._statm, 128, 0).split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def _finish(self) -> None:
        """Take what is in the ring, say goodbye, make everything durable."""
        tap = self._pipeline.tap
        end = tap.produced  # a storm goes on; what comes later waits for the next run
        while not tap.has_polled(end) and self._pipeline.step():
            pass
        self._pipeline.settle()
        self._heartbeat(clock.boot_ns())
        self._pipeline.batch.tell(
            "agent-stop", {"agent": self._about()}, clock.boot_ns()
        )
        self._pipeline.flush()
        pipeline = self._pipeline
        log.info("stopped", events=pipeline.events, lost=pipeline.lost)
        if pipeline.batch:
            raise AgentError(
                f"{len(pipeline.batch)} records could not be written:"
                f" {pipeline.batch.refusal};"
                " what the kernel had told is read again by the next run"
            )

    @contextmanager
    def _signals(self, tap: Tap) -> Iterator[None]:
        """End the loop on SIGTERM and SIGINT, also while it waits."""

        def stop(_number: int, _frame: FrameType | None) -> None:
            self._stop.set()

        awake, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        tap.wake_on(awake)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        kept = {n: signal.signal(n, stop) for n in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            signal.set_wakeup_fd(-1)
            for number, handler in kept.items():
                signal.signal(number, handler)
            os.close(awake)
            os.close(wake)


def require_loaded(config: Config, wanted: str) -> Loaded:
    """Load the probes unless those of the key `wanted` are pinned already."""
    folder = Path(config.pins)
    found = pins.loaded(folder)
    if found and found.object_key == wanted and found.whole:
        return found
    # -P: what lies in the current folder is not ours to run
    command = [sys.executable, "-P", "-m", "agent", "load"]
    for name in ("state", "runtime", "pins"):
        command += [f"--{name}", str(getattr(config, name))]
    command += ["--ring-bytes", str(config.ring_bytes)]
    command += ["--forbid", ",".join(config.forbidden_rungs)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)  # noqa: S603
    found = pins.loaded(folder)
    if done.returncode not in (0, 1) or found is None:  # 1: some sense is missing
        reason = done.stderr.strip().splitlines()[-1:] or ["no reason given"]
        if done.returncode == NotPermittedError.exit_code:
            raise NotPermittedError(reason[0])
        raise LoadError(f"the loader failed: {reason[0]}")
    return found
