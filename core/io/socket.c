/*
 * socket.c - addresses, and sockets that never block. See socket.h.
 *
 * Tests: spec/unit/socket_test.c
 */
#define _GNU_SOURCE
#include "io/socket.h"

#include "base/thread_errno.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <troupe.h>
#include <unistd.h>

/* -- addresses ----------------------------------------------------------- */

static int
system_error(int err)
{
    errno = err;
    return TROUPE_ESYSTEM;
}

/* "%eth0" or "%2" behind an address. */
static bool
parse_scope(char *text, uint32_t *out_scope)
{
    char *scope = strchr(text, '%');
    *out_scope = 0;
    if (scope == NULL) {
        return true;
    }
    *scope++ = '\0';
    *out_scope = if_nametoindex(scope);
    for (const char *p = scope; *out_scope == 0 && *p != '\0'; p++) {
        if (*p < '0' || *p > '9') {
            return false;
        }
    }
    if (*out_scope == 0) {
        unsigned n = 0;
        *out_scope = sscanf(scope, "%9u", &n) == 1 ? n : 0;
    }
    return *out_scope != 0;
}

static bool
parse_v6(struct tp_addr *out, char *text, uint16_t port)
{
    uint32_t scope;
    if (!parse_scope(text, &scope) ||
        inet_pton(AF_INET6, text, &out->at.in6.sin6_addr) != 1) {
        return false;
    }
    out->size = sizeof out->at.in6;
    out->at.in6.sin6_family = AF_INET6;
    out->at.in6.sin6_port = htons(port);
    out->at.in6.sin6_scope_id = scope;
    return true;
}

int
tp_addr_ip(struct tp_addr *out, const char *host, size_t len, uint16_t port)
{
    char text[TP_ADDR_TEXT];
    bool bracketed = len > 2 && host[0] == '[' && host[len - 1] == ']';
    memset(out, 0, sizeof *out);
    if (bracketed) {
        host++;
        len -= 2;
    }
    if (len >= sizeof text || memchr(host, '\0', len) != NULL) {
        return TROUPE_EINVAL;
    }
    memcpy(text, host, len);
    text[len] = '\0';
    if (!bracketed && inet_pton(AF_INET, text, &out->at.in.sin_addr) == 1) {
        out->size = sizeof out->at.in;
        out->at.in.sin_family = AF_INET;
        out->at.in.sin_port = htons(port);
        return 0;
    }
    return parse_v6(out, text, port) ? 0 : TROUPE_EINVAL;
}

int
tp_addr_unix(struct tp_addr *out, const char *path, size_t len)
{
    struct sockaddr_un *un = &out->at.un;
    memset(out, 0, sizeof *out);
    if (len == 0) {
        return TROUPE_EINVAL;
    }
    bool abstract = path[0] == '@' || path[0] == '\0';
    if (!abstract && memchr(path, '\0', len) != NULL) {
        return TROUPE_EINVAL;
    }
    /* A path needs its end, which an abstract name has not. */
    if (len + !abstract > sizeof un->sun_path) {
        return system_error(ENAMETOOLONG);
    }
    un->sun_family = AF_UNIX;
    memcpy(un->sun_path, path, len);
    if (abstract) {
        un->sun_path[0] = '\0';
    }
    out->size =
        (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len + !abstract);
    return 0;
}

int
tp_addr_port(const struct tp_addr *a)
{
    switch (tp_addr_family(a)) {
    case AF_INET:
        return ntohs(a->at.in.sin_port);
    case AF_INET6:
        return ntohs(a->at.in6.sin6_port);
    default:
        return -1;
    }
}

static size_t
unix_text(const struct tp_addr *a, char out[TP_ADDR_TEXT])
{
    size_t base = offsetof(struct sockaddr_un, sun_path);
    size_t len = a->size > base ? a->size - base : 0;
    memcpy(out, a->at.un.sun_path, len);
    out[len] = '\0';
    if (len > 0 && out[0] == '\0') {
        out[0] = '@';
        return len;
    }
    return strlen(out);
}

static size_t
v6_text(const struct sockaddr_in6 *in6, char out[TP_ADDR_TEXT])
{
    char name[IF_NAMESIZE];
    inet_ntop(AF_INET6, &in6->sin6_addr, out, TP_ADDR_TEXT);
    size_t n = strlen(out);
    if (in6->sin6_scope_id != 0) {
        bool known = if_indextoname(in6->sin6_scope_id, name) != NULL;
        n += (size_t)(known ? snprintf(out + n, TP_ADDR_TEXT - n, "%%%s", name)
                            : snprintf(out + n, TP_ADDR_TEXT - n, "%%%u",
                                       in6->sin6_scope_id));
    }
    return n;
}

size_t
tp_addr_text(const struct tp_addr *a, char out[TP_ADDR_TEXT])
{
    switch (tp_addr_family(a)) {
    case AF_INET:
        inet_ntop(AF_INET, &a->at.in.sin_addr, out, TP_ADDR_TEXT);
        return strlen(out);
    case AF_INET6:
        return v6_text(&a->at.in6, out);
    case AF_UNIX:
        return unix_text(a, out);
    default:
        out[0] = '\0';
        return 0;
    }
}

typedef int (*name_fn)(int fd, struct sockaddr *at, socklen_t *size);

