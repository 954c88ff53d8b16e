/*
 * preempt.c - the handler that injects a yield. See preempt.h.
 *
 * Tests: spec/unit/preempt_test.c
 */
#define _GNU_SOURCE
#include "ctx/preempt.h"

#include "base/check.h"
#include "ctx/fiber.h"
#include "ctx/sigchain.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <troupe.h>
#include <ucontext.h>
#include <unistd.h>

#define RED_ZONE 128

static const struct tp_preempt_ops *ops;
static struct tp_sigchain chain = {.sig = SIGURG};

bool
tp_preempt_is_supported(void)
{
#if defined(__x86_64__)
    return true;
#else
    return false;
#endif
}

#if defined(__x86_64__)
TP_HIDDEN void tp_preempt_tramp(void);
TP_HIDDEN void tp_preempt_yield(void);

void
tp_preempt_yield(void)
{
    ops->on_yield();
}

static struct tp_preempt_frame
frame_of(const ucontext_t *uc)
{
    const greg_t *r = uc->uc_mcontext.gregs;
    struct tp_preempt_frame f = {
        (uintptr_t)r[REG_RIP], (uintptr_t)r[REG_RSP], (uintptr_t)r[REG_R14],
        sigismember(&uc->uc_sigmask, SIGSEGV) == 0, (uintptr_t)r[REG_RAX]};
    return f;
}

/* As if the interrupted code had called the trampoline, past its red zone. */
static void
inject(ucontext_t *uc)
{
    greg_t *r = uc->uc_mcontext.gregs;
    uintptr_t sp = (uintptr_t)r[REG_RSP] - RED_ZONE - sizeof(uintptr_t);
    memcpy((void *)sp, &r[REG_RIP], sizeof(uintptr_t));
    r[REG_RSP] = (greg_t)sp;
    r[REG_RIP] = (greg_t)(uintptr_t)tp_preempt_tramp;
}
#else
static struct tp_preempt_frame
frame_of(const ucontext_t *uc)
{
    const mcontext_t *m = &uc->uc_mcontext;
    struct tp_preempt_frame f = {(uintptr_t)m->pc, (uintptr_t)m->sp, 0, false,
                                 0};
    return f;
}

static void
inject(ucontext_t *uc)
{
    (void)uc;
}
#endif

void
tp_preempt_consider(void *uc)
{
    struct tp_preempt_frame f = frame_of(uc);
    if (ops->classify(&f, uc)) {
        inject(uc);
    }
}

static void
on_signal(int sig, siginfo_t *info, void *uc)
{
    int saved = errno;
    (void)sig;
    if (info->si_code == SI_TKILL && info->si_pid == getpid() &&
        ops->is_ours()) {
        tp_preempt_consider(uc);
    } else {
        /* Not ours: for whoever had the handler before; else ignored, as is
         * the default for SIGURG. */
        tp_sigchain_pass_on(&chain, info, uc);
    }
    errno = saved;
}

int
tp_preempt_install(const struct tp_preempt_ops *the_ops)
{
    ops = the_ops;
    chain.ours.sa_sigaction = on_signal;
    chain.ours.sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK;
    sigemptyset(&chain.ours.sa_mask);
    return tp_sigchain_install(&chain);
}

void
tp_preempt_remove(void)
{
    tp_sigchain_remove(&chain);
}

void
tp_preempt_signal(int tid)
{
    syscall(SYS_tgkill, getpid(), tid, SIGURG);
}
