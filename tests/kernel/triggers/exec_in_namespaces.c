/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Executes PROGRAM ARG... as the first process of a new pid namespace, in a new mount namespace, and tells its pid. */
#include <sched.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	pid_t child;

	if (argc < 2 || unshare(CLONE_NEWPID | CLONE_NEWNS) != 0)
		return 1;
	child = fork();
	if (child == 0) {
		execv(argv[1], argv + 1);
		_exit(1);
	}
	dprintf(STDERR_FILENO, "{\"child\": %d}\n", child);
	return waitpid(child, NULL, 0) != child;
}
