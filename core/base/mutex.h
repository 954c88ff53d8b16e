/*
 * mutex.h - a futex mutex of four bytes that knows its rank at each call.
 *
 * Idea:     0 free, 1 held, 2 held and somebody may sleep.
 * Threads:  any. Never held across a fiber switch.
 * Ordering: MTX-1, at the operations.
 * Rejected: pthread_mutex_t - 40 bytes do not fit a slot's cache line.
 * Tests:    spec/unit/mutex_test.c
 */
#ifndef TP_BASE_MUTEX_H
#define TP_BASE_MUTEX_H

#include "base/check.h"
#include "base/lockrank.h"
#include "base/sys.h"

struct tp_mutex {
    _Atomic uint32_t word; /* any thread, atomic */
};

static inline void
tp_mutex_init(struct tp_mutex *m)
{
    atomic_init(&m->word, 0);
}

void tp_mutex_lock_slow(struct tp_mutex *m);

static inline void
tp_mutex_lock_raw(struct tp_mutex *m)
{
    uint32_t free_word = 0;
    /* MTX-1 acquire: sees all that the last holder wrote before its unlock.
     * Partner: tp_mutex_unlock. Relaxed would read stale protected data.
     * relaxed: a failed exchange decides nothing, the slow path looks again. */
    if (TP_UNLIKELY(!atomic_compare_exchange_strong_explicit(
            &m->word, &free_word, 1, memory_order_acquire,
            memory_order_relaxed))) {
        tp_mutex_lock_slow(m);
    }
}

static inline void
tp_mutex_lock(struct tp_mutex *m, enum tp_lock_rank rank)
{
    tp_lockrank_acquire(rank, false);
    tp_mutex_lock_raw(m);
}

static inline bool
tp_mutex_try_lock(struct tp_mutex *m, enum tp_lock_rank rank)
{
    uint32_t free_word = 0;
    /* MTX-1 acquire: as in tp_mutex_lock_raw.
     * relaxed: a failed exchange decides nothing. */
    if (!atomic_compare_exchange_strong_explicit(&m->word, &free_word, 1,
                                                 memory_order_acquire,
                                                 memory_order_relaxed)) {
        return false;
    }
    tp_lockrank_acquire(rank, false);
    return true;
}

static inline void
tp_mutex_unlock(struct tp_mutex *m, enum tp_lock_rank rank)
{
    tp_lockrank_release(rank);
    /* MTX-1 release: publishes what was written under the lock. Partner: the
     * acquire in tp_mutex_lock_raw and tp_mutex_lock_slow. */
    if (TP_UNLIKELY(
            atomic_exchange_explicit(&m->word, 0, memory_order_release) == 2)) {
        tp_futex_wake(&m->word, 1);
    }
}

/* Two locks of one rank, lower address first; a == b takes it once. */
static inline void
tp_mutex_lock_pair(struct tp_mutex *a, struct tp_mutex *b,
                   enum tp_lock_rank rank)
{
    struct tp_mutex *lo = a < b ? a : b;
    tp_mutex_lock(lo, rank);
    if (a != b) {
        tp_lockrank_acquire(rank, true);
        tp_mutex_lock_raw(lo == a ? b : a);
    }
}

static inline void
tp_mutex_unlock_pair(struct tp_mutex *a, struct tp_mutex *b,
                     enum tp_lock_rank rank)
{
    tp_mutex_unlock(a, rank);
    if (a != b) {
        tp_mutex_unlock(b, rank);
    }
}

#endif
