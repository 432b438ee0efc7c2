/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Tries to execute PATH with an argument on a page of FILE that is not in memory, and tells the errno. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	int fd = argc == 3 ? open(argv[2], O_RDONLY | O_CLOEXEC) : -1;
	char *args[] = {argv[1], NULL, NULL};

	args[1] = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, fd, 0);
	if (fd < 0 || args[1] == MAP_FAILED)
		return 1;
	execve(argv[1], args, environ);
	dprintf(STDERR_FILENO, "{\"errno\": %d}\n", errno);
	return 0;
}
