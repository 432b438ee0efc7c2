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

/* A refused open leaves no file, so what it was about is kept while it is under way:
 * a path whose last name is mem, below /proc or relative to a place on procfs. An
 * open that succeeds is known by its file, whatever its path was. */
static __always_inline int open_enter(u32 nr, s32 dirfd, const char *path)
{
	struct inflight call = {.nr = nr, .what = IR_MEM_OPEN};
	struct task_struct *target = 0;
	struct inode *base;
	struct pid *pid;
	u32 zero = 0;
	struct access_scratch *scratch = access_scratch.lookup(&zero);
	char *s;
	long n;

	if (!scratch)
		return 0;
	s = scratch->data;
	n = bpf_probe_read_user_str(s, PATH_GIVEN, path);
	if (n < 4 || n > PATH_GIVEN)
		return 0;
	if (*(u32 *)(s + ((n - 4) & (PATH_GIVEN - 1))) != IR_MEM_NAME)
		return 0;
	if (n > 4 && s[(n - 5) & (PATH_GIVEN - 1)] != '/')
		return 0;
	if (s[0] == '/') {
		if (*(u64 *)s << 16 == IR_PROC_PREFIX << 16) /* six of eight bytes */
			target = find_task(canonical(s, 6, n));
		else if (s[1] != '/')
			return 0;
	} else {
		base = base_of(dirfd);
		if (!on_procfs(base))
			return 0;
		pid = pid_of_inode(base);
		if (!pid)
			target = find_task(canonical(s, 0, n));
		else if (n == 4)
			target = task_of(pid);
	}
	call.args[0] = (u64)path;
	call.args[1] = (u64)target;
	if (target)
		fill_key(&call.target_tgid, &call.target_start_ns, target, false);
	return remember(&call, IR_ACCESS);
}

int open_result(struct trace_event_raw_sys_exit *ctx)
{
	u64 self = bpf_get_current_task(), start_ns = 0;
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
	if (ctx->ret >= 0) {
		file = find_file(ctx->ret);
		pid = pid_of_mem(file);
		if (pid) {
			PROBE(flags, file, f_flags);
			target = task_of(pid);
		}
	} else if (ctx->ret != -1 && ctx->ret != -13) { /* EPERM, EACCES */
		return 0;
	}
	if (!pid) {
		/* refused, or moved by another thread before it could be looked at */
		if (call.nr != CALL_NR(ctx) || call.what != IR_MEM_OPEN)
			return 0;
		path = (void *)call.args[0];
		target = (void *)call.args[1];
		fill_key(&named, &start_ns, target, false);
		if (start_ns != call.target_start_ns)
			target = 0; /* it has ended, and its memory is somebody else's */
	}
	named = 0;
	if (target)
		PROBE(named, target, pid);
	return report(IR_MEM_OPEN, ctx->ret, (void *)self, target, named, flags, path);
}

int open_path_enter(struct trace_event_raw_sys_enter *ctx)
{
	return open_enter(CALL_NR(ctx), -100, (void *)ctx->args[0]);
}

int openat_path_enter(struct trace_event_raw_sys_enter *ctx)
{
	return open_enter(CALL_NR(ctx), ctx->args[0], (void *)ctx->args[1]);
}
