/*
 * stack_test.c - guards, reuse, shapes, limits, memory given back.
 */
#define _GNU_SOURCE
#include "mem/stack.h"

#include "base/check.h"
#include "base/sys.h"
#include "troupe.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define KIB     ((size_t)1 << 10)
#define MIB     ((size_t)1 << 20)
#define MANY    40000
#define IN_IT   42
#define OUTSIDE 43

static struct tp_stack many[MANY];

static int
begin(void **state)
{
    (void)state;
    tp_stacks_force_guard(TP_STACK_GUARD_AUTO);
    return tp_stacks_init(0, 0);
}

static int
begin_mprotect(void **state)
{
    (void)state;
    tp_stacks_force_guard(TP_STACK_GUARD_MPROTECT);
    return tp_stacks_init(0, 0);
}

static int
end(void **state)
{
    struct tp_stack_stats st;
    (void)state;
    tp_fault_arm(0);
    tp_stacks_stats(&st);
    tp_stacks_fini();
    return st.live == 0 && st.custom == 0 ? 0 : -1;
}

static size_t
pages_resident(char *lo, char *hi)
{
    static unsigned char map[4096];
    size_t page = tp_page_size(), n = (size_t)(hi - lo) / page, count = 0;
    assert_true(n <= sizeof map);
    assert_int_equal(mincore(lo, (size_t)(hi - lo), map), 0);
    for (size_t i = 0; i < n; i++) {
        count += map[i] & 1;
    }
    return count;
}

/* --- guards --- */

static const struct tp_stack *probed;

static void
on_fault(int sig, siginfo_t *info, void *ucontext)
{
    (void)sig;
    (void)ucontext;
    _exit(tp_stack_is_overrun(probed, info->si_addr) ? IN_IT : OUTSIDE);
}

/* What a write to p does to a child process: its exit status. */
static int
write_in_child(const struct tp_stack *s, char *p)
{
    int status;
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct sigaction act = {.sa_sigaction = on_fault,
                                .sa_flags = SA_SIGINFO};
        probed = s;
        sigaction(SIGSEGV, &act, NULL);
        *(volatile char *)p = 1;
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void
check_guard(const struct tp_stack *s)
{
    assert_int_equal(write_in_child(s, s->lo), 0);
    assert_int_equal(write_in_child(s, s->hi - 1), 0);
    assert_int_equal(write_in_child(s, s->lo - 1), IN_IT);
    assert_int_equal(write_in_child(s, s->lo - s->guard), IN_IT);
    if (s->gap != 0) {
        assert_int_equal(write_in_child(s, s->lo - s->guard - s->gap), IN_IT);
    }
}

static void
an_overrun_faults_inside_the_guard(void **state)
{
    struct tp_stack s[3];
    (void)state;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(tp_stack_get(0, 0, &s[i]), 0);
        check_guard(&s[i]);
    }
    for (int i = 0; i < 3; i++) {
        tp_stack_put(&s[i], NULL);
    }
    assert_int_equal(tp_stack_get(0, 0, &s[0]), 0);
    check_guard(&s[0]); /* a guard outlives reuse and MADV_DONTNEED */
    tp_stack_put(&s[0], NULL);
}

static void
overrun_is_told_from_other_addresses(void **state)
{
    struct tp_stack s;
    (void)state;
    assert_int_equal(tp_stack_get(0, 0, &s), 0);
    assert_false(tp_stack_is_overrun(&s, s.lo));
    assert_true(tp_stack_is_overrun(&s, s.lo - 1));
    assert_true(tp_stack_is_overrun(&s, s.lo - s.guard));
    assert_false(tp_stack_is_overrun(&s, s.lo - s.guard - 1));
    assert_false(tp_stack_is_overrun(&s, NULL));
    assert_false(tp_stack_is_overrun(&s, s.hi));
    tp_stack_put(&s, NULL);
}

static void
the_fallback_makes_guards_too(void **state)
{
    assert_int_equal(tp_stacks_guard(), TP_STACK_GUARD_MPROTECT);
    an_overrun_faults_inside_the_guard(state);
}

