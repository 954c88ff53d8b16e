/*
 * mailbox_test.c - order, limits, selective take, waits, stale pids.
 */
#include "run_in.h"

#include <pthread.h>
#include <setjmp.h>

#include <cmocka.h>

#define TAKE_CARE(kind) assert_int_equal(kind, TP_REASON_NORMAL)

static void
run(unsigned schedulers, actor_fn root)
{
    TAKE_CARE(run_in(schedulers, root, NULL));
}

static bool
has_mail(const struct tp_actor *self)
{
    return self->slot->mail_head != NULL;
}

/* --- order --- */

#define SENDERS 8
#define EACH    2000

static void
send_rising(struct tp_actor *self, void *arg)
{
    troupe_pid to = *(troupe_pid *)arg;
    for (uint64_t i = 0; i < EACH; i++) {
        CHECK_EQ(send_num(self, to, i), 0);
        if (i % 97 == 0) {
            tp_actor_yield(self);
        }
    }
}

static void
order_root(struct tp_actor *self, void *unused)
{
    troupe_pid from[SENDERS];
    uint64_t next[SENDERS] = {0};
    (void)unused;
    for (size_t i = 0; i < SENDERS; i++) {
        from[i] = spawn(send_rising, &self->pid);
    }
    for (int n = 0; n < SENDERS * EACH; n++) {
        struct tp_msg *m = recv_msg(self);
        size_t i = 0;
        while (from[i] != m->from) {
            i++;
            tp_check(i < SENDERS);
        }
        CHECK_EQ(msg_num(m), next[i]);
        next[i]++;
        tp_msg_free(m);
    }
    tp_check(tp_mailbox_pop(self) == NULL);
}

static void
messages_of_one_sender_keep_their_order(void **state)
{
    (void)state;
    run(1, order_root);
    run(2, order_root);
}

/* --- who is there --- */

static void
nobody_root(struct tp_actor *self, void *unused)
{
    troupe_pid dead = spawn(body_nothing, NULL);
    (void)unused;
    CHECK_EQ(join_kind(self, dead), TP_REASON_NORMAL);
    CHECK_EQ(push_num(dead, 1), TROUPE_ENOPROC);
    CHECK_EQ(push_num(0, 1), TROUPE_ENOPROC);
    CHECK_EQ(push_num(UINT64_MAX, 1), TROUPE_ENOPROC);
    CHECK_EQ(push_num(self->pid + (1u << TP_PID_INDEX_BITS), 1),
             TROUPE_ENOPROC);
    tp_check(!tp_mailbox_is_open(dead));
    tp_check(!tp_mailbox_is_open(0));
    tp_check(tp_mailbox_is_open(self->pid));
    CHECK_EQ(push_num(self->pid, 1), 0);
    CHECK_EQ(recv_num(self), 1);
}

static void
a_message_to_nobody_is_refused(void **state)
{
    (void)state;
    run(1, nobody_root);
}

static void
reuse_root(struct tp_actor *self, void *unused)
{
    troupe_pid old[50];
    (void)unused;
    for (size_t i = 0; i < FEWER(50); i++) {
        troupe_pid p = spawn(body_wait, NULL);
        CHECK_EQ(tp_pid_index(p), 1); /* there is one slot but the root's */
        for (size_t k = 0; k < i; k++) {
            CHECK_EQ(push_num(old[k], 1), TROUPE_ENOPROC);
            tp_check(!tp_mailbox_is_open(old[k]) && !tp_pid_is_alive(old[k]));
            tp_check(!end_with(old[k], TP_REASON_KILLED));
        }
        tp_check(tp_mailbox_is_open(p));
        CHECK_EQ(push_num(p, 1), 0);
        tp_check(end_with(p, TP_REASON_KILLED));
        CHECK_EQ(join_kind(self, p), TP_REASON_KILLED);
        /* The slot comes back a moment after the monitors were told. */
        YIELD_UNTIL(self, state_of(p) == TP_VACANT);
        old[i] = p;
    }
}

static void
a_stale_pid_does_not_reach_the_slots_next_actor(void **state)
{
    struct tp_run_config config = {.schedulers = 1, .max_actors = 2};
    (void)state;
    struct tp_reason *r = run_config(&config, reuse_root, NULL);
    assert_int_equal(r->kind, TP_REASON_NORMAL);
}

/* --- end --- */

