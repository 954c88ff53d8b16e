/*
 * blocking_stress.c - actors that block, wait, nest, spawn, exit and are killed
 * in the pool, at random.
 *
 *     blocking_stress [--actors n] [--rounds n]
 */
#include "run_in.h"

#include "sched/blocking.h"

static uint64_t actors, rounds;
static counter seed, running, killed, sections;
static counter pids[64];

static void
spin_ns(uint64_t ns)
{
    uint64_t until = tp_now_ns() + ns;
    while (tp_now_ns() < until) {
    }
}

static void
poke_somebody(uint64_t *x)
{
    troupe_pid to = get(&pids[random_next(x) % actors]);
    if (to != 0) {
        push_num(to, 1); /* gone or not */
    }
}

static void
take_mail(struct tp_actor *self, uint64_t deadline_ns)
{
    struct tp_msg *m;
    if (tp_mailbox_wait(self, deadline_ns) == 0) {
        while ((m = tp_mailbox_pop(self)) != NULL) {
            tp_msg_drop(m);
        }
    }
}

static void
act_within(struct tp_actor *self, uint64_t *x)
{
    tp_check(tp_worker_self()->pool);
    switch (random_next(x) % 8) {
    case 0:
        spin_ns(random_next(x) % 50000);
        break;
    case 1:
        tp_actor_yield(self);
        break;
    case 2:
        tp_actor_sleep(self, tp_now_ns() + random_next(x) % 100000);
        break;
    case 3:
        take_mail(self, tp_now_ns() + random_next(x) % 100000);
        break;
    case 4:
        poke_somebody(x);
        break;
    case 5:
        spawn(body_nothing, NULL);
        break;
    case 6:
        CHECK_EQ(tp_blocking_begin(self), 0);
        tp_actor_checkpoint();
        CHECK_EQ(tp_blocking_end(self), 0);
        break;
    default:
        sched_yield();
    }
    tp_check(tp_worker_self()->pool && tp_actor_self() == self);
}

static void
one_section(struct tp_actor *self, uint64_t *x)
{
    CHECK_EQ(tp_blocking_begin(self), 0);
    add(&sections, 1);
    for (uint64_t n = random_next(x) % 4; n > 0; n--) {
        act_within(self, x);
    }
    if (random_next(x) % 512 == 0) {
        tp_actor_exit(self, tp_reason_const(TP_REASON_SHUTDOWN));
    }
    CHECK_EQ(tp_blocking_end(self), 0);
    tp_check(!tp_worker_self()->pool && tp_actor_self() == self);
}

static void
block_often(struct tp_actor *self, void *place)
{
    uint64_t x = add(&seed, 0x9e3779b97f4a7c15u) | 1;
    set(&pids[(uintptr_t)place], self->pid);
    for (uint64_t i = 0; i < rounds; i++) {
        one_section(self, &x);
        if (random_next(&x) % 4 == 0) {
            poke_somebody(&x);
            take_mail(self, 0);
        }
    }
}

static void
leave(struct tp_actor *self, void *unused)
{
    (void)self;
    (void)unused;
    add(&running, (uint64_t)-1);
}

static void
start(uintptr_t place)
{
    troupe_pid pid;
    add(&running, 1);
    CHECK_EQ(try_spawn(NULL, block_often, leave, (void *)place, &pid), 0);
}

/* Kills now and then while they run. */
static void
root(struct tp_actor *self, void *unused)
{
    uint64_t x = add(&seed, 1) | 1;
    (void)unused;
    set(&running, 0);
    for (uintptr_t i = 0; i < actors; i++) {
        set(&pids[i], 0);
        start(i);
    }
    while (get(&running) > 0) {
        troupe_pid p = get(&pids[random_next(&x) % actors]);
        if (random_next(&x) % 2 == 0 && p != 0 &&
            end_with(p, TP_REASON_KILLED)) {
            add(&killed, 1);
        }
        tp_actor_sleep(self, tp_now_ns() + random_next(&x) % 1000000);
    }
    YIELD_UNTIL(self, tp_blocking_sections() == 0);
}

static void
one_run(unsigned schedulers, unsigned threads)
{
    struct tp_run_config config = {.schedulers = schedulers,
                                   .blocking_threads = threads};
    uint64_t killed_before = get(&killed), sections_before = get(&sections);
    /* Some threads end of idleness, some do not. */
    atomic_store_explicit(&tp_blocking_idle_ns, threads == 3 ? 20000 : 5 * S,
                          memory_order_seq_cst);
    struct tp_reason *r = run_config(&config, root, NULL);
    CHECK_EQ(r->kind, TP_REASON_NORMAL);
    tp_reason_unref(r);
    printf("%u schedulers, %u threads: %" PRIu64 " sections, %" PRIu64
           " killed\n",
           schedulers, threads, get(&sections) - sections_before,
           get(&killed) - killed_before);
    fflush(stdout);
}

int
main(int argc, char **argv)
{
    actors = option(argc, argv, "--actors", FEWER(60));
    rounds = option(argc, argv, "--rounds", 200);
    actors = actors > 64 ? 64 : actors;
    set(&seed, random_seed());
    for (unsigned schedulers = 1; schedulers <= 4; schedulers *= 2) {
        one_run(schedulers, 1);
        one_run(schedulers, 3);
        one_run(schedulers, 64);
    }
    return 0;
}
