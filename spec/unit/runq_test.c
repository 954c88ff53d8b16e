/*
 * runq_test.c - one thread's view of the run queues; for each backend.
 *
 * One text for all backends, built once for each; where they differ the test
 * asks has_own_queues. Needs the checked build (tp_runq_start, tp_fault_arm).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/sys.h"
#include "sched/runq.h"
#include "troupe.h"

#include <stdlib.h>
#include <string.h>

#define N 5000 /* more than any backend's ring */

struct item {
    struct tp_runq_node node; /* first: a node is an item */
    int id;
    int seen;
};

static struct item items[N];

/* Has each worker a queue that others can steal from? */
static bool
has_own_queues(void)
{
    return strcmp(tp_runq_backend(), "steal") == 0 ||
           strcmp(tp_runq_backend(), "striped") == 0;
}

static struct tp_runq *
fresh(unsigned workers)
{
    struct tp_runq *q = NULL;
    memset(items, 0, sizeof(items));
    for (int i = 0; i < N; i++) {
        items[i].id = i;
    }
    assert_int_equal(tp_runq_new(workers, &q), 0);
    return q;
}

static int
id_of(struct tp_runq_node *n)
{
    return n == NULL ? -1 : ((struct item *)(void *)n)->id;
}

static int
pop_id(struct tp_runq *q, unsigned worker)
{
    return id_of(tp_runq_pop(q, worker));
}

/* Pop with each worker until nothing is left; each item 0..n-1 once. */
static void
drain_once_each(struct tp_runq *q, unsigned workers, int n)
{
    int got = 0;
    for (unsigned idle = 0, w = 0; idle < workers; w = (w + 1) % workers) {
        assert_int_equal(tp_runq_has_work(q), got < n);
        int id = pop_id(q, w);
        idle = id < 0 ? idle + 1 : 0;
        if (id >= 0) {
            assert_int_equal(items[id].seen++, 0);
            got++;
        }
    }
    assert_int_equal(got, n);
    assert_false(tp_runq_has_work(q));
}

static void
new_refuses_odd_sizes_and_reports_no_memory(void **state)
{
    struct tp_runq *q = NULL;
    (void)state;
    assert_int_equal(tp_runq_new(0, &q), TROUPE_EINVAL);
    assert_int_equal(tp_runq_new(TP_RUNQ_WORKERS_MAX + 1, &q), TROUPE_EINVAL);
    tp_fault_arm(1);
    assert_int_equal(tp_runq_new(2, &q), TROUPE_ENOMEM);
    tp_fault_arm(0);
    assert_null(q);
    assert_int_equal(tp_runq_new(TP_RUNQ_WORKERS_MAX, &q), 0);
    tp_runq_free(q);
    tp_runq_free(NULL);
}

/* Where the pushes of that worker are. */
static size_t
len_near(struct tp_runq *q, unsigned worker)
{
    return tp_runq_len(q, has_own_queues() ? worker : TP_RUNQ_SHARED);
}

static void
an_empty_queue_has_nothing(void **state)
{
    struct tp_runq *q = fresh(3);
    (void)state;
    for (unsigned w = 0; w < 3; w++) {
        assert_null(tp_runq_pop(q, w));
        assert_null(tp_runq_steal(q, w, w));
        assert_int_equal(tp_runq_len(q, w), 0);
    }
    assert_int_equal(tp_runq_len(q, TP_RUNQ_SHARED), 0);
    assert_false(tp_runq_has_work(q));
    tp_runq_free(q);
}

static void
the_owner_gets_its_pushes_in_order(void **state)
{
    struct tp_runq *q = fresh(2);
    (void)state;
    for (int round = 0; round < 40; round++) {
        for (int i = 0; i < 100; i++) {
            tp_runq_push(q, 1, &items[i].node);
        }
        assert_int_equal(len_near(q, 1), 100);
        for (int i = 0; i < 100; i++) {
            assert_int_equal(pop_id(q, 1), i);
        }
        assert_int_equal(len_near(q, 1), 0);
    }
    assert_null(tp_runq_pop(q, 1));
    tp_runq_free(q);
}

