/*
 * runq.h - the run queues: who is runnable, in which order, on which worker.
 *
 * Idea:     each worker has a queue of its own that only it pushes to and
 *           that siblings may steal from; other threads push to one injection
 *           list. Four backends implement this file, one is linked:
 *             runq_steal.c    a bounded ring per worker, thieves take half
 *             runq_mutex.c    one locked list for all
 *             runq_mpmc.c     one bounded lock-free ring for all
 *             runq_striped.c  one locked list per worker, thieves try-lock
 * Threads:  push, pop, steal: only worker `worker` itself.
 *           inject, has_work, len: any. new, free: nobody else is near.
 * Locks:    TP_RANK_INJECT, TP_RANK_STRIPE; never both, none held on return.
 * Ordering: RQ-1, below. The others are in the backends.
 * Memory:   nodes are the caller's, embedded in a slot. A node is in one
 *           queue at most: from push/inject until pop/steal returns it.
 * Parks:    never. A lock holder may be waited for, on a futex.
 * Fails:    new: TROUPE_EINVAL, TROUPE_ENOMEM. Nothing else can fail.
 * Tests:    spec/unit/runq_test.c, spec/unit/runq_stress.c,
 *           spec/model/runq_model.c, spec/bench/bench_runq.c
 *
 * RQ-1, the idle protocol. Work must not be queued unseen while the worker
 * that should run it falls asleep:
 *
 *     producer                            parker
 *     P1 push/inject: seq_cst store       Q1 idle mask |= own bit, seq_cst rmw
 *        of a tail or a length            Q2 tp_runq_has_work: seq_cst loads
 *     P2 idle mask, seq_cst load             of every tail and length
 *     P3 a bit is set: clear it by CAS,   Q3 false: sleep, true: take the bit
 *        wake its owner                      back and look again
 *
 * All four are in the one order of seq_cst operations. If Q2 misses P1 then
 * Q1, Q2, P1, P2 is their order and P2 sees the bit. Hence the duties of the
 * caller:
 *   - P2 after each inject. After a push it may be left out, since an awake
 *     worker takes what is in its own queue; the monitor does P2 and P3 for it
 *     when something stays there.
 *   - P2 also when a worker that was woken finds more than it takes (the chain
 *     rule). A batch that moves from one queue to another is for a moment in no
 *     queue, so a parker may miss it; the mover is awake, and it has put the
 *     batch into its own queue.
 *   - a worker that was woken, or that took its bit back, first looks for
 *     queued work (pop, steal) and only then runs anything for long: the wake
 *     that it got, or kept from a sibling, was for a queued node.
 * has_work may say true where pop and steal then return NULL (somebody was
 * faster, or is between two steps, or holds a stripe): look again, do not
 * sleep. It never says false for an item that was queued before Q1 and that
 * no awake worker has in its hands.
 */
#ifndef TP_SCHED_RUNQ_H
#define TP_SCHED_RUNQ_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TP_RUNQ_WORKERS_MAX 64
/* Each n-th pop of a worker looks at injected work first. */
#ifdef TROUPE_MODEL
#define TP_RUNQ_FAIR 3
#else
#define TP_RUNQ_FAIR 61
#endif
/* For tp_runq_len: what belongs to no worker. */
#define TP_RUNQ_SHARED UINT_MAX

struct tp_runq;

struct tp_runq_node {
    struct tp_runq_node *next; /* whoever owns the node; in a list: its lock */
};

/* One queue set for workers 0 .. workers-1, empty. TROUPE_EINVAL for a number
 * outside 1 .. TP_RUNQ_WORKERS_MAX, TROUPE_ENOMEM. */
int tp_runq_new(unsigned workers, struct tp_runq **out_q);

/* Nodes that are still queued are forgotten, not touched. NULL is fine. */
void tp_runq_free(struct tp_runq *q);

/* Queue at the end. P1 of the idle protocol. */
void tp_runq_push(struct tp_runq *q, unsigned worker, struct tp_runq_node *n);

/* Queue from any thread. P1 of the idle protocol. */
void tp_runq_inject(struct tp_runq *q, struct tp_runq_node *n);

/* The oldest node of the worker's own queue, else of the injection list, of
 * which a share moves to the own queue; each TP_RUNQ_FAIR-th call asks the
 * injection list first. NULL: both were empty. */
struct tp_runq_node *tp_runq_pop(struct tp_runq *q, unsigned worker);

/* A hint, by the worker itself: the n-th that pop will return, counted from 0. A
 * sibling may steal it, and its actor end, before the caller looks. NULL: there
 * is none, or the backend can't tell. */
