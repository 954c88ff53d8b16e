/*
 * errnames.h - the names by which the Lua side knows errors of the system.
 *
 * Idea:    short names for what programs react to, the errno's own name for
 *          all else. One list, for files, processes and sockets.
 * Threads: any. The texts are constants.
 * Tests:   spec/unit/errors_test.c
 */
#ifndef TP_BASE_ERRNAMES_H
#define TP_BASE_ERRNAMES_H

/* errno, short name. EPIPE is the other end's doing as much as a reset. */
#define TP_SHORT_ERRORS(X)                                                     \
    X(ECONNREFUSED, "refused")                                                 \
    X(ECONNRESET, "reset")                                                     \
    X(EPIPE, "closed")                                                         \
    X(EADDRINUSE, "address_in_use")                                            \
    X(EMFILE, "too_many_files")                                                \
    X(ENFILE, "too_many_files")                                                \
    X(ETIMEDOUT, "timeout")

/* "ENOENT" of ENOENT; "EUNKNOWN" of what the system does not know. */
const char *tp_errno_name(int err);

/* The short name, where there is one, else as tp_errno_name. */
const char *tp_errno_short(int err);

#endif
