/*
 * delay_test.c - messages that are sent later.
 */
#include "actor/delay.h"
#include "run_in.h"

#include <setjmp.h>

#include <cmocka.h>

#define YEAR (365 * 24 * 3600 * S)

static void
run_both(actor_fn root)
{
    assert_int_equal(run_in(1, root, NULL), TP_REASON_NORMAL);
    assert_int_equal(run_in(2, root, NULL), TP_REASON_NORMAL);
}

static uint64_t
after(troupe_pid to, uint64_t n, uint64_t delay_ns, uint64_t interval_ns)
{
    uint64_t id;
    CHECK_EQ(
        tp_send_after(to, num_msg(n), tp_now_ns() + delay_ns, interval_ns, &id),
        0);
    tp_check(id != 0);
    return id;
}

/* --- once --- */

static void
once_root(struct tp_actor *self, void *unused)
{
    (void)unused;
    uint64_t start = tp_now_ns(), id;
    for (uint64_t i = 3; i >= 1; i--) {
        CHECK_EQ(
            tp_send_after(self->pid, num_msg(i), start + 2 * i * MS, 0, &id),
            0);
    }
    uint64_t seen = 0;
    for (uint64_t i = 1; i <= 3; i++) {
        uint64_t n = recv_num(self);
        tp_check(tp_now_ns() >= start + 2 * n * MS);
        /* Of two schedulers one may be held up where it fires one, while the
         * other fires the next. */
        tp_check(n == i || tp_sched.count > 1);
        seen += 1u << 4 * n;
    }
    CHECK_EQ(seen, 0x1110);
}

static void
they_come_in_the_order_of_their_times(void **state)
{
    (void)state;
    run_both(once_root);
}

static void
cancel_root(struct tp_actor *self, void *unused)
{
    (void)unused;
    uint64_t id = after(self->pid, 1, YEAR, 0);
    tp_check(tp_send_cancel(id));
    tp_check(!tp_send_cancel(id));
    tp_check(!tp_send_cancel(0));
    id = after(self->pid, 2, 0, 0);
    CHECK_EQ(recv_num(self), 2);
    tp_check(!tp_send_cancel(id)); /* too late, and it says so */
}

static void
a_cancel_says_whether_it_was_in_time(void **state)
{
    (void)state;
    run_both(cancel_root);
}

static counter won, lost;

/* Who says that it was in time must be right, and so must who says not. */
static void
race_root(struct tp_actor *self, void *unused)
{
    uint64_t expected = 0, got = 0;
    (void)unused;
    for (uint64_t i = 0; i < 2000; i++) {
        uint64_t id = after(self->pid, 1, i % 50 * 1000, 0);
        for (uint64_t k = 0; k < i % 7; k++) {
            tp_actor_yield(self);
        }
        if (tp_send_cancel(id)) {
            add(&won, 1);
        } else {
            add(&lost, 1);
            expected++;
        }
        struct tp_msg *m;
        while ((m = tp_mailbox_pop(self)) != NULL) {
            tp_msg_drop(m);
            got++;
        }
    }
    while (got < expected) {
        recv_num(self);
        got++;
    }
    tp_actor_sleep(self, tp_now_ns() + MS);
    tp_check(tp_mailbox_pop(self) == NULL);
    CHECK_EQ(got, expected);
}

static void
a_cancel_that_races_with_the_fire_is_right(void **state)
{
    (void)state;
    set(&won, 0);
    set(&lost, 0);
    run_both(race_root);
    printf("cancel: %" PRIu64 " in time, %" PRIu64 " late\n", get(&won),
           get(&lost));
}

/* --- whose end matters --- */

static counter released;

static void
count_release(struct tp_msg *m)
{
    (void)m;
    add(&released, 1);
}

static counter retained;

static void
count_retain(struct tp_msg *m)
{
    (void)m;
    add(&retained, 1);
}

static struct tp_msg *
handle_msg(void)
{
    struct tp_msg *m = num_msg(1);
    m->flags = TP_MSG_HAS_HANDLES | TP_MSG_HAS_OBJECTS;
    return m;
}

static void
dead_root(struct tp_actor *self, void *unused)
{
    uint64_t id;
    (void)unused;
    troupe_pid p = spawn(body_nothing, NULL);
    join_kind(self, p);
    CHECK_EQ(tp_send_after(p, handle_msg(), tp_now_ns() + MS, 0, &id), 0);
    YIELD_UNTIL(self, get(&released) == 1);
    /* Cancelled: dropped too. */
    CHECK_EQ(tp_send_after(self->pid, handle_msg(), tp_now_ns() + YEAR, 0, &id),
             0);
    tp_check(tp_send_cancel(id));
    CHECK_EQ(get(&released), 2);
    /* Of an interval each message names it once more. */
    CHECK_EQ(tp_send_after(self->pid, handle_msg(), 0, MS, &id), 0);
    struct tp_msg *m = recv_msg(self);
    CHECK_EQ(m->kind, TP_MSG_TICK);
    CHECK_EQ(get(&retained), 1);
    tp_check(tp_send_cancel(id));
    CHECK_EQ(get(&released), 3);
    tp_msg_drop(m);
    CHECK_EQ(get(&released), 4);
    /* One that never fires goes with the run. */
    CHECK_EQ(tp_send_after(p, handle_msg(), tp_now_ns() + YEAR, 0, &id), 0);
}

static void
what_is_not_delivered_is_released(void **state)
{
    (void)state;
    for (unsigned n = 1; n <= 2; n++) {
        set(&released, 0);
        set(&retained, 0);
        tp_user_release = count_release;
        tp_msg_set_retain(count_retain);
        assert_int_equal(run_in(n, dead_root, NULL), TP_REASON_NORMAL);
        tp_user_release = NULL;
        assert_int_equal(get(&released), 5);
    }
}

