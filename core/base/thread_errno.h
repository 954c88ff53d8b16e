/*
 * thread_errno.h - errno for functions in which an actor may park.
 *
 * Idea:    errno is a variable of the thread, and libc declares where it lies to
 *          be constant, so a compiler asks once in a function. An actor that was
 *          parked in between may go on upon another thread, and would read what
 *          that old thread's last call has left. Here each use asks anew.
 * Threads: any.
 * Tests:   spec/unit/blocking_test.c
 */
#ifndef TP_BASE_THREAD_ERRNO_H
#define TP_BASE_THREAD_ERRNO_H

#include "base/sys.h"

#include <errno.h>

#undef errno
#define errno (*tp_thread_errno())

#endif
