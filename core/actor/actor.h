/*
 * actor.h - birth, life and end of an actor.
 *
 * Idea:     an actor is a class (three functions), an argument and a green
 *           stack. What it runs is the class's business.
 *
 *   main returns, or the actor is doomed at a wait or a yield
 *     -> finish(), on the actor's own stack, reset to the top if doomed:
 *        1 core-owned resources: mailbox closed, what it holds (struct
 *          tp_resource), names, groups, timer, monitors it holds
 *        2 class->finish: closes the Lua state; may be slow, cannot park
 *        3 callers that wait for a reply, links, monitors are told; after
 *          tp_finish_patience_ns without waiting for 2 any longer. Once 2 has
 *          run for as long itself it is given up (slice.c)
 *     -> reap(), on the worker: stack, class->free, slot, live count (last)
 *
 * Threads:  fields by group, below.
 * Locks:    TP_RANK_SLOT of the actor's slot.
 * Parks:    as each function says.
 * Tests:    spec/unit/actor_test.c, spec/unit/actor_stress.c
 */
#ifndef TP_ACTOR_ACTOR_H
#define TP_ACTOR_ACTOR_H

#include "actor/reason.h"
#include "base/list.h"
#include "base/pidset.h"
#include "ctx/fiber.h"
#include "ctx/preempt.h"
#include "mem/stack.h"
#include "sched/slot.h"
#include "sched/timer.h"
#include "sched/worker.h"

struct tp_fd_waits;
struct tp_msg;

/* What a full mailbox does with the next message. */
enum tp_mail_policy {
    TP_MAIL_ERROR,
    TP_MAIL_BLOCK,
    TP_MAIL_DROP_NEW
};

struct tp_actor_class {
    /* The actor's life, on its own stack. */
    void (*main)(struct tp_actor *a, void *arg);
    /* Its end, on its own stack. Must not park. May be NULL. */
    void (*finish)(struct tp_actor *a, void *arg);
    /* In its place where the stack ran over or finish was given up: what was
     * going on is no more, and arg may be in any state. May be NULL. */
    void (*overflowed)(struct tp_actor *a, void *arg);
    /* Frees arg; on a worker's stack, must not run user code. May be NULL. */
    void (*free)(void *arg);
    /* Signal context. May the code at this frame be left and gone on with
     * later, on another thread too? NULL: never. */
    bool (*may_stop)(struct tp_actor *a, const struct tp_preempt_frame *f);
    /* Signal context. Was the fault at address brought about by may_stop, to
     * be asked again there? It will not come again. NULL: no. */
    bool (*meant_fault)(struct tp_actor *a, uintptr_t address);
    /* Signal context. The stack ran over at pc: may the code be given up? */
    bool (*may_abandon)(struct tp_actor *a, uintptr_t pc);
    /* Signal context. It ran over where it may not, and was made longer by a bit:
     * calls tp_overflow_end once the code has come to its end. May be NULL. */
    void (*end_soon)(struct tp_actor *a);
    /* Signal context. finish does not come to its end: may it be given up at
     * this frame, that is, is no lock held? NULL: never. */
    bool (*may_give_up)(struct tp_actor *a, const struct tp_preempt_frame *f);
};

struct tp_spawn_opts {
    size_t stack_reserve; /* bytes, 0: default */
    size_t stack_guard;
    uint32_t mail_limit; /* messages, 0: none */
    uint8_t mail_policy; /* enum tp_mail_policy */
    bool unkillable;     /* a doom is told by TROUPE_EKILLED from waits */
    bool link;           /* to the spawner: erlang:spawn_link/3 */
    bool monitor;        /* by the spawner: erlang:spawn_monitor/3 */
    uint64_t *out_ref;   /* the monitor's reference */
    const char *name;    /* its first name, before it runs; NULL: none */
    size_t name_len;
    troupe_pid *out_holder; /* who has it, with TROUPE_ENAME_TAKEN */
};

struct tp_mail_waiter {
    troupe_pid pid;
    uint32_t epoch;
};

/*
 * What an actor holds of the core and gives up at its end, before its class
 * does: a socket, a channel's receiver, a mutex. Part of some larger struct.
 */