static counter released;

static void
count_release(struct tp_msg *m)
{
    (void)m;
    add(&released, 1);
}

static int
push_handles(troupe_pid to)
{
    struct tp_msg *m = num_msg(1);
    m->flags = TP_MSG_HAS_HANDLES | TP_MSG_HAS_OBJECTS;
    int rc = tp_mailbox_push(to, m);
    if (rc != 0) {
        tp_msg_drop(m);
    }
    return rc;
}

/* In its own end: the mailbox is closed, and nothing waits. */
static void
closed_finish(struct tp_actor *self, void *unused)
{
    (void)unused;
    CHECK_EQ(push_num(self->pid, 1), TROUPE_ENOPROC);
    tp_check(!tp_mailbox_is_open(self->pid));
    tp_check(tp_mailbox_pop(self) == NULL);
    CHECK_EQ(tp_mailbox_wait(self, TP_NEVER), TROUPE_EINVAL);
    CHECK_EQ(tp_mailbox_wait(self, tp_now_ns() + S), TROUPE_EINVAL);
    CHECK_EQ(tp_mailbox_wait(self, 0), TROUPE_ETIMEOUT);
    CHECK_EQ(push_num(self->pid, 1), TROUPE_ENOPROC);
}

static void
unread_root(struct tp_actor *self, void *unused)
{
    troupe_pid p;
    (void)unused;
    CHECK_EQ(try_spawn(NULL, body_wait, closed_finish, NULL, &p), 0);
    for (int i = 0; i < 10; i++) {
        CHECK_EQ(push_handles(p), 0);
    }
    tp_actor_yield(self); /* fetched now, and unread */
    for (int i = 0; i < 10; i++) {
        CHECK_EQ(push_handles(p), 0); /* not even fetched */
    }
    tp_check(end_with(p, TP_REASON_KILLED));
    CHECK_EQ(get(&released), 0);
    CHECK_EQ(join_kind(self, p), TP_REASON_KILLED);
    CHECK_EQ(get(&released), 20);
    CHECK_EQ(push_handles(p), TROUPE_ENOPROC);
}

static void
what_nobody_read_is_released_at_the_end(void **state)
{
    (void)state;
    set(&released, 0);
    tp_user_release = count_release;
    run(1, unread_root);
    tp_user_release = NULL;
    assert_int_equal(get(&released), 21);
}

/* --- selective take --- */

/* Takes the message with number n out of the own list. */
static void
take_num(struct tp_actor *self, uint64_t n)
{
    struct tp_msg **link = &self->slot->mail_head;
    while (msg_num(*link) != n) {
        link = &(*link)->next;
        tp_check(*link != NULL);
    }
    struct tp_msg *m = tp_mailbox_take(self, link);
    CHECK_EQ(msg_num(m), n);
    tp_check(m->next == NULL);
    tp_msg_free(m);
}

static void
push_range(struct tp_actor *self, uint64_t from, uint64_t to)
{
    for (uint64_t i = from; i < to; i++) {
        CHECK_EQ(push_num(self->pid, i), 0);
    }
    tp_check(tp_mailbox_fetch(self));
    tp_check(!tp_mailbox_fetch(self));
}

static void
expect_nums(struct tp_actor *self, const uint64_t *n, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        CHECK_EQ(recv_num(self), n[i]);
    }
    tp_check(tp_mailbox_pop(self) == NULL && !has_mail(self));
}

static void
take_root(struct tp_actor *self, void *unused)
{
    (void)unused;
    push_range(self, 0, 6);
    take_num(self, 3); /* middle */
    take_num(self, 0); /* first */
    take_num(self, 5); /* last */
    push_range(self, 6, 8);
    expect_nums(self, (uint64_t[]){1, 2, 4, 6, 7}, 5);
    push_range(self, 0, 1);
    take_num(self, 0); /* the only one */
    push_range(self, 1, 3);
    take_num(self, 2);
    take_num(self, 1);
    tp_check(!has_mail(self));
    push_range(self, 7, 9);
    expect_nums(self, (uint64_t[]){7, 8}, 2);
}

static void
any_message_can_be_taken_from_the_middle(void **state)
{
    (void)state;
    run(1, take_root);
}

