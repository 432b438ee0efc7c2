"""Roles in jobs that were recorded on a real machine, exec by exec."""

from collections import Counter
from typing import Any

import pytest

from agent.events import NOBODY
from agent.role import Role
from tests.training.recorded import LABELS, SHELL, STREAMS, Replay, executable, jobs

pytestmark = pytest.mark.skipif(
    not STREAMS.exists(), reason="shared/corpora/training is not beside this checkout"
)

# labelled by name alone: a login shell's programs and a debugger's belong to no job
BY_NAME_ALONE = {
    ("mpi", "sh", "shell"): Role.OTHER,
    ("mpi", "dirname", "environment-probe"): Role.OTHER,
    ("debug_attach", "iconv", "environment-probe"): Role.OTHER,
    ("probes", "cmake", "environment-probe"): Role.COMPILER,
}


def expected(line: dict[str, Any]) -> set[Role]:
    different = BY_NAME_ALONE.get((line["job"], line["comm"], line["role"]))
    if different:
        return {different}
    if executable(line) == SHELL and line["role"] != "rank-wrapper":
        return {Role.SHELL}  # a script is what runs it
    return LABELS[line["role"]]


@pytest.mark.parametrize("name", list(jobs()))
def test_each_program_of_a_recorded_job_has_the_role_it_was_labelled_with(
    name: str,
) -> None:
    wrong = [
        (line["file"], line["argv"][:4], line["role"], str(role))
        for line, role in roles(name)
        if role not in expected(line)
    ]
    assert wrong == []


def roles(name: str) -> list[tuple[dict[str, Any], Role]]:
    """Each exec of a job with the role that was given at it."""
    return [
        (line, process.role)
        for line, process in Replay(jobs()[name]).run()
        if line["ev"] == "exec"
    ]


# the roles of all processes, as of their last event
ENDED = {
    "ddp": {Role.LAUNCHER: 1, Role.RANK: 2, Role.LOADER: 4},
    "ddp_spawn_workers": {
        Role.LAUNCHER: 1,
        Role.RANK: 2,
        Role.LOADER: 4,
        Role.RESOURCE_TRACKER: 2,
    },
    "ddp_forkserver_workers": {
        Role.LAUNCHER: 1,
        Role.RANK: 2,
        Role.LOADER: 4,
        Role.RESOURCE_TRACKER: 2,
        Role.FORKSERVER: 2,
    },
    "fsdp2": {Role.LAUNCHER: 1, Role.RANK: 2},
    "fsdp2_procckpt": {
        Role.LAUNCHER: 1,
        Role.RANK: 2,
        Role.RESOURCE_TRACKER: 2,
        Role.WORKER: 2,
    },
    "elastic": {Role.LAUNCHER: 1, Role.RANK: 4},
    "rpc": {Role.LAUNCHER: 1, Role.RANK: 2},
    "mpi": {Role.MPI_LAUNCHER: 1, Role.RANK: 2, Role.OTHER: 1},
    "compile_workers": {Role.SCRIPT: 1, Role.COMPILE_POOL: 1, Role.COMPILE_WORKER: 4},
    "torchrun_static": {Role.LAUNCHER: 1, Role.RANK: 2},
}


@pytest.mark.parametrize("name", ENDED)
def test_all_processes_of_a_job_end_in_their_roles(name: str) -> None:
    replay = Replay(jobs()[name])
    processes = {process.key: process for _, process in replay.run()}
    found = Counter(one.role for one in processes.values())
    assert found == ENDED[name]


# the shells that started these, and what they ran first
@pytest.mark.parametrize("name", ["compile_ddp", "debug_server", "ddp", "elastic"])
def test_all_processes_of_a_job_are_in_it(name: str) -> None:
    replay = Replay(jobs()[name])
    found = {process.key: process.job for _, process in replay.run()}
    [launcher] = [
        one.key
        for one in (replay.node.entry(key) for key in found)
        if one.role is Role.LAUNCHER
    ]
    assert set(found.values()) == {launcher}
    assert len(replay.node.roles.jobs) == 0  # all have ended


def test_a_job_without_a_launcher_is_none() -> None:
    for name in ("compile_cold", "jit_ext", "probes", "triton_compile"):
        assert {process.job for _, process in Replay(jobs()[name]).run()} == {NOBODY}


def test_a_job_says_what_its_ranks_were_told() -> None:
    replay = Replay(jobs()["ddp"])
    for line, _ in replay.run():
        if line["ev"] == "exit":
            break
    [job] = replay.node.roles.jobs
    assert (job.launcher.tgid, job.world_size) == (21458, 2)
    assert job.run_id == b"09b557c6-2c3e-4bc1-81aa-dbe5244e4e02"
    assert sorted((key.tgid, rank) for key, rank in job.ranks.items()) == [
        (21463, 0),
        (21464, 1),
    ]


def test_a_restarted_rank_takes_the_place_of_the_one_before() -> None:
    replay = Replay(jobs()["elastic"])
    seen: list[dict[int, int]] = []
    for line, _ in replay.run():
        if line["ev"] == "exec":
            ranks = [job.ranks for job in replay.node.roles.jobs]
            seen += [{key.tgid: rank for key, rank in one.items()} for one in ranks]
    assert seen[-1] == {29177: 0, 29178: 1}
