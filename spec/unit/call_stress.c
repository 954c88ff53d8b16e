/*
 * call_stress.c - callers ask while the one who is asked is being stopped.
 *
 * In each round a few actors call one that answers, forgets or ends, as chance
 * will have it, while another one stops it. No call has a timeout, so an answer
 * that gets lost stops the test, and one that comes twice is somebody's wrong
 * answer: each call has a number of its own, and its reply says which.
 *
 *   call_stress [--rounds N]
 */
#include "actor/call.h"
#include "run_in.h"

#include <setjmp.h>

#include <cmocka.h>

#define CALLERS 4
#ifdef TP_TSAN
#define ROUNDS 500u
#else
#define ROUNDS 10000u
#endif

static uint64_t rounds = ROUNDS, seed;
static counter numbers, replies, deaths, forgotten, noproc;

struct round {
    uint64_t chance; /* what the server and the killer go by */
    troupe_pid server, root;
};

static uint64_t
mix(uint64_t n)
{
    return n * 0x9e3779b97f4a7c15ull ^ 0x5bd1e995;
}

static void
pause_a_little(struct tp_actor *self, uint64_t chance)
{
    for (uint64_t n = chance % 8; n > 0; n--) {
        tp_actor_yield(self);
    }
    for (uint64_t n = chance % 997; n > 0; n--) {
        atomic_signal_fence(memory_order_seq_cst);
    }
}

/* A request that is answered elsewhere; every other one never. */
struct errand {
    struct tp_owed *owed;
    uint64_t n;
};

static void
deputy(struct tp_actor *self, void *arg)
{
    struct errand e = *(struct errand *)arg;
    free(arg);
    pause_a_little(self, mix(e.n));
    if (e.n % 2 == 0) {
        tp_owed_reply(e.owed, num_msg(mix(e.n)));
    }
    tp_owed_unref(e.owed);
}

/* The other one may do the same at once. */
static void
hand_on(struct tp_owed *o, uint64_t n)
{
    struct errand *e = malloc(sizeof *e);
    tp_check(e != NULL);
    *e = (struct errand){o, n};
    tp_owed_ref(o);
    spawn(deputy, e);
    if (n % 3 == 0) {
        tp_owed_reply(o, num_msg(mix(n)));
    }
}

/* Takes requests and answers some; ends by itself now and then. */
static void
server(struct tp_actor *self, void *arg)
{
    const struct round *r = arg;
    uint64_t x = r->chance | 1;
    for (;;) {
        struct tp_msg *m;
        while ((m = tp_mailbox_pop(self)) == NULL) {
            if (tp_mailbox_wait(self, TP_NEVER) != 0) {
                return;
            }
        }
        CHECK_EQ(m->kind, TP_MSG_CALL);
        struct tp_owed *o = tp_owed_new(self, m);
        uint64_t n = msg_num(m), what = random_next(&x) % 16;
        m->ref = 0;
        tp_msg_drop(m);
        struct held_owed *held = hold_owed(self, o);
        if (what == 0) {
            return; /* with this one, and what is queued, unanswered */
        }
        if (what == 3) {
            hand_on(o, n);
        } else if (what != 1) {
            pause_a_little(self, what == 2 ? random_next(&x) : 0);
            tp_owed_reply(o, num_msg(mix(n)));
        }
        let_go_owed(held);
    }
}

static void
killer(struct tp_actor *self, void *arg)
{
    const struct round *r = arg;
    pause_a_little(self, r->chance >> 7);
    end_with(r->server, TP_REASON_SHUTDOWN);
    CHECK_EQ(push_num(r->root, 0), 0);
}

static void
caller(struct tp_actor *self, void *arg)
{
    const struct round *r = arg;
    for (int i = 0; i < 3; i++) {
        uint64_t n = add(&numbers, 1);
        struct tp_msg *reply;
        struct tp_reason *reason;
        int rc =
            tp_call(self, r->server, num_msg(n), TP_NEVER, &reply, &reason);
        switch (rc) {
        case 0:
            CHECK_EQ(msg_num(reply), mix(n));
            tp_msg_drop(reply);
            add(&replies, 1);
            break;
        case TROUPE_ENO_REPLY:
            add(&forgotten, 1);
            break;
        default:
            CHECK_EQ(rc, TROUPE_ENOPROC);
            if (reason == NULL) {
                add(&noproc, 1);
                break;
            }
            tp_check(reason->kind == TP_REASON_SHUTDOWN ||
                     reason->kind == TP_REASON_NORMAL);
            tp_reason_unref(reason);
            add(&deaths, 1);
        }
        CHECK_EQ(self->call_id, 0);
        tp_check(self->call_reply == NULL && self->call_reason == NULL);
    }
    tp_check(tp_mailbox_pop(self) == NULL);
    CHECK_EQ(push_num(r->root, 0), 0);
}

static void
root(struct tp_actor *self, void *unused)
{
    uint64_t x = seed;
    (void)unused;
    for (uint64_t i = 0; i < rounds; i++) {
        struct round r = {random_next(&x), 0, self->pid};
        r.server = spawn(server, &r);
        uint64_t turn = r.chance % (CALLERS + 1);
        for (uint64_t k = 0; k <= CALLERS; k++) {
            spawn(k == turn ? killer : caller, &r);
        }
        for (uint64_t k = 0; k <= CALLERS; k++) {
            recv_num(self);
        }
        join_kind(self, r.server); /* it reads r */
    }
}

static void
race(unsigned schedulers)
{
    set(&numbers, 0);
    set(&replies, 0);
    set(&deaths, 0);
    set(&forgotten, 0);
    set(&noproc, 0);
    assert_int_equal(run_in(schedulers, root, NULL), TP_REASON_NORMAL);
    uint64_t answers =
        get(&replies) + get(&deaths) + get(&forgotten) + get(&noproc);
    printf("%u schedulers: %" PRIu64 " calls: %" PRIu64 " replies, %" PRIu64
           " ends, %" PRIu64 " no_reply, %" PRIu64 " noproc\n",
           schedulers, get(&numbers), get(&replies), get(&deaths),
           get(&forgotten), get(&noproc));
    assert_int_equal(answers, get(&numbers));
    assert_int_equal(answers, rounds * CALLERS * 3);
}

static void
on_one_scheduler(void **state)
{
    (void)state;
    race(1);
}

static void
on_two_schedulers(void **state)
{
    (void)state;
    race(2);
}

static void
on_four_schedulers(void **state)
{
    (void)state;
    race(4);
}

int
main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(on_one_scheduler),
        cmocka_unit_test(on_two_schedulers),
        cmocka_unit_test(on_four_schedulers),
    };
    rounds = option(argc, argv, "--rounds", ROUNDS);
    seed = random_seed();
    return cmocka_run_group_tests_name("call_stress", tests, NULL, NULL);
}
