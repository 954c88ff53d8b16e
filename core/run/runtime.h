/*
 * runtime.h - start, run and stop. One runtime at a time in a process.
 *
 * The stop protocol
 *   1 The root actor ends (reap). If it failed, or halt was called, or all
 *     workers sleep and nothing is queued, armed or awaited outside: all
 *     actors are told to end; no new one is born.
 *   2 They run their finalizers and are reaped; the live count falls to zero.
 *   3 The one who counts zero stops the workers; they leave their loops.
 *   4 tp_run joins the threads, takes all apart and returns the root's reason.
 *   5 An actor in a blocking call ends when that returns, which may be never. A
 *     run whose process exits afterwards waits for tp_blocking_patience_ns from
 *     1 on; when only such actors are left then, it stops the workers, leaves
 *     all as it is and returns. No run can follow.
 *
 * Threads:  run: one, which becomes worker 0. The rest: any.
 * Locks:    TP_RANK_RUNTIME.
 * Ordering: STOP-1 (actor.c), LIVE-1.
 * Fails:    TROUPE_EBUSY, TROUPE_EINVAL, TROUPE_ENOMEM, TROUPE_ESYSTEM.
 * Tests:    spec/unit/runtime_test.c
 */
#ifndef TP_RUN_RUNTIME_H
#define TP_RUN_RUNTIME_H

#include "actor/actor.h"

struct tp_run_config {
    unsigned schedulers;  /* 1..64; 0: tp_cpu_count() */
    uint32_t max_actors;  /* 1..2^20; 0: 2^20 */
    size_t stack_reserve; /* bytes; 0: 256 KiB */
    size_t stack_guard;
    uint64_t slice_ns;                 /* 0: 2 ms */
    unsigned blocking_threads;         /* of the pool, 1..1024; 0: 64 */
    enum troupe_preemption preemption; /* 0: by signals, where possible */
    bool interruptible; /* a root that traps exits may wait for tp_interrupt */
    bool exits_after;   /* the process ends after the run: see step 5 */
};

/*
 * Runs class->main(arg) as root actor until nothing can happen any more.
 * Takes arg when it returns 0; then *out_reason, the root's, is the caller's.
 */
int tp_run(const struct tp_run_config *config, const struct tp_spawn_opts *opts,
           const struct tp_actor_class *class, void *arg,
           struct tp_reason **out_reason);

/* Is a runtime active in this process? */
bool tp_is_running(void);

/* Releases what a message with TP_MSG_HAS_OBJECTS names; set before tp_run. */
extern void (*tp_user_release)(struct tp_msg *m);

/* Ends the run in order; the first code given counts. Any thread. */
void tp_halt(int code);

/* So many actors were left behind in blocking calls, in step 5. */
unsigned tp_left_behind(void);

/* Step 5: for tests; and who is told, with their number. May be NULL. */
extern _Atomic uint64_t tp_blocking_patience_ns;
extern void (*tp_on_left_behind)(unsigned actors);

/* True and the code if the last run was halted. */
bool tp_halted(int *out_code);

/*
 * A request from outside to end. The first one sends the root an exit signal
 * "shutdown", and all end with the root; once the root is gone, it ends all.
 * The second one kills all. Any thread.
 */
void tp_interrupt(void);

/* Something outside (I/O, the blocking pool, a host) may make an actor
 * runnable: the run does not find itself done meanwhile. A run that is stopped
 * does not wait for the end of it. end: with no lock held; it is the last that
 * the thread may do to the run. */
void tp_external_begin(void);
void tp_external_end(void);

/* Is anything awaited outside? A hint. */
bool tp_external_is_awaited(void);

/* What a layer above must take apart at the end of the run that is active, when
 * no actor and no scheduler is left; once, the youngest first. Part of some
 * larger struct, which must last. Either may be NULL. */
struct tp_run_hook {
    struct tp_run_hook *next;
    void (*stop)(void); /* its threads; they do no more to the run */
    void (*fini)(void); /* the rest, when all of all were stopped */
};

/* From an actor. */
void tp_run_at_stop(struct tp_run_hook *hook);

#endif
