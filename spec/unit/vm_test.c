/*
 * vm_test.c - what a signal that met C code does to a Lua state: a hook, a fence.
 */
#define _GNU_SOURCE
#include "bindings/bind.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/check.h"
#include "ctx/preempt.h"
#include "sched/worker.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <troupe.h>
#include <unistd.h>

/* Of LuaJIT's dispatch table, one address for each kind of instruction: not
 * all, and none of the second table that follows. */
#define TABLE_BYTES (90 * sizeof(void *))

/* The handler's part: a signal that asks to yield has met this very function. */
static void
meet(struct tp_actor *a)
{
    struct tp_preempt_frame f = {.pc = (uintptr_t)meet};
    /* relaxed: this thread reads it. */
    atomic_store_explicit(&tp_worker_self()->yield_wanted, true,
                          memory_order_relaxed);
    assert_false(tp_vm_may_stop(a, &f));
}

static void
met_once(void)
{
    meet(tp_actor_self());
}

/*
 * The first signal meets LuaJIT while that fills its table for a state without
 * hooks; it goes on to do so when the handler has returned. The second meets
 * what it left behind.
 */
static void
met_in_the_middle(void)
{
    struct tp_actor *a = tp_actor_self();
    void *table = (void *)tp_lua_of(a)->dispatch;
    char plain[TABLE_BYTES];
    memcpy(plain, table, sizeof plain);
    meet(a);
    memcpy(table, plain, sizeof plain);
    meet(a);
}

static int
has_hook(void)
{
    return lua_gethook(tp_lua_of(tp_actor_self())->L) != NULL;
}

static int
knows_dispatch(void)
{
    return tp_lua_of(tp_actor_self())->dispatch != 0;
}

/* Gets addresses; an FFI call is the C code that is met. */
static const char SCRIPT[] =
    "local ffi = require 'ffi'\n"
    "local function fn(i, type)\n"
    "  local address = tonumber(require 'troupe'.args[i])\n"
    "  return ffi.cast(type, address)\n"
    "end\n"
    "local met, has_hook = fn(1, 'void (*)(void)'), fn(2, 'int (*)(void)')\n"
    "if fn(3, 'int (*)(void)')() == 0 then return end\n"
    "for round = 1, 3 do\n"
    "  met()\n"
    "  local x = 1\n"
    "  x = x + round\n"
    "  assert(has_hook() == 0, 'the hook was not called')\n"
    "end\n";

/* Runs script with these functions' addresses as its arguments. */
static void
run(const char *script, int count, void (*const *functions)(void))
{
    char path[] = "/tmp/troupe-vm-XXXXXX", a[8][32];
    const char *argv[8];
    int fd = mkstemp(path);
    assert_true(fd >= 0 && count <= 8);
    assert_int_equal(write(fd, script, strlen(script)), strlen(script));
    close(fd);
    for (int i = 0; i < count; i++) {
        snprintf(a[i], sizeof a[i], "%#lx",
                 (unsigned long)(uintptr_t)functions[i]);
        argv[i] = a[i];
    }
    struct troupe_config config;
    struct troupe_result r;
    troupe_config_init(&config);
    config.schedulers = 1;
    config.slice_ns = 1000000000; /* no signals but the ones of the tests */
    memset(&r, 0, sizeof r);
    int rc = troupe_run_file(&config, path, count, argv, &r);
    unlink(path);
    if (r.error != NULL) {
        print_message("%s\n", r.error);
    }
    assert_int_equal(rc, 0);
    assert_null(r.error);
    troupe_result_fini(&r);
}

#define FN(f) ((void (*)(void))(f))

static void
run_met(void (*met)(void))
{
    void (*const all[])(void) = {met, FN(has_hook), FN(knows_dispatch)};
    run(SCRIPT, 3, all);
}

static void
a_hook_follows_on_c_code_that_was_met(void **state)
{
    (void)state;
    run_met(met_once);
}

static void
a_hook_follows_on_a_table_left_half_changed(void **state)
{
    (void)state;
    run_met(met_in_the_middle);
}

/* -- the fence ------------------------------------------------------------ */

#if defined(__x86_64__)

/* Each test's script begins so. calls runs a loop that is compiled, with f called
 * in each turn. */
