/*
 * listener.c - a socket that connections come in at. See listener.h.
 *
 * Tests: spec/unit/stream_test.c
 */
#include "io/listener.h"

#include "base/thread_errno.h"

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* So long accept pauses when the system can give no descriptor. */
#define PAUSE_MIN_NS 5000000ull
#define PAUSE_MAX_NS 100000000ull

static void
remove_file(struct tp_endpoint *e)
{
    struct tp_listener *l = tp_listener_of(e);
    struct stat st;
    if (l->path[0] != '\0' && stat(l->path, &st) == 0 &&
        st.st_dev == l->device && st.st_ino == l->inode) {
        unlink(l->path);
    }
}

/* A listener that starts again shall find its path free. */
static void
note_file(struct tp_listener *l, const struct tp_addr *a)
{
    struct stat st;
    const char *path = a->at.un.sun_path;
    if (tp_addr_family(a) == AF_UNIX && path[0] != '\0' &&
        stat(path, &st) == 0) {
        memcpy(l->path, path, sizeof l->path); /* which ends in a NUL */
        l->device = st.st_dev;
        l->inode = st.st_ino;
    }
}

static void
listener_free(struct tp_endpoint *e)
{
    tp_free(tp_listener_of(e));
}

int
tp_listener_new(const struct tp_addr *a, int backlog, bool reuseport,
                struct tp_listener **out)
{
    int fd;
    struct tp_listener *l = tp_calloc(1, sizeof *l);
    if (l == NULL) {
        return TROUPE_ENOMEM;
    }
    int rc = tp_socket_listen(a, backlog, reuseport, &fd);
    if (rc != 0) {
        tp_free(l);
        return rc;
    }
    tp_endpoint_init(&l->endpoint, fd);
    l->endpoint.free = listener_free;
    l->endpoint.closing = remove_file;
    note_file(l, a);
    *out = l;
    return 0;
}

static bool
is_exhausted(int err)
{
    return err == EMFILE || err == ENFILE || err == ENOBUFS || err == ENOMEM;
}

static int
pause_a_while(struct tp_actor *self, struct tp_listener *l, uint64_t pause_ns,
              uint64_t deadline_ns)
{
    uint64_t now = tp_now_ns(), until = now + pause_ns;
    if (now >= deadline_ns) {
        return TROUPE_ETIMEOUT;
    }
    int rc = tp_endpoint_wait(self, &l->endpoint, TP_FD_WRITE,
                              until < deadline_ns ? until : deadline_ns);
    return rc == TROUPE_ETIMEOUT ? 0 : rc;
}

static int
next_connection(struct tp_actor *self, struct tp_listener *l,
                uint64_t deadline_ns, int *out_fd)
{
    uint64_t pause_ns = PAUSE_MIN_NS;
    for (;;) {
        int rc = tp_socket_accept(l->endpoint.fd, out_fd);
        if (rc == 0) {
            return 0;
        }
        if (is_exhausted(errno)) {
            rc = pause_a_while(self, l, pause_ns, deadline_ns);
            pause_ns =
                pause_ns * 2 > PAUSE_MAX_NS ? PAUSE_MAX_NS : pause_ns * 2;
        } else if (errno == EAGAIN) {
            rc = tp_endpoint_wait(self, &l->endpoint, TP_FD_READ, deadline_ns);
        }
        if (rc != 0) {
            return rc;
        }
    }
}

int
tp_listener_accept(struct tp_actor *self, struct tp_listener *l,
                   uint64_t deadline_ns, int *out_fd)
{
    *out_fd = -1;
    int rc = tp_endpoint_enter(&l->endpoint);
    if (rc != 0) {
        return rc;
    }
    rc = next_connection(self, l, deadline_ns, out_fd);
    rc = tp_endpoint_leave(&l->endpoint, rc);
    if (rc != 0 && *out_fd >= 0) {
        close(*out_fd); /* closed meanwhile: nobody takes it */
    }
    return rc;
}
