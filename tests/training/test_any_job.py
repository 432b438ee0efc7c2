"""Roles in jobs that nobody thought of: any argv, any environment, any order."""

from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from agent.events import NOBODY, Event, Lineage, Process, ProcessKey
from agent.role import Role
from agent.training.job import MAX_JOBS, Jobs, Told, scheduled, told
from agent.training.roles import MAX_CLAIMS, MAX_EARLY, Roles
from tests.builders import a_failed_exec, a_process, a_task, an_access
from tests.strategies import events
from tests.training.recorded import PYTHON, Cast
from tests.training.test_roles import (
    CHILDREN,
    LOGIN,
    SPAWNED,
    Stage,
    variables,
)

processes = st.builds(
    a_process,
    role=st.sampled_from(Role),
    job=st.sampled_from([NOBODY, ProcessKey(5, 5)]),
    argv=st.binary(max_size=300),
    executable=st.binary(max_size=60) | st.just(PYTHON),
    comm=st.sampled_from([b"x", b"pt_data_worker"]),
)
lineages = st.builds(
    lambda chain: Lineage(tuple(chain), "root"),  # type: ignore[arg-type]
    st.lists(processes, max_size=4),
)


@given(events(), processes, lineages)
def test_whatever_happens_to_whomever_has_a_role(
    event: Event, process: Process, lineage: Lineage
) -> None:
    roles = Roles(lambda cgroup: b"%d" % (cgroup % 3))
    assert isinstance(roles.classify(event, process, lineage), Role)
    assert isinstance(roles.snapshot(process, lineage), Role)


words = st.binary(max_size=20).filter(lambda one: b"\0" not in one)
programs = st.sampled_from([(path, args) for _, path, args in CHILDREN]) | st.tuples(
    st.just(PYTHON), st.lists(words, max_size=4).map(tuple)
)
environments = st.dictionaries(
    st.sampled_from(
        [*variables(0), b"MASTER_PORT", b"SLURM_PROCID", b"PMI_RANK", b"LD_PRELOAD"]
    ),
    st.sampled_from([b"0", b"1", b"2", b"none"]) | words,
)


@given(st.lists(st.tuples(st.integers(0, 9), programs, environments), max_size=12))
def test_no_argv_and_no_variables_bring_a_stranger_into_a_job(
    life: list[tuple[int, tuple[bytes, tuple[bytes, ...]], dict[bytes, bytes]]],
) -> None:
    """A family below the login shell, beside a job that is there already."""
    stage = Stage()
    before = {key: stage.job(key) for key in (stage.launcher, stage.rank)}
    family = [stage.login]
    for whose, (path, args), env in life:
        parent = family[whose % len(family)]
        family.append(stage.child(parent, path, *args, env=env))
    assert all(stage.job(key) != stage.launcher for key in family)
    assert {key: stage.job(key) for key in before} == before
    job = stage.node.roles.jobs.get(stage.launcher)
    assert job is not None
    assert set(job.ranks) == {stage.rank, stage.other_rank}


@given(st.lists(st.tuples(st.integers(0, 9), programs, environments), max_size=12))
def test_nobody_born_in_a_job_gets_out_of_it(
    life: list[tuple[int, tuple[bytes, tuple[bytes, ...]], dict[bytes, bytes]]],
) -> None:
    """Nor becomes another of its ranks."""
    stage = Stage()
    family = [stage.rank]
    for whose, (path, args), env in life:
        parent = family[whose % len(family)]
        family.append(stage.child(parent, path, *args, env=env))
    assert {stage.job(key) for key in family} == {stage.launcher}
    ranks = [key for key in family if stage.role(key) is Role.RANK]
    assert ranks == [stage.rank]


class Torchrun:
    """A whole job: what each process does, in the order it does it."""

    def __init__(self, ranks: int, loaders: int, spawned: int) -> None:
        self.cast = Cast()
        self.launcher = self.cast.child(LOGIN, PYTHON, b"/v/bin/torchrun", b"t.py")
        self._lives = [self._rank(number, loaders, spawned) for number in range(ranks)]

    def _rank(self, number: int, loaders: int, spawned: int) -> Any:
        cast, env = self.cast, variables(number)
        rank = cast.born(self.launcher)
        yield
        cast.runs(rank, PYTHON, b"-u", b"t.py", env=env)
        yield
        for _ in range(loaders):
            cast.born(rank)
            yield
        for _ in range(spawned):
            worker = cast.born(rank)
            yield
            cast.runs(worker, PYTHON, *SPAWNED, env=env)
            yield
            cast.names(worker, b"pt_data_worker")
            yield

    def run(self, order: list[int]) -> Counter[Role]:
        """Run all lives, one step each time that its number is drawn."""
        lives = list(self._lives)
        for drawn in [*order, *[0] * 10_000]:
            if not lives:
                break
            life = lives[drawn % len(lives)]
            if next(life, life) is life:
                lives.remove(life)
        entries = list(self.cast.node.ledger.living())
        return Counter(one.role for one in entries if one.job == self.launcher)


@given(
    st.integers(1, 8),
    st.integers(0, 3),
    st.integers(0, 3),
    st.lists(st.integers(0, 100), max_size=120),
)
def test_a_whole_job_has_its_roles_in_whatever_order_siblings_live(
    ranks: int, loaders: int, spawned: int, order: list[int]
) -> None:
    found = Torchrun(ranks, loaders, spawned).run(order)
    expected = Counter({Role.LAUNCHER: 1, Role.RANK: ranks})
    expected[Role.LOADER] = ranks * (loaders + spawned)
    assert found == +expected


@given(words, words)
def test_a_rank_is_a_number_or_it_is_none(first: bytes, second: bytes) -> None:
    """The first variable of a name counts, as in getenv(3)."""
    found = told((b"RANK=" + first, b"RANK=" + second)).claim
    numeric = first.isdigit() and len(first) < 10
    assert (found.rank if found else None) == (int(first) if numeric else None)


@given(st.binary(max_size=120))
def test_any_path_of_a_cgroup_can_be_read(path: bytes) -> None:
    assert scheduled(path) == b"" or b"job_" in path or b"pod" in path


def test_the_number_of_jobs_is_bounded() -> None:
    jobs = Jobs()
    for pid in range(MAX_JOBS + 5):
        jobs.begin(ProcessKey(pid, 1), b"one")
    assert len(jobs) == MAX_JOBS
    assert jobs.get(ProcessKey(0, 1)) is None
    assert jobs.of_scheduler(b"one") is None
    jobs.join(ProcessKey(0, 1), ProcessKey(9, 9), Told(None, b""))
    assert len(jobs) == MAX_JOBS


def test_what_is_kept_of_processes_is_bounded() -> None:
    stage = Stage()
    for number in range(MAX_CLAIMS + 10):
        event = stage.program(
            ProcessKey(10_000 + number, 1),
            PYTHON,
            b"t.py",
            parent=stage.launcher,
            env=variables(number),
        )
        stage.node.take(event)
    assert len(stage.node.roles._claims) == MAX_CLAIMS
    assert len(stage.node.roles._early) == MAX_EARLY


def test_events_that_say_nothing_of_roles_change_none() -> None:
    stage = Stage()
    entry = stage.node.entry(stage.rank)
    task = a_task(entry.key.tgid, start_ns=entry.key.start_ns)
    for event in (a_failed_exec(b"x", task=task), an_access(task=task)):
        stage.node.take(event)
    assert (entry.role, entry.job) == (Role.RANK, stage.launcher)
