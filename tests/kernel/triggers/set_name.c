/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Names itself NAME0, NAME1, ... COUNT times as fast as it can, from the leader or another
 * `thread`, and more than a second later NAME. Tells the thread's id, and the seconds that
 * it took, rounded up. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static const char *name;
static long count;

static void *take_names(void *unused)
{
	struct timespec pause = {.tv_sec = 1, .tv_nsec = 100000000}, from, to;
	char numbered[32]; /* the kernel takes 15 of it */

	clock_gettime(CLOCK_MONOTONIC, &from);
	for (long i = 0; i < count; i++) {
		snprintf(numbered, sizeof(numbered), "%.7s%ld", name, i);
		prctl(PR_SET_NAME, numbered);
	}
	nanosleep(&pause, NULL);
	prctl(PR_SET_NAME, name);
	clock_gettime(CLOCK_MONOTONIC, &to);
	dprintf(STDERR_FILENO, "{\"tid\": %ld, \"seconds\": %ld}\n", syscall(SYS_gettid),
		(long)(to.tv_sec - from.tv_sec + 1));
	return unused;
}

int main(int argc, char **argv)
{
	pthread_t thread;

	if (argc < 4)
		return 1;
	count = atol(argv[2]);
	name = argv[3];
	if (strcmp(argv[1], "thread") != 0)
		return take_names(NULL) != NULL;
	return pthread_create(&thread, NULL, take_names, NULL) || pthread_join(thread, NULL);
}
