/*
 * slot_test.c - the slot table: order of reuse, generations, stale pids.
 */
#include "run_in.h"

#include <pthread.h>
#include <setjmp.h>

#include <cmocka.h>

static struct tp_slot *held[5000];

static void
table_of(uint32_t capacity)
{
    assert_int_equal(tp_slots_init(capacity), 0);
}

static int
teardown(void **state)
{
    (void)state;
    tp_fault_arm(0);
    tp_slots_fini();
    return 0;
}

/* As a worker leaves it. */
static void
finish_slot(struct tp_slot *s)
{
    /* relaxed: one thread. */
    atomic_fetch_or_explicit(&s->state, TP_DONE, memory_order_relaxed);
    tp_slot_free(s);
}

static void
set_generation(struct tp_slot *s, uint32_t gen)
{
    /* relaxed: one thread. */
    atomic_store_explicit(&s->state, (uint64_t)gen << TP_STATE_GEN_SHIFT,
                          memory_order_relaxed);
}

static uint32_t
slots_used(void)
{
    /* relaxed: one thread. */
    return atomic_load_explicit(&tp_slots.used, memory_order_relaxed);
}

static void
capacity_must_fit_a_pid(void **state)
{
    (void)state;
    assert_int_equal(tp_slots_init(0), TROUPE_EINVAL);
    assert_int_equal(tp_slots_init(TP_MAX_ACTORS + 1), TROUPE_EINVAL);
    table_of(TP_MAX_ACTORS);
    tp_slots_fini();
    table_of(1);
}

static void
init_without_memory_says_so(void **state)
{
    (void)state;
    tp_fault_arm(1);
    assert_int_equal(tp_slots_init(100), TROUPE_ENOMEM);
    tp_fault_arm(0);
    tp_slots_fini();
    table_of(100);
    assert_non_null(tp_slot_alloc());
}

static void
fresh_slots_are_apart_and_of_generation_one(void **state)
{
    (void)state;
    table_of(1000);
    for (uint32_t i = 0; i < 1000; i++) {
        struct tp_slot *s = tp_slot_alloc();
        assert_non_null(s);
        assert_int_equal((uintptr_t)s % TP_CACHELINE, 0);
        assert_int_equal(tp_slot_index(s), i);
        troupe_pid pid = tp_slot_pid(s);
        assert_int_equal(tp_pid_index(pid), i);
        assert_int_equal(tp_pid_gen(pid), 1);
        assert_ptr_equal(tp_slot_at(pid), s);
        assert_true(pid != 0);
    }
}

static void
no_more_than_capacity_are_in_use(void **state)
{
    (void)state;
    table_of(3);
    for (int i = 0; i < 3; i++) {
        held[i] = tp_slot_alloc();
        assert_non_null(held[i]);
    }
    assert_null(tp_slot_alloc());
    assert_null(tp_slot_alloc());
    finish_slot(held[1]);
    assert_ptr_equal(tp_slot_alloc(), held[1]);
    assert_null(tp_slot_alloc());
}

static void
freed_slots_come_back_in_the_order_they_went(void **state)
{
    static const int order[] = {2, 0, 4, 3, 1};
    (void)state;
    table_of(5);
    for (int i = 0; i < 5; i++) {
        held[i] = tp_slot_alloc();
    }
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 5; i++) {
            finish_slot(held[order[i]]);
        }
        for (int i = 0; i < 5; i++) {
            assert_ptr_equal(tp_slot_alloc(), held[order[i]]);
        }
    }
}

/* One actor after another: 16 generation bits in an inbox word must last. */
static void
a_slot_rests_before_it_is_used_again(void **state)
{
    (void)state;
    table_of(TP_MAX_ACTORS);
    struct tp_slot *first = tp_slot_alloc();
    finish_slot(first);
    int between = 0;
    for (struct tp_slot *s; (s = tp_slot_alloc()) != first; between++) {
        finish_slot(s);
        assert_true(between < 100000);
    }
    assert_true(between >= 1000);
    /* But the table does not grow with each one. */
    for (int i = 0; i < 100000; i++) {
        finish_slot(tp_slot_alloc());
    }
    assert_true(slots_used() < 5000);
}

