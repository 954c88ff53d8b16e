/*
 * datagram.h - a socket that sends and takes single messages.
 *
 * Threads: the owner of the endpoint.
 * Parks:   send and receive; the actor may end there.
 * Fails:   as stream.h.
 * Tests:   spec/unit/stream_test.c
 */
#ifndef TP_IO_DATAGRAM_H
#define TP_IO_DATAGRAM_H

#include "actor/message.h"
#include "io/endpoint.h"
#include "io/socket.h"

/* Bound to a; *out has one reference, the caller's. Never parks. */
int tp_datagram_new(const struct tp_addr *a, bool reuseport,
                    struct tp_endpoint **out);

/* The whole of data goes out as one datagram; it must live as long as the
 * actor does. */
int tp_datagram_send(struct tp_actor *self, struct tp_endpoint *e,
                     const void *data, size_t len, const struct tp_addr *to,
                     uint64_t deadline_ns);

/* The next datagram, as the data of a message, the caller's; *from has size 0
 * where the sender has no address. */
int tp_datagram_receive(struct tp_actor *self, struct tp_endpoint *e,
                        uint64_t deadline_ns, struct tp_msg **out,
                        struct tp_addr *from);

#endif
