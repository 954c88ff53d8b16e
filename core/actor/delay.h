/*
 * delay.h - messages that are sent later, once or again and again.
 *
 * Threads:  any.
 * Locks:    TP_RANK_TIMER, inside the calls.
 * Memory:   after takes the message, on success only.
 * Parks:    never.
 * Fails:    TROUPE_ENOMEM, TROUPE_EINVAL.
 * Tests:    spec/unit/delay_test.c
 */
#ifndef TP_ACTOR_DELAY_H
#define TP_ACTOR_DELAY_H

#include "actor/mailbox.h"

/*
 * Sends m to to at deadline_ns, and then each interval_ns if that is not 0
 * (m names nothing that moves then). A full mailbox that blocks takes it
 * beyond its limit, since a timer cannot wait; one that refuses or drops does
 * without; the message of an interval is not counted by the limit. At most one message of an interval
 * waits in the mailbox: a tick that finds the last one unread is left out. The
 * timer goes when to is dead; the end of its maker does not matter.
 * erlang:send_after/3.
 */
int tp_send_after(troupe_pid to, struct tp_msg *m, uint64_t deadline_ns,
                  uint64_t interval_ns, uint64_t *out_id);

/* The same, once, to who has the name at deadline_ns; nobody: m is dropped.
 * Until then the run goes on. */
int tp_send_after_name(const char *name, size_t len, struct tp_msg *m,
                       uint64_t deadline_ns, uint64_t *out_id);

/* True if the timer will send no (further) message because of this call.
 * erlang:cancel_timer/1. */
bool tp_send_cancel(uint64_t id);

/* The reader took m, a TP_MSG_TICK, or drops it: the next tick may come. */
void tp_tick_release(struct tp_msg *m);

#endif
