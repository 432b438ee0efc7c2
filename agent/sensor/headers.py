"""Everything bcc includes: a stub header tree and one header made from BTF.

In: the kernel's BTF and a variant of the probes. Out: the text of the generated header,
and a folder that bcc takes for kernel headers. A member that the probes need and this
kernel lacks is a LoadError that names it; kernel headers are never needed on the node.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from agent.errors import LoadError
from agent.sensor.btf import FUNC, Btf
from agent.sensor.sources import BY_FUNCTION, Variant

ENVIRONMENT = (
    "LD_PRELOAD",
    "LD_AUDIT",
    "LD_LIBRARY_PATH",
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
    "SLURM_JOB_ID",
    "PYTHONPATH",
    "CUDA_INJECTION64_PATH",
)
"""The environment variables that leave the kernel: roles and injection need them."""


class Registers(NamedTuple):
    """Members of struct pt_regs.

    The arguments of a system call and of one made the 32-bit way, the first of a
    function, and what a function returned.
    """

    call: tuple[str, ...]
    compat: tuple[str, ...]
    parameter: str
    returned: str


_X86 = Registers(("di", "si", "dx", "r10"), ("bx", "cx", "dx", "si"), "di", "ax")
_ARM_64 = Registers(
    ("regs[0]", "regs[1]", "regs[2]", "regs[3]"),
    ("regs[0]", "regs[1]", "regs[2]", "regs[3]"),
    "regs[0]",
    "regs[0]",
)
_X86_STACK = 16384
"""THREAD_SIZE; older type information does not say."""
REGISTERS = {"x86_64": _X86, "aarch64": _ARM_64}
"""By what os.uname().machine says; the one table of registers."""

PREEMPT_DISABLE, PREEMPT_ENABLE = 0x7F01, 0x7F02
"""Numbers of no helper, in the place of calls that the loader fills in."""

# 'a|b' is one member that was renamed, under its first name; a trailing '?' makes it
# optional, with NO_<struct>_<member> defined where it is absent.
COMMON: dict[str, tuple[str, ...]] = {
    "task_struct": (
        *("tgid", "pid", "group_leader", "real_parent", "parent"),
        *("start_boottime|real_start_time", "signal", "thread_pid", "pid_links"),
        *("loginuid", "sessionid", "ptrace", "comm", "real_cred", "nsproxy"),
        *("cgroups", "mm", "fs", "files", "sighand", "exit_code", "tasks", "flags"),
    ),
    "list_head": ("next",),
    "signal_struct": ("pids", "flags", "group_exit_code", "live"),
    "pid": ("level", "tasks", "numbers"),
    "upid": ("nr", "ns"),
    "hlist_head": ("first",),
    "pid_namespace": ("idr", "ns"),
    "idr": ("idr_rt",),
    "xarray": ("xa_head",),
    "xa_node": ("shift", "slots"),
    "ns_common": ("inum",),
    "nsproxy": (
        "uts_ns",
        "ipc_ns",
        "mnt_ns",
        "net_ns",
        "cgroup_ns",
        "time_ns?",
    ),
    "uts_namespace": ("ns",),
    "ipc_namespace": ("ns",),
    "mnt_namespace": ("ns",),
    "net": ("ns",),
    "cgroup_namespace": ("ns",),
    "user_namespace": ("ns",),
    "time_namespace": ("ns",),
    "cred": (
        *("uid", "gid", "suid", "sgid", "euid", "egid", "fsuid", "fsgid"),
        *("cap_inheritable", "cap_permitted", "cap_effective", "cap_bset"),
        *("cap_ambient", "user_ns"),
    ),
    "css_set": ("dfl_cgrp",),
    "cgroup": ("kn",),
    "kernfs_node": ("id",),
    "mm_struct": (
        "exe_file",
        "arg_start",
        "arg_end",
        "env_start",
        "env_end",
        "task_size",
    ),
    "linux_binprm": ("filename", "interp", "argc", "envc"),
    "file": ("f_inode", "f_path"),
    "path": ("mnt", "dentry"),
    "inode": ("i_ino", "i_nlink", "i_uid", "i_mode", "i_sb"),
    "super_block": ("s_dev",),
    "dentry": ("d_parent", "d_name", "d_hash"),
    "qstr": ("name",),
    "hlist_bl_node": ("pprev",),
    "vfsmount": ("mnt_root",),
    "mount": ("mnt", "mnt_parent", "mnt_mountpoint"),
    "fs_struct": ("pwd",),
    "bpf_iter_meta": ("seq",),
    "bpf_iter__task": ("meta", "task"),
}
CALLS: dict[str, tuple[str, ...]] = {
    "file": ("private_data", "f_flags"),
    "inode": ("i_private",),
    "super_block": ("s_magic",),
    "dentry": ("d_inode",),
    "files_struct": ("fdt",),
    "fdtable": ("max_fds", "fd"),
    "proc_inode": ("pid", "vfs_inode"),
}
TRACEPOINTS: dict[str, tuple[str, ...]] = {
    "trace_event_raw_sys_enter": ("id", "args"),
    "trace_event_raw_sys_exit": ("id", "ret"),
}
"""What is read where: in all probes, in those on system calls, in tracepoints. A member
that a kernel lacks takes down only the variants that read it."""


def members(variant: Variant, machine: str) -> dict[str, tuple[str, ...]]:
    """Return all members that a variant of the probes reads on such a machine."""
    parts = [COMMON]
    if "access.c" in variant.files:
        parts.append(CALLS)
        parts.append(_registers(machine) if variant.way else TRACEPOINTS)
    if variant == BY_FUNCTION:
        parts.append({"filename": ("name",), "task_struct": ("stack?",)})
    joined: dict[str, tuple[str, ...]] = {}
    for part in parts:
        for name, wanted in part.items():
            joined[name] = (*joined.get(name, ()), *wanted)
    return joined


def _registers(machine: str) -> dict[str, tuple[str, ...]]:
    names = [*REGISTERS[machine].call, *REGISTERS[machine].compat]
    names += [REGISTERS[machine].parameter, REGISTERS[machine].returned]
    return {"pt_regs": tuple(dict.fromkeys(name.partition("[")[0] for name in names))}


_CHECKS = """
_Static_assert(__builtin_offsetof(struct cred, fsgid) ==
	       __builtin_offsetof(struct cred, uid) + 28, "ids are contiguous");
