/*
 * listener.h - a socket that connections come in at.
 *
 * Idea:    accept tries, and waits when there is none. When descriptors have
 *          run out the connection stays in the queue, the socket readable: so
 *          it then waits for the other direction, in which a listening socket
 *          is never ready but for its close, a while, and tries again.
 * Threads: the owner of the endpoint.
 * Parks:   accept; the actor may end there.
 * Tests:   spec/unit/stream_test.c
 */
#ifndef TP_IO_LISTENER_H
#define TP_IO_LISTENER_H

#include "io/endpoint.h"
#include "io/socket.h"

#include <sys/types.h>

struct tp_listener {
    struct tp_endpoint endpoint;
    /* The file of a unix socket, which is removed at its end, if it still is
     * the same; path "": none. */
    char path[sizeof((struct sockaddr_un *)0)->sun_path];
    dev_t device;
    ino_t inode;
};

static inline struct tp_listener *
tp_listener_of(struct tp_endpoint *e)
{
    return tp_container_of(e, struct tp_listener, endpoint);
}

/* Listens at a. *out has one reference, the caller's. TROUPE_ENOMEM,
 * TROUPE_ESYSTEM with errno. Never parks. */
int tp_listener_new(const struct tp_addr *a, int backlog, bool reuseport,
                    struct tp_listener **out);

/* The next connection. TROUPE_ETIMEOUT, TROUPE_ECLOSED, TROUPE_ESYSTEM with
 * errno; else as tp_fd_wait. */
int tp_listener_accept(struct tp_actor *self, struct tp_listener *l,
                       uint64_t deadline_ns, int *out_fd);

#endif
