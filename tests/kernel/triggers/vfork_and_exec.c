/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Starts PROGRAM ARG... with vfork() and execv() and tells the child's pid. */
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	pid_t child;

	if (argc < 2)
		return 1;
	child = vfork();
	if (child == 0) {
		execv(argv[1], argv + 1);
		_exit(127);
	}
	dprintf(STDERR_FILENO, "{\"child\": %d}\n", child);
	return waitpid(child, NULL, 0) != child;
}
