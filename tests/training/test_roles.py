"""Who is what in a job, and who is not, whatever he calls himself."""

from typing import Any

import pytest

from agent.events import NOBODY, Fork, ProcessKey
from agent.role import Role
from agent.training.job import scheduled
from agent.training.roles import CLONE_VM
from tests.builders import a_task
from tests.training.recorded import PYTHON, SHELL, Cast, Node

LOGIN = ProcessKey(900, 1)
SPAWNED = (
    b"-c",
    (
        b"from multiprocessing.spawn import spawn_main;"
        b" spawn_main(tracker_fd=12, pipe_handle=16)"
    ),
    b"--multiprocessing-fork",
)
FORKSERVER = (
    b"-c",
    b"from multiprocessing.forkserver import main; main(14, 15, ['__main__'], **{})",
)
ISA_CHECK = (
    b'\nimport sys\nif sys.platform != "linux":\n    import torch  # noqa: F401\n'
    b'from ctypes import cdll\ncdll.LoadLibrary("/tmp/t_u/5u/c5.so")\n'
)
POOL = b"/opt/venv/lib/torch/_inductor/compile_worker/__main__.py"
GCC = b"/usr/bin/x86_64-linux-gnu-gcc-12"


def variables(rank: int, **more: bytes) -> dict[bytes, bytes]:
    told = {
        b"RANK": b"%d" % rank,
        b"LOCAL_RANK": b"%d" % rank,
        b"WORLD_SIZE": b"2",
        b"TORCHELASTIC_RUN_ID": b"none",
    }
    return told | {name.encode(): value for name, value in more.items()}


