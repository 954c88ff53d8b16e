/*
 * arena.c - the memory of one actor's Lua state.
 *
 * Idea:     small blocks (to 2 KiB) come from 48 size classes: steps of 8
 *           bytes to 128, then 8 steps per doubling. A class is a free list;
 *           where it is empty the block is cut from the bump space. All sizes
 *           are multiples of 8, so any free space is exactly a sum of classes
 *           and nothing is lost when a block is cut:
 *
 *             chunk: |header|block|block|free|block|....bump....|
 *                                                  ^bump        ^end
 *
 *           When the bump space is short, the next free block of a larger
 *           class becomes the bump space. When there is none either, and
 *           enough seems free, mend sorts all free blocks back into their
 *           chunks, merges neighbours through a bitmap and gives empty chunks
 *           back. Only then a new chunk is taken: first a BIRTH chunk that
 *           just holds a fresh state, then SMALL ones, LARGE ones when the
 *           arena is no longer small.
 *           Larger blocks have a header and memory of their own: malloc, or a
 *           mapping from 1 MiB on, which grows by mremap. Those of up to 8 KiB
 *           come from the BIRTH chunk as long as it has room (the state itself
 *           does).
 * Threads:  one at a time.
 * Locks:    none here; the slabs take TP_RANK_SLAB.
 * Memory:   as in arena.h.
 * Parks:    never.
 * Fails:    growing: NULL, after on_refusal. Where too little stack is left for a lock or for
 *           malloc, the running actor ends here (tp_stack_check).
 * Remains:  rounding, at most 1/9 above 128 bytes and 7 bytes below; free
 *           space between blocks that live on, until neighbours are freed.
 * Rejected: a page per class (as mimalloc) - a fresh state uses 27 classes.
 *           Merging at each free - 5 ns more for what mend does at leisure.
 * Tests:    spec/unit/arena_test.c, spec/unit/arena_lua_test.c
 */
#define _GNU_SOURCE
#include "bindings/arena.h"

#include "actor/slice.h"
#include "base/sys.h"

#include <string.h>
#include <sys/mman.h>

#define GRAIN      8
#define FINE_MAX   128
#define FINE_COUNT 16
#define ROOMY      23 /* the class of 256 bytes */
#define MEDIUM_MAX 8192
#define LARGE_FROM (96u << 10) /* held: from here on LARGE chunks */
#define TRIM_FROM  (256u << 10)
#define MEND_STEP  (16u << 10)
#define HUGE_FROM  (8u << 20) /* wastes at most a quarter */

/* LuaJIT can't address all that malloc returns on AArch64 (slab.c): there every
 * large block is a low mapping. */
#if defined(__aarch64__)
#define IS_MAPPED(bytes) ((void)(bytes), true)
#define MAY_MOVE         0
#else
#define IS_MAPPED(bytes) ((bytes) >= (1u << 20))
#define MAY_MOVE         MREMAP_MAYMOVE
#endif

struct tp_arena_chunk {
    struct tp_arena_chunk *next;
    uint32_t kind; /* enum tp_slab_kind */
    uint32_t list; /* in mend only: offset of the first free block, 0 none */
};

struct tp_arena_large {
    struct tp_arena_large *next, **link; /* link: what points to this one */
    size_t bytes;                        /* all, with this header */
    size_t mapped;                       /* bytes of the mapping, 0: malloc */
};

#define MAP_WORDS (TP_SLAB_LARGE_BYTES / GRAIN / 64)

_Static_assert(sizeof(struct tp_arena_chunk) % GRAIN == 0, "blocks at 8 n");
_Static_assert(sizeof(struct tp_arena_large) % 16 == 0, "as malloc aligns");
_Static_assert(TP_SLAB_BIRTH_BYTES <= TP_SLAB_LARGE_BYTES, "bitmap size");

/* --- Size classes ------------------------------------------------------- */

static inline size_t
round_up(size_t n, size_t to)
{
    return (n + to - 1) & ~(to - 1);
}

