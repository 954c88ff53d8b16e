/*
 * slice.h - cutting an actor's slice short, and containing its overflow.
 *
 * Idea:     what the signal handlers of ctx/ ask: whose stack is this, may its
 *           code stop at this instruction, may it be given up. The class of
 *           the actor knows its code; all else is here.
 * Threads:  signal context of a worker, but for init and fini.
 * Tests:    spec/unit/preempt_test.c, spec/unit/fault_test.c
 */
#ifndef TP_ACTOR_SLICE_H
#define TP_ACTOR_SLICE_H

#include "actor/actor.h"

/* Installs the handlers. 0 or what tp_preempt_install, tp_fault_install say. */
int tp_slice_init(void);
void tp_slice_fini(void);

/* From a hook that the language calls where its code may stop: the running
 * actor yields if it was asked to, as at a signal. May switch. */
void tp_slice_hook(void);

/* Is enough of the stack left for a call into the core? The running actor, or
 * no actor at all: true. */
bool tp_stack_has_room(void);

/*
 * The running actor is as deep as here: its stack's low-water mark, otherwise
 * the deepest place of a switch. For what deep code calls now and then.
 */
void tp_stack_note(void);

/*
 * Before a lock is taken or libc is called from code that may be given up:
 * where there is no room for that, the running actor ends here as if its stack
 * had run over, and the call does not return. Hold no lock.
 */
void tp_stack_check(void);

/* The running actor's stack ran over: it ends here. Hold no lock. */
_Noreturn void tp_overflow_end(struct tp_actor *a);

/* The running actor's finish cannot go on: its class's finish is left for good,
 * as one that does not come to its end, and the actor's end goes on without it.
 * Hold no lock. */
_Noreturn void tp_finish_give_up(struct tp_actor *a);

#endif
