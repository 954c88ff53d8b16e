/*
 * mutex_test.c - the futex mutex and the lock order checker.
 *
 * What must abort runs in a forked child that reports through its status.
 */
#define _GNU_SOURCE
#include "base/mutex.h"
#include "patience.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define THREADS 4
#define ROUNDS  50000

/* ---------------------------------------------------------- one thread --- */

static void
lock_and_unlock(void **state)
{
    (void)state;
    struct tp_mutex m;
    tp_mutex_init(&m);
    assert_true(tp_lockrank_none_held());
    tp_mutex_lock(&m, TP_RANK_SLOT);
    assert_false(tp_lockrank_none_held());
    tp_mutex_unlock(&m, TP_RANK_SLOT);
    assert_true(tp_lockrank_none_held());
}

static void
try_lock_fails_when_held(void **state)
{
    (void)state;
    struct tp_mutex m, inner;
    tp_mutex_init(&m);
    tp_mutex_init(&inner);
    assert_true(tp_mutex_try_lock(&m, TP_RANK_SLOT));
    assert_false(tp_mutex_try_lock(&m, TP_RANK_SLOT));
    /* A failed try leaves no rank behind: the next one is still in order. */
    tp_mutex_lock(&inner, TP_RANK_TIMER);
    tp_mutex_unlock(&inner, TP_RANK_TIMER);
    tp_mutex_unlock(&m, TP_RANK_SLOT);
    assert_true(tp_mutex_try_lock(&m, TP_RANK_SLOT));
    tp_mutex_unlock(&m, TP_RANK_SLOT);
}

static void
pair_locks_both_and_the_same_one_once(void **state)
{
    (void)state;
    struct tp_mutex m[2];
    tp_mutex_init(&m[0]);
    tp_mutex_init(&m[1]);
    for (int i = 0; i < 2; i++) {
        tp_mutex_lock_pair(&m[i], &m[1 - i], TP_RANK_SLOT);
        assert_false(tp_mutex_try_lock(&m[0], TP_RANK_LOG));
        assert_false(tp_mutex_try_lock(&m[1], TP_RANK_LOG));
        tp_mutex_unlock_pair(&m[i], &m[1 - i], TP_RANK_SLOT);
        assert_true(tp_lockrank_none_held());
    }
    tp_mutex_lock_pair(&m[0], &m[0], TP_RANK_SLOT);
    tp_mutex_unlock_pair(&m[0], &m[0], TP_RANK_SLOT);
    assert_true(tp_mutex_try_lock(&m[0], TP_RANK_SLOT));
    tp_mutex_unlock(&m[0], TP_RANK_SLOT);
    assert_true(tp_lockrank_none_held());
}

static void
locks_may_be_released_in_any_order(void **state)
{
    (void)state;
    struct tp_mutex low, high;
    tp_mutex_init(&low);
    tp_mutex_init(&high);
    tp_mutex_lock(&low, TP_RANK_REGISTRY);
    tp_mutex_lock(&high, TP_RANK_SLOT);
    tp_mutex_unlock(&low, TP_RANK_REGISTRY);
    tp_mutex_unlock(&high, TP_RANK_SLOT);
    assert_true(tp_lockrank_none_held());
}

/* ---------------------------------------------------------- lock order --- */

