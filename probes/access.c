/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Ways into another process by system call, with what the kernel answered.
 *
 * The rung of kernels that refuse LSM, fentry and kprobes: system call tracepoints.
 * They see what DAC refused, which the LSM hook never does; they do not see calls
 * made the 32-bit way (these tracepoints are not called for them) and io_uring. The
 * target is found through the caller's pid namespace at entry and looked up again at
 * exit. */

#define PTRACE_TRACEME_REQUEST 0
#define PTRACE_ATTACH_REQUEST  16
#define PTRACE_SEIZE_REQUEST   0x4206
#define FOLD_NS                1000000000ULL
#define PATH_GIVEN             128

/* Repeats of one access by one process to another fold into one event a second.
 * The entry is the event itself, so user space can render what stayed in it. */
struct fold_key {
	u64 start_ns;
	u64 target_start_ns;
	s64 result;
	u32 tgid;
	u32 target_tgid;
	u32 target_tid;
	u32 access;
	u32 detail; /* a first open for writing is not a repeat of one for reading */
	u32 pad;
};
struct fold {
	u64 sent_ns;
	u64 sent_count;
	struct ir_access_event e;
};
BPF_HASH(folds, struct fold_key, struct fold, 4096);

struct access_scratch {
	struct fold f;
	char data[CWD_MAX + PATH_GIVEN];
};
BPF_PERCPU_ARRAY(access_scratch, struct access_scratch, 1);

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

static __always_inline struct file *find_file(u32 fd)
{
	struct task_struct *self = (void *)bpf_get_current_task();
	struct files_struct *files = 0;
	struct fdtable *table = 0;
	struct file **slots = 0, *file = 0;
	u32 max = 0;

	PROBE(files, self, files);
	PROBE(table, files, fdt);
	PROBE(max, table, max_fds);
	if (fd >= max)
		return 0;
	PROBE(slots, table, fd);
	bpf_probe_read_kernel(&file, sizeof(file), slots + fd);
	return file;
}

/* One access is over: fold it, or send it. `path`, if any, is in the caller's memory. */
static __always_inline int report(u32 access, s64 result, struct task_struct *who,
				  struct task_struct *target, u32 requested, u32 detail,
				  const char *path)
{
	u32 zero = 0, flags;
	u64 off, before;
	struct access_scratch *s = access_scratch.lookup(&zero);
	struct ir_access_event *e;
	struct fold_key key = {};
	struct fold *f;
	u64 now = bpf_ktime_get_boot_ns();
	long n;

	if (!s)
		return 0;
	e = &s->f.e;
	fill_key(&key.tgid, &key.start_ns, who, false);
	key.result = result < 0 ? result : 0;
	key.access = access;
	key.detail = detail;
	key.target_tid = requested;
	if (target) {
		fill_key(&key.target_tgid, &key.target_start_ns, target, false);
		if (key.tgid == key.target_tgid)
			return 0; /* itself */
		PROBE(key.target_tid, target, pid);
	}
	f = folds.lookup(&key);
	if (f) {
		__sync_fetch_and_add(&f->e.count, 1);
		f->e.last_ns = now;
		if (now - f->sent_ns < FOLD_NS)
			return 0;
		f->sent_ns = now;
		f->sent_count = f->e.count;
	}
	flags = fill_task(&e->task, who, false);
	if (target)
		fill_task(&e->target, target, false);
	else {
		__builtin_memset(&e->target, 0, sizeof(e->target));
		flags |= IR_F_TARGET_GONE;
	}
	if (e->task.tid != e->task.tgid)
		flags |= IR_F_NONLEADER;
	e->first_ns = f ? f->e.first_ns : now;
	e->last_ns = now;
	e->count = f ? f->e.count : 1;
	e->result = result;
	e->access = access;
	e->requested_pid = requested;
	e->detail = detail;
	e->pad = 0;
	off = put_cwd(s->data, 0, CWD_MAX, who, &flags);
	e->len[0] = off;
	e->len[1] = e->len[3] = 0;
	before = off;
	HIDE(off);
	if (off > CWD_MAX) {
		count_lost(IR_ACCESS);
		return 0;
	}
	if (path) {
		flags |= IR_F_PATH_IS_TARGET | IR_F_CALLER_MEMORY;
		n = bpf_probe_read_user_str(s->data + off, PATH_GIVEN, path);
		if (n > 0 && n <= PATH_GIVEN)
			off += n;
	}
	e->len[2] = off - before;
	e->head.flags = flags;
	HIDE(off);
	if (off > CWD_MAX + PATH_GIVEN) {
		count_lost(IR_ACCESS);
		return 0;
	}
	submit(&e->head, IR_ACCESS, sizeof(*e) + off);
	if (!f) {
		s->f.sent_ns = now;
		s->f.sent_count = 1;
		folds.insert(&key, &s->f); /* a full map: every repeat is sent */
	}
	return 0;
}

