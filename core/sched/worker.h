/*
 * worker.h - scheduler threads: take an actor, run it, put it where it goes.
 *
 * A worker knows a slot, its fiber and its state word; what an actor is, it
 * learns through struct tp_sched_ops, set by the actor layer.
 *
 * Rules of waking (docs/design/scheduler.md)
 *   - made runnable by the running actor: into this worker's wake slot, what
 *     the slot held goes to its queue. Nobody is woken: to wake a thread costs
 *     as much as many slices, and a burst is soon over;
 *   - what has waited in a queue or a wake slot for half a millisecond while a
 *     worker sleeps: the monitor wakes one, after a millisecond at the latest;
 *   - from other threads, those of the blocking pool too: injected, and at
 *     most one is woken;
 *   - one that is in a blocking section: to the pool (sched/blocking.h);
 *   - a worker that was woken, takes work and sees more wakes one sibling
 *     (chain).
 *
 * Events from outside (struct tp_poll) are taken by one worker at a time, the
 * poller: one that has nothing to do sleeps in the poll instead of on its futex
 * word; while all are busy, each looks for events before a slice if nobody has
 * for some time. So an event that meets a sleeper costs one wake, and one that
 * meets a busy worker none. If the poller was woken for something else and no
 * other worker has come by for a while, the monitor wakes a sleeper to be it.
 */
#ifndef TP_SCHED_WORKER_H
#define TP_SCHED_WORKER_H

#include "ctx/fiber.h"
#include "sched/idle.h"
#include "sched/parker.h"
#include "sched/runq.h"
#include "sched/slot.h"

#include <pthread.h>

/* What an actor asks of its worker when it switches out. */
enum tp_after {
    TP_AFTER_PARK,
    TP_AFTER_YIELD,
    TP_AFTER_EXIT,
    TP_AFTER_OVERFLOW /* its stack ran over; it was given up where it stood */
};

/* Why the monitor has signalled a worker. */
enum tp_ask {
    TP_ASK_NOTHING,
    TP_ASK_LOOK
};

struct tp_worker_stats {
    _Atomic uint64_t switches; /* slices run */
    _Atomic uint64_t steals;
    _Atomic uint64_t parks;
    _Atomic uint64_t wakes; /* unparks of siblings */
    _Atomic uint64_t timers;
    _Atomic uint64_t preemptions; /* slices cut short */
};

struct tp_worker {
    /* set at start */
    unsigned index;
    bool pool; /* a thread of the blocking pool: no scheduler, no queue */
    pthread_t thread;
    struct tp_fiber fiber; /* the scheduler's own context */

    /* owner only; current also by signal handlers on its thread */
    struct tp_slot *current;
    enum tp_after after;
    unsigned slot_streak; /* slices in a row taken from the wake slot */
    bool woken;           /* has left idle() and taken nothing since */
    uint32_t seed;
    uint64_t timer_check_cycles;
    uint64_t slice_start_cycles;
    uint64_t streak_cycles; /* when the first of slot_streak began */

    /* owner writes, any reads: relaxed statistics */
    alignas(TP_CACHELINE) struct tp_worker_stats stats;

    /* any thread, atomic */
    alignas(TP_CACHELINE) _Atomic(struct tp_slot *) wake_slot;
    _Atomic uint32_t slice;    /* counts slices; the monitor compares */
    _Atomic uint32_t taken;    /* so many from queues; as slice */
    _Atomic bool resched;      /* the monitor asks the actor to yield soon */
    _Atomic bool yield_wanted; /* by the monitor: something waits to run */
    _Atomic bool poked;        /* a signal has met this slice in its code */
    _Atomic int asked;         /* enum tp_ask: a signal is under way */
    _Atomic int tid;           /* of its thread; 0: not running */
    _Atomic(struct tp_slot *) running; /* current, for the monitor */
    struct tp_parker parker;

    /* monitor only, of a thread of the pool: whom it presses to end there */
    uint32_t pressed_slice;
    uint64_t pressed_ns, press_next_ns;
};

struct tp_sched_ops {
    /* The slot is doomed and about to run: prepare its fiber to end. Returns
     * false if it ends already and goes on as it was. */
    bool (*doom)(struct tp_slot *s);
    /* The slot's stack has run over: prepare its fiber to end. */
    void (*overflow)(struct tp_slot *s);
    /* The slot's fiber has switched out for the last time (state TP_DONE). */
    void (*reap)(struct tp_slot *s);
    /* All workers sleep and no work is queued, or so it seems: the answer is
     * given between tp_sched_quiet_begin and tp_sched_is_quiet. True: the run
     * is over, or new work was made. */
    bool (*quiescent)(void);
};

/* A source of events from outside, taken by one worker at a time. */
struct tp_poll {
    int event_fd; /* a signal to it ends a wait */
    /* Sleeps until there are events, deadline_ns (0: does not sleep, TP_NEVER:
     * none) or a signal; how many there are. */
    size_t (*wait)(uint64_t deadline_ns);
    /* Makes runnable whom those n events concern, by tp_unpark_all. */
    void (*deliver)(size_t n);
    /* Can there be events? */
    bool (*awaited)(void);
};

struct tp_sched {
    /* set at start */
    unsigned count;
    const struct tp_sched_ops *ops;
    struct tp_runq *runq;
    struct tp_worker *workers;
    uint64_t slice_ns;
    enum troupe_preemption preemption; /* how slices are cut short */

