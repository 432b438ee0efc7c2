/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Forks a child from a thread that is not the leader and tells both ids. */
#include <pthread.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static void *fork_here(void *unused)
{
	pid_t child = fork();

	if (child == 0)
		_exit(0);
	waitpid(child, NULL, 0);
	dprintf(STDERR_FILENO, "{\"tid\": %ld, \"child\": %d}\n", syscall(SYS_gettid),
		child);
	return unused;
}

int main(void)
{
	pthread_t thread;

	if (pthread_create(&thread, NULL, fork_here, NULL) != 0)
		return 1;
	return pthread_join(thread, NULL);
}
