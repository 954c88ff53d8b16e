/*
 * channel_stress.c - channels and mutexes under load, with kills.
 *
 *   channel_stress [--rounds N]      TROUPE_SEED=n repeats a run
 */
#include "actor/channel.h"
#include "actor/value_mutex.h"
#include "io/select.h"
#include "run_in.h"

#include <setjmp.h>

#include <cmocka.h>

#define SENDERS 8

static uint64_t seed, rounds = 10;

static uint64_t
pick(uint64_t *x, uint64_t n)
{
    return random_next(x) % n;
}

static void
run_rounds(unsigned schedulers, actor_fn root)
{
    for (uint64_t i = 0; i < rounds; i++) {
        uint64_t random = seed + i * 7919 + schedulers;
        assert_int_equal(run_in(schedulers, root, &random), TP_REASON_NORMAL);
    }
}

/* -- many senders, and a receiver that moves -------------------------------- */

struct flow {
    struct tp_channel *ch;
    uint64_t each;
    /* who receives */
    uint64_t random;
    uint64_t next[SENDERS];
    uint64_t received;
    counter done;
};

struct sender {
    struct flow *flow;
    uint64_t index, random;
};

static void
send_flow(struct tp_actor *self, void *arg)
{
    struct sender *s = arg;
    for (uint64_t i = 0; i < s->flow->each; i++) {
        struct tp_msg *m = num_msg(s->index << 32 | i);
        CHECK_EQ(tp_channel_send_dl(self, s->flow->ch, m, TP_NEVER), 0);
        if (pick(&s->random, 5) == 0) {
            tp_actor_yield(self);
        }
    }
    tp_channel_tx_unref(s->flow->ch);
}

/* What one sender sends arrives in its order, and all of it. */
static void
take_number(struct flow *f, struct tp_msg *m)
{
    uint64_t n = msg_num(m), index = n >> 32;
    tp_msg_free(m);
    tp_check(index < SENDERS);
    CHECK_EQ(n & UINT32_MAX, f->next[index]);
    f->next[index]++;
    f->received++;
}

static void
wait_flow(struct tp_actor *self, struct flow *f)
{
    struct tp_arm arms[] = {{.kind = TP_ARM_INBOX},
                            {.kind = TP_ARM_CHANNEL, .channel = f->ch}};
    size_t index;
    uint64_t deadline = TP_NEVER;
    if (pick(&f->random, 4) == 0) {
        deadline = tp_now_ns() + pick(&f->random, 50000);
    }
    int rc = pick(&f->random, 2) == 0
                 ? tp_channel_wait(self, f->ch, deadline)
                 : tp_select(self, arms, 2, deadline, &index);
    tp_check(rc == 0 || rc == TROUPE_ECLOSED ||
             (rc == TROUPE_ETIMEOUT && deadline != TP_NEVER));
}

/* Takes some, then hands the receiver on to another actor. */
static void
receive_flow(struct tp_actor *self, void *arg)
{
    struct flow *f = arg;
    for (uint64_t left = 1 + pick(&f->random, 200); left > 0;) {
        bool ended = tp_channel_is_ended(f->ch);
        struct tp_msg *m = tp_channel_pop(f->ch);
        if (m != NULL) {
            take_number(f, m);
            left--;
        } else if (ended) {
            tp_channel_rx_close(f->ch);
            set(&f->done, 1);
            return;
        } else {
            wait_flow(self, f);
        }
    }
    spawn(receive_flow, f);
}

static void
flow_root(struct tp_actor *self, void *arg)
{
    uint64_t random = *(uint64_t *)arg;
    struct flow f = {.each = FEWER(1000), .random = random};
    struct sender s[SENDERS];
    uint32_t capacity = (uint32_t)pick(&random, 4);
    f.ch = tp_channel_new(capacity == 3 ? 64 : capacity);
    for (uint64_t i = 0; i < SENDERS; i++) {
        s[i] = (struct sender){&f, i, random + i};
        tp_channel_tx_ref(f.ch);
        spawn(send_flow, &s[i]);
    }
    spawn(receive_flow, &f);
    tp_channel_tx_unref(f.ch);
    YIELD_UNTIL(self, get(&f.done) != 0);
    CHECK_EQ(f.received, SENDERS * f.each);
}

