/*
 * reason.h - why an actor ended.
 *
 * Idea:     a kind, and for TP_REASON_VALUE the bytes of a value that only the
 *           bindings can read. Shared by all who are told, hence counted.
 *           The other kinds are constants: they need no memory, so that an end
 *           for want of memory can be told.
 * Threads:  any; a reason does not change once it is made.
 * Ordering: REA-1 in reason.c.
 * Tests:    spec/unit/reason_test.c
 */
#ifndef TP_ACTOR_REASON_H
#define TP_ACTOR_REASON_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum tp_reason_kind {
    TP_REASON_NORMAL,
    TP_REASON_SHUTDOWN,
    TP_REASON_KILLED,
    TP_REASON_NOPROC,
    TP_REASON_MEMORY,   /* out of memory */
    TP_REASON_OVERFLOW, /* stack overflow, contained */
    TP_REASON_DEADLOCK, /* root only: nothing can ever happen again */
    TP_REASON_VALUE     /* data */
};

struct tp_reason {
    _Atomic uint32_t refs; /* TP_REASON_VALUE only */
    uint8_t kind;          /* enum tp_reason_kind */
    bool has_objects;      /* data names objects of the bindings */
    uint32_t size;
    unsigned char *data;
};

/* Called for a reason with has_objects before it is freed. Set before any. */
extern void (*tp_reason_release)(struct tp_reason *r);

/* A constant reason; kind is not TP_REASON_VALUE. Never NULL. */
struct tp_reason *tp_reason_const(enum tp_reason_kind kind);

/* A copy of data; the constant TP_REASON_MEMORY when there is no memory. */
struct tp_reason *tp_reason_new(const void *data, size_t size);

struct tp_reason *tp_reason_ref(struct tp_reason *r);
void tp_reason_unref(struct tp_reason *r);

#endif
