/*
 * runtime.c - start, run and stop. See runtime.h.
 *
 * Tests: spec/unit/runtime_test.c
 */
#define _GNU_SOURCE
#include "run/runtime.h"

#include "actor/call.h"
#include "actor/delay.h"
#include "actor/group.h"
#include "actor/link.h"
#include "actor/slice.h"
#include "ctx/fault.h"
#include "mem/slab.h"
#include "sched/blocking.h"
#include "sched/monitor.h"

#include <stdio.h>
#include <string.h>

#define SLICE_NS_DEFAULT 2000000ull

/* Beyond the patience, so often it is looked at who is left. */
#define PATIENCE_SHARE 50

void (*tp_user_release)(struct tp_msg *m);
void (*tp_on_left_behind)(unsigned actors);
_Atomic uint64_t tp_blocking_patience_ns = 5000000000ull;

static struct {
    struct tp_mutex lock; /* rank RUNTIME */
    /* lock */
    bool active;
    bool up; /* the tables are there and the root is born */
    bool halted;
    int halt_code;
    unsigned interrupts;
    struct tp_run_hook *hooks;
    /* set at start */
    bool interruptible;
    bool exits_after;
    /* the first one who ends all, then the timer: step 5 */
    struct tp_event patience;
    /* the run's thread, and reap of the root */
    struct tp_reason *root_reason;
    /* any thread, atomic */
    _Atomic bool root_ended;
    _Atomic uint32_t external;
    _Atomic bool ending;     /* all were told to end */
    _Atomic unsigned behind; /* actors that were left behind */
} rt;

bool
tp_is_running(void)
{
    tp_mutex_lock(&rt.lock, TP_RANK_RUNTIME);
    bool active = rt.active;
    tp_mutex_unlock(&rt.lock, TP_RANK_RUNTIME);
    return active;
}

void
tp_external_begin(void)
{
    /* STOP-2 seq_cst: counted before the actor parks. Partner: quiescent. */
    atomic_fetch_add_explicit(&rt.external, 1, memory_order_seq_cst);
}

void
tp_external_end(void)
{
    /* STOP-2 seq_cst: after the actor was made runnable. Partner: quiescent,
     * which is asked again when the workers are idle once more. */
    if (atomic_fetch_sub_explicit(&rt.external, 1, memory_order_seq_cst) != 1) {
        return;
    }
    /* Maybe nobody was made runnable. From here on the run may be over. */
    tp_mutex_lock(&rt.lock, TP_RANK_RUNTIME);
    if (rt.up) {
        tp_sched_nudge();
    }
    tp_mutex_unlock(&rt.lock, TP_RANK_RUNTIME);
}

bool
tp_external_is_awaited(void)
{
    /* relaxed: a hint. */
    return atomic_load_explicit(&rt.external, memory_order_relaxed) != 0;
}

void
tp_run_at_stop(struct tp_run_hook *hook)
{
    tp_mutex_lock(&rt.lock, TP_RANK_RUNTIME);
    hook->next = rt.hooks;
    rt.hooks = hook;
    tp_mutex_unlock(&rt.lock, TP_RANK_RUNTIME);
}

/* When no scheduler and no monitor is left to call anything. */
static void
stop_hooks(void)
{
    tp_mutex_lock(&rt.lock, TP_RANK_RUNTIME);
    struct tp_run_hook *hooks = rt.hooks, *next;
    rt.hooks = NULL;
    tp_mutex_unlock(&rt.lock, TP_RANK_RUNTIME);
    for (struct tp_run_hook *h = hooks; h != NULL; h = h->next) {
        if (h->stop != NULL) {
            h->stop();
        }
    }
    for (struct tp_run_hook *h = hooks; h != NULL; h = next) {
        next = h->next;
        if (h->fini != NULL) {
            h->fini();
        }
    }
}

/* -- stop ---------------------------------------------------------------- */

static void
patience_start(uint64_t ns)
{
    uint64_t id; /* without memory for it the run waits */
    tp_event_start(&rt.patience, tp_now_ns() + ns, &id);
}

static bool
patience_fire(struct tp_event *e)
{
    (void)e;
    unsigned blocked = tp_blocking_sections();
    /* relaxed, all: samples; who is only about to end is seen next time. */
    if (blocked > 0 &&
        atomic_load_explicit(&tp_actor_live, memory_order_relaxed) == blocked) {
        /* relaxed: read by the run's thread, which sees the stop. */
        atomic_store_explicit(&rt.behind, blocked, memory_order_relaxed);
        tp_sched_stop();
    } else {
        /* relaxed: set before a run. */
        patience_start(atomic_load_explicit(&tp_blocking_patience_ns,
                                            memory_order_relaxed) /
                       PATIENCE_SHARE);
    }
    return false;
}

