/*
 * slab.c - process-wide memory in chunks of three fixed sizes.
 *
 * Idea:     a region is 4 MiB of address space, aligned to its size, cut into
 *           chunks of one kind. A chunk is out, warm or cold. Warm: free and
 *           resident, on an intrusive list. Cold: never touched or given back
 *           to the kernel, so it cannot hold a list node; a bit in the region
 *           header stands for it.
 *
 *             region: |header page|chunk 0|chunk 1|...|chunk n-1|slack|
 *             get:  thread cache -> warm batch -> cold bits -> new region
 *             put:  thread cache -> warm batch
 *             trim: warm batches beyond TP_SLAB_RETAIN_BYTES -> going, a bit in
 *                   the region header -> madvise -> cold
 *
 *           To give memory back while actors die would cost each of them a TLB
 *           shootdown on all CPUs, a hundred microseconds and more on a small
 *           VM. So that is trim's, called when a mass death is over: neighbours
 *           go in one call then, and a region whose chunks are all cold is
 *           unmapped, but for a last one. A BIRTH chunk is 6.5 pages: a page
 *           shared by two chunks goes back when both go together, or with the
 *           region.
 * Measured: a first touch of a fresh BIRTH chunk, all pages, on a small VM
 *           without hardware paging: 120 to 150 us; 100 when the batch is
 *           populated by one madvise; 3 with huge pages, where the host has
 *           the memory at hand.
 * Threads:  any. trim: one at a time.
 * Locks:    TP_RANK_SLAB, one mutex per kind and one of the window, never two;
 *           no system call under it.
 * Memory:   as in slab.h.
 * Parks:    never. The thread-local cache is read only inside functions that
 *           are not inlined and do not switch, so a green stack may change its
 *           thread between two calls.
 * Fails:    tp_slab_get: NULL.
 * Rejected: unmapping per chunk - one VMA per hole, the limit is 65,530.
 *           MADV_FREE - resident figures would lie until there is pressure.
 *           Huge pages for all, or next to what else is mapped - where page
 *           tables are shadowed in software and the kernel samples what is in
 *           use (DAMON), mappings of huge pages and of what lies in the same
 *           GiB are lost and made again all the time: of 100,000 sleepers half
 *           woke 0.5 to 2 s late; with a few only, 1 to 5 ms; with these in a
 *           GiB of their own, 0.1 ms.
 * Tests:    spec/unit/slab_test.c
 */
#define _GNU_SOURCE
#include "mem/slab.h"

#include "mem/magazine.h"

#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

#define HEADER_BYTES 4096
#define HUGE_REGIONS 16 /* of a kind, that ask for huge pages */
#define WINDOW_BYTES ((size_t)1 << 30)
#define MAX_CHUNKS   1024
#define MAX_BATCH    32
#define LOW_BITS     47 /* LuaJIT GC64 keeps 47 bits of a pointer */

/* A region with cold chunks stands before all regions without. */
struct region {
    struct region *next, *prev;     /* ring through the pool, under its lock */
    size_t chunk_bytes;             /* set at birth */
    uint32_t kind, chunks;          /* set at birth */
    uint32_t cold;                  /* bits set below; under the pool's lock */
    uint64_t bits[MAX_CHUNKS / 64]; /* 1: cold; under the pool's lock */
    /* trim only */
    struct region *next_going;      /* the next with going chunks */
    uint32_t going;                 /* bits set below */
    uint64_t gone[MAX_CHUNKS / 64]; /* 1: about to be cold */
};

/* The depot's lock guards the whole pool. */
struct pool {
    struct tp_depot depot; /* warm chunks */
    struct region *head;   /* cold first */
    size_t regions, cold;  /* counts */
    size_t going;          /* neither in the depot nor cold yet; trim */
    size_t retain;         /* warm chunks that trim leaves */
    size_t total;          /* chunks of all regions */
};

_Static_assert(sizeof(struct region) <= HEADER_BYTES, "header page overflows");
_Static_assert(TP_SLAB_BIRTH_BYTES % 64 == 0, "chunks start on a cache line");

