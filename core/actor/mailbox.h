/*
 * mailbox.h - one actor's incoming messages: many senders, one reader.
 *
 * Idea:     senders push on a stack by CAS; the reader takes the whole stack
 *           with one exchange, reverses it and appends it to a list of its
 *           own, where a selective receive may take from the middle.
 *
 *   inbox word:  [ generation 16 | 48 bits ]
 *     ...0000  address of the newest message, or 0: empty
 *     ...0001  empty, and the reader parks; bits 4.. are its wait epoch
 *     ...0010  closed
 *
 *           The sender that replaces a "parks" word wakes that very wait, so a
 *           message costs at most one wake, and a sleep is not ended by mail.
 *           The generation in the word keeps a late sender from a slot's next
 *           actor.
 * Threads:  push: any. The rest: the owner.
 * Locks:    TP_RANK_SLOT, for mailboxes with a limit only.
 * Ordering: MBX-1, MBX-2 in mailbox.c.
 * Memory:   push takes the message on success only; pop and take hand it out.
 * Parks:    wait; send to a mailbox that blocks.
 * Fails:    push: TROUPE_ENOPROC, TROUPE_EFULL.
 * Rejected: a ring buffer - needs a bound for every actor; a list with a lock
 *           - a sender that loses its CPU would stop all others.
 * Tests:    spec/unit/mailbox_test.c, spec/unit/mailbox_stress.c
 */
#ifndef TP_ACTOR_MAILBOX_H
#define TP_ACTOR_MAILBOX_H

#include "actor/actor.h"
#include "actor/message.h"

/* Kinds of struct tp_msg. */
enum tp_msg_kind {
    TP_MSG_USER = 0, /* data: bytes of the bindings */
    TP_MSG_DOWN,     /* ref, from: the dead; data: struct tp_reason * */
    TP_MSG_CALL,     /* as USER; from, ref: who waits for an answer; call.c */
    TP_MSG_EXIT,     /* from: a linked actor, or who called exit; as DOWN */
    TP_MSG_TICK,     /* as USER, of an interval timer; delay.c */
    TP_MSG_GROUP,    /* from joined or left; ref; data: group.c */
    TP_MSG_PROCESS,  /* a child process has ended; ref; data: io/process.h */
    TP_MSG_CAST,     /* as USER, for a server: a request without an answer */
    TP_MSG_SYSTEM    /* as USER, for a server's loop; before all other mail */
};

void tp_mailbox_init(struct tp_slot *s, bool limited);

/* Delivers m. Never parks: TROUPE_EFULL instead, where the mailbox blocks
 * too. A mailbox with DROP_NEW that is full drops m and returns 0. */
int tp_mailbox_push(troupe_pid to, struct tp_msg *m);

/* The same from an actor; parks while a mailbox that blocks is full. May fail
 * as tp_actor_park does; the caller then still owns m. */
int tp_mailbox_send(struct tp_actor *self, troupe_pid to, struct tp_msg *m);

/* The same, until deadline_ns: TROUPE_ETIMEOUT. */
int tp_mailbox_send_dl(struct tp_actor *self, troupe_pid to, struct tp_msg *m,
                       uint64_t deadline_ns);

/* As push, for who can neither wait nor say what became of m: a mailbox that
 * blocks takes it beyond its limit. */
int tp_mailbox_force(troupe_pid to, struct tp_msg *m);

/* The oldest message, NULL when there is none. */
struct tp_msg *tp_mailbox_pop(struct tp_actor *self);

/* Moves what has arrived to the own list; true if there was any. */
bool tp_mailbox_fetch(struct tp_actor *self);

/* Takes *link, a message of the own list, out of it. The first link is
 * &slot->mail_head, the next one &m->next. */
struct tp_msg *tp_mailbox_take(struct tp_actor *self, struct tp_msg **link);

/* Puts m, which tp_mailbox_take gave and which is neither urgent nor subject to
 * a limit, before all that wait. */
void tp_mailbox_put_back(struct tp_actor *self, struct tp_msg *m);

/* The link of the first message that a server takes before all others: a
 * TP_MSG_SYSTEM, or a TP_MSG_EXIT from self->master. NULL: none was fetched. */
struct tp_msg **tp_mailbox_urgent(struct tp_actor *self);

/* The next message will end the running actor's wait. False: there is one that
 * was not fetched. Leaves nothing behind that a later wait meets. */
bool tp_mailbox_arm(struct tp_actor *self);

/* Parks until something new has arrived (then it is fetched: 0) or the
 * deadline is over (TROUPE_ETIMEOUT). Else as tp_actor_park. */
int tp_mailbox_wait(struct tp_actor *self, uint64_t deadline_ns);

/* No message gets in any more; drops all that are there; frees waiters. */
void tp_mailbox_close(struct tp_actor *self);

/* Is pid's mailbox open, that is, is it alive and not ending? Any thread. */
bool tp_mailbox_is_open(troupe_pid pid);

#endif
