/*
 * pidset_test.c - a set of pids: the same as a plain array of them.
 */
#include "base/pidset.h"
#include "run_in.h"

#include <setjmp.h>

#include <cmocka.h>

static void
an_empty_set_holds_nothing(void **state)
{
    struct tp_pidset s = {0};
    (void)state;
    assert_false(tp_pidset_has(&s, 1));
    assert_false(tp_pidset_has(&s, 0));
    assert_false(tp_pidset_remove(&s, 1));
    assert_false(tp_pidset_has_room(&s));
    tp_pidset_fini(&s);
    assert_true(tp_pidset_reserve(&s));
    assert_false(tp_pidset_has(&s, 1));
    assert_false(tp_pidset_has(&s, 0));
    tp_pidset_fini(&s);
    assert_int_equal(s.capacity, 0);
}

static void
add_and_remove_say_whether_it_was_there(void **state)
{
    struct tp_pidset s = {0};
    (void)state;
    assert_true(tp_pidset_reserve(&s));
    assert_true(tp_pidset_add(&s, 7));
    assert_true(tp_pidset_reserve(&s));
    assert_false(tp_pidset_add(&s, 7));
    assert_int_equal(s.count, 1);
    assert_true(tp_pidset_has(&s, 7));
    assert_true(tp_pidset_remove(&s, 7));
    assert_false(tp_pidset_remove(&s, 7));
    assert_int_equal(s.count, 0);
    tp_pidset_fini(&s);
}

static void
after_reserve_add_needs_no_memory(void **state)
{
    struct tp_pidset s = {0};
    (void)state;
    for (uint64_t k = 1; k <= 1000; k++) {
        assert_true(tp_pidset_reserve(&s));
        tp_fault_arm(1);
        assert_true(tp_pidset_add(&s, k << 20));
        tp_fault_arm(0);
    }
    tp_pidset_fini(&s);
}

static void
without_memory_the_set_stays_as_it_is(void **state)
{
    struct tp_pidset s = {0};
    (void)state;
    for (uint64_t k = 1; k <= 100; k++) {
        if (!tp_pidset_has_room(&s)) {
            tp_fault_arm(1);
            assert_false(tp_pidset_reserve(&s));
            tp_fault_arm(0);
            assert_int_equal(s.count, k - 1);
            for (uint64_t j = 1; j < k; j++) {
                assert_true(tp_pidset_has(&s, j));
            }
            assert_true(tp_pidset_reserve(&s));
        }
        assert_true(tp_pidset_add(&s, k));
    }
    tp_pidset_fini(&s);
}

/* -- against a model ------------------------------------------------------ */

#define KEYS 300

/* The index of keys is a permutation of no meaning, so that some collide. */
static uint64_t
key_of(uint64_t shape, uint64_t i)
{
    switch (shape) {
    case 0:
        return i + 1; /* small numbers */
    case 1:
        return (i + 1) << 20; /* one slot, many generations */
    case 2:
        return (i + 1) << 58 | (i + 1); /* far apart */
    default:
        return (i + 1) * 0x9e3779b97f4a7c15ull; /* anything */
    }
}

static void
check_all(const struct tp_pidset *s, const bool *there, uint64_t shape)
{
    uint32_t n = 0, listed = 0;
    for (uint64_t i = 0; i < KEYS; i++) {
        assert_int_equal(tp_pidset_has(s, key_of(shape, i)), there[i]);
        n += there[i];
    }
    for (uint32_t i = 0; i < s->capacity; i++) {
        listed += s->keys[i] != 0;
    }
    assert_int_equal(s->count, n);
    assert_int_equal(listed, n);
}

static void
it_is_the_set_of_the_model(void **state)
{
    uint64_t x = random_seed();
    (void)state;
    for (uint64_t shape = 0; shape < 4; shape++) {
        struct tp_pidset s = {0};
        bool there[KEYS] = {false};
        for (int op = 0; op < 20000; op++) {
            /* Grows, shrinks, grows: phases of more adds or more removals. */
            uint64_t i = random_next(&x) % KEYS;
            bool add = random_next(&x) % 8 < (op / 2500 % 2 == 0 ? 6u : 2u);
            if (add) {
                assert_true(tp_pidset_reserve(&s));
                assert_int_equal(tp_pidset_add(&s, key_of(shape, i)),
                                 !there[i]);
            } else {
                assert_int_equal(tp_pidset_remove(&s, key_of(shape, i)),
                                 there[i]);
            }
            there[i] = add;
            if (op % 64 == 0) {
                check_all(&s, there, shape);
            }
        }
        check_all(&s, there, shape);
        tp_pidset_fini(&s);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_empty_set_holds_nothing),
        cmocka_unit_test(add_and_remove_say_whether_it_was_there),
        cmocka_unit_test(after_reserve_add_needs_no_memory),
        cmocka_unit_test(without_memory_the_set_stays_as_it_is),
        cmocka_unit_test(it_is_the_set_of_the_model),
    };
    return cmocka_run_group_tests_name("pidset", tests, NULL, NULL);
}
