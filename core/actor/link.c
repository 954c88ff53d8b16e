/*
 * link.c - links and monitors. See link.h.
 *
 * Tests: spec/unit/link_test.c
 */
#include "actor/link.h"

#include <string.h>

struct tp_monitor {
    /* set at birth */
    uint64_t ref;
    troupe_pid watcher;
    troupe_pid target;
    /* the notice to come: an end needs no memory. The target takes it when it
     * tells, or the watcher when there is no target */
    struct tp_msg *down;
    /* under the target's slot lock; empty: the target has let go of it */
    struct tp_list on_target;
    /* watcher only */
    struct tp_monitor *next;
    struct tp_msg *aside; /* the down, that a receive has met; NULL: none */
    bool reserved;        /* for await_down alone */
    /* any thread, atomic */
    _Atomic uint32_t refs;
};

uint64_t
tp_ref_new(void)
{
    static _Atomic uint64_t last;
    /* relaxed: only uniqueness counts. */
    return atomic_fetch_add_explicit(&last, 1, memory_order_relaxed) + 1;
}

static void
monitor_unref(struct tp_monitor *m)
{
    /* LNK-1 acq_rel: the last one frees after the other has let go. Both sides
     * are this decrement. */
    if (atomic_fetch_sub_explicit(&m->refs, 1, memory_order_acq_rel) == 1) {
        if (m->down != NULL) {
            tp_msg_free(m->down);
        }
        tp_free(m);
    }
}

/* -- the watcher's table ------------------------------------------------- */

static struct tp_monitor **
bucket(struct tp_actor *self, uint64_t ref)
{
    return &self->monitors[ref & (self->monitor_buckets - 1)];
}

static int
table_grow(struct tp_actor *self)
{
    uint32_t want = self->monitor_buckets == 0 ? 4 : self->monitor_buckets * 2;
    struct tp_monitor **old = self->monitors;
    uint32_t old_count = self->monitor_buckets;
    struct tp_monitor **t = tp_calloc(want, sizeof *t);
    if (t == NULL) {
        return TROUPE_ENOMEM;
    }
    self->monitors = t;
    self->monitor_buckets = want;
    for (uint32_t i = 0; i < old_count; i++) {
        for (struct tp_monitor *m = old[i], *next; m != NULL; m = next) {
            next = m->next;
            struct tp_monitor **b = bucket(self, m->ref);
            m->next = *b;
            *b = m;
        }
    }
    tp_free(old);
    return 0;
}

static struct tp_monitor *
table_remove(struct tp_actor *self, uint64_t ref)
{
    if (self->monitor_count == 0) {
        return NULL;
    }
    for (struct tp_monitor **p = bucket(self, ref); *p != NULL;
         p = &(*p)->next) {
        struct tp_monitor *m = *p;
        if (m->ref == ref) {
            *p = m->next;
            self->monitor_count--;
            return m;
        }
    }
    return NULL;
}

static struct tp_monitor *
table_find(struct tp_actor *self, uint64_t ref)
{
    if (self->monitor_count == 0) {
        return NULL;
    }
    struct tp_monitor *m = *bucket(self, ref);
    while (m != NULL && m->ref != ref) {
        m = m->next;
    }
    return m;
}

/* -- telling ------------------------------------------------------------- */

/* Fills in m, of sizeof reason bytes, and delivers it. */
static void
push_notice(struct tp_msg *m, troupe_pid to, enum tp_msg_kind kind,
            troupe_pid from, uint64_t ref, struct tp_reason *reason)
{
    m->kind = (uint16_t)kind;
    m->flags = TP_MSG_HAS_HANDLES;
    m->from = from;
    m->ref = ref;
    tp_reason_ref(reason);
    memcpy(m->data, &reason, sizeof reason);
    if (tp_mailbox_push(to, m) != 0) {
        tp_msg_drop(m);
    }
}

static void
push_down(struct tp_monitor *monitor, struct tp_reason *reason)
{
    struct tp_msg *m = monitor->down;
    monitor->down = NULL;
    push_notice(m, monitor->watcher, TP_MSG_DOWN, monitor->target, monitor->ref,
                reason);
}

struct tp_reason *
tp_notice_reason(struct tp_msg *m)
{
    struct tp_reason *reason;
    memcpy(&reason, m->data, sizeof reason);
    return reason;
}

