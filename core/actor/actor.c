/*
 * actor.c - birth, life and end of an actor. See actor.h.
 *
 * Tests: spec/unit/actor_test.c, spec/unit/actor_stress.c
 */
#include "actor/actor.h"

#include "actor/call.h"
#include "actor/group.h"
#include "actor/link.h"
#include "actor/mailbox.h"
#include "actor/registry.h"
#include "sched/blocking.h"

#include <stdlib.h>
#include <string.h>

_Atomic uint32_t tp_actor_live;
void (*tp_actor_on_root_end)(struct tp_reason *reason);
_Atomic uint64_t tp_actor_root;
_Atomic bool tp_actor_no_spawn;
bool (*tp_actor_quiescent)(void);
void (*tp_actor_on_slow_finish)(troupe_pid pid);
_Atomic uint64_t tp_finish_patience_ns = 5000000000ull;
_Atomic uint64_t tp_actor_given_up;

/* -- end ----------------------------------------------------------------- */

static struct tp_reason *
final_reason_locked(struct tp_actor *a)
{
    if (a->reason == NULL) {
        a->reason = tp_reason_const(TP_REASON_NORMAL);
    }
    return a->reason;
}

/*
 * Step 3, once: by finish, or by the patience timer when 2 takes too long.
 * All lists are taken over under the lock, so that a may be reaped meanwhile.
 */
static bool
tell(struct tp_slot *s, troupe_pid pid)
{
    struct tp_list watchers, owed;
    struct tp_pidset links;
    tp_mutex_lock(&s->lock, TP_RANK_SLOT);
    struct tp_actor *a = s->actor;
    bool mine = a != NULL && a->pid == pid && !a->told;
    struct tp_reason *reason = NULL;
    if (mine) {
        a->told = true;
        tp_list_move_all(&a->watchers, &watchers);
        tp_list_move_all(&a->owed, &owed);
        links = a->links;
        memset(&a->links, 0, sizeof a->links);
        reason = tp_reason_ref(final_reason_locked(a));
        /* EPI-1 release: before a monitor can come too late. Partner: recall
         * in link.c. */
        atomic_store_explicit(&s->epitaph,
                              tp_pid_gen(pid) << 4 | (uint32_t)reason->kind,
                              memory_order_release);
    }
    tp_mutex_unlock(&s->lock, TP_RANK_SLOT);
    if (mine) {
        tp_owed_fail(&owed, reason);
        tp_links_tell(pid, &links, reason);
        tp_monitors_tell(&s->lock, &watchers, reason);
        tp_reason_unref(reason);
    }
    return mine;
}

struct patience {
    struct tp_event event;
    troupe_pid pid;
};

static void
patience_drop(struct tp_event *e)
{
    tp_free(tp_container_of(e, struct patience, event));
}

static bool
patience_fire(struct tp_event *e)
{
    struct patience *p = tp_container_of(e, struct patience, event);
    struct tp_slot *s = tp_slot_at(p->pid);
    if (tell(s, p->pid) && tp_actor_on_slow_finish != NULL) {
        tp_actor_on_slow_finish(p->pid);
    }
    patience_drop(e);
    return false;
}

static bool
patience_matters(struct tp_event *e)
{
    return tp_pid_is_alive(tp_container_of(e, struct patience, event)->pid);
}

/* Step 2. Without memory for the timer nobody watches; that is all. */
static void
finish_class(struct tp_actor *a)
{
    uint64_t id = 0;
    struct tp_event *e;
    struct patience *p = tp_calloc(1, sizeof *p);
    if (p != NULL) {
        p->pid = a->pid;
        p->event.fire = patience_fire;
        p->event.drop = patience_drop;
        p->event.matters = patience_matters;
        /* relaxed: set before a run. */
        uint64_t patience =
            atomic_load_explicit(&tp_finish_patience_ns, memory_order_relaxed);
        if (tp_event_start(&p->event, tp_now_ns() + patience, &id) != 0) {
            tp_free(p);
        }
    }
    a->class->finish(a, a->arg);
    if (id != 0 && tp_event_cancel(id, &e)) {
        patience_drop(e);
    }
}

