/*
 * sys.c - every system call and every malloc of the core.
 *
 * Threads: any.
 * Tests:   spec/unit/sys_test.c
 */
#define _GNU_SOURCE
#include "base/sys.h"

#include "base/check.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define NS_PER_S 1000000000ull

#ifdef TROUPE_CHECKED
/* relaxed: test switches, set before the code under test runs. */
static _Atomic long fault_countdown;
static _Atomic bool fault_hit;
static _Atomic bool fault_everywhere;
static _Thread_local bool fault_here;

static bool
fault_now(void)
{
    /* relaxed: see fault_countdown. */
    if (atomic_load_explicit(&fault_countdown, memory_order_relaxed) <= 0) {
        return false;
    }
    /* relaxed: see fault_countdown. */
    if (!fault_here &&
        !atomic_load_explicit(&fault_everywhere, memory_order_relaxed)) {
        return false;
    }
    /* relaxed: see fault_countdown. */
    if (atomic_fetch_sub_explicit(&fault_countdown, 1, memory_order_relaxed) !=
        1) {
        return false;
    }
    /* relaxed: see fault_countdown. */
    atomic_store_explicit(&fault_hit, true, memory_order_relaxed);
    errno = ENOMEM;
    return true;
}

static void
arm(long n, bool everywhere)
{
    fault_here = n > 0;
    /* relaxed: see fault_countdown. */
    atomic_store_explicit(&fault_everywhere, everywhere, memory_order_relaxed);
    /* relaxed: see fault_countdown. */
    atomic_store_explicit(&fault_hit, false, memory_order_relaxed);
    /* relaxed: see fault_countdown. */
    atomic_store_explicit(&fault_countdown, n, memory_order_relaxed);
}

void
tp_fault_arm(long n)
{
    arm(n, false);
}

void
tp_fault_arm_all(long n)
{
    arm(n, true);
}

bool
tp_fault_fired(void)
{
    /* relaxed: see fault_countdown. */
    return atomic_load_explicit(&fault_hit, memory_order_relaxed);
}
#else
#define fault_now() false

void
tp_fault_arm(long n)
{
    (void)n;
}

void
tp_fault_arm_all(long n)
{
    (void)n;
}

bool
tp_fault_fired(void)
{
    return false;
}
#endif

/* noinline: see base/thread_errno.h. */
__attribute__((noinline)) int *
tp_thread_errno(void)
{
    __asm__ volatile("");
    return &errno;
}

static uint64_t
clock_ns(clockid_t id)
{
    struct timespec ts;
    clock_gettime(id, &ts);
    return (uint64_t)ts.tv_sec * NS_PER_S + (uint64_t)ts.tv_nsec;
}

uint64_t
tp_now_ns(void)
{
    return clock_ns(CLOCK_MONOTONIC);
}

uint64_t
tp_thread_cpu_ns(void)
{
    return clock_ns(CLOCK_THREAD_CPUTIME_ID);
}

void *
tp_malloc(size_t size)
{
    return fault_now() ? NULL : malloc(size);
}

void *
tp_calloc(size_t n, size_t size)
{
    return fault_now() ? NULL : calloc(n, size);
}

void *
tp_realloc(void *p, size_t size)
{
    return fault_now() ? NULL : realloc(p, size);
}

void *
tp_aligned_alloc(size_t align, size_t size)
{
    return fault_now() ? NULL : aligned_alloc(align, size);
}

void
tp_free(void *p)
{
    free(p);
}

