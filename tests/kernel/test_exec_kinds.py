"""Every way to become another program gives one record that says which way it was.

In: programs that execute others by script, descriptor, memory file, thread, chroot,
set-user-id and namespaces. Out: the record's executable, credentials and namespaces
against /proc and stat(2) of the same process. A name alone is never believed.
"""

import os
from pathlib import Path

import pytest

pytestmark = pytest.mark.kernel

NOBODY = 65534
OTHERS = {"user": NOBODY, "group": NOBODY, "extra_groups": []}


def namespaces(pid):
    kinds = ["pid", "mnt", "net", "user", "uts", "ipc", "cgroup", "time"]
    links = {kind: str(Path(f"/proc/{pid}/ns/{kind}").readlink()) for kind in kinds}
    return {kind: int(link.split("[")[1][:-1]) for kind, link in links.items()}


def script(path, text):
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def test_a_script_has_the_arguments_that_proc_shows_and_names_its_interpreter(
    agent, trigger, place
):
    path = script(place / "script", "#!/bin/sh -e\nread line\n")
    with trigger.hold([path, "one", ""]) as held:
        cmdline = held.proc("cmdline")
        record = agent.one(action="exec", pid=held.pid)
    record.assert_argv(cmdline.split(b"\0")[:-1])
    assert record["process.args"] == ["/bin/sh", "-e", path, "one", ""]
    assert record["ir.exec.path"] == path
    assert record["ir.exec.interpreter"] == "/bin/sh"
    assert record["process.executable"] == os.path.realpath("/bin/sh")


def test_a_script_whose_interpreter_is_a_script_is_followed_to_the_end(
    agent, trigger, place
):
    inner = script(place / "inner", "#!/bin/sh\nread line\n")
    path = script(place / "outer", f"#!{inner}\n")
    with trigger.hold([path, "one"]) as held:
        record = agent.one(action="exec", pid=held.pid)
        record.assert_argv(held.proc("cmdline").split(b"\0")[:-1])
    assert record["process.args"] == ["/bin/sh", inner, path, "one"]
    assert record["process.executable"] == os.path.realpath("/bin/sh")


def test_a_program_that_is_no_script_has_no_interpreter(agent, trigger):
    ran = trigger.run([trigger.path("report")])
    record = agent.one(action="exec", pid=ran.pid)
    assert record.get("ir.exec.interpreter") is None


@pytest.mark.parametrize("shell", ["/bin/dash", "/bin/bash"])
def test_a_script_without_an_interpreter_line_is_a_failed_exec_and_then_its_shell(
    agent, trigger, place, shell
):
    path = script(place / "bare", ": nothing\n")
    trigger.run([shell, "-c", f"{path} one; exit 0"])
    failed = agent.one(action="exec-failed", error="ENOEXEC")
    assert failed["process.args"] == [path, "one"]
    assert failed["ir.exec.path"] == path
    assert failed["process.executable"] == os.path.realpath(shell)
    # dash executes a new shell for it; bash reads it in the process that failed.
    after = [
        record
        for record in agent.records(action="exec", pid=failed["process.pid"])
        if record["event.sequence"] > failed["event.sequence"]
    ]
    assert len(after) == (1 if shell == "/bin/dash" else 0)
    for record in after:
        assert record["process.entity_id"] == failed["process.entity_id"]
        assert record["process.args"][1:] == [path, "one"]
    ends = agent.records(action="exit", entity=failed["process.entity_id"])
    assert [end["process.exit_code"] for end in ends] == [0]


def test_a_program_executed_by_descriptor_keeps_its_path(agent, trigger):
    program = trigger.path("report")
    ran = trigger("exec_by_descriptor", program, "one")
    record = agent.one(action="exec", pid=ran.pid, executable=program)
    record.assert_argv(ran.reported)
    assert record["ir.exec.path"].startswith("/dev/fd/")
    assert record["ir.exe.memfd"] is False


def test_a_program_in_anonymous_memory_is_named_as_such(agent, trigger):
    ran = trigger("exec_memfd", trigger.path("report"), "hidden", "one")
    record = agent.one(action="exec", pid=ran.pid, executable="memfd:hidden")
    record.assert_argv([b"hidden", b"one"])
    assert record["ir.exe.memfd"] is True


