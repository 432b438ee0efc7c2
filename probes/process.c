/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Birth and death of every process, and the list of those that live. */

struct fork_scratch {
	struct ir_fork e;
	char data[CWD_MAX];
};
BPF_PERCPU_ARRAY(fork_scratch, struct fork_scratch, 1);

struct exit_scratch {
	struct ir_exit e;
	char data[CWD_MAX];
};
BPF_PERCPU_ARRAY(exit_scratch, struct exit_scratch, 1);

int on_fork(u64 *ctx)
{
	const bool typed = IR_TYPED;
	struct task_struct *parent = (void *)ctx[0], *child = (void *)ctx[1];
	u32 zero = 0, flags = 0, pid = 0, tgid = 0;
	u64 off, clone = 0;
	void *a = 0, *b = 0;
	struct fork_scratch *s;

	READ(pid, child, pid);
	READ(tgid, child, tgid);
	if (pid != tgid)
		return 0; /* a thread */
	s = fork_scratch.lookup(&zero);
	if (!s)
		return 0;
	flags = fill_task(&s->e.task, child, typed);
	fill_key(&s->e.creator_tgid, &s->e.creator_start_ns, parent, typed);
	READ(s->e.creator_tid, parent, pid);
	if (s->e.creator_tid != s->e.creator_tgid)
		flags |= IR_F_NONLEADER;

	/* What the child shares with its creator says what clone was asked for;
	 * the caller's own flags are its word only, and no argument of this hook. */
#define SHARED(member, bit) \
	READ(a, parent, member); \
	READ(b, child, member); \
	if (a && a == b) \
		clone |= bit;
	SHARED(mm, 0x100)
	SHARED(fs, 0x200)
	SHARED(files, 0x400)
	SHARED(sighand, 0x800)
#undef SHARED
	if (s->e.task.ptrace)
		clone |= 0x2000; /* CLONE_PTRACE: born traced */
	if (s->e.task.real_parent_tgid != s->e.creator_tgid)
		clone |= 0x8000; /* CLONE_PARENT */
	struct nsproxy *x = 0, *y = 0;
	struct cred *ca = 0, *cb = 0;

	READ(x, parent, nsproxy);
	READ(y, child, nsproxy);
#define UNSHARED(member, bit) \
	READ(a, x, member); \
	READ(b, y, member); \
	if (a != b) \
		clone |= bit;
	if (x != y) {
		UNSHARED(mnt_ns, 0x20000)
		UNSHARED(cgroup_ns, 0x2000000)
		UNSHARED(uts_ns, 0x4000000)
		UNSHARED(ipc_ns, 0x8000000)
		UNSHARED(net_ns, 0x40000000)
	}
#undef UNSHARED
	READ(ca, parent, real_cred);
	READ(cb, child, real_cred);
	READ(a, ca, user_ns);
	READ(b, cb, user_ns);
	if (a != b)
		clone |= 0x10000000;
#if !IR_BY_TYPE_ONLY
	u32 ns_pid = 0;

	PROBE(ns_pid, pid_namespace_of(parent), ns.inum);
	if (s->e.task.ns_pid != ns_pid)
		clone |= 0x20000000; /* by CLONE_NEWPID, or by unshare before */
#endif
	s->e.clone_flags = clone;

	off = put_cwd(s->data, 0, CWD_MAX, child, &flags);
	s->e.len[0] = off;
	s->e.len[1] = 0;
	if (BEYOND(off, CWD_MAX)) {
		count_lost(IR_FORK);
		return 0;
	}
	s->e.head.flags = flags;
	submit(&s->e.head, IR_FORK, sizeof(s->e) + off);
	return 0;
}

/* Before 6.16 the tracepoint does not say whether this was the last thread, and two
 * that end together may both see nobody left: the first of them speaks for all. */
BPF_TABLE("lru_hash", struct process_key, u64, ended, 4096);

static __always_inline bool group_dead(struct task_struct *t)
{
	struct process_key key = {};
	struct signal_struct *signal = 0;
	s32 live = 1;
	u64 one = 1;

	const bool typed = IR_TYPED;

	READ(signal, t, signal);
	READ(live, signal, live);
	if (live)
		return false;
	fill_key(&key.tgid, &key.start_ns, t, typed);
	return !ended.insert(&key, &one);
}

int on_exit(u64 *ctx)
{
	const bool typed = IR_TYPED;
	struct task_struct *t = (void *)ctx[0], *leader = 0;
	u64 self = (u64)t;
	u32 zero = 0, flags, status = 0, how = 0;
	u64 off;
	struct process_key key = {};
	struct signal_struct *signal = 0;
	struct exit_scratch *s;

	inflight.delete(&self);
	if (!IR_GROUP_DEAD(ctx, t))
		return 0;
	fill_key(&key.tgid, &key.start_ns, t, typed);
	guards.delete(&key);
	s = exit_scratch.lookup(&zero);
	if (!s)
		return 0;
	flags = fill_task(&s->e.task, t, typed);
	if (s->e.task.tid != s->e.task.tgid)
		flags |= IR_F_NONLEADER;
	READ(signal, t, signal);
	READ(how, signal, flags);
	if (how & 0x4) { /* SIGNAL_GROUP_EXIT */
		READ(status, signal, group_exit_code);
	} else {
		READ(leader, t, group_leader);
		READ(status, leader, exit_code);
	}
	s->e.status = status;
	s->e.pad = 0;
	if (status & 0x80)
		flags |= IR_F_CORE_DUMPED;
	off = put_cwd(s->data, 0, CWD_MAX, t, &flags);
	s->e.len[0] = off;
	s->e.len[1] = 0;
	if (BEYOND(off, CWD_MAX)) {
		count_lost(IR_EXIT);
		return 0;
	}
	s->e.head.flags = flags;
	submit(&s->e.head, IR_EXIT, sizeof(s->e) + off);
	return 0;
}

/* The start-up snapshot: read the pinned iterator, get one ir_task per process. */
BPF_ITER(task)
{
	struct seq_file *seq = ctx->meta->seq;
	struct task_struct *t = ctx->task;
	struct ir_task o = {};

	if (!t || t->pid != t->tgid)
		return 0;
	fill_task(&o, t, true);
	bpf_seq_write(seq, &o, sizeof(o));
	return 0;
}
