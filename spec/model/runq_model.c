/*
 * runq_model.c - the run queues and the idle protocol, step by step.
 *
 * Idea:  the real backend is compiled into this file with a step before every
 *        atomic operation. Workers and injectors are contexts on one thread;
 *        at each step a seeded generator says who goes on. Rings have four
 *        slots and counters start just before a wrap, so that full, empty and
 *        outdated are frequent. How long a context goes on is drawn for each
 *        run: some races need many switches, a lost wake-up needs few. Found here: lost, doubled and stranded items,
 *        wrong bookkeeping, lost wake-ups. Not found here: missing memory
 *        ordering, since steps are sequentially consistent; for that there are
 *        TSan and runq_stress.c.
 * Check: each item comes out as often as it went in; when nobody can go on
 *        but at most one worker in a long slice, nothing is queued, also not
 *        behind that slice; no context returns with a lock held.
 * Usage: runq_model [--seed N] [--runs N]. A failure prints the seed of its
 *        run; --seed N --runs 1 repeats it.
 * Build: the backend is RUNQ_SOURCE, by default "sched/runq_steal.c". Of the
 *        core link base/sys.c.
 */
#define _GNU_SOURCE
#ifndef TROUPE_MODEL
#define TROUPE_MODEL
#endif
#ifndef TROUPE_CHECKED
#define TROUPE_CHECKED
#endif
#ifndef RUNQ_SOURCE
#define RUNQ_SOURCE "sched/runq_steal.c"
#endif

#include <inttypes.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>
#include <unistd.h>

/* ---- atomic operations with a step before each ---- */

static void step(void);
static uint32_t draw(uint32_t below);

/* One thread runs all contexts, so plain accesses of _Atomic objects do. */
static inline bool
raw_cas(_Atomic uint32_t *p, uint32_t *expected, uint32_t v)
{
    if (*p == *expected) {
        *p = v;
        return true;
    }
    *expected = *p;
    return false;
}

static inline uint32_t
raw_exchange(_Atomic uint32_t *p, uint32_t v)
{
    uint32_t was = *p;
    *p = v;
    return was;
}

#undef atomic_load_explicit
#undef atomic_store_explicit
#undef atomic_exchange_explicit
#undef atomic_fetch_or_explicit
#undef atomic_fetch_and_explicit
#undef atomic_compare_exchange_strong_explicit
#undef atomic_compare_exchange_weak_explicit
#define atomic_load_explicit(p, mo)        (step(), *(p))
#define atomic_store_explicit(p, v, mo)    (step(), (void)(*(p) = (v)))
#define atomic_exchange_explicit(p, v, mo) (step(), raw_exchange(p, v))
#define atomic_fetch_or_explicit(p, v, mo) (step(), raw_exchange(p, *(p) | (v)))
#define atomic_fetch_and_explicit(p, v, mo)                                    \
    (step(), raw_exchange(p, *(p) & (v)))
#define atomic_compare_exchange_strong_explicit(p, e, v, ok, no)               \
    (step(), raw_cas(p, e, v))
/* A weak one may fail for nothing, and here it does. Like a real one it then
 * leaves what it saw in *e, which is what was expected. */
#define atomic_compare_exchange_weak_explicit(p, e, v, ok, no)                 \
    (step(), draw(8) != 0 && raw_cas(p, e, v))

#define tp_mutex_lock_slow    model_lock_slow
#define tp_lockrank_acquire   model_lock_taken
#define tp_lockrank_release   model_lock_given
#define tp_lockrank_none_held model_none_held

#include RUNQ_SOURCE

#include "base/mutex.h"

#ifdef TP_TSAN
#include <sanitizer/tsan_interface.h>
#endif

/* ---- contexts ---- */

#define CONTEXTS    4
#define STACK_BYTES (256u * 1024)
#define ITEMS       24
#define VISITS_MAX  3
#define STEPS_MAX   2000000u

struct item {
    struct tp_runq_node node; /* first: a node is an item */
    int due;                  /* visits still to come */
    bool queued;
};