/* 1 <= n <= TP_ARENA_SMALL_MAX */
static inline unsigned
class_of(size_t n)
{
    if (n <= FINE_MAX) {
        return (unsigned)((n - 1) / GRAIN);
    }
    unsigned e = 63u - (unsigned)__builtin_clzll(n - 1);
    return FINE_COUNT + (e - 7) * 8 + (unsigned)((n - 1) >> (e - 3) & 7);
}

static inline size_t
class_bytes(unsigned c)
{
    if (c < FINE_COUNT) {
        return (c + 1) * (size_t)GRAIN;
    }
    unsigned d = (c - FINE_COUNT) / 8, s = (c - FINE_COUNT) % 8;
    return (size_t)(FINE_MAX + (s + 1) * 16) << d;
}

/* What n bytes take in a chunk. */
static inline size_t
block_bytes(size_t n)
{
    return n <= TP_ARENA_SMALL_MAX ? class_bytes(class_of(n))
                                   : round_up(n, GRAIN);
}

/* The largest class that fits into `bytes` (a multiple of GRAIN). */
static inline unsigned
class_below(size_t bytes)
{
    if (bytes >= TP_ARENA_SMALL_MAX) {
        return TP_ARENA_CLASSES - 1;
    }
    unsigned c = class_of(bytes);
    return class_bytes(c) > bytes ? c - 1 : c;
}

/* --- Free lists --------------------------------------------------------- */

/* Under ASan all but live blocks is poisoned, links included. */
static inline void
push(struct tp_arena *a, unsigned c, void *p)
{
    struct tp_arena_free *b = p;
    TP_UNPOISON(b, sizeof *b);
    b->next = a->free[c];
    a->free[c] = b;
    TP_POISON(b, class_bytes(c));
}

/* The block stays poisoned but for its first word. */
static inline void *
pop(struct tp_arena *a, unsigned c)
{
    struct tp_arena_free *b = a->free[c];
    if (b != NULL) {
        TP_UNPOISON(b, sizeof *b);
        a->free[c] = b->next;
        TP_POISON(b, sizeof *b);
    }
    return b;
}

/* Put [p, p + bytes) on the free lists, in as few pieces as possible. */
static void
retire(struct tp_arena *a, char *p, size_t bytes)
{
    while (bytes > 0) {
        unsigned c = class_below(bytes);
        push(a, c, p);
        p += class_bytes(c);
        bytes -= class_bytes(c);
    }
}

static void
retire_bump(struct tp_arena *a)
{
    retire(a, a->bump, (size_t)(a->end - a->bump));
    a->bump = a->end = NULL;
}

/* --- Mend --------------------------------------------------------------- */

/* What seems to be free in chunks, rounding included. */
static size_t
free_estimate(const struct tp_arena *a)
{
    size_t busy = a->used - a->large + (size_t)(a->end - a->bump);
    return a->held > busy ? a->held - busy : 0;
}

static bool
in_birth(const struct tp_arena *a, const void *p)
{
    return a->birth != NULL &&
           (uintptr_t)p - (uintptr_t)a->birth < TP_SLAB_BIRTH_BYTES;
}

static bool
is_stray(const struct tp_arena *a, const void *p)
{
    for (const struct tp_arena_large *s = a->strays; s != NULL; s = s->next) {
        if ((uintptr_t)p - (uintptr_t)s < s->bytes) {
            return true;
        }
    }
    return false;
}

/* In mend a free block's word holds its size and the offset of the next. */
static void
sort_in(void *p, size_t bytes)
{
    struct tp_arena_chunk *ch = tp_slab_base(p);
    uint64_t word = (uint64_t)bytes << 32 | ch->list;
    TP_UNPOISON(p, sizeof word);
    memcpy(p, &word, sizeof word);
    ch->list = (uint32_t)((char *)p - (char *)ch);
}

/* Move all free blocks to the lists of their chunks. */
static void
sort_all(struct tp_arena *a)
{
    for (unsigned c = 0; c < TP_ARENA_CLASSES; c++) {
        struct tp_arena_free *b = a->free[c], *next;
        a->free[c] = NULL;
        for (; b != NULL; b = next) {
            TP_UNPOISON(b, sizeof *b);
            next = b->next;
            if (a->strays != NULL && is_stray(a, b)) {
                push(a, c, b);
            } else {
                sort_in(b, class_bytes(c));
            }
        }
    }
}

