/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Opens of /proc/PID/mem, the way into another process that is a file. */

static __always_inline bool on_procfs(struct inode *inode)
{
	struct super_block *sb = 0;
	u64 magic = 0;

	PROBE(sb, inode, i_sb);
	PROBE(magic, sb, s_magic);
	return magic == 0x9fa0; /* PROC_SUPER_MAGIC */
}

/* Whose folder or file of procfs this is; 0 for those of nobody. */
static __always_inline struct pid *pid_of_inode(struct inode *inode)
{
	struct pid *pid = 0;

	PROBE(pid, (struct proc_inode *)((void *)inode -
		  __builtin_offsetof(struct proc_inode, vfs_inode)), pid);
	return pid;
}

/* The pid behind an open /proc/PID/mem or /proc/PID/task/TID/mem; 0 for other files. */
static __always_inline struct pid *pid_of_mem(struct file *file)
{
	struct inode *inode = 0;
	struct dentry *d = 0;
	const unsigned char *name = 0;
	u32 word = 0;

	PROBE(inode, file, f_inode);
	if (!on_procfs(inode))
		return 0;
	PROBE(d, file, f_path.dentry);
	PROBE(name, d, d_name.name);
	bpf_probe_read_kernel(&word, sizeof(word), name);
	return word == IR_MEM_NAME ? pid_of_inode(inode) : 0;
}

/* Whom N/mem or N/task/T/mem names, from `i` on. Any other spelling gives 0: who it
 * means is for the file system to say, and is not guessed. */
static __always_inline u32 canonical(const char *s, u32 i, u32 length)
{
	u32 nr = 0, word;
	bool thread = false;

#pragma clang loop unroll(disable)
	for (int k = 0; k < 24; k++) {
		char c = s[i & (PATH_GIVEN - 1)];

		i++;
		if (c >= '0' && c <= '9') {
			nr = nr * 10 + c - '0';
			continue;
		}
		if (c != '/' || !nr)
			return 0;
		word = *(u32 *)(s + (i & (PATH_GIVEN - 1)));
		if (word == IR_MEM_NAME)
			return length == i + 4 ? nr : 0;
		if (word != IR_TASK_NAME || thread)
			return 0;
		thread = true;
		nr = 0;
		i += 5;
	}
	return 0;
}

/* Where a relative path starts: the inode of a descriptor, or of the cwd. */
static __always_inline struct inode *base_of(s32 dirfd)
{
	struct task_struct *self = (void *)bpf_get_current_task();
	struct fs_struct *fs = 0;
	struct dentry *d = 0;
	struct inode *inode = 0;
	struct file *file;

	if (dirfd == -100) { /* AT_FDCWD */
		PROBE(fs, self, fs);
		PROBE(d, fs, pwd.dentry);
		PROBE(inode, d, d_inode);
		return inode;
	}
	file = find_file(dirfd);
	PROBE(inode, file, f_inode);
	return inode;
}

/* Whether a path of `n` bytes (its NUL included) names somebody's memory: its last name
 * is mem, and it is below /proc or relative to a place on procfs. Whose, as far as the
 * path alone says. */
static __always_inline bool names_memory(const char *s, long n, s32 dirfd,
					 struct task_struct **whose)
{
	struct inode *base;
	struct pid *pid;

	if (n < 4 || n > PATH_GIVEN)
		return false;
	if (*(u32 *)(s + ((n - 4) & (PATH_GIVEN - 1))) != IR_MEM_NAME)
		return false;
	if (n > 4 && s[(n - 5) & (PATH_GIVEN - 1)] != '/')
		return false;
	if (s[0] == '/') {
		if (*(u64 *)s << 16 == IR_PROC_PREFIX << 16) /* six of eight bytes */
			*whose = find_task(canonical(s, 6, n));
		else if (s[1] != '/')
			return false;
		return true;
	}
	base = base_of(dirfd);
	if (!on_procfs(base))
		return false;
	pid = pid_of_inode(base);
	if (!pid)
		*whose = find_task(canonical(s, 0, n));
	else if (n == 4)
		*whose = task_of(pid);
	return true;
}

static __always_inline bool was_refused(s64 result)
{
	return result == -1 || result == -13; /* EPERM, EACCES */
}

static __always_inline int report_open(s64 result, struct task_struct *target, u32 flags,
				       u32 denied, const char *path)
{
	u32 named = 0;

	if (target)
		PROBE(named, target, pid);
	if (!denied)
		denied = hold_off(target);
	return report(IR_MEM_OPEN, result, (void *)bpf_get_current_task(), target, named,
		      flags, denied, path);
}

#if IR_WAY == IR_BY_FUNCTION

/* The file's own open says whose memory it is, whatever the path was. It also runs
 * for opens by io_uring. */
