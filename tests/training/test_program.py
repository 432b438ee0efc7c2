"""What a program may be by its file and its arguments."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.role import Role
from agent.training.program import Needs, guess, of_the_system, option

PYTHON = b"/usr/bin/python3.11"


def argv(*words: bytes) -> bytes:
    return b"".join(word + b"\0" for word in words)


@pytest.mark.parametrize(
    ("role", "words"),
    [
        (Role.LAUNCHER, (b"/opt/venv/bin/torchrun", b"t.py")),
        (Role.LAUNCHER, (b"-m", b"torch.distributed.run", b"t.py")),
        (Role.LAUNCHER, (b"-u", b"-mtorch.distributed.launch")),
        (Role.LAUNCHER, (b"-um", b"torch.distributed.run")),
        (Role.LAUNCHER, (b"-X", b"faulthandler", b"-W", b"ignore", b"/b/deepspeed")),
        (Role.LAUNCHER, (b"/opt/venv/bin/accelerate", b"launch", b"t.py")),
        (Role.SCRIPT, (b"/opt/venv/bin/accelerate", b"config")),
        (Role.SCRIPT, (b"t.py", b"torchrun")),
        (Role.SCRIPT, (b"-c", b"import torch", b"-m", b"torch.distributed.run")),
        (Role.SCRIPT, (b"-m", b"torch.distributed.runner")),
        (Role.SCRIPT, (b"-",)),
        (Role.SCRIPT, ()),
        (Role.NOTEBOOK, (b"-m", b"ipykernel_launcher", b"-f", b"k.json")),
        (Role.NOTEBOOK, (b"/opt/venv/bin/jupyter-lab",)),
        (Role.MONITOR, (b"/opt/venv/bin/tensorboard", b"--logdir", b"runs")),
        (Role.PROBE, (b"-mpip", b"list", b"--format=freeze")),
        (Role.DEBUGGER, (b"-m", b"cProfile", b"t.py")),
        (Role.RPC, (b"/v/ray/_private/workers/default_worker.py", b"--x")),
    ],
)
def test_what_python_runs_says_what_it_is(role: Role, words: tuple[bytes, ...]) -> None:
    assert guess(PYTHON, argv(b"python", *words)).role is role


@pytest.mark.parametrize(
    ("role", "path"),
    [
        (Role.COMPILER, b"/usr/bin/x86_64-linux-gnu-g++-12"),
        (Role.COMPILER, b"/usr/lib/gcc/x86_64-linux-gnu/12/cc1plus"),
        (Role.COMPILER, b"/usr/bin/aarch64-linux-gnu-ld.bfd"),
        (Role.COMPILER, b"/usr/lib/llvm-14/bin/clang"),
        (Role.COMPILER, b"/v/triton/backends/nvidia/bin/ptxas"),
        (Role.OTHER, b"/usr/bin/gccgo-but-not"),
        (Role.OTHER, b"/usr/bin/alas"),
        (Role.SCRIPT, b"/usr/bin/python3.13t"),
        (Role.SCRIPT, b"/opt/pypy/bin/pypy3.10"),
        (Role.OTHER, b"/usr/bin/python3-config"),
        (Role.OTHER, b"/usr/bin/pythonic"),
        (Role.OTHER, b"/usr/bin/torchrun"),
        (Role.MPI_LAUNCHER, b"/usr/bin/orterun"),
        (Role.LOGGER, b"/v/site-packages/wandb/bin/wandb-core"),
        (Role.OTHER, b"/home/u/wandb-core"),
        (Role.SHM_MANAGER, b"/v/site-packages/torch/bin/torch_shm_manager"),
        (Role.OTHER, b"/home/u/torch_shm_manager"),
        (Role.RPC, b"/v/ray/core/src/ray/raylet/raylet"),
        (Role.OTHER, b"/home/u/raylet"),
        (Role.OTHER, b"gcc"),
        (Role.OTHER, b""),
    ],
)
def test_what_a_file_is_called_and_where_it_lies(role: Role, path: bytes) -> None:
    assert guess(path, argv(b"x")).role is role


@given(st.binary(max_size=200), st.binary(max_size=5000))
def test_any_bytes_give_a_guess(path: bytes, raw: bytes) -> None:
    for executable in (path, PYTHON):
        assert isinstance(guess(executable, raw).role, Role)


@given(st.lists(st.binary(max_size=30).filter(lambda one: b"\0" not in one)))
def test_a_script_is_what_the_interpreter_would_run(words: list[bytes]) -> None:
    """Options that Python knows before it, whatever may come behind."""
    found = guess(PYTHON, argv(b"python", b"-u", b"-B", b"/srv/t.py", *words))
    assert (found.role, found.python) == (Role.SCRIPT, b"/srv/t.py")
    assert found.rest == tuple(words)[: 32 - 4]


@pytest.mark.parametrize("code", [b"import os", b"", b"\n", b"import sys"])
def test_code_is_only_what_it_wholly_is(code: bytes) -> None:
    load = b'from ctypes import cdll\ncdll.LoadLibrary("/tmp/x.so")'
    assert guess(PYTHON, argv(b"python", b"-c", load)).role is Role.ISA_CHECK
    after = guess(PYTHON, argv(b"python", b"-c", load + b"\n" + code + b"\nx()"))
    before = guess(PYTHON, argv(b"python", b"-c", b"x()\n" + code + b"\n" + load))
    assert {after.role, before.role} == {Role.SCRIPT}


def test_names_that_everybody_can_give_need_more() -> None:
    assert guess(b"/usr/bin/gcc", b"").needs is Needs.FAMILY
    assert guess(b"/usr/sbin/slurmd", b"").needs is Needs.ROOT
    assert guess(b"/usr/bin/dcgm-exporter", b"").needs is Needs.SYSTEM


def test_where_only_root_installs() -> None:
    assert of_the_system(b"/usr/sbin/slurmd")
    assert not of_the_system(b"/home/u/usr/sbin/slurmd")


def test_an_option_is_found_by_its_whole_name() -> None:
    raw = argv(b"python", b"--my--parent=1", b"--parent=7", b"--parent=8")
    assert option(raw, b"--parent") == b"7"
    assert option(raw, b"--par") == b""
    assert option(b"", b"--parent") == b""
