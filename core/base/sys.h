/*
 * sys.h - every system call and every malloc of the core.
 *
 * Idea:  one place where a checked build can make the n-th call fail, so that
 *        a test can walk through all failure paths (tp_fault_arm).
 * Fails: as the system call does: -1 with errno, or NULL.
 */
#ifndef TP_BASE_SYS_H
#define TP_BASE_SYS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Monotonic time, nanoseconds. */
uint64_t tp_now_ns(void);

/* CPU time of the calling thread, nanoseconds. */
uint64_t tp_thread_cpu_ns(void);

/* A cheap, coarse, per-core rising counter; only differences are of use. */
static inline uint64_t
tp_cycles(void)
{
#if defined(__x86_64__)
    uint32_t lo, hi;
    __asm__ volatile("rdtsc" : "=a"(lo), "=d"(hi));
    return ((uint64_t)hi << 32) | lo;
#elif defined(__aarch64__)
    uint64_t v;
    __asm__ volatile("mrs %0, cntvct_el0" : "=r"(v));
    return v;
#else
    return tp_now_ns();
#endif
}

/* About 10 us in those; on x86-64 for a processor of 3 GHz. */
static inline uint64_t
tp_cycles_10us(void)
{
#if defined(__aarch64__)
    uint64_t hz;
    __asm__ volatile("mrs %0, cntfrq_el0" : "=r"(hz));
    return hz / 100000;
#elif defined(__x86_64__)
    return 30000;
#else
    return 10000;
#endif
}

/* a + b, or UINT64_MAX where that would wrap. */
static inline uint64_t
tp_sat_add(uint64_t a, uint64_t b)
{
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

void *tp_malloc(size_t size);
void *tp_calloc(size_t n, size_t size);
void *tp_realloc(void *p, size_t size);
void *tp_aligned_alloc(size_t align, size_t size);
void tp_free(void *p);

void *tp_mmap(size_t bytes, int prot, int flags);
int tp_munmap(void *p, size_t bytes);
int tp_mprotect(void *p, size_t bytes, int prot);
int tp_madvise(void *p, size_t bytes, int advice);
size_t tp_page_size(void);

/*
 * Sleep while *word == expected, until woken or until deadline_ns (monotonic,
 * UINT64_MAX: no deadline). Returns 0 (woken, or word differed, or a signal
 * arrived: the caller looks again) or ETIMEDOUT.
 */
int tp_futex_wait(_Atomic uint32_t *word, uint32_t expected,
                  uint64_t deadline_ns);
void tp_futex_wake(_Atomic uint32_t *word, int count);

/* Where errno of this thread lies; see base/thread_errno.h. */
int *tp_thread_errno(void);

/* As pthread_create: 0 or an errno. The thread gets no signals of the process;
 * what it is sent itself (the preempting signal, faults) stays open. */
int tp_thread_create(pthread_t *out_thread, void *(*main)(void *), void *arg);

/* A new epoll set, closed on exec. */
int tp_epoll_create(void);

/* op EPOLL_CTL_DEL cannot be made to fail. */
int tp_epoll_ctl(int epoll_fd, int op, int fd, uint32_t events, uint64_t data);

/* Waits until deadline_ns, 0: does not wait, UINT64_MAX: none. Returns how many
 * events there are; -1 with errno EINTR for a signal. */
struct epoll_event;
int tp_epoll_wait(int epoll_fd, struct epoll_event *out_events, int max,
                  uint64_t deadline_ns);

/* A counter that is readable once tp_event_signal was called. */
int tp_event_fd(void);
void tp_event_signal(int fd);

/* As poll of one fd without waiting: the events, 0, or -1. */
int tp_poll_now(int fd, short events);

/* CPUs that this process may use: affinity and cgroup quota; at least 1. */
unsigned tp_cpu_count(void);

/*
 * Checked builds: make the n-th following call of this file that can fail
 * (n >= 1) fail once; n == 0 disarms. tp_fault_fired says whether it has. Only
 * the calls of this thread count, as others make theirs at any moment; with
 * all, those of every thread.
 */
void tp_fault_arm(long n);
void tp_fault_arm_all(long n);
bool tp_fault_fired(void);

#endif
