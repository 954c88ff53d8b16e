/*
 * worker.c - the scheduler loop: take, run, account, put back or park.
 *
 * The state word's protocol (ST-1). Who may make which step:
 *
 *   VACANT  -> QUEUED    tp_slot_born, the spawner, who has it in hand until
 *                        tp_slot_start
 *   QUEUED  -> RUNNING   tp_worker_slice, the worker that took it; the epoch moves on
 *   RUNNING -> NOTIFIED  tp_unpark_at with the current epoch, any thread
 *   RUNNING -> PARKED    after_park, the worker, once the stack is at rest
 *   RUNNING, NOTIFIED -> QUEUED   yield, or a park that was already notified
 *   PARKED  -> QUEUED    tp_unpark_at with the current epoch, or tp_slot_doom
 *   RUNNING, NOTIFIED -> DONE     tp_slot_done, the actor at its end
 *   any     -> | DOOMED  tp_slot_doom; taken away by tp_worker_slice, on a
 *                        scheduler
 *   RUNNING -> QUEUED    tp_worker_slice, of one that is on a wrong thread: a
 *                        doomed one in the pool, or one that goes on in its
 *                        blocking section on a scheduler
 *
 * The worker, not the actor, stores PARKED: before that store no other thread
 * may touch the stack, since this one still stands on it. A worker is a
 * scheduler or a thread of the blocking pool. A slot that is QUEUED is in a run
 * queue, a wake slot or the pool's queue: whoever made that step has it in hand
 * and puts it there (enqueue).
 *
 * Threads:  see worker.h.
 * Locks:    none of its own.
 * Ordering: ST-1, WS-1, IDLE-1, IDLE-2, POLL-1, STOP-4.
 * Rejected: a direct switch from actor to actor - it saves 4 ns and costs a
 *           second place where a park is completed.
 * Tests:    spec/unit/worker_test.c, spec/unit/actor_stress.c
 */
#define _GNU_SOURCE
#include "sched/worker.h"

#include "sched/blocking.h"
#include "sched/monitor.h"
#include "sched/timer.h"

#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* So often in a row the wake slot comes before the queue, and so long. */
#define SLOT_BUDGET        64
#define SLOT_BUDGET_CYCLES (100 * tp_cycles_10us())

/* So long, in units of 10 us, busy workers leave events alone: a look costs a
 * system call, 0.3 to 3 us. */
#define POLL_EVERY 20

/* What a parked receive is deep, and the fields that a slice touches. */
#define PREFETCH_ABOVE 4
#define PREFETCH_BELOW 15

struct tp_sched tp_sched;

static _Thread_local struct tp_worker *self_worker
    __attribute__((tls_model("initial-exec")));

/* noinline: the address of a thread-local must not outlive a switch. */
__attribute__((noinline)) struct tp_worker *
tp_worker_self(void)
{
    __asm__ volatile("");
    return self_worker;
}

struct tp_slot *
tp_slot_self(void)
{
    struct tp_worker *w = tp_worker_self();
    return w == NULL ? NULL : w->current;
}

/* Owner only. */
static void
count(_Atomic uint64_t *stat, uint64_t n)
{
    /* relaxed: a statistic with one writer. */
    uint64_t old = atomic_load_explicit(stat, memory_order_relaxed);
    /* relaxed: as above. */
    atomic_store_explicit(stat, old + n, memory_order_relaxed);
}

static struct tp_slot *
slot_of(struct tp_runq_node *n)
{
    return n == NULL ? NULL : tp_container_of(n, struct tp_slot, qnode);
}

/* -- making runnable ----------------------------------------------------- */

static uint64_t
bit_of(int worker)
{
    return worker < 0 ? 0 : 1ull << worker;
}

void
tp_sched_wake_one(void)
{
    /* relaxed: a preference. */
    uint64_t avoid = bit_of(
        atomic_load_explicit(&tp_sched.timekeeper, memory_order_relaxed));
    /* relaxed: as above. */
    avoid |=
        bit_of(atomic_load_explicit(&tp_sched.poller, memory_order_relaxed));
    int i = tp_idle_claim(&tp_sched.idle, avoid);
    if (i < 0 && avoid != 0) {
        i = tp_idle_claim(&tp_sched.idle, 0);
    }
    if (i >= 0) {
        struct tp_worker *w = tp_worker_self();
        if (w != NULL) {
            count(&w->stats.wakes, 1);
        }
        tp_parker_unpark(&tp_sched.workers[i].parker);
    }
}

