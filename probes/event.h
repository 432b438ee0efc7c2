/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The wire format: the one file that the probes and user space share.
 *
 * A record is a head, a fixed part by kind, and then the variable fields named
 * by `len[]` of the fixed part, in that order, without padding between them.
 * What could not be read is a flag in the head, never an invented value.
 * agent/sensor/wire.py states the same layout; tests/abi compares the two. */
#ifndef IR_EVENT_H
#define IR_EVENT_H

#ifndef IR_TYPES_KNOWN /* user space; under bcc the stub headers define them */
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef int s32;
typedef long long s64;
#endif

#define IR_WIRE_VERSION 3

enum ir_kind {
	IR_EXEC = 1,        /* a new program runs; argv continues in IR_ARGV */
	IR_ARGV = 2,        /* the next bytes of the argv of this CPU's last exec */
	IR_EXEC_FAILED = 3, /* execve or execveat returned an error */
	IR_FORK = 4,        /* a process was born; threads are not reported */
	IR_EXIT = 5,        /* the last thread of a process ended */
	IR_ACCESS = 6,      /* a process reached into another one, or tried to */
	IR_PRCTL = 7,       /* a process changed its own name, or where its argv lies */
	IR_KINDS = 8,
	IR_KIND_SLOTS = 16, /* counters of losses, a power of two above the kinds */
};

/* Head flags: everything that is incomplete, or known only by the caller's word. */
#define IR_F_ARGV_FAULT    0x0001 /* bytes of argv could not be read */
#define IR_F_ARGV_CUT      0x0002 /* argv ends before its end */
#define IR_F_ENV_CUT       0x0004 /* more environment than is searched or kept */
#define IR_F_EXE_CUT       0x0008 /* the executable's path starts too deep */
#define IR_F_CWD_CUT       0x0010 /* the working directory's path starts too deep */
#define IR_F_NAME_CUT      0x0020 /* the invoked name is cut */
#define IR_F_CALLER_MEMORY 0x0040 /* path and argv are the caller's word, not the kernel's */
#define IR_F_NO_MM         0x0080 /* no address space any more: exe facts are absent */
#define IR_F_TARGET_GONE   0x0100 /* the target could not be found (any more) */
#define IR_F_NONLEADER     0x0200 /* done by a thread that is not the group leader */
#define IR_F_COMPAT        0x0400 /* a 32-bit program */
#define IR_F_CORE_DUMPED   0x0800
#define IR_F_PATH_IS_TARGET 0x1000 /* access by path: the path is the caller's word */

/* ir_task.bits */
#define IR_TASK_KERNEL 0x1 /* a kernel thread: PF_KTHREAD */

/* ir_task.exe_flags */
#define IR_EXE_MEMFD   0x1
#define IR_EXE_DELETED 0x2

enum ir_access {
	IR_PTRACE_ATTACH = 1,
	IR_PTRACE_SEIZE = 2,
	IR_PTRACE_TRACEME = 3, /* the tracer is the parent, the caller is the target */
	IR_VM_READ = 4,
	IR_VM_WRITE = 5,
	IR_MEM_OPEN = 6,       /* /proc/PID/mem, /proc/PID/task/TID/mem */
	IR_PIDFD_GETFD = 7,
	IR_TRACE_INHERITED = 8, /* born traced: PTRACE_O_TRACEFORK and its kin, CLONE_PTRACE */
	IR_OTHER_ACCESS = 9,   /* a way that no sense knows, refused by the guard */
};

/* Who refused an access to a guarded process, before the kernel's own rules did. */
enum ir_denied {
	IR_DENIED_NOT = 0,
	IR_DENIED_LSM = 1,
	IR_DENIED_FMOD_RET = 2,
	IR_DENIED_SIGNAL = 3, /* the caller was killed on its way out */
};

struct ir_head {
	u16 version;
	u16 kind;
	u32 size; /* of the whole record, this head included */
	u32 cpu;
	u32 flags;
	u64 seq;  /* per CPU, from 1, counts what was lost too */
	u64 bt_ns; /* CLOCK_BOOTTIME */
};

