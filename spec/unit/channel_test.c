/*
 * channel_test.c - order, ends, capacity, matching, kills, want of memory.
 */
#include "actor/channel.h"
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

/* -- helpers that run in actors ------------------------------------------- */

static int
push_to(struct tp_channel *ch, uint64_t n)
{
    struct tp_msg *m = num_msg(n);
    int rc = tp_channel_push(ch, m);
    if (rc != 0) {
        CHECK_EQ(msg_num(m), n); /* still ours */
        tp_msg_drop(m);
    }
    return rc;
}

static int
send_to(struct tp_actor *self, struct tp_channel *ch, uint64_t n,
        uint64_t deadline_ns)
{
    struct tp_msg *m = num_msg(n);
    int rc = tp_channel_send_dl(self, ch, m, deadline_ns);
    if (rc != 0) {
        CHECK_EQ(msg_num(m), n);
        tp_msg_drop(m);
    }
    return rc;
}

static uint64_t
take_from(struct tp_actor *self, struct tp_channel *ch)
{
    struct tp_msg *m;
    while ((m = tp_channel_pop(ch)) == NULL) {
        CHECK_EQ(tp_channel_wait(self, ch, tp_now_ns() + PATIENCE_NS), 0);
    }
    uint64_t n = msg_num(m);
    tp_msg_free(m);
    return n;
}

static void
wait_parked(struct tp_actor *self, troupe_pid pid)
{
    YIELD_UNTIL(self, state_of(pid) == TP_PARKED);
}

/* -- one actor ------------------------------------------------------------- */

static void
plain_root(struct tp_actor *self, void *unused)
{
    struct tp_channel *ch = tp_channel_new(0);
    (void)unused;
    tp_check(tp_channel_pop(ch) == NULL && tp_channel_len(ch) == 0);
    CHECK_EQ(tp_channel_wait(self, ch, 0), TROUPE_ETIMEOUT);
    CHECK_EQ(tp_channel_wait(self, ch, tp_now_ns() + MS), TROUPE_ETIMEOUT);
    for (uint64_t i = 0; i < 5; i++) {
        CHECK_EQ(push_to(ch, i), 0);
    }
    CHECK_EQ(tp_channel_len(ch), 5);
    CHECK_EQ(push_to(ch, 5), 0);
    for (uint64_t i = 0; i < 3; i++) {
        CHECK_EQ(take_from(self, ch), i);
    }
    tp_channel_tx_unref(ch);
    tp_check(!tp_channel_is_ended(ch));
    for (uint64_t i = 3; i < 6; i++) {
        CHECK_EQ(take_from(self, ch), i);
    }
    tp_check(tp_channel_is_ended(ch) && tp_channel_pop(ch) == NULL);
    CHECK_EQ(tp_channel_wait(self, ch, TP_NEVER), TROUPE_ECLOSED);
    tp_channel_rx_close(ch);
}

static void
values_come_in_order_and_then_the_end(void **state)
{
    (void)state;
    run(plain_root);
}

static counter released;

static void
count_release(struct tp_msg *m)
{
    (void)m;
    add(&released, 1);
}

static struct tp_msg *
object_msg(void)
{
    struct tp_msg *m = num_msg(1);
    m->flags = TP_MSG_HAS_HANDLES | TP_MSG_HAS_OBJECTS;
    return m;
}

static void
drop_root(struct tp_actor *self, void *unused)
{
    (void)self;
    (void)unused;
    for (uint32_t capacity = 0; capacity <= 3; capacity += 3) {
        struct tp_channel *ch = tp_channel_new(capacity);
        set(&released, 0);
        for (int i = 0; i < 3; i++) {
            CHECK_EQ(tp_channel_push(ch, object_msg()), 0);
            tp_channel_fetch(ch); /* the last one stays in the inbox */
            CHECK_EQ(get(&released), 0);
        }
        tp_channel_rx_close(ch);
        CHECK_EQ(get(&released), 3);
        CHECK_EQ(push_to(ch, 1), TROUPE_ECLOSED);
        tp_channel_tx_ref(ch);
        tp_channel_tx_unref(ch);
        CHECK_EQ(push_to(ch, 1), TROUPE_ECLOSED);
        tp_channel_tx_unref(ch);
    }
}

static void
a_dropped_receiver_drops_what_is_queued(void **state)
{
    (void)state;
    tp_user_release = count_release;
    run(drop_root);
    tp_user_release = NULL;
}

