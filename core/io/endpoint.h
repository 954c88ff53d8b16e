/*
 * endpoint.h - an open descriptor that one actor owns, and others may close.
 *
 * Idea:     its owner uses it; whoever had it before it was handed on may still
 *           do one thing: close it. A close by the owner is done at once. One
 *           from elsewhere, while the owner is within a call, shuts the socket
 *           down, which ends the owner's wait, and leaves the descriptor to
 *           the owner, who closes it on its way out: a number that is in use is
 *           never given back. What is no socket cannot be shut down: the owner
 *           learns of it when its wait is over.
 *
 *             enter -> read, write, wait ... -> leave
 *
 * Threads:  the owner, if nothing else is said; close: any with a reference.
 * Locks:    TP_RANK_ENDPOINT, for an endpoint that was handed on only.
 * Ordering: END-1.
 * Memory:   counted. Its owner has a reference on its list of resources, so
 *           that the end of the actor closes it.
 * Parks:    as said.
 * Tests:    spec/unit/stream_test.c
 */
#ifndef TP_IO_ENDPOINT_H
#define TP_IO_ENDPOINT_H

#include "actor/actor.h"
#include "base/mutex.h"
#include "io/wait.h"

struct tp_endpoint {
    /* set at birth */
    void (*free)(struct tp_endpoint *e); /* its memory; may be NULL: tp_free */
    void (*closing)(struct tp_endpoint *e); /* before fd is closed; or NULL */
    /* any thread, atomic */
    _Atomic uint32_t refs;
    /* owner only */
    bool shared;         /* it was handed on: from here on the lock is used */
    uint64_t timeout_ns; /* of a call that names none; TP_NEVER: none */
    /* under the lock, once shared */
    struct tp_mutex lock;
    bool closed; /* a close was asked for */
    bool busy;   /* its owner is between enter and leave */
    int fd;      /* -1: closed; the owner may read it between the two */
    uint32_t id; /* of tp_fd_own */
};

/* A new one has one reference, the caller's. fd may be -1: not open yet. */
void tp_endpoint_init(struct tp_endpoint *e, int fd);

void tp_endpoint_ref(struct tp_endpoint *e);
void tp_endpoint_unref(struct tp_endpoint *e);

/* Of a new one that was not open: fd is the endpoint's from here on. */
void tp_endpoint_open(struct tp_endpoint *e, int fd);

/* Before and after each use of fd. TROUPE_ECLOSED: it is closed, there is
 * nothing to leave. leave returns rc, or TROUPE_ECLOSED if it was closed
 * meanwhile. errno stays. */
int tp_endpoint_enter(struct tp_endpoint *e);
int tp_endpoint_leave(struct tp_endpoint *e, int rc);

/* Between enter and leave, after a call that has used up what there was: parks
 * until fd is ready or the deadline. As tp_fd_wait_own, and the actor may end
 * here. */
int tp_endpoint_wait(struct tp_actor *self, struct tp_endpoint *e,
                     enum tp_fd_dir dir, uint64_t deadline_ns);

/* By the owner, or by who has handed it on. False: it was closed. */
bool tp_endpoint_close(struct tp_endpoint *e, bool owner);

/* Who has handed it on may ask, too. */
bool tp_endpoint_is_closed(struct tp_endpoint *e);

/* By the owner, which is about to hand it on: gives it a reference, with which
 * it may close. */
void tp_endpoint_share(struct tp_endpoint *e);

#endif
