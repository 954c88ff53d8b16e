/*
 * registry.h - names: a byte string for an actor.
 *
 * Idea:     one map, name to pid, under one lock. An actor may have several
 *           names; they hang on a list in it, so that its end finds them.
 *
 *           Who has a name is alive: a holder whose mailbox is closed is no
 *           holder, and its entry is taken over by the next who asks for the
 *           name. The pid in an entry carries its generation, so a slot's next
 *           actor is not mistaken for its last.
 *
 *           Why an entry may hang in an actor that another thread runs: under
 *           the lock its mailbox was seen open. Its end closes the mailbox
 *           first and then takes this lock in tp_names_release. So it cannot
 *           be freed before we let go, and finds what we have added. An actor
 *           that nobody ever put on a list does not take the lock: "listed" is
 *           set under its slot's lock where the open mailbox is seen, and read
 *           under that lock once the mailbox is closed.
 * Threads:  any, unless said otherwise.
 * Locks:    TP_RANK_REGISTRY, then TP_RANK_SLOT and higher.
 * Memory:   names are copied.
 * Parks:    never.
 * Fails:    TROUPE_ENAME_TAKEN, TROUPE_ENOPROC, TROUPE_EINVAL, TROUPE_ENOMEM.
 * Rejected: a lock for each part of the map - an end would take one for each
 *           of its names, and groups need two maps changed at once. Who sends
 *           a lot keeps the pid.
 * Tests:    spec/unit/registry_test.c, spec/unit/registry_stress.c
 */
#ifndef TP_ACTOR_REGISTRY_H
#define TP_ACTOR_REGISTRY_H

#include "actor/actor.h"
#include "actor/message.h"
#include "base/mutex.h"
#include "base/strmap.h"

#define TP_NAME_MAX 255

/*
 * Gives pid a name. 0, also when it has this name already (erlang:register/2
 * refuses that, and a second name); TROUPE_ENAME_TAKEN: *out_holder has it;
 * TROUPE_ENOPROC: pid is dead or ending; TROUPE_EINVAL: len is not in
 * 1..TP_NAME_MAX; TROUPE_ENOMEM. out_holder may be NULL; 0 unless taken.
 */
int tp_register(const char *name, size_t len, troupe_pid pid,
                troupe_pid *out_holder);

/* Frees a name, whoever has it. True if a living actor had it. */
bool tp_unregister(const char *name, size_t len);

/* Who has this name; 0: nobody. */
troupe_pid tp_whereis(const char *name, size_t len);

/*
 * The names of pid in the order they were given, or all names (pid 0) in none.
 * *out_names is a message of the caller's that was never sent, so that an
 * actor can own it across a call that may not return: each name is one byte
 * for its length and then its bytes. NULL without memory: TROUPE_ENOMEM.
 */
int tp_names(troupe_pid pid, struct tp_msg **out_names);

/*
 * For tp_spawn, of an actor that is not started yet: gives it its first name.
 * 0: the lock is held, and nobody sees the name until tp_name_born; else as
 * tp_register, and the lock is free.
 */
int tp_name_claim(struct tp_actor *a, const char *name, size_t len,
                  troupe_pid *out_holder);

/* Lets go of the lock; before that takes the name back if not born. */
void tp_name_born(struct tp_actor *a, bool born);

/* For finish, after tp_mailbox_close: all names of the actor are free. */
void tp_names_release(struct tp_actor *self);

/* After a run: frees the map. All actors are gone. */
void tp_names_fini(void);

/* -- for group.c, too ---------------------------------------------------- */

extern struct tp_mutex tp_registry_lock; /* rank REGISTRY */

/* The actor, if its mailbox is open; lists in it may be changed until the lock
 * is free. NULL: dead or ending. */
struct tp_actor *tp_registry_actor_locked(troupe_pid pid);

/* For finish, after tp_mailbox_close: may something be on the lists? */
bool tp_registry_is_listed(struct tp_actor *self);

/* Where names go, in the form of tp_names. */
struct tp_name_sink {
    struct tp_msg *m; /* NULL: they are only counted */
    size_t size;
};

void tp_name_sink_add(struct tp_name_sink *s, const struct tp_strnode *n);

/* A message, as tp_names gives it, of what each adds. It is called twice. */
int tp_names_collect_locked(void (*each)(struct tp_name_sink *s, void *arg),
                            void *arg, struct tp_msg **out_names);

#endif