/*
 * s runs soon, and its memory is often cold: a ring of 1,000 actors passes its
 * token a third faster for this. An actor's fiber stands right above its stack,
 * so nothing is read here that might be gone.
 */
static void
prefetch(const struct tp_slot *s)
{
    const char *fiber = (const char *)tp_slot_fiber(s);
    for (int i = PREFETCH_ABOVE; i > -PREFETCH_BELOW; i--) {
        __builtin_prefetch(fiber + i * TP_CACHELINE);
    }
}

/* What comes after that which was taken from the queue. */
static void
prefetch_queued(const struct tp_worker *w)
{
    struct tp_runq_node *next = tp_runq_peek(tp_sched.runq, w->index, 0);
    if (next != NULL) {
        prefetch(slot_of(next));
        __builtin_prefetch(tp_runq_peek(tp_sched.runq, w->index, 1));
    }
}

/* Owner: puts s first, what was first goes to the queue. Nobody is woken for
 * that: see worker.h. */
static void
wake_slot_put(struct tp_worker *w, struct tp_slot *s)
{
    prefetch(s);
    /* WS-1 acq_rel: publishes s to the monitor that may pass it on, and sees
     * it when it comes back. Partner: monitor.c, wake_slot_take. */
    struct tp_slot *old =
        atomic_exchange_explicit(&w->wake_slot, s, memory_order_acq_rel);
    if (old != NULL) {
        tp_runq_push(tp_sched.runq, w->index, &old->qnode);
    }
}

static struct tp_slot *
wake_slot_take(struct tp_worker *w)
{
    /* WS-1 acquire: who finds it emptied by the monitor sees that the slot is
     * in its hand (tp_sched_is_quiet). */
    if (atomic_load_explicit(&w->wake_slot, memory_order_acquire) == NULL) {
        return NULL;
    }
    /* WS-1 acq_rel: as in wake_slot_put; the monitor may have been faster. */
    return atomic_exchange_explicit(&w->wake_slot, NULL, memory_order_acq_rel);
}

/* A thread without a run queue. */
static bool
is_outside(const struct tp_worker *w)
{
    return w == NULL || w->pool;
}

void
tp_sched_submit(struct tp_slot *s)
{
    tp_runq_inject(tp_sched.runq, &s->qnode);
    tp_sched_wake_one();
}

/* s is QUEUED, in no queue, and the caller's. */
static void
enqueue(struct tp_slot *s)
{
    if (TP_UNLIKELY(tp_slot_blocks(s)) && tp_blocking_push(s)) {
        return;
    }
    struct tp_worker *w = tp_worker_self();
    if (is_outside(w)) {
        tp_sched_submit(s);
    } else if (w->current != NULL) {
        wake_slot_put(w, s);
    } else {
        /* The loop itself: it takes one next. */
        tp_runq_push(tp_sched.runq, w->index, &s->qnode);
    }
}

void
tp_slot_born(struct tp_slot *s)
{
    /* ST-1 release: publishes the newborn to whoever finds its pid. */
    atomic_fetch_add_explicit(&s->state, TP_QUEUED - TP_VACANT,
                              memory_order_release);
}

void
tp_slot_start(struct tp_slot *s)
{
    enqueue(s);
}

/* So many more slots are QUEUED and doomed. While there are any the monitor has
 * others make room soon. Are these the first? */
static bool
count_doomed(int change)
{
    /* relaxed: a hint; below zero for a moment, if a worker is faster than who
     * dooms. */
    return atomic_fetch_add_explicit(&tp_sched.doomed, change,
                                     memory_order_relaxed) <= 0;
}

