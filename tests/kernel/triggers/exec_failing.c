/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Tries to execute PATH with ARGV..., which must fail, and tells the errno. */
#include <errno.h>
#include <stdio.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	if (argc < 3)
		return 1;
	execve(argv[1], argv + 2, environ);
	dprintf(STDERR_FILENO, "{\"errno\": %d}\n", errno);
	return 0;
}