static void
random_take_root(struct tp_actor *self, void *arg)
{
    uint64_t *x = arg, next = 0, model[64];
    size_t n = 0;
    for (int step = 0; step < 20000; step++) {
        if (n < 64 && random_next(x) % 2 == 0) {
            push_range(self, next, next + 1);
            model[n++] = next++;
        } else if (n > 0) {
            size_t at = random_next(x) % n;
            take_num(self, model[at]);
            memmove(&model[at], &model[at + 1], (--n - at) * sizeof *model);
        }
    }
    expect_nums(self, model, n);
}

static void
random_takes_agree_with_a_model(void **state)
{
    uint64_t x = random_seed();
    (void)state;
    TAKE_CARE(run_in(1, random_take_root, &x));
}

/* --- waits --- */

static void
timeout_root(struct tp_actor *self, void *unused)
{
    (void)unused;
    CHECK_EQ(tp_mailbox_wait(self, 0), TROUPE_ETIMEOUT);
    CHECK_EQ(tp_mailbox_wait(self, tp_now_ns()), TROUPE_ETIMEOUT);
    for (int i = 0; i < 10; i++) {
        uint64_t deadline = tp_now_ns() + MS / 2;
        CHECK_EQ(tp_mailbox_wait(self, deadline), TROUPE_ETIMEOUT);
        tp_check(tp_now_ns() >= deadline);
    }
    CHECK_EQ(push_num(self->pid, 5), 0);
    CHECK_EQ(tp_mailbox_wait(self, 0), 0); /* mail beats the clock */
    CHECK_EQ(recv_num(self), 5);
}

static void
a_wait_ends_at_its_deadline_and_not_before(void **state)
{
    (void)state;
    run(1, timeout_root);
    run(2, timeout_root);
}

static void
reply_once(struct tp_actor *self, void *arg)
{
    CHECK_EQ(send_num(self, *(troupe_pid *)arg, 7), 0);
}

static void
wake_root(struct tp_actor *self, void *unused)
{
    static const uint64_t huge[] = {TP_NEVER, TP_NEVER - 1, TP_NEVER / 2};
    (void)unused;
    for (size_t i = 0; i < FEWER(300); i++) {
        uint64_t deadline = huge[i % 3];
        spawn(reply_once, &self->pid);
        CHECK_EQ(tp_mailbox_wait(self, deadline), 0);
        CHECK_EQ(recv_num(self), 7);
    }
}

static void
a_message_ends_a_wait_however_long(void **state)
{
    (void)state;
    run(1, wake_root);
    run(2, wake_root);
}

static void
pester(struct tp_actor *self, void *arg)
{
    troupe_pid to = *(troupe_pid *)arg;
    for (uint64_t i = 0; i < 50; i++) {
        CHECK_EQ(send_num(self, to, i), 0);
        tp_actor_yield(self);
    }
}

/* A park that is no wait for mail: one park, whatever arrives meanwhile. */
static void
sleep_root(struct tp_actor *self, void *unused)
{
    uint64_t i = 0;
    (void)unused;
    /* A wait for mail that timed out leaves its mark in the inbox. */
    CHECK_EQ(tp_mailbox_wait(self, tp_now_ns() + MS / 10), TROUPE_ETIMEOUT);
    spawn(pester, &self->pid);
    uint64_t deadline = tp_now_ns() + 5 * MS;
    do {
        CHECK_EQ(tp_actor_park(self, deadline), 0);
        i++;
    } while (tp_now_ns() < deadline);
    CHECK_EQ(i, 1);
    for (i = 0; i < 50; i++) {
        CHECK_EQ(recv_num(self), i);
    }
}

static void
mail_does_not_end_a_sleep(void **state)
{
    (void)state;
    run(1, sleep_root);
    run(2, sleep_root);
}

/* --- the wait epoch wraps --- */

static void
wrap_epoch(struct tp_actor *self)
{
    uint32_t to_max = UINT32_MAX - 2 - tp_wait_epoch(self->slot);
    /* relaxed: the owner. */
    atomic_fetch_add_explicit(&self->slot->state,
                              (uint64_t)to_max << TP_STATE_EPOCH_SHIFT,
                              memory_order_relaxed);
}