struct tp_runq_node *tp_runq_peek(struct tp_runq *q, unsigned worker,
                                  uint32_t n);

/* Half of one sibling's queue, rounded up: the oldest is returned, the rest
 * goes to the own queue. The search starts at a sibling chosen by seed.
 * NULL: nothing found; always in the backends with one queue for all. */
struct tp_runq_node *tp_runq_steal(struct tp_runq *q, unsigned worker,
                                   uint32_t seed);

/* Q2 of the idle protocol: is anything queued anywhere. */
bool tp_runq_has_work(struct tp_runq *q);

/* About how many nodes wait in a worker's queue, or in what belongs to no
 * worker (TP_RUNQ_SHARED). The sum over all is about the total. Statistics. */
size_t tp_runq_len(struct tp_runq *q, unsigned worker);

/* "steal", "mutex", "mpmc" or "striped". */
const char *tp_runq_backend(void);

#ifdef TROUPE_CHECKED
/* Tests: first value of all head and tail counters of later tp_runq_new. */
extern uint32_t tp_runq_start;
#endif

/* ---- for the backends only: a locked FIFO list with a readable length ---- */
#ifdef TP_RUNQ_BACKEND

#include "base/mutex.h"

#include <stdalign.h>

#ifdef TROUPE_CHECKED
#define TP_RUNQ_START tp_runq_start
#else
#define TP_RUNQ_START 0u
#endif

struct tp_runq_list {
    struct tp_mutex lock;
    _Atomic uint32_t len;       /* written under lock, read by any thread */
    struct tp_runq_node *first; /* under lock */
    struct tp_runq_node **end;  /* under lock: where the next node goes */
};

static inline void
tp_runq_list_init(struct tp_runq_list *l)
{
    tp_mutex_init(&l->lock);
    atomic_init(&l->len, 0);
    l->first = NULL;
    l->end = &l->first;
}

/* A hint: the length some time ago, never older than what this thread saw. */
static inline uint32_t
tp_runq_list_len(struct tp_runq_list *l)
{
    /* relaxed: a hint; who must not miss work asks tp_runq_list_has. */
    return atomic_load_explicit(&l->len, memory_order_relaxed);
}

static inline bool
tp_runq_list_has(struct tp_runq_list *l)
{
    /* RQ-1 seq_cst: after the parker's bit (Q2). Partner: the store of len in
     * tp_runq_list_append. Acquire could read a length from before Q1. */
    return atomic_load_explicit(&l->len, memory_order_seq_cst) != 0;
}

/* Append n nodes, already linked from first to last. */
static inline void
tp_runq_list_append(struct tp_runq_list *l, enum tp_lock_rank rank,
                    struct tp_runq_node *first, struct tp_runq_node *last,
                    uint32_t n)
{
    last->next = NULL;
    tp_mutex_lock(&l->lock, rank);
    *l->end = first;
    l->end = &last->next;
    /* RQ-1 seq_cst: work is stored before the mask is read (P1). Partner:
     * tp_runq_list_has. The lock makes it the only writer. */
    atomic_store_explicit(&l->len, tp_runq_list_len(l) + n,
                          memory_order_seq_cst);
    tp_mutex_unlock(&l->lock, rank);
}

/* Cut off up to max nodes; *out_n says how many, the last one's next is NULL.
 */
static inline struct tp_runq_node *
tp_runq_list_take_locked(struct tp_runq_list *l, uint32_t max, uint32_t *out_n)
{
    uint32_t len = tp_runq_list_len(l);
    uint32_t n = len < max ? len : max;
    struct tp_runq_node *first = l->first, *last = first;
    *out_n = n;
    if (n == 0) {
        return NULL;
    }
    for (uint32_t i = 1; i < n; i++) {
        last = last->next;
    }
    l->first = last->next;
    last->next = NULL;
    if (l->first == NULL) {
        l->end = &l->first;
    }
    /* relaxed: who reads a length from before sees too much, not too little;
     * who takes is awake. */
    atomic_store_explicit(&l->len, len - n, memory_order_relaxed);
    return first;
}

static inline struct tp_runq_node *
tp_runq_list_take(struct tp_runq_list *l, enum tp_lock_rank rank, uint32_t max,
                  uint32_t *out_n)
{
    struct tp_runq_node *first;
    *out_n = 0;
    if (tp_runq_list_len(l) == 0) {
        return NULL;
    }
    tp_mutex_lock(&l->lock, rank);
    first = tp_runq_list_take_locked(l, max, out_n);
    tp_mutex_unlock(&l->lock, rank);
    return first;
}

#endif
#endif
