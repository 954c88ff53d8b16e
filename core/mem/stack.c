/*
 * stack.c - pool of guarded stacks.
 *
 * Idea:     a region is one mapping of up to 256 slots:
 *
 *               | guard | reserve | guard | reserve | ...
 *                         lo ... hi
 *
 *           Slots are handed out from low to high (region->next); a guard is
 *           made when its slot is first handed out. A free stack carries the
 *           list link in its own topmost bytes, which are resident anyway.
 *           Neighbouring regions melt into one kernel mapping, so the number
 *           of stacks is not bound by vm.max_map_count unless the guards are.
 * Threads:  any. A thread's cache is its own; the rest is under the lock.
 * Locks:    TP_RANK_STACK, for list operations and the mapping of a region.
 * Memory:   regions live until tp_stacks_fini.
 * Fails:    TROUPE_ENOMEM, TROUPE_ELIMIT.
 * Rejected: one mapping per stack - ends at 32,753 stacks with default limits.
 *           MADV_FREE when a stack is reused - the pages would still count as
 *           resident, and dead data would show up in the next actor's frames.
 * Tests:    spec/unit/stack_test.c
 */
#define _GNU_SOURCE
#include "mem/stack.h"

#include "base/check.h"
#include "base/mutex.h"
#include "base/sys.h"
#include "troupe.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#ifdef TP_ASAN
#include <sanitizer/asan_interface.h>
#define unpoison(p, bytes) __asan_unpoison_memory_region(p, bytes)
#else
#define unpoison(p, bytes) ((void)0)
#endif

#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102
#endif

#ifndef MADV_GUARD_REMOVE
#define MADV_GUARD_REMOVE 103
#endif

#define REGION_BYTES ((size_t)64 << 20)
#define REGION_SLOTS 256
#define CACHE_MAX    32
#define CACHE_BATCH  16

/* In the topmost bytes of a free stack. */
struct link {
    struct link *next;
};

struct region {
    struct region *older;
    char *base;
    size_t slots; /* how many it has room for */
    size_t next;  /* the first one never handed out */
};

struct list {
    struct link *head;
    size_t count;
};

/* One thread's free stacks. Owner only, but for count and the list links. */
struct cache {
    struct link *head;
    _Atomic size_t count; /* written by the owner, read for statistics */
    struct cache *other;  /* under pool.lock: the next registered cache */
    bool on;
};

static struct {
    /* set by tp_stacks_init */
    size_t page;
    size_t reserve;
    size_t guard;
    enum tp_stack_guard how;
    /* under lock */
    struct tp_mutex lock;
    struct region *regions; /* newest first; only that one has fresh slots */
    struct list ready;      /* guarded, free */
    struct list raw;        /* free; their guard could not be made */
    struct cache *caches;
    size_t mapped;
    size_t carved; /* slots ever taken from regions */
    /* any thread, atomic */
    _Atomic size_t custom;
} pool;

static enum tp_stack_guard forced = TP_STACK_GUARD_AUTO;

static _Thread_local struct cache here
    __attribute__((tls_model("initial-exec")));

/* noinline, and opaque: a caller may have changed threads since last time. */
static __attribute__((noinline)) struct cache *
cache_here(void)
{
    __asm__ volatile("" ::: "memory");
    return &here;
}

/* --- sizes and addresses --- */

/* bytes, rounded up to pages; 0 when that is too much for any mapping. */
static size_t
round_up(size_t bytes)
{
    size_t mask = pool.page - 1;
    return bytes > SIZE_MAX / 8 ? 0 : (bytes + mask) & ~mask;
}

static char *
page_down(char *p)
{
    return p - ((uintptr_t)p & (pool.page - 1));
}

static size_t
slot_bytes(void)
{
    return pool.guard + pool.reserve;
}

static struct link *
link_of(char *hi)
{
    return (struct link *)(void *)(hi - TP_CACHELINE);
}

