/*
 * pidset.h - a set of 64-bit numbers that are not 0.
 *
 * Idea:    open addressing, linear probing, no tombstones: a removal shifts
 *          the run behind it. At most half full.
 * Threads: as the owner of the set says.
 * Memory:  reserve allocates; add after it cannot fail.
 * Tests:   spec/unit/pidset_test.c
 */
#ifndef TP_BASE_PIDSET_H
#define TP_BASE_PIDSET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* All zero is an empty set. */
struct tp_pidset {
    uint64_t *keys; /* 0: free */
    uint32_t capacity;
    uint32_t count;
};

/* Is there room for one more without memory? */
static inline bool
tp_pidset_has_room(const struct tp_pidset *s)
{
    return (s->count + 1) * 2 <= s->capacity;
}

/* Makes room for one more; false without memory. */
bool tp_pidset_reserve(struct tp_pidset *s);

/* There must be room. False: it was there already. */
bool tp_pidset_add(struct tp_pidset *s, uint64_t key);
bool tp_pidset_remove(struct tp_pidset *s, uint64_t key);
bool tp_pidset_has(const struct tp_pidset *s, uint64_t key);

/* Frees the memory; the set is empty. */
void tp_pidset_fini(struct tp_pidset *s);

#endif
