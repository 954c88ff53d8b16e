/*
 * mailbox.c - one actor's incoming messages. See mailbox.h.
 *
 * Tests: spec/unit/mailbox_test.c, spec/unit/mailbox_stress.c
 */
#include "actor/mailbox.h"

#include "actor/call.h"

#define BODY_BITS   48
#define BODY_MASK   ((1ull << BODY_BITS) - 1)
#define TAG_MASK    15ull
#define TAG_PARKS   1ull
#define TAG_CLOSED  2ull
#define EPOCH_SHIFT 4

static uint64_t
gen_part(uint32_t gen)
{
    return (uint64_t)(gen & 0xffff) << BODY_BITS;
}

static struct tp_msg *
as_message(uint64_t word)
{
    uint64_t body = word & BODY_MASK;
    return (body & TAG_MASK) != 0 ? NULL : (struct tp_msg *)(uintptr_t)body;
}

void
tp_mailbox_init(struct tp_slot *s, bool limited)
{
    uint32_t gen = tp_pid_gen(tp_slot_pid(s));
    s->mail_head = NULL;
    s->mail_tail = &s->mail_head;
    /* MBX-2 release: who reads this word also reads the generation in the
     * state. Partner: the acquire in push_open. */
    atomic_store_explicit(&s->inbox, gen_part(gen), memory_order_release);
    if (limited) {
        /* relaxed: as above. */
        atomic_fetch_or_explicit(&s->state, TP_STATE_LIMITED,
                                 memory_order_relaxed);
    }
}

/* Is m subject to a mailbox's limit? What the runtime tells is not. */
static bool
counts(const struct tp_msg *m)
{
    return m->kind == TP_MSG_USER || m->kind == TP_MSG_CALL ||
           m->kind == TP_MSG_CAST;
}

static bool
is_urgent(const struct tp_actor *self, const struct tp_msg *m)
{
    return m->kind == TP_MSG_SYSTEM ||
           (m->kind == TP_MSG_EXIT && self->master != 0 &&
            m->from == self->master);
}

/* -- sending ------------------------------------------------------------- */

/*
 * The inbox word is read before the state word: a slot that changed hands
 * before that read shows another generation in the state; one that changes
 * hands after it has another inbox word, and the exchange fails.
 */
static int
push_open(struct tp_slot *s, troupe_pid to, struct tp_msg *m)
{
    uint32_t gen = tp_pid_gen(to);
    /* MBX-2 acquire: read before the state word. Partner: MBX-2 release in
     * tp_mailbox_init. */
    uint64_t word = atomic_load_explicit(&s->inbox, memory_order_acquire);
    for (;;) {
        /* MBX-2 acquire: not before the load of inbox above, nor the failed
         * exchange below. */
        uint64_t state = atomic_load_explicit(&s->state, memory_order_acquire);
        if (tp_state_gen(state) != gen || (word ^ gen_part(gen)) >> BODY_BITS ||
            (word & BODY_MASK) == TAG_CLOSED) {
            return TROUPE_ENOPROC;
        }
        m->next = as_message(word);
        /* MBX-1 release: publishes the message to fetch. MBX-2 acquire: a
         * failure gives a new word, to be read before the state again. */
        if (atomic_compare_exchange_weak_explicit(
                &s->inbox, &word, gen_part(gen) | (uint64_t)(uintptr_t)m,
                memory_order_acq_rel, memory_order_acquire)) {
            if ((word & TAG_MASK) == TAG_PARKS) {
                tp_unpark_at(to, (uint32_t)((word & BODY_MASK) >> EPOCH_SHIFT));
            }
            return 0;
        }
    }
}

