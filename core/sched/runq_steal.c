/*
 * runq_steal.c - run queues, default backend: a ring per worker, stealing.
 *
 * Idea:     the owner writes at tail, everybody takes at head by CAS. Slots
 *           outside head..tail-1 belong to the owner. A full ring gives its
 *           older half to the injection list.
 *
 *              head                tail            counters only grow and
 *               v                   v              wrap at 2^32; a slot is
 *           . . a b c d e f g h i j . . .          counter % CAP
 *               `--------' a thief takes this half
 *
 * Threads:  see runq.h.
 * Locks:    TP_RANK_INJECT, alone.
 * Ordering: RQ-1 (runq.h), RQ-2, RQ-3.
 * Memory:   see runq.h.
 * Rejected: LIFO for the owner (Chase-Lev): cheaper pop, but actors would
 *           starve. A private batch at the head: cheaper still, but nobody
 *           could steal what waits behind a long slice.
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
#define CAP 256u
#endif
#define HALF (CAP / 2)
/* Attempts at one victim before the next one is asked. */
#define STEAL_TRIES 4

_Static_assert((CAP & (CAP - 1)) == 0, "slots are counter % CAP past 2^32");

#ifdef TROUPE_CHECKED
uint32_t tp_runq_start;
#endif

struct ring {
    /* owner and thieves */
    alignas(TP_CACHELINE) _Atomic uint32_t head; /* next to take */
    /* owner worker only; thieves read tail */
    alignas(TP_CACHELINE) _Atomic uint32_t tail; /* next to write */
    uint32_t tick;                               /* pops since fair turn */
    /* owner writes, thieves read */
    alignas(TP_CACHELINE) _Atomic(struct tp_runq_node *) slot[CAP];
};

struct tp_runq {
    unsigned workers; /* set at birth */
    /* any thread, under its lock */
    alignas(TP_CACHELINE) struct tp_runq_list injected;
    struct ring ring[];
};

static inline void
slot_set(struct ring *r, uint32_t at, struct tp_runq_node *n)
{
    /* relaxed: published by the tail (RQ-3), reused after the head (RQ-2). */
    atomic_store_explicit(&r->slot[at % CAP], n, memory_order_relaxed);
}

static inline struct tp_runq_node *
slot_get(struct ring *r, uint32_t at)
{
    /* relaxed: see slot_set. A thief's value counts only if its CAS wins. */
    return atomic_load_explicit(&r->slot[at % CAP], memory_order_relaxed);
}

static inline uint32_t
own_tail(struct ring *r)
{
    /* relaxed: owner worker only, or a statistic. */
    return atomic_load_explicit(&r->tail, memory_order_relaxed);
}

static inline void
set_tail(struct ring *r, uint32_t tail)
{
    /* RQ-1 seq_cst: work is stored before the mask is read (P1). Partner:
     * tp_runq_has_work.
     * RQ-3 release: publishes slots and nodes below tail. Partner:
     * steal_half. */
    atomic_store_explicit(&r->tail, tail, memory_order_seq_cst);
}

/* How many slots the owner may write. */
static inline uint32_t
ring_room(struct ring *r)
{
    /* RQ-2 acquire: a thief has read its slots before they are written again.
     * Partner: steal_half. */
    uint32_t head = atomic_load_explicit(&r->head, memory_order_acquire);
    return CAP - (own_tail(r) - head);
}

static struct tp_runq_node *
ring_pop(struct ring *r)
{
    uint32_t tail = own_tail(r);
    /* relaxed: the slots are the owner's own writes. */
    uint32_t head = atomic_load_explicit(&r->head, memory_order_relaxed);
    while (head != tail) {
        struct tp_runq_node *n = slot_get(r, head);
        /* RQ-3 release: who sees this head sees the tail that is ahead of it.
         * Partner: steal_half.
         * relaxed: a failed exchange only tells the new head. */
        if (TP_LIKELY(atomic_compare_exchange_weak_explicit(
                &r->head, &head, head + 1, memory_order_release,
                memory_order_relaxed))) {
            return n;
        }
    }
    return NULL;
}

/* The ring is full: its older half and n go to the injection list. False: a
 * thief made room meanwhile. */
static bool
ring_spill(struct tp_runq *q, struct ring *r, struct tp_runq_node *n)
{
    uint32_t head = own_tail(r) - CAP, at = head;
    /* RQ-3 release: as in ring_pop.
     * relaxed: a failed exchange means room, the caller looks again. */
    if (!atomic_compare_exchange_strong_explicit(&r->head, &at, head + HALF,
                                                 memory_order_release,
                                                 memory_order_relaxed)) {
        return false;
    }
    struct tp_runq_node *first = slot_get(r, head), *last = first;
    for (uint32_t i = 1; i < HALF; i++) {
        last = last->next = slot_get(r, head + i);
    }
    last->next = n;
    tp_runq_list_append(&q->injected, TP_RANK_INJECT, first, n, HALF + 1);
    return true;
}

/* Put a chain of nodes into the ring; the caller knows that it has room. */
static void
ring_fill(struct ring *r, struct tp_runq_node *chain)
{
    uint32_t tail = own_tail(r);
    for (; chain != NULL; tail++) {
        struct tp_runq_node *next = chain->next;
        slot_set(r, tail, chain);
        chain = next;
    }
    set_tail(r, tail);
}

/* The oldest injected node; up to max - 1 more go to the ring. */
static struct tp_runq_node *
take_injected(struct tp_runq *q, struct ring *r, uint32_t max)
{
    uint32_t taken;
    struct tp_runq_node *n =
        tp_runq_list_take(&q->injected, TP_RANK_INJECT, max, &taken);
    if (taken > 1) {
        tp_assert(ring_room(r) >= taken - 1);
        ring_fill(r, n->next);
    }
    return n;
}

