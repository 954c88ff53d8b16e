/*
 * blocking.c - the pool of threads on which actors may block. See blocking.h.
 *
 * A thread's entry outlives it: the monitor looks at all that were ever used,
 * and the next thread takes it over.
 *
 * Ordering: STOP-2 (busy), MON-2 (hurry).
 * Tests:    spec/unit/blocking_test.c, spec/unit/blocking_stress.c
 */
#define _GNU_SOURCE
#include "sched/blocking.h"

#include "ctx/fault.h"
#include "sched/monitor.h"
#include "sched/timer.h"
#include "sched/worker.h"

#include <stdio.h>
#include <string.h>

_Atomic uint64_t tp_blocking_idle_ns = 5000000000ull;

struct thread {
    struct tp_worker worker;
    /* lock */
    pthread_t id;
    struct thread *next; /* in idle or vacant */
    struct tp_slot *given;
    bool live;    /* a thread is there, to be joined when the pool stops */
    bool is_idle; /* in idle */
};

static struct {
    struct tp_mutex lock; /* rank POOL */
    /* set at start */
    unsigned limit;
    struct thread *all;
    /* lock */
    struct tp_runq_node *first, **end; /* actors that wait for a thread */
    struct thread *idle;   /* the latest first; then first is NULL */
    struct thread *vacant; /* entries without a thread */
    unsigned live, idle_count, queued;
    uint64_t entered;
    bool stop;
    /* written under lock, read by any */
    _Atomic unsigned used;     /* entries that ever had a thread */
    _Atomic unsigned sections; /* actors in a section */
    /* any thread, atomic */
    _Atomic uint32_t busy; /* actors in the queue or on a thread */
    _Atomic bool hurry;
} pool;

static void
lock(void)
{
    tp_mutex_lock(&pool.lock, TP_RANK_POOL);
}

static void
unlock(void)
{
    tp_mutex_unlock(&pool.lock, TP_RANK_POOL);
}

/* -- who is where --------------------------------------------------------- */

static void
busy_begin(void)
{
    /* STOP-2 seq_cst: counted before the scheduler that ran the actor sleeps.
     * Partner: tp_blocking_is_busy, asked when all sleep. */
    atomic_fetch_add_explicit(&pool.busy, 1, memory_order_seq_cst);
}

static void
busy_end(void)
{
    /* STOP-2 seq_cst: after the actor was injected, if it was. Partner:
     * tp_blocking_is_busy, then a look at the queues. */
    if (atomic_fetch_sub_explicit(&pool.busy, 1, memory_order_seq_cst) == 1) {
        tp_sched_nudge(); /* maybe it waits for a message: was it the last? */
    }
}

bool
tp_blocking_is_busy(void)
{
    /* STOP-2 seq_cst: see busy_begin, busy_end. */
    return atomic_load_explicit(&pool.busy, memory_order_seq_cst) != 0;
}

unsigned
tp_blocking_sections(void)
{
    /* relaxed: who has seen an actor doomed sees that it had entered. */
    return atomic_load_explicit(&pool.sections, memory_order_relaxed);
}

static void
sections_add_locked(int n)
{
    /* relaxed: written under the lock only. */
    atomic_store_explicit(&pool.sections, tp_blocking_sections() + (unsigned)n,
                          memory_order_relaxed);
}

/* Returns what it was. */
static uint32_t
set_depth(struct tp_slot *self, uint32_t depth)
{
    _Atomic uint32_t *at = &tp_slot_fiber(self)->blocking;
    /* relaxed, both: see tp_slot_blocks. */
    uint32_t was = atomic_load_explicit(at, memory_order_relaxed);
    /* relaxed: as above. */
    atomic_store_explicit(at, depth, memory_order_relaxed);
    return was;
}

static uint32_t
depth_of(const struct tp_slot *s)
{
    /* relaxed: see tp_slot_blocks. */
    return atomic_load_explicit(&tp_slot_fiber(s)->blocking,
                                memory_order_relaxed);
}

/* -- the queue ------------------------------------------------------------ */

static void
append_locked(struct tp_slot *s)
{
    s->qnode.next = NULL;
    *pool.end = &s->qnode;
    pool.end = &s->qnode.next;
    pool.queued++;
}

/* The one that *at points to. */
static struct tp_slot *
take_locked(struct tp_runq_node **at)
{
    struct tp_runq_node *n = *at;
    if (n == NULL) {
        return NULL;
    }
    *at = n->next;
    if (n->next == NULL) {
        pool.end = at;
    }
    pool.queued--;
    return tp_container_of(n, struct tp_slot, qnode);
}

