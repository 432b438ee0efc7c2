/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Attaches to PID with PTRACE_ATTACH, lets go again, and tells the result. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	pid_t target = argc == 2 ? atoi(argv[1]) : 0;
	long result = ptrace(PTRACE_ATTACH, target, NULL, NULL);
	int error = result < 0 ? errno : 0;

	if (result == 0) {
		waitpid(target, NULL, __WALL);
		ptrace(PTRACE_DETACH, target, NULL, NULL);
	}
	dprintf(STDERR_FILENO, "{\"result\": %ld, \"errno\": %d}\n", result, error);
	return 0;
}
