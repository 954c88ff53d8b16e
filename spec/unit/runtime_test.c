/*
 * runtime_test.c - start, run, stop, and again.
 */
#include "run_in.h"

#include "actor/delay.h"
#include "mem/slab.h"

#include <pthread.h>
#include <setjmp.h>

#include <cmocka.h>

static void
run(unsigned schedulers, actor_fn root)
{
    assert_int_equal(run_in(schedulers, root, NULL), TP_REASON_NORMAL);
}

static counter mark, parked_ends;

#define PARKED FEWER(50)
#define JOINED FEWER(20)

static void
body_fail(struct tp_actor *self, void *unused)
{
    (void)unused;
    tp_actor_exit(self, tp_reason_new("broken", 6));
}

/* --- again --- */

static void
some_work(struct tp_actor *self, void *unused)
{
    (void)unused;
    for (int i = 0; i < JOINED; i++) {
        CHECK_EQ(join_kind(self, spawn(body_nothing, NULL)), TP_REASON_NORMAL);
    }
    spawn(body_wait, NULL);
    CHECK_EQ(tp_actor_sleep(self, tp_now_ns() + 100000), 0);
}

static void
work_and_fail(struct tp_actor *self, void *unused)
{
    some_work(self, NULL);
    body_fail(self, unused);
}

static void
work_and_halt(struct tp_actor *self, void *unused)
{
    some_work(self, NULL);
    tp_halt(3);
    body_wait(self, unused);
}

static void
work_and_wait(struct tp_actor *self, void *unused)
{
    some_work(self, NULL);
    body_wait(self, unused);
}

static void
a_run_can_follow_a_run_however_it_ended(void **state)
{
    static const struct {
        actor_fn fn;
        enum tp_reason_kind kind;
    } ways[] = {{some_work, TP_REASON_NORMAL},
                {work_and_fail, TP_REASON_VALUE},
                {work_and_halt, TP_REASON_SHUTDOWN},
                {work_and_wait, TP_REASON_DEADLOCK}};
    int code;
    (void)state;
    for (size_t i = 0; i < FEWER(60); i++) {
        size_t way = (i * i / 4) % 4; /* each after each */
        unsigned schedulers = 1u << (i % 3);
        assert_int_equal(run_in(schedulers, ways[way].fn, NULL),
                         ways[way].kind);
        assert_int_equal(tp_halted(&code), way == 2);
        assert_false(tp_is_running());
    }
}

static void
a_failure_reaches_the_caller_after_all_have_ended(void **state)
{
    struct tp_run_config config = {.schedulers = 2};
    (void)state;
    struct tp_reason *r = run_config(&config, work_and_fail, NULL);
    assert_int_equal(r->kind, TP_REASON_VALUE);
    assert_int_equal(r->size, 6);
    assert_memory_equal(r->data, "broken", 6);
    assert_int_equal(get(&bodies_freed), JOINED + 2);
    tp_reason_unref(r);
}

static void
bad_options_are_refused_and_take_nothing(void **state)
{
    static const struct tp_run_config bad[] = {
        {.schedulers = 65},
        {.schedulers = UINT32_MAX},
        {.max_actors = TP_MAX_ACTORS + 1},
        {.stack_reserve = SIZE_MAX},
        {.stack_guard = SIZE_MAX}};
    struct tp_reason *r = NULL;
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct body *b = body_new(body_nothing, NULL, NULL);
        int rc = tp_run(&bad[i], NULL, &body_class, b, &r);
        assert_true(rc == TROUPE_EINVAL || rc == TROUPE_ENOMEM);
        assert_null(r);
        assert_false(tp_is_running());
        free(b); /* still ours */
    }
    run(1, body_nothing);
}

static void
one_actor_is_enough(void **state)
{
    struct tp_run_config config = {.schedulers = 1, .max_actors = 1};
    (void)state;
    for (int i = 0; i < 10; i++) {
        struct tp_reason *r = run_config(&config, body_nothing, NULL);
        assert_int_equal(r->kind, TP_REASON_NORMAL);
    }
}

/* --- one at a time --- */

