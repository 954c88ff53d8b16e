/*
 * fiber_test.c - switching, migration, reset, unwinding, leaving by signal.
 */
#define _GNU_SOURCE
#include "ctx/fiber.h"

#include "base/mutex.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fenv.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include <unwind.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#define STACK_BYTES ((size_t)128 << 10)
#define GUARD_BYTES ((size_t)64 << 10)

/* A fiber with a stack above a guard. */
struct green {
    struct tp_fiber fiber;
    char *map;
    char *lo;
    char *hi;
};

/* Who resumed the green fiber; it switches back there. */
static struct tp_fiber *back;

static void
green_start(struct green *g, void (*entry)(void *), void *arg)
{
    tp_fiber_init(&g->fiber, g->lo, g->hi, entry, arg);
}

static void
green_new(struct green *g, void (*entry)(void *), void *arg)
{
    memset(g, 0, sizeof *g);
    g->map = mmap(NULL, GUARD_BYTES + STACK_BYTES, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    assert_ptr_not_equal(g->map, MAP_FAILED);
    assert_int_equal(mprotect(g->map, GUARD_BYTES, PROT_NONE), 0);
    g->lo = g->map + GUARD_BYTES;
    g->hi = g->lo + STACK_BYTES;
    green_start(g, entry, arg);
}

static void
green_free(struct green *g)
{
    tp_fiber_fini(&g->fiber);
    munmap(g->map, GUARD_BYTES + STACK_BYTES);
}

static void
resume(struct green *g)
{
    struct tp_fiber self;
    tp_fiber_init_thread(&self);
    back = &self;
    tp_fiber_switch(&self, &g->fiber);
    tp_fiber_fini(&self);
}

static void
yield_from(struct green *g)
{
    tp_fiber_switch(&g->fiber, back);
}

/* noinline, opaque: errno of the thread that runs this call. */
static __attribute__((noinline)) int
errno_now(void)
{
    __asm__ volatile("" ::: "memory");
    return errno;
}

static __attribute__((noinline)) void
errno_put(int e)
{
    __asm__ volatile("" ::: "memory");
    errno = e;
}

static struct green one;
static int seen[16];

/* --- errno --- */

static void
errno_body(void *arg)
{
    (void)arg;
    seen[0] = errno_now();
    errno_put(EAGAIN);
    yield_from(&one);
    seen[1] = errno_now();
    errno_put(EPIPE);
    yield_from(&one);
    seen[2] = errno_now();
    for (;;) {
        yield_from(&one);
    }
}

static void
errno_is_kept_per_fiber(void **state)
{
    (void)state;
    green_new(&one, errno_body, NULL);
    for (int i = 0; i < 3; i++) {
        errno = 1000 + i;
        resume(&one);
        assert_int_equal(errno, 1000 + i);
    }
    assert_int_equal(seen[0], 0);
    assert_int_equal(seen[1], EAGAIN);
    assert_int_equal(seen[2], EPIPE);
    green_free(&one);
}

/* --- FP control --- */

static void
rounding_body(void *arg)
{
    (void)arg;
    seen[0] = fegetround();
    fesetround(FE_UPWARD);
    yield_from(&one);
    seen[1] = fegetround();
    yield_from(&one);
    seen[2] = fegetround();
    fesetround(FE_TONEAREST);
    for (;;) {
        yield_from(&one);
    }
}

static void
fp_control_is_kept_per_fiber(void **state)
{
    (void)state;
    green_new(&one, rounding_body, NULL);
    fesetround(FE_DOWNWARD);
    resume(&one);
    assert_int_equal(fegetround(), FE_DOWNWARD);
    resume(&one);
    assert_int_equal(fegetround(), FE_DOWNWARD);
    fesetround(FE_TOWARDZERO);
    resume(&one);
    assert_int_equal(fegetround(), FE_TOWARDZERO);
    fesetround(FE_TONEAREST);
    assert_int_equal(seen[0], FE_TONEAREST);
    assert_int_equal(seen[1], FE_UPWARD);
    assert_int_equal(seen[2], FE_UPWARD);
    green_free(&one);
}

#if defined(__x86_64__)
static unsigned
x87_control(void)
{
    unsigned short cw;
    __asm__ volatile("fnstcw %0" : "=m"(cw));
    return cw;
}

static void
x87_body(void *arg)
{
    unsigned short cw = 0x007f; /* 24 bit precision */
    (void)arg;
    __asm__ volatile("fldcw %0" : : "m"(cw));
    yield_from(&one);
    seen[0] = (int)x87_control();
    seen[1] = (int)(_mm_getcsr() & 0x8040u);
    _mm_setcsr(_mm_getcsr() | 0x8040u); /* flush to zero */
    yield_from(&one);
    seen[2] = (int)(_mm_getcsr() & 0x8040u);
    for (;;) {
        yield_from(&one);
    }
}

static void
x87_and_sse_control_are_kept_apart(void **state)
{
    (void)state;
    green_new(&one, x87_body, NULL);
    resume(&one);
    assert_int_equal(x87_control(), 0x037f);
    resume(&one);
    assert_int_equal(seen[0], 0x007f);
    assert_int_equal(seen[1], 0);
    assert_int_equal(_mm_getcsr() & 0x8040u, 0);
    resume(&one);
    assert_int_equal(seen[2], 0x8040);
    green_free(&one);
}
#endif

/* --- registers --- */

static uint64_t mix_result[2];

/* More live values than there are registers, across a switch each round. */
static uint64_t
mix(struct green *g, uint64_t seed)
{
    uint64_t a = seed, b = seed * 3, c = seed * 5, d = seed * 7, e = seed * 11;
    uint64_t f = seed * 13, h = seed * 17, k = seed * 19;
    double x = (double)seed, y = x * 0.5, z = x * 0.25;
    for (int i = 0; i < 1000; i++) {
        if (g != NULL) {
            yield_from(g);
        }
        a += b ^ k, b += c ^ a, c += d ^ b, d += e ^ c;
        e += f ^ d, f += h ^ e, h += k ^ f, k += a ^ h;
        x = x * 0.5 + y, y = y * 0.25 + z, z = z * 0.125 + 1.0;
    }
    return a ^ b ^ c ^ d ^ e ^ f ^ h ^ k ^ (uint64_t)(x + y + z);
}

static struct green pair[2];

static void
mix_body(void *arg)
{
    size_t i = (size_t)(uintptr_t)arg;
    mix_result[i] = mix(&pair[i], 12345 + i);
    for (;;) {
        yield_from(&pair[i]);
    }
}

static void
registers_are_kept(void **state)
{
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        green_new(&pair[i], mix_body, (void *)(uintptr_t)i);
    }
    for (int n = 0; n < 1001; n++) {
        resume(&pair[0]);
        resume(&pair[1]);
    }
    for (size_t i = 0; i < 2; i++) {
        assert_true(mix_result[i] == mix(NULL, 12345 + i));
        green_free(&pair[i]);
    }
}