/* --- shapes --- */

static void
sizes_are_rounded_up_to_pages(void **state)
{
    struct tp_stack s;
    size_t page = tp_page_size();
    (void)state;
    assert_int_equal(tp_stack_get(300 * KIB + 1, 1, &s), 0);
    assert_int_equal(s.reserve, 300 * KIB + page);
    assert_int_equal(s.guard, page);
    assert_ptr_equal(s.hi, s.lo + s.reserve);
    assert_int_equal((uintptr_t)s.lo % page, 0);
    tp_stack_put(&s, NULL);
    assert_null(s.lo);
    tp_stack_put(&s, NULL); /* nothing to do */
}

static void
sizes_beyond_the_address_space_are_refused(void **state)
{
    struct tp_stack s;
    (void)state;
    assert_int_equal(tp_stack_get(SIZE_MAX, 0, &s), TROUPE_ENOMEM);
    assert_int_equal(tp_stack_get(0, SIZE_MAX, &s), TROUPE_ENOMEM);
    assert_int_equal(tp_stack_get(SIZE_MAX / 8, SIZE_MAX / 8, &s),
                     TROUPE_ENOMEM);
    assert_int_equal(tp_stack_get(SIZE_MAX / 2 + 1, 1, &s), TROUPE_ENOMEM);
}

static void
a_custom_shape_has_its_own_mapping(void **state)
{
    struct tp_stack s;
    struct tp_stack_stats st;
    (void)state;
    assert_int_equal(tp_stack_get(MIB, 128 * KIB, &s), 0);
    assert_int_equal(s.reserve, MIB);
    assert_int_equal(s.guard, 128 * KIB);
    memset(s.lo, 1, s.reserve);
    check_guard(&s);
    tp_stacks_stats(&st);
    assert_int_equal(st.custom, 1);
    assert_int_equal(st.live, 1);
    assert_int_equal(st.mapped, 0);
    char *lo = s.lo;
    tp_stack_put(&s, lo);
    assert_int_equal(madvise(lo, tp_page_size(), MADV_NORMAL), -1);
}

static void
the_default_sizes_by_name_are_pooled(void **state)
{
    struct tp_stack s;
    (void)state;
    assert_int_equal(tp_stack_get(TP_STACK_RESERVE_DEFAULT - 1, 0, &s), 0);
    assert_int_equal(s.gap, 0);
    tp_stack_put(&s, NULL);
}

static void
the_default_shape_can_be_set(void **state)
{
    struct tp_stack s;
    (void)state;
    tp_stacks_fini();
    assert_int_equal(tp_stacks_init(SIZE_MAX, 0), TROUPE_ENOMEM);
    assert_int_equal(tp_stacks_init(100 * MIB, 2 * MIB), 0);
    assert_int_equal(tp_stack_get(0, 0, &s), 0); /* larger than a region */
    assert_int_equal(s.reserve, 100 * MIB);
    check_guard(&s);
    tp_stack_put(&s, NULL);
    tp_stacks_fini();
    assert_int_equal(tp_stacks_init(1, 1), 0);
    assert_int_equal(tp_stack_get(0, 0, &s), 0);
    assert_int_equal(s.reserve, tp_page_size());
    check_guard(&s);
    tp_stack_put(&s, NULL);
}

/* --- reuse --- */

static void
check_lifo(void)
{
    struct tp_stack s[4];
    char *lo[4];
    for (int i = 0; i < 4; i++) {
        assert_int_equal(tp_stack_get(0, 0, &s[i]), 0);
        lo[i] = s[i].lo;
    }
    for (int i = 0; i < 4; i++) {
        tp_stack_put(&s[i], s[i].hi);
    }
    for (int i = 3; i >= 0; i--) {
        assert_int_equal(tp_stack_get(0, 0, &s[i]), 0);
        assert_ptr_equal(s[i].lo, lo[i]);
    }
    for (int i = 0; i < 4; i++) {
        tp_stack_put(&s[i], s[i].hi);
    }
}

static void
last_in_is_first_out(void **state)
{
    (void)state;
    check_lifo();
    tp_stack_thread_begin();
    check_lifo();
    tp_stack_thread_end();
    check_lifo();
}

