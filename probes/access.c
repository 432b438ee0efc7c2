/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Ways into another process by system call, with what the kernel answered.
 *
 * At the system call, because the LSM hook would tell neither the way nor the result,
 * and never sees what DAC refused. The target is found through the caller's pid
 * namespace at the start of the call and looked up again at its end. */

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
	u32 denied;
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
				  u32 denied, const char *path)
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
	key.denied = denied;
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
	e->denied = denied;
	off = put_cwd(s->data, 0, CWD_MAX, who, &flags);
	e->len[0] = off;
	e->len[1] = e->len[3] = 0;
	before = off;
	if (BEYOND(off, CWD_MAX)) {
		count_lost(IR_ACCESS);
		return 0;
	}
	if (path) {
#if IR_WAY == IR_BY_TRACEPOINT
		flags |= IR_F_PATH_IS_TARGET | IR_F_CALLER_MEMORY;
		n = read_user_str(s->data + off, PATH_GIVEN, path);
#else
		flags |= IR_F_PATH_IS_TARGET;
		n = bpf_probe_read_kernel_str(s->data + off, PATH_GIVEN, path);
#endif
		if (n > 0 && n <= PATH_GIVEN)
			off += n;
	}
	e->len[2] = off - before;
	e->head.flags = flags;
	if (BEYOND(off, CWD_MAX + PATH_GIVEN)) {
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

static __always_inline int enter(struct call *call, u32 access, u32 pid, u64 detail)
{
	struct inflight kept = {.nr = call->nr, .what = access};
	struct task_struct *target = find_task(pid);

	kept.args[0] = pid;
	kept.args[1] = detail;
	if (target) {
		fill_key(&kept.target_tgid, &kept.target_start_ns, target, false);
		kept.denied = hold_off(target);
	}
	return remember(&kept, IR_ACCESS, 0);
}

static __always_inline int ptrace_entered(struct call *call)
{
	u64 request = call->args[0];

	if (request == PTRACE_ATTACH_REQUEST)
		return enter(call, IR_PTRACE_ATTACH, call->args[1], 0);
	if (request == PTRACE_SEIZE_REQUEST)
		return enter(call, IR_PTRACE_SEIZE, call->args[1], call->args[3]);
	if (request == PTRACE_TRACEME_REQUEST)
		return enter(call, IR_PTRACE_TRACEME, 0, 0);
	return 0;
}
ON_CALL(ptrace)

static __always_inline int vm_read_entered(struct call *call)
{
	return enter(call, IR_VM_READ, call->args[0], 0);
}
ON_CALL(vm_read)

static __always_inline int vm_write_entered(struct call *call)
{
	return enter(call, IR_VM_WRITE, call->args[0], 0);
}
ON_CALL(vm_write)

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

static __always_inline int getfd_entered(struct call *call)
{
	struct inflight kept = {.nr = call->nr, .what = IR_PIDFD_GETFD};

	kept.args[0] = call->args[0];
	kept.args[1] = call->args[1];
	kept.denied = hold_off(task_of(pid_of_pidfd(call->args[0])));
	return remember(&kept, IR_ACCESS, 0);
}
ON_CALL(getfd)

/* ptrace, process_vm_readv, process_vm_writev and pidfd_getfd have returned. */
static __always_inline int access_returned(u32 nr, s64 result)
{
	u64 self = bpf_get_current_task(), start_ns = 0, stopped;
	struct inflight *found = inflight.lookup(&self), call;
	struct task_struct *who = (void *)self, *target = 0, *parent = 0;
	struct pid *pid;
	u32 tgid = 0;
	u64 named;

	if (!found || !found->what || found->nr != nr)
		return 0;
	call = *found;
	inflight.delete(&self);
	named = call.args[0];
	if (call.what == IR_PTRACE_TRACEME) {
		PROBE(parent, who, real_parent);
		target = who;
		who = parent;
	} else if (call.what == IR_PIDFD_GETFD) {
		if (result != -9) { /* -EBADF: it may not be a pidfd at all */
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
	if (call.denied == IR_DENIED_SIGNAL && call.what == IR_PTRACE_ATTACH && !result) {
		stopped = (u64)target;
		spared.update(&stopped, &self);
	}
	return report(call.what, result, who, target, named, call.args[1], call.denied, 0);
}
AFTER_CALL(access)

/* PTRACE_O_TRACEFORK and its kin: the child is born traced, and nobody attached. */
int on_fork_traced(u64 *ctx)
{
	struct task_struct *child = (void *)ctx[1], *tracer = 0;
	u32 traced = 0;

	PROBE(traced, child, ptrace);
	if (!traced)
		return 0;
	PROBE(tracer, child, parent);
	return report(IR_TRACE_INHERITED, 0, tracer, child, 0, 0, IR_DENIED_NOT, 0);
}