/* Ends the wait; *out_queue is the slot if it is the caller's to queue. */
static inline __attribute__((always_inline)) bool
end_wait(troupe_pid pid, uint32_t epoch, struct tp_slot **out_queue)
{
    struct tp_slot *s = tp_slot_at(pid);
    *out_queue = NULL;
    if (s == NULL) {
        return false;
    }
    /* relaxed: the exchange below is the acquire. */
    uint64_t word = atomic_load_explicit(&s->state, memory_order_relaxed);
    for (;;) {
        enum tp_state st = tp_state_of(word);
        if (tp_state_gen(word) != tp_pid_gen(pid) ||
            tp_state_epoch(word) != epoch ||
            (st != TP_PARKED && st != TP_RUNNING)) {
            return false;
        }
        uint64_t to = st == TP_PARKED ? TP_QUEUED : TP_NOTIFIED;
        /* ST-1 acq_rel: publishes what the waker did to the actor's next
         * slice, and takes the stack over from the worker that parked it.
         * relaxed: a failure is tried again. */
        if (atomic_compare_exchange_weak_explicit(
                &s->state, &word, (word & ~TP_STATE_MASK) | to,
                memory_order_acq_rel, memory_order_relaxed)) {
            *out_queue = st == TP_PARKED ? s : NULL;
            return true;
        }
    }
}

bool
tp_unpark_at(troupe_pid pid, uint32_t epoch)
{
    struct tp_slot *s;
    bool ended = end_wait(pid, epoch, &s);
    if (s != NULL) {
        enqueue(s);
    }
    return ended;
}

void
tp_unpark_all(const struct tp_wake *wakes, size_t n)
{
    struct tp_worker *w = tp_worker_self();
    bool any = false;
    for (size_t i = 0; i < n; i++) {
        struct tp_slot *s;
        end_wait(wakes[i].pid, wakes[i].epoch, &s);
        if (s != NULL && is_outside(w) && !tp_slot_blocks(s)) {
            tp_runq_inject(tp_sched.runq, &s->qnode);
            any = true;
        } else if (s != NULL) {
            enqueue(s);
        }
    }
    if (any) {
        tp_sched_wake_one();
    }
}

/* Some worker runs an actor that shall end; that one yields at its next
 * checkpoint. Ends from outside are rare, so all workers are asked. */
static void
hurry_all(void)
{
    for (unsigned i = 0; i < tp_sched.count; i++) {
        /* relaxed: a request; the monitor would repeat it. */
        atomic_store_explicit(&tp_sched.workers[i].resched, true,
                              memory_order_relaxed);
    }
}

bool
tp_slot_doom(struct tp_slot *s, uint32_t gen)
{
    /* relaxed: the exchange below is the acquire. */
    uint64_t word = atomic_load_explicit(&s->state, memory_order_relaxed);
    for (;;) {
        enum tp_state st = tp_state_of(word);
        if (tp_state_gen(word) != gen || st == TP_DONE || st == TP_VACANT) {
            return false;
        }
        uint64_t next = word | TP_STATE_DOOMED;
        if (st == TP_PARKED) {
            next = (next & ~TP_STATE_MASK) | TP_QUEUED;
        }
        /* ST-1 acq_rel: as in tp_unpark_at. relaxed: tried again. */
        if (atomic_compare_exchange_weak_explicit(&s->state, &word, next,
                                                  memory_order_acq_rel,
                                                  memory_order_relaxed)) {
            if (tp_state_of(next) == TP_QUEUED && next != word &&
                count_doomed(1) && st == TP_QUEUED) {
                tp_monitor_wake(); /* it may sleep for a long slice */
            }
            if (st == TP_PARKED) {
                enqueue(s);
            } else if (s != tp_slot_self()) {
                tp_blocking_hurry();
                if (st != TP_QUEUED) {
                    hurry_all();
                }
            }
            return true;
        }
    }
}

/* -- the running actor's side -------------------------------------------- */

static void
switch_out(struct tp_slot *self, enum tp_after after)
{
    struct tp_worker *w = tp_worker_self();
    tp_assert(w->current == self);
    w->after = after;
    tp_fiber_switch(tp_slot_fiber(self), &w->fiber);
}

void
tp_worker_park(struct tp_slot *self)
{
    switch_out(self, TP_AFTER_PARK);
}

void
tp_worker_yield(struct tp_slot *self)
{
    switch_out(self, TP_AFTER_YIELD);
}

void
tp_slot_done(struct tp_slot *self)
{
    /* relaxed: the exchange below orders. */
    uint64_t word = atomic_load_explicit(&self->state, memory_order_relaxed);
    /* ST-1 release: who finds the actor dead sees what it did. Partner:
     * tp_pid_is_alive. relaxed: tried again. */
    while (!atomic_compare_exchange_weak_explicit(
        &self->state, &word,
        (word & ~(TP_STATE_MASK | TP_STATE_DOOMED)) | TP_DONE,
        memory_order_release, memory_order_relaxed)) {
    }
}

