/* The program a storm runs: enters, exits 0. No libc, so that what is timed is
 * the kernel's fork, exec and exit and not a dynamic loader.
 * Build: gcc -O2 -static -nostdlib -o true true.c
 */
__attribute__((noreturn)) void _start(void)
{
#if defined(__x86_64__)
	__asm__ volatile("xor %%edi, %%edi; mov $60, %%eax; syscall" ::: "memory");
#elif defined(__aarch64__)
	__asm__ volatile("mov x0, #0; mov x8, #93; svc #0" ::: "memory");
#else
#error "exit(2) is not written for this machine"
#endif
	__builtin_unreachable();
}
