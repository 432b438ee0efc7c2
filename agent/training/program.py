"""What a program is by its file and its arguments: a guess that lineage has to confirm.

In: the path of an executable and its argv as raw memory. Out: a Guess, which says what
else must hold. A name alone gives no role: whoever confirms it asks for the parent, for
the user, or for where the file lies. Any bytes whatever give a Guess.
"""

import re
from enum import Enum
from functools import lru_cache
from typing import NamedTuple

from agent.role import Role

_WORDS = 32
"""Arguments that are looked at; Python's own options and its script come first."""
_SCRATCH = (b"/tmp/", b"/var/tmp/", b"/dev/shm/")
_SYSTEM = (b"/usr/", b"/opt/", b"/bin/", b"/sbin/", b"/snap/")


class Needs(Enum):
    """What has to hold beside the name."""

    NOTHING = 0
    FAMILY = 1
    """It descends from a training program."""
    ROOT = 2
    """It runs as root, from a folder of the system's."""
    SYSTEM = 3
    """It lies in a folder of the system's."""


class Guess(NamedTuple):
    """What a program may be.

    `wraps` says that it starts the program that its arguments name, in its own place or
    below it. `python` is what Python runs: a script, a module, or `-c`.
    """

    role: Role
    needs: Needs = Needs.NOTHING
    wraps: bool = False
    python: bytes = b""
    code: bytes = b""
    rest: tuple[bytes, ...] = ()


NOTHING = Guess(Role.OTHER)
_PYTHON = Guess(Role.SCRIPT)
_FAMILY = Needs.FAMILY

_COMPILERS = (
    rb"g\+\+|gcc|c\+\+|cc|clang|clang\+\+|cc1|cc1plus|as|gas|ld|ld\.bfd|ld\.gold|ld\.lld"
    rb"|lld|collect2|lto1|lto-wrapper|nvcc|cicc|ptxas|fatbinary|nvlink|cudafe\+\+|nvdisasm"
    rb"|cuobjdump|ccache|sccache|hipcc|ninja|make|gmake|cmake|ar|ranlib|strip|objcopy"
)
# as the file is called that the name leads to: x86_64-linux-gnu-g++-12
_COMPILER = re.compile(rb"(?:[\w.]+-){0,4}?(?:%b)(?:-\d[\d.]*)?" % _COMPILERS)
_INTERPRETER = re.compile(rb"(?:python|pypy)[\d.]*[td]?")

_NAMES: dict[Guess, bytes] = {
    Guess(Role.MPI_LAUNCHER): b"mpirun mpiexec mpiexec.hydra mpiexec.mpich mpirun.mpich"
    b" mpirun_rsh orterun orted prterun prte prted ompirun_wrapper hydra_pmi_proxy"
    b" hydra_bstrap_proxy mpirun.openmpi mpiexec.openmpi",
    Guess(Role.SHELL, _FAMILY, wraps=True): b"sh bash dash zsh ksh busybox fish",
    Guess(Role.OTHER, wraps=True): b"env numactl taskset nice ionice chrt setsid"
    b" timeout stdbuf time apptainer singularity starter starter-suid enroot bwrap uv",
    Guess(Role.DEBUGGER, wraps=True): b"nsys ncu nv-nsight-cu-cli compute-sanitizer"
    b" cuda-memcheck perf strace ltrace valgrind memray py-spy rocprof rocprofv3"
    b" scalene cuda-gdb gdb lldb lldb-server gdbserver bpftrace",
    Guess(Role.PROBE, _FAMILY): b"ldconfig ldconfig.real uname git lscpu nvidia-smi"
    b" rocm-smi amd-smi hostname openssl lsb_release getopt iconv readlink dirname"
    b" basename nvidia-debugdump ibstat ibv_devinfo lspci numastat df free id whoami"
    b" grep cut rev tr head tail sed awk mawk gawk sort wc cat",
    Guess(Role.SHM_MANAGER, _FAMILY): b"torch_shm_manager",
    Guess(Role.LOGGER, _FAMILY): b"wandb-core wandb-symon wandb-service gpu_stats",
    Guess(Role.SCHEDULER_DAEMON, Needs.ROOT): b"slurmd slurmctld slurmdbd kubelet"
    b" containerd dockerd crio pbs_mom sge_execd condor_master condor_startd",
    Guess(Role.SCHEDULER_STEP, Needs.ROOT): b"slurmstepd containerd-shim"
    b" containerd-shim-runc-v2 conmon crun runc condor_starter",
    Guess(Role.MONITOR, Needs.SYSTEM): b"dcgm-exporter nv-hostengine node_exporter"
    b" prometheus-node-exporter dcgmi nvidia-persistenced telegraf collectd",
    Guess(Role.RPC): b"raylet gcs_server",
}
_BY_NAME = {name: guess for guess, some in _NAMES.items() for name in some.split()}