static void
try_to_run(void)
{
    struct tp_run_config config = {.schedulers = 1};
    struct body *b = body_new(body_nothing, NULL, NULL);
    struct tp_reason *r;
    CHECK_EQ(tp_run(&config, NULL, &body_class, b, &r), TROUPE_EBUSY);
    free(b);
}

static void *
try_from_outside(void *unused)
{
    try_to_run();
    return unused;
}

static void
nested_root(struct tp_actor *self, void *unused)
{
    pthread_t t;
    (void)unused;
    tp_check(tp_is_running());
    try_to_run();
    CHECK_EQ(pthread_create(&t, NULL, try_from_outside, NULL), 0);
    pthread_join(t, NULL);
    some_work(self, NULL); /* and nothing is broken */
}

static void
a_second_runtime_is_refused(void **state)
{
    (void)state;
    assert_false(tp_is_running());
    run(1, nested_root);
    run(2, nested_root);
    assert_false(tp_is_running());
}

/* --- when nothing can happen any more --- */

static void
count_end(struct tp_actor *self, void *unused)
{
    (void)unused;
    tp_mutex_lock(&self->slot->lock, TP_RANK_SLOT);
    CHECK_EQ(self->reason->kind, TP_REASON_SHUTDOWN);
    tp_mutex_unlock(&self->slot->lock, TP_RANK_SLOT);
    add(&parked_ends, 1);
}

static void
spawn_parked(void)
{
    for (int i = 0; i < PARKED; i++) {
        troupe_pid p;
        CHECK_EQ(try_spawn(NULL, body_wait, count_end, NULL, &p), 0);
    }
}

static void
leave_parked_root(struct tp_actor *self, void *unused)
{
    (void)self;
    (void)unused;
    spawn_parked();
}

static void
who_only_waits_for_messages_is_stopped_after_the_root(void **state)
{
    (void)state;
    for (unsigned n = 1; n <= 4; n *= 2) {
        set(&parked_ends, 0);
        run(n, leave_parked_root);
        assert_int_equal(get(&parked_ends), PARKED);
    }
}

static void
stuck_root(struct tp_actor *self, void *unused)
{
    spawn_parked();
    body_wait(self, unused);
    abort(); /* a wait that cannot end has returned */
}

static void
a_root_that_waits_for_ever_is_told(void **state)
{
    (void)state;
    for (unsigned n = 1; n <= 4; n *= 2) {
        set(&parked_ends, 0);
        assert_int_equal(run_in(n, stuck_root, NULL), TP_REASON_DEADLOCK);
        assert_int_equal(get(&parked_ends), PARKED);
    }
}

static void
stuck_unkillable_root(struct tp_actor *self, void *unused)
{
    (void)unused;
    spawn_parked();
    CHECK_EQ(tp_mailbox_wait(self, TP_NEVER), TROUPE_EKILLED);
    CHECK_EQ(try_spawn(NULL, body_nothing, NULL, NULL, &(troupe_pid){0}),
             TROUPE_EKILLED);
    set(&mark, 1);
}

static void
an_unkillable_root_that_waits_for_ever_is_told_too(void **state)
{
    static const struct tp_spawn_opts unkillable = {.unkillable = true};
    struct tp_run_config config = {.schedulers = 2};
    struct tp_reason *r;
    (void)state;
    set(&mark, 0);
    assert_int_equal(tp_run(&config, &unkillable, &body_class,
                            body_new(stuck_unkillable_root, NULL, NULL), &r),
                     0);
    assert_int_equal(r->kind, TP_REASON_DEADLOCK);
    assert_int_equal(get(&mark), 1);
}

static void
sleep_and_mark(struct tp_actor *self, void *unused)
{
    (void)unused;
    CHECK_EQ(tp_actor_sleep(self, tp_now_ns() + 5 * MS), 0);
    for (int i = 0; i < 100; i++) {
        CHECK_EQ(tp_actor_yield(self), 0);
    }
    add(&mark, 1);
}

static void
leave_sleepers_root(struct tp_actor *self, void *unused)
{
    (void)self;
    (void)unused;
    spawn_parked();
    for (int i = 0; i < 10; i++) {
        spawn(sleep_and_mark, NULL);
    }
}

