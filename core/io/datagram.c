/*
 * datagram.c - a socket that sends and takes single messages. See datagram.h.
 *
 * Tests: spec/unit/stream_test.c
 */
#include "io/datagram.h"

#include "base/thread_errno.h"

#include <string.h>

int
tp_datagram_new(const struct tp_addr *a, bool reuseport,
                struct tp_endpoint **out)
{
    int fd;
    struct tp_endpoint *e = tp_calloc(1, sizeof *e);
    if (e == NULL) {
        return TROUPE_ENOMEM;
    }
    int rc = tp_socket_datagram(a, reuseport, &fd);
    if (rc != 0) {
        tp_free(e);
        return rc;
    }
    tp_endpoint_init(e, fd);
    *out = e;
    return 0;
}

static ssize_t
send_once(int fd, const void *data, size_t len, const struct tp_addr *to)
{
    ssize_t n;
    do {
        n = sendto(fd, data, len, MSG_NOSIGNAL, &to->at.any, to->size);
    } while (n < 0 && errno == EINTR);
    return n;
}

int
tp_datagram_send(struct tp_actor *self, struct tp_endpoint *e, const void *data,
                 size_t len, const struct tp_addr *to, uint64_t deadline_ns)
{
    int rc = tp_endpoint_enter(e);
    if (rc != 0) {
        return rc;
    }
    while (rc == 0 && send_once(e->fd, data, len, to) < 0) {
        rc = TROUPE_ESYSTEM;
        if (errno == EAGAIN) {
            rc = tp_endpoint_wait(self, e, TP_FD_WRITE, deadline_ns);
        }
    }
    return tp_endpoint_leave(e, rc);
}

/* The length of the next datagram, which stays where it is. */
static ssize_t
next_len(int fd)
{
    char none;
    ssize_t n;
    do {
        n = recv(fd, &none, 0, MSG_PEEK | MSG_TRUNC);
    } while (n < 0 && errno == EINTR);
    return n;
}

static int
take(int fd, size_t len, struct tp_msg **out, struct tp_addr *from)
{
    struct tp_msg *m = tp_msg_new(len);
    if (m == NULL) {
        return TROUPE_ENOMEM;
    }
    memset(from, 0, sizeof *from);
    from->size = sizeof from->at;
    ssize_t n;
    do {
        n = recvfrom(fd, m->data, len, 0, &from->at.any, &from->size);
    } while (n < 0 && errno == EINTR);
    if (n < 0) {
        tp_msg_free(m);
        return TROUPE_ESYSTEM;
    }
    m->size = (uint32_t)n;
    *out = m;
    return 0;
}

int
tp_datagram_receive(struct tp_actor *self, struct tp_endpoint *e,
                    uint64_t deadline_ns, struct tp_msg **out,
                    struct tp_addr *from)
{
    int rc = tp_endpoint_enter(e);
    if (rc != 0) {
        return rc;
    }
    struct tp_msg *m = NULL;
    while (rc == 0 && m == NULL) {
        ssize_t len = next_len(e->fd);
        rc = len < 0 ? TROUPE_ESYSTEM : take(e->fd, (size_t)len, &m, from);
        if (rc == TROUPE_ESYSTEM && errno == EAGAIN) {
            rc = tp_endpoint_wait(self, e, TP_FD_READ, deadline_ns);
        }
    }
    rc = tp_endpoint_leave(e, rc);
    if (rc != 0 && m != NULL) {
        tp_msg_free(m);
    }
    *out = m;
    return rc;
}