static char *
hi_of(struct link *l)
{
    return (char *)l + TP_CACHELINE;
}

/* --- guards --- */

/* The code for a failed mapping call. Even one page refused, and no limit of
 * address space set: then it is the number of mappings. */
static int
map_error(void)
{
    struct rlimit as;
    if (errno != ENOMEM) {
        return TROUPE_ENOMEM;
    }
    void *probe =
        tp_mmap(pool.page, PROT_NONE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK);
    if (probe != NULL) {
        tp_munmap(probe, pool.page);
        return TROUPE_ENOMEM;
    }
    bool unlimited =
        getrlimit(RLIMIT_AS, &as) == 0 && as.rlim_cur == RLIM_INFINITY;
    return unlimited ? TROUPE_ELIMIT : TROUPE_ENOMEM;
}

/* Taking rights away costs no memory: what ENOMEM means here is that the
 * mapping can't be split once more. */
static int
protect(char *p, size_t bytes)
{
    if (tp_mprotect(p, bytes, PROT_NONE) == 0) {
        return 0;
    }
    return errno == ENOMEM ? TROUPE_ELIMIT : TROUPE_ENOMEM;
}

static int
guard_make(char *lo)
{
    char *p = lo - pool.guard;
    if (pool.how == TP_STACK_GUARD_MADVISE) {
        if (tp_madvise(p, pool.guard, MADV_GUARD_INSTALL) == 0) {
            return 0;
        }
        /* EINVAL: locked memory has no markers (mlockall came later). */
        if (errno != EINVAL) {
            return TROUPE_ENOMEM;
        }
    }
    return protect(p, pool.guard);
}

/* Is there nothing to read at p? An emulator of the kernel may take any advice,
 * as if it were a hint that can be ignored. */
static bool
is_guarded(const char *p)
{
    return access(p, F_OK) != 0 && errno == EFAULT;
}

static int
guard_choose(enum tp_stack_guard *out)
{
    int prot = PROT_READ | PROT_WRITE;
    char *p = tp_mmap(pool.page, prot, MAP_PRIVATE | MAP_ANONYMOUS);
    if (p == NULL) {
        return TROUPE_ENOMEM;
    }
    bool ok = tp_madvise(p, pool.page, MADV_GUARD_INSTALL) == 0;
    int refused = ok ? 0 : errno;
    bool real = ok && is_guarded(p);
    tp_munmap(p, pool.page);
    *out = real ? TP_STACK_GUARD_MADVISE : TP_STACK_GUARD_MPROTECT;
    return ok || refused == EINVAL ? 0 : TROUPE_ENOMEM;
}

/* --- regions --- */

static size_t
region_slots(void)
{
    size_t n = REGION_BYTES / slot_bytes();
    return n == 0 ? 1 : n > REGION_SLOTS ? REGION_SLOTS : n;
}

static void
region_free(struct region *r)
{
    tp_munmap(r->base, r->slots * slot_bytes());
    tp_free(r);
}

static int
region_add_locked(void)
{
    int prot = PROT_READ | PROT_WRITE;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK;
    struct region *r = tp_malloc(sizeof *r);
    if (r == NULL) {
        return TROUPE_ENOMEM;
    }
    size_t slots = region_slots();
    char *base = tp_mmap(slots * slot_bytes(), prot, flags);
    if (base == NULL) {
        int rc = map_error();
        tp_free(r);
        return rc;
    }
    /* May fail where the kernel knows no huge pages: then there are none. */
    tp_madvise(base, slots * slot_bytes(), MADV_NOHUGEPAGE);
    *r = (struct region){.older = pool.regions, .base = base, .slots = slots};
    pool.regions = r;
    pool.mapped += slots;
    return 0;
}

/* A slot never used before, without guard. */
static int
carve_locked(char **out_hi)
{
    struct region *r = pool.regions;
    if (r == NULL || r->next == r->slots) {
        int rc = region_add_locked();
        if (rc != 0) {
            return rc;
        }
        r = pool.regions;
    }
    r->next++;
    pool.carved++;
    *out_hi = r->base + r->next * slot_bytes();
    return 0;
}

