/*
 * fault_test.c - overflow contained, explained or passed on; alternate stacks.
 */
#define _GNU_SOURCE
#include "run_in.h"

#include "ctx/fault.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define TEST(unit, name) static void unit##_##name(void **state)

/* -- deep recursion ------------------------------------------------------- */

static volatile int zero;

__attribute__((noinline)) static int
deep(int n)
{
    volatile char frame[512];
    frame[n % 512] = (char)n;
    return zero == 1 ? 0 : deep(n + 1) + frame[0];
}

static bool
may_abandon(struct tp_actor *a, uintptr_t pc)
{
    (void)a;
    return pc >= (uintptr_t)deep && pc < (uintptr_t)deep + 4096;
}

static void
deep_main(struct tp_actor *a, void *arg)
{
    (void)a;
    (void)arg;
    deep(0);
}

static const struct tp_actor_class contained = {.main = deep_main,
                                                .may_abandon = may_abandon};
static const struct tp_actor_class stubborn = {.main = deep_main};

static void
overflow_many(struct tp_actor *self, void *unused)
{
    troupe_pid pid;
    (void)unused;
    for (int i = 0; i < 50; i++) {
        CHECK_EQ(tp_spawn(NULL, &contained, NULL, &pid), 0);
        enum tp_reason_kind kind = join_kind(self, pid);
        tp_check(kind == TP_REASON_OVERFLOW || kind == TP_REASON_NOPROC);
    }
}

TEST(fault, overflow_ends_the_actor_only)
{
    (void)state;
    assert_int_equal(run_in(1, overflow_many, NULL), TP_REASON_NORMAL);
    assert_int_equal(run_in(2, overflow_many, NULL), TP_REASON_NORMAL);
}

/* -- deaths, each in a child process -------------------------------------- */

/* The child's signal, 0 when it exited well; what it wrote goes to text. */
static int
death(void (*fn)(void), char *text, size_t size)
{
    int pipes[2], status;
    assert_int_equal(pipe(pipes), 0);
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        signal(SIGSEGV, SIG_DFL);
        dup2(pipes[1], STDERR_FILENO);
        fn();
        _exit(0);
    }
    close(pipes[1]);
    size_t n = 0;
    ssize_t got;
    while (n + 1 < size && (got = read(pipes[0], text + n, size - n - 1)) > 0) {
        n += (size_t)got;
    }
    text[n] = '\0';
    close(pipes[0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status);
}

static void
stubborn_root(struct tp_actor *self, void *unused)
{
    troupe_pid pid;
    (void)unused;
    CHECK_EQ(tp_spawn(NULL, &stubborn, NULL, &pid), 0);
    join_kind(self, pid);
}

static void
run_stubborn(void)
{
    run_in(1, stubborn_root, NULL);
}

TEST(fault, overflow_in_other_code_is_explained)
{
    char text[8192];
    (void)state;
    assert_int_equal(death(run_stubborn, text, sizeof text), SIGSEGV);
    assert_non_null(strstr(text, "troupe: stack overflow of actor <0."));
    assert_non_null(strstr(text, "reserve 262144, guard 262144"));
    assert_non_null(strstr(text, "stack.reserve"));
}

static void
poke(struct tp_actor *self, void *unused)
{
    (void)self;
    (void)unused;
    *(volatile int *)(uintptr_t)(zero + 8) = 1;
}

static void
run_foreign(void)
{
    run_in(1, poke, NULL);
}

TEST(fault, foreign_fault_dies_by_default)
{
    char text[8192];
    (void)state;
    assert_int_equal(death(run_foreign, text, sizeof text), SIGSEGV);
    assert_null(strstr(text, "troupe:"));
}

static void
earlier(int sig, siginfo_t *info, void *uc)
{
    (void)sig;
    (void)uc;
    _exit(info->si_addr == (void *)8 ? 77 : 78);
}

static void
run_foreign_handled(void)
{
    struct sigaction sa;
    memset(&sa, 0, sizeof sa);
    sa.sa_sigaction = earlier;
    sa.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGSEGV, &sa, NULL);
    run_in(1, poke, NULL);
}

TEST(fault, foreign_fault_goes_to_the_earlier_handler)
{
    char text[8192];
    (void)state;
    assert_int_equal(death(run_foreign_handled, text, sizeof text), 77);
}

/* -- what is brought back ------------------------------------------------- */

TEST(fault, handlers_and_alternate_stack_are_restored)
{
    static char own[65536];
    struct sigaction before, after;
    stack_t mine = {.ss_sp = own, .ss_size = sizeof own}, now, old;
    (void)state;
    assert_int_equal(sigaltstack(&mine, &old), 0);
    sigaction(SIGSEGV, NULL, &before);
    assert_int_equal(run_in(2, body_nothing, NULL), TP_REASON_NORMAL);
    sigaction(SIGSEGV, NULL, &after);
    assert_ptr_equal(before.sa_sigaction, after.sa_sigaction);
    sigaltstack(NULL, &now);
    assert_ptr_equal(now.ss_sp, own);
    assert_int_equal(now.ss_size, sizeof own);
    sigaltstack(&old, NULL);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fault_overflow_ends_the_actor_only),
        cmocka_unit_test(fault_overflow_in_other_code_is_explained),
        cmocka_unit_test(fault_foreign_fault_dies_by_default),
        cmocka_unit_test(fault_foreign_fault_goes_to_the_earlier_handler),
        cmocka_unit_test(fault_handlers_and_alternate_stack_are_restored),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
