"""What a process has made of itself: a title is told from a disguise.

In: tables of titles as real programs show them, of disguises, and any bytes whatever.
Out: no alarm for the former, one for each of the latter, and never an error.
"""

import hashlib
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.process.drift import (
    NO_FILE,
    READ_LIMIT,
    Born,
    File,
    Finding,
    Kind,
    Now,
    Program,
    Weight,
    judge,
)
from tests.strategies import comms, paths, words

KERNEL = frozenset(
    {b"kthreadd", b"kworker/0:0-events", b"ksoftirqd/0", b"irq/25-ACPI:Ged", b"kswapd0"}
    | {b"migration/0", b"kworker/R-mld", b"rcu_preempt", b"kauditd"}
)
OWN = File(4711, 8 << 20 | 1)
PYTHON, BUSYBOX = File(311, 8 << 20 | 1), File(33, 8 << 20 | 1)
NATIVE = (b"sshd", b"bash", b"nginx", b"cron", b"postgres", b"systemd-journald", b"env")
SCRIPTS = (b"ray", b"gunicorn", b"celery", b"torchrun", b"vllm")


def the_programs() -> dict[bytes, Program]:
    """What this machine has in its usual folders, by name and by path."""
    found = {name: Program(File(number, 1)) for number, name in enumerate(NATIVE, 1)}
    found[b"systemd-journal"] = found[b"systemd-journald"]  # as the kernel cuts it
    found |= {name: Program(PYTHON, b"python3") for name in SCRIPTS}
    found |= {name: Program(PYTHON) for name in (b"python3", b"python3.11")}
    found |= {b"ls": Program(BUSYBOX), b"busybox": Program(BUSYBOX)}
    return found | {b"/usr/bin/" + name: one for name, one in found.items()}


PROGRAMS = the_programs()


def argv_of(*arguments: bytes) -> bytes:
    return b"".join(one + b"\0" for one in arguments)


def born(executable: bytes, *arguments: bytes, **facts: Any) -> Born:
    argv = argv_of(*(arguments or (executable,)))
    comm = executable.rpartition(b"/")[2][:15]
    here = PROGRAMS.get(executable)
    facts = {"comm": comm, "file": here.file if here else OWN, **facts}
    return Born(executable, argv, len(argv), **facts)


def unchanged(one: Born, **facts: Any) -> Now:
    now = Now(one.comm, one.argv, one.argv_bytes, one.executable, one.file)
    if "cmdline" in facts:
        facts.setdefault("cmdline_bytes", len(facts["cmdline"] or b""))
    return msgspec.structs.replace(now, **facts)


def found(one: Born, now: Now) -> list[Finding]:
    return judge(one, now, PROGRAMS.get, KERNEL)


def kinds(one: Born, **facts: Any) -> list[Kind]:
    return [finding.kind for finding in found(one, unchanged(one, **facts))]


def is_alarm(one: Born, **facts: Any) -> bool:
    return any(kind.weight is Weight.ALARM for kind in kinds(one, **facts))


python = b"/usr/bin/python3.11"
PROGRAMS[python] = Program(PYTHON)
sshd = born(b"/usr/sbin/sshd", b"/usr/sbin/sshd", b"-D")
hidden = born(b"/tmp/x", b"/tmp/x", b"--pool", b"somewhere")
train = born(python, b"python", b"-u", b"train.py", comm=b"python")
worker = born(python, b"python", b"/opt/ray/default_worker.py")
shell = born(b"/usr/bin/dash", b"sh", b"-c", b"sleep 9", invoked=b"/bin/sh")

