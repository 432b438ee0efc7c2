/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Has PROGRAM ARG... executed by a grandchild whose parent, the middle one, has ended in
 * WAY; before that it tells who is who, and waits for the end of its stdin.
 *
 * exits      the middle one ends by itself
 * killed     it is killed
 * reused     another process has its pid by then
 * subreaper  this process reaps the descendants of its children
 * inside     all of them live in a pid namespace, and tell the pids of there
 * entered    only the grandchild does, in one that has an init already */
#include <fcntl.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *way;
static int orphaned[2], ended[2], told[2], leave[2];

static int is(const char *name)
{
	return strcmp(way, name) == 0;
}

/* Returns at the end of file, when nobody holds the other end any more. */
static void wait_for_end(int fd)
{
	char byte;

	while (read(fd, &byte, 1) > 0)
		;
}

static long fork_into_namespace(void)
{
	return syscall(SYS_clone, CLONE_NEWPID | SIGCHLD, 0, 0, 0, 0);
}

static void execute_as_orphan(char **argv)
{
	wait_for_end(orphaned[0]);
	execv(argv[0], argv);
	_exit(127);
}

static void be_the_middle(int init, char **argv)
{
	pid_t last;

	close(orphaned[1]);
	close(leave[1]);
	if (init >= 0 && setns(init, CLONE_NEWPID) != 0)
		_exit(1);
	last = fork();
	if (last == 0)
		execute_as_orphan(argv);
	if (write(told[1], &last, sizeof(last)) != sizeof(last))
		_exit(1);
	wait_for_end(leave[0]);
	_exit(0);
}

/* Returns the pid of a process that lives as long as PROGRAM does: `pid`, or -1. */
static pid_t take_over(pid_t pid)
{
	pid_t wanted[1] = {pid};
	struct clone_args args = {
		.exit_signal = SIGCHLD,
		.set_tid = (uintptr_t)wanted,
		.set_tid_size = 1,
	};
	long taken = syscall(SYS_clone3, &args, sizeof(args));

	if (taken == 0) {
		close(ended[1]);
		close(orphaned[1]);
		wait_for_end(ended[0]);
		_exit(0);
	}
	return taken;
}

static int have_a_family(int init, char **argv)
{
	pid_t middle = fork(), last;

	if (middle == 0)
		be_the_middle(init, argv);
	close(told[1]);
	if (read(told[0], &last, sizeof(last)) != sizeof(last))
		return 1;
	dprintf(STDERR_FILENO, "{\"middle\": %d, \"last\": %d}\n", middle, last);
	wait_for_end(STDIN_FILENO);
	if (is("killed"))
		kill(middle, SIGKILL);
	close(leave[1]);
	waitpid(middle, NULL, 0);
	if (is("reused") && take_over(middle) != middle)
		return 1;
	close(orphaned[1]);
	close(ended[1]);
	wait_for_end(ended[0]);
	return 0;
}

/* Returns a descriptor of the pid namespace of an init that ends when `held` is closed. */
static int have_a_namespace(int *held)
{
	char path[64];
	int hold[2];
	pid_t init;

	if (pipe(hold) != 0)
		return -1;
	init = fork_into_namespace();
	if (init == 0) {
		close(hold[1]);
		wait_for_end(hold[0]);
		_exit(0);
	}
	*held = hold[1];
	snprintf(path, sizeof(path), "/proc/%d/ns/pid", init);
	return open(path, O_RDONLY);
}

int main(int argc, char **argv)
{
	int init = -1, held = -1, failed;

	if (argc < 3)
		return 1;
	way = argv[1];
	if (is("inside") && fork_into_namespace() != 0)
		return wait(&failed) < 0 || failed;
	if (is("entered"))
		init = have_a_namespace(&held);
	if (pipe(orphaned) || pipe(ended) || pipe(told) || pipe(leave))
		return 1;
	if (is("subreaper"))
		prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
	failed = have_a_family(init, argv + 2);
	close(held);
	while (wait(NULL) > 0)
		;
	return failed;
}
