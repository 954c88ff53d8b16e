/*
 * idle.h - which workers sleep, and whom to wake.
 *
 * Idea:     one bit a worker. A producer publishes work, then reads the mask;
 *           a parker sets its bit, then looks at every source of work again,
 *           then sleeps. One of the two sees the other. A producer wakes at
 *           most one worker: it clears the bit by CAS and unparks its owner.
 * Threads:  any.
 * Locks:    none.
 * Ordering: IDLE-1, IDLE-3, MON-1.
 *             producer                      parker
 *             1 store work (seq_cst)        1 set own bit (seq_cst rmw)
 *             2 load mask  (seq_cst)        2 load all work (seq_cst)
 *           With less than seq_cst both loads could pass their stores: the
 *           work stands in the queue and nobody wakes.
 * Rejected: a standalone fence between 1 and 2 - ThreadSanitizer cannot
 *           follow it; a count of sleepers - whom to wake would need a lock.
 * Tests:    spec/unit/idle_test.c
 */
#ifndef TP_SCHED_IDLE_H
#define TP_SCHED_IDLE_H

#include "base/check.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define TP_WORKERS_MAX 64

struct tp_idle {
    /* any thread, atomic */
    _Atomic uint64_t mask;   /* 1 = that worker sleeps */
    _Atomic uint64_t leaves; /* so often a worker has left its sleep */
};

static inline uint64_t
tp_idle_all(unsigned workers)
{
    return workers == 64 ? UINT64_MAX : (1ull << workers) - 1;
}

/* Sets one's own bit; returns the mask with it. */
static inline uint64_t
tp_idle_enter(struct tp_idle *idle, unsigned worker)
{
    uint64_t bit = 1ull << worker;
    /* IDLE-1 seq_cst rmw: the bit is set before work is looked for. Partner:
     * tp_idle_mask in the producer. */
    return atomic_fetch_or_explicit(&idle->mask, bit, memory_order_seq_cst) |
           bit;
}

/* Clears one's own bit, set or not; before the worker does anything. */
static inline void
tp_idle_leave(struct tp_idle *idle, unsigned worker)
{
    /* MON-1 seq_cst rmw: the bit is cleared before the monitor is looked at.
     * Partner: the monitor says that it sleeps, then reads the mask. */
    atomic_fetch_and_explicit(&idle->mask, ~(1ull << worker),
                              memory_order_seq_cst);
    /* IDLE-3 seq_cst rmw: after the bit is cleared, by whomever, and before
     * any work. Partner: tp_idle_leaves, read before and after a look at the
     * mask: who was awake in between is found by one of the three. */
    atomic_fetch_add_explicit(&idle->leaves, 1, memory_order_seq_cst);
}

static inline uint64_t
tp_idle_leaves(struct tp_idle *idle)
{
    /* IDLE-3 seq_cst: see tp_idle_leave. */
    return atomic_load_explicit(&idle->leaves, memory_order_seq_cst);
}

static inline uint64_t
tp_idle_mask(struct tp_idle *idle)
{
    /* IDLE-1 seq_cst: read after work was stored. Partner: tp_idle_enter. */
    return atomic_load_explicit(&idle->mask, memory_order_seq_cst);
}

/* Claims one sleeper, none whose bit is in avoid; -1 when all are awake. */
static inline int
tp_idle_claim(struct tp_idle *idle, uint64_t avoid)
{
    uint64_t mask = tp_idle_mask(idle);
    for (;;) {
        uint64_t eligible = mask & ~avoid;
        if (eligible == 0) {
            return -1;
        }
        int w = __builtin_ctzll(eligible);
        /* MON-1 seq_cst rmw: as in tp_idle_leave; the worker that is unparked
         * looks at the monitor. relaxed: a failure is tried again. */
        if (atomic_compare_exchange_weak_explicit(
                &idle->mask, &mask, mask & ~(1ull << w), memory_order_seq_cst,
                memory_order_relaxed)) {
            return w;
        }
    }
}

#endif
