"""Roles of real training jobs, from what the agent recorded of them.

In: jobs of shared/workloads, run by a PyTorch that is installed for these tests alone.
Out: what agent.training says of each of their programs, held against how the workloads'
own labelling calls it, and what all of their processes were in the end.
"""

import importlib.util
import os
import subprocess  # noqa: TID251 - the tests run the jobs they are about
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from agent.events import NOBODY, Event, ProcessKey, Task
from agent.role import Role
from tests.builders import a_fork, a_prctl, a_task, an_exec, an_exit, an_image
from tests.kernel.conftest import Agent, Record, Segments
from tests.training.recorded import LABELS, Node

WORKLOADS = Path(__file__).parents[3] / "shared" / "workloads"
TORCH = "torch==2.13.0+cpu"
"""A few hundred megabytes; the build without `+cpu` brings gigabytes of CUDA."""
INSTALL_S, JOB_S = 900, 300
GROUP = 61357
"""A group that only these jobs are of: nothing else of the machine is read."""

pytestmark = [pytest.mark.kernel, pytest.mark.slow]


@pytest.fixture(scope="module")
def python() -> Iterator[Path]:
    """A Python with PyTorch; IR_TORCH_PYTHON names one that is there already."""
    if not WORKLOADS.exists():
        pytest.skip("shared/workloads is not beside this checkout")
    if given := os.environ.get("IR_TORCH_PYTHON"):
        yield Path(given)
        return
    with tempfile.TemporaryDirectory(prefix="ir-torch-", dir="/var/tmp") as name:
        subprocess.run([sys.executable, "-m", "venv", name], check=True)
        found = Path(name) / "bin" / "python"
        pip = [found, "-m", "pip", "install", "--quiet", "--only-binary=:all:"]
        done = subprocess.run(
            [*pip, TORCH, "numpy"],
            capture_output=True,
            text=True,
            timeout=INSTALL_S,
            check=False,
        )
        if done.returncode:
            pytest.skip(f"no {TORCH} to be had: {done.stderr.splitlines()[-1:]}")
        yield found


