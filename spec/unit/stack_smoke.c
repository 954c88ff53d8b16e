/*
 * stack_smoke.c - a guard that holds, without cmocka, for CPUs that run under
 * an emulator: one may say yes to an advice that it ignores. Prints "ok" and
 * returns 0, or aborts.
 */
#define _GNU_SOURCE
#include "base/check.h"
#include "mem/stack.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

/* The signal that ends a process that writes there, 0 for none. */
static int
write_to(char *p)
{
    int status;
    pid_t child = fork();
    tp_check(child >= 0);
    if (child == 0) {
        const struct rlimit none = {0, 0};
        setrlimit(RLIMIT_CORE, &none);
        signal(SIGSEGV, SIG_DFL);
        *(volatile char *)p = 1;
        _exit(0);
    }
    tp_check(waitpid(child, &status, 0) == child);
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

int
main(void)
{
    struct tp_stack s;
    tp_check(tp_stacks_init(0, 0) == 0);
    tp_check(tp_stack_get(0, 0, &s) == 0);
    tp_check(write_to(s.hi - 1) == 0 && write_to(s.lo) == 0);
    tp_check(write_to(s.lo - 1) == SIGSEGV);
    tp_check(write_to(s.lo - s.guard) == SIGSEGV);
    tp_stack_put(&s, NULL);
    tp_stacks_fini();
    puts("ok");
    return 0;
}
