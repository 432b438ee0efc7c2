/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Executes PROGRAM ARG... through an open descriptor and an empty path (execveat, AT_EMPTY_PATH). */
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	int fd = argc > 1 ? open(argv[1], O_PATH | O_CLOEXEC) : -1;

	if (fd >= 0)
		syscall(SYS_execveat, fd, "", argv + 1, environ, AT_EMPTY_PATH);
	return 1;
}
