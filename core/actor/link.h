/*
 * link.h - links and monitors: being told how an actor ended.
 *
 * Idea:     a monitor is one node with two holders: the target's list (under
 *           the target's slot lock) and the watcher's table by reference
 *           (watcher only). The target's end turns it into one TP_MSG_DOWN.
 *           The table decides what is still wanted: a down whose reference is
 *           not there was demonitored and is dropped when it is read, so that
 *           demonitor never searches the mailbox.
 *           A link is each one's pid in the other's set, under both slots'
 *           locks. The end of one takes its pid out of the other's set and
 *           signals in one step, so that unlink is exact.
 * Threads:  monitor, demonitor, take_down, fini: the watcher. notify: the
 *           target.
 * Locks:    TP_RANK_SLOT of the target; link, unlink: of both.
 * Memory:   node: two references, freed by the last.
 * Fails:    monitor: TROUPE_ENOMEM; TROUPE_EINVAL in finish.
 * Rejected: a search through the mailbox on demonitor - it holds up to
 *           millions of messages.
 * Tests:    spec/unit/link_test.c
 */
#ifndef TP_ACTOR_LINK_H
#define TP_ACTOR_LINK_H

#include "actor/actor.h"
#include "actor/mailbox.h"

/* The reference of a monitor, of an actor or a group: no other has it. */
uint64_t tp_ref_new(void);

/*
 * The running actor will get one TP_MSG_DOWN with *out_ref when target ends;
 * at once, with TP_REASON_NOPROC, if it is dead. erlang:monitor/2.
 */
int tp_monitor(struct tp_actor *self, troupe_pid target, uint64_t *out_ref);

/* No down with ref is delivered after this. True if none was sent yet.
 * erlang:demonitor/2 with flush. */
bool tp_demonitor(struct tp_actor *self, uint64_t ref);

/* The owner has taken m, a TP_MSG_DOWN, out of its mailbox: false, and m is
 * dropped or set aside, if it is not for who receives. */
bool tp_monitor_take_down(struct tp_actor *self, struct tp_msg *m);

/* The reason in a TP_MSG_DOWN or TP_MSG_EXIT; borrowed. */
struct tp_reason *tp_notice_reason(struct tp_msg *m);

/* Is ref a monitor of the running actor whose down is for who receives? */
bool tp_monitor_wants(struct tp_actor *self, uint64_t ref);

/* On: the down of ref, a monitor of the running actor, is for await_down alone;
 * a receive that meets it sets it aside. Off: it is a message as others, the
 * first one if it was set aside. False: no such monitor. */
bool tp_monitor_reserve(struct tp_actor *self, uint64_t ref, bool on);

/* Waits for the down of a monitor; other messages stay. 0 and *out_down, the
 * caller's; TROUPE_ENOTFOUND: no such monitor; TROUPE_ETIMEOUT, or as
 * tp_actor_park. Parks. */
int tp_await_down(struct tp_actor *self, uint64_t ref, uint64_t deadline_ns,
                  struct tp_msg **out_down);

/* Waits for pid's end; of one that has ended already the reason is told while
 * its slot remembers, if it was a constant, else TP_REASON_NOPROC. 0 and *out_down, a TP_MSG_DOWN of the caller's;
 * TROUPE_ETIMEOUT, or as tp_actor_park. Parks. */
int tp_join(struct tp_actor *self, troupe_pid pid, uint64_t deadline_ns,
            struct tp_msg **out_down);

/* For finish: drops all that the actor watches. */
void tp_monitors_fini(struct tp_actor *self);

/* For finish: tells all of a list that was taken from an actor; lock is the
 * dead one's slot's. */
void tp_monitors_tell(struct tp_mutex *lock, struct tp_list *told,
                      struct tp_reason *reason);

/* Releases what a TP_MSG_DOWN or TP_MSG_EXIT carries; tp_msg_drop calls it. */
void tp_notice_release(struct tp_msg *m);

/* -- links --------------------------------------------------------------- */

/* Links self and pid; again, or with oneself, is no difference. To a dead one:
 * self gets an exit signal with TP_REASON_NOPROC. erlang:link/1. 0,
 * TROUPE_ENOMEM; TROUPE_EINVAL: self's end has been told to all. */
int tp_link(struct tp_actor *self, troupe_pid pid);

/* No exit signal of that link comes after this; a message of one may be there
 * already. erlang:unlink/1. */
void tp_unlink(struct tp_actor *self, troupe_pid pid);

/* erlang:process_flag(trap_exit, On). */
void tp_trap_exit(struct tp_actor *self, bool on);

/*
 * An exit signal: to ends with reason (borrowed), or, if it traps exits, gets
 * a TP_MSG_EXIT; TP_REASON_NORMAL ends nobody. False: to is dead.
 * erlang:exit/2 but for "kill", which is tp_actor_end with TP_REASON_KILLED.
 */
bool tp_exit_signal(troupe_pid from, troupe_pid to, struct tp_reason *reason);

/* For finish: signals all of a set that was taken from an actor; frees it. */
void tp_links_tell(troupe_pid dead, struct tp_pidset *links,
                   struct tp_reason *reason);

/* For spawn: the link and the monitor that opts ask for, before child runs. */
int tp_spawn_ties(const struct tp_spawn_opts *opts, struct tp_actor *child);

#endif
