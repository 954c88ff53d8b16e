/*
 * strmap.c - a map from byte strings to nodes. See strmap.h.
 *
 *   buckets   0 1 2 3 4 5 | 6 7      used 6, capacity 8
 *
 *   A hash goes to its low bits; a bucket that is not there yet (6, 7) is
 *   still one with the bucket it will be split from (2, 3).
 *
 * Tests: spec/unit/strmap_test.c
 */
#include "base/strmap.h"

#include "base/sys.h"

#include <string.h>

#define FIRST_CAPACITY 16u

static uint32_t
hash_bytes(const void *key, size_t len)
{
    const unsigned char *p = key;
    uint64_t h = 14695981039346656037ull;
    for (size_t i = 0; i < len; i++) {
        h = (h ^ p[i]) * 1099511628211ull;
    }
    return (uint32_t)(h ^ (h >> 32));
}

static uint32_t
bucket_of(const struct tp_strmap *m, uint32_t hash)
{
    uint32_t i = hash & (m->capacity - 1);
    return i < m->used ? i : i & (m->capacity / 2 - 1);
}

bool
tp_strmap_reserve(struct tp_strmap *m)
{
    if (m->capacity != 0) {
        return true;
    }
    m->buckets = tp_calloc(FIRST_CAPACITY, sizeof *m->buckets);
    if (m->buckets == NULL) {
        return false;
    }
    m->used = m->capacity = FIRST_CAPACITY;
    return true;
}

/* One bucket more, filled from the one it was part of. Without memory the map
 * stays as it is. */
static void
split(struct tp_strmap *m)
{
    if (m->used == m->capacity) {
        if (m->capacity > UINT32_MAX / 4) {
            return;
        }
        struct tp_strnode **b = tp_realloc(m->buckets, 2 * (size_t)m->capacity *
                                                           sizeof *m->buckets);
        if (b == NULL) {
            return;
        }
        m->buckets = b;
        m->capacity *= 2;
    }
    uint32_t to = m->used++;
    struct tp_strnode **from = &m->buckets[to & (m->capacity / 2 - 1)];
    struct tp_strnode **tail = &m->buckets[to];
    while (*from != NULL) {
        struct tp_strnode *n = *from;
        if ((n->hash & (m->capacity - 1)) == to) {
            *from = n->next;
            *tail = n;
            tail = &n->next;
        } else {
            from = &n->next;
        }
    }
    *tail = NULL;
}

void
tp_strmap_add(struct tp_strmap *m, struct tp_strnode *n)
{
    if (m->count >= m->used) {
        split(m);
    }
    n->hash = hash_bytes(n->key, n->len);
    struct tp_strnode **b = &m->buckets[bucket_of(m, n->hash)];
    n->next = *b;
    *b = n;
    m->count++;
}

void
tp_strmap_remove(struct tp_strmap *m, struct tp_strnode *n)
{
    struct tp_strnode **p = &m->buckets[bucket_of(m, n->hash)];
    while (*p != n) {
        p = &(*p)->next;
    }
    *p = n->next;
    m->count--;
}

struct tp_strnode *
tp_strmap_find(const struct tp_strmap *m, const void *key, size_t len)
{
    if (m->count == 0) {
        return NULL;
    }
    uint32_t hash = hash_bytes(key, len);
    struct tp_strnode *n = m->buckets[bucket_of(m, hash)];
    while (n != NULL && (n->hash != hash || n->len != len ||
                         memcmp(n->key, key, len) != 0)) {
        n = n->next;
    }
    return n;
}

struct tp_strnode *
tp_strmap_next(const struct tp_strmap *m, const struct tp_strnode *n)
{
    if (n != NULL && n->next != NULL) {
        return n->next;
    }
    uint32_t i = n == NULL ? 0 : bucket_of(m, n->hash) + 1;
    while (i < m->used && m->buckets[i] == NULL) {
        i++;
    }
    return i < m->used ? m->buckets[i] : NULL;
}

void
tp_strmap_fini(struct tp_strmap *m)
{
    tp_free(m->buckets);
    memset(m, 0, sizeof *m);
}
