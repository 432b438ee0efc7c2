"""Microseconds of each stage of our own path, on what a real storm left in the ring.

Loads the probes under pins of its own, runs a short storm, and copies the ring's
batches. Each stage is then run over the same events, several times; the fastest run
counts, since everything else only adds. Also prints what each probe costs in the
kernel (bpf_stats_enabled, which itself adds some 30 ns a run).

    bench/stages.py [--execs N] [--repeat R]
"""

import argparse
import gc
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from agent import clock
from agent.daemon import host_facts, read_clock
from agent.events import Event, Lineage, Process
from agent.process.ledger import Ledger
from agent.process.lineage import Lineages
from agent.sensor import bpf, loader, pins
from agent.sensor.ringbuf import Batch, RingReader
from agent.sensor.stream import Stream
from agent.sinks.record import Renderer
from agent.sinks.segment import SegmentWriter

HERE = Path(__file__).parent
RING_BYTES = 64 << 20
STATS = Path("/proc/sys/kernel/bpf_stats_enabled")
Seen = list[tuple[Event, Process, Lineage]]


def main() -> None:
    """Capture, time, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--execs", type=int, default=5000)
    parser.add_argument("--repeat", type=int, default=7)
    options = parser.parse_args()
    folder = Path(f"/sys/fs/bpf/ir-agent-stages-{os.getpid()}")
    with tempfile.TemporaryDirectory(prefix="ir-stages-") as place:
        try:
            loader.load(folder, RING_BYTES, None)
            batches = capture(folder, Path(place), options.execs)
        finally:
            pins.remove(folder)
        gc.freeze()
        report(batches, Path(place), options.repeat)


def capture(folder: Path, place: Path, execs: int) -> list[Batch]:
    """Run the storm and copy the ring; prints what the probes cost meanwhile."""
    for name, flags in (("storm", ()), ("true", ("-nostdlib",))):
        source = str(HERE / f"{name}.c")
        built = ["gcc", "-O2", "-static", *flags, source, "-o", str(place / name)]
        subprocess.run(built, check=True)
    fd = pins.open_map(folder, "events")
    ring = RingReader(fd)
    before, stats = costs(folder), STATS.read_text()
    STATS.write_text("1")
    try:
        subprocess.run(
            [place / "storm", "--execs", str(execs), place / "true"],
            check=True,
            stdout=subprocess.DEVNULL,
        )
    finally:
        STATS.write_text(stats)
    print("probe                runs   ns a run")
    for name, (nanoseconds, runs) in costs(folder).items():
        told = runs - before[name][1]
        if told >= execs // 2:
            spent = (nanoseconds - before[name][0]) / told
            print(f"{name:<18} {told:>6} {spent:>10.0f}")
    started, batches = time.process_time(), []
    while (batch := ring.read()).records:
        batches.append(batch)
    events = sum(len(batch.records) for batch in batches)
    took = (time.process_time() - started) / events * 1e6
    print(f"\n{events} events, {len(batches)} batches\nstage        µs an event")
    print(f"ring         {took:>8.2f}")
    ring.close()
    os.close(fd)
    return batches


def costs(folder: Path) -> dict[str, tuple[int, int]]:
    """Nanoseconds and runs of each program so far."""
    told = bpf.program_infos(folder / "links")
    return {name: (info.run_time_ns, info.run_cnt) for name, info in told.items()}


def report(batches: list[Batch], place: Path, repeat: int) -> None:
    """Time each stage over the same events and print the fastest run."""
    count = sum(len(batch.records) for batch in batches)

    def fastest(stage: Callable[[], object]) -> float:
        runs = []
        for _ in range(repeat):
            started = time.process_time()
            stage()
            runs.append(time.process_time() - started)
        return min(runs) / count * 1e6

    events = decode(batches)
    seen = apply(events)
    renderer = Renderer(host_facts(), read_clock())
    bodies = render(renderer, seen)
    times = {
        "decode": fastest(lambda: decode(batches)),
        "ledger": fastest(lambda: apply(events)),
        "record": fastest(lambda: render(renderer, seen)),
        "segment": fastest(lambda: write(bodies, place)),
    }
    for name, spent in times.items():
        print(f"{name:<12} {spent:>8.2f}")
    size = sum(len(body) for body in bodies) / count
    print(f"\n{size:.0f} bytes a record")


def decode(batches: list[Batch]) -> list[Event]:
    """Ring bytes to events."""
    stream = Stream({}, 0, clock.boot_ns)
    return [event for batch in batches for event in stream.feed(batch)]


def apply(events: list[Event]) -> Seen:
    """Events to entries and ancestors."""
    ledger = Ledger()
    lineages = Lineages(ledger)
    seen = []
    for event in events:
        process = ledger.apply(event)
        seen.append((event, process, lineages.of(process)))
    return seen


def render(renderer: Renderer, seen: Seen) -> list[bytes]:
    """Entries to records."""
    return [
        renderer.render(event, process, chain, number)
        for number, (event, process, chain) in enumerate(seen)
    ]


def write(bodies: list[bytes], place: Path) -> None:
    """Write records to a segment, a hundred at a time as the pipeline does."""
    with tempfile.TemporaryDirectory(dir=place) as folder:
        log = SegmentWriter.open(Path(folder) / "records", dict)
        for at in range(0, len(bodies), 100):
            log.append(bodies[at : at + 100])
        log.close()


if __name__ == "__main__":
    main()
