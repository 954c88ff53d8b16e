/*
 * runq_stress.c - the run queues under threads; for each backend.
 *
 * Idea:  W workers push, pop, steal and sleep by the idle protocol of runq.h;
 *        I injectors feed them from outside. Items are numbered; an item that
 *        is popped and has visits left is queued again by who popped it. How
 *        many visits an item gets follows from seed and number alone, so each
 *        backend must hand out the same multiset: it is checked item by item
 *        and its digest is printed for comparing backends with each other.
 *        A sleeper is never woken by a timeout unless something is wrong.
 * Usage: runq_stress [--seed N] [--items N] [--rounds N]
 */
#define _GNU_SOURCE
#include "base/check.h"
#include "base/sys.h"
#include "patience.h"
#include "sched/runq.h"

#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#define THREADS_MAX    4
#define VISITS_MAX     6
#define IDLE_BIT(self) ((uint64_t)1 << (self))

struct item {
    struct tp_runq_node node; /* first: a node is an item */
    uint32_t visits;          /* who popped it; the queue passes it on */
    _Atomic uint32_t held;    /* 1 from pop to push: nobody else may pop it */
};

struct load {
    uint64_t seed;
    uint32_t items;
    unsigned workers, injectors;
    struct tp_runq *q;
    struct item *item;
    _Atomic uint64_t left; /* visits that are still due */
    _Atomic uint64_t idle; /* one bit per sleeping worker */
    _Atomic uint32_t permit[THREADS_MAX];
};

struct worker {
    struct load *load;
    unsigned self;
    uint64_t rnd;
    uint64_t sleeps, steals; /* owner; read after join */
};

static uint64_t
mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

static uint64_t
draw(struct worker *w)
{
    return w->rnd = mix(w->rnd);
}

static uint32_t
visits_of(struct load *l, uint32_t id)
{
    return 1 + (uint32_t)(mix(l->seed ^ id) % VISITS_MAX);
}

/* Who queues item id first: a worker, or above those an injector. */
static unsigned
home_of(struct load *l, uint32_t id)
{
    return (unsigned)(mix(l->seed + 77 + id) % (l->workers + l->injectors));
}

/* Wake one sleeper, if there is one. P2 and P3 of the idle protocol. */
static void
wake_one(struct load *l)
{
    /* RQ-1 seq_cst: the mask is read after work was stored (P2). Partner:
     * fall_asleep. Acquire could read a mask from before P1. */
    uint64_t mask = atomic_load_explicit(&l->idle, memory_order_seq_cst);
    while (mask != 0) {
        uint64_t bit = mask & (~mask + 1);
        /* STR-1 acq_rel: one waker for each sleeper. Partner: fall_asleep. */
        if (atomic_compare_exchange_weak_explicit(&l->idle, &mask, mask & ~bit,
                                                  memory_order_acq_rel,
                                                  memory_order_acquire)) {
            unsigned i = (unsigned)__builtin_ctzll(bit);
            /* STR-2 release: the waker's writes. Partner: sleep_here. */
            atomic_store_explicit(&l->permit[i], 1, memory_order_release);
            tp_futex_wake(&l->permit[i], 1);
            return;
        }
    }
}

static void
wake_all(struct load *l)
{
    for (unsigned i = 0; i < l->workers; i++) {
        wake_one(l);
    }
}

static bool
all_done(struct load *l)
{
    /* STR-3 seq_cst: read after the idle bit. Partner: visit. */
    return atomic_load_explicit(&l->left, memory_order_seq_cst) == 0;
}

static void
sleep_here(struct load *l, unsigned self)
{
    uint64_t deadline_ns = tp_now_ns() + PATIENCE_NS;
    /* STR-2 acquire: sees what the waker wrote. Partner: wake_one. */
    while (atomic_exchange_explicit(&l->permit[self], 0,
                                    memory_order_acquire) == 0) {
        bool forgotten = tp_futex_wait(&l->permit[self], 0, deadline_ns) != 0;
        tp_check(!forgotten);
    }
}

static void
fall_asleep(struct worker *w)
{
    struct load *l = w->load;
    uint64_t bit = IDLE_BIT(w->self);
    /* RQ-1 seq_cst rmw: the bit is stored before the queues are read (Q1).
     * Partner: wake_one. */
    atomic_fetch_or_explicit(&l->idle, bit, memory_order_seq_cst);
    if (tp_runq_has_work(l->q) || all_done(l)) {
        /* STR-1 acq_rel: take the bit back, or learn of a permit. Partner:
         * wake_one. */
        uint64_t was =
            atomic_fetch_and_explicit(&l->idle, ~bit, memory_order_acq_rel);
        if ((was & bit) != 0) {
            return;
        }
    }
    w->sleeps++;
    sleep_here(l, w->self);
}

static void
queue(struct worker *w, struct item *it)
{
    struct load *l = w->load;
    if (w->self >= l->workers || draw(w) % 8 == 0) {
        tp_runq_inject(l->q, &it->node);
    } else {
        tp_runq_push(l->q, w->self, &it->node);
    }
    wake_one(l);
}