/* What a peek may say while n items, the next of which is id, are queued. */
static void
check_peek(struct tp_runq *q, unsigned worker, int id, int n)
{
    for (int i = 0; i <= n; i++) {
        struct tp_runq_node *next = tp_runq_peek(q, worker, (uint32_t)i);
        int want = i < n ? id + i : -1;
        if (strcmp(tp_runq_backend(), "steal") == 0) {
            assert_int_equal(id_of(next), want);
        } else {
            assert_null(next);
        }
    }
}

static void
a_peek_tells_what_comes_next(void **state)
{
    struct tp_runq *q;
    (void)state;
    tp_runq_start = UINT32_MAX - 4;
    q = fresh(2);
    tp_runq_start = 0;
    check_peek(q, 0, 0, 0);
    for (int i = 0; i < 10; i++) {
        tp_runq_push(q, 0, &items[i].node);
        check_peek(q, 0, 0, i + 1);
    }
    check_peek(q, 1, 0, 0);
    for (int i = 0; i < 10; i++) {
        assert_int_equal(pop_id(q, 0), i);
        check_peek(q, 0, i + 1, 9 - i);
    }
    tp_runq_free(q);
}

static void
injected_items_come_in_order(void **state)
{
    struct tp_runq *q = fresh(2);
    (void)state;
    for (int i = 0; i < 50; i++) {
        tp_runq_inject(q, &items[i].node);
    }
    assert_int_equal(tp_runq_len(q, TP_RUNQ_SHARED), 50);
    for (int i = 0; i < 50; i++) { /* fewer pops than the fair turn */
        assert_int_equal(pop_id(q, 0), i);
    }
    assert_null(tp_runq_pop(q, 0));
    tp_runq_free(q);
}

static void
a_pop_of_injected_work_takes_a_share(void **state)
{
    struct tp_runq *q = fresh(2);
    (void)state;
    for (int i = 0; i < 20; i++) {
        tp_runq_inject(q, &items[i].node);
    }
    assert_int_equal(pop_id(q, 0), 0);
    if (has_own_queues()) { /* 20 / 2 + 1 taken, one of them returned */
        assert_int_equal(tp_runq_len(q, 0), 10);
        assert_int_equal(tp_runq_len(q, TP_RUNQ_SHARED), 9);
    }
    assert_int_equal(pop_id(q, 1), has_own_queues() ? 11 : 1);
    tp_runq_free(q);
}

static void
more_than_fits_is_kept(void **state)
{
    struct tp_runq *q = fresh(2);
    size_t sum = 0;
    (void)state;
    for (int i = 0; i < N; i++) {
        tp_runq_push(q, 0, &items[i].node);
    }
    sum += tp_runq_len(q, 0) + tp_runq_len(q, 1);
    sum += tp_runq_len(q, TP_RUNQ_SHARED);
    assert_int_equal(sum, N);
    drain_once_each(q, 2, N);
    tp_runq_free(q);
}

static void
an_overflow_gives_away_the_older_half(void **state)
{
    struct tp_runq *q = fresh(2);
    (void)state;
    if (strcmp(tp_runq_backend(), "steal") != 0) {
        tp_runq_free(q);
        skip();
    }
    for (int i = 0; i < 257; i++) {
        tp_runq_push(q, 0, &items[i].node);
    }
    assert_int_equal(tp_runq_len(q, 0), 128);
    assert_int_equal(tp_runq_len(q, TP_RUNQ_SHARED), 129);
    assert_int_equal(pop_id(q, 1), 0);
    assert_int_equal(pop_id(q, 0), 128);
    tp_runq_free(q);
}