static __always_inline int open_started(struct inode *inode, struct file *file)
{
	struct inflight kept = {.what = IR_MEM_OPEN};
	u32 flags = 0;

	PROBE(flags, file, f_flags);
	kept.args[0] = (u64)task_of(pid_of_inode(inode));
	kept.args[1] = flags;
	return remember(&kept, IR_ACCESS, OPEN_WITHIN);
}

static __always_inline int open_ended(s64 result)
{
	u64 self = bpf_get_current_task() + OPEN_WITHIN;
	struct inflight *found = inflight.lookup(&self), call;

	if (!found)
		return 0;
	call = *found;
	if (was_refused(result))
		found->what = 0; /* told: file_open_result has nothing to add */
	else
		inflight.delete(&self);
	return report_open(result, (void *)call.args[0], call.args[1], call.denied, 0);
}

int mem_open_enter(u64 *ctx)
{
	WHOLE(open_started((void *)ctx[0], (void *)ctx[1]));
}

int mem_open_result(u64 *ctx)
{
	WHOLE(open_ended((s32)ctx[2]));
}

/* What the file's modes refuse never comes to the file's own open. */
static __always_inline int open_refused(s32 dirfd, struct filename *given,
					s64 result)
{
	u64 self = bpf_get_current_task() + OPEN_WITHIN;
	struct task_struct *target = 0;
	const char *name = 0;
	u32 zero = 0;
	struct access_scratch *scratch = access_scratch.lookup(&zero);
	long n;

	if (inflight.lookup(&self)) {
		inflight.delete(&self);
		return 0;
	}
	if (!scratch)
		return 0;
	PROBE(name, given, name);
	n = bpf_probe_read_kernel_str(scratch->data, PATH_GIVEN, name);
	if (!names_memory(scratch->data, n, dirfd, &target))
		return 0;
	return report_open(result, target, 0, IR_DENIED_NOT, name);
}

int file_open_result(u64 *ctx)
{
	u64 file = ctx[3]; /* a pointer to the verifier: compared, never computed with */

	if (file != (u64)-1 && file != (u64)-13)
		return 0;
	WHOLE(open_refused(ctx[0], (void *)ctx[1], file == (u64)-1 ? -1 : -13));
}

#elif IR_WAY == IR_BY_TRACEPOINT

/* A refused open leaves no file, so what it was about is kept while it is under way.
 * An open that succeeds is known by its file, whatever its path was. */
static __always_inline int open_started(u32 nr, s32 dirfd, const char *path)
{
	struct inflight kept = {.nr = nr, .what = IR_MEM_OPEN};
	struct task_struct *target = 0;
	u32 zero = 0;
	struct access_scratch *scratch = access_scratch.lookup(&zero);
	long n;

	if (!scratch)
		return 0;
	n = read_user_str(scratch->data, PATH_GIVEN, path);
	if (!names_memory(scratch->data, n, dirfd, &target))
		return 0;
	kept.args[0] = (u64)path;
	kept.args[1] = (u64)target;
	if (target) {
		fill_key(&kept.target_tgid, &kept.target_start_ns, target, false);
		kept.denied = hold_off(target);
	}
	return remember(&kept, IR_ACCESS, OPEN_WITHIN);
}

static __always_inline int open_returned(u32 nr, s64 result)
{
	u64 self = bpf_get_current_task() + OPEN_WITHIN, start_ns = 0;
	struct inflight *found = inflight.lookup(&self), call = {};
	struct task_struct *target = 0;
	const char *path = 0;
	struct file *file;
	struct pid *pid = 0;
	u32 named = 0, flags = 0;

	if (found) {
		call = *found;
		inflight.delete(&self);
	}
	if (result >= 0) {
		file = find_file(result);
		pid = pid_of_mem(file);
		if (pid) {
			PROBE(flags, file, f_flags);
			target = task_of(pid);
		}
	} else if (!was_refused(result)) {
		return 0;
	}
	if (!pid) {
		/* refused, or moved by another thread before it could be looked at */
		if (call.nr != nr || call.what != IR_MEM_OPEN)
			return 0;
		path = (void *)call.args[0];
		target = (void *)call.args[1];
		fill_key(&named, &start_ns, target, false);
		if (start_ns != call.target_start_ns)
			target = 0; /* it has ended, and its memory is somebody else's */
	}
	return report_open(result, target, flags, call.denied, path);
}
AFTER_CALL(open)

static __always_inline int open_path_entered(struct call *call)
{
	return open_started(call->nr, -100, (void *)call->args[0]);
}
ON_CALL(open_path)

static __always_inline int openat_path_entered(struct call *call)
{
	return open_started(call->nr, call->args[0], (void *)call->args[1]);
}
ON_CALL(openat_path)

#endif
