"""Roles: what each process is in a training job, and in which one, as events tell.

In: events that the ledger has applied, their process and its lineage; or a process that
a snapshot met. Out: Process.role and Process.job, and the jobs. A role describes. A job
is a fact: only who descends from its launcher is in it, or who is in the cgroup that
the scheduler made for it. Rank variables alone make a stranger a claimed rank.
"""

from collections import OrderedDict
from collections.abc import Callable
from itertools import takewhile
from typing import Any, NamedTuple

from agent.events import (
    NOBODY,
    Event,
    Exec,
    Exit,
    Fork,
    Lineage,
    Prctl,
    Process,
    ProcessKey,
)
from agent.role import Role
from agent.training.job import Claim, Jobs, Told, told
from agent.training.program import NOTHING, Guess, Needs, guess, of_the_system, option

CLONE_VM = 0x100
MAX_CLAIMS = 8192
MAX_EARLY = 1024
_LOADER_NAME = b"pt_data_worker"
_LAUNCHERS = frozenset((Role.LAUNCHER, Role.MPI_LAUNCHER))
_STRANGERS = frozenset(
    (
        Role.OTHER,
        Role.DEBUGGER,
        Role.MONITOR,
        Role.SCHEDULER_DAEMON,
        Role.SCHEDULER_STEP,
    )
)
"""Who starts programs that have nothing to do with training."""
_BORN: dict[Role, Role] = {
    Role.RANK: Role.LOADER,
    Role.LOADER: Role.WORKER,
    Role.CLAIMED_RANK: Role.WORKER,
    Role.SCRIPT: Role.WORKER,
    Role.FORKSERVER: Role.WORKER,
    Role.COMPILE_POOL: Role.COMPILE_WORKER,
    Role.LAUNCHER: Role.OTHER,
    Role.MPI_LAUNCHER: Role.OTHER,
    Role.RANK_WRAPPER: Role.OTHER,
}
"""What a child is that goes on with its parent's program; others are what that is."""
_HOLDERS = frozenset((*_LAUNCHERS, Role.RANK_WRAPPER, Role.RANK, Role.CLAIMED_RANK))
"""Whose variables their descendants inherit."""
_NOT_TOLD = Told(None, b"")


class _Case(NamedTuple):
    """A program that has to be judged; `chain` has its process's ancestors."""

    process: Process
    chain: tuple[Process, ...]
    found: Guess
    what: Told
    cgroup_id: int


def _unscheduled(_: int) -> bytes:
    return b""