void *
tp_mmap(size_t bytes, int prot, int flags)
{
    void *p = fault_now() ? MAP_FAILED : mmap(NULL, bytes, prot, flags, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

int
tp_munmap(void *p, size_t bytes)
{
    return munmap(p, bytes);
}

int
tp_mprotect(void *p, size_t bytes, int prot)
{
    return fault_now() ? -1 : mprotect(p, bytes, prot);
}

int
tp_madvise(void *p, size_t bytes, int advice)
{
    return fault_now() ? -1 : madvise(p, bytes, advice);
}

size_t
tp_page_size(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

int
tp_futex_wait(_Atomic uint32_t *word, uint32_t expected, uint64_t deadline_ns)
{
    struct timespec ts = {.tv_sec = (time_t)(deadline_ns / NS_PER_S),
                          .tv_nsec = (long)(deadline_ns % NS_PER_S)};
    struct timespec *until = deadline_ns == UINT64_MAX ? NULL : &ts;
    long rc = syscall(SYS_futex, (uint32_t *)word, FUTEX_WAIT_BITSET_PRIVATE,
                      expected, until, NULL, FUTEX_BITSET_MATCH_ANY);
    return rc < 0 && errno == ETIMEDOUT ? ETIMEDOUT : 0;
}

void
tp_futex_wake(_Atomic uint32_t *word, int count)
{
    syscall(SYS_futex, (uint32_t *)word, FUTEX_WAKE_PRIVATE, count, NULL, NULL,
            0);
}

static void
block_signals(sigset_t *old)
{
    static const int open[] = {SIGURG,  SIGSEGV, SIGBUS, SIGFPE, SIGILL,
                               SIGTRAP, SIGABRT, SIGSYS, SIGPROF};
    sigset_t set;
    sigfillset(&set);
    for (size_t i = 0; i < sizeof open / sizeof *open; i++) {
        sigdelset(&set, open[i]);
    }
    pthread_sigmask(SIG_SETMASK, &set, old);
}

int
tp_thread_create(pthread_t *out_thread, void *(*main)(void *), void *arg)
{
    sigset_t old;
    if (fault_now()) {
        return EAGAIN;
    }
    block_signals(&old); /* the new thread takes over what its creator has */
    int rc = pthread_create(out_thread, NULL, main, arg);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return rc;
}

/* Where standard input was closed its number is not for us: who asks for it
 * would meet us there. Takes fd. */
static int
above_standard(int fd)
{
    if (fd < 0 || fd > STDERR_FILENO) {
        return fd;
    }
    int other = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    int err = errno;
    close(fd);
    errno = err;
    return other;
}

int
tp_epoll_create(void)
{
    return fault_now() ? -1 : above_standard(epoll_create1(EPOLL_CLOEXEC));
}

int
tp_epoll_ctl(int epoll_fd, int op, int fd, uint32_t events, uint64_t data)
{
    struct epoll_event e = {.events = events, .data.u64 = data};
    if (op != EPOLL_CTL_DEL && fault_now()) {
        return -1;
    }
    return epoll_ctl(epoll_fd, op, fd, &e);
}

/* To the nanosecond where the kernel can (5.11); else rounded up to
 * milliseconds, so that nobody wakes too early and asks again. */
static int
epoll_wait_for(int epoll_fd, struct epoll_event *out_events, int max,
               uint64_t ns)
{
#ifdef SYS_epoll_pwait2
    struct timespec ts = {.tv_sec = (time_t)(ns / NS_PER_S),
                          .tv_nsec = (long)(ns % NS_PER_S)};
    long n = syscall(SYS_epoll_pwait2, epoll_fd, out_events, max, &ts, NULL, 0);
    if (n >= 0 || errno != ENOSYS) {
        return (int)n;
    }
#endif
    uint64_t ms = ns / 1000000 + 1;
    return epoll_wait(epoll_fd, out_events, max,
                      ms > INT_MAX ? INT_MAX : (int)ms);
}

int
tp_epoll_wait(int epoll_fd, struct epoll_event *out_events, int max,
              uint64_t deadline_ns)
{
    uint64_t now =
        deadline_ns == 0 || deadline_ns == UINT64_MAX ? 0 : tp_now_ns();
    if (deadline_ns <= now) {
        return epoll_wait(epoll_fd, out_events, max, 0);
    }
    if (deadline_ns == UINT64_MAX) {
        return epoll_wait(epoll_fd, out_events, max, -1);
    }
    return epoll_wait_for(epoll_fd, out_events, max, deadline_ns - now);
}

int
tp_event_fd(void)
{
    return fault_now() ? -1
                       : above_standard(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
}

void
tp_event_signal(int fd)
{
    /* Refused only when it is readable for long. */
    (void)!eventfd_write(fd, 1);
}

int
tp_poll_now(int fd, short events)
{
    struct pollfd p = {.fd = fd, .events = events};
    if (fault_now()) {
        return -1;
    }
    int n;
    do { /* a signal that is pending ends it, even if it need not wait */
        n = poll(&p, 1, 0);
    } while (n < 0 && errno == EINTR);
    return n <= 0 ? n : p.revents;
}

/* CPUs granted by a cgroup v2 quota, rounded up; 0 where there is none. */
static unsigned
cgroup_cpus(void)
{
    FILE *f = fopen("/sys/fs/cgroup/cpu.max", "re");
    long quota = 0, period = 0;
    if (f == NULL) {
        return 0;
    }
    int n = fscanf(f, "%ld %ld", &quota, &period);
    fclose(f);
    if (n != 2 || quota <= 0 || period <= 0) {
        return 0;
    }
    return (unsigned)((quota + period - 1) / period);
}

unsigned
tp_cpu_count(void)
{
    cpu_set_t set;
    unsigned n = 1;
    if (sched_getaffinity(0, sizeof set, &set) == 0) {
        n = (unsigned)CPU_COUNT(&set);
    }
    unsigned quota = cgroup_cpus();
    if (quota != 0 && quota < n) {
        n = quota;
    }
    return n == 0 ? 1 : n;
}