struct context {
    ucontext_t uc;
    char *stack;
    void *fiber; /* TSan's */
    bool done, asleep;
    bool woken;    /* has taken nothing since its sleep */
    bool in_slice; /* runs an actor for long: no other step of this worker */
    unsigned held; /* locks */
    int to_queue;  /* items it still brings in */
};

static struct {
    uint64_t seed, rnd;
    struct tp_runq *q;
    unsigned workers;
    uint32_t stay; /* a context goes on for about so many steps */
    bool over;     /* nobody can go on: sleepers return */
    uint32_t steps;
    int brought; /* items that are in the game */
    struct item item[ITEMS];
    _Atomic uint32_t idle;
    _Atomic uint32_t permit[CONTEXTS];
} m;

static struct context ctx[CONTEXTS];
static struct context *now; /* NULL: the main context runs */
static ucontext_t main_uc;
#ifdef TP_TSAN
static void *main_fiber;
#endif

static uint32_t
draw(uint32_t below)
{
    m.rnd = m.rnd * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((m.rnd >> 33) % below);
}

static void
switch_to_main(void)
{
#ifdef TP_TSAN
    __tsan_switch_to_fiber(main_fiber, 0);
#endif
    tp_check(swapcontext(&now->uc, &main_uc) == 0);
}

static void
switch_to(struct context *c)
{
    now = c;
#ifdef TP_TSAN
    __tsan_switch_to_fiber(c->fiber, 0);
#endif
    tp_check(swapcontext(&main_uc, &c->uc) == 0);
    now = NULL;
}

static void
step(void)
{
    if (now != NULL) {
        tp_check(++m.steps < STEPS_MAX); /* else: nobody gets anywhere */
        if (draw(m.stay) == 0) {
            switch_to_main();
        }
    }
}

void
tp_mutex_lock_slow(struct tp_mutex *l)
{
    uint32_t free_word = 0;
    while (!raw_cas(&l->word, &free_word, 1)) {
        free_word = 0;
        step();
    }
}

void
tp_lockrank_acquire(enum tp_lock_rank rank, bool same_ok)
{
    (void)rank, (void)same_ok;
    if (now != NULL) {
        tp_check(now->held == 0); /* the backends nest nothing */
        now->held++;
    }
}

void
tp_lockrank_release(enum tp_lock_rank rank)
{
    (void)rank;
    if (now != NULL) {
        tp_check(now->held == 1);
        now->held--;
    }
}

/* ---- what workers and injectors do ---- */

/* P2 and P3 of the idle protocol. */
static void
wake_one(void)
{
    /* RQ-1 seq_cst: the mask is read after work was stored (P2). Partner:
     * fall_asleep. */
    uint32_t mask = atomic_load_explicit(&m.idle, memory_order_seq_cst);
    while (mask != 0) {
        uint32_t bit = mask & (~mask + 1);
        /* STR-1 acq_rel: one waker for each sleeper. Partner: fall_asleep. */
        if (atomic_compare_exchange_weak_explicit(&m.idle, &mask, mask & ~bit,
                                                  memory_order_acq_rel,
                                                  memory_order_acquire)) {
            /* STR-2 release: the waker's writes. Partner: fall_asleep. */
            atomic_store_explicit(&m.permit[__builtin_ctz(bit)], 1,
                                  memory_order_release);
            return;
        }
    }
}

/* Q1 to Q3 of the idle protocol. */
static void
fall_asleep(unsigned self)
{
    uint32_t bit = 1u << self;
    /* RQ-1 seq_cst rmw: the bit is stored before the queues are read (Q1).
     * Partner: wake_one. */
    atomic_fetch_or_explicit(&m.idle, bit, memory_order_seq_cst);
    if (tp_runq_has_work(m.q)) {
        /* STR-1 acq_rel: take the bit back, or learn of a permit. Partner:
         * wake_one. */
        uint32_t was =
            atomic_fetch_and_explicit(&m.idle, ~bit, memory_order_acq_rel);
        if ((was & bit) != 0) {
            return;
        }
    }
    now->asleep = true;
    switch_to_main();
    now->asleep = false;
    now->woken = true;
    /* STR-2 acquire: sees what the waker wrote. Partner: wake_one. */
    uint32_t had =
        atomic_exchange_explicit(&m.permit[self], 0, memory_order_acquire);
    tp_check(had == 1 || m.over);
}