TITLES = [
    (sshd, b"sshd: root@pts/0"),
    (sshd, b"sshd: /usr/sbin/sshd -D [listener] 0 of 10-100 startups"),
    (born(b"/usr/lib/openssh/sshd-session"), b"sshd-session: root [priv]"),
    (born(b"/usr/lib/postgresql/15/bin/postgres"), b"postgres: writer process   "),
    (born(b"/usr/lib/postgresql/15/bin/postgres"), b"postgres: a b [local] idle"),
    (born(b"/opt/nginx/sbin/nginx"), b"nginx: master process nginx -g daemon off;"),
    (born(b"/usr/sbin/php-fpm8.2"), b"php-fpm: pool www"),
    (born(b"/usr/sbin/cron", b"/usr/sbin/cron", b"-f"), b"/usr/sbin/CRON\0-f\0"),
    (born(b"/usr/sbin/avahi-daemon"), b"avahi-daemon: running [host.local]"),
    (born(b"/usr/sbin/slurmstepd"), b"slurmstepd: [4711.batch]"),
    (born(b"/usr/lib/systemd/systemd-executor"), b"(sd-pam)"),
    (born(b"/usr/lib/systemd/systemd-executor"), b"(nginx)"),
    (born(b"/usr/bin/lxc-start"), b"[lxc monitor] /var/lib/lxc first"),
    (born(b"/usr/bin/ruby3.1", b"ruby", b"puma"), b"puma 5.6 (tcp://0.0.0.0:80) [app]"),
    (born(b"/usr/bin/perl", b"perl", b"-T", b"/usr/sbin/amavisd"), b"amavisd (master)"),
    (born(b"/usr/bin/node", b"node", b"/usr/bin/npm"), b"npm install"),
    (
        born(b"/opt/google/chrome", b"/opt/google/chrome"),
        b"/opt/google/chrome --type=gpu",
    ),
    (born(b"/usr/bin/mysql", b"mysql", b"-psecret"), b"mysql\0-pxxxxxx\0"),
    (train, b"python: pt_main_thread"),
    (train, b"train: epoch 3, rank 0"),
    (train, b"train.py rank 3"),
    (train, b"my job, rank 3"),
    (
        born(python, b"python3", b"/usr/local/bin/torchrun", b"t.py"),
        b"torchrun: agent 0",
    ),
    (worker, b"ray::IDLE"),
    (worker, b"ray::RolloutWorker.sample()"),
    (born(python, b"python", b"-m", b"vllm.entrypoints"), b"VLLM::EngineCore"),
    (born(python, b"python", b"serve.py"), b"sglang::scheduler_TP0"),
    (
        born(python, b"python3", b"/opt/v/bin/gunicorn", b"a:b"),
        b"gunicorn: worker [a:b]",
    ),
    (born(python, b"python3", b"-m", b"celery"), b"[celeryd: c@host:ForkPoolWorker-1]"),
    (born(python, b"python3", b"-m", b"celery"), b"[celeryd: c@h:Main] -active- (w)"),
    (born(python, b"python3", b"/opt/bin/dask"), b"dask worker [tcp://10.0.0.1:1234]"),
    (born(python, b"python3", b"-m", b"wandb"), b"wandb-service(2-4711-s-40000)"),
]
IDS = [title.decode() for _, title in TITLES]

DISGUISES = [
    (hidden, b"sshd: root@pts/0"),
    (hidden, b" sshd"),
    (hidden, b"-bash"),
    (hidden, b"/usr/bin/sshd -D"),
    (hidden, b"/usr/sbin/nginx: worker"),
    (hidden, b"./postgres"),
    (hidden, b"python3\0train.py\0"),
    (hidden, b"gunicorn: worker [app]"),
    (hidden, b"ray::IDLE"),
    (train, b"sshd: root@pts/0"),
    (train, b"bash"),
    (born(b"/tmp/nginx"), b"/usr/bin/nginx"),
]
KERNEL_TITLES = [
    *(b"[kworker/0:1]", b"[kworker/7:3-events]", b" [ksoftirqd/0] ", b"[anything]"),
    *(b"kworker/u8:2", b"kthreadd", b"[kworker/0:1 events]", b"[kauditd] --pool x"),
]


