/*
 * monitor.c - the thread that looks at the workers from outside.
 *
 * Idea:     it makes long slices end, wakes sleepers for work and timers that
 *           wait, and gives free memory back when there is time for that.
 * Threads:  its state is its own; it reads the workers' atomics.
 * Locks:    TP_RANK_SLAB, inside tp_slab_trim.
 * Ordering: MON-1, MON-2, WS-1, STOP-4.
 * Tests:    spec/unit/worker_test.c
 */
#define _GNU_SOURCE
#include "sched/monitor.h"

#include "ctx/preempt.h"
#include "mem/slab.h"
#include "sched/blocking.h"
#include "sched/timer.h"
#include "sched/worker.h"

#include <string.h>
#include <sys/prctl.h>

/* A tick is a slice, but while a worker sleeps no longer than this, so that
 * what waits is passed on after a millisecond at the latest. */
#define TICK_SHORT_NS 500000ull
#define TICK_MIN_NS   50000ull
/* Ticks in a row without a worker awake before it goes to sleep: a process
 * with little to do need not wake the monitor for each event. */
#define LINGER_TICKS 5

/* Free memory goes back to the kernel when nothing runs, or when there was not
 * more of it for so long. */
#define TRIM_AFTER_NS 1000000000ull

/* After so many times 10 us somebody shall poll. */
#define POLL_LATE 25

/* Code that is mostly C (strings, the collector) is met in Lua code one time
 * in thirty: who shall yield is asked again soon, for a while; then later and
 * later, so that one long C call is not showered with signals. */
#define RETRY_MIN_NS  50000ull
#define RETRY_LONG_NS 20000000ull
#define RETRY_SHARE   16
/* A slice that is so long may be one of finalizers that shall be given up, so
 * it is signalled now and then in any case. */
#define LOOK_NS 500000000ull
/* The longest time between two signals to one who shall end in the pool. */
#define PRESS_MAX_NS 100000000ull

_Atomic bool tp_monitor_asleep;

struct view {
    uint32_t slice;
    struct tp_slot *wake_slot;
    uint32_t taken;    /* so many it had taken from queues, */
    uint32_t queued;   /* and so many were left in its own */
    uint64_t since_ns; /* the slice was first seen then */
    uint64_t next_ns;  /* it is asked to yield again then */
    uint64_t look_ns;  /* the slice is signalled then, whether it shall yield,
                          and whether signals preempt, or not */
};

static struct {
    pthread_t thread;
    struct tp_parker parker;
    _Atomic bool stop;
    uint64_t memory_ns;     /* free memory has grown last then, */
    size_t memory;          /* to so many chunks */
    uint64_t queues_ns;     /* the queues are looked at again then */
    uint32_t shared_taken;  /* as in struct view, of all workers */
    uint32_t shared_queued; /* in the queue that belongs to none */
    uint64_t soon_ns;       /* the earliest next_ns of those who shall yield */
    uint64_t press_ns; /* the same of the pool's who shall end, or TP_NEVER */
    struct view views[TP_WORKERS_MAX];
} mon;

/* What a slice may take: little, while somebody who shall end waits for its
 * turn behind others. */
static uint64_t
slice_ns(void)
{
    /* relaxed: a hint. */
    bool hurry =
        atomic_load_explicit(&tp_sched.doomed, memory_order_relaxed) > 0;
    return hurry && tp_sched.slice_ns > TICK_MIN_NS ? TICK_MIN_NS
                                                    : tp_sched.slice_ns;
}

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

/* Does it run an actor that shall end? */
static bool
runs_doomed(struct tp_worker *w)
{
    /* relaxed: a sample; the slot itself never goes away. */
    struct tp_slot *s = atomic_load_explicit(&w->running, memory_order_relaxed);
    return s != NULL && tp_slot_is_doomed(s);
}

/*
 * The slice is used up. The actor shall yield if something waits to run, or if
 * it is to end; a signal makes it, where its code may stop. Without that it is
 * signalled once all the same, so that its class learns of a long run; and for
 * a look where that is due. Returns whether it shall yield.
 */
