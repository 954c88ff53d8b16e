/*
 * runq_mutex.c - run queues, plainest backend: one locked list for all.
 *
 * Idea:     the reference that the other backends are measured against:
 *           strict FIFO over all threads, nothing to steal.
 * Threads:  all functions: any.
 * Locks:    TP_RANK_STRIPE.
 * Ordering: RQ-1 (runq.h).
 * Memory:   see runq.h.
 * Tests:    spec/unit/runq_test.c, spec/unit/runq_stress.c,
 *           spec/model/runq_model.c
 */
#define TP_RUNQ_BACKEND
#include "sched/runq.h"

#include "base/check.h"
#include "troupe.h"

#ifdef TROUPE_CHECKED
uint32_t tp_runq_start; /* no counters here */
#endif

struct tp_runq {
    alignas(TP_CACHELINE) struct tp_runq_list all; /* any thread */
};

int
tp_runq_new(unsigned workers, struct tp_runq **out_q)
{
    if (workers == 0 || workers > TP_RUNQ_WORKERS_MAX) {
        return TROUPE_EINVAL;
    }
    struct tp_runq *q = tp_aligned_alloc(alignof(struct tp_runq), sizeof(*q));
    if (q == NULL) {
        return TROUPE_ENOMEM;
    }
    tp_runq_list_init(&q->all);
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
    (void)worker;
    tp_runq_inject(q, n);
}

void
tp_runq_inject(struct tp_runq *q, struct tp_runq_node *n)
{
    tp_runq_list_append(&q->all, TP_RANK_STRIPE, n, n, 1);
}

struct tp_runq_node *
tp_runq_pop(struct tp_runq *q, unsigned worker)
{
    uint32_t taken;
    (void)worker;
    return tp_runq_list_take(&q->all, TP_RANK_STRIPE, 1, &taken);
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
    (void)q, (void)worker, (void)seed;
    return NULL;
}

bool
tp_runq_has_work(struct tp_runq *q)
{
    return tp_runq_list_has(&q->all);
}

size_t
tp_runq_len(struct tp_runq *q, unsigned worker)
{
    return worker == TP_RUNQ_SHARED ? tp_runq_list_len(&q->all) : 0;
}

const char *
tp_runq_backend(void)
{
    return "mutex";
}
