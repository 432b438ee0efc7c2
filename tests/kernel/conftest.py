"""Real programs do things, a real agent watches; the tests compare the two.

In: the C programs of `triggers/`, built once a session, and an agent with folders
and pins of its own. Out: what was really done, as `Ran`, and what the agent wrote
about it, as `Record`. No test waits for a time: a fence (a program that ran after
the trigger, and whose end is on disk) says that all before it is on disk too.
"""

import base64
import contextlib
import hashlib
import itertools
import json
import os
import re
import shutil
import signal
import subprocess  # noqa: TID251 - the tests run the programs they are about
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import pytest

SOURCES = Path(__file__).parent / "triggers"
BENCH = Path(__file__).parents[2] / "bench"
BPFFS = Path("/sys/fs/bpf")
FLAGS = ("-std=c99", "-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread")
VARIANTS = {"report_static": ("report.c", "-static"), "report_32": ("report.c", "-m32")}
PATIENCE_S = 120.0 if "VMLAB" in os.environ else 30.0  # an emulated CPU is slow
INITIAL_PID_NAMESPACE = "pid:[4026531836]"

# Ways into a process: action, trigger, its arguments after the target's pid.
WAYS = [
    ("ptrace-attach", "attach", []),
    ("ptrace-seize", "seize", []),
    ("process-vm-read", "read_memory", [1]),
    ("process-vm-write", "write_memory", []),
    ("pidfd-getfd", "take_descriptor", [1]),
]

# The short names under which tests ask for records.
FACTS = {
    "action": "event.action",
    "pid": "process.pid",
    "entity": "process.entity_id",
    "executable": "process.executable",
    "target": "ir.target.pid",
    "requested": "ir.access.requested_pid",
    "creator": "ir.creator.pid",
    "error": "error.code",
    "verdict": "ir.parentage.verdict",
    "kind": "ir.discrepancy.kind",
}


def until(holds: Callable[[], Any], what: str, patience_s: float = PATIENCE_S) -> Any:
    """The first true answer of `holds`, asked 50 times a second."""
    deadline = time.monotonic() + patience_s
    while not (answer := holds()):
        assert time.monotonic() < deadline, f"waited {patience_s} s for {what}"
        time.sleep(0.02)
    return answer


def arguments(cmdline: bytes) -> list[bytes]:
    """The arguments that a /proc/PID/cmdline holds."""
    return cmdline.split(b"\0")[:-1]


class Record(dict[str, Any]):
    """One ECS record; `record["process.parent.pid"]` goes down the nested objects."""

    def __getitem__(self, path: str) -> Any:
        value: Any = self.get(path)
        assert value is not None, f"{path} is missing in {json.dumps(self)[:4000]}"
        return value

    def get(self, path: str, default: Any = None) -> Any:
        value: Any = self
        for key in path.split("."):
            if not isinstance(value, dict):
                return default
            value = dict.get(value, key, default)
        return value

    def told(self, path: str) -> Any:
        """What a field says; some are left out where they are as usual.

        Real and saved ids where they are the effective one, empty capability sets,
        and the agent's own namespaces (docs/records.md).
        """
        if (value := self.get(path)) is not None:
            return value
        *above, name = path.split(".")
        if above == ["ir", "caps"]:
            return "0" * 16
        if above == ["ir", "ns"]:
            return Path(f"/proc/self/ns/{name}").stat().st_ino
        return self[re.sub(r"\b(real|saved)_", "", path)]

    @property
    def argv(self) -> list[bytes]:
        """The exact bytes of the arguments."""
        raw = self.get("ir.argv.raw_base64")
        if raw is not None:
            return [base64.b64decode(argument) for argument in raw]
        return [argument.encode() for argument in self["process.args"]]

    def assert_argv(self, expected: list[bytes]) -> None:
        """All of argv, byte for byte, with a count, a size and a digest that agree."""
        whole = b"".join(argument + b"\0" for argument in expected)
        argv = self["ir.argv"]
        counts = (argv["count"], argv["bytes"], self["process.args_count"])
        assert counts == (len(expected), len(whole), len(expected))
        assert self.argv == expected
        assert argv["sha256"] == hashlib.sha256(whole).hexdigest()
        assert argv["truncated"] is False
        assert not argv.get("reasons")


@dataclass(frozen=True)
class Ran:
    """What a program was and did; `facts` is the JSON line it told on stderr."""

    pid: int
    status: int
    stdout: bytes
    facts: dict[str, int]

    @property
    def reported(self) -> list[bytes]:
        """The arguments that `report` found in its own /proc/self/cmdline."""
        return arguments(self.stdout)


