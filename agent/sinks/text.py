r"""Bytes and numbers of the kernel as JSON text, made once and kept where they repeat.

In: bytes, contexts, executables, times. Out: pieces of JSON, complete and escaped.
No byte is lost silently: what is not UTF-8 is shown as \xNN, and whoever needs the
exact bytes of an argument finds them in base64 beside it.
"""

import secrets
import signal
import time
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

import msgspec

from agent.events import Context, Executable, Flag

_UNSET = 0xFFFFFFFF
_SECOND_NS, _MILLISECOND_NS = 1_000_000_000, 1_000_000
_MINOR_BITS, _MINOR_MASK = 20, (1 << 20) - 1
NAMESPACES = ("pid", "mnt", "net", "user", "uts", "ipc", "cgroup", "time")
_CLONE = {
    0x100: "CLONE_VM",
    0x200: "CLONE_FS",
    0x400: "CLONE_FILES",
    0x800: "CLONE_SIGHAND",
    0x2000: "CLONE_PTRACE",
    0x8000: "CLONE_PARENT",
    0x20000: "CLONE_NEWNS",
    0x2000000: "CLONE_NEWCGROUP",
    0x4000000: "CLONE_NEWUTS",
    0x8000000: "CLONE_NEWIPC",
    0x10000000: "CLONE_NEWUSER",
    0x20000000: "CLONE_NEWPID",
    0x40000000: "CLONE_NEWNET",
}
_SET_MM = (
    *("", "START_CODE", "END_CODE", "START_DATA", "END_DATA", "START_STACK"),
    *("START_BRK", "BRK", "ARG_START", "ARG_END", "ENV_START", "ENV_END", "AUXV"),
    *("EXE_FILE", "MAP", "MAP_SIZE"),
)
"""What follows PR_SET_MM_ in the names of the second argument, from 1."""
_encode = msgspec.json.Encoder().encode


def text(raw: bytes) -> str:
    r"""Decode UTF-8; any other byte becomes \xNN."""
    return raw.decode("utf-8", "backslashreplace")


def quote(value: str) -> str:
    """Return a JSON string."""
    return _encode(value).decode()


@lru_cache(maxsize=2048)
def quoted(raw: bytes) -> str:
    """Return the JSON string of a path or name; kept, since they repeat."""
    return quote(text(raw))


@lru_cache(maxsize=256)
def _second(second: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))


def rfc3339(wall_ns: int) -> str:
    """Return `wall_ns` since 1970 in UTC, with nine digits of a second."""
    second, rest = divmod(wall_ns, _SECOND_NS)
    return f"{_second(second)}.{rest:09d}Z"


@lru_cache(maxsize=64)
def flags(bits: int) -> str:
    """Return the JSON array of what is incomplete or unusual about an event."""
    return _encode([flag.name.lower() for flag in Flag if flag & bits]).decode()


@lru_cache(maxsize=1024)
def executable(facts: Executable) -> str:
    """Return the member "exe": which file it is, however it is called."""
    device = f"{facts.dev >> _MINOR_BITS}:{facts.dev & _MINOR_MASK}"
    return (
        f'"exe":{{"inode":"{facts.ino}","device":"{device}","nlink":{facts.nlink},'
        f'"mode":"{facts.mode & 0o7777:04o}","uid":"{facts.uid}",'
        f'"memfd":{_bool(facts.memfd)},"deleted":{_bool(facts.deleted)}}}'
    )


def _bool(value: object) -> str:
    return "true" if value else "false"


def capabilities(context: Context) -> str:
    """Return the member "caps": masks in hexadecimal; a set that is empty is absent."""
    sets = (
        ("effective", context.cap_effective),
        ("permitted", context.cap_permitted),
        ("inheritable", context.cap_inheritable),
        ("bounding", context.cap_bounding),
        ("ambient", context.cap_ambient),
    )
    shown = [f'"{name}":"{mask:016x}"' for name, mask in sets if mask]
    return f'"caps":{{{",".join(shown)}}}'


def namespaces(context: Context, host: Mapping[str, int]) -> str:
    """Return the member "ns": those that are not the host's, by inode number."""
    shown = [
        f'"{name}":{getattr(context, f"ns_{name}")}'
        for name in NAMESPACES
        if getattr(context, f"ns_{name}") != host.get(name)
    ]
    if context.ns_level:
        shown.append(f'"pid_level":{context.ns_level}')
    return f'"ns":{{{",".join(shown)}}}'


def prctl_field(number: int) -> str:
    """Return what a PR_SET_MM was about, or the number where that is unknown."""
    return _SET_MM[number] if 0 < number < len(_SET_MM) else str(number)


def session(context: Context) -> str:
    """Return the members "cgroup" and, in a login session, "login"."""
    group = f'"cgroup":{{"id":"{context.cgroup_id}"}}'
    if context.loginuid == _UNSET:
        return group
    login = f'{{"uid":"{context.loginuid}","session":{context.sessionid}}}'
    return f'{group},"login":{login}'


