/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Clones a child that is pid 1 of a new pid namespace and tells its pid out here. */
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

int main(void)
{
	long child = syscall(SYS_clone, CLONE_NEWPID | SIGCHLD, 0, 0, 0, 0);
	int status;

	if (child == 0)
		_exit(syscall(SYS_getpid) != 1);
	dprintf(STDERR_FILENO, "{\"child\": %ld}\n", child);
	return waitpid((pid_t)child, &status, 0) != child || status != 0;
}
