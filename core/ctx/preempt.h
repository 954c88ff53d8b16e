/*
 * preempt.h - stop a thread at any instruction and let it yield.
 *
 * Idea:     a signal handler looks at the interrupted program counter. Where
 *           the one who knows (tp_preempt_ops.classify) says that the code may
 *           stop there, it makes the thread call tp_preempt_tramp as if the
 *           interrupted code had: that saves every register, calls on_yield,
 *           restores, and returns past the red zone.
 *
 *     high   interrupted sp
 *              red zone, 128 bytes, untouched
 *            interrupted pc          <- sp when the trampoline starts
 *            flags, 15 registers
 *     low    512 bytes of FP and SSE state, aligned to 64
 *
 * Threads:  install, remove: the thread that starts the runtime, before and
 *           after all others. request: the monitor. The handler runs on the
 *           thread that was signalled, on its alternate stack.
 * Locks:    none; all is async-signal-safe.
 * Parks:    the injected call does.
 * Fails:    install: TROUPE_ESYSTEM.
 * Rejected: a flag polled by a count hook - it slows all Lua code and compiled
 *           loops never run it.
 * Tests:    spec/unit/preempt_test.c, spec/lua/preempt_spec.lua
 */
#ifndef TP_CTX_PREEMPT_H
#define TP_CTX_PREEMPT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What the handler knows of the interrupted thread. */
struct tp_preempt_frame {
    uintptr_t pc;
    uintptr_t sp;
    uintptr_t dispatch; /* r14 on x86-64; 0 elsewhere */
    bool may_fault;     /* SIGSEGV is not blocked */
    uintptr_t result;   /* of a call that may just have returned: rax; or 0 */
};

struct tp_preempt_ops {
    /*
     * The signal is one of ours. True: inject the yield. Asked on the
     * alternate stack, in signal context. May redirect ucontext instead.
     */
    bool (*classify)(const struct tp_preempt_frame *frame, void *ucontext);
    /* Runs on the interrupted stack, as a call of the interrupted code. */
    void (*on_yield)(void);
    /* Was the signal asked for? False: the handler installed before gets it. */
    bool (*is_ours)(void);
};

/* Can calls be injected on this machine? */
bool tp_preempt_is_supported(void);

int tp_preempt_install(const struct tp_preempt_ops *ops);
void tp_preempt_remove(void);

/* From another handler, with its context: as if a signal of ours had met the
 * code that it interrupted. */
void tp_preempt_consider(void *ucontext);

/* Signals one thread of this process. */
void tp_preempt_signal(int tid);

#endif