static void
set_bits(uint64_t *map, size_t from, size_t to)
{
    for (; from < to && from % 64 != 0; from++) {
        map[from / 64] |= (uint64_t)1 << (from % 64);
    }
    for (; from + 64 <= to; from += 64) {
        map[from / 64] = UINT64_MAX;
    }
    for (; from < to; from++) {
        map[from / 64] |= (uint64_t)1 << (from % 64);
    }
}

static void
map_free(struct tp_arena_chunk *ch, uint64_t *map)
{
    for (size_t at = ch->list; at != 0;) {
        uint64_t word;
        memcpy(&word, (char *)ch + at, sizeof word);
        set_bits(map, at / GRAIN, (at + (word >> 32)) / GRAIN);
        at = (uint32_t)word;
    }
    ch->list = 0;
}

/* The first grain at or after i whose bit differs from `is`, at most n. */
static size_t
skip(const uint64_t *map, size_t i, size_t n, bool is)
{
    while (i < n) {
        uint64_t w = (is ? ~map[i / 64] : map[i / 64]) >> (i % 64);
        if (w != 0) {
            i += (size_t)__builtin_ctzll(w);
            return i < n ? i : n;
        }
        i = (i / 64 + 1) * 64;
    }
    return n;
}

/* Refill the free lists from one chunk; true when all of it is free, and then
 * nothing is on a list. */
static bool
mend_chunk(struct tp_arena *a, struct tp_arena_chunk *ch)
{
    uint64_t map[MAP_WORDS] = {0};
    size_t first = sizeof *ch / GRAIN;
    size_t n = tp_slab_bytes((enum tp_slab_kind)ch->kind) / GRAIN;
    map_free(ch, map);
    size_t from = skip(map, first, n, false);
    while (from < n) {
        size_t to = skip(map, from, n, true);
        if (from == first && to == n) {
            return true;
        }
        retire(a, (char *)ch + from * GRAIN, (to - from) * GRAIN);
        from = skip(map, to, n, false);
    }
    return false;
}

static void
chunk_free(struct tp_arena *a, struct tp_arena_chunk *ch)
{
    enum tp_slab_kind kind = (enum tp_slab_kind)ch->kind;
    a->held -= tp_slab_bytes(kind);
    if ((char *)ch == a->birth) {
        a->birth = NULL;
    }
    TP_UNPOISON(ch, tp_slab_bytes(kind));
    tp_slab_put(kind, ch);
}

/* Below which use an arena is worth another look for empty chunks. */
static size_t
trim_mark(const struct tp_arena *a)
{
    if (a->held < TRIM_FROM) {
        return 0;
    }
    return a->held / 4 < a->used / 2 ? a->held / 4 : a->used / 2;
}

void
tp_arena_mend(struct tp_arena *a)
{
    tp_stack_check();
    retire_bump(a);
    sort_all(a);
    struct tp_arena_chunk **at = &a->chunks;
    while (*at != NULL) {
        struct tp_arena_chunk *ch = *at;
        if (ch->list != 0 && mend_chunk(a, ch)) {
            *at = ch->next;
            chunk_free(a, ch);
        } else {
            at = &ch->next;
        }
    }
    size_t step = a->held / 4;
    a->mend_at = free_estimate(a) + (step > MEND_STEP ? step : MEND_STEP);
    a->trim_at = trim_mark(a);
}

/* --- Chunks ------------------------------------------------------------- */

static enum tp_slab_kind
next_kind(const struct tp_arena *a)
{
    if (a->chunks == NULL) {
        return TP_SLAB_BIRTH;
    }
    return a->held < LARGE_FROM ? TP_SLAB_SMALL : TP_SLAB_LARGE;
}