#define PRELUDE                                                                \
    "local ffi, troupe = require 'ffi', require 'troupe'\n"                    \
    "local function fn(i, type)\n"                                             \
    "  return ffi.cast(type, tonumber(troupe.args[i]))\n"                      \
    "end\n"                                                                    \
    "local function calls(f)\n"                                                \
    "  local sum = 0\n"                                                        \
    "  for i = 1, 300 do sum = sum + f(i) end\n"                               \
    "  return sum\n"                                                           \
    "end\n"

static bool
is_fenced(void)
{
    return tp_lua_of(tp_actor_self())->fence[0] != 0;
}

/* The handler's part: signals meet the function that asks for some time. Is what
 * called it fenced then? */
static bool
met_and_fenced(uintptr_t pc, bool may_fault)
{
    struct tp_actor *a = tp_actor_self();
    struct tp_preempt_frame f = {.pc = pc,
                                 .sp = (uintptr_t)__builtin_frame_address(0),
                                 .may_fault = may_fault};
    uint64_t stop = tp_now_ns() + 2000000;
    bool last;
    /* relaxed: this thread reads it. */
    atomic_store_explicit(&tp_worker_self()->yield_wanted, true,
                          memory_order_relaxed);
    do {
        last = tp_now_ns() >= stop;
        tp_check(!tp_vm_may_stop(a, &f));
    } while (!is_fenced() && !last);
    return is_fenced();
}

static struct {
    int fenced;        /* calls that were fenced */
    uint64_t overruns; /* of the actor, before the last of them */
} seen;

/* Runs script as run does. How many calls were fenced? */
static int
fenced_by(const char *script, int count, void (*const *functions)(void))
{
    memset(&seen, 0, sizeof seen);
    run(script, count, functions);
    return seen.fenced;
}

/* From turn 200 on each call is fenced, and the one before has yielded. */
static int
fence_late(int turn)
{
    struct tp_actor *a = tp_actor_self();
    tp_check(!is_fenced());
    if (seen.fenced > 0) {
        tp_check(a->overruns == seen.overruns + 1);
    }
    if (turn >= 200) {
        tp_check(met_and_fenced((uintptr_t)fence_late, true));
        seen.fenced++;
        seen.overruns = a->overruns;
        errno = turn;
    }
    return turn;
}

/* Another actor has the thread and its errno in between. */
static void
a_fenced_trace_yields_and_goes_on(void **state)
{
    static const char script[] = PRELUDE
        "local hit = fn(1, 'int (*)(int)')\n"
        "local other = troupe.spawn(function()\n"
        "  local ffi = require 'ffi'\n"
        "  while true do ffi.errno(1000) troupe.yield() end\n"
        "end)\n"
        "local wrong = 0\n"
        "assert(calls(function(i)\n"
        "  local same = hit(i)\n"
        "  if i >= 200 and ffi.errno() ~= i then wrong = wrong + 1 end\n"
        "  return same\n"
        "end) == 45150)\n"
        "assert(wrong == 0, wrong)\n"
        "troupe.kill(other)\n";
    void (*const all[])(void) = {FN(fence_late)};
    (void)state;
    assert_int_equal(fenced_by(script, 1, all), 101);
}

/* -- what is not fenced */

static int
refuse(int turn)
{
    struct sigaction other = {.sa_handler = SIG_DFL}, ours;
    if (turn > 290) {
        tp_check(!met_and_fenced((uintptr_t)refuse, false));
        sigaction(SIGSEGV, &other, &ours);
        tp_check(!met_and_fenced((uintptr_t)refuse, true));
        sigaction(SIGSEGV, &ours, NULL);
        seen.fenced += met_and_fenced((uintptr_t)refuse, true);
    }
    return turn;
}

static int
refuse_uncompiled(int turn)
{
    tp_check(!met_and_fenced((uintptr_t)refuse_uncompiled, true));
    return turn;
}

static void
a_fence_needs_a_trace_and_a_handler(void **state)
{
    static const char script[] =
        PRELUDE "local refuse, uncompiled = fn(1, 'int (*)(int)'), fn(2, 'int "
                "(*)(int)')\n"
                "assert(calls(function(i) return refuse(i) end) == 45150)\n"
                "for i = 1, 10 do uncompiled(i) end\n";
    void (*const all[])(void) = {FN(refuse), FN(refuse_uncompiled)};
    (void)state;
    assert_int_equal(fenced_by(script, 2, all), 10);
}

/* -- faults of another kind */