_Static_assert(__builtin_offsetof(struct cred, cap_ambient) ==
	       __builtin_offsetof(struct cred, cap_inheritable) + 32, "caps are too");
_Static_assert(__builtin_offsetof(struct dentry, d_name) ==
	       __builtin_offsetof(struct dentry, d_parent) + 8, "neighbours");
_Static_assert(__builtin_offsetof(struct path, mnt) == 0 &&
	       __builtin_offsetof(struct path, dentry) == 8, "mount and entry");
"""

_TYPES = """#pragma once
typedef unsigned char __u8; typedef unsigned short __u16;
typedef unsigned int __u32; typedef unsigned long long __u64;
typedef signed char __s8; typedef short __s16;
typedef int __s32; typedef long long __s64;
typedef __u8 u8; typedef __u16 u16; typedef __u32 u32; typedef __u64 u64;
typedef __s8 s8; typedef __s16 s16; typedef __s32 s32; typedef __s64 s64;
typedef __u16 __le16; typedef __u16 __be16; typedef __u32 __le32;
typedef __u32 __be32; typedef __u64 __le64; typedef __u64 __be64;
typedef __u16 __sum16; typedef __u32 __wsum;
typedef _Bool bool; typedef unsigned long size_t; typedef long ssize_t;
typedef int pid_t; typedef unsigned long uintptr_t;
typedef u8 uint8_t; typedef u16 uint16_t; typedef u32 uint32_t; typedef u64 uint64_t;
typedef s8 int8_t; typedef s16 int16_t; typedef s32 int32_t; typedef s64 int64_t;
#define true 1
#define false 0
#define NULL ((void *)0)
#define __aligned_u64 __u64 __attribute__((aligned(8)))
#define TASK_COMM_LEN 16
#define __always_inline inline __attribute__((always_inline))
#define IR_TYPES_KNOWN 1
struct pt_regs;
"""
_ONLY_TYPES = "#include <linux/types.h>\n"
_TREE = {
    "linux/kconfig.h": "#define CONFIG_BPF_SYSCALL 1\n" + _ONLY_TYPES,
    "linux/types.h": _TYPES,
    "uapi/linux/types.h": _ONLY_TYPES,
    "uapi/linux/bpf.h": "",
    "uapi/linux/if_packet.h": "",
    "uapi/linux/if_ether.h": "",
    "uapi/linux/ptrace.h": _ONLY_TYPES,
    "linux/ptrace.h": _ONLY_TYPES,
    "linux/log2.h": "",
    "linux/bpf_common.h": "#define BPF_CLASS(code) ((code) & 0x07)\n#define BPF_LD 0\n",
    # bcc asks only to choose between old and new helper names; probes never do
    "linux/version.h": "#define LINUX_VERSION_CODE 0x050a00\n"
    "#define KERNEL_VERSION(a, b, c) (((a) << 16) + ((b) << 8) + (c))\n",
    "asm/page.h": "#define PAGE_SIZE 4096\n",
}


def write_tree(root: Path) -> None:
    """Write the stub header tree that stands in for the kernel's headers."""
    for name, text in _TREE.items():
        path = root / "include" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def generate(btf: Btf, variant: Variant, machine: str = "") -> str:
    """Return C text: every kernel struct a variant reads, at this kernel's offsets.

    `machine` is what os.uname().machine says; the running one by default. Padding is
    spelled out: __attribute__((packed)) would make clang read bytewise, which the
    verifier refuses on context pointers.
    """
    machine = machine or os.uname().machine
    if machine not in REGISTERS:
        raise LoadError(f"the probes know no registers of {machine}")
    layout = _Layout(btf, members(variant, machine))
    parts = [f"struct {name};" for name in layout.members]
    parts += [layout.declare(name) for name in layout.inner_first()]
    parts += [_CHECKS, *_constants(btf), *_register_macros(REGISTERS[machine])]
    parts.append(_caller_registers(btf, machine))
    return "\n".join(parts) + "\n"


