/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Reads one byte of PID's memory with process_vm_readv, COUNT times, and tells the last result. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/uio.h>
#include <unistd.h>

/* The start of the first mapping; of what is refused or gone, any address will do. */
static void *address_in(const char *pid)
{
	unsigned long start = 4096;
	char path[64];
	FILE *maps;

	snprintf(path, sizeof(path), "/proc/%s/maps", pid);
	maps = fopen(path, "re");
	if (maps && fscanf(maps, "%lx", &start) != 1)
		start = 4096;
	return (void *)start;
}

int main(int argc, char **argv)
{
	char byte;
	struct iovec here = {&byte, 1}, there = {NULL, 1};
	long result = -1;

	if (argc != 3)
		return 1;
	there.iov_base = address_in(argv[1]);
	for (int i = atoi(argv[2]); i > 0; i--)
		result = process_vm_readv(atoi(argv[1]), &here, 1, &there, 1, 0);
	dprintf(STDERR_FILENO, "{\"result\": %ld, \"errno\": %d}\n", result,
		result < 0 ? errno : 0);
	return 0;
}
