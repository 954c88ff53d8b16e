/*
 * driver.h - the epoll set, from which the schedulers take events.
 *
 * Idea:     made when the first actor waits for a file descriptor, taken apart
 *           at the end of the run. One scheduler at a time takes events, see
 *           struct tp_poll: a whole batch is made runnable, and the chain rule
 *           wakes others if that is more than one takes.
 * Threads:  start, watch, forget: any. Taking events: the poller.
 * Locks:    TP_RANK_IO.
 * Ordering: DRV-1.
 * Fails:    start: TROUPE_ENOMEM, TROUPE_ELIMIT, TROUPE_ESYSTEM, with errno.
 * Rejected: a thread of its own that makes actors runnable - two wakes for each
 *           event that meets an idle process (docs/design/io.md).
 * Tests:    spec/unit/driver_test.c, spec/unit/driver_stress.c
 */
#ifndef TP_IO_DRIVER_H
#define TP_IO_DRIVER_H

#include <stdbool.h>
#include <stdint.h>

/* Makes the epoll set if there is none. */
int tp_driver_start(void);

/* Registers fd for the events; known: it is in the set. 0 or an errno. */
int tp_driver_watch(int fd, bool known, uint32_t events, uint32_t seq);

void tp_driver_forget(int fd);

/* The error code for errno. */
int tp_driver_error(void);

#endif
