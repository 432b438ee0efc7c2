/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Forks a child that aborts and tells its pid and whether wait() says that it dumped core. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

int main(void)
{
	struct rlimit core;
	pid_t child;
	int status;

	getrlimit(RLIMIT_CORE, &core);
	core.rlim_cur = core.rlim_max;
	setrlimit(RLIMIT_CORE, &core);
	child = fork();
	if (child == 0)
		abort();
	if (waitpid(child, &status, 0) != child)
		return 1;
	dprintf(STDERR_FILENO, "{\"child\": %d, \"core\": %d}\n", child,
		WCOREDUMP(status) != 0);
	return 0;
}