_SCRIPTS: dict[Guess, bytes] = {
    Guess(Role.LAUNCHER): b"torchrun deepspeed horovodrun composer torchx",
    Guess(Role.NOTEBOOK): b"jupyter jupyter-lab jupyter-notebook jupyter-server"
    b" jupyterhub jupyterhub-singleuser jupyter-labhub",
    Guess(Role.MONITOR): b"tensorboard nvitop gpustat",
    Guess(Role.DEBUGGER, wraps=True): b"memray scalene viztracer debugpy austin",
    Guess(Role.PROBE, _FAMILY): b"pip pip3 lsb_release",
}
_BY_SCRIPT = {name: guess for guess, some in _SCRIPTS.items() for name in some.split()}
_WITH_COMMAND = {b"accelerate": b"launch", b"colossalai": b"run"}
"""Scripts that launch only by this first argument."""

_MODULES: dict[Guess, bytes] = {
    Guess(Role.LAUNCHER): b"torch.distributed.run torch.distributed.launch"
    b" accelerate.commands.launch deepspeed.launcher.launch deepspeed.launcher.runner"
    b" composer.cli.launcher torchrun",
    Guess(Role.NOTEBOOK): b"ipykernel_launcher ipykernel jupyter jupyterlab notebook"
    b" jupyter_server jupyterhub.singleuser",
    Guess(Role.MONITOR): b"tensorboard.main tensorboard",
    Guess(Role.DEBUGGER, wraps=True): b"pdb cProfile memray scalene debugpy",
    Guess(Role.PROBE, _FAMILY): b"torch.utils.collect_env pip",
}
_BY_MODULE = {name: guess for guess, some in _MODULES.items() for name in some.split()}

_POOL = b"/torch/_inductor/compile_worker/__main__.py"
_RAY_WORKER = (b"/ray/_private/workers/default_worker.py", b"/ray/dashboard/agent.py")
_IN_FOLDER = {
    Role.SHM_MANAGER: b"/torch/bin/",
    Role.LOGGER: b"/wandb/bin/",
    Role.RPC: b"/ray/core/src/ray/",
}
"""Where the files of these lie, wherever that folder is."""

_CODE = {
    rb"resource_tracker import main; ?main\(\d+\)": Guess(
        Role.RESOURCE_TRACKER, _FAMILY
    ),
    rb"spawn import spawn_main; ?spawn_main\([\w=, ]*\)": Guess(Role.WORKER, _FAMILY),
    rb"forkserver import main; ?main\(\d+, \d+, \[[^;\n]*\)": Guess(
        Role.FORKSERVER, _FAMILY
    ),
}
_OF_MULTIPROCESSING = [
    (re.compile(rb"from multiprocess(?:ing)?\." + code), found)
    for code, found in _CODE.items()
]
"""All that multiprocessing passes by -c; with more behind it, it is not that."""
_LOADS = re.compile(rb'cdll\.LoadLibrary\("[^"\n]+\.so"\)')
_BEFORE_LOADS = frozenset(
    (
        b"",
        b"import sys",
        b"import torch",
        b"import torch  # noqa: F401",
        b"from ctypes import cdll",
        b'if sys.platform != "linux":',
    )
)


