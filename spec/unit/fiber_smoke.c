/*
 * fiber_smoke.c - the essentials of fiber_test.c without cmocka, for CPUs that
 * run under an emulator. Prints "ok" and returns 0, or aborts.
 */
#define _GNU_SOURCE
#include "ctx/fiber.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unwind.h>

#define STACK_BYTES ((size_t)128 << 10)
#define GUARD_BYTES ((size_t)64 << 10)

static char *map, *lo, *hi;
static struct tp_fiber green;
static struct tp_fiber *back;
static int step;

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

#if defined(__aarch64__)
#define FP_ODD   ((uint64_t)0x1400000) /* FZ, round towards plus infinity */
#define FP_PLAIN ((uint64_t)0)

static uint64_t
fp_control(void)
{
    uint64_t v;
    __asm__ volatile("mrs %0, fpcr" : "=r"(v));
    return v;
}

static void
fp_control_set(uint64_t v)
{
    __asm__ volatile("msr fpcr, %0" : : "r"(v));
}
#else
#define FP_ODD   ((uint64_t)0xdf80) /* FTZ, round towards plus infinity */
#define FP_PLAIN ((uint64_t)0x1f80)

static uint64_t
fp_control(void)
{
    return __builtin_ia32_stmxcsr() & 0xffc0;
}

static void
fp_control_set(uint64_t v)
{
    __builtin_ia32_ldmxcsr((unsigned)v);
}
#endif

static void
resume(void)
{
    struct tp_fiber self;
    tp_fiber_init_thread(&self);
    back = &self;
    tp_fiber_switch(&self, &green);
    tp_fiber_fini(&self);
}

static void
yield_back(void)
{
    tp_fiber_switch(&green, back);
}

static void *
resume_at_thread(void *arg)
{
    errno_put(77);
    resume();
    tp_check(errno_now() == 77);
    return arg;
}

static void
resume_elsewhere(void)
{
    pthread_t t;
    tp_check(pthread_create(&t, NULL, resume_at_thread, NULL) == 0);
    pthread_join(t, NULL);
}

static int frames;
static uintptr_t last_ip;

static _Unwind_Reason_Code
count_frame(struct _Unwind_Context *ctx, void *arg)
{
    (void)arg;
    if (_Unwind_GetIP(ctx) != 0) {
        last_ip = _Unwind_GetIP(ctx);
    }
    return ++frames > 100 ? _URC_NORMAL_STOP : _URC_NO_REASON;
}

static void
body(void *arg)
{
    tp_check(arg == &step);
    tp_check(errno_now() == 0 && fp_control() == FP_PLAIN);
    errno_put(11);
    fp_control_set(FP_ODD);
    for (step = 1;; step++) {
        double half = (double)step * 0.5;
        yield_back();
        tp_check(half == (double)step * 0.5);
        tp_check(errno_now() == 11 && fp_control() == FP_ODD);
    }
}

static void
unwind_body(void *arg)
{
    static struct _Unwind_Exception exception;
    (void)arg;
    frames = 0;
    _Unwind_Backtrace(count_frame, NULL);
    tp_check(frames < 10);
    tp_check(last_ip - (uintptr_t)tp_ctx_entry < 64);
    int rc = (int)_Unwind_RaiseException(&exception); /* comes back */
#if defined(__aarch64__)
    (void)rc; /* lost by libgcc before 12.4 (GCC bug 114843) */
#else
    tp_check(rc == _URC_END_OF_STACK);
#endif
    tp_fiber_switch_final(&green, back);
}

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
on_fault(int sig, siginfo_t *info, void *ucontext)
{
    (void)sig;
    tp_check((char *)info->si_addr >= map && (char *)info->si_addr < lo);
    step = -1;
    tp_fiber_redirect(ucontext, back);
}

static void
test_switch_and_migrate(void)
{
    tp_fiber_init(&green, lo, hi, body, &step);
    errno_put(5);
    for (int i = 1; i <= 1000; i++) {
        i % 50 == 0 ? resume_elsewhere() : resume();
        tp_check(step == i && errno_now() == 5 && fp_control() == FP_PLAIN);
    }
}

static void
test_unwind(void)
{
    for (int i = 0; i < 3; i++) {
        tp_fiber_init(&green, lo, hi, unwind_body, NULL);
        resume();
    }
}

static void
test_redirect(void)
{
    static char alt[65536];
    stack_t ss = {.ss_sp = alt, .ss_size = sizeof alt};
    struct sigaction act = {.sa_sigaction = on_fault,
                            .sa_flags = SA_SIGINFO | SA_ONSTACK};
    tp_check(sigaltstack(&ss, NULL) == 0);
    tp_check(sigaction(SIGSEGV, &act, NULL) == 0);
    for (int i = 0; i < 3; i++) {
        step = 0;
        errno_put(6 + i);
        tp_fiber_init(&green, lo, hi, overflow_body, NULL);
        resume();
        tp_check(step == -1 && errno_now() == 6 + i);
    }
}

int
main(void)
{
    map = mmap(NULL, GUARD_BYTES + STACK_BYTES, PROT_READ | PROT_WRITE,
               MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    tp_check(map != MAP_FAILED);
    tp_check(mprotect(map, GUARD_BYTES, PROT_NONE) == 0);
    lo = map + GUARD_BYTES;
    hi = lo + STACK_BYTES;
    test_switch_and_migrate();
    test_unwind();
    test_redirect();
    tp_fiber_fini(&green);
    puts("ok");
    return 0;
}
