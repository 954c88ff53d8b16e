/*
 * preempt_test.c - C actors that are cut short where their class allows it.
 */
#define _GNU_SOURCE
#include "run_in.h"

#include "ctx/preempt.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <unistd.h>

#include <cmocka.h>

#define TEST(unit, name) static void unit##_##name(void **state)

#if defined(__x86_64__)

/*
 * Counts in rax until *stop or rounds; every other register, the flags and SSE
 * registers carry a pattern that is checked each round. Returns 0, or 1 when
 * one has changed.
 */
uint64_t tp_test_spin(counter *stop, uint64_t rounds);
extern const char tp_test_spin_begin[], tp_test_spin_end[];

__asm__(".text\n"
        ".globl tp_test_spin\n"
        ".type tp_test_spin, @function\n"
        "tp_test_spin:\n"
        "  pushq %rbx\n  pushq %rbp\n  pushq %r12\n"
        "  pushq %r13\n  pushq %r14\n  pushq %r15\n"
        "  movq $3, %rbx\n  movq $4, %rcx\n  movq $5, %rdx\n"
        "  movq $6, %rbp\n  movq $8, %r8\n  movq $9, %r9\n"
        "  movq $10, %r10\n  movq $11, %r11\n  movq $12, %r12\n"
        "  movq $13, %r13\n  movq $14, %r14\n  movq $15, %r15\n"
        "  movq %rbx, %xmm1\n  movq %r12, %xmm9\n  movq %r15, %xmm15\n"
        "  movq $77, -8(%rsp)\n  movq $78, -128(%rsp)\n"
        "tp_test_spin_begin:\n"
        "1: stc\n"
        "  nop\n  nop\n  nop\n  nop\n"
        "  jnc 2f\n"
        "  cmpq $3, %rbx\n  jne 2f\n  cmpq $4, %rcx\n  jne 2f\n"
        "  cmpq $5, %rdx\n  jne 2f\n  cmpq $6, %rbp\n  jne 2f\n"
        "  cmpq $8, %r8\n  jne 2f\n  cmpq $9, %r9\n  jne 2f\n"
        "  cmpq $10, %r10\n  jne 2f\n  cmpq $11, %r11\n  jne 2f\n"
        "  cmpq $12, %r12\n  jne 2f\n  cmpq $13, %r13\n  jne 2f\n"
        "  cmpq $14, %r14\n  jne 2f\n  cmpq $15, %r15\n  jne 2f\n"
        "  movq %xmm1, %rax\n  cmpq $3, %rax\n  jne 2f\n"
        "  movq %xmm9, %rax\n  cmpq $12, %rax\n  jne 2f\n"
        "  movq %xmm15, %rax\n  cmpq $15, %rax\n  jne 2f\n"
        "  cmpq $77, -8(%rsp)\n  jne 2f\n"
        "  cmpq $78, -128(%rsp)\n  jne 2f\n"
        "  decq %rsi\n  jz 3f\n"
        "  cmpq $0, (%rdi)\n  je 1b\n"
        "tp_test_spin_end:\n"
        "3: xorl %eax, %eax\n  jmp 4f\n"
        "2: movl $1, %eax\n"
        "4: popq %r15\n  popq %r14\n  popq %r13\n"
        "  popq %r12\n  popq %rbp\n  popq %rbx\n  ret\n"
        ".size tp_test_spin, . - tp_test_spin\n");

static bool
may_stop(struct tp_actor *a, const struct tp_preempt_frame *f)
{
    (void)a;
    return f->pc >= (uintptr_t)tp_test_spin_begin &&
           f->pc < (uintptr_t)tp_test_spin_end;
}

struct spin {
    counter stop, wrong, ended, begun;
    bool shielded;
    uint64_t rounds;
};

static void
spin_main(struct tp_actor *a, void *arg)
{
    struct spin *s = arg;
    (void)a;
    add(&s->begun, 1);
    if (s->shielded) {
        troupe_nopreempt_begin();
    }
    add(&s->wrong, tp_test_spin(&s->stop, s->rounds));
    add(&s->ended, 1);
    if (s->shielded) {
        troupe_nopreempt_end();
    }
}

static const struct tp_actor_class spin_class = {.main = spin_main,
                                                 .may_stop = may_stop};

#define EVER (UINT64_MAX)

