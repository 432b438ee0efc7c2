"""Events as Sigma fields: what each is, and that a missing one is None."""

from typing import Any

import pytest

from agent.detection.facts import Facts
from agent.detection.fields import (
    EXEC,
    FILE_EVENT,
    HEAD,
    NETWORK_CONNECTION,
    PROCESS_ACCESS,
    TAIL,
    Connection,
    FileChange,
    Surroundings,
    was_cut,
)
from agent.events import (
    NOBODY,
    AccessKind,
    ChainEnd,
    Denied,
    Lineage,
    Parentage,
    Verdict,
)
from tests.builders import (
    INIT,
    a_key,
    a_process,
    a_task,
    an_access,
    an_exec,
    an_image,
)

PARENT = a_process(
    INIT, executable=b"/usr/bin/make", argv=b"make\0-j 8\0\0", uid=1000, parent=NOBODY
)
GRANDPARENT = a_process(a_key(7), executable=b"/usr/sbin/sshd")
LINEAGE = Lineage((PARENT, GRANDPARENT), ChainEnd.ROOT)
AROUND = Surroundings(
    LINEAGE,
    users={0: "root", 1000: "trainer"},
    parentage=Parentage(Verdict.FORGED),
    role="rank",
    parent_role="launcher",
    job_id="job-1",
)
EVENT = an_exec(
    b"sh",
    b"-c",
    b"",
    b"a b\xff",
    task=a_task(1234, image=an_image(b"sh", uid=1000, euid=0, memfd=True)),
    executable=b"/usr/bin/dash",
    invoked=b"/bin/sh",
    interpreter=b"./x.sh",
    cwd=b"/srv",
    environment=(b"LD_PRELOAD=/tmp/x.so", b"A=b=c", b"EMPTY="),
)


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("Image", "/usr/bin/dash"),
        ("OriginalInvoked", "/bin/sh"),
        ("Interpreter", "./x.sh"),
        ("CommandLine", "sh -c  a b\udcff"),
        ("CurrentDirectory", "/srv"),
        ("User", "trainer"),
        ("LogonId", "1000"),
        ("Uid", "1000"),
        ("EffectiveUid", "0"),
        ("CgroupId", "77"),
        ("ProcessId", "1234"),
        ("ParentProcessId", "1"),
        ("ParentImage", "/usr/bin/make"),
        ("ParentCommandLine", "make -j 8 "),
        ("ParentUser", "trainer"),
        ("Ancestors", "/usr/bin/make\0/usr/sbin/sshd"),
        ("Role", "rank"),
        ("ParentRole", "launcher"),
        ("JobId", "job-1"),
        ("Verdict", "forged"),
        ("Memfd", "true"),
        ("Deleted", "false"),
        ("ExecutableOwner", "0"),
        ("Env.LD_PRELOAD", "/tmp/x.so"),
        ("Env.A", "b=c"),
        ("Env.EMPTY", ""),
        ("Env.LD", None),
        ("Env.", None),
        ("a0", "sh"),
        ("a2", ""),
        ("a3", "a b\udcff"),
        ("a4", None),
        ("a", None),
        ("a-1", None),
        ("a²", None),
        ("argc", "4"),
        ("", "sh\0-c\0\0a b\udcff"),
        ("exe", "/usr/bin/dash"),
        ("comm", "sh"),
        ("euid", "0"),
        ("uid", "1000"),
        ("auid", str(0xFFFFFFFF)),
        ("SYSCALL.values", "sh\0/usr/bin/dash"),
        ("Hashes", None),
    ],
)
def test_a_program_that_runs_has_the_field(field: str, text: str | None) -> None:
    facts = Facts(EVENT, AROUND, EXEC)
    assert facts.raw[field] == text
    assert facts.low[field] == (text or "").lower()