class Roles:
    """Gives roles; for one ledger and one thread, bounded."""

    def __init__(self, scheduled: Callable[[int], bytes] = _unscheduled) -> None:
        """Know nobody; `scheduled` names the scheduler's job of a cgroup id, or b""."""
        self.jobs = Jobs()
        """The training jobs of this node."""
        self._scheduled = scheduled
        # the variables of those who got other ones than their parent had
        self._claims: OrderedDict[ProcessKey, Claim] = OrderedDict()
        # who ran a program before its birth was told of: two CPUs, two streams
        self._early: OrderedDict[ProcessKey, None] = OrderedDict()
        self._rules: dict[type, Callable[[Any, Process, tuple[Process, ...]], None]] = {
            Fork: self._fork,
            Exec: self._exec,
            Exit: self._exit,
            Prctl: self._renamed,
        }

    def classify(self, event: Event, process: Process, lineage: Lineage) -> Role:
        """Take in an event that the ledger has applied; return the role from now on."""
        rule = self._rules.get(type(event))
        if rule:
            rule(event, process, lineage.ancestors)
        return process.role

    def snapshot(self, process: Process, lineage: Lineage) -> Role:
        """Say what can be said without a birth and an environment; parents first.

        Not known then: numbers of ranks, ranks that no launcher of now started, and
        whatever started in another way than its parent's argv shows.
        """
        chain, cgroup_id = lineage.ancestors, process.cgroup_id
        self._inherit(process, chain, cgroup_id)
        if chain and process.argv and process.argv == chain[0].argv:
            process.role = _born(chain[0].role, process)
        else:
            found = guess(process.executable, process.argv)
            case = _Case(process, chain, found, _NOT_TOLD, cgroup_id)
            process.role = self._judge(case)
        _name(process, process.comm)
        return process.role

    def saves(self, process: Process) -> None:
        """Note that a process wrote a checkpoint: a worker of a job is there for that.

        No argument tells such a worker from others.
        """
        if process.role is Role.WORKER and process.job != NOBODY:
            process.role = Role.CHECKPOINT

    def _fork(self, event: Fork, process: Process, chain: tuple[Process, ...]) -> None:
        if process.key in self._early:
            del self._early[process.key]
            return
        if not chain:
            return
        self._inherit(process, chain, process.cgroup_id)
        role = chain[0].role
        # who shares its parent's memory is there for the exec that follows
        if event.clone_flags & CLONE_VM and role in _BORN:
            process.role = Role.OTHER
        else:
            process.role = _born(role, process)

    def _exec(self, event: Exec, process: Process, chain: tuple[Process, ...]) -> None:
        if process.creator == NOBODY and process.known == "seen":
            _keep(self._early, process.key, None, MAX_EARLY)
        context = event.task.image.context
        self._inherit(process, chain, context.cgroup_id)
        what, before = told(event.environment), process.role
        found = _guess(event, process)
        case = _Case(process, chain, found, what, context.cgroup_id)
        process.role = role = self._judge(case)
        if what.claim and role in _HOLDERS:
            _keep(self._claims, process.key, what.claim, MAX_CLAIMS)
        if before is Role.RANK and role is not before:
            self.jobs.drop(process.job, process.key)

    def _exit(self, event: Exit, process: Process, _: tuple[Process, ...]) -> None:
        _name(process, event.task.image.comm)
        self._early.pop(process.key, None)
        if process.job != NOBODY:
            self.jobs.leave(process.job, process.key)

    def _renamed(self, event: Prctl, process: Process, _: tuple[Process, ...]) -> None:
        _name(process, event.task.image.comm)

    def _inherit(
        self, process: Process, chain: tuple[Process, ...], cgroup_id: int
    ) -> None:
        """Put a process into its parent's job, or that of the scheduler's cgroup."""
        if process.job == NOBODY and chain:
            process.job = chain[0].job
        if process.job == NOBODY and (place := self._scheduled(cgroup_id)):
            job = self.jobs.of_scheduler(place)
            process.job = job.launcher if job else NOBODY

    def _judge(self, case: _Case) -> Role:
        if case.found.role in _LAUNCHERS:
            self._launch(case)
            return case.found.role
        if role := self._rank(case):
            return role
        return case.found.role if _holds(case) else _unproven(case.found)

    def _launch(self, case: _Case) -> None:
        """Begin a job, unless another launcher of the same one is above."""
        process = case.process
        if process.job != process.key and not _within(case):
            process.job = process.key
        self.jobs.begin(process.job, self._scheduled(case.cgroup_id))

    def _rank(self, case: _Case) -> Role | None:
        """Say whether a program is a rank, starts one, or only claims to be one."""
        process, chain, found, what, _ = case
        fresh = what.claim is not None and what.claim != self._inherited(chain)
        if not _may_rank(case, fresh):
            return None
        launcher = self._launcher(case, fresh)
        if launcher is None:
            strong = fresh and what.claim is not None and not what.claim.weak
            return Role.CLAIMED_RANK if strong and found.role is Role.SCRIPT else None
        process.job = launcher
        if found.wraps:
            return Role.RANK_WRAPPER
        self.jobs.join(launcher, process.key, what)
        return Role.RANK

    def _inherited(self, chain: tuple[Process, ...]) -> Claim | None:
        """Return the variables that a process got from its parent."""
        return next((self._claims[a.key] for a in chain if a.key in self._claims), None)

    def _launcher(self, case: _Case, fresh: bool) -> ProcessKey | None:
        """Return who has started this process as a rank; wrappers don't count."""
        process, chain, _, what, cgroup_id = case
        above = [one for one in chain if one.role is not Role.RANK_WRAPPER]
        # by CLONE_PARENT anybody gives a launcher children that it never started
        if not above or process.creator not in (NOBODY, process.real_parent):
            return None
        nearest = above[0]
        if nearest.role in _LAUNCHERS:
            return nearest.job
        if nearest.role is Role.SCHEDULER_STEP:
            return self._step(above, what.claim, cgroup_id)
        if fresh and nearest is chain[0] and _starts_itself(case, nearest):
            nearest.role, nearest.job = Role.RANK, nearest.key
            if self.jobs.get(nearest.key) is None:
                self.jobs.join(nearest.key, nearest.key, _NOT_TOLD)
            return nearest.key
        return None

    def _step(
        self, above: list[Process], claim: Claim | None, cgroup_id: int
    ) -> ProcessKey | None:
        """Return the scheduler's process that holds this step, as its job's launcher.

        Nobody where the rank of that number lives: who enters a container later gets
        its variables too.
        """
        steps = takewhile(lambda one: one.role is Role.SCHEDULER_STEP, above)
        step = list(steps)[-1]
        if claim is None or self.jobs.has(step.key, claim.rank):
            return None
        step.job = step.key
        self.jobs.begin(step.key, self._scheduled(cgroup_id))
        return step.key


