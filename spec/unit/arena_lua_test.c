/*
 * arena_lua_test.c - LuaJIT states on arenas.
 */
#include "base/sys.h"
#include "bindings/arena.h"

#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#ifdef TROUPE_CHECKED
#define needs_faults() ((void)0)
#else
#define needs_faults() skip() /* tp_fault_arm does nothing here */
#endif

static struct tp_arena a;

/* The limit comes after lua_newstate: that of LuaJIT 2.1.0-beta3 crashes when
 * an allocation but its first fails (seen with plain malloc, too). */
static lua_State *
open_state(struct tp_arena *arena, size_t limit)
{
    tp_arena_init(arena, 0);
    lua_State *L = lua_newstate(tp_arena_alloc, arena);
    if (L != NULL) {
        tp_arena_set_limit(arena, limit);
        luaL_openlibs(L);
    }
    return L;
}

static int
teardown(void **state)
{
    (void)state;
    tp_fault_arm(0);
    return tp_slab_fini() ? 0 : -1;
}

static const char *const hungry[] = {
    "local t = {} for i = 1, 1e7 do t[i] = i end",
    "local t = {} for i = 1, 1e7 do t[i] = {i} end",
    "local t = {} for i = 1, 1e7 do t['k' .. i] = i end",
    "local s = 'x' while true do s = s .. s end",
    "local t = {} for i = 1, 1e7 do t[i] = string.rep('y', i) end",
    "local function f() return 1 + f() end f()",
    "local t = {} for i = 1, 1e7 do t[i] = function() return i end end",
    "local t, co = {}, coroutine.create for i = 1, 1e7 do t[i] = co(co) end",
    "return string.rep('z', 1e9)",
};

static void
run_hungry(size_t limit)
{
    lua_State *L = open_state(&a, limit);
    assert_non_null(L);
    for (int round = 0; round < 4; round++) {
        for (size_t i = 0; i < sizeof hungry / sizeof *hungry; i++) {
            assert_int_equal(luaL_loadstring(L, hungry[i]), 0);
            assert_int_not_equal(lua_pcall(L, 0, 0, 0), 0);
            const char *text = lua_tostring(L, -1);
            assert_true(strstr(text, "not enough memory") != NULL ||
                        strstr(text, "stack overflow") != NULL);
            assert_true(a.used <= limit);
            lua_settop(L, 0);
            lua_gc(L, LUA_GCCOLLECT, 0);
        }
    }
    assert_int_equal(luaL_dostring(L, "return ('ok'):upper()"), 0);
    assert_string_equal(lua_tostring(L, -1), "OK");
    /* LuaJIT loses an upvalue or so when memory ends while it makes a closure
     * (seen with plain malloc, too): the arena has it still. */
    lua_close(L);
    assert_true(a.used < 200);
    tp_arena_fini(&a);
}

static void
limit_of_64_kb_is_an_error_not_a_crash(void **state)
{
    (void)state;
    run_hungry(64 << 10);
}

static void
limit_of_1_mb_is_an_error_not_a_crash(void **state)
{
    (void)state;
    run_hungry(1 << 20);
}

/* The whole birth of a state needs one chunk: it fails at once or not at all,
 * which is what keeps lua_newstate from the crash named above. */
static void
birth_fails_whole_or_not_at_all(void **state)
{
    (void)state;
    needs_faults();
    tp_arena_init(&a, 0);
    tp_fault_arm(1);
    assert_null(lua_newstate(tp_arena_alloc, &a));
    tp_fault_arm(0);
    assert_int_equal(a.used, 0);
    void *first = tp_arena_alloc(&a, NULL, 0, 8);
    tp_fault_arm(1);
    lua_State *L = lua_newstate(tp_arena_alloc, &a);
    assert_non_null(L);
    assert_false(tp_fault_fired());
    lua_close(L);
    tp_arena_alloc(&a, first, 8, 0);
    assert_int_equal(a.used, 0);
    tp_arena_fini(&a);
}

static void
used_is_what_lua_counts(void **state)
{
    (void)state;
    lua_State *L = open_state(&a, 0);
    assert_int_equal(luaL_dostring(L, "t = {} for i = 1, 1000 do t[i] = {i} "
                                      "end collectgarbage()"),
                     0);
    size_t lua = (size_t)lua_gc(L, LUA_GCCOUNT, 0) * 1024 +
                 (size_t)lua_gc(L, LUA_GCCOUNTB, 0);
    assert_int_equal(a.used, lua);
    lua_close(L);
    tp_arena_fini(&a);
}

/* A long life with changing needs: memory follows the need, up and down. */
static void
heap_follows_the_need(void **state)
{
    (void)state;
    static const char code[] =
        "for round = 1, 10 do local t = {} "
        "for i = 1, 20000 do t[i] = {i, tostring(i), [round] = 'r' .. i} end "
        "local u = {} for i = 1, 3000 do u[i] = ('x'):rep(i % 1500) end "
        "t, u = nil, nil collectgarbage() collectgarbage() end";
    lua_State *L = open_state(&a, 0);
    assert_int_equal(luaL_dostring(L, code), 0);
    tp_arena_mend(&a);
    assert_true(tp_arena_peak(&a) > 1 << 20);
    assert_true(tp_arena_resident(&a) < a.used + (256 << 10));
    lua_close(L);
    tp_arena_fini(&a);
}

static size_t
chunks_out(void)
{
    struct tp_slab_stats s;
    tp_slab_thread_flush();
    tp_slab_get_stats(&s);
    return s.out[TP_SLAB_BIRTH] + s.out[TP_SLAB_SMALL] + s.out[TP_SLAB_LARGE];
}

static void
a_thousand_states_leave_nothing(void **state)
{
    (void)state;
    size_t before = chunks_out(), mapped = 0;
    for (int i = 0; i < 1000; i++) {
        lua_State *L = open_state(&a, 0);
        assert_int_equal(luaL_dostring(L, "t = {} for i = 1, 50 do t[i] = "
                                          "('x'):rep(i * 100) end"),
                         0);
        if (i % 2 == 0) {
            lua_close(L); /* the others go with their arena */
        }
        tp_arena_fini(&a);
        struct tp_slab_stats s;
        tp_slab_get_stats(&s);
        assert_true(i == 0 || s.mapped_bytes == mapped);
        mapped = s.mapped_bytes;
    }
    assert_int_equal(chunks_out(), before);
}

/* Each system call of a state's life fails once. */
static void
every_failure_is_survived(void **state)
{
    (void)state;
    needs_faults();
    for (long n = 1; n < 200; n++) {
        assert_true(tp_slab_fini());
        tp_fault_arm(n);
        tp_arena_init(&a, 0);
        lua_State *L = lua_newstate(tp_arena_alloc, &a);
        if (L != NULL) {
            (void)luaL_dostring(L, "local t = {} for i = 1, 2000 do t[i] = {} "
                                   "t['k' .. i] = i end return t");
            lua_close(L);
        }
        tp_fault_arm(0);
        tp_arena_fini(&a);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(limit_of_64_kb_is_an_error_not_a_crash,
                                  teardown),
        cmocka_unit_test_teardown(limit_of_1_mb_is_an_error_not_a_crash,
                                  teardown),
        cmocka_unit_test_teardown(birth_fails_whole_or_not_at_all, teardown),
        cmocka_unit_test_teardown(used_is_what_lua_counts, teardown),
        cmocka_unit_test_teardown(heap_follows_the_need, teardown),
        cmocka_unit_test_teardown(a_thousand_states_leave_nothing, teardown),
        cmocka_unit_test_teardown(every_failure_is_survived, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
