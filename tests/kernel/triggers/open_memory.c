/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Opens PATH, relative to DIRECTORY if one is given, for reading and tells the result. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	int directory = AT_FDCWD, result;

	if (argc == 3)
		directory = open(argv[2], O_PATH | O_DIRECTORY);
	if (argc < 2)
		return 1;
	result = openat(directory, argv[1], O_RDONLY);
	dprintf(STDERR_FILENO, "{\"result\": %d, \"errno\": %d}\n", result,
		result < 0 ? errno : 0);
	return 0;
}
