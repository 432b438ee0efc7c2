"""The layouts of probes/event.h as tables; tests/abi compares every offset.

Nothing here has logic: struct formats, field names in wire order, and the kinds.
"""

import struct
from enum import IntEnum

VERSION = 3


class Kind(IntEnum):
    """enum ir_kind."""

    EXEC = 1
    ARGV = 2
    EXEC_FAILED = 3
    FORK = 4
    EXIT = 5
    ACCESS = 6
    PRCTL = 7


KIND_NAMES = {kind: kind.name.lower() for kind in Kind}
"""How a loss names the kinds."""

_HEAD = "HHIIIQQ"
_TASK = "3Q10I176s"

HEAD = struct.Struct("<" + _HEAD)
HEAD_FIELDS = ("version", "kind", "size", "cpu", "flags", "seq", "bt_ns")

TASK = struct.Struct("<" + _TASK)
TASK_FIELDS = (
    "start_ns",
    "real_parent_start_ns",
    "parent_start_ns",
    "tgid",
    "tid",
    "real_parent_tgid",
    "parent_tgid",
    "pgid",
    "sid",
    "vpid",
    "ptrace",
    "leader",
    "bits",
    "comm",
)
"""Names of a task's values; the last stands for all that IMAGE holds."""

IMAGE = struct.Struct("16s32s128s")
IMAGE_FIELDS = ("comm", "exe_ino", "cgroup_id")
"""Names of an image's values; the last two stand for a block each."""
EXECUTABLE = struct.Struct("<Q6I")
EXECUTABLE_FIELDS = ("ino", "dev", "nlink", "uid", "mode", "flags", "pad")
CONTEXT = struct.Struct("<6Q20I")
CONTEXT_FIELDS = (
    "cgroup_id",
    "cap_inheritable",
    "cap_permitted",
    "cap_effective",
    "cap_bounding",
    "cap_ambient",
    "loginuid",
    "sessionid",
    "uid",
    "gid",
    "suid",
    "sgid",
    "euid",
    "egid",
    "fsuid",
    "fsgid",
    "ns_uts",
    "ns_ipc",
    "ns_mnt",
    "ns_pid",
    "ns_net",
    "ns_cgroup",
    "ns_time",
    "ns_user",
    "ns_level",
    "context_pad",
)

EXEC = struct.Struct("<" + _HEAD + _TASK + "Q4I6I")
EXEC_FIELDS = ("argv_bytes", "argc", "envc", "old_tid", "pad", "len")
ARGV = struct.Struct("<" + _HEAD + "QIIQ2I")
ARGV_FIELDS = ("start_ns", "tgid", "tid", "offset", "len")
EXEC_FAILED = struct.Struct("<" + _HEAD + _TASK + "iI4I")
EXEC_FAILED_FIELDS = ("error", "argc", "len")
FORK = struct.Struct("<" + _HEAD + _TASK + "QQII2I")
FORK_FIELDS = (
    "creator_start_ns",
    "clone_flags",
    "creator_tgid",
    "creator_tid",
    "len",
)
EXIT = struct.Struct("<" + _HEAD + _TASK + "II2I")
EXIT_FIELDS = ("status", "pad", "len")
ACCESS = struct.Struct("<" + _HEAD + _TASK + _TASK + "QQQqIIII4I")
ACCESS_FIELDS = (
    "first_ns",
    "last_ns",
    "count",
    "result",
    "access",
    "requested_pid",
    "detail",
    "denied",
    "len",
)

PRCTL = struct.Struct("<" + _HEAD + _TASK + "qQII2I")
PRCTL_FIELDS = ("result", "count", "option", "argument", "len")
SEEN = struct.Struct("<QQII16s")
SEEN_FIELDS = ("start_ns", "bt_ns", "tgid", "tid", "comm")

FOLD = struct.Struct("<QQ")
"""What stands before the event in an entry of the map `folds`: sent_ns, sent_count."""
FOLD_KEY_SIZE = 48

CPU_STATE = struct.Struct("<Q16QQ")
"""struct cpu_state: seq, lost by kind, last_lost_ns."""
