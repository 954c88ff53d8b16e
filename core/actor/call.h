/*
 * call.h - a request and its one answer.
 *
 * Idea:     a request is a message with the number of the call. The answer
 *           does not go through the caller's mailbox: it is put into the
 *           caller's actor, under its slot lock, if that call is still the one
 *           it waits for, and ends that very wait. So a late answer finds
 *           another number and is dropped, and exactly one answer counts:
 *           reply, no_reply, or the end of the one who was asked.
 *           The one who was asked, the callee, keeps a struct tp_owed for each
 *           request it has taken or that its mailbox held at its end; its end
 *           fails them. Others may have references to one, and answer as well.
 * Threads:  call: the caller. owed_new: the callee. answer and the rest of
 *           owed_*: any.
 * Locks:    TP_RANK_SLOT, of one actor at a time.
 * Ordering: OWE-1 in call.c.
 * Memory:   see each function.
 * Parks:    tp_call.
 * Fails:    see tp_call.
 * Rejected: replies as messages with a reference - a late one stays in the
 *           mailbox of a caller that has given up.
 * Tests:    spec/unit/call_test.c, spec/unit/call_stress.c
 */
#ifndef TP_ACTOR_CALL_H
#define TP_ACTOR_CALL_H

#include "actor/actor.h"
#include "actor/mailbox.h"

/* A request that was taken and is to be answered. */
struct tp_owed {
    struct tp_list on_callee; /* under the callee's slot lock */
    /* any thread, atomic */
    _Atomic uint32_t refs; /* and a bit for the callee's list */
    _Atomic bool answered;
    /* set at birth */
    troupe_pid callee;
    troupe_pid caller;
    uint64_t id;
};

/*
 * Sends m, a TP_MSG_CALL, and waits for the answer; before that for room in a
 * mailbox that blocks. Takes m.
 * 0: *out_reply is the caller's. TROUPE_ENOPROC: dead already, or ended
 * meanwhile: then *out_reason is the caller's reference, else NULL.
 * TROUPE_ECALLING_SELF, TROUPE_ENO_REPLY, TROUPE_ETIMEOUT, TROUPE_EFULL, or as
 * tp_actor_park.
 */
int tp_call(struct tp_actor *self, troupe_pid to, struct tp_msg *m,
            uint64_t deadline_ns, struct tp_msg **out_reply,
            struct tp_reason **out_reason);

/*
 * The end of call id of caller: by reply (taken), or by reason (borrowed), or,
 * both NULL, by "no_reply". False: nobody waits for it any more.
 */
bool tp_call_answer(troupe_pid caller, uint64_t id, struct tp_msg *reply,
                    struct tp_reason *reason);

/* The running actor has taken m, a TP_MSG_CALL, out of its mailbox. The caller
 * of that request waits until the result, one reference, is answered. NULL
 * without memory. */
struct tp_owed *tp_owed_new(struct tp_actor *self, const struct tp_msg *m);

void tp_owed_ref(struct tp_owed *o);

/* The last one is gone: the caller gets "no_reply" if it waits still, or, where
 * the callee drops it in its end, the reason of that. No slot's lock is held. */
void tp_owed_unref(struct tp_owed *o);

/* Answers with reply (taken). False: nobody waits any more. */
bool tp_owed_reply(struct tp_owed *o, struct tp_msg *reply);

/* For finish: fails and frees a list that was taken from an actor. */
void tp_owed_fail(struct tp_list *owed, struct tp_reason *reason);

/* For mailbox_close: m, still queued, becomes owed; m is the caller's. */
void tp_owed_queued(struct tp_actor *self, const struct tp_msg *m);

/* tp_msg_drop calls it for a TP_MSG_CALL: nobody will answer. */
void tp_call_release(struct tp_msg *m);

/* For finish: the actor itself waits for no answer any more. */
void tp_call_fini(struct tp_actor *self);

#endif
