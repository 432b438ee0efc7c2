/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* All processes, by ways that are no iterator: programs that run only when asked to. */

/* The list of all processes where the iterator is refused: run on request, from the
 * process `after` which the caller names (0: from the caller itself) and round to the
 * caller again. Returns 1 when it came round, 2 when `after` is gone. */
#define WALK_STEPS 64
BPF_RINGBUF_OUTPUT(walked, 16);
BPF_ARRAY(walk_scratch, struct ir_task, 1);

static __always_inline struct task_struct *next_of(struct task_struct *t)
{
	struct list_head *next = 0;

	PROBE(next, t, tasks.next);
	return (void *)next - __builtin_offsetof(struct task_struct, tasks);
}

int walk_tasks(u64 *ctx)
{
	struct task_struct *self = (void *)bpf_get_current_task(), *first = 0, *t;
	u32 zero = 0, pid = 0, after = ctx[0];
	struct ir_task *o = walk_scratch.lookup(&zero);

	if (!o)
		return 3;
	PROBE(first, self, group_leader);
	t = after ? find_task(after) : first;
	if (!t)
		return 2;
#pragma clang loop unroll(disable)
	for (int i = 0; i < WALK_STEPS; i++) {
		if (after || i) {
			t = next_of(t);
			if (t == first)
				return 1;
		}
		PROBE(pid, t, pid);
		if (!pid)
			continue; /* the idle task is in the list, too */
		fill_task(o, t, false);
		if (walked.ringbuf_output(o, sizeof(*o), 0))
			return 3;
	}
	return 0;
}

/* One process, by the number that the caller names. */
int tell_task(u64 *ctx)
{
	u32 zero = 0;
	struct task_struct *t = find_task(ctx[0]);
	struct ir_task *o = walk_scratch.lookup(&zero);

	if (!t || !o)
		return 2;
	fill_task(o, t, false);
	return walked.ringbuf_output(o, sizeof(*o), 0) ? 3 : 0;
}

static __always_inline long tell_seen(struct task_struct *t)
{
	struct ir_seen o = {.bt_ns = bpf_ktime_get_boot_ns()};

	fill_key(&o.tgid, &o.start_ns, t, false);
	PROBE(o.tid, t, pid);
	PROBE(o.comm, t, comm);
	return walked.ringbuf_output(&o, sizeof(o), 1 /* BPF_RB_NO_WAKEUP */);
}

/* Who stands in the chain of all tasks: the list that is walked here, and not the numbers
 * that an iterator and /proc go by. Whoever takes a process out of one of them has to
 * take it out of the other as well. Requested and answered as walk_tasks. */
#define CHAIN_STEPS 512
int walk_chain(u64 *ctx)
{
	struct task_struct *self = (void *)bpf_get_current_task(), *first = 0, *t;
	u32 pid = 0, after = ctx[0];

	PROBE(first, self, group_leader);
	t = after ? find_task(after) : first;
	if (!t)
		return 2;
#pragma clang loop unroll(disable)
	for (int i = 0; i < CHAIN_STEPS; i++) {
		if (after || i) {
			t = next_of(t);
			if (t == first)
				return 1;
		}
		PROBE(pid, t, pid);
		if (pid && tell_seen(t))
			return 3;
	}
	return 0;
}

/* Who ran: attached for a moment on request. A process is told once in 50 ms at most,
 * and again if the ring had no room for it. */
#define RAN_AGAIN_NS 50000000ULL
BPF_TABLE("lru_hash", struct process_key, u64, ran, 4096);

int on_switch(u64 *ctx)
{
	struct task_struct *t = (void *)ctx[1];
	u64 now = bpf_ktime_get_boot_ns(), *told;
	struct process_key key = {};

	fill_key(&key.tgid, &key.start_ns, t, false);
	if (!key.tgid)
		return 0; /* idle */
	told = ran.lookup(&key);
	if (told && now - *told < RAN_AGAIN_NS)
		return 0;
	if (!tell_seen(t))
		ran.update(&key, &now);
	return 0;
}
