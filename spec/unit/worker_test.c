/*
 * worker_test.c - who runs where and when, and who is woken for it.
 */
#include "run_in.h"

#include <pthread.h>
#include <setjmp.h>
#include <sys/resource.h>

#include <cmocka.h>

static void
run(unsigned schedulers, actor_fn root)
{
    assert_int_equal(run_in(schedulers, root, NULL), TP_REASON_NORMAL);
}

/* --- statistics, read while others write them --- */

enum stat {
    SWITCHES,
    WAKES,
    PARKS
};

static uint64_t
stat_of(unsigned worker, enum stat stat)
{
    struct tp_worker_stats *s = &tp_sched.workers[worker].stats;
    /* relaxed: statistics. */
    return atomic_load_explicit(stat == SWITCHES ? &s->switches
                                : stat == WAKES  ? &s->wakes
                                                 : &s->parks,
                                memory_order_relaxed);
}

static uint64_t
sum_of(enum stat stat)
{
    uint64_t sum = 0;
    for (unsigned i = 0; i < tp_sched.count; i++) {
        sum += stat_of(i, stat);
    }
    return sum;
}

static unsigned
sleepers(void)
{
    return (unsigned)__builtin_popcountll(tp_idle_mask(&tp_sched.idle));
}

/* Until all others sleep; does not leave the worker. */
static void
wait_for_sleepers(void)
{
    SPIN_UNTIL(sleepers() == tp_sched.count - 1);
}

/* --- a pair stays together --- */

#define ROUNDS FEWER(20000)

static void
echo(struct tp_actor *self, void *unused)
{
    (void)unused;
    for (;;) {
        struct tp_msg *m = recv_msg(self);
        troupe_pid to = m->from;
        m->from = self->pid;
        CHECK_EQ(tp_mailbox_send(self, to, m), 0);
    }
}

static void
play(struct tp_actor *self, troupe_pid partner, uint64_t rounds)
{
    struct tp_msg *m = num_msg(0);
    for (uint64_t i = 0; i < rounds; i++) {
        m->from = self->pid;
        CHECK_EQ(tp_mailbox_send(self, partner, m), 0);
        m = recv_msg(self);
    }
    tp_msg_free(m);
}

/* Once a round each? */
static bool
stays_together(struct tp_actor *self, troupe_pid p)
{
    wait_for_sleepers();
    uint64_t wakes = sum_of(WAKES), switches = sum_of(SWITCHES);
    play(self, p, ROUNDS);
    wakes = sum_of(WAKES) - wakes;
    switches = sum_of(SWITCHES) - switches;
    printf("%" PRIu64 " wakes, %" PRIu64 " switches\n", wakes, switches);
    fflush(stdout);
    return switches < 2 * ROUNDS + ROUNDS / 10 && wakes < ROUNDS / 100;
}

/* Where the machine is busy the monitor moves one of the two now and then, and
 * then they may run at the same time. */
static void
ping_pong_root(struct tp_actor *self, void *unused)
{
    troupe_pid p = spawn(echo, NULL);
    (void)unused;
    ONE_OF_MANY_TRIES(stays_together(self, p));
    end_with(p, TP_REASON_KILLED);
}

static void
two_that_talk_stay_on_one_scheduler(void **state)
{
    (void)state;
    run(2, ping_pong_root);
    run(4, ping_pong_root);
}

static bool
yields_alone(struct tp_actor *self)
{
    wait_for_sleepers();
    uint64_t wakes = sum_of(WAKES), parks = sum_of(PARKS);
    for (int i = 0; i < ROUNDS; i++) {
        tp_actor_yield(self);
    }
    /* The last one may just have been on its way to sleep. */
    return sum_of(WAKES) == wakes && sum_of(PARKS) - parks < tp_sched.count;
}

/* The monitor passes on who has waited in the queue for a tick, as the root has
 * where the machine stops. */
static void
lonely_root(struct tp_actor *self, void *unused)
{
    (void)unused;
    ONE_OF_MANY_TRIES(yields_alone(self));
}

static void
a_yield_with_nobody_else_wakes_nobody(void **state)
{
    (void)state;
    run(2, lonely_root);
    run(4, lonely_root);
}

/* --- the wake slot's budget --- */

static counter third_turns, stop;

static void
take_turns(struct tp_actor *self, void *unused)
{
    (void)unused;
    while (get(&stop) == 0) {
        add(&third_turns, 1);
        tp_actor_yield(self);
    }
}