/* Takes the one at link, which must be n. */
static void
take_at(struct tp_channel *ch, struct tp_msg **link, uint64_t n)
{
    struct tp_msg *m = tp_channel_take(ch, link);
    CHECK_EQ(msg_num(m), n);
    tp_msg_free(m);
}

static void
match_root(struct tp_actor *self, void *unused)
{
    (void)unused;
    for (uint32_t capacity = 0; capacity <= 5; capacity += 5) {
        struct tp_channel *ch = tp_channel_new(capacity);
        for (uint64_t i = 0; i < 4; i++) {
            CHECK_EQ(push_to(ch, i), 0);
        }
        tp_channel_fetch(ch);
        take_at(ch, &ch->head->next, 1);
        take_at(ch, &ch->head->next->next, 3); /* the last one */
        CHECK_EQ(push_to(ch, 4), 0);
        CHECK_EQ(tp_channel_len(ch), 3);
        CHECK_EQ(take_from(self, ch), 0);
        CHECK_EQ(take_from(self, ch), 2);
        CHECK_EQ(take_from(self, ch), 4);
        tp_channel_tx_unref(ch);
        tp_channel_rx_close(ch);
    }
}

static void
any_message_may_be_taken_out(void **state)
{
    (void)state;
    run(match_root);
}

/* -- capacity --------------------------------------------------------------- */

struct sender {
    struct tp_channel *ch;
    uint64_t n;
    uint64_t deadline_ns;
    int rc;
};

static void
send_one(struct tp_actor *self, void *arg)
{
    struct sender *s = arg;
    s->rc = send_to(self, s->ch, s->n, s->deadline_ns);
}

static void
line_root(struct tp_actor *self, void *unused)
{
    struct tp_channel *ch = tp_channel_new(2);
    struct sender s[6];
    troupe_pid pids[6];
    (void)unused;
    CHECK_EQ(push_to(ch, 0), 0);
    CHECK_EQ(push_to(ch, 1), 0);
    CHECK_EQ(push_to(ch, 2), TROUPE_EFULL);
    CHECK_EQ(send_to(self, ch, 2, 0), TROUPE_ETIMEOUT);
    CHECK_EQ(send_to(self, ch, 2, tp_now_ns() + MS), TROUPE_ETIMEOUT);
    for (uint64_t i = 0; i < 6; i++) {
        s[i] = (struct sender){ch, i + 2, TP_NEVER, 1};
        pids[i] = spawn(send_one, &s[i]);
        wait_parked(self, pids[i]);
    }
    /* Out of the middle of the line, and its first. */
    tp_check(end_with(pids[2], TP_REASON_KILLED));
    tp_check(end_with(pids[0], TP_REASON_KILLED));
    CHECK_EQ(join_kind(self, pids[2]), TP_REASON_KILLED);
    CHECK_EQ(join_kind(self, pids[0]), TP_REASON_KILLED);
    CHECK_EQ(tp_channel_len(ch), 2);
    static const uint64_t expected[] = {0, 1, 3, 5, 6, 7};
    for (size_t i = 0; i < 6; i++) {
        CHECK_EQ(take_from(self, ch), expected[i]);
    }
    tp_check(tp_channel_pop(ch) == NULL);
    for (size_t i = 1; i < 6; i += i == 1 ? 2 : 1) {
        join_kind(self, pids[i]);
        CHECK_EQ(s[i].rc, 0);
    }
    CHECK_EQ(push_to(ch, 0), 0);
    CHECK_EQ(push_to(ch, 1), 0);
    CHECK_EQ(push_to(ch, 2), TROUPE_EFULL);
    tp_channel_tx_unref(ch);
    tp_channel_rx_close(ch);
}

static void
senders_wait_in_line_for_room(void **state)
{
    (void)state;
    run(line_root);
}

static void
close_full_root(struct tp_actor *self, void *unused)
{
    struct tp_channel *ch = tp_channel_new(1);
    struct sender s[3];
    troupe_pid pids[3];
    (void)unused;
    CHECK_EQ(push_to(ch, 0), 0);
    for (uint64_t i = 0; i < 3; i++) {
        s[i] = (struct sender){ch, i, TP_NEVER, 1};
        pids[i] = spawn(send_one, &s[i]);
        wait_parked(self, pids[i]);
    }
    tp_channel_rx_close(ch);
    for (size_t i = 0; i < 3; i++) {
        CHECK_EQ(join_kind(self, pids[i]), TP_REASON_NORMAL);
        CHECK_EQ(s[i].rc, TROUPE_ECLOSED);
    }
    tp_channel_tx_unref(ch);
}