static void
nothing_is_lost_while_the_receiver_moves(void **state)
{
    (void)state;
    for (unsigned n = 1; n <= 4; n *= 2) {
        run_rounds(n, flow_root);
    }
}

/* -- kills -------------------------------------------------------------------- */

#define ACTORS 24

static counter created, released;

static void
count_release(struct tp_msg *m)
{
    (void)m;
    add(&released, 1);
}

/* Each message is counted when it is made and when it goes. */
static struct tp_msg *
counted_msg(void)
{
    struct tp_msg *m = num_msg(add(&created, 1));
    m->flags = TP_MSG_HAS_HANDLES | TP_MSG_HAS_OBJECTS;
    return m;
}

/* What an actor holds: a sender, or the receiver. */
struct end {
    struct tp_resource resource;
    struct tp_channel *ch;
};

static void
tx_release(struct tp_resource *r)
{
    struct end *e = tp_container_of(r, struct end, resource);
    tp_channel_tx_unref(e->ch);
    free(e);
}

static void
rx_release(struct tp_resource *r)
{
    struct end *e = tp_container_of(r, struct end, resource);
    tp_channel_rx_close(e->ch);
    free(e);
}

static void
hold(struct tp_actor *self, struct tp_channel *ch,
     void (*release)(struct tp_resource *))
{
    struct end *e = malloc(sizeof *e);
    tp_check(e != NULL);
    e->resource.release = release;
    e->ch = ch;
    tp_resource_add(self, &e->resource);
}

struct part {
    struct tp_channel *ch;
    uint64_t random;
    counter ready;
};

static void
send_until_killed(struct tp_actor *self, void *arg)
{
    struct part *p = arg;
    hold(self, p->ch, tx_release);
    set(&p->ready, 1);
    for (;;) {
        struct tp_msg *m = counted_msg();
        uint64_t deadline = pick(&p->random, 3) == 0
                                ? tp_now_ns() + pick(&p->random, 20000)
                                : TP_NEVER;
        int rc = tp_channel_send_dl(self, p->ch, m, deadline);
        if (rc != 0) {
            tp_msg_drop(m);
            tp_check(rc == TROUPE_ETIMEOUT || rc == TROUPE_ECLOSED);
        }
        if (rc == TROUPE_ECLOSED) {
            return;
        }
        if (pick(&p->random, 4) == 0) {
            tp_actor_yield(self);
        }
    }
}

static void
receive_until_killed(struct tp_actor *self, void *arg)
{
    struct part *p = arg;
    hold(self, p->ch, rx_release);
    set(&p->ready, 1);
    for (;;) {
        struct tp_msg *m = tp_channel_pop(p->ch);
        if (m != NULL) {
            tp_msg_drop(m);
        } else if (tp_channel_wait(self, p->ch, TP_NEVER) == TROUPE_ECLOSED) {
            return;
        }
        if (pick(&p->random, 8) == 0) {
            tp_actor_yield(self);
        }
    }
}

