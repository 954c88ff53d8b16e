/*
 * reason_test.c - why an actor ended: constants, values, counted references.
 */
#include "run_in.h"

#include <pthread.h>
#include <setjmp.h>

#include <cmocka.h>

static uint32_t
refs(struct tp_reason *r)
{
    /* relaxed: one thread. */
    return atomic_load_explicit(&r->refs, memory_order_relaxed);
}

static void
each_kind_but_value_is_one_constant(void **state)
{
    (void)state;
    for (int k = 0; k < TP_REASON_VALUE; k++) {
        struct tp_reason *r = tp_reason_const((enum tp_reason_kind)k);
        assert_non_null(r);
        assert_int_equal(r->kind, k);
        assert_ptr_equal(tp_reason_const((enum tp_reason_kind)k), r);
        assert_int_equal(r->size, 0);
        for (int i = 0; i < k; i++) {
            assert_ptr_not_equal(tp_reason_const((enum tp_reason_kind)i), r);
        }
    }
}

static void
constants_are_not_counted(void **state)
{
    struct tp_reason *r = tp_reason_const(TP_REASON_KILLED);
    (void)state;
    assert_ptr_equal(tp_reason_ref(r), r);
    for (int i = 0; i < 10; i++) {
        tp_reason_unref(r);
    }
    assert_int_equal(refs(r), 0);
    assert_int_equal(r->kind, TP_REASON_KILLED);
}

static void
a_value_is_a_copy(void **state)
{
    char text[] = "boom";
    (void)state;
    struct tp_reason *r = tp_reason_new(text, sizeof text);
    text[0] = 'z';
    assert_int_equal(r->kind, TP_REASON_VALUE);
    assert_int_equal(r->size, sizeof text);
    assert_string_equal((char *)r->data, "boom");
    assert_int_equal(refs(r), 1);
    tp_reason_unref(r);
}

static void
an_empty_value_is_a_value(void **state)
{
    (void)state;
    struct tp_reason *r = tp_reason_new("", 0);
    assert_int_equal(r->kind, TP_REASON_VALUE);
    assert_int_equal(r->size, 0);
    tp_reason_unref(r);
}

static void
no_memory_is_a_reason_of_its_own(void **state)
{
    (void)state;
    tp_fault_arm(1);
    struct tp_reason *r = tp_reason_new("boom", 4);
    tp_fault_arm(0);
    assert_ptr_equal(r, tp_reason_const(TP_REASON_MEMORY));
    tp_reason_unref(r);
    r = tp_reason_new("boom", SIZE_MAX);
    assert_ptr_equal(r, tp_reason_const(TP_REASON_MEMORY));
}

static int objects_released;

static void
release_objects(struct tp_reason *r)
{
    assert_int_equal(r->data[0], 'x');
    objects_released++;
}

static void
the_last_one_releases_what_a_reason_names(void **state)
{
    (void)state;
    tp_reason_release = release_objects;
    struct tp_reason *r = tp_reason_new("x", 1);
    tp_reason_unref(r);
    assert_int_equal(objects_released, 0);
    r = tp_reason_new("x", 1);
    r->has_objects = true;
    tp_reason_unref(tp_reason_ref(r));
    assert_int_equal(objects_released, 0);
    tp_reason_unref(r);
    assert_int_equal(objects_released, 1);
    tp_reason_release = NULL;
}

#define THREADS 4

static void *
ref_and_unref(void *arg)
{
    struct tp_reason *r = arg;
    for (int i = 0; i < 50000; i++) {
        struct tp_reason *mine = tp_reason_ref(r);
        tp_check(mine->kind == TP_REASON_VALUE && mine->data[0] == 'x');
        tp_reason_unref(mine);
    }
    tp_reason_unref(r);
    return NULL;
}

/* Who is last frees: the sanitizers watch. */
static void
threads_share_one_reason(void **state)
{
    pthread_t t[THREADS];
    (void)state;
    struct tp_reason *r = tp_reason_new("x", 1);
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(
            pthread_create(&t[i], NULL, ref_and_unref, tp_reason_ref(r)), 0);
    }
    tp_reason_unref(r);
    for (int i = 0; i < THREADS; i++) {
        pthread_join(t[i], NULL);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_kind_but_value_is_one_constant),
        cmocka_unit_test(constants_are_not_counted),
        cmocka_unit_test(a_value_is_a_copy),
        cmocka_unit_test(an_empty_value_is_a_value),
        cmocka_unit_test(no_memory_is_a_reason_of_its_own),
        cmocka_unit_test(the_last_one_releases_what_a_reason_names),
        cmocka_unit_test(threads_share_one_reason),
    };
    return cmocka_run_group_tests_name("reason", tests, NULL, NULL);
}
