/*
 * call.c - a request and its one answer. See call.h.
 *
 * Tests: spec/unit/call_test.c, spec/unit/call_stress.c
 */
#include "actor/call.h"

/* -- the caller ---------------------------------------------------------- */

static void
lock(struct tp_actor *a)
{
    tp_mutex_lock(&a->slot->lock, TP_RANK_SLOT);
}

static void
unlock(struct tp_actor *a)
{
    tp_mutex_unlock(&a->slot->lock, TP_RANK_SLOT);
}

/* What has come; with again set the call goes on and the next park is the one
 * that the answer ends. */
static bool
take_answer(struct tp_actor *self, bool again, struct tp_msg **out_reply,
            struct tp_reason **out_reason)
{
    lock(self);
    bool answered = self->call_id == 0;
    *out_reply = self->call_reply;
    *out_reason = self->call_reason;
    self->call_reply = NULL;
    self->call_reason = NULL;
    if (!answered && again) {
        self->call_epoch = tp_wait_epoch(self->slot);
    } else {
        self->call_id = 0;
    }
    unlock(self);
    return answered;
}

static void
begin(struct tp_actor *self)
{
    lock(self);
    self->call_id = ++self->call_seq;
    self->call_epoch = tp_wait_epoch(self->slot);
    unlock(self);
}

static int
wait_answer(struct tp_actor *self, uint64_t deadline_ns,
            struct tp_msg **out_reply, struct tp_reason **out_reason)
{
    int rc = 0;
    while (!take_answer(self, rc == 0, out_reply, out_reason)) {
        if (rc != 0) {
            return rc;
        }
        rc = tp_actor_park(self, deadline_ns);
        if (rc == 0 && deadline_ns != TP_NEVER && tp_now_ns() >= deadline_ns) {
            rc = TROUPE_ETIMEOUT; /* unless the answer is there */
        }
    }
    if (*out_reply != NULL) {
        return 0;
    }
    return *out_reason != NULL ? TROUPE_ENOPROC : TROUPE_ENO_REPLY;
}

int
tp_call(struct tp_actor *self, troupe_pid to, struct tp_msg *m,
        uint64_t deadline_ns, struct tp_msg **out_reply,
        struct tp_reason **out_reason)
{
    *out_reply = NULL;
    *out_reason = NULL;
    int rc = to == self->pid   ? TROUPE_ECALLING_SELF
             : self->finishing ? TROUPE_EINVAL
                               : 0;
    if (rc == 0) {
        begin(self);
        m->kind = TP_MSG_CALL;
        m->flags |= TP_MSG_HAS_HANDLES;
        m->ref = self->call_seq;
        m->from = self->pid;
        self->call_request = m; /* the wait for room may be the end */
        rc = tp_mailbox_send_dl(self, to, m, deadline_ns);
        self->call_request = NULL;
    }
    if (rc != 0) {
        m->ref = 0; /* nobody is asked: nothing to answer */
        tp_msg_unsend(m);
        take_answer(self, false, out_reply, out_reason);
        return rc;
    }
    return wait_answer(self, deadline_ns, out_reply, out_reason);
}

bool
tp_call_answer(troupe_pid caller, uint64_t id, struct tp_msg *reply,
               struct tp_reason *reason)
{
    struct tp_slot *s = tp_slot_at(caller);
    uint32_t epoch = 0;
    bool waits = false;
    if (s != NULL) {
        tp_mutex_lock(&s->lock, TP_RANK_SLOT);
        struct tp_actor *a = s->actor;
        waits = a != NULL && a->pid == caller && id != 0 && a->call_id == id;
        if (waits) {
            a->call_id = 0;
            a->call_reply = reply;
            a->call_reason = reason == NULL ? NULL : tp_reason_ref(reason);
            epoch = a->call_epoch;
        }
        tp_mutex_unlock(&s->lock, TP_RANK_SLOT);
    }
    if (waits) {
        tp_unpark_at(caller, epoch);
    } else if (reply != NULL) {
        tp_msg_unsend(reply);
    }
    return waits;
}

