/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Forks and executes PROGRAM COUNT times, one after the other, each with its number as argument. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static int run(char *program, int number)
{
	char text[16];
	char *args[] = {program, text, NULL};
	int status = -1;
	pid_t child;

	snprintf(text, sizeof(text), "%d", number);
	child = fork();
	if (child == 0) {
		execv(program, args);
		_exit(127);
	}
	waitpid(child, &status, 0);
	return status;
}

int main(int argc, char **argv)
{
	int count = argc == 3 ? atoi(argv[2]) : 0;

	for (int i = 0; i < count; i++)
		if (run(argv[1], i) != 0)
			return 1;
	return count == 0;
}
