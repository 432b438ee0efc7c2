/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Writes TITLE over its arguments, as setproctitle(3) does, and nothing after it; tells
 * that it has, and ends when stdin does. Without TITLE nothing is left of them. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	char *start = argv[0], *end = argv[argc - 1] + strlen(argv[argc - 1]);
	char *title = strdup(argc > 1 ? argv[1] : "");
	char byte;

	memset(start, 0, end - start);
	strncpy(start, title, end - start);
	dprintf(STDERR_FILENO, "{}\n");
	while (read(STDIN_FILENO, &byte, 1) > 0)
		;
	return 0;
}