/* --- the shared lists --- */

static void
list_push(struct list *list, char *hi)
{
    struct link *l = link_of(hi);
    l->next = list->head;
    list->head = l;
    list->count++;
}

static char *
list_pop(struct list *list)
{
    struct link *l = list->head;
    if (l == NULL) {
        return NULL;
    }
    list->head = l->next;
    list->count--;
    return hi_of(l);
}

static void
push_shared(struct list *list, char *hi)
{
    tp_mutex_lock(&pool.lock, TP_RANK_STACK);
    list_push(list, hi);
    tp_mutex_unlock(&pool.lock, TP_RANK_STACK);
}

/* A free stack from the shared pool; says whether its guard is still to do. */
static int
pop_shared(char **out_hi, bool *out_raw)
{
    int rc = 0;
    tp_mutex_lock(&pool.lock, TP_RANK_STACK);
    *out_hi = list_pop(&pool.ready);
    *out_raw = *out_hi == NULL;
    if (*out_hi == NULL) {
        *out_hi = list_pop(&pool.raw);
    }
    if (*out_hi == NULL) {
        rc = carve_locked(out_hi);
    }
    tp_mutex_unlock(&pool.lock, TP_RANK_STACK);
    return rc;
}

/* --- the cache of this thread --- */

static size_t
cache_count(struct cache *c)
{
    /* relaxed: only the owner decides on it, others count. */
    return atomic_load_explicit(&c->count, memory_order_relaxed);
}

static void
cache_set_count(struct cache *c, size_t n)
{
    /* relaxed: see cache_count. */
    atomic_store_explicit(&c->count, n, memory_order_relaxed);
}

static void
cache_push(struct cache *c, char *hi)
{
    struct link *l = link_of(hi);
    l->next = c->head;
    c->head = l;
    cache_set_count(c, cache_count(c) + 1);
}

static char *
cache_pop(struct cache *c)
{
    struct link *l = c->head;
    if (l == NULL) {
        return NULL;
    }
    c->head = l->next;
    cache_set_count(c, cache_count(c) - 1);
    return hi_of(l);
}

/* The oldest entries go to the pool, the newest (warm) ones stay. */
static void
cache_trim(struct cache *c, size_t keep)
{
    struct link **tail = &c->head;
    for (size_t i = 0; i < keep; i++) {
        tail = &(*tail)->next;
    }
    struct link *l = *tail;
    *tail = NULL;
    tp_mutex_lock(&pool.lock, TP_RANK_STACK);
    while (l != NULL) {
        struct link *next = l->next;
        list_push(&pool.ready, hi_of(l));
        l = next;
    }
    cache_set_count(c, keep);
    tp_mutex_unlock(&pool.lock, TP_RANK_STACK);
}

static void
cache_fill(struct cache *c)
{
    tp_mutex_lock(&pool.lock, TP_RANK_STACK);
    for (size_t i = 0; i < CACHE_BATCH && pool.ready.head != NULL; i++) {
        cache_push(c, list_pop(&pool.ready));
    }
    tp_mutex_unlock(&pool.lock, TP_RANK_STACK);
}

void
tp_stack_thread_begin(void)
{
    struct cache *c = cache_here();
    tp_assert(!c->on);
    tp_mutex_lock(&pool.lock, TP_RANK_STACK);
    c->other = pool.caches;
    pool.caches = c;
    c->on = true;
    tp_mutex_unlock(&pool.lock, TP_RANK_STACK);
}

void
tp_stack_thread_end(void)
{
    struct cache *c = cache_here();
    if (!c->on) {
        return;
    }
    cache_trim(c, 0);
    c->on = false;
    tp_mutex_lock(&pool.lock, TP_RANK_STACK);
    struct cache **p = &pool.caches;
    while (*p != c) {
        p = &(*p)->other;
    }
    *p = c->other;
    tp_mutex_unlock(&pool.lock, TP_RANK_STACK);
}