void
tp_worker_exit(struct tp_slot *self)
{
    struct tp_worker *w = tp_worker_self();
    w->after = TP_AFTER_EXIT;
    tp_fiber_switch_final(tp_slot_fiber(self), &w->fiber);
    abort();
}

void
tp_wait_abandon(struct tp_slot *self)
{
    /* relaxed: the exchange below is the acquire. */
    uint64_t word = atomic_load_explicit(&self->state, memory_order_relaxed);
    uint64_t next;
    do {
        next = ((word & ~TP_STATE_MASK) | TP_RUNNING) + TP_STATE_EPOCH_ONE;
        /* ST-1 acquire: sees what a waker did that had notified us.
         * relaxed: tried again. */
    } while (!atomic_compare_exchange_weak_explicit(
        &self->state, &word, next, memory_order_acquire, memory_order_relaxed));
}

/* Is something there that w might run instead? A thread of the pool need not
 * make room: the schedulers run meanwhile. */
static bool
others_wait(struct tp_worker *w)
{
    /* relaxed: a hint. */
    return !w->pool &&
           (atomic_load_explicit(&w->wake_slot, memory_order_relaxed) != NULL ||
            tp_runq_has_work(tp_sched.runq) ||
            tp_timers_earliest() <= tp_now_ns() ||
            tp_sched_poll_is_due(POLL_EVERY));
}

bool
tp_worker_checkpoint_slow(void)
{
    struct tp_worker *w = tp_worker_self();
    /* relaxed: a request to hurry, repeated by the monitor. */
    atomic_store_explicit(&w->resched, false, memory_order_relaxed);
    bool yields = tp_slot_is_doomed(w->current) || others_wait(w);
    if (yields) {
        tp_worker_yield(w->current);
    }
    return yields;
}

/* -- one slice ----------------------------------------------------------- */

/* The stack is at rest. PARKED, unless the wait is over already or the actor
 * is doomed: then it runs again. */
static void
after_park(struct tp_worker *w, struct tp_slot *s)
{
    /* relaxed: the exchange below orders. */
    uint64_t word = atomic_load_explicit(&s->state, memory_order_relaxed);
    uint64_t next;
    do {
        bool again =
            tp_state_of(word) == TP_NOTIFIED || (word & TP_STATE_DOOMED) != 0;
        next = (word & ~TP_STATE_MASK) | (again ? TP_QUEUED : TP_PARKED);
        /* ST-1 release: the stack and all that the actor wrote, for the worker
         * that runs it next. acquire: what its waker wrote. relaxed: tried
         * again. */
    } while (!atomic_compare_exchange_weak_explicit(
        &s->state, &word, next, memory_order_acq_rel, memory_order_relaxed));
    if (tp_state_of(next) == TP_QUEUED) {
        if (TP_UNLIKELY((next & TP_STATE_DOOMED) != 0)) {
            count_doomed(1);
        }
        if (TP_UNLIKELY(w->pool)) {
            enqueue(s);
        } else {
            wake_slot_put(w, s);
        }
    }
}

static void
after_yield(struct tp_worker *w, struct tp_slot *s)
{
    /* relaxed: the exchange below orders. */
    uint64_t word = atomic_load_explicit(&s->state, memory_order_relaxed);
    /* ST-1 release: as in after_park. relaxed: tried again. */
    while (!atomic_compare_exchange_weak_explicit(
        &s->state, &word, (word & ~TP_STATE_MASK) | TP_QUEUED,
        memory_order_acq_rel, memory_order_relaxed)) {
    }
    bool doomed = (word & TP_STATE_DOOMED) != 0;
    if (TP_UNLIKELY(doomed)) {
        count_doomed(1);
    }
    if (TP_UNLIKELY(w->pool || tp_slot_blocks(s))) {
        enqueue(s);
    } else if (TP_UNLIKELY(doomed)) {
        wake_slot_put(w, s); /* it ends now, not behind all others */
    } else {
        tp_runq_push(tp_sched.runq, w->index, &s->qnode);
    }
}

/*
 * s, doomed, is about to run. An actor ends on a scheduler, so that it needs no
 * thread of a pool that is stuck; one that cannot be killed goes on in its
 * blocking section, in the pool. False: it was sent there.
 */
