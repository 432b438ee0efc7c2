/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* A new program runs in a process. */

#define ARGV_FIRST   4096  /* argv bytes that travel in the exec record itself */
#define ARGV_CHUNK   24576
#define ARGV_CHUNKS  256   /* 6 MiB: three quarters of _STK_LIM, the kernel's own limit */
#define ENV_VARS     512
#define ENV_VALUE    1024

struct exec_scratch {
	struct ir_exec e;
	char data[FIELDS_MAX];
	u64 off; /* of put_env, as is what follows */
	u64 inside;
};
BPF_PERCPU_ARRAY(exec_scratch, struct exec_scratch, 1);

struct argv_scratch {
	struct ir_argv e;
	char data[ARGV_CHUNK];
};
BPF_PERCPU_ARRAY(argv_scratch, struct argv_scratch, 1);

#if IR_BY_TYPE_ONLY
static __always_inline u64 put_kernel_string(char *data, u64 off, const char *s, u32 *flags)
{
	*flags |= IR_F_NAME_CUT;
	return off;
}
#else
static __always_inline u64 put_kernel_string(char *data, u64 off, const char *s, u32 *flags)
{
	long n;

	if (BEYOND(off, FIELDS_MAX - STR_MAX)) {
		*flags |= IR_F_NAME_CUT;
		return off;
	}
	n = bpf_probe_read_kernel_str(data + off, STR_MAX, s);
	if (n <= 0 || n > STR_MAX)
		return off;
	if (n == STR_MAX)
		*flags |= IR_F_NAME_CUT;
	return off + n;
}
#endif

/* Keep the variables whose first eight bytes are on the list that the loader
 * generates; user space compares the whole name. */
static __always_inline u64 put_env(struct exec_scratch *s, u64 off, u64 p, u64 end,
				   u32 *flags)
{
	u64 inside = 0; /* the middle of a value too long for one read */
	u64 first, full;
	long n;

	FORGET(inside, s->inside);
#pragma clang loop unroll(disable)
	for (int i = 0; i < ENV_VARS; i++) {
		if (p >= end)
			return off;
		if (BEYOND(off, FIELDS_MAX - STR_MAX - ENV_VALUE))
			break;
		n = read_user_str(s->data + off, ENV_VALUE, (void *)p);
		if (n <= 0 || n > ENV_VALUE)
			break;
		first = *(u64 *)(s->data + off);
		full = n / ENV_VALUE; /* 0 or 1: a branch here would double the paths */
		p += n - full;
		if (!inside & IR_ENV_WANTED(first)) {
			off += n;
			*flags |= full * IR_F_ENV_CUT;
		}
		inside = full;
		/* here, so that all paths come to the next turn alike */
		FORGET(off, s->off);
		FORGET(inside, s->inside);
		FORGET(*flags, s->e.head.flags);
	}
	*flags |= IR_F_ENV_CUT;
	return off;
}

/* Chunks of constant length and one short one at the end: two verifier paths a
 * turn. `min(left, CHUNK)` in every turn explodes. */
static __always_inline void send_argv(struct ir_task *t, u64 start, u64 end)
{
	u32 zero = 0;
	u64 n;
	struct argv_scratch *s = argv_scratch.lookup(&zero);

	if (!s)
		return;
	s->e.start_ns = t->start_ns;
	s->e.tgid = t->tgid;
	s->e.tid = t->tid;
	s->e.len[1] = 0;
#pragma clang loop unroll(disable)
	for (int i = 0; i < ARGV_CHUNKS; i++) {
		u64 off = ARGV_FIRST + (u64)i * ARGV_CHUNK;

		if (start + off >= end)
			return;
		s->e.offset = off;
		s->e.head.flags = 0;
		u64 left = end - start - off;
		if (left >= ARGV_CHUNK) {
			s->e.len[0] = ARGV_CHUNK;
			if (bpf_probe_read_user(s->data, ARGV_CHUNK, (void *)(start + off)))
				s->e.head.flags = IR_F_ARGV_FAULT;
			submit(&s->e.head, IR_ARGV, sizeof(s->e) + ARGV_CHUNK);
			continue;
		}
		n = left;
		if (BEYOND(n, ARGV_CHUNK - 1))
			return;
		s->e.len[0] = n;
		if (bpf_probe_read_user(s->data, n, (void *)(start + off)))
			s->e.head.flags = IR_F_ARGV_FAULT;
		submit(&s->e.head, IR_ARGV, sizeof(s->e) + n);
		return;
	}
}