static void
four_loops(struct tp_actor *self, void *arg)
{
    struct spin *s = arg;
    troupe_pid pids[4];
    for (int i = 0; i < 4; i++) {
        CHECK_EQ(tp_spawn(NULL, &spin_class, s, &pids[i]), 0);
    }
    YIELD_UNTIL(self, get(&s->begun) == 4);
    for (int i = 0; i < 20; i++) {
        CHECK_EQ(tp_actor_sleep(self, tp_now_ns() + MS), 0);
    }
    CHECK_EQ(get(&s->ended), 0);
    set(&s->stop, 1);
    for (int i = 0; i < 4; i++) {
        tp_check(join_kind(self, pids[i]) != TP_REASON_KILLED);
    }
    CHECK_EQ(get(&s->ended), 4);
    CHECK_EQ(get(&s->wrong), 0);
}

TEST(preempt, loops_let_others_run_and_keep_all_registers)
{
    (void)state;
    for (unsigned n = 1; n <= 2; n++) {
        struct spin s = {.rounds = EVER};
        struct tp_run_config config = {.schedulers = n, .slice_ns = MS / 10};
        struct tp_reason *r = run_config(&config, four_loops, &s);
        assert_int_equal(r->kind, TP_REASON_NORMAL);
        tp_reason_unref(r);
    }
}

static void
kill_loop(struct tp_actor *self, void *arg)
{
    struct spin *s = arg;
    troupe_pid pid;
    CHECK_EQ(tp_spawn(NULL, &spin_class, s, &pid), 0);
    YIELD_UNTIL(self, get(&s->begun) == 1);
    tp_check(end_with(pid, TP_REASON_KILLED));
    enum tp_reason_kind kind = join_kind(self, pid);
    tp_check(kind == TP_REASON_KILLED || kind == TP_REASON_NOPROC);
    CHECK_EQ(get(&s->ended), 0);
}

TEST(preempt, a_loop_can_be_killed)
{
    (void)state;
    for (unsigned n = 1; n <= 2; n++) {
        struct spin s = {.rounds = EVER};
        assert_int_equal(run_in(n, kill_loop, &s), TP_REASON_NORMAL);
    }
}

/* The second one is taken first, and has a slice longer than any test. */
static void
kill_queued(struct tp_actor *self, void *arg)
{
    struct spin *s = arg;
    troupe_pid first, second;
    CHECK_EQ(tp_spawn(NULL, &spin_class, s, &first), 0);
    CHECK_EQ(tp_spawn(NULL, &spin_class, s, &second), 0);
    tp_check(end_with(first, TP_REASON_KILLED));
    CHECK_EQ(join_kind(self, first), TP_REASON_KILLED);
    CHECK_EQ(get(&s->begun), 1);
    set(&s->stop, 1);
}

TEST(preempt, who_shall_end_does_not_wait_for_a_long_slice)
{
    struct spin s = {.rounds = EVER};
    struct tp_run_config config = {.schedulers = 1, .slice_ns = 1000 * S};
    (void)state;
    struct tp_reason *r = run_config(&config, kill_queued, &s);
    assert_int_equal(r->kind, TP_REASON_NORMAL);
    tp_reason_unref(r);
}

/* -- finalizers without end ------------------------------------------------ */

static counter gone;

static void
spin_finish(struct tp_actor *a, void *arg)
{
    struct spin *s = arg;
    add(&s->begun, 1);
    tp_test_spin(&s->stop, s->rounds);
    add(&s->ended, 1);
    (void)a;
}

static void
note_gone(struct tp_actor *a, void *arg)
{
    (void)arg;
    tp_check(a->given_up);
    add(&gone, 1);
}

static void
waits(struct tp_actor *a, void *arg)
{
    (void)arg;
    tp_actor_sleep(a, TP_NEVER);
}

static const struct tp_actor_class endless_class = {.main = waits,
                                                    .finish = spin_finish,
                                                    .overflowed = note_gone,
                                                    .may_stop = may_stop,
                                                    .may_give_up = may_stop};

static void
end_endless(struct tp_actor *self, void *arg)
{
    struct spin *s = arg;
    troupe_pid pids[3];
    for (int i = 0; i < 3; i++) {
        CHECK_EQ(tp_spawn(NULL, &endless_class, s, &pids[i]), 0);
    }
    for (int i = 0; i < 3; i++) {
        tp_check(end_with(pids[i], TP_REASON_KILLED));
    }
    for (int i = 0; i < 3; i++) {
        enum tp_reason_kind kind = join_kind(self, pids[i]);
        tp_check(kind == TP_REASON_KILLED);
    }
    YIELD_UNTIL(self, get(&gone) == 3);
    CHECK_EQ(get(&s->begun), 3);
    CHECK_EQ(get(&s->ended), 0);
}