static const uint32_t kind_bytes[TP_SLAB_KINDS] = {
#define X(name, bytes, batch) bytes,
    TP_SLAB_KIND_LIST(X)
#undef X
};

static const uint32_t kind_batch[TP_SLAB_KINDS] = {
#define X(name, bytes, batch) batch,
    TP_SLAB_KIND_LIST(X)
#undef X
};

static struct pool pools[TP_SLAB_KINDS] = {
#define X(name, bytes, batch)                                                  \
    {.depot = {.max_items = SIZE_MAX},                                         \
     .retain = TP_SLAB_RETAIN_BYTES / (bytes)},
    TP_SLAB_KIND_LIST(X)
#undef X
};

/* The regions with huge pages are in one GiB of their own, its first 256 MiB.
 * What the kernel does to the mappings of huge pages can be at the cost of all
 * that is in the same GiB; see Rejected. */
static struct {
    struct tp_mutex lock;
    char *base;     /* set once, under lock; until fini */
    uint64_t taken; /* bits of its regions; under lock */
} window;

static _Thread_local struct tp_mag mags[TP_SLAB_KINDS]
    __attribute__((tls_model("initial-exec")));

static pthread_key_t exit_key;
static pthread_once_t exit_once = PTHREAD_ONCE_INIT;

size_t
tp_slab_bytes(enum tp_slab_kind kind)
{
    return kind_bytes[kind];
}

/* --- Mapping ------------------------------------------------------------ */

#define MAP_KIND  (MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE)
#define MAP_PROT  (PROT_READ | PROT_WRITE)
#define IS_LOW(p) (((uintptr_t)(p) >> LOW_BITS) == 0)

/*
 * x86-64 gives user space 47 bits, so the plain call is always right there.
 * AArch64 gives 48 and places mappings near the top: ask for low addresses,
 * 1 GiB apart, until the kernel agrees. For the same reason malloc is of no
 * use for LuaJIT on AArch64 (see bindings/arena.c).
 */
static void *
map_low(size_t bytes, int prot)
{
    void *p = tp_mmap(bytes, prot, MAP_KIND);
    if (p == NULL || TP_LIKELY(IS_LOW(p))) {
        return p;
    }
    tp_munmap(p, bytes);
    /* relaxed: a hint where to look first, any value works. */
    static _Atomic uintptr_t hint = (uintptr_t)1 << 36;
    for (int tries = 0; tries < 4096; tries++) {
        /* relaxed: as above. */
        uintptr_t at = atomic_load_explicit(&hint, memory_order_relaxed);
        p = mmap((void *)at, bytes, prot, MAP_KIND, -1, 0);
        if (p == MAP_FAILED) {
            return NULL;
        }
        if (IS_LOW(p)) {
            return p;
        }
        tp_munmap(p, bytes);
        at = (at + ((uintptr_t)1 << 30)) & (((uintptr_t)1 << LOW_BITS) - 1);
        /* relaxed: as above. */
        atomic_store_explicit(&hint, at, memory_order_relaxed);
    }
    return NULL;
}

void *
tp_slab_map(size_t bytes)
{
    return map_low(bytes, MAP_PROT);
}

/* Address space, aligned to its own size. */
static char *
map_aligned(size_t size, int prot)
{
    char *raw = map_low(2 * size, prot);
    if (raw == NULL) {
        return NULL;
    }
    size_t lead = (size_t)(-(uintptr_t)raw & (size - 1));
    if (lead != 0) {
        tp_munmap(raw, lead);
    }
    tp_munmap(raw + lead + size, size - lead);
    return raw + lead;
}

/* --- Regions ------------------------------------------------------------ */

static char *
window_map(void)
{
    char *base = map_aligned(WINDOW_BYTES, PROT_NONE);
    tp_mutex_lock(&window.lock, TP_RANK_SLAB);
    bool first = window.base == NULL;
    if (first) {
        window.base = base;
    }
    char *there = window.base;
    tp_mutex_unlock(&window.lock, TP_RANK_SLAB);
    if (!first && base != NULL) {
        tp_munmap(base, WINDOW_BYTES);
    }
    return there;
}