/* The bump space becomes a new chunk; false when there is no memory. */
static bool
chunk_new(struct tp_arena *a)
{
    enum tp_slab_kind kind = next_kind(a);
    tp_stack_check();
    struct tp_arena_chunk *ch = tp_slab_get(kind);
    if (ch == NULL) {
        return false;
    }
    retire_bump(a);
    *ch = (struct tp_arena_chunk){.next = a->chunks, .kind = kind};
    a->chunks = ch;
    a->held += tp_slab_bytes(kind);
    a->bump = (char *)(ch + 1);
    a->end = (char *)ch + tp_slab_bytes(kind);
    if (kind == TP_SLAB_BIRTH) {
        a->birth = (char *)ch;
    }
    if (a->used >= a->held / 2) {
        a->trim_at = trim_mark(a);
    }
    TP_POISON(a->bump, (size_t)(a->end - a->bump));
    return true;
}

/* The bump space becomes the first free block of the classes [c, end). */
static bool
adopt_range(struct tp_arena *a, unsigned c, unsigned end)
{
    for (; c < end; c++) {
        char *b = pop(a, c);
        if (b != NULL) {
            retire_bump(a);
            a->bump = b;
            a->end = b + class_bytes(c);
            return true;
        }
    }
    return false;
}

/* Blocks that serve many requests come first: a close fit would leave slivers
 * and be used up at once. */
static bool
adopt_free(struct tp_arena *a, unsigned c)
{
    unsigned roomy = c < ROOMY ? ROOMY : c;
    return adopt_range(a, roomy, TP_ARENA_CLASSES) || adopt_range(a, c, roomy);
}

/* Make the bump space hold class c at least. */
static bool
bump_refill(struct tp_arena *a, unsigned c)
{
    if (adopt_free(a, c)) {
        return true;
    }
    if (free_estimate(a) >= a->mend_at) {
        tp_arena_mend(a);
        if (adopt_free(a, c)) {
            return true;
        }
    }
    return chunk_new(a);
}

static __attribute__((noinline)) void *
take_slow(struct tp_arena *a, size_t n)
{
    unsigned c = class_of(n);
    if (!bump_refill(a, c)) {
        return NULL;
    }
    char *p = a->bump;
    a->bump += class_bytes(c);
    a->used += n;
    TP_UNPOISON(p, n);
    return p;
}

/* --- Large blocks ------------------------------------------------------- */

static void
large_link(struct tp_arena_large **list, struct tp_arena_large *l)
{
    l->next = *list;
    l->link = list;
    if (l->next != NULL) {
        l->next->link = &l->next;
    }
    *list = l;
}

static void
large_unlink(struct tp_arena_large *l)
{
    *l->link = l->next;
    if (l->next != NULL) {
        l->next->link = l->link;
    }
}

/* After l has moved. */
static void
large_relink(struct tp_arena_large *l)
{
    *l->link = l;
    if (l->next != NULL) {
        l->next->link = &l->next;
    }
}

static void
large_release(struct tp_arena_large *l)
{
    TP_UNPOISON(l, l->bytes);
    if (l->mapped != 0) {
        tp_munmap(l, l->mapped);
    } else {
        tp_free(l);
    }
}

static struct tp_arena_large *
large_new(size_t bytes)
{
    size_t mapped = IS_MAPPED(bytes) ? round_up(bytes, tp_page_size()) : 0;
    struct tp_arena_large *l =
        mapped != 0 ? tp_slab_map(mapped) : tp_malloc(bytes);
    if (l != NULL) {
        if (mapped >= HUGE_FROM) {
            tp_madvise(l, mapped, MADV_HUGEPAGE);
        }
        l->bytes = bytes;
        l->mapped = mapped;
    }
    return l;
}

/* From the birth chunk, if the bump space is there and has room. */
static void *
take_medium(struct tp_arena *a, size_t n)
{
    size_t bytes = round_up(n, GRAIN);
    if (!in_birth(a, a->bump) || (size_t)(a->end - a->bump) < bytes) {
        return NULL;
    }
    char *p = a->bump;
    a->bump += bytes;
    a->used += n;
    TP_UNPOISON(p, n);
    return p;
}

static __attribute__((noinline)) void *
take_large(struct tp_arena *a, size_t n)
{
    /* The first block brings the BIRTH chunk or fails: lua_newstate crashes
     * when memory ends half-way, so it must not get that far. */
    if (n <= MEDIUM_MAX && a->chunks == NULL && !chunk_new(a)) {
        return NULL;
    }
    void *p = n <= MEDIUM_MAX ? take_medium(a, n) : NULL;
    if (p != NULL || n > TP_ARENA_BLOCK_MAX) {
        return p;
    }
    tp_stack_check();
    struct tp_arena_large *l = large_new(sizeof *l + n);
    if (l == NULL) {
        return NULL;
    }
    large_link(&a->larges, l);
    a->used += n;
    a->large += n;
    return l + 1;
}

