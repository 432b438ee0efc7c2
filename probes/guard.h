/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Processes that nobody may reach into, and who may all the same. */

struct process_key {
	u64 start_ns;
	u32 tgid;
	u32 pad;
};
struct guard {
	u64 refused; /* accesses */
	u64 last_ns;
};
BPF_HASH(guards, struct process_key, struct guard, 4096);

/* The self-test's own: programs of an earlier loading, which share the map above, must
 * not prove those of this one. */
BPF_HASH(guard_trials, struct process_key, struct guard, 8);

/* Who is permitted: all facts that `facts` names have to hold, the others are 0. */
#define PERMIT_EXECUTABLE 1
#define PERMIT_USER       2 /* the real one: what a setuid program runs for */
#define PERMIT_CGROUP     4 /* this one, not those below it */
struct permit {
	u64 exe_ino;
	u64 cgroup_id;
	u32 exe_dev;
	u32 uid;
	u32 facts;
	u32 pad;
};
BPF_HASH(permits, struct permit, u64, 1024);

/* enum ir_denied: what the loader found to work here. */
BPF_ARRAY(guard_rung, u32, 1);

static __always_inline u32 guarded_by(void)
{
	u32 zero = 0;
	u32 *rung = guard_rung.lookup(&zero);

	return rung ? *rung : IR_DENIED_NOT;
}

static __always_inline bool permitted(struct task_struct *who)
{
	struct permit own = {}, wanted;
	struct mm_struct *mm = 0;
	struct file *file = 0;
	struct inode *inode = 0;
	struct super_block *sb = 0;
	struct css_set *set = 0;
	struct cgroup *group = 0;
	struct kernfs_node *node = 0;
	struct cred *cred = 0;

	PROBE(mm, who, mm);
	PROBE(file, mm, exe_file);
	PROBE(inode, file, f_inode);
	PROBE(own.exe_ino, inode, i_ino);
	PROBE(sb, inode, i_sb);
	PROBE(own.exe_dev, sb, s_dev);
	PROBE(set, who, cgroups);
	PROBE(group, set, dfl_cgrp);
	PROBE(node, group, kn);
	PROBE(own.cgroup_id, node, id);
	PROBE(cred, who, real_cred);
	PROBE(own.uid, cred, uid);
#pragma clang loop unroll(disable)
	for (u32 facts = 1; facts < 8; facts++) {
		__builtin_memset(&wanted, 0, sizeof(wanted));
		wanted.facts = facts;
		if (facts & PERMIT_EXECUTABLE) {
			wanted.exe_ino = own.exe_ino;
			wanted.exe_dev = own.exe_dev;
		}
		if (facts & PERMIT_USER)
			wanted.uid = own.uid;
		if (facts & PERMIT_CGROUP)
			wanted.cgroup_id = own.cgroup_id;
		if (permits.lookup(&wanted))
			return true;
	}
	return false;
}

/* Whether `who` is to be kept out of `target`; counts it. */
static __always_inline bool refuses(struct task_struct *who, struct task_struct *target)
{
	struct process_key own = {}, key = {};
	struct guard *guard;

	fill_key(&key.tgid, &key.start_ns, target, false);
	guard = guards.lookup(&key);
	if (!guard)
		guard = guard_trials.lookup(&key);
	if (!guard)
		return false;
	fill_key(&own.tgid, &own.start_ns, who, false);
	if (own.tgid == key.tgid || permitted(who))
		return false;
	__sync_fetch_and_add(&guard->refused, 1);
	guard->last_ns = bpf_ktime_get_boot_ns();
	return true;
}

/* Tasks that were told to stop by an attach whose caller is being killed for it. */
BPF_TABLE("lru_hash", u64, u64, spared, 1024);

/* The last rung: the caller dies on its way out of the kernel. */
static __always_inline u32 hold_off(struct task_struct *target)
{
	if (guarded_by() != IR_DENIED_SIGNAL || !target)
		return IR_DENIED_NOT;
	if (!refuses((void *)bpf_get_current_task(), target))
		return IR_DENIED_NOT;
	bpf_send_signal(9);
	return IR_DENIED_SIGNAL;
}