static void
epoch_root(struct tp_actor *self, void *unused)
{
    (void)unused;
    for (int round = 0; round < 3; round++) {
        wrap_epoch(self);
        uint32_t before = tp_wait_epoch(self->slot);
        for (int i = 0; i < 10; i++) {
            spawn(reply_once, &self->pid);
            CHECK_EQ(tp_mailbox_wait(self, TP_NEVER), 0);
            CHECK_EQ(recv_num(self), 7);
            CHECK_EQ(tp_mailbox_wait(self, tp_now_ns() + MS / 10),
                     TROUPE_ETIMEOUT);
        }
        tp_check(tp_wait_epoch(self->slot) < before);
        tp_check(tp_slot_pid(self->slot) == self->pid);
        tp_check(!tp_unpark_at(self->pid, before));
        tp_check(!tp_unpark_at(self->pid, UINT32_MAX));
    }
}

static void
waits_go_on_when_their_epoch_wraps(void **state)
{
    (void)state;
    run(1, epoch_root);
    run(2, epoch_root);
}

/* --- limits --- */

static const struct tp_spawn_opts limit_error = {.mail_limit = 3,
                                                 .mail_policy = TP_MAIL_ERROR};
static const struct tp_spawn_opts limit_drop = {
    .mail_limit = 3, .mail_policy = TP_MAIL_DROP_NEW};
static const struct tp_spawn_opts limit_one = {.mail_limit = 1,
                                               .mail_policy = TP_MAIL_BLOCK};

/* Reads n when told to by step, counts what it got. */
static counter steps, reads, read_sum;

static void
read_on_step(struct tp_actor *self, void *unused)
{
    (void)unused;
    for (uint64_t done = 0;; done++) {
        while (get(&steps) == done) {
            tp_actor_yield(self);
        }
        add(&read_sum, recv_num(self));
        add(&reads, 1);
    }
}

static troupe_pid
reader(const struct tp_spawn_opts *opts)
{
    set(&steps, 0);
    set(&reads, 0);
    set(&read_sum, 0);
    return spawn_opts(opts, read_on_step, NULL);
}

static void
let_read(struct tp_actor *self, uint64_t n)
{
    uint64_t want = get(&reads) + n;
    add(&steps, n);
    YIELD_UNTIL(self, get(&reads) == want);
}

static void
limit_error_root(struct tp_actor *self, void *unused)
{
    troupe_pid p = reader(&limit_error);
    (void)unused;
    for (int round = 0; round < 5; round++) {
        CHECK_EQ(send_num(self, p, 1), 0);
        CHECK_EQ(push_num(p, 10), 0);
        CHECK_EQ(send_num(self, p, 100), 0);
        CHECK_EQ(send_num(self, p, 1000), TROUPE_EFULL);
        CHECK_EQ(push_num(p, 1000), TROUPE_EFULL);
        let_read(self, 1);
        CHECK_EQ(push_num(p, 10000), 0);
        CHECK_EQ(push_num(p, 1000), TROUPE_EFULL);
        let_read(self, 3);
        CHECK_EQ(get(&read_sum), 10111 * (round + 1));
    }
    end_with(p, TP_REASON_KILLED);
}

static void
a_full_mailbox_says_so(void **state)
{
    (void)state;
    run(1, limit_error_root);
    run(2, limit_error_root);
}

static void
limit_drop_root(struct tp_actor *self, void *unused)
{
    troupe_pid p = reader(&limit_drop);
    (void)unused;
    for (uint64_t i = 0; i < 10; i++) {
        CHECK_EQ(push_handles(p), 0);
    }
    CHECK_EQ(get(&released), 7);
    let_read(self, 3);
    CHECK_EQ(get(&read_sum), 3);
    CHECK_EQ(send_num(self, p, 5), 0);
    let_read(self, 1);
    CHECK_EQ(get(&read_sum), 8);
    end_with(p, TP_REASON_KILLED);
    CHECK_EQ(join_kind(self, p), TP_REASON_KILLED);
    CHECK_EQ(push_num(p, 1), TROUPE_ENOPROC);
}

static void
a_mailbox_that_drops_keeps_the_oldest(void **state)
{
    (void)state;
    set(&released, 0);
    tp_user_release = count_release;
    run(1, limit_drop_root);
    tp_user_release = NULL;
}

/* Sends its number; says how that went. */
struct sender {
    troupe_pid to, pid;
    struct tp_msg *m; /* its own until it is sent */
    counter begun, done;
    int rc;
};

static void
send_body(struct tp_actor *self, void *arg)
{
    struct sender *s = arg;
    set(&s->begun, 1);
    s->rc = tp_mailbox_send(self, s->to, s->m);
    if (s->rc == 0) {
        s->m = NULL;
    }
    set(&s->done, 1);
}

