"""Whether a process has made itself look like something else since its exec.

In: what the kernel saw at exec, what is there now, and which programs this machine
has. Out: typed findings with their evidence. Nothing is read here (`look.py` does
that), and any bytes whatever give findings, no error.
"""

import hashlib
import re
from collections.abc import Callable, Iterator
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

import msgspec

READ_LIMIT = 1 << 20
"""Bytes of a command line that are read of a living process at most."""
_EVIDENCE = 256
_COMM = 15  # bytes of a name that the kernel keeps

# Whose first argument is a program of its own. One that is missing here costs a title
# with the name of its script its place among the titles, and no more.
_INTERPRETER = re.compile(
    rb"(?:python|pypy|perl|ruby|node|bash|dash|sh|zsh|ksh|php|lua|java|julia|Rscript)"
    rb"[-.\d]*"
)
_VERSION = re.compile(rb"[-.\d]+$")
_WORD = re.compile(rb"[^\s:\[\](),;]*")
_TITLE = re.compile(rb"[(\[]?[\w.@/+-]+(?::|\s?[\[(]|\))")
_IN_BRACKETS = re.compile(rb"\[\S+\]")
# what follows a slash in the name of a kernel thread: 3, 0:1H, u8:2-flush, R-xfs
_INSTANCE = re.compile(rb"(?:u?\d+(?::\d+H?)?|R)(?:-.*)?", re.DOTALL)


class Weight(StrEnum):
    """What a finding is worth by itself."""

    NOTE = "note"
    ALARM = "alarm"


class Kind(StrEnum):
    """What has become of a process: a closed set.

    An ALARM is what no honest program was found to do. A NOTE is a fact that honest
    programs give as well, so it counts only beside others:

    * retitled: servers and job frameworks show their state this way;
    * argv_rewritten: a password is blanked out, a library sets any text it likes;
    * argv0_differs: the caller of exec chose that name, and nothing changed since;
    * exe_deleted, exe_replaced, exe_moved: package managers do it to what runs;
    * memfd: container runtimes start themselves from one;
    * unreadable: a busy process does not answer in time either.

    An empty command line is an ALARM because ps then shows the name in brackets, as of
    a kernel thread; exe_exchanged because only the process itself can bring it about,
    by prctl, and nobody but a restored checkpoint has a reason to.
    """

    UNCHANGED = "unchanged"
    RETITLED = "retitled"
    ARGV_REWRITTEN = "argv_rewritten"
    DISGUISED_ARGV = "disguised_argv"
    ARGV_ERASED = "argv_erased"
    ARGV0_DIFFERS = "argv0_differs"
    KERNEL_THREAD_LOOKALIKE = "kernel_thread_lookalike"
    COMM_DISGUISED = "comm_disguised"
    EXE_DELETED = "exe_deleted"
    EXE_REPLACED = "exe_replaced"
    EXE_MOVED = "exe_moved"
    EXE_EXCHANGED = "exe_exchanged"
    MEMFD = "memfd"
    UNREADABLE = "unreadable"

    @property
    def weight(self) -> Weight:
        """Return what this is worth by itself."""
        return Weight.ALARM if self in _ALARMS else Weight.NOTE


_ALARMS = frozenset(
    {
        Kind.DISGUISED_ARGV,
        Kind.ARGV_ERASED,
        Kind.KERNEL_THREAD_LOOKALIKE,
        Kind.COMM_DISGUISED,
        Kind.EXE_EXCHANGED,
    }
)


class File(NamedTuple):
    """A file by the kernel's own numbers; `dev` is major << 20 | minor.

    Those of stat(2) are others on btrfs and overlayfs.
    """

    ino: int
    dev: int


NO_FILE = File(0, 0)


class Program(NamedTuple):
    """What would run by a name: the file that the kernel loads in the end.

    For a script that is its interpreter, which has its base name in `interpreter`.
    """

    file: File
    interpreter: bytes = b""


Programs = Callable[[bytes], Program | None]
"""Says what a path, or a bare name in the usual folders, would run; None: nothing."""


class Born(msgspec.Struct, frozen=True):
    """What the kernel saw when the program of this process was executed.

    `argv` is raw memory, NUL after every argument: all `argv_bytes` of it, or its
    beginning, or nothing when it could not be read. `argv_sha256` is the digest of the
    whole, empty when not known. `invoked` is the name given to exec, `interpreter` that
    of the script's first line. `file` is NO_FILE when not known.
    """

    executable: bytes
    argv: bytes
    argv_bytes: int
    comm: bytes
    file: File = NO_FILE
    argv_sha256: bytes = b""
    invoked: bytes = b""
    interpreter: bytes = b""
    memfd: bool = False