/* The youngest first, as destructors do. */
static void
release_resources(struct tp_actor *a)
{
    while (!tp_list_is_empty(&a->resources)) {
        struct tp_resource *r =
            tp_container_of(a->resources.prev, struct tp_resource, node);
        tp_resource_remove(r);
        r->release(r);
    }
}

static void
forget_deadline(struct tp_actor *a)
{
    if (a->wait_timer != NULL) {
        tp_wait_timer_free(a->wait_timer);
        a->wait_timer = NULL;
    }
}

/* On the actor's own stack. The order is that of DESIGN 2.7. */
static _Noreturn void
finish(struct tp_actor *a)
{
    /* What this slice has used so far is not of finish. */
    a->finish_cycles =
        (int64_t)(tp_worker_self()->slice_start_cycles - tp_cycles());
    a->finishing = true;
    if (a->abandoned && a->class->overflowed != NULL) {
        a->class->overflowed(a, a->arg);
    }
    tp_mutex_lock(&a->slot->lock, TP_RANK_SLOT);
    final_reason_locked(a); /* from here on nobody changes it */
    a->closing = true;
    tp_mutex_unlock(&a->slot->lock, TP_RANK_SLOT);
    tp_mailbox_close(a);
    release_resources(a);
    tp_names_release(a);
    tp_groups_release(a);
    forget_deadline(a);
    tp_monitors_fini(a);
    tp_call_fini(a);
    if (a->class->finish != NULL && !a->abandoned) {
        finish_class(a);
    }
    tp_slot_done(a->slot);
    tell(a->slot, a->pid);
    tp_worker_exit(a->slot);
}

/*
 * The record is the top of the actor's own stack: one page where there would
 * be two, so a switch to an actor that has been cold misses the TLB once less.
 */
#define RECORD_BYTES                                                           \
    ((sizeof(struct tp_actor) + TP_CACHELINE - 1) & ~(size_t)(TP_CACHELINE - 1))

static struct tp_actor *
record_new(size_t reserve, size_t guard, int *out_rc)
{
    struct tp_stack stack;
    *out_rc = tp_stack_get(reserve, guard, &stack);
    if (*out_rc != 0) {
        return NULL;
    }
    struct tp_actor *a = (void *)(stack.hi - RECORD_BYTES);
    memset(a, 0, sizeof *a);
    a->stack = stack;
    a->low_water = (char *)a;
    return a;
}

/* Nobody runs on its stack. */
static void
record_free(struct tp_actor *a)
{
    struct tp_stack stack = a->stack;
    tp_fiber_fini(&a->fiber);
    tp_stack_put(&stack, a->low_water);
}

static void
doomed_entry(void *arg)
{
    finish(arg);
}

static void
actor_entry(void *arg)
{
    struct tp_actor *a = arg;
    a->class->main(a, a->arg);
    finish(a);
}

/* A worker is about to run a doomed slot. */
static bool
doom(struct tp_slot *s)
{
    struct tp_actor *a = s->actor;
    if (a->finishing || a->unkillable) {
        return false;
    }
    a->nopreempt = 0; /* whoever had begun it is no more */
    tp_fiber_init(&a->fiber, a->stack.lo, a, doomed_entry, a);
    return true;
}

/* On the worker's stack; the actor's ran over, or its finish was given up. */
static void
overflow(struct tp_slot *s)
{
    struct tp_actor *a = s->actor;
    if (a->given_up) {
        /* relaxed: a statistic. */
        atomic_fetch_add_explicit(&tp_actor_given_up, 1, memory_order_relaxed);
    }
    tp_mutex_lock(&s->lock, TP_RANK_SLOT);
    if (a->reason == NULL) {
        a->reason = tp_reason_const(TP_REASON_OVERFLOW);
    }
    tp_mutex_unlock(&s->lock, TP_RANK_SLOT);
    a->abandoned = true;
    a->nopreempt = 0;
    a->low_water = NULL; /* all of it was used */
    tp_fiber_init(&a->fiber, a->stack.lo, a, doomed_entry, a);
}