static void
senders_in_line_learn_that_it_is_closed(void **state)
{
    (void)state;
    run(close_full_root);
}

/* -- ends of actors ---------------------------------------------------------- */

static void
receive_ever(struct tp_actor *self, void *arg)
{
    struct tp_channel *ch = arg;
    while (tp_channel_wait(self, ch, TP_NEVER) == 0) {
        tp_msg_free(tp_channel_pop(ch));
    }
}

/* Holds what an actor of the bindings would: its end closes the receiver. */
static void
killed_root(struct tp_actor *self, void *unused)
{
    struct tp_channel *ch = tp_channel_new(0);
    (void)unused;
    troupe_pid pid = spawn(receive_ever, ch);
    wait_parked(self, pid);
    CHECK_EQ(push_to(ch, 1), 0);
    YIELD_UNTIL(self, state_of(pid) == TP_PARKED);
    tp_check(end_with(pid, TP_REASON_KILLED));
    CHECK_EQ(join_kind(self, pid), TP_REASON_KILLED);
    /* Its word is still there, and wakes nobody: the next one takes over. */
    CHECK_EQ(push_to(ch, 2), 0);
    CHECK_EQ(take_from(self, ch), 2);
    pid = spawn(receive_ever, ch);
    wait_parked(self, pid);
    tp_channel_tx_unref(ch);
    CHECK_EQ(join_kind(self, pid), TP_REASON_NORMAL);
    tp_channel_rx_close(ch);
}

static void
the_end_of_a_waiting_receiver_leaves_the_channel_usable(void **state)
{
    (void)state;
    run(killed_root);
}

/* A stale word of a wait that timed out must not end the wait after it. */
static void
stale_root(struct tp_actor *self, void *unused)
{
    struct tp_channel *ch = tp_channel_new(0);
    (void)unused;
    CHECK_EQ(tp_channel_wait(self, ch, tp_now_ns() + MS), TROUPE_ETIMEOUT);
    uint32_t epoch = tp_wait_epoch(self->slot);
    CHECK_EQ(push_to(ch, 1), 0); /* finds the word, and wakes nobody */
    CHECK_EQ(tp_wait_epoch(self->slot), epoch);
    CHECK_EQ(tp_state_of(atomic_load_explicit(&self->slot->state,
                                              memory_order_seq_cst)),
             TP_RUNNING);
    CHECK_EQ(take_from(self, ch), 1);
    tp_channel_tx_unref(ch);
    tp_channel_rx_close(ch);
}

static void
a_wait_that_is_over_is_not_ended_again(void **state)
{
    (void)state;
    run(stale_root);
}

/* -- memory ------------------------------------------------------------------ */

static void
fault_root(struct tp_actor *self, void *unused)
{
    (void)unused;
    tp_fault_arm(1);
    struct tp_channel *none = tp_channel_new(1);
    tp_fault_arm(0);
    tp_check(none == NULL);
    struct tp_channel *ch = tp_channel_new(1);
    CHECK_EQ(push_to(ch, 1), 0);
    struct tp_msg *m = num_msg(2);
    for (long nth = 1;; nth++) {
        tp_fault_arm(nth);
        int rc = tp_channel_send_dl(self, ch, m, tp_now_ns() + MS);
        bool hit = tp_fault_fired();
        tp_fault_arm(0);
        CHECK_EQ(rc, hit ? TROUPE_ENOMEM : TROUPE_ETIMEOUT);
        CHECK_EQ(msg_num(m), 2);
        if (!hit) {
            break;
        }
    }
    tp_msg_free(m);
    CHECK_EQ(take_from(self, ch), 1);
    CHECK_EQ(push_to(ch, 3), 0);
    tp_channel_tx_unref(ch);
    tp_channel_rx_close(ch);
}

static void
without_memory_nothing_is_sent(void **state)
{
    (void)state;
    run(fault_root);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_come_in_order_and_then_the_end),
        cmocka_unit_test(a_dropped_receiver_drops_what_is_queued),
        cmocka_unit_test(any_message_may_be_taken_out),
        cmocka_unit_test(senders_wait_in_line_for_room),
        cmocka_unit_test(senders_in_line_learn_that_it_is_closed),
        cmocka_unit_test(
            the_end_of_a_waiting_receiver_leaves_the_channel_usable),
        cmocka_unit_test(a_wait_that_is_over_is_not_ended_again),
        cmocka_unit_test(without_memory_nothing_is_sent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