static void
a_run_goes_on_while_somebody_works_or_sleeps(void **state)
{
    (void)state;
    for (unsigned n = 1; n <= 4; n *= 2) {
        set(&mark, 0);
        set(&parked_ends, 0);
        run(n, leave_sleepers_root);
        assert_int_equal(get(&mark), 10);
        assert_int_equal(get(&parked_ends), PARKED);
    }
}

/* --- timers and the end --- */

static uint64_t
send_after(troupe_pid to, uint64_t n, uint64_t delay_ns, uint64_t interval_ns)
{
    uint64_t id;
    CHECK_EQ(
        tp_send_after(to, num_msg(n), tp_now_ns() + delay_ns, interval_ns, &id),
        0);
    return id;
}

static void
mark_what_comes(struct tp_actor *self, void *unused)
{
    (void)unused;
    for (;;) {
        add(&mark, recv_num_ever(self));
    }
}

static void
leave_timer_root(struct tp_actor *self, void *unused)
{
    troupe_pid p = spawn(mark_what_comes, NULL);
    (void)self;
    (void)unused;
    send_after(p, 10, 3 * MS, 0);
    send_after(p, 1, MS, 0);
    tp_check(tp_send_cancel(send_after(p, 100, 3600 * S, 0)));
}

static void
a_message_under_way_to_the_living_keeps_the_run(void **state)
{
    (void)state;
    for (unsigned n = 1; n <= 2; n++) {
        set(&mark, 0);
        run(n, leave_timer_root);
        assert_int_equal(get(&mark), 11);
    }
}

static void
leave_dead_timer_root(struct tp_actor *self, void *unused)
{
    (void)unused;
    troupe_pid dead = spawn(body_nothing, NULL), p = spawn(body_wait, NULL);
    join_kind(self, dead);
    for (uint64_t i = 0; i < 50; i++) {
        send_after(dead, i, 3600 * S, 0);
        send_after(dead, i, 1800 * S, S);
        send_after(p, i, 7200 * S, 0);
    }
    end_with(p, TP_REASON_KILLED);
    send_after(self->pid, 1, 3600 * S, 0);
}

static void
timers_to_the_dead_do_not_keep_the_run(void **state)
{
    (void)state;
    run(1, leave_dead_timer_root);
    run(2, leave_dead_timer_root);
}

/* --- halt --- */

static void
halting_child(struct tp_actor *self, void *unused)
{
    tp_halt(7);
    tp_halt(8); /* the first one counts */
    body_wait(self, unused);
}

static void
halt_root(struct tp_actor *self, void *unused)
{
    int code;
    (void)unused;
    spawn_parked();
    tp_check(!tp_halted(&code));
    spawn(halting_child, NULL);
    CHECK_EQ(tp_actor_sleep(self, TP_NEVER), 0);
}

static void
halt_ends_all_from_within(void **state)
{
    int code;
    (void)state;
    for (unsigned n = 1; n <= 4; n *= 2) {
        set(&parked_ends, 0);
        assert_int_equal(run_in(n, halt_root, NULL), TP_REASON_SHUTDOWN);
        assert_true(tp_halted(&code));
        assert_int_equal(code, 7);
        assert_int_equal(get(&parked_ends), PARKED);
    }
    run(1, body_nothing);
    assert_false(tp_halted(&code));
}

static void
yield_for_ever(struct tp_actor *self, void *unused)
{
    (void)unused;
    for (;;) {
        tp_actor_yield(self);
    }
}

/* Has children, which park, run for ever, or have children. */
static void
breed(struct tp_actor *self, void *arg)
{
    static const actor_fn kinds[] = {body_wait, yield_for_ever, breed};
    uintptr_t n = (uintptr_t)arg;
    troupe_pid p;
    for (;; n++) {
        int rc = try_spawn(NULL, kinds[n % 3], NULL, (void *)(n + 1), &p);
        tp_check(rc == 0 || rc == TROUPE_EKILLED || rc == TROUPE_ELIMIT);
        tp_actor_yield(self);
    }
}