/* --- threads --- */

enum {
    HOPS = 2000
};
static _Atomic int turn;
static int hops_done;
static int hop_errors;

static void
hop_body(void *arg)
{
    (void)arg;
    for (int i = 0;; i++) {
        errno_put(5000 + i);
        yield_from(&one);
        hop_errors += errno_now() != 5000 + i;
        hops_done++;
    }
}

static void *
hop_thread(void *arg)
{
    int me = *(int *)arg;
    for (int i = 0; i < HOPS; i++) {
        /* HOP-1 acquire: sees the fiber as the other thread left it. */
        while (atomic_load_explicit(&turn, memory_order_acquire) != me) {
            sched_yield();
        }
        errno = me;
        resume(&one);
        hop_errors += errno != me;
        /* HOP-1 release: publishes the fiber. */
        atomic_store_explicit(&turn, !me, memory_order_release);
    }
    return NULL;
}

static void
a_fiber_goes_on_at_another_thread(void **state)
{
    pthread_t t[2];
    int id[2] = {0, 1};
    (void)state;
    green_new(&one, hop_body, NULL);
    /* relaxed: no other thread yet. */
    atomic_store_explicit(&turn, 0, memory_order_relaxed);
    hops_done = hop_errors = 0;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pthread_create(&t[i], NULL, hop_thread, &id[i]), 0);
    }
    for (int i = 0; i < 2; i++) {
        pthread_join(t[i], NULL);
    }
    assert_int_equal(hops_done, 2 * HOPS - 1);
    assert_int_equal(hop_errors, 0);
    green_free(&one);
}