static bool
cut_short(struct tp_worker *w, uint64_t now_ns, bool look)
{
    /* relaxed, all: samples and requests; a wrong one is corrected a tick
     * later. */
    bool wanted =
        runs_doomed(w) ||
        (!w->pool &&
         /* relaxed: as above. */
         (atomic_load_explicit(&w->wake_slot, memory_order_relaxed) != NULL ||
          tp_timers_earliest() <= now_ns || tp_runq_has_work(tp_sched.runq) ||
          tp_sched_poll_is_due(0)));
    /* relaxed: as above. */
    int tid = atomic_load_explicit(&w->tid, memory_order_relaxed);
    /* relaxed: as above. */
    atomic_store_explicit(&w->yield_wanted, wanted, memory_order_relaxed);
    /* relaxed: as above. */
    atomic_store_explicit(&w->resched, wanted, memory_order_relaxed);
    /* relaxed: as above. */
    bool poked = atomic_load_explicit(&w->poked, memory_order_relaxed);
    bool signals = tp_sched.preemption == TROUPE_PREEMPT_SIGNAL;
    if (tid != 0 && (look || (signals && (wanted || !poked)))) {
        /* relaxed: the signal orders it for the thread it goes to. */
        atomic_store_explicit(&w->asked, TP_ASK_LOOK, memory_order_relaxed);
        tp_preempt_signal(tid);
    }
    return wanted;
}

/* The slice has been used up. */
static void
press(struct tp_worker *w, struct view *v, uint64_t now_ns, uint64_t may_take)
{
    if (now_ns >= v->next_ns) {
        uint64_t late = now_ns - v->since_ns - may_take;
        uint64_t wait =
            late < RETRY_LONG_NS ? 0 : (late - RETRY_LONG_NS) / RETRY_SHARE;
        wait = wait < RETRY_MIN_NS ? RETRY_MIN_NS : wait;
        bool look = now_ns >= v->look_ns;
        if (!cut_short(w, now_ns, look) || wait > may_take) {
            wait = may_take;
        }
        v->next_ns = now_ns + wait;
        v->look_ns = look ? now_ns + LOOK_NS : v->look_ns;
    }
    mon.soon_ns = v->next_ns < mon.soon_ns ? v->next_ns : mon.soon_ns;
}

static void
look_at(struct tp_worker *w, struct view *v, uint64_t now_ns)
{
    /* relaxed: samples; a wrong one is corrected a tick later. */
    uint32_t slice = atomic_load_explicit(&w->slice, memory_order_relaxed);
    /* relaxed: as above. */
    bool busy = atomic_load_explicit(&w->running, memory_order_relaxed) != NULL;
    /* relaxed: as above. */
    struct tp_slot *s =
        atomic_load_explicit(&w->wake_slot, memory_order_relaxed);
    if (!busy || slice != v->slice) {
        v->slice = slice;
        v->wake_slot = s;
        v->since_ns = now_ns;
        v->next_ns = 0;
        v->look_ns = now_ns + LOOK_NS;
        return;
    }
    uint64_t may_take = slice_ns();
    if (now_ns - v->since_ns >= may_take) {
        press(w, v, now_ns, may_take);
    }
    if (s != NULL && s == v->wake_slot && tp_idle_mask(&tp_sched.idle) != 0) {
        pass_on(w);
    }
    v->wake_slot = s;
}

/*
 * Of what was queued at the last tick something waits still, if fewer were
 * taken since. Queues are first in, first out; a thief's share is not counted,
 * which may wake one too many.
 */
static bool
has_waited(uint32_t *taken, uint32_t *queued, uint32_t taken_now, size_t len)
{
    bool waited = *queued > taken_now - *taken && len > 0;
    *taken = taken_now;
    *queued = len > UINT32_MAX ? UINT32_MAX : (uint32_t)len;
    return waited;
}

/* Surplus work gets one sleeper a tick; the chain rule goes on from there. */
static void
look_at_queues(uint64_t now_ns)
{
    uint32_t all = 0;
    bool waited = false;
    if (now_ns < mon.queues_ns) {
        return; /* a look in between, at somebody's slice */
    }
    mon.queues_ns = now_ns + TICK_SHORT_NS;
    for (unsigned i = 0; i < tp_sched.count; i++) {
        struct view *v = &mon.views[i];
        /* relaxed: a sample. */
        uint32_t taken = atomic_load_explicit(&tp_sched.workers[i].taken,
                                              memory_order_relaxed);
        all += taken;
        waited |= has_waited(&v->taken, &v->queued, taken,
                             tp_runq_len(tp_sched.runq, i));
    }
    waited |= has_waited(&mon.shared_taken, &mon.shared_queued, all,
                         tp_runq_len(tp_sched.runq, TP_RUNQ_SHARED));
    if (waited) {
        tp_sched_wake_one();
    }
}