void
tp_notice_release(struct tp_msg *m)
{
    tp_reason_unref(tp_notice_reason(m));
}

void
tp_monitors_tell(struct tp_mutex *lock, struct tp_list *told,
                 struct tp_reason *reason)
{
    for (;;) {
        /* A demonitor may unlink nodes of told meanwhile, under the lock. */
        tp_mutex_lock(lock, TP_RANK_SLOT);
        struct tp_list *n = told->next;
        tp_list_remove(n);
        tp_mutex_unlock(lock, TP_RANK_SLOT);
        if (n == told) {
            return;
        }
        struct tp_monitor *m = tp_container_of(n, struct tp_monitor, on_target);
        push_down(m, reason);
        monitor_unref(m);
    }
}

/* -- the watcher's calls ------------------------------------------------- */

/* Puts m on its target's list; false if the target is gone. */
static bool
attach(struct tp_monitor *m)
{
    struct tp_slot *s = tp_slot_at(m->target);
    bool alive = false;
    if (s == NULL) {
        return false;
    }
    tp_mutex_lock(&s->lock, TP_RANK_SLOT);
    if (s->actor != NULL && s->actor->pid == m->target && !s->actor->told) {
        tp_list_push_back(&s->actor->watchers, &m->on_target);
        alive = true;
    }
    tp_mutex_unlock(&s->lock, TP_RANK_SLOT);
    return alive;
}

/* Takes m off its target's list; false if the target has let go of it. */
static bool
detach(struct tp_monitor *m)
{
    struct tp_slot *s = tp_slot_at(m->target);
    bool was_on = false;
    if (s == NULL) {
        return false;
    }
    tp_mutex_lock(&s->lock, TP_RANK_SLOT);
    if (!tp_list_is_empty(&m->on_target)) {
        tp_list_remove(&m->on_target);
        was_on = true;
    }
    tp_mutex_unlock(&s->lock, TP_RANK_SLOT);
    return was_on;
}

int
tp_monitor(struct tp_actor *self, troupe_pid target, uint64_t *out_ref)
{
    if (self->finishing) {
        return TROUPE_EINVAL; /* its table is gone */
    }
    if (self->monitor_count == self->monitor_buckets && table_grow(self) != 0) {
        return TROUPE_ENOMEM;
    }
    struct tp_monitor *m = tp_calloc(1, sizeof *m);
    if (m == NULL) {
        return TROUPE_ENOMEM;
    }
    m->down = tp_msg_new(sizeof(struct tp_reason *));
    if (m->down == NULL) {
        tp_free(m);
        return TROUPE_ENOMEM;
    }
    m->ref = tp_ref_new();
    m->watcher = self->pid;
    m->target = target;
    tp_list_init(&m->on_target);
    atomic_init(&m->refs, 2);
    struct tp_monitor **b = bucket(self, m->ref);
    m->next = *b;
    *b = m;
    self->monitor_count++;
    *out_ref = m->ref;
    if (!attach(m)) {
        push_down(m, tp_reason_const(TP_REASON_NOPROC));
        monitor_unref(m);
    }
    return 0;
}

bool
tp_demonitor(struct tp_actor *self, uint64_t ref)
{
    struct tp_monitor *m = table_remove(self, ref);
    if (m == NULL) {
        return false;
    }
    bool was_on = detach(m);
    if (was_on) {
        monitor_unref(m);
    }
    if (m->aside != NULL) {
        tp_msg_drop(m->aside);
    }
    monitor_unref(m);
    return was_on;
}

bool
tp_monitor_take_down(struct tp_actor *self, struct tp_msg *msg)
{
    struct tp_monitor *m = table_find(self, msg->ref);
    if (m == NULL) {
        tp_msg_drop(msg);
        return false;
    }
    if (m->reserved) {
        m->aside = msg;
        return false;
    }
    monitor_unref(table_remove(self, msg->ref));
    return true;
}

bool
tp_monitor_wants(struct tp_actor *self, uint64_t ref)
{
    struct tp_monitor *m = table_find(self, ref);
    return m != NULL && !m->reserved;
}

bool
tp_monitor_reserve(struct tp_actor *self, uint64_t ref, bool on)
{
    struct tp_monitor *m = table_find(self, ref);
    if (m == NULL) {
        return false;
    }
    m->reserved = on;
    if (!on && m->aside != NULL) {
        tp_mailbox_put_back(self, m->aside);
        m->aside = NULL;
    }
    return true;
}

