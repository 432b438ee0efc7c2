/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Starts and joins one thread and tells its id; no process is born. */
#include <pthread.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

static void *tell(void *unused)
{
	dprintf(STDERR_FILENO, "{\"tid\": %ld}\n", syscall(SYS_gettid));
	return unused;
}

int main(void)
{
	pthread_t thread;

	if (pthread_create(&thread, NULL, tell, NULL) != 0)
		return 1;
	return pthread_join(thread, NULL);
}