static void
send_over(struct tp_actor *self, void *arg)
{
    struct sender *s = arg;
    (void)self;
    if (s->m != NULL) {
        tp_msg_drop(s->m);
    }
}

/* Spawned, and parked where the mailbox is full. */
static void
sender_start(struct tp_actor *self, struct sender *s, troupe_pid to, uint64_t n)
{
    memset(s, 0, sizeof *s);
    s->to = to;
    s->m = num_msg(n);
    CHECK_EQ(try_spawn(NULL, send_body, send_over, s, &s->pid), 0);
    YIELD_UNTIL(self, get(&s->done) != 0 || (get(&s->begun) != 0 &&
                                             state_of(s->pid) == TP_PARKED));
}

static void
block_root(struct tp_actor *self, void *unused)
{
    static struct sender s[5];
    (void)unused;
    for (uint64_t i = 0; i < 5; i++) {
        sender_start(self, &s[i], self->pid, i);
        CHECK_EQ(get(&s[i].done), i == 0);
    }
    /* One message read lets one sender go on, the first in line. */
    for (uint64_t i = 0; i < 5; i++) {
        CHECK_EQ(recv_num(self), i);
        if (i < 4) {
            YIELD_UNTIL(self, get(&s[i + 1].done) != 0);
            CHECK_EQ(s[i + 1].rc, 0);
        }
        for (uint64_t k = i + 2; k < 5; k++) {
            CHECK_EQ(get(&s[k].done), 0);
        }
    }
    tp_check(tp_mailbox_pop(self) == NULL);
}

static void
run_limited_root(unsigned schedulers, actor_fn fn)
{
    struct tp_run_config config = {.schedulers = schedulers};
    struct tp_reason *reason;
    assert_int_equal(tp_run(&config, &limit_one, &body_class,
                            body_new(fn, NULL, NULL), &reason),
                     0);
    assert_int_equal(reason->kind, TP_REASON_NORMAL);
}

static void
a_mailbox_that_blocks_lets_senders_wait_in_line(void **state)
{
    (void)state;
    run_limited_root(1, block_root);
    run_limited_root(2, block_root);
}

static void
no_wait_root(struct tp_actor *self, void *unused)
{
    (void)unused;
    CHECK_EQ(send_num(self, self->pid, 1), 0);
    CHECK_EQ(send_num(self, self->pid, 2), TROUPE_EFULL); /* to oneself */
    CHECK_EQ(push_num(self->pid, 3), TROUPE_EFULL);
    CHECK_EQ(recv_num(self), 1);
}

static void
who_cannot_wait_gets_an_error(void **state)
{
    (void)state;
    run_limited_root(1, no_wait_root);
}

static void
dead_waiter_root(struct tp_actor *self, void *unused)
{
    static struct sender s[4];
    (void)unused;
    for (uint64_t i = 0; i < 4; i++) {
        sender_start(self, &s[i], self->pid, i);
    }
    end_with(s[1].pid, TP_REASON_KILLED);
    CHECK_EQ(push_num(s[2].pid, 1), 0); /* mail does not bother a waiter */
    YIELD_UNTIL(self, !tp_pid_is_alive(s[1].pid));
    CHECK_EQ(recv_num(self), 0);
    CHECK_EQ(recv_num(self), 2); /* 1 has died in line */
    CHECK_EQ(recv_num(self), 3);
}

static void
a_waiter_that_died_passes_its_turn_on(void **state)
{
    (void)state;
    run_limited_root(1, dead_waiter_root);
    run_limited_root(2, dead_waiter_root);
}

/* The waiter has been told that there is room, and is ended before it runs. */
static void
told_waiter_root(struct tp_actor *self, void *unused)
{
    static struct sender s[3];
    (void)unused;
    for (int round = 0; round < FEWER(100); round++) {
        for (uint64_t i = 0; i < 3; i++) {
            sender_start(self, &s[i], self->pid, i);
        }
        CHECK_EQ(recv_num(self), 0);
        bool killed = end_with(s[1].pid, TP_REASON_KILLED);
        if (!killed || get(&s[1].done) != 0) {
            tp_check(recv_num(self) == 1); /* it was faster */
        }
        uint64_t n = recv_num(self);
        if (n == 1) {
            n = recv_num(self);
        }
        CHECK_EQ(n, 2);
    }
}

