/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Deletes its own executable, or puts OTHER in its place, or with `away` before PLACE
 * moves it there; tells that it has, and ends when stdin does. */
#include <limits.h>
#include <stdio.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	char own[PATH_MAX + 1] = "";
	int done;
	char byte;

	if (readlink("/proc/self/exe", own, PATH_MAX) < 0)
		return 1;
	if (argc > 2)
		done = rename(own, argv[2]);
	else
		done = argc > 1 ? rename(argv[1], own) : unlink(own);
	if (done < 0)
		return 1;
	dprintf(STDERR_FILENO, "{}\n");
	while (read(STDIN_FILENO, &byte, 1) > 0)
		;
	return 0;
}
