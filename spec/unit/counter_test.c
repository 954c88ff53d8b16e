/*
 * counter_test.c - one number, many threads.
 */
#include "actor/counter.h"

#include "base/sys.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#define THREADS 4
#define EACH    20000

static void
it_adds_sets_and_compares(void **state)
{
    (void)state;
    struct tp_counter *c = tp_counter_new(5);
    int64_t expected = 5;
    assert_int_equal(tp_counter_get(c), 5);
    assert_int_equal(tp_counter_add(c, -7), -2);
    assert_int_equal(tp_counter_set(c, 10), -2);
    assert_false(tp_counter_cas(c, &expected, 11));
    assert_int_equal(expected, 10);
    assert_true(tp_counter_cas(c, &expected, 11));
    assert_int_equal(tp_counter_get(c), 11);
    tp_counter_unref(c);
}

static void
it_wraps_around_at_64_bits(void **state)
{
    (void)state;
    struct tp_counter *c = tp_counter_new(INT64_MAX);
    assert_true(tp_counter_add(c, 1) == INT64_MIN);
    assert_true(tp_counter_add(c, -1) == INT64_MAX);
    tp_counter_unref(c);
}

/* Adds by add and by cas, then gives up its reference. */
static void *
add_many(void *arg)
{
    struct tp_counter *c = arg;
    for (int i = 0; i < EACH; i++) {
        tp_counter_add(c, 1);
        int64_t seen = tp_counter_get(c);
        while (!tp_counter_cas(c, &seen, seen + 1)) {
        }
    }
    tp_counter_unref(c);
    return NULL;
}

static void
no_addition_is_lost(void **state)
{
    pthread_t t[THREADS];
    (void)state;
    struct tp_counter *c = tp_counter_new(0);
    for (int i = 0; i < THREADS; i++) {
        tp_counter_ref(c);
        assert_int_equal(pthread_create(&t[i], NULL, add_many, c), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(t[i], NULL);
    }
    assert_int_equal(tp_counter_get(c), 2 * THREADS * EACH);
    tp_counter_unref(c);
}

static void
without_memory_there_is_none(void **state)
{
    (void)state;
    tp_fault_arm(1);
    assert_null(tp_counter_new(0));
    tp_fault_arm(0);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_adds_sets_and_compares),
        cmocka_unit_test(it_wraps_around_at_64_bits),
        cmocka_unit_test(no_addition_is_lost),
        cmocka_unit_test(without_memory_there_is_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
