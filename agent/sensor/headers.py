"""Everything bcc includes: a stub header tree and one header made from BTF.

In: the kernel's BTF. Out: the text of the generated header, and a folder that bcc
takes for kernel headers. A member that the probes need and this kernel lacks is a
LoadError that names it; kernel headers are never needed on the node.
"""

import re
from pathlib import Path

from agent.errors import LoadError
from agent.sensor.btf import FUNC, Btf

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

# 'a|b' is one member that was renamed, under its first name; a trailing '?' makes it
# optional, with NO_<struct>_<member> defined where it is absent.
MEMBERS: dict[str, tuple[str, ...]] = {
    "task_struct": (
        *("tgid", "pid", "group_leader", "real_parent", "parent"),
        *("start_boottime|real_start_time", "signal", "thread_pid", "pid_links"),
        *("loginuid", "sessionid", "ptrace", "comm", "real_cred", "nsproxy"),
        *("cgroups", "mm", "fs", "files", "sighand", "exit_code"),
    ),
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
    "file": ("f_inode", "f_path", "private_data", "f_flags"),
    "path": ("mnt", "dentry"),
    "inode": ("i_ino", "i_nlink", "i_uid", "i_mode", "i_sb", "i_private"),
    "super_block": ("s_dev", "s_magic"),
    "dentry": ("d_parent", "d_name", "d_hash", "d_inode"),
    "qstr": ("name",),
    "hlist_bl_node": ("pprev",),
    "vfsmount": ("mnt_root",),
    "mount": ("mnt", "mnt_parent", "mnt_mountpoint"),
    "fs_struct": ("pwd",),
    "files_struct": ("fdt",),
    "fdtable": ("max_fds", "fd"),
    "proc_inode": ("pid", "vfs_inode"),
    "trace_event_raw_sys_enter": ("id", "args"),
    "trace_event_raw_sys_exit": ("id", "ret"),
    "bpf_iter_meta": ("seq",),
    "bpf_iter__task": ("meta", "task"),
}

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


def generate(btf: Btf) -> str:
    """Return the C text of every kernel struct in MEMBERS, at this kernel's offsets.

    Padding is spelled out: __attribute__((packed)) would make clang read bytewise,
    which the verifier refuses on context pointers.
    """
    parts = [f"struct {name};" for name in MEMBERS]
    parts += [_struct(btf, name) for name in _inner_first(btf)]
    return "\n".join([*parts, _CHECKS, *_constants(btf)]) + "\n"


def _inner_first(btf: Btf) -> list[str]:
    """Order the structs so that one embedded in another is defined before it."""
    order: list[str] = []

    def visit(name: str) -> None:
        if name in order:
            return
        for _, _, declaration in _fields(btf, name):
            if inner := re.match(r"struct (\w+) \w", declaration):
                visit(inner[1])
        order.append(name)

    for name in MEMBERS:
        visit(name)
    return order


def _fields(btf: Btf, name: str) -> list[tuple[int, int, str]]:
    """Offset, size and declaration of each wanted member, in order of offset."""
    fields = []
    try:
        _, members = btf.struct(name)
    except KeyError as missing:
        raise LoadError(f"this kernel's BTF has no {missing.args[0]}") from missing
    for wanted in MEMBERS[name]:
        names = wanted.rstrip("?").split("|")
        found = next((members[n] for n in names if n in members), None)
        if found is None:
            if wanted.endswith("?"):
                continue
            raise LoadError(f"this kernel's BTF has no member {names[0]} in {name}")
        if found.bits:
            raise LoadError(f"{name}.{names[0]} is a bit field on this kernel")
        text, size = btf.declare(found.type_id, frozenset(MEMBERS))
        fields.append((found.offset, size, text % names[0]))
    return sorted(fields)


def _struct(btf: Btf, name: str) -> str:
    at, body, checks = 0, [], []
    for offset, size, declaration in _fields(btf, name):
        if offset > at:
            body.append(f"char _pad{at}[{offset - at}];")
        body.append(declaration + ";")
        member = re.findall(r"(\w+)(?:\[\d+\])*$", declaration)[0]
        checks.append(
            f"_Static_assert(__builtin_offsetof(struct {name}, {member}) == {offset},"
            f' "{name}.{member}");'
        )
        at = offset + size
    total = btf.struct(name)[0]
    if total > at:
        body.append(f"char _pad{at}[{total - at}];")
    absent = [
        f"#define NO_{name}_{wanted.rstrip('?')} 1"
        for wanted in MEMBERS[name]
        if wanted.endswith("?") and wanted.rstrip("?") not in btf.struct(name)[1]
    ]
    return "\n".join([f"struct {name} {{ {' '.join(body)} }};", *checks, *absent])


def _constants(btf: Btf) -> list[str]:
    slots = btf.array_length(btf.struct("xa_node")[1]["slots"].type_id)
    lines = [
        f"#define IR_XA_SLOTS {slots}",
        f"#define IR_MEMFD_PREFIX {_word(b'memfd:', 8)}",
        f"#define IR_PROC_PREFIX {_word(b'/proc/', 8)}ULL",
        f"#define IR_MEM_NAME {_word(b'mem', 4)}",
        f"#define IR_TASK_NAME {_word(b'task', 4)}",
        f"#define IR_ENV_WANTED(w) ({_env_condition()})",
        # since 6.16 the tracepoint itself says whether the whole group is gone;
        # before, two threads that end together may both see no one left, and the
        # ledger takes only the first
        "#define IR_GROUP_DEAD(ctx, t) ((u8)(ctx)[1])"
        if btf.parameters("btf_trace_sched_process_exit") > 2  # noqa: PLR2004
        else "#define IR_GROUP_DEAD(ctx, t) group_dead(t)",
    ]
    if btf.find(FUNC, "pidfs_alloc_file"):
        lines.append("#define IR_PIDFS 1")
    return lines


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
