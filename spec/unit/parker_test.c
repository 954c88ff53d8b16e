/*
 * parker_test.c - one thread's sleep: permits, timeouts, no wake is lost.
 */
#include "run_in.h"

#include "sched/parker.h"

#include <pthread.h>
#include <setjmp.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <cmocka.h>

static uint64_t
patience(void)
{
    return tp_now_ns() + PATIENCE_NS;
}

static void
an_unpark_before_the_park_is_kept(void **state)
{
    struct tp_parker p;
    (void)state;
    tp_parker_init(&p);
    tp_parker_unpark(&p);
    assert_true(tp_parker_park(&p, TP_NEVER));
}

static void
permits_do_not_add_up(void **state)
{
    struct tp_parker p;
    (void)state;
    tp_parker_init(&p);
    tp_parker_unpark(&p);
    tp_parker_unpark(&p);
    tp_parker_unpark(&p);
    assert_true(tp_parker_park(&p, TP_NEVER));
    assert_false(tp_parker_park(&p, tp_now_ns() + MS));
}

static void
a_park_without_permit_ends_at_its_deadline_and_not_before(void **state)
{
    struct tp_parker p;
    (void)state;
    tp_parker_init(&p);
    for (int i = 0; i < 5; i++) {
        uint64_t deadline = tp_now_ns() + 2 * MS;
        assert_false(tp_parker_park(&p, deadline));
        assert_true(tp_now_ns() >= deadline);
    }
    /* One that timed out leaves nothing behind. */
    tp_parker_unpark(&p);
    assert_true(tp_parker_park(&p, TP_NEVER));
}

static void
a_deadline_in_the_past_polls(void **state)
{
    struct tp_parker p;
    (void)state;
    tp_parker_init(&p);
    assert_false(tp_parker_park(&p, 0));
    assert_false(tp_parker_park(&p, 1));
    tp_parker_unpark(&p);
    assert_true(tp_parker_park(&p, 0));
}

static bool
is_signalled(int fd)
{
    struct epoll_event e;
    int set = tp_epoll_create();
    assert_int_equal(tp_epoll_ctl(set, EPOLL_CTL_ADD, fd, EPOLLIN, 0), 0);
    int n = tp_epoll_wait(set, &e, 1, 0);
    close(set);
    return n == 1;
}

static void
one_that_polls_is_woken_by_its_event_fd(void **state)
{
    struct tp_parker p;
    int fd = tp_event_fd();
    (void)state;
    tp_parker_init(&p);
    tp_parker_unpark(&p);
    assert_false(tp_parker_poll_begin(&p, fd)); /* it has a permit */
    tp_parker_poll_end(&p);
    assert_true(tp_parker_poll_begin(&p, fd));
    assert_false(is_signalled(fd));
    tp_parker_unpark(&p);
    assert_true(is_signalled(fd));
    tp_parker_poll_end(&p);
    assert_true(tp_parker_poll_begin(&p, fd));
    tp_parker_poll_end(&p);
    assert_false(tp_parker_park(&p, 1)); /* no permit is left behind */
    close(fd);
}

static void *
unpark_once(void *arg)
{
    tp_parker_unpark(arg);
    return NULL;
}

static void
huge_deadlines_sleep_until_the_unpark(void **state)
{
    static const uint64_t huge[] = {UINT64_MAX - 1, UINT64_MAX / 2, TP_NEVER};
    (void)state;
    for (size_t i = 0; i < sizeof huge / sizeof *huge; i++) {
        struct tp_parker p;
        pthread_t t;
        tp_parker_init(&p);
        assert_int_equal(pthread_create(&t, NULL, unpark_once, &p), 0);
        assert_true(tp_parker_park(&p, huge[i]));
        pthread_join(t, NULL);
    }
}

/* --- threads --- */

#define ROUNDS 20000

struct end {
    struct tp_parker parker;
    uint64_t ball; /* handed over by unpark and park alone */
};

static struct end ends[2];

static void *
play(void *arg)
{
    size_t me = (size_t)(uintptr_t)arg;
    for (uint64_t i = 1; i <= ROUNDS; i++) {
        if (me == 0) {
            ends[1].ball = i;
            tp_parker_unpark(&ends[1].parker);
        }
        tp_check(tp_parker_park(&ends[me].parker, patience()));
        CHECK_EQ(ends[me].ball, i);
        if (me == 1) {
            ends[0].ball = i;
            tp_parker_unpark(&ends[0].parker);
        }
    }
    return NULL;
}

static void
two_threads_hand_a_ball_back_and_forth(void **state)
{
    pthread_t t;
    (void)state;
    tp_parker_init(&ends[0].parker);
    tp_parker_init(&ends[1].parker);
    assert_int_equal(pthread_create(&t, NULL, play, (void *)(uintptr_t)1), 0);
    play(NULL);
    pthread_join(t, NULL);
}

static counter produced;
static struct tp_parker consumer;

static void *
produce(void *unused)
{
    uint64_t x = 88172645463325252u;
    (void)unused;
    for (int i = 0; i < ROUNDS; i++) {
        add(&produced, 1);
        tp_parker_unpark(&consumer);
        for (uint64_t n = random_next(&x) % 400; n > 0; n--) {
            __asm__ volatile("");
        }
    }
    return NULL;
}

/* Timeouts race with unparks: whatever comes, the last one is seen. */
static void
no_wake_is_lost_to_a_timeout(void **state)
{
    pthread_t t[2];
    uint64_t x = random_seed();
    (void)state;
    set(&produced, 0);
    tp_parker_init(&consumer);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pthread_create(&t[i], NULL, produce, NULL), 0);
    }
    while (get(&produced) < 2 * ROUNDS) {
        uint64_t seen = get(&produced);
        bool hasty = random_next(&x) % 4 != 0;
        uint64_t until = tp_now_ns() + random_next(&x) % 50000;
        bool permit = tp_parker_park(&consumer, hasty ? until : patience());
        /* A long sleep ends by permit: all was seen only if all was made. */
        tp_check(hasty || permit || seen == 2 * ROUNDS);
    }
    for (int i = 0; i < 2; i++) {
        pthread_join(t[i], NULL);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_unpark_before_the_park_is_kept),
        cmocka_unit_test(permits_do_not_add_up),
        cmocka_unit_test(
            a_park_without_permit_ends_at_its_deadline_and_not_before),
        cmocka_unit_test(a_deadline_in_the_past_polls),
        cmocka_unit_test(one_that_polls_is_woken_by_its_event_fd),
        cmocka_unit_test(huge_deadlines_sleep_until_the_unpark),
        cmocka_unit_test(two_threads_hand_a_ball_back_and_forth),
        cmocka_unit_test(no_wake_is_lost_to_a_timeout),
    };
    return cmocka_run_group_tests_name("parker", tests, NULL, NULL);
}
