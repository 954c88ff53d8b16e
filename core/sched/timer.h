/*
 * timer.h - deadlines: one heap of waits and of delayed messages.
 *
 * Idea:     a 4-ary heap under one lock. Two kinds of entry:
 *           wait    of an actor, at most one each. It stays in the
 *                   heap when its wait is over, and a later wait with a later
 *                   deadline finds it there and need not lock: the entry, when
 *                   it comes up, looks at the deadline that is wanted now and
 *                   goes back into the heap or away. So a receive with a
 *                   timeout costs the heap nothing while messages flow.
 *           event   a delayed action with an id; cancel is O(log n).
 * Threads:  any. wait_deadline is written by the owner of the wait, armed by
 *           the holder of the lock.
 * Locks:    TP_RANK_TIMER.
 * Ordering: TMR-1 in timer.c.
 * Fails:    start, set: TROUPE_ENOMEM; new: NULL.
 * Rejected: a timing wheel - ticks cost wake-ups when idle, cascades cost
 *           latency; a heap per worker - the timekeeper would have to look at
 *           all of them, and the lazy wait entries make the lock rare.
 * Tests:    spec/unit/timer_test.c
 */
#ifndef TP_SCHED_TIMER_H
#define TP_SCHED_TIMER_H

#include "base/mutex.h"
#include "sched/slot.h"

#define TP_NEVER UINT64_MAX

enum tp_timer_kind {
    TP_TIMER_WAIT,
    TP_TIMER_EVENT
};

struct tp_timer_node {
    /* lock */
    uint64_t key;  /* deadline by which the heap is ordered */
    uint32_t seat; /* who it is in the heap; 0: not in there */
    uint8_t kind;
};

/* An actor's wait for a deadline. */
struct tp_wait_timer {
    struct tp_timer_node node;
    /* lock writes, owner reads: key of the node in the heap, or TP_NEVER */
    _Atomic uint64_t armed;
    /* owner writes, lock reads: what the current wait wants, or TP_NEVER */
    _Atomic uint64_t wait_deadline;
    union {
        struct tp_slot *slot; /* set at birth */
        struct tp_wait_timer *next_free;
    };
};

/* A delayed action. Embedded in the caller's struct. */
struct tp_event {
    struct tp_timer_node node;
    uint64_t id;
    uint64_t interval_ns; /* 0: once */
    /*
     * Runs on a scheduler thread; must not park. Once: no lock is held, and
     * the event is the action's to free. With an interval: the timers' lock is
     * held, so it may take only what ranks above; it returns whether to go on,
     * and drop is called if not.
     */
    bool (*fire)(struct tp_event *e);
    /* The event was dropped by fini: frees it. */
    void (*drop)(struct tp_event *e);
    /* Can it still matter? Asked when nothing else is left to do. No lock is
     * taken by it. */
    bool (*matters)(struct tp_event *e);
    struct tp_event *next_dropped; /* private to timer.c */
};

int tp_timers_init(void);
void tp_timers_fini(void);

/* The entry of the actor in slot; NULL: no memory. */
struct tp_wait_timer *tp_wait_timer_new(struct tp_slot *slot);

/* Owner, before it parks: wake me at deadline_ns (TP_NEVER: do not). Returns
 * 0 or TROUPE_ENOMEM. */
int tp_wait_timer_set(struct tp_wait_timer *t, uint64_t deadline_ns);

/* Owner, at its end: out of the heap, and gone. */
void tp_wait_timer_free(struct tp_wait_timer *t);

/* Fires e at deadline_ns; *out_id, never 0, is its id. Takes e until fire has
 * returned false, drop was called or a cancel has won: on return it may be
 * gone already. */
int tp_event_start(struct tp_event *e, uint64_t deadline_ns, uint64_t *out_id);

/* True, and *out_e back in the caller's hands, if the cancel beat the fire; an
 * event with an interval has not fired yet, however often it has. */
bool tp_event_cancel(uint64_t id, struct tp_event **out_e);

/* The earliest deadline, TP_NEVER when none. One relaxed load. */
static inline uint64_t
tp_timers_earliest(void)
{
    extern _Atomic uint64_t tp_timer_earliest;
    /* relaxed: a hint; tp_timers_run looks again under the lock, and a sleeper
     * is woken by the insert (worker.c, IDLE-2). */
    return atomic_load_explicit(&tp_timer_earliest, memory_order_relaxed);
}

/* Fires what is due at now_ns, the earliest first; returns how many. It may leave
 * some for the next call when there are hundreds. Any scheduler thread. */
size_t tp_timers_run(uint64_t now_ns);

/* Drops, earliest first, entries that can change nothing any more, until one
 * can; true if there is such a one. */
bool tp_timers_prune(void);

/* Called with a new earliest deadline, no lock held. Set by the scheduler. */
extern void (*tp_timer_on_earlier)(uint64_t deadline_ns);

#endif
