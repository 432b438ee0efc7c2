/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Forks one child, waits for it, and tells its pid. */
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

int main(void)
{
	pid_t child = fork();

	if (child == 0)
		_exit(0);
	dprintf(STDERR_FILENO, "{\"child\": %d}\n", child);
	return waitpid(child, NULL, 0) != child;
}
