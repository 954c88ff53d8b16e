/*
 * sigchain.c - a signal handler before that of the host. See sigchain.h.
 *
 * Tests: spec/unit/fault_test.c, spec/unit/preempt_test.c
 */
#define _GNU_SOURCE
#include "ctx/sigchain.h"

#include <troupe.h>

int
tp_sigchain_install(struct tp_sigchain *c)
{
    return sigaction(c->sig, &c->ours, &c->previous) == 0 ? 0 : TROUPE_ESYSTEM;
}

bool
tp_sigchain_is_installed(const struct tp_sigchain *c)
{
    struct sigaction now;
    return sigaction(c->sig, NULL, &now) == 0 &&
           (now.sa_flags & SA_SIGINFO) != 0 &&
           now.sa_sigaction == c->ours.sa_sigaction;
}

void
tp_sigchain_remove(const struct tp_sigchain *c)
{
    if (tp_sigchain_is_installed(c)) {
        sigaction(c->sig, &c->previous, NULL);
    }
}

bool
tp_sigchain_pass_on(const struct tp_sigchain *c, siginfo_t *info,
                    void *ucontext)
{
    const struct sigaction *was = &c->previous;
    if ((was->sa_flags & SA_SIGINFO) != 0) {
        was->sa_sigaction(c->sig, info, ucontext);
    } else if (was->sa_handler != SIG_DFL && was->sa_handler != SIG_IGN) {
        was->sa_handler(c->sig);
    } else {
        return false;
    }
    return true;
}
