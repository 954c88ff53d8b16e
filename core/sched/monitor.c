/*
 * monitor.c - the thread that looks at the workers from outside.
 *
 * Threads:  its state is its own; it reads the workers' atomics.
 * Ordering: MON-1, WS-1, STOP-4.
 * Tests:    spec/unit/worker_test.c
 */
#define _GNU_SOURCE
#include "sched/monitor.h"

#include "ctx/preempt.h"
#include "sched/timer.h"
#include "sched/worker.h"

#include <signal.h>
#include <string.h>
#include <sys/prctl.h>

/* A tick is a slice, but while a worker sleeps no longer than this, so that
 * what waits in a wake slot is passed on after a millisecond at the latest. */
#define TICK_SHORT_NS 500000ull
#define TICK_MIN_NS   50000ull
/* Ticks in a row without a worker awake before it goes to sleep: a process
 * with little to do need not wake the monitor for each event. */
#define LINGER_TICKS 5

/* After so many times 10 us somebody shall poll. */
#define POLL_LATE 25

/* Code that is mostly C (strings, the collector) is met in Lua code one time
 * in thirty: who shall yield is asked again soon, for a while; then later and
 * later, so that one long C call is not showered with signals. */
#define RETRY_MIN_NS  50000ull
#define RETRY_LONG_NS 20000000ull
#define RETRY_SHARE   16

_Atomic bool tp_monitor_asleep;

struct view {
    uint32_t slice;
    struct tp_slot *wake_slot;
    uint64_t since_ns; /* the slice was first seen then */
    uint64_t next_ns;  /* it is asked to yield again then */
};

static struct {
    pthread_t thread;
    struct tp_parker parker;
    _Atomic bool stop;
    uint64_t soon_ns; /* the earliest next_ns of those who shall yield */
    struct view views[TP_WORKERS_MAX];
} mon;

/*
 * What waits behind a long slice goes to a worker that sleeps. The sleeper is
 * claimed first: while this thread has the slot in its hand not all sleep, so
 * that nobody can find the run quiescent, and whoever was claimed looks again.
 */
static void
pass_on(struct tp_worker *w)
{
    int i = tp_idle_claim(&tp_sched.idle, 0);
    if (i < 0) {
        return;
    }
    /* WS-1 acq_rel: takes what wake_slot_put published; the worker's own look
     * sees NULL then. */
    struct tp_slot *s =
        atomic_exchange_explicit(&w->wake_slot, NULL, memory_order_acq_rel);
    if (s != NULL) {
        tp_runq_inject(tp_sched.runq, &s->qnode);
    }
    tp_parker_unpark(&tp_sched.workers[i].parker);
}

static bool
is_doomed(const struct tp_slot *s)
{
    /* relaxed: a sample; the slot itself never goes away. */
    return s != NULL && (atomic_load_explicit(&s->state, memory_order_relaxed) &
                         TP_STATE_DOOMED) != 0;
}

/*
 * The slice is used up. The actor shall yield if something waits to run, or if
 * it is to end; a signal makes it, where its code may stop. Without that it is
 * signalled once all the same, so that its class learns of a long run. Returns
 * whether it shall yield.
 */
static bool
cut_short(struct tp_worker *w, uint64_t now_ns)
{
    /* relaxed, all: samples and requests; a wrong one is corrected a tick
     * later. */
    bool wanted =
        is_doomed(atomic_load_explicit(&w->running, memory_order_relaxed)) ||
        /* relaxed: as above. */
        atomic_load_explicit(&w->wake_slot, memory_order_relaxed) != NULL ||
        tp_timers_earliest() <= now_ns || tp_runq_has_work(tp_sched.runq) ||
        tp_sched_poll_is_due(0);
    /* relaxed: as above. */
    int tid = atomic_load_explicit(&w->tid, memory_order_relaxed);
    /* relaxed: as above. */
    atomic_store_explicit(&w->yield_wanted, wanted, memory_order_relaxed);
    /* relaxed: as above. */
    atomic_store_explicit(&w->resched, wanted, memory_order_relaxed);
    /* relaxed: as above. */
    bool poked = atomic_load_explicit(&w->poked, memory_order_relaxed);
    if (tid != 0 && tp_sched.signals && (wanted || !poked)) {
        /* relaxed: the signal orders it for the thread it goes to. */
        atomic_store_explicit(&w->asked, TP_ASK_LOOK, memory_order_relaxed);
        tp_preempt_signal(tid);
    }
    return wanted;
}

/* The slice has been used up. */
static void
press(struct tp_worker *w, struct view *v, uint64_t now_ns)
{
    if (now_ns >= v->next_ns) {
        uint64_t late = now_ns - v->since_ns - tp_sched.slice_ns;
        uint64_t wait =
            late < RETRY_LONG_NS ? 0 : (late - RETRY_LONG_NS) / RETRY_SHARE;
        wait = wait < RETRY_MIN_NS ? RETRY_MIN_NS : wait;
        if (!cut_short(w, now_ns) || wait > tp_sched.slice_ns) {
            wait = tp_sched.slice_ns;
        }
        v->next_ns = now_ns + wait;
    }
    mon.soon_ns = v->next_ns < mon.soon_ns ? v->next_ns : mon.soon_ns;
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
        v->next_ns = 0;
        return;
    }
    if (now_ns - v->since_ns >= tp_sched.slice_ns) {
        press(w, v, now_ns);
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
        int i = tp_idle_claim(&tp_sched.idle, 0);
        if (i >= 0) {
            tp_parker_unpark(&tp_sched.workers[i].parker);
        }
    }
}

/* Nobody polls, yet one sleeps. */
static void
look_at_events(void)
{
    if (tp_sched_poll_is_due(POLL_LATE)) {
        int i = tp_idle_claim(&tp_sched.idle, 0);
        if (i >= 0) {
            tp_parker_unpark(&tp_sched.workers[i].parker);
        }
    }
}

static uint64_t
tick_ns(void)
{
    uint64_t tick = tp_sched.slice_ns;
    if (tp_idle_mask(&tp_sched.idle) != 0 && tick > TICK_SHORT_NS) {
        tick = TICK_SHORT_NS;
    }
    return tick < TICK_MIN_NS ? TICK_MIN_NS : tick;
}

static void
sleep_until_poked(void)
{
    /* MON-1 seq_cst: stored before the mask is read. Partner: a worker clears
     * its bit, then reads this (tp_monitor_poke). */
    atomic_store_explicit(&tp_monitor_asleep, true, memory_order_seq_cst);
    /* relaxed: stop is followed by an unpark. */
    if (tp_sched_all_sleep() &&
        !atomic_load_explicit(&mon.stop, memory_order_relaxed)) {
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
    prctl(PR_SET_TIMERSLACK, 1000ul, 0ul, 0ul, 0ul);
    /* relaxed: stop is followed by an unpark. */
    while (!atomic_load_explicit(&mon.stop, memory_order_relaxed)) {
        quiet = tp_sched_all_sleep() ? quiet + 1 : 0;
        if (quiet > LINGER_TICKS) {
            sleep_until_poked();
            quiet = 0;
            continue;
        }
        uint64_t now = tp_now_ns();
        mon.soon_ns = now + tick_ns();
        for (unsigned i = 0; i < tp_sched.count; i++) {
            look_at(&tp_sched.workers[i], &mon.views[i], now);
        }
        look_at_timers(now);
        look_at_events();
        tp_parker_park(&mon.parker, mon.soon_ns);
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
    int rc = tp_thread_create(&mon.thread, monitor_main, NULL);
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