@dataclass(frozen=True)
class Held:
    """A program that stands still while a test looks at it."""

    pid: int
    facts: dict[str, int] = field(default_factory=dict)

    def proc(self, name: str) -> bytes:
        """The bytes of /proc/PID/`name`."""
        return Path(f"/proc/{self.pid}/{name}").read_bytes()

    def status(self, key: str) -> list[str]:
        """The words after `key` in /proc/PID/status."""
        for line in self.proc("status").decode().splitlines():
            name, _, words = line.partition(":")
            if name == key:
                return words.split()
        raise AssertionError(f"no {key} in /proc/PID/status")


@dataclass(frozen=True)
class Triggers:
    """The built programs: call one by its name, or `run` any argv."""

    folder: Path

    def path(self, name: str) -> str:
        """Where the program `name` lies; skips where it could not be built here."""
        program = self.folder / name
        if not program.exists():
            pytest.skip(f"this machine's gcc cannot build {name}")
        return str(program)

    def __call__(self, name: str, *args: object, **options: Any) -> Ran:
        words = [arg if isinstance(arg, bytes) else str(arg) for arg in args]
        return self.run([self.path(name), *words], **options)

    def run(self, argv: list[Any], *, expect: int = 0, **options: Any) -> Ran:
        """Run `argv` to its end, which has to be exit status `expect`."""
        with subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            **options,
        ) as process:
            stdout, stderr = process.communicate(timeout=120)
        assert process.returncode == expect, (process.returncode, stderr)
        facts = json.loads(stderr) if stderr.startswith(b"{") else {}
        return Ran(process.pid, process.returncode, stdout, facts)

    @contextlib.contextmanager
    def hold(self, argv: list[Any], *, told: bool = False, **options: Any) -> Any:
        """Run `argv` until the block ends; `told`: it tells facts when it is ready."""
        process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE if told else subprocess.DEVNULL,
            **options,
        )
        try:
            facts = json.loads(process.stderr.readline()) if process.stderr else {}
            held = Held(process.pid, facts)
            # Popen returns in the middle of exec, when argv is not in its place yet; on
            # a slow CPU that of this process still is.
            early = (b"", Path("/proc/self/cmdline").read_bytes())
            until(lambda: held.proc("cmdline") not in early, f"{held.pid}'s exec")
            yield held
        finally:
            process.communicate(timeout=PATIENCE_S)  # the end of stdin ends it