static bool
admit_doomed(struct tp_worker *w, struct tp_slot *s)
{
    if (!w->pool) {
        /* ST-1 acquire: sees the reason that the doomer stored. */
        atomic_fetch_and_explicit(&s->state, ~TP_STATE_DOOMED,
                                  memory_order_acquire);
        if (tp_sched.ops->doom(s)) {
            tp_blocking_forget(s);
        }
        if (!tp_slot_blocks(s)) {
            return true;
        }
    }
    after_yield(w, s);
    return false;
}

/* The slice that begins, as the monitor sees it. Before the state says so: who
 * dooms an actor that runs then finds it here. */
static void
show(struct tp_worker *w, struct tp_slot *s)
{
    /* relaxed, all: samples; see above for the order. */
    atomic_store_explicit(&w->poked, false, memory_order_relaxed);
    /* relaxed: as above. */
    atomic_store_explicit(
        &w->slice, atomic_load_explicit(&w->slice, memory_order_relaxed) + 1,
        memory_order_relaxed);
    /* relaxed: as above. */
    atomic_store_explicit(&w->running, s, memory_order_relaxed);
}

static void
hide(struct tp_worker *w)
{
    /* relaxed: a sample. */
    atomic_store_explicit(&w->running, NULL, memory_order_relaxed);
    w->current = NULL;
}

/* Inline in the loop, which does little else. */
static inline __attribute__((always_inline)) void
run_slice(struct tp_worker *w, struct tp_slot *s)
{
    /* relaxed, both: what the last slice was asked is not for this one. Before
     * the actor runs, so that whoever dooms it then is heard. */
    atomic_store_explicit(&w->resched, false, memory_order_relaxed);
    /* relaxed: as above. */
    atomic_store_explicit(&w->yield_wanted, false, memory_order_relaxed);
    show(w, s);
    /* ST-1 acquire: sees the stack as the last worker left it, and what the
     * waker wrote. Partners: after_park, tp_unpark_at, tp_slot_start. */
    uint64_t word = atomic_fetch_add_explicit(
        &s->state, TP_STATE_EPOCH_ONE + TP_RUNNING - TP_QUEUED,
        memory_order_acq_rel);
    tp_assert(tp_state_of(word) == TP_QUEUED);
    if (TP_UNLIKELY((word & TP_STATE_DOOMED) != 0)) {
        count_doomed(-1);
        if (!admit_doomed(w, s)) {
            hide(w);
            return;
        }
    }
    w->current = s;
    count(&w->stats.switches, 1);
    w->slice_start_cycles = tp_cycles();
    tp_fiber_switch(&w->fiber, tp_slot_fiber(s));
    hide(w);
    switch (w->after) {
    case TP_AFTER_PARK:
        after_park(w, s);
        break;
    case TP_AFTER_YIELD:
        after_yield(w, s);
        break;
    case TP_AFTER_EXIT:
        tp_blocking_forget(s);
        tp_sched.ops->reap(s);
        break;
    case TP_AFTER_OVERFLOW:
        tp_sched.ops->overflow(s);
        tp_blocking_forget(s);
        after_yield(w, s);
        break;
    }
}

void
tp_worker_slice(struct tp_worker *w, struct tp_slot *s)
{
    run_slice(w, s);
}

/* -- taking work --------------------------------------------------------- */

static void
check_timers(struct tp_worker *w)
{
    uint64_t earliest = tp_timers_earliest();
    if (TP_LIKELY(earliest == TP_NEVER)) {
        return;
    }
    uint64_t cycles = tp_cycles();
    if (cycles - w->timer_check_cycles < tp_cycles_10us()) {
        return;
    }
    w->timer_check_cycles = cycles;
    uint64_t now = tp_now_ns();
    if (earliest <= now) {
        count(&w->stats.timers, tp_timers_run(now));
    }
}

/* -- events from outside ---------------------------------------------------- */

static const struct tp_poll *
poll_source(void)
{
    /* IDLE-1 seq_cst: read after the idle bit was set, so that the last one who
     * goes to sleep polls. Partner: tp_sched_set_poll. */
    return atomic_load_explicit(&tp_sched.poll, memory_order_seq_cst);
}

void
tp_sched_set_poll(const struct tp_poll *poll)
{
    /* IDLE-1 seq_cst: stored before a sleeper is looked for. Partner:
     * poll_source. */
    atomic_store_explicit(&tp_sched.poll, poll, memory_order_seq_cst);
    if (poll != NULL) {
        tp_sched_nudge();
    }
}

