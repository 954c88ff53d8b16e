/*
 * driver.c - the epoll set. See driver.h.
 *
 * Tests: spec/unit/driver_test.c, spec/unit/driver_stress.c
 */
#define _GNU_SOURCE
#include "io/driver.h"

#include "base/thread_errno.h"
#include "io/wait.h"
#include "run/runtime.h"

#include <sys/epoll.h>
#include <unistd.h>

#define BATCH 128
/* No fd has this data: a signal to the event fd. */
#define DATA_SIGNAL UINT64_MAX

static struct {
    struct tp_mutex lock; /* rank IO: start */
    _Atomic int epoll_fd; /* -1: there is none */
    /* set at start */
    struct tp_poll poll;
    struct tp_run_hook hook;
    /* the poller's, from wait until deliver has returned */
    struct epoll_event events[BATCH];
    struct tp_wake wakes[BATCH * TP_FD_DIRS];
} driver = {.epoll_fd = -1};

static int
epoll_fd(void)
{
    /* DRV-1 acquire: sees the set that start has made. */
    return atomic_load_explicit(&driver.epoll_fd, memory_order_acquire);
}

int
tp_driver_error(void)
{
    switch (errno) {
    case ENOMEM:
        return TROUPE_ENOMEM;
    case EMFILE:
    case ENFILE:
    case ENOSPC:
    case EAGAIN:
        return TROUPE_ELIMIT;
    case EBADF:
    case EPERM:
    case EINVAL:
        return TROUPE_EINVAL;
    default:
        return TROUPE_ESYSTEM;
    }
}

/* -- taking events --------------------------------------------------------- */

static size_t
wait_for_events(uint64_t deadline_ns)
{
    int n = tp_epoll_wait(epoll_fd(), driver.events, BATCH, deadline_ns);
    return n < 0 ? 0 : (size_t)n;
}

static void
deliver(size_t n)
{
    size_t count = 0;
    for (size_t i = 0; i < n; i++) {
        uint64_t data = driver.events[i].data.u64;
        if (data != DATA_SIGNAL) {
            count +=
                tp_fd_consume((int)(uint32_t)data, (uint32_t)(data >> 32),
                              driver.events[i].events, &driver.wakes[count]);
        }
    }
    tp_unpark_all(driver.wakes, count);
    for (size_t i = 0; i < count; i++) {
        tp_external_end();
    }
}

/* -- start and stop ------------------------------------------------------- */

/* Not before: who wakes a scheduler that polls signals the event fd, and may be
 * late. */
static void
fini(void)
{
    int fd = epoll_fd();
    tp_sched_set_poll(NULL);
    /* relaxed: no other thread is left. */
    atomic_store_explicit(&driver.epoll_fd, -1, memory_order_relaxed);
    close(driver.poll.event_fd);
    close(fd);
    tp_fds_fini();
}

/* The event fd is edge-triggered: each signal ends a wait, and nobody needs to
 * read it. */
static int
start_locked(void)
{
    int rc, fd = tp_epoll_create(), event_fd;
    if (fd < 0) {
        return tp_driver_error();
    }
    event_fd = tp_event_fd();
    if (event_fd < 0) {
        rc = tp_driver_error();
        goto fail_event;
    }
    if (tp_epoll_ctl(fd, EPOLL_CTL_ADD, event_fd, EPOLLIN | EPOLLET,
                     DATA_SIGNAL) < 0) {
        rc = tp_driver_error();
        goto fail_add;
    }
    driver.poll = (struct tp_poll){event_fd, wait_for_events, deliver,
                                   tp_external_is_awaited};
    driver.hook.fini = fini;
    /* DRV-1 release: publishes the set. Partner: epoll_fd. */
    atomic_store_explicit(&driver.epoll_fd, fd, memory_order_release);
    return 0;

fail_add:
    close(event_fd);
fail_event:
    close(fd);
    return rc;
}

int
tp_driver_start(void)
{
    if (TP_LIKELY(epoll_fd() >= 0)) {
        return 0;
    }
    int rc = 0;
    bool made = false;
    tp_mutex_lock(&driver.lock, TP_RANK_IO);
    if (epoll_fd() < 0) {
        rc = start_locked();
        made = rc == 0;
    }
    tp_mutex_unlock(&driver.lock, TP_RANK_IO);
    if (made) {
        tp_run_at_stop(&driver.hook);
        tp_sched_set_poll(&driver.poll);
    }
    return rc;
}

/* -- the set --------------------------------------------------------------- */

int
tp_driver_watch(int fd, bool known, uint32_t events, uint32_t seq)
{
    int op = known ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
    if (fd == driver.poll.event_fd || fd == epoll_fd()) {
        return EBADF; /* nobody else knows of these */
    }
    uint64_t data = (uint64_t)seq << 32 | (uint32_t)fd;
    return tp_epoll_ctl(epoll_fd(), op, fd, events, data) < 0 ? errno : 0;
}

void
tp_driver_forget(int fd)
{
    /* What is not there is gone already: the fd was closed. */
    tp_epoll_ctl(epoll_fd(), EPOLL_CTL_DEL, fd, 0, 0);
}
