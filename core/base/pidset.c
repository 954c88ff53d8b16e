/*
 * pidset.c - a set of 64-bit numbers. See pidset.h.
 *
 * Tests: spec/unit/pidset_test.c
 */
#include "base/pidset.h"

#include "base/check.h"
#include "base/sys.h"

#include <string.h>

#define FIRST_CAPACITY 8u

static uint32_t
home(const struct tp_pidset *s, uint64_t key)
{
    key *= 0x9e3779b97f4a7c15ull;
    return (uint32_t)(key >> 32) & (s->capacity - 1);
}

/* Where key is, or the free place where it would go. */
static uint32_t
locate(const struct tp_pidset *s, uint64_t key)
{
    uint32_t i = home(s, key);
    while (s->keys[i] != 0 && s->keys[i] != key) {
        i = (i + 1) & (s->capacity - 1);
    }
    return i;
}

bool
tp_pidset_reserve(struct tp_pidset *s)
{
    if (tp_pidset_has_room(s)) {
        return true;
    }
    struct tp_pidset bigger = {NULL, 0, s->count};
    bigger.capacity = s->capacity == 0 ? FIRST_CAPACITY : s->capacity * 2;
    bigger.keys = tp_calloc(bigger.capacity, sizeof *bigger.keys);
    if (bigger.keys == NULL) {
        return false;
    }
    for (uint32_t i = 0; i < s->capacity; i++) {
        if (s->keys[i] != 0) {
            bigger.keys[locate(&bigger, s->keys[i])] = s->keys[i];
        }
    }
    tp_free(s->keys);
    *s = bigger;
    return true;
}

bool
tp_pidset_add(struct tp_pidset *s, uint64_t key)
{
    tp_assert(key != 0 && tp_pidset_has_room(s));
    uint32_t i = locate(s, key);
    if (s->keys[i] == key) {
        return false;
    }
    s->keys[i] = key;
    s->count++;
    return true;
}

bool
tp_pidset_has(const struct tp_pidset *s, uint64_t key)
{
    return key != 0 && s->count != 0 && s->keys[locate(s, key)] == key;
}

bool
tp_pidset_remove(struct tp_pidset *s, uint64_t key)
{
    if (!tp_pidset_has(s, key)) {
        return false;
    }
    uint32_t mask = s->capacity - 1, hole = locate(s, key), i = hole;
    s->count--;
    for (;;) {
        s->keys[hole] = 0;
        do { /* the next key of the run that may not stay behind the hole */
            i = (i + 1) & mask;
            if (s->keys[i] == 0) {
                return true;
            }
        } while (((i - home(s, s->keys[i])) & mask) < ((i - hole) & mask));
        s->keys[hole] = s->keys[i];
        hole = i;
    }
}

void
tp_pidset_fini(struct tp_pidset *s)
{
    tp_free(s->keys);
    memset(s, 0, sizeof *s);
}