/* The run ends: else nothing would make them leave their schedulers. */
TEST(preempt, finalizers_without_end_are_given_up)
{
    uint64_t patience = atomic_exchange_explicit(&tp_finish_patience_ns,
                                                 50 * MS, memory_order_relaxed);
    (void)state;
    for (int mode = TROUPE_PREEMPT_SIGNAL; mode <= TROUPE_PREEMPT_OFF; mode++) {
        for (unsigned n = 1; n <= 2; n++) {
            struct spin s = {.rounds = EVER};
            struct tp_run_config config = {
                .schedulers = n, .preemption = (enum troupe_preemption)mode};
            set(&gone, 0);
            struct tp_reason *r = run_config(&config, end_endless, &s);
            assert_int_equal(r->kind, TP_REASON_NORMAL);
            tp_reason_unref(r);
            assert_int_equal(
                atomic_load_explicit(&tp_actor_given_up, memory_order_relaxed),
                3);
        }
    }
    atomic_store_explicit(&tp_finish_patience_ns, patience,
                          memory_order_relaxed);
}

/* One that takes its time, in many slices, is not. */
static void
end_slow(struct tp_actor *self, void *arg)
{
    struct spin *s = arg;
    struct spin loop = {.rounds = EVER};
    troupe_pid pid, other;
    CHECK_EQ(tp_spawn(NULL, &endless_class, s, &pid), 0);
    CHECK_EQ(tp_spawn(NULL, &spin_class, &loop, &other), 0);
    YIELD_UNTIL(self, get(&loop.begun) == 1);
    tp_check(end_with(pid, TP_REASON_KILLED));
    CHECK_EQ(join_kind(self, pid), TP_REASON_KILLED);
    YIELD_UNTIL(self, get(&s->ended) == 1);
    CHECK_EQ(get(&gone), 0);
    set(&loop.stop, 1);
    tp_check(join_kind(self, other) != TP_REASON_KILLED); /* loop is ours */
}

TEST(preempt, finalizers_that_are_slow_come_to_their_end)
{
    struct spin s = {.rounds = 20000000};
    (void)state;
    set(&gone, 0);
    assert_int_equal(run_in(1, end_slow, &s), TP_REASON_NORMAL);
}

static void
shielded_loop(struct tp_actor *self, void *arg)
{
    struct spin *s = arg;
    troupe_pid pid;
    CHECK_EQ(tp_spawn(NULL, &spin_class, s, &pid), 0);
    CHECK_EQ(tp_actor_yield(self), 0);
    /* One scheduler: we run again only when the loop has ended. */
    YIELD_UNTIL(self, get(&s->begun) == 1);
    CHECK_EQ(get(&s->ended), 1);
}

TEST(preempt, nopreempt_is_respected)
{
    struct spin s = {.rounds = 20000000, .shielded = true};
    (void)state;
    assert_int_equal(run_in(1, shielded_loop, &s), TP_REASON_NORMAL);
}

#endif

/* -- the host's own use of the signal ------------------------------------- */

static counter host_signals;

static void
host_handler(int sig)
{
    (void)sig;
    add(&host_signals, 1);
}

static void
raise_it(struct tp_actor *self, void *unused)
{
    (void)self;
    (void)unused;
    for (int i = 0; i < 10; i++) {
        kill(getpid(), SIGURG);
    }
    SPIN_UNTIL(get(&host_signals) > 0);
}

TEST(preempt, the_hosts_handler_is_chained_and_restored)
{
    struct sigaction now, old;
    (void)state;
    struct sigaction sa;
    memset(&sa, 0, sizeof sa);
    sa.sa_handler = host_handler;
    sigaction(SIGURG, &sa, &old);
    set(&host_signals, 0);
    assert_int_equal(run_in(2, raise_it, NULL), TP_REASON_NORMAL);
    sigaction(SIGURG, NULL, &now);
    assert_ptr_equal(now.sa_handler, host_handler);
    sigaction(SIGURG, &old, NULL);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
#if defined(__x86_64__)
        cmocka_unit_test(preempt_loops_let_others_run_and_keep_all_registers),
        cmocka_unit_test(preempt_a_loop_can_be_killed),
        cmocka_unit_test(preempt_nopreempt_is_respected),
        cmocka_unit_test(preempt_who_shall_end_does_not_wait_for_a_long_slice),
        cmocka_unit_test(preempt_finalizers_without_end_are_given_up),
        cmocka_unit_test(preempt_finalizers_that_are_slow_come_to_their_end),
#endif
        cmocka_unit_test(preempt_the_hosts_handler_is_chained_and_restored),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