static void
patience_drop(struct tp_event *e)
{
    (void)e;
}

static bool
patience_matters(struct tp_event *e)
{
    (void)e;
    return tp_blocking_sections() > 0;
}

/* Step 1. */
static void
end_all(enum tp_reason_kind root, enum tp_reason_kind others)
{
    tp_actor_end_all(root, others);
    /* relaxed: only about who starts the timer. */
    if (rt.exits_after &&
        !atomic_exchange_explicit(&rt.ending, true, memory_order_relaxed)) {
        rt.patience.fire = patience_fire;
        rt.patience.drop = patience_drop;
        rt.patience.matters = patience_matters;
        /* relaxed: set before a run. */
        patience_start(atomic_load_explicit(&tp_blocking_patience_ns,
                                            memory_order_relaxed));
    }
}

unsigned
tp_left_behind(void)
{
    /* relaxed: after the run. */
    return atomic_load_explicit(&rt.behind, memory_order_relaxed);
}

/* Threads outside ask for a stop under the lock, and only while the tables are
 * there; what comes before that is made up for in go_up. */
static void
halt_locked(void)
{
    if (rt.up) {
        end_all(TP_REASON_SHUTDOWN, TP_REASON_SHUTDOWN);
    }
}

void
tp_halt(int code)
{
    tp_mutex_lock(&rt.lock, TP_RANK_RUNTIME);
    if (!rt.halted) {
        rt.halted = true;
        rt.halt_code = code;
    }
    halt_locked();
    tp_mutex_unlock(&rt.lock, TP_RANK_RUNTIME);
}

bool
tp_halted(int *out_code)
{
    tp_mutex_lock(&rt.lock, TP_RANK_RUNTIME);
    bool halted = rt.halted;
    *out_code = rt.halt_code;
    tp_mutex_unlock(&rt.lock, TP_RANK_RUNTIME);
    return halted;
}

static void
interrupt_locked(void)
{
    /* STOP-3 seq_cst: read after the interrupt was counted. Partner:
     * on_root_end stores it, then reads the count. */
    bool ended = atomic_load_explicit(&rt.root_ended, memory_order_seq_cst);
    if (!rt.up) {
        return;
    }
    if (rt.interrupts > 1) {
        end_all(TP_REASON_KILLED, TP_REASON_KILLED);
    } else if (ended) {
        halt_locked();
    } else {
        /* relaxed: set before any other thread was started. */
        tp_exit_signal(
            0, atomic_load_explicit(&tp_actor_root, memory_order_relaxed),
            tp_reason_const(TP_REASON_SHUTDOWN));
    }
}

void
tp_interrupt(void)
{
    tp_mutex_lock(&rt.lock, TP_RANK_RUNTIME);
    rt.interrupts++;
    interrupt_locked();
    tp_mutex_unlock(&rt.lock, TP_RANK_RUNTIME);
}

static void
go_up(void)
{
    tp_mutex_lock(&rt.lock, TP_RANK_RUNTIME);
    rt.up = true;
    if (rt.halted) {
        halt_locked();
    }
    if (rt.interrupts > 0) {
        interrupt_locked();
    }
    tp_mutex_unlock(&rt.lock, TP_RANK_RUNTIME);
}

static void
go_down(void)
{
    tp_mutex_lock(&rt.lock, TP_RANK_RUNTIME);
    rt.up = false;
    tp_mutex_unlock(&rt.lock, TP_RANK_RUNTIME);
}

/* Then an interrupt is a message that may come. */
static bool
root_traps_exits(void)
{
    /* relaxed: set before any other thread was started. */
    troupe_pid root =
        atomic_load_explicit(&tp_actor_root, memory_order_relaxed);
    struct tp_slot *s = tp_slot_at(root);
    tp_mutex_lock(&s->lock, TP_RANK_SLOT);
    bool traps =
        s->actor != NULL && s->actor->pid == root && s->actor->trap_exit;
    tp_mutex_unlock(&s->lock, TP_RANK_SLOT);
    return traps;
}

static bool
quiescent(void)
{
    uint64_t ticket;
    if (!tp_sched_quiet_begin(&ticket)) {
        return false;
    }
    /* STOP-2 seq_cst: read between two looks at the sleepers, and before the
     * queues: what was made runnable before the last external_end is queued,
     * or somebody has run it. Partner: tp_external_begin, tp_external_end. */
    if (atomic_load_explicit(&rt.external, memory_order_seq_cst) != 0 ||
        tp_blocking_is_busy() || tp_timers_prune() ||
        !tp_sched_is_quiet(ticket)) {
        return false;
    }
    /* relaxed: a root that ends is not parked. */
    bool ended = atomic_load_explicit(&rt.root_ended, memory_order_relaxed);
    if (!ended && rt.interruptible && root_traps_exits()) {
        return false;
    }
    end_all(ended ? TP_REASON_SHUTDOWN : TP_REASON_DEADLOCK,
            TP_REASON_SHUTDOWN);
    return true;
}