class Segments:
    """Reads STATE/records as it grows; each call goes on where the last one ended."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._read: dict[Path, int] = {}

    def new(self, holding: bytes = b"") -> Iterator[Record]:
        """The lines since the last call that have `holding` in them, headers too."""
        for path in sorted(self.folder.glob("*.jsonl")):
            with path.open("rb") as segment:
                yield from self._rest(path, segment, holding)

    def _rest(self, path: Path, segment: IO[bytes], holding: bytes) -> Iterator[Record]:
        segment.seek(self._read.get(path, 0))
        for line in segment:
            if not line.endswith(b"\n"):
                return  # still being written
            self._read[path] = self._read.get(path, 0) + len(line)
            if holding in line:
                yield Record(json.loads(line))


@dataclass
class Tally:
    """What an agent's records say, first to last, about all storms and losses.

    A storm's processes are known by their parent's key, which the kernel gives: the
    executable of a process whose birth was lost is not known, and pids are reused.
    """

    program: str  # this session's storm; others may run theirs on the same machine
    counts: Counter[str] = field(default_factory=Counter)
    runs: set[tuple[str, str]] = field(default_factory=set)
    lost: Counter[str] = field(default_factory=Counter)
    losses: list[Record] = field(default_factory=list)
    _storms: set[str] = field(default_factory=set)
    _workers: set[str] = field(default_factory=set)
    _kernel: set[tuple[int, int]] = field(default_factory=set)
    _sequence: int | None = None

    def add(self, record: Record) -> None:
        """Count one line; their numbers have no gap and none comes twice."""
        number = record.get("event.sequence", record.get("ir.segment.first"))
        assert self._sequence in (None, number - 1), (self._sequence, number)
        self._sequence = number
        action = record.get("event.action")
        if action == "loss":
            self.losses.append(record)
            self.lost.update(record["ir.loss.kinds"])
        if action in ("fork", "exec", "exit"):
            key = (record["ir.kernel.cpu"], record["ir.kernel.seq"])
            assert key not in self._kernel, f"{key} is recorded twice"
            self._kernel.add(key)
            self._count(action, record)

    def _count(self, action: str, record: Record) -> None:
        own = record["process.entity_id"]
        parent = record.get("process.parent.entity_id")
        if action == "exec" and record["process.executable"] == self.program:
            self._storms.add(own)
        if own in self._storms:
            self.counts[f"storm-{action}"] += 1
        elif parent in self._storms:
            self._workers.add(own)
            self.counts[f"worker-{action}"] += 1
        elif parent in self._workers:
            self.counts[action] += 1
            if action == "exec":
                self.runs.add((parent, record["process.args"][2]))


class Agent:
    """One `ir-agent run` with state, runtime and pins that nobody else uses."""

    _numbers = itertools.count(1)

    def __init__(self, folder: Path, fence: str, *options: str) -> None:
        self.state = folder / "state"
        self.runtime = folder / "run"
        self.pins = BPFFS / f"ir-agent-test-{os.getpid()}-{next(self._numbers)}"
        self.options = options
        if compiled := os.environ.get("IR_PROBES"):  # a guest compiles for ten seconds
            self.state.mkdir(mode=0o700, parents=True)
            (self.state / "probes").symlink_to(compiled)
        self.process: subprocess.Popen[bytes] | None = None
        self._fence = fence
        self._log = folder / "stderr"
        self._segments = Segments(self.state / "records")
        self._fences = Segments(self.state / "records")
        self._seen: list[Record] = []

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def argv(self, *words: str) -> list[str]:
        """The command line of `ir-agent WORDS` for these folders."""
        program = str(Path(sys.executable).with_name("ir-agent"))
        folders = ("--state", self.state, "--runtime", self.runtime)
        return [program, *words, *map(str, folders), "--pins", str(self.pins)]

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run `ir-agent WORDS` to its end."""
        return subprocess.run(
            self.argv(*words),
            capture_output=True,
            text=True,
            timeout=2 * PATIENCE_S,
            check=False,
        )

    def start(self, *under: str, **options: Any) -> "Agent":
        """Start the daemon and return when it says that it is ready.

        `under` is a command that executes the daemon as its last argument.
        """
        argv = [*under, *self.argv("run"), *self.options]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stderr=log, **options
            )
        until(self._is_ready, "`ready` on the agent's stderr")
        return self

    def use_state(self, folder: Path) -> None:
        """Keep state in `folder`; before the daemon is started."""
        self.state = folder
        self._segments = Segments(folder / "records")
        self._fences = Segments(folder / "records")

    def wait_for_log(self, word: str) -> None:
        """Return when the daemon has said this on its stderr."""
        until(lambda: word.encode() in self._log.read_bytes(), f"{word} on stderr")

    def _is_ready(self) -> bool:
        log = self._log.read_bytes()
        assert self.process is not None
        assert self.process.poll() is None, log.decode(errors="replace")
        return b"ready" in log

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        """End the daemon with `how`; its exit status."""
        assert self.process is not None
        self.process.send_signal(how)
        status = self.process.wait(PATIENCE_S)
        self.process = None
        return status

    def unload(self) -> None:
        """Remove the probes; nothing of them may be left."""
        done = self.command("unload")
        assert done.returncode == 0, done.stderr
        assert not self.pins.exists()

    def clean(self) -> None:
        """End and remove whatever a failed test has left, without asking for more."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
            try:
                self.process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.process = None
        if self.pins.exists():
            self.command("unload")
        shutil.rmtree(self.pins, ignore_errors=True)

    def verify(self) -> None:
        """`ir-check verify` finds nothing wrong with the hash chain."""
        program = str(Path(sys.executable).with_name("ir-check"))
        folder = str(self.state / "records")
        argv = [program, "verify", folder]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (done.stdout, done.stderr)

    def forget(self) -> None:
        """Drop what was read so far: the next test starts with nothing."""
        self._seen.extend(self._segments.new())
        self._seen.clear()

    def all(self) -> Iterator[Record]:
        """Every record on disk from the first one on, without keeping any."""
        lines = Segments(self.state / "records").new()
        return (line for line in lines if "event" in line)

    def tally(self) -> Tally:
        """Counts what is on disk by now about storms and losses."""
        tally = Tally(str(Path(self._fence).with_name("storm")))
        for record in Segments(self.state / "records").new():
            tally.add(record)
        return tally

    def records(self, **facts: Any) -> list[Record]:
        """What is on disk by now and has these facts."""
        self._seen.extend(self._segments.new())
        wanted = {FACTS[name]: value for name, value in facts.items()}
        return [
            record
            for record in self._seen
            if all(record.get(path) == value for path, value in wanted.items())
        ]

    def wait(self, count: int = 1, **facts: Any) -> list[Record]:
        """The records with these facts, as soon as there are at least `count`."""

        def enough() -> list[Record]:
            found = self.records(**facts)
            return found if len(found) >= count else []

        return until(enough, f"{count} records with {facts}")  # type: ignore[no-any-return]

    def fence(self) -> None:
        """Return when all that has happened before this call is on disk."""
        with subprocess.Popen([self._fence, "0"]) as marker:
            pass
        begun: set[str] = set()

        def has_ended() -> bool:
            for record in self._fences.new(str(marker.pid).encode()):
                entity = record.get("process.entity_id")
                facts = (record.get("process.executable"), record.get("process.pid"))
                if facts == (self._fence, marker.pid):
                    begun.add(entity)
                if record.get("event.action") == "exit" and entity in begun:
                    return True
            return False

        until(has_ended, f"the records of pid {marker.pid}, which ran and ended")

    def find(self, **facts: Any) -> list[Record]:
        """All records with these facts about what has happened before this call."""
        self.fence()
        return self.records(**facts)

    def one(self, **facts: Any) -> Record:
        """The only record with these facts about what has happened before this call."""
        found = self.find(**facts)
        assert len(found) == 1, f"{len(found)} records with {facts}: {found}"[:4000]
        return found[0]


@pytest.fixture(scope="session", autouse=True)
def _usable_kernel() -> None:
    if os.geteuid() != 0:
        pytest.skip("loading probes needs root")
    if not Path("/sys/kernel/btf/vmlinux").exists():
        pytest.skip("this kernel has no BTF (/sys/kernel/btf/vmlinux)")
    if str(Path("/proc/self/ns/pid").readlink()) != INITIAL_PID_NAMESPACE:
        pytest.skip("the probes name host pids, and this is a pid namespace")


def _build(source: Path, program: Path, *flags: str) -> bool:
    argv = ["gcc", *flags, str(source), "-o", str(program)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    variant = program.name in VARIANTS  # needs libraries that may not be here
    assert done.returncode == 0 or variant, done.stderr
    return done.returncode == 0


def build_all(folder: Path) -> None:
    """Build every trigger into `folder`; X.so.c is a library to be preloaded."""
    for source in SOURCES.glob("*.c"):
        flags = ("-shared", "-fPIC") if source.stem.endswith(".so") else ()
        _build(source, folder / source.stem, *FLAGS, *flags)
    for variant, (source_name, flag) in VARIANTS.items():
        _build(SOURCES / source_name, folder / variant, *FLAGS, flag)
    _build(BENCH / "storm.c", folder / "storm", "-O2", "-static")
    _build(BENCH / "true.c", folder / "true", "-O2", "-static", "-nostdlib")


@pytest.fixture(scope="session")
def _built() -> Iterator[Path]:
    # A virtual machine gets them from its host: there, building takes a minute.
    if prebuilt := os.environ.get("IR_TRIGGERS"):
        yield Path(prebuilt)
        return
    # Not pytest's own folder: other users have to be able to enter this one.
    with tempfile.TemporaryDirectory(prefix="ir-triggers-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        build_all(folder)
        yield folder


@pytest.fixture(scope="session")
def trigger(_built: Path) -> Triggers:
    """The programs that do what the agent has to see."""
    return Triggers(_built)


@pytest.fixture
def place(_built: Path) -> Iterator[Path]:
    """An empty folder that every user may enter."""
    with tempfile.TemporaryDirectory(dir=_built) as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture(scope="session")
def _running(trigger: Triggers) -> Iterator[Agent]:
    with tempfile.TemporaryDirectory(prefix="ir-agent-test-") as name:
        agent = Agent(Path(name), trigger.path("exit_with"))
        try:
            yield agent.start()
            assert agent.stop() == 0
            agent.unload()
        finally:
            agent.clean()


@pytest.fixture
def agent(_running: Agent) -> Agent:
    """The session's agent, with only the records of this test."""
    _running.forget()
    return _running


