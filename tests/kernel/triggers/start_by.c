/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Starts PROGRAM ARG... from the leader, a `thread`, or a thread that is `alone` since the
 * leader has left, by `fork`, by `vfork`, or by clone(2) as a `sibling` of itself. Tells
 * the pid of who did, the thread's id and the program's pid. */
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static char **words;
static pthread_t leader;

static pid_t start(const char *how)
{
	pid_t child;

	if (strcmp(how, "vfork") == 0)
		child = vfork();
	else if (strcmp(how, "sibling") == 0)
		child = syscall(SYS_clone, CLONE_PARENT | SIGCHLD, 0, 0, 0, 0);
	else
		child = fork();
	if (child == 0) {
		execv(words[3], words + 3);
		_exit(127);
	}
	return child;
}

static void start_and_tell(void)
{
	pid_t child = start(words[2]);

	dprintf(STDERR_FILENO, "{\"creator\": %d, \"tid\": %ld, \"child\": %d}\n",
		getpid(), syscall(SYS_gettid), child);
	waitpid(child, NULL, 0); /* a sibling is none of ours to wait for */
	_exit(child < 0);
}

static void *start_in_thread(void *alone)
{
	if (alone)
		pthread_join(leader, NULL);
	start_and_tell();
	return NULL;
}

static int start_from(const char *who)
{
	pthread_t thread;
	void *alone = strcmp(who, "alone") == 0 ? words : NULL;

	if (strcmp(who, "leader") == 0)
		start_and_tell();
	leader = pthread_self();
	if (pthread_create(&thread, NULL, start_in_thread, alone) != 0)
		return 1;
	if (alone)
		pthread_exit(NULL);
	pthread_join(thread, NULL);
	return 1;
}

int main(int argc, char **argv)
{
	int status, failed = 0;

	if (argc < 4)
		return 1;
	words = argv;
	if (fork() == 0)
		return start_from(argv[1]);
	while (wait(&status) > 0)
		failed |= status != 0;
	return failed;
}