static int
name_of(name_fn get, int fd, struct tp_addr *out)
{
    memset(out, 0, sizeof *out);
    out->size = sizeof out->at;
    return get(fd, &out->at.any, &out->size) == 0 ? 0 : TROUPE_ESYSTEM;
}

int
tp_socket_peername(int fd, struct tp_addr *out)
{
    return name_of(getpeername, fd, out);
}

int
tp_socket_sockname(int fd, struct tp_addr *out)
{
    return name_of(getsockname, fd, out);
}

/* -- sockets ------------------------------------------------------------- */

static int
open_socket(const struct tp_addr *a, int type, int *out_fd)
{
    *out_fd = socket(tp_addr_family(a), type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    return *out_fd < 0 ? TROUPE_ESYSTEM : 0;
}

/* Closes what the failed call has left; errno stays that of the failure. */
static int
give_up(int fd)
{
    int err = errno;
    close(fd);
    return system_error(err);
}

static bool
set_option(int fd, int level, int option, int value)
{
    return setsockopt(fd, level, option, &value, sizeof value) == 0;
}

static bool
is_ip(const struct tp_addr *a)
{
    return tp_addr_family(a) != AF_UNIX;
}

static bool
share_port(int fd, const struct tp_addr *a, bool reuseport)
{
    return !reuseport || !is_ip(a) ||
           set_option(fd, SOL_SOCKET, SO_REUSEPORT, 1);
}

int
tp_socket_listen(const struct tp_addr *a, int backlog, bool reuseport,
                 int *out_fd)
{
    int fd, rc = open_socket(a, SOCK_STREAM, &fd);
    if (rc != 0) {
        return rc;
    }
    /* What is accepted inherits TCP_NODELAY. */
    bool ok = !is_ip(a) || (set_option(fd, SOL_SOCKET, SO_REUSEADDR, 1) &&
                            set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1));
    if (!ok || !share_port(fd, a, reuseport) ||
        bind(fd, &a->at.any, a->size) != 0 || listen(fd, backlog) != 0) {
        return give_up(fd);
    }
    *out_fd = fd;
    return 0;
}

/* What the network has done to a connection that nobody has yet: the next one
 * may be better. accept(2) has the list. */
static bool
is_of_the_connection(int err)
{
    switch (err) {
    case ECONNABORTED:
    case EPROTO:
    case ENETDOWN:
    case ENOPROTOOPT:
    case EHOSTDOWN:
    case ENONET:
    case EHOSTUNREACH:
    case EOPNOTSUPP:
    case ENETUNREACH:
        return true;
    default:
        return false;
    }
}

int
tp_socket_accept(int fd, int *out_fd)
{
    do {
        *out_fd = accept4(fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    } while (*out_fd < 0 && errno == EINTR);
    if (*out_fd >= 0) {
        return 0;
    }
    return system_error(is_of_the_connection(errno) ? EAGAIN : errno);
}

int
tp_socket_nodelay(int fd, bool on)
{
    if (set_option(fd, IPPROTO_TCP, TCP_NODELAY, on) || errno == EOPNOTSUPP ||
        errno == ENOPROTOOPT) {
        return 0;
    }
    return TROUPE_ESYSTEM;
}

/* A connect to a free port that the system has given to the connecting socket
 * itself succeeds: nobody listens there all the same. */
static bool
is_own_mirror(int fd)
{
    struct tp_addr own, peer;
    if (tp_socket_sockname(fd, &own) != 0 || !is_ip(&own) ||
        tp_socket_peername(fd, &peer) != 0 ||
        tp_addr_port(&own) != tp_addr_port(&peer)) {
        return false;
    }
    return own.size == peer.size && memcmp(&own.at, &peer.at, own.size) == 0;
}

int
tp_socket_connect(const struct tp_addr *a, int *out_fd, bool *out_done)
{
    int fd, rc = open_socket(a, SOCK_STREAM, &fd);
    if (rc != 0) {
        return rc;
    }
    if (is_ip(a) && !set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1)) {
        return give_up(fd);
    }
    *out_done = connect(fd, &a->at.any, a->size) == 0;
    /* One that was interrupted goes on all the same. */
    if (!*out_done && errno != EINPROGRESS && errno != EINTR) {
        return give_up(fd);
    }
    if (*out_done && is_own_mirror(fd)) {
        errno = ECONNREFUSED;
        return give_up(fd);
    }
    *out_fd = fd;
    return 0;
}

int
tp_socket_connected(int fd)
{
    int err = 0;
    socklen_t size = sizeof err;
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &err, &size) != 0) {
        return TROUPE_ESYSTEM;
    }
    struct tp_addr peer;
    if (err == 0 && tp_socket_peername(fd, &peer) != 0) {
        err = errno == ENOTCONN ? EAGAIN : errno;
    } else if (err == 0 && is_own_mirror(fd)) {
        err = ECONNREFUSED;
    }
    return err == 0 ? 0 : system_error(err);
}

int
tp_socket_datagram(const struct tp_addr *a, bool reuseport, int *out_fd)
{
    int fd, rc = open_socket(a, SOCK_DGRAM, &fd);
    if (rc != 0) {
        return rc;
    }
    if (!share_port(fd, a, reuseport) || bind(fd, &a->at.any, a->size) != 0) {
        return give_up(fd);
    }
    *out_fd = fd;
    return 0;
}

int
tp_socket_shutdown_send(int fd)
{
    return shutdown(fd, SHUT_WR) == 0 ? 0 : TROUPE_ESYSTEM;
}
