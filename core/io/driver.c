/*
 * driver.c - the epoll set and its thread. See driver.h.
 *
 * Tests: spec/unit/driver_test.c, spec/unit/driver_stress.c
 */
#define _GNU_SOURCE
#include "io/driver.h"

#include "io/wait.h"
#include "run/runtime.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <unistd.h>

#define BATCH 128
/* No fd has this data. */
#define DATA_STOP UINT64_MAX

static struct {
    struct tp_mutex lock; /* rank IO: start */
    _Atomic int epoll_fd; /* -1: there is none */
    int stop_fd;          /* becomes readable when the thread shall end */
    pthread_t thread;
    struct tp_run_hook hook;
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

/* -- the thread ----------------------------------------------------------- */

/* Returns false when the thread shall end. */
static bool
take(const struct epoll_event *events, size_t n)
{
    struct tp_wake wakes[BATCH * TP_FD_DIRS];
    size_t count = 0;
    bool stop = false;
    for (size_t i = 0; i < n; i++) {
        uint64_t data = events[i].data.u64;
        if (data == DATA_STOP) {
            stop = true;
            continue;
        }
        count += tp_fd_consume((int)(uint32_t)data, (uint32_t)(data >> 32),
                               events[i].events, &wakes[count]);
    }
    tp_unpark_all(wakes, count);
    for (size_t i = 0; i < count; i++) {
        tp_external_end();
    }
    return !stop;
}

static void *
driver_main(void *unused)
{
    struct epoll_event events[BATCH];
    int n;
    (void)unused;
    pthread_setname_np(pthread_self(), "troupe-io");
    do {
        n = tp_epoll_wait(epoll_fd(), events, BATCH, TP_NEVER);
    } while (take(events, n < 0 ? 0 : (size_t)n));
    return NULL;
}

/* -- start and stop ------------------------------------------------------- */

static void
stop(void)
{
    int fd = epoll_fd();
    tp_event_signal(driver.stop_fd);
    pthread_join(driver.thread, NULL);
    /* relaxed: no other thread is left. */
    atomic_store_explicit(&driver.epoll_fd, -1, memory_order_relaxed);
    close(driver.stop_fd);
    close(fd);
    tp_fds_fini();
}

static int
start_thread(void)
{
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int rc = tp_thread_create(&driver.thread, driver_main, NULL);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    errno = rc;
    return rc;
}

static int
start_locked(void)
{
    int rc, fd = tp_epoll_create();
    if (fd < 0) {
        return tp_driver_error();
    }
    driver.stop_fd = tp_event_fd();
    if (driver.stop_fd < 0) {
        rc = tp_driver_error();
        goto fail_event;
    }
    if (tp_epoll_ctl(fd, EPOLL_CTL_ADD, driver.stop_fd, EPOLLIN, DATA_STOP) <
        0) {
        rc = tp_driver_error();
        goto fail_thread;
    }
    /* DRV-1 release: publishes the set. Partner: epoll_fd. */
    atomic_store_explicit(&driver.epoll_fd, fd, memory_order_release);
    if (start_thread() != 0) {
        rc = tp_driver_error();
        /* relaxed: there is none. */
        atomic_store_explicit(&driver.epoll_fd, -1, memory_order_relaxed);
        goto fail_thread;
    }
    return 0;

fail_thread:
    close(driver.stop_fd);
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
        driver.hook.stop = stop;
        tp_run_at_stop(&driver.hook);
    }
    return rc;
}

/* -- the set --------------------------------------------------------------- */

int
tp_driver_watch(int fd, bool known, uint32_t events, uint32_t seq)
{
    int op = known ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
    uint64_t data = (uint64_t)seq << 32 | (uint32_t)fd;
    events |= EPOLLONESHOT;
    return tp_epoll_ctl(epoll_fd(), op, fd, events, data) < 0 ? errno : 0;
}

void
tp_driver_forget(int fd)
{
    /* What is not there is gone already: the fd was closed. */
    tp_epoll_ctl(epoll_fd(), EPOLL_CTL_DEL, fd, 0, 0);
}