@pytest.fixture(scope="module")
def labelling() -> ModuleType:
    """The workloads' own labelling of programs."""
    if not WORKLOADS.exists():
        pytest.skip("shared/workloads is not beside this checkout")
    spec = importlib.util.spec_from_file_location("labelling", WORKLOADS / "roles.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Job:
    """What roles make of a job's records; it was run by nobody but GROUP."""

    def __init__(self, records: Iterator[Record]) -> None:
        self.node = Node()
        self.lines = [(one, self.node.take(event_of(one))) for one in kept(records)]

    def counted(self) -> Counter[Role]:
        """How many processes were what in the end."""
        return Counter({one.key: one.role for _, one in self.lines}.values())


def kept(records: Iterator[Record]) -> Iterator[Record]:
    wanted = {"fork", "exec", "exit", "prctl-set-name"}
    for record in records:
        ours = record.get("process.group.id") == str(GROUP)
        if ours and record.get("event.action") in wanted:
            yield record


def key_of(record: Record, path: str) -> ProcessKey:
    """The key in an entity: boot, pid, start."""
    entity = record.get(f"{path}.entity_id")
    if entity is None:
        return NOBODY
    _, pid, start = entity.split("-")
    return ProcessKey(int(pid), int(start, 16))


def task_of(record: Record) -> Task:
    uid = int(record["process.user.id"])
    image = an_image(
        record["process.name"].encode(),
        uid=uid,
        euid=uid,
        cgroup_id=record["ir.cgroup.id"],
        deleted=record.get("ir.exe.deleted", False),
        memfd=record.get("ir.exe.memfd", False),
    )
    key = key_of(record, "process")
    parent = key_of(record, "process.parent")
    return a_task(key.tgid, start_ns=key.start_ns, real_parent=parent, image=image)


def event_of(record: Record) -> Event:
    """The event that a record was made of, as far as roles look at it."""
    task, at = task_of(record), record["ir.clock.bt_ns"]
    if record["event.action"] == "exit":
        return an_exit(task, bt_ns=at)
    if record["event.action"] == "prctl-set-name":
        return a_prctl(task, bt_ns=at)
    if record["event.action"] == "fork":
        shared = "CLONE_VM" in record.get("ir.clone_flags", [])
        creator = key_of(record, "ir.creator")
        return a_fork(task, bt_ns=at, creator=creator, clone_flags=0x100 * shared)
    return an_exec(
        *record.argv,
        task=task,
        bt_ns=at,
        executable=os.fsencode(record.get("process.executable", "")),
        environment=tuple(map(os.fsencode, record.get("process.env_vars", []))),
    )


@pytest.fixture(scope="module")
def segments(_running: Agent) -> Segments:
    """The agent's records, each read once."""
    return Segments(_running.state / "records")


@pytest.fixture
def ran(agent: Agent, segments: Segments, python: Path, place: Path) -> Any:
    """Runs a workload to its end under the recording agent."""
    settings = {"PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    settings["PATH"] = f"{python.parent}:{os.environ['PATH']}"
    settings["TORCHINDUCTOR_CACHE_DIR"] = str(place / "icache")

    def run(*words: str, script: str, more: tuple[str, ...] = ()) -> Job:
        argv = [str(python), *words, str(WORKLOADS / script), *more]
        with subprocess.Popen(
            argv,
            cwd=place,
            env=os.environ | settings,
            group=GROUP,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        ) as process:
            try:
                told, _ = process.communicate(timeout=JOB_S)
            finally:
                process.kill()
        assert process.returncode == 0, told.decode(errors="replace")[-2000:]
        agent.fence()
        return Job(segments.new(f'"{GROUP}"'.encode()))

    return run


TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node=2")
JOBS = {
    "loaders by fork": (
        (TORCHRUN, "ddp_dataloader.py", ("--steps", "5")),
        {Role.LAUNCHER: 1, Role.RANK: 2, Role.LOADER: 4},
    ),
    "loaders by spawn": (
        (TORCHRUN, "ddp_dataloader.py", ("--steps", "5", "--mp-context", "spawn")),
        {Role.LAUNCHER: 1, Role.RANK: 2, Role.LOADER: 4, Role.RESOURCE_TRACKER: 2},
    ),
    "checkpoint by a process": (
        (TORCHRUN, "fsdp2_checkpoint.py", ("--steps", "4", "--async-mode", "process")),
        {Role.LAUNCHER: 1, Role.RANK: 2, Role.WORKER: 2, Role.RESOURCE_TRACKER: 2},
    ),
    "compile pool": (
        ((), "compile_workers.py", ()),
        {Role.SCRIPT: 1, Role.COMPILE_POOL: 1, Role.COMPILE_WORKER: 4},
    ),
}


@pytest.mark.parametrize("name", JOBS)
def test_processes_of_a_real_job_have_their_roles(
    ran: Any, labelling: ModuleType, name: str
) -> None:
    (words, script, more), expected = JOBS[name]
    job = ran(*words, script=script, more=more)
    assert wrongly_called(job, labelling) == []
    assert job.counted() == expected


def test_all_processes_of_a_real_job_are_in_it(ran: Any) -> None:
    job = ran(*TORCHRUN, script="ddp_dataloader.py", more=("--steps", "5"))
    launchers = {one.key for _, one in job.lines if one.role is Role.LAUNCHER}
    assert len(launchers) == 1
    assert {one.job for _, one in job.lines} == launchers
    assert len(job.node.roles.jobs) == 0


def wrongly_called(job: Job, labelling: ModuleType) -> list[tuple[Any, ...]]:
    """Programs that the workloads' labelling calls something else."""
    again, wrong = Node(), []
    labels: dict[ProcessKey, tuple[str | None, dict[str, str]]] = {}
    for record, _ in job.lines:
        process = again.take(event_of(record))
        parent = labels.get(process.real_parent, (None, {}))
        if record["event.action"] == "fork":
            labels[process.key] = parent
        if record["event.action"] != "exec":
            continue
        argv, file = list(map(os.fsdecode, record.argv)), record["ir.exec.path"]
        env = dict(one.split("=", 1) for one in record.get("process.env_vars", []))
        label = labelling.role(file, argv, env, *parent)
        labels[process.key] = (label, env)
        if process.role not in LABELS[label]:
            wrong.append((label, str(process.role), argv[:6]))
    return wrong