static void
a_cache_overflows_into_the_pool(void **state)
{
    struct tp_stack_stats st;
    (void)state;
    tp_stack_thread_begin();
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 200; i++) {
            assert_int_equal(tp_stack_get(0, 0, &many[i]), 0);
        }
        tp_stacks_stats(&st);
        assert_int_equal(st.live, 200);
        for (int i = 0; i < 200; i++) {
            tp_stack_put(&many[i], many[i].hi);
        }
        tp_stacks_stats(&st);
        assert_int_equal(st.live, 0);
        assert_int_equal(st.pooled, 200);
        assert_int_equal(st.mapped, 256); /* two regions of 128: all reused */
    }
    tp_stack_thread_end();
}

enum {
    THREADS = 4,
    ROUNDS = 2000,
    HELD = 48
};

static void *
churn(void *arg)
{
    struct tp_stack held[HELD] = {0};
    unsigned seed = *(unsigned *)arg;
    if (seed % 2) {
        tp_stack_thread_begin();
    }
    for (int n = 0; n < ROUNDS; n++) {
        struct tp_stack *s = &held[(unsigned)rand_r(&seed) % HELD];
        if (s->lo == NULL) {
            tp_check(tp_stack_get(0, 0, s) == 0);
            *(struct tp_stack **)(void *)(s->hi - 64) = s;
        } else {
            tp_check(*(struct tp_stack **)(void *)(s->hi - 64) == s);
            tp_stack_put(s, s->hi - 64);
        }
    }
    for (int i = 0; i < HELD; i++) {
        tp_stack_put(&held[i], NULL);
    }
    tp_stack_thread_end();
    return NULL;
}

