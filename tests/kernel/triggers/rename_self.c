/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Takes NAME for its own, tells that it has, and ends when stdin does. */
#include <stdio.h>
#include <sys/prctl.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	char byte;

	if (argc < 2 || prctl(PR_SET_NAME, argv[1]) < 0)
		return 1;
	dprintf(STDERR_FILENO, "{}\n");
	while (read(STDIN_FILENO, &byte, 1) > 0)
		;
	return 0;
}
