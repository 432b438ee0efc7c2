/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Fill a record from kernel objects, and submit it or count its loss.
 *
 * Kernel structs come from a generated header that holds only the members used
 * here, at the offsets of the running kernel. A pointer that the verifier knows the
 * type of is read by plain loads (`typed`, a constant wherever it is passed): one
 * load instead of a call of 30 ns, and there are seventy of them in an event. Any
 * other pointer is read by bpf_probe_read_kernel. Either way a stale one gives zeros
 * and never a fault. */

#define READ(dst, ptr, member) \
	do { \
		if (typed) \
			(dst) = (ptr)->member; \
		else \
			bpf_probe_read_kernel(&(dst), sizeof(dst), &(ptr)->member); \
	} while (0)
#define PROBE(dst, ptr, member) \
	bpf_probe_read_kernel(&(dst), sizeof(dst), &(ptr)->member)

/* A kernel that lets no program read its memory freely (lockdown=confidentiality) still
 * allows reads by type. IR_BY_TYPE_ONLY leaves out what they can't give: paths and
 * names, numbers in nested pid namespaces, and whether an executable is a memfd. */

/* A check of an offset or length that the verifier follows. In assembly, because the
 * compiler folds it into other arithmetic, or compares the bound with the offset: verifiers
 * of 5.10 and 6.1 then go on with an offset both above and below its bound. */
#define BEYOND(x, max) \
	({ \
		u64 beyond_; \
		asm volatile("%0 = 1\n\tif %1 > %2 goto +1\n\t%0 = 0" \
			     : "=&r"(beyond_), "+r"(x) \
			     : "ri"(max)); \
		beyond_; \
	})

/* Have the verifier forget a value that it knows, by way of memory it does not track:
 * with every flag that a branch may set it would follow all of the rest once more. */
#define FORGET(x, place) \
	do { \
		(place) = (x); \
		(x) = *(volatile typeof(place) *)&(place); \
	} while (0)

#define PF_KTHREAD   0x00200000
#define NAME_MAX_1   256  /* one path component and its NUL */
#define STR_MAX      4096 /* one path as the caller gave it */
#define PATH_DEPTH   64   /* components and mount crossings followed per path */
#define FIELDS_MAX   24576 /* variable fields of an exec: two paths, then two names of */
#define EXE_END      6144  /* STR_MAX, then the environment, and 4 KiB of argv; each */
#define CWD_END      12288 /* bound leaves room for what comes after it */
#define CWD_MAX      8192  /* variable field of the kinds that have only this one */

/* One per CPU. The sequence counts what was lost too, so user space sees from the
 * records alone how many are missing; the rest says which kinds, and when. */
struct cpu_state {
	u64 seq;
	u64 lost[IR_KIND_SLOTS];
	u64 last_lost_ns;
};
BPF_PERCPU_ARRAY(cpu_state, struct cpu_state, 1);
BPF_RINGBUF_OUTPUT(events, RING_PAGES);

static __always_inline void submit(struct ir_head *h, u32 kind, u64 size)
{
	u32 zero = 0;
	struct cpu_state *s = cpu_state.lookup(&zero);

	if (!s)
		return;
	h->version = IR_WIRE_VERSION;
	h->kind = kind;
	h->size = size;
	h->cpu = bpf_get_smp_processor_id();
	h->bt_ns = bpf_ktime_get_boot_ns();
	h->seq = ++s->seq;
	if (events.ringbuf_output(h, size, 0)) {
		s->lost[kind & (IR_KIND_SLOTS - 1)]++;
		s->last_lost_ns = h->bt_ns;
	}
}

/* An event that could not even be prepared: it takes a sequence number, so that the
 * gap and the counters still tell the same story. */
static __always_inline void count_lost(u32 kind)
{
	u32 zero = 0;
	struct cpu_state *s = cpu_state.lookup(&zero);

	if (!s)
		return;
	s->seq++;
	s->lost[kind & (IR_KIND_SLOTS - 1)]++;
	s->last_lost_ns = bpf_ktime_get_boot_ns();
}

/* Length of a string of the caller's with its NUL, or a negative errno. The helper says
 * 0 of an empty one on 5.10, 6.1 and 6.12. */
static __always_inline long read_user_str(char *to, u32 size, const void *from)
{
	long n = bpf_probe_read_user_str(to, size, from);

	return n + ((u64)(n - 1) >> 63); /* !n, without a branch for the verifier */
}

static __always_inline u32 pid_number(struct pid *pid, bool typed)
{
	u32 nr = 0;

	READ(nr, pid, numbers[0].nr);
	return nr;
}

