/*
 * arena_test.c - the allocator of one Lua state, without Lua.
 */
#include "base/sys.h"
#include "bindings/arena.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#ifdef TROUPE_CHECKED
#define needs_faults() ((void)0)
#else
#define needs_faults() skip() /* tp_fault_arm does nothing here */
#endif

static struct tp_arena a;

static int
setup(void **state)
{
    (void)state;
    tp_arena_init(&a, 0);
    return 0;
}

/* Every test leaves nothing behind, whatever it left in the arena. */
static int
teardown(void **state)
{
    (void)state;
    tp_fault_arm(0);
    tp_arena_fini(&a);
    return tp_slab_fini() ? 0 : -1;
}

static void *
take(size_t n)
{
    return tp_arena_alloc(&a, NULL, 0, n);
}

static void
give(void *p, size_t n)
{
    assert_null(tp_arena_alloc(&a, p, n, 0));
}

static void
fill(unsigned char *p, size_t n, unsigned seed)
{
    for (size_t i = 0; i < n; i++) {
        p[i] = (unsigned char)(seed + i * 7);
    }
}

static void
expect(const unsigned char *p, size_t n, unsigned seed)
{
    for (size_t i = 0; i < n; i++) {
        if (p[i] != (unsigned char)(seed + i * 7)) {
            fail_msg("byte %zu of %zu: %u", i, n, p[i]);
        }
    }
}

static void
counts_bytes_exactly(void **state)
{
    (void)state;
    void *p = take(40), *q = take(3000), *r = take(100000);
    assert_int_equal(a.used, 103040);
    give(q, 3000);
    assert_int_equal(a.used, 100040);
    r = tp_arena_alloc(&a, r, 100000, 10);
    assert_int_equal(a.used, 50);
    assert_int_equal(tp_arena_peak(&a), 103040);
    give(p, 40);
    give(r, 10);
    assert_int_equal(a.used, 0);
    assert_int_equal(a.large, 0);
}

static void
freeing_nothing_is_nothing(void **state)
{
    (void)state;
    assert_null(tp_arena_alloc(&a, NULL, 0, 0));
    assert_null(tp_arena_alloc(&a, NULL, 5, 0)); /* Lua 5.4 passes a type */
    assert_int_equal(a.used, 0);
    assert_int_equal(a.held, 0);
}

static void
blocks_are_aligned_and_low(void **state)
{
    (void)state;
    for (size_t n = 1; n < 3000000; n += n / 5 + 1) {
        void *p = take(n);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % 8, 0);
        assert_int_equal((uint64_t)(uintptr_t)p >> 47, 0);
        memset(p, 0xab, n);
    }
}

static void
limit_holds_to_the_byte(void **state)
{
    (void)state;
    tp_arena_set_limit(&a, 10000);
    void *p = take(4000), *q = take(5000);
    assert_non_null(p);
    assert_non_null(q);
    assert_null(take(1001));
    assert_null(take(SIZE_MAX));
    void *r = take(1000);
    assert_non_null(r);
    assert_null(take(1));
    assert_null(tp_arena_alloc(&a, r, 1000, 1001));
    assert_null(tp_arena_alloc(&a, r, 1000, SIZE_MAX - 8));
    r = tp_arena_alloc(&a, r, 1000, 900);
    assert_non_null(r);
    q = tp_arena_alloc(&a, q, 5000, 5100);
    assert_non_null(q);
    assert_int_equal(a.used, 10000);
    assert_int_equal(tp_arena_peak(&a), 10000);
}

static void
limit_below_use_only_lets_shrink(void **state)
{
    (void)state;
    unsigned char *p = take(6000), *q = take(200);
    fill(q, 200, 3);
    tp_arena_set_limit(&a, 1000);
    assert_null(take(1));
    assert_null(tp_arena_alloc(&a, q, 200, 201));
    q = tp_arena_alloc(&a, q, 200, 100);
    expect(q, 100, 3);
    p = tp_arena_alloc(&a, p, 6000, 500);
    assert_non_null(p);
    assert_non_null(take(400));
    tp_arena_set_limit(&a, 0);
    assert_non_null(take(1 << 20));
}