static int
fault_twice(int turn)
{
    struct tp_actor *a = tp_actor_self();
    struct tp_lua *t = tp_lua_of(a);
    if (turn == 250) {
        tp_check(met_and_fenced((uintptr_t)fault_twice, true));
        uintptr_t page = t->fence[0];
        tp_check(!tp_vm_meant_fault(a, page - 1));
        tp_check(!tp_vm_meant_fault(a, 8));
        tp_check(tp_vm_meant_fault(a, page + 8));
        tp_check(!is_fenced());
        tp_check(!tp_vm_meant_fault(a, page + 8));
        t->fence[1] = (uintptr_t)&seen & ~(uintptr_t)4095; /* not its own */
        tp_check(!tp_vm_meant_fault(a, (uintptr_t)&seen));
        tp_vm_unfence(t);
        tp_check(t->fence[1] == 0); /* there is room for another */
        seen.fenced++;
    }
    return turn;
}

static void
a_fault_is_meant_once(void **state)
{
    static const char script[] =
        PRELUDE "local hit = fn(1, 'int (*)(int)')\n"
                "assert(calls(function(i) return hit(i) end) == 45150)\n";
    void (*const all[])(void) = {FN(fault_twice)};
    (void)state;
    assert_int_equal(fenced_by(script, 1, all), 1);
}

/* -- errors */

static struct {
    lua_Alloc alloc;
    void *ud;
    int refused;
} memory;

/* A large block is refused once, to a trace, which is fenced. */
static void *
refuse_large(void *ud, void *p, size_t old, size_t size)
{
    (void)ud;
    if (size > 100000 && met_and_fenced((uintptr_t)refuse_large, true)) {
        memory.refused++;
        return NULL;
    }
    return memory.alloc(memory.ud, p, old, size);
}

static void
begin_refusing(void)
{
    lua_State *L = tp_lua_of(tp_actor_self())->L;
    memory.alloc = lua_getallocf(L, &memory.ud);
    lua_setallocf(L, refuse_large, NULL);
}

static void
end_refusing(void)
{
    lua_setallocf(tp_lua_of(tp_actor_self())->L, memory.alloc, memory.ud);
}

/* Out of a trace, by one of its exits, into pcall. Once: LuaJIT before June 2023
 * crashes on the next ones, fenced or not. */
static void
an_error_passes_a_fence(void **state)
{
    static const char script[] =
        PRELUDE "local begin, finish = fn(1, 'void (*)(void)'), fn(2, 'void "
                "(*)(void)')\n"
                "local function work(n)\n"
                "  local t = {}\n"
                "  for i = 1, n do t[i] = i end\n"
                "  return #t\n"
                "end\n"
                "for _ = 1, 10 do assert(work(1000) == 1000) end\n"
                "begin()\n"
                "local ok, err = pcall(work, 200000)\n"
                "finish()\n"
                "assert(not ok and err == 'not enough memory', err)\n"
                "for _ = 1, 10 do\n"
                "  collectgarbage()\n"
                "  assert(work(1000) == 1000)\n"
                "  assert(work(200000) == 200000)\n"
                "end\n";
    void (*const all[])(void) = {FN(begin_refusing), FN(end_refusing)};
    (void)state;
    memset(&memory, 0, sizeof memory);
    run(script, 2, all);
    assert_int_equal(memory.refused, 1);
}

/* -- the end of a fenced actor */

static int
end_here(int turn)
{
    if (turn == 250) {
        tp_check(met_and_fenced((uintptr_t)end_here, true));
        tp_actor_exit(tp_actor_self(), tp_reason_const(TP_REASON_KILLED));
    }
    return turn;
}

/* In a finalizer that has run the code which was fenced. */
static void
finalized(int sum)
{
    tp_check(!is_fenced());
    seen.fenced += sum == 45150;
}

