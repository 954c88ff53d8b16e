/*
 * inspect.c - what an actor is doing. See inspect.h.
 *
 * Tests: spec/lua/inspect_spec.lua
 */
#include "actor/inspect.h"

#include "sched/blocking.h"

static uint32_t
list_length(const struct tp_list *l)
{
    uint32_t n = 0;
    for (const struct tp_list *i = l->next; i != l; i = i->next) {
        n++;
    }
    return n;
}

static void
fill_locked(const struct tp_actor *a, struct tp_actor_info *out)
{
    /* relaxed: a sample of a word that changes all the time. */
    uint64_t word = atomic_load_explicit(&a->slot->state, memory_order_relaxed);
    out->state = tp_state_of(word);
    out->parent = a->parent;
    out->started_ns = a->started_ns;
    out->links = a->links.count;
    out->monitored_by = list_length(&a->watchers);
    out->trap_exit = a->trap_exit;
    /* relaxed: a sample. */
    out->in_c = atomic_load_explicit(&a->in_c, memory_order_relaxed);
    out->blocking = tp_slot_blocks(a->slot);
    out->overruns = a->overruns;
    out->stack_reserve = a->stack.reserve;
    out->stack_guard = a->stack.guard;
    out->stack_high_water = a->low_water == NULL
                                ? a->stack.reserve
                                : (size_t)(a->stack.hi - a->low_water);
    out->stack_shrinks = a->shrinks;
    out->mail_limit = a->mail_limit;
    out->mail_count = a->mail_count;
}

int
tp_actor_inspect(troupe_pid pid, struct tp_actor_info *out,
                 void (*extra)(struct tp_actor *a, void *ud), void *ud)
{
    struct tp_slot *s = tp_slot_at(pid);
    int rc = TROUPE_ENOPROC;
    if (s == NULL) {
        return rc;
    }
    tp_mutex_lock(&s->lock, TP_RANK_SLOT);
    struct tp_actor *a = s->actor;
    if (a != NULL && a->pid == pid && !a->told) {
        rc = 0;
        fill_locked(a, out);
        if (extra != NULL) {
            extra(a, ud);
        }
    }
    tp_mutex_unlock(&s->lock, TP_RANK_SLOT);
    return rc;
}