/* On the worker's stack: the actor's is at rest for good. */
static void
reap(struct tp_slot *s)
{
    struct tp_actor *a = s->actor;
    /* relaxed: set before the root could end. */
    bool root =
        atomic_load_explicit(&tp_actor_root, memory_order_relaxed) == a->pid;
    tp_mutex_lock(&s->lock, TP_RANK_SLOT);
    struct tp_reason *reason = final_reason_locked(a);
    s->actor = NULL;
    tp_mutex_unlock(&s->lock, TP_RANK_SLOT);
    if (a->class->free != NULL) {
        a->class->free(a->arg);
    }
    record_free(a);
    tp_slot_free(s);
    if (root) {
        tp_actor_on_root_end(reason);
    } else {
        tp_reason_unref(reason);
    }
    /* LIVE-1 acq_rel: who sees zero sees all ends complete. Both sides are
     * this decrement and the load in the runtime. */
    if (atomic_fetch_sub_explicit(&tp_actor_live, 1, memory_order_acq_rel) ==
        1) {
        tp_sched_stop();
    }
}

static bool
quiescent(void)
{
    return tp_actor_quiescent();
}

const struct tp_sched_ops tp_actor_sched_ops = {doom, overflow, reap,
                                                quiescent};

/* -- birth --------------------------------------------------------------- */

/* Parks between two looks at the dead part of a stack; the first park is one. */
#define PARKS_PER_SHRINK 64

static void
actor_init(struct tp_actor *a, const struct tp_spawn_opts *opts,
           const struct tp_actor_class *class, void *arg)
{
    struct tp_actor *parent = tp_actor_self();
    a->parent = parent == NULL ? 0 : parent->pid;
    a->class = class;
    a->arg = arg;
    a->unkillable = opts->unkillable;
    a->mail_limit = opts->mail_limit;
    a->mail_policy = opts->mail_policy;
    a->started_ns = tp_now_ns();
    a->parks = PARKS_PER_SHRINK;
    tp_list_init(&a->watchers);
    tp_list_init(&a->owed);
    tp_list_init(&a->names);
    tp_list_init(&a->groups);
    tp_list_init(&a->resources);
    tp_fiber_init(&a->fiber, a->stack.lo, a, actor_entry, a);
}

static struct tp_actor *
actor_new(const struct tp_spawn_opts *opts, int *out_rc)
{
    struct tp_actor *a =
        record_new(opts->stack_reserve, opts->stack_guard, out_rc);
    if (a == NULL) {
        return NULL;
    }
    a->slot = tp_slot_alloc();
    if (a->slot == NULL) {
        *out_rc = TROUPE_ELIMIT;
        record_free(a);
        return NULL;
    }
    return a;
}

/* Whoever has the slot's lock sees a, which is not born yet, or NULL. */
static void
show(struct tp_slot *s, struct tp_actor *a)
{
    tp_mutex_lock(&s->lock, TP_RANK_SLOT);
    s->actor = a;
    tp_mutex_unlock(&s->lock, TP_RANK_SLOT);
}

/* Name, links and monitors, or none of them. A name is kept from others until
 * tp_name_born. */
static int
tie(const struct tp_spawn_opts *opts, struct tp_actor *a)
{
    bool named = opts->name != NULL;
    int rc =
        named ? tp_name_claim(a, opts->name, opts->name_len, opts->out_holder)
              : 0;
    if (rc != 0) {
        return rc;
    }
    rc = tp_spawn_ties(opts, a);
    if (rc != 0 && named) {
        tp_name_born(a, false);
    }
    return rc;
}

/* From here on a can be found, and ended. */
static void
start(struct tp_actor *a, bool named)
{
    struct tp_slot *s = a->slot;
    tp_mutex_lock(&s->lock, TP_RANK_SLOT);
    tp_slot_born(s);
    tp_mutex_unlock(&s->lock, TP_RANK_SLOT);
    /* relaxed: a running actor keeps the count above zero meanwhile. */
    atomic_fetch_add_explicit(&tp_actor_live, 1, memory_order_relaxed);
    /* STOP-1 seq_cst: read after the birth. Partner: tp_actor_end_all: if its
     * walk has missed this actor, we see its store. */
    if (atomic_load_explicit(&tp_actor_no_spawn, memory_order_seq_cst)) {
        tp_actor_end(a->pid, tp_reason_const(TP_REASON_SHUTDOWN));
    }
    tp_slot_start(s);
    if (named) {
        tp_name_born(a, true);
    }
}

