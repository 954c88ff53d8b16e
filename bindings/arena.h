/*
 * arena.h - the memory of one actor's Lua state.
 *
 * Threads: one at a time; the arena has no locks. It may move between threads
 *          between calls.
 * Memory:  the struct is the caller's and must not move once in use. All
 *          blocks belong to the arena and die with tp_arena_fini at the latest.
 * Parks:   never.
 * Tests:   spec/unit/arena_test.c, spec/unit/arena_lua_test.c
 */
#ifndef TP_BINDINGS_ARENA_H
#define TP_BINDINGS_ARENA_H

#include "mem/slab.h"

enum tp_arena_size {
    TP_ARENA_SMALL_MAX = 2048, /* larger blocks are not from size classes */
    TP_ARENA_CLASSES = 48,
    /* A larger block is refused. LuaJIT puts strings together in buffers that
     * double in size, so these have half a GiB at most; with two more strings of
     * this size no more than its own limit of 2 GiB is ever asked for. Beyond
     * that it raises an error of its own, in compiled code as well, which may
     * crash there (docs/design/jit.md). */
    TP_ARENA_BLOCK_MAX = (768 << 20) - 4096
};

struct tp_arena_free {
    struct tp_arena_free *next;
};

struct tp_arena_chunk;
struct tp_arena_large;

struct tp_arena {
    char *bump, *end; /* the space now being cut up */
    size_t used;      /* bytes asked for and not given back */
    size_t limit;     /* used never grows beyond it; SIZE_MAX: none */
    bool refused;     /* something did not fit, once */
    /* Before a NULL for want of memory, or NULL. True: the limit is another now.
     * May not return. */
    bool (*on_refusal)(struct tp_arena *a);
    size_t trim_at; /* look for empty chunks when used falls below */
    struct tp_arena_free *free[TP_ARENA_CLASSES];
    size_t peak;                   /* see tp_arena_peak */
    size_t held;                   /* bytes of chunks */
    size_t large;                  /* part of used that is not in chunks */
    size_t mend_at;                /* merge when this much seems free */
    char *birth;                   /* the BIRTH chunk or NULL */
    struct tp_arena_chunk *chunks; /* all chunks, newest first */
    struct tp_arena_large *larges; /* blocks with memory of their own */
    struct tp_arena_large *strays; /* the same, used as if from a chunk */
};

/* Takes no memory yet. limit_bytes 0: no limit. on_refusal is NULL after it. */
void tp_arena_init(struct tp_arena *a, size_t limit_bytes);

/* Free all that is still allocated. The struct may be initialised again. */
void tp_arena_fini(struct tp_arena *a);

/*
 * The lua_Alloc contract; arena is a struct tp_arena. Blocks are aligned to 8
 * bytes, as those of LuaJIT's own allocator. NULL where the limit would be
 * exceeded, for more than TP_ARENA_BLOCK_MAX, or where the system has no memory;
 * the old block then stays valid.
 * Shrinking and freeing never fail. osize must be the size last asked for.
 */
void *tp_arena_alloc(void *arena, void *ptr, size_t osize, size_t nsize);

/* May be below what is used; then nothing but shrinking succeeds. 0: none. */
void tp_arena_set_limit(struct tp_arena *a, size_t limit_bytes);

/* Merge free neighbours and give empty chunks back. Runs by itself when it
 * pays; a caller may use it before a long sleep. */
void tp_arena_mend(struct tp_arena *a);

/* The most that was ever used. The field alone may lag behind. */
static inline size_t
tp_arena_peak(const struct tp_arena *a)
{
    return a->peak > a->used ? a->peak : a->used;
}

/* Bytes of memory behind the arena, free or not. */
size_t tp_arena_resident(const struct tp_arena *a);

#endif