static void
a_waiter_that_died_with_its_turn_passes_it_on(void **state)
{
    (void)state;
    run_limited_root(1, told_waiter_root);
}

static void
unread_limited(struct tp_actor *self, void *unused)
{
    (void)unused;
    CHECK_EQ(tp_actor_park(self, TP_NEVER), 0);
}

static void
owner_dies_root(struct tp_actor *self, void *unused)
{
    static struct sender s[20];
    troupe_pid p = spawn_opts(&limit_one, unread_limited, NULL);
    (void)unused;
    for (uint64_t i = 0; i < 20; i++) {
        sender_start(self, &s[i], p, i);
    }
    end_with(p, TP_REASON_KILLED);
    for (uint64_t i = 0; i < 20; i++) {
        YIELD_UNTIL(self, get(&s[i].done) != 0);
        CHECK_EQ(s[i].rc, i == 0 ? 0 : TROUPE_ENOPROC);
    }
}

static void
the_end_of_a_full_mailbox_frees_all_who_wait(void **state)
{
    (void)state;
    run(1, owner_dies_root);
    run(2, owner_dies_root);
}

/* Downs and ticks are not counted: they must not be lost. */
static void
system_mail_root(struct tp_actor *self, void *unused)
{
    uint64_t ref;
    (void)unused;
    CHECK_EQ(push_num(self->pid, 1), 0);
    for (int i = 0; i < 5; i++) {
        CHECK_EQ(tp_monitor(self, spawn(body_nothing, NULL), &ref), 0);
    }
    CHECK_EQ(recv_num(self), 1);
    for (int i = 0; i < 5; i++) {
        struct tp_msg *m = recv_msg(self);
        CHECK_EQ(m->kind, TP_MSG_DOWN);
        tp_check(tp_monitor_take_down(self, m));
        tp_msg_drop(m);
    }
    CHECK_EQ(push_num(self->pid, 2), 0);
    CHECK_EQ(push_num(self->pid, 3), TROUPE_EFULL);
    CHECK_EQ(recv_num(self), 2);
}

static void
a_limit_does_not_hold_for_system_messages(void **state)
{
    (void)state;
    run_limited_root(1, system_mail_root);
}

static void
fault_sender(struct tp_actor *self, void *arg)
{
    struct sender *s = arg;
    struct tp_msg *m = num_msg(1);
    tp_fault_arm(1);
    s->rc = tp_mailbox_send(self, s->to, m);
    tp_fault_arm(0);
    tp_msg_drop(m); /* still ours */
    set(&s->done, 1);
}

static void
fault_root(struct tp_actor *self, void *unused)
{
    struct sender s = {.to = self->pid};
    (void)unused;
    CHECK_EQ(push_num(self->pid, 1), 0);
    spawn(fault_sender, &s);
    YIELD_UNTIL(self, get(&s.done) != 0);
    CHECK_EQ(s.rc, TROUPE_ENOMEM);
    CHECK_EQ(recv_num(self), 1);
}

static void
no_memory_to_wait_in_line_is_an_error(void **state)
{
    (void)state;
    run_limited_root(1, fault_root);
}

static void
blocked_finish(struct tp_actor *self, void *arg)
{
    CHECK_EQ(send_num(self, *(troupe_pid *)arg, 2), TROUPE_EFULL);
}

static void
finish_root(struct tp_actor *self, void *unused)
{
    troupe_pid p;
    (void)unused;
    CHECK_EQ(push_num(self->pid, 1), 0);
    CHECK_EQ(try_spawn(NULL, body_nothing, blocked_finish, &self->pid, &p), 0);
    CHECK_EQ(join_kind(self, p), TP_REASON_NORMAL);
    CHECK_EQ(recv_num(self), 1);
}

static void
a_finalizer_does_not_wait_for_room(void **state)
{
    (void)state;
    run_limited_root(1, finish_root);
}

/* --- other threads --- */

static void *
push_from_outside(void *arg)
{
    troupe_pid to = *(troupe_pid *)arg;
    for (uint64_t i = 0; i < 1000; i++) {
        CHECK_EQ(push_num(to, i), 0);
    }
    tp_msg_thread_flush();
    tp_external_end();
    return NULL;
}

