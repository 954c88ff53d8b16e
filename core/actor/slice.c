/*
 * slice.c - cutting slices short and containing overflows. See slice.h.
 *
 * An actor whose stack ran over is given up where it stands. That is sound
 * only if it held no lock of ours: so no function of the core is entered with
 * less than STACK_ROOM left (tp_stack_has_room), and code that may be given up
 * (the class says which) takes no lock itself.
 *
 * Tests: spec/unit/preempt_test.c, spec/unit/fault_test.c
 */
#include "actor/slice.h"

#include "ctx/fault.h"
#include "ctx/preempt.h"

#include <string.h>
#include <unistd.h>

/* The trampoline, its 512 bytes of FP state and the switch. */
#define PREEMPT_ROOM 4096u
/* The deepest call chain of the core, and a signal frame. */
#define STACK_ROOM 12288u

bool
tp_stack_has_room(void)
{
    struct tp_actor *a = tp_actor_self();
    char *sp = __builtin_frame_address(0);
    return a == NULL || sp - a->stack.lo >= (ptrdiff_t)STACK_ROOM ||
           sp < a->stack.lo || sp >= a->stack.hi;
}

void
tp_stack_note(void)
{
    struct tp_actor *a = tp_actor_self();
    char *sp = __builtin_frame_address(0);
    if (a != NULL && sp < a->low_water && sp >= a->stack.lo) {
        a->low_water = sp;
    }
}

_Noreturn void
tp_overflow_end(struct tp_actor *a)
{
    struct tp_worker *w = tp_worker_self();
    w->after = TP_AFTER_OVERFLOW;
    tp_fiber_switch_final(&a->fiber, &w->fiber);
    abort();
}

void
tp_stack_check(void)
{
    tp_stack_note();
    if (TP_LIKELY(tp_stack_has_room())) {
        return;
    }
    struct tp_actor *a = tp_actor_self();
    uintptr_t pc = (uintptr_t)__builtin_return_address(0);
    if (a->class->may_abandon != NULL && a->class->may_abandon(a, pc)) {
        tp_overflow_end(a);
    }
}

/* -- preemption ---------------------------------------------------------- */

static bool
is_ours(void)
{
    struct tp_worker *w = tp_worker_self();
    /* relaxed: a flag between this thread and the monitor. */
    return w != NULL &&
           atomic_exchange_explicit(&w->asked, TP_ASK_NOTHING,
                                    memory_order_relaxed) != TP_ASK_NOTHING;
}

static bool
on_own_stack(const struct tp_actor *a, uintptr_t sp)
{
    return sp >= (uintptr_t)a->stack.lo + PREEMPT_ROOM &&
           sp < (uintptr_t)a->stack.hi;
}

/*
 * Finalizers that run for so long do not come to their end: they are given up
 * here, as on an overflow, with all that their state has. The caller knows that
 * the stack is the actor's.
 */
static bool
gives_up(struct tp_worker *w, struct tp_actor *a,
         const struct tp_preempt_frame *f, void *ucontext)
{
    if (!a->finishing || a->abandoned || a->class->may_give_up == NULL) {
        return false;
    }
    int64_t used =
        a->finish_cycles + (int64_t)(tp_cycles() - w->slice_start_cycles);
    /* relaxed: set before a run. */
    uint64_t patience =
        atomic_load_explicit(&tp_finish_patience_ns, memory_order_relaxed);
    if (used < (int64_t)(patience / 10000 * tp_cycles_10us()) ||
        !a->class->may_give_up(a, f)) {
        return false;
    }
    a->given_up = true;
    w->after = TP_AFTER_OVERFLOW;
    tp_fiber_redirect(ucontext, &w->fiber);
    return true;
}

void
tp_finish_give_up(struct tp_actor *a)
{
    a->given_up = true;
    tp_overflow_end(a);
}

static bool
classify(const struct tp_preempt_frame *f, void *ucontext)
{
    struct tp_worker *w = tp_worker_self();
    struct tp_actor *a = w->current == NULL ? NULL : w->current->actor;
    if (a == NULL || !on_own_stack(a, f->sp) || a->nopreempt > 0 ||
        gives_up(w, a, f, ucontext) ||
        tp_sched.preemption != TROUPE_PREEMPT_SIGNAL ||
        a->class->may_stop == NULL) {
        return false;
    }
    bool stop = a->class->may_stop(a, f);
    /* relaxed: a statistic. */
    atomic_store_explicit(&a->in_c, !stop, memory_order_relaxed);
    if (!stop) {
        return false;
    }
    if ((char *)f->sp < a->low_water) {
        a->low_water = (char *)f->sp;
    }
    /* relaxed: written by this thread, read by the monitor. */
    atomic_store_explicit(&w->poked, true, memory_order_relaxed);
    /* relaxed: written by the monitor; it asks again. */
    if (!atomic_load_explicit(&w->yield_wanted, memory_order_relaxed)) {
        return false;
    }
    a->overruns++;
    a->stopped_result = f->result;
    /* relaxed: a statistic; this thread alone writes it. */
    atomic_fetch_add_explicit(&w->stats.preemptions, 1, memory_order_relaxed);
    return true;
}

