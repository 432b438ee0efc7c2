"""Nothing of the agent is for x86 only: arm64 kernels have all that it asks for.

The kernels are those of vmlinux-*.btf: parts of the type information of real ones.
"""

import hashlib
import os
import re

import pytest

from agent.errors import LoadError
from agent.sensor import compiler, headers
from agent.sensor.btf import FUNC, STRUCT, Btf
from agent.sensor.hooks import Hook, How
from agent.sensor.sources import BY_FUNCTION, Variant
from tests.arm64.make_fixture import (
    FOLDER,
    HOOKS,
    MACHINE,
    MEMBERS,
    NEWEST,
    VARIANTS,
    places,
    required,
)

AGAIN = "the tables have grown: python -m tests.arm64.make_fixture"
PLACED = [hook for hook in HOOKS if hook.how is not How.TEST_RUN]
X86_MEMBERS = re.compile(r"(?:orig_)?[abcd]x|[sd]i|[bi]p|r(?:8|9|1[0-5])|[cs]s")
NEWER: frozenset[str] = frozenset()
"""Optional members that kernels after these have got: not known to be of x86."""


def recorded(version: str) -> dict[str, list[str]]:
    """What the text beside a fixture says of it."""
    said: dict[str, list[str]] = {}
    for line in (FOLDER / f"vmlinux-{version}.txt").read_text().splitlines():
        key, separator, value = line.partition(": ")
        if separator:
            said.setdefault(key, []).append(value)
    return said


def type_information(version: str) -> Btf:
    return Btf((FOLDER / f"vmlinux-{version}.btf").read_bytes())


@pytest.fixture(scope="module", params=NEWEST)
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def kernel(version: str) -> Btf:
    return type_information(version)


def absent(btf: Btf) -> set[str]:
    """The optional members that a kernel lacks."""
    texts = [headers.generate(btf, variant, MACHINE) for variant in VARIANTS]
    return set(re.findall(r"^#define NO_(\w+) 1$", "".join(texts), re.MULTILINE))


def test_a_fixture_is_the_one_that_was_compared_with_its_whole(version: str) -> None:
    raw = (FOLDER / f"vmlinux-{version}.btf").read_bytes()
    assert recorded(version)["part-sha256"] == [hashlib.sha256(raw).hexdigest()]
    assert recorded(version)["part-bytes"] == [str(len(raw))]
    assert len(raw) < 128 * 1024


def test_the_kernel_is_one_of_arm64(kernel: Btf) -> None:
    _, registers = kernel.struct("pt_regs")
    assert registers["regs"].offset == registers["user_regs"].offset == 0
    assert kernel.array_length(registers["regs"].type_id) == 31
    assert not registers.keys() & {"ax", "di", "orig_ax"}
    assert kernel.find(FUNC, "__arm64_sys_ptrace")
    assert kernel.find(FUNC, "__x64_sys_ptrace") is None


def test_all_that_is_asked_for_is_there_or_known_to_be_absent(
    version: str, kernel: Btf
) -> None:
    lacking = {name for kind, name in required() if not kernel.find(kind, name)}
    assert lacking == set(recorded(version).get("absent", ())), AGAIN


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda one: one.name)
def test_every_member_is_found(kernel: Btf, variant: Variant) -> None:
    text, lacking = headers.generate(kernel, variant, MACHINE), absent(kernel)
    for name, wanted in headers.members(variant, MACHINE).items():
        placed = re.findall(rf"__builtin_offsetof\(struct {name}, (\w+)\) ==", text)
        names = {one.rstrip("?").partition("|")[0] for one in wanted}
        missing = {m for m in names if f"{name}_{m}" in lacking}
        assert names - missing <= set(placed), name


def test_no_optional_member_is_one_of_x86() -> None:
    """One that no kernel of arm64 has may be an x86 one that is silently left out."""
    kernels = [type_information(version) for version in NEWEST]
    assert set.intersection(*map(absent, kernels)) <= NEWER


def test_no_member_is_named_as_a_register_of_x86() -> None:
    for name, wanted in MEMBERS.items():
        names = [one for each in wanted for one in each.rstrip("?").split("|")]
        assert [one for one in names if X86_MEMBERS.fullmatch(one)] == [], name


def test_a_member_of_x86_alone_is_refused_by_its_name(
    kernel: Btf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(headers.REGISTERS, MACHINE, headers.REGISTERS["x86_64"])
    with pytest.raises(LoadError, match="no member di in pt_regs"):
        headers.generate(kernel, BY_FUNCTION, MACHINE)


@pytest.mark.parametrize("name", MEMBERS)
def test_members_not_asked_for_yet_can_be_laid_out_too(kernel: Btf, name: str) -> None:
    assert kernel.find(STRUCT, name), AGAIN
    size, members = kernel.struct(name)
    assert members
    for member in members.values():
        declaration, inner = kernel.declare(member.type_id, frozenset(MEMBERS))
        assert member.offset + inner <= size
        assert declaration.count("%s") == 1


@pytest.mark.parametrize("hook", PLACED, ids=lambda hook: f"{hook.how}-{hook.target}")
def test_every_hook_has_its_place(kernel: Btf, hook: Hook) -> None:
    there = [place for place in places(hook.target) if kernel.find(*place)]
    assert there or hook.optional, AGAIN


def test_calls_made_the_32_bit_way_have_their_place_too(kernel: Btf) -> None:
    compat = {hook for hook in PLACED if hook.target.startswith("compat:")}
    found = {
        hook.program
        for hook in compat
        if any(kernel.find(*place) for place in places(hook.target))
    }
    assert found == {hook.program for hook in compat}, AGAIN


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda one: one.name)
def test_the_probes_compile_as_on_an_arm64_machine(
    kernel: Btf, variant: Variant, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("bcc", reason="comes from the distribution")
    if os.geteuid() != 0:
        pytest.skip("bcc creates the maps while it compiles")
    # bcc's word for the machine to compile for: registers and calls are that one's
    monkeypatch.setenv("ARCH", "arm64")
    text = compiler.probe_text(kernel, variant, MACHINE)
    built = compiler.compile_text(text)
    wanted = {hook.program for hook in HOOKS if variant in hook.variants}
    assert built.programs.keys() >= wanted
