"""The kernel's rules of parentage, as far as they matter to a process's place.

In: what processes do. Out: the events that the probes would tell of it, in the order
of the stream, and every task as the kernel holds it. The rules are those of fork(2),
clone(2), ptrace(2), pid_namespaces(7) and PR_SET_CHILD_SUBREAPER.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from agent.events import (
    NOBODY,
    Event,
    Exec,
    Fork,
    Listing,
    ProcessKey,
    Seen,
    Task,
)
from tests.builders import a_fork, a_task, an_exec, an_exit

PIDS = range(2, 12)
"""Few, so that they are used again."""


@dataclass(eq=False)
class Being:
    """One process: `inside` is the init of its pid namespace, at this depth.

    `around` is, for such an init, that of the namespace around its own. `birth` is the
    parent at birth, or when it was first told of, `parents` are all it ever had.
    """

    key: ProcessKey
    creator: ProcessKey
    parent: "Being | None"
    level: int
    inside: "Being" = field(init=False)
    around: "Being | None" = None
    birth: ProcessKey = NOBODY
    tracer: "Being | None" = None
    subreaper: bool = False
    lives: bool = True
    ended_ns: int = 0
    parents: set[ProcessKey] = field(default_factory=set)

    @property
    def is_init(self) -> bool:
        return self.inside is self

    @property
    def reaper_key(self) -> ProcessKey:
        return self.parent.key if self.parent else NOBODY

    def given_to(self, parent: "Being") -> None:
        self.parent = parent
        self.parents.add(parent.key)


class Kernel:
    """All processes of a machine, zombies included."""

    def __init__(self, step_ns: int = 1_000_000) -> None:
        self.step_ns, self.now = step_ns, 10
        self.init = Being(ProcessKey(1, 5), NOBODY, None, 0)
        self.init.inside = self.init
        self.beings = [self.init]
        self._cursor = PIDS.start

    def tick(self) -> int:
        self.now += self.step_ns
        return self.now

    # who is there

    def living(self) -> list[Being]:
        return [one for one in self.beings if one.lives]

    def find(self, key: ProcessKey) -> Being | None:
        return next((one for one in self.beings if one.key == key), None)

    def alive(self, key: ProcessKey) -> bool:
        found = self.find(key)
        return found is not None and found.lives

    def reaps(self, key: ProcessKey) -> bool:
        found = self.find(key)
        return found is not None and found.is_init

    def namespaces_for(self, creator: Being) -> list[Being]:
        """Inits of the namespaces that it may have children in."""
        inits = [one for one in self.living() if one.is_init]
        return [one for one in inits if creator.inside in _outwards(one)]

    # what they do

    def fork(
        self, creator: Being, inside: Being | None, *, clone_parent: bool = False
    ) -> Fork | None:
        """A birth in the namespace of this init, or as the init of a new one."""
        pid = self._free_pid()
        if pid is None or (clone_parent and creator.is_init):
            return None
        parent = creator.parent if clone_parent else creator
        assert parent is not None
        level = inside.level if inside else creator.inside.level + 1
        child = Being(ProcessKey(pid, self.tick()), creator.key, None, level)
        child.inside = inside or child
        child.around = None if inside else creator.inside
        child.given_to(parent)
        child.birth = parent.key
        self.beings.append(child)
        return a_fork(self.task(child), creator=creator.key, bt_ns=self.tick())

    def exec(self, one: Being) -> Exec:
        return an_exec(b"x", task=self.task(one), bt_ns=self.tick())

    def exit(self, one: Being) -> list[Event]:
        """The end of a process, and of a namespace with its init."""
        return list(self._exit(one))

    def _exit(self, one: Being) -> Iterator[Event]:
        one.ended_ns = self.tick()
        yield an_exit(self.task(one), bt_ns=one.ended_ns)
        one.lives = False
        for tracee in self.beings:
            if tracee.tracer is one:
                tracee.tracer = None
        if one.is_init:
            yield from self._zap(one)
        reaper = self._reaper_after(one)
        for child in self.beings:
            if child.parent is one and child is not reaper:
                child.given_to(reaper)

    def _zap(self, init: Being) -> Iterator[Event]:
        members = [m for m in self.beings if m is not init and init in _outwards(m)]
        for member in members:
            if member.lives:
                yield from self._exit(member)
        for member in members:
            self.reap(member)

    def _reaper_after(self, father: Being) -> Being:
        above = father.parent
        while above is not None and above.level == father.level:
            if above.subreaper and above.lives:
                return above
            above = above.parent
        return father.inside

    def reap(self, one: Being) -> None:
        """Forget a zombie; its pid is free."""
        assert not one.lives
        if one in self.beings:
            self.beings.remove(one)

    def change(self, kind: str, one: Being, other: Being, number: int) -> None:
        """Wait for a zombie, become a reaper, be traced, or be let go."""
        zombies = [being for being in self.beings if not being.lives]
        if kind == "wait" and zombies:
            self.reap(zombies[number % len(zombies)])
        elif kind == "reap":
            one.subreaper = True
        elif kind == "trace" and one is not other:
            one.tracer = other
        elif kind == "untrace":
            one.tracer = None

    # what can be seen of them

    def task(self, one: Being) -> Task:
        parent = one.reaper_key
        return a_task(
            one.key.tgid,
            start_ns=one.key.start_ns,
            real_parent=parent,
            parent=one.tracer.key if one.tracer else parent,
            ptrace=int(one.tracer is not None),
        )

    def listing(self, changed: Iterable[Being] | None = None) -> Listing:
        """The kernel's list; everybody has changed unless said otherwise."""
        tasks = [self.task(one) for one in self.beings]
        keys = None if changed is None else {one.key for one in changed}
        return Listing(
            self.tick(),
            {task.key.tgid: task.key.start_ns for task in tasks},
            {task.key.tgid: task.real_parent.tgid for task in tasks},
            [task for task in tasks if keys is None or task.key in keys],
        )

    def ran(self, *beings: Being) -> list[Seen]:
        return [Seen(one.key, self.tick(), one.key.tgid, b"x") for one in beings]

    def _free_pid(self) -> int | None:
        taken = {one.key.tgid for one in self.beings}
        order = [*range(self._cursor, PIDS.stop), *range(PIDS.start, self._cursor)]
        pid = next((pid for pid in order if pid not in taken), None)
        if pid is not None:
            self._cursor = pid + 1
        return pid


def _outwards(one: Being) -> Iterator[Being]:
    """The init of its namespace, and of each one around that."""
    init: Being | None = one.inside
    while init is not None:
        yield init
        init = init.around
