/*
 * socket.h - addresses, and sockets that never block.
 *
 * Idea:    one function for each thing that is done to a socket; none waits,
 *          none retries but after EINTR. All descriptors are non-blocking and
 *          closed on exec, and nothing written raises SIGPIPE.
 * Threads: any.
 * Memory:  what comes out as out_fd is the caller's to close.
 * Parks:   never.
 * Fails:   TROUPE_ESYSTEM with errno; EAGAIN: not now, wait and try again.
 * Tests:   spec/unit/socket_test.c
 */
#ifndef TP_IO_SOCKET_H
#define TP_IO_SOCKET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>

/* Longest text of an address, with its end. */
#define TP_ADDR_TEXT 128

struct tp_addr {
    socklen_t size; /* of what follows; 0: none */
    union {
        struct sockaddr any;
        struct sockaddr_in in;
        struct sockaddr_in6 in6;
        struct sockaddr_un un;
    } at;
};

/* A numeric host: "127.0.0.1", "::1", "[::1]", "fe80::1%eth0". TROUPE_EINVAL:
 * it is something else. */
int tp_addr_ip(struct tp_addr *out, const char *host, size_t len,
               uint16_t port);

/* A unix socket: a path; or, after "@" or a NUL, a name of the abstract kind.
 * TROUPE_EINVAL: empty, or a NUL within a path; TROUPE_ESYSTEM: ENAMETOOLONG. */
int tp_addr_unix(struct tp_addr *out, const char *path, size_t len);

/* AF_INET, AF_INET6 or AF_UNIX. */
static inline int
tp_addr_family(const struct tp_addr *a)
{
    return a->at.any.sa_family;
}

/* -1: it has none. */
int tp_addr_port(const struct tp_addr *a);

/* Writes the numeric host, the path, or "@" and the abstract name; returns its
 * length. A socket without a name has the empty one. */
size_t tp_addr_text(const struct tp_addr *a, char out[TP_ADDR_TEXT]);

int tp_socket_listen(const struct tp_addr *a, int backlog, bool reuseport,
                     int *out_fd);

/* Errors of a connection that has died in the queue are EAGAIN. */
int tp_socket_accept(int fd, int *out_fd);

/* *out_done: it is connected; else fd becomes writable when it is, or is not:
 * tp_socket_connected; EAGAIN: still neither. A unix socket may fail with EAGAIN: the other side's
 * queue is full, and nothing tells when it is not. */
int tp_socket_connect(const struct tp_addr *a, int *out_fd, bool *out_done);
int tp_socket_connected(int fd);

/* A datagram socket bound to a. */
int tp_socket_datagram(const struct tp_addr *a, bool reuseport, int *out_fd);

int tp_socket_peername(int fd, struct tp_addr *out);
int tp_socket_sockname(int fd, struct tp_addr *out);

/* Nothing, on a socket that is not TCP. */
int tp_socket_nodelay(int fd, bool on);

/* No more is sent: the other side reads to the end. */
int tp_socket_shutdown_send(int fd);

#endif