/* One process as the kernel holds it, seen at the moment of the event. */
struct ir_task {
	/* who and whose */
	u64 start_ns; /* CLOCK_BOOTTIME; with tgid it is the process key */
	u64 real_parent_start_ns;
	u64 parent_start_ns; /* differs from real_parent while traced */
	u32 tgid;
	u32 tid;
	u32 real_parent_tgid;
	u32 parent_tgid;
	u32 pgid;
	u32 sid;
	u32 vpid;   /* the process's pid in its own pid namespace */
	u32 ptrace; /* task->ptrace, 0 when not traced */
	u32 leader; /* pid of its thread group's leader: the tgid, unless that was edited */
	u32 bits;   /* IR_TASK_* */
	char comm[16];
	/* its executable: zeros without an address space */
	u64 exe_ino;
	u32 exe_dev; /* kernel encoding: major << 20 | minor */
	u32 exe_nlink;
	u32 exe_uid;
	u32 exe_mode;
	u32 exe_flags;
	u32 exe_pad;
	/* where and as whom it runs: the same bytes for most processes of a service,
	 * so user space decodes and renders each of them once */
	u64 cgroup_id; /* cgroup v2 */
	u64 cap_inheritable;
	u64 cap_permitted;
	u64 cap_effective;
	u64 cap_bounding;
	u64 cap_ambient;
	u32 loginuid;
	u32 sessionid;
	u32 uid;
	u32 gid;
	u32 suid;
	u32 sgid;
	u32 euid;
	u32 egid;
	u32 fsuid;
	u32 fsgid;
	u32 ns_uts;
	u32 ns_ipc;
	u32 ns_mnt;
	u32 ns_pid;
	u32 ns_net;
	u32 ns_cgroup;
	u32 ns_time;
	u32 ns_user;
	u32 ns_level; /* depth of its pid namespace; 0 is the host's */
	u32 context_pad;
};

struct ir_exec {
	struct ir_head head;
	struct ir_task task;
	u64 argv_bytes; /* of the whole argv; this record holds the first len[5] */
	u32 argc;
	u32 envc;
	u32 old_tid; /* the calling thread's tid before it became the leader */
	u32 pad;
	/* exe path, cwd (leaf first, NUL after each name), invoked name,
	 * interpreter name (scripts), chosen environment, argv */
	u32 len[6];
};

struct ir_argv {
	struct ir_head head;
	u64 start_ns;
	u32 tgid;
	u32 tid;
	u64 offset; /* of these bytes in argv */
	u32 len[2]; /* argv; the second is always 0 */
};

struct ir_exec_failed {
	struct ir_head head;
	struct ir_task task;
	s32 error; /* negative errno */
	u32 argc;  /* arguments counted, complete unless IR_F_ARGV_CUT */
	/* cwd, path, argv */
	u32 len[4];
};

struct ir_fork {
	struct ir_head head;
	struct ir_task task; /* the child */
	u64 creator_start_ns;
	u64 clone_flags; /* CLONE_* as the child shows them, not as the caller gave them */
	u32 creator_tgid;
	u32 creator_tid;
	u32 len[2]; /* cwd */
};

struct ir_exit {
	struct ir_head head;
	struct ir_task task;
	u32 status; /* as wait(2) gives it */
	u32 pad;
	u32 len[2]; /* cwd */
};

struct ir_access_event {
	struct ir_head head;
	struct ir_task task;   /* who did it */
	struct ir_task target; /* to whom; tid is the thread that was named */
	u64 first_ns;  /* of the accesses folded into this event */
	u64 last_ns;
	u64 count;     /* accesses of this kind and result so far, this one included */
	s64 result;    /* what the system call returned */
	u32 access;    /* enum ir_access */
	u32 requested_pid; /* as the caller named it, in its own pid namespace */
	u32 detail;    /* pidfd_getfd: the target's descriptor; mem open: open flags;
			* other: PTRACE_MODE_* */
	u32 denied;    /* enum ir_denied */
	u32 len[4]; /* cwd, target's cwd (unused: 0), path as given, unused */
};

struct ir_prctl {
	struct ir_head head;
	struct ir_task task; /* as it is called now */
	s64 result;
	u64 count;    /* calls of this option so far; repeats within a second are not sent */
	u32 option;   /* PR_SET_NAME or PR_SET_MM */
	u32 argument; /* PR_SET_MM_*; 0 for a name */
	u32 len[2];   /* cwd */
};

/* Not an event: one process that stands in the chain of tasks (walk_chain), or that the
 * scheduler ran (on_switch). */
struct ir_seen {
	u64 start_ns;
	u64 bt_ns; /* when it was seen, CLOCK_BOOTTIME */
	u32 tgid;
	u32 tid;
	char comm[16];
};

#endif