def test_what_is_not_known_is_missing() -> None:
    raw = Facts(an_exec(b"x", invoked=b"", cwd=b""), Surroundings(), EXEC).raw
    fields = ("ParentImage", "ParentCommandLine", "ParentUser", "Ancestors", "Role")
    for field in (*fields, "CurrentDirectory", "OriginalInvoked", "Verdict"):
        assert raw[field] is None
    assert raw["User"] == "0"


def test_a_parent_is_named_only_when_it_is_the_parent() -> None:
    other = Surroundings(Lineage((GRANDPARENT,), ChainEnd.ROOT))
    assert Facts(EVENT, other, EXEC).raw["ParentImage"] is None


def test_no_argument_at_all_is_an_empty_line() -> None:
    raw = Facts(an_exec(), AROUND, EXEC).raw
    assert (raw["CommandLine"], raw["a0"], raw[""]) == ("", None, "")


@pytest.mark.parametrize("size", [0, HEAD - 1, HEAD, HEAD + TAIL, HEAD + TAIL + 1])
def test_a_line_that_is_cut_is_counted(size: int) -> None:
    event = an_exec(b"x" * size)
    line = Facts(event, AROUND, EXEC).raw["CommandLine"]
    assert line is not None
    assert was_cut(event) is ("\0" in line) is (size > HEAD + TAIL)


def test_an_argument_beyond_the_beginning_is_missing() -> None:
    event = an_exec(b"a", b"x" * HEAD, b"c")
    raw = Facts(event, AROUND, EXEC).raw
    assert (raw["a0"], raw["a1"], raw["a2"]) == ("a", None, None)


SOURCE = a_process(a_key(1000), executable=b"/usr/bin/gdb", argv=b"gdb\0-p\0")
TARGET = a_process(a_key(2000), executable=b"/usr/bin/python3.11", argv=b"python3\0")


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("SourceImage", "/usr/bin/gdb"),
        ("TargetImage", "/usr/bin/python3.11"),
        ("SourceCommandLine", "gdb -p"),
        ("TargetCommandLine", "python3"),
        ("SourceUser", "root"),
        ("TargetUser", "trainer"),
        ("SourceProcessId", "1000"),
        ("TargetProcessId", "2000"),
        ("SourceRole", "debugger"),
        ("TargetRole", "rank"),
        ("GrantedAccess", "process-vm-write"),
        ("AccessDetail", "7"),
        ("Outcome", "failure"),
        ("Denied", "lsm"),
        ("Path", None),
        ("Memfd", "false"),
        ("TargetAncestors", "/usr/bin/make\0/usr/sbin/sshd"),
        ("CommandLine", None),
    ],
)
def test_an_access_has_the_field(field: str, text: str | None) -> None:
    event = an_access(
        a_task(2000, image=an_image(uid=1000)),
        kind=AccessKind.PROCESS_VM_WRITE,
        result=-1,
        detail=7,
        denied=Denied.LSM,
    )
    around = Surroundings(
        process=SOURCE,
        target=TARGET,
        target_lineage=LINEAGE,
        users={0: "root", 1000: "trainer"},
        role="debugger",
        target_role="rank",
    )
    assert Facts(event, around, PROCESS_ACCESS).raw[field] == text


def test_a_connection_and_a_file_have_their_fields() -> None:
    connection = Connection(TARGET, "tcp", True, "10.0.0.1", 4711, "10.0.0.2", 4444)
    raw: Any = Facts(connection, AROUND, NETWORK_CONNECTION).raw
    assert (raw["Initiated"], raw["DestinationPort"]) == ("true", "4444")
    assert (raw["Image"], raw["DestinationIp"]) == ("/usr/bin/python3.11", "10.0.0.2")
    raw = Facts(FileChange(TARGET, b"/etc/cron.d/x", "write"), AROUND, FILE_EVENT).raw
    assert (raw["TargetFilename"], raw["Change"]) == ("/etc/cron.d/x", "write")
    assert (raw["User"], raw["CommandLine"]) == ("root", "python3")