/* Run fn in a child with stderr in out; true if the child aborted. */
static bool
aborts(void (*fn)(void), char *out, size_t size)
{
    int fds[2];
    assert_int_equal(pipe(fds), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct rlimit no_core = {0, 0};
        setrlimit(RLIMIT_CORE, &no_core);
        signal(SIGABRT, SIG_DFL); /* cmocka may have its own */
        dup2(fds[1], STDERR_FILENO);
        fn();
        _exit(0);
    }
    close(fds[1]);
    size_t used = 0;
    ssize_t n;
    while ((n = read(fds[0], out + used, size - 1 - used)) > 0) {
        used += (size_t)n;
    }
    out[used] = '\0';
    close(fds[0]);
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

static void
take_high_then_low(void)
{
    struct tp_mutex low, high;
    tp_mutex_init(&low);
    tp_mutex_init(&high);
    tp_mutex_lock(&high, TP_RANK_TIMER);
    tp_mutex_lock(&low, TP_RANK_REGISTRY);
}

static void
take_one_rank_twice(void)
{
    struct tp_mutex a, b;
    tp_mutex_init(&a);
    tp_mutex_init(&b);
    tp_mutex_lock(&a, TP_RANK_SLOT);
    tp_mutex_lock(&b, TP_RANK_SLOT);
}

static void
release_what_is_not_held(void)
{
    struct tp_mutex m;
    tp_mutex_init(&m);
    tp_mutex_unlock(&m, TP_RANK_SLOT);
}

static void
wrong_order_names_both_locks_and_aborts(void **state)
{
    (void)state;
    char out[512];
    assert_true(aborts(take_high_then_low, out, sizeof out));
    assert_non_null(strstr(out, "REGISTRY"));
    assert_non_null(strstr(out, "TIMER"));
}

static void
one_rank_twice_aborts(void **state)
{
    (void)state;
    char out[512];
    assert_true(aborts(take_one_rank_twice, out, sizeof out));
    assert_non_null(strstr(out, "SLOT"));
}

static void
release_of_a_lock_not_held_aborts(void **state)
{
    (void)state;
    char out[512];
    assert_true(aborts(release_what_is_not_held, out, sizeof out));
}

static void
every_rank_has_a_name(void **state)
{
    (void)state;
    for (int r = 0; r < TP_RANK_COUNT; r++) {
        assert_string_not_equal(tp_lockrank_name((enum tp_lock_rank)r), "?");
    }
    assert_string_equal(tp_lockrank_name(TP_RANK_COUNT), "?");
}

/* ---------------------------------------------------------- contention --- */

struct shared {
    struct tp_mutex m[2];
    uint64_t count; /* under m[0] */
    uint64_t sum;   /* under m[0] and m[1] */
};

static void *
count_up(void *arg)
{
    struct shared *s = arg;
    for (int i = 0; i < ROUNDS; i++) {
        tp_mutex_lock(&s->m[0], TP_RANK_SLOT);
        s->count++;
        tp_mutex_unlock(&s->m[0], TP_RANK_SLOT);
        int k = i & 1;
        tp_mutex_lock_pair(&s->m[k], &s->m[1 - k], TP_RANK_SLOT);
        s->sum += 2;
        tp_mutex_unlock_pair(&s->m[k], &s->m[1 - k], TP_RANK_SLOT);
    }
    return NULL;
}

static void
threads_exclude_each_other(void **state)
{
    (void)state;
    struct shared s = {.count = 0};
    pthread_t threads[THREADS];
    tp_mutex_init(&s.m[0]);
    tp_mutex_init(&s.m[1]);
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, count_up, &s), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
    }
    assert_int_equal(s.count, (uint64_t)THREADS * ROUNDS);
    assert_int_equal(s.sum, (uint64_t)THREADS * ROUNDS * 2);
}

struct sleeper {
    struct tp_mutex m;
    bool got_it; /* under m */
};

static void *
lock_once(void *arg)
{
    struct sleeper *s = arg;
    tp_mutex_lock(&s->m, TP_RANK_SLOT);
    s->got_it = true;
    tp_mutex_unlock(&s->m, TP_RANK_SLOT);
    return NULL;
}

static void
unlock_wakes_a_sleeper(void **state)
{
    (void)state;
    struct sleeper s = {.got_it = false};
    pthread_t thread;
    tp_mutex_init(&s.m);
    tp_mutex_lock(&s.m, TP_RANK_SLOT);
    assert_int_equal(pthread_create(&thread, NULL, lock_once, &s), 0);
    /* 2: somebody may sleep. */
    uint64_t deadline = tp_now_ns() + PATIENCE_NS;
    /* relaxed: a poll, what follows is ordered by the mutex. */
    while (atomic_load_explicit(&s.m.word, memory_order_relaxed) != 2) {
        assert_true(tp_now_ns() < deadline);
    }
    assert_false(s.got_it);
    tp_mutex_unlock(&s.m, TP_RANK_SLOT);
    pthread_join(thread, NULL);
    assert_true(s.got_it);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lock_and_unlock),
        cmocka_unit_test(try_lock_fails_when_held),
        cmocka_unit_test(pair_locks_both_and_the_same_one_once),
        cmocka_unit_test(locks_may_be_released_in_any_order),
        cmocka_unit_test(wrong_order_names_both_locks_and_aborts),
        cmocka_unit_test(one_rank_twice_aborts),
        cmocka_unit_test(release_of_a_lock_not_held_aborts),
        cmocka_unit_test(every_rank_has_a_name),
        cmocka_unit_test(threads_exclude_each_other),
        cmocka_unit_test(unlock_wakes_a_sleeper),
    };
    return cmocka_run_group_tests_name("mutex", tests, NULL, NULL);
}
