/*
 * call_test.c - a request and its one answer.
 */
#include "actor/call.h"
#include "run_in.h"

#include <setjmp.h>

#include <cmocka.h>

#define SOON (tp_now_ns() + PATIENCE_NS)

static void
run(unsigned schedulers, actor_fn root)
{
    assert_int_equal(run_in(schedulers, root, NULL), TP_REASON_NORMAL);
}

static void
run_both(actor_fn root)
{
    run(1, root);
    run(2, root);
}

/* The number that came, or the code; *out_kind: how the other one ended. */
static int
call(struct tp_actor *self, troupe_pid to, uint64_t n, uint64_t deadline_ns,
     uint64_t *out_n, enum tp_reason_kind *out_kind)
{
    struct tp_msg *reply;
    struct tp_reason *reason;
    *out_kind = TP_REASON_NOPROC;
    int rc = tp_call(self, to, num_msg(n), deadline_ns, &reply, &reason);
    CHECK_EQ(rc == 0, reply != NULL);
    if (rc == 0) {
        *out_n = msg_num(reply);
        tp_msg_drop(reply);
    }
    if (reason != NULL) {
        CHECK_EQ(rc, TROUPE_ENOPROC);
        *out_kind = (enum tp_reason_kind)reason->kind;
        tp_reason_unref(reason);
    }
    CHECK_EQ(self->call_id, 0);
    return rc;
}

static uint64_t
call_ok(struct tp_actor *self, troupe_pid to, uint64_t n)
{
    uint64_t got = 0;
    enum tp_reason_kind kind;
    CHECK_EQ(call(self, to, n, SOON, &got, &kind), 0);
    return got;
}

static enum tp_reason_kind
call_dies(struct tp_actor *self, troupe_pid to)
{
    uint64_t got;
    enum tp_reason_kind kind;
    CHECK_EQ(call(self, to, 1, SOON, &got, &kind), TROUPE_ENOPROC);
    return kind;
}

/* The next request. */
static struct tp_owed *
take(struct tp_actor *self, uint64_t *out_n)
{
    struct tp_msg *m = recv_msg(self);
    CHECK_EQ(m->kind, TP_MSG_CALL);
    struct tp_owed *o = tp_owed_new(self, m);
    tp_check(o != NULL);
    *out_n = msg_num(m);
    m->ref = 0;
    tp_msg_drop(m);
    return o;
}

/* With the only reference. */
static bool
answer(struct tp_owed *o, struct tp_msg *reply)
{
    bool waits = tp_owed_reply(o, reply);
    tp_owed_unref(o);
    return waits;
}

/* Replies n + 1 until it is ended. */
static void
serve(struct tp_actor *self, void *unused)
{
    (void)unused;
    for (;;) {
        uint64_t n;
        struct tp_msg *m;
        while ((m = tp_mailbox_pop(self)) == NULL) {
            if (tp_mailbox_wait(self, TP_NEVER) != 0) {
                return;
            }
        }
        struct tp_owed *o = tp_owed_new(self, m);
        n = msg_num(m);
        m->ref = 0;
        tp_msg_drop(m);
        answer(o, num_msg(n + 1));
    }
}

/* --- answers --- */

static void
reply_root(struct tp_actor *self, void *unused)
{
    (void)unused;
    troupe_pid p = spawn(serve, NULL);
    for (uint64_t i = 0; i < 1000; i++) {
        CHECK_EQ(call_ok(self, p, i), i + 1);
    }
    expect_no_mail(self);
    end_with(p, TP_REASON_KILLED);
}

static void
a_reply_ends_the_call(void **state)
{
    (void)state;
    run_both(reply_root);
}

/* Mail that comes meanwhile stays, in order. */
static void
mail_root(struct tp_actor *self, void *unused)
{
    (void)unused;
    troupe_pid p = spawn(serve, NULL);
    for (uint64_t i = 0; i < 100; i++) {
        CHECK_EQ(push_num(self->pid, i), 0);
        CHECK_EQ(call_ok(self, p, i), i + 1);
    }
    for (uint64_t i = 0; i < 100; i++) {
        CHECK_EQ(recv_num(self), i);
    }
    end_with(p, TP_REASON_KILLED);
}

static void
a_call_leaves_other_mail_alone(void **state)
{
    (void)state;
    run_both(mail_root);
}

