/*
 * sys_test.c - clocks, futex, CPU count, fault injection.
 */
#define _GNU_SOURCE
#include "base/sys.h"
#include "patience.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

static void
now_rises(void **state)
{
    (void)state;
    uint64_t last = tp_now_ns();
    assert_true(last > 0);
    for (int i = 0; i < 1000; i++) {
        uint64_t now = tp_now_ns();
        assert_true(now >= last);
        last = now;
    }
}

static void
thread_cpu_time_counts_work_and_not_sleep(void **state)
{
    (void)state;
    _Atomic uint32_t word = 0;
    uint64_t cpu0, cpu1;
    int tries = 0;
    do { /* what a host takes from its guest may count as work of the guest's */
        cpu0 = tp_thread_cpu_ns();
        assert_int_equal(tp_futex_wait(&word, 0, tp_now_ns() + 50 * MS),
                         ETIMEDOUT);
        cpu1 = tp_thread_cpu_ns();
    } while (cpu1 - cpu0 >= 40 * MS && ++tries < 20);
    assert_true(cpu1 - cpu0 < 40 * MS);
    while (tp_thread_cpu_ns() - cpu1 < 2 * MS) {
    }
}

static void
cycles_move_on(void **state)
{
    (void)state;
    uint64_t c = tp_cycles();
    uint64_t deadline = tp_now_ns() + PATIENCE_NS;
    while (tp_cycles() == c) {
        assert_true(tp_now_ns() < deadline);
    }
}

static void
sat_add_stops_at_the_top(void **state)
{
    (void)state;
    assert_true(tp_sat_add(1, 2) == 3);
    assert_true(tp_sat_add(UINT64_MAX - 1, 1) == UINT64_MAX);
    assert_true(tp_sat_add(UINT64_MAX, 1) == UINT64_MAX);
    assert_true(tp_sat_add(UINT64_MAX, UINT64_MAX) == UINT64_MAX);
    assert_true(tp_sat_add(0, 0) == 0);
}

static void
futex_wait_returns_at_once_when_the_word_differs(void **state)
{
    (void)state;
    _Atomic uint32_t word = 1;
    assert_int_equal(tp_futex_wait(&word, 0, UINT64_MAX), 0);
}

static void
futex_wait_times_out_never_early(void **state)
{
    (void)state;
    _Atomic uint32_t word = 0;
    uint64_t deadline = tp_now_ns() + 3 * MS;
    while (tp_futex_wait(&word, 0, deadline) == 0) {
    }
    assert_true(tp_now_ns() >= deadline);
    /* A deadline that has passed does not sleep. */
    assert_int_equal(tp_futex_wait(&word, 0, 1), ETIMEDOUT);
}

static void *
wake_it(void *arg)
{
    _Atomic uint32_t *word = arg;
    /* SYSTEST-1 release: seen by futex_wake_ends_a_wait. */
    atomic_store_explicit(word, 1, memory_order_release);
    tp_futex_wake(word, 1);
    return NULL;
}

static void
futex_wake_ends_a_wait(void **state)
{
    (void)state;
    _Atomic uint32_t word = 0;
    pthread_t thread;
    uint64_t deadline = tp_now_ns() + PATIENCE_NS;
    assert_int_equal(pthread_create(&thread, NULL, wake_it, &word), 0);
    /* SYSTEST-1 acquire: pairs with wake_it. */
    while (atomic_load_explicit(&word, memory_order_acquire) == 0) {
        assert_int_equal(tp_futex_wait(&word, 0, deadline), 0);
    }
    pthread_join(thread, NULL);
}

static void
cpu_count_follows_affinity(void **state)
{
    (void)state;
    cpu_set_t all, one;
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    assert_in_range(tp_cpu_count(), 1, (unsigned)CPU_COUNT(&all));
    CPU_ZERO(&one);
    for (size_t i = 0; i < CPU_SETSIZE; i++) {
        if (CPU_ISSET(i, &all)) {
            CPU_SET(i, &one);
            break;
        }
    }
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    assert_int_equal(tp_cpu_count(), 1);
    assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
}

