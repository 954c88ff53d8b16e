/*
 * channel.c - values from many senders to one receiver. See channel.h.
 *
 * Tests: spec/unit/channel_test.c, spec/unit/channel_stress.c
 */
#include "actor/channel.h"

#define TAG_MASK   15ull
#define TAG_PARKS  1ull
#define TAG_CLOSED 2ull
#define TAG_ENDED  4ull

/* Of who parks: epoch 32, low bits of the generation 8, index 20, tag 4. An
 * actor in the same slot with the same low bits and epoch would be woken in its
 * stead: that wait returns early, as each may. */
#define INDEX_SHIFT 4
#define GEN_SHIFT   (INDEX_SHIFT + TP_PID_INDEX_BITS)
#define GEN_BITS    (EPOCH_SHIFT - GEN_SHIFT)
#define EPOCH_SHIFT 32
#define GEN_LOW     ((1u << GEN_BITS) - 1)

/* A sender that waits for room. */
struct sender {
    struct tp_waiter waiter;
    struct tp_msg *m; /* NULL: it was taken over; while in line, queue's lock */
};

static struct tp_msg *
as_message(uint64_t word)
{
    return (word & (TAG_PARKS | TAG_CLOSED)) != 0
               ? NULL
               : (struct tp_msg *)(uintptr_t)(word & ~TAG_MASK);
}

/* -- life ---------------------------------------------------------------- */

struct tp_channel *
tp_channel_new(uint32_t capacity)
{
    struct tp_channel *ch = tp_calloc(1, sizeof *ch);
    if (ch == NULL) {
        return NULL;
    }
    atomic_init(&ch->senders, 1);
    atomic_init(&ch->refs, 2);
    ch->capacity = capacity;
    ch->tail = &ch->head;
    tp_waitq_init(&ch->waitq);
    return ch;
}

static void
unref(struct tp_channel *ch)
{
    /* CHN-2 acq_rel: the last one frees after the other is done. Both sides
     * are this decrement. */
    if (atomic_fetch_sub_explicit(&ch->refs, 1, memory_order_acq_rel) == 1) {
        tp_free(ch);
    }
}

void
tp_channel_tx_ref(struct tp_channel *ch)
{
    /* relaxed: who makes a sender has one. */
    atomic_fetch_add_explicit(&ch->senders, 1, memory_order_relaxed);
}

/* word says who parks. */
static void
wake(uint64_t word)
{
    uint32_t index = (uint32_t)(word >> INDEX_SHIFT) & (TP_MAX_ACTORS - 1);
    struct tp_slot *s = tp_slot_at(index);
    if (s == NULL) {
        return; /* the run is over */
    }
    /* relaxed: who parks lives, and its generation stays; who does not is not
     * to be woken. */
    uint32_t gen =
        tp_state_gen(atomic_load_explicit(&s->state, memory_order_relaxed));
    if (((gen ^ (uint32_t)(word >> GEN_SHIFT)) & GEN_LOW) == 0) {
        tp_unpark_at(((troupe_pid)gen << TP_PID_INDEX_BITS) | index,
                     (uint32_t)(word >> EPOCH_SHIFT));
    }
}

static uint64_t
parks_word(const struct tp_slot *self)
{
    uint32_t gen = tp_pid_gen(tp_slot_pid(self));
    return ((uint64_t)tp_wait_epoch(self) << EPOCH_SHIFT) |
           ((uint64_t)(gen & GEN_LOW) << GEN_SHIFT) |
           ((uint64_t)tp_slot_index(self) << INDEX_SHIFT) | TAG_PARKS;
}

/* No sender is left, so that only the receiver meets this word from here on. */
static void
end(struct tp_channel *ch)
{
    /* relaxed: the exchange below orders. */
    uint64_t word = atomic_load_explicit(&ch->inbox, memory_order_relaxed);
    uint64_t next;
    do {
        if (word == TAG_CLOSED) {
            return;
        }
        next = (uintptr_t)as_message(word) | TAG_ENDED;
        /* CHN-1 release: who sees the end sees all messages. Partner: the
         * acquire in tp_channel_is_ended. relaxed: tried again. */
    } while (!atomic_compare_exchange_weak_explicit(
        &ch->inbox, &word, next, memory_order_release, memory_order_relaxed));
    if ((word & TAG_PARKS) != 0) {
        wake(word);
    }
}

