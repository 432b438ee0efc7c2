/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Keep everybody but the permitted out of guarded processes. */

#define PTRACE_MODE_ATTACH 0x02
#define SIGCONT_NR 18
#define SIGSTOP_NR 19

/* Two plain returns; the compiler would make arithmetic of them, whose range the
 * verifier of 6.12 can't see. */
#define DENY \
	do { \
		asm volatile("" ::: "memory"); \
		return -1; /* EPERM */ \
	} while (0)

/* The sense that sees this call reports the refusal; what no sense sees is reported
 * here. */
static __always_inline void tell(struct task_struct *who, struct task_struct *target,
				 u32 mode, u32 rung)
{
	u64 self = bpf_get_current_task(), within = self + OPEN_WITHIN;
	struct inflight *call = inflight.lookup(&self);
	struct inflight *open = inflight.lookup(&within);

	if (call && call->what)
		call->denied = rung;
	else if (open && open->what)
		open->denied = rung;
	else
		report(IR_OTHER_ACCESS, -1, who, target, 0, mode, rung, 0);
}

/* For the LSM hook and for a changed return value alike. */
int guard_access(u64 *ctx)
{
	struct task_struct *target = (void *)ctx[0];
	struct task_struct *self = (void *)bpf_get_current_task();
	u32 mode = ctx[1];

	if (!(mode & PTRACE_MODE_ATTACH) || !refuses(self, target))
		return 0;
	PREEMPT_OFF();
	tell(self, target, mode, guarded_by());
	PREEMPT_ON();
	DENY;
}

int guard_traceme(u64 *ctx)
{
	struct task_struct *parent = (void *)ctx[0];
	struct task_struct *self = (void *)bpf_get_current_task();

	if (!refuses(parent, self))
		return 0;
	PREEMPT_OFF();
	tell(parent, self, PTRACE_MODE_ATTACH, guarded_by());
	PREEMPT_ON();
	DENY;
}

/* An attach sends its target SIGSTOP. When the tracer dies the target goes on with that
 * signal, and would stop for good: this takes it back in the target's own context. */
int spare_target(u64 *ctx)
{
	u64 self = bpf_get_current_task();

	if (ctx[0] != SIGSTOP_NR || !spared.lookup(&self))
		return 0;
	spared.delete(&self);
	bpf_send_signal(SIGCONT_NR);
	return 0;
}