struct tp_resource {
    struct tp_list node;
    /* Called once, on the ending actor's stack, r is off the list by then. Must
     * not park; may free r. */
    void (*release)(struct tp_resource *r);
};

/* Lives at the top of its own stack, from tp_spawn until it is reaped. */
struct tp_actor {
    /* set at birth */
    struct tp_slot *slot;
    troupe_pid pid;
    troupe_pid parent;
    const struct tp_actor_class *class;
    void *arg;
    bool unkillable;
    uint64_t started_ns;

    /* owner only */
    struct tp_fiber fiber;
    struct tp_stack stack;
    char *low_water; /* lowest sp seen at a switch */
    uint64_t cpu_cycles;
    bool finishing;        /* in finish(): parking is refused */
    bool abandoned;        /* its stack ran over: class->finish is left out */
    bool given_up;         /* as abandoned, but finish was given up */
    int64_t finish_cycles; /* used in finish by slices that are over */
    unsigned nopreempt;    /* troupe_nopreempt_begin, nested */
    uintptr_t stopped_result; /* of the frame at which a signal stopped it; 0
                                 where it went on, or stopped by itself */
    uint32_t shrinks;         /* of the stack */
    uint32_t parks;           /* since the stack was last shrunk, or enough */
    uint64_t overruns;        /* slices cut short */
    _Atomic bool in_c;        /* the last signal met code that may not stop */
    troupe_pid master;        /* whose exit a server takes first; 0: nobody's */
    uint32_t urgent;          /* fetched messages of tp_mailbox_urgent */
    troupe_pid room_of;       /* whose full mailbox it waits for; 0: none */
    struct tp_wait_timer *wait_timer; /* NULL: has had no deadline yet */
    uint64_t call_seq;                /* last call made; call.c */
    struct tp_msg *call_request;      /* until it is in the other's mailbox */
    struct tp_monitor **monitors;     /* own monitors, chained by ref; link.c */
    uint32_t monitor_buckets;
    uint32_t monitor_count;
    struct tp_pidset group_refs;  /* own group monitors; group.c */
    struct tp_list resources;     /* struct tp_resource, the youngest last */
    struct tp_fd_waits *fd_waits; /* io/wait.c; NULL: has never waited there */

    /* under the slot's lock */
    struct tp_reason *reason;  /* why it ends; NULL: not ending, or normal */
    bool doomed;               /* an end was asked for from outside */
    bool closing;              /* finish has begun */
    bool told;                 /* 3 was done; too late to link or monitor */
    bool trap_exit;            /* exit signals become messages */
    bool listed;               /* may be in names or groups; registry.h */
    struct tp_pidset links;    /* the other ends */
    struct tp_list watchers;   /* struct tp_monitor, by others */
    struct tp_list owed;       /* struct tp_owed, requests to be answered */
    uint64_t call_id;          /* the call it waits for, 0: none; call.c */
    uint32_t call_epoch;       /* the wait that the answer ends */
    struct tp_msg *call_reply; /* the answer: a reply, */
    struct tp_reason *call_reason; /* or why there is none */
    uint32_t mail_limit;
    uint32_t mail_count; /* counted only with a limit */
    uint8_t mail_policy;
    struct tp_mail_waiter *mail_waiters; /* senders parked for room, FIFO */
    uint32_t mail_waiter_first, mail_waiter_count, mail_waiter_capacity;

    /* under the registry's lock; registry.c, group.c */
    struct tp_list names;
    struct tp_list groups; /* memberships, and group monitors */
};

/* The running actor, NULL outside of one. */
static inline struct tp_actor *
tp_actor_self(void)
{
    struct tp_slot *s = tp_slot_self();
    return s == NULL ? NULL : s->actor;
}

/*
 * A new actor runs class->main(arg). Takes arg on success. Fails: ENOMEM,
 * ELIMIT (max_actors or stacks), EKILLED (the runtime is stopping); with a
 * name as tp_register; nothing of the actor is left then. opts may be NULL.
 * Any thread while the runtime lives.
 */
int tp_spawn(const struct tp_spawn_opts *opts,
             const struct tp_actor_class *class, void *arg,
             troupe_pid *out_pid);