static void
self_root(struct tp_actor *self, void *unused)
{
    uint64_t got;
    enum tp_reason_kind kind;
    (void)unused;
    CHECK_EQ(call(self, self->pid, 1, TP_NEVER, &got, &kind),
             TROUPE_ECALLING_SELF);
    expect_no_mail(self);
}

static void
a_call_to_oneself_is_refused(void **state)
{
    (void)state;
    run(1, self_root);
}

/* Takes one request and lets the answer be: drops it, or just waits. */
static void
forget(struct tp_actor *self, void *unused)
{
    uint64_t n;
    (void)unused;
    tp_owed_unref(take(self, &n));
    body_wait(self, NULL);
}

static void
forget_root(struct tp_actor *self, void *unused)
{
    (void)unused;
    troupe_pid p = spawn(forget, NULL);
    uint64_t got;
    enum tp_reason_kind kind;
    CHECK_EQ(call(self, p, 1, SOON, &got, &kind), TROUPE_ENO_REPLY);
    tp_check(tp_mailbox_is_open(p));
    end_with(p, TP_REASON_KILLED);
}

static void
a_request_that_is_forgotten_fails_the_call(void **state)
{
    (void)state;
    run_both(forget_root);
}

/* A request that its taker drops like any message. */
static void
drop_one(struct tp_actor *self, void *unused)
{
    (void)unused;
    tp_msg_drop(recv_msg(self));
    body_wait(self, NULL);
}

static void
drop_root(struct tp_actor *self, void *unused)
{
    (void)unused;
    troupe_pid p = spawn(drop_one, NULL);
    uint64_t got;
    enum tp_reason_kind kind;
    CHECK_EQ(call(self, p, 1, SOON, &got, &kind), TROUPE_ENO_REPLY);
    end_with(p, TP_REASON_KILLED);
}

static void
a_request_that_is_dropped_fails_the_call(void **state)
{
    (void)state;
    run(1, drop_root);
}

/* --- late --- */

static counter go, replied;

/* Answers each request only after the next word by mail. */
static void
serve_late(struct tp_actor *self, void *unused)
{
    uint64_t n;
    (void)unused;
    struct tp_owed *o = take(self, &n);
    SPIN_UNTIL(get(&go) != 0);
    set(&replied, 1 + answer(o, num_msg(n + 1)));
    body_wait(self, NULL);
}

static void
late_root(struct tp_actor *self, void *unused)
{
    uint64_t got;
    enum tp_reason_kind kind;
    (void)unused;
    for (int round = 0; round < 20; round++) {
        set(&go, 0);
        set(&replied, 0);
        troupe_pid p = spawn(serve_late, NULL);
        CHECK_EQ(call(self, p, 1, tp_now_ns() + 2 * MS, &got, &kind),
                 TROUPE_ETIMEOUT);
        set(&go, 1);
        YIELD_UNTIL(self, get(&replied) != 0);
        CHECK_EQ(get(&replied), 1); /* told that nobody waits */
        /* Neither in the mailbox, nor the end of the next wait. */
        uint64_t deadline = tp_now_ns() + 1 * MS;
        CHECK_EQ(tp_mailbox_wait(self, deadline), TROUPE_ETIMEOUT);
        tp_check(tp_now_ns() >= deadline);
        expect_no_mail(self);
        /* Nor the answer to the next call. */
        troupe_pid q = spawn(serve, NULL);
        CHECK_EQ(call_ok(self, q, 41), 42);
        end_with(p, TP_REASON_KILLED);
        end_with(q, TP_REASON_KILLED);
    }
}

static void
a_late_reply_is_dropped(void **state)
{
    (void)state;
    run(2, late_root);
}

static void
timeout_root(struct tp_actor *self, void *unused)
{
    uint64_t got;
    enum tp_reason_kind kind;
    (void)unused;
    troupe_pid p = spawn(body_wait, NULL);
    for (uint64_t i = 0; i < 20; i++) {
        uint64_t deadline = tp_now_ns() + i * 50000;
        CHECK_EQ(call(self, p, 1, deadline, &got, &kind), TROUPE_ETIMEOUT);
        tp_check(tp_now_ns() >= deadline);
    }
    CHECK_EQ(call(self, p, 1, 0, &got, &kind), TROUPE_ETIMEOUT);
    /* The requests are answered by its end, and nobody waits. */
    end_with(p, TP_REASON_KILLED);
    CHECK_EQ(join_kind(self, p), TP_REASON_KILLED);
    expect_no_mail(self);
}