/* --- Take and give ------------------------------------------------------ */

/* A new block; the caller has checked the limit. */
static inline void *
take(struct tp_arena *a, size_t n)
{
    if (TP_UNLIKELY(n > TP_ARENA_SMALL_MAX)) {
        return take_large(a, n);
    }
    unsigned c = class_of(n);
    void *p = pop(a, c);
    if (p == NULL) {
        size_t bytes = class_bytes(c);
        p = a->bump;
        if (TP_UNLIKELY((size_t)(a->end - a->bump) < bytes)) {
            return take_slow(a, n);
        }
        a->bump += bytes;
    }
    a->used += n;
    TP_UNPOISON(p, n);
    return p;
}

static __attribute__((noinline)) void
give_large(struct tp_arena *a, void *p, size_t n)
{
    tp_stack_check();
    a->used -= n;
    if (in_birth(a, p)) {
        retire(a, p, round_up(n, GRAIN));
        return;
    }
    struct tp_arena_large *l = (struct tp_arena_large *)p - 1;
    a->large -= n;
    large_unlink(l);
    large_release(l);
}

static inline void
note_peak(struct tp_arena *a)
{
    if (a->used > a->peak) {
        a->peak = a->used;
    }
}

/* give, where `used` now is no peak. */
static inline void
give_quiet(struct tp_arena *a, void *p, size_t n)
{
    if (TP_UNLIKELY(n > TP_ARENA_SMALL_MAX)) {
        give_large(a, p, n);
    } else {
        push(a, class_of(n), p);
        a->used -= n;
    }
    if (TP_UNLIKELY(a->used < a->trim_at)) {
        tp_arena_mend(a);
    }
}

static inline void
give(struct tp_arena *a, void *p, size_t n)
{
    note_peak(a);
    give_quiet(a, p, n);
}

/* --- Resize ------------------------------------------------------------- */

static void
account_large(struct tp_arena *a, size_t osize, size_t nsize)
{
    a->used = a->used - osize + nsize;
    a->large = a->large - osize + nsize;
}

/* Where memory can't be moved because there is none: a large block that
 * shrinks stays where it is, its first bytes serve as a block from a chunk. */
static void *
strand(struct tp_arena *a, void *p, size_t osize, size_t nsize)
{
    struct tp_arena_large *l = (struct tp_arena_large *)p - 1;
    a->large -= osize;
    a->used = a->used - osize + nsize;
    large_unlink(l);
    large_link(&a->strays, l);
    return p;
}

/* A new place for the block; only growing fails. */
static void *
move(struct tp_arena *a, void *p, size_t osize, size_t nsize)
{
    void *q = take(a, nsize);
    if (q == NULL) {
        if (nsize > osize) {
            return NULL;
        }
        if (nsize <= TP_ARENA_SMALL_MAX) {
            return strand(a, p, osize, nsize);
        }
        account_large(a, osize, nsize);
        return p;
    }
    memcpy(q, p, osize < nsize ? osize : nsize);
    give_quiet(a, p, osize);
    return q;
}

/* malloc to malloc or mapping to mapping, else NULL. */
static struct tp_arena_large *
large_resize(struct tp_arena_large *l, size_t bytes)
{
    if (l->mapped == 0) {
        return IS_MAPPED(bytes) ? NULL : tp_realloc(l, bytes);
    }
    size_t mapped = round_up(bytes, tp_page_size());
    if (!IS_MAPPED(bytes)) {
        return NULL;
    }
    if (mapped == l->mapped) {
        return l;
    }
    size_t old = l->mapped;
    void *q = mremap(l, old, mapped, MAY_MOVE);
    if (q == MAP_FAILED) {
        return NULL;
    }
    l = q;
    l->mapped = mapped;
    return l;
}

