"""The header that is made for one kernel: complete, in order, and true."""

import ctypes
import os
import re
import subprocess  # noqa: TID251 - runs the compiler
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.errors import LoadError
from agent.sensor import headers
from agent.sensor.btf import FORWARD, VMLINUX, Btf
from agent.sensor.sources import (
    BIRTHS_PLAIN,
    BY_FUNCTION,
    BY_KPROBE,
    BY_TRACEPOINT,
    Variant,
)
from tests.btf_blob import Blob, a_kernel, wanted

VARIANTS = [BIRTHS_PLAIN, BY_FUNCTION, BY_KPROBE, BY_TRACEPOINT]
PATTERN = r"IR_ENV_WANTED\(w\)"


def text_of(
    blob: Blob, variant: Variant = BY_TRACEPOINT, machine: str = "x86_64"
) -> str:
    return headers.generate(Btf(blob.bytes()), variant, machine)


def defined(text: str, name: str) -> str:
    """What a `#define` of the text says."""
    found = re.search(rf"^#define {name} (.*)$", text, re.MULTILINE)
    assert found is not None
    return found[1]


def compiled(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Check the text by a real compiler, with the stub tree as its only includes."""
    headers.write_tree(folder)
    source = folder / "generated.c"
    source.write_text(f"#include <linux/types.h>\n{text}")
    command = ["cc", "-fsyntax-only", "-nostdinc", f"-I{folder}/include", source]
    return subprocess.run(command, check=False, capture_output=True, text=True)


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda one: one.name)
def test_the_running_kernel_s_header_compiles_and_its_assertions_hold(
    tmp_path: Path, variant: Variant
) -> None:
    if not VMLINUX.exists():
        pytest.skip("this kernel was built without BTF")
    text = headers.generate(Btf.of_kernel(), variant)
    read = headers.members(variant, os.uname().machine)
    members = sum(len(set(wanted(name, read))) for name in read)
    absent = len(re.findall(r"^#define NO_", text, re.MULTILINE))
    assert text.count("_Static_assert(__builtin_offsetof") >= members - absent
    done = compiled(text, tmp_path)
    assert done.returncode == 0, done.stderr


def test_an_offset_that_is_not_the_kernel_s_does_not_compile(tmp_path: Path) -> None:
    text = text_of(a_kernel())
    assert '"upid.nr"' not in compiled(text, tmp_path).stderr
    moved = text.replace("struct upid { u64 nr;", "struct upid { u64 first; u64 nr;")
    assert moved != text
    assert '"upid.nr"' in compiled(moved, tmp_path).stderr


@pytest.mark.parametrize(
    ("struct", "member"),
    [("task_struct", "tgid"), ("cred", "cap_ambient"), ("xa_node", "slots")],
)
def test_a_missing_member_is_named(struct: str, member: str) -> None:
    with pytest.raises(LoadError, match=f"no member {member} in {struct}"):
        text_of(a_kernel(without={struct: [member]}))


def test_a_missing_struct_is_named() -> None:
    with pytest.raises(LoadError, match="no struct kernfs_node"):
        text_of(a_kernel(without={"kernfs_node": ["kernfs_node"]}))


def test_an_optional_member_may_be_absent_and_the_probes_are_told() -> None:
    assert "NO_nsproxy_time_ns" not in text_of(a_kernel())
    text = text_of(a_kernel(without={"nsproxy": ["time_ns"]}))
    assert defined(text, "NO_nsproxy_time_ns") == "1"


@pytest.mark.parametrize(
    ("struct", "needed_by"),
    [
        ("pt_regs", {"calls-function", "calls-kprobe"}),
        ("trace_event_raw_sys_exit", {"calls-tracepoint"}),
        ("filename", {"calls-function"}),
        ("files_struct", {"calls-function", "calls-kprobe", "calls-tracepoint"}),
        ("cred", {one.name for one in VARIANTS}),
    ],
)
def test_what_a_kernel_lacks_takes_down_only_the_variants_that_read_it(
    struct: str, needed_by: set[str]
) -> None:
    refused = set()
    for variant in VARIANTS:
        try:
            text_of(a_kernel(without={struct: [struct]}), variant)
        except LoadError:
            refused.add(variant.name)
    assert refused == needed_by


def test_a_machine_without_known_registers_is_refused_by_its_name() -> None:
    with pytest.raises(LoadError, match="no registers of riscv64"):
        text_of(a_kernel(), machine="riscv64")


@pytest.mark.parametrize(
    ("machine", "first", "compat"),
    [("x86_64", "di", "bx"), ("aarch64", "regs[0]", "regs[0]")],
)
def test_the_registers_of_a_call_are_those_of_the_machine(
    machine: str, first: str, compat: str
) -> None:
    blob = a_kernel(without={"pt_regs": ["pt_regs"]} if machine == "aarch64" else None)
    if machine == "aarch64":
        blob.compound("pt_regs", 64, [("regs", blob.array(1, 8), 0)])
    text = text_of(blob, BY_FUNCTION, machine)
    assert f"PROBE((call).args[0], from, {first});" in defined(
        text, r"IR_CALL_ARGS\(call, from\)"
    )
    said = defined(text, r"IR_COMPAT_ARGS\(call, from\)")
    assert f"PROBE((call).args[0], from, {compat});" in said
    assert said.count("(u32)") == 4  # the upper halves are whatever was there


def test_a_kernel_that_hides_the_caller_s_registers_has_them_read_off_the_stack() -> (
    None
):
    plain, hiding = a_kernel(), a_kernel()
    forward = hiding.pointer(hiding.add(FORWARD, "pt_regs", 0))
    hiding.function_of("__x64_sys_execveat", forward)
    name = r"IR_CALLER\(ctx\)"
    assert defined(text_of(plain, BY_FUNCTION), name) == (
        "((struct pt_regs *)(ctx)[0])"
    )
    assert ", stack);" in defined(text_of(hiding, BY_FUNCTION), name)


def test_a_renamed_member_has_its_first_name_in_the_probes() -> None:
    text = text_of(a_kernel(renamed={"start_boottime": "real_start_time"}))
    assert "u64 start_boottime;" in text
    assert "real_start_time" not in text


def test_a_bit_field_is_refused_by_its_name() -> None:
    blob = Blob()
    word = blob.int_("unsigned int", 4)
    task = [(name, word, 32 * at) for at, name in enumerate(wanted("task_struct"))]
    task[1] = (task[1][0], word, 1 << 24 | 32)
    blob.compound("task_struct", 4 * len(task), task, bit_fields=True)
    with pytest.raises(LoadError, match=f"task_struct.{task[1][0]} is a bit field"):
        text_of(blob)


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda one: one.name)
def test_a_struct_is_defined_before_it_is_embedded(variant: Variant) -> None:
    if not VMLINUX.exists():
        pytest.skip("this kernel was built without BTF")
    text = headers.generate(Btf.of_kernel(), variant)
    definitions = re.finditer(r"^struct (\w+) \{", text, re.MULTILINE)
    place = {found[1]: found.start() for found in definitions}
    assert set(place) == set(headers.members(variant, os.uname().machine))
    embedded = 0
    for found in re.finditer(r"^struct (\w+) \{ (.*) \};$", text, re.MULTILINE):
        for inner in re.findall(r"struct (\w+) \w", found[2]):
            embedded += 1
            assert place[inner] < place[found[1]], f"{inner} in {found[1]}"
    assert embedded > 5


def test_gaps_between_members_are_spelled_out() -> None:
    blob = a_kernel(without={"upid": ["upid"]})
    word = 1  # the first type of that kernel
    blob.compound("upid", 64, [("nr", word, 16 * 8), ("ns", word, 32 * 8)])
    body = "char _pad0[16]; u64 nr; char _pad24[8]; u64 ns; char _pad40[24];"
    assert f"struct upid {{ {body} }};" in text_of(blob)


@pytest.mark.parametrize(("parameters", "asks_the_kernel"), [(2, False), (3, True)])
def test_who_says_that_a_group_is_dead_depends_on_the_tracepoint(
    parameters: int, asks_the_kernel: bool
) -> None:
    text = text_of(a_kernel(exit_parameters=parameters))
    line = re.search(r"^#define IR_GROUP_DEAD.*$", text, re.MULTILINE)
    assert line is not None
    assert ("group_dead(t)" in line[0]) != asks_the_kernel


@pytest.fixture(scope="module")
def wants(tmp_path_factory: pytest.TempPathFactory) -> Callable[[bytes], bool]:
    """The generated condition, compiled: does a variable leave the kernel?"""
    folder = tmp_path_factory.mktemp("condition")
    line = f"#define IR_ENV_WANTED(w) {defined(text_of(a_kernel()), PATTERN)}"
    body = "int wanted(unsigned long long w) { return !!IR_ENV_WANTED(w); }"
    (folder / "wanted.c").write_text(f"{line}\n{body}\n")
    library = folder / "wanted.so"
    command = ["cc", "-shared", "-fPIC", "-o", library, folder / "wanted.c"]
    subprocess.run(command, check=True)
    function = ctypes.CDLL(str(library)).wanted
    function.argtypes = (ctypes.c_uint64,)

    def wanted_(variable: bytes) -> bool:
        # the probe's buffer holds NUL after a shorter variable
        word = variable[:8].ljust(8, b"\0")
        return bool(function(int.from_bytes(word, "little")))

    return wanted_


@pytest.mark.parametrize("name", headers.ENVIRONMENT)
@given(value=st.binary(max_size=20))
def test_every_wanted_variable_leaves_the_kernel(
    wants: Callable[[bytes], bool], name: str, value: bytes
) -> None:
    assert wants(name.encode() + b"=" + value)


@pytest.mark.parametrize(
    "other",
    [b"PATH=/bin", b"HOME=/", b"RANKING=1", b"AWS_SECRET_ACCESS_KEY=x", b"RANK", b""],
)
def test_other_variables_stay_in_the_kernel(
    wants: Callable[[bytes], bool], other: bytes
) -> None:
    assert not wants(other)