def test_what_did_not_change_is_unchanged() -> None:
    for one in (sshd, hidden, train, worker, shell):
        assert kinds(one) == [Kind.UNCHANGED]


@pytest.mark.parametrize(("one", "title"), TITLES, ids=IDS)
def test_the_title_of_a_real_program_is_no_alarm(one: Born, title: bytes) -> None:
    assert not is_alarm(one, cmdline=title)
    assert not is_alarm(one, cmdline=title, comm=title[:15].rstrip(b"\0"))


@pytest.mark.parametrize(("one", "title"), TITLES, ids=IDS)
def test_the_title_of_a_real_program_is_told_as_a_change(
    one: Born, title: bytes
) -> None:
    (told,) = found(one, unchanged(one, cmdline=title))
    assert told.kind in (Kind.RETITLED, Kind.ARGV_REWRITTEN)
    assert (told.was, told.now) == (one.argv, title)


@pytest.mark.parametrize(("one", "title"), DISGUISES)
def test_the_title_of_another_program_is_a_disguise(one: Born, title: bytes) -> None:
    assert kinds(one, cmdline=title) == [Kind.DISGUISED_ARGV]
    assert is_alarm(one, cmdline=title)


@pytest.mark.parametrize("title", KERNEL_TITLES)
@pytest.mark.parametrize("one", [hidden, train, sshd])
def test_the_title_of_a_kernel_thread_is_a_disguise(one: Born, title: bytes) -> None:
    assert kinds(one, cmdline=title) == [Kind.KERNEL_THREAD_LOOKALIKE]
    assert kinds(born(b"/tmp/x", title, b"-o")) == [Kind.KERNEL_THREAD_LOOKALIKE]
    assert is_alarm(one, cmdline=title)


def test_a_folder_named_like_a_kernel_thread_is_none() -> None:
    script = born(b"/srv/migration/0001_run", b"migration/0001_run")
    assert kinds(script) == [Kind.UNCHANGED]


@pytest.mark.parametrize("comm", [b"kworker/0:1", b"kworker/3:2H", b"kthreadd"])
def test_the_name_of_a_kernel_thread_is_a_disguise(comm: bytes) -> None:
    assert kinds(hidden, comm=comm) == [Kind.KERNEL_THREAD_LOOKALIKE]
    thread = {"comm": comm, "cmdline": b"", "kernel_thread": True, "has_memory": False}
    assert kinds(hidden, **thread) == [Kind.UNCHANGED]


@pytest.mark.parametrize("comm", [b"sshd", b"bash", b"systemd-journal", b"nginx: work"])
def test_the_name_of_another_program_is_a_disguise(comm: bytes) -> None:
    assert kinds(hidden, comm=comm) == [Kind.COMM_DISGUISED]
    assert is_alarm(hidden, comm=comm)


@pytest.mark.parametrize(
    ("one", "comm"),
    [
        (train, b"pt_main_thread"),
        (train, b"train.py"),
        (train, b"python3"),
        (worker, b"ray::RolloutWor"),
        (born(b"/usr/bin/tmux"), b"tmux: server"),
        (born(b"/usr/sbin/runc", comm=b"runc"), b"runc:[2:INIT]"),
        (born(b"/usr/lib/systemd/systemd-executor"), b"(sd-pam)"),
        (born(b"/opt/bin/systemd-journald", comm=b"3"), b"systemd-journal"),
        (born(b"/usr/bin/node"), b"MainThread"),
    ],
)
def test_another_name_that_is_no_other_program_s_is_a_title(
    one: Born, comm: bytes
) -> None:
    assert kinds(one, comm=comm) == [Kind.RETITLED]


@pytest.mark.parametrize("cmdline", [b"", b"\0\0\0", b"   ", b" \n\0"])
def test_an_empty_command_line_is_an_alarm(cmdline: bytes) -> None:
    assert kinds(hidden, cmdline=cmdline) == [Kind.ARGV_ERASED]
    assert is_alarm(hidden, cmdline=cmdline)
    unknown = msgspec.structs.replace(hidden, argv=b"")
    assert kinds(unknown, cmdline=cmdline) == [Kind.ARGV_ERASED]


