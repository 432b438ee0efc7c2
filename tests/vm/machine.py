"""One virtual machine: a kernel from the cache on this machine's own files.

In: an `Order`. Out: an `Outcome` and what the guest wrote into its share. The guest
sees the host's root read-only, below a layer in its memory, and the share as /run/lab.
It is emulated: a host that is a virtual machine itself can't be relied on for /dev/kvm.
A machine is asked, never waited for, so that one thread looks after several of them.
"""

import contextlib
import shlex
import shutil
import subprocess  # noqa: TID251 - runs virtiofsd and QEMU
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.vm.initrd import BUSYBOX, initrd
from tests.vm.surgery import Surgeon

QEMU = "qemu-system-x86_64"
VIRTIOFSD = (Path("/usr/lib/qemu/virtiofsd"), Path("/usr/libexec/virtiofsd"))
MEBIBYTES = 1536
CPUS = 2
SOCKET_S = 10.0
GRACE_S = 5.0
POLL_S = 0.2
LAB = "/run/lab"
# Whoever starts these may be killed outright; then the kernel ends them.
BOUND = ("setpriv", "--pdeathsig", "KILL", "--")
KERNEL_OPTIONS = (
    "console=ttyS0 quiet panic=-1 oops=panic random.trust_cpu=on mitigations=off "
    "nokaslr no_timer_check tsc=reliable net.ifnames=0"
)
JOB = """\
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export HOME=/root LANG=C.UTF-8 PYTHONUNBUFFERED=1
read -r up rest </proc/uptime
echo "$up" >{lab}/boot
cd {folder} && ( {command} ) </dev/null >{lab}/output 2>&1
echo $? >{lab}/status
sync
echo o >/proc/sysrq-trigger
sleep 60
"""


class MachineError(Exception):
    """A machine can't be started."""


@dataclass(frozen=True)
class Order:
    """What to boot, and the shell command to run in `folder` there.

    `options` are added to the kernel's command line. `share` is a folder of the host.
    `types` is the kernel's BTF: where it is given, the guest may ask for surgery.
    """

    kernel: Path
    options: str
    command: str
    folder: Path
    share: Path
    limit_s: float
    types: Path | None = None


@dataclass(frozen=True)
class Outcome:
    """How a guest ended: the command's exit status, or why there is none."""

    status: int | None
    wrong: str
    boot_s: float
    all_s: float


def missing() -> list[str]:
    """The programs that this machine lacks for running others."""
    names = [name for name in (QEMU, "setpriv", "gcc") if shutil.which(name) is None]
    if not any(path.exists() for path in VIRTIOFSD):
        names.append("virtiofsd")
    return names if BUSYBOX.exists() else [*names, "busybox"]


