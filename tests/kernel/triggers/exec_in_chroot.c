/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Changes its root to ROOT and executes PROGRAM ARG... there. */
#include <unistd.h>

int main(int argc, char **argv)
{
	if (argc > 2 && chroot(argv[1]) == 0 && chdir("/") == 0)
		execv(argv[2], argv + 2);
	return 1;
}