class _Layout:
    """The structs of one variant on one kernel."""

    def __init__(self, btf: Btf, members: Mapping[str, tuple[str, ...]]) -> None:
        self._btf, self.members = btf, members

    def inner_first(self) -> list[str]:
        """Order the structs so that one embedded in another is defined before it."""
        order: list[str] = []

        def visit(name: str) -> None:
            if name in order:
                return
            for _, _, declaration in self._fields(name):
                if inner := re.match(r"struct (\w+) \w", declaration):
                    visit(inner[1])
            order.append(name)

        for name in self.members:
            visit(name)
        return order

    def _fields(self, name: str) -> list[tuple[int, int, str]]:
        """Offset, size and declaration of each wanted member, in order of offset."""
        fields = []
        try:
            _, members = self._btf.struct(name)
        except KeyError as missing:
            raise LoadError(f"this kernel's BTF has no {missing.args[0]}") from missing
        for wanted in self.members[name]:
            names = wanted.rstrip("?").split("|")
            found = next((members[n] for n in names if n in members), None)
            if found is None:
                if wanted.endswith("?"):
                    continue
                raise LoadError(f"this kernel's BTF has no member {names[0]} in {name}")
            if found.bits:
                raise LoadError(f"{name}.{names[0]} is a bit field on this kernel")
            text, size = self._btf.declare(found.type_id, frozenset(self.members))
            fields.append((found.offset, size, text % names[0]))
        return sorted(fields)

    def declare(self, name: str) -> str:
        """Return one struct, with an assertion for the place of each member."""
        at, body, checks = 0, [], []
        for offset, size, declaration in self._fields(name):
            if offset > at:
                body.append(f"char _pad{at}[{offset - at}];")
            body.append(declaration + ";")
            member = re.findall(r"(\w+)(?:\[\d+\])*$", declaration)[0]
            checks.append(
                f"_Static_assert(__builtin_offsetof(struct {name}, {member})"
                f' == {offset}, "{name}.{member}");'
            )
            at = offset + size
        total = self._btf.struct(name)[0]
        if total > at:
            body.append(f"char _pad{at}[{total - at}];")
        text = f"struct {name} {{ {' '.join(body)} }};"
        return "\n".join([text, *checks, *self._absent(name)])

    def _absent(self, name: str) -> list[str]:
        """Say which optional members this kernel lacks."""
        optional = [one.rstrip("?") for one in self.members[name] if one.endswith("?")]
        there = self._btf.struct(name)[1]
        return [f"#define NO_{name}_{one} 1" for one in optional if one not in there]


