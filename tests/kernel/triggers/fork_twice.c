/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Forks a child that forks and ends, waits until the grandchild has been adopted and has ended, and tells who was who. */
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

/* The end of file on `alive` says that this process's parent has been reaped. */
static void live_on(int alive, int told)
{
	char byte;

	if (read(alive, &byte, 1) != 0)
		_exit(1);
	dprintf(told, "\"last\": %d, \"reaper\": %d}\n", getpid(), getppid());
	_exit(0);
}

int main(void)
{
	int alive[2], told[2];
	char line[256];
	pid_t middle;
	ssize_t n;

	if (pipe(alive) != 0 || pipe(told) != 0)
		return 1;
	middle = fork();
	if (middle == 0) {
		close(alive[1]);
		if (fork() == 0)
			live_on(alive[0], told[1]);
		_exit(0);
	}
	close(told[1]);
	waitpid(middle, NULL, 0);
	close(alive[1]);
	n = read(told[0], line, sizeof(line));
	if (n <= 0 || read(told[0], line + n, 1) != 0) /* its end closes the pipe */
		return 1;
	dprintf(STDERR_FILENO, "{\"middle\": %d, %.*s", middle, (int)n, line);
	return 0;
}