void
tp_call_fini(struct tp_actor *self)
{
    struct tp_msg *reply;
    struct tp_reason *reason;
    if (self->call_request != NULL) {
        self->call_request->ref = 0;
        tp_msg_drop(self->call_request);
    }
    take_answer(self, false, &reply, &reason);
    if (reply != NULL) {
        tp_msg_drop(reply);
    }
    if (reason != NULL) {
        tp_reason_unref(reason);
    }
}

/* -- the one who was asked ----------------------------------------------- */

/* In refs: it is on the callee's list. */
#define LISTED (1u << 31)

/* Gives back n of refs; returns what is left, and if that is nothing, o is no
 * more. */
static uint32_t
release(struct tp_owed *o, uint32_t n)
{
    /* OWE-1 acq_rel: the last one frees after all others are done, and sees
     * whether it was answered. Both sides are this decrement. */
    uint32_t left =
        atomic_fetch_sub_explicit(&o->refs, n, memory_order_acq_rel) - n;
    if (left == 0) {
        tp_free(o);
    }
    return left;
}

static struct tp_owed *
owe(struct tp_actor *self, const struct tp_msg *m, uint32_t refs)
{
    struct tp_owed *o = tp_malloc(sizeof *o);
    if (o == NULL) {
        return NULL;
    }
    atomic_init(&o->refs, refs | LISTED);
    atomic_init(&o->answered, false);
    o->callee = self->pid;
    o->caller = m->from;
    o->id = m->ref;
    lock(self);
    tp_list_push_back(&self->owed, &o->on_callee);
    unlock(self);
    return o;
}

struct tp_owed *
tp_owed_new(struct tp_actor *self, const struct tp_msg *m)
{
    return owe(self, m, 1);
}

void
tp_owed_queued(struct tp_actor *self, const struct tp_msg *m)
{
    if (owe(self, m, 0) == NULL) {
        tp_call_answer(m->from, m->ref, NULL, NULL);
    }
}

void
tp_call_release(struct tp_msg *m)
{
    tp_call_answer(m->from, m->ref, NULL, NULL);
}

void
tp_owed_ref(struct tp_owed *o)
{
    /* relaxed: who takes a reference has one already. */
    atomic_fetch_add_explicit(&o->refs, 1, memory_order_relaxed);
}

bool
tp_owed_reply(struct tp_owed *o, struct tp_msg *reply)
{
    /* relaxed: seen by whoever releases it last, see release. */
    atomic_store_explicit(&o->answered, true, memory_order_relaxed);
    return tp_call_answer(o->caller, o->id, reply, NULL);
}

/* Takes o off the callee's list; false: that one's end has taken it, and then o
 * may be no more. */
static bool
unlist(struct tp_owed *o, troupe_pid callee)
{
    struct tp_slot *s = tp_slot_at(callee);
    bool listed = false;
    if (s != NULL) {
        tp_mutex_lock(&s->lock, TP_RANK_SLOT);
        struct tp_actor *a = s->actor;
        listed = a != NULL && a->pid == callee && !a->told;
        if (listed) {
            tp_list_remove(&o->on_callee);
        }
        tp_mutex_unlock(&s->lock, TP_RANK_SLOT);
    }
    return listed;
}

void
tp_owed_unref(struct tp_owed *o)
{
    troupe_pid callee = o->callee;
    if (release(o, 1) != LISTED) {
        return;
    }
    struct tp_actor *self = tp_actor_self();
    if (self != NULL && self->pid == callee && self->finishing) {
        return; /* the caller shall learn the reason, not that we forgot */
    }
    if (unlist(o, callee)) {
        /* relaxed: release has seen it. */
        if (!atomic_load_explicit(&o->answered, memory_order_relaxed)) {
            tp_call_answer(o->caller, o->id, NULL, NULL);
        }
        tp_free(o);
    }
}

void
tp_owed_fail(struct tp_list *owed, struct tp_reason *reason)
{
    while (!tp_list_is_empty(owed)) {
        struct tp_owed *o =
            tp_container_of(owed->next, struct tp_owed, on_callee);
        tp_list_remove(&o->on_callee);
        tp_call_answer(o->caller, o->id, NULL, reason);
        release(o, LISTED);
    }
}