static void
queue(unsigned self, struct item *it)
{
    tp_check(!it->queued);
    it->queued = true;
    if (self >= m.workers || draw(5) == 0) {
        tp_runq_inject(m.q, &it->node);
        wake_one();
    } else {
        tp_runq_push(m.q, self, &it->node); /* ours, or the monitor's: pick */
    }
}

static bool
look_for_work(unsigned self)
{
    struct tp_runq_node *n = draw(4) == 0 ? NULL : tp_runq_pop(m.q, self);
    if (n == NULL) {
        n = tp_runq_steal(m.q, self, draw(1000));
    }
    if (n == NULL && (n = tp_runq_pop(m.q, self)) == NULL) {
        return false;
    }
    if (now->woken && tp_runq_has_work(m.q)) {
        wake_one(); /* chain rule */
    }
    now->woken = false;
    struct item *it = (struct item *)(void *)n;
    tp_check(it >= m.item && it < m.item + ITEMS);
    tp_check(it->queued && it->due > 0);
    it->queued = false;
    if (--it->due > 0) {
        queue(self, it);
    }
    return true;
}

/* Run an actor until nobody else can go on. Meanwhile siblings must have taken
 * all that is queued, here too: see pick. */
static void
long_slice(void)
{
    for (unsigned i = 0; i < CONTEXTS; i++) {
        if (ctx[i].in_slice) {
            return; /* one at a time, somebody has to do the work */
        }
    }
    now->in_slice = true;
    switch_to_main();
}

static void
play(unsigned self)
{
    while (!m.over) {
        if (now->to_queue > 0 && (self >= m.workers || draw(3) != 0)) {
            now->to_queue--;
            queue(self, &m.item[m.brought++]);
        } else if (self >= m.workers) {
            return;
        } else if (look_for_work(self)) {
            if (m.workers > 1 && draw(4) == 0) {
                long_slice();
            }
        } else if (now->to_queue == 0) {
            fall_asleep(self);
        }
    }
}

static void
enter(unsigned self)
{
    for (;;) {
        play(self);
        tp_check(now->held == 0);
        now->done = true;
        switch_to_main();
    }
}

/* makecontext passes ints only. */
static void
enter_context(int self)
{
    enter((unsigned)self);
}

/* ---- one run ---- */

/* Nobody can go on: nothing may be queued, nowhere. */
static void
check_quiet(void)
{
    for (int i = 0; i < m.brought; i++) {
        tp_check(m.item[i].due == 0 && !m.item[i].queued);
    }
    tp_check(!tp_runq_has_work(m.q));
    tp_check(tp_runq_len(m.q, TP_RUNQ_SHARED) == 0);
    for (unsigned i = 0; i < m.workers; i++) {
        tp_check(tp_runq_len(m.q, i) == 0);
    }
}

/* A worker whose long slice ends because the others have nothing to do. */
static struct context *
end_slice(void)
{
    for (unsigned i = 0; i < CONTEXTS; i++) {
        if (ctx[i].in_slice) {
            check_quiet();
            ctx[i].in_slice = false;
            return &ctx[i];
        }
    }
    return NULL;
}

static bool
can_go_on(unsigned i)
{
    if (ctx[i].done || ctx[i].in_slice) {
        return false;
    }
    return !ctx[i].asleep || m.permit[i] != 0 || m.over;
}

static uint32_t
find_able(struct context **can)
{
    uint32_t n = 0;
    for (unsigned i = 0; i < CONTEXTS; i++) {
        if (can_go_on(i)) {
            can[n++] = &ctx[i];
        }
    }
    return n;
}