/* --- the pool as a whole --- */

void
tp_stacks_force_guard(enum tp_stack_guard how)
{
    forced = how;
}

enum tp_stack_guard
tp_stacks_guard(void)
{
    return pool.how;
}

int
tp_stacks_init(size_t reserve, size_t guard)
{
    tp_assert(pool.regions == NULL && pool.caches == NULL);
    memset(&pool, 0, sizeof pool);
    tp_mutex_init(&pool.lock);
    pool.page = tp_page_size();
    pool.reserve = round_up(reserve ? reserve : TP_STACK_RESERVE_DEFAULT);
    pool.guard = round_up(guard ? guard : TP_STACK_GUARD_DEFAULT);
    if (pool.reserve == 0 || pool.guard == 0) {
        return TROUPE_ENOMEM;
    }
    pool.how = forced;
    return forced == TP_STACK_GUARD_AUTO ? guard_choose(&pool.how) : 0;
}

void
tp_stacks_fini(void)
{
    struct tp_stack_stats stats;
    tp_stacks_stats(&stats);
    tp_assert(pool.caches == NULL);
    tp_assert(stats.live == 0);
    while (pool.regions != NULL) {
        struct region *r = pool.regions;
        pool.regions = r->older;
        region_free(r);
    }
    memset(&pool, 0, sizeof pool);
}

void
tp_stacks_stats(struct tp_stack_stats *out)
{
    tp_mutex_lock(&pool.lock, TP_RANK_STACK);
    size_t pooled = pool.ready.count + pool.raw.count;
    for (struct cache *c = pool.caches; c != NULL; c = c->other) {
        pooled += cache_count(c);
    }
    /* relaxed: statistic, nobody decides on it. */
    size_t custom = atomic_load_explicit(&pool.custom, memory_order_relaxed);
    *out = (struct tp_stack_stats){
        .mapped = pool.mapped,
        .mapped_bytes = pool.mapped * slot_bytes(),
        .live = pool.carved - pooled + custom,
        .pooled = pooled,
        .custom = custom,
    };
    tp_mutex_unlock(&pool.lock, TP_RANK_STACK);
}

/* --- custom shapes --- */

static void
custom_count(size_t by)
{
    /* relaxed: statistic, nobody decides on it. */
    atomic_fetch_add_explicit(&pool.custom, by, memory_order_relaxed);
}

static int
custom_get(size_t reserve, size_t guard, struct tp_stack *out)
{
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK;
    size_t below = TP_STACK_GAP + guard;
    char *p = tp_mmap(below + reserve, PROT_READ | PROT_WRITE, flags);
    if (p == NULL) {
        return map_error();
    }
    int rc = protect(p, below);
    if (rc != 0) {
        tp_munmap(p, below + reserve);
        return rc;
    }
    tp_madvise(p + below, reserve, MADV_NOHUGEPAGE);
    custom_count(1);
    *out = (struct tp_stack){.lo = p + below,
                             .hi = p + below + reserve,
                             .guard = guard,
                             .reserve = reserve,
                             .gap = TP_STACK_GAP};
    return 0;
}

static void
custom_put(struct tp_stack *s)
{
    size_t below = s->guard + s->gap;
    if (tp_munmap(s->lo - below, below + s->reserve) != 0) {
        /* No mapping left to split a neighbour off: keep the addresses, give
         * up the memory. */
        tp_madvise(s->lo, s->reserve, MADV_DONTNEED);
    }
    custom_count((size_t)-1);
}

/* --- pooled shape --- */

static int
pooled_get_slow(struct cache *c, char **out_hi)
{
    bool raw;
    if (c->on) {
        cache_fill(c);
        *out_hi = cache_pop(c);
        if (*out_hi != NULL) {
            return 0;
        }
    }
    int rc = pop_shared(out_hi, &raw);
    if (rc == 0 && raw) {
        rc = guard_make(*out_hi - pool.reserve);
        if (rc != 0) {
            push_shared(&pool.raw, *out_hi);
        }
    }
    return rc;
}

