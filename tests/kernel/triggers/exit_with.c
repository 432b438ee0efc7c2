/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Ends with exit code CODE. */
#include <stdlib.h>

int main(int argc, char **argv)
{
	return argc == 2 ? atoi(argv[1]) : 1;
}