void
tp_monitors_fini(struct tp_actor *self)
{
    for (uint32_t i = 0; i < self->monitor_buckets; i++) {
        while (self->monitors[i] != NULL) {
            tp_demonitor(self, self->monitors[i]->ref);
        }
    }
    tp_free(self->monitors);
    self->monitors = NULL;
    self->monitor_buckets = 0;
}

/* -- links --------------------------------------------------------------- */

/* An exit signal for a, whose slot's lock is held. */
static void
signal_locked(struct tp_actor *a, troupe_pid from, struct tp_reason *reason)
{
    struct tp_msg *m = a->trap_exit ? tp_msg_new(sizeof reason) : NULL;
    if (m != NULL) {
        push_notice(m, a->pid, TP_MSG_EXIT, from, 0, reason);
    } else if (a->trap_exit) {
        /* It cannot be told, and must not wait for ever. */
        tp_actor_end_locked(a, tp_reason_const(TP_REASON_MEMORY));
    } else if (reason->kind != TP_REASON_NORMAL) {
        tp_actor_end_locked(a, tp_reason_ref(reason));
    }
}

static bool
is_linkable(const struct tp_slot *s, troupe_pid pid)
{
    return s->actor != NULL && s->actor->pid == pid && !s->actor->told;
}

/* Both ends at once. 0, TROUPE_ENOPROC, TROUPE_ENOMEM, TROUPE_EINVAL. */
static int
link_pair(struct tp_actor *a, struct tp_slot *other, troupe_pid pid)
{
    int rc = 0;
    tp_mutex_lock_pair(&a->slot->lock, &other->lock, TP_RANK_SLOT);
    if (a->told) {
        rc = TROUPE_EINVAL; /* nobody would tell this link any more */
    } else if (!is_linkable(other, pid)) {
        rc = TROUPE_ENOPROC;
    } else if (!tp_pidset_reserve(&a->links) ||
               !tp_pidset_reserve(&other->actor->links)) {
        rc = TROUPE_ENOMEM;
    } else {
        tp_pidset_add(&a->links, pid);
        tp_pidset_add(&other->actor->links, a->pid);
    }
    tp_mutex_unlock_pair(&a->slot->lock, &other->lock, TP_RANK_SLOT);
    return rc;
}

int
tp_link(struct tp_actor *self, troupe_pid pid)
{
    struct tp_slot *s = tp_slot_at(pid);
    if (pid == self->pid) {
        return 0;
    }
    int rc = s == NULL ? TROUPE_ENOPROC : link_pair(self, s, pid);
    if (rc == TROUPE_ENOPROC) {
        tp_exit_signal(pid, self->pid, tp_reason_const(TP_REASON_NOPROC));
        rc = 0;
    }
    return rc;
}

void
tp_unlink(struct tp_actor *self, troupe_pid pid)
{
    struct tp_slot *s = tp_slot_at(pid);
    if (s == NULL || pid == self->pid) {
        return;
    }
    tp_mutex_lock_pair(&self->slot->lock, &s->lock, TP_RANK_SLOT);
    tp_pidset_remove(&self->links, pid);
    if (is_linkable(s, pid)) {
        tp_pidset_remove(&s->actor->links, self->pid);
    }
    tp_mutex_unlock_pair(&self->slot->lock, &s->lock, TP_RANK_SLOT);
}

void
tp_trap_exit(struct tp_actor *self, bool on)
{
    tp_mutex_lock(&self->slot->lock, TP_RANK_SLOT);
    self->trap_exit = on;
    tp_mutex_unlock(&self->slot->lock, TP_RANK_SLOT);
}

bool
tp_exit_signal(troupe_pid from, troupe_pid to, struct tp_reason *reason)
{
    struct tp_slot *s = tp_slot_at(to);
    if (s == NULL) {
        return false;
    }
    tp_mutex_lock(&s->lock, TP_RANK_SLOT);
    bool alive = is_linkable(s, to);
    if (alive) {
        signal_locked(s->actor, from, reason);
    }
    tp_mutex_unlock(&s->lock, TP_RANK_SLOT);
    return alive;
}

/* The link is looked up and used under one lock: an unlink that has returned
 * is one whose signal was sent before, or never will be. */
