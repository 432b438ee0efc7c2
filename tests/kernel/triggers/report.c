/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Writes its own /proc/self/cmdline to stdout as the kernel gives it, then waits for the end of stdin. */
#include <fcntl.h>
#include <unistd.h>

int main(void)
{
	static char buffer[65536];
	int fd = open("/proc/self/cmdline", O_RDONLY);
	ssize_t n;

	while (fd >= 0 && (n = read(fd, buffer, sizeof(buffer))) > 0)
		if (write(STDOUT_FILENO, buffer, (size_t)n) != n)
			return 1;
	while (read(STDIN_FILENO, buffer, sizeof(buffer)) > 0)
		;
	return 0;
}
