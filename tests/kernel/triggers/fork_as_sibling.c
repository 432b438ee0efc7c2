/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Forks a child that forks one more with CLONE_PARENT: the creator and the new parent differ. */
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static void create_sibling(void)
{
	long sibling = syscall(SYS_clone, CLONE_PARENT | SIGCHLD, 0, 0, 0, 0);

	if (sibling == 0)
		_exit(0);
	dprintf(STDERR_FILENO, "{\"creator\": %d, \"child\": %ld}\n", getpid(), sibling);
	_exit(sibling < 0);
}

int main(void)
{
	int status, failed = 0;

	if (fork() == 0)
		create_sibling();
	while (wait(&status) > 0)
		failed |= status != 0;
	return failed;
}
