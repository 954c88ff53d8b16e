/*
 * magazine.h - per-thread caches that trade whole batches through a depot.
 *
 * Idea:     a free object is its own list node. A thread keeps a loaded list
 *           and one spare batch, so a run of gets and puts of less than a
 *           batch never leaves the thread; beyond that one locked exchange
 *           moves a whole batch, in constant time.
 *
 *             thread: cur -> o -> o -> o      spare -> o -> ... (a batch)
 *             depot:  batches -> [o ...] -> [o ...] -> [o ...]
 *
 * Threads:  a struct tp_mag belongs to one thread; a struct tp_depot to all.
 * Locks:    TP_RANK_SLAB, in tp_depot_put and tp_depot_take.
 * Memory:   objects of at least sizeof(struct tp_mag_item) bytes; whatever is
 *           put in belongs to the cache until it is taken out.
 * Parks:    never.
 * Tests:    spec/unit/slab_test.c, spec/unit/message_test.c
 */
#ifndef TP_MEM_MAGAZINE_H
#define TP_MEM_MAGAZINE_H

#include "base/mutex.h"

#include <stdalign.h>

struct tp_mag_item {
    struct tp_mag_item *next;       /* within its batch */
    struct tp_mag_item *next_batch; /* first item of a batch in a depot */
    uint32_t count;                 /* first item of a closed batch: its size */
};

/* All zero is a valid, empty magazine: room 0 sends the first put to the slow
 * path, which is where a thread registers itself. */
struct tp_mag {
    struct tp_mag_item *cur;   /* owner thread only, as are all */
    struct tp_mag_item *spare; /* one closed batch or NULL */
    uint32_t room;             /* how many more items cur takes */
};

struct tp_depot {
    alignas(TP_CACHELINE) struct tp_mutex lock;
    struct tp_mag_item *batches; /* under lock, as are all below */
    size_t items;
    size_t max_items; /* beyond this put says no */
};

static inline struct tp_mag_item *
tp_mag_pop(struct tp_mag *mag)
{
    struct tp_mag_item *it = mag->cur;
    if (TP_LIKELY(it != NULL)) {
        mag->cur = it->next;
        mag->room++;
    }
    return it;
}

static inline bool
tp_mag_push(struct tp_mag *mag, struct tp_mag_item *it)
{
    if (TP_UNLIKELY(mag->room == 0)) {
        return false;
    }
    it->next = mag->cur;
    mag->cur = it;
    mag->room--;
    return true;
}

/* Make batch the loaded list of an empty magazine. */
static inline void
tp_mag_load(struct tp_mag *mag, struct tp_mag_item *batch, uint32_t cap)
{
    tp_assert(mag->cur == NULL && batch->count <= cap);
    mag->cur = batch;
    mag->room = cap - batch->count;
}

/* Empty the loaded list into *out_batch; false where there was nothing. */
static inline bool
tp_mag_close(struct tp_mag *mag, uint32_t cap, struct tp_mag_item **out_batch)
{
    struct tp_mag_item *batch = mag->cur;
    if (batch == NULL) {
        return false;
    }
    batch->count = cap - mag->room;
    mag->cur = NULL;
    mag->room = cap;
    *out_batch = batch;
    return true;
}

/* False when the depot is full: the batch stays the caller's. */
static inline bool
tp_depot_put(struct tp_depot *d, struct tp_mag_item *batch)
{
    tp_mutex_lock(&d->lock, TP_RANK_SLAB);
    bool ok = d->items + batch->count <= d->max_items;
    if (ok) {
        batch->next_batch = d->batches;
        d->batches = batch;
        d->items += batch->count;
    }
    tp_mutex_unlock(&d->lock, TP_RANK_SLAB);
    return ok;
}

static inline struct tp_mag_item *
tp_depot_take_locked(struct tp_depot *d)
{
    struct tp_mag_item *batch = d->batches;
    if (batch != NULL) {
        d->batches = batch->next_batch;
        d->items -= batch->count;
    }
    return batch;
}

static inline struct tp_mag_item *
tp_depot_take(struct tp_depot *d)
{
    tp_mutex_lock(&d->lock, TP_RANK_SLAB);
    struct tp_mag_item *batch = tp_depot_take_locked(d);
    tp_mutex_unlock(&d->lock, TP_RANK_SLAB);
    return batch;
}

#endif