int
tp_spawn(const struct tp_spawn_opts *opts, const struct tp_actor_class *class,
         void *arg, troupe_pid *out_pid)
{
    static const struct tp_spawn_opts defaults;
    int rc;
    /* STOP-1 seq_cst: see tp_actor_end_all. */
    if (atomic_load_explicit(&tp_actor_no_spawn, memory_order_seq_cst)) {
        return TROUPE_EKILLED;
    }
    opts = opts == NULL ? &defaults : opts;
    struct tp_actor *a = actor_new(opts, &rc);
    if (a == NULL) {
        return rc;
    }
    actor_init(a, opts, class, arg);
    a->pid = tp_slot_pid(a->slot);
    tp_mailbox_init(a->slot, opts->mail_limit != 0);
    /* relaxed: tp_slot_born publishes it. */
    atomic_store_explicit(&a->slot->fiber, &a->fiber, memory_order_relaxed);
    show(a->slot, a);
    rc = tie(opts, a);
    if (rc == 0) {
        *out_pid = a->pid;
        start(a, opts->name != NULL);
        return 0;
    }
    struct tp_slot *s = a->slot;
    show(s, NULL);
    record_free(a);
    tp_slot_free(s);
    return rc;
}

/* -- life ---------------------------------------------------------------- */

static void
note_low_water(struct tp_actor *self)
{
    char *sp = __builtin_frame_address(0);
    if (sp < self->low_water) {
        self->low_water = sp;
    }
}

/* About to park: what lies below is dead. The rule is DESIGN 2.2's. */
static void
shrink(struct tp_actor *self)
{
    char *sp = __builtin_frame_address(0);
    self->parks++;
    if (TP_LIKELY(sp - self->low_water < (ptrdiff_t)TP_STACK_SHRINK_MIN) ||
        self->parks < PARKS_PER_SHRINK) {
        return;
    }
    sp -= tp_page_size(); /* the frames of this very call */
    if (tp_stack_shrink(&self->stack, self->low_water, sp)) {
        self->low_water = sp;
        self->shrinks++;
        self->parks = 0;
    }
}

static bool
told_to_end(struct tp_actor *self)
{
    if (TP_LIKELY(!self->unkillable)) {
        return false;
    }
    tp_mutex_lock(&self->slot->lock, TP_RANK_SLOT);
    bool doomed = self->doomed;
    tp_mutex_unlock(&self->slot->lock, TP_RANK_SLOT);
    return doomed;
}

/*
 * Not in the record: a timer that fires would touch the stacks of sleepers, cold
 * pages all of them, under the timers' lock. 0 or TROUPE_ENOMEM.
 */
static int
set_deadline(struct tp_actor *self, uint64_t deadline_ns)
{
    if (TP_UNLIKELY(self->wait_timer == NULL)) {
        if (deadline_ns == TP_NEVER) {
            return 0;
        }
        self->wait_timer = tp_wait_timer_new(self->slot);
        if (self->wait_timer == NULL) {
            return TROUPE_ENOMEM;
        }
    }
    return tp_wait_timer_set(self->wait_timer, deadline_ns);
}

int
tp_actor_park(struct tp_actor *self, uint64_t deadline_ns)
{
    if (TP_UNLIKELY(self->finishing)) {
        return TROUPE_EINVAL;
    }
    if (TP_UNLIKELY(told_to_end(self))) {
        return TROUPE_EKILLED;
    }
    note_low_water(self);
    shrink(self);
    int rc = set_deadline(self, deadline_ns);
    if (rc != 0) {
        return rc;
    }
    tp_worker_park(self->slot);
    return told_to_end(self) ? TROUPE_EKILLED : 0;
}

int
tp_actor_yield(struct tp_actor *self)
{
    if (self->finishing) {
        return TROUPE_EINVAL;
    }
    note_low_water(self);
    tp_worker_yield(self->slot);
    return told_to_end(self) ? TROUPE_EKILLED : 0;
}