def test_one_that_was_empty_at_exec_is_none_that_was_erased() -> None:
    assert kinds(born(b"/tmp/x", b"")) == [Kind.ARGV0_DIFFERS]
    none = msgspec.structs.replace(hidden, argv=b"", argv_bytes=0)
    assert kinds(none) == [Kind.UNCHANGED]


def test_what_has_ended_has_erased_nothing() -> None:
    ended = {"cmdline": b"", "executable": b"", "has_memory": False}
    assert kinds(hidden, **ended) == [Kind.UNCHANGED]


@pytest.mark.parametrize(
    "one",
    [
        born(b"/usr/bin/bash", b"-bash"),
        born(b"/usr/bin/busybox", b"ls", b"-l"),
        born(b"/usr/bin/dash", b"sh", invoked=b"/bin/sh"),
        born(python, b"python3", comm=b"train.py", invoked=b"/srv/train.py"),
        born(b"/usr/lib/dovecot/anvil", b"dovecot/anvil"),
    ],
)
def test_another_way_to_call_the_same_program_is_no_difference(one: Born) -> None:
    assert kinds(one) == [Kind.UNCHANGED]


def test_an_argv0_that_the_caller_chose_is_a_note() -> None:
    chosen = born(b"/usr/bin/sleep", b"sshd", b"600")
    assert kinds(chosen) == [Kind.ARGV0_DIFFERS]
    assert not is_alarm(chosen)


@pytest.mark.parametrize("size", [4096, 4095, 1, 0])
@pytest.mark.parametrize("digest", [True, False])
def test_a_beginning_of_argv_is_enough_to_compare(size: int, digest: bool) -> None:
    whole = argv_of(b"/tmp/x", b"a" * 9000)
    sha256 = hashlib.sha256(whole).digest() if digest else b""
    one = Born(b"/tmp/x", whole[:size], len(whole), b"x", OWN, sha256)
    quiet = [Kind.UNCHANGED] if size != 1 else [Kind.ARGV0_DIFFERS]
    assert kinds(one, cmdline=whole) == quiet
    other = whole[:-2] + b"b\0"
    assert (Kind.RETITLED in kinds(one, cmdline=other)) is digest
    shorter = Kind.RETITLED in kinds(one, cmdline=whole[:-9])
    assert shorter is (digest or size > 0)


def test_of_a_command_line_that_is_too_long_the_beginning_and_the_size_count() -> None:
    whole = argv_of(b"/tmp/x", b"a" * READ_LIMIT)
    one = Born(b"/tmp/x", whole[:4096], len(whole), b"x", OWN, b"?" * 32)
    read = {"cmdline": whole[:READ_LIMIT], "cmdline_bytes": len(whole)}
    assert kinds(one, **read) == [Kind.UNCHANGED]
    assert kinds(one, **{**read, "cmdline_bytes": len(whole) + 1}) == [Kind.RETITLED]
    other = b"/tmp/x\0" + b"b" * READ_LIMIT
    assert kinds(one, **{**read, "cmdline": other[:READ_LIMIT]}) == [Kind.RETITLED]


@pytest.mark.parametrize(
    ("facts", "kind"),
    [
        ({"deleted": True}, Kind.EXE_DELETED),
        ({"deleted": True, "at_path": File(9, 9)}, Kind.EXE_REPLACED),
        ({"executable": b"/usr/bin/other"}, Kind.EXE_MOVED),
    ],
)
def test_what_package_managers_do_to_an_executable_is_a_note(
    facts: dict[str, Any], kind: Kind
) -> None:
    assert kinds(sshd, **facts) == [kind]
    assert kind.weight is Weight.NOTE


