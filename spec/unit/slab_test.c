/*
 * slab_test.c - process-wide memory chunks.
 */
#include "base/sys.h"
#include "mem/slab.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#ifdef TROUPE_CHECKED
#define needs_faults() ((void)0)
#else
#define needs_faults() skip() /* tp_fault_arm does nothing here */
#endif

#define MANY 3000

static void *held[MANY];

static struct tp_slab_stats
stats_now(void)
{
    struct tp_slab_stats s;
    tp_slab_thread_flush();
    tp_slab_get_stats(&s);
    return s;
}

static void
take_many(enum tp_slab_kind kind, int n)
{
    for (int i = 0; i < n; i++) {
        held[i] = tp_slab_get(kind);
        assert_non_null(held[i]);
        assert_int_equal((uintptr_t)held[i] % 64, 0);
        memset(held[i], i & 0xff, tp_slab_bytes(kind));
    }
}

/* Each chunk still has what was written: they do not overlap. */
static void
give_many(enum tp_slab_kind kind, int n)
{
    for (int i = 0; i < n; i++) {
        unsigned char *p = held[i];
        size_t last = tp_slab_bytes(kind) - 1;
        assert_int_equal(p[0], i & 0xff);
        assert_int_equal(p[last / 2], i & 0xff);
        assert_int_equal(p[last], i & 0xff);
        tp_slab_put(kind, p);
    }
}

static int
teardown(void **state)
{
    (void)state;
    tp_fault_arm(0);
    tp_slab_set_retain(TP_SLAB_RETAIN_BYTES);
    return tp_slab_fini() ? 0 : -1;
}

/* Does the kernel know p's mapping by this flag of /proc/self/smaps? */
static bool
has_flag(const void *p, const char *flag)
{
    FILE *f = fopen("/proc/self/smaps", "r");
    assert_non_null(f);
    char line[512];
    bool inside = false, found = false;
    while (!found && fgets(line, sizeof line, f) != NULL) {
        unsigned long long lo, hi;
        if (sscanf(line, "%llx-%llx ", &lo, &hi) == 2) {
            inside = lo <= (uintptr_t)p && (uintptr_t)p < hi;
        } else if (inside && strncmp(line, "VmFlags:", 8) == 0) {
            found = strstr(line, flag) != NULL;
            break;
        }
    }
    assert_int_equal(fclose(f), 0);
    return found;
}

static uintptr_t
gib_of(const void *p)
{
    return (uintptr_t)p >> 30;
}

/* A small process stays small, one with a hundred thousand actors that wait has
 * them in small pages. */
static void
huge_pages_are_asked_for_in_between(void **state)
{
    (void)state;
    if (access("/sys/kernel/mm/transparent_hugepage", F_OK) != 0) {
        skip();
    }
    take_many(TP_SLAB_LARGE, 2300); /* 19 regions */
    assert_true(has_flag(held[0], " nh"));
    assert_true(has_flag(held[300], " hg"));
    assert_true(has_flag(held[2299], " nh"));
    assert_int_not_equal(gib_of(held[300]), gib_of(held[0]));
    assert_int_not_equal(gib_of(held[300]), gib_of(held[2299]));
    give_many(TP_SLAB_LARGE, 2300);
}

/* A second region is one of the huge ones; memory can be wanting at any step. */
static void
a_second_region_survives_failing_system_calls(void **state)
{
    (void)state;
    needs_faults();
    bool fired = true;
    for (long n = 1; fired; n++) {
        assert_true(tp_slab_fini());
        tp_fault_arm(n);
        for (int i = 0; i < 200; i++) {
            held[i] = tp_slab_get(TP_SLAB_LARGE);
        }
        fired = tp_fault_fired();
        tp_fault_arm(0);
        for (int i = 0; i < 200; i++) {
            if (held[i] != NULL) {
                memset(held[i], 1, 64);
                tp_slab_put(TP_SLAB_LARGE, held[i]);
            } else {
                assert_true(fired);
            }
        }
    }
}

static void
chunks_are_apart_and_come_back(void **state)
{
    (void)state;
    for (int k = 0; k < TP_SLAB_KINDS; k++) {
        enum tp_slab_kind kind = (enum tp_slab_kind)k;
        take_many(kind, 300);
        assert_int_equal(stats_now().out[kind], 300);
        give_many(kind, 300);
        assert_int_equal(stats_now().out[kind], 0);
    }
}

static void
base_finds_the_chunk(void **state)
{
    (void)state;
    for (int k = 0; k < TP_SLAB_KINDS; k++) {
        enum tp_slab_kind kind = (enum tp_slab_kind)k;
        take_many(kind, 200);
        for (int i = 0; i < 200; i++) {
            char *p = held[i];
            assert_ptr_equal(tp_slab_base(p), p);
            assert_ptr_equal(tp_slab_base(p + 1000), p);
            assert_ptr_equal(tp_slab_base(p + tp_slab_bytes(kind) - 1), p);
        }
        give_many(kind, 200);
    }
}

static void
last_chunk_is_reused_first(void **state)
{
    (void)state;
    void *a = tp_slab_get(TP_SLAB_BIRTH);
    tp_slab_put(TP_SLAB_BIRTH, a);
    assert_ptr_equal(tp_slab_get(TP_SLAB_BIRTH), a);
    tp_slab_put(TP_SLAB_BIRTH, a);
}

/* As the monitor does when nothing runs. */
static void
trim_all(void)
{
    tp_slab_thread_flush();
    while (tp_slab_trim()) {
    }
    assert_int_equal(tp_slab_excess(), 0);
}