@pytest.fixture
def agent_factory(trigger: Triggers, tmp_path: Path) -> Iterator[Callable[..., Agent]]:
    """Makes agents that this test alone uses, not started yet; removes their traces."""
    made: list[Agent] = []

    def make(*options: str) -> Agent:
        folder = tmp_path / f"agent-{len(made)}"
        folder.mkdir()
        made.append(Agent(folder, trigger.path("exit_with"), *options))
        return made[-1]

    try:
        yield make
    finally:
        for agent in made:
            agent.clean()


def sweeping_config(folder: Path) -> Path:
    """A configuration with which all views are compared as often as can be."""
    config = folder / "sweeping.yaml"
    config.write_text(
        "sweep_seconds: 0.2\nheartbeat_seconds: 0.5\nsegment_bytes: 131072\n"
    )
    config.chmod(0o600)
    return config


@pytest.fixture
def sweeping(
    agent_factory: Callable[..., Agent], _running: Agent, tmp_path: Path
) -> Callable[[], Agent]:
    """Makes agents that hold all views against each other as often as they can."""
    config = sweeping_config(tmp_path)

    def make() -> Agent:
        agent = agent_factory("--config", str(config))
        if not agent.state.exists():  # what was compiled once is good for all
            agent.state.mkdir(mode=0o700)
            (agent.state / "probes").symlink_to(_running.state / "probes")
        return agent

    return make