static void
finalizers_run_fenced_code(void **state)
{
    static const char script[] = PRELUDE
        "local pid, ref = troupe.spawn_opt({ jit = true, monitor = true },\n"
        "  function(calls, end_here, finalized)\n"
        "    local ffi = require 'ffi'\n"
        "    end_here = ffi.cast('int (*)(int)', tonumber(end_here))\n"
        "    finalized = ffi.cast('void (*)(int)', tonumber(finalized))\n"
        "    local ends = false\n"
        "    local function f(i)\n"
        "      if ends then return i end\n"
        "      return end_here(i)\n"
        "    end\n"
        "    local u = newproxy(true)\n"
        "    getmetatable(u).__gc = function()\n"
        "      ends = true\n"
        "      finalized(calls(f))\n"
        "    end\n"
        "    calls(f)\n"
        "    return u\n"
        "  end, calls, troupe.args[1], troupe.args[2])\n"
        "assert(troupe.await_down(ref, 60) == 'killed')\n";
    void (*const all[])(void) = {FN(end_here), FN(finalized)};
    (void)state;
    assert_int_equal(fenced_by(script, 2, all), 1);
}

/* -- the state of a host */

static uintptr_t left_page;

/* Turn 250 learns the page; 0, outside of the trace, leaves a fence there. */
static int
leave_fenced(int turn)
{
    struct tp_lua *t = tp_lua_of(tp_actor_self());
    if (turn == 250) {
        tp_check(met_and_fenced((uintptr_t)leave_fenced, true));
        left_page = t->fence[0];
    }
    if (turn == 0) {
        tp_check(!is_fenced() && left_page != 0);
        tp_check(mprotect((void *)left_page, 4096, PROT_READ) == 0);
        t->fence[0] = left_page;
    }
    return turn;
}

int luaopen_troupe_core(lua_State *L);

static void
a_host_has_its_code_back(void **state)
{
    static const char script[] =
        "local core, address = ...\n"
        "local ffi = require 'ffi'\n"
        "local leave = ffi.cast('int (*)(int)', address)\n"
        "local inside = false\n"
        "local function calls()\n"
        "  local sum = 0\n"
        "  for i = 1, 300 do\n"
        "    sum = sum + (inside and leave(i) or i)\n"
        "  end\n"
        "  return sum\n"
        "end\n"
        "core.run(function()\n"
        "  inside = true\n"
        "  assert(calls() == 45150)\n"
        "  leave(0)\n"
        "  inside = false\n"
        "end, { schedulers = 1, slice = 1 })\n"
        "for _ = 1, 10 do assert(calls() == 45150) end\n";
    lua_State *L = luaL_newstate();
    (void)state;
    luaL_openlibs(L);
    assert_int_equal(luaL_loadstring(L, script), 0);
    lua_pushcfunction(L, luaopen_troupe_core);
    lua_call(L, 0, 1);
    lua_pushnumber(L, (lua_Number)(uintptr_t)leave_fenced);
    if (lua_pcall(L, 2, 0, 0) != 0) {
        fail_msg("%s", lua_tostring(L, -1));
    }
    lua_close(L);
    assert_int_not_equal(left_page, 0);
}

/* A trace was left just after it had got memory for a cdata: the object is what
 * was there before. */
static void
an_object_left_unfinished_is_not_freed(void **state)
{
    struct tp_lua t = {0};
    lua_State *L = luaL_newstate();
    (void)state;
    tp_bindings_init();
    tp_vm_open(L, &t);
    lua_newtable(L);
    unsigned char *older = (void *)(uintptr_t)lua_topointer(L, -1);
    lua_newtable(L);
    unsigned char *newest = (void *)(uintptr_t)lua_topointer(L, -1);
    lua_settop(L, 0);
    tp_vm_settle(&t, (uintptr_t)older); /* not the newest: stays */
    newest[9] = 0x55;                   /* its type */
    tp_vm_settle(&t, (uintptr_t)newest);
    lua_newtable(L); /* its next one is not the one taken out */
    uintptr_t next;
    memcpy(&next, lua_topointer(L, -1), sizeof next);
    assert_int_equal(next, (uintptr_t)older);
    lua_close(L); /* crashes on a type that is none */
}

#endif

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_hook_follows_on_c_code_that_was_met),
        cmocka_unit_test(a_hook_follows_on_a_table_left_half_changed),
#if defined(__x86_64__)
        cmocka_unit_test(a_fenced_trace_yields_and_goes_on),
        cmocka_unit_test(a_fence_needs_a_trace_and_a_handler),
        cmocka_unit_test(a_fault_is_meant_once),
        cmocka_unit_test(an_error_passes_a_fence),
        cmocka_unit_test(finalizers_run_fenced_code),
        cmocka_unit_test(a_host_has_its_code_back),
        cmocka_unit_test(an_object_left_unfinished_is_not_freed),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