void
tp_channel_tx_unref(struct tp_channel *ch)
{
    /* CHN-2 acq_rel: the last one comes after all pushes of the others. Both
     * sides are this decrement. */
    if (atomic_fetch_sub_explicit(&ch->senders, 1, memory_order_acq_rel) == 1) {
        end(ch);
        unref(ch);
    }
}

static void
drop_list(struct tp_msg *m)
{
    while (m != NULL) {
        struct tp_msg *next = m->next;
        tp_msg_drop(m);
        m = next;
    }
}

void
tp_channel_rx_close(struct tp_channel *ch)
{
    if (ch->capacity != 0) {
        tp_waitq_lock(&ch->waitq);
    }
    /* CHN-1 acquire: as in fetch. */
    uint64_t word =
        atomic_exchange_explicit(&ch->inbox, TAG_CLOSED, memory_order_acquire);
    if (ch->capacity != 0) {
        struct tp_waiter *w;
        while ((w = tp_waitq_first_locked(&ch->waitq)) != NULL) {
            tp_waitq_end_locked(w);
        }
        tp_waitq_unlock(&ch->waitq);
    }
    drop_list(ch->head);
    drop_list(as_message(word));
    unref(ch);
}

/* -- sending ------------------------------------------------------------- */

static int
push_open(struct tp_channel *ch, struct tp_msg *m)
{
    /* relaxed: the exchange below orders. */
    uint64_t word = atomic_load_explicit(&ch->inbox, memory_order_relaxed);
    do {
        if (TP_UNLIKELY(word == TAG_CLOSED)) {
            return TROUPE_ECLOSED;
        }
        m->next = as_message(word);
        /* CHN-1 release: publishes the message to fetch. relaxed: tried
         * again; what the word names is not looked into. */
    } while (!atomic_compare_exchange_weak_explicit(
        &ch->inbox, &word, (uintptr_t)m, memory_order_release,
        memory_order_relaxed));
    if ((word & TAG_PARKS) != 0) {
        wake(word);
    }
    return 0;
}

static int
push_counted_locked(struct tp_channel *ch, struct tp_msg *m)
{
    /* relaxed: closed under the lock that we hold. */
    if (atomic_load_explicit(&ch->inbox, memory_order_relaxed) == TAG_CLOSED) {
        return TROUPE_ECLOSED;
    }
    if (ch->count == ch->capacity) {
        return TROUPE_EFULL;
    }
    ch->count++;
    return push_open(ch, m);
}

int
tp_channel_push(struct tp_channel *ch, struct tp_msg *m)
{
    if (TP_LIKELY(ch->capacity == 0)) {
        return push_open(ch, m);
    }
    tp_waitq_lock(&ch->waitq);
    int rc = push_counted_locked(ch, m);
    tp_waitq_unlock(&ch->waitq);
    return rc;
}

/* The sender ends in line. */
static void
sender_release(struct tp_resource *r)
{
    struct sender *s = tp_container_of(r, struct sender, waiter.resource);
    tp_waiter_leave(&s->waiter);
    if (s->m != NULL) {
        tp_msg_drop(s->m);
    }
    tp_free(s);
}

static int
wait_for_room(struct tp_actor *self, struct sender *s, uint64_t deadline_ns)
{
    int rc = tp_waiter_wait(self, &s->waiter, deadline_ns);
    return rc == 0 && s->m != NULL ? TROUPE_ECLOSED : rc;
}

int
tp_channel_send_dl(struct tp_actor *self, struct tp_channel *ch,
                   struct tp_msg *m, uint64_t deadline_ns)
{
    int rc = tp_channel_push(ch, m);
    if (rc != TROUPE_EFULL) {
        return rc;
    }
    struct sender *s = tp_malloc(sizeof *s);
    if (s == NULL) {
        return TROUPE_ENOMEM;
    }
    tp_waiter_init(&s->waiter, &ch->waitq, self, sender_release);
    s->m = m;
    tp_waitq_lock(&ch->waitq);
    rc = push_counted_locked(ch, m);
    if (rc == TROUPE_EFULL) {
        tp_waitq_push_locked(&s->waiter);
    }
    tp_waitq_unlock(&ch->waitq);
    if (rc == TROUPE_EFULL) {
        rc = wait_for_room(self, s, deadline_ns);
    }
    tp_free(s);
    return rc;
}