static __always_inline void fill_ns(struct ir_task *o, struct task_struct *t,
					bool typed)
{
	struct nsproxy *proxy = 0;
	struct uts_namespace *uts = 0;
	struct ipc_namespace *ipc = 0;
	struct mnt_namespace *mnt = 0;
	struct net *net = 0;
	struct cgroup_namespace *cgroup = 0;

	o->ns_uts = o->ns_ipc = o->ns_mnt = o->ns_net = o->ns_cgroup = o->ns_time = 0;
	READ(proxy, t, nsproxy);
	if (!proxy)
		return;
	READ(uts, proxy, uts_ns);
	READ(o->ns_uts, uts, ns.inum);
	READ(ipc, proxy, ipc_ns);
	READ(o->ns_ipc, ipc, ns.inum);
	READ(mnt, proxy, mnt_ns);
	READ(o->ns_mnt, mnt, ns.inum);
	READ(net, proxy, net_ns);
	READ(o->ns_net, net, ns.inum);
	READ(cgroup, proxy, cgroup_ns);
	READ(o->ns_cgroup, cgroup, ns.inum);
#ifndef NO_nsproxy_time_ns
	struct time_namespace *time = 0;

	READ(time, proxy, time_ns);
	READ(o->ns_time, time, ns.inum);
#endif
}

#if !IR_BY_TYPE_ONLY
/* Through pointers of any origin: the verifier follows no type through an index. */
static __always_inline struct pid_namespace *pid_namespace_of(struct task_struct *t)
{
	struct pid *pid = 0;
	struct pid_namespace *ns = 0;
	u32 level = 0;

	PROBE(pid, t, thread_pid);
	PROBE(level, pid, level);
	level &= 31; /* MAX_PID_NS_LEVEL */
	PROBE(ns, pid, numbers[level].ns);
	return ns;
}

static __always_inline struct task_struct *task_of(struct pid *pid)
{
	struct hlist_node *link = 0;

	PROBE(link, pid, tasks[0].first); /* PIDTYPE_PID */
	if (!link)
		return 0;
	return (void *)link - __builtin_offsetof(struct task_struct, pid_links);
}

/* find_task_by_vpid(): the pid namespace's idr is an xarray of radix nodes. */
static __always_inline struct task_struct *find_task(u32 nr)
{
	struct task_struct *self = (void *)bpf_get_current_task();
	struct pid_namespace *ns = pid_namespace_of(self);
	struct xa_node *node;
	void *entry = 0;
	u8 shift = 0;

	PROBE(entry, ns, idr.idr_rt.xa_head);
#pragma clang loop unroll(disable)
	for (int i = 0; i < 6; i++) {
		if (((u64)entry & 3) != 2 || (u64)entry <= 4096)
			break; /* not a node */
		node = (void *)((u64)entry - 2);
		PROBE(shift, node, shift);
		if (!i && (u64)nr >> shift >= IR_XA_SLOTS)
			return 0; /* beyond the tree */
		entry = 0;
		bpf_probe_read_kernel(&entry, sizeof(entry),
				      &node->slots[(nr >> (shift & 31)) & (IR_XA_SLOTS - 1)]);
	}
	if (!entry || (u64)entry & 3)
		return 0;
	return task_of(entry);
}
#endif

/* The pid as the process itself knows it, and the namespace that gave it. */
static __always_inline void fill_vpid(struct ir_task *o, struct task_struct *leader,
					bool typed)
{
	struct pid *pid = 0;
	struct pid_namespace *ns = 0;
	u32 level = 0;

	o->vpid = o->ns_pid = 0;
	READ(pid, leader, thread_pid);
	READ(level, pid, level);
	o->ns_level = level;
	if (!level) {
		READ(o->vpid, pid, numbers[0].nr);
		READ(ns, pid, numbers[0].ns);
		READ(o->ns_pid, ns, ns.inum);
		return;
	}
#if !IR_BY_TYPE_ONLY
	level &= 31; /* MAX_PID_NS_LEVEL; the verifier follows no type through an index */
	PROBE(o->vpid, pid, numbers[level].nr);
	PROBE(ns, pid, numbers[level].ns);
	PROBE(o->ns_pid, ns, ns.inum);
#endif
}

static __always_inline void fill_cred(struct ir_task *o, struct task_struct *t,
					bool typed)
{
	struct cred *cred = 0;
	struct user_namespace *user = 0;

	READ(cred, t, real_cred);
	if (typed) {
/* volatile: the compiler would read two ids at once, which crosses a type */
#define ID(member) o->member = *(volatile u32 *)&cred->member;
#define CAPABILITIES(to, member) o->to = *(u64 *)&cred->member;
		ID(uid) ID(gid) ID(suid) ID(sgid) ID(euid) ID(egid) ID(fsuid) ID(fsgid)
		CAPABILITIES(cap_inheritable, cap_inheritable)
		CAPABILITIES(cap_permitted, cap_permitted)
		CAPABILITIES(cap_effective, cap_effective)
		CAPABILITIES(cap_bounding, cap_bset)
		CAPABILITIES(cap_ambient, cap_ambient)
#undef ID
#undef CAPABILITIES
	} else {
		/* eight ids and five capability sets, contiguous since 2.6.29 and checked
		 * by assertions of the generated header */
		bpf_probe_read_kernel(&o->uid, 32, &cred->uid);
		bpf_probe_read_kernel(&o->cap_inheritable, 40, &cred->cap_inheritable);
	}
	o->ns_user = 0;
	READ(user, cred, user_ns);
	READ(o->ns_user, user, ns.inum);
}