/* A variable field is complete; what comes after it depends on no path to here. */
#define FIELD_ENDS(i) \
	do { \
		s->e.len[i] = off - before; \
		FORGET(off, s->off); \
		FORGET(flags, s->e.head.flags); \
		before = off; \
	} while (0)

/* After the new program is in place and before it runs: argv is read from the new
 * address space, where no other thread can write any more. */
int on_exec(u64 *ctx)
{
	const bool typed = IR_TYPED;
	struct task_struct *t = (void *)ctx[0];
	struct linux_binprm *bprm = (void *)ctx[2];
	u32 zero = 0, flags;
	u64 off = 0, before = 0, n;
	long fault;
	struct exec_scratch *s = exec_scratch.lookup(&zero);
	struct mm_struct *mm = 0;
	struct file *file = 0;
	const char *name = 0, *interp = 0;
	u64 start = 0, end = 0, env = 0, env_end = 0, task_size = 0;
	u64 self = (u64)t;

	/* on arm64 before 6.0 a successful exec has no sys_exit event to do it */
	inflight.delete(&self);
	if (!s)
		return 0;
	flags = fill_task(&s->e.task, t, typed);
	s->e.old_tid = ctx[1];
	s->e.pad = 0;
	if (s->e.old_tid != s->e.task.tid)
		flags |= IR_F_NONLEADER;
	READ(mm, t, mm);
	READ(task_size, mm, task_size);
	if (task_size <= 0x100000000ULL)
		flags |= IR_F_COMPAT;
	READ(s->e.argc, bprm, argc);
	READ(s->e.envc, bprm, envc);

	READ(file, mm, exe_file);
	off = put_path(s->data, 0, EXE_END, &file->f_path, &flags, IR_F_EXE_CUT);
	FIELD_ENDS(0);
	off = put_cwd(s->data, off, CWD_END, t, &flags);
	FIELD_ENDS(1);
	READ(name, bprm, filename);
	READ(interp, bprm, interp);
	off = put_kernel_string(s->data, off, name, &flags);
	FIELD_ENDS(2);
	if (interp != name)
		off = put_kernel_string(s->data, off, interp, &flags);
	FIELD_ENDS(3);
	READ(env, mm, env_start);
	READ(env_end, mm, env_end);
	off = put_env(s, off, env, env_end, &flags);
	FIELD_ENDS(4);

	READ(start, mm, arg_start);
	READ(end, mm, arg_end);
	s->e.argv_bytes = end - start;
	n = ARGV_FIRST;
	if (end - start < ARGV_FIRST)
		n = end - start;
	if (BEYOND(n, ARGV_FIRST) || BEYOND(off, FIELDS_MAX - ARGV_FIRST)) {
		count_lost(IR_EXEC); /* the bounds above rule it out; the verifier asks */
		return 0;
	}
	fault = bpf_probe_read_user(s->data + off, n, (void *)start);
	if (fault)
		flags |= IR_F_ARGV_FAULT;
	s->e.len[5] = n;
	s->e.head.flags = flags;
	submit(&s->e.head, IR_EXEC, sizeof(s->e) + off + n);
	if (end - start > ARGV_FIRST && !fault) /* else nobody could place the rest */
		send_argv(&s->e.task, start, end);
	return 0;
}
