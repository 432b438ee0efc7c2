/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Lets the leader thread end first; the other thread ends the process later, with CODE. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

static pthread_t leader;
static int code;

static void *outlive(void *unused)
{
	pthread_join(leader, NULL);
	dprintf(STDERR_FILENO, "{\"tid\": %ld}\n", syscall(SYS_gettid));
	exit(code);
	return unused;
}

int main(int argc, char **argv)
{
	pthread_t thread;

	code = argc == 2 ? atoi(argv[1]) : 1;
	leader = pthread_self();
	if (pthread_create(&thread, NULL, outlive, NULL) != 0)
		return 1;
	pthread_exit(NULL);
}
