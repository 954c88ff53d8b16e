/*
 * slot.h - the slot table: index and generation to actor; stale pids fail.
 *
 * Idea:     one cache line a slot, reserved as virtual memory once and
 *           committed by touch. A slot is never unmapped while the runtime
 *           lives, so any thread may look at the state word of any pid.
 *
 *   state word, 64 bits:
 *
 *     63            32 31         5   4        3       2     0
 *     [ wait epoch 32 ][ gen 27    ][limited][doomed][state 3]
 *
 *   The epoch sits on top, so that its wrap carries into nothing.
 *
 * Threads:  state, inbox: any, atomic. lock guards what actor.h says.
 *           fiber, mail_*: the worker that runs the actor. actor: readers hold
 *           lock and have checked the generation; the owner needs neither.
 * Locks:    TP_RANK_FREELIST.
 * Ordering: ST-1 (below, and in worker.c).
 * Fails:    tp_slot_alloc: NULL when max_actors are alive.
 * Rejected: a pointer as pid - a stale one could not be told.
 * Tests:    spec/unit/slot_test.c
 */
#ifndef TP_SCHED_SLOT_H
#define TP_SCHED_SLOT_H

#include "base/list.h"
#include "base/mutex.h"
#include "sched/runq.h"

#include <assert.h>
#include <stdalign.h>
#include <troupe.h>

#define TP_PID_INDEX_BITS 20
#define TP_PID_GEN_BITS   27
#define TP_MAX_ACTORS     (1u << TP_PID_INDEX_BITS)
#define TP_GEN_MASK       ((1u << TP_PID_GEN_BITS) - 1)

/* Who owns the stack, and which list holds the actor. */
enum tp_state {
    TP_VACANT = 0, /* no stack; free list or being born */
    TP_QUEUED,     /* stack at rest; one run queue or wake slot holds it */
    TP_RUNNING,    /* the stack is in use by one worker; no list */
    TP_NOTIFIED,   /* as RUNNING, and its current wait is already over */
    TP_PARKED,     /* stack at rest; no list, a waker will queue it */
    TP_DONE        /* finalised; the worker is taking it apart */
};

#define TP_STATE_MASK        7ull
#define TP_STATE_DOOMED      (1ull << 3)
#define TP_STATE_LIMITED     (1ull << 4)
#define TP_STATE_GEN_SHIFT   5
#define TP_STATE_EPOCH_SHIFT 32
#define TP_STATE_EPOCH_ONE   (1ull << TP_STATE_EPOCH_SHIFT)

struct tp_actor;
struct tp_fiber;
struct tp_msg;

struct tp_slot {
    /* any thread, atomic */
    alignas(TP_CACHELINE) _Atomic uint64_t state;
    _Atomic uint64_t inbox; /* mailbox.c */

    /* the run queue that holds the slot; vacant: the free list */
    struct tp_runq_node qnode;

    /* set at birth; fiber by tp_slot_fiber */
    _Atomic(struct tp_fiber *) fiber;
    struct tp_actor *actor;

    /* owner only: fetched mail, in order of arrival */
    struct tp_msg *mail_head;
    struct tp_msg **mail_tail;

    struct tp_mutex lock; /* rank SLOT */

    /* any thread, atomic: the last one who ended here, as its generation << 4
     * | kind of reason. For who asks a moment too late; link.c */
    _Atomic uint32_t epitaph;
};

static_assert(sizeof(struct tp_slot) == TP_CACHELINE, "one line a slot");

/* Of a slot that may end meanwhile it is an address, not to be followed. */
static inline struct tp_fiber *
tp_slot_fiber(const struct tp_slot *s)
{
    /* relaxed: set before the birth that the state word publishes. */
    return atomic_load_explicit(&s->fiber, memory_order_relaxed);
}

static inline enum tp_state
tp_state_of(uint64_t word)
{
    return (enum tp_state)(word & TP_STATE_MASK);
}

static inline uint32_t
tp_state_gen(uint64_t word)
{
    return (uint32_t)(word >> TP_STATE_GEN_SHIFT) & TP_GEN_MASK;
}

static inline uint32_t
tp_state_epoch(uint64_t word)
{
    return (uint32_t)(word >> TP_STATE_EPOCH_SHIFT);
}

/* A look, at one's own slot or as a sample. */
static inline bool
tp_slot_is_doomed(const struct tp_slot *s)
{
    /* relaxed: the reason is read after the switch that follows. */
    return (atomic_load_explicit(&s->state, memory_order_relaxed) &
            TP_STATE_DOOMED) != 0;
}

static inline uint32_t
tp_pid_index(troupe_pid pid)
{
    return (uint32_t)pid & (TP_MAX_ACTORS - 1);
}

static inline uint32_t
tp_pid_gen(troupe_pid pid)
{
    return (uint32_t)(pid >> TP_PID_INDEX_BITS) & TP_GEN_MASK;
}

struct tp_slot_table {
    /* set at start */
    struct tp_slot *base;
    uint32_t capacity;
    /* lock */
    struct tp_mutex lock;
    struct tp_runq_node *free_head;
    struct tp_runq_node *free_tail;
    uint32_t free_count;
    /* written under lock, read by any: relaxed, slots below it were used */
    _Atomic uint32_t used;
};

extern struct tp_slot_table tp_slots;

int tp_slots_init(uint32_t capacity);
void tp_slots_fini(void);

/* A vacant slot with its generation set, or NULL when all are in use. */
struct tp_slot *tp_slot_alloc(void);

/* How many slots were ever taken. Who takes another one after this call sees
 * what the caller wrote before it. */
uint32_t tp_slots_used(void);

/* Gives back a slot in state TP_DONE; its generation moves on. */
void tp_slot_free(struct tp_slot *s);

static inline uint32_t
tp_slot_index(const struct tp_slot *s)
{
    return (uint32_t)(s - tp_slots.base);
}

/* The slot a pid names, whoever lives there now; NULL if it never existed. */
static inline struct tp_slot *
tp_slot_at(troupe_pid pid)
{
    uint32_t index = tp_pid_index(pid);
    /* relaxed: slots are only added; a pid reaches a thread after its birth. */
    return index < atomic_load_explicit(&tp_slots.used, memory_order_relaxed)
               ? &tp_slots.base[index]
               : NULL;
}

static inline troupe_pid
tp_slot_pid(const struct tp_slot *s)
{
    /* relaxed: the generation cannot change while the caller owns the slot. */
    uint64_t word = atomic_load_explicit(&s->state, memory_order_relaxed);
    return ((troupe_pid)tp_state_gen(word) << TP_PID_INDEX_BITS) |
           tp_slot_index(s);
}

/* Is this number a pid that was given out, dead or alive? Pure. */
bool tp_pid_was_issued(troupe_pid pid);

#endif
