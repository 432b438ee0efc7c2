/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Executes PROGRAM with execl(), as `ls -l`. */
#include <unistd.h>

int main(int argc, char **argv)
{
	if (argc == 2)
		execl(argv[1], "ls", "-l", (char *)NULL);
	return 1;
}
