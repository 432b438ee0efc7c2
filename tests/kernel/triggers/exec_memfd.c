/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Copies PROGRAM into an anonymous memory file called NAME and executes that with ARG... */
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	int from = argc > 2 ? open(argv[1], O_RDONLY | O_CLOEXEC) : -1;
	int memory = argc > 2 ? memfd_create(argv[2], MFD_CLOEXEC) : -1;

	if (from < 0 || memory < 0)
		return 1;
	while (sendfile(memory, from, NULL, 1 << 20) > 0)
		;
	syscall(SYS_execveat, memory, "", argv + 2, environ, AT_EMPTY_PATH);
	return 1;
}
