/*
 * value_mutex.c - a value that one actor has at a time. See value_mutex.h.
 *
 * Tests: spec/unit/value_mutex_test.c, spec/unit/channel_stress.c
 */
#include "actor/value_mutex.h"

/* The first in line has it now, or nobody. */
static void
hand_over_locked(struct tp_value_mutex *m)
{
    struct tp_waiter *w = tp_waitq_first_locked(&m->waitq);
    if (w == NULL) {
        m->holder = 0;
    } else {
        m->holder = w->pid;
        tp_waitq_end_locked(w);
    }
}

/* The holder ends. */
static void
hold_release(struct tp_resource *r)
{
    struct tp_value_mutex *m = tp_container_of(r, struct tp_value_mutex, hold);
    m->abandoned = true;
    tp_waitq_lock(&m->waitq);
    hand_over_locked(m);
    tp_waitq_unlock(&m->waitq);
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
    tp_waitq_init(&m->waitq);
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
    tp_waitq_lock(&m->waitq);
    bool mine = m->holder == 0;
    if (mine) {
        m->holder = self->pid;
    }
    tp_waitq_unlock(&m->waitq);
    if (!mine) {
        return TROUPE_EBUSY;
    }
    *out_abandoned = begin_hold(self, m);
    return 0;
}

/* The waiting actor ends. It may have been given the mutex, but has not seen
 * the value: so the next one need not know. */
static void
waiter_release(struct tp_resource *r)
{
    struct tp_waiter *w = tp_container_of(r, struct tp_waiter, resource);
    struct tp_value_mutex *m =
        tp_container_of(w->q, struct tp_value_mutex, waitq);
    if (tp_waiter_leave(w)) {
        tp_waitq_lock(&m->waitq);
        hand_over_locked(m);
        tp_waitq_unlock(&m->waitq);
    }
    tp_value_mutex_unref(m);
    tp_free(w);
}

/* Holder, or in line: 0 or TROUPE_EBUSY. TROUPE_EINVAL: holds it already. */
static int
enter(struct tp_value_mutex *m, struct tp_waiter *w)
{
    tp_waitq_lock(&m->waitq);
    int rc = m->holder == 0        ? 0
             : m->holder == w->pid ? TROUPE_EINVAL
                                   : TROUPE_EBUSY;
    if (rc == 0) {
        m->holder = w->pid;
    } else if (rc == TROUPE_EBUSY) {
        tp_waitq_push_locked(w);
    }
    tp_waitq_unlock(&m->waitq);
    return rc;
}

static int
lock_slow(struct tp_actor *self, struct tp_value_mutex *m, uint64_t deadline_ns)
{
    struct tp_waiter *w = tp_malloc(sizeof *w);
    if (w == NULL) {
        return TROUPE_ENOMEM;
    }
    tp_waiter_init(w, &m->waitq, self, waiter_release);
    int rc = enter(m, w);
    if (rc == TROUPE_EBUSY) {
        tp_value_mutex_ref(m);
        rc = tp_waiter_wait(self, w, deadline_ns);
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
    tp_waitq_lock(&m->waitq);
    bool held = m->holder == self->pid;
    if (held) {
        tp_resource_remove(&m->hold);
        hand_over_locked(m);
    }
    tp_waitq_unlock(&m->waitq);
    if (!held) {
        return TROUPE_EINVAL;
    }
    tp_value_mutex_unref(m);
    return 0;
}

bool
tp_value_mutex_is_held_by(struct tp_value_mutex *m, troupe_pid pid)
{
    tp_waitq_lock(&m->waitq);
    bool held = m->holder == pid;
    tp_waitq_unlock(&m->waitq);
    return held;
}

void
tp_value_mutex_set(struct tp_value_mutex *m, struct tp_msg *value)
{
    struct tp_msg *old = m->value;
    m->value = value;
    tp_msg_drop(old);
}