def _constants(btf: Btf) -> list[str]:
    slots = btf.array_length(btf.struct("xa_node")[1]["slots"].type_id)
    lines = [
        f"#define IR_XA_SLOTS {slots}",
        f"#define IR_MEMFD_PREFIX {_word(b'memfd:', 8)}",
        f"#define IR_PROC_PREFIX {_word(b'/proc/', 8)}ULL",
        f"#define IR_MEM_NAME {_word(b'mem', 4)}",
        f"#define IR_TASK_NAME {_word(b'task', 4)}",
        f"#define IR_ENV_WANTED(w) ({_env_condition()})",
        # since 6.16 the tracepoint itself says whether the whole group is gone
        "#define IR_GROUP_DEAD(ctx, t) ((u8)(ctx)[1])"
        if btf.parameters("btf_trace_sched_process_exit") > 2  # noqa: PLR2004
        else "#define IR_GROUP_DEAD(ctx, t) group_dead(t)",
    ]
    if btf.find(FUNC, "pidfs_alloc_file"):
        lines.append("#define IR_PIDFS 1")
    return lines


def _register_macros(registers: Registers) -> list[str]:
    """C text: a system call's arguments from the registers its caller had."""

    def reads(names: tuple[str, ...], cast: str) -> str:
        return " ".join(
            f"PROBE((call).args[{i}], from, {name});"
            f" (call).args[{i}] = {cast}(call).args[{i}];"
            for i, name in enumerate(names)
        )

    return [
        f"#define IR_CALL_ARGS(call, from) {{ {reads(registers.call, '')} }}",
        f"#define IR_COMPAT_ARGS(call, from) {{ {reads(registers.compat, '(u32)')} }}",
        f"#define IR_PARAMETER(ctx) ((ctx)->{registers.parameter})",
        f"#define IR_RETURNED(ctx) ((ctx)->{registers.returned})",
        f"#define IR_PREEMPT_DISABLE {PREEMPT_DISABLE}",
        f"#define IR_PREEMPT_ENABLE {PREEMPT_ENABLE}",
    ]


def _caller_registers(btf: Btf, machine: str) -> str:
    """C text: where a program on a system call's function finds its caller's registers.

    On 5.10 the argument of some of these functions is of a type that a program may not
    read; the registers also lie at the end of the task's stack.
    """
    calls = ("__x64_sys_execveat", "__x64_sys_process_vm_readv")
    if machine != "x86_64" or not any(map(btf.hides_argument, calls)):
        return "#define IR_CALLER(ctx) ((struct pt_regs *)(ctx)[0])"
    return (
        "#define IR_CALLER(ctx) ({ char *stack_ = 0; PROBE(stack_,"
        " (struct task_struct *)bpf_get_current_task(), stack);"
        f" (struct pt_regs *)(stack_ + {_X86_STACK}) - 1; }})"
    )


def _word(text: bytes, size: int) -> str:
    return hex(int.from_bytes(text.ljust(size, b"\0"), "little"))


def _env_condition() -> str:
    """C text: the first eight bytes `w` of a variable are those of a wanted one.

    A product of differences is zero if one of them is: one branch instead of one a
    name, which the verifier would follow for each variable anew (0.4 s of a start). It
    is also zero by overflow, for all LD_* say; user space compares whole names anyway.
    """
    terms = []
    for name in ENVIRONMENT:
        start = f"{name}=".encode()[:8]
        mask = (1 << 8 * len(start)) - 1
        terms.append(f"(((w) & {hex(mask)}ULL) ^ {_word(start, 8)}ULL)")
    return f"!({' * '.join(dict.fromkeys(terms))})"