static bool
become_poller(struct tp_worker *w)
{
    int nobody = -1;
    /* POLL-1 acquire: the events of the last poller are delivered. Partner:
     * resign_poller. relaxed: another is it. */
    return atomic_compare_exchange_strong_explicit(
        &tp_sched.poller, &nobody, (int)w->index, memory_order_acquire,
        memory_order_relaxed);
}

static void
resign_poller(void)
{
    /* relaxed: a hint when it will be time again. */
    atomic_store_explicit(&tp_sched.polled_cycles, tp_cycles(),
                          memory_order_relaxed);
    /* POLL-1 release: as in become_poller. */
    atomic_store_explicit(&tp_sched.poller, -1, memory_order_release);
}

bool
tp_sched_poll_is_due(unsigned since_10us)
{
    /* IDLE-1 acquire: sees what the source is made of. */
    const struct tp_poll *poll =
        atomic_load_explicit(&tp_sched.poll, memory_order_acquire);
    if (poll == NULL ||
        /* relaxed: a hint; POLL-1 decides. */
        atomic_load_explicit(&tp_sched.poller, memory_order_relaxed) >= 0 ||
        !poll->awaited()) {
        return false;
    }
    /* relaxed: as above. */
    uint64_t last =
        atomic_load_explicit(&tp_sched.polled_cycles, memory_order_relaxed);
    /* Signed: cores may differ a little. */
    return (int64_t)(tp_cycles() - last) >=
           (int64_t)(since_10us * tp_cycles_10us());
}

/* A busy worker has a look. */
static void
check_events(struct tp_worker *w)
{
    if (TP_LIKELY(!tp_sched_poll_is_due(POLL_EVERY)) || !become_poller(w)) {
        return;
    }
    const struct tp_poll *poll = poll_source();
    size_t n = poll->wait(0);
    if (n > 0) {
        poll->deliver(n);
    }
    resign_poller();
}

/* Sleeps in the poll; how many events there are. */
static size_t
sleep_in_poll(struct tp_worker *w, const struct tp_poll *poll,
              uint64_t deadline_ns)
{
    size_t n = 0;
    if (tp_parker_poll_begin(&w->parker, poll->event_fd)) {
        n = poll->wait(deadline_ns);
    }
    tp_parker_poll_end(&w->parker);
    return n;
}

/* Chain rule: one that was woken has found work, and there is more, in whatever
 * queue: what it takes need not be what it was woken for. */
static void
chain(struct tp_worker *w)
{
    if (w->woken && tp_runq_has_work(tp_sched.runq)) {
        tp_sched_wake_one();
    }
    w->woken = false;
}

/* Owner: s is from a queue. */
static void
note_taken(struct tp_worker *w)
{
    w->slot_streak = 0;
    /* relaxed: one writer; the monitor compares two samples. */
    uint32_t taken = atomic_load_explicit(&w->taken, memory_order_relaxed);
    /* relaxed: as above. */
    atomic_store_explicit(&w->taken, taken + 1, memory_order_relaxed);
}

static uint32_t
next_random(struct tp_worker *w)
{
    w->seed = w->seed * 1664525u + 1013904223u;
    return w->seed >> 8;
}

/* The queue first when the wake slot has had its turns. */
static struct tp_slot *
take_queued(struct tp_worker *w)
{
    struct tp_slot *s = slot_of(tp_runq_pop(tp_sched.runq, w->index));
    prefetch_queued(w);
    if (s == NULL && tp_sched.count > 1) {
        s = wake_slot_take(w);
        if (s != NULL) {
            return s;
        }
        s = slot_of(tp_runq_steal(tp_sched.runq, w->index, next_random(w)));
        count(&w->stats.steals, s != NULL);
    }
    if (s != NULL) {
        note_taken(w);
        chain(w);
        return s;
    }
    return wake_slot_take(w);
}

static struct tp_slot *
take(struct tp_worker *w)
{
    check_timers(w);
    check_events(w);
    if (w->slot_streak == 0) {
        w->streak_cycles = w->slice_start_cycles;
    }
    if (w->slot_streak < SLOT_BUDGET &&
        w->slice_start_cycles - w->streak_cycles < SLOT_BUDGET_CYCLES) {
        struct tp_slot *s = wake_slot_take(w);
        if (s != NULL) {
            w->slot_streak++;
            chain(w);
            return s;
        }
    }
    return take_queued(w);
}

