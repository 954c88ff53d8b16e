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
#include "sched/monitor.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

#define SLICE_NS_DEFAULT 2000000ull

void (*tp_user_release)(struct tp_msg *m);

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
    /* the run's thread, and reap of the root */
    struct tp_reason *root_reason;
    /* any thread, atomic */
    _Atomic bool root_ended;
    _Atomic uint32_t external;
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

/* Threads outside ask for a stop under the lock, and only while the tables are
 * there; what comes before that is made up for in go_up. */
static void
halt_locked(void)
{
    if (rt.up) {
        tp_actor_end_all(TP_REASON_SHUTDOWN, TP_REASON_SHUTDOWN);
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
        tp_actor_end_all(TP_REASON_KILLED, TP_REASON_KILLED);
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
        tp_timers_prune() || !tp_sched_is_quiet(ticket)) {
        return false;
    }
    /* relaxed: a root that ends is not parked. */
    bool ended = atomic_load_explicit(&rt.root_ended, memory_order_relaxed);
    if (!ended && rt.interruptible && root_traps_exits()) {
        return false;
    }
    tp_actor_end_all(ended ? TP_REASON_SHUTDOWN : TP_REASON_DEADLOCK,
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
        tp_actor_end_all(TP_REASON_SHUTDOWN, TP_REASON_SHUTDOWN);
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

/* Threads of the runtime get no signals of the process; what a scheduler
 * itself is sent (the preempting signal, faults) stays open. */
static void
block_signals(sigset_t *old)
{
    static const int open[] = {SIGURG,  SIGSEGV, SIGBUS, SIGFPE, SIGILL,
                               SIGTRAP, SIGABRT, SIGSYS, SIGPROF};
    sigset_t set;
    sigfillset(&set);
    for (size_t i = 0; i < sizeof open / sizeof *open; i++) {
        sigdelset(&set, open[i]);
    }
    pthread_sigmask(SIG_SETMASK, &set, old);
}

static unsigned
start_threads(unsigned count)
{
    sigset_t old;
    unsigned started = 1;
    block_signals(&old);
    while (started < count &&
           tp_thread_create(&tp_sched.workers[started].thread, worker_main,
                            (void *)(uintptr_t)started) == 0) {
        started++;
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
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
claim(bool interruptible)
{
    tp_mutex_lock(&rt.lock, TP_RANK_RUNTIME);
    bool mine = !rt.active;
    if (mine) {
        rt.active = true;
        rt.halted = false;
        rt.interrupts = 0;
        rt.interruptible = interruptible;
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
    atomic_store_explicit(&tp_actor_no_spawn, false, memory_order_relaxed);
    /* relaxed: as above. */
    atomic_store_explicit(&tp_actor_live, 0, memory_order_relaxed);
    /* relaxed: as above. */
    atomic_store_explicit(&tp_actor_root, 0, memory_order_relaxed);
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

int
tp_run(const struct tp_run_config *config, const struct tp_spawn_opts *opts,
       const struct tp_actor_class *class, void *arg,
       struct tp_reason **out_reason)
{
    if (!claim(config->interruptible)) {
        return TROUPE_EBUSY;
    }
    unsigned count =
        config->schedulers == 0 ? tp_cpu_count() : config->schedulers;
    if (count > TP_WORKERS_MAX && config->schedulers == 0) {
        count = TP_WORKERS_MAX;
    }
    reset();
    int rc = tp_slots_init(config->max_actors == 0 ? TP_MAX_ACTORS
                                                   : config->max_actors);
    if (rc != 0) {
        goto fail_slots;
    }
    rc = tp_stacks_init(config->stack_reserve, config->stack_guard);
    if (rc != 0) {
        goto fail_stacks;
    }
    rc = tp_timers_init();
    if (rc == 0) {
        rc = tp_sched_init(
            count, config->slice_ns == 0 ? SLICE_NS_DEFAULT : config->slice_ns,
            &tp_actor_sched_ops);
    }
    if (rc != 0) {
        goto fail_sched;
    }
    rc = tp_slice_init();
    if (rc != 0) {
        goto fail_slice;
    }
    tp_sched.signals = tp_preempt_is_supported();
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
    stop_hooks();
    tp_groups_fini();
    tp_names_fini();
fail_monitor:
    tp_slice_fini();
fail_slice:
    tp_sched_fini();
fail_sched:
    tp_timers_fini();
    tp_stacks_fini();
fail_stacks:
    tp_slots_fini();
fail_slots:
    release();
    return rc;
}
