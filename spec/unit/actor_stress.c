/*
 * actor_stress.c - ten thousand actors are born, talk and die.
 *
 * A tree of actors: each has children, sends messages to whom it knows, watches
 * some of them, sleeps, yields, and ends in one of many ways, or is ended by
 * another actor or by a thread outside. Each monitor that was not taken back
 * must be told once, with a reason that this target can have had, and nobody
 * may be left at the end.
 *
 *   actor_stress [--seed N] [--rounds N] [--actors N]
 */
#include "run_in.h"

#include <pthread.h>

#define KNOWN 1024 /* pids that anybody may send to or end */
#define WATCH 4

#ifdef TP_TSAN
#define ACTORS 500
#define PAUSE  1000000
#else
#define ACTORS 10000
#define PAUSE  20000 /* between two ends from outside, at most */
#endif

static struct load {
    uint64_t seed;
    uint64_t actors;
    counter born, begun, over;
    counter monitors, downs, refused, abandoned;
    counter ended, messages;
    counter known[KNOWN];
    counter stop;
} load;

/* The monitors of one actor; those that are open when it ends are abandoned. */
struct watch {
    uint64_t ref;
    troupe_pid pid;
};

struct life {
    uint64_t random;
    unsigned watched;
    struct watch watch[WATCH];
};

static uint64_t
mix(uint64_t x)
{
    x ^= x >> 31;
    x *= 0x9e3779b97f4a7c15u;
    x ^= x >> 29;
    return x | 1;
}

static counter *
somebody(uint64_t *x)
{
    return &load.known[random_next(x) % KNOWN];
}

/* --- what an actor does --- */

static void live(struct tp_actor *self, void *arg);
static void life_over(struct tp_actor *self, void *arg);

static void
give_birth(struct life *me)
{
    troupe_pid p;
    uint64_t n = add(&load.born, 1);
    if (n > load.actors) {
        add(&load.born, (uint64_t)-1);
        return;
    }
    struct life *child = calloc(1, sizeof *child);
    tp_check(child != NULL);
    child->random = mix(load.seed + n);
    int rc = try_spawn(NULL, live, life_over, child, &p);
    if (rc != 0) {
        CHECK_EQ(rc, TROUPE_ELIMIT); /* it may be born later */
        add(&load.born, (uint64_t)-1);
        free(child);
        return;
    }
    set(somebody(&me->random), p);
}

static void
begin_watch(struct tp_actor *self, struct life *me)
{
    if (me->watched == WATCH) {
        return;
    }
    struct watch *w = &me->watch[me->watched++];
    w->pid = get(somebody(&me->random));
    CHECK_EQ(tp_monitor(self, w->pid, &w->ref), 0);
    add(&load.monitors, 1);
}

static void
forget_watch(struct life *me, unsigned i)
{
    me->watch[i] = me->watch[--me->watched];
}

static void
end_watch(struct tp_actor *self, struct life *me)
{
    if (me->watched > 0) {
        unsigned i = (unsigned)(random_next(&me->random) % me->watched);
        tp_demonitor(self, me->watch[i].ref);
        forget_watch(me, i);
        add(&load.refused, 1);
    }
}

/* A down is of a watch that is open, and of nobody who is alive. */
static void
take_down(struct tp_actor *self, struct life *me, struct tp_msg *m)
{
    unsigned i = 0;
    while (i < me->watched && me->watch[i].ref != m->ref) {
        i++;
    }
    CHECK_EQ(tp_monitor_take_down(self, m), i < me->watched);
    if (i == me->watched) {
        return; /* taken back, and dropped */
    }
    CHECK_EQ(m->from, me->watch[i].pid);
    tp_check(!tp_pid_is_alive(m->from));
    uint8_t kind = tp_notice_reason(m)->kind;
    tp_check(kind == TP_REASON_NORMAL || kind == TP_REASON_KILLED ||
             kind == TP_REASON_VALUE || kind == TP_REASON_NOPROC);
    tp_msg_drop(m);
    forget_watch(me, i);
    add(&load.downs, 1);
}

static void
read_mail(struct tp_actor *self, struct life *me)
{
    struct tp_msg *m;
    while ((m = tp_mailbox_pop(self)) != NULL) {
        if (m->kind == TP_MSG_DOWN) {
            take_down(self, me, m);
        } else {
            add(&load.messages, 1);
            tp_msg_free(m);
        }
    }
}

static void
wait_a_little(struct tp_actor *self, struct life *me)
{
    int rc =
        tp_mailbox_wait(self, tp_now_ns() + random_next(&me->random) % 100000);
    tp_check(rc == 0 || rc == TROUPE_ETIMEOUT);
}

static void
end_somebody(uint64_t *x)
{
    struct tp_reason *r = random_next(x) % 2 == 0
                              ? tp_reason_const(TP_REASON_KILLED)
                              : tp_reason_new("end", 3);
    add(&load.ended, tp_actor_end(get(somebody(x)), r));
}