/* --- reset --- */

static char *depth_seen;

static __attribute__((noinline)) void
dive(int levels)
{
    char frame[256];
    __asm__ volatile("" : : "r"(frame) : "memory"); /* a real frame */
    if (levels > 0) {
        dive(levels - 1);
    } else {
        depth_seen = (char *)(uintptr_t)__builtin_frame_address(0);
        yield_from(&one);
    }
    __asm__ volatile("" : : "r"(frame) : "memory"); /* no tail call */
}

static void
dive_body(void *arg)
{
    dive(*(int *)arg);
    abort();
}

static void
a_reset_fiber_starts_at_the_top(void **state)
{
    int deep = 100, shallow = 0;
    (void)state;
    green_new(&one, dive_body, &deep);
    for (int i = 0; i < 10; i++) {
        resume(&one);
        assert_true(one.hi - depth_seen > 100 * 256);
        green_start(&one, dive_body, &shallow);
        resume(&one);
        assert_true(depth_seen < one.hi && one.hi - depth_seen < 4096);
        green_start(&one, dive_body, &deep);
    }
    green_free(&one);
}

static void
final_body(void *arg)
{
    ++*(int *)arg;
    tp_fiber_switch_final(&one.fiber, back);
}

static void
a_finished_fiber_can_be_used_again(void **state)
{
    int runs = 0;
    (void)state;
    green_new(&one, final_body, &runs);
    for (int i = 1; i <= 100; i++) {
        errno = i;
        resume(&one);
        assert_int_equal(runs, i);
        assert_int_equal(errno, i);
        green_start(&one, final_body, &runs);
    }
    green_free(&one);
}

/* --- nesting --- */

enum {
    DEPTH = 200
};
static struct green chain[DEPTH];
static struct tp_fiber chain_root;
static int chain_sum;

static void
chain_body(void *arg)
{
    size_t i = (size_t)(uintptr_t)arg;
    struct tp_fiber *up = i == 0 ? &chain_root : &chain[i - 1].fiber;
    for (;;) {
        chain_sum++;
        if (i + 1 < DEPTH) {
            tp_fiber_switch(&chain[i].fiber, &chain[i + 1].fiber);
        }
        chain_sum++;
        tp_fiber_switch(&chain[i].fiber, up);
    }
}

static void
fibers_nest_deeply(void **state)
{
    (void)state;
    chain_sum = 0;
    tp_fiber_init_thread(&chain_root);
    for (size_t i = 0; i < DEPTH; i++) {
        green_new(&chain[i], chain_body, (void *)(uintptr_t)i);
    }
    for (int n = 1; n <= 10; n++) {
        tp_fiber_switch(&chain_root, &chain[0].fiber);
        assert_int_equal(chain_sum, n * 2 * DEPTH);
    }
    for (size_t i = 0; i < DEPTH; i++) {
        green_free(&chain[i]);
    }
    tp_fiber_fini(&chain_root);
}

/* --- unwinding --- */

static int frames;
static uintptr_t last_ip;
static int raise_code;

static _Unwind_Reason_Code
count_frame(struct _Unwind_Context *ctx, void *arg)
{
    (void)arg;
    if (_Unwind_GetIP(ctx) != 0) { /* 0: libgcc's mark for the end */
        last_ip = _Unwind_GetIP(ctx);
    }
    return ++frames > 1000 ? _URC_NORMAL_STOP : _URC_NO_REASON;
}

static __attribute__((noinline)) void
unwind_at(int levels)
{
    static struct _Unwind_Exception exception;
    if (levels > 0) {
        unwind_at(levels - 1);
        __asm__ volatile("" ::: "memory"); /* no tail call */
        return;
    }
    frames = 0;
    _Unwind_Backtrace(count_frame, NULL);
    memset(&exception, 0, sizeof exception);
    raise_code = (int)_Unwind_RaiseException(&exception);
    yield_from(&one);
}

static void
unwind_body(void *arg)
{
    unwind_at(*(int *)arg);
    abort();
}

