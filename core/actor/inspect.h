/*
 * inspect.h - what an actor is doing, as one coherent picture.
 *
 * Threads:  any. What the owner alone writes is read while it runs, as a
 *           sample: such fields say so.
 * Locks:    TP_RANK_SLOT of the actor.
 * Parks:    never.
 * Fails:    TROUPE_ENOPROC.
 * Tests:    spec/lua/inspect_spec.lua
 */
#ifndef TP_ACTOR_INSPECT_H
#define TP_ACTOR_INSPECT_H

#include "actor/actor.h"

struct tp_actor_info {
    enum tp_state state;
    troupe_pid parent;
    uint64_t started_ns;
    uint32_t links, monitored_by;
    bool trap_exit;
    bool in_c;         /* the last signal met code that cannot stop */
    bool blocking;     /* sample: in the blocking pool, or on its way */
    uint64_t overruns; /* sample */
    size_t stack_reserve, stack_guard;
    size_t stack_high_water; /* sample: deepest use seen at a switch, bytes */
    uint32_t stack_shrinks;  /* sample */
    uint32_t mail_limit, mail_count;
};

/*
 * Fills *out of pid. extra, if not NULL, is called with the slot's lock held
 * and the actor's argument, for what its class knows; it must not block.
 */
int tp_actor_inspect(troupe_pid pid, struct tp_actor_info *out,
                     void (*extra)(struct tp_actor *a, void *ud), void *ud);

#endif
