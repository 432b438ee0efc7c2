/* fork + exec + exit at the machine's full rate, with its own ground truth.
 *
 *   storm --seconds S | --execs N [--workers W] [--vfork] PROGRAM
 *
 * W workers (default: one a CPU) each repeat: clock, fork (or vfork), execve of
 * PROGRAM with argv ["true", "<worker>", "<counter>"] and no environment, waitpid,
 * clock. (worker, counter) never repeats within a run, so that a reader of records
 * can tell a lost exec from one that was seen twice. PROGRAM has to exit 0. With
 * --execs the N attempts are shared out evenly; S may be a fraction.
 *
 * At the end, one JSON line on stdout; times in ns, CPU user + system:
 *   {"workers", "forks", "execs", "exits", "failed", "wall_ns",
 *    "latency_ns": {"p50", "p90", "p99", "mean"},          one fork..waitpid
 *    "cpu_ns": {"workers", "programs"},                    sums over all workers
 *    "boottime_ns": {"start", "end"}}
 * execs: children that exited 0. failed: forks refused, and children that did not.
 * Exit status: 0, also when some failed; 1 when it could not run; 64 usage.
 *
 * Build: gcc -O2 -static -o storm storm.c
 */
#define _GNU_SOURCE
#include <errno.h>
#include <getopt.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define NS 1000000000ull
/* 128 steps an octave: a quantile is right to 0.8 %. */
#define STEP_BITS 7
#define STEPS (1u << STEP_BITS)
#define BUCKETS (64u * STEPS)
#define MAX_WORKERS 4096

struct result {
	uint64_t forks, execs, exits, failed;
	uint64_t sum_ns, worker_cpu_ns, program_cpu_ns;
	uint64_t histogram[BUCKETS];
};

struct plan {
	const char *program;
	uint64_t until_ns; /* 0: no time limit */
	uint64_t execs;	   /* all workers together; 0: no limit */
	unsigned workers;
	int use_vfork;
};

static uint64_t boottime_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_BOOTTIME, &now);
	return now.tv_sec * NS + now.tv_nsec;
}

static unsigned bucket_of(uint64_t ns)
{
	if (ns < STEPS)
		return ns;
	unsigned octave = 63 - __builtin_clzll(ns) - STEP_BITS;
	return (octave + 1) * STEPS + ((ns >> octave) - STEPS);
}

static uint64_t bucket_start(unsigned bucket)
{
	if (bucket < STEPS)
		return bucket;
	return (uint64_t)(STEPS + bucket % STEPS) << (bucket / STEPS - 1);
}

static uint64_t quantile(const struct result *all, double share)
{
	uint64_t seen = 0, wanted = share * all->exits;

	for (unsigned i = 0; i < BUCKETS; i++) {
		seen += all->histogram[i];
		if (seen > wanted)
			return bucket_start(i);
	}
	return 0;
}

static uint64_t cpu_ns(int who)
{
	struct rusage use;

	getrusage(who, &use);
	return (use.ru_utime.tv_sec + use.ru_stime.tv_sec) * NS +
	       (use.ru_utime.tv_usec + use.ru_stime.tv_usec) * 1000ull;
}

/* Not in a function of its own: a vfork child must not return from its frame. */
#define SPAWN(how, plan, argv, none)                                                   \
	({                                                                             \
		pid_t pid_ = how();                                                    \
		if (pid_ == 0) {                                                       \
			execve((plan)->program, argv, none);                           \
			_exit(127);                                                    \
		}                                                                      \
		pid_;                                                                  \
	})

static void one(const struct plan *plan, struct result *mine, char *const argv[])
{
	char *const none[] = { NULL };
	int status;
	uint64_t begin = boottime_ns();
	pid_t pid = plan->use_vfork ? SPAWN(vfork, plan, argv, none) :
				      SPAWN(fork, plan, argv, none);

	if (pid < 0) {
		mine->failed++;
		return;
	}
	mine->forks++;
	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			_exit(1);
	uint64_t took = boottime_ns() - begin;

	mine->exits++;
	mine->sum_ns += took;
	mine->histogram[bucket_of(took)]++;
	if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
		mine->execs++;
	else
		mine->failed++;
}

static void work(const struct plan *plan, unsigned worker, struct result *mine)
{
	char worker_text[16], counter_text[24];
	char *const argv[] = { "true", worker_text, counter_text, NULL };
	uint64_t share = plan->execs / plan->workers +
			 (worker < plan->execs % plan->workers);

	snprintf(worker_text, sizeof(worker_text), "%u", worker);
	for (uint64_t i = 0; !plan->execs || i < share; i++) {
		if (plan->until_ns && boottime_ns() >= plan->until_ns)
			break;
		snprintf(counter_text, sizeof(counter_text), "%llu",
			 (unsigned long long)i);
		one(plan, mine, argv);
	}
	mine->worker_cpu_ns = cpu_ns(RUSAGE_SELF);
	mine->program_cpu_ns = cpu_ns(RUSAGE_CHILDREN);
}