static void
tell_link(troupe_pid dead, troupe_pid to, struct tp_reason *reason)
{
    struct tp_slot *s = tp_slot_at(to);
    tp_mutex_lock(&s->lock, TP_RANK_SLOT);
    if (is_linkable(s, to) && tp_pidset_remove(&s->actor->links, dead)) {
        signal_locked(s->actor, dead, reason);
    }
    tp_mutex_unlock(&s->lock, TP_RANK_SLOT);
}

void
tp_links_tell(troupe_pid dead, struct tp_pidset *links,
              struct tp_reason *reason)
{
    for (uint32_t i = 0; i < links->capacity; i++) {
        if (links->keys[i] != 0) {
            tell_link(dead, links->keys[i], reason);
        }
    }
    tp_pidset_fini(links);
}

int
tp_spawn_ties(const struct tp_spawn_opts *opts, struct tp_actor *child)
{
    struct tp_actor *self = tp_actor_self();
    if ((opts->link || opts->monitor) && self == NULL) {
        return TROUPE_ENOTACTOR;
    }
    if (opts->link) {
        int rc = link_pair(self, child->slot, child->pid);
        if (rc != 0) {
            return rc;
        }
    }
    if (opts->monitor) {
        int rc = tp_monitor(self, child->pid, opts->out_ref);
        if (rc != 0 && opts->link) {
            tp_unlink(self, child->pid);
            tp_pidset_fini(&child->links);
        }
        return rc;
    }
    return 0;
}

/* -- join ---------------------------------------------------------------- */

/* Looks for the down of ref from *link on; moves *link to the end. */
static struct tp_msg *
find_down(struct tp_actor *self, struct tp_msg ***link, uint64_t ref)
{
    struct tp_msg **l = *link;
    for (; *l != NULL; l = &(*l)->next) {
        if ((*l)->kind == TP_MSG_DOWN && (*l)->ref == ref) {
            return tp_mailbox_take(self, l);
        }
    }
    *link = l;
    return NULL;
}

/* Waits for the down of ref, which is at *link or behind it. */
static int
wait_down(struct tp_actor *self, uint64_t ref, struct tp_msg **link,
          uint64_t deadline_ns, struct tp_msg **out_down)
{
    for (;;) {
        *out_down = find_down(self, &link, ref);
        if (*out_down != NULL) {
            monitor_unref(table_remove(self, ref));
            return 0;
        }
        int rc = tp_mailbox_wait(self, deadline_ns);
        if (rc != 0) {
            return rc;
        }
    }
}

int
tp_await_down(struct tp_actor *self, uint64_t ref, uint64_t deadline_ns,
              struct tp_msg **out_down)
{
    struct tp_monitor *m = table_find(self, ref);
    if (m == NULL) {
        return TROUPE_ENOTFOUND;
    }
    if (m->aside != NULL) {
        *out_down = m->aside;
        monitor_unref(table_remove(self, ref));
        return 0;
    }
    return wait_down(self, ref, &self->slot->mail_head, deadline_ns, out_down);
}

/*
 * A down says noproc of an actor that had ended before it was monitored. If its
 * slot has not been used again, how it ended is known, but for a value.
 */
static void
recall(struct tp_msg *down)
{
    struct tp_slot *s = tp_slot_at(down->from);
    if (s == NULL || tp_notice_reason(down)->kind != TP_REASON_NOPROC) {
        return;
    }
    /* EPI-1 acquire: partner in tell (actor.c). */
    uint32_t e = atomic_load_explicit(&s->epitaph, memory_order_acquire);
    enum tp_reason_kind kind = (enum tp_reason_kind)(e & 15);
    if (e != 0 && e >> 4 == tp_pid_gen(down->from) && kind != TP_REASON_VALUE) {
        struct tp_reason *reason = tp_reason_const(kind);
        memcpy(down->data, &reason, sizeof reason); /* both are constants */
    }
}

int
tp_join(struct tp_actor *self, troupe_pid pid, uint64_t deadline_ns,
        struct tp_msg **out_down)
{
    uint64_t ref;
    tp_mailbox_fetch(self);
    /* What is there cannot be about a reference that is still to be made. */
    struct tp_msg **link = self->slot->mail_tail;
    int rc = tp_monitor(self, pid, &ref);
    if (rc == 0) {
        rc = wait_down(self, ref, link, deadline_ns, out_down);
        if (rc == 0) {
            recall(*out_down);
        } else {
            tp_demonitor(self, ref);
        }
    }
    return rc;
}
