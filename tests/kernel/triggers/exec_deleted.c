/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Opens PROGRAM, deletes it, and executes what is left with ARG... */
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	int fd = argc > 1 ? open(argv[1], O_PATH | O_CLOEXEC) : -1;

	if (fd >= 0 && unlink(argv[1]) == 0)
		syscall(SYS_execveat, fd, "", argv + 1, environ, AT_EMPTY_PATH);
	return 1;
}
