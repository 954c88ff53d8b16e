/*
 * fault.h - a green stack that is used up ends its actor, not the process.
 *
 * Idea:     the handler of SIGSEGV, on the thread's alternate stack, asks the
 *           one who knows about actors what the fault is. Contained: the
 *           thread goes on in its scheduler's context. Fatal: a line is
 *           written and the process dies as it would have. Foreign: whoever
 *           had the handler before gets it.
 * Threads:  install, remove: the thread that starts the runtime. thread_begin,
 *           thread_end: each thread that runs actors.
 * Locks:    none; all is async-signal-safe.
 * Memory:   thread_begin maps an alternate stack; thread_end frees it and
 *           brings back the one that the thread had.
 * Fails:    install, thread_begin: TROUPE_ENOMEM, TROUPE_ESYSTEM.
 * Tests:    spec/unit/fault_test.c, spec/lua/overflow_spec.lua
 */
#ifndef TP_CTX_FAULT_H
#define TP_CTX_FAULT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum tp_fault_verdict {
    TP_FAULT_FOREIGN,
    TP_FAULT_CONTAINED,
    TP_FAULT_FATAL
};

struct tp_fault_ops {
    /* Signal context. Contained: the handler's context was redirected.
     * Fatal: a text was written. */
    enum tp_fault_verdict (*judge)(uintptr_t address, uintptr_t pc,
                                   void *ucontext);
};

int tp_fault_install(const struct tp_fault_ops *ops);
void tp_fault_remove(void);

/* Does a fault come to our handler, or has another one taken its place? */
bool tp_fault_is_installed(void);

struct tp_altstack {
    void *base; /* NULL: none */
    size_t bytes;
    void *old_base; /* what the thread had */
    size_t old_bytes;
    int old_flags;
};

int tp_fault_thread_begin(struct tp_altstack *alt);
void tp_fault_thread_end(struct tp_altstack *alt);

#endif