static void
a_thief_takes_half_rounded_up(void **state)
{
    static const int before[] = {1, 2, 3, 10, 101, 256};
    (void)state;
    if (!has_own_queues()) {
        skip();
    }
    for (size_t k = 0; k < sizeof(before) / sizeof(before[0]); k++) {
        struct tp_runq *q = fresh(3);
        int n = before[k], half = (n + 1) / 2;
        for (int i = 0; i < n; i++) {
            tp_runq_push(q, 0, &items[i].node);
        }
        assert_int_equal(id_of(tp_runq_steal(q, 2, (uint32_t)n)), 0);
        assert_int_equal(len_near(q, 2), half - 1);
        assert_int_equal(len_near(q, 0), n - half);
        for (int i = 1; i < half; i++) {
            assert_int_equal(id_of(tp_runq_pop(q, 2)), i);
        }
        for (int i = half; i < n; i++) {
            assert_int_equal(id_of(tp_runq_pop(q, 0)), i);
        }
        assert_false(tp_runq_has_work(q));
        tp_runq_free(q);
    }
}

static void
a_thief_with_a_full_queue_takes_what_fits(void **state)
{
    struct tp_runq *q = fresh(2);
    (void)state;
    for (int i = 0; i < 250; i++) {
        tp_runq_push(q, 0, &items[i].node);
        tp_runq_push(q, 1, &items[250 + i].node);
    }
    struct tp_runq_node *n = tp_runq_steal(q, 0, 0);
    int left = 500;
    if (has_own_queues()) {
        assert_int_equal(id_of(n), 250);
        items[250].seen = 1;
        left--;
    } else {
        assert_null(n);
    }
    drain_once_each(q, 2, left);
    tp_runq_free(q);
}

static void
a_thief_finds_the_only_victim_from_any_seed(void **state)
{
    (void)state;
    if (!has_own_queues()) {
        skip();
    }
    struct tp_runq *q = fresh(5);
    for (uint32_t seed = 0; seed < 20; seed++) {
        tp_runq_push(q, 3, &items[seed].node);
        assert_int_equal(id_of(tp_runq_steal(q, 1, seed)), (int)seed);
        assert_null(tp_runq_steal(q, 3, seed));
    }
    tp_runq_free(q);
}

static void
injected_work_is_not_starved_by_own_work(void **state)
{
    struct tp_runq *q = fresh(2);
    int pops = 0, id;
    (void)state;
    tp_runq_push(q, 0, &items[0].node);
    tp_runq_push(q, 0, &items[1].node);
    tp_runq_inject(q, &items[2].node);
    do { /* the worker's own two never end */
        id = pop_id(q, 0);
        assert_true(id >= 0);
        tp_runq_push(q, 0, &items[id].node);
        pops++;
    } while (id != 2);
    assert_true(pops <= TP_RUNQ_FAIR);
    tp_runq_free(q);
}

static void
overflown_work_is_not_starved(void **state)
{
    struct tp_runq *q = fresh(1);
    int popped = 0;
    (void)state;
    for (int i = 0; i < N; i++) {
        tp_runq_push(q, 0, &items[i].node);
    }
    for (long pops = 0; popped < N; pops++) {
        int id = pop_id(q, 0);
        popped += items[id].seen++ == 0;
        tp_runq_push(q, 0, &items[id].node);
        assert_true(pops < 2l * TP_RUNQ_FAIR * N);
    }
    tp_runq_free(q);
}

static void
own_work_is_not_starved_by_injected_work(void **state)
{
    struct tp_runq *q = fresh(1);
    int next = 1, pops = 0;
    (void)state;
    for (; next < 200; next++) {
        tp_runq_inject(q, &items[next].node);
    }
    tp_runq_push(q, 0, &items[0].node);
    while (pop_id(q, 0) != 0) {
        tp_runq_inject(q, &items[next++].node);
        assert_true(++pops <= 200); /* all that was there before it */
    }
    tp_runq_free(q);
}

static void
has_work_sees_every_place(void **state)
{
    struct tp_runq *q = fresh(3);
    (void)state;
    for (unsigned w = 0; w < 3; w++) {
        tp_runq_push(q, w, &items[0].node);
        assert_true(tp_runq_has_work(q));
        assert_int_equal(pop_id(q, w), 0);
        assert_false(tp_runq_has_work(q));
        tp_runq_inject(q, &items[1].node);
        assert_true(tp_runq_has_work(q));
        assert_int_equal(pop_id(q, w), 1);
        assert_false(tp_runq_has_work(q));
    }
    tp_runq_free(q);
}