static void
third_root(struct tp_actor *self, void *unused)
{
    troupe_pid p = spawn(echo, NULL);
    (void)unused;
    set(&third_turns, 0);
    set(&stop, 0);
    play(self, p, 1);
    spawn(take_turns, NULL);
    play(self, p, ROUNDS);
    /* A turn each few dozen slices of the pair. */
    tp_check(get(&third_turns) > 2 * ROUNDS / 200);
    set(&stop, 1);
    end_with(p, TP_REASON_KILLED);
}

static void
a_pair_does_not_starve_a_third(void **state)
{
    (void)state;
    run(1, third_root);
}

/* --- behind a busy loop --- */

static counter helped;

static void
help(struct tp_actor *self, void *unused)
{
    (void)unused;
    for (;;) {
        recv_num(self);
        add(&helped, 1);
    }
}

/* Runs on without a wait until it was helped. */
static void
busy_root(struct tp_actor *self, void *unused)
{
    troupe_pid p = spawn(help, NULL);
    (void)unused;
    set(&helped, 0);
    for (uint64_t i = 1; i <= FEWER(20); i++) {
        YIELD_UNTIL(self, state_of(p) == TP_PARKED);
        CHECK_EQ(push_num(p, 1), 0);
        SPIN_UNTIL(get(&helped) == i);
    }
    end_with(p, TP_REASON_KILLED);
}

static void
what_waits_in_a_wake_slot_is_passed_on(void **state)
{
    (void)state;
    run(2, busy_root);
    run(4, busy_root);
}

static void
spin_until_helped(struct tp_actor *self, void *times)
{
    (void)self;
    add(&third_turns, 1);
    SPIN_UNTIL(get(&helped) >= (uintptr_t)times);
}

/* The spawned one, in the wake slot, runs before the one that yields, which
 * waits in the queue then: that is the sleeping sibling's. */
static void
yield_root(struct tp_actor *self, void *unused)
{
    (void)unused;
    set(&third_turns, 0);
    set(&helped, 0);
    for (uintptr_t i = 1; i <= FEWER(20); i++) {
        wait_for_sleepers();
        troupe_pid p = spawn(spin_until_helped, (void *)i);
        tp_actor_yield(self);
        SPIN_UNTIL(get(&third_turns) == i);
        add(&helped, 1);
        join_kind(self, p);
    }
}

static void
who_yields_to_a_busy_loop_goes_on_elsewhere(void **state)
{
    (void)state;
    run(2, yield_root);
    run(4, yield_root);
}

static void
sleep_and_help(struct tp_actor *self, void *arg)
{
    CHECK_EQ(tp_actor_sleep(self, *(uint64_t *)arg), 0);
    add(&helped, 1);
}

static bool
sleeps_or_slept(troupe_pid p)
{
    return state_of(p) == TP_PARKED || !tp_pid_is_alive(p);
}

/* A sleeper is due when the loop takes the next one from the wake slot. */
static void
sleeper_root(struct tp_actor *self, void *unused)
{
    (void)unused;
    set(&helped, 0);
    for (uintptr_t i = 1; i <= FEWER(20); i++) {
        uint64_t until = tp_now_ns() + MS;
        troupe_pid s = spawn(sleep_and_help, &until);
        YIELD_UNTIL(self, sleeps_or_slept(s));
        while (tp_now_ns() <= until) {
        }
        troupe_pid p = spawn(spin_until_helped, (void *)i);
        join_kind(self, p);
        join_kind(self, s);
    }
}

static void
a_sleeper_is_not_left_behind_a_busy_loop(void **state)
{
    (void)state;
    run(2, sleeper_root);
    run(4, sleeper_root);
}

/* Not due yet when the loop becomes busy. */
static void
late_sleeper_root(struct tp_actor *self, void *unused)
{
    (void)unused;
    for (uint64_t i = 1; i <= FEWER(20); i++) {
        uint64_t until = tp_now_ns() + 2 * MS, seen = get(&helped);
        troupe_pid s = spawn(sleep_and_help, &until);
        YIELD_UNTIL(self, sleeps_or_slept(s));
        SPIN_UNTIL(get(&helped) != seen);
        join_kind(self, s);
    }
}

static void
a_timer_fires_while_its_scheduler_is_busy(void **state)
{
    (void)state;
    run(2, late_sleeper_root);
    run(4, late_sleeper_root);
}

/* --- all at once --- */

static counter arrived;

