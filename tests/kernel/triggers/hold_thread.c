/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Starts a second thread, tells its id, and ends when stdin does. */
#include <pthread.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

static void *stay(void *unused)
{
	char byte;

	dprintf(STDERR_FILENO, "{\"tid\": %ld}\n", syscall(SYS_gettid));
	while (read(STDIN_FILENO, &byte, 1) > 0)
		;
	return unused;
}

int main(void)
{
	pthread_t thread;

	if (pthread_create(&thread, NULL, stay, NULL) != 0)
		return 1;
	return pthread_join(thread, NULL);
}
