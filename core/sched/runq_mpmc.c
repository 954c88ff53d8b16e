/*
 * runq_mpmc.c - run queues, backend with one lock-free ring for all.
 *
 * Idea:     a bounded ring for many writers and many readers. Each cell has a
 *           turn number that says what may be done to it next; a counter CAS
 *           claims a cell, a store of the turn hands it on:
 *
 *             turn == at          empty: the writer of position `at` may write
 *             turn == at + 1      full: the reader of position `at` may read
 *             turn == at + CAP    empty again, for the next round
 *
 *           What does not fit goes to a locked list, read when the ring has
 *           nothing or at each TP_RUNQ_FAIR-th pop.
 * Threads:  see runq.h.
 * Locks:    TP_RANK_INJECT, alone.
 * Ordering: RQ-1 (runq.h), RQ-4, RQ-5.
 * Memory:   see runq.h.
 * Rejected: nothing yet; its weakness is that a writer preempted between
 *           claim and hand-over hides all cells behind its own.
 * Tests:    spec/unit/runq_test.c, spec/unit/runq_stress.c,
 *           spec/model/runq_model.c
 */
#define TP_RUNQ_BACKEND
#include "sched/runq.h"

#include "base/check.h"
#include "troupe.h"

#ifdef TROUPE_MODEL
#define CAP 4u
#else
#define CAP 4096u
#endif

_Static_assert((CAP & (CAP - 1)) == 0, "cells are counter % CAP past 2^32");

#ifdef TROUPE_CHECKED
uint32_t tp_runq_start;
#endif

struct cell {
    _Atomic uint32_t turn;  /* any thread, atomic */
    struct tp_runq_node *n; /* whoever has the turn */
};

struct ticker {
    alignas(TP_CACHELINE) uint32_t tick; /* owner worker only */
};

struct tp_runq {
    unsigned workers; /* set at birth */
    /* any thread, atomic: who takes */
    alignas(TP_CACHELINE) _Atomic uint32_t head;
    /* any thread, atomic: who puts */
    alignas(TP_CACHELINE) _Atomic uint32_t tail;
    /* any thread, under its lock */
    alignas(TP_CACHELINE) struct tp_runq_list over;
    alignas(TP_CACHELINE) struct cell cell[CAP];
    struct ticker ticker[];
};

/* How far the cell for position `at` is from `turn`: 0 its turn, negative not
 * yet, positive past. The difference survives the wrap at 2^32. */
static inline int32_t
cell_ahead(struct cell *c, uint32_t turn)
{
    /* RQ-4 acquire: sees the node. Partner: ring_put.
     * RQ-5 acquire: the reader of the last round is done. Partner: ring_take.
     */
    return (int32_t)(atomic_load_explicit(&c->turn, memory_order_acquire) -
                     turn);
}

/* False: full. */
static bool
ring_put(struct tp_runq *q, struct tp_runq_node *n)
{
    /* relaxed: a guess, the CAS decides. */
    uint32_t at = atomic_load_explicit(&q->tail, memory_order_relaxed);
    for (;;) {
        struct cell *c = &q->cell[at % CAP];
        int32_t ahead = cell_ahead(c, at);
        if (ahead < 0) {
            return false;
        }
        if (ahead > 0) {
            /* relaxed: as above. */
            at = atomic_load_explicit(&q->tail, memory_order_relaxed);
            continue;
        }
        /* RQ-1 seq_cst: work is stored before the mask is read (P1); it counts
         * from the claim on. Partner: tp_runq_has_work.
         * relaxed: a failed exchange only tells the new tail. */
        if (atomic_compare_exchange_weak_explicit(&q->tail, &at, at + 1,
                                                  memory_order_seq_cst,
                                                  memory_order_relaxed)) {
            c->n = n;
            /* RQ-4 release: publishes the node. Partner: cell_ahead. */
            atomic_store_explicit(&c->turn, at + 1, memory_order_release);
            return true;
        }
    }
}