static __always_inline int enter(u32 nr, u32 access, u32 pid, u64 detail)
{
	struct inflight call = {.nr = nr, .what = access};
	struct task_struct *target = find_task(pid);

	call.args[0] = pid;
	call.args[1] = detail;
	if (target)
		fill_key(&call.target_tgid, &call.target_start_ns, target, false);
	return remember(&call, IR_ACCESS);
}

int ptrace_enter(struct trace_event_raw_sys_enter *ctx)
{
	u64 request = ctx->args[0];

	if (request == PTRACE_ATTACH_REQUEST)
		return enter(CALL_NR(ctx), IR_PTRACE_ATTACH, ctx->args[1], 0);
	if (request == PTRACE_SEIZE_REQUEST)
		return enter(CALL_NR(ctx), IR_PTRACE_SEIZE, ctx->args[1], ctx->args[3]);
	if (request == PTRACE_TRACEME_REQUEST)
		return enter(CALL_NR(ctx), IR_PTRACE_TRACEME, 0, 0);
	return 0;
}

int vm_read_enter(struct trace_event_raw_sys_enter *ctx)
{
	return enter(CALL_NR(ctx), IR_VM_READ, ctx->args[0], 0);
}

int vm_write_enter(struct trace_event_raw_sys_enter *ctx)
{
	return enter(CALL_NR(ctx), IR_VM_WRITE, ctx->args[0], 0);
}

int pidfd_getfd_enter(struct trace_event_raw_sys_enter *ctx)
{
	struct inflight call = {.nr = CALL_NR(ctx), .what = IR_PIDFD_GETFD};

	call.args[0] = ctx->args[0];
	call.args[1] = ctx->args[1];
	return remember(&call, IR_ACCESS);
}

static __always_inline struct pid *pid_of_pidfd(u32 fd)
{
	struct file *file = find_file(fd);
	struct pid *pid = 0;
#ifdef IR_PIDFS /* since 6.9 a pidfd is an inode of pidfs */
	struct inode *inode = 0;

	PROBE(inode, file, f_inode);
	PROBE(pid, inode, i_private);
#else
	PROBE(pid, file, private_data);
#endif
	return pid;
}

/* ptrace, process_vm_readv, process_vm_writev and pidfd_getfd have returned. */
int access_result(struct trace_event_raw_sys_exit *ctx)
{
	u64 self = bpf_get_current_task(), start_ns = 0;
	struct inflight *found = inflight.lookup(&self), call;
	struct task_struct *who = (void *)self, *target = 0, *parent = 0;
	struct pid *pid;
	u32 tgid = 0;
	u64 named;

	if (!found || found->nr != CALL_NR(ctx))
		return 0;
	call = *found;
	inflight.delete(&self);
	named = call.args[0];
	if (call.what == IR_PTRACE_TRACEME) {
		PROBE(parent, who, real_parent);
		target = who;
		who = parent;
	} else if (call.what == IR_PIDFD_GETFD) {
		if (ctx->ret != -9) { /* -EBADF: it may not be a pidfd at all */
			pid = pid_of_pidfd(named);
			target = task_of(pid);
			named = pid_number(pid, false);
		}
	} else {
		target = find_task(named);
		fill_key(&tgid, &start_ns, target, false);
		if (start_ns != call.target_start_ns)
			target = 0; /* the pid belongs to another one by now */
	}
	return report(call.what, ctx->ret, who, target, named, call.args[1], 0);
}

/* PTRACE_O_TRACEFORK and its kin: the child is born traced, and nobody attached. */
int on_fork_traced(u64 *ctx)
{
	struct task_struct *child = (void *)ctx[1], *tracer = 0;
	u32 traced = 0;

	PROBE(traced, child, ptrace);
	if (!traced)
		return 0;
	PROBE(tracer, child, parent);
	return report(IR_TRACE_INHERITED, 0, tracer, child, 0, 0, 0);
}