/* -- idling -------------------------------------------------------------- */

static bool
stopping(void)
{
    /* IDLE-1 seq_cst: read after the idle bit was set. Partner:
     * tp_sched_stop. */
    return atomic_load_explicit(&tp_sched.stop, memory_order_seq_cst);
}

/* The timers' insert: a sleeper that would sleep too long is woken. */
static void
on_earlier_deadline(uint64_t deadline_ns)
{
    /* IDLE-2 seq_cst: read after the deadline was stored. Partner:
     * become_timekeeper, which stores this, then reads the deadline. */
    if (atomic_load_explicit(&tp_sched.timekeeper_deadline,
                             memory_order_seq_cst) > deadline_ns) {
        /* relaxed: a wrong answer costs one wake-up; see IDLE-2. */
        int keeper =
            atomic_load_explicit(&tp_sched.timekeeper, memory_order_relaxed);
        if (keeper >= 0) {
            tp_parker_unpark(&tp_sched.workers[keeper].parker);
        } else if (is_outside(tp_worker_self())) {
            tp_sched_wake_one();
        }
    }
}

/* Returns the deadline to sleep until, TP_NEVER if another keeps the time. */
static uint64_t
become_timekeeper(struct tp_worker *w)
{
    extern _Atomic uint64_t tp_timer_earliest;
    int nobody = -1;
    /* IDLE-1 seq_cst: after the idle bit was set. Partner: an insert by no
     * worker stores the deadline, then looks for a sleeper. */
    if (atomic_load_explicit(&tp_timer_earliest, memory_order_seq_cst) ==
            TP_NEVER ||
        /* relaxed: the role is only about who sleeps with a deadline. */
        !atomic_compare_exchange_strong_explicit(
            &tp_sched.timekeeper, &nobody, (int)w->index, memory_order_relaxed,
            memory_order_relaxed)) {
        return TP_NEVER;
    }
    uint64_t deadline, seen = tp_timers_earliest();
    do {
        deadline = seen;
        /* IDLE-2 seq_cst: stored before the deadline is read again. Partner:
         * on_earlier_deadline. */
        atomic_store_explicit(&tp_sched.timekeeper_deadline, deadline,
                              memory_order_seq_cst);
        /* IDLE-2 seq_cst: see above. */
        seen = atomic_load_explicit(&tp_timer_earliest, memory_order_seq_cst);
    } while (seen < deadline);
    return deadline;
}

static void
resign_timekeeper(struct tp_worker *w)
{
    /* relaxed: only the keeper itself changes it back. */
    if (atomic_load_explicit(&tp_sched.timekeeper, memory_order_relaxed) ==
        (int)w->index) {
        /* relaxed: from here on a busy worker or the monitor watches. */
        atomic_store_explicit(&tp_sched.timekeeper_deadline, TP_NEVER,
                              memory_order_relaxed);
        /* relaxed: as above. */
        atomic_store_explicit(&tp_sched.timekeeper, -1, memory_order_relaxed);
    }
}

bool
tp_sched_quiet_begin(uint64_t *out_ticket)
{
    *out_ticket = tp_idle_leaves(&tp_sched.idle);
    return tp_sched_all_sleep();
}

bool
tp_sched_is_quiet(uint64_t ticket)
{
    return !tp_runq_has_work(tp_sched.runq) && tp_sched_all_sleep() &&
           tp_idle_leaves(&tp_sched.idle) == ticket;
}

void
tp_sched_nudge(void)
{
    if (tp_sched_all_sleep()) {
        tp_sched_wake_one();
    }
}

/* Events are delivered by one who is awake, to all who ask. */
static void
idle(struct tp_worker *w)
{
    tp_idle_enter(&tp_sched.idle, w->index);
    uint64_t deadline = become_timekeeper(w);
    const struct tp_poll *poll = NULL;
    size_t events = 0;
    if (!tp_runq_has_work(tp_sched.runq) && !stopping() &&
        !tp_sched.ops->quiescent() &&
        (deadline == TP_NEVER || deadline > tp_now_ns())) {
        count(&w->stats.parks, 1);
        poll = poll_source();
        if (poll != NULL && become_poller(w)) {
            events = sleep_in_poll(w, poll, deadline);
        } else {
            poll = NULL;
            tp_parker_park(&w->parker, deadline);
        }
    }
    resign_timekeeper(w);
    tp_idle_leave(&tp_sched.idle, w->index);
    tp_monitor_poke();
    if (poll != NULL) {
        if (events > 0) {
            poll->deliver(events);
        }
        resign_poller();
    }
    w->timer_check_cycles = 0;
    w->woken = true;
}