static void
threads_share_the_pool(void **state)
{
    pthread_t t[THREADS];
    unsigned seed[THREADS];
    struct tp_stack_stats st;
    (void)state;
    for (unsigned i = 0; i < THREADS; i++) {
        seed[i] = i + 1;
        assert_int_equal(pthread_create(&t[i], NULL, churn, &seed[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(t[i], NULL);
    }
    tp_stacks_stats(&st);
    assert_int_equal(st.live, 0);
    assert_true(st.pooled <= THREADS * (HELD + 32));
}

static void
deep_memory_is_dropped_on_reuse(void **state)
{
    struct tp_stack s;
    (void)state;
    assert_int_equal(tp_stack_get(0, 0, &s), 0);
    char *lo = s.lo, *hi = s.hi;
    memset(s.lo, 1, s.reserve);
    tp_stack_put(&s, lo + 100);
    assert_int_equal(pages_resident(lo, hi), TP_STACK_KEEP / tp_page_size());
    assert_int_equal(tp_stack_get(0, 0, &s), 0);
    assert_ptr_equal(s.lo, lo);
    memset(s.lo, 1, s.reserve);
    tp_stack_put(&s, NULL);
    assert_int_equal(pages_resident(lo, hi), TP_STACK_KEEP / tp_page_size());
}

static void
shallow_memory_is_kept_without_a_call(void **state)
{
    struct tp_stack s;
    (void)state;
    assert_int_equal(tp_stack_get(0, 0, &s), 0);
    s.hi[-1] = 1;
#ifdef TROUPE_CHECKED
    tp_fault_arm(1);
    for (int i = 0; i < 100; i++) {
        tp_stack_put(&s, s.hi - TP_STACK_KEEP);
        assert_int_equal(tp_stack_get(0, 0, &s), 0);
    }
    assert_false(tp_fault_fired());
#endif
    tp_stack_put(&s, s.hi);
}

static void
shrinking_frees_the_dead_span(void **state)
{
    struct tp_stack s;
    size_t page = tp_page_size();
    (void)state;
    assert_int_equal(tp_stack_get(0, 0, &s), 0);
    memset(s.lo, 7, s.reserve);
    char *sp = s.hi - 10 * KIB, *low = sp - page - TP_STACK_SHRINK_MIN;
    assert_false(tp_stack_shrink(&s, sp, sp));
    assert_false(tp_stack_shrink(&s, low + page, sp));
    assert_true(tp_stack_shrink(&s, low, sp));
    assert_true(tp_stack_shrink(&s, s.lo, sp));
    for (char *p = sp - page; p < s.hi; p++) {
        assert_int_equal(*p, 7); /* in use, or red zone */
    }
    tp_stack_put(&s, NULL);
}

/* KiB of this process that the kernel may take, or -1 where it does not say. */
static long
lazy_kib(void)
{
    char line[128];
    long kib = -1;
    FILE *f = fopen("/proc/self/smaps_rollup", "r");
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        if (strncmp(line, "LazyFree:", 9) == 0) {
            kib = atol(line + 9);
        }
    }
    if (f != NULL) {
        fclose(f);
    }
    return kib;
}

static long
gone_kib(const struct tp_stack *s)
{
    unsigned char map[1024];
    size_t page = tp_page_size(), pages = s->reserve / page;
    long kib = 0;
    assert_true(pages <= sizeof map);
    assert_int_equal(mincore(s->lo, s->reserve, map), 0);
    for (size_t i = 0; i < pages; i++) {
        kib += map[i] & 1 ? 0 : (long)(page / KIB);
    }
    return kib;
}

/* What went deeper than was seen is dead, too. Not all is counted at once: the
 * kernel collects some dozen pages before it moves them. */
static void
shrinking_frees_what_lies_deeper(void **state)
{
    struct tp_stack s;
    size_t page = tp_page_size();
    long before = lazy_kib();
    (void)state;
    if (before < 0) {
        skip();
    }
    assert_int_equal(tp_stack_get(0, 0, &s), 0);
    memset(s.lo, 7, s.reserve);
    char *sp = s.hi - 10 * KIB, *low = sp - page - TP_STACK_SHRINK_MIN;
    assert_true(tp_stack_shrink(&s, low, sp));
    long span = (long)((size_t)(sp - low) / KIB);
    assert_true(lazy_kib() - before + gone_kib(&s) > span);
    tp_stack_put(&s, NULL);
}

/* --- many, limits, failures --- */

static long
mappings(void)
{
    FILE *f = fopen("/proc/self/maps", "r");
    long lines = 0;
    assert_non_null(f);
    for (char line[512]; fgets(line, sizeof line, f) != NULL;) {
        lines++;
    }
    fclose(f);
    return lines;
}

static long
mapping_limit(void)
{
    FILE *f = fopen("/proc/sys/vm/max_map_count", "r");
    long limit = 0;
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%ld", &limit), 1);
    fclose(f);
    return limit;
}

static void
forty_thousand_stacks_take_few_mappings(void **state)
{
    (void)state;
    if (tp_stacks_guard() != TP_STACK_GUARD_MADVISE) {
        skip(); /* a kernel before 6.13 */
    }
    long before = mappings();
    (void)before;
    for (int i = 0; i < MANY; i++) {
        assert_int_equal(tp_stack_get(0, 0, &many[i]), 0);
    }
#ifndef TP_TSAN /* it maps shadow memory for each mapping */
    assert_true(mappings() - before < 500);
#endif
    check_guard(&many[MANY - 1]);
    for (int i = 0; i < MANY; i++) {
        tp_stack_put(&many[i], many[i].hi);
    }
}

/* As many stacks as the kernel allows mappings for; returns the refusal. */
static int
fill_up(int *out_count)
{
    int rc = 0, n = 0;
    while (n < MANY && (rc = tp_stack_get(0, 0, &many[n])) == 0) {
        n++;
    }
    *out_count = n;
    return rc;
}

static void
the_fallback_reports_the_limit_of_mappings(void **state)
{
    int n, again;
    struct tp_stack s;
    (void)state;
    if (mapping_limit() / 2 >= MANY) {
        skip(); /* this system allows more than the test has room for */
    }
#ifdef TP_TSAN
    skip(); /* TSan dies when it gets no more mappings for itself */
#endif
    int rc = fill_up(&n);
    int rc_custom = tp_stack_get(MIB, 0, &s);
    for (int i = 0; i < 10; i++) {
        tp_stack_put(&many[n - 10 + i], NULL);
    }
    for (again = 0; tp_stack_get(0, 0, &many[n - 10 + again]) == 0; again++) {
        continue;
    }
    for (int i = 0; i < n; i++) {
        tp_stack_put(&many[i], many[i].hi);
    }
    assert_int_equal(rc, TROUPE_ELIMIT);
    assert_int_equal(rc_custom, TROUPE_ELIMIT);
    assert_true(n > mapping_limit() / 3);
    assert_int_equal(again, 10); /* what was given back can be had again */
}

#ifdef TROUPE_CHECKED
/* Fail each call in turn; the last round has nothing left to fail. */
static void
sweep(size_t reserve, int first_code, int other_code)
{
    struct tp_stack s;
    for (long n = 1;; n++) {
        tp_stacks_fini();
        assert_int_equal(tp_stacks_init(0, 0), 0);
        tp_fault_arm(n);
        int rc = tp_stack_get(reserve, 0, &s);
        bool fired = tp_fault_fired();
        tp_fault_arm(0);
        if (rc != 0) {
            assert_true(fired);
            assert_true(rc == first_code || rc == other_code);
            assert_int_equal(tp_stack_get(reserve, 0, &s), 0);
        }
        check_guard(&s);
        tp_stack_put(&s, NULL);
        if (!fired) {
            assert_true(n > 2);
            return;
        }
    }
}

static void
each_failing_call_is_survived(void **state)
{
    (void)state;
    sweep(0, TROUPE_ENOMEM, TROUPE_ENOMEM);
    sweep(MIB, TROUPE_ENOMEM, TROUPE_ELIMIT);
    tp_fault_arm(1);
    tp_stacks_fini();
    assert_int_equal(tp_stacks_init(0, 0), TROUPE_ENOMEM);
    tp_fault_arm(0);
    assert_int_equal(tp_stacks_init(0, 0), 0);
}

static void
a_refused_guard_is_made_later(void **state)
{
    struct tp_stack a, b;
    (void)state;
    assert_int_equal(tp_stack_get(0, 0, &a), 0);
    tp_fault_arm(1);
    assert_int_equal(tp_stack_get(0, 0, &b), TROUPE_ELIMIT);
    tp_fault_arm(0);
    char *first = a.lo;
    tp_stack_put(&a, NULL);
    assert_int_equal(tp_stack_get(0, 0, &a), 0);
    assert_ptr_equal(a.lo, first); /* the guarded one is preferred */
    assert_int_equal(tp_stack_get(0, 0, &b), 0);
    check_guard(&b);
    tp_stack_put(&a, NULL);
    tp_stack_put(&b, NULL);
}
#endif

#define TEST(f)          cmocka_unit_test_setup_teardown(f, begin, end)
#define TEST_MPROTECT(f) cmocka_unit_test_setup_teardown(f, begin_mprotect, end)

int
main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(an_overrun_faults_inside_the_guard),
        TEST(overrun_is_told_from_other_addresses),
        TEST_MPROTECT(the_fallback_makes_guards_too),
        TEST(sizes_are_rounded_up_to_pages),
        TEST(sizes_beyond_the_address_space_are_refused),
        TEST(a_custom_shape_has_its_own_mapping),
        TEST(the_default_sizes_by_name_are_pooled),
        TEST(the_default_shape_can_be_set),
        TEST(last_in_is_first_out),
        TEST(a_cache_overflows_into_the_pool),
        TEST(threads_share_the_pool),
        TEST(deep_memory_is_dropped_on_reuse),
        TEST(shallow_memory_is_kept_without_a_call),
        TEST(shrinking_frees_the_dead_span),
        TEST(shrinking_frees_what_lies_deeper),
        TEST(forty_thousand_stacks_take_few_mappings),
        TEST_MPROTECT(the_fallback_reports_the_limit_of_mappings),
#ifdef TROUPE_CHECKED
        TEST(each_failing_call_is_survived),
        TEST_MPROTECT(a_refused_guard_is_made_later),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