static bool
is_failure(const struct tp_reason *r)
{
    return r->kind != TP_REASON_NORMAL && r->kind != TP_REASON_SHUTDOWN;
}

static void
on_root_end(struct tp_reason *reason)
{
    rt.root_reason = reason;
    /* STOP-3 seq_cst: stored before the interrupts are counted. Partner:
     * tp_interrupt. */
    atomic_store_explicit(&rt.root_ended, true, memory_order_seq_cst);
    tp_mutex_lock(&rt.lock, TP_RANK_RUNTIME);
    bool interrupted = rt.interrupts > 0;
    tp_mutex_unlock(&rt.lock, TP_RANK_RUNTIME);
    if (interrupted || is_failure(reason)) {
        end_all(TP_REASON_SHUTDOWN, TP_REASON_SHUTDOWN);
    }
}

/* -- threads ------------------------------------------------------------- */

static void
work(unsigned index)
{
    struct tp_altstack alt;
    /* Without it an overflow kills the process, and nothing else changes. */
    tp_fault_thread_begin(&alt);
    tp_stack_thread_begin();
    tp_worker_run(index);
    tp_stack_thread_end();
    tp_fault_thread_end(&alt);
    tp_msg_thread_flush();
    tp_slab_thread_flush();
}

static void *
worker_main(void *arg)
{
    char name[16];
    unsigned index = (unsigned)(uintptr_t)arg;
    snprintf(name, sizeof name, "troupe-sched-%u", index);
    pthread_setname_np(pthread_self(), name);
    work(index);
    return NULL;
}

static unsigned
start_threads(unsigned count)
{
    unsigned started = 1;
    while (started < count &&
           tp_thread_create(&tp_sched.workers[started].thread, worker_main,
                            (void *)(uintptr_t)started) == 0) {
        started++;
    }
    return started;
}

static void
join_threads(unsigned started)
{
    for (unsigned i = 1; i < started; i++) {
        pthread_join(tp_sched.workers[i].thread, NULL);
    }
}

/* -- run ----------------------------------------------------------------- */

static bool
claim(const struct tp_run_config *config)
{
    tp_mutex_lock(&rt.lock, TP_RANK_RUNTIME);
    bool mine = !rt.active;
    if (mine) {
        rt.active = true;
        rt.halted = false;
        rt.interrupts = 0;
        rt.interruptible = config->interruptible;
        rt.exits_after = config->exits_after;
        rt.root_reason = NULL;
    }
    tp_mutex_unlock(&rt.lock, TP_RANK_RUNTIME);
    return mine;
}

static void
release(void)
{
    tp_mutex_lock(&rt.lock, TP_RANK_RUNTIME);
    rt.active = false;
    tp_mutex_unlock(&rt.lock, TP_RANK_RUNTIME);
}

/* What tp_msg_drop asks of a message that names something. */
static void
release_handles(struct tp_msg *m)
{
    if ((m->flags & TP_MSG_HAS_OBJECTS) != 0) {
        tp_user_release(m);
    }
    if (m->kind == TP_MSG_DOWN || m->kind == TP_MSG_EXIT) {
        tp_notice_release(m);
    } else if (m->kind == TP_MSG_CALL) {
        tp_call_release(m);
    } else if (m->kind == TP_MSG_TICK) {
        tp_tick_release(m);
    }
}

static void
reset(void)
{
    tp_msg_set_drop(release_handles);
    /* relaxed, all: no other thread is there yet. */
    atomic_store_explicit(&rt.root_ended, false, memory_order_relaxed);
    /* relaxed: as above. */
    atomic_store_explicit(&rt.external, 0, memory_order_relaxed);
    /* relaxed: as above. */
    atomic_store_explicit(&rt.ending, false, memory_order_relaxed);
    /* relaxed: as above. */
    atomic_store_explicit(&rt.behind, 0, memory_order_relaxed);
    /* relaxed: as above. */
    atomic_store_explicit(&tp_actor_no_spawn, false, memory_order_relaxed);
    /* relaxed: as above. */
    atomic_store_explicit(&tp_actor_live, 0, memory_order_relaxed);
    /* relaxed: as above. */
    atomic_store_explicit(&tp_actor_root, 0, memory_order_relaxed);
    /* relaxed: as above. */
    atomic_store_explicit(&tp_actor_given_up, 0, memory_order_relaxed);
    tp_actor_on_root_end = on_root_end;
    tp_actor_quiescent = quiescent;
}

