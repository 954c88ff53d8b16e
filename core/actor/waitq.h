/*
 * waitq.h - actors that wait in line, first come first served.
 *
 * Idea:     a wait queue is part of what is waited for, and its lock guards
 *           the rest of that, too. Who makes room takes the first one out of
 *           the line, hands it what it waits for, and ends its wait: so nobody
 *           overtakes, and one that is out of line was served, or refused.
 * Threads:  wait: the running actor. The rest: any.
 * Locks:    TP_RANK_CHANNEL.
 * Memory:   a waiter is the caller's, part of some larger struct. It is on the
 *           actor's list of resources meanwhile: if the actor ends in line, its
 *           release leaves the line and frees it.
 * Parks:    wait.
 * Rejected: waiters that try again when they are woken - no order, and one
 *           that is killed between the two takes the wake with it.
 * Tests:    spec/unit/channel_test.c, spec/unit/value_mutex_test.c
 */
#ifndef TP_ACTOR_WAITQ_H
#define TP_ACTOR_WAITQ_H

#include "actor/actor.h"

struct tp_waitq {
    struct tp_mutex lock; /* rank CHANNEL */
    struct tp_list line;  /* struct tp_waiter, FIFO; lock */
};

struct tp_waiter {
    struct tp_resource resource; /* the waiting actor's */
    /* the queue's lock */
    struct tp_list node; /* empty: it is out of the line */
    uint32_t epoch;
    /* set at birth */
    troupe_pid pid;
    struct tp_waitq *q;
};

static inline void
tp_waitq_init(struct tp_waitq *q)
{
    tp_mutex_init(&q->lock);
    tp_list_init(&q->line);
}

static inline void
tp_waitq_lock(struct tp_waitq *q)
{
    tp_mutex_lock(&q->lock, TP_RANK_CHANNEL);
}

static inline void
tp_waitq_unlock(struct tp_waitq *q)
{
    tp_mutex_unlock(&q->lock, TP_RANK_CHANNEL);
}

/* Not in line yet. release: as in tp_resource, for an actor that ends while it
 * waits; begins with tp_waiter_leave. */
void tp_waiter_init(struct tp_waiter *w, struct tp_waitq *q,
                    struct tp_actor *self,
                    void (*release)(struct tp_resource *r));

/* w is the last in line. Its wait follows. */
static inline void
tp_waitq_push_locked(struct tp_waiter *w)
{
    tp_list_push_back(&w->q->line, &w->node);
}

/* NULL: nobody is in line. */
static inline struct tp_waiter *
tp_waitq_first_locked(struct tp_waitq *q)
{
    return tp_list_is_empty(&q->line)
               ? NULL
               : tp_container_of(q->line.next, struct tp_waiter, node);
}

/* w was served, or refused: out of the line, its wait ends. Its memory may go
 * as soon as the lock does. */
void tp_waitq_end_locked(struct tp_waiter *w);

/*
 * Waits until w is taken out of the line: 0. Else TROUPE_ETIMEOUT or as
 * tp_actor_park, and w has left it. A wait that was over in time is 0 in any
 * case.
 */
int tp_waiter_wait(struct tp_actor *self, struct tp_waiter *w,
                   uint64_t deadline_ns);

/* Out of the line. True: it was taken out before. */
bool tp_waiter_leave(struct tp_waiter *w);

#endif