static void
mappings_can_be_made_protected_advised_and_dropped(void **state)
{
    (void)state;
    size_t page = tp_page_size();
    assert_true(page >= 4096 && (page & (page - 1)) == 0);
    char *p =
        tp_mmap(2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS);
    assert_non_null(p);
    memset(p, 1, 2 * page);
    assert_int_equal(tp_mprotect(p + page, page, PROT_NONE), 0);
    assert_int_equal(tp_madvise(p, page, MADV_DONTNEED), 0);
    assert_int_equal(p[0], 0);
    assert_int_equal(tp_munmap(p, 2 * page), 0);
    assert_null(tp_mmap(SIZE_MAX / 2, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS));
}

static void
a_thread_runs_or_is_not_made(void **state)
{
    (void)state;
    _Atomic uint32_t word = 0;
    pthread_t thread;
    tp_fault_arm(1);
    assert_int_equal(tp_thread_create(&thread, wake_it, &word), EAGAIN);
    assert_int_equal(tp_thread_create(&thread, wake_it, &word), 0);
    tp_fault_arm(0);
    pthread_join(thread, NULL);
    /* relaxed: the join orders. */
    assert_int_equal(atomic_load_explicit(&word, memory_order_relaxed), 1);
}

static void
the_nth_call_fails_once(void **state)
{
    (void)state;
    for (long n = 1; n <= 3; n++) {
        tp_fault_arm(n);
        for (long i = 1; i <= 4; i++) {
            void *p = tp_malloc(16);
            assert_int_equal(p == NULL, i == n);
            assert_int_equal(tp_fault_fired(), i >= n);
            tp_free(p);
        }
    }
    tp_fault_arm(0);
    assert_false(tp_fault_fired());
}

static void *
try_malloc(void *out_got)
{
    void *p = tp_malloc(16);
    *(bool *)out_got = p != NULL;
    tp_free(p);
    return NULL;
}

static bool
another_thread_gets_memory(void)
{
    bool got = false;
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, try_malloc, &got), 0);
    pthread_join(thread, NULL);
    return got;
}

static void
another_thread_fails_only_when_all_are_meant(void **state)
{
    (void)state;
    tp_fault_arm(1);
    assert_true(another_thread_gets_memory());
    assert_false(tp_fault_fired());
    tp_fault_arm_all(1);
    assert_false(another_thread_gets_memory());
    assert_true(tp_fault_fired());
    tp_fault_arm(0);
}

static void
every_call_can_be_made_to_fail(void **state)
{
    (void)state;
    size_t page = tp_page_size();
    void *p = tp_mmap(page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS);
    void *q = tp_malloc(8);
    assert_non_null(p);
    assert_non_null(q);
    tp_fault_arm(1);
    assert_null(tp_calloc(1, 8));
    assert_int_equal(errno, ENOMEM);
    tp_fault_arm(1);
    assert_null(tp_realloc(q, 16));
    tp_fault_arm(1);
    assert_null(tp_aligned_alloc(64, 64));
    tp_fault_arm(1);
    assert_null(tp_mmap(page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS));
    tp_fault_arm(1);
    assert_int_equal(tp_mprotect(p, page, PROT_NONE), -1);
    tp_fault_arm(1);
    assert_int_equal(tp_madvise(p, page, MADV_DONTNEED), -1);
    tp_fault_arm(0);
    q = tp_realloc(q, 16);
    assert_non_null(q);
    tp_free(q);
    q = tp_aligned_alloc(64, 128);
    assert_non_null(q);
    assert_int_equal((uintptr_t)q % 64, 0);
    tp_free(q);
    tp_munmap(p, page);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(now_rises),
        cmocka_unit_test(thread_cpu_time_counts_work_and_not_sleep),
        cmocka_unit_test(cycles_move_on),
        cmocka_unit_test(sat_add_stops_at_the_top),
        cmocka_unit_test(futex_wait_returns_at_once_when_the_word_differs),
        cmocka_unit_test(futex_wait_times_out_never_early),
        cmocka_unit_test(futex_wake_ends_a_wait),
        cmocka_unit_test(cpu_count_follows_affinity),
        cmocka_unit_test(mappings_can_be_made_protected_advised_and_dropped),
        cmocka_unit_test(a_thread_runs_or_is_not_made),
        cmocka_unit_test(the_nth_call_fails_once),
        cmocka_unit_test(another_thread_fails_only_when_all_are_meant),
        cmocka_unit_test(every_call_can_be_made_to_fail),
    };
    return cmocka_run_group_tests_name("sys", tests, NULL, NULL);
}
