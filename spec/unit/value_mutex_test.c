/*
 * value_mutex_test.c - turns, hand-over, ends of holders and waiters.
 */
#include "actor/value_mutex.h"
#include "run_in.h"

#include <setjmp.h>

#include <cmocka.h>

static void
run(actor_fn root)
{
    for (unsigned n = 1; n <= 2; n++) {
        assert_int_equal(run_in(n, root, NULL), TP_REASON_NORMAL);
    }
}

struct player {
    struct tp_value_mutex *m;
    uint64_t deadline_ns;
    int rc;
    bool abandoned;
    uint64_t order; /* in which it got the mutex */
    counter go;     /* it unlocks, or ends with it */
    bool keeps;     /* it ends with it */
};

static counter turns;

static void
play(struct tp_actor *self, void *arg)
{
    struct player *p = arg;
    p->rc = tp_value_mutex_lock(self, p->m, p->deadline_ns, &p->abandoned);
    if (p->rc != 0) {
        return;
    }
    p->order = add(&turns, 1);
    YIELD_UNTIL(self, get(&p->go) != 0);
    if (!p->keeps) {
        CHECK_EQ(tp_value_mutex_unlock(self, p->m), 0);
    }
}

static troupe_pid
play_parked(struct tp_actor *self, struct player *p, struct tp_value_mutex *m)
{
    *p = (struct player){.m = m, .deadline_ns = TP_NEVER, .rc = 1};
    troupe_pid pid = spawn(play, p);
    YIELD_UNTIL(self, state_of(pid) == TP_PARKED);
    return pid;
}

static void
kill_one(struct tp_actor *self, troupe_pid pid)
{
    tp_check(end_with(pid, TP_REASON_KILLED));
    CHECK_EQ(join_kind(self, pid), TP_REASON_KILLED);
}

/* -- one actor --------------------------------------------------------------- */

static void
alone_root(struct tp_actor *self, void *unused)
{
    bool abandoned;
    (void)unused;
    struct tp_value_mutex *m = tp_value_mutex_new(num_msg(1));
    CHECK_EQ(tp_value_mutex_unlock(self, m), TROUPE_EINVAL);
    CHECK_EQ(tp_value_mutex_lock(self, m, 0, &abandoned), 0);
    tp_check(!abandoned && tp_value_mutex_is_held_by(m, self->pid));
    CHECK_EQ(tp_value_mutex_lock(self, m, TP_NEVER, &abandoned), TROUPE_EBUSY);
    CHECK_EQ(tp_value_mutex_try_lock(self, m, &abandoned), TROUPE_EBUSY);
    tp_value_mutex_set(m, num_msg(2));
    CHECK_EQ(tp_value_mutex_unlock(self, m), 0);
    CHECK_EQ(tp_value_mutex_unlock(self, m), TROUPE_EINVAL);
    CHECK_EQ(tp_value_mutex_try_lock(self, m, &abandoned), 0);
    CHECK_EQ(msg_num(m->value), 2);
    /* The holder keeps it alive, and its end lets it go. */
    tp_value_mutex_unref(m);
}

static void
it_is_locked_by_one_and_once(void **state)
{
    (void)state;
    run(alone_root);
}

/* -- several ------------------------------------------------------------------ */

#define PLAYERS 4

static void
turns_root(struct tp_actor *self, void *unused)
{
    struct player p[PLAYERS];
    troupe_pid pids[PLAYERS];
    bool abandoned;
    (void)unused;
    struct tp_value_mutex *m = tp_value_mutex_new(num_msg(1));
    set(&turns, 0);
    CHECK_EQ(tp_value_mutex_lock(self, m, TP_NEVER, &abandoned), 0);
    for (size_t i = 0; i < PLAYERS; i++) {
        pids[i] = play_parked(self, &p[i], m);
    }
    CHECK_EQ(tp_value_mutex_unlock(self, m), 0);
    /* Handed over: nobody who comes now is faster. */
    CHECK_EQ(tp_value_mutex_try_lock(self, m, &abandoned), TROUPE_EBUSY);
    CHECK_EQ(tp_value_mutex_lock(self, m, tp_now_ns() + MS, &abandoned),
             TROUPE_ETIMEOUT);
    for (size_t i = 0; i < PLAYERS; i++) {
        set(&p[i].go, 1);
    }
    for (size_t i = 0; i < PLAYERS; i++) {
        CHECK_EQ(join_kind(self, pids[i]), TP_REASON_NORMAL);
        CHECK_EQ(p[i].order, i + 1);
        tp_check(!p[i].abandoned);
    }
    CHECK_EQ(tp_value_mutex_try_lock(self, m, &abandoned), 0);
    CHECK_EQ(tp_value_mutex_unlock(self, m), 0);
    tp_value_mutex_unref(m);
}