static void
on_yield(void)
{
    struct tp_actor *a = tp_actor_self();
    if (a->finishing) {
        a->finish_cycles +=
            (int64_t)(tp_cycles() - tp_worker_self()->slice_start_cycles);
    }
    tp_worker_yield(a->slot);
    a->stopped_result = 0;
}

void
tp_slice_hook(void)
{
    struct tp_actor *a = tp_actor_self();
    /* relaxed: a request by the monitor, repeated until it is followed. */
    if (a == NULL ||
        !atomic_load_explicit(&tp_worker_self()->resched,
                              memory_order_relaxed) ||
        a->finishing || a->nopreempt > 0 || !tp_stack_has_room()) {
        return;
    }
    if (tp_worker_checkpoint_slow()) {
        a->overruns++;
        /* relaxed: a statistic. */
        atomic_fetch_add_explicit(&tp_worker_self()->stats.preemptions, 1,
                                  memory_order_relaxed);
    }
}

static const struct tp_preempt_ops preempt_ops = {classify, on_yield, is_ours};

void
troupe_nopreempt_begin(void)
{
    struct tp_actor *a = tp_actor_self();
    if (a != NULL) {
        a->nopreempt++;
    }
}

void
troupe_nopreempt_end(void)
{
    struct tp_actor *a = tp_actor_self();
    if (a != NULL) {
        tp_assert(a->nopreempt > 0);
        a->nopreempt--;
        if (a->nopreempt == 0) {
            tp_actor_checkpoint();
        }
    }
}

/* -- overflow ------------------------------------------------------------ */

struct line {
    char text[400];
    size_t n;
};

static void
put(struct line *l, const char *s)
{
    while (*s != '\0' && l->n < sizeof l->text) {
        l->text[l->n++] = *s++;
    }
}

static void
put_number(struct line *l, uint64_t v)
{
    char digits[24];
    size_t n = sizeof digits;
    digits[--n] = '\0';
    do {
        digits[--n] = (char)('0' + v % 10);
        v /= 10;
    } while (v != 0);
    put(l, digits + n);
}

/* One line, async-signal-safe. Names are under a lock: not from here. */
static void
explain(const struct tp_actor *a, uintptr_t address, bool probable)
{
    struct line l = {.n = 0};
    put(&l, probable ? "troupe: probable stack overflow of actor <0."
                     : "troupe: stack overflow of actor <0.");
    put_number(&l, tp_pid_index(a->pid));
    put(&l, ".");
    put_number(&l, tp_pid_gen(a->pid));
    put(&l, "> in code that may hold a lock: depth ");
    put_number(&l, (uintptr_t)a->stack.hi - address);
    put(&l, ", reserve ");
    put_number(&l, a->stack.reserve);
    put(&l, ", guard ");
    put_number(&l, a->stack.guard);
    put(&l, " bytes; raise stack.reserve in spawn_opt\n");
    ssize_t ignored = write(STDERR_FILENO, l.text, l.n);
    (void)ignored;
}

static enum tp_fault_verdict
judge(uintptr_t address, uintptr_t pc, void *ucontext)
{
    struct tp_worker *w = tp_worker_self();
    struct tp_actor *a =
        w == NULL || w->current == NULL ? NULL : w->current->actor;
    if (a != NULL && a->class->meant_fault != NULL &&
        a->class->meant_fault(a, address)) {
        tp_preempt_consider(ucontext);
        return TP_FAULT_CONTAINED;
    }
    if (a == NULL || !tp_stack_is_overrun(&a->stack, (void *)address)) {
        return TP_FAULT_FOREIGN;
    }
    if (a->class->may_abandon == NULL || !a->class->may_abandon(a, pc)) {
        /* What Lua code calls (libc, the unwinder) may hold a lock. A part of
         * the guard lets it come to its end; the actor ends after that, or when
         * Lua code that goes deeper meets the rest. */
        if (a->class->may_abandon != NULL &&
            tp_stack_lend(&a->stack, (void *)address)) {
            if (a->class->end_soon != NULL) {
                a->class->end_soon(a);
            }
            return TP_FAULT_CONTAINED;
        }
        explain(a, address, address < (uintptr_t)a->stack.lo - a->stack.guard);
        return TP_FAULT_FATAL;
    }
    w->after = TP_AFTER_OVERFLOW;
    tp_fiber_redirect(ucontext, &w->fiber);
    return TP_FAULT_CONTAINED;
}

static const struct tp_fault_ops fault_ops = {judge};

/* -- start and end ------------------------------------------------------- */

int
tp_slice_init(void)
{
    int rc = tp_fault_install(&fault_ops);
    if (rc == 0) {
        rc = tp_preempt_install(&preempt_ops);
        if (rc != 0) {
            tp_fault_remove();
        }
    }
    return rc;
}

void
tp_slice_fini(void)
{
    tp_preempt_remove();
    tp_fault_remove();
}
