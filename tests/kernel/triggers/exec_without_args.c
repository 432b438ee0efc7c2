/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Executes PROGRAM with an argv that holds nothing at all (argc = 0). */
#include <unistd.h>

int main(int argc, char **argv)
{
	char *nothing[] = {NULL};

	if (argc == 2)
		execve(argv[1], nothing, environ);
	return 1;
}
