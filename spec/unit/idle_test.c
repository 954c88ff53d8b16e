/*
 * idle_test.c - the mask of sleeping workers: one claim each, none is missed.
 */
#include "run_in.h"

#include "sched/idle.h"

#include <pthread.h>
#include <setjmp.h>

#include <cmocka.h>

static struct tp_idle idle;

static int
setup(void **state)
{
    (void)state;
    /* relaxed: one thread. */
    atomic_store_explicit(&idle.mask, 0, memory_order_relaxed);
    return 0;
}

static void
all_has_one_bit_a_worker(void **state)
{
    (void)state;
    assert_true(tp_idle_all(1) == 1);
    assert_true(tp_idle_all(2) == 3);
    assert_true(tp_idle_all(63) == UINT64_MAX >> 1);
    assert_true(tp_idle_all(64) == UINT64_MAX);
}

static void
enter_says_who_sleeps_with_it(void **state)
{
    (void)state;
    assert_true(tp_idle_enter(&idle, 0) == 1);
    assert_true(tp_idle_enter(&idle, 63) == (1ull << 63 | 1));
    assert_true(tp_idle_enter(&idle, 0) == (1ull << 63 | 1));
    tp_idle_leave(&idle, 0);
    tp_idle_leave(&idle, 0); /* set or not */
    tp_idle_leave(&idle, 5);
    assert_true(tp_idle_mask(&idle) == 1ull << 63);
}

static void
a_claim_takes_one_and_takes_it_once(void **state)
{
    (void)state;
    assert_int_equal(tp_idle_claim(&idle, 0), -1);
    tp_idle_enter(&idle, 3);
    tp_idle_enter(&idle, 40);
    int a = tp_idle_claim(&idle, 0);
    int b = tp_idle_claim(&idle, 0);
    assert_true((a == 3 && b == 40) || (a == 40 && b == 3));
    assert_int_equal(tp_idle_claim(&idle, 0), -1);
    assert_true(tp_idle_mask(&idle) == 0);
}

static void
a_claim_leaves_the_one_to_avoid(void **state)
{
    (void)state;
    tp_idle_enter(&idle, 0);
    tp_idle_enter(&idle, 7);
    assert_int_equal(tp_idle_claim(&idle, 1), 7);
    assert_int_equal(tp_idle_claim(&idle, 1), -1);
    assert_true(tp_idle_mask(&idle) == 1);
    assert_int_equal(tp_idle_claim(&idle, 1 << 7), 0);
}

/* So that who looks twice sees that somebody was awake in between. */
static void
each_leave_is_counted(void **state)
{
    (void)state;
    uint64_t before = tp_idle_leaves(&idle);
    tp_idle_enter(&idle, 2);
    assert_int_equal(tp_idle_claim(&idle, 0), 2);
    assert_true(tp_idle_leaves(&idle) == before);
    tp_idle_leave(&idle, 2); /* its bit is gone already */
    assert_true(tp_idle_leaves(&idle) == before + 1);
    tp_idle_enter(&idle, 2);
    tp_idle_leave(&idle, 2);
    assert_true(tp_idle_leaves(&idle) == before + 2);
}

/* --- threads --- */

#define CLAIMERS 3
#define ROUNDS   500

static counter claims[TP_WORKERS_MAX];
static counter round_no, claimers_done;

static void *
claim_all(void *unused)
{
    (void)unused;
    for (uint64_t r = 1;; r++) {
        SPIN_UNTIL(get(&round_no) >= r);
        if (get(&round_no) == TP_NEVER) {
            return NULL;
        }
        for (int w; (w = tp_idle_claim(&idle, 0)) >= 0;) {
            add(&claims[w], 1);
        }
        add(&claimers_done, 1);
    }
}

static void
racing_claims_get_each_sleeper_once(void **state)
{
    pthread_t t[CLAIMERS];
    (void)state;
    set(&round_no, 0);
    set(&claimers_done, 0);
    for (size_t i = 0; i < CLAIMERS; i++) {
        assert_int_equal(pthread_create(&t[i], NULL, claim_all, NULL), 0);
    }
    FOR_A_WHILE(r, ROUNDS)
    {
        for (unsigned w = 0; w < TP_WORKERS_MAX; w++) {
            tp_idle_enter(&idle, w);
        }
        set(&round_no, r);
        SPIN_UNTIL(get(&claimers_done) == r * CLAIMERS);
        for (unsigned w = 0; w < TP_WORKERS_MAX; w++) {
            assert_int_equal(get(&claims[w]), r);
        }
    }
    set(&round_no, TP_NEVER);
    for (size_t i = 0; i < CLAIMERS; i++) {
        pthread_join(t[i], NULL);
    }
}

#define SHOTS 20000

static counter work, start_no, producer_done;
static int producer_claimed;

static void *
produce(void *unused)
{
    (void)unused;
    for (uint64_t i = 1;; i++) {
        SPIN_UNTIL(get(&start_no) >= i);
        if (get(&start_no) == TP_NEVER) {
            return NULL;
        }
        set(&work, i);
        producer_claimed = tp_idle_claim(&idle, 0);
        set(&producer_done, i);
    }
}

/* IDLE-1: the parker sees the work, or the producer sees the parker. */
static void
work_is_seen_or_its_producer_wakes(void **state)
{
    pthread_t t;
    uint64_t slept = 0, shots = 0;
    (void)state;
    set(&work, 0);
    set(&start_no, 0);
    set(&producer_done, 0);
    assert_int_equal(pthread_create(&t, NULL, produce, NULL), 0);
    FOR_A_WHILE(i, SHOTS)
    {
        set(&start_no, i);
        for (uint64_t n = i * 37 % 8000; n > 0; n--) {
            __asm__ volatile("");
        }
        tp_idle_enter(&idle, 5);
        bool seen = get(&work) == i;
        SPIN_UNTIL(get(&producer_done) == i);
        assert_true(seen || producer_claimed == 5);
        slept += !seen;
        shots++;
        tp_idle_leave(&idle, 5);
    }
    set(&start_no, TP_NEVER);
    pthread_join(t, NULL);
    printf("slept %" PRIu64 " of %" PRIu64 " times\n", slept, shots);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(all_has_one_bit_a_worker, setup),
        cmocka_unit_test_setup(enter_says_who_sleeps_with_it, setup),
        cmocka_unit_test_setup(a_claim_takes_one_and_takes_it_once, setup),
        cmocka_unit_test_setup(a_claim_leaves_the_one_to_avoid, setup),
        cmocka_unit_test_setup(each_leave_is_counted, setup),
        cmocka_unit_test_setup(racing_claims_get_each_sleeper_once, setup),
        cmocka_unit_test_setup(work_is_seen_or_its_producer_wakes, setup),
    };
    return cmocka_run_group_tests_name("idle", tests, NULL, NULL);
}