static void *
resize_large(struct tp_arena *a, void *p, size_t osize, size_t nsize)
{
    struct tp_arena_large *l = (struct tp_arena_large *)p - 1;
    if (nsize > TP_ARENA_BLOCK_MAX) {
        return NULL;
    }
    tp_stack_check();
    l = large_resize(l, sizeof *l + nsize);
    if (l == NULL) {
        return move(a, p, osize, nsize);
    }
    l->bytes = sizeof *l + nsize;
    large_relink(l);
    account_large(a, osize, nsize);
    return l + 1;
}

/* Shrink a block of a chunk where it is. */
static void *
cut(struct tp_arena *a, char *p, size_t osize, size_t nsize)
{
    size_t had = block_bytes(osize), has = block_bytes(nsize);
    TP_POISON(p + has, had - has);
    TP_POISON(p, has);
    TP_UNPOISON(p, nsize);
    retire(a, p + has, had - has);
    a->used = a->used - osize + nsize;
    return p;
}

static __attribute__((noinline)) void *
resize(struct tp_arena *a, void *p, size_t osize, size_t nsize)
{
    bool owned = osize > TP_ARENA_SMALL_MAX && !in_birth(a, p);
    if (nsize > osize) {
        size_t more = nsize - osize;
        if (more > a->limit || a->used > a->limit - more) {
            return NULL;
        }
        tp_stack_note(); /* who goes deep makes his Lua stack grow, too */
    } else {
        note_peak(a);
    }
    if (owned) {
        return nsize > TP_ARENA_SMALL_MAX ? resize_large(a, p, osize, nsize)
                                          : move(a, p, osize, nsize);
    }
    if (nsize <= osize) {
        return cut(a, p, osize, nsize);
    }
    if (nsize <= TP_ARENA_SMALL_MAX && class_of(osize) == class_of(nsize)) {
        a->used += nsize - osize;
        TP_UNPOISON(p, nsize);
        return p;
    }
    return move(a, p, osize, nsize);
}

static inline void *
obtain(struct tp_arena *a, void *ptr, size_t osize, size_t nsize)
{
    if (ptr != NULL) {
        return resize(a, ptr, osize, nsize);
    }
    return nsize <= a->limit && a->used <= a->limit - nsize ? take(a, nsize)
                                                            : NULL;
}

static __attribute__((noinline, cold)) void *
refuse(struct tp_arena *a, void *ptr, size_t osize, size_t nsize)
{
    void *p = NULL;
    a->refused = true;
    while (p == NULL && a->on_refusal != NULL && a->on_refusal(a)) {
        p = obtain(a, ptr, osize, nsize);
    }
    return p;
}

void *
tp_arena_alloc(void *arena, void *ptr, size_t osize, size_t nsize)
{
    struct tp_arena *a = arena;
    tp_assert(ptr == NULL || osize != 0);
    if (nsize == 0) {
        if (ptr != NULL) {
            give(a, ptr, osize);
        }
        return NULL;
    }
    void *p = obtain(a, ptr, osize, nsize);
    return TP_LIKELY(p != NULL) ? p : refuse(a, ptr, osize, nsize);
}

/* --- Life --------------------------------------------------------------- */

void
tp_arena_init(struct tp_arena *a, size_t limit_bytes)
{
    *a = (struct tp_arena){.mend_at = MEND_STEP};
    tp_arena_set_limit(a, limit_bytes);
}

void
tp_arena_set_limit(struct tp_arena *a, size_t limit_bytes)
{
    a->limit = limit_bytes == 0 ? SIZE_MAX : limit_bytes;
}

static void
release_all(struct tp_arena_large *list)
{
    while (list != NULL) {
        struct tp_arena_large *next = list->next;
        large_release(list);
        list = next;
    }
}

void
tp_arena_fini(struct tp_arena *a)
{
    release_all(a->larges);
    release_all(a->strays);
    while (a->chunks != NULL) {
        struct tp_arena_chunk *ch = a->chunks;
        a->chunks = ch->next;
        chunk_free(a, ch);
    }
    tp_arena_init(a, a->limit == SIZE_MAX ? 0 : a->limit);
}

size_t
tp_arena_resident(const struct tp_arena *a)
{
    return a->held + a->large;
}