static void
unwinding_ends_at_the_first_frame(void **state)
{
    int levels = 5;
    uintptr_t entry = (uintptr_t)tp_ctx_entry;
    (void)state;
    green_new(&one, unwind_body, &levels);
    for (int i = 0; i < 2; i++) {
        resume(&one);
        assert_in_range(frames, 8, 12);
        assert_in_range(last_ip, entry, entry + 32);
        assert_int_equal(raise_code, _URC_END_OF_STACK);
        green_start(&one, unwind_body, &levels);
    }
    green_free(&one);
}

/* --- leaving by signal --- */

static struct tp_fiber *rescue;
static char *fault_at;

static void
on_fault(int sig, siginfo_t *info, void *ucontext)
{
    (void)sig;
    fault_at = info->si_addr;
    tp_fiber_redirect(ucontext, rescue);
}

/* Volatile and opaque: the recursion has to stay one. */
static __attribute__((noinline)) int
overflow(volatile int *n)
{
    volatile char frame[512];
    frame[0] = (char)++*n;
    return *n < 0 ? 0 : overflow(n) + frame[0];
}

static void
overflow_body(void *arg)
{
    volatile int n = 0;
    (void)arg;
    overflow(&n);
    abort();
}

static void
a_handler_can_leave_an_overrun_stack(void **state)
{
    static char alt[65536];
    stack_t ss = {.ss_sp = alt, .ss_size = sizeof alt};
    struct sigaction act = {.sa_sigaction = on_fault,
                            .sa_flags = SA_SIGINFO | SA_ONSTACK};
    struct sigaction old;
    stack_t old_ss;
    struct tp_fiber self;
    (void)state;
    assert_int_equal(sigaltstack(&ss, &old_ss), 0);
    assert_int_equal(sigaction(SIGSEGV, &act, &old), 0);
    green_new(&one, overflow_body, NULL);
    tp_fiber_init_thread(&self);
    rescue = &self;
    for (int i = 1; i <= 3; i++) {
        errno = i;
        tp_fiber_switch(&self, &one.fiber);
        assert_int_equal(errno, i);
        assert_true(fault_at >= one.map && fault_at < one.lo);
        green_start(&one, overflow_body, NULL);
    }
    tp_fiber_fini(&self);
    green_free(&one);
    sigaction(SIGSEGV, &old, NULL);
    sigaltstack(&old_ss, NULL);
}

/* --- broken contracts --- */

static void
return_body(void *arg)
{
    (void)arg;
}

static void
entry_returns(void)
{
    green_new(&one, return_body, NULL);
    resume(&one);
}

static void
lock_is_held(void)
{
    struct tp_mutex m;
    tp_mutex_init(&m);
    green_new(&one, errno_body, NULL);
    tp_mutex_lock(&m, TP_RANK_LOG);
    resume(&one);
}

static void
not_suspended(void)
{
    struct tp_fiber self, running;
    tp_fiber_init_thread(&self);
    tp_fiber_init_thread(&running);
    tp_fiber_switch(&self, &running);
}

static void
expect_abort(void (*act)(void))
{
    int status;
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        signal(SIGABRT, SIG_DFL);
        close(STDERR_FILENO);
        act();
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

static void
broken_contracts_abort(void **state)
{
    (void)state;
    expect_abort(entry_returns);
#ifdef TROUPE_CHECKED
    expect_abort(lock_is_held);
    expect_abort(not_suspended);
#else
    (void)lock_is_held;
    (void)not_suspended;
#endif
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(errno_is_kept_per_fiber),
        cmocka_unit_test(fp_control_is_kept_per_fiber),
#if defined(__x86_64__)
        cmocka_unit_test(x87_and_sse_control_are_kept_apart),
#endif
        cmocka_unit_test(registers_are_kept),
        cmocka_unit_test(a_fiber_goes_on_at_another_thread),
        cmocka_unit_test(a_reset_fiber_starts_at_the_top),
        cmocka_unit_test(a_finished_fiber_can_be_used_again),
        cmocka_unit_test(fibers_nest_deeply),
        cmocka_unit_test(unwinding_ends_at_the_first_frame),
        cmocka_unit_test(a_handler_can_leave_an_overrun_stack),
        cmocka_unit_test(broken_contracts_abort),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