static void
the_generation_moves_on_and_wraps_past_zero(void **state)
{
    (void)state;
    table_of(1);
    struct tp_slot *s = tp_slot_alloc();
    for (uint32_t gen = 1; gen < 100; gen++) {
        assert_int_equal(tp_pid_gen(tp_slot_pid(s)), gen);
        finish_slot(s);
        assert_ptr_equal(tp_slot_alloc(), s);
    }
    set_generation(s, TP_GEN_MASK);
    troupe_pid last = tp_slot_pid(s);
    assert_int_equal(tp_pid_gen(last), (1u << 27) - 1);
    assert_true(last < (troupe_pid)1 << 47);
    finish_slot(s);
    assert_ptr_equal(tp_slot_alloc(), s);
    assert_int_equal(tp_pid_gen(tp_slot_pid(s)), 1);
    assert_true(tp_slot_pid(s) != 0);
}

/* Epoch, doom and limit belong to one life. */
static void
a_new_generation_starts_with_a_clean_word(void **state)
{
    (void)state;
    table_of(1);
    struct tp_slot *s = tp_slot_alloc();
    /* relaxed: one thread. */
    atomic_store_explicit(&s->state,
                          (7ull << TP_STATE_EPOCH_SHIFT) |
                              (5ull << TP_STATE_GEN_SHIFT) | TP_STATE_DOOMED |
                              TP_STATE_LIMITED | TP_DONE,
                          memory_order_relaxed);
    tp_slot_free(s);
    assert_ptr_equal(tp_slot_alloc(), s);
    /* relaxed: one thread. */
    assert_true(atomic_load_explicit(&s->state, memory_order_relaxed) ==
                6ull << TP_STATE_GEN_SHIFT);
}

static void
a_stale_pid_finds_nobody(void **state)
{
    (void)state;
    table_of(1);
    struct tp_slot *s = tp_slot_alloc();
    troupe_pid old = tp_slot_pid(s);
    finish_slot(s);
    assert_false(tp_pid_is_alive(old));
    s = tp_slot_alloc();
    /* relaxed: one thread. */
    atomic_fetch_or_explicit(&s->state, TP_RUNNING, memory_order_relaxed);
    assert_true(tp_pid_is_alive(tp_slot_pid(s)));
    assert_false(tp_pid_is_alive(old));
    assert_false(tp_unpark_at(old, 0));
    assert_false(tp_slot_doom(s, tp_pid_gen(old)));
    assert_int_equal(
        tp_state_of(atomic_load_explicit(&s->state, memory_order_relaxed)),
        TP_RUNNING);
}

static void
nobody_has_a_pid_beyond_the_table(void **state)
{
    (void)state;
    table_of(10);
    tp_slot_alloc();
    troupe_pid beyond = ((troupe_pid)1 << TP_PID_INDEX_BITS) | 1;
    assert_null(tp_slot_at(beyond));
    assert_false(tp_pid_is_alive(beyond));
    assert_false(tp_unpark_at(beyond, 0));
    assert_int_equal(tp_mailbox_push(beyond, NULL), TROUPE_ENOPROC);
}

static void
born(struct tp_slot *s)
{
    /* relaxed: one thread. As tp_slot_start does. */
    atomic_fetch_add_explicit(&s->state, TP_QUEUED - TP_VACANT,
                              memory_order_relaxed);
}