def guess(executable: bytes, argv: bytes) -> Guess:
    """Say what a program may be; `argv` has a NUL after every argument."""
    name = executable[executable.rfind(b"/") + 1 :]
    found = _by_name(name)
    if found is _PYTHON:
        return _python(argv)
    if found is NOTHING:
        return found
    if executable.startswith(_SCRATCH) or not executable.startswith(b"/"):
        return NOTHING
    folder = _IN_FOLDER.get(found.role)
    return found if folder is None or folder in executable else NOTHING


def of_the_system(executable: bytes) -> bool:
    """Whether a file lies where only root installs programs."""
    return executable.startswith(_SYSTEM)


def option(argv: bytes, name: bytes) -> bytes:
    """Return the value of NAME=VALUE among the arguments; empty without one."""
    _, found, rest = argv.partition(b"\0" + name + b"=")
    return rest.partition(b"\0")[0] if found else b""


@lru_cache(maxsize=4096)
def _by_name(name: bytes) -> Guess:
    if found := _BY_NAME.get(name):
        return found
    if _INTERPRETER.fullmatch(name):
        return _PYTHON
    if len(name) < 64 and _COMPILER.fullmatch(name):  # noqa: PLR2004 - NAME_MAX is 255
        return Guess(Role.COMPILER, _FAMILY)
    return NOTHING


@lru_cache(maxsize=512)
def _python(argv: bytes) -> Guess:
    kind, value, rest = _split(argv.split(b"\0", _WORDS)[1:-1])
    found = _KINDS[kind](value, rest)
    return found._replace(python=value if kind != "c" else b"-c", code=value, rest=rest)


def _split(words: list[bytes]) -> tuple[str, bytes, tuple[bytes, ...]]:
    """Find what Python runs, `c` code, `m` a module, `s` a script; and the rest."""
    at = 0
    while at < len(words):
        word = words[at]
        if not word.startswith(b"-") or word == b"-":
            return "s", word, tuple(words[at + 1 :])
        at += 1
        if word == b"--check-hash-based-pycs":
            at += 1
        letter = None if word.startswith(b"--") else _TAKES.search(word)
        if letter is None:
            continue
        value = word[letter.end() :]
        if not value:
            value, at = b"".join(words[at : at + 1]), at + 1
        if letter[0] in (b"c", b"m"):
            return letter[0].decode(), value, tuple(words[at:])
    return "s", b"", ()


_TAKES = re.compile(rb"[cmWX]")
"""Python's options that have a value: behind them in the word, or the next word."""


def _script(path: bytes, rest: tuple[bytes, ...]) -> Guess:
    name = path[path.rfind(b"/") + 1 :]
    if path.endswith(_POOL):
        return Guess(Role.COMPILE_POOL, _FAMILY)
    if path.endswith(_RAY_WORKER):
        return Guess(Role.RPC, _FAMILY)
    if name in _WITH_COMMAND and rest[:1] == (_WITH_COMMAND[name],):
        return Guess(Role.LAUNCHER)
    return _BY_SCRIPT.get(name, _PYTHON)


def _module(name: bytes, _: tuple[bytes, ...]) -> Guess:
    return _BY_MODULE.get(name, _PYTHON)


def _inline(code: bytes, rest: tuple[bytes, ...]) -> Guess:
    for pattern, found in _OF_MULTIPROCESSING:
        if pattern.fullmatch(code):
            forked = rest[:1] == (b"--multiprocessing-fork",)
            return found if found.role is not Role.WORKER or forked else _PYTHON
    return Guess(Role.ISA_CHECK, _FAMILY) if _only_loads(code) else _PYTHON


def _only_loads(code: bytes) -> bool:
    """Whether code does nothing but load one library, as Inductor tries its own."""
    *before, last = [line.strip() for line in code.strip().split(b"\n")]
    return _LOADS.fullmatch(last) is not None and _BEFORE_LOADS.issuperset(before)


_KINDS = {"s": _script, "m": _module, "c": _inline}
