/*
 * waitq.c - actors that wait in line, first come first served. See waitq.h.
 *
 * Tests: spec/unit/channel_test.c, spec/unit/value_mutex_test.c,
 *        spec/unit/channel_stress.c
 */
#include "actor/waitq.h"

void
tp_waiter_init(struct tp_waiter *w, struct tp_waitq *q, struct tp_actor *self,
               void (*release)(struct tp_resource *r))
{
    w->resource.release = release;
    tp_list_init(&w->node);
    w->epoch = 0;
    w->pid = self->pid;
    w->q = q;
}

void
tp_waitq_end_locked(struct tp_waiter *w)
{
    tp_list_remove(&w->node);
    tp_unpark_at(w->pid, w->epoch);
}

bool
tp_waiter_leave(struct tp_waiter *w)
{
    tp_waitq_lock(w->q);
    bool ended = tp_list_is_empty(&w->node);
    tp_list_remove(&w->node);
    tp_waitq_unlock(w->q);
    return ended;
}

/* Still in line, for the wait that begins now? */
static bool
goes_on(struct tp_actor *self, struct tp_waiter *w)
{
    tp_waitq_lock(w->q);
    bool waits = !tp_list_is_empty(&w->node);
    w->epoch = tp_wait_epoch(self->slot);
    tp_waitq_unlock(w->q);
    return waits;
}

int
tp_waiter_wait(struct tp_actor *self, struct tp_waiter *w, uint64_t deadline_ns)
{
    int rc = 0;
    tp_resource_add(self, &w->resource);
    while (rc == 0 && goes_on(self, w)) {
        if (deadline_ns != TP_NEVER && tp_now_ns() >= deadline_ns) {
            rc = TROUPE_ETIMEOUT;
        } else {
            rc = tp_actor_park(self, deadline_ns);
        }
    }
    tp_resource_remove(&w->resource);
    bool ended = tp_waiter_leave(w);
    tp_wait_abandon(self->slot); /* it may be over before it began */
    return ended ? 0 : rc;
}