static void
a_call_times_out_and_leaves_nothing(void **state)
{
    (void)state;
    run_both(timeout_root);
}

/* --- the end of the one who is asked --- */

static void
dead_root(struct tp_actor *self, void *unused)
{
    (void)unused;
    troupe_pid p = spawn(body_nothing, NULL);
    join_kind(self, p);
    uint64_t got;
    enum tp_reason_kind kind;
    troupe_pid nobody[] = {p, 0, UINT64_MAX, TP_MAX_ACTORS - 1};
    for (size_t i = 0; i < sizeof nobody / sizeof *nobody; i++) {
        CHECK_EQ(call(self, nobody[i], 1, TP_NEVER, &got, &kind),
                 TROUPE_ENOPROC);
        CHECK_EQ(kind, TP_REASON_NOPROC);
    }
}

static void
a_call_to_the_dead_fails_at_once(void **state)
{
    (void)state;
    run(1, dead_root);
}

/* Ends with the request in its mailbox, after it was told so. */
static void
end_unread(struct tp_actor *self, void *unused)
{
    (void)unused;
    while (!tp_mailbox_fetch(self)) {
        tp_actor_yield(self);
    }
    tp_actor_exit(self, tp_reason_const(TP_REASON_SHUTDOWN));
}

static void
end_taken(struct tp_actor *self, void *unused)
{
    uint64_t n;
    (void)unused;
    hold_owed(self, take(self, &n));
    tp_actor_exit(self, tp_reason_const(TP_REASON_SHUTDOWN));
}

/* Drops it in its finalizer: that is no answer of its own. */
static struct tp_owed *to_drop;

static void
end_holding(struct tp_actor *self, void *unused)
{
    uint64_t n;
    (void)unused;
    to_drop = take(self, &n);
    tp_actor_exit(self, tp_reason_const(TP_REASON_SHUTDOWN));
}

static void
drop_in_finish(struct tp_actor *self, void *unused)
{
    (void)self;
    (void)unused;
    tp_owed_unref(to_drop);
}

static void
reply_in_finish(struct tp_actor *self, void *unused)
{
    (void)self;
    (void)unused;
    tp_check(answer(to_drop, num_msg(99)));
}

static void
end_root(struct tp_actor *self, void *unused)
{
    (void)unused;
    for (int i = 0; i < 50; i++) {
        CHECK_EQ(call_dies(self, spawn(end_unread, NULL)), TP_REASON_SHUTDOWN);
        CHECK_EQ(call_dies(self, spawn(end_taken, NULL)), TP_REASON_SHUTDOWN);
        troupe_pid p;
        CHECK_EQ(try_spawn(NULL, end_holding, drop_in_finish, NULL, &p), 0);
        CHECK_EQ(call_dies(self, p), TP_REASON_SHUTDOWN);
        CHECK_EQ(try_spawn(NULL, end_holding, reply_in_finish, NULL, &p), 0);
        CHECK_EQ(call_ok(self, p, 1), 99);
    }
    expect_no_mail(self);
}

static void
the_end_of_the_other_fails_the_call(void **state)
{
    (void)state;
    run_both(end_root);
}

/* --- others who answer --- */

/* One reference for each. */
struct shared {
    struct tp_owed *owed;
    counter go, done;
    bool replies, told;
};

static void
have_one(struct tp_actor *self, void *arg)
{
    struct shared *s = arg;
    YIELD_UNTIL(self, get(&s->go) != 0);
    s->told = s->replies && tp_owed_reply(s->owed, num_msg(7));
    tp_owed_unref(s->owed);
    set(&s->done, 1);
}

/* Takes a request, lets another have it too, and does as that one. */
static void
share(struct tp_actor *self, void *arg)
{
    struct shared *s = arg;
    uint64_t n;
    s->owed = take(self, &n);
    tp_owed_ref(s->owed);
    spawn(have_one, s);
    if (n == 1) { /* ends with it */
        hold_owed(self, s->owed);
        tp_actor_exit(self, tp_reason_const(TP_REASON_SHUTDOWN));
    }
    if (n == 2) { /* is the first to answer */
        tp_check(answer(s->owed, num_msg(6)));
        set(&s->go, 1);
    } else { /* has thrown it away */
        tp_owed_unref(s->owed);
        set(&s->go, 1);
    }
    YIELD_UNTIL(self, get(&s->done) != 0);
}