class Stage(Cast):
    """A login shell that started torchrun, which started two ranks."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        self.login = self.child(LOGIN, SHELL)
        self.launcher = self.torchrun(self.login)
        self.rank = self.a_rank(0)
        self.other_rank = self.a_rank(1)

    def torchrun(self, parent: ProcessKey, **more: Any) -> ProcessKey:
        key: ProcessKey = self.child(
            parent, PYTHON, b"/opt/venv/bin/torchrun", b"train.py", **more
        )
        return key

    def a_rank(self, number: int) -> ProcessKey:
        env = variables(number)
        key: ProcessKey = self.child(self.launcher, PYTHON, b"-u", b"train.py", env=env)
        return key

    def role(self, key: ProcessKey) -> Role:
        return self.node.role(key)

    def job(self, key: ProcessKey) -> ProcessKey:
        return self.node.entry(key).job


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_a_job_has_a_launcher_and_ranks(stage: Stage) -> None:
    assert stage.role(stage.launcher) is Role.LAUNCHER
    assert {stage.role(stage.rank), stage.role(stage.other_rank)} == {Role.RANK}
    assert {stage.job(stage.rank), stage.job(stage.launcher)} == {stage.launcher}
    assert (stage.role(stage.login), stage.job(stage.login)) == (Role.OTHER, NOBODY)


CHILDREN = [
    (Role.WORKER, PYTHON, SPAWNED),
    (Role.FORKSERVER, PYTHON, FORKSERVER),
    (
        Role.RESOURCE_TRACKER,
        PYTHON,
        (b"-B", b"-c", b"from multiprocessing.resource_tracker import main;main(16)"),
    ),
    (
        Role.ISA_CHECK,
        PYTHON,
        (
            b"-c",
            ISA_CHECK,
        ),
    ),
    (Role.COMPILER, GCC, (b"-c", b"x.c")),
    (Role.SHELL, SHELL, (b"-c", b"nvidia-smi")),
    (Role.PROBE, b"/usr/sbin/ldconfig", (b"-p",)),
    (Role.PROBE, PYTHON, (b"-m", b"torch.utils.collect_env")),
    (Role.SHM_MANAGER, b"/opt/venv/lib/torch/bin/torch_shm_manager", ()),
    (Role.LOGGER, b"/opt/venv/lib/wandb/bin/wandb-core", (b"--pid", b"1")),
    (Role.DEBUGGER, b"/opt/venv/bin/py-spy", (b"dump", b"--pid", b"1")),
    (Role.SCRIPT, PYTHON, (b"evaluate.py",)),
    (Role.OTHER, b"/usr/bin/ncat", (b"192.0.2.1", b"4444")),
]


@pytest.mark.parametrize(("role", "path", "args"), CHILDREN)
def test_what_a_rank_starts_has_its_variables_and_is_no_rank(
    stage: Stage, role: Role, path: bytes, args: tuple[bytes, ...]
) -> None:
    child = stage.child(stage.rank, path, *args, env=variables(0))
    assert stage.role(child) is role
    assert stage.job(child) == stage.launcher


@pytest.mark.parametrize(
    ("role", "path", "args"),
    [one for one in CHILDREN if one[0] not in (Role.SCRIPT, Role.OTHER, Role.DEBUGGER)],
)
def test_the_same_program_from_a_login_shell_is_nothing_of_a_job(
    stage: Stage, role: Role, path: bytes, args: tuple[bytes, ...]
) -> None:
    child = stage.child(stage.login, path, *args)
    assert stage.role(child) is (Role.SCRIPT if path == PYTHON else Role.OTHER)
    assert stage.job(child) == NOBODY
    assert role is not stage.role(child)


def test_a_child_without_a_program_of_its_own_is_a_loader(stage: Stage) -> None:
    loader = stage.born(stage.rank)
    assert (stage.role(loader), stage.job(loader)) == (Role.LOADER, stage.launcher)


def test_who_shares_the_memory_of_a_rank_is_no_loader(stage: Stage) -> None:
    """By vfork: it is there for an exec that follows."""
    assert stage.role(stage.born(stage.rank, CLONE_VM)) is Role.OTHER


def test_loaders_by_forkserver_are_its_children(stage: Stage) -> None:
    server = stage.child(stage.rank, PYTHON, *FORKSERVER, env=variables(0))
    assert stage.role(stage.born(server)) is Role.LOADER


def test_a_spawned_worker_says_itself_that_it_loads_data(stage: Stage) -> None:
    worker = stage.child(stage.rank, PYTHON, *SPAWNED, env=variables(0))
    assert stage.names(worker, b"pt_data_pin") is Role.WORKER
    assert stage.names(worker, b"pt_data_worker") is Role.LOADER


def test_a_name_alone_makes_no_loader(stage: Stage) -> None:
    assert stage.names(stage.login, b"pt_data_worker") is Role.OTHER
    shell = stage.child(stage.rank, SHELL, env=variables(0))
    assert stage.names(shell, b"pt_data_worker") is Role.SHELL


def test_a_worker_that_writes_a_checkpoint_is_there_for_that(stage: Stage) -> None:
    worker = stage.child(stage.rank, PYTHON, *SPAWNED, env=variables(0))
    alone = stage.born(stage.child(stage.login, PYTHON, b"x.py"))
    for key in (worker, stage.rank, alone):
        stage.node.roles.saves(stage.node.entry(key))
    assert stage.role(worker) is Role.CHECKPOINT
    assert (stage.role(stage.rank), stage.role(alone)) == (Role.RANK, Role.WORKER)


@pytest.mark.parametrize(
    ("lies", "role"), [(False, Role.COMPILE_POOL), (True, Role.SCRIPT)]
)
def test_a_compile_pool_names_its_parent(stage: Stage, lies: bool, role: Role) -> None:
    parent = b"--parent=%d" % (stage.rank.tgid + lies)
    pool = stage.child(stage.rank, PYTHON, POOL, b"--kind=fork", parent)
    assert stage.role(pool) is role
    worker = stage.born(pool)
    assert stage.role(worker) is (Role.WORKER if lies else Role.COMPILE_WORKER)
    assert stage.role(stage.child(worker, GCC, b"x.c")) is Role.COMPILER


# Strangers.


def test_variables_do_not_make_a_stranger_a_rank(stage: Stage) -> None:
    stranger = stage.child(
        stage.login, PYTHON, b"-u", b"train.py", env=variables(0, LD_PRELOAD=b"/x.so")
    )
    assert (stage.role(stranger), stage.job(stranger)) == (Role.CLAIMED_RANK, NOBODY)
    assert stage.role(stage.born(stranger)) is Role.WORKER
    assert stage.node.roles.jobs.get(stage.launcher).ranks == {  # type: ignore[union-attr]
        stage.rank: 0,
        stage.other_rank: 1,
    }


def test_what_slurm_tells_everybody_is_not_even_a_claim(stage: Stage) -> None:
    env = {b"SLURM_PROCID": b"0"}
    assert stage.role(stage.child(stage.login, PYTHON, b"x.py", env=env)) is Role.SCRIPT


def test_other_variables_do_not_make_a_rank_of_a_ranks_child(stage: Stage) -> None:
    child = stage.child(stage.rank, PYTHON, b"x.py", env=variables(7))
    assert (stage.role(child), stage.job(child)) == (Role.CLAIMED_RANK, stage.launcher)


def test_a_child_that_was_given_to_the_launcher_is_no_rank(stage: Stage) -> None:
    """CLONE_PARENT: the launcher is its parent, and did not start it."""
    adopted = stage.born(stage.launcher)
    stage.node.entry(adopted).creator = stage.rank
    role = stage.runs(adopted, PYTHON, b"-u", b"train.py", env=variables(5))
    assert role is Role.CLAIMED_RANK


def test_a_launcher_below_a_rank_has_a_job_of_its_own(stage: Stage) -> None:
    inner = stage.torchrun(stage.rank, env=variables(0))
    assert (stage.role(inner), stage.job(inner)) == (Role.LAUNCHER, inner)
    rank = stage.child(inner, PYTHON, b"x.py", env=variables(3))
    assert (stage.role(rank), stage.job(rank)) == (Role.RANK, inner)


def test_a_rank_that_becomes_another_program_is_no_rank(stage: Stage) -> None:
    assert stage.runs(stage.rank, SHELL, env=variables(0)) is Role.SHELL
    assert stage.runs(stage.other_rank, b"/usr/bin/ncat") is Role.OTHER
    assert stage.job(stage.rank) == stage.launcher
    assert stage.node.roles.jobs.get(stage.launcher).ranks == {}  # type: ignore[union-attr]


@pytest.mark.parametrize("where", [b"/tmp/", b"/var/tmp/x/", b"/dev/shm/", b"memfd:"])
@pytest.mark.parametrize("name", [b"gcc", b"gdb", b"mpirun", b"ldconfig"])
def test_a_known_name_in_a_place_for_everybody_is_nothing(
    stage: Stage, where: bytes, name: bytes
) -> None:
    child = stage.child(stage.rank, where + name, env=variables(0))
    assert stage.role(child) is Role.OTHER


@pytest.mark.parametrize("how", ["memfd", "deleted"])
def test_a_file_without_a_name_has_no_role(stage: Stage, how: str) -> None:
    child = stage.child(stage.rank, GCC, **{how: True})
    assert stage.role(child) is Role.OTHER


@pytest.mark.parametrize("code", [b"; evil()", b"\nevil()", b"#\n"])
@pytest.mark.parametrize("role", [Role.WORKER, Role.RESOURCE_TRACKER, Role.FORKSERVER])
def test_more_code_than_the_usual_is_only_a_script(
    stage: Stage, role: Role, code: bytes
) -> None:
    [(path, args)] = [(path, args) for one, path, args in CHILDREN if one is role]
    at = args.index(b"-c") + 1
    changed = (*args[:at], args[at] + code, *args[at + 1 :])
    assert stage.role(stage.child(stage.rank, path, *changed)) is Role.SCRIPT


# Other frames: MPI, shells between, Lightning, schedulers.


def test_a_shell_between_launcher_and_rank_is_a_wrapper() -> None:
    cast = Cast()
    mpi = cast.child(LOGIN, b"/opt/venv/bin/prterun", b"-np", b"2")
    env = {b"OMPI_COMM_WORLD_RANK": b"1", b"OMPI_COMM_WORLD_SIZE": b"2"}
    key = cast.born(mpi)
    assert cast.runs(key, SHELL, b"-c", b"exec python", env=env) is Role.RANK_WRAPPER
    assert cast.runs(key, PYTHON, b"t.py", env=env | variables(1)) is Role.RANK
    forking = cast.child(mpi, SHELL, b"run.sh", env=env)
    assert cast.node.role(cast.child(forking, b"/usr/bin/ncat")) is Role.OTHER
    rank = cast.child(forking, PYTHON, b"t.py", env=env)
    assert cast.node.role(rank) is Role.RANK
    job = cast.node.roles.jobs.get(mpi)
    assert job is not None
    assert (job.world_size, job.ranks) == (2, {key: 1, rank: 1})


def test_a_profiler_between_launcher_and_rank_is_a_wrapper(stage: Stage) -> None:
    nsys = stage.child(
        stage.launcher, b"/opt/nvidia/bin/nsys", b"profile", env=variables(2)
    )
    assert stage.role(nsys) is Role.RANK_WRAPPER
    rank = stage.child(nsys, PYTHON, b"train.py", env=variables(2))
    assert stage.role(rank) is Role.RANK


def test_a_script_that_starts_itself_again_is_the_first_rank() -> None:
    cast = Cast()
    script = cast.child(LOGIN, PYTHON, b"fit.py", b"--gpus", b"2")
    assert cast.node.role(script) is Role.SCRIPT
    env = {b"LOCAL_RANK": b"1", b"WORLD_SIZE": b"2"}
    second = cast.child(script, PYTHON, b"/srv/fit.py", b"--gpus", b"2", env=env)
    assert {cast.node.role(script), cast.node.role(second)} == {Role.RANK}
    assert cast.node.entry(second).job == cast.node.entry(script).job == script
    stranger = cast.child(script, PYTHON, b"other.py", env=env)
    assert cast.node.role(stranger) is Role.CLAIMED_RANK


SLURMD, SHIM = b"/usr/sbin/slurmd", b"/usr/bin/containerd-shim-runc-v2"
PLACES = {
    5: b"/system.slice/slurmstepd.scope/job_42/step_0/user/task_0",
    6: b"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod"
    b"1b4e28ba_2fa1_11d2_883f_0016d3cca427.slice/cri-containerd-0a.scope",
}


def node_with_cgroups() -> Node:
    return Node(lambda cgroup: scheduled(PLACES.get(cgroup, b"")))


def a_step(cast: Cast) -> ProcessKey:
    daemon = cast.child(LOGIN, SLURMD, uid=0)
    assert cast.node.role(daemon) is Role.SCHEDULER_DAEMON
    step: ProcessKey = cast.child(daemon, b"/usr/sbin/slurmstepd", uid=0)
    assert cast.node.role(step) is Role.SCHEDULER_STEP
    return step


def test_a_step_of_slurm_starts_ranks() -> None:
    cast = Cast(node_with_cgroups())
    step = a_step(cast)
    env = {b"SLURM_PROCID": b"3", b"SLURM_NTASKS": b"8", b"SLURM_JOB_ID": b"41"}
    rank = cast.child(step, PYTHON, b"train.py", env=env, cgroup=5)
    assert (cast.node.role(rank), cast.node.entry(rank).job) == (Role.RANK, step)
    job = cast.node.roles.jobs.get(step)
    assert job is not None
    assert (job.world_size, job.ranks, job.scheduler_job) == (8, {rank: 3}, b"42")
    tool = cast.child(step, b"/usr/bin/tool", env=env | {b"SLURM_PROCID": b"4"})
    assert cast.node.role(tool) is Role.OTHER


def test_who_enters_a_container_has_its_variables_and_is_no_rank() -> None:
    cast = Cast(node_with_cgroups())
    shim = cast.child(LOGIN, SHIM, uid=0)
    runc = cast.child(shim, b"/usr/bin/runc", b"create", uid=0)
    rank = cast.child(runc, PYTHON, b"train.py", env=variables(0), cgroup=6)
    assert (cast.node.role(rank), cast.node.entry(rank).job) == (Role.RANK, shim)
    entering = cast.child(shim, b"/usr/bin/runc", b"exec", uid=0)
    late = cast.child(entering, PYTHON, b"evil.py", env=variables(0), cgroup=6)
    assert (cast.node.role(late), cast.node.entry(late).job) == (
        Role.CLAIMED_RANK,
        shim,
    )


@pytest.mark.parametrize("path", [SLURMD, SHIM, b"/usr/sbin/slurmstepd"])
def test_the_scheduler_is_root_and_comes_from_the_systems_folders(path: bytes) -> None:
    cast = Cast()
    user = cast.child(LOGIN, path)
    elsewhere = cast.child(LOGIN, b"/home/u" + path, uid=0)
    assert {cast.node.role(user), cast.node.role(elsewhere)} == {Role.OTHER}
    rank = cast.child(user, PYTHON, b"train.py", env=variables(0))
    assert (cast.node.role(rank), cast.node.entry(rank).job) == (
        Role.CLAIMED_RANK,
        NOBODY,
    )


def test_the_cgroup_of_a_scheduler_joins_what_descent_does_not() -> None:
    cast = Cast(node_with_cgroups())
    step = a_step(cast)
    shell = cast.child(step, SHELL, cgroup=5)
    launcher = cast.child(shell, PYTHON, b"-m", b"torch.distributed.run", cgroup=5)
    assert cast.node.entry(launcher).job == launcher
    entering = cast.child(LOGIN, SHELL, cgroup=5)
    assert (cast.node.role(entering), cast.node.entry(entering).job) == (
        Role.SHELL,
        launcher,
    )
    outside = cast.child(LOGIN, SHELL, cgroup=6)
    assert (cast.node.role(outside), cast.node.entry(outside).job) == (
        Role.OTHER,
        NOBODY,
    )
    second = cast.child(shell, PYTHON, b"/opt/venv/bin/torchrun", cgroup=5)
    assert cast.node.entry(second).job == second
    whose = cast.child(LOGIN, SHELL, cgroup=5)
    assert cast.node.entry(whose).job == NOBODY  # two jobs: nobody says which


# What a job lives through.


def test_a_job_lives_as_long_as_its_launcher_or_a_rank(stage: Stage) -> None:
    jobs = stage.node.roles.jobs
    stage.ends(stage.launcher)
    assert jobs.get(stage.launcher).ended  # type: ignore[union-attr]
    stage.ends(stage.rank)
    assert stage.role(stage.born(stage.other_rank)) is Role.LOADER
    stage.ends(stage.other_rank)
    assert jobs.get(stage.launcher) is None


def test_a_program_told_before_the_birth_keeps_its_role(stage: Stage) -> None:
    """Two CPUs, two streams."""
    early = ProcessKey(5000, 5000)
    program = stage.program(early, b"/usr/bin/ncat", parent=stage.rank)
    assert stage.node.take(program).role is Role.OTHER
    birth = a_task(5000, start_ns=5000, real_parent=stage.rank)
    stage.node.take(_fork_of(birth, stage.rank))
    assert stage.role(early) is Role.OTHER
    assert stage.job(early) == stage.launcher


def _fork_of(task: Any, creator: ProcessKey) -> Fork:
    return Fork(0, 1, 10_000, 0, 1, False, task, b"/", creator, creator.tgid, 0)


# What a snapshot can tell.


def test_a_snapshot_says_what_argv_and_parents_say() -> None:
    node, start = Node(), 1000
    stage: dict[str, tuple[str, bytes]] = {
        "login": ("", b"-bash"),
        "launcher": ("login", b"python3\0/opt/venv/bin/torchrun\0train.py"),
        "rank": ("launcher", b"python3\0-u\0train.py"),
        "loader": ("rank", b"python3\0-u\0train.py"),
        "spawned": ("rank", b"\0".join((b"python3", *SPAWNED))),
        "gcc": ("rank", b"gcc\0-c"),
        "script": ("login", b"python3\0train.py"),
        "worker": ("script", b"python3\0train.py"),
        "stranger": ("login", b"gcc\0-c"),
    }
    keys = {"": LOGIN}
    for name, (parent, argv) in stage.items():
        start += 1
        keys[name] = ProcessKey(start, start)
        path = {b"g": GCC, b"p": PYTHON, b"-": SHELL}[argv[:1]]
        task = a_task(start, start_ns=start, real_parent=keys[parent])
        process = node.ledger.observe(task, path, argv + b"\0")
        node.roles.snapshot(process, node.lineages.of(process))
    assert {name: node.role(key) for name, key in keys.items() if name} == {
        "login": Role.OTHER,
        "launcher": Role.LAUNCHER,
        "rank": Role.RANK,
        "loader": Role.LOADER,
        "spawned": Role.WORKER,
        "gcc": Role.COMPILER,
        "script": Role.SCRIPT,
        "worker": Role.WORKER,
        "stranger": Role.OTHER,
    }
    jobs = {name: node.entry(key).job for name, key in keys.items() if name}
    inside = {"launcher", "rank", "loader", "spawned", "gcc"}
    assert {name for name, job in jobs.items() if job == keys["launcher"]} == inside
    assert {name for name, job in jobs.items() if job == NOBODY} == set(jobs) - inside