static struct thread *
idle_pop_locked(void)
{
    struct thread *t = pool.idle;
    if (t != NULL) {
        pool.idle = t->next;
        pool.idle_count--;
        t->is_idle = false;
    }
    return t;
}

bool
tp_blocking_push(struct tp_slot *s)
{
    struct thread *t = NULL;
    busy_begin();
    lock();
    /* Under the lock: whoever dooms it after this look finds it in the queue
     * (tp_blocking_sweep), or it is on its way to a thread that sees it. */
    bool doomed = tp_slot_is_doomed(s);
    if (!doomed) {
        t = idle_pop_locked();
        if (t != NULL) {
            t->given = s;
        } else {
            append_locked(s);
        }
    }
    unlock();
    if (t != NULL) {
        tp_parker_unpark(&t->worker.parker);
    }
    if (doomed) {
        busy_end();
    }
    return !doomed;
}

void
tp_blocking_sweep(void)
{
    struct tp_runq_node *doomed = NULL, **end = &doomed;
    lock();
    for (struct tp_runq_node **at = &pool.first; *at != NULL;) {
        struct tp_slot *s = tp_container_of(*at, struct tp_slot, qnode);
        if (tp_slot_is_doomed(s)) {
            take_locked(at);
            s->qnode.next = NULL;
            *end = &s->qnode;
            end = &s->qnode.next;
        } else {
            at = &(*at)->next;
        }
    }
    unlock();
    while (doomed != NULL) {
        struct tp_slot *s = tp_container_of(doomed, struct tp_slot, qnode);
        doomed = doomed->next;
        tp_sched_submit(s);
        busy_end();
    }
}

/* -- threads -------------------------------------------------------------- */

static void
idle_remove_locked(struct thread *t)
{
    struct thread **p = &pool.idle;
    while (*p != t) {
        p = &(*p)->next;
    }
    *p = t->next;
    pool.idle_count--;
    t->is_idle = false;
}

/* The thread's last act with its entry, which the next one may take over from
 * here on. */
static void
end_locked(struct thread *t)
{
    if (t->is_idle) {
        idle_remove_locked(t);
    }
    tp_worker_thread_end(&t->worker);
    pool.live--;
    if (!pool.stop) {
        pthread_detach(pthread_self());
        t->live = false;
        t->next = pool.vacant;
        pool.vacant = t;
    }
}

static struct tp_slot *
next_locked(struct thread *t)
{
    struct tp_slot *s = t->given;
    t->given = NULL;
    return s != NULL || t->is_idle ? s : take_locked(&pool.first);
}

/* Until somebody has given it an actor, or it has been idle for too long. */
static bool
sleep_locked(struct thread *t)
{
    if (!t->is_idle) {
        t->is_idle = true;
        t->next = pool.idle;
        pool.idle = t;
        pool.idle_count++;
    }
    unlock();
    /* relaxed: set before a run. */
    uint64_t idle_ns =
        atomic_load_explicit(&tp_blocking_idle_ns, memory_order_relaxed);
    bool woken =
        tp_parker_park(&t->worker.parker, tp_sat_add(tp_now_ns(), idle_ns));
    lock();
    return woken;
}

/* The next one to run; NULL: the thread ends, and its entry is not its own any
 * more. */
static struct tp_slot *
take(struct thread *t)
{
    struct tp_slot *s;
    bool woken = true;
    lock();
    while ((s = next_locked(t)) == NULL) {
        if (pool.stop || (!woken && pool.live > tp_blocking_sections())) {
            end_locked(t);
            break;
        }
        woken = sleep_locked(t);
    }
    unlock();
    return s;
}

static void *
thread_main(void *arg)
{
    struct thread *t = arg;
    struct tp_altstack alt;
    struct tp_slot *s;
    char name[16];
    snprintf(name, sizeof name, "troupe-block-%u", t->worker.index);
    pthread_setname_np(pthread_self(), name);
    /* Without it an overflow kills the process, and nothing else changes. */
    tp_fault_thread_begin(&alt);
    tp_worker_thread_begin(&t->worker);
    while ((s = take(t)) != NULL) {
        tp_worker_slice(&t->worker, s);
        busy_end();
    }
    tp_fault_thread_end(&alt);
    return NULL; /* its caches go with its thread-locals */
}

static struct thread *
entry_locked(void)
{
    struct thread *t = pool.vacant;
    /* relaxed: written under the lock. */
    unsigned used = atomic_load_explicit(&pool.used, memory_order_relaxed);
    if (t != NULL) {
        pool.vacant = t->next;
        return t;
    }
    t = &pool.all[used];
    memset(t, 0, sizeof *t);
    tp_worker_init(&t->worker, used);
    t->worker.pool = true;
    /* MON-3 release: publishes the entry. Partner: tp_blocking_worker. */
    atomic_store_explicit(&pool.used, used + 1, memory_order_release);
    return t;
}