/* All schedulers are needed: nobody goes on before all are there. */
static void
meet(struct tp_actor *self, void *unused)
{
    (void)self;
    (void)unused;
    uint64_t goal = (get(&arrived) / tp_sched.count + 1) * tp_sched.count;
    add(&arrived, 1);
    SPIN_UNTIL(get(&arrived) >= goal);
}

static void
meet_spawned_root(struct tp_actor *self, void *unused)
{
    troupe_pid p[8];
    (void)unused;
    set(&arrived, 0);
    for (int round = 0; round < FEWER(20); round++) {
        for (unsigned i = 0; i < tp_sched.count; i++) {
            p[i] = spawn(meet, NULL);
        }
        for (unsigned i = 0; i < tp_sched.count; i++) {
            join_kind(self, p[i]);
        }
    }
}

static void
as_many_run_as_there_are_schedulers(void **state)
{
    (void)state;
    run(2, meet_spawned_root);
    run(4, meet_spawned_root);
}

static void
sleep_and_meet(struct tp_actor *self, void *arg)
{
    CHECK_EQ(tp_actor_sleep(self, *(uint64_t *)arg), 0);
    meet(self, NULL);
}

static void
meet_timed_root(struct tp_actor *self, void *unused)
{
    troupe_pid p[8];
    (void)unused;
    set(&arrived, 0);
    for (int round = 0; round < FEWER(20); round++) {
        uint64_t until = tp_now_ns() + MS;
        for (unsigned i = 0; i < tp_sched.count; i++) {
            p[i] = spawn(sleep_and_meet, &until);
        }
        for (unsigned i = 0; i < tp_sched.count; i++) {
            join_kind(self, p[i]);
        }
    }
}

static void
who_wakes_at_one_time_runs_at_one_time(void **state)
{
    (void)state;
    run(2, meet_timed_root);
    run(4, meet_timed_root);
}

static void
wait_and_meet(struct tp_actor *self, void *unused)
{
    (void)unused;
    for (;;) {
        recv_num(self);
        meet(self, NULL);
        add(&helped, 1);
        push_num(self->parent, 1);
    }
}

static void
parked_all(struct tp_actor *self, const troupe_pid *p)
{
    for (unsigned i = 0; i < tp_sched.count; i++) {
        YIELD_UNTIL(self, state_of(p[i]) == TP_PARKED);
    }
}

static void
meet_told_root(struct tp_actor *self, void *unused)
{
    troupe_pid p[8];
    (void)unused;
    set(&arrived, 0);
    for (unsigned i = 0; i < tp_sched.count; i++) {
        p[i] = spawn(wait_and_meet, NULL);
    }
    for (int round = 0; round < FEWER(20); round++) {
        parked_all(self, p);
        for (unsigned i = 0; i < tp_sched.count; i++) {
            CHECK_EQ(push_num(p[i], 1), 0);
        }
        /* Not by yields: the root would keep a scheduler to itself. */
        for (unsigned i = 0; i < tp_sched.count; i++) {
            recv_num(self);
        }
    }
    for (unsigned i = 0; i < tp_sched.count; i++) {
        end_with(p[i], TP_REASON_KILLED);
    }
}

static void
who_is_told_at_one_time_runs_at_one_time(void **state)
{
    (void)state;
    run(2, meet_told_root);
    run(4, meet_told_root);
}

struct crowd {
    troupe_pid p[8];
};

static void *
tell_crowd(void *arg)
{
    struct crowd *c = arg;
    for (uint64_t round = 1; round <= FEWER(20); round++) {
        for (unsigned i = 0; i < tp_sched.count; i++) {
            SPIN_UNTIL(state_of(c->p[i]) == TP_PARKED);
        }
        for (unsigned i = 0; i < tp_sched.count; i++) {
            CHECK_EQ(push_num(c->p[i], 1), 0);
        }
        SPIN_UNTIL(get(&helped) == round * tp_sched.count);
    }
    tp_external_end();
    return NULL;
}

static void
meet_outside_root(struct tp_actor *self, void *unused)
{
    static struct crowd c;
    pthread_t t;
    (void)unused;
    set(&arrived, 0);
    set(&helped, 0);
    for (unsigned i = 0; i < tp_sched.count; i++) {
        c.p[i] = spawn(wait_and_meet, NULL);
    }
    tp_external_begin();
    CHECK_EQ(pthread_create(&t, NULL, tell_crowd, &c), 0);
    for (unsigned i = 0; i < FEWER(20) * tp_sched.count; i++) {
        recv_num(self);
    }
    pthread_join(t, NULL);
    for (unsigned i = 0; i < tp_sched.count; i++) {
        end_with(c.p[i], TP_REASON_KILLED);
    }
}

