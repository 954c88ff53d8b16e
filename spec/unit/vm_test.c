/*
 * vm_test.c - what a signal that met C code does to a Lua state.
 */
#define _GNU_SOURCE
#include "bindings/bind.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "ctx/preempt.h"
#include "sched/worker.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <troupe.h>
#include <unistd.h>

/* Of LuaJIT's dispatch table, one address for each kind of instruction: not
 * all, and none of the second table that follows. */
#define TABLE_BYTES (90 * sizeof(void *))

/* The handler's part: a signal that asks to yield has met this very function. */
static void
meet(struct tp_actor *a)
{
    struct tp_preempt_frame f = {(uintptr_t)meet, 0, 0};
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

static void
run_met(void (*met)(void))
{
    char path[] = "/tmp/troupe-vm-XXXXXX", a[3][32];
    const char *argv[] = {a[0], a[1], a[2]};
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, SCRIPT, sizeof SCRIPT - 1), sizeof SCRIPT - 1);
    close(fd);
    snprintf(a[0], sizeof a[0], "%#lx", (unsigned long)(uintptr_t)met);
    snprintf(a[1], sizeof a[1], "%#lx", (unsigned long)(uintptr_t)has_hook);
    snprintf(a[2], sizeof a[2], "%#lx",
             (unsigned long)(uintptr_t)knows_dispatch);
    struct troupe_config config;
    struct troupe_result r;
    troupe_config_init(&config);
    config.schedulers = 1;
    memset(&r, 0, sizeof r);
    int rc = troupe_run_file(&config, path, 3, argv, &r);
    unlink(path);
    if (r.error != NULL) {
        print_message("%s\n", r.error);
    }
    assert_int_equal(rc, 0);
    assert_null(r.error);
    troupe_result_fini(&r);
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

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_hook_follows_on_c_code_that_was_met),
        cmocka_unit_test(a_hook_follows_on_a_table_left_half_changed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