/* Under the lock, so that nobody relies on a thread that then fails to be. */
static int
grow_locked(void)
{
    struct thread *t = entry_locked();
    if (tp_thread_create(&t->id, thread_main, t) != 0) {
        t->next = pool.vacant;
        pool.vacant = t;
        return TROUPE_ELIMIT;
    }
    t->live = true;
    pool.live++;
    return 0;
}

/* -- sections ------------------------------------------------------------- */

/* A thread for each section, up to the limit. Without the one more it takes
 * turns with others; without any it is refused. */
static int
section_begin(void)
{
    int rc = 0;
    lock();
    if (pool.live <= tp_blocking_sections() && pool.live < pool.limit) {
        rc = grow_locked();
    }
    if (pool.live > 0) {
        rc = 0;
        sections_add_locked(1);
        pool.entered++;
    }
    unlock();
    return rc;
}

static void
section_end(void)
{
    lock();
    sections_add_locked(-1);
    unlock();
}

int
tp_blocking_enter(struct tp_slot *self)
{
    uint32_t depth = depth_of(self);
    if (depth > 0) {
        set_depth(self, depth + 1);
        return 0;
    }
    int rc = section_begin();
    if (rc == 0) {
        set_depth(self, 1);
        tp_worker_yield(self);
    }
    return rc;
}

void
tp_blocking_leave(struct tp_slot *self)
{
    uint32_t depth = depth_of(self);
    tp_check(depth > 0);
    set_depth(self, depth - 1);
    if (depth == 1) {
        section_end();
        tp_worker_yield(self);
    }
}

void
tp_blocking_forget(struct tp_slot *s)
{
    if (TP_UNLIKELY(depth_of(s) > 0)) {
        set_depth(s, 0);
        section_end();
    }
}

/* -- the monitor's side --------------------------------------------------- */

void
tp_blocking_hurry(void)
{
    if (tp_blocking_sections() == 0) {
        return;
    }
    /* MON-2 seq_cst: stored after the actor was doomed, and before the monitor
     * is looked at. Partner: the monitor says that it sleeps, then reads it. */
    atomic_store_explicit(&pool.hurry, true, memory_order_seq_cst);
    tp_monitor_poke();
}

bool
tp_blocking_hurry_wanted(void)
{
    /* MON-2 seq_cst: see tp_blocking_hurry. */
    return atomic_load_explicit(&pool.hurry, memory_order_seq_cst);
}

bool
tp_blocking_hurry_take(void)
{
    /* MON-2 seq_cst: sees who was doomed, before the queue and the threads are
     * looked at. Partner: tp_blocking_hurry. */
    return tp_blocking_hurry_wanted() &&
           atomic_exchange_explicit(&pool.hurry, false, memory_order_seq_cst);
}

struct tp_worker *
tp_blocking_worker(unsigned i)
{
    /* MON-3 acquire: sees the entry. Partner: entry_locked. */
    return i < atomic_load_explicit(&pool.used, memory_order_acquire)
               ? &pool.all[i].worker
               : NULL;
}

/* -- start and end -------------------------------------------------------- */

void
tp_blocking_get_stats(struct tp_blocking_stats *out)
{
    lock();
    out->limit = pool.limit;
    out->threads = pool.live;
    out->idle = pool.idle_count;
    out->queued = pool.queued;
    out->sections = pool.entered;
    unlock();
}

int
tp_blocking_init(unsigned limit)
{
    memset(&pool, 0, sizeof pool);
    if (limit == 0 || limit > TP_BLOCKING_THREADS_MAX) {
        return TROUPE_EINVAL;
    }
    pool.all = tp_aligned_alloc(TP_CACHELINE, limit * sizeof(struct thread));
    if (pool.all == NULL) {
        return TROUPE_ENOMEM;
    }
    pool.limit = limit;
    pool.end = &pool.first;
    return 0;
}

void
tp_blocking_stop(void)
{
    lock();
    pool.stop = true;
    struct thread *t;
    while ((t = idle_pop_locked()) != NULL) {
        tp_parker_unpark(&t->worker.parker);
    }
    unlock();
    for (unsigned i = 0; tp_blocking_worker(i) != NULL; i++) {
        if (pool.all[i].live) { /* from stop on nobody changes it */
            pthread_join(pool.all[i].id, NULL);
        }
    }
}

void
tp_blocking_fini(void)
{
    tp_free(pool.all);
    memset(&pool, 0, sizeof pool);
}
