/*
 * tape.c - an endless sequence of bytes that is sent and checked.
 *
 * Memory: the tape owns its bytes.
 * Fails:  want of memory, as -1.
 * Tests:  spec/unit/load_test.c
 */
#include "tape.h"

#include <stdlib.h>
#include <string.h>

/* Prime, so that no message size divides it. */
#define COUNT_PERIOD UINT64_C(1048573)

static int
create(struct tape *t, uint64_t period)
{
    t->period = period;
    t->bytes = malloc(period + TAPE_SPAN);
    return t->bytes == NULL ? -1 : 0;
}

/* After one period, the beginning again. */
static void
close_loop(struct tape *t)
{
    for (size_t i = 0; i < TAPE_SPAN; i++)
        t->bytes[t->period + i] = t->bytes[i % t->period];
}

static uint64_t
mix(uint64_t x)
{
    x = (x + 1) * UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    return x ^ (x >> 29);
}

int
tape_count(struct tape *t)
{
    if (create(t, COUNT_PERIOD) != 0)
        return -1;
    for (uint64_t i = 0; i < COUNT_PERIOD; i++)
        t->bytes[i] = (unsigned char)(mix(i / 8) >> (i % 8 * 8));
    close_loop(t);
    return 0;
}

int
tape_repeat(struct tape *t, const char *text, size_t size)
{
    if (create(t, size) != 0)
        return -1;
    memcpy(t->bytes, text, size);
    close_loop(t);
    return 0;
}

void
tape_free(struct tape *t)
{
    free(t->bytes);
    t->bytes = NULL;
}

const unsigned char *
tape_at(const struct tape *t, uint64_t at)
{
    return t->bytes + at % t->period;
}

static size_t
same(const unsigned char *a, const char *b, size_t n)
{
    size_t i = 0;
    if (memcmp(a, b, n) == 0)
        return n;
    while (a[i] == (unsigned char)b[i])
        i++;
    return i;
}

size_t
tape_match(const struct tape *t, uint64_t at, const char *bytes, size_t n)
{
    size_t done = 0;
    while (done < n) {
        size_t part = n - done < TAPE_SPAN ? n - done : TAPE_SPAN;
        size_t good = same(tape_at(t, at + done), bytes + done, part);
        done += good;
        if (good < part)
            break;
    }
    return done;
}
