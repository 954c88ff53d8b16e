/*
 * tape.h - an endless sequence of bytes that is sent and checked.
 *
 * A tape repeats after its period. It is stored once, and TAPE_SPAN bytes more,
 * so that any piece of up to TAPE_SPAN bytes lies in one place: what is sent is
 * never copied, and what comes back is compared where it lies.
 */
#ifndef LOAD_TAPE_H
#define LOAD_TAPE_H

#include <stddef.h>
#include <stdint.h>

#define TAPE_SPAN (64U << 10)

struct tape {
    unsigned char *bytes;
    uint64_t period;
};

/* A counter, each word of it mixed: no byte says where it is, any eight do. A
   loss, a byte twice or bytes of another connection are seen. 0, or -1. */
int tape_count(struct tape *t);

/* The same text (size > 0 bytes) again and again. 0, or -1. */
int tape_repeat(struct tape *t, const char *text, size_t size);

void tape_free(struct tape *t);

/* The bytes from position at on; TAPE_SPAN of them. */
const unsigned char *tape_at(const struct tape *t, uint64_t at);

/* How many of the n bytes are what the tape has from position at on. */
size_t tape_match(const struct tape *t, uint64_t at, const char *bytes,
                  size_t n);

#endif
