/*
 * bench_runq.c - what one run queue operation costs; for each backend.
 *
 * Prints one JSON line per figure: the best of ROUNDS for one thread, the
 * median of PAIR_ROUNDS for two (where the best is the round in which one of
 * them had no CPU):
 *   runq.push_pop        ns for push + pop by the owner, queue empty
 *   runq.push_pop_deep   the same with 64 nodes waiting
 *   runq.inject_pop      ns for inject + pop by one thread
 *   runq.push_thief      ns for a push while one thread steals all the time,
 *                        and the share of the nodes that it got
 *   runq.two_owners      ns per push + pop, two workers at once, each with its
 *                        own queue, stealing when it has nothing
 *   runq.one_feeds_two   ns per node that one worker queues and two consume
 * Usage: bench_runq [scale]      scale 1 takes some three seconds
 */
#include "base/check.h"
#include "base/sys.h"
#include "sched/runq.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>

#define ROUNDS      7
#define PAIR_ROUNDS 11
#define NODES       (1u << 21) /* long enough that both threads overlap */
#define DEEP        64

static struct tp_runq_node nodes[NODES];
static uint64_t loops = 300000;

struct pair {
    struct tp_runq *q;
    _Atomic uint32_t ready;   /* threads that stand at the start */
    _Atomic uint64_t taken;   /* nodes consumed by both */
    _Atomic uint64_t stolen;  /* nodes consumed by worker 1 */
    _Atomic uint64_t took_ns; /* the longer of both */
};

static void
report(const char *what, double ns)
{
    printf("{\"bench\":\"runq.%s\",\"backend\":\"%s\",\"ns\":%.1f}\n", what,
           tp_runq_backend(), ns);
}

static struct tp_runq *
fresh(void)
{
    struct tp_runq *q = NULL;
    tp_check(tp_runq_new(2, &q) == 0);
    return q;
}

/* ----------------------------------------------------------- one thread -- */

static double
push_pop(struct tp_runq *q)
{
    uint64_t start_ns = tp_now_ns();
    for (uint64_t i = 0; i < loops; i++) {
        tp_runq_push(q, 0, &nodes[i % 16]);
        tp_check(tp_runq_pop(q, 0) != NULL);
    }
    return (double)(tp_now_ns() - start_ns) / (double)loops;
}

static double
push_pop_deep(struct tp_runq *q)
{
    struct tp_runq_node *n = &nodes[DEEP];
    for (int i = 0; i < DEEP; i++) {
        tp_runq_push(q, 0, &nodes[i]);
    }
    uint64_t start_ns = tp_now_ns();
    for (uint64_t i = 0; i < loops; i++) {
        tp_runq_push(q, 0, n);
        n = tp_runq_pop(q, 0);
    }
    return (double)(tp_now_ns() - start_ns) / (double)loops;
}

static double
inject_pop(struct tp_runq *q)
{
    uint64_t start_ns = tp_now_ns();
    for (uint64_t i = 0; i < loops; i++) {
        tp_runq_inject(q, &nodes[i % 16]);
        tp_check(tp_runq_pop(q, 0) != NULL);
    }
    return (double)(tp_now_ns() - start_ns) / (double)loops;
}

static void
bench_alone(const char *what, double (*run)(struct tp_runq *))
{
    double best = 1e9;
    for (int r = 0; r < ROUNDS; r++) {
        struct tp_runq *q = fresh();
        double ns = run(q);
        best = ns < best ? ns : best;
        tp_runq_free(q);
    }
    report(what, best);
}

/* ---------------------------------------------------------- two threads -- */

static void
start_together(struct pair *p)
{
    /* BEN-1 acq_rel: both are here. Partner: the load below. */
    atomic_fetch_add_explicit(&p->ready, 1, memory_order_acq_rel);
    /* BEN-1 acquire: both are here. Partner: the add above. */
    while (atomic_load_explicit(&p->ready, memory_order_acquire) < 2) {
    }
}

static void
note_time(struct pair *p, uint64_t start_ns)
{
    uint64_t ns = tp_now_ns() - start_ns;
    /* relaxed: read after join. */
    if (ns > atomic_load_explicit(&p->took_ns, memory_order_relaxed)) {
        /* relaxed: as above; two writers at once differ little. */
        atomic_store_explicit(&p->took_ns, ns, memory_order_relaxed);
    }
}

/* Count nodes in batches, so that the count is not what is measured. */
static uint64_t
add_taken(struct pair *p, uint64_t n)
{
    /* relaxed: a count. */
    return atomic_fetch_add_explicit(&p->taken, n, memory_order_relaxed) + n;
}

/* Consume as worker 1 until all `loops` nodes are gone. */
static void *
thief(void *arg)
{
    struct pair *p = arg;
    uint64_t mine = 0;
    uint32_t seed = 0;
    start_together(p);
    while (add_taken(p, 0) < loops) {
        uint64_t n = 0;
        while (tp_runq_pop(p->q, 1) != NULL ||
               tp_runq_steal(p->q, 1, seed++) != NULL) {
            n++;
        }
        mine += n;
        add_taken(p, n);
    }
    /* relaxed: read after join. */
    atomic_store_explicit(&p->stolen, mine, memory_order_relaxed);
    return NULL;
}

