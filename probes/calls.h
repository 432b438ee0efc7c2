/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* System calls under way, seen in one of three ways.
 *
 * The programs on system calls are written once and compiled for the way in use: the
 * kernel's function of the call (fentry and fexit), probes on that function, or the
 * call's tracepoints. `ON_CALL` makes the program at the start of a call, `AFTER_CALL`
 * the one at its end; what was asked for is kept in between. */

#define IR_BY_TRACEPOINT 0
#define IR_BY_FUNCTION   1
#define IR_BY_KPROBE     2

struct call {
	u64 args[4];
	u32 nr;     /* 0 where the program knows its call without it */
	u32 compat; /* made the 32-bit way: pointers of four bytes */
};

/* What a thread asked for in a system call that is not over yet. The key is the
 * task_struct: in an exec by a thread that is not the leader the tid changes. An open
 * within a call (every exec opens its program) is kept one byte behind it. */
struct inflight {
	u64 args[2];
	u64 target_start_ns;
	u32 target_tgid;
	u32 what; /* enum ir_access; 0 for an exec, IR_INFLIGHT_PRCTL for one of those */
	u32 nr;   /* the system call, so that nothing stale is taken for this one */
	u32 compat;
	u32 denied; /* enum ir_denied */
	u32 pad;
};
BPF_HASH(inflight, u64, struct inflight, 16384);

#define OPEN_WITHIN 1
#define IR_INFLIGHT_PRCTL 0x100

/* A call that can't be kept is an event that will be missing. */
static __always_inline int remember(struct inflight *call, u32 kind, u32 slot)
{
	u64 self = bpf_get_current_task() + slot;

	if (inflight.update(&self, call))
		count_lost(kind);
	return 0;
}

/* fentry, fexit and LSM programs may be preempted, and the scratch space and sequence
 * of a CPU are not to be shared. Where the kernel has no bpf_preempt_disable the loader
 * puts a no-op in its place, and takes this way only if such a kernel can't preempt. */
#define PREEMPT_OFF ((void (*)(void))IR_PREEMPT_DISABLE)
#define PREEMPT_ON  ((void (*)(void))IR_PREEMPT_ENABLE)

#if IR_WAY == IR_BY_FUNCTION

#define WHOLE(work) \
	do { \
		PREEMPT_OFF(); \
		work; \
		PREEMPT_ON(); \
		return 0; \
	} while (0)
#define ON_CALL(name) \
	int name##_enter(u64 *ctx) \
	{ \
		struct call call = {}; \
		IR_CALL_ARGS(call, IR_CALLER(ctx)); \
		WHOLE(name##_entered(&call)); \
	} \
	int name##_enter_compat(u64 *ctx) \
	{ \
		struct call call = {.compat = 1}; \
		IR_COMPAT_ARGS(call, IR_CALLER(ctx)); \
		WHOLE(name##_entered(&call)); \
	}
#define AFTER_CALL(name) \
	int name##_result(u64 *ctx) \
	{ \
		WHOLE(name##_returned(0, ctx[1])); \
	}

#elif IR_WAY == IR_BY_KPROBE

#define ON_CALL(name) \
	int name##_enter(struct pt_regs *ctx) \
	{ \
		struct call call = {}; \
		IR_CALL_ARGS(call, (struct pt_regs *)IR_PARAMETER(ctx)); \
		return name##_entered(&call); \
	} \
	int name##_enter_compat(struct pt_regs *ctx) \
	{ \
		struct call call = {.compat = 1}; \
		IR_COMPAT_ARGS(call, (struct pt_regs *)IR_PARAMETER(ctx)); \
		return name##_entered(&call); \
	}
#define AFTER_CALL(name) \
	int name##_result(struct pt_regs *ctx) \
	{ \
		return name##_returned(0, IR_RETURNED(ctx)); \
	}

#else

/* struct syscall_tp_t holds an int where trace_event_raw_sys_* says long: the upper
 * half is whatever was on the stack. */
#define CALL_NR(ctx) ((u32)(ctx)->id)
#define ON_CALL(name) \
	int name##_enter(struct trace_event_raw_sys_enter *ctx) \
	{ \
		struct call call = {.nr = CALL_NR(ctx)}; \
		call.args[0] = ctx->args[0]; \
		call.args[1] = ctx->args[1]; \
		call.args[2] = ctx->args[2]; \
		call.args[3] = ctx->args[3]; \
		return name##_entered(&call); \
	}
#define AFTER_CALL(name) \
	int name##_result(struct trace_event_raw_sys_exit *ctx) \
	{ \
		return name##_returned(CALL_NR(ctx), ctx->ret); \
	}

#endif