static void
window_put(const char *p)
{
    uint64_t bit = (uint64_t)1
                   << ((size_t)(p - window.base) / TP_SLAB_REGION_BYTES);
    tp_mutex_lock(&window.lock, TP_RANK_SLAB);
    window.taken &= ~bit;
    tp_mutex_unlock(&window.lock, TP_RANK_SLAB);
}

/* NULL: the window is full, or there is no address space for one. */
static char *
window_get(void)
{
    char *p = NULL;
    tp_mutex_lock(&window.lock, TP_RANK_SLAB);
    char *base = window.base;
    tp_mutex_unlock(&window.lock, TP_RANK_SLAB);
    if (base == NULL && (base = window_map()) == NULL) {
        return NULL;
    }
    tp_mutex_lock(&window.lock, TP_RANK_SLAB);
    if (window.taken != UINT64_MAX) {
        size_t i = (size_t)__builtin_ctzll(~window.taken);
        window.taken |= (uint64_t)1 << i;
        p = base + i * TP_SLAB_REGION_BYTES;
    }
    tp_mutex_unlock(&window.lock, TP_RANK_SLAB);
    if (p != NULL && tp_mprotect(p, TP_SLAB_REGION_BYTES, MAP_PROT) != 0) {
        window_put(p);
        return NULL;
    }
    return p;
}

static bool
in_window(const void *p)
{
    tp_mutex_lock(&window.lock, TP_RANK_SLAB);
    const char *base = window.base;
    tp_mutex_unlock(&window.lock, TP_RANK_SLAB);
    return base != NULL && (uintptr_t)p - (uintptr_t)base < WINDOW_BYTES;
}

/* A small process stays small: the first region of a kind has small pages.
 * Where there is need for a second one, huge pages waste little, save most of
 * the cost of a first touch, and of TLB misses among actors that are all busy.
 * Where there is need for many, most actors wait: see Rejected. */
static bool
shall_be_huge(struct pool *pool)
{
    tp_mutex_lock(&pool->depot.lock, TP_RANK_SLAB);
    size_t regions = pool->regions;
    tp_mutex_unlock(&pool->depot.lock, TP_RANK_SLAB);
    return regions > 0 && regions <= HUGE_REGIONS;
}

