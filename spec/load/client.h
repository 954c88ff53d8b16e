/*
 * client.h - the connections of a run: ask, check what comes, count.
 */
#ifndef LOAD_CLIENT_H
#define LOAD_CLIENT_H

#include "histogram.h"
#include "options.h"

#include <stdint.h>

/* What can go wrong. Each is an error of the run. */
#define LOAD_ERRORS(X)                                                         \
    X(CONNECT, "connect") /* refused, no address, ... */                       \
    X(CONNECT_TIMEOUT, "connect_timeout")                                      \
    X(RESET, "reset")           /* RST, or another error of the socket */      \
    X(CLOSED, "closed")         /* the peer ended with answers due */          \
    X(TIMEOUT, "timeout")       /* no progress with answers due */             \
    X(MISMATCH, "mismatch")     /* other bytes than were sent */               \
    X(EXTRA, "extra")           /* bytes that nobody asked for */              \
    X(MALFORMED, "malformed")   /* no HTTP */                                  \
    X(STATUS, "status")         /* an HTTP status from 400 on */               \
    X(UNANSWERED, "unanswered") /* a request without an answer */              \
    X(DEADLINE, "deadline")     /* the run was cut off */

enum load_error {
#define X(name, text) LOAD_##name,
    LOAD_ERRORS(X)
#undef X
    LOAD_ERROR_COUNT
};

struct result {
    uint64_t opened;   /* connections */
    uint64_t requests; /* answered ones */
    uint64_t sent;     /* bytes */
    uint64_t received;
    uint64_t verified; /* bytes that were compared and right */
    uint64_t lost;     /* bytes that were sent and did not come back */
    uint64_t errors[LOAD_ERROR_COUNT];
    double seconds;           /* measured, without the warm-up */
    struct histogram latency; /* nanoseconds, without the warm-up */
};

/* Runs it to the end. 0, or -1 if it cannot even begin (said on stderr). */
int client_run(const struct options *o, struct result *out);

#endif
