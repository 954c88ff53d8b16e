/*
 * value_mutex.h - a value that one actor has at a time.
 *
 * Idea:     who unlocks hands the mutex to the first in line, so that nobody
 *           overtakes. The value is a message of the bindings' making; its
 *           holder alone looks at it.
 * Threads:  lock, try_lock, unlock, value, set: the running actor. The rest:
 *           any.
 * Locks:    TP_RANK_CHANNEL.
 * Ordering: VMX-1 in value_mutex.c.
 * Memory:   counted; the holder and those in line count, too.
 * Parks:    lock.
 * Fails:    lock: see there.
 * Tests:    spec/unit/value_mutex_test.c, spec/unit/channel_stress.c
 */
#ifndef TP_ACTOR_VALUE_MUTEX_H
#define TP_ACTOR_VALUE_MUTEX_H

#include "actor/actor.h"
#include "actor/message.h"
#include "actor/waitq.h"

struct tp_value_mutex {
    _Atomic uint32_t refs;
    struct tp_waitq waitq; /* who waits for it */
    troupe_pid holder;     /* 0: free; waitq's lock */

    /* the holder, before it gives up that lock */
    bool abandoned; /* the last one ended with it, and none has been told */
    struct tp_resource hold;
    struct tp_msg *value;
};

/* Takes value, on success. NULL without memory. */
struct tp_value_mutex *tp_value_mutex_new(struct tp_msg *value);
void tp_value_mutex_ref(struct tp_value_mutex *m);
void tp_value_mutex_unref(struct tp_value_mutex *m);

/*
 * Waits until self holds m, first come first served, or deadline_ns.
 * *out_abandoned: its last holder has ended in place of unlocking it.
 * TROUPE_EBUSY: self holds it already; TROUPE_ETIMEOUT, TROUPE_ENOMEM, or as
 * tp_actor_park: self does not hold it, and is not in line.
 */
int tp_value_mutex_lock(struct tp_actor *self, struct tp_value_mutex *m,
                        uint64_t deadline_ns, bool *out_abandoned);

/* The same without waiting. TROUPE_EBUSY: somebody holds it, maybe self. */
int tp_value_mutex_try_lock(struct tp_actor *self, struct tp_value_mutex *m,
                            bool *out_abandoned);

/* TROUPE_EINVAL: self does not hold it. */
int tp_value_mutex_unlock(struct tp_actor *self, struct tp_value_mutex *m);

bool tp_value_mutex_is_held_by(struct tp_value_mutex *m, troupe_pid pid);

/* The holder replaces the value; takes it. */
void tp_value_mutex_set(struct tp_value_mutex *m, struct tp_msg *value);

#endif