static void
do_something(struct tp_actor *self, struct life *me)
{
    switch (random_next(&me->random) % 16) {
    case 0:
    case 1:
    case 2:
        give_birth(me);
        break;
    case 3:
    case 4:
        begin_watch(self, me);
        break;
    case 5:
        end_watch(self, me);
        break;
    case 6:
        wait_a_little(self, me);
        break;
    case 7:
        CHECK_EQ(tp_actor_sleep(self, tp_now_ns() + 1000), 0);
        break;
    case 8:
        if (random_next(&me->random) % 8 == 0) {
            end_somebody(&me->random);
        }
        break;
    case 9:
        CHECK_EQ(tp_actor_yield(self), 0);
        break;
    default:
        push_num(get(somebody(&me->random)), 1);
    }
    read_mail(self, me);
}

static void
live(struct tp_actor *self, void *arg)
{
    struct life *me = arg;
    add(&load.begun, 1);
    for (uint64_t n = 8 + random_next(&me->random) % 32; n > 0; n--) {
        do_something(self, me);
    }
    switch (random_next(&me->random) % 4) {
    case 0:
        tp_actor_exit(self, tp_reason_new("exit", 4));
    case 1:
        tp_actor_set_reason(self, tp_reason_new("return", 6));
        break;
    default:
        break;
    }
}

/* In finish: also for those who were ended, maybe before they began. */
static void
life_over(struct tp_actor *self, void *arg)
{
    struct life *me = arg;
    (void)self;
    add(&load.abandoned, me->watched);
    add(&load.over, 1);
    free(me);
}

/* --- the run --- */

static void *
end_from_outside(void *unused)
{
    uint64_t x = mix(load.seed + 12345);
    while (get(&load.stop) == 0) {
        end_somebody(&x);
        push_num(get(somebody(&x)), 1);
        for (uint64_t n = random_next(&x) % PAUSE; n > 0; n--) {
            __asm__ volatile("");
        }
    }
    tp_msg_thread_flush();
    tp_external_end();
    return unused;
}

static void
root(struct tp_actor *self, void *unused)
{
    struct life me = {.random = mix(load.seed)};
    pthread_t t;
    (void)unused;
    tp_external_begin();
    CHECK_EQ(pthread_create(&t, NULL, end_from_outside, NULL), 0);
    uint64_t give_up = tp_now_ns() + 3 * PATIENCE_NS;
    while (get(&load.over) < load.actors) {
        tp_check(tp_now_ns() < give_up);
        for (int i = 0; i < 4; i++) {
            give_birth(&me);
        }
        if (random_next(&me.random) % 4 == 0) {
            wait_a_little(self, &me);
        } else {
            CHECK_EQ(tp_actor_yield(self), 0);
        }
        read_mail(self, &me);
    }
    set(&load.stop, 1);
    pthread_join(t, NULL);
}

static void
run_round(uint64_t seed, unsigned schedulers, uint64_t actors)
{
    uint64_t start = tp_now_ns();
    struct tp_run_config config = {.schedulers = schedulers,
                                   .max_actors = (uint32_t)(actors / 2 + 2)};
    memset(&load, 0, sizeof load);
    load.seed = seed;
    load.actors = actors;
    struct tp_reason *r = run_config(&config, root, NULL);
    CHECK_EQ(r->kind, TP_REASON_NORMAL);
    CHECK_EQ(get(&load.over), actors);
    CHECK_EQ(get(&bodies_freed), actors + 1);
    tp_check(get(&load.begun) <= actors);
    CHECK_EQ(get(&load.monitors),
             get(&load.downs) + get(&load.refused) + get(&load.abandoned));
    printf("seed %" PRIu64 " schedulers %u: %" PRIu64 " monitors, %" PRIu64
           " downs, %" PRIu64 " messages, %" PRIu64 " ended, %" PRIu64 " ms\n",
           seed, schedulers, get(&load.monitors), get(&load.downs),
           get(&load.messages), get(&load.ended),
           (uint64_t)((tp_now_ns() - start) / MS));
    fflush(stdout);
}

int
main(int argc, char **argv)
{
    uint64_t seed = option(argc, argv, "--seed", tp_now_ns() % 1000000007u);
    uint64_t rounds = option(argc, argv, "--rounds", 3);
    uint64_t actors = option(argc, argv, "--actors", ACTORS);
    printf("actor_stress --seed %" PRIu64 " --rounds %" PRIu64
           " --actors %" PRIu64 "\n",
           seed, rounds, actors);
    fflush(stdout);
    for (uint64_t r = 0; r < rounds; r++) {
        run_round(seed + r, 1u << (r % 3), actors);
    }
    return 0;
}
