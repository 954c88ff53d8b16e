/*
 * runq_striped.c - run queues, backend with one locked list per worker.
 *
 * Idea:     the owner locks its own list, rarely contended; a thief only
 *           tries the lock and goes on to the next victim. Lists have no
 *           bound, so nothing overflows.
 * Threads:  see runq.h.
 * Locks:    TP_RANK_INJECT or TP_RANK_STRIPE, one at a time.
 * Ordering: RQ-1 (runq.h).
 * Memory:   see runq.h.
 * Rejected: injecting into the stripes in turn - an injected node would wait
 *           for one certain worker while its siblings are free.
 * Tests:    spec/unit/runq_test.c, spec/unit/runq_stress.c,
 *           spec/model/runq_model.c
 */
#define TP_RUNQ_BACKEND
#include "sched/runq.h"

#include "base/check.h"
#include "troupe.h"

#ifdef TROUPE_MODEL
#define BATCH_MAX 2u
#else
#define BATCH_MAX 128u
#endif

#ifdef TROUPE_CHECKED
uint32_t tp_runq_start; /* no counters here */
#endif

struct stripe {
    alignas(TP_CACHELINE) struct tp_runq_list list; /* any thread */
    alignas(TP_CACHELINE) uint32_t tick;            /* owner worker only */
};

struct tp_runq {
    unsigned workers; /* set at birth */
    /* any thread, under its lock */
    alignas(TP_CACHELINE) struct tp_runq_list injected;
    struct stripe stripe[];
};

/* Keep the first node of a chain of n for the caller, queue the others. */
static struct tp_runq_node *
keep_rest(struct stripe *own, struct tp_runq_node *chain, uint32_t n)
{
    if (n > 1) {
        struct tp_runq_node *last = chain->next;
        while (last->next != NULL) {
            last = last->next;
        }
        tp_runq_list_append(&own->list, TP_RANK_STRIPE, chain->next, last,
                            n - 1);
    }
    return chain;
}

static struct tp_runq_node *
take_injected(struct tp_runq *q, struct stripe *own, uint32_t max)
{
    uint32_t n;
    struct tp_runq_node *chain =
        tp_runq_list_take(&q->injected, TP_RANK_INJECT, max, &n);
    return keep_rest(own, chain, n);
}

static struct tp_runq_node *
steal_half(struct stripe *victim, struct stripe *own)
{
    struct tp_runq_node *chain;
    uint32_t n;
    if (tp_runq_list_len(&victim->list) == 0 ||
        !tp_mutex_try_lock(&victim->list.lock, TP_RANK_STRIPE)) {
        return NULL;
    }
    n = (tp_runq_list_len(&victim->list) + 1) / 2;
    n = n < BATCH_MAX ? n : BATCH_MAX; /* the lock is not held for long */
    chain = tp_runq_list_take_locked(&victim->list, n, &n);
    tp_mutex_unlock(&victim->list.lock, TP_RANK_STRIPE);
    return keep_rest(own, chain, n);
}

int
tp_runq_new(unsigned workers, struct tp_runq **out_q)
{
    if (workers == 0 || workers > TP_RUNQ_WORKERS_MAX) {
        return TROUPE_EINVAL;
    }
    struct tp_runq *q = tp_aligned_alloc(
        alignof(struct tp_runq), sizeof(*q) + workers * sizeof(struct stripe));
    if (q == NULL) {
        return TROUPE_ENOMEM;
    }
    q->workers = workers;
    tp_runq_list_init(&q->injected);
    for (unsigned i = 0; i < workers; i++) {
        tp_runq_list_init(&q->stripe[i].list);
        q->stripe[i].tick = 0;
    }
    *out_q = q;
    return 0;
}

void
tp_runq_free(struct tp_runq *q)
{
    tp_free(q);
}

void
tp_runq_push(struct tp_runq *q, unsigned worker, struct tp_runq_node *n)
{
    tp_runq_list_append(&q->stripe[worker].list, TP_RANK_STRIPE, n, n, 1);
}

void
tp_runq_inject(struct tp_runq *q, struct tp_runq_node *n)
{
    tp_runq_list_append(&q->injected, TP_RANK_INJECT, n, n, 1);
}

struct tp_runq_node *
tp_runq_pop(struct tp_runq *q, unsigned worker)
{
    struct stripe *own = &q->stripe[worker];
    struct tp_runq_node *n;
    uint32_t taken;
    if (TP_UNLIKELY(++own->tick >= TP_RUNQ_FAIR)) {
        own->tick = 0;
        if ((n = take_injected(q, own, 1)) != NULL) {
            return n;
        }
    }
    n = tp_runq_list_take(&own->list, TP_RANK_STRIPE, 1, &taken);
    if (n != NULL) {
        return n;
    }
    uint32_t share = tp_runq_list_len(&q->injected) / q->workers + 1;
    return take_injected(q, own, share < BATCH_MAX ? share : BATCH_MAX);
}

struct tp_runq_node *
tp_runq_peek(struct tp_runq *q, unsigned worker, uint32_t n)
{
    (void)q;
    (void)worker;
    (void)n;
    return NULL;
}

struct tp_runq_node *
tp_runq_steal(struct tp_runq *q, unsigned worker, uint32_t seed)
{
    unsigned at = seed % q->workers;
    for (unsigned i = 0; i < q->workers; i++) {
        struct tp_runq_node *n =
            at == worker ? NULL
                         : steal_half(&q->stripe[at], &q->stripe[worker]);
        if (n != NULL) {
            return n;
        }
        at = at + 1 == q->workers ? 0 : at + 1;
    }
    return NULL;
}

bool
tp_runq_has_work(struct tp_runq *q)
{
    if (tp_runq_list_has(&q->injected)) {
        return true;
    }
    for (unsigned i = 0; i < q->workers; i++) {
        if (tp_runq_list_has(&q->stripe[i].list)) {
            return true;
        }
    }
    return false;
}

size_t
tp_runq_len(struct tp_runq *q, unsigned worker)
{
    return tp_runq_list_len(worker == TP_RUNQ_SHARED ? &q->injected
                                                     : &q->stripe[worker].list);
}

const char *
tp_runq_backend(void)
{
    return "striped";
}