@contextlib.contextmanager
def program(argv: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program for as long as the block, and then end it."""
    with log.open("wb") as said:
        running = subprocess.Popen(
            [*BOUND, *argv],
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            process_group=0,  # Ctrl-C is for the lab, which ends them in order
        )
    try:
        yield running
    finally:
        running.terminate()
        try:
            running.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()


class Machine:
    """A guest that runs. Whoever made it calls `close`, however it ended."""

    def __init__(self, order: Order, work: Path) -> None:
        """Boot it; sockets and the initrd are in `work`, which has to be empty."""
        self._order, self._work = order, work
        self._surgeon = order.types and Surgeon(order.share, self._stub, order.types)
        self._begun = time.monotonic()
        with contextlib.ExitStack() as started:
            for tag, source in (("host", Path("/")), ("share", order.share)):
                argv = _serve(self._socket(tag), source)
                daemon = started.enter_context(program(argv, work / f"{tag}.log"))
                self._wait_for(tag, daemon)
            (work / "initrd").write_bytes(initrd(order.kernel))
            (order.share / "job").write_text(_job(order))
            argv = self._argv()
            self._qemu = started.enter_context(program(argv, work / "qemu.log"))
            self._programs = started.pop_all()

    def close(self) -> None:
        """End all that belongs to it."""
        self._programs.close()

    def serve(self) -> None:
        """Do what the guest has asked for by now."""
        if self._surgeon and self._qemu.poll() is None:
            self._surgeon.serve()

    def outcome(self) -> Outcome | None:
        """How it ended, or None while it runs."""
        all_s = time.monotonic() - self._begun
        ended = self._qemu.poll()
        if ended is None and all_s < self._order.limit_s:
            return None
        status, boot = self._written("status"), self._written("boot")
        wrong = ""
        if ended is None:
            wrong = f"not done after {all_s:.0f} s"
        elif status is None:
            wrong = self._why_it_died()
        number = None if wrong or status is None else int(status)
        return Outcome(number, wrong, float(boot or 0), all_s)

    def _why_it_died(self) -> str:
        """Quote what QEMU or the guest's kernel said last."""
        for log in (self._work / "qemu.log", self._order.share / "console"):
            if log.exists() and (text := log.read_text(errors="replace").strip()):
                return f"the guest died: {text.splitlines()[-1].strip()}"
        return "the guest died"

    def _written(self, name: str) -> str | None:
        try:
            return (self._order.share / name).read_text().strip() or None
        except OSError:
            return None

    def _socket(self, tag: str) -> Path:
        return self._work / f"{tag}.socket"

    @property
    def _stub(self) -> Path:
        return self._work / "stub.socket"

    def _wait_for(self, tag: str, daemon: "subprocess.Popen[bytes]") -> None:
        deadline = time.monotonic() + SOCKET_S
        while not self._socket(tag).exists():
            if daemon.poll() is not None or time.monotonic() > deadline:
                said = (self._work / f"{tag}.log").read_text(errors="replace")
                raise MachineError(f"virtiofsd does not serve: {said.strip()}")
            time.sleep(0.01)

    def _argv(self) -> list[str]:
        memory = f"memory-backend-memfd,id=memory,size={MEBIBYTES}M,share=on"
        argv = [QEMU, "-nodefaults", "-no-user-config", "-no-reboot"]
        argv += ["-machine", "q35", "-accel", "tcg,thread=multi"]
        # The newest model has AVX, which the C library would use and QEMU does slowly.
        argv += ["-cpu", "Nehalem", "-smp", str(CPUS), "-m", str(MEBIBYTES)]
        argv += ["-object", memory, "-numa", "node,memdev=memory"]
        argv += ["-display", "none", "-serial", f"file:{self._order.share / 'console'}"]
        argv += ["-kernel", str(self._order.kernel / "vmlinuz")]
        argv += ["-initrd", str(self._work / "initrd")]
        argv += ["-append", f"{KERNEL_OPTIONS} {self._order.options}".strip()]
        for tag in ("host", "share"):
            argv += ["-chardev", f"socket,id={tag},path={self._socket(tag)}"]
            device = f"vhost-user-fs-pci,queue-size=1024,chardev={tag},tag={tag}"
            argv += ["-device", device]
        if self._surgeon:
            argv += ["-gdb", f"unix:{self._stub},server=on,wait=off"]
        return argv


def _serve(socket: Path, source: Path) -> list[str]:
    daemon = next(path for path in VIRTIOFSD if path.exists())
    argv = [str(daemon), f"--socket-path={socket}", "--thread-pool-size=2"]
    # In a container the default, a million, may be more than is allowed.
    argv += ["--rlimit-nofile=8192"]
    options = (f"source={source}", "sandbox=chroot", "cache=always", "xattr")
    return argv + [word for option in options for word in ("-o", option)]


def _job(order: Order) -> str:
    folder = shlex.quote(str(order.folder))
    return JOB.format(lab=LAB, folder=folder, command=order.command)


def run_all(
    keys: Iterable[Any],
    boot: Callable[[Any], Machine],
    done: Callable[[Any, Outcome], None],
    at_once: int,
) -> None:
    """Keep `at_once` machines running until all are done; ends all it started."""
    waiting, running = deque(keys), dict[Any, Machine]()
    with contextlib.ExitStack() as started:
        while waiting or running:
            while waiting and len(running) < at_once:
                key = waiting.popleft()
                try:
                    running[key] = boot(key)
                    started.callback(running[key].close)
                except MachineError as error:
                    done(key, Outcome(None, str(error), 0, 0))
            for key, machine in list(running.items()):
                machine.serve()
                if outcome := machine.outcome():
                    running.pop(key).close()
                    done(key, outcome)
            time.sleep(POLL_S)
