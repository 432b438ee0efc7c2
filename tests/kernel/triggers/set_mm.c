/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Says by PR_SET_MM that its arguments begin where they do, and that they end where
 * nothing is mapped, as user UID. Tells the errno of both. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

static int say(int field, void *at)
{
	return prctl(PR_SET_MM, field, at, 0, 0) < 0 ? errno : 0;
}

int main(int argc, char **argv)
{
	uid_t uid = argc == 2 ? (uid_t)atoi(argv[1]) : 0;
	int begin, end;

	if (uid == 0 || setresuid(uid, uid, uid) != 0)
		return 1;
	begin = say(PR_SET_MM_ARG_START, argv[0]);
	end = say(PR_SET_MM_ARG_END, (void *)0x10);
	dprintf(STDERR_FILENO, "{\"begin\": %d, \"end\": %d}\n", begin, end);
	return 0;
}