class Now(msgspec.Struct, frozen=True):
    """What a process is now.

    `cmdline` is cut at READ_LIMIT of the `cmdline_bytes` that the kernel keeps for it,
    and None when it could not be read. `executable` has no " (deleted)" at its end:
    that is `deleted`. `at_path` is the file that lies there now. `has_memory` is false
    of kernel threads and of what has ended. `unanswered` names what did not answer in
    time. `start_ticks` (clock ticks since boot) tells processes with one pid apart.
    """

    comm: bytes
    cmdline: bytes | None
    cmdline_bytes: int
    executable: bytes
    file: File = NO_FILE
    at_path: File | None = None
    deleted: bool = False
    kernel_thread: bool = False
    has_memory: bool = True
    unanswered: tuple[str, ...] = ()
    start_ticks: int = 0


class Finding(msgspec.Struct, frozen=True):
    """One thing that was found, with the beginning of what was and of what is now."""

    kind: Kind
    was: bytes
    now: bytes
    why: str

    @property
    def weight(self) -> Weight:
        """Return what this is worth by itself."""
        return self.kind.weight


def judge(
    born: Born, now: Now, programs: Programs, kernel_threads: frozenset[bytes]
) -> list[Finding]:
    """Say what has changed, and what of it is a disguise; never an empty list.

    `kernel_threads` are the names of the living ones. A title that begins with a name
    of the program's own is a title, one that begins with another program of this
    machine is a disguise, and one that imitates a kernel thread always is one.
    """
    if now.kernel_thread:
        return [Finding(Kind.UNCHANGED, b"", b"", "a kernel thread")]
    known = _Known(born, programs, kernel_threads)
    found = [
        _finding(Kind.UNREADABLE, b"", b"", f"{name} did not answer in time")
        for name in now.unanswered
    ]
    found += _judge_comm(known, now)
    if now.has_memory:
        found += [*_judge_argv(known, now), *_judge_executable(born, now)]
    return found or [Finding(Kind.UNCHANGED, b"", b"", "as it was executed")]


def _finding(kind: Kind, was: bytes, now: bytes, why: str) -> Finding:
    return Finding(kind, was[:_EVIDENCE], now[:_EVIDENCE], why)


def _base(path: bytes) -> bytes:
    return path.rpartition(b"/")[2]


def _stem(name: bytes) -> bytes:
    """Make python of Python3.11, and bash of -bash: names of one program."""
    name = _base(name).lower().lstrip(b"-")
    return _VERSION.sub(b"", name) or name


class _Known:
    """What a program may call itself, and what the names of others are."""

    def __init__(
        self, born: Born, programs: Programs, kernel_threads: frozenset[bytes]
    ) -> None:
        self.born = born
        self._programs = programs
        self._kernel_threads = kernel_threads
        self.argv0, *rest = born.argv.split(b"\0")
        path = born.executable.removeprefix(b"memfd:")
        ran_as = {path, born.invoked, born.interpreter, born.comm}
        self.executed = {_stem(name) for name in ran_as} - {b""}
        self._paths = {born.executable, born.invoked, self.argv0}
        script = self._script(rest)
        module = _base(script).partition(b".")[0]
        told = {_stem(name) for name in (self.argv0, script, module)}
        self._own = (self.executed | told) - {b""}

    def _script(self, arguments: list[bytes]) -> bytes:
        if not _INTERPRETER.fullmatch(_base(self.born.executable)):
            return b""
        return next((one for one in arguments if one[:1] not in (b"-", b"")), b"")

    def is_own(self, name: bytes, *, cut: bool = False) -> bool:
        """Say whether a word names this very program, by one of its names."""
        if name.startswith(b"/") and not cut:
            if name in self._paths:
                return True
            if (found := self._programs(name)) is not None:
                return self._runs_this(found)
        stem = _stem(name)
        if cut and len(name) == _COMM:
            return any(own.startswith(stem) for own in self._own)
        return stem in self._own

    def is_other(self, name: bytes) -> bool:
        """Say whether a word names another program of this machine."""
        name = name.lstrip(b"-")  # a login shell
        names = {name, _base(name)} if name.startswith((b"/", b".")) else {name}
        found = [self._programs(one) for one in sorted(names) if one]
        return any(one and not self._runs_this(one) for one in found)

    def is_installed(self, name: bytes) -> bool:
        """Say whether a name would run this very program: applets, alternatives."""
        found = self._programs(_base(name))
        return found is not None and self._runs_this(found)

    def _runs_this(self, found: Program) -> bool:
        # interpreters by name too: a machine has several copies of one
        same = _stem(found.interpreter) == _stem(self.born.executable)
        return found.file == self.born.file or (bool(found.interpreter) and same)

    def imitates_kernel(self, title: bytes) -> bool:
        """Say whether a title is, or is made to look like, that of a kernel thread."""
        return imitates_kernel(title, self._kernel_threads)


def imitates_kernel(title: bytes, kernel_threads: frozenset[bytes]) -> bool:
    """Say whether a title is, or is made to look like, that of a kernel thread."""
    title = title.strip()
    if _IN_BRACKETS.fullmatch(title):
        return True
    name = re.split(rb"[\s\]]", title.lstrip(b"["), maxsplit=1)[0]
    family, _, instance = name.partition(b"/")
    of_family = family in _families(kernel_threads) and _INSTANCE.fullmatch(instance)
    return name in kernel_threads or bool(of_family)