/* Remembers that self waits for room; false when there is no memory. */
static bool
add_waiter_locked(struct tp_actor *a, struct tp_actor *self)
{
    if (a->mail_waiter_count == a->mail_waiter_capacity) {
        uint32_t want = a->mail_waiter_capacity * 2 + 8;
        struct tp_mail_waiter *w = tp_malloc(want * sizeof *w);
        if (w == NULL) {
            return false;
        }
        for (uint32_t i = 0; i < a->mail_waiter_count; i++) {
            w[i] = a->mail_waiters[(a->mail_waiter_first + i) %
                                   a->mail_waiter_capacity];
        }
        tp_free(a->mail_waiters);
        a->mail_waiters = w;
        a->mail_waiter_first = 0;
        a->mail_waiter_capacity = want;
    }
    uint32_t at = (a->mail_waiter_first + a->mail_waiter_count++) %
                  a->mail_waiter_capacity;
    a->mail_waiters[at].pid = self->pid;
    a->mail_waiters[at].epoch = tp_wait_epoch(self->slot);
    return true;
}

/* The first waiter in line; pid 0 when there is none. */
static struct tp_mail_waiter
pop_waiter_locked(struct tp_actor *a)
{
    struct tp_mail_waiter w = {0, 0};
    if (a->mail_waiter_count > 0) {
        w = a->mail_waiters[a->mail_waiter_first];
        a->mail_waiter_first =
            (a->mail_waiter_first + 1) % a->mail_waiter_capacity;
        a->mail_waiter_count--;
    }
    return w;
}

/* There is room for one more: tells the first in line that still waits. */
static void
tell_waiter_locked(struct tp_actor *a)
{
    struct tp_mail_waiter w;
    do {
        w = pop_waiter_locked(a);
    } while (w.pid != 0 && !tp_unpark_at(w.pid, w.epoch));
}

/* Self gives up its place in line, and with it the room that it was told of:
 * that is the next one's now. */
static void
leave_line(struct tp_actor *self)
{
    troupe_pid to = self->room_of;
    struct tp_slot *s = tp_slot_at(to);
    self->room_of = 0;
    tp_mutex_lock(&s->lock, TP_RANK_SLOT);
    struct tp_actor *a = s->actor;
    if (a != NULL && a->pid == to && a->mail_count < a->mail_limit) {
        tell_waiter_locked(a);
    }
    tp_mutex_unlock(&s->lock, TP_RANK_SLOT);
}

static bool
has_room_locked(const struct tp_actor *a, bool force)
{
    return a->mail_count < a->mail_limit ||
           (force && a->mail_policy == TP_MAIL_BLOCK);
}

/* A push to a mailbox with a limit. self not NULL: registered as a waiter when
 * TROUPE_EFULL is returned and *out_blocks is set. */
static int
push_limited(struct tp_slot *s, troupe_pid to, struct tp_msg *m,
             struct tp_actor *self, bool force, bool *out_blocks)
{
    int rc = TROUPE_ENOPROC;
    bool drop = false;
    tp_mutex_lock(&s->lock, TP_RANK_SLOT);
    struct tp_actor *a = s->actor;
    if (a != NULL && a->pid == to) {
        if (has_room_locked(a, force)) {
            rc = push_open(s, to, m);
            a->mail_count += rc == 0;
        } else if (a->mail_policy == TP_MAIL_DROP_NEW) {
            rc = 0;
            drop = true;
        } else {
            rc = TROUPE_EFULL;
            *out_blocks =
                a->mail_policy == TP_MAIL_BLOCK && self != NULL && a != self;
            if (*out_blocks && !add_waiter_locked(a, self)) {
                rc = TROUPE_ENOMEM;
            }
        }
    }
    tp_mutex_unlock(&s->lock, TP_RANK_SLOT);
    if (drop) {
        tp_msg_drop(m);
    }
    return rc;
}

static int
push(troupe_pid to, struct tp_msg *m, struct tp_actor *self, bool force,
     bool *out_blocks)
{
    struct tp_slot *s = tp_slot_at(to);
    *out_blocks = false;
    if (s == NULL) {
        return TROUPE_ENOPROC;
    }
    /* relaxed: the flag is set before the pid is known to anybody. */
    uint64_t state = atomic_load_explicit(&s->state, memory_order_relaxed);
    if (TP_UNLIKELY((state & TP_STATE_LIMITED) != 0) && counts(m)) {
        return push_limited(s, to, m, self, force, out_blocks);
    }
    return push_open(s, to, m);
}