static void
breed_root(struct tp_actor *self, void *arg)
{
    uint64_t *x = arg;
    for (uintptr_t i = 0; i < 8; i++) {
        troupe_pid p;
        try_spawn(NULL, breed, NULL, (void *)i, &p); /* or there is no room */
    }
    for (uint64_t n = random_next(x) % 10; n > 0; n--) {
        tp_actor_yield(self);
    }
    if (random_next(x) % 2 == 0) {
        tp_halt(1);
    } else {
        body_fail(self, NULL);
    }
    body_wait(self, NULL);
}

static void
a_stop_ends_those_who_are_born_meanwhile(void **state)
{
    uint64_t x = random_seed();
    (void)state;
    for (unsigned i = 0; i < FEWER(100); i++) {
        struct tp_run_config config = {.schedulers = 1 + i % 4,
                                       .max_actors = FEWER(200)};
        tp_reason_unref(run_config(&config, breed_root, &x));
    }
}

static counter halts_done;

static void
await_halt_root(struct tp_actor *self, void *unused)
{
    tp_external_begin(); /* nothing else ends it */
    body_wait(self, unused);
}

static void *
halt_all_the_time(void *unused)
{
    while (get(&halts_done) == 0) {
        tp_halt(9);
        tp_interrupt();
        sched_yield();
    }
    return unused;
}

/* Before, while and after the tables are there. */
static void
a_halt_may_come_at_any_time(void **state)
{
    pthread_t t;
    (void)state;
    set(&halts_done, 0);
    assert_int_equal(pthread_create(&t, NULL, halt_all_the_time, NULL), 0);
    for (unsigned i = 0; i < FEWER(200); i++) {
        struct tp_run_config config = {.schedulers = 1 + i % 2,
                                       .max_actors = 1000};
        tp_reason_unref(run_config(&config, await_halt_root, NULL));
    }
    set(&halts_done, 1);
    pthread_join(t, NULL);
    run(1, body_nothing); /* the next one knows nothing of it */
}

/* --- what is awaited outside --- */

#define TICKETS 4000

static counter ticket, give_up;

/* For each ticket one message, in the moment when the last worker looks. */
static void *
answer_tickets(void *arg)
{
    troupe_pid root = *(troupe_pid *)arg;
    uint64_t x = tp_now_ns();
    for (uint64_t i = 1; i <= TICKETS; i++) {
        while (get(&ticket) < i) {
            if (get(&give_up) != 0) {
                return NULL;
            }
            sched_yield();
        }
        for (uint64_t n = random_next(&x) % 3000; n > 0; n--) {
            __asm__ volatile("");
        }
        push_num(root, i);
        tp_external_end();
    }
    tp_msg_thread_flush();
    return NULL;
}

static void
ticket_root(struct tp_actor *self, void *arg)
{
    pthread_t *t = arg;
    static troupe_pid pid;
    pid = self->pid;
    CHECK_EQ(pthread_create(t, NULL, answer_tickets, &pid), 0);
    for (uint64_t i = 1; i <= TICKETS; i++) {
        tp_external_begin();
        set(&ticket, i);
        CHECK_EQ(recv_num_ever(self), i);
    }
}

static void
no_answer_from_outside_comes_too_late(void **state)
{
    /* With 64 the look at all queues takes longest. */
    static const unsigned schedulers[] = {1, 2, 64};
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        pthread_t t;
        set(&ticket, 0);
        set(&give_up, 0);
        enum tp_reason_kind kind = run_in(schedulers[i], ticket_root, &t);
        set(&give_up, 1);
        pthread_join(t, NULL);
        assert_int_equal(kind, TP_REASON_NORMAL);
    }
}

static bool
all_sleep(void)
{
    return tp_idle_mask(&tp_sched.idle) == tp_idle_all(tp_sched.count);
}

/* Whatever was awaited did not come; nobody is woken by that. */
static void *
end_quietly(void *unused)
{
    SPIN_UNTIL(get(&bodies_freed) == 1 && all_sleep());
    set(&mark, 1);
    tp_external_end();
    tp_external_end();
    return unused;
}