def test_another_executable_without_an_exec_is_an_alarm() -> None:
    exchanged = {"executable": b"/usr/bin/nginx", "file": PROGRAMS[b"nginx"].file}
    assert kinds(hidden, **exchanged) == [Kind.EXE_EXCHANGED]
    assert is_alarm(hidden, **exchanged)
    unknown = msgspec.structs.replace(hidden, file=NO_FILE)
    assert kinds(unknown, file=OWN) == [Kind.UNCHANGED]


def test_the_end_of_a_path_is_compared_where_only_that_is_known() -> None:
    deep = born(b"deep/below/x", b"x")
    assert kinds(deep, executable=b"/a/very/deep/below/x") == [Kind.UNCHANGED]
    assert kinds(deep, executable=b"/a/below/x") == [Kind.EXE_MOVED]


def test_a_memfd_is_a_note_and_not_deleted() -> None:
    memfd = born(b"memfd:runc_cloned", b"runc", b"init", comm=b"runc", memfd=True)
    facts = {"executable": b"/memfd:runc_cloned", "deleted": True}
    assert kinds(memfd, **facts) == [Kind.MEMFD]
    assert not is_alarm(memfd, **facts)


def test_what_does_not_answer_is_told() -> None:
    silent = unchanged(hidden, cmdline=None, unanswered=("cmdline",))
    (told,) = found(hidden, silent)
    assert (told.kind, told.weight) == (Kind.UNREADABLE, Weight.NOTE)
    assert "cmdline" in told.why


files = st.sampled_from([NO_FILE, OWN, PYTHON, File(1, 1)])
tables = st.dictionaries(words(), st.builds(Program, files, words()), max_size=3)
borns = st.builds(
    Born,
    executable=paths | words(),
    argv=st.binary(max_size=60) | st.lists(words()).map(lambda all_: argv_of(*all_)),
    argv_bytes=st.integers(0, 100),
    comm=comms | st.binary(max_size=16),
    file=files,
    argv_sha256=st.sampled_from([b"", b"?" * 32]),
    invoked=words(),
    interpreter=words(),
    memfd=st.booleans(),
)
nows = st.builds(
    Now,
    comm=comms | st.binary(max_size=16),
    cmdline=st.none() | st.binary(max_size=60),
    cmdline_bytes=st.integers(0, 100),
    executable=paths | words(),
    file=files,
    at_path=st.none() | files,
    deleted=st.booleans(),
    kernel_thread=st.booleans(),
    has_memory=st.booleans(),
    unanswered=st.sampled_from([(), ("cmdline",), ("cmdline", "exe")]),
)


@given(borns, nows, tables, st.frozensets(words(), max_size=3))
def test_any_bytes_whatever_give_findings(
    one: Born, now: Now, table: dict[bytes, Program], kernel: frozenset[bytes]
) -> None:
    told = judge(one, now, table.get, kernel)
    assert told
    assert [each.kind for each in told].count(Kind.UNCHANGED) in (0, len(told))
    assert all(len(each.was) <= 256 and len(each.now) <= 256 for each in told)


@given(borns, tables)
def test_what_is_as_it_was_executed_is_no_alarm_but_for_the_kernel_s_names(
    one: Born, table: dict[bytes, Program]
) -> None:
    one = msgspec.structs.replace(one, argv_bytes=len(one.argv))
    told = judge(one, unchanged(one), table.get, frozenset())
    alarms = {each.kind for each in told if each.weight is Weight.ALARM}
    assert alarms <= {Kind.KERNEL_THREAD_LOOKALIKE}
    if b"[" not in one.argv + one.comm:
        assert not alarms


@given(st.binary(max_size=40), st.sampled_from([hidden, train, sshd, worker]))
def test_every_change_of_argv_is_told(cmdline: bytes, one: Born) -> None:
    if cmdline != one.argv:
        assert kinds(one, cmdline=cmdline) != [Kind.UNCHANGED]