/* -- the blocking pool ---------------------------------------------------- */

/*
 * Threads of the pool need no slices, and a signal may end a system call that
 * some library waits in: only one who shall end gets it, as often as it takes
 * for Lua code, then seldom, as C code will not hear it. Returns when next.
 */
static uint64_t
press_doomed(struct tp_worker *w, uint64_t now_ns)
{
    /* relaxed: a sample. */
    uint32_t slice = atomic_load_explicit(&w->slice, memory_order_relaxed);
    if (!runs_doomed(w)) {
        w->pressed_ns = 0;
        return TP_NEVER;
    }
    if (w->pressed_ns == 0 || slice != w->pressed_slice) {
        w->pressed_slice = slice;
        w->pressed_ns = w->press_next_ns = now_ns;
    }
    if (now_ns >= w->press_next_ns) {
        uint64_t wait = (now_ns - w->pressed_ns) / RETRY_SHARE;
        cut_short(w, now_ns, false);
        wait = wait < RETRY_MIN_NS ? RETRY_MIN_NS : wait;
        w->press_next_ns = now_ns + (wait < PRESS_MAX_NS ? wait : PRESS_MAX_NS);
    }
    return w->press_next_ns;
}

static void
look_at_pool(uint64_t now_ns)
{
    bool hurry = tp_blocking_hurry_take();
    if (hurry) {
        tp_blocking_sweep();
    }
    if (!hurry && mon.press_ns == TP_NEVER) {
        return;
    }
    struct tp_worker *w;
    mon.press_ns = TP_NEVER;
    for (unsigned i = 0; (w = tp_blocking_worker(i)) != NULL; i++) {
        uint64_t next_ns = press_doomed(w, now_ns);
        mon.press_ns = next_ns < mon.press_ns ? next_ns : mon.press_ns;
    }
    mon.soon_ns = mon.press_ns < mon.soon_ns ? mon.press_ns : mon.soon_ns;
}

/* ------------------------------------------------------------------------- */

/* A deadline has passed, no sleeper keeps the time, yet one sleeps. */
static void
look_at_timers(uint64_t now_ns)
{
    /* relaxed: a sample. */
    if (tp_timers_earliest() <= now_ns &&
        atomic_load_explicit(&tp_sched.timekeeper, memory_order_relaxed) < 0) {
        tp_sched_wake_one();
    }
}

/* Nobody polls, yet one sleeps. */
static void
look_at_events(void)
{
    if (tp_sched_poll_is_due(POLL_LATE)) {
        tp_sched_wake_one();
    }
}

static void
look_at_memory(uint64_t now_ns)
{
    size_t excess = tp_slab_excess();
    if (excess > mon.memory) {
        mon.memory_ns = now_ns;
    } else if (excess != 0 && now_ns - mon.memory_ns > TRIM_AFTER_NS) {
        tp_slab_trim();
    }
    mon.memory = excess;
}

static uint64_t
tick_ns(void)
{
    uint64_t tick = slice_ns();
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
    if (tp_sched_all_sleep() && !tp_blocking_hurry_wanted() &&
        !atomic_load_explicit(&mon.stop, memory_order_relaxed)) {
        tp_parker_park(&mon.parker, mon.press_ns);
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
            if (!tp_slab_trim()) {
                sleep_until_poked();
                quiet = 0;
            }
            continue;
        }
        uint64_t now = tp_now_ns();
        mon.soon_ns = now + tick_ns();
        for (unsigned i = 0; i < tp_sched.count; i++) {
            look_at(&tp_sched.workers[i], &mon.views[i], now);
        }
        look_at_queues(now);
        look_at_timers(now);
        look_at_pool(now);
        look_at_events();
        look_at_memory(now);
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
    memset(&mon, 0, sizeof mon);
    mon.press_ns = TP_NEVER;
    tp_parker_init(&mon.parker);
    /* relaxed: no other thread is there yet. */
    atomic_store_explicit(&tp_monitor_asleep, false, memory_order_relaxed);
    return tp_thread_create(&mon.thread, monitor_main, NULL) == 0
               ? 0
               : TROUPE_ESYSTEM;
}

void
tp_monitor_stop(void)
{
    /* relaxed: the unpark publishes it (PRK-1). */
    atomic_store_explicit(&mon.stop, true, memory_order_relaxed);
    tp_parker_unpark(&mon.parker);
    pthread_join(mon.thread, NULL);
}
