/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* A process changes what it is called, or where its arguments lie.
 *
 * A thread may name itself as it likes: only the leader's name is the process's. Names
 * written to /proc/PID/comm come by no system call of their own; the task list has them. */

#define SET_NAME 15
#define SET_MM   35
#define PRCTL_AGAIN_NS 1000000000ULL

/* A call costs its caller less than the event costs us: repeats only count. */
struct renamer {
	u64 start_ns;
	u32 tgid;
	u32 option;
};
struct renamed {
	u64 sent_ns;
	u64 count;
};
BPF_TABLE("lru_hash", struct renamer, struct renamed, renames, 4096);

struct prctl_scratch {
	struct ir_prctl e;
	char data[CWD_MAX];
};
BPF_PERCPU_ARRAY(prctl_scratch, struct prctl_scratch, 1);

static __always_inline int prctl_entered(struct call *call)
{
	struct task_struct *self = (void *)bpf_get_current_task();
	struct inflight kept = {.nr = call->nr, .what = IR_INFLIGHT_PRCTL};
	u32 option = call->args[0], pid = 0, tgid = 0;

	if (option != SET_NAME && option != SET_MM)
		return 0;
	PROBE(pid, self, pid);
	PROBE(tgid, self, tgid);
	if (option == SET_NAME && pid != tgid)
		return 0;
	kept.args[0] = option;
	kept.args[1] = option == SET_MM ? call->args[1] : 0;
	return remember(&kept, IR_PRCTL, 0);
}
ON_CALL(prctl)

static __always_inline int prctl_returned(u32 nr, s64 result)
{
	u64 self = bpf_get_current_task(), now = bpf_ktime_get_boot_ns(), off;
	struct inflight *found = inflight.lookup(&self), call;
	struct renamer key = {};
	struct renamed first = {.sent_ns = now, .count = 1}, *before;
	u32 zero = 0, flags;
	struct prctl_scratch *s = prctl_scratch.lookup(&zero);

	if (!s || !found || found->what != IR_INFLIGHT_PRCTL || found->nr != nr)
		return 0;
	call = *found;
	inflight.delete(&self);
	fill_key(&key.tgid, &key.start_ns, (void *)self, false);
	key.option = call.args[0];
	before = renames.lookup(&key);
	s->e.count = 1;
	if (before) {
		/* what it was before is told only since 5.12 */
		__sync_fetch_and_add(&before->count, 1);
		s->e.count = before->count;
		if (now - before->sent_ns < PRCTL_AGAIN_NS)
			return 0;
		before->sent_ns = now;
	} else {
		renames.update(&key, &first);
	}
	flags = fill_task(&s->e.task, (void *)self, false);
	if (s->e.task.tid != s->e.task.tgid)
		flags |= IR_F_NONLEADER;
	s->e.result = result;
	s->e.option = call.args[0];
	s->e.argument = call.args[1];
	off = put_cwd(s->data, 0, CWD_MAX, (void *)self, &flags);
	s->e.len[0] = off;
	s->e.len[1] = 0;
	if (BEYOND(off, CWD_MAX)) {
		count_lost(IR_PRCTL);
		return 0;
	}
	s->e.head.flags = flags;
	submit(&s->e.head, IR_PRCTL, sizeof(s->e) + off);
	return 0;
}
AFTER_CALL(prctl)