int
tp_mailbox_push(troupe_pid to, struct tp_msg *m)
{
    bool blocks;
    return push(to, m, NULL, false, &blocks);
}

int
tp_mailbox_force(troupe_pid to, struct tp_msg *m)
{
    bool blocks;
    return push(to, m, NULL, true, &blocks);
}

int
tp_mailbox_send(struct tp_actor *self, troupe_pid to, struct tp_msg *m)
{
    return tp_mailbox_send_dl(self, to, m, TP_NEVER);
}

int
tp_mailbox_send_dl(struct tp_actor *self, troupe_pid to, struct tp_msg *m,
                   uint64_t deadline_ns)
{
    for (;;) {
        bool blocks;
        int rc = push(to, m, self->finishing ? NULL : self, false, &blocks);
        if (rc != TROUPE_EFULL || !blocks) {
            return rc;
        }
        self->room_of = to;
        rc = tp_actor_park(self, deadline_ns);
        if (rc == 0 && deadline_ns != TP_NEVER && tp_now_ns() >= deadline_ns) {
            rc = TROUPE_ETIMEOUT;
        }
        if (rc != 0) {
            tp_wait_abandon(self->slot);
            leave_line(self);
            return rc;
        }
        self->room_of = 0;
    }
}

/* -- receiving ----------------------------------------------------------- */

bool
tp_mailbox_fetch(struct tp_actor *self)
{
    struct tp_slot *s = self->slot;
    /* relaxed: a look; the exchange is the acquire. */
    uint64_t word = atomic_load_explicit(&s->inbox, memory_order_relaxed);
    if (as_message(word) == NULL) {
        return false;
    }
    /* MBX-1 acquire: sees the messages that push published. Relaxed would read
     * stale bodies. */
    word = atomic_exchange_explicit(&s->inbox, word & ~BODY_MASK,
                                    memory_order_acquire);
    struct tp_msg *m = as_message(word), *first = NULL;
    struct tp_msg **tail = m == NULL ? s->mail_tail : &m->next;
    while (m != NULL) { /* newest first: reverse */
        struct tp_msg *older = m->next;
        self->urgent += is_urgent(self, m);
        m->next = first;
        first = m;
        m = older;
    }
    *s->mail_tail = first;
    s->mail_tail = tail;
    return true;
}

/* A message was taken out of a mailbox with a limit. */
static void
made_room(struct tp_actor *self)
{
    tp_mutex_lock(&self->slot->lock, TP_RANK_SLOT);
    self->mail_count--;
    if (self->mail_count < self->mail_limit) { /* not so after a force */
        tell_waiter_locked(self);
    }
    tp_mutex_unlock(&self->slot->lock, TP_RANK_SLOT);
}

struct tp_msg *
tp_mailbox_take(struct tp_actor *self, struct tp_msg **link)
{
    struct tp_slot *s = self->slot;
    struct tp_msg *m = *link;
    *link = m->next;
    if (m->next == NULL) {
        s->mail_tail = link;
    }
    m->next = NULL;
    if (TP_UNLIKELY(self->urgent != 0) && is_urgent(self, m)) {
        self->urgent--;
    }
    if (TP_UNLIKELY(self->mail_limit != 0) && counts(m)) {
        made_room(self);
    }
    return m;
}

void
tp_mailbox_put_back(struct tp_actor *self, struct tp_msg *m)
{
    struct tp_slot *s = self->slot;
    tp_check(!counts(m) && !is_urgent(self, m));
    m->next = s->mail_head;
    s->mail_head = m;
    if (m->next == NULL) {
        s->mail_tail = &m->next;
    }
}

struct tp_msg **
tp_mailbox_urgent(struct tp_actor *self)
{
    if (TP_LIKELY(self->urgent == 0)) {
        return NULL;
    }
    struct tp_msg **link = &self->slot->mail_head;
    while (*link != NULL && !is_urgent(self, *link)) {
        link = &(*link)->next;
    }
    return *link == NULL ? NULL : link;
}

struct tp_msg *
tp_mailbox_pop(struct tp_actor *self)
{
    if (self->slot->mail_head == NULL && !tp_mailbox_fetch(self)) {
        return NULL;
    }
    return tp_mailbox_take(self, &self->slot->mail_head);
}

