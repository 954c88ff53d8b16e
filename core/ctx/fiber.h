/*
 * fiber.h - a flow of control with a stack of its own.
 *
 * Idea:     a suspended fiber is a saved sp and a saved errno; all else lies
 *           on its stack (ctx/switch_*.S draws it). Whoever switches says from
 *           where to where; there is no scheduler in here.
 * Threads:  one at a time. A fiber may be resumed on another OS thread, with
 *           the hand-over ordered by the caller.
 * Locks:    none, and none may be held across a switch (asserted).
 * Memory:   the caller owns struct and stack.
 * Parks:    tp_fiber_switch returns when somebody switches back.
 * Tests:    spec/unit/fiber_test.c, spec/unit/fiber_smoke.c
 *
 * Never keep the address of a thread-local (errno too) over a switch: the
 * compiler thinks a function stays on one thread. Read it through a noinline
 * function whose body has an asm volatile with a memory clobber.
 */
#ifndef TP_CTX_FIBER_H
#define TP_CTX_FIBER_H

#include "base/check.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TP_HIDDEN __attribute__((visibility("hidden")))

struct tp_fiber {
    void *sp;        /* valid while suspended; checked builds: else NULL */
    int saved_errno; /* valid while suspended */
    /* The scheduler's, in the cache line that it looks at anyway; see
     * sched/blocking.h. Kept by init. */
    _Atomic uint32_t blocking;
#ifdef TP_ASAN
    const void *asan_lo; /* bounds of the stack, for ASan's stack checks */
    size_t asan_bytes;
    void *asan_fake; /* ASan's own frames of this fiber, while suspended */
#endif
#ifdef TP_TSAN
    void *tsan; /* TSan's view of this fiber */
    bool tsan_owned;
#endif
};

/*
 * Make f start at entry(arg) on the stack [stack_lo, stack_hi), with errno 0
 * and default FP control, when it is first switched to. f is zero-filled, or
 * was used before and is suspended for good: then this is a reset, the old
 * frames are forgotten. Not from f itself. entry never returns (aborts).
 */
void tp_fiber_init(struct tp_fiber *f, void *stack_lo, void *stack_hi,
                   void (*entry)(void *), void *arg);

/* Let f stand for the calling thread and its own stack. */
void tp_fiber_init_thread(struct tp_fiber *f);

/* Release what a sanitizer holds for f and zero it. Not from f itself. */
void tp_fiber_fini(struct tp_fiber *f);

/*
 * Suspend the caller, which is from, and go on as to, which is suspended.
 * Returns when from is switched to, maybe on another OS thread. Keeps per
 * fiber: callee-saved registers, FP control, errno. Does not touch the signal
 * mask. Aborts in checked builds when a lock is held or to is not suspended.
 */
void tp_fiber_switch(struct tp_fiber *from, struct tp_fiber *to);

/* The same, for good: from may then only be reset or finished. */
_Noreturn void tp_fiber_switch_final(struct tp_fiber *from,
                                     struct tp_fiber *to);

/*
 * In a signal handler: let the interrupted thread, whose stack may be used up,
 * go on as to when the handler returns. What was interrupted is given up, as
 * by tp_fiber_switch_final. to was suspended by this very thread, and 1 KiB
 * below its sp is free. ucontext is the handler's third argument.
 * Async-signal-safe.
 */
void tp_fiber_redirect(void *ucontext, struct tp_fiber *to);

/*
 * The machine part, ctx/switch_*.S. jump and switch go on with the context
 * at to_sp; make builds one. jump does not look at the current stack: a signal
 * handler may set pc to it, and the first argument's register to to_sp (no
 * sanitizer is told, and errno is not restored: see tp_fiber_redirect).
 */
TP_HIDDEN void tp_ctx_switch(void **save_sp, void *to_sp);
TP_HIDDEN _Noreturn void tp_ctx_jump(void *to_sp);
TP_HIDDEN void *tp_ctx_make(void *hi, void (*entry)(void *), void *arg);
TP_HIDDEN void tp_ctx_entry(void); /* where fibers start; not to be called */
TP_HIDDEN _Noreturn void tp_fiber_main(void (*entry)(void *), void *arg);

#endif