@pytest.mark.parametrize("name", ["x", "memfd:x"])
def test_a_file_named_like_anonymous_memory_is_not_taken_for_it(
    agent, trigger, place, name
):
    os.link(trigger.path("report"), place / name)
    ran = trigger.run([str(place / name)])
    record = agent.one(action="exec", pid=ran.pid)
    assert record["process.executable"] == str(place / name)
    assert record["ir.exe.memfd"] is False


def test_a_deleted_program_keeps_its_path_and_is_said_to_be_deleted(
    agent, trigger, place
):
    program = place / "gone"
    program.write_bytes(Path(trigger.path("report")).read_bytes())
    program.chmod(0o755)
    ran = trigger("exec_deleted", program, "one")
    record = agent.one(action="exec", pid=ran.pid, executable=str(program))
    record.assert_argv(ran.reported)
    assert record["ir.exe.deleted"] is True
    assert record["ir.exe.nlink"] == 0


def test_a_deleted_name_of_a_file_with_another_name_is_said_to_be_deleted(
    agent, trigger, place
):
    os.link(trigger.path("report"), place / "gone")
    ran = trigger("exec_deleted", place / "gone", "one")
    record = agent.one(action="exec", pid=ran.pid, executable=str(place / "gone"))
    assert record["ir.exe.deleted"] is True
    assert record["ir.exe.nlink"] == 1


def test_the_executable_is_the_inode_that_stat_shows(agent, trigger, place):
    program = place / "copy"
    program.write_bytes(Path(trigger.path("report")).read_bytes())
    program.chmod(0o751)
    os.chown(program, 4321, 0)
    os.link(program, place / "second-name")
    ran = trigger.run([str(program)])
    facts = program.stat()
    exe = agent.one(action="exec", pid=ran.pid)["ir.exe"]
    assert exe["inode"] in (facts.st_ino, str(facts.st_ino))
    assert exe["device"] == f"{os.major(facts.st_dev)}:{os.minor(facts.st_dev)}"
    assert exe["nlink"] == 2
    assert int(exe["mode"], 8) & 0o7777 == 0o751
    assert int(exe["uid"]) == 4321
    assert exe["deleted"] is False
    assert exe["memfd"] is False


def test_a_symlink_gives_the_file_it_leads_to_and_the_path_as_invoked(
    agent, trigger, place
):
    (place / "link").symlink_to(trigger.path("report"))
    ran = trigger.run([str(place / "link")])
    record = agent.one(action="exec", pid=ran.pid)
    assert record["process.executable"] == trigger.path("report")
    assert record["ir.exec.path"] == str(place / "link")


def test_a_static_program_has_its_argv(agent, trigger):
    ran = trigger("report_static", "a", "")
    record = agent.one(action="exec", pid=ran.pid)
    record.assert_argv(ran.reported)
    assert record["ir.exec.compat"] is False


def test_a_32_bit_program_is_said_to_be_one(agent, trigger):
    ran = trigger("report_32", "a", "", "x" * 5_000)
    record = agent.one(action="exec", pid=ran.pid)
    record.assert_argv(ran.reported)
    assert record["ir.exec.compat"] is True


def test_an_exec_by_a_thread_is_one_of_its_process(agent, trigger):
    program = trigger.path("report")
    ran = trigger("exec_from_thread", program, "one")
    before = agent.one(
        action="exec", pid=ran.pid, executable=trigger.path("exec_from_thread")
    )
    record = agent.one(action="exec", pid=ran.pid, executable=program)
    assert ran.facts["tid"] != ran.pid
    record.assert_argv(ran.reported)
    assert record["ir.exec.non_leader"] is True
    assert before["ir.exec.non_leader"] is False
    assert record["process.entity_id"] == before["process.entity_id"]
    assert agent.one(action="exit", pid=ran.pid)["process.exit_code"] == 0


def test_credentials_namespaces_and_cgroup_are_those_of_proc(agent, trigger):
    with trigger.hold([trigger.path("report")]) as held:
        record = agent.one(action="exec", pid=held.pid)
        words = {
            "effective": "CapEff",
            "permitted": "CapPrm",
            "inheritable": "CapInh",
            "bounding": "CapBnd",
            "ambient": "CapAmb",
        }
        for name, key in words.items():
            assert record.told(f"ir.caps.{name}") == held.status(key)[0], name
        for name, inode in namespaces(held.pid).items():
            assert record.told(f"ir.ns.{name}") == inode, name
        groups = held.proc("cgroup").decode().splitlines()
    path = next(line[3:] for line in groups if line.startswith("0::"))
    mounts = Path("/proc/mounts").read_text().splitlines()
    root = next(line.split()[1] for line in mounts if line.split()[2] == "cgroup2")
    inode = Path(root, path.lstrip("/")).stat().st_ino
    assert record["ir.cgroup.id"] in (inode, str(inode))