/* -- receiving ----------------------------------------------------------- */

bool
tp_channel_fetch(struct tp_channel *ch)
{
    /* relaxed: a look; the exchange is the acquire. */
    uint64_t word = atomic_load_explicit(&ch->inbox, memory_order_relaxed);
    if (as_message(word) == NULL) {
        return false;
    }
    /* CHN-1 acquire: sees the messages that push published. Relaxed would read
     * stale bodies. */
    word = atomic_exchange_explicit(&ch->inbox, 0, memory_order_acquire);
    if ((word & TAG_ENDED) != 0) {
        /* relaxed: nobody else writes it any more. */
        atomic_store_explicit(&ch->inbox, TAG_ENDED, memory_order_relaxed);
    }
    struct tp_msg *m = as_message(word), *first = NULL;
    struct tp_msg **tail = &m->next;
    while (m != NULL) { /* newest first: reverse */
        struct tp_msg *older = m->next;
        m->next = first;
        first = m;
        m = older;
        ch->fetched++;
    }
    *ch->tail = first;
    ch->tail = tail;
    return true;
}

/* A message was taken: the first of the line goes in its place. */
static void
made_room(struct tp_channel *ch)
{
    tp_waitq_lock(&ch->waitq);
    struct tp_waiter *w = tp_waitq_first_locked(&ch->waitq);
    if (w == NULL) {
        ch->count--;
    } else {
        struct sender *s = tp_container_of(w, struct sender, waiter);
        push_open(ch, s->m);
        s->m = NULL;
        tp_waitq_end_locked(w);
    }
    tp_waitq_unlock(&ch->waitq);
}

struct tp_msg *
tp_channel_take(struct tp_channel *ch, struct tp_msg **link)
{
    struct tp_msg *m = *link;
    *link = m->next;
    if (m->next == NULL) {
        ch->tail = link;
    }
    m->next = NULL;
    ch->fetched--;
    if (ch->capacity != 0) {
        made_room(ch);
    }
    return m;
}

uint32_t
tp_channel_len(struct tp_channel *ch)
{
    tp_channel_fetch(ch);
    return ch->fetched;
}

bool
tp_channel_is_ended(struct tp_channel *ch)
{
    /* CHN-1 acquire: sees what the senders did before they went. Partner:
     * end. */
    return atomic_load_explicit(&ch->inbox, memory_order_acquire) == TAG_ENDED;
}

bool
tp_channel_arm(struct tp_actor *self, struct tp_channel *ch)
{
    /* relaxed: the exchange below decides. */
    uint64_t word = atomic_load_explicit(&ch->inbox, memory_order_relaxed);
    while (word == 0 || (word & TAG_PARKS) != 0) {
        /* relaxed: the word says all that its reader needs. */
        if (atomic_compare_exchange_weak_explicit(
                &ch->inbox, &word, parks_word(self->slot), memory_order_relaxed,
                memory_order_relaxed)) {
            return true;
        }
    }
    return false;
}

int
tp_channel_wait(struct tp_actor *self, struct tp_channel *ch,
                uint64_t deadline_ns)
{
    for (;;) {
        if (tp_channel_fetch(ch)) {
            return 0;
        }
        if (tp_channel_is_ended(ch)) {
            return TROUPE_ECLOSED;
        }
        if (deadline_ns != TP_NEVER && tp_now_ns() >= deadline_ns) {
            return TROUPE_ETIMEOUT;
        }
        if (self->finishing) {
            return TROUPE_EINVAL;
        }
        if (!tp_channel_arm(self, ch)) {
            continue;
        }
        int rc = tp_actor_park(self, deadline_ns);
        if (rc != 0) {
            return rc;
        }
    }
}
