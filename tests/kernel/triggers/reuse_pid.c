/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Forks a child, and when it has ended a second one with the same pid, and tells that pid. */
#include <linux/sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

int main(void)
{
	pid_t first = fork(), wanted[1] = {first};
	struct clone_args args = {
		.exit_signal = SIGCHLD,
		.set_tid = (uintptr_t)wanted,
		.set_tid_size = 1,
	};
	long second;

	if (first == 0)
		_exit(1);
	waitpid(first, NULL, 0);
	second = syscall(SYS_clone3, &args, sizeof(args));
	if (second == 0)
		_exit(2);
	dprintf(STDERR_FILENO, "{\"pid\": %d}\n", first);
	return second != first || waitpid(first, NULL, 0) != first;
}
