/*
 * value_mutex.c - a value that one actor has at a time. See value_mutex.h.
 *
 * Tests: spec/unit/value_mutex_test.c, spec/unit/channel_stress.c
 */
#include "actor/value_mutex.h"

struct waiter {
    struct tp_resource resource; /* the waiting actor's */
    /* the mutex's lock */
    struct tp_list node; /* empty: it was given the mutex */
    uint32_t epoch;
    /* set at birth */
    troupe_pid pid;
    struct tp_value_mutex *m;
};

static void
lock(struct tp_value_mutex *m)
{
    tp_mutex_lock(&m->lock, TP_RANK_CHANNEL);
}

static void
unlock(struct tp_value_mutex *m)
{
    tp_mutex_unlock(&m->lock, TP_RANK_CHANNEL);
}

/* The first in line has it now, or nobody. */
static void
hand_over_locked(struct tp_value_mutex *m)
{
    if (tp_list_is_empty(&m->line)) {
        m->holder = 0;
        return;
    }
    struct waiter *w = tp_container_of(m->line.next, struct waiter, node);
    tp_list_remove(&w->node);
    m->holder = w->pid;
    tp_unpark_at(w->pid, w->epoch);
}

/* The holder ends. */
static void
hold_release(struct tp_resource *r)
{
    struct tp_value_mutex *m = tp_container_of(r, struct tp_value_mutex, hold);
    m->abandoned = true;
    lock(m);
    hand_over_locked(m);
    unlock(m);
    tp_value_mutex_unref(m);
}

struct tp_value_mutex *
tp_value_mutex_new(struct tp_msg *value)
{
    struct tp_value_mutex *m = tp_calloc(1, sizeof *m);
    if (m == NULL) {
        return NULL;
    }
    atomic_init(&m->refs, 1);
    tp_mutex_init(&m->lock);
    tp_list_init(&m->line);
    m->hold.release = hold_release;
    m->value = value;
    return m;
}

void
tp_value_mutex_ref(struct tp_value_mutex *m)
{
    /* relaxed: who takes a reference has one already. */
    atomic_fetch_add_explicit(&m->refs, 1, memory_order_relaxed);
}

void
tp_value_mutex_unref(struct tp_value_mutex *m)
{
    /* VMX-1 acq_rel: the last one frees after all others are done. Both sides
     * are this decrement. */
    if (atomic_fetch_sub_explicit(&m->refs, 1, memory_order_acq_rel) == 1) {
        tp_msg_drop(m->value);
        tp_free(m);
    }
}

/* Self was made the holder. Returns whether it was abandoned. */
static bool
begin_hold(struct tp_actor *self, struct tp_value_mutex *m)
{
    bool abandoned = m->abandoned;
    m->abandoned = false;
    tp_value_mutex_ref(m);
    tp_resource_add(self, &m->hold);
    return abandoned;
}

int
tp_value_mutex_try_lock(struct tp_actor *self, struct tp_value_mutex *m,
                        bool *out_abandoned)
{
    lock(m);
    bool mine = m->holder == 0;
    if (mine) {
        m->holder = self->pid;
    }
    unlock(m);
    if (!mine) {
        return TROUPE_EBUSY;
    }
    *out_abandoned = begin_hold(self, m);
    return 0;
}

/* Out of the line; true if it was given the mutex before that. */
static bool
leave_line(struct waiter *w)
{
    lock(w->m);
    bool given = tp_list_is_empty(&w->node);
    tp_list_remove(&w->node);
    unlock(w->m);
    return given;
}

/* The waiting actor ends. It may have been given the mutex, but has not seen
 * the value: so the next one need not know. */
static void
waiter_release(struct tp_resource *r)
{
    struct waiter *w = tp_container_of(r, struct waiter, resource);
    struct tp_value_mutex *m = w->m;
    lock(m);
    if (tp_list_is_empty(&w->node)) {
        hand_over_locked(m);
    }
    tp_list_remove(&w->node);
    unlock(m);
    tp_value_mutex_unref(m);
    tp_free(w);
}

/* Still in line, for the wait that begins now? */
static bool
goes_on(struct tp_actor *self, struct waiter *w)
{
    lock(w->m);
    bool waits = !tp_list_is_empty(&w->node);
    w->epoch = tp_wait_epoch(self->slot);
    unlock(w->m);
    return waits;
}

/* 0: self is the holder. */
static int
wait_in_line(struct tp_actor *self, struct waiter *w, uint64_t deadline_ns)
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
    bool given = leave_line(w);
    tp_wait_abandon(self->slot); /* it may be over before it began */
    return given ? 0 : rc;
}

/* Holder, or in line: 0 or TROUPE_EBUSY. TROUPE_EINVAL: holds it already. */
static int
enter(struct tp_value_mutex *m, struct waiter *w)
{
    lock(m);
    int rc = m->holder == 0        ? 0
             : m->holder == w->pid ? TROUPE_EINVAL
                                   : TROUPE_EBUSY;
    if (rc == 0) {
        m->holder = w->pid;
    } else if (rc == TROUPE_EBUSY) {
        tp_list_push_back(&m->line, &w->node);
    }
    unlock(m);
    return rc;
}

static int
lock_slow(struct tp_actor *self, struct tp_value_mutex *m, uint64_t deadline_ns)
{
    struct waiter *w = tp_calloc(1, sizeof *w);
    if (w == NULL) {
        return TROUPE_ENOMEM;
    }
    w->resource.release = waiter_release;
    tp_list_init(&w->node);
    w->pid = self->pid;
    w->m = m;
    int rc = enter(m, w);
    if (rc == TROUPE_EBUSY) {
        tp_value_mutex_ref(m);
        rc = wait_in_line(self, w, deadline_ns);
        tp_value_mutex_unref(m);
    } else if (rc == TROUPE_EINVAL) {
        rc = TROUPE_EBUSY;
    }
    tp_free(w);
    return rc;
}

int
tp_value_mutex_lock(struct tp_actor *self, struct tp_value_mutex *m,
                    uint64_t deadline_ns, bool *out_abandoned)
{
    if (tp_value_mutex_try_lock(self, m, out_abandoned) == 0) {
        return 0;
    }
    int rc = lock_slow(self, m, deadline_ns);
    if (rc == 0) {
        *out_abandoned = begin_hold(self, m);
    }
    return rc;
}

int
tp_value_mutex_unlock(struct tp_actor *self, struct tp_value_mutex *m)
{
    lock(m);
    bool held = m->holder == self->pid;
    if (held) {
        tp_resource_remove(&m->hold);
        hand_over_locked(m);
    }
    unlock(m);
    if (!held) {
        return TROUPE_EINVAL;
    }
    tp_value_mutex_unref(m);
    return 0;
}

bool
tp_value_mutex_is_held_by(struct tp_value_mutex *m, troupe_pid pid)
{
    lock(m);
    bool held = m->holder == pid;
    unlock(m);
    return held;
}

void
tp_value_mutex_set(struct tp_value_mutex *m, struct tp_msg *value)
{
    struct tp_msg *old = m->value;
    m->value = value;
    tp_msg_drop(old);
}