def _guess(event: Exec, process: Process) -> Guess:
    """Guess by what the kernel said of the file, too."""
    image = event.task.image
    if image.executable.memfd or image.executable.deleted:
        return NOTHING
    found = guess(process.executable, process.argv)
    # in a pid namespace it names its parent by a number of that namespace
    if found.role is Role.COMPILE_POOL and not image.context.ns_level:
        parent = b"%d" % event.task.real_parent.tgid
        if option(process.argv, b"--parent") != parent:
            return found._replace(role=Role.SCRIPT, needs=Needs.NOTHING)
    return found


def _born(role: Role, process: Process) -> Role:
    """Say what a child is that goes on with the program of a parent in this role."""
    if role is Role.FORKSERVER and process.job != NOBODY:
        return Role.LOADER
    return _BORN.get(role, role)


def _name(process: Process, comm: bytes) -> None:
    """Believe a worker that it loads data: its lineage has said the rest."""
    if process.role is Role.WORKER and comm == _LOADER_NAME:
        process.role = Role.LOADER


def _holds(case: _Case) -> bool:
    """Whether what a guess needs beside the name is there."""
    process, chain, found, _, _ = case
    if found.needs is Needs.FAMILY:
        family = bool(chain) and chain[0].role not in _STRANGERS
        return family or process.job != NOBODY
    if found.needs is Needs.NOTHING:
        return True
    user = found.needs is Needs.SYSTEM or process.uid == 0
    return user and of_the_system(process.executable)


def _unproven(found: Guess) -> Role:
    return Role.SCRIPT if found.python else Role.OTHER


def _within(case: _Case) -> bool:
    """Whether a launcher belongs to its parent's job: no rank of that started it."""
    for one in case.chain:
        if one.role is Role.RANK:
            return False
        if one.key == case.process.job:
            return True
    return False


def _may_rank(case: _Case, fresh: bool) -> bool:
    """Whether a program can be a rank by what it is, and by who started it."""
    process, chain, found, what, _ = case
    under = chain[0].role if chain else Role.OTHER
    if process.role is Role.RANK and not found.python:
        return False  # a rank that became another program
    if found.wraps:
        return fresh or (what is _NOT_TOLD and under in _LAUNCHERS)
    if found.role is Role.SCRIPT:
        started = under in _LAUNCHERS or under is Role.RANK_WRAPPER
        return fresh or (started and found.python != b"-c")
    strong = what.claim is not None and not what.claim.weak
    return fresh and strong and found.role in (Role.OTHER, Role.WORKER)


def _starts_itself(case: _Case, parent: Process) -> bool:
    """Whether a script starts the other ranks: itself again, or by multiprocessing."""
    alone = parent.role is Role.SCRIPT and parent.job == NOBODY
    if not alone and not (parent.role is Role.RANK and parent.job == parent.key):
        return False
    if case.found.role is Role.WORKER:
        return True
    before, found = guess(parent.executable, parent.argv), case.found
    same = before.python.rpartition(b"/")[2] == found.python.rpartition(b"/")[2]
    return bool(found.python) and same and before.rest == found.rest


def _keep(
    kept: OrderedDict[ProcessKey, Any], key: ProcessKey, value: Any, limit: int
) -> None:
    kept[key] = value
    if len(kept) > limit:
        kept.popitem(last=False)