static void
leave_awaited_root(struct tp_actor *self, void *arg)
{
    (void)self;
    spawn(body_wait, NULL);
    set(&mark, 0);
    tp_external_begin();
    tp_external_begin();
    CHECK_EQ(pthread_create(arg, NULL, end_quietly, NULL), 0);
}

static void
a_run_lasts_as_long_as_something_is_awaited_outside(void **state)
{
    (void)state;
    for (unsigned i = 0; i < FEWER(60); i++) {
        pthread_t t;
        assert_int_equal(run_in(1 + i % 3, leave_awaited_root, &t),
                         TP_REASON_NORMAL);
        assert_int_equal(get(&mark), 1);
        pthread_join(t, NULL);
    }
}

/* --- short of threads --- */

static void
parked_child_root(struct tp_actor *self, void *unused)
{
    troupe_pid p;
    (void)unused;
    if (try_spawn(NULL, body_wait, NULL, NULL, &p) == 0) {
        tp_actor_yield(self);
    }
}

/* Each system call fails once, the creation of each thread too: what could be
 * started must be enough to see that nothing can happen any more. */
static void
a_run_makes_do_with_the_threads_it_gets(void **state)
{
    struct tp_run_config config = {.schedulers = 4};
    bool hit = true;
    int runs = 0;
    (void)state;
    for (long n = 1; hit; n++) {
        struct body *b = body_new(parked_child_root, NULL, NULL);
        struct tp_reason *r;
        tp_fault_arm_all(n);
        int rc = tp_run(&config, NULL, &body_class, b, &r);
        hit = tp_fault_fired();
        tp_fault_arm(0);
        if (rc == 0) {
            assert_int_equal(r->kind, TP_REASON_NORMAL);
            runs++;
        } else {
            assert_true(hit);
            free(b);
        }
    }
    assert_true(runs >= 4); /* three threads less, and all there */
}

#define CHUNKS 2000 /* some 64 MB, twice what stays */

static void
crowd_root(struct tp_actor *self, void *unused)
{
    static void *chunks[CHUNKS];
    (void)self;
    (void)unused;
    do { /* after a second the monitor has trimmed */
        for (int i = 0; i < CHUNKS; i++) {
            chunks[i] = tp_slab_get(TP_SLAB_LARGE);
            tp_check(chunks[i] != NULL);
        }
        for (int i = 0; i < CHUNKS; i++) {
            tp_slab_put(TP_SLAB_LARGE, chunks[i]);
        }
    } while (tp_slab_excess() == 0);
}

static void
a_run_gives_back_what_its_actors_had(void **state)
{
    (void)state;
    run(1, crowd_root);
    assert_int_equal(tp_slab_excess(), 0);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_run_can_follow_a_run_however_it_ended),
        cmocka_unit_test(a_failure_reaches_the_caller_after_all_have_ended),
        cmocka_unit_test(bad_options_are_refused_and_take_nothing),
        cmocka_unit_test(one_actor_is_enough),
        cmocka_unit_test(a_run_gives_back_what_its_actors_had),
        cmocka_unit_test(a_second_runtime_is_refused),
        cmocka_unit_test(who_only_waits_for_messages_is_stopped_after_the_root),
        cmocka_unit_test(a_root_that_waits_for_ever_is_told),
        cmocka_unit_test(an_unkillable_root_that_waits_for_ever_is_told_too),
        cmocka_unit_test(a_run_goes_on_while_somebody_works_or_sleeps),
        cmocka_unit_test(a_message_under_way_to_the_living_keeps_the_run),
        cmocka_unit_test(timers_to_the_dead_do_not_keep_the_run),
        cmocka_unit_test(halt_ends_all_from_within),
        cmocka_unit_test(a_stop_ends_those_who_are_born_meanwhile),
        cmocka_unit_test(a_halt_may_come_at_any_time),
        cmocka_unit_test(no_answer_from_outside_comes_too_late),
        cmocka_unit_test(a_run_lasts_as_long_as_something_is_awaited_outside),
        cmocka_unit_test(a_run_makes_do_with_the_threads_it_gets),
    };
    return cmocka_run_group_tests_name("runtime", tests, NULL, NULL);
}