    /* any thread, atomic */
    alignas(TP_CACHELINE) struct tp_idle idle;
    _Atomic uint64_t present; /* a bit for each worker that was started */
    _Atomic int timekeeper; /* the worker that sleeps until a deadline, or -1 */
    _Atomic uint64_t timekeeper_deadline;
    _Atomic(const struct tp_poll *) poll; /* NULL: there is none (yet) */
    _Atomic int poller;                   /* the worker that polls, or -1 */
    _Atomic uint64_t polled_cycles;       /* when somebody last polled */
    _Atomic int doomed;                   /* so many that are QUEUED */
    _Atomic bool stop;
};

extern struct tp_sched tp_sched;

int tp_sched_init(unsigned workers, uint64_t slice_ns,
                  const struct tp_sched_ops *ops);
void tp_sched_fini(void);

/* The loop of worker index in the calling thread; returns when stopped. */
void tp_worker_run(unsigned index);

/* For the threads of the blocking pool: a struct of their own; the calling
 * thread becomes that worker, or none; it runs s once. */
void tp_worker_init(struct tp_worker *w, unsigned index);
void tp_worker_thread_begin(struct tp_worker *w);
void tp_worker_thread_end(struct tp_worker *w);
void tp_worker_slice(struct tp_worker *w, struct tp_slot *s);

/* s, QUEUED and in no queue, is for a scheduler. Any thread. */
void tp_sched_submit(struct tp_slot *s);

/* Wakes one that sleeps, if any does: rather not the timekeeper or the poller,
 * as only the monitor has an eye on timers and events while they run. Any
 * thread. */
void tp_sched_wake_one(void);

/* Makes all workers leave their loops. Any thread. */
void tp_sched_stop(void);

/* There is a source of events from here on; NULL: not any more, when no worker
 * is left. */
void tp_sched_set_poll(const struct tp_poll *poll);

/* Does nobody poll, and did not for so many times 10 us, while there can be
 * events? A hint. */
bool tp_sched_poll_is_due(unsigned since_10us);

/* Workers from started on have no thread. Before worker 0 runs. */
void tp_sched_short_of(unsigned started);

/*
 * Can nothing happen any more? begin: false, no; else look at all that may
 * still make an actor runnable from outside, then ask is_quiet. True: from
 * begin on all workers have slept, and nothing is queued.
 */
bool tp_sched_quiet_begin(uint64_t *out_ticket);
bool tp_sched_is_quiet(uint64_t ticket);

/* What was awaited outside is gone and nobody was woken by it: one worker
 * shall ask whether that was the last. Any thread. */
void tp_sched_nudge(void);

/* Do all workers sleep? */
static inline bool
tp_sched_all_sleep(void)
{
    /* relaxed: set before worker 0 runs, and it must sleep too. */
    return tp_idle_mask(&tp_sched.idle) ==
           atomic_load_explicit(&tp_sched.present, memory_order_relaxed);
}

/* This thread's worker, which may be one of the blocking pool; NULL on others.
 * Never keep it across a switch. */
struct tp_worker *tp_worker_self(void);

/* -- for the running actor ----------------------------------------------- */

/* The slot that runs in this thread, or NULL. */
struct tp_slot *tp_slot_self(void);

/* The epoch of the running actor's next park, for those who shall end it. */
static inline uint32_t
tp_wait_epoch(const struct tp_slot *self)
{
    /* relaxed: only this worker moves the epoch on. */
    return tp_state_epoch(
        atomic_load_explicit(&self->state, memory_order_relaxed));
}

/* Switches out until tp_unpark_at with the current epoch, which may have come
 * already. The epoch is a new one afterwards. May return too early. */
void tp_worker_park(struct tp_slot *self);

/* Ends the current epoch without a park: registrations made for it are void. */
void tp_wait_abandon(struct tp_slot *self);

void tp_worker_yield(struct tp_slot *self);

/* The running actor is dead from here on, to all who ask; before they are told.
 * It may only exit then. */
void tp_slot_done(struct tp_slot *self);

/* Never returns. */
_Noreturn void tp_worker_exit(struct tp_slot *self);

/* Yields if the slice is used up and something else waits to run, or the actor
 * is doomed. Cheap. Did it? */
bool tp_worker_checkpoint_slow(void);

/* -- for anybody --------------------------------------------------------- */

/* A newborn slot (TP_VACANT, filled in) can be told to end from here on. Caller
 * holds the slot's lock. */
void tp_slot_born(struct tp_slot *s);

/* It becomes runnable. */
void tp_slot_start(struct tp_slot *s);

/* Ends wait epoch of pid; false if that wait is over. */
bool tp_unpark_at(troupe_pid pid, uint32_t epoch);

/* A wait, to be ended. */
struct tp_wake {
    troupe_pid pid;
    uint32_t epoch;
};

/* Ends n waits. All are runnable before one worker is woken, which wakes the
 * next; from a worker's loop nobody is woken, it takes one itself. */
void tp_unpark_all(const struct tp_wake *wakes, size_t n);

/* Marks pid doomed and makes it runnable; false if it is gone. Caller holds
 * the slot's lock. */
bool tp_slot_doom(struct tp_slot *s, uint32_t gen);

/* Is it alive: born, not done? */
bool tp_pid_is_alive(troupe_pid pid);

#endif
