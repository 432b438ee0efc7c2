/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Takes descriptor FD of PID with pidfd_getfd and tells the result. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	long pidfd, result;

	if (argc != 3)
		return 1;
	pidfd = syscall(SYS_pidfd_open, atoi(argv[1]), 0);
	if (pidfd < 0)
		return 1;
	result = syscall(SYS_pidfd_getfd, pidfd, atoi(argv[2]), 0);
	dprintf(STDERR_FILENO, "{\"result\": %ld, \"errno\": %d}\n", result,
		result < 0 ? errno : 0);
	return 0;
}