/* -- start and stop ------------------------------------------------------ */

void
tp_sched_short_of(unsigned started)
{
    /* relaxed: see tp_sched_all_sleep. */
    atomic_store_explicit(&tp_sched.present, tp_idle_all(started),
                          memory_order_relaxed);
}

void
tp_worker_thread_begin(struct tp_worker *w)
{
    self_worker = w;
    /* relaxed: the monitor signals nobody before it sees it. */
    atomic_store_explicit(&w->tid, (int)syscall(SYS_gettid),
                          memory_order_relaxed);
    tp_fiber_init_thread(&w->fiber);
}

void
tp_worker_thread_end(struct tp_worker *w)
{
    tp_fiber_fini(&w->fiber);
    /* relaxed: a late signal finds no actor. */
    atomic_store_explicit(&w->tid, 0, memory_order_relaxed);
    self_worker = NULL;
}

void
tp_worker_run(unsigned index)
{
    struct tp_worker *w = &tp_sched.workers[index];
    tp_worker_thread_begin(w);
    tp_idle_leave(&tp_sched.idle, index);
    tp_monitor_poke();
    while (!stopping()) {
        struct tp_slot *s = take(w);
        if (s != NULL) {
            run_slice(w, s);
        } else {
            idle(w);
        }
    }
    tp_worker_thread_end(w);
}

void
tp_sched_stop(void)
{
    /* IDLE-1 seq_cst: stored before sleepers are unparked; a worker that has
     * just set its bit reads it (stopping). */
    atomic_store_explicit(&tp_sched.stop, true, memory_order_seq_cst);
    for (unsigned i = 0; i < tp_sched.count; i++) {
        tp_parker_unpark(&tp_sched.workers[i].parker);
    }
}

bool
tp_pid_is_alive(troupe_pid pid)
{
    struct tp_slot *s = tp_slot_at(pid);
    if (s == NULL) {
        return false;
    }
    /* ST-1 acquire: who sees an actor dead sees what it did before. */
    uint64_t word = atomic_load_explicit(&s->state, memory_order_acquire);
    enum tp_state st = tp_state_of(word);
    return tp_state_gen(word) == tp_pid_gen(pid) && st != TP_VACANT &&
           st != TP_DONE;
}

void
tp_worker_init(struct tp_worker *w, unsigned index)
{
    memset(w, 0, sizeof *w);
    w->index = index;
    w->seed = 0x9e3779b9u * (index + 1);
    tp_parker_init(&w->parker);
    atomic_init(&w->wake_slot, NULL);
}

int
tp_sched_init(unsigned workers, uint64_t slice_ns,
              const struct tp_sched_ops *ops)
{
    memset(&tp_sched, 0, sizeof tp_sched);
    if (workers == 0 || workers > TP_WORKERS_MAX) {
        return TROUPE_EINVAL;
    }
    tp_sched.workers =
        tp_aligned_alloc(TP_CACHELINE, workers * sizeof(struct tp_worker));
    if (tp_sched.workers == NULL) {
        return TROUPE_ENOMEM;
    }
    int rc = tp_runq_new(workers, &tp_sched.runq);
    if (rc != 0) {
        tp_free(tp_sched.workers);
        return rc;
    }
    for (unsigned i = 0; i < workers; i++) {
        tp_worker_init(&tp_sched.workers[i], i);
    }
    tp_sched.count = workers;
    tp_sched.slice_ns = slice_ns;
    tp_sched.ops = ops;
    atomic_init(&tp_sched.present, tp_idle_all(workers));
    atomic_init(&tp_sched.timekeeper, -1);
    atomic_init(&tp_sched.poller, -1);
    atomic_init(&tp_sched.timekeeper_deadline, TP_NEVER);
    tp_timer_on_earlier = on_earlier_deadline;
    return 0;
}

void
tp_sched_fini(void)
{
    tp_runq_free(tp_sched.runq);
    tp_free(tp_sched.workers);
    memset(&tp_sched, 0, sizeof tp_sched);
}
