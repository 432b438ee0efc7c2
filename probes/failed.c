/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* execve said why not. */

#define FAILED_ARGS  128
#define FAILED_BYTES 16384

struct exec_failed_scratch {
	struct ir_exec_failed e;
	char data[FIELDS_MAX];
};
BPF_PERCPU_ARRAY(exec_failed_scratch, struct exec_failed_scratch, 1);

static __always_inline int exec_entered(struct call *call, u64 path, u64 argv)
{
	struct inflight kept = {.nr = call->nr, .compat = call->compat};

	kept.args[0] = path;
	kept.args[1] = argv;
	return remember(&kept, IR_EXEC_FAILED, 0);
}

static __always_inline int execve_entered(struct call *call)
{
	return exec_entered(call, call->args[0], call->args[1]);
}
ON_CALL(execve)

static __always_inline int execveat_entered(struct call *call)
{
	return exec_entered(call, call->args[1], call->args[2]);
}
ON_CALL(execveat)

/* Append the caller's argv. These are its own pointers: another thread may have
 * changed them since the kernel looked, which IR_F_CALLER_MEMORY says. */
static __always_inline u64 put_caller_argv(struct exec_failed_scratch *s, u64 off,
					   u64 argv, u32 step, u32 *flags)
{
	u64 arg;
	u64 start = off;
	long n;

#pragma clang loop unroll(disable)
	for (u32 i = 0; i < FAILED_ARGS; i++) {
		arg = 0;
		if (bpf_probe_read_user(&arg, sizeof(arg), (void *)argv)) {
			*flags |= IR_F_ARGV_FAULT;
			return off;
		}
		argv += step;
		if (step == 4)
			arg = (u32)arg;
		if (!arg)
			return off;
		if (BEYOND(off, FIELDS_MAX - STR_MAX) || off - start > FAILED_BYTES)
			break;
		n = read_user_str(s->data + off, STR_MAX, (void *)arg);
		if (n <= 0 || n > STR_MAX) {
			*flags |= IR_F_ARGV_FAULT;
			return off;
		}
		off += n;
		s->e.argc = i + 1;
		if (n == STR_MAX)
			break;
	}
	*flags |= IR_F_ARGV_CUT;
	return off;
}

/* execve and execveat have returned; one that succeeded was seen by on_exec. */
static __always_inline int exec_returned(u32 nr, s64 result)
{
	u64 self = bpf_get_current_task();
	struct inflight *call = inflight.lookup(&self);
	struct exec_failed_scratch *s;
	u32 zero = 0, flags;
	u64 off, before;
	u64 path, argv;
	u32 step;
	long n;

	if (!call || call->what || call->nr != nr)
		return 0;
	step = call->compat ? 4 : 8;
	path = call->args[0];
	argv = call->args[1];
	inflight.delete(&self);
	s = exec_failed_scratch.lookup(&zero);
	if (result >= 0 || !s)
		return 0;
	flags = fill_task(&s->e.task, (void *)self, false) | IR_F_CALLER_MEMORY;
	s->e.error = result;
	s->e.argc = 0;
	off = put_cwd(s->data, 0, CWD_MAX, (void *)self, &flags);
	s->e.len[0] = off;
	before = off;
	if (BEYOND(off, FIELDS_MAX - STR_MAX)) {
		count_lost(IR_EXEC_FAILED);
		return 0;
	}
	n = read_user_str(s->data + off, STR_MAX, (void *)path);
	if (n <= 0 || n >= STR_MAX)
		flags |= IR_F_NAME_CUT;
	if (n > 0 && n <= STR_MAX)
		off += n;
	s->e.len[1] = off - before;
	before = off;
	off = put_caller_argv(s, off, argv, step, &flags);
	s->e.len[2] = off - before;
	s->e.len[3] = 0;
	if (BEYOND(off, FIELDS_MAX)) {
		count_lost(IR_EXEC_FAILED);
		return 0;
	}
	s->e.head.flags = flags;
	submit(&s->e.head, IR_EXEC_FAILED, sizeof(s->e) + off);
	return 0;
}
AFTER_CALL(exec)