/* One item was popped: check that it is ours alone, send it on or end it. */
static void
visit(struct worker *w, struct tp_runq_node *n)
{
    struct load *l = w->load;
    struct item *it = (struct item *)(void *)n;
    uint32_t id = (uint32_t)(it - l->item);
    /* relaxed: a check; the queue itself orders visits. */
    tp_check(atomic_exchange_explicit(&it->held, 1, memory_order_relaxed) == 0);
    bool again = ++it->visits < visits_of(l, id);
    if (again) {
        /* relaxed: as above. */
        atomic_store_explicit(&it->held, 0, memory_order_relaxed);
        queue(w, it);
    }
    /* STR-3 seq_cst: before the idle mask is read. Partner: all_done. */
    if (atomic_fetch_sub_explicit(&l->left, 1, memory_order_seq_cst) == 1) {
        wake_all(l);
    }
}

static struct tp_runq_node *
find_work(struct worker *w)
{
    struct load *l = w->load;
    struct tp_runq_node *n = tp_runq_pop(l->q, w->self);
    if (n == NULL) {
        n = tp_runq_steal(l->q, w->self, (uint32_t)draw(w));
        w->steals += n != NULL;
    }
    if (n != NULL && tp_runq_has_work(l->q)) {
        wake_one(l); /* chain rule */
    }
    return n;
}

static void *
work(void *arg)
{
    struct worker *w = arg;
    struct load *l = w->load;
    uint32_t next = 0;
    while (!all_done(l)) {
        for (uint64_t burst = draw(w) % 600; burst > 0 && next < l->items;
             next++) {
            if (home_of(l, next) == w->self) {
                queue(w, &l->item[next]);
                burst--;
            }
        }
        for (uint64_t k = draw(w) % 400; k > 0; k--) {
            struct tp_runq_node *n = find_work(w);
            if (n == NULL) {
                break;
            }
            visit(w, n);
        }
        struct tp_runq_node *n = next < l->items ? NULL : find_work(w);
        if (n != NULL) {
            visit(w, n);
        } else if (next >= l->items) {
            fall_asleep(w);
        }
    }
    return NULL;
}

static void *
inject(void *arg)
{
    struct worker *w = arg;
    struct load *l = w->load;
    for (uint32_t id = 0; id < l->items; id++) {
        if (home_of(l, id) == w->self) {
            queue(w, &l->item[id]);
            if (draw(w) % 64 == 0) { /* let sleepers fall asleep */
                sched_yield();
            }
        }
    }
    return NULL;
}

static uint64_t
check_items(struct load *l)
{
    uint64_t digest = 0;
    for (uint32_t id = 0; id < l->items; id++) {
        tp_check(l->item[id].visits == visits_of(l, id));
        digest += mix(((uint64_t)id << 8) + l->item[id].visits);
    }
    return digest;
}

static void
load_init(struct load *l, uint64_t seed, uint32_t items)
{
    uint64_t visits = 0;
    memset(l, 0, sizeof(*l));
    l->seed = seed;
    l->items = items;
    l->workers = 2 + (unsigned)(mix(seed) % 2);
    l->injectors = THREADS_MAX - l->workers;
    l->item = tp_calloc(items, sizeof(*l->item));
    tp_check(l->item != NULL);
    for (uint32_t id = 0; id < items; id++) {
        visits += visits_of(l, id);
    }
    atomic_init(&l->left, visits);
    tp_runq_start = 0u - (uint32_t)(mix(seed + 1) % 4096);
    tp_check(tp_runq_new(l->workers, &l->q) == 0);
}

static void
run_round(uint64_t seed, uint32_t items)
{
    struct load l;
    struct worker w[THREADS_MAX];
    pthread_t thread[THREADS_MAX];
    uint64_t sleeps = 0, steals = 0;
    load_init(&l, seed, items);
    for (unsigned i = 0; i < THREADS_MAX; i++) {
        w[i] = (struct worker){.load = &l, .self = i, .rnd = mix(seed + i)};
        tp_check(pthread_create(&thread[i], NULL, i < l.workers ? work : inject,
                                &w[i]) == 0);
    }
    for (unsigned i = 0; i < THREADS_MAX; i++) {
        pthread_join(thread[i], NULL);
        sleeps += w[i].sleeps;
        steals += w[i].steals;
    }
    tp_check(!tp_runq_has_work(l.q));
    printf("seed %" PRIu64 " digest %016" PRIx64 " workers %u sleeps %" PRIu64
           " steals %" PRIu64 "\n",
           seed, check_items(&l), l.workers, sleeps, steals);
    fflush(stdout);
    tp_runq_free(l.q);
    tp_free(l.item);
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
    uint64_t items = option(argc, argv, "--items", 20000);
    uint64_t rounds = option(argc, argv, "--rounds", 10);
    printf("runq_stress %s --seed %" PRIu64 " --items %" PRIu64
           " --rounds %" PRIu64 "\n",
           tp_runq_backend(), seed, items, rounds);
    fflush(stdout);
    for (uint64_t r = 0; r < rounds; r++) {
        run_round(seed + r, (uint32_t)items);
    }
    return 0;
}
