/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Overwrites its own arguments at once, then writes the /proc/self/cmdline that results. */
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	char buffer[4096];
	ssize_t n;
	int fd;

	for (int i = 0; i < argc; i++)
		memset(argv[i], 'x', strlen(argv[i]));
	fd = open("/proc/self/cmdline", O_RDONLY);
	n = read(fd, buffer, sizeof(buffer));
	return n < 0 || write(STDOUT_FILENO, buffer, (size_t)n) != n;
}
