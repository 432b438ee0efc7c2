/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Traces a child with PTRACE_O_TRACEFORK, so that the grandchild is born traced, and tells both pids. */
#include <signal.h>
#include <stdio.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

static void fork_when_told(int ready)
{
	char byte;
	pid_t born;

	if (read(ready, &byte, 1) != 1)
		_exit(1);
	born = fork();
	if (born == 0)
		_exit(0);
	waitpid(born, NULL, 0);
	_exit(0);
}

/* Lets every stop of the traced processes go on until `parent` has ended. */
static unsigned long follow(pid_t parent)
{
	unsigned long born = 0;
	int status, signal;
	pid_t pid;

	while ((pid = waitpid(-1, &status, __WALL)) > 0) {
		if (!WIFSTOPPED(status)) {
			if (pid == parent)
				break;
			continue;
		}
		if (status >> 16 == PTRACE_EVENT_FORK)
			ptrace(PTRACE_GETEVENTMSG, pid, NULL, &born);
		signal = status >> 16 ? 0 : WSTOPSIG(status);
		ptrace(PTRACE_CONT, pid, NULL, (long)signal);
	}
	return born;
}

int main(void)
{
	int ready[2];
	pid_t parent;

	if (pipe(ready) != 0)
		return 1;
	parent = fork();
	if (parent == 0)
		fork_when_told(ready[0]);
	if (ptrace(PTRACE_SEIZE, parent, NULL, (long)PTRACE_O_TRACEFORK) != 0 ||
	    write(ready[1], "", 1) != 1)
		return 1;
	dprintf(STDERR_FILENO, "{\"parent\": %d, \"born\": %lu}\n", parent,
		follow(parent));
	return 0;
}
