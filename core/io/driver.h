/*
 * driver.h - the epoll set, and the thread that takes events from it.
 *
 * Idea:     made when the first actor waits for a file descriptor, taken apart
 *           at the end of the run. Its thread is a producer like any other: a
 *           whole batch of events is made runnable, then one scheduler is
 *           woken, which wakes the next if it finds more than it takes.
 * Threads:  start, watch, forget: any. The thread: troupe-io.
 * Locks:    TP_RANK_IO.
 * Ordering: DRV-1.
 * Fails:    start: TROUPE_ENOMEM, TROUPE_ELIMIT, TROUPE_ESYSTEM, with errno.
 * Tests:    spec/unit/driver_test.c, spec/unit/driver_stress.c
 */
#ifndef TP_IO_DRIVER_H
#define TP_IO_DRIVER_H

#include <stdbool.h>
#include <stdint.h>

/* Makes the epoll set if there is none. */
int tp_driver_start(void);

/* Arms fd once for the events; known: it is in the set. 0 or an errno. */
int tp_driver_watch(int fd, bool known, uint32_t events, uint32_t seq);

void tp_driver_forget(int fd);

/* The error code for errno. */
int tp_driver_error(void);

#endif
