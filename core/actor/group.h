/*
 * group.h - process groups: actors under one name, and who watches them.
 *
 * Idea:     a group is a list of members in the order they joined and a list
 *           of subscriptions; it is there as long as it has one of either.
 *           Members and subscriptions also hang on a list in their actor, so
 *           that its end finds them.
 *
 *     group:  members  m1 - m2 - m3        an actor's groups list holds both
 *                           ^ next pick    kinds of nodes:
 *             subs     s1 - s2             m2 (of group A) - s7 (of group B)
 *
 *           A member whose mailbox is closed is none: whoever meets one under
 *           the lock takes it out as its own end would, and tells the
 *           subscribers. So no read sees the dead, and each leave is told
 *           once.
 *
 *           Joins and leaves are pushed to the subscribers under the lock:
 *           all see them in one order, the one of the group. That costs a
 *           push for each subscriber; groups have few.
 * Threads:  any, unless said otherwise.
 * Locks:    TP_RANK_REGISTRY, then TP_RANK_SLOT and higher.
 * Memory:   names are copied.
 * Parks:    never.
 * Fails:    TROUPE_ENOPROC, TROUPE_EINVAL, TROUPE_ENOMEM.
 * Rejected: a group as an actor, as OTP has it - a member that died is seen
 *           until that actor has read its down.
 * Tests:    spec/unit/group_test.c
 */
#ifndef TP_ACTOR_GROUP_H
#define TP_ACTOR_GROUP_H

#include "actor/registry.h"

/*
 * Makes pid a member of the group name. 0, also when it is one already, then
 * with *out_new false; TROUPE_ENOPROC: pid is dead or ending; TROUPE_EINVAL:
 * len is not in 1..TP_NAME_MAX; TROUPE_ENOMEM.
 */
int tp_group_join(const char *name, size_t len, troupe_pid pid, bool *out_new);

/* True if pid was a member, and alive. */
bool tp_group_leave(const char *name, size_t len, troupe_pid pid);

/* The members in the order they joined, as an array of troupe_pid in a message
 * of the caller's that was never sent, see tp_names. TROUPE_ENOMEM. */
int tp_group_members(const char *name, size_t len, struct tp_msg **out_pids);

/* The next member in turn; 0: there is none. *out_count members there are; at
 * most, since some may be ending. */
troupe_pid tp_group_pick(const char *name, size_t len, uint32_t *out_count);

/* The names of all groups that have a member, as tp_names gives names. */
int tp_groups(struct tp_msg **out_names);

/*
 * From now on the running actor gets a TP_MSG_GROUP with *out_ref for each
 * join and leave, or, where there is no memory to tell it of a leave, ends with
 * TP_REASON_MEMORY; *out_pids are the members now, as tp_group_members gives
 * them. TROUPE_ENOPROC: the actor is in its finish; else as tp_group_join.
 */
int tp_group_monitor(struct tp_actor *self, const char *name, size_t len,
                     uint64_t *out_ref, struct tp_msg **out_pids);

/* No message with ref is delivered after this. False: there is no such
 * subscription of this actor. */
bool tp_group_demonitor(struct tp_actor *self, uint64_t ref);

/* Is m, a TP_MSG_GROUP in the own mailbox, of a subscription that still
 * holds? If not, the owner takes it out and drops it. */
static inline bool
tp_group_wants(const struct tp_actor *self, const struct tp_msg *m)
{
    return tp_pidset_has(&self->group_refs, m->ref);
}

/* A TP_MSG_GROUP: m->from joined, or left. */
bool tp_group_event_is_join(const struct tp_msg *m);

/* The group's name, in m. */
const char *tp_group_event_name(const struct tp_msg *m, size_t *out_len);

/* For finish, after tp_mailbox_close: out of all groups. */
void tp_groups_release(struct tp_actor *self);

/* After a run: frees the maps. All actors are gone. */
void tp_groups_fini(void);

#endif
