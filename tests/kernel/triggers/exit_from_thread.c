/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Ends the whole process with CODE from a thread that is not the leader. */
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

static int code;

static void *leave(void *unused)
{
	exit(code);
	return unused;
}

int main(int argc, char **argv)
{
	pthread_t thread;

	code = argc == 2 ? atoi(argv[1]) : 1;
	if (pthread_create(&thread, NULL, leave, NULL) != 0)
		return 1;
	for (;;)
		pause();
}