/*
 * Parks the running actor until its wait epoch is ended or deadline_ns comes
 * (TP_NEVER: never). May return early. 0; TROUPE_EKILLED: an unkillable actor
 * was told to end; TROUPE_EINVAL: in finish; TROUPE_ENOMEM.
 */
int tp_actor_park(struct tp_actor *self, uint64_t deadline_ns);

/* Lets others run. As tp_actor_park, but never waits. */
int tp_actor_yield(struct tp_actor *self);

/* Parks until deadline_ns, never less. As tp_actor_park. */
int tp_actor_sleep(struct tp_actor *self, uint64_t deadline_ns);

/*
 * Between the two the running actor is on a thread of the blocking pool: what
 * blocks there blocks nobody else. It may do all that an actor may, and wait,
 * too. They nest; only the outermost pair moves. An actor that ends in between
 * needs no end.
 * begin: 0; TROUPE_EINVAL: in finish; TROUPE_EKILLED: an unkillable actor was
 * told to end; TROUPE_ELIMIT: no thread could be had. end: 0 or TROUPE_EKILLED,
 * and the section is over. Both may park.
 */
int tp_blocking_begin(struct tp_actor *self);
int tp_blocking_end(struct tp_actor *self);

/* Ends pid at its next wait or yield, whether it traps exits or not; takes
 * reason. False: already ending or gone. Any thread. */
bool tp_actor_end(troupe_pid pid, struct tp_reason *reason);

/* The same with the slot's lock held and a known to be pid's. */
bool tp_actor_end_locked(struct tp_actor *a, struct tp_reason *reason);

/* Was the running actor told to end? It will, at its next wait or yield. */
static inline bool
tp_actor_is_doomed(const struct tp_actor *self)
{
    return tp_slot_is_doomed(self->slot);
}

/* The running actor's reason, before its main returns; takes it. */
void tp_actor_set_reason(struct tp_actor *self, struct tp_reason *reason);

/* Ends the running actor here, without returning to main. Takes reason. */
_Noreturn void tp_actor_exit(struct tp_actor *self, struct tp_reason *reason);

void tp_actor_checkpoint_slow(void);

/* Cheap; in functions that run often and never wait. May switch. */
static inline void
tp_actor_checkpoint(void)
{
    struct tp_worker *w = tp_worker_self();
    /* relaxed: a request by the monitor, repeated until it is followed. */
    if (TP_UNLIKELY(atomic_load_explicit(&w->resched, memory_order_relaxed))) {
        tp_actor_checkpoint_slow();
    }
}

/* The running actor holds r from here on, until it removes it or ends. */
static inline void
tp_resource_add(struct tp_actor *self, struct tp_resource *r)
{
    tp_list_push_back(&self->resources, &r->node);
}

/* Its holder does, once or more often. r must have been added before. */
static inline void
tp_resource_remove(struct tp_resource *r)
{
    tp_list_remove(&r->node);
}

/* Live actors: born, not yet reaped. */
extern _Atomic uint32_t tp_actor_live;

/* For the runtime: called once, from reap, when the root is gone. Takes
 * reason. */
extern void (*tp_actor_on_root_end)(struct tp_reason *reason);
extern _Atomic uint64_t tp_actor_root; /* pid */
extern _Atomic bool tp_actor_no_spawn; /* the runtime is stopping */

extern const struct tp_sched_ops tp_actor_sched_ops;
/* Set by the runtime; see tp_sched_ops.quiescent. */
extern bool (*tp_actor_quiescent)(void);
/* What finalizers may take before others are told regardless, and run before
 * they are given up; for tests. */
extern _Atomic uint64_t tp_finish_patience_ns;
/* So many actors' finalizers were given up, in this run. */
extern _Atomic uint64_t tp_actor_given_up;
/* Told of an actor whose finalizers outlast the patience. May be NULL. */
extern void (*tp_actor_on_slow_finish)(troupe_pid pid);

/* Ends all actors with reason (a constant). Any thread. */
void tp_actor_end_all(enum tp_reason_kind root, enum tp_reason_kind others);

#endif
