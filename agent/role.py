"""The vocabulary of a training job: what a process may be in one, a closed set.

In: nothing. Out: Role, which agent.training gives, and which records and rules carry.
A role describes and never authorises: name, argv and environment are a process's own to
choose.
"""

from enum import StrEnum


class Role(StrEnum):
    """What a process is in a training job; docs/roles.md says how each is known.

    OTHER is everybody of whom nothing of this is known.

    A job's frame: LAUNCHER starts the ranks of one node (torchrun and its like),
    MPI_LAUNCHER does so by MPI, RANK_WRAPPER is a shell or a profiler that has a rank's
    variables and only starts it, RANK computes, CLAIMED_RANK has a rank's variables and
    descends from nobody who starts ranks.

    Python below it: LOADER reads data for a rank, CHECKPOINT writes for it, WORKER is a
    child of multiprocessing that may be either or something else, FORKSERVER makes such
    children, RESOURCE_TRACKER and SHM_MANAGER clean up after them, SCRIPT is any other
    Python program.

    What compiles: COMPILE_POOL is Inductor's pool and COMPILE_WORKER a process of it,
    COMPILER a compiler, assembler, linker or build tool, ISA_CHECK Inductor's trial of
    an instruction set.

    What looks: PROBE asks for facts of the node or of a repository, SHELL is a shell
    that a job's process started, LOGGER a daemon that takes a run's metrics, DEBUGGER
    a debugger or profiler, MONITOR watches the node or shows a run.

    What there is besides: SCHEDULER_DAEMON places jobs on this node, SCHEDULER_STEP
    holds one step or container of a job, RPC runs what others send it (Ray), NOTEBOOK
    is a notebook's server or kernel.
    """

    OTHER = "other"
    LAUNCHER = "launcher"
    MPI_LAUNCHER = "mpi_launcher"
    RANK_WRAPPER = "rank_wrapper"
    RANK = "rank"
    CLAIMED_RANK = "claimed_rank"
    LOADER = "data_loader_worker"
    CHECKPOINT = "checkpoint_helper"
    WORKER = "worker"
    FORKSERVER = "forkserver"
    RESOURCE_TRACKER = "resource_tracker"
    SHM_MANAGER = "shm_manager"
    SCRIPT = "script"
    COMPILE_POOL = "compile_pool"
    COMPILE_WORKER = "compile_worker"
    COMPILER = "compiler"
    ISA_CHECK = "isa_check"
    PROBE = "environment_probe"
    SHELL = "shell"
    LOGGER = "logger"
    DEBUGGER = "debugger"
    MONITOR = "monitor"
    SCHEDULER_DAEMON = "scheduler_daemon"
    SCHEDULER_STEP = "scheduler_step"
    RPC = "rpc"
    NOTEBOOK = "notebook"
