/*
 * select.h - wait for the first of several things.
 *
 * Idea:     all arms are set for one and the same wait of the actor. Whatever
 *           ends it, the arms that lost name a wait that is over, and wake
 *           nobody; those of fds are taken back.
 * Threads:  the running actor.
 * Parks:    tp_select.
 * Tests:    spec/unit/select_test.c
 */
#ifndef TP_IO_SELECT_H
#define TP_IO_SELECT_H

#include "actor/channel.h"
#include "io/wait.h"

enum tp_arm_kind {
    TP_ARM_CHANNEL, /* its receiver */
    TP_ARM_INBOX,   /* the own mailbox */
    TP_ARM_FD
};

struct tp_arm {
    enum tp_arm_kind kind;
    struct tp_channel *channel; /* held by the caller; NULL: closed */
    int fd;
    enum tp_fd_dir dir;
    bool fired; /* private to select.c */
};

/*
 * Parks until an arm is ready, or deadline_ns: TROUPE_ETIMEOUT. A closed one is
 * ready. *out_index: the first one that is, in order. Takes nothing. Else as
 * tp_fd_wait, and *out_index says of which arm, or as tp_actor_park. The arms
 * must outlive an actor that ends in here: they lie on its stack, or in memory
 * of its class.
 */
int tp_select(struct tp_actor *self, struct tp_arm *arms, size_t n,
              uint64_t deadline_ns, size_t *out_index);

#endif
