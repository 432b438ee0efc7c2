/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Writes one byte to the unused end of PID's stack with process_vm_writev and tells the result. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

/* The far end of the stack; of what is refused or gone, any address will do. */
static void *address_in(const char *pid)
{
	unsigned long start = 4096;
	char line[512];
	FILE *maps;

	snprintf(line, sizeof(line), "/proc/%s/maps", pid);
	maps = fopen(line, "re");
	while (maps && fgets(line, sizeof(line), maps))
		if (strstr(line, "[stack]"))
			start = strtoul(line, NULL, 16);
	return (void *)start;
}

int main(int argc, char **argv)
{
	char byte = 0;
	struct iovec here = {&byte, 1}, there = {NULL, 1};
	long result;

	if (argc != 2)
		return 1;
	there.iov_base = address_in(argv[1]);
	result = process_vm_writev(atoi(argv[1]), &here, 1, &there, 1, 0);
	dprintf(STDERR_FILENO, "{\"result\": %ld, \"errno\": %d}\n", result,
		result < 0 ? errno : 0);
	return 0;
}
