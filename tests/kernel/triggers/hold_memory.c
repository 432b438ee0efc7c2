/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* A child that nobody can read the command line of: it reads a page of FILE, which a
 * file system lies over that never answers, by a way that keeps its memory locked; and
 * then waits for that lock as a writer, so that all readers wait after it. Tells the
 * child's pid and the errno of what was refused, and ends when stdin does.
 *
 * The file system is this process, the only one that has it open: when it ends, however
 * it does, the kernel gives up all that waits. The mount is seen by nobody else. */
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096

static int begun[2]; /* a byte when the page is being read */

static int fail(void)
{
	dprintf(STDERR_FILENO, "{\"errno\": %d, \"target\": 0}\n", errno);
	return 0;
}

static int mount_over(const char *file)
{
	int fd = open("/dev/fuse", O_RDWR | O_CLOEXEC);
	char options[64];

	snprintf(options, sizeof(options), "fd=%d,rootmode=100644,user_id=0,group_id=0", fd);
	if (fd < 0 || unshare(CLONE_NEWNS) < 0 ||
	    mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
	    mount("silent", file, "fuse", MS_NOSUID | MS_NODEV, options) < 0)
		return -1;
	return fd;
}

static void answer(int fd, __u64 unique, const void *body, size_t size)
{
	struct fuse_out_header head = { .len = sizeof(head) + size, .unique = unique };
	char whole[sizeof(head) + 256];

	memcpy(whole, &head, sizeof(head));
	memcpy(whole + sizeof(head), body, size);
	if (write(fd, whole, head.len) < 0)
		exit(1);
}

/* Says what it takes to open the file, and nothing of what is in it. */
static void serve(int fd)
{
	static char request[1 << 17];
	const struct fuse_in_header *head = (void *)request;
	const struct fuse_init_out init = { .major = 7, .minor = 31, .max_write = PAGE };
	const struct fuse_attr_out attr = {
		.attr_valid = 3600,
		.attr = { .ino = 1, .size = PAGE, .mode = S_IFREG | 0644, .nlink = 1 },
	};
	const struct fuse_open_out open_ = { .fh = 1 };

	if (read(fd, request, sizeof(request)) < 0)
		exit(1);
	if (head->opcode == FUSE_INIT)
		answer(fd, head->unique, &init, sizeof(init));
	else if (head->opcode == FUSE_GETATTR)
		answer(fd, head->unique, &attr, sizeof(attr));
	else if (head->opcode == FUSE_OPEN)
		answer(fd, head->unique, &open_, sizeof(open_));
	else if (head->opcode == FUSE_READ && write(begun[1], "", 1) < 0)
		exit(1);
}

static void *read_page(void *page)
{
	char byte;
	int memory = open("/proc/self/mem", O_RDONLY | O_CLOEXEC);

	pread(memory, &byte, 1, (off_t)page);
	return NULL;
}

static int live(const char *file)
{
	char byte;
	void *page;
	pthread_t reader;
	struct stat status; /* the kernel asks for the size only when somebody wants it */
	int fd = open(file, O_RDONLY | O_CLOEXEC);

	page = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, fd, 0);
	if (fd < 0 || fstat(fd, &status) < 0 || page == MAP_FAILED ||
	    pthread_create(&reader, NULL, read_page, page) != 0)
		return 1;
	if (read(begun[0], &byte, 1) == 1)
		mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	pause();
	return 0;
}

int main(int argc, char **argv)
{
	struct pollfd waiting[2] = { { .fd = STDIN_FILENO, .events = POLLIN } };
	int fd = argc > 1 && pipe(begun) == 0 ? mount_over(argv[1]) : -1;
	pid_t parent = getpid(), child;

	if (fd < 0)
		return fail();
	child = fork();
	if (child == 0) {
		close(fd);
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		return getppid() == parent ? live(argv[1]) : 1;
	}
	dprintf(STDERR_FILENO, "{\"errno\": 0, \"target\": %d}\n", child);
	waiting[1] = (struct pollfd){ .fd = fd, .events = POLLIN };
	while (poll(waiting, 2, -1) > 0 && waiting[0].revents == 0)
		if (waiting[1].revents)
			serve(fd);
	close(fd); /* nobody waits any more */
	kill(child, SIGKILL);
	return waitpid(child, NULL, 0) != child;
}
