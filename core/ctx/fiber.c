/*
 * fiber.c - create, switch, finish; what sanitizers must be told.
 *
 * Idea:     errno is exchanged before the switch: the target goes on upon this
 *           thread, so this thread's errno is the right one, and nothing
 *           thread-local is touched behind the switch.
 * Threads:  see fiber.h.
 * Rejected: errno restored by the resumed fiber - needs the new thread's errno
 *           behind the switch, one more call each time.
 * Tests:    spec/unit/fiber_test.c, spec/unit/fiber_smoke.c
 */
#define _GNU_SOURCE
#include "ctx/fiber.h"

#include "base/lockrank.h"

#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <ucontext.h>

#ifdef TP_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef TP_TSAN
#include <sanitizer/tsan_interface.h>
#endif

/* A fresh context, the entry's frames and one signal-free call level. */
#define ROOM_MIN 1024

/* --- what the sanitizers must be told: nothing, in a plain build ---
 * Always inline: TSan counts calls and returns per fiber, and a function that
 * is entered in one and left in another upsets the counts of both. */
#define TELL static inline __attribute__((always_inline)) void

TELL
tell_init(struct tp_fiber *f, void *stack_lo, void *stack_hi)
{
#ifdef TP_ASAN
    f->asan_lo = stack_lo;
    f->asan_bytes = (size_t)((char *)stack_hi - (char *)stack_lo);
    f->asan_fake = NULL;
    __asan_unpoison_memory_region(f->asan_lo, f->asan_bytes);
#endif
#ifdef TP_TSAN
    if (f->tsan_owned) {
        __tsan_destroy_fiber(f->tsan);
    }
    f->tsan = __tsan_create_fiber(0);
    f->tsan_owned = true;
#endif
    (void)f;
    (void)stack_lo;
    (void)stack_hi;
}

TELL
tell_init_thread(struct tp_fiber *f)
{
#ifdef TP_ASAN
    pthread_attr_t attr;
    void *lo = NULL;
    tp_check(pthread_getattr_np(pthread_self(), &attr) == 0);
    pthread_attr_getstack(&attr, &lo, &f->asan_bytes);
    pthread_attr_destroy(&attr);
    f->asan_lo = lo;
#endif
#ifdef TP_TSAN
    f->tsan = __tsan_get_current_fiber();
    f->tsan_owned = false;
#endif
    (void)f;
}

/* from == NULL: the frames that are left are given up. */
TELL
tell_leave(struct tp_fiber *from, struct tp_fiber *to)
{
#ifdef TP_ASAN
    __sanitizer_start_switch_fiber(from == NULL ? NULL : &from->asan_fake,
                                   to->asan_lo, to->asan_bytes);
#endif
#ifdef TP_TSAN
    __tsan_switch_to_fiber(to->tsan, 0);
#endif
    (void)from;
    (void)to;
}

/* me == NULL: the first arrival on this stack. */
TELL
tell_arrive(struct tp_fiber *me)
{
#ifdef TP_ASAN
    __sanitizer_finish_switch_fiber(me == NULL ? NULL : me->asan_fake, NULL,
                                    NULL);
#endif
    (void)me;
}

/* --- create and finish --- */

void
tp_fiber_init(struct tp_fiber *f, void *stack_lo, void *stack_hi,
              void (*entry)(void *), void *arg)
{
    tp_assert((char *)stack_hi - (char *)stack_lo >= ROOM_MIN);
    tell_init(f, stack_lo, stack_hi);
    f->sp = tp_ctx_make(stack_hi, entry, arg);
    f->saved_errno = 0;
}

void
tp_fiber_init_thread(struct tp_fiber *f)
{
    memset(f, 0, sizeof *f);
    tell_init_thread(f);
}

void
tp_fiber_fini(struct tp_fiber *f)
{
#ifdef TP_TSAN
    if (f->tsan_owned) {
        __tsan_destroy_fiber(f->tsan);
    }
#endif
    memset(f, 0, sizeof *f);
}

/* Called once per stack, by tp_ctx_entry. */
_Noreturn void
tp_fiber_main(void (*entry)(void *), void *arg)
{
    tell_arrive(NULL);
    entry(arg);
    fprintf(stderr, "troupe: the entry function of a fiber returned\n");
    abort();
}

/* --- switch --- */

/* The suspended fiber's sp; from now on it counts as running. */
static inline void *
take_sp(struct tp_fiber *to)
{
    void *sp = to->sp;
    tp_assert(sp != NULL);
#ifdef TROUPE_CHECKED
    to->sp = NULL;
#endif
    return sp;
}

/* noinline: in a caller with two switches, the compiler would fetch errno's
 * address once and use it on two threads. */
__attribute__((noinline)) void
tp_fiber_switch(struct tp_fiber *from, struct tp_fiber *to)
{
    tp_assert(from != to);
    tp_assert(tp_lockrank_none_held());
    int *thread_errno = &errno;
    from->saved_errno = *thread_errno;
    void *sp = take_sp(to);
    *thread_errno = to->saved_errno;
    tell_leave(from, to);
    tp_ctx_switch(&from->sp, sp);
    tell_arrive(from);
}

__attribute__((noinline)) _Noreturn void
tp_fiber_switch_final(struct tp_fiber *from, struct tp_fiber *to)
{
    tp_assert(from != to);
    tp_assert(tp_lockrank_none_held());
    from->sp = NULL;
    void *sp = take_sp(to);
    errno = to->saved_errno;
    tell_leave(NULL, to);
    tp_ctx_jump(sp);
}

/* --- leave from a signal handler --- */

/* Runs below to's saved frame, where nothing lives while to is suspended. */
static _Noreturn void
land(struct tp_fiber *to)
{
    void *sp = take_sp(to);
    errno = to->saved_errno;
    tell_leave(NULL, to);
    tp_ctx_jump(sp);
}

void
tp_fiber_redirect(void *ucontext, struct tp_fiber *to)
{
    mcontext_t *m = &((ucontext_t *)ucontext)->uc_mcontext;
    uintptr_t sp = ((uintptr_t)to->sp - 64) & ~(uintptr_t)15;
#if defined(__x86_64__)
    /* As behind a call: sp is 8 off, the direction flag is clear. */
    m->gregs[REG_RSP] = (greg_t)(sp - 8);
    m->gregs[REG_RIP] = (greg_t)(uintptr_t)land;
    m->gregs[REG_RDI] = (greg_t)(uintptr_t)to;
    m->gregs[REG_RBP] = 0;
    m->gregs[REG_EFL] &= ~(greg_t)0x400;
#elif defined(__aarch64__)
    m->sp = sp;
    m->pc = (uintptr_t)land;
    m->regs[0] = (uintptr_t)to;
    m->regs[29] = 0;
    m->regs[30] = 0;
#else
#error "no context switch for this CPU"
#endif
}