static int
call_shared(struct tp_actor *self, uint64_t how, struct shared *s,
            uint64_t *out_n)
{
    enum tp_reason_kind kind;
    troupe_pid p = spawn(share, s);
    int rc = call(self, p, how, SOON, out_n, &kind);
    set(&s->go, 1);
    YIELD_UNTIL(self, get(&s->done) != 0);
    join_kind(self, p);
    return rc;
}

static void
shared_root(struct tp_actor *self, void *unused)
{
    (void)unused;
    for (int i = 0; i < FEWER(50); i++) {
        uint64_t n = 0;
        struct shared s = {.replies = true};
        CHECK_EQ(call_shared(self, 1, &s, &n), TROUPE_ENOPROC);
        tp_check(!s.told);
        s = (struct shared){.replies = true};
        CHECK_EQ(call_shared(self, 2, &s, &n), 0);
        tp_check(n == 6 && !s.told);
        s = (struct shared){.replies = true};
        CHECK_EQ(call_shared(self, 3, &s, &n), 0);
        tp_check(n == 7 && s.told);
        s = (struct shared){.replies = false};
        CHECK_EQ(call_shared(self, 3, &s, &n), TROUPE_ENO_REPLY);
    }
    expect_no_mail(self);
}

static void
the_first_answer_counts(void **state)
{
    (void)state;
    run_both(shared_root);
}

/* --- the end of the one who asks --- */

static void
ask_for_ever(struct tp_actor *self, void *arg)
{
    struct tp_msg *reply;
    struct tp_reason *reason;
    tp_call(self, *(troupe_pid *)arg, num_msg(1), TP_NEVER, &reply, &reason);
    abort();
}

static void
caller_dies_root(struct tp_actor *self, void *unused)
{
    troupe_pid me = self->pid;
    (void)unused;
    for (int i = 0; i < 50; i++) {
        uint64_t n;
        troupe_pid p = spawn(ask_for_ever, &me);
        struct tp_owed *o = take(self, &n);
        end_with(p, TP_REASON_KILLED);
        if (i % 2 == 0) {
            join_kind(self, p);
            tp_check(!answer(o, num_msg(2)));
        } else {
            answer(o, num_msg(2));
            join_kind(self, p);
        }
    }
}

static void
a_caller_may_end_before_its_answer(void **state)
{
    (void)state;
    run_both(caller_dies_root);
}

/* --- full mailboxes --- */

static void
read_when_told(struct tp_actor *self, void *unused)
{
    (void)unused;
    YIELD_UNTIL(self, get(&go) != 0);
    serve(self, NULL);
}

static void
swallow(struct tp_actor *self, void *unused)
{
    (void)unused;
    YIELD_UNTIL(self, get(&go) != 0);
    recv_num(self);
    serve(self, NULL);
}

static troupe_pid
spawn_full(enum tp_mail_policy policy, actor_fn fn)
{
    struct tp_spawn_opts opts = {.mail_limit = 1,
                                 .mail_policy = (uint8_t)policy};
    set(&go, 0);
    troupe_pid p = spawn_opts(&opts, fn, NULL);
    CHECK_EQ(push_num(p, 7), 0);
    return p;
}

static void
full_root(struct tp_actor *self, void *unused)
{
    uint64_t got;
    enum tp_reason_kind kind;
    (void)unused;
    troupe_pid p = spawn_full(TP_MAIL_ERROR, read_when_told);
    CHECK_EQ(call(self, p, 1, TP_NEVER, &got, &kind), TROUPE_EFULL);
    end_with(p, TP_REASON_KILLED);

    p = spawn_full(TP_MAIL_DROP_NEW, read_when_told);
    CHECK_EQ(call(self, p, 1, TP_NEVER, &got, &kind), TROUPE_ENO_REPLY);
    end_with(p, TP_REASON_KILLED);

    p = spawn_full(TP_MAIL_BLOCK, swallow);
    uint64_t deadline = tp_now_ns() + 2 * MS;
    CHECK_EQ(call(self, p, 1, deadline, &got, &kind), TROUPE_ETIMEOUT);
    tp_check(tp_now_ns() >= deadline);
    set(&go, 1);
    CHECK_EQ(call_ok(self, p, 1), 2);
    end_with(p, TP_REASON_KILLED);
}

