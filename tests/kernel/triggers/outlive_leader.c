/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Lets the leader thread end; the other one tells its id, and ends when stdin does. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

static pthread_t leader;

static void *outlive(void *unused)
{
	char byte;

	pthread_join(leader, NULL);
	dprintf(STDERR_FILENO, "{\"tid\": %ld}\n", syscall(SYS_gettid));
	while (read(STDIN_FILENO, &byte, 1) > 0)
		;
	exit(0);
	return unused;
}

int main(void)
{
	pthread_t thread;

	leader = pthread_self();
	if (pthread_create(&thread, NULL, outlive, NULL) != 0)
		return 1;
	pthread_exit(NULL);
}
