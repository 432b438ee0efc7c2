"""The jobs of this node: who starts ranks, which ranks there are, what they were told.

In: launchers and ranks as they are recognised, and the variables that a program was
given. Out: one Job a launcher, bounded in number, forgotten when its launcher and its
last rank have ended. A job is its launcher's process key: run ids repeat, and anybody
can claim one.
"""

import re
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

from agent.events import ProcessKey
from agent.job import Job

MAX_JOBS = 1024
_RANK = (b"RANK", b"OMPI_COMM_WORLD_RANK", b"PMI_RANK", b"SLURM_PROCID")
_SIZE = (b"WORLD_SIZE", b"OMPI_COMM_WORLD_SIZE", b"SLURM_NTASKS")
_NUMBER = re.compile(rb"\d{1,9}")
_SCHEDULED = re.compile(
    rb"/slurm[^/]*(?:/[^/]+)*?/job_(?P<slurm>\d+)(?:/|$)"
    rb"|/kubepods[^/]*(?:/[^/]+)*?/(?:[^/]*-)?pod(?P<pod>[0-9a-f_-]{32,36})"
)


class Claim(NamedTuple):
    """What a program's environment says of its rank; a claim, since anybody may set it.

    `weak` is one that a scheduler gives to whatever it starts, trained or not.
    """

    rank: int
    local_rank: bytes
    world_size: int
    run_id: bytes
    attempt: bytes
    weak: bool


class Told(NamedTuple):
    """What a program was told by environment; `claim` is None without a rank in it."""

    claim: Claim | None
    scheduler_job: bytes


@lru_cache(maxsize=1024)
def told(environment: tuple[bytes, ...]) -> Told:
    """Read the variables of an exec event, NAME=VALUE; the first of a name counts."""
    given: dict[bytes, bytes] = {}
    for one in environment:
        name, _, value = one.partition(b"=")
        given.setdefault(name, value)
    return Told(_claim(given), given.get(b"SLURM_JOB_ID", b""))


def _claim(given: Mapping[bytes, bytes]) -> Claim | None:
    names = [name for name in _RANK if name in given]
    # Lightning's own launcher tells no RANK
    if not names and {b"LOCAL_RANK", b"WORLD_SIZE"} <= given.keys():
        names = [b"LOCAL_RANK"]
    if not names or (rank := _number(given[names[0]])) < 0:
        return None
    size = next((_number(given[name]) for name in _SIZE if name in given), 0)
    return Claim(
        rank,
        given.get(b"LOCAL_RANK", b""),
        max(size, 0),
        given.get(b"TORCHELASTIC_RUN_ID", b""),
        given.get(b"TORCHELASTIC_RESTART_COUNT", b""),
        names[0] == b"SLURM_PROCID",
    )


def _number(text: bytes) -> int:
    return int(text) if _NUMBER.fullmatch(text) else -1


def scheduled(cgroup: bytes) -> bytes:
    """Return the job in a cgroup's path, as Slurm or Kubernetes made it; b"" for none.

    A Slurm job's number, or a pod's uid with dashes.
    """
    found = _SCHEDULED.search(cgroup)
    if not found:
        return b""
    return found["slurm"] or found["pod"].replace(b"_", b"-")


class Jobs:
    """The jobs of this node by their launcher's key, at most MAX_JOBS of them."""

    def __init__(self) -> None:
        """Know no job."""
        self._jobs: OrderedDict[ProcessKey, Job] = OrderedDict()
        # by the scheduler's name for them, where a cgroup has it and no variable
        self._placed: dict[bytes, set[ProcessKey]] = {}

    def __iter__(self) -> Iterator[Job]:
        """List them, the oldest first."""
        return iter(self._jobs.values())

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._jobs)

    def get(self, launcher: ProcessKey) -> Job | None:
        """Return the job of this launcher."""
        return self._jobs.get(launcher)

    def begin(self, launcher: ProcessKey, placed: bytes = b"") -> Job:
        """Return the job of a launcher, a new one if need be.

        `placed` is the scheduler's job whose cgroup the launcher is in.
        """
        job = self._jobs.get(launcher)
        if job is None:
            job = self._jobs[launcher] = Job(launcher)
            if len(self._jobs) > MAX_JOBS:
                self._forget(next(iter(self._jobs.values())))
        if placed:
            job.scheduler_job = placed
            self._placed.setdefault(placed, set()).add(launcher)
        return job

    def join(self, launcher: ProcessKey, rank: ProcessKey, what: Told) -> None:
        """Take a rank into the job of its launcher, with what it was told."""
        job, claim = self.begin(launcher), what.claim
        job.scheduler_job = job.scheduler_job or what.scheduler_job
        job.ranks[rank] = claim.rank if claim else -1
        if claim:
            job.run_id = claim.run_id or job.run_id
            job.world_size = claim.world_size or job.world_size

    def has(self, launcher: ProcessKey, number: int) -> bool:
        """Whether a living rank of this job has that number already."""
        job = self._jobs.get(launcher)
        return job is not None and number in job.ranks.values()

    def of_scheduler(self, scheduler_job: bytes) -> Job | None:
        """Return the one job in a scheduler's cgroup; None for none or several."""
        found = self._placed.get(scheduler_job, set())
        return self._jobs.get(next(iter(found))) if len(found) == 1 else None

    def drop(self, launcher: ProcessKey, rank: ProcessKey) -> None:
        """Take a process out of the ranks of its job; it lives on as something else."""
        if job := self._jobs.get(launcher):
            job.ranks.pop(rank, None)

    def leave(self, launcher: ProcessKey, process: ProcessKey) -> None:
        """Take a process out of its job; the launcher ends with its last rank."""
        job = self._jobs.get(launcher)
        if job is None:
            return
        job.ranks.pop(process, None)
        job.ended = job.ended or process == launcher
        if job.ended and not job.ranks:
            self._forget(job)

    def _forget(self, job: Job) -> None:
        del self._jobs[job.launcher]
        placed = self._placed.get(job.scheduler_job)
        if placed:
            placed.discard(job.launcher)
            if not placed:
                del self._placed[job.scheduler_job]