@lru_cache(maxsize=1024)
def how_started(invoked: bytes, interpreter: bytes, bits: int) -> str:
    """Return the object of ir.exec: the name that was invoked, and by what kind."""
    script = f',"interpreter":{quoted(interpreter)}' if interpreter else ""
    return (
        f'{{"path":{quoted(invoked)}{script},'
        f'"non_leader":{_bool(bits & Flag.NONLEADER)},'
        f'"compat":{_bool(bits & Flag.COMPAT)}}}'
    )


@lru_cache(maxsize=256)
def clone_flags(bits: int) -> str:
    """Return the JSON array of the CLONE_* names of these bits."""
    return _encode([name for bit, name in _CLONE.items() if bits & bit]).decode()


@lru_cache(maxsize=256)
def exit_status(status: int) -> tuple[str, str]:
    """Return what "process" and "ir" say of a status as wait(2) gives it."""
    number = status & 0x7F
    if not number:
        return f'"exit_code":{status >> 8 & 0xFF},', ""
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"SIG{number}"
    core = _bool(status & 0x80)
    return "", f'"exit":{{"signal":"{name}","core_dumped":{core}}},'


def safe(word: str) -> str:
    """Return a word as it is if it is harmless, else quoted and escaped."""
    if word and word.isprintable() and " " not in word:
        return word
    return repr(word)


def sentence(said: str) -> str:
    """Return words with blanks as they are; what can't be printed is escaped."""
    return said if said.isprintable() else ascii(said)[1:-1]


class Users:
    """Names of user ids, for processes in the host's user namespace only.

    They come from /etc/passwd alone: a name service may be remote, and would then
    stall the pipeline for as long as the network likes.
    """

    def __init__(self, host_user_ns: int, passwd: Path = Path("/etc/passwd")) -> None:
        """Read the names once."""
        self._host = host_user_ns
        self._names = _read_names(passwd)

    def of(self, context: Context) -> str:
        """Return the members "user" and "group"; real and saved ids where they differ.

        "user" and "group" are the effective ones, as ECS has it.
        """
        c = context
        members = f'"user":{self.user(c)},"group":{{"id":"{c.egid}"}}'
        for name, value, effective in (
            ("real_user", c.uid, c.euid),
            ("saved_user", c.suid, c.euid),
            ("real_group", c.gid, c.egid),
            ("saved_group", c.sgid, c.egid),
        ):
            if value != effective:
                members += f',"{name}":{{"id":"{value}"}}'
        return members

    def name(self, context: Context) -> str:
        """Return the effective user for a person: the name, or the number."""
        return self._known(context) or str(context.euid)

    def _known(self, context: Context) -> str | None:
        return self._names.get(context.euid) if context.ns_user == self._host else None

    def user(self, context: Context) -> str:
        """Return the object of the effective user: id, and name where it is known."""
        name = self._known(context)
        named = f',"name":{quote(name)}' if name else ""
        return f'{{"id":"{context.euid}"{named}}}'


def _read_names(passwd: Path) -> dict[int, str]:
    names: dict[int, str] = {}
    try:
        lines = passwd.read_text(errors="replace").splitlines()
    except OSError:
        return names
    for line in lines:
        name, _, rest = line.partition(":")
        number = rest.split(":")[1:2]
        if number and number[0].isdigit():
            names.setdefault(int(number[0]), name)
    return names


class Stamps:
    """The time and the id of each record, which share most of their text.

    An id is a UUIDv7 (RFC 9562): millisecond, a random part per writer, a counter; ids
    of one writer are in order within a millisecond.
    """

    def __init__(self) -> None:
        """Draw the random part."""
        self._counter = secrets.randbits(47)
        high, low = secrets.randbits(12), 0x8000 | secrets.randbits(14)
        self._random = f"-7{high:03x}-{low:04x}-"
        self._second_ns = self._millisecond = -1
        self._text = self._prefix = ""

    def __call__(self, wall_ns: int) -> tuple[str, str]:
        """Return `wall_ns` since 1970 as RFC 3339 text, and a new id."""
        rest = wall_ns - self._second_ns
        if not 0 <= rest < _SECOND_NS or self._second_ns < 0:
            second, rest = divmod(wall_ns, _SECOND_NS)
            self._second_ns, self._millisecond = wall_ns - rest, -1
            self._text = _second(second)
        if rest // _MILLISECOND_NS != self._millisecond:
            self._millisecond = rest // _MILLISECOND_NS
            head = f"{wall_ns // _MILLISECOND_NS:012x}"
            self._prefix = f"{head[:8]}-{head[8:]}{self._random}"
        self._counter += 1
        return f"{self._text}.{rest:09d}Z", f"{self._prefix}{self._counter:012x}"