static void *
feeder(void *arg)
{
    struct pair *p = arg;
    start_together(p);
    uint64_t start_ns = tp_now_ns();
    for (uint64_t i = 0; i < loops; i++) {
        tp_runq_push(p->q, 0, &nodes[i]);
    }
    note_time(p, start_ns);
    uint64_t n = 0;
    while (tp_runq_pop(p->q, 0) != NULL) {
        n++;
    }
    add_taken(p, n);
    return NULL;
}

static void *
feeder_and_taker(void *arg)
{
    struct pair *p = arg;
    uint64_t i = 0, n = 0;
    start_together(p);
    uint64_t start_ns = tp_now_ns();
    while (i < loops) {
        for (int k = 0; k < 16 && i < loops; k++) {
            tp_runq_push(p->q, 0, &nodes[i++]);
        }
        for (int k = 0; k < 8 && tp_runq_pop(p->q, 0) != NULL; k++) {
            n++;
        }
    }
    while (tp_runq_pop(p->q, 0) != NULL) {
        n++;
    }
    note_time(p, start_ns);
    add_taken(p, n);
    return NULL;
}

struct owner {
    struct pair *p;
    unsigned self;
};

static void *
owner_alone(void *arg)
{
    struct owner *o = arg;
    struct tp_runq *q = o->p->q;
    struct tp_runq_node *mine = &nodes[o->self * (NODES / 2)];
    struct tp_runq_node *n;
    start_together(o->p);
    uint64_t start_ns = tp_now_ns();
    for (int i = 0; i < 8; i++) {
        tp_runq_push(q, o->self, &mine[i]);
    }
    for (uint64_t i = 0; i < loops; i++) {
        n = tp_runq_pop(q, o->self);
        if (n == NULL) {
            n = tp_runq_steal(q, o->self, (uint32_t)i);
        }
        if (n != NULL) {
            tp_runq_push(q, o->self, n);
        }
    }
    note_time(o->p, start_ns);
    return NULL;
}

static double
run_pair(struct pair *p, void *(*first)(void *), void *a,
         void *(*second)(void *), void *b)
{
    pthread_t t[2];
    atomic_init(&p->ready, 0);
    atomic_init(&p->taken, 0);
    atomic_init(&p->stolen, 0);
    atomic_init(&p->took_ns, 0);
    tp_check(pthread_create(&t[0], NULL, first, a) == 0);
    tp_check(pthread_create(&t[1], NULL, second, b) == 0);
    pthread_join(t[0], NULL);
    pthread_join(t[1], NULL);
    /* relaxed: after join. */
    return (double)atomic_load_explicit(&p->took_ns, memory_order_relaxed) /
           (double)loops;
}

static int
by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double
median(double *ns)
{
    qsort(ns, PAIR_ROUNDS, sizeof(*ns), by_value);
    return ns[PAIR_ROUNDS / 2];
}

static void
bench_thief(const char *what, void *(*first)(void *))
{
    double ns[PAIR_ROUNDS], share[PAIR_ROUNDS];
    uint64_t all = loops;
    loops = NODES; /* each node is queued once */
    for (int r = 0; r < PAIR_ROUNDS; r++) {
        struct pair p = {.q = fresh()};
        ns[r] = run_pair(&p, first, &p, thief, &p);
        /* relaxed: after join. */
        uint64_t n = atomic_load_explicit(&p.stolen, memory_order_relaxed);
        share[r] = (double)n / (double)loops;
        tp_runq_free(p.q);
    }
    loops = all;
    printf("{\"bench\":\"runq.%s\",\"backend\":\"%s\",\"ns\":%.1f,"
           "\"thief_share\":%.2f}\n",
           what, tp_runq_backend(), median(ns), median(share));
}

static void
bench_two_owners(void)
{
    double ns[PAIR_ROUNDS];
    uint64_t all = loops;
    loops *= 4;
    for (int r = 0; r < PAIR_ROUNDS; r++) {
        struct pair p = {.q = fresh()};
        struct owner o[2] = {{&p, 0}, {&p, 1}};
        ns[r] = run_pair(&p, owner_alone, &o[0], owner_alone, &o[1]);
        tp_runq_free(p.q);
    }
    loops = all;
    double mid = median(ns);
    printf("{\"bench\":\"runq.two_owners\",\"backend\":\"%s\",\"ns\":%.1f,"
           "\"mops\":%.1f}\n",
           tp_runq_backend(), mid, 2e3 / mid);
}

int
main(int argc, char **argv)
{
    if (argc > 1) {
        loops *= strtoull(argv[1], NULL, 10);
        tp_check(loops > 0);
    }
    bench_alone("push_pop", push_pop);
    bench_alone("push_pop_deep", push_pop_deep);
    bench_alone("inject_pop", inject_pop);
    bench_thief("push_thief", feeder);
    bench_thief("one_feeds_two", feeder_and_taker);
    bench_two_owners();
    return 0;
}