/* Sizes around every border between classes and between kinds of memory. */
static size_t
borders(size_t *out, size_t max)
{
    size_t n = 0;
    for (size_t s = 8; s <= 4u << 20; s += s < 256 ? 8 : s / 8) {
        for (size_t d = 0; d < 3 && n < max; d++) {
            out[n++] = s - 1 + d;
        }
    }
    const size_t special[] = {2047,    2048,    2049,     8191,
                              8192,    8193,    26000,    1048543,
                              1048544, 1048545, 1u << 20, (1u << 20) + 1};
    for (size_t i = 0; i < sizeof special / sizeof *special && n < max; i++) {
        out[n++] = special[i];
    }
    return n;
}

static void
resizes_across_all_borders(void **state)
{
    (void)state;
    static size_t size[1000];
    size_t n = borders(size, 1000);
    for (size_t i = 0; i < n; i++) {
        size_t from = size[i];
        for (size_t j = i % 7; j<n; j += from> 100000 ? 13 : 5) {
            size_t to = size[j], both = from < to ? from : to;
            size_t head = both < 600 ? both : 600;
            unsigned char *p = take(from);
            fill(p, head, (unsigned)i);
            p[both - 1] = 77;
            p = tp_arena_alloc(&a, p, from, to);
            assert_non_null(p);
            assert_int_equal(p[both - 1], 77);
            expect(p, head - 1, (unsigned)i);
            p[to - 1] = 1;
            give(p, to);
            assert_int_equal(a.used, 0);
        }
    }
}

static void
huge_block_grows_and_shrinks(void **state)
{
    (void)state;
    size_t n = 100000;
    unsigned char *p = take(n);
    fill(p, n, 9);
    for (; n < 64u << 20; n = n * 2 + 1) {
        p = tp_arena_alloc(&a, p, n, n * 2 + 1);
        assert_non_null(p);
        p[n * 2] = 1;
    }
    expect(p, 100000, 9);
    for (; n > 100000; n /= 2) {
        p = tp_arena_alloc(&a, p, n, n / 2);
        assert_non_null(p);
        p[n / 2 - 1] = 1;
    }
    expect(p, 90000, 9);
    assert_null(tp_arena_alloc(&a, p, n, SIZE_MAX / 2));
    assert_null(take(SIZE_MAX - 10));
    expect(p, 90000, 9);
}

static void
one_block_has_a_largest_size(void **state)
{
    (void)state;
    const size_t most = TP_ARENA_BLOCK_MAX;
    char *p = take(most);
    assert_non_null(p);
    assert_null(take(most + 1));
    assert_null(tp_arena_alloc(&a, p, most, most + 1));
    give(p, most);
    p = take(100);
    assert_non_null(p);
    assert_null(tp_arena_alloc(&a, p, 100, most + 1));
}

static void
fini_frees_everything_left(void **state)
{
    (void)state;
    for (size_t n = 1; n < 2000000; n += n / 3 + 1) {
        memset(take(n), 1, n);
    }
    tp_arena_fini(&a);
    assert_int_equal(a.used, 0);
    assert_true(tp_slab_fini());
    assert_non_null(take(10));
}

/* --- Reuse -------------------------------------------------------------- */

#define BLOCKS 42000

static void *block[BLOCKS];

/* Memory freed in one size must serve another. */
static void
freed_memory_serves_other_sizes(void **state)
{
    (void)state;
    for (int round = 0; round < 20; round++) {
        size_t n = (size_t)(24 + round * 64);
        for (size_t i = 0; i < 1000000 / n; i++) {
            block[i] = take(n);
            assert_non_null(block[i]);
        }
        for (size_t i = 0; i < 1000000 / n; i++) {
            give(block[i], n);
        }
    }
    assert_true(a.held < 1500000);
}