static void
mass_death_gives_memory_back(void **state)
{
    (void)state;
    trim_all();
    tp_slab_set_retain(1 << 20);
    for (int k = 0; k < TP_SLAB_KINDS; k++) {
        enum tp_slab_kind kind = (enum tp_slab_kind)k;
        take_many(kind, MANY);
        size_t top = stats_now().mapped_bytes;
        give_many(kind, MANY);
        struct tp_slab_stats s = stats_now();
        assert_int_equal(s.out[kind], 0);
        assert_int_equal(s.mapped_bytes, top); /* not while they die */
        assert_true(tp_slab_excess() > 0);
        assert_true(tp_slab_trim());
        assert_int_equal(stats_now().out[kind], 0);
        trim_all();
        s = stats_now();
        assert_int_equal(s.out[kind], 0);
        assert_true(s.pooled[kind] * tp_slab_bytes(kind) <= 1 << 20);
        assert_true(s.mapped_bytes < top);
    }
}

/* Free every second chunk only: no region can go, but its pages can. */
static void
holes_go_cold_and_serve_again(void **state)
{
    (void)state;
    tp_slab_set_retain(0);
    take_many(TP_SLAB_SMALL, MANY);
    trim_all(); /* what a batch had over */
    struct tp_slab_stats before = stats_now();
    for (int i = 0; i < MANY; i += 2) {
        tp_slab_put(TP_SLAB_SMALL, held[i]);
    }
    trim_all();
    struct tp_slab_stats s = stats_now();
    assert_int_equal(s.pooled[TP_SLAB_SMALL], 0);
    assert_int_equal(s.cold[TP_SLAB_SMALL],
                     before.cold[TP_SLAB_SMALL] + MANY / 2);
    for (int i = 0; i < MANY; i += 2) {
        held[i] = tp_slab_get(TP_SLAB_SMALL);
        memset(held[i], i & 0xff, TP_SLAB_SMALL_BYTES);
    }
    assert_int_equal(stats_now().mapped_bytes, before.mapped_bytes);
    give_many(TP_SLAB_SMALL, MANY);
}

static void
fini_refuses_while_a_chunk_is_out(void **state)
{
    (void)state;
    void *p = tp_slab_get(TP_SLAB_LARGE);
    assert_false(tp_slab_fini());
    tp_slab_put(TP_SLAB_LARGE, p);
    assert_true(tp_slab_fini());
    assert_int_equal(stats_now().mapped_bytes, 0);
}

static void
get_survives_failing_system_calls(void **state)
{
    (void)state;
    needs_faults();
    for (long n = 1;; n++) {
        assert_true(tp_slab_fini());
        tp_fault_arm(n);
        void *p = tp_slab_get(TP_SLAB_BIRTH);
        bool fired = tp_fault_fired();
        tp_fault_arm(0);
        if (p != NULL) {
            memset(p, 1, TP_SLAB_BIRTH_BYTES);
            tp_slab_put(TP_SLAB_BIRTH, p);
        }
        if (!fired) {
            assert_non_null(p);
            return;
        }
    }
}

/* --- Threads ------------------------------------------------------------ */

#define THREADS 4
#define ROUNDS  20000

static uint64_t
next_random(uint64_t *x)
{
    *x ^= *x << 13;
    *x ^= *x >> 7;
    *x ^= *x << 17;
    return *x;
}

/* Hold up to 64 chunks, swap one at a time; each carries its owner's mark. */
static void *
swap_chunks(void *arg)
{
    uint64_t x = *(uint64_t *)arg;
    uint64_t *mine[64] = {0};
    for (int i = 0; i < ROUNDS; i++) {
        size_t at = next_random(&x) % 64;
        if (mine[at] != NULL) {
            tp_check(mine[at][100] == ((uintptr_t)arg ^ at));
            tp_slab_put(TP_SLAB_SMALL, mine[at]);
            mine[at] = NULL;
        } else {
            mine[at] = tp_slab_get(TP_SLAB_SMALL);
            tp_check(mine[at] != NULL);
            mine[at][100] = (uintptr_t)arg ^ at;
        }
    }
    for (size_t at = 0; at < 64; at++) {
        if (mine[at] != NULL) {
            tp_slab_put(TP_SLAB_SMALL, mine[at]);
        }
    }
    return NULL;
}

static void
threads_share_and_flush_at_exit(void **state)
{
    (void)state;
    pthread_t t[THREADS];
    uint64_t seed[THREADS];
    tp_slab_set_retain(256 << 10);
    for (int i = 0; i < THREADS; i++) {
        seed[i] = tp_now_ns() * 2654435761u + (unsigned)i + 1;
        printf("seed %d: %llu\n", i, (unsigned long long)seed[i]);
        assert_int_equal(pthread_create(&t[i], NULL, swap_chunks, &seed[i]), 0);
    }
    for (uint64_t end = tp_now_ns() + 50000000; tp_now_ns() < end;) {
        tp_slab_trim(); /* beside them */
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(t[i], NULL);
    }
    trim_all();
    assert_int_equal(stats_now().out[TP_SLAB_SMALL], 0);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(chunks_are_apart_and_come_back, teardown),
        cmocka_unit_test_teardown(huge_pages_are_asked_for_in_between,
                                  teardown),
        cmocka_unit_test_teardown(a_second_region_survives_failing_system_calls,
                                  teardown),
        cmocka_unit_test_teardown(base_finds_the_chunk, teardown),
        cmocka_unit_test_teardown(last_chunk_is_reused_first, teardown),
        cmocka_unit_test_teardown(mass_death_gives_memory_back, teardown),
        cmocka_unit_test_teardown(holes_go_cold_and_serve_again, teardown),
        cmocka_unit_test_teardown(fini_refuses_while_a_chunk_is_out, teardown),
        cmocka_unit_test_teardown(get_survives_failing_system_calls, teardown),
        cmocka_unit_test_teardown(threads_share_and_flush_at_exit, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
