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
from pathlib import Path

from agent import clock
from agent.events import Exec, Fork
from agent.node import host_facts, read_clock
from agent.process import procfs
from agent.process.ledger import Ledger
from agent.process.lineage import Lineages
from agent.process.parentage import Parentages
from agent.sensor import bpf, loader, pins
from agent.sensor.ringbuf import Batch, RingReader
from agent.sensor.stream import Stream
from agent.sinks.record import Renderer
from agent.sinks.segment import SegmentWriter

HERE = Path(__file__).parent
RING_BYTES = 64 << 20
STATS = Path("/proc/sys/kernel/bpf_stats_enabled")
STAGES = ("decode", "ledger", "record", "segment")
BATCH = 100


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
        batches += pieces(batch)
    events = sum(len(batch.records) for batch in batches)
    took = (time.process_time() - started) / events * 1e6
    print(f"\n{events} events, {len(batches)} batches\nstage        µs an event")
    print(f"ring         {took:>8.2f}")
    ring.close()
    os.close(fd)
    return batches


def pieces(batch: Batch) -> list[Batch]:
    """Cut a batch into those that the pipeline meets under load."""
    cut = []
    for first in range(0, len(batch.records), BATCH):
        records = batch.records[first : first + BATCH]
        begin, end = records[0][0], records[-1][0] + records[-1][1]
        moved = [(at - begin, size) for at, size in records]
        cut.append(Batch(batch.data[begin:end], moved, 0, 0))
    return cut


def costs(folder: Path) -> dict[str, tuple[int, int]]:
    """Nanoseconds and runs of each program so far."""
    told = bpf.program_infos(folder / "links")
    return {name: (info.run_time_ns, info.run_cnt) for name, info in told.items()}


def report(batches: list[Batch], place: Path, repeat: int) -> None:
    """Run the path over all batches, several times; print the fastest of each stage."""
    count = sum(len(batch.records) for batch in batches)
    runs = [run(batches, place) for _ in range(repeat)]
    for name in STAGES:
        print(f"{name:<12} {min(one[name] for one in runs) / count / 1000:>8.2f}")
    print(f"\n{runs[0]['bytes'] / count:.0f} bytes a record")


def run(batches: list[Batch], place: Path) -> dict[str, int]:
    """Move each batch through the stages; returns nanoseconds of CPU by stage."""
    spent = dict.fromkeys((*STAGES, "bytes"), 0)
    stream, ledger = Stream({}, 0, clock.boot_ns), Ledger()
    lineages, renderer = Lineages(ledger), Renderer(host_facts(), read_clock())
    parentages = Parentages(ledger, lineages, procfs.alive, procfs.reaps)
    now = time.process_time_ns
    with tempfile.TemporaryDirectory(dir=place) as folder:
        log = SegmentWriter.open(Path(folder) / "records", dict)
        for batch in batches:
            begun = now()
            events = stream.feed(batch)
            decoded = now()
            seen = [(event, ledger.apply(event)) for event in events]
            chains = [lineages.of(process) for _, process in seen]
            told = [
                parentages.of(process, event.task)
                if type(event) in (Exec, Fork)
                else None
                for event, process in seen
            ]
            applied = now()
            number = log.next_sequence
            bodies = [
                renderer.render(event, process, chain, number + i, None, verdict)
                for i, ((event, process), chain, verdict) in enumerate(
                    zip(seen, chains, told, strict=True)
                )
            ]
            rendered = now()
            log.append(bodies)
            written = now()
            spent["decode"] += decoded - begun
            spent["ledger"] += applied - decoded
            spent["record"] += rendered - applied
            spent["segment"] += written - rendered
            spent["bytes"] += sum(map(len, bodies))
        log.close()
    return spent


if __name__ == "__main__":
    main()