static int
pooled_get(struct tp_stack *out)
{
    struct cache *c = cache_here();
    char *hi = cache_pop(c);
    if (TP_UNLIKELY(hi == NULL)) {
        int rc = pooled_get_slow(c, &hi);
        if (rc != 0) {
            return rc;
        }
    }
    *out = (struct tp_stack){.lo = hi - pool.reserve,
                             .hi = hi,
                             .guard = pool.guard,
                             .reserve = pool.reserve};
    return 0;
}

static void
pooled_put(struct tp_stack *s, char *low_water)
{
    struct cache *c = cache_here();
    if (s->lent != 0 && guard_make(s->lo) != 0) {
        push_shared(&pool.raw, s->hi);
        return;
    }
    if (s->reserve > TP_STACK_KEEP && low_water < s->hi - TP_STACK_KEEP) {
        char *end = page_down(s->hi - TP_STACK_KEEP);
        tp_madvise(s->lo, (size_t)(end - s->lo), MADV_DONTNEED);
    }
    if (!c->on) {
        push_shared(&pool.ready, s->hi);
        return;
    }
    cache_push(c, s->hi);
    if (cache_count(c) > CACHE_MAX) {
        cache_trim(c, CACHE_MAX - CACHE_BATCH);
    }
}

int
tp_stack_get(size_t reserve, size_t guard, struct tp_stack *out)
{
    if (TP_LIKELY((reserve | guard) == 0)) {
        return pooled_get(out);
    }
    reserve = reserve == 0 ? pool.reserve : round_up(reserve);
    guard = guard == 0 ? pool.guard : round_up(guard);
    if (reserve == 0 || guard == 0) {
        return TROUPE_ENOMEM;
    }
    if (reserve == pool.reserve && guard == pool.guard) {
        return pooled_get(out);
    }
    return custom_get(reserve, guard, out);
}

void
tp_stack_put(struct tp_stack *s, void *low_water)
{
    if (s->lo == NULL) {
        return;
    }
    if (s->lent != 0 && (char *)low_water < s->lo) {
        low_water = NULL;
    }
    tp_assert(low_water == NULL ||
              ((char *)low_water >= s->lo && (char *)low_water <= s->hi));
    unpoison(s->lo, s->reserve);
    if (s->gap != 0) {
        custom_put(s);
    } else {
        pooled_put(s, low_water);
    }
    memset(s, 0, sizeof *s);
}

bool
tp_stack_lend(struct tp_stack *s, const void *addr)
{
    size_t half = s->guard / 2 & ~(pool.page - 1);
    size_t bytes = half < TP_STACK_LEND ? half : TP_STACK_LEND;
    if (s->lent != 0 || (uintptr_t)s->lo - (uintptr_t)addr - 1 >= bytes) {
        return false;
    }
    int saved = errno;
    char *from = s->lo - bytes;
    if (s->gap == 0 && pool.how == TP_STACK_GUARD_MADVISE) {
        madvise(from, bytes, MADV_GUARD_REMOVE);
    }
    /* Also where the guard was not made as was planned (guard_make). */
    if (mprotect(from, bytes, PROT_READ | PROT_WRITE) == 0) {
        s->lent = bytes;
    }
    errno = saved;
    return s->lent != 0;
}

bool
tp_stack_shrink(struct tp_stack *s, void *low_water, void *sp)
{
    char *to = page_down((char *)sp - pool.page);
    char *deep = page_down(low_water);
    deep = deep < s->lo ? s->lo : deep;
    if (to < deep || (size_t)(to - deep) < TP_STACK_SHRINK_MIN) {
        return false;
    }
    return tp_madvise(s->lo, (size_t)(to - s->lo), MADV_FREE) == 0;
}