/* Senders and the receiver are killed in any order. */
static void
kills_root(struct tp_actor *self, void *arg)
{
    uint64_t random = *(uint64_t *)arg;
    struct part parts[ACTORS] = {0};
    troupe_pid pids[ACTORS];
    struct tp_channel *ch = tp_channel_new((uint32_t)pick(&random, 4));
    size_t n = FEWER(ACTORS) < 3 ? 3 : FEWER(ACTORS);
    for (size_t i = 0; i < n; i++) {
        parts[i].ch = ch;
        parts[i].random = random + i;
        if (i > 0) {
            tp_channel_tx_ref(ch);
        }
        pids[i] =
            spawn(i == 0 ? receive_until_killed : send_until_killed, &parts[i]);
        YIELD_UNTIL(self, get(&parts[i].ready) != 0);
    }
    tp_channel_tx_unref(ch);
    for (size_t left = n; left > 0; left--) {
        size_t i = pick(&random, left);
        for (uint64_t k = pick(&random, 4); k > 0; k--) {
            tp_actor_yield(self);
        }
        end_with(pids[i], TP_REASON_KILLED);
        join_kind(self, pids[i]);
        pids[i] = pids[left - 1];
    }
    /* Whoever was killed had at most the message in hand that it was about to
     * send; it is killed in waits only, where that is in the line. */
    CHECK_EQ(get(&created), get(&released));
}

static void
kills_leave_no_message_behind(void **state)
{
    (void)state;
    tp_user_release = count_release;
    for (unsigned n = 1; n <= 4; n *= 2) {
        run_rounds(n, kills_root);
    }
    tp_user_release = NULL;
}

/* -- mutex -------------------------------------------------------------------- */

struct player {
    struct tp_value_mutex *m;
    uint64_t random;
    counter *inside;
    counter *locked;
};

static void
play(struct tp_actor *self, void *arg)
{
    struct player *p = arg;
    for (;;) {
        bool abandoned;
        uint64_t deadline = pick(&p->random, 2) == 0
                                ? tp_now_ns() + pick(&p->random, 30000)
                                : TP_NEVER;
        int rc = pick(&p->random, 5) == 0
                     ? tp_value_mutex_try_lock(self, p->m, &abandoned)
                     : tp_value_mutex_lock(self, p->m, deadline, &abandoned);
        if (rc != 0) {
            tp_check(rc == TROUPE_ETIMEOUT || rc == TROUPE_EBUSY);
            tp_actor_yield(self);
            continue;
        }
        if (abandoned) {
            set(p->inside, 0); /* the dead one could not */
        }
        CHECK_EQ(add(p->inside, 1), 1);
        add(p->locked, 1);
        if (pick(&p->random, 3) == 0) {
            tp_actor_yield(self);
        }
        CHECK_EQ(get(p->inside), 1);
        add(p->inside, (uint64_t)-1);
        CHECK_EQ(tp_value_mutex_unlock(self, p->m), 0);
    }
}

static void
mutex_root(struct tp_actor *self, void *arg)
{
    uint64_t random = *(uint64_t *)arg;
    struct player players[SENDERS];
    troupe_pid pids[SENDERS];
    counter inside = 0, locked = 0;
    bool abandoned;
    struct tp_value_mutex *m = tp_value_mutex_new(num_msg(0));
    for (size_t i = 0; i < SENDERS; i++) {
        players[i] = (struct player){m, random + i, &inside, &locked};
        pids[i] = spawn(play, &players[i]);
    }
    for (size_t i = 0; i < SENDERS; i++) {
        uint64_t seen = get(&locked);
        if (i > 0) {
            YIELD_UNTIL(self, get(&locked) > seen + 20);
        }
        end_with(pids[i], TP_REASON_KILLED);
        join_kind(self, pids[i]);
    }
    CHECK_EQ(tp_value_mutex_try_lock(self, m, &abandoned), 0);
    CHECK_EQ(tp_value_mutex_unlock(self, m), 0);
    tp_value_mutex_unref(m);
}

static void
one_has_the_mutex_whoever_is_killed(void **state)
{
    (void)state;
    for (unsigned n = 1; n <= 4; n *= 2) {
        run_rounds(n, mutex_root);
    }
}

int
main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_lost_while_the_receiver_moves),
        cmocka_unit_test(kills_leave_no_message_behind),
        cmocka_unit_test(one_has_the_mutex_whoever_is_killed),
    };
    seed = random_seed();
    rounds = option(argc, argv, "--rounds", FEWER(rounds));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
