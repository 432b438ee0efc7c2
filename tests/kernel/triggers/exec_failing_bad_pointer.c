/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Tries to execute PATH with an argument at an address where nothing is, and tells the errno. */
#include <errno.h>
#include <stdio.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	char before[] = "before"; /* on the stack, so that it is in memory */
	char *args[] = {before, (char *)16, NULL};

	if (argc != 2)
		return 1;
	execve(argv[1], args, environ);
	dprintf(STDERR_FILENO, "{\"errno\": %d}\n", errno);
	return 0;
}
