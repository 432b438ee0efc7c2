/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Forks a child that asks to be traced by its parent, which has become user UID if one is given. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

static void ask(int ready)
{
	long result;
	char byte;

	if (read(ready, &byte, 1) != 0) /* the end of file: the parent is who it will be */
		_exit(1);
	result = ptrace(PTRACE_TRACEME, 0, NULL, NULL);
	dprintf(STDERR_FILENO, "{\"child\": %d, \"result\": %ld, \"errno\": %d}\n",
		getpid(), result, result < 0 ? errno : 0);
	_exit(0);
}

int main(int argc, char **argv)
{
	uid_t uid = argc == 2 ? (uid_t)atoi(argv[1]) : 0;
	int ready[2], status;
	pid_t child;

	if (pipe(ready) != 0)
		return 1;
	child = fork();
	if (child == 0) {
		close(ready[1]);
		ask(ready[0]);
	}
	if (uid != 0 && setresuid(uid, uid, uid) != 0)
		return 1;
	close(ready[1]);
	return waitpid(child, &status, 0) != child || status != 0;
}