static __always_inline bool is_memfd(struct dentry *d, bool typed)
{
#if IR_BY_TYPE_ONLY
	return false;
#else
	const unsigned char *name = 0;
	char start[8] = {};

	READ(name, d, d_name.name);
	bpf_probe_read_kernel(start, 6, name);
	return *(u64 *)start == IR_MEMFD_PREFIX;
#endif
}

static __always_inline void fill_exe(struct ir_task *o, struct file *file, bool typed)
{
	struct inode *inode = 0;
	struct super_block *sb = 0;
	struct dentry *d = 0, *up = 0;
	void *hashed = 0;
	u16 mode = 0;

	o->exe_flags = 0;
	READ(inode, file, f_inode);
	READ(o->exe_ino, inode, i_ino);
	READ(o->exe_nlink, inode, i_nlink);
	READ(o->exe_uid, inode, i_uid);
	READ(mode, inode, i_mode);
	o->exe_mode = mode;
	READ(sb, inode, i_sb);
	READ(o->exe_dev, sb, s_dev);
	READ(d, file, f_path.dentry);
	READ(up, d, d_parent);
	if (up == d) { /* belongs to no folder: memfd and its kin */
		if (is_memfd(d, typed))
			o->exe_flags |= IR_EXE_MEMFD;
		return;
	}
	READ(hashed, d, d_hash.pprev);
	if (!hashed || !o->exe_nlink)
		o->exe_flags |= IR_EXE_DELETED;
}

static __always_inline void fill_cgroup(struct ir_task *o, struct task_struct *t,
					bool typed)
{
	struct css_set *set = 0;
	struct cgroup *group = 0;
	struct kernfs_node *node = 0;

	o->cgroup_id = 0;
	READ(set, t, cgroups);
	READ(group, set, dfl_cgrp);
	READ(node, group, kn);
	READ(o->cgroup_id, node, id);
}

/* tgid and start time of the process that `t` is a thread of. */
static __always_inline void fill_key(u32 *tgid, u64 *start_ns, struct task_struct *t,
				     bool typed)
{
	struct task_struct *leader = 0;

	*tgid = 0;
	*start_ns = 0;
	READ(*tgid, t, tgid);
	READ(leader, t, group_leader);
	READ(*start_ns, leader, start_boottime);
}

/* Returns head flags. */
static __always_inline u32 fill_task(struct ir_task *o, struct task_struct *t,
					bool typed)
{
	struct task_struct *other = 0, *leader = 0;
	struct signal_struct *signal = 0;
	struct pid *pid = 0;
	struct mm_struct *mm = 0;
	struct file *file = 0;
	u32 bits = 0;

	fill_key(&o->tgid, &o->start_ns, t, typed);
	READ(o->tid, t, pid);
	READ(other, t, real_parent);
	fill_key(&o->real_parent_tgid, &o->real_parent_start_ns, other, typed);
	READ(other, t, parent);
	fill_key(&o->parent_tgid, &o->parent_start_ns, other, typed);
	READ(signal, t, signal);
	READ(pid, signal, pids[2]); /* PIDTYPE_PGID */
	o->pgid = pid_number(pid, typed);
	READ(pid, signal, pids[3]); /* PIDTYPE_SID */
	o->sid = pid_number(pid, typed);
	READ(leader, t, group_leader);
	READ(o->leader, leader, pid);
	READ(bits, t, flags);
	o->bits = bits & PF_KTHREAD ? IR_TASK_KERNEL : 0;
	fill_vpid(o, leader, typed);
	READ(o->loginuid, t, loginuid);
	READ(o->sessionid, t, sessionid);
	READ(o->ptrace, t, ptrace);
	if (typed) {
		*(u64 *)o->comm = *(u64 *)t->comm;
		*(u64 *)(o->comm + 8) = *(u64 *)(t->comm + 8);
	} else {
		PROBE(o->comm, t, comm);
	}
	o->exe_pad = o->context_pad = 0;
	fill_cred(o, t, typed);
	fill_ns(o, t, typed);
	fill_cgroup(o, t, typed);
	READ(mm, t, mm);
	if (mm)
		READ(file, mm, exe_file);
	if (!file) {
		o->exe_ino = 0;
		o->exe_dev = o->exe_nlink = o->exe_uid = o->exe_mode = o->exe_flags = 0;
		return IR_F_NO_MM;
	}
	fill_exe(o, file, typed);
	return 0;
}