void
tp_actor_checkpoint_slow(void)
{
    struct tp_actor *a = tp_actor_self();
    uint64_t used = tp_cycles() - tp_worker_self()->slice_start_cycles;
    if (tp_worker_checkpoint_slow() && a->finishing) {
        a->finish_cycles += (int64_t)used;
    }
}

int
tp_actor_sleep(struct tp_actor *self, uint64_t deadline_ns)
{
    while (tp_now_ns() < deadline_ns) {
        int rc = tp_actor_park(self, deadline_ns);
        if (rc != 0) {
            return rc;
        }
    }
    return 0;
}

int
tp_blocking_begin(struct tp_actor *self)
{
    if (self->finishing) {
        return TROUPE_EINVAL;
    }
    if (told_to_end(self)) {
        return TROUPE_EKILLED;
    }
    note_low_water(self);
    return tp_blocking_enter(self->slot);
}

int
tp_blocking_end(struct tp_actor *self)
{
    note_low_water(self);
    tp_blocking_leave(self->slot);
    return told_to_end(self) ? TROUPE_EKILLED : 0;
}

void
tp_actor_set_reason(struct tp_actor *self, struct tp_reason *reason)
{
    tp_mutex_lock(&self->slot->lock, TP_RANK_SLOT);
    struct tp_reason *old = self->reason;
    if (old == NULL) {
        self->reason = reason;
    } else {
        old = reason; /* the first one stays */
    }
    tp_mutex_unlock(&self->slot->lock, TP_RANK_SLOT);
    if (old != NULL) {
        tp_reason_unref(old);
    }
}

/* Onto the stack's top by way of the scheduler, which resets the fiber. */
void
tp_actor_exit(struct tp_actor *self, struct tp_reason *reason)
{
    tp_actor_set_reason(self, reason);
    tp_check(!self->finishing);
    self->unkillable = false;
    tp_slot_doom(self->slot, tp_pid_gen(self->pid));
    tp_worker_yield(self->slot);
    abort();
}

bool
tp_actor_end_locked(struct tp_actor *a, struct tp_reason *reason)
{
    if (a->doomed || a->closing || !tp_slot_doom(a->slot, tp_pid_gen(a->pid))) {
        tp_reason_unref(reason);
        return false;
    }
    a->doomed = true;
    if (a->reason == NULL) {
        a->reason = reason;
    } else {
        tp_reason_unref(reason); /* it ends already, for its own reason */
    }
    return true;
}

bool
tp_actor_end(troupe_pid pid, struct tp_reason *reason)
{
    struct tp_slot *s = tp_slot_at(pid);
    bool ended = false;
    if (s == NULL) {
        tp_reason_unref(reason);
        return false;
    }
    tp_mutex_lock(&s->lock, TP_RANK_SLOT);
    struct tp_actor *a = s->actor;
    if (a != NULL && a->pid == pid) {
        ended = tp_actor_end_locked(a, tp_reason_ref(reason));
    }
    tp_mutex_unlock(&s->lock, TP_RANK_SLOT);
    tp_reason_unref(reason);
    return ended;
}

static void
end_slot(struct tp_slot *s, enum tp_reason_kind root,
         enum tp_reason_kind others)
{
    /* relaxed: set before any actor ran. */
    troupe_pid root_pid =
        atomic_load_explicit(&tp_actor_root, memory_order_relaxed);
    tp_mutex_lock(&s->lock, TP_RANK_SLOT);
    struct tp_actor *a = s->actor;
    if (a != NULL) {
        tp_actor_end_locked(
            a, tp_reason_const(a->pid == root_pid ? root : others));
    }
    tp_mutex_unlock(&s->lock, TP_RANK_SLOT);
}

void
tp_actor_end_all(enum tp_reason_kind root, enum tp_reason_kind others)
{
    /* STOP-1 seq_cst: stored before the table is walked. Partner: tp_spawn
     * reads it when the newborn can be found. */
    atomic_store_explicit(&tp_actor_no_spawn, true, memory_order_seq_cst);
    uint32_t used = tp_slots_used();
    for (uint32_t i = 0; i < used; i++) {
        end_slot(&tp_slots.base[i], root, others);
    }
}
