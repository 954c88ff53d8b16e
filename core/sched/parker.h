/*
 * parker.h - one thread's sleep: a futex word with a permit.
 *
 * Idea:     EMPTY, PARKED or PERMIT. An unpark before a park is not lost: it
 *           leaves a permit that the next park consumes. One futex call for
 *           one wake, and none when the thread does not sleep.
 * Threads:  park: the owning thread. unpark: any.
 * Ordering: PRK-1, at the operations.
 * Tests:    spec/unit/parker_test.c
 */
#ifndef TP_SCHED_PARKER_H
#define TP_SCHED_PARKER_H

#include "base/check.h"
#include "base/lockrank.h"
#include "base/sys.h"

#include <errno.h>

enum {
    TP_PARKER_EMPTY,
    TP_PARKER_PARKED,
    TP_PARKER_PERMIT
};

struct tp_parker {
    _Atomic uint32_t word; /* any thread, atomic */
};

static inline void
tp_parker_init(struct tp_parker *p)
{
    atomic_init(&p->word, TP_PARKER_EMPTY);
}

/* Sleeps until a permit is there or deadline_ns passes. True: got a permit. */
static inline bool
tp_parker_park(struct tp_parker *p, uint64_t deadline_ns)
{
    uint32_t empty = TP_PARKER_EMPTY;
    tp_assert(tp_lockrank_none_held());
    /* relaxed: on success nothing was read yet; on failure the exchange below
     * is the acquire. */
    if (atomic_compare_exchange_strong_explicit(
            &p->word, &empty, TP_PARKER_PARKED, memory_order_relaxed,
            memory_order_relaxed)) {
        int rc = 0;
        /* relaxed: a look whether to sleep; the exchange below is the
         * acquire. */
        while (rc == 0 &&
               atomic_load_explicit(&p->word, memory_order_relaxed) ==
                   TP_PARKER_PARKED) {
            rc = tp_futex_wait(&p->word, TP_PARKER_PARKED, deadline_ns);
        }
    }
    /* PRK-1 acquire: sees what the waker wrote before its unpark. Relaxed
     * would let us miss the work that we were woken for. */
    return atomic_exchange_explicit(&p->word, TP_PARKER_EMPTY,
                                    memory_order_acquire) == TP_PARKER_PERMIT;
}

static inline void
tp_parker_unpark(struct tp_parker *p)
{
    /* PRK-1 release: publishes the work to the parker's acquire. */
    if (atomic_exchange_explicit(&p->word, TP_PARKER_PERMIT,
                                 memory_order_release) == TP_PARKER_PARKED) {
        tp_futex_wake(&p->word, 1);
    }
}

#endif
