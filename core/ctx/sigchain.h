/*
 * sigchain.h - a signal handler before that of the host.
 *
 * Threads: install, remove: the thread that starts the runtime. pass_on: in
 *          the handler, async-signal-safe.
 * Fails:   install: TROUPE_ESYSTEM.
 * Tests:   spec/unit/fault_test.c, spec/unit/preempt_test.c
 */
#ifndef TP_CTX_SIGCHAIN_H
#define TP_CTX_SIGCHAIN_H

#include <signal.h>
#include <stdbool.h>

struct tp_sigchain {
    int sig;
    struct sigaction ours; /* with SA_SIGINFO */
    struct sigaction previous;
};

/* Sets ours and remembers what was there. */
int tp_sigchain_install(struct tp_sigchain *c);

/* Is it ours that is called? */
bool tp_sigchain_is_installed(const struct tp_sigchain *c);

/* Brings back what was there, unless somebody has replaced ours meanwhile. */
void tp_sigchain_remove(const struct tp_sigchain *c);

/* Calls the handler that was there. False: there was none. */
bool tp_sigchain_pass_on(const struct tp_sigchain *c, siginfo_t *info,
                         void *ucontext);

#endif