static int
spawn_root(const struct tp_spawn_opts *opts, const struct tp_actor_class *class,
           void *arg)
{
    troupe_pid pid;
    int rc = tp_spawn(opts, class, arg, &pid);
    if (rc == 0) {
        /* relaxed: the other threads are started after this. */
        atomic_store_explicit(&tp_actor_root, pid, memory_order_relaxed);
    }
    return rc;
}

/* The root is queued; from here on the run cannot fail, only be short of
 * threads: it goes on with those that could be started. */
static void
run_threads(unsigned count)
{
    go_up();
    unsigned started = start_threads(count);
    tp_sched_short_of(started);
    work(0);
    join_threads(started);
    go_down();
}

/* Step 5: nothing is taken apart that an actor in the pool might still use. */
static void
leave_behind(struct tp_reason **out_reason)
{
    unsigned actors = tp_left_behind();
    if (*out_reason == NULL) {
        *out_reason = tp_reason_const(TP_REASON_SHUTDOWN);
    }
    if (tp_on_left_behind != NULL) {
        tp_on_left_behind(actors);
    }
}

/* What a run is made of, before its first thread; on failure nothing is left.
 * Long: one step for each part, and one to undo it. */
static int
parts_init(const struct tp_run_config *config, unsigned schedulers)
{
    int rc = tp_slots_init(config->max_actors == 0 ? TP_MAX_ACTORS
                                                   : config->max_actors);
    if (rc != 0) {
        return rc;
    }
    rc = tp_stacks_init(config->stack_reserve, config->stack_guard);
    if (rc != 0) {
        goto fail_stacks;
    }
    rc = tp_timers_init();
    if (rc == 0) {
        rc = tp_sched_init(schedulers,
                           config->slice_ns == 0 ? SLICE_NS_DEFAULT
                                                 : config->slice_ns,
                           &tp_actor_sched_ops);
    }
    if (rc != 0) {
        goto fail_sched;
    }
    rc = tp_slice_init();
    if (rc != 0) {
        goto fail_slice;
    }
    tp_sched.preemption = config->preemption == TROUPE_PREEMPT_SIGNAL &&
                                  !tp_preempt_is_supported()
                              ? TROUPE_PREEMPT_HOOK
                              : config->preemption;
    rc = tp_blocking_init(config->blocking_threads == 0
                              ? TP_BLOCKING_THREADS_DEFAULT
                              : config->blocking_threads);
    if (rc == 0) {
        return 0;
    }
    tp_slice_fini();
fail_slice:
    tp_sched_fini();
fail_sched:
    tp_timers_fini();
    tp_stacks_fini();
fail_stacks:
    tp_slots_fini();
    return rc;
}

static void
parts_fini(void)
{
    tp_blocking_fini();
    tp_slice_fini();
    tp_sched_fini();
    tp_timers_fini();
    tp_stacks_fini();
    tp_slots_fini();
}

/* All actors have ended, and all threads but those of the pool. */
static void
stop_parts(void)
{
    tp_blocking_stop();
    stop_hooks();
    tp_groups_fini();
    tp_names_fini();
    while (tp_slab_trim()) { /* the monitor's, which is no more */
    }
}

static unsigned
scheduler_count(const struct tp_run_config *config)
{
    if (config->schedulers != 0) {
        return config->schedulers;
    }
    unsigned cpus = tp_cpu_count();
    return cpus > TP_WORKERS_MAX ? TP_WORKERS_MAX : cpus;
}

int
tp_run(const struct tp_run_config *config, const struct tp_spawn_opts *opts,
       const struct tp_actor_class *class, void *arg,
       struct tp_reason **out_reason)
{
    if (!claim(config)) {
        return TROUPE_EBUSY;
    }
    unsigned count = scheduler_count(config);
    reset();
    int rc = parts_init(config, count);
    if (rc != 0) {
        goto fail_parts;
    }
    rc = tp_monitor_start();
    if (rc != 0) {
        goto fail_monitor;
    }
    rc = spawn_root(opts, class, arg);
    if (rc == 0) {
        run_threads(count);
        *out_reason = rt.root_reason;
    }
    tp_monitor_stop();
    if (tp_left_behind() > 0) {
        leave_behind(out_reason);
        return 0;
    }
    stop_parts();
fail_monitor:
    parts_fini();
fail_parts:
    release();
    return rc;
}