/* The worst case for a list per class: every second block stays. */
static void
neighbours_merge_for_larger_sizes(void **state)
{
    (void)state;
    for (int i = 0; i < BLOCKS; i++) {
        block[i] = take(48);
    }
    for (int i = 0; i < BLOCKS; i++) {
        if (i % 16 != 0) {
            give(block[i], 48);
        }
    }
    size_t held = a.held;
    for (int i = 0; i < BLOCKS / 20; i++) {
        assert_non_null(take(600));
    }
    assert_true(a.held <= held);
}

static void
memory_goes_back_after_a_peak(void **state)
{
    (void)state;
    void *stays = take(100);
    for (int i = 0; i < BLOCKS; i++) {
        block[i] = take(100);
    }
    size_t top = a.held;
    for (int i = 0; i < BLOCKS; i++) {
        give(block[i], 100);
    }
    assert_true(a.held < top / 4);
    tp_arena_mend(&a);
    assert_true(a.held <= TP_SLAB_LARGE_BYTES);
    give(stays, 100);
    tp_arena_mend(&a);
    assert_int_equal(a.held, 0);
}

/* --- Random ------------------------------------------------------------- */

static uint64_t rng;

static uint64_t
next_random(void)
{
    rng ^= rng << 13;
    rng ^= rng >> 7;
    rng ^= rng << 17;
    return rng;
}

static void
seed_random(void)
{
    const char *s = getenv("TROUPE_SEED");
    rng = s != NULL ? strtoull(s, NULL, 10) : tp_now_ns() | 1;
    printf("TROUPE_SEED=%llu\n", (unsigned long long)rng);
}

/* Mostly small, sometimes to 8 KiB, rarely to 2 MiB. */
static size_t
random_size(void)
{
    uint64_t r = next_random();
    size_t max = r % 1000 == 0 ? 2u << 20 : r % 20 == 0 ? 8192 : 300;
    return 1 + next_random() % max;
}

struct live {
    unsigned char *p;
    size_t n;
    unsigned seed;
};

#define LIVE 1500

static struct live live[LIVE];

/* Content is checked in full up to 2 KiB, at both ends beyond. */
static void
mark(struct live *l)
{
    size_t n = l->n < 2048 ? l->n : 2048;
    l->seed = (unsigned)next_random();
    fill(l->p, n, l->seed);
    l->p[l->n - 1] = (unsigned char)l->seed;
}

static void
check_content(const struct live *l, size_t n)
{
    size_t head = n < 2048 ? n : 2048;
    expect(l->p, head - (head == l->n), l->seed);
    if (n == l->n) {
        assert_int_equal(l->p[n - 1], (unsigned char)l->seed);
    }
}

/* p is NULL (allowed where growing may fail), or the block's new place. */
static void
take_or_resize(struct live *l, bool may_fail)
{
    size_t n = random_size(), old = l->p == NULL ? 0 : l->n;
    if (l->p != NULL) {
        check_content(l, l->n);
    }
    unsigned char *p = tp_arena_alloc(&a, l->p, old, n);
    if (p == NULL) {
        assert_true(may_fail && n > old);
        return;
    }
    size_t both = n < old ? n : old;
    l->p = p;
    if (both > 0) {
        expect(p, both - 1 < 2047 ? both - 1 : 2047, l->seed);
    }
    l->n = n;
    mark(l);
}

static void
random_step(bool may_fail)
{
    struct live *l = &live[next_random() % LIVE];
    if (l->p != NULL && next_random() % 3 != 0) {
        check_content(l, l->n);
        give(l->p, l->n);
        l->p = NULL;
    } else {
        take_or_resize(l, may_fail);
    }
}

static void
check_sum(void)
{
    size_t sum = 0;
    for (int i = 0; i < LIVE; i++) {
        sum += live[i].p != NULL ? live[i].n : 0;
    }
    assert_int_equal(sum, a.used);
}