/* NULL: empty, or the oldest cell is claimed and not yet written. */
static struct tp_runq_node *
ring_take(struct tp_runq *q)
{
    /* relaxed: a guess, the CAS decides. */
    uint32_t at = atomic_load_explicit(&q->head, memory_order_relaxed);
    for (;;) {
        struct cell *c = &q->cell[at % CAP];
        int32_t ahead = cell_ahead(c, at + 1);
        if (ahead < 0) {
            return NULL;
        }
        if (ahead > 0) {
            /* relaxed: as above. */
            at = atomic_load_explicit(&q->head, memory_order_relaxed);
            continue;
        }
        /* relaxed: claims a number only; the turn orders the cell. */
        if (atomic_compare_exchange_weak_explicit(&q->head, &at, at + 1,
                                                  memory_order_relaxed,
                                                  memory_order_relaxed)) {
            struct tp_runq_node *n = c->n;
            /* RQ-5 release: the node is read, the cell may be written.
             * Partner: cell_ahead. */
            atomic_store_explicit(&c->turn, at + CAP, memory_order_release);
            return n;
        }
    }
}

static struct tp_runq_node *
take_over(struct tp_runq *q)
{
    uint32_t taken;
    return tp_runq_list_take(&q->over, TP_RANK_INJECT, 1, &taken);
}

static uint32_t
ring_len(struct tp_runq *q)
{
    /* relaxed: a hint, and the head is read first so that it is not ahead by
     * what happens in between; a torn pair is cut to what can be. */
    uint32_t head = atomic_load_explicit(&q->head, memory_order_relaxed);
    uint32_t len =
        /* relaxed: as above. */
        atomic_load_explicit(&q->tail, memory_order_relaxed) - head;
    return len > INT32_MAX ? 0 : len > CAP ? CAP : len;
}

int
tp_runq_new(unsigned workers, struct tp_runq **out_q)
{
    if (workers == 0 || workers > TP_RUNQ_WORKERS_MAX) {
        return TROUPE_EINVAL;
    }
    struct tp_runq *q = tp_aligned_alloc(
        alignof(struct tp_runq), sizeof(*q) + workers * sizeof(struct ticker));
    if (q == NULL) {
        return TROUPE_ENOMEM;
    }
    q->workers = workers;
    atomic_init(&q->head, TP_RUNQ_START);
    atomic_init(&q->tail, TP_RUNQ_START);
    tp_runq_list_init(&q->over);
    for (uint32_t i = 0; i < CAP; i++) {
        uint32_t at = TP_RUNQ_START + i;
        atomic_init(&q->cell[at % CAP].turn, at);
        q->cell[at % CAP].n = NULL;
    }
    for (unsigned i = 0; i < workers; i++) {
        q->ticker[i].tick = 0;
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
    (void)worker;
    tp_runq_inject(q, n);
}

void
tp_runq_inject(struct tp_runq *q, struct tp_runq_node *n)
{
    if (TP_UNLIKELY(!ring_put(q, n))) {
        tp_runq_list_append(&q->over, TP_RANK_INJECT, n, n, 1);
    }
}

struct tp_runq_node *
tp_runq_pop(struct tp_runq *q, unsigned worker)
{
    struct ticker *t = &q->ticker[worker];
    struct tp_runq_node *n;
    if (TP_UNLIKELY(++t->tick >= TP_RUNQ_FAIR)) {
        t->tick = 0;
        if ((n = take_over(q)) != NULL) {
            return n;
        }
    }
    n = ring_take(q);
    return n != NULL ? n : take_over(q);
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
    if (tp_runq_list_has(&q->over)) {
        return true;
    }
    /* RQ-1 seq_cst: after the parker's bit (Q2). Partner: ring_put. Acquire
     * could read a tail from before Q1. */
    uint32_t tail = atomic_load_explicit(&q->tail, memory_order_seq_cst);
    /* relaxed: an old head says work where there is none; a new one means
     * that an awake worker took it. */
    return atomic_load_explicit(&q->head, memory_order_relaxed) != tail;
}

size_t
tp_runq_len(struct tp_runq *q, unsigned worker)
{
    return worker == TP_RUNQ_SHARED ? ring_len(q) + tp_runq_list_len(&q->over)
                                    : 0;
}

const char *
tp_runq_backend(void)
{
    return "mpmc";
}