static void
outside_root(struct tp_actor *self, void *unused)
{
    pthread_t t;
    (void)unused;
    tp_external_begin();
    CHECK_EQ(pthread_create(&t, NULL, push_from_outside, &self->pid), 0);
    for (uint64_t i = 0; i < 1000; i++) {
        CHECK_EQ(recv_num(self), i);
    }
    pthread_join(t, NULL);
}

static void
a_thread_that_is_no_worker_can_send(void **state)
{
    (void)state;
    run(1, outside_root);
    run(2, outside_root);
}

/* --- what a server takes first --- */

static void
push_kind(troupe_pid to, uint64_t n, enum tp_msg_kind kind, troupe_pid from)
{
    struct tp_msg *m = num_msg(n);
    m->kind = (uint16_t)kind;
    m->from = from;
    CHECK_EQ(tp_mailbox_push(to, m), 0);
}

static void
take_and_check(struct tp_actor *self, struct tp_msg **link, uint64_t n)
{
    tp_check(link != NULL);
    struct tp_msg *m = tp_mailbox_take(self, link);
    CHECK_EQ(msg_num(m), n);
    tp_msg_free(m);
}

static void
urgent_root(struct tp_actor *self, void *unused)
{
    troupe_pid master = self->pid ^ 1, other = self->pid ^ 2;
    (void)unused;
    self->master = master;
    push_kind(self->pid, 1, TP_MSG_USER, master);
    push_kind(self->pid, 2, TP_MSG_EXIT, other); /* not the master's */
    push_kind(self->pid, 3, TP_MSG_SYSTEM, other);
    push_kind(self->pid, 4, TP_MSG_CAST, other);
    tp_check(tp_mailbox_urgent(self) == NULL); /* nothing was fetched */
    tp_check(tp_mailbox_fetch(self));
    push_kind(self->pid, 5, TP_MSG_EXIT, master);
    take_and_check(self, tp_mailbox_urgent(self), 3);
    tp_check(tp_mailbox_urgent(self) == NULL);
    tp_check(tp_mailbox_fetch(self));
    /* One that was taken as any other is not looked for any more. */
    take_and_check(self, &self->slot->mail_head, 1);
    take_and_check(self, &self->slot->mail_head, 2);
    take_and_check(self, &self->slot->mail_head, 4);
    take_and_check(self, tp_mailbox_urgent(self), 5);
    tp_check(tp_mailbox_urgent(self) == NULL && !has_mail(self));
    CHECK_EQ(self->urgent, 0);
}

static void
a_server_finds_what_is_for_its_loop_first(void **state)
{
    (void)state;
    run(1, urgent_root);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_of_one_sender_keep_their_order),
        cmocka_unit_test(a_message_to_nobody_is_refused),
        cmocka_unit_test(a_stale_pid_does_not_reach_the_slots_next_actor),
        cmocka_unit_test(what_nobody_read_is_released_at_the_end),
        cmocka_unit_test(any_message_can_be_taken_from_the_middle),
        cmocka_unit_test(random_takes_agree_with_a_model),
        cmocka_unit_test(a_wait_ends_at_its_deadline_and_not_before),
        cmocka_unit_test(a_message_ends_a_wait_however_long),
        cmocka_unit_test(mail_does_not_end_a_sleep),
        cmocka_unit_test(waits_go_on_when_their_epoch_wraps),
        cmocka_unit_test(a_full_mailbox_says_so),
        cmocka_unit_test(a_mailbox_that_drops_keeps_the_oldest),
        cmocka_unit_test(a_mailbox_that_blocks_lets_senders_wait_in_line),
        cmocka_unit_test(who_cannot_wait_gets_an_error),
        cmocka_unit_test(a_waiter_that_died_passes_its_turn_on),
        cmocka_unit_test(a_waiter_that_died_with_its_turn_passes_it_on),
        cmocka_unit_test(the_end_of_a_full_mailbox_frees_all_who_wait),
        cmocka_unit_test(a_limit_does_not_hold_for_system_messages),
        cmocka_unit_test(no_memory_to_wait_in_line_is_an_error),
        cmocka_unit_test(a_finalizer_does_not_wait_for_room),
        cmocka_unit_test(a_thread_that_is_no_worker_can_send),
        cmocka_unit_test(a_server_finds_what_is_for_its_loop_first),
    };
    return cmocka_run_group_tests_name("mailbox", tests, NULL, NULL);
}