static void add(struct result *all, const struct result *one)
{
	uint64_t *to = (uint64_t *)all;
	const uint64_t *from = (const uint64_t *)one;

	for (size_t i = 0; i < sizeof(*all) / sizeof(*to); i++)
		to[i] += from[i];
}

/* Runs all workers to their end; 0, or -1 when one could not start or died. */
static int run(const struct plan *plan, struct result *results)
{
	pid_t parent = getpid();
	int status, bad = 0;

	for (unsigned i = 0; i < plan->workers; i++) {
		pid_t pid = fork();

		if (pid == 0) {
			/* A storm must not outlive the one that asked for it. */
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			if (getppid() != parent)
				_exit(1);
			work(plan, i, &results[i]);
			_exit(0);
		}
		bad |= pid < 0;
	}
	while (wait(&status) > 0)
		bad |= status != 0;
	return bad ? -1 : 0;
}

static void print(const struct plan *plan, const struct result *all, uint64_t start,
		  uint64_t end)
{
	typedef unsigned long long u;

	printf("{\"workers\": %u, \"forks\": %llu, \"execs\": %llu, \"exits\": %llu, "
	       "\"failed\": %llu, \"wall_ns\": %llu, ",
	       plan->workers, (u)all->forks, (u)all->execs, (u)all->exits,
	       (u)all->failed, (u)(end - start));
	printf("\"latency_ns\": {\"p50\": %llu, \"p90\": %llu, \"p99\": %llu, "
	       "\"mean\": %llu}, ",
	       (u)quantile(all, .5), (u)quantile(all, .9), (u)quantile(all, .99),
	       (u)(all->exits ? all->sum_ns / all->exits : 0));
	printf("\"cpu_ns\": {\"workers\": %llu, \"programs\": %llu}, "
	       "\"boottime_ns\": {\"start\": %llu, \"end\": %llu}}\n",
	       (u)all->worker_cpu_ns, (u)all->program_cpu_ns, (u)start, (u)end);
}

static int usage(void)
{
	fputs("usage: storm --seconds S | --execs N [--workers W] [--vfork] PROGRAM\n",
	      stderr);
	return 64;
}

/* Fills the plan; the seconds to run come back on their own, since the clock is to
 * start only when everything is ready. -1: usage. */
static double parse(int argc, char **argv, struct plan *plan)
{
	static const struct option known[] = {
		{ "seconds", required_argument, NULL, 's' },
		{ "execs", required_argument, NULL, 'n' },
		{ "workers", required_argument, NULL, 'w' },
		{ "vfork", no_argument, NULL, 'v' },
		{ 0 },
	};
	double seconds = 0;
	int option;

	while ((option = getopt_long(argc, argv, "", known, NULL)) != -1) {
		if (option == 's')
			seconds = atof(optarg);
		else if (option == 'n')
			plan->execs = strtoull(optarg, NULL, 10);
		else if (option == 'w')
			plan->workers = strtoul(optarg, NULL, 10);
		else if (option == 'v')
			plan->use_vfork = 1;
		else
			return -1;
	}
	if (optind != argc - 1 || (seconds > 0) == (plan->execs > 0) ||
	    plan->workers < 1 || plan->workers > MAX_WORKERS)
		return -1;
	plan->program = argv[optind];
	return seconds;
}

int main(int argc, char **argv)
{
	struct plan plan = { .workers = sysconf(_SC_NPROCESSORS_ONLN) };
	double seconds = parse(argc, argv, &plan);
	static struct result all;

	if (seconds < 0)
		return usage();
	if (access(plan.program, X_OK) != 0) {
		perror(plan.program);
		return 1;
	}
	/* Shared pages: a fork copies neither them nor their page tables. */
	struct result *results = mmap(NULL, plan.workers * sizeof(*results),
				      PROT_READ | PROT_WRITE,
				      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (results == MAP_FAILED) {
		perror("mmap");
		return 1;
	}
	uint64_t start = boottime_ns();

	plan.until_ns = seconds > 0 ? start + (uint64_t)(seconds * NS) : 0;
	if (run(&plan, results) < 0) {
		fputs("storm: a worker could not start, or died\n", stderr);
		return 1;
	}
	uint64_t end = boottime_ns();

	for (unsigned i = 0; i < plan.workers; i++)
		add(&all, &results[i]);
	print(&plan, &all, start, end);
	return 0;
}