/*
 * Copy half of the victim's nodes to the unpublished slots after the own
 * tail, then claim them: the CAS wins only if nobody took one meanwhile, and
 * so only if the victim wrote none of these slots again.
 */
static struct tp_runq_node *
steal_half(struct ring *victim, struct ring *own, bool *out_again)
{
    uint32_t room = ring_room(own), to = own_tail(own);
    /* RQ-3 acquire: the tail read next is not behind this head. Partner:
     * ring_pop. */
    uint32_t head = atomic_load_explicit(&victim->head, memory_order_acquire);
    /* RQ-3 acquire: sees slots and nodes. Partner: set_tail. */
    uint32_t tail = atomic_load_explicit(&victim->tail, memory_order_acquire);
    uint32_t n = (tail - head + 1) / 2;
    *out_again = tail - head > CAP; /* this head is long gone */
    if (n == 0 || *out_again) {
        return NULL;
    }
    n = n - 1 <= room ? n : room + 1;
    struct tp_runq_node *first = slot_get(victim, head);
    for (uint32_t i = 1; i < n; i++) {
        slot_set(own, to + i - 1, slot_get(victim, head + i));
    }
    /* RQ-2 release: the slots are read, the victim may write them. Partner:
     * ring_room. RQ-3 release: as in ring_pop.
     * relaxed: after a failed exchange the caller looks again. */
    if (!atomic_compare_exchange_strong_explicit(&victim->head, &head, head + n,
                                                 memory_order_acq_rel,
                                                 memory_order_relaxed)) {
        *out_again = true;
        return NULL;
    }
    if (n > 1) {
        set_tail(own, to + n - 1);
    }
    return first;
}

int
tp_runq_new(unsigned workers, struct tp_runq **out_q)
{
    if (workers == 0 || workers > TP_RUNQ_WORKERS_MAX) {
        return TROUPE_EINVAL;
    }
    struct tp_runq *q = tp_aligned_alloc(
        alignof(struct tp_runq), sizeof(*q) + workers * sizeof(struct ring));
    if (q == NULL) {
        return TROUPE_ENOMEM;
    }
    q->workers = workers;
    tp_runq_list_init(&q->injected);
    for (unsigned i = 0; i < workers; i++) {
        struct ring *r = &q->ring[i];
        atomic_init(&r->head, TP_RUNQ_START);
        atomic_init(&r->tail, TP_RUNQ_START);
        r->tick = 0;
        for (uint32_t k = 0; k < CAP; k++) {
            atomic_init(&r->slot[k], NULL);
        }
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
    struct ring *r = &q->ring[worker];
    for (;;) {
        if (TP_LIKELY(ring_room(r) > 0)) {
            uint32_t tail = own_tail(r);
            slot_set(r, tail, n);
            set_tail(r, tail + 1);
            return;
        }
        if (ring_spill(q, r, n)) {
            return;
        }
    }
}

void
tp_runq_inject(struct tp_runq *q, struct tp_runq_node *n)
{
    tp_runq_list_append(&q->injected, TP_RANK_INJECT, n, n, 1);
}

struct tp_runq_node *
tp_runq_pop(struct tp_runq *q, unsigned worker)
{
    struct ring *r = &q->ring[worker];
    struct tp_runq_node *n;
    if (TP_UNLIKELY(++r->tick >= TP_RUNQ_FAIR)) {
        r->tick = 0;
        if ((n = take_injected(q, r, 1)) != NULL) {
            return n;
        }
    }
    if ((n = ring_pop(r)) != NULL) {
        return n;
    }
    uint32_t share = tp_runq_list_len(&q->injected) / q->workers + 1;
    return take_injected(q, r, share < HALF ? share : HALF);
}

struct tp_runq_node *
tp_runq_peek(struct tp_runq *q, unsigned worker, uint32_t n)
{
    struct ring *r = &q->ring[worker];
    /* relaxed: thieves move the head, the slots are the owner's own. */
    uint32_t head = atomic_load_explicit(&r->head, memory_order_relaxed);
    return n < own_tail(r) - head ? slot_get(r, head + n) : NULL;
}

struct tp_runq_node *
tp_runq_steal(struct tp_runq *q, unsigned worker, uint32_t seed)
{
    unsigned at = seed % q->workers;
    for (unsigned i = 0; i < q->workers; i++) {
        bool again = at != worker;
        for (int tries = 0; again && tries < STEAL_TRIES; tries++) {
            struct tp_runq_node *n =
                steal_half(&q->ring[at], &q->ring[worker], &again);
            if (n != NULL) {
                return n;
            }
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
        struct ring *r = &q->ring[i];
        /* RQ-1 seq_cst: after the parker's bit (Q2). Partner: set_tail.
         * Acquire could read a tail from before Q1. */
        uint32_t tail = atomic_load_explicit(&r->tail, memory_order_seq_cst);
        /* relaxed: an old head says work where there is none; a new one means
         * that an awake worker took it. */
        if (atomic_load_explicit(&r->head, memory_order_relaxed) != tail) {
            return true;
        }
    }
    return false;
}

size_t
tp_runq_len(struct tp_runq *q, unsigned worker)
{
    if (worker == TP_RUNQ_SHARED) {
        return tp_runq_list_len(&q->injected);
    }
    struct ring *r = &q->ring[worker];
    /* relaxed: a statistic; a torn pair is cut to what can be. */
    uint32_t head = atomic_load_explicit(&r->head, memory_order_relaxed);
    uint32_t len = own_tail(r) - head;
    return len > CAP ? 0 : len;
}

const char *
tp_runq_backend(void)
{
    return "steal";
}
