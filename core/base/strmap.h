/*
 * strmap.h - an intrusive map from byte strings to nodes.
 *
 * Idea:     linear hashing: a full map splits one bucket at each add, so that
 *           no single add pays for a rehash of all, under a lock that others
 *           wait for.
 * Threads:  as the owner of the map says.
 * Memory:   nodes and keys are the caller's; the map owns its buckets, and
 *           keeps them until fini.
 * Fails:    reserve: without memory for the first buckets. Later on chains
 *           just get longer.
 * Tests:    spec/unit/strmap_test.c
 */
#ifndef TP_BASE_STRMAP_H
#define TP_BASE_STRMAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct tp_strnode {
    struct tp_strnode *next;
    const void *key; /* lives as long as the node is in the map */
    uint32_t len;
    uint32_t hash; /* set by add */
};

/* All zero is an empty map. */
struct tp_strmap {
    struct tp_strnode **buckets;
    uint32_t used;     /* buckets in use; the rest is still to come */
    uint32_t capacity; /* a power of two */
    size_t count;
};

/* Makes sure that add can work; false without memory. */
bool tp_strmap_reserve(struct tp_strmap *m);

/* n->key and n->len are set, and no node has this key. After a reserve. */
void tp_strmap_add(struct tp_strmap *m, struct tp_strnode *n);

/* n is in the map. */
void tp_strmap_remove(struct tp_strmap *m, struct tp_strnode *n);

/* NULL: there is none. */
struct tp_strnode *tp_strmap_find(const struct tp_strmap *m, const void *key,
                                  size_t len);

/* The node after n, in no order; NULL gives the first, and ends. */
struct tp_strnode *tp_strmap_next(const struct tp_strmap *m,
                                  const struct tp_strnode *n);

/* Frees the buckets; the map is empty. Nodes are left to their owners. */
void tp_strmap_fini(struct tp_strmap *m);

#endif
