/*
 * delay.c - messages that are sent later. See delay.h.
 *
 * Tests: spec/unit/delay_test.c
 */
#include "actor/delay.h"

#include "actor/registry.h"

#include <string.h>

/* Shared by an interval timer and its message under way. */
struct tick {
    _Atomic uint32_t refs;
    _Atomic bool pending;
};

struct delayed {
    struct tp_event event;
    troupe_pid to;
    struct tp_msg *m;
    struct tick *tick; /* NULL: once */
    size_t name_len;   /* not 0: to is who has the name when it fires */
    char name[];
};

static void
tick_unref(struct tick *t)
{
    /* DLY-1 acq_rel: the last one frees after the other is done. Both sides
     * are this decrement. */
    if (atomic_fetch_sub_explicit(&t->refs, 1, memory_order_acq_rel) == 1) {
        tp_free(t);
    }
}

void
tp_tick_release(struct tp_msg *m)
{
    struct tick *t = (struct tick *)(uintptr_t)m->ref;
    /* relaxed: the next fire may see it a little later. */
    atomic_store_explicit(&t->pending, false, memory_order_relaxed);
    m->ref = 0;
    tick_unref(t);
}

static void
delayed_free(struct delayed *d)
{
    if (d->m != NULL) {
        tp_msg_drop(d->m);
    }
    if (d->tick != NULL) {
        tick_unref(d->tick);
    }
    tp_free(d);
}

static void
drop(struct tp_event *e)
{
    delayed_free(tp_container_of(e, struct delayed, event));
}

/* A name may be registered until then, by whom another timer wakes. */
static bool
matters(struct tp_event *e)
{
    struct delayed *d = tp_container_of(e, struct delayed, event);
    return d->name_len != 0 || tp_mailbox_is_open(d->to);
}

static bool
fire_once(struct tp_event *e)
{
    struct delayed *d = tp_container_of(e, struct delayed, event);
    troupe_pid to = d->name_len == 0 ? d->to : tp_whereis(d->name, d->name_len);
    if (tp_mailbox_force(to, d->m) == 0) {
        d->m = NULL;
    }
    delayed_free(d);
    return false;
}

/* The message of one tick; NULL without memory: then this one is left out. */
static struct tp_msg *
tick_message(struct delayed *d)
{
    struct tp_msg *m = tp_msg_copy(d->m);
    if (m == NULL) {
        return NULL;
    }
    m->kind = TP_MSG_TICK;
    m->flags |= TP_MSG_HAS_HANDLES;
    m->ref = (uintptr_t)d->tick;
    /* relaxed: the event holds a reference. */
    atomic_fetch_add_explicit(&d->tick->refs, 1, memory_order_relaxed);
    /* relaxed: the push publishes it. */
    atomic_store_explicit(&d->tick->pending, true, memory_order_relaxed);
    return m;
}

static bool
fire_tick(struct tp_event *e)
{
    struct delayed *d = tp_container_of(e, struct delayed, event);
    /* relaxed: a tick too few at worst. */
    if (atomic_load_explicit(&d->tick->pending, memory_order_relaxed)) {
        return matters(e);
    }
    struct tp_msg *m = tick_message(d);
    if (m == NULL) {
        return true;
    }
    int rc = tp_mailbox_push(d->to, m);
    if (rc != 0) {
        tp_msg_drop(m);
    }
    return rc != TROUPE_ENOPROC;
}

static struct delayed *
delayed_new(troupe_pid to, struct tp_msg *m, uint64_t interval_ns,
            size_t name_len)
{
    struct delayed *d = tp_calloc(1, sizeof *d + name_len);
    if (d == NULL) {
        return NULL;
    }
    if (interval_ns != 0) {
        d->tick = tp_calloc(1, sizeof *d->tick);
        if (d->tick == NULL) {
            tp_free(d);
            return NULL;
        }
        atomic_init(&d->tick->refs, 1);
    }
    d->to = to;
    d->m = m;
    d->name_len = name_len;
    d->event.interval_ns = interval_ns;
    d->event.fire = interval_ns == 0 ? fire_once : fire_tick;
    d->event.drop = drop;
    d->event.matters = matters;
    return d;
}

static int
start(struct delayed *d, uint64_t deadline_ns, uint64_t *out_id)
{
    int rc = tp_event_start(&d->event, deadline_ns, out_id);
    if (rc != 0) {
        d->m = NULL;
        delayed_free(d);
    }
    return rc;
}

int
tp_send_after(troupe_pid to, struct tp_msg *m, uint64_t deadline_ns,
              uint64_t interval_ns, uint64_t *out_id)
{
    struct delayed *d = delayed_new(to, m, interval_ns, 0);
    return d == NULL ? TROUPE_ENOMEM : start(d, deadline_ns, out_id);
}

int
tp_send_after_name(const char *name, size_t len, struct tp_msg *m,
                   uint64_t deadline_ns, uint64_t *out_id)
{
    if (len == 0 || len > TP_NAME_MAX) {
        return TROUPE_EINVAL;
    }
    struct delayed *d = delayed_new(0, m, 0, len);
    if (d == NULL) {
        return TROUPE_ENOMEM;
    }
    memcpy(d->name, name, len);
    return start(d, deadline_ns, out_id);
}

bool
tp_send_cancel(uint64_t id)
{
    struct tp_event *e;
    bool won = tp_event_cancel(id, &e);
    if (e != NULL) {
        drop(e);
    }
    return won;
}
