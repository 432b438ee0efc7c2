/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Executes PROGRAM ARG... from a thread that is not the leader and tells that thread's id first. */
#include <pthread.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

static void *execute(void *argv)
{
	dprintf(STDERR_FILENO, "{\"tid\": %ld}\n", syscall(SYS_gettid));
	execv(((char **)argv)[0], argv);
	_exit(1);
}

int main(int argc, char **argv)
{
	pthread_t thread;

	if (argc < 2 || pthread_create(&thread, NULL, execute, argv + 1) != 0)
		return 1;
	pthread_join(thread, NULL);
	return 1;
}
