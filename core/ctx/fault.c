/*
 * fault.c - the handler of SIGSEGV and alternate stacks. See fault.h.
 *
 * Tests: spec/unit/fault_test.c
 */
#define _GNU_SOURCE
#include "ctx/fault.h"

#include "base/sys.h"
#include "ctx/sigchain.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <troupe.h>
#include <ucontext.h>

/* Room for a handler of the host's as well. */
#define ALT_BYTES ((size_t)64 << 10)

static const struct tp_fault_ops *ops;
static struct tp_sigchain chain = {.sig = SIGSEGV};

static uintptr_t
pc_of(const ucontext_t *uc)
{
#if defined(__x86_64__)
    return (uintptr_t)uc->uc_mcontext.gregs[REG_RIP];
#elif defined(__aarch64__)
    return (uintptr_t)uc->uc_mcontext.pc;
#endif
}

static void
on_fault(int sig, siginfo_t *info, void *uc)
{
    int saved = errno;
    enum tp_fault_verdict v = TP_FAULT_FOREIGN;
    if (info->si_code > 0) { /* by the processor, not by kill */
        v = ops->judge((uintptr_t)info->si_addr, pc_of(uc), uc);
    }
    if (v != TP_FAULT_CONTAINED && !tp_sigchain_pass_on(&chain, info, uc)) {
        signal(sig, SIG_DFL); /* the instruction faults again */
    }
    errno = saved;
}

int
tp_fault_install(const struct tp_fault_ops *the_ops)
{
    ops = the_ops;
    chain.ours.sa_sigaction = on_fault;
    chain.ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&chain.ours.sa_mask);
    /* Not between the fault and its handler: the actor is the one of now. */
    sigaddset(&chain.ours.sa_mask, SIGURG);
    return tp_sigchain_install(&chain);
}

void
tp_fault_remove(void)
{
    tp_sigchain_remove(&chain);
}

bool
tp_fault_is_installed(void)
{
    return tp_sigchain_is_installed(&chain);
}

int
tp_fault_thread_begin(struct tp_altstack *alt)
{
    stack_t ss, old;
    memset(&ss, 0, sizeof ss);
    memset(alt, 0, sizeof *alt);
    alt->bytes = ALT_BYTES;
    alt->base = tp_mmap(alt->bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS);
    if (alt->base == NULL) {
        return TROUPE_ENOMEM;
    }
    ss.ss_sp = alt->base;
    ss.ss_size = alt->bytes;
    if (sigaltstack(&ss, &old) != 0) {
        tp_munmap(alt->base, alt->bytes);
        alt->base = NULL;
        return TROUPE_ESYSTEM;
    }
    alt->old_base = old.ss_sp;
    alt->old_bytes = old.ss_size;
    alt->old_flags = old.ss_flags;
    return 0;
}

void
tp_fault_thread_end(struct tp_altstack *alt)
{
    if (alt->base != NULL) {
        stack_t old;
        memset(&old, 0, sizeof old);
        old.ss_sp = alt->old_base;
        old.ss_size = alt->old_bytes;
        old.ss_flags = alt->old_flags;
        sigaltstack(&old, NULL);
        tp_munmap(alt->base, alt->bytes);
        alt->base = NULL;
    }
}
