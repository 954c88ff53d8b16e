/*
 * monitor.h - one thread that looks at the workers from outside.
 *
 * Idea:     while any worker is awake it looks every tick: a slice that is too
 *           long is asked to yield, a wake slot that waits behind it while a
 *           worker sleeps is passed on, a timer that nobody keeps, and events
 *           that nobody takes, are given to a sleeper. It sleeps while all
 *           schedulers do, but for a signal to an actor that shall end and runs
 *           in the blocking pool.
 * Threads:  poke: any. The rest: the thread that starts and stops the runtime.
 * Ordering: MON-1, MON-2, WS-1.
 * Fails:    start: TROUPE_ESYSTEM.
 * Tests:    spec/unit/worker_test.c
 */
#ifndef TP_SCHED_MONITOR_H
#define TP_SCHED_MONITOR_H

#include <stdatomic.h>
#include <stdbool.h>

int tp_monitor_start(void);
void tp_monitor_stop(void);

void tp_monitor_wake(void);

extern _Atomic bool tp_monitor_asleep;

/* A worker has left its sleep: the monitor must not sleep any more. */
static inline void
tp_monitor_poke(void)
{
    /* MON-1 seq_cst: read after the idle bit was cleared. Partner: monitor.c
     * says that it sleeps, then reads the mask. */
    if (atomic_load_explicit(&tp_monitor_asleep, memory_order_seq_cst)) {
        tp_monitor_wake();
    }
}

#endif