def test_an_unprivileged_program_has_its_user_in_every_place(agent, trigger):
    ran = trigger.run([trigger.path("report")], **OTHERS)
    record = agent.one(action="exec", pid=ran.pid)
    for name in ("user", "real_user", "saved_user"):
        assert record.told(f"process.{name}.id") == str(NOBODY)
    for name in ("group", "real_group", "saved_group"):
        assert record.told(f"process.{name}.id") == str(NOBODY)
    assert record.told("ir.caps.effective") == "0" * 16


@pytest.mark.parametrize("owner", [0, 4321])
def test_a_set_user_id_program_has_the_owner_as_effective_user(
    agent, trigger, place, owner
):
    program = place / "setuid"
    program.write_bytes(Path(trigger.path("report")).read_bytes())
    os.chown(program, owner, 0)
    program.chmod(0o4755)
    with trigger.hold([str(program)], **OTHERS) as held:
        record = agent.one(action="exec", pid=held.pid)
        uids = held.status("Uid")[:3]
        effective = held.status("CapEff")[0]
    assert uids == [str(NOBODY), str(owner), str(owner)]
    assert record.told("process.real_user.id") == str(NOBODY)
    assert record["process.user.id"] == str(owner)
    assert record.told("process.saved_user.id") == str(owner)
    assert record.told("ir.caps.effective") == effective
    assert int(record["ir.exe.mode"], 8) & 0o7777 == 0o4755


def test_a_set_group_id_program_has_its_group_as_effective_group(agent, trigger, place):
    program = place / "setgid"
    program.write_bytes(Path(trigger.path("report")).read_bytes())
    os.chown(program, 0, 4321)
    program.chmod(0o2755)
    ran = trigger.run([str(program)], **OTHERS)
    record = agent.one(action="exec", pid=ran.pid)
    assert record.told("process.real_group.id") == str(NOBODY)
    assert record["process.group.id"] == record.told("process.saved_group.id") == "4321"


def test_a_program_in_new_namespaces_has_both_of_its_pids(agent, trigger):
    argv = [trigger.path("exec_in_namespaces"), trigger.path("report"), "one"]
    with trigger.hold(argv, told=True) as held:
        child = held.facts["child"]
        agent.wait(action="exec", pid=child)
        record = agent.one(action="exec", pid=child)
        inside = namespaces(child)
        record.assert_argv(
            Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")[:-1]
        )
    assert record["process.vpid"] == 1
    assert record["process.parent.pid"] == held.pid
    for name, inode in inside.items():
        assert record.told(f"ir.ns.{name}") == inode, name
    assert record["ir.ns"]["pid"] != namespaces(os.getpid())["pid"]
    assert record["ir.ns"]["mnt"] != namespaces(os.getpid())["mnt"]
    assert record["process.executable"] == trigger.path("report")


def test_a_program_in_a_chroot_is_named_by_where_it_really_is(agent, trigger, place):
    program = place / "program"
    os.link(trigger.path("report_static"), program)
    ran = trigger("exec_in_chroot", place, "/program", "one")
    record = agent.one(action="exec", pid=ran.pid, executable=str(program))
    record.assert_argv([b"/program", b"one"])
    assert record["ir.exec.path"] == "/program"
    assert record["process.working_directory"] == str(place)


def test_the_process_is_the_same_one_before_and_after_exec(agent, trigger):
    ran = trigger.run(["/bin/sh", "-c", f"exec {trigger.path('report')}"])
    records = agent.find(pid=ran.pid)
    actions = [record["event.action"] for record in records]
    assert actions == ["fork", "exec", "exec", "exit"]
    assert len({record["process.entity_id"] for record in records}) == 1
    assert len({record["process.start"] for record in records}) == 1


def test_session_and_process_group_are_those_of_proc(agent, trigger):
    with trigger.hold([trigger.path("report")], start_new_session=True) as held:
        record = agent.one(action="exec", pid=held.pid)
        stat = held.proc("stat").decode().rpartition(")")[2].split()
    pgid, session = int(stat[2]), int(stat[3])
    assert pgid == session == held.pid
    assert record["process.session_leader.pid"] == session