static void
leave_one(struct tp_actor *self, void *arg)
{
    (void)self;
    after(*(troupe_pid *)arg, 5, 2 * MS, 0);
}

static void
maker_root(struct tp_actor *self, void *unused)
{
    troupe_pid me = self->pid;
    (void)unused;
    join_kind(self, spawn(leave_one, &me));
    CHECK_EQ(recv_num(self), 5);
}

static void
it_comes_when_its_maker_has_ended(void **state)
{
    (void)state;
    run_both(maker_root);
}

/* --- again and again --- */

static struct tp_msg *
recv_tick(struct tp_actor *self, uint64_t n)
{
    struct tp_msg *m = recv_msg(self);
    CHECK_EQ(m->kind, TP_MSG_TICK);
    CHECK_EQ(msg_num(m), n);
    return m;
}

static void
interval_root(struct tp_actor *self, void *unused)
{
    (void)unused;
    uint64_t start = tp_now_ns();
    uint64_t id = after(self->pid, 9, MS, MS);
    for (uint64_t i = 1; i <= 5; i++) {
        tp_msg_drop(recv_tick(self, 9));
        tp_check(tp_now_ns() >= start + i * MS);
    }
    /* One at a time, however long nobody reads. */
    tp_actor_sleep(self, tp_now_ns() + 20 * MS);
    struct tp_msg *m = recv_tick(self, 9);
    tp_check(tp_mailbox_pop(self) == NULL);
    tp_msg_drop(m);
    tp_check(tp_send_cancel(id));
    m = tp_mailbox_pop(self);
    if (m != NULL) {
        tp_msg_drop(m);
    }
    tp_actor_sleep(self, tp_now_ns() + 3 * MS);
    tp_check(tp_mailbox_pop(self) == NULL);
}

static void
at_most_one_tick_is_unread(void **state)
{
    (void)state;
    run_both(interval_root);
}

/* --- full mailboxes --- */

static troupe_pid
spawn_full(enum tp_mail_policy policy, actor_fn fn)
{
    struct tp_spawn_opts opts = {.mail_limit = 2,
                                 .mail_policy = (uint8_t)policy};
    troupe_pid p = spawn_opts(&opts, fn, NULL);
    CHECK_EQ(push_num(p, 1), 0);
    CHECK_EQ(push_num(p, 2), 0);
    return p;
}

static counter go, sum, count;

static void
read_all(struct tp_actor *self, void *unused)
{
    (void)unused;
    YIELD_UNTIL(self, get(&go) != 0);
    for (;;) {
        add(&sum, recv_num_ever(self));
        add(&count, 1);
    }
}

static void
fill(struct tp_actor *self, enum tp_mail_policy policy, uint64_t expected)
{
    set(&go, 0);
    set(&sum, 0);
    set(&count, 0);
    troupe_pid p = spawn_full(policy, read_all);
    for (uint64_t i = 0; i < 5; i++) {
        after(p, 10, 0, 0);
    }
    tp_actor_sleep(self, tp_now_ns() + 5 * MS); /* all have fired */
    set(&go, 1);
    YIELD_UNTIL(self, get(&count) >= 2 && state_of(p) == TP_PARKED);
    CHECK_EQ(get(&sum), expected);
    /* The limit holds as before. */
    set(&go, 0);
    set(&count, 0);
    CHECK_EQ(push_num(p, 1), 0);
    YIELD_UNTIL(self, get(&count) == 1);
    end_with(p, TP_REASON_KILLED);
    join_kind(self, p);
}

static void
full_root(struct tp_actor *self, void *unused)
{
    (void)unused;
    fill(self, TP_MAIL_ERROR, 3);
    fill(self, TP_MAIL_DROP_NEW, 3);
    fill(self, TP_MAIL_BLOCK, 53); /* beyond its limit */
}

/* One scheduler: of two, one may be held up where it fires, and all that is due
 * has not been fired then. */
static void
only_a_mailbox_that_blocks_loses_none(void **state)
{
    (void)state;
    assert_int_equal(run_in(1, full_root, NULL), TP_REASON_NORMAL);
}

/* --- without memory --- */

static void
fault_root(struct tp_actor *self, void *unused)
{
    (void)unused;
    for (uint64_t interval = 0; interval < 2; interval++) {
        for (long n = 1;; n++) {
            uint64_t id;
            struct tp_msg *m = num_msg(1);
            tp_fault_arm(n);
            int rc = tp_send_after(self->pid, m, tp_now_ns() + YEAR,
                                   interval * S, &id);
            bool hit = tp_fault_fired();
            tp_fault_arm(0);
            if (rc != 0) {
                CHECK_EQ(rc, TROUPE_ENOMEM);
                tp_msg_drop(m); /* still ours */
                continue;
            }
            tp_check(!hit);
            tp_check(tp_send_cancel(id));
            break;
        }
    }
}

static void
without_memory_it_says_so(void **state)
{
    (void)state;
    run_both(fault_root);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(they_come_in_the_order_of_their_times),
        cmocka_unit_test(a_cancel_says_whether_it_was_in_time),
        cmocka_unit_test(a_cancel_that_races_with_the_fire_is_right),
        cmocka_unit_test(what_is_not_delivered_is_released),
        cmocka_unit_test(it_comes_when_its_maker_has_ended),
        cmocka_unit_test(at_most_one_tick_is_unread),
        cmocka_unit_test(only_a_mailbox_that_blocks_loses_none),
        cmocka_unit_test(without_memory_it_says_so),
    };
    return cmocka_run_group_tests_name("delay", tests, NULL, NULL);
}
