/*
 * blocking.h - the pool of threads on which actors may block.
 *
 * Idea:     an actor that is about to block moves as it is, with its stack, to
 *           a thread of the pool, and back when it has done so. Between enter
 *           and leave its fiber is marked: whoever makes it runnable puts it
 *           into the pool's queue and not into a run queue (worker.c, enqueue),
 *           so it may also wait in between.
 *
 *      scheduler                       thread of the pool
 *        enter: mark, yield
 *        enqueue -> the queue, or the
 *          hands of an idle thread  ->   runs it ...
 *                                        leave: unmark, yield
 *        takes it from the run queue <-  injected
 *
 *           There is a thread for each section, up to the limit; beyond that
 *           they take turns, in order of arrival. A thread that was idle for
 *           tp_blocking_idle_ns and is one too many ends.
 *           A doomed actor ends on a scheduler: it never waits for a thread of
 *           a pool that is stuck.
 * Threads:  enter, leave: the running actor. push, hurry, get_stats: any. init,
 *           stop, fini: the thread that starts and stops the runtime.
 * Locks:    TP_RANK_POOL; threads are created under it.
 * Ordering: STOP-2, MON-2, ST-1 (worker.c).
 * Parks:    enter and leave do.
 * Fails:    enter: TROUPE_ELIMIT, there is no thread and none can be made.
 * Rejected: passing the call to a thread that runs it there - Lua code needs
 *           the actor's own state and stack; a queue of the pool that is asked
 *           after the run queues - each scheduler would look at it each time.
 *           docs/design/blocking.md has more.
 * Tests:    spec/unit/blocking_test.c, spec/unit/blocking_stress.c
 */
#ifndef TP_SCHED_BLOCKING_H
#define TP_SCHED_BLOCKING_H

#include "ctx/fiber.h"
#include "sched/slot.h"

#define TP_BLOCKING_THREADS_DEFAULT 64
#define TP_BLOCKING_THREADS_MAX     1024

struct tp_worker;

/* limit: threads at most. 0 or TROUPE_EINVAL, TROUPE_ENOMEM. */
int tp_blocking_init(unsigned limit);

/* No actor is left: ends all threads. Then fini. */
void tp_blocking_stop(void);
void tp_blocking_fini(void);

/* -- for the running actor; actor.h has what others call ------------------ */

int tp_blocking_enter(struct tp_slot *self);
void tp_blocking_leave(struct tp_slot *self);

/* -- for worker.c --------------------------------------------------------- */

/* Is it in a section? For who has it in hand; a sample for others. */
static inline bool
tp_slot_blocks(const struct tp_slot *s)
{
    /* relaxed: written by the actor, whose state word publishes it. */
    return atomic_load_explicit(&tp_slot_fiber(s)->blocking,
                                memory_order_relaxed) != 0;
}

/* s, QUEUED and in no queue, is for the pool. False: it is doomed, and for a
 * scheduler. */
bool tp_blocking_push(struct tp_slot *s);

/* Whatever section s was in is over: its stack was given up. */
void tp_blocking_forget(struct tp_slot *s);

/* An actor was doomed that did not wait: if the pool has it, it has to go. */
void tp_blocking_hurry(void);

/* -- for the runtime ------------------------------------------------------ */

/* Does an actor run in the pool, or wait for a thread of it? */
bool tp_blocking_is_busy(void);

/* Actors within a section. */
unsigned tp_blocking_sections(void);

struct tp_blocking_stats {
    unsigned limit, threads, idle; /* threads: live ones */
    unsigned queued;               /* actors that wait for a thread */
    uint64_t sections;             /* entered so far */
};

void tp_blocking_get_stats(struct tp_blocking_stats *out);

/* How long a thread stays idle before it ends; for tests. */
extern _Atomic uint64_t tp_blocking_idle_ns;

/* -- for the monitor ------------------------------------------------------ */

/* Was somebody doomed whom the pool may have? wanted: a look; take: and it is
 * attended to now. */
bool tp_blocking_hurry_wanted(void);
bool tp_blocking_hurry_take(void);

/* The doomed among those who wait for a thread go to the schedulers. */
void tp_blocking_sweep(void);

/* The i-th of all threads that ever were in this run; NULL: no more. */
struct tp_worker *tp_blocking_worker(unsigned i);

#endif