/* The advice about pages may fail, which costs time. */
static char *
region_map(struct pool *pool)
{
    char *p = shall_be_huge(pool) ? window_get() : NULL;
    bool huge = p != NULL;
    if (!huge) {
        p = map_aligned(TP_SLAB_REGION_BYTES, MAP_PROT);
    }
    if (p != NULL) {
        TP_UNPOISON(p, TP_SLAB_REGION_BYTES);
        tp_madvise(p, TP_SLAB_REGION_BYTES,
                   huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    }
    return p;
}

static struct region *
region_new(enum tp_slab_kind kind)
{
    struct region *r = (struct region *)(void *)region_map(&pools[kind]);
    if (r == NULL) {
        return NULL;
    }
    memset(r, 0, sizeof *r); /* one of the window may have been in use */
    r->kind = kind;
    r->chunk_bytes = kind_bytes[kind];
    r->chunks = (TP_SLAB_REGION_BYTES - HEADER_BYTES) / kind_bytes[kind];
    r->cold = r->chunks;
    for (uint32_t i = 0; i < r->chunks; i++) {
        r->bits[i / 64] |= (uint64_t)1 << (i % 64);
    }
    return r;
}

static void
region_unmap(struct region *r)
{
    TP_UNPOISON(r, TP_SLAB_REGION_BYTES);
    if (in_window(r)) {
        tp_madvise(r, TP_SLAB_REGION_BYTES, MADV_DONTNEED);
        window_put((char *)r);
    } else {
        tp_munmap(r, TP_SLAB_REGION_BYTES);
    }
}

static struct region *
region_of(const void *p)
{
    uintptr_t mask = TP_SLAB_REGION_BYTES - 1;
    return (struct region *)((uintptr_t)p & ~mask);
}

static size_t
chunk_index(const struct region *r, const void *p)
{
    return ((uintptr_t)p - (uintptr_t)r - HEADER_BYTES) / r->chunk_bytes;
}

static void *
chunk_at(struct region *r, size_t i)
{
    return (char *)r + HEADER_BYTES + i * r->chunk_bytes;
}

void *
tp_slab_base(const void *p)
{
    struct region *r = region_of(p);
    return chunk_at(r, chunk_index(r, p));
}

/* --- The ring of regions; all under the pool's lock --------------------- */

static void
ring_remove(struct pool *pool, struct region *r)
{
    if (r->next == r) {
        pool->head = NULL;
        return;
    }
    r->next->prev = r->prev;
    r->prev->next = r->next;
    if (pool->head == r) {
        pool->head = r->next;
    }
}

/* Insert before the head, that is at the end. */
static void
ring_append(struct pool *pool, struct region *r)
{
    struct region *head = pool->head;
    if (head == NULL) {
        r->next = r->prev = pool->head = r;
        return;
    }
    r->next = head;
    r->prev = head->prev;
    head->prev->next = r;
    head->prev = r;
}

static void
ring_prepend(struct pool *pool, struct region *r)
{
    ring_append(pool, r);
    pool->head = r;
}

static void
adopt_region_locked(struct pool *pool, struct region *r)
{
    ring_prepend(pool, r);
    pool->regions++;
    pool->total += r->chunks;
    pool->cold += r->chunks;
}

static void
disown_region_locked(struct pool *pool, struct region *r)
{
    ring_remove(pool, r);
    pool->regions--;
    pool->total -= r->chunks;
    pool->cold -= r->cold;
}

/* The lowest cold chunk, so that the pages in use stay together. */
static void *
take_cold_locked(struct pool *pool)
{
    struct region *r = pool->head;
    if (r == NULL || r->cold == 0) {
        return NULL;
    }
    size_t w = 0;
    while (r->bits[w] == 0) {
        w++;
    }
    size_t bit = (size_t)__builtin_ctzll(r->bits[w]);
    r->bits[w] &= r->bits[w] - 1;
    pool->cold--;
    if (--r->cold == 0) {
        ring_remove(pool, r);
        ring_append(pool, r);
    }
    return chunk_at(r, w * 64 + bit);
}

/* True when the region is all cold now and was taken off the pool. */
static bool
make_cold_locked(struct pool *pool, void *chunk)
{
    struct region *r = region_of(chunk);
    size_t i = chunk_index(r, chunk);
    r->bits[i / 64] |= (uint64_t)1 << (i % 64);
    pool->cold++;
    if (r->cold++ == 0) {
        ring_remove(pool, r);
        ring_prepend(pool, r);
    }
    /* Another region with cold chunks is either the head or next to it. */
    struct region *other = pool->head == r ? r->next : pool->head;
    if (r->cold < r->chunks || other == r || other->cold == 0) {
        return false;
    }
    disown_region_locked(pool, r);
    return true;
}

/* --- Batches ------------------------------------------------------------ */

static int
by_address(const void *a, const void *b)
{
    uintptr_t x = (uintptr_t) * (void *const *)a;
    uintptr_t y = (uintptr_t) * (void *const *)b;
    return (x > y) - (x < y);
}

/* Pages that are wholly inside go, pages that are partly inside come. Advice
 * only: a failure (also of a kernel before 5.14) costs memory or time. */
static void
advise(char *from, char *to, int advice)
{
    uintptr_t page = tp_page_size() - 1, a = (uintptr_t)from;
    uintptr_t b = (uintptr_t)to;
    if (advice == MADV_DONTNEED) {
        a = (a + page) & ~page;
        b = b & ~page;
    } else {
        a = a & ~page;
        b = (b + page) & ~page;
    }
    if (a < b) {
        tp_madvise((void *)a, b - a, advice);
    }
}

/* One call per run of neighbours. */
static void
advise_batch(void **chunks, size_t n, size_t bytes, int advice)
{
    qsort(chunks, n, sizeof *chunks, by_address);
    for (size_t i = 0, j; i < n; i = j) {
        for (j = i + 1; j < n; j++) {
            if ((char *)chunks[j] != (char *)chunks[j - 1] + bytes) {
                break;
            }
        }
        advise(chunks[i], (char *)chunks[j - 1] + bytes, advice);
    }
}

static void
give_batch(enum tp_slab_kind kind, struct tp_mag_item *batch)
{
    tp_check(tp_depot_put(&pools[kind].depot, batch));
}

/* Link up to a batch of cold chunks, lowest first; touches them, so outside
 * the lock. All their pages will be used: one call for all is ten times
 * cheaper than a fault for each (1.5 against 24 us a page on a small VM). */
static struct tp_mag_item *
link_batch(enum tp_slab_kind kind, void **chunks, uint32_t n)
{
    struct tp_mag_item *batch = NULL;
    advise_batch(chunks, n, kind_bytes[kind], MADV_POPULATE_WRITE);
    for (uint32_t i = n; i-- > 0;) {
        struct tp_mag_item *it = chunks[i];
        TP_UNPOISON(it, sizeof *it);
        it->next = batch;
        batch = it;
    }
    if (batch != NULL) {
        batch->count = n;
    }
    return batch;
}

/* A warm batch, else one of cold chunks, else NULL. */
static struct tp_mag_item *
take_batch(enum tp_slab_kind kind)
{
    struct pool *pool = &pools[kind];
    void *chunks[MAX_BATCH];
    uint32_t n = 0;
    tp_mutex_lock(&pool->depot.lock, TP_RANK_SLAB);
    struct tp_mag_item *batch = tp_depot_take_locked(&pool->depot);
    while (batch == NULL && n < kind_batch[kind]) {
        chunks[n] = take_cold_locked(pool);
        if (chunks[n] == NULL) {
            break;
        }
        n++;
    }
    tp_mutex_unlock(&pool->depot.lock, TP_RANK_SLAB);
    return batch != NULL ? batch : link_batch(kind, chunks, n);
}

/* take_batch, mapping a region where there is none. */
static struct tp_mag_item *
need_batch(enum tp_slab_kind kind)
{
    struct pool *pool = &pools[kind];
    struct tp_mag_item *batch;
    while ((batch = take_batch(kind)) == NULL) {
        struct region *r = region_new(kind);
        if (r == NULL) {
            return NULL;
        }
        tp_mutex_lock(&pool->depot.lock, TP_RANK_SLAB);
        adopt_region_locked(pool, r);
        tp_mutex_unlock(&pool->depot.lock, TP_RANK_SLAB);
    }
    return batch;
}

/* --- The thread's cache ------------------------------------------------- */

static void
flush_at_exit(void *unused)
{
    (void)unused;
    tp_slab_thread_flush();
}

static void
make_exit_key(void)
{
    tp_check(pthread_key_create(&exit_key, flush_at_exit) == 0);
}

static void
register_thread(struct tp_mag *mag, enum tp_slab_kind kind)
{
    pthread_once(&exit_once, make_exit_key);
    pthread_setspecific(exit_key, &exit_key);
    mag->room = kind_batch[kind];
}

/* The loaded list is empty. */
static __attribute__((noinline)) struct tp_mag_item *
refill(struct tp_mag *mag, enum tp_slab_kind kind)
{
    struct tp_mag_item *batch = mag->spare;
    mag->spare = NULL;
    if (batch == NULL) {
        if (mag->room == 0) {
            register_thread(mag, kind);
        }
        batch = need_batch(kind);
    }
    if (batch == NULL) {
        return NULL;
    }
    tp_mag_load(mag, batch, kind_batch[kind]);
    return tp_mag_pop(mag);
}

/* The loaded list is full, or this is the thread's first put. */
static __attribute__((noinline)) void
unload(struct tp_mag *mag, enum tp_slab_kind kind)
{
    struct tp_mag_item *old = mag->spare;
    if (!tp_mag_close(mag, kind_batch[kind], &mag->spare)) {
        register_thread(mag, kind);
    } else if (old != NULL) {
        give_batch(kind, old);
    }
}

__attribute__((noinline)) void *
tp_slab_get(enum tp_slab_kind kind)
{
    struct tp_mag *mag = &mags[kind];
    struct tp_mag_item *it = tp_mag_pop(mag);
    if (TP_UNLIKELY(it == NULL)) {
        it = refill(mag, kind);
        if (it == NULL) {
            return NULL;
        }
    }
    TP_UNPOISON(it, kind_bytes[kind]);
    return it;
}

__attribute__((noinline)) void
tp_slab_put(enum tp_slab_kind kind, void *chunk)
{
    struct tp_mag *mag = &mags[kind];
    tp_assert(chunk == tp_slab_base(chunk));
    tp_assert(region_of(chunk)->kind == (uint32_t)kind);
    TP_POISON((char *)chunk + sizeof(struct tp_mag_item),
              kind_bytes[kind] - sizeof(struct tp_mag_item));
    while (TP_UNLIKELY(!tp_mag_push(mag, chunk))) {
        unload(mag, kind);
    }
}

__attribute__((noinline)) void
tp_slab_thread_flush(void)
{
    for (int k = 0; k < TP_SLAB_KINDS; k++) {
        struct tp_mag *mag = &mags[k];
        enum tp_slab_kind kind = (enum tp_slab_kind)k;
        struct tp_mag_item *batch;
        if (tp_mag_close(mag, kind_batch[kind], &batch)) {
            give_batch(kind, batch);
        }
        if (mag->spare != NULL) {
            give_batch(kind, mag->spare);
        }
        *mag = (struct tp_mag){0};
    }
}

/* --- Giving back -------------------------------------------------------- */

/* What one call of trim does, some hundred microseconds of work. */
#define TRIM_CHUNKS 1024
#define TRIM_PAGES  1024

static struct region *going; /* trim only */

static size_t
excess_locked(const struct pool *pool)
{
    size_t warm = pool->depot.items;
    return (warm > pool->retain ? warm - pool->retain : 0) + pool->going;
}

size_t
tp_slab_excess(void)
{
    size_t n = 0;
    for (int k = 0; k < TP_SLAB_KINDS; k++) {
        tp_mutex_lock(&pools[k].depot.lock, TP_RANK_SLAB);
        n += excess_locked(&pools[k]);
        tp_mutex_unlock(&pools[k].depot.lock, TP_RANK_SLAB);
    }
    return n;
}

/* A warm batch that the pool need not keep, or NULL. */
static struct tp_mag_item *
take_excess(struct pool *pool)
{
    struct tp_mag_item *batch = NULL;
    tp_mutex_lock(&pool->depot.lock, TP_RANK_SLAB);
    if (pool->depot.items > pool->retain) {
        batch = tp_depot_take_locked(&pool->depot);
        pool->going += batch->count;
    }
    tp_mutex_unlock(&pool->depot.lock, TP_RANK_SLAB);
    return batch;
}

static void
mark(struct tp_mag_item *batch)
{
    for (struct tp_mag_item *it = batch; it != NULL; it = it->next) {
        struct region *r = region_of(it);
        size_t i = chunk_index(r, it);
        r->gone[i / 64] |= (uint64_t)1 << (i % 64);
        if (r->going++ == 0) {
            r->next_going = going;
            going = r;
        }
    }
}

/* Returns how many chunks it has marked. */
static size_t
mark_excess(struct pool *pool)
{
    struct tp_mag_item *batch;
    size_t n = 0;
    while (n < TRIM_CHUNKS && (batch = take_excess(pool)) != NULL) {
        n += batch->count;
        mark(batch);
    }
    return n;
}

static bool
is_going(const struct region *r, uint32_t i)
{
    return (r->gone[i / 64] >> (i % 64) & 1) != 0;
}

/* One call per run of neighbours; returns how many pages that were, about. */
static size_t
drop_pages(struct region *r)
{
    size_t bytes = 0;
    for (uint32_t i = 0, j; i < r->chunks; i = j + 1) {
        for (j = i; j < r->chunks && is_going(r, j); j++) {
        }
        if (j > i) {
            advise(chunk_at(r, i), chunk_at(r, j), MADV_DONTNEED);
            bytes += (j - i) * r->chunk_bytes;
        }
    }
    return bytes / tp_page_size();
}

/* The chunks are nobody's until the bits are set, so the kernel is asked before
 * the lock is taken. */
static size_t
make_region_cold(struct region *r)
{
    struct pool *pool = &pools[r->kind];
    size_t pages = drop_pages(r);
    bool dead = false;
    tp_mutex_lock(&pool->depot.lock, TP_RANK_SLAB);
    pool->going -= r->going;
    for (uint32_t i = 0; i < r->chunks; i++) {
        if (is_going(r, i)) {
            dead = make_cold_locked(pool, chunk_at(r, i));
        }
    }
    tp_mutex_unlock(&pool->depot.lock, TP_RANK_SLAB);
    r->going = 0;
    memset(r->gone, 0, sizeof r->gone);
    if (dead) {
        region_unmap(r);
    }
    return pages;
}

bool
tp_slab_trim(void)
{
    size_t n = 0;
    for (int k = 0; k < TP_SLAB_KINDS; k++) {
        n += mark_excess(&pools[k]);
    }
    for (size_t pages = 0; n == 0 && going != NULL && pages < TRIM_PAGES;) {
        struct region *r = going;
        going = r->next_going;
        pages += make_region_cold(r);
    }
    return n != 0 || going != NULL;
}

/* --- Whole pools -------------------------------------------------------- */

static size_t
pool_out_locked(const struct pool *pool)
{
    return pool->total - pool->cold - pool->depot.items - pool->going;
}

void
tp_slab_get_stats(struct tp_slab_stats *out_stats)
{
    memset(out_stats, 0, sizeof *out_stats);
    for (int k = 0; k < TP_SLAB_KINDS; k++) {
        struct pool *pool = &pools[k];
        tp_mutex_lock(&pool->depot.lock, TP_RANK_SLAB);
        out_stats->out[k] = pool_out_locked(pool);
        out_stats->pooled[k] = pool->depot.items;
        out_stats->cold[k] = pool->cold;
        out_stats->mapped_bytes += pool->regions * TP_SLAB_REGION_BYTES;
        tp_mutex_unlock(&pool->depot.lock, TP_RANK_SLAB);
    }
}

void
tp_slab_set_retain(size_t bytes)
{
    for (int k = 0; k < TP_SLAB_KINDS; k++) {
        tp_mutex_lock(&pools[k].depot.lock, TP_RANK_SLAB);
        pools[k].retain = bytes / kind_bytes[k];
        tp_mutex_unlock(&pools[k].depot.lock, TP_RANK_SLAB);
    }
}

/* Forget and unmap all regions of one pool. */
static void
pool_fini(struct pool *pool)
{
    tp_mutex_lock(&pool->depot.lock, TP_RANK_SLAB);
    struct region *r = pool->head, *last = r == NULL ? NULL : r->prev;
    pool->head = NULL;
    pool->regions = pool->cold = pool->total = pool->going = 0;
    pool->depot.batches = NULL;
    pool->depot.items = 0;
    tp_mutex_unlock(&pool->depot.lock, TP_RANK_SLAB);
    while (r != NULL) {
        struct region *next = r == last ? NULL : r->next;
        region_unmap(r);
        r = next;
    }
}

bool
tp_slab_fini(void)
{
    struct tp_slab_stats stats;
    tp_slab_thread_flush();
    tp_slab_get_stats(&stats);
    for (int k = 0; k < TP_SLAB_KINDS; k++) {
        if (stats.out[k] != 0) {
            return false;
        }
    }
    for (int k = 0; k < TP_SLAB_KINDS; k++) {
        pool_fini(&pools[k]);
    }
    if (window.base != NULL) {
        tp_munmap(window.base, WINDOW_BYTES);
        window.base = NULL;
    }
    going = NULL;
    return true;
}
