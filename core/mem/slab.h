/*
 * slab.h - process-wide memory in chunks of three fixed sizes.
 *
 * Threads: any, unless said otherwise.
 * Memory:  get hands a chunk out, put takes it back. Content is undefined.
 * Parks:   never.
 * Tests:   spec/unit/slab_test.c
 */
#ifndef TP_MEM_SLAB_H
#define TP_MEM_SLAB_H

#include "base/check.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* name, bytes, chunks per batch. BIRTH is cut to what a fresh LuaJIT state
 * with five libraries needs (25,872 bytes here, header included). */
#define TP_SLAB_KIND_LIST(X)                                                   \
    X(BIRTH, 26624, 8)                                                         \
    X(SMALL, 4096, 32)                                                         \
    X(LARGE, 32768, 8)

enum tp_slab_kind {
#define X(name, bytes, batch) TP_SLAB_##name,
    TP_SLAB_KIND_LIST(X)
#undef X
    TP_SLAB_KINDS
};

enum tp_slab_size {
#define X(name, bytes, batch) TP_SLAB_##name##_BYTES = bytes,
    TP_SLAB_KIND_LIST(X)
#undef X
    TP_SLAB_REGION_BYTES = 4 << 20,
    TP_SLAB_RETAIN_BYTES = 32 << 20 /* free memory kept resident per kind */
};

struct tp_slab_stats {
    size_t out[TP_SLAB_KINDS];    /* in use, or in some thread's cache */
    size_t pooled[TP_SLAB_KINDS]; /* resident in the shared pool */
    size_t cold[TP_SLAB_KINDS];   /* address space only: fresh or given back */
    size_t mapped_bytes;          /* address space of all regions */
};

size_t tp_slab_bytes(enum tp_slab_kind kind);

/* One chunk, aligned to 64 bytes, all of it the caller's; NULL when the system
 * has no memory left. */
void *tp_slab_get(enum tp_slab_kind kind);

/* Give a chunk back. Takes the lock once per batch. It stays resident. */
void tp_slab_put(enum tp_slab_kind kind, void *chunk);

/* The start of the chunk that p lies in; p must be in a chunk that is out. */
void *tp_slab_base(const void *p);

/* An anonymous mapping that LuaJIT can address (below 2^47), for blocks that
 * fit in no chunk; end it with tp_munmap. NULL on failure. */
void *tp_slab_map(size_t bytes);

/* Move this thread's cache to the shared pool. A thread that ends does so by
 * itself; one that sleeps for long, or that calls tp_slab_fini, does it here. */
void tp_slab_thread_flush(void);

/* Unmap everything if no chunk is out; false, and nothing done, if some are.
 * Flushes the calling thread; no other thread may use the slabs meanwhile. */
bool tp_slab_fini(void);

void tp_slab_get_stats(struct tp_slab_stats *out_stats);

/* How many free chunks there are that trim would give back to the kernel. */
size_t tp_slab_excess(void);

/* Gives some of them back, less than a millisecond's worth of work or so; true:
 * there are more. For when no actors die: the first calls only look which are
 * neighbours. One thread at a time. */
bool tp_slab_trim(void);

/* How many bytes per kind trim leaves resident (tests, small machines). */
void tp_slab_set_retain(size_t bytes);

#if defined(TP_ASAN)
#include <sanitizer/asan_interface.h>
#define TP_POISON(p, n)   ASAN_POISON_MEMORY_REGION(p, n)
#define TP_UNPOISON(p, n) ASAN_UNPOISON_MEMORY_REGION(p, n)
#else
#define TP_POISON(p, n)   ((void)(p), (void)(n))
#define TP_UNPOISON(p, n) ((void)(p), (void)(n))
#endif

#endif