static void
who_is_told_by_a_thread_runs_at_one_time(void **state)
{
    (void)state;
    run(2, meet_outside_root);
    run(4, meet_outside_root);
}

/* --- no herd --- */

#define SPAWNS FEWER(200)

/* The running actor never leaves its worker here. Each spawn puts the last one
 * from the wake slot to the queue, and wakes one sleeper. */
static bool
wakes_one_each(void)
{
    unsigned here = tp_worker_self()->index;
    uint64_t freed = get(&bodies_freed);
    wait_for_sleepers();
    uint64_t own = stat_of(here, WAKES), all = sum_of(WAKES);
    for (uint64_t i = 0; i < SPAWNS; i++) {
        wait_for_sleepers();
        spawn(body_nothing, NULL);
        SPIN_UNTIL(get(&bodies_freed) >= freed + i);
    }
    own = stat_of(here, WAKES) - own;
    all = sum_of(WAKES) - all;
    printf("%d spawns, %" PRIu64 " wakes, %" PRIu64 " by siblings\n", SPAWNS,
           own, all - own);
    fflush(stdout);
    /* Fewer when the monitor was faster, and one for the last of the try before. */
    return own <= SPAWNS && all < SPAWNS + SPAWNS / 2;
}

static void
herd_root(struct tp_actor *self, void *unused)
{
    (void)self;
    (void)unused;
    ONE_OF_MANY_TRIES(wakes_one_each());
}

static void
one_is_woken_for_one_that_is_queued(void **state)
{
    (void)state;
    run(4, herd_root);
}

/* --- timers under load --- */

static void
saturated_root(struct tp_actor *self, void *unused)
{
    (void)unused;
    set(&stop, 0);
    for (int i = 0; i < 16; i++) {
        spawn(take_turns, NULL);
    }
    for (int i = 0; i < FEWER(20); i++) {
        CHECK_EQ(tp_actor_sleep(self, tp_now_ns() + MS), 0);
    }
    set(&stop, 1);
}

static void
timers_fire_while_all_schedulers_are_busy(void **state)
{
    (void)state;
    run(1, saturated_root);
    run(2, saturated_root);
}

static void
earlier_root(struct tp_actor *self, void *unused)
{
    (void)unused;
    uint64_t late = tp_now_ns() + 3600 * S, early = tp_now_ns() + MS;
    troupe_pid p = spawn(sleep_and_help, &late);
    set(&helped, 0);
    YIELD_UNTIL(self, state_of(p) == TP_PARKED);
    /* Somebody sleeps until late now; the earlier one must be heard. */
    for (int i = 0; i < FEWER(20); i++) {
        early = tp_now_ns() + MS / 4;
        troupe_pid q = spawn(sleep_and_help, &early);
        CHECK_EQ(join_kind(self, q), TP_REASON_NORMAL);
    }
    CHECK_EQ(get(&helped), FEWER(20));
    end_with(p, TP_REASON_KILLED);
}

static void
an_earlier_deadline_wakes_the_timekeeper(void **state)
{
    (void)state;
    run(1, earlier_root);
    run(2, earlier_root);
    run(4, earlier_root);
}

/* --- nothing to do --- */

static uint64_t
process_switches(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (uint64_t)u.ru_nvcsw;
}

static bool
is_idle(struct tp_actor *self)
{
    /* The monitor goes to sleep meanwhile. */
    CHECK_EQ(tp_actor_sleep(self, tp_now_ns() + 50 * MS), 0);
    uint64_t parks = sum_of(PARKS), switches = process_switches();
    CHECK_EQ(tp_actor_sleep(self, tp_now_ns() + 300 * MS), 0);
    parks = sum_of(PARKS) - parks;
    switches = process_switches() - switches;
    printf("%" PRIu64 " parks, %" PRIu64 " switches of threads\n", parks,
           switches);
    fflush(stdout);
    return parks <= 4 && switches < 60;
}

static void
idle_root(struct tp_actor *self, void *unused)
{
    troupe_pid p[100];
    (void)unused;
    for (size_t i = 0; i < FEWER(100); i++) {
        p[i] = spawn(body_wait, NULL);
        YIELD_UNTIL(self, state_of(p[i]) == TP_PARKED);
    }
    ONE_OF_MANY_TRIES(is_idle(self));
    for (size_t i = 0; i < FEWER(100); i++) {
        end_with(p[i], TP_REASON_KILLED);
    }
}

