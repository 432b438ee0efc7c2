/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* System calls under way: what was asked for, until the answer is known. */

/* What a thread asked for in a system call that is not over yet. The key is the
 * task_struct: in an exec by a thread that is not the leader the tid changes. */
struct inflight {
	u64 args[2];
	u64 target_start_ns;
	u32 target_tgid;
	u32 what; /* enum ir_access; 0 for an exec */
	u32 nr;   /* the system call, so that nothing stale is taken for this one */
	u32 pad;
};

/* struct syscall_tp_t holds an int where trace_event_raw_sys_* says long: the upper
 * half is whatever was on the stack. */
#define CALL_NR(ctx) ((u32)(ctx)->id)
BPF_HASH(inflight, u64, struct inflight, 16384);

/* A call that can't be kept is an event that will be missing. */
static __always_inline int remember(struct inflight *call, u32 kind)
{
	u64 self = bpf_get_current_task();

	if (inflight.update(&self, call))
		count_lost(kind);
	return 0;
}
