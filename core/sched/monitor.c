/*
 * monitor.c - the thread that looks at the workers from outside.
 *
 * Threads:  its state is its own; it reads the workers' atomics.
 * Ordering: MON-1, WS-1.
 * Tests:    spec/unit/worker_test.c
 */
#define _GNU_SOURCE
#include "sched/monitor.h"

#include "sched/timer.h"
#include "sched/worker.h"

#include <signal.h>
#include <string.h>

/* While a worker sleeps, so that what waits in a wake slot is passed on after a
 * millisecond at the latest; and while all are busy. */
#define TICK_SHORT_NS 500000ull
#define TICK_LONG_NS  2000000ull
/* Ticks in a row without a worker awake before it goes to sleep: a process
 * with little to do need not wake the monitor for each event. */
#define LINGER_TICKS 5

_Atomic bool tp_monitor_asleep;

struct view {
    uint32_t slice;
    struct tp_slot *wake_slot;
    uint64_t since_ns; /* the slice was first seen then */
};

static struct {
    pthread_t thread;
    struct tp_parker parker;
    _Atomic bool stop;
    struct view views[TP_WORKERS_MAX];
} mon;

/* What waits behind a long slice goes to a worker that sleeps. */
static void
pass_on(struct tp_worker *w)
{
    /* WS-1 acq_rel: takes what wake_slot_put published; the worker's own
     * exchange sees NULL then. */
    struct tp_slot *s =
        atomic_exchange_explicit(&w->wake_slot, NULL, memory_order_acq_rel);
    if (s == NULL) {
        return;
    }
    tp_runq_inject(tp_sched.runq, &s->qnode);
    int i = tp_idle_claim(&tp_sched.idle, -1);
    if (i >= 0) {
        tp_parker_unpark(&tp_sched.workers[i].parker);
    }
}

static void
look_at(struct tp_worker *w, struct view *v, uint64_t now_ns)
{
    /* relaxed: samples; a wrong one is corrected a tick later. */
    uint32_t slice = atomic_load_explicit(&w->slice, memory_order_relaxed);
    /* relaxed: as above. */
    bool busy = atomic_load_explicit(&w->in_actor, memory_order_relaxed);
    /* relaxed: as above. */
    struct tp_slot *s =
        atomic_load_explicit(&w->wake_slot, memory_order_relaxed);
    if (!busy || slice != v->slice) {
        v->slice = slice;
        v->wake_slot = s;
        v->since_ns = now_ns;
        return;
    }
    if (now_ns - v->since_ns >= tp_sched.slice_ns) {
        /* relaxed: a request; the actor reads it at its next checkpoint. */
        atomic_store_explicit(&w->resched, true, memory_order_relaxed);
    }
    if (s != NULL && s == v->wake_slot && tp_idle_mask(&tp_sched.idle) != 0) {
        pass_on(w);
    }
    v->wake_slot = s;
}

/* A deadline has passed, no sleeper keeps the time, yet one sleeps. */
static void
look_at_timers(uint64_t now_ns)
{
    /* relaxed: a sample. */
    if (tp_timers_earliest() <= now_ns &&
        atomic_load_explicit(&tp_sched.timekeeper, memory_order_relaxed) < 0) {
        int i = tp_idle_claim(&tp_sched.idle, -1);
        if (i >= 0) {
            tp_parker_unpark(&tp_sched.workers[i].parker);
        }
    }
}

static bool
all_sleep(void)
{
    return tp_idle_mask(&tp_sched.idle) == tp_idle_all(tp_sched.count);
}

static void
sleep_until_poked(void)
{
    /* MON-1 seq_cst: stored before the mask is read. Partner: a worker clears
     * its bit, then reads this (tp_monitor_poke). */
    atomic_store_explicit(&tp_monitor_asleep, true, memory_order_seq_cst);
    /* relaxed: stop is followed by an unpark. */
    if (all_sleep() && !atomic_load_explicit(&mon.stop, memory_order_relaxed)) {
        tp_parker_park(&mon.parker, TP_NEVER);
    }
    /* relaxed: who reads the old value unparks us once too often. */
    atomic_store_explicit(&tp_monitor_asleep, false, memory_order_relaxed);
}

static void *
monitor_main(void *unused)
{
    unsigned quiet = 0;
    (void)unused;
    pthread_setname_np(pthread_self(), "troupe-monitor");
    /* relaxed: stop is followed by an unpark. */
    while (!atomic_load_explicit(&mon.stop, memory_order_relaxed)) {
        quiet = all_sleep() ? quiet + 1 : 0;
        if (quiet > LINGER_TICKS) {
            sleep_until_poked();
            quiet = 0;
            continue;
        }
        uint64_t now = tp_now_ns();
        for (unsigned i = 0; i < tp_sched.count; i++) {
            look_at(&tp_sched.workers[i], &mon.views[i], now);
        }
        look_at_timers(now);
        tp_parker_park(&mon.parker, now + (tp_idle_mask(&tp_sched.idle) != 0
                                               ? TICK_SHORT_NS
                                               : TICK_LONG_NS));
    }
    return NULL;
}

void
tp_monitor_wake(void)
{
    tp_parker_unpark(&mon.parker);
}

int
tp_monitor_start(void)
{
    sigset_t all, old;
    memset(&mon, 0, sizeof mon);
    tp_parker_init(&mon.parker);
    /* relaxed: no other thread is there yet. */
    atomic_store_explicit(&tp_monitor_asleep, false, memory_order_relaxed);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int rc = pthread_create(&mon.thread, NULL, monitor_main, NULL);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return rc == 0 ? 0 : TROUPE_ESYSTEM;
}

void
tp_monitor_stop(void)
{
    /* relaxed: the unpark publishes it (PRK-1). */
    atomic_store_explicit(&mon.stop, true, memory_order_relaxed);
    tp_parker_unpark(&mon.parker);
    pthread_join(mon.thread, NULL);
}