static void
a_full_mailbox_refuses_drops_or_lets_wait(void **state)
{
    (void)state;
    run_both(full_root);
}

/* Ended while it waits for room: its request is dropped, its place is free. */
static void
room_root(struct tp_actor *self, void *unused)
{
    (void)unused;
    troupe_pid full = spawn_full(TP_MAIL_BLOCK, swallow);
    troupe_pid p[10];
    for (int i = 0; i < 10; i++) {
        p[i] = spawn(ask_for_ever, &full);
        YIELD_UNTIL(self, state_of(p[i]) == TP_PARKED);
    }
    for (int i = 0; i < 10; i++) {
        end_with(p[i], TP_REASON_KILLED);
        YIELD_UNTIL(self, !tp_pid_is_alive(p[i]));
    }
    set(&go, 1);
    CHECK_EQ(call_ok(self, full, 5), 6);
    end_with(full, TP_REASON_KILLED);
}

static void
a_caller_may_end_while_it_waits_for_room(void **state)
{
    (void)state;
    run_both(room_root);
}

/* Waits for room at one that ends meanwhile. */
static void
end_full(struct tp_actor *self, void *unused)
{
    (void)unused;
    YIELD_UNTIL(self, get(&go) != 0);
    tp_actor_sleep(self, tp_now_ns() + 2 * MS);
}

static void
end_full_root(struct tp_actor *self, void *unused)
{
    (void)unused;
    troupe_pid p = spawn_full(TP_MAIL_BLOCK, end_full);
    set(&go, 1);
    CHECK_EQ(call_dies(self, p), TP_REASON_NOPROC);
}

static void
the_end_of_a_full_mailbox_fails_the_call(void **state)
{
    (void)state;
    run_both(end_full_root);
}

/* --- without memory --- */

static void
fault_root(struct tp_actor *self, void *unused)
{
    (void)unused;
    for (long nth = 1; nth < 3; nth++) {
        struct tp_msg m = {.kind = TP_MSG_CALL, .from = self->pid, .ref = 1};
        tp_fault_arm(nth);
        struct tp_owed *o = tp_owed_new(self, &m);
        bool hit = tp_fault_fired();
        tp_fault_arm(0);
        CHECK_EQ(o == NULL, hit);
        if (o != NULL) {
            tp_owed_unref(o);
        }
    }
}

static void
a_request_without_memory_says_so(void **state)
{
    (void)state;
    run(1, fault_root);
}

/* A finalizer cannot call. */
static void
call_in_finish(struct tp_actor *self, void *arg)
{
    struct tp_msg *reply;
    struct tp_reason *reason;
    CHECK_EQ(tp_call(self, *(troupe_pid *)arg, num_msg(1), TP_NEVER, &reply,
                     &reason),
             TROUPE_EINVAL);
}

static void
finish_root(struct tp_actor *self, void *unused)
{
    troupe_pid p = spawn(serve, NULL), q;
    (void)unused;
    CHECK_EQ(try_spawn(NULL, body_nothing, call_in_finish, &p, &q), 0);
    join_kind(self, q);
    end_with(p, TP_REASON_KILLED);
}

static void
a_finalizer_cannot_call(void **state)
{
    (void)state;
    run(1, finish_root);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_reply_ends_the_call),
        cmocka_unit_test(a_call_leaves_other_mail_alone),
        cmocka_unit_test(a_call_to_oneself_is_refused),
        cmocka_unit_test(a_request_that_is_forgotten_fails_the_call),
        cmocka_unit_test(a_request_that_is_dropped_fails_the_call),
        cmocka_unit_test(a_late_reply_is_dropped),
        cmocka_unit_test(a_call_times_out_and_leaves_nothing),
        cmocka_unit_test(a_call_to_the_dead_fails_at_once),
        cmocka_unit_test(the_end_of_the_other_fails_the_call),
        cmocka_unit_test(the_first_answer_counts),
        cmocka_unit_test(a_caller_may_end_before_its_answer),
        cmocka_unit_test(a_full_mailbox_refuses_drops_or_lets_wait),
        cmocka_unit_test(a_caller_may_end_while_it_waits_for_room),
        cmocka_unit_test(the_end_of_a_full_mailbox_fails_the_call),
        cmocka_unit_test(a_request_without_memory_says_so),
        cmocka_unit_test(a_finalizer_cannot_call),
    };
    return cmocka_run_group_tests_name("call", tests, NULL, NULL);
}
