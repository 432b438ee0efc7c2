/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Opens PATH for reading with openat2 and tells the result. */
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	struct open_how how = {.flags = O_RDONLY};
	long result;

	if (argc != 2)
		return 1;
	result = syscall(SYS_openat2, AT_FDCWD, argv[1], &how, sizeof(how));
	dprintf(STDERR_FILENO, "{\"result\": %ld, \"errno\": %d}\n", result,
		result < 0 ? errno : 0);
	return 0;
}