/* Somebody who can go on; NULL: all are done or asleep without a permit. What
 * waits behind a long slice is the monitor's. */
static struct context *
pick(void)
{
    struct context *can[CONTEXTS];
    uint32_t n = find_able(can);
    if (n == 0 && m.idle != 0 && tp_runq_has_work(m.q)) {
        wake_one();
        n = find_able(can);
    }
    return n == 0 ? end_slice() : can[draw(n)];
}

static void
play_all(void)
{
    struct context *c;
    while ((c = pick()) != NULL) {
        switch_to(c);
    }
}

static void
set_up(uint64_t seed)
{
    memset(&m, 0, sizeof(m));
    m.seed = seed;
    m.rnd = seed * 2654435761u + 99;
    draw(2);
    m.workers = 1 + draw(CONTEXTS - 1);
    m.stay = 1u << draw(5);
    uint32_t most = 1 + draw(ITEMS / CONTEXTS);
    for (int i = 0; i < ITEMS; i++) {
        m.item[i].due = 1 + (int)draw(VISITS_MAX);
    }
    for (unsigned i = 0; i < CONTEXTS; i++) {
        ctx[i].done = ctx[i].asleep = ctx[i].in_slice = false;
        ctx[i].woken = false;
        ctx[i].to_queue = (int)draw(most + 1);
    }
    tp_runq_start = (draw(2) == 0 ? 0u : 0x80000000u) - draw(12);
    tp_check(tp_runq_new(m.workers, &m.q) == 0);
}

static void
run(uint64_t seed)
{
    set_up(seed);
    play_all();
    check_quiet();
    tp_check(m.idle == (1u << m.workers) - 1);
    m.over = true;
    play_all();
    tp_runq_free(m.q);
}

static void
on_abort(int sig)
{
    (void)sig;
    dprintf(STDERR_FILENO,
            "runq_model %s: repeat with --seed %" PRIu64 " --runs 1\n",
            tp_runq_backend(), m.seed);
}

static void
context_init(struct context *c, int self)
{
    c->stack = tp_malloc(STACK_BYTES);
    tp_check(c->stack != NULL);
    tp_check(getcontext(&c->uc) == 0);
    c->uc.uc_stack.ss_sp = c->stack;
    c->uc.uc_stack.ss_size = STACK_BYTES;
    makecontext(&c->uc, (void (*)(void))enter_context, 1, self);
#ifdef TP_TSAN
    c->fiber = __tsan_create_fiber(0);
#endif
}

static void
context_fini(struct context *c)
{
#ifdef TP_TSAN
    __tsan_destroy_fiber(c->fiber);
#endif
    tp_free(c->stack);
}

static uint64_t
option(int argc, char **argv, const char *name, uint64_t otherwise)
{
    for (int i = 1; i + 1 < argc; i++) {
        if (strcmp(argv[i], name) == 0) {
            return strtoull(argv[i + 1], NULL, 0);
        }
    }
    return otherwise;
}

int
main(int argc, char **argv)
{
    uint64_t seed = option(argc, argv, "--seed", tp_now_ns() % 1000000007u);
    uint64_t runs = option(argc, argv, "--runs", 3000);
    uint64_t steps = 0;
    signal(SIGABRT, on_abort);
#ifdef TP_TSAN
    main_fiber = __tsan_get_current_fiber();
#endif
    for (int i = 0; i < CONTEXTS; i++) {
        context_init(&ctx[i], i);
    }
    for (uint64_t i = 0; i < runs; i++) {
        run(seed + i);
        steps += m.steps;
    }
    printf("runq_model %s --seed %" PRIu64 " --runs %" PRIu64 ": %" PRIu64
           " steps\n",
           tp_runq_backend(), seed, runs, steps);
    for (int i = 0; i < CONTEXTS; i++) {
        context_fini(&ctx[i]);
    }
    return 0;
}