static inline bool
arm(struct tp_actor *self)
{
    struct tp_slot *s = self->slot;
    /* relaxed: the exchange below decides. */
    uint64_t word = atomic_load_explicit(&s->inbox, memory_order_relaxed);
    uint64_t parks = ((uint64_t)tp_wait_epoch(s) << EPOCH_SHIFT) | TAG_PARKS;
    while (as_message(word) == NULL) {
        /* MBX-1 release: the epoch in the word is this wait's. Partner: the
         * acquire in push_open. relaxed: tried again. */
        if (atomic_compare_exchange_weak_explicit(
                &s->inbox, &word, (word & ~BODY_MASK) | parks,
                memory_order_release, memory_order_relaxed)) {
            return true;
        }
    }
    return false;
}

bool
tp_mailbox_arm(struct tp_actor *self)
{
    return arm(self);
}

int
tp_mailbox_wait(struct tp_actor *self, uint64_t deadline_ns)
{
    for (;;) {
        if (tp_mailbox_fetch(self)) {
            return 0;
        }
        if (deadline_ns != TP_NEVER && tp_now_ns() >= deadline_ns) {
            return TROUPE_ETIMEOUT;
        }
        if (self->finishing) {
            return TROUPE_EINVAL;
        }
        if (!arm(self)) {
            continue;
        }
        int rc = tp_actor_park(self, deadline_ns);
        if (rc != 0) {
            return rc;
        }
    }
}

/* -- end ----------------------------------------------------------------- */

/* A request is not answered by being dropped, but by the end of self. */
static void
drop_list(struct tp_actor *self, struct tp_msg *m)
{
    while (m != NULL) {
        struct tp_msg *next = m->next;
        if (m->kind == TP_MSG_CALL) {
            tp_owed_queued(self, m);
            m->ref = 0;
        }
        tp_msg_drop(m);
        m = next;
    }
}

static void
free_waiters(struct tp_actor *self)
{
    tp_mutex_lock(&self->slot->lock, TP_RANK_SLOT);
    struct tp_mail_waiter *w = self->mail_waiters;
    uint32_t first = self->mail_waiter_first, n = self->mail_waiter_count;
    uint32_t capacity = self->mail_waiter_capacity;
    self->mail_waiters = NULL;
    self->mail_waiter_count = self->mail_waiter_capacity = 0;
    self->mail_limit = UINT32_MAX; /* a late sender finds the box closed */
    tp_mutex_unlock(&self->slot->lock, TP_RANK_SLOT);
    for (uint32_t i = 0; i < n; i++) {
        struct tp_mail_waiter *x = &w[(first + i) % capacity];
        tp_unpark_at(x->pid, x->epoch);
    }
    tp_free(w);
}

void
tp_mailbox_close(struct tp_actor *self)
{
    struct tp_slot *s = self->slot;
    /* relaxed: only the generation is kept of it. */
    uint64_t word = atomic_load_explicit(&s->inbox, memory_order_relaxed);
    /* MBX-1 acquire: as in fetch. */
    word = atomic_exchange_explicit(&s->inbox, (word & ~BODY_MASK) | TAG_CLOSED,
                                    memory_order_acquire);
    struct tp_msg *first = s->mail_head;
    s->mail_head = NULL;
    s->mail_tail = &s->mail_head;
    drop_list(self, first);
    drop_list(self, as_message(word));
    if (self->mail_limit != 0) {
        free_waiters(self);
    }
    if (self->room_of != 0) {
        leave_line(self);
    }
}

bool
tp_mailbox_is_open(troupe_pid pid)
{
    struct tp_slot *s = tp_slot_at(pid);
    if (s == NULL) {
        return false;
    }
    /* MBX-2 acquire: before the state word, as in push_open. */
    uint64_t word = atomic_load_explicit(&s->inbox, memory_order_acquire);
    return tp_pid_is_alive(pid) &&
           (word ^ gen_part(tp_pid_gen(pid))) >> BODY_BITS == 0 &&
           (word & BODY_MASK) != TAG_CLOSED;
}