/* Random pushes, pops, steals and injections with counters that pass `start`
 * plus a little; each item comes out as often as it went in. */
static void
churn(uint32_t start)
{
    tp_runq_start = start;
    struct tp_runq *q = fresh(2);
    uint32_t rnd = start | 1;
    int in = 0, out = 0;
    for (int step = 0; step < 20000; step++) {
        rnd = rnd * 1664525u + 1013904223u;
        unsigned w = (rnd >> 9) & 1, what = rnd >> 29;
        if (what < 4 && in - out < N && items[in % N].seen == 0) {
            items[in % N].seen = 1;
            if (what == 0) {
                tp_runq_inject(q, &items[in % N].node);
            } else {
                tp_runq_push(q, w, &items[in % N].node);
            }
            in++;
        } else {
            int id = what == 7 ? id_of(tp_runq_steal(q, w, rnd)) : pop_id(q, w);
            if (id >= 0) {
                assert_int_equal(items[id].seen, 1);
                items[id].seen = 0;
                out++;
            }
        }
        assert_int_equal(tp_runq_len(q, 0) + tp_runq_len(q, 1) +
                             tp_runq_len(q, TP_RUNQ_SHARED),
                         in - out);
        assert_int_equal(tp_runq_has_work(q), in != out);
    }
    for (int i = 0; i < N; i++) {
        items[i].seen = !items[i].seen;
    }
    drain_once_each(q, 2, in - out);
    tp_runq_free(q);
    tp_runq_start = 0;
}

static void
counters_may_wrap(void **state)
{
    (void)state;
    for (uint32_t back = 0; back < 6; back++) {
        churn(0u - back * 131);
        churn(0x80000000u - back * 131);
    }
}

static void
a_full_ring_over_the_wrap_keeps_order(void **state)
{
    static const uint32_t at[] = {0u, 0x80000000u};
    (void)state;
    for (uint32_t k = 0; k < 2 * 257; k++) {
        tp_runq_start = at[k & 1] - k / 2;
        struct tp_runq *q = fresh(2);
        for (int i = 0; i < 256; i++) {
            tp_runq_push(q, 0, &items[i].node);
        }
        int first = has_own_queues() ? 128 : 0;
        if (has_own_queues()) {
            assert_int_equal(id_of(tp_runq_steal(q, 1, 0)), 0);
            assert_int_equal(tp_runq_len(q, 1), 127);
        }
        for (int i = first; i < 256; i++) {
            assert_int_equal(pop_id(q, 0), i);
        }
        tp_runq_free(q);
    }
    tp_runq_start = 0;
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(new_refuses_odd_sizes_and_reports_no_memory),
        cmocka_unit_test(an_empty_queue_has_nothing),
        cmocka_unit_test(the_owner_gets_its_pushes_in_order),
        cmocka_unit_test(a_peek_tells_what_comes_next),
        cmocka_unit_test(injected_items_come_in_order),
        cmocka_unit_test(a_pop_of_injected_work_takes_a_share),
        cmocka_unit_test(more_than_fits_is_kept),
        cmocka_unit_test(an_overflow_gives_away_the_older_half),
        cmocka_unit_test(a_thief_takes_half_rounded_up),
        cmocka_unit_test(a_thief_with_a_full_queue_takes_what_fits),
        cmocka_unit_test(a_thief_finds_the_only_victim_from_any_seed),
        cmocka_unit_test(injected_work_is_not_starved_by_own_work),
        cmocka_unit_test(overflown_work_is_not_starved),
        cmocka_unit_test(own_work_is_not_starved_by_injected_work),
        cmocka_unit_test(has_work_sees_every_place),
        cmocka_unit_test(counters_may_wrap),
        cmocka_unit_test(a_full_ring_over_the_wrap_keeps_order),
    };
    return cmocka_run_group_tests_name(tp_runq_backend(), tests, NULL, NULL);
}
