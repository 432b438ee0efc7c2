/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* A library for LD_PRELOAD: no folder that is listed has an entry $HIDDEN, though whoever
 * asks for it by name finds it. */
#include <dirent.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

static int is_hidden(const char *name)
{
	const char *hidden = getenv("HIDDEN");

	return hidden && strcmp(name, hidden) == 0;
}

struct dirent *readdir(DIR *folder)
{
	struct dirent *(*next)(DIR *) = dlsym(RTLD_NEXT, "readdir");
	struct dirent *entry;

	while ((entry = next(folder)) && is_hidden(entry->d_name))
		;
	return entry;
}

struct dirent64 *readdir64(DIR *folder)
{
	struct dirent64 *(*next)(DIR *) = dlsym(RTLD_NEXT, "readdir64");
	struct dirent64 *entry;

	while ((entry = next(folder)) && is_hidden(entry->d_name))
		;
	return entry;
}