@lru_cache(maxsize=4)
def _families(kernel_threads: frozenset[bytes]) -> frozenset[bytes]:
    """Return kworker of kworker/0:1, and its like."""
    return frozenset(name.partition(b"/")[0] for name in kernel_threads if b"/" in name)


def _judge_comm(known: _Known, now: Now) -> Iterator[Finding]:
    was, comm = known.born.comm, now.comm
    word = _WORD.match(comm.lstrip())
    name = word[0] if word else b""
    if now.has_memory and known.imitates_kernel(comm):
        kind, why = Kind.KERNEL_THREAD_LOOKALIKE, "named like a kernel thread"
    elif comm == was:
        return
    elif known.is_own(comm, cut=True) or known.is_own(name, cut=True):
        kind, why = Kind.RETITLED, "a name of its own"
    elif known.is_other(name):
        kind, why = Kind.COMM_DISGUISED, "names another program of this machine"
    else:
        kind, why = Kind.RETITLED, "names no program"
    yield _finding(kind, was, comm, why)


def _judge_argv(known: _Known, now: Now) -> Iterator[Finding]:
    born = known.born
    title = (now.cmdline or b"").partition(b"\0")[0]
    if known.argv0 and known.imitates_kernel(known.argv0):
        why = "executed with an argv[0] like a kernel thread"
        yield _finding(Kind.KERNEL_THREAD_LOOKALIKE, born.argv, title, why)
    elif born.argv and not _is_named(known, known.argv0):
        why = "executed with an argv[0] that is no name of the program"
        yield _finding(Kind.ARGV0_DIFFERS, born.argv, born.executable, why)
    if now.cmdline is None or _is_as_executed(born, now, now.cmdline):
        return
    yield _judge_title(known, now, now.cmdline)


def _is_named(known: _Known, argv0: bytes) -> bool:
    return _stem(argv0) in known.executed or known.is_installed(argv0)


def _is_as_executed(born: Born, now: Now, cmdline: bytes) -> bool:
    """Compare with as much of argv as is known; what is not known has not changed."""
    if len(cmdline) >= READ_LIMIT:
        both = min(len(born.argv), len(cmdline))
        same_size = now.cmdline_bytes == born.argv_bytes
        return same_size and born.argv[:both] == cmdline[:both]
    if len(born.argv) == born.argv_bytes:
        return cmdline == born.argv
    if born.argv_sha256:
        return hashlib.sha256(cmdline).digest() == born.argv_sha256
    if not born.argv:
        return not _is_blank(cmdline)
    return len(cmdline) == born.argv_bytes and cmdline.startswith(born.argv)


def _is_blank(argv: bytes) -> bool:
    return not argv.replace(b"\0", b" ").strip()


def _judge_title(known: _Known, now: Now, cmdline: bytes) -> Finding:
    born = known.born
    title = cmdline.partition(b"\0")[0].strip()
    word = _WORD.match(title)
    name = word[0] if word else b""
    if _is_blank(cmdline) and not (born.argv and _is_blank(born.argv)):
        kind = Kind.ARGV_ERASED
        why = f"{now.cmdline_bytes} bytes of command line, and nothing in them"
    elif known.imitates_kernel(title):
        kind, why = Kind.KERNEL_THREAD_LOOKALIKE, "titled like a kernel thread"
    elif known.is_own(name):
        kind, why = Kind.RETITLED, "begins with a name of its own"
    elif known.is_other(name) or known.is_other(title):
        kind, why = Kind.DISGUISED_ARGV, "names another program of this machine"
    elif _TITLE.match(title):
        kind, why = Kind.RETITLED, "has the form of a title, and names no program"
    else:
        kind, why = Kind.ARGV_REWRITTEN, "is no title, and names no program"
    return _finding(kind, born.argv, cmdline, why)


def _judge_executable(born: Born, now: Now) -> Iterator[Finding]:
    was, path = born.executable, now.executable
    memfd = born.memfd or path.startswith(b"/memfd:")
    if memfd:
        yield _finding(Kind.MEMFD, was, path, "runs from memory, from no file")
    if NO_FILE not in (born.file, now.file) and born.file != now.file:
        why = f"runs inode {now.file.ino}, executed was {born.file.ino}"
        yield _finding(Kind.EXE_EXCHANGED, was, path, why)
    elif was and path and not memfd and not _is_path(path, was):
        yield _finding(Kind.EXE_MOVED, was, path, "the same file under another name")
    if now.deleted and not memfd:
        yield _judge_deleted(was, path, now)


def _is_path(path: bytes, known: bytes) -> bool:
    """Compare with what may be only the end of a path: of one that lies too deep."""
    return path == known or (known[:1] != b"/" and path.endswith(b"/" + known))


def _judge_deleted(was: bytes, path: bytes, now: Now) -> Finding:
    if now.at_path is None:
        return _finding(Kind.EXE_DELETED, was, path, "nothing is there now")
    why = f"inode {now.at_path.ino} is there now, {now.file.ino} runs"
    return _finding(Kind.EXE_REPLACED, was, path, why)