static void
random_use_keeps_content(void **state)
{
    (void)state;
    seed_random();
    memset(live, 0, sizeof live);
    for (int i = 0; i < 300000; i++) {
        random_step(false);
        if (next_random() % 20000 == 0) {
            tp_arena_mend(&a);
        }
    }
    check_sum();
    for (int i = 0; i < LIVE; i++) {
        if (live[i].p != NULL) {
            check_content(&live[i], live[i].n);
            give(live[i].p, live[i].n);
        }
    }
    assert_int_equal(a.used, 0);
    tp_arena_mend(&a);
    assert_int_equal(a.held, 0);
}

static void
random_use_under_a_limit(void **state)
{
    (void)state;
    seed_random();
    memset(live, 0, sizeof live);
    tp_arena_set_limit(&a, 150000);
    for (int i = 0; i < 100000; i++) {
        random_step(true);
        assert_true(a.used <= a.limit);
    }
    check_sum();
}

/* The next system call fails, again and again: shrinking and freeing work,
 * growing says NULL and leaves the block. */
static void
random_use_without_memory(void **state)
{
    (void)state;
    needs_faults();
    seed_random();
    memset(live, 0, sizeof live);
    for (int i = 0; i < 100000; i++) {
        tp_fault_arm(next_random() % 3 == 0 ? 0 : 1);
        random_step(true);
    }
    tp_fault_arm(0);
    check_sum();
    tp_arena_mend(&a);
    for (int i = 0; i < LIVE; i++) {
        if (live[i].p != NULL) {
            check_content(&live[i], live[i].n);
        }
    }
}

static void
stranded_block_serves_until_the_end(void **state)
{
    (void)state;
    needs_faults();
    unsigned char *p = take(50000);
    fill(p, 100, 5);
    tp_fault_arm(1); /* no chunk can be had: the arena has none yet */
    p = tp_arena_alloc(&a, p, 50000, 100);
    tp_fault_arm(0);
    assert_non_null(p);
    expect(p, 100, 5);
    assert_non_null(a.strays);
    assert_int_equal(a.used, 100);
    give(p, 100);
    for (int i = 0; i < 3; i++) {
        tp_arena_mend(&a);
        assert_ptr_equal(take(100), p);
        give(p, 100);
    }
}

#ifdef TP_ASAN
static void
dead_memory_is_poisoned(void **state)
{
    (void)state;
    unsigned char *p = take(100), *q = take(20);
    assert_false(__asan_address_is_poisoned(p + 99));
    assert_true(__asan_address_is_poisoned(p + 100));
    assert_true(__asan_address_is_poisoned(q + 20));
    give(p, 100);
    assert_true(__asan_address_is_poisoned(p));
    assert_true(__asan_address_is_poisoned(p + 99));
    assert_ptr_equal(take(97), p);
    assert_false(__asan_address_is_poisoned(p + 96));
    assert_true(__asan_address_is_poisoned(p + 97));
}
#endif

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int
main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(counts_bytes_exactly),
        TEST(freeing_nothing_is_nothing),
        TEST(blocks_are_aligned_and_low),
        TEST(limit_holds_to_the_byte),
        TEST(limit_below_use_only_lets_shrink),
        TEST(resizes_across_all_borders),
        TEST(huge_block_grows_and_shrinks),
        TEST(one_block_has_a_largest_size),
        TEST(fini_frees_everything_left),
        TEST(freed_memory_serves_other_sizes),
        TEST(neighbours_merge_for_larger_sizes),
        TEST(memory_goes_back_after_a_peak),
        TEST(random_use_keeps_content),
        TEST(random_use_under_a_limit),
        TEST(random_use_without_memory),
        TEST(stranded_block_serves_until_the_end),
#ifdef TP_ASAN
        TEST(dead_memory_is_poisoned),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
