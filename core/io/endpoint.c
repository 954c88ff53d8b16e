/*
 * endpoint.c - an open descriptor that one actor owns. See endpoint.h.
 *
 * Tests: spec/unit/stream_test.c
 */
#include "io/endpoint.h"

#include "base/thread_errno.h"

#include <sys/socket.h>

/* Nobody else knows of an endpoint that was never handed on. */
static void
lock(struct tp_endpoint *e)
{
    if (TP_UNLIKELY(e->shared)) {
        tp_mutex_lock(&e->lock, TP_RANK_ENDPOINT);
    }
}

static void
unlock(struct tp_endpoint *e)
{
    if (TP_UNLIKELY(e->shared)) {
        tp_mutex_unlock(&e->lock, TP_RANK_ENDPOINT);
    }
}

void
tp_endpoint_init(struct tp_endpoint *e, int fd)
{
    e->free = NULL;
    e->closing = NULL;
    atomic_init(&e->refs, 1);
    e->shared = e->closed = e->busy = false;
    e->timeout_ns = TP_NEVER;
    tp_mutex_init(&e->lock);
    e->fd = fd;
    e->id = fd < 0 ? 0 : tp_fd_own(fd);
}

void
tp_endpoint_ref(struct tp_endpoint *e)
{
    /* relaxed: who takes a reference has one already. */
    atomic_fetch_add_explicit(&e->refs, 1, memory_order_relaxed);
}

static void
close_fd(struct tp_endpoint *e, int fd)
{
    if (fd >= 0) {
        if (e->closing != NULL) {
            e->closing(e);
        }
        tp_fd_close(fd);
    }
}

void
tp_endpoint_unref(struct tp_endpoint *e)
{
    /* END-1 acq_rel: the last one frees after all others have used it. Both
     * sides are this decrement. */
    if (atomic_fetch_sub_explicit(&e->refs, 1, memory_order_acq_rel) != 1) {
        return;
    }
    close_fd(e, e->fd); /* one that never found an owner */
    if (e->free != NULL) {
        e->free(e);
    } else {
        tp_free(e);
    }
}

void
tp_endpoint_open(struct tp_endpoint *e, int fd)
{
    tp_assert(e->fd < 0 && !e->shared);
    e->fd = fd;
    e->id = tp_fd_own(fd);
}

int
tp_endpoint_enter(struct tp_endpoint *e)
{
    lock(e);
    bool closed = e->closed;
    e->busy = !closed;
    unlock(e);
    return closed ? TROUPE_ECLOSED : 0;
}

/* Takes fd out, to be closed by the caller, with no lock held. */
static int
take_fd_locked(struct tp_endpoint *e)
{
    int fd = e->fd;
    e->fd = -1;
    return fd;
}

int
tp_endpoint_leave(struct tp_endpoint *e, int rc)
{
    int fd = -1, err = errno;
    lock(e);
    e->busy = false;
    if (TP_UNLIKELY(e->closed)) {
        fd = take_fd_locked(e);
        rc = TROUPE_ECLOSED;
    }
    unlock(e);
    close_fd(e, fd);
    errno = err;
    return rc;
}

int
tp_endpoint_wait(struct tp_actor *self, struct tp_endpoint *e,
                 enum tp_fd_dir dir, uint64_t deadline_ns)
{
    int rc = tp_fd_wait_own(self, e->fd, e->id, dir, deadline_ns);
    /* Not every socket says of itself that it was shut down. */
    return rc == 0 && tp_endpoint_is_closed(e) ? TROUPE_ECLOSED : rc;
}

bool
tp_endpoint_close(struct tp_endpoint *e, bool owner)
{
    int fd = -1;
    lock(e);
    bool open = !e->closed;
    e->closed = true;
    if (owner || !e->busy) {
        fd = take_fd_locked(e);
    } else if (open && e->fd >= 0) {
        shutdown(e->fd, SHUT_RDWR); /* under the lock: the number is its own */
    }
    unlock(e);
    close_fd(e, fd);
    return open;
}

bool
tp_endpoint_is_closed(struct tp_endpoint *e)
{
    lock(e);
    bool closed = e->closed;
    unlock(e);
    return closed;
}

void
tp_endpoint_share(struct tp_endpoint *e)
{
    e->shared = true;
    tp_endpoint_ref(e);
}