static void
it_is_handed_over_in_order(void **state)
{
    (void)state;
    run(turns_root);
}

/* Kill a waiter, then the holder: the third gets it, and learns it. */
static void
kills_root(struct tp_actor *self, void *unused)
{
    struct player p[3];
    bool abandoned;
    (void)unused;
    struct tp_value_mutex *m = tp_value_mutex_new(num_msg(1));
    p[0] = (struct player){.m = m, .deadline_ns = TP_NEVER, .rc = 1};
    set(&turns, 0);
    troupe_pid holder = spawn(play, &p[0]);
    YIELD_UNTIL(self, get(&turns) == 1);
    troupe_pid second = play_parked(self, &p[1], m);
    troupe_pid third = play_parked(self, &p[2], m);
    kill_one(self, second);
    kill_one(self, holder);
    set(&p[2].go, 1);
    CHECK_EQ(join_kind(self, third), TP_REASON_NORMAL);
    CHECK_EQ(p[2].rc, 0);
    tp_check(p[2].abandoned);
    /* It has unlocked: the next one need not know. */
    CHECK_EQ(tp_value_mutex_try_lock(self, m, &abandoned), 0);
    tp_check(!abandoned);
    CHECK_EQ(tp_value_mutex_unlock(self, m), 0);
    tp_value_mutex_unref(m);
}

static void
the_third_gets_it_when_a_waiter_and_the_holder_are_killed(void **state)
{
    (void)state;
    run(kills_root);
}

/* One that was given the mutex and is killed before it runs passes it on. */
static void
given_root(struct tp_actor *self, void *unused)
{
    struct player p[2];
    bool abandoned;
    (void)unused;
    struct tp_value_mutex *m = tp_value_mutex_new(num_msg(1));
    CHECK_EQ(tp_value_mutex_lock(self, m, TP_NEVER, &abandoned), 0);
    set(&turns, 0);
    troupe_pid first = play_parked(self, &p[0], m);
    troupe_pid second = play_parked(self, &p[1], m);
    CHECK_EQ(tp_value_mutex_unlock(self, m), 0);
    tp_check(tp_value_mutex_is_held_by(m, first));
    kill_one(self, first); /* one scheduler: it has not run */
    set(&p[1].go, 1);
    CHECK_EQ(join_kind(self, second), TP_REASON_NORMAL);
    CHECK_EQ(p[1].order, 1);
    tp_check(!p[1].abandoned);
    tp_value_mutex_unref(m);
}

static void
who_is_killed_with_it_in_hand_passes_it_on(void **state)
{
    (void)state;
    assert_int_equal(run_in(1, given_root, NULL), TP_REASON_NORMAL);
}

static void
fault_root(struct tp_actor *self, void *unused)
{
    struct player p = {.deadline_ns = TP_NEVER, .rc = 1};
    bool abandoned;
    (void)unused;
    tp_fault_arm(1);
    struct tp_msg *value = NULL;
    struct tp_value_mutex *none = tp_value_mutex_new(value);
    tp_fault_arm(0);
    tp_check(none == NULL);
    struct tp_value_mutex *m = p.m = tp_value_mutex_new(num_msg(1));
    set(&turns, 0);
    troupe_pid holder = spawn(play, &p);
    YIELD_UNTIL(self, get(&turns) == 1);
    for (long nth = 1;; nth++) {
        tp_fault_arm(nth);
        int rc = tp_value_mutex_lock(self, m, tp_now_ns() + MS, &abandoned);
        bool hit = tp_fault_fired();
        tp_fault_arm(0);
        CHECK_EQ(rc, hit ? TROUPE_ENOMEM : TROUPE_ETIMEOUT);
        if (!hit) {
            break;
        }
    }
    set(&p.go, 1);
    CHECK_EQ(join_kind(self, holder), TP_REASON_NORMAL);
    CHECK_EQ(tp_value_mutex_try_lock(self, m, &abandoned), 0);
    CHECK_EQ(tp_value_mutex_unlock(self, m), 0);
    tp_value_mutex_unref(m);
}

static void
without_memory_it_is_not_locked(void **state)
{
    (void)state;
    run(fault_root);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_is_locked_by_one_and_once),
        cmocka_unit_test(it_is_handed_over_in_order),
        cmocka_unit_test(
            the_third_gets_it_when_a_waiter_and_the_holder_are_killed),
        cmocka_unit_test(who_is_killed_with_it_in_hand_passes_it_on),
        cmocka_unit_test(without_memory_it_is_not_locked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
