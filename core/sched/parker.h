/*
 * parker.h - one thread's sleep: a futex word with a permit.
 *
 * Idea:     EMPTY, PARKED, POLLS or PERMIT. An unpark before a park is not
 *           lost: it leaves a permit that the next park consumes. One futex
 *           call for one wake, and none when the thread does not sleep. A
 *           thread that sleeps in a poll instead says so by POLLS, and is woken
 *           by a signal to an event fd that its poll watches.
 * Threads:  park, poll_begin, poll_end: the owning thread. unpark: any.
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
    TP_PARKER_POLLS,
    TP_PARKER_PERMIT
};

struct tp_parker {
    _Atomic uint32_t word; /* any thread, atomic */
    _Atomic int event_fd;  /* POLLS: who wakes it signals this */
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

/* The owner goes to sleep in a poll of event_fd and others, up to poll_end.
 * False: there is a permit, it must not. */
static inline bool
tp_parker_poll_begin(struct tp_parker *p, int event_fd)
{
    uint32_t empty = TP_PARKER_EMPTY;
    tp_assert(tp_lockrank_none_held());
    /* relaxed: published below. Atomic for a waker that comes late, who reads
     * what it was and stays. */
    atomic_store_explicit(&p->event_fd, event_fd, memory_order_relaxed);
    /* PRK-1 release: publishes event_fd to the waker. relaxed: on failure
     * poll_end is the acquire. */
    return atomic_compare_exchange_strong_explicit(
        &p->word, &empty, TP_PARKER_POLLS, memory_order_release,
        memory_order_relaxed);
}

/* After poll_begin, whatever it said. */
static inline void
tp_parker_poll_end(struct tp_parker *p)
{
    /* PRK-1 acquire: as in park. */
    atomic_exchange_explicit(&p->word, TP_PARKER_EMPTY, memory_order_acquire);
}

static inline void
tp_parker_unpark(struct tp_parker *p)
{
    /* PRK-1 acq_rel: publishes the work to the parker's acquire; sees the
     * event_fd of one that polls. */
    uint32_t was = atomic_exchange_explicit(&p->word, TP_PARKER_PERMIT,
                                            memory_order_acq_rel);
    if (was == TP_PARKER_PARKED) {
        tp_futex_wake(&p->word, 1);
    } else if (was == TP_PARKER_POLLS) {
        /* relaxed: the exchange above was the acquire. */
        tp_event_signal(
            atomic_load_explicit(&p->event_fd, memory_order_relaxed));
    }
}

#endif