static void
was_issued_knows_who_ever_lived(void **state)
{
    (void)state;
    table_of(2);
    assert_false(tp_pid_was_issued(0));
    assert_false(tp_pid_was_issued((troupe_pid)1 << TP_PID_INDEX_BITS));
    struct tp_slot *s = tp_slot_alloc();
    born(s);
    troupe_pid first = tp_slot_pid(s);
    troupe_pid second = first + ((troupe_pid)1 << TP_PID_INDEX_BITS);
    assert_true(tp_pid_was_issued(first));
    assert_false(tp_pid_was_issued(second));
    finish_slot(s);
    assert_true(tp_pid_was_issued(first));
    assert_false(tp_pid_was_issued(second)); /* it rests: nobody has it yet */
    held[0] = tp_slot_alloc();
    born(held[0]);
    assert_ptr_not_equal(held[0], s);
    assert_ptr_equal(tp_slot_alloc(), s);
    born(s);
    assert_true(tp_pid_was_issued(first));
    assert_true(tp_pid_was_issued(second));
    assert_false(tp_pid_was_issued(first | (troupe_pid)1 << 47));
    assert_false(tp_pid_was_issued(first | (troupe_pid)1 << 63));
    assert_false(tp_pid_was_issued(tp_pid_index(first)));
    assert_false(tp_pid_was_issued(UINT64_MAX));
}

/* --- threads --- */

#define THREADS 4

struct swapper {
    uint64_t random;
    uintptr_t mark;
};

/* Holds up to 32 slots, with its mark in each. */
static void *
swap_slots(void *arg)
{
    struct swapper *me = arg;
    struct tp_slot *mine[32] = {NULL};
    for (int i = 0; i < 50000; i++) {
        size_t at = random_next(&me->random) % 32;
        struct tp_slot **s = &mine[at];
        if (*s == NULL) {
            *s = tp_slot_alloc();
            tp_check(*s != NULL && (*s)->actor == NULL);
            (*s)->actor = (struct tp_actor *)me->mark;
        } else {
            tp_check((*s)->actor == (struct tp_actor *)me->mark);
            (*s)->actor = NULL;
            finish_slot(*s);
            *s = NULL;
        }
    }
    for (size_t at = 0; at < 32; at++) {
        if (mine[at] != NULL) {
            mine[at]->actor = NULL;
            finish_slot(mine[at]);
        }
    }
    return NULL;
}

static void
no_slot_is_given_to_two_threads(void **state)
{
    pthread_t t[THREADS];
    struct swapper s[THREADS];
    uint64_t seed = random_seed();
    (void)state;
    table_of(THREADS * 32);
    for (size_t i = 0; i < THREADS; i++) {
        s[i] = (struct swapper){seed + i * 77, 1000 + i};
        assert_int_equal(pthread_create(&t[i], NULL, swap_slots, &s[i]), 0);
    }
    for (size_t i = 0; i < THREADS; i++) {
        pthread_join(t[i], NULL);
    }
    for (int i = 0; i < THREADS * 32; i++) {
        assert_non_null(tp_slot_alloc());
    }
    assert_null(tp_slot_alloc());
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(capacity_must_fit_a_pid, teardown),
        cmocka_unit_test_teardown(init_without_memory_says_so, teardown),
        cmocka_unit_test_teardown(fresh_slots_are_apart_and_of_generation_one,
                                  teardown),
        cmocka_unit_test_teardown(no_more_than_capacity_are_in_use, teardown),
        cmocka_unit_test_teardown(freed_slots_come_back_in_the_order_they_went,
                                  teardown),
        cmocka_unit_test_teardown(a_slot_rests_before_it_is_used_again,
                                  teardown),
        cmocka_unit_test_teardown(the_generation_moves_on_and_wraps_past_zero,
                                  teardown),
        cmocka_unit_test_teardown(a_new_generation_starts_with_a_clean_word,
                                  teardown),
        cmocka_unit_test_teardown(a_stale_pid_finds_nobody, teardown),
        cmocka_unit_test_teardown(nobody_has_a_pid_beyond_the_table, teardown),
        cmocka_unit_test_teardown(was_issued_knows_who_ever_lived, teardown),
        cmocka_unit_test_teardown(no_slot_is_given_to_two_threads, teardown),
    };
    return cmocka_run_group_tests_name("slot", tests, NULL, NULL);
}
