/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Executes PROGRAM with one long argument that another thread rewrites all the time. */
#include <pthread.h>
#include <string.h>
#include <unistd.h>

static char word[16384];

static void *rewrite(void *unused)
{
	volatile char *byte = word; /* or the compiler drops all writes but the last */

	for (char letter = 'a';; letter = letter == 'a' ? 'b' : 'a')
		for (size_t i = 0; i < sizeof(word) - 1; i++)
			byte[i] = letter;
	return unused;
}

int main(int argc, char **argv)
{
	char *args[] = {argv[argc - 1], word, NULL};
	pthread_t thread;

	memset(word, 'a', sizeof(word) - 1);
	if (argc != 2 || pthread_create(&thread, NULL, rewrite, NULL) != 0)
		return 1;
	usleep(500); /* let the other thread get going on its own CPU */
	execv(args[0], args);
	return 1;
}
