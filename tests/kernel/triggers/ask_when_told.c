/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Waits for the end of its stdin, then asks to be traced by its parent. */
#include <errno.h>
#include <stdio.h>
#include <sys/ptrace.h>
#include <unistd.h>

int main(void)
{
	char byte;
	long result;

	while (read(STDIN_FILENO, &byte, 1) > 0)
		;
	result = ptrace(PTRACE_TRACEME, 0, NULL, NULL);
	dprintf(STDERR_FILENO, "{\"result\": %ld, \"errno\": %d}\n", result,
		result < 0 ? errno : 0);
	return 0;
}
