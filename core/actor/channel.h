/*
 * channel.h - values from many senders to one receiver.
 *
 * Idea:     a stack of messages that senders push to by CAS and the receiver
 *           takes whole, as a mailbox has it; but the receiver may be handed
 *           to another actor, with all that is queued.
 *
 *   inbox word:
 *     ...0000  address of the newest message, or 0: empty
 *     ...0001  empty, and the receiver's holder parks; above: who, and its
 *              wait epoch
 *     ...0010  closed: the receiver is gone
 *     ...0100  as 0000, and no sender is left: nothing will be pushed
 *
 *           With a capacity a push is counted under the lock; one that finds
 *           no room leaves its message in the line, and the receiver that
 *           takes one moves the first of the line in its place.
 * Threads:  push, send, tx_ref, tx_unref: any that has a sender. The rest: who
 *           has the receiver.
 * Locks:    TP_RANK_CHANNEL, for channels with a capacity only.
 * Ordering: CHN-1, CHN-2 in channel.c.
 * Memory:   counted: the receiver and the senders, be they held or in a message
 *           under way. push and send take the message on success only; take
 *           hands it out.
 * Parks:    wait; send while a channel is full.
 * Fails:    push: TROUPE_ECLOSED, TROUPE_EFULL.
 * Rejected: a lock for all channels - two more atomic operations for each
 *           message; a ring for those with a capacity - another queue to get
 *           right, and its memory is taken while it is empty.
 * Tests:    spec/unit/channel_test.c, spec/unit/channel_stress.c
 */
#ifndef TP_ACTOR_CHANNEL_H
#define TP_ACTOR_CHANNEL_H

#include "actor/actor.h"
#include "actor/message.h"
#include "actor/waitq.h"

struct tp_channel {
    /* any thread, atomic */
    _Atomic uint64_t inbox;
    _Atomic uint32_t senders; /* held or in a message */
    _Atomic uint32_t refs;    /* the receiver, and one for all senders */

    /* set at birth */
    uint32_t capacity; /* messages, 0: no limit */

    /* who has the receiver */
    struct tp_msg *head; /* fetched, in order of arrival */
    struct tp_msg **tail;
    uint32_t fetched; /* how many */

    /* with a capacity only */
    struct tp_waitq waitq; /* senders that wait for room */
    uint32_t count;        /* queued messages; waitq's lock */
};

/* A channel with one receiver and one sender, the caller's. NULL without
 * memory. capacity 0: no limit. */
struct tp_channel *tp_channel_new(uint32_t capacity);

/* One sender more, or one less. The last one closes the channel: who receives
 * learns it once all is taken. */
void tp_channel_tx_ref(struct tp_channel *ch);
void tp_channel_tx_unref(struct tp_channel *ch);

/* The receiver is gone: drops what is queued; who sends gets TROUPE_ECLOSED. */
void tp_channel_rx_close(struct tp_channel *ch);

/* Adds m; never parks. TROUPE_EFULL, TROUPE_ECLOSED. */
int tp_channel_push(struct tp_channel *ch, struct tp_msg *m);

/* The same; parks while the channel is full. TROUPE_ECLOSED, TROUPE_ETIMEOUT,
 * TROUPE_ENOMEM, or as tp_actor_park: m is the caller's again. m goes with the
 * actor if it ends meanwhile. */
int tp_channel_send_dl(struct tp_actor *self, struct tp_channel *ch,
                       struct tp_msg *m, uint64_t deadline_ns);

/* Moves what has arrived to the list at head; true if there was any. */
bool tp_channel_fetch(struct tp_channel *ch);

/* Takes *link, of the list at head, out of it. The first link is &ch->head, the
 * next one &m->next. */
struct tp_msg *tp_channel_take(struct tp_channel *ch, struct tp_msg **link);

/* The oldest message, NULL when there is none. */
static inline struct tp_msg *
tp_channel_pop(struct tp_channel *ch)
{
    if (ch->head == NULL && !tp_channel_fetch(ch)) {
        return NULL;
    }
    return tp_channel_take(ch, &ch->head);
}

/* How many messages are queued. Those of parked senders do not count. */
uint32_t tp_channel_len(struct tp_channel *ch);

/* Will nothing arrive any more, and is all fetched? */
bool tp_channel_is_ended(struct tp_channel *ch);

/* The next message, or the end, will end the running actor's wait. False: one
 * of them is there already. Leaves nothing behind that a later wait meets. */
bool tp_channel_arm(struct tp_actor *self, struct tp_channel *ch);

/* Parks until something new has arrived (then it is fetched: 0), nothing can
 * arrive any more (TROUPE_ECLOSED) or the deadline is over (TROUPE_ETIMEOUT).
 * Else as tp_actor_park. */
int tp_channel_wait(struct tp_actor *self, struct tp_channel *ch,
                    uint64_t deadline_ns);

#endif
