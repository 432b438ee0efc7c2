/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Has a child execute PROGRAM ARG... while it is traced by its `parent`, which it asked
 * for, or by a `stranger`, who attached to it. Tells the pids of child and tracer. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

static void execute_when_told(int go, int ask, char **argv)
{
	char byte;

	if (read(go, &byte, 1) != 1)
		_exit(1);
	if (ask && ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0)
		_exit(1);
	execv(argv[0], argv);
	_exit(127);
}

/* Lets every stop of the child go on until it has ended. */
static int follow(pid_t child)
{
	int status, signal;

	while (waitpid(child, &status, __WALL) == child) {
		if (!WIFSTOPPED(status))
			return status != 0;
		signal = WSTOPSIG(status) == SIGTRAP ? 0 : WSTOPSIG(status);
		ptrace(PTRACE_CONT, child, NULL, (long)signal);
	}
	return 1;
}

static int trace_and_follow(pid_t child, int go)
{
	if (ptrace(PTRACE_ATTACH, child, NULL, NULL) != 0 ||
	    waitpid(child, NULL, __WALL) != child ||
	    ptrace(PTRACE_CONT, child, NULL, NULL) != 0 || write(go, "", 1) != 1)
		return 1;
	return follow(child);
}

int main(int argc, char **argv)
{
	int go[2], ask, status, failed;
	pid_t child, tracer = getpid();

	if (argc < 3 || pipe(go) != 0)
		return 1;
	ask = strcmp(argv[1], "parent") == 0;
	child = fork();
	if (child == 0)
		execute_when_told(go[0], ask, argv + 2);
	if (ask)
		failed = write(go[1], "", 1) != 1 || follow(child);
	else {
		tracer = fork();
		if (tracer == 0)
			_exit(trace_and_follow(child, go[1]));
		failed = waitpid(tracer, &status, 0) != tracer || status != 0;
		close(go[1]);
		failed |= waitpid(child, &status, 0) != child || status != 0;
	}
	dprintf(STDERR_FILENO, "{\"child\": %d, \"tracer\": %d}\n", child, tracer);
	return failed;
}