static void
an_idle_process_sleeps(void **state)
{
    (void)state;
    run(1, idle_root);
    run(2, idle_root);
}

/* --- epochs --- */

static void
epoch_root(struct tp_actor *self, void *unused)
{
    struct tp_slot *s = self->slot;
    (void)unused;
    for (int i = 0; i < 100; i++) {
        uint32_t e = tp_wait_epoch(s);
        tp_check(!tp_unpark_at(self->pid, e - 1));
        tp_check(!tp_unpark_at(self->pid, e + 1));
        tp_check(!tp_unpark_at(self->pid + (1u << TP_PID_INDEX_BITS), e));
        CHECK_EQ(state_of(self->pid), TP_RUNNING);
        tp_check(tp_unpark_at(self->pid, e));
        tp_check(!tp_unpark_at(self->pid, e)); /* it is over, once */
        CHECK_EQ(state_of(self->pid), TP_NOTIFIED);
        CHECK_EQ(tp_actor_park(self, TP_NEVER), 0); /* so it does not wait */
        tp_check(tp_wait_epoch(s) == e + 1);
        tp_check(!tp_unpark_at(self->pid, e));
        tp_check(tp_unpark_at(self->pid, e + 1));
        tp_wait_abandon(s);
        tp_check(tp_wait_epoch(s) == e + 2);
        CHECK_EQ(state_of(self->pid), TP_RUNNING);
        tp_check(!tp_unpark_at(self->pid, e + 1));
        CHECK_EQ(tp_actor_yield(self), 0);
        tp_check(tp_wait_epoch(s) == e + 3);
    }
}

static void
a_wake_counts_for_its_own_wait_only(void **state)
{
    (void)state;
    run(1, epoch_root);
}

/* --- checkpoints --- */

static void
set_stop(struct tp_actor *self, void *unused)
{
    (void)self;
    (void)unused;
    set(&stop, 1);
}

static void
checkpoint_root(struct tp_actor *self, void *unused)
{
    uint64_t give_up = tp_now_ns() + PATIENCE_NS;
    (void)self;
    (void)unused;
    for (int i = 0; i < 5; i++) {
        set(&stop, 0);
        spawn(set_stop, NULL);
        while (get(&stop) == 0) {
            tp_check(tp_now_ns() < give_up);
            tp_actor_checkpoint();
        }
    }
}

static void
a_checkpoint_lets_others_run(void **state)
{
    (void)state;
    run(1, checkpoint_root);
}

/* --- threads --- */

static void
no_more_than_64_schedulers(void **state)
{
    struct tp_run_config config = {.schedulers = 65};
    struct body *b = body_new(body_nothing, NULL, NULL);
    struct tp_reason *r;
    (void)state;
    assert_int_equal(tp_run(&config, NULL, &body_class, b, &r), TROUPE_EINVAL);
    free(b);
    run(64, body_nothing);
    run(0, body_nothing);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_that_talk_stay_on_one_scheduler),
        cmocka_unit_test(a_yield_with_nobody_else_wakes_nobody),
        cmocka_unit_test(a_pair_does_not_starve_a_third),
        cmocka_unit_test(what_waits_in_a_wake_slot_is_passed_on),
        cmocka_unit_test(who_yields_to_a_busy_loop_goes_on_elsewhere),
        cmocka_unit_test(a_sleeper_is_not_left_behind_a_busy_loop),
        cmocka_unit_test(a_timer_fires_while_its_scheduler_is_busy),
        cmocka_unit_test(as_many_run_as_there_are_schedulers),
        cmocka_unit_test(who_wakes_at_one_time_runs_at_one_time),
        cmocka_unit_test(who_is_told_at_one_time_runs_at_one_time),
        cmocka_unit_test(who_is_told_by_a_thread_runs_at_one_time),
        cmocka_unit_test(one_is_woken_for_one_that_is_queued),
        cmocka_unit_test(timers_fire_while_all_schedulers_are_busy),
        cmocka_unit_test(an_earlier_deadline_wakes_the_timekeeper),
        cmocka_unit_test(an_idle_process_sleeps),
        cmocka_unit_test(a_wake_counts_for_its_own_wait_only),
        cmocka_unit_test(a_checkpoint_lets_others_run),
        cmocka_unit_test(no_more_than_64_schedulers),
    };
    return cmocka_run_group_tests_name("worker", tests, NULL, NULL);
}
