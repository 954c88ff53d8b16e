/*
 * codec_test.c - values copied between two Lua states.
 *
 * Every test runs twice: with tables read directly, and through the Lua API.
 * The property test prints its seed; CODEC_SEED=n replays it.
 */
#define _GNU_SOURCE
#include "codec.h"

#include "base/sys.h"
#include "troupe.h"

#include <lualib.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* -- Surroundings --------------------------------------------------------- */

#define HANDLE_KIND 7u
#define HANDLE_META "codec_test.handle"

static bool
is_test_pid(uint64_t bits)
{
    return bits < 0x1000;
}

static const char *
encode_test_handle(lua_State *L, int idx, struct tp_buf *out)
{
    uint32_t kind = HANDLE_KIND;
    uint64_t *h = lua_touserdata(L, idx);
    bool done = lua_objlen(L, idx) == sizeof *h &&
                tp_buf_put(out, &kind, sizeof kind) &&
                tp_buf_put(out, h, sizeof *h);
    return done ? NULL : "userdata";
}

/* How the last one was decoded. */
static bool peeked;

static void
decode_test_handle(lua_State *L, uint32_t kind, void *payload, size_t n,
                   bool peek)
{
    peeked = peek;
    assert_int_equal(kind, HANDLE_KIND);
    assert_int_equal(n, sizeof(uint64_t));
    memcpy(lua_newuserdata(L, n), payload, n);
}

static void
open_test_ffi(lua_State *L)
{
    lua_pushcfunction(L, luaopen_ffi);
    lua_pushliteral(L, "ffi");
    lua_call(L, 1, 1);
}

static const struct tp_codec_ops ops = {
    .is_pid = is_test_pid,
    .encode_handle = encode_test_handle,
    .decode_handle = decode_test_handle,
    .open_ffi = open_test_ffi,
};

/*
 * A Lua allocator that counts, and can refuse. It remembers the sizes itself:
 * LuaJIT frees a function with a wrong one if memory ran out while it made
 * the function's upvalues.
 */
struct heap {
    size_t used, limit;
    long fail_at; /* refuse the n-th growing call from now; 0: never */
};

#define HEAP_HEADER 16

static void *
heap_alloc(void *ud, void *p, size_t told_n, size_t n)
{
    struct heap *h = ud;
    unsigned char *block = p == NULL ? NULL : (unsigned char *)p - HEAP_HEADER;
    size_t old_n = 0;
    (void)told_n;
    if (block != NULL) {
        memcpy(&old_n, block, sizeof old_n);
    }
    if (n == 0) {
        h->used -= old_n;
        free(block);
        return NULL;
    }
    if (n > old_n) {
        if (h->fail_at > 0 && --h->fail_at == 0) {
            return NULL;
        }
        if (h->limit != 0 && h->used + n - old_n > h->limit) {
            return NULL;
        }
    }
    block = realloc(block, n + HEAP_HEADER);
    if (block == NULL) {
        return NULL;
    }
    memcpy(block, &n, sizeof n);
    h->used += n - old_n;
    return block + HEAP_HEADER;
}

static int
new_handle(lua_State *L)
{
    uint64_t *h = lua_newuserdata(L, sizeof *h);
    *h = (uint64_t)luaL_checknumber(L, 1);
    return 1;
}

static int
handle_value(lua_State *L)
{
    lua_pushnumber(L, (lua_Number) * (uint64_t *)lua_touserdata(L, 1));
    return 1;
}

static int
new_pid(lua_State *L)
{
    lua_pushlightuserdata(L, (void *)(uintptr_t)luaL_checknumber(L, 1));
    return 1;
}

static int
pid_value(lua_State *L)
{
    lua_pushnumber(L, (lua_Number)(uintptr_t)lua_touserdata(L, 1));
    return 1;
}

static int
new_empty_userdata(lua_State *L)
{
    lua_newuserdata(L, 0);
    return 1;
}

struct fixture {
    lua_State *from, *to;
    struct heap from_heap, to_heap;
    struct tp_buf buf;
};

static int
decode_protected(lua_State *L)
{
    struct tp_buf *b = lua_touserdata(L, 1);
    lua_settop(L, 0);
    int n = tp_decode(L, b->p, b->len);
    assert_int_equal(lua_gettop(L), n);
    return n;
}

static int
encode_protected(lua_State *L)
{
    struct fixture *f = lua_touserdata(L, 2);
    int rc = tp_encode(L, 1, "message", &f->buf);
    lua_pushnumber(L, rc);
    return 1;
}

static const char prelude[] =
    "function same(a, b) assert(rawequal(a, b), tostring(a) .. ' ~= ' .. "
    "tostring(b)) end "
    "function count(t) local n = 0 for _ in pairs(t) do n = n + 1 end "
    "return n end "
    "package.preload['test.module'] = function() "
    "  return {name = 'test.module', inner = {}, c = newproxy and newproxy()} "
    "end "
    "package.preload['test.fn'] = function() "
    "  return function() return 'fn module' end "
    "end ";

static void
run(lua_State *L, const char *source)
{
    if (luaL_dostring(L, source) != 0) {
        fail_msg("%s\nin: %s", lua_tostring(L, -1), source);
    }
}

static lua_State *
new_state(struct heap *h)
{
    static const luaL_Reg functions[] = {
        {"handle", new_handle},
        {"handle_value", handle_value},
        {"pid", new_pid},
        {"pid_value", pid_value},
        {"empty", new_empty_userdata},
        {"decode_protected", decode_protected},
        {"encode_protected", encode_protected},
    };
    *h = (struct heap){0, 0, 0};
    lua_State *L = lua_newstate(heap_alloc, h);
    assert_non_null(L);
    luaL_openlibs(L);
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        lua_register(L, functions[i].name, functions[i].func);
    }
    run(L, prelude);
    lua_settop(L, 0);
    return L;
}

static int
set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    f->from = new_state(&f->from_heap);
    f->to = new_state(&f->to_heap);
    tp_buf_init(&f->buf);
    *state = f;
    return 0;
}

static int
tear_down(void **state)
{
    struct fixture *f = *state;
    lua_close(f->from);
    lua_close(f->to);
    assert_int_equal(f->from_heap.used, 0);
    assert_int_equal(f->to_heap.used, 0);
    tp_buf_fini(&f->buf);
    free(f);
    return 0;
}

/* Encode what "source" returns; its first value is left at from[1]. */
static int
encode(struct fixture *f, const char *source)
{
    lua_settop(f->from, 0);
    run(f->from, source);
    tp_buf_reset(&f->buf);
    int top = lua_gettop(f->from);
    int rc = tp_encode(f->from, 1, "message", &f->buf);
    assert_int_equal(lua_gettop(f->from), top + (rc == TROUPE_EINVAL));
    return rc;
}

/* Decode into "to" in a protected call; returns its status. */
static int
decode(struct fixture *f)
{
    lua_settop(f->to, 0);
    lua_getglobal(f->to, "decode_protected"); /* allocates nothing */
    lua_pushlightuserdata(f->to, &f->buf);
    return lua_pcall(f->to, 1, LUA_MULTRET, 0);
}

/* Copy what "source" returns, then run "check" over there with it as "...". */
static void
copies(struct fixture *f, const char *source, const char *check)
{
    int rc = encode(f, source);
    if (rc != 0) {
        fail_msg("%s: %s", source, lua_tostring(f->from, -1));
    }
    if (decode(f) != 0) {
        fail_msg("%s: %s", source, lua_tostring(f->to, -1));
    }
    int n = lua_gettop(f->to);
    if (luaL_loadstring(f->to, check) != 0) {
        fail_msg("%s", lua_tostring(f->to, -1));
    }
    lua_insert(f->to, 1);
    if (lua_pcall(f->to, n, 0, 0) != 0) {
        fail_msg("%s: %s", source, lua_tostring(f->to, -1));
    }
}

/* Sending what "source" returns is refused with exactly this text. */
static void
refuses(struct fixture *f, const char *source, const char *text)
{
    int rc = encode(f, source);
    if (rc != TROUPE_EINVAL) {
        fail_msg("%s: was not refused", source);
    }
    assert_string_equal(lua_tostring(f->from, -1), text);
    assert_int_equal(f->buf.len, 0);
}

/* -- Plain values ----------------------------------------------------------- */

static void
scalars_arrive(void **state)
{
    struct fixture *f = *state;
    copies(f, "return nil", "assert(select('#', ...) == 1) same(..., nil)");
    copies(f, "return true", "same(..., true)");
    copies(f, "return false", "same(..., false)");
    copies(f, "return 42", "same(..., 42)");
    copies(f, "return -1.5e300", "same(..., -1.5e300)");
    copies(f, "return ''", "same(..., '')");
    copies(f, "return 'a\\0b\\0'", "same(..., 'a\\0b\\0')");
    for (int n = 60; n < 300; n++) {
        char source[64], check[64];
        snprintf(source, sizeof source, "return ('x'):rep(%d)", n);
        snprintf(check, sizeof check, "same(..., ('x'):rep(%d))", n);
        copies(f, source, check);
    }
}

static void
numbers_are_bit_exact(void **state)
{
    struct fixture *f = *state;
    copies(f, "return -0.0", "assert(1 / ... == -math.huge)");
    copies(f, "return {-0.0}", "assert(1 / (...)[1] == -math.huge)");
    copies(f, "return {math.huge, -math.huge, 0/0, 5e-324, 2^53 + 2}",
           "local t = ... same(t[1], math.huge) same(t[2], -math.huge) "
           "assert(t[3] ~= t[3]) same(t[4], 5e-324) same(t[5], 2^53 + 2)");
}

static void
small_values_need_no_buffer(void **state)
{
    struct fixture *f = *state;
    unsigned char bytes[TP_SCALAR_MAX];
    static const char *const sources[] = {
        "return nil",           "return true",  "return false",
        "return 1 / 3",         "return 'abc'", "return pid(77)",
        "return ('z'):rep(62)", "return ''",
    };
    for (size_t i = 0; i < sizeof sources / sizeof *sources; i++) {
        lua_settop(f->from, 0);
        lua_settop(f->to, 0);
        run(f->from, sources[i]);
        size_t n = tp_encode_scalar(f->from, 1, bytes);
        assert_true(n > 0 && n <= sizeof bytes);
        assert_true(tp_decode_scalar(f->to, bytes, n));
        assert_int_equal(tp_decode(f->to, bytes, n), 1);
        assert_true(lua_rawequal(f->to, 1, 2));
        assert_int_equal(lua_type(f->to, 1), lua_type(f->from, 1));
        assert_int_equal(encode(f, sources[i]), 0);
        assert_int_equal(f->buf.len, n);
        assert_memory_equal(f->buf.p, bytes, n);
        for (size_t k = 0; k < n; k++) {
            assert_false(tp_decode_scalar(f->to, bytes, k));
        }
    }
    run(f->from, "return ('z'):rep(63), {}, print, pid(0), pid(2^40)");
    for (int i = 0; i < 5; i++) {
        int idx = lua_gettop(f->from) - i;
        assert_int_equal(tp_encode_scalar(f->from, idx, bytes), 0);
    }
}

static void
pids_arrive_by_value(void **state)
{
    struct fixture *f = *state;
    copies(f, "return pid(5)", "same(pid_value(...), 5)");
    copies(f, "return {pid(5), me = pid(6), [pid(7)] = pid(8), [1.5] = pid(9)}",
           "local t = ... same(t[1], pid(5)) same(t.me, pid(6)) "
           "same(t[pid(7)], pid(8)) same(t[1.5], pid(9)) same(count(t), 4)");
}

static void
cdata_numbers_arrive(void **state)
{
    struct fixture *f = *state;
    copies(f, "return {-5LL, 0xffffffffffffffffULL, 2i, n = 2LL^62}",
           "local ffi = require 'ffi' local t = ... "
           "assert(ffi.istype('int64_t', t[1]) and t[1] == -5LL) "
           "assert(ffi.istype('uint64_t', t[2]) and "
           "  t[2] == 0xffffffffffffffffULL) "
           "assert(ffi.istype('complex', t[3]) and t[3].im == 2) "
           "assert(t.n == 2LL^62)");
    copies(f, "return 7LL", "assert(... == 7LL)");
    copies(f, "local u = 3LL return function() return u end",
           "assert((...)() == 3LL)");
    copies(f, "return {[9LL] = 'key'}",
           "local k, v = next(...) assert(k == 9LL) same(v, 'key')");
}

static void
cdata_arrives_where_ffi_is_closed(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(encode(f, "return {7LL, 8ULL}"), 0);
    lua_State *L = luaL_newstate();
    assert_int_equal(tp_decode(L, f->buf.p, f->buf.len), 1);
    lua_rawgeti(L, 1, 1);
    assert_int_equal(*(const int64_t *)lua_topointer(L, -1), 7);
    lua_rawgeti(L, 1, 2);
    assert_int_equal(*(const uint64_t *)lua_topointer(L, -1), 8);
    lua_close(L);
}

/* -- Tables ------------------------------------------------------------------ */

static void
tables_arrive(void **state)
{
    struct fixture *f = *state;
    copies(f, "return {}", "same(next(...), nil)");
    copies(f, "return {1, 2, 3, x = 'y', [true] = false, [1.5] = {}, [-1] = 9}",
           "local t = ... same(#t, 3) same(t[2], 2) same(t.x, 'y') "
           "same(t[true], false) same(count(t[1.5]), 0) same(t[-1], 9) "
           "same(count(t), 7)");
    copies(f, "return {[0] = 'zero', 'one', 'two'}",
           "local t = ... same(t[0], 'zero') same(t[1], 'one') "
           "same(#t, 2) same(count(t), 3)");
    copies(f, "return {[0] = {1}, {2}, nil, {4}, nil, nil, {7}}",
           "local t = ... same(t[0][1], 1) same(t[1][1], 2) "
           "same(t[3][1], 4) same(t[6][1], 7) same(count(t), 4)");
    copies(f, "return {nil, nil, 3}", "same((...)[3], 3) same(count(...), 1)");
    copies(f, "local t = {} for i = 5, 1, -1 do t[i] = i end return t",
           "same(#..., 5) for i, v in ipairs(...) do same(i, v) end");
    copies(f, "return {['a\\0b'] = {1}, ['a'] = {2}, [{}] = {3}}",
           "local t = ... same(t['a\\0b'][1], 1) same(t.a[1], 2) "
           "t['a\\0b'] = nil t.a = nil "
           "local k, v = next(t) same(type(k), 'table') same(v[1], 3)");
    copies(f,
           "local t = {} for i = 1, 5000 do t[i] = i; t['k' .. i] = i end "
           "for i = 1, 4000 do t[i] = nil end return t",
           "local t = ... same(count(t), 6000) "
           "for i = 4001, 5000 do same(t[i], i) end "
           "for i = 1, 5000 do same(t['k' .. i], i) end");
    copies(f,
           "return {[2^31] = 'a', [-2^31] = {1}, [2^40] = {2}, "
           "[2^31 - 1] = {3}, [1e300] = {4}}",
           "local t = ... same(t[2^31], 'a') same(t[-2^31][1], 1) "
           "same(t[2^40][1], 2) same(t[2^31 - 1][1], 3) same(t[1e300][1], 4)");
}

static void
metatables_stay_behind(void **state)
{
    struct fixture *f = *state;
    copies(f,
           "return setmetatable({a = {1}}, {__index = error, __pairs = error, "
           "__newindex = error, __len = error, __metatable = 'locked'})",
           "same(getmetatable(...), nil) same((...).a[1], 1)");
}

static void
cost_follows_the_entries(void **state)
{
    struct fixture *f = *state;
    copies(f, "return {[1] = 1, [2^30] = 2}",
           "local t = ... same(t[1], 1) same(t[2^30], 2) same(count(t), 2)");
    assert_in_range(f->buf.len, 1, 80);
    size_t before = f->to_heap.used;
    assert_int_equal(decode(f), 0);
    assert_true(f->to_heap.used < before + 1000);
}

static void
lists_are_made_as_lists(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(encode(f, "local t = {} for i = 1, 1000 do t[i] = i end "
                               "return t"),
                     0);
    lua_gc(f->to, LUA_GCCOLLECT, 0);
    size_t before = f->to_heap.used;
    assert_int_equal(decode(f), 0);
    assert_in_range(f->to_heap.used - before, 8000, 9000);
}

static void
sharing_and_cycles_keep_their_shape(void **state)
{
    struct fixture *f = *state;
    copies(f, "local t = {} t.me = t return t", "same(..., (...).me)");
    copies(f, "local t = {} t[t] = t return t", "local t = ... same(t[t], t)");
    copies(f, "local s = {1} return {s, s, {s}, [s] = s}",
           "local t = ... same(t[1], t[2]) same(t[3][1], t[1]) "
           "same(t[t[1]], t[1]) same(count(t), 4)");
    copies(f, "local a, b = {}, {} a.b, b.a = b, a return {a, b}",
           "local t = ... same(t[1].b, t[2]) same(t[2].a, t[1])");
    copies(f,
           "local s = ('long'):rep(50) local t = {} "
           "for i = 1, 100 do t[i] = s end t[s] = s return t",
           "local s = ('long'):rep(50) local t = ... "
           "for i = 1, 100 do same(t[i], s) end same(t[s], s)");
    assert_true(f->buf.len < 1000);
    /* Enough objects for the hash. */
    copies(f,
           "local t = {} for i = 1, 3000 do t[i] = {i} end "
           "for i = 1, 3000 do t[3000 + i] = t[i] end return t",
           "local t = ... for i = 1, 3000 do same(t[i], t[3000 + i]) "
           "same(t[i][1], i) end");
}

static void
doubling_is_linear_work(void **state)
{
    struct fixture *f = *state;
    copies(f, "local t = {} for i = 1, 30 do t = {t, t} end return t",
           "local t = ... for i = 1, 30 do same(t[1], t[2]) t = t[1] end "
           "same(count(t), 0)");
    assert_in_range(f->buf.len, 1, 31 * 40);
}

/* -- Depth --------------------------------------------------------------------- */

static void
nesting_of_any_depth_arrives(void **state)
{
    struct fixture *f = *state;
    static const int depths[] = {1, 2, 31, 32, 33, 34, 64, 65, 66, 200, 5000};
    for (size_t i = 0; i < sizeof depths / sizeof *depths; i++) {
        char source[200], check[200];
        snprintf(source, sizeof source,
                 "local t = {0} for i = 1, %d do t = {i, x = t} end return t",
                 depths[i]);
        snprintf(check, sizeof check,
                 "local t = ... for i = %d, 1, -1 do same(t[1], i) t = t.x end "
                 "same(t[1], 0) same(t.x, nil)",
                 depths[i]);
        copies(f, source, check);
    }
}

static void *
copy_deep(void *ud)
{
    struct fixture *f = ud;
    copies(f, "local t = {} for i = 1, 100000 do t = {t} end return t",
           "local t, n = ..., 0 while t[1] do t = t[1] n = n + 1 end "
           "same(n, 100000)");
    copies(f, "local t = {} for i = 1, 100000 do t = {[t] = true} end return t",
           "local t, n = ..., 0 while next(t) do t = next(t) n = n + 1 end "
           "same(n, 100000)");
    copies(f,
           "local fn = function() return 0 end for i = 1, 20000 do "
           "local g = fn fn = function() return g end end return fn",
           "local fn, n = ..., 0 while fn ~= 0 do fn = fn() n = n + 1 end "
           "same(n, 20001)");
    copies(f,
           "local first = {} local t = first "
           "for i = 1, 10000 do t.x = {up = t, first = first} t = t.x end "
           "t.x = first return first",
           "local first = ... local t = first for i = 1, 10000 do "
           "same(t.x.up, t) same(t.x.first, first) t = t.x end "
           "same(t.x, first)");
    return NULL;
}

static void
deep_values_need_little_stack(void **state)
{
    pthread_attr_t attr;
    pthread_t thread;
    size_t bytes = (size_t)256 << 10;
#ifdef TP_ASAN
    bytes *= 4; /* its frames are several times as large */
#endif
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, bytes);
    assert_int_equal(pthread_create(&thread, &attr, copy_deep, *state), 0);
    pthread_join(thread, NULL);
    pthread_attr_destroy(&attr);
}

static void
many_deep_branches_arrive(void **state)
{
    struct fixture *f = *state;
    copies(f,
           "local leaves = {} for i = 1, 20000 do leaves[i] = {i, {i}} end "
           "local t = leaves for i = 1, 31 do t = {t} end return t",
           "local t = ... for i = 1, 31 do t = t[1] end same(#t, 20000) "
           "for i = 1, 20000 do same(t[i][1], i) same(t[i][2][1], i) end");
}

/* -- Functions ------------------------------------------------------------------ */

static void
functions_arrive_with_their_upvalues(void **state)
{
    struct fixture *f = *state;
    copies(f, "return function(a) return a + 1 end", "same((...)(2), 3)");
    copies(f,
           "local n, s, t, e = 1, 'two', {3}, nil "
           "return function() n = n + 1 return n, s, t[1], e end",
           "local fn = ... local n, s, t, e = fn() same(n, 2) same(s, 'two') "
           "same(t, 3) same(e, nil) same((fn()), 3)");
    copies(f,
           "local function fib(n) return n < 2 and n or fib(n-1) + fib(n-2) "
           "end return fib",
           "same((...)(15), 610)");
    copies(f, "return {f = function() return x_global end}",
           "x_global = 'here' same((...).f(), 'here')");
    copies(f, "local t = {} t.f = function() return t end return t",
           "same((...).f(), ...)");
    copies(f, "local t = {} t.f = function() return t end return t.f",
           "local fn = ... same(fn().f, fn)");
    copies(f,
           "return loadstring(string.dump(function(...) return ... end, "
           "true))",
           "same((...)(5), 5)");
}

static void
names_and_lines_of_functions_survive(void **state)
{
    struct fixture *f = *state;
    copies(f, "local up = 1\nreturn function() return up end",
           "local i = debug.getinfo(...) same(i.linedefined, 2) "
           "same((debug.getupvalue(..., 1)), 'up')");
}

static void
functions_share_their_upvalues(void **state)
{
    struct fixture *f = *state;
    copies(f,
           "local n = 0 return {inc = function() n = n + 1 end, "
           "get = function() return n end}",
           "local t = ... t.inc() t.inc() same(t.get(), 2)");
    copies(f,
           "local odd, even "
           "function even(n) return n == 0 or odd(n - 1) end "
           "function odd(n) return n ~= 0 and even(n - 1) end "
           "return {odd, even}",
           "local odd, even = unpack(...) same(odd(7), true) "
           "same(even(7), false) "
           "same(debug.upvalueid(odd, 1) ~= debug.upvalueid(even, 1), true)");
    copies(f,
           "local a, b, c = 1, 2, 3 "
           "local function f() return a, b, c end "
           "local function g(x) c, b, a = x, f, g end return {g, f, f}",
           "local g, f, h = unpack(...) same(f, h) g(9) local _, b, c = f() "
           "same(b, f) same(c, 9)");
    /* A cell first met inside its own value. */
    copies(f,
           "local cell cell = {get = function() return cell end, "
           "set = function(v) cell = v end} "
           "return {cell.set, cell.get}",
           "local set, get = unpack(...) same(get().set, set) set(4) "
           "same(get(), 4)");
}

static void
modules_are_found_again_by_name(void **state)
{
    struct fixture *f = *state;
    copies(f, "local string = string return function() return string end",
           "same((...)(), string)");
    copies(f, "local g = _G return function() return g end",
           "same((...)(), _G)");
    copies(f, "local m = require 'test.module' return function() return m end",
           "same((...)(), require 'test.module')");
    copies(f, "local m = require 'test.fn' return function() return m() end",
           "same((...)(), 'fn module')");
    copies(f,
           "local ffi = require 'ffi' local C = ffi.C "
           "return function() return ffi, C end",
           "local a, b = (...)() local ffi = require 'ffi' same(a, ffi) "
           "same(b, ffi.C)");
    copies(f,
           "local s = string return {"
           "function() return s end, function() s = nil end}",
           "local get, clear = unpack(...) same(get(), string) clear() "
           "same(get(), nil)");
}

static void
named_things_are_looked_up(void **state)
{
    struct fixture *f = *state;
    copies(f,
           "local p, i, out = print, table.insert, io.stdout "
           "return function() return p, i, out end",
           "local p, i, out = (...)() same(p, print) same(i, table.insert) "
           "same(out, io.stdout)");
    copies(f,
           "local c = require 'test.module'.c "
           "return function() return c end",
           "same((...)(), require 'test.module'.c)");
    copies(f,
           "local require = require return function(n) return require(n) "
           "end",
           "same((...)('string'), string)");
}

static void
a_module_that_is_missing_there_is_named(void **state)
{
    struct fixture *f = *state;
    run(f->from, "package.loaded['only.here'] = {c = newproxy()}");
    assert_int_equal(encode(f, "local m = require 'only.here' "
                               "return function() return m end"),
                     0);
    assert_int_equal(decode(f), LUA_ERRRUN);
    assert_non_null(strstr(lua_tostring(f->to, -1),
                           "a function received needs module 'only.here': "));
    run(f->to, "package.preload['only.here'] = function() error('broken') end");
    assert_int_equal(decode(f), LUA_ERRRUN);
    assert_non_null(strstr(lua_tostring(f->to, -1), "broken"));
    assert_int_equal(encode(f, "local c = require 'only.here'.c "
                               "return function() return c end"),
                     0);
    run(f->to, "package.loaded['only.here'] = {}");
    assert_int_equal(decode(f), LUA_ERRRUN);
    assert_non_null(
        strstr(lua_tostring(f->to, -1), "needs 'c' of module 'only.here'"));
}

static void
many_upvalues_arrive(void **state)
{
    struct fixture *f = *state;
    copies(f,
           "local src = {'local u0 = 0'} "
           "for i = 1, 59 do src[#src + 1] = ' local u' .. i .. ' = {' .. i .. "
           "'}' end "
           "src[#src + 1] = ' return function() return u0' "
           "for i = 1, 59 do src[#src + 1] = ' + u' .. i .. '[1]' end "
           "src[#src + 1] = ' end' return loadstring(table.concat(src))()",
           "same((...)(), 1770)");
}

/* -- Handles ---------------------------------------------------------------------- */

static void
collect_handle(uint32_t kind, void *payload, size_t n, void *ud)
{
    uint64_t v;
    assert_int_equal(kind, HANDLE_KIND);
    assert_int_equal(n, sizeof v);
    memcpy(&v, payload, sizeof v);
    *(uint64_t *)ud = *(uint64_t *)ud * 10 + v;
}

static void
handles_arrive_and_can_be_listed(void **state)
{
    struct fixture *f = *state;
    uint64_t seen = 0;
    copies(f, "return handle(5)", "same(handle_value(...), 5)");
    copies(f, "local h = handle(1) return {h, h, handle(2), x = {handle(3)}}",
           "local t = ... same(t[1], t[2]) same(handle_value(t[1]), 1) "
           "same(handle_value(t[3]), 2) same(handle_value(t.x[1]), 3)");
    tp_each_handle(f->buf.p, f->buf.len, collect_handle, &seen);
    assert_int_equal(seen, 321);
    seen = 0;
    assert_int_equal(encode(f, "return {1}"), 0);
    tp_each_handle(f->buf.p, f->buf.len, collect_handle, &seen);
    assert_int_equal(encode(f, "return 'abc'"), 0);
    tp_each_handle(f->buf.p, f->buf.len, collect_handle, &seen);
    assert_int_equal(seen, 0);
}

static void
a_look_at_a_handle_is_told_apart(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(encode(f, "return {handle(1)}"), 0);
    lua_settop(f->to, 0);
    assert_int_equal(tp_peek(f->to, f->buf.p, f->buf.len), 1);
    assert_true(peeked);
    assert_int_equal(tp_decode(f->to, f->buf.p, f->buf.len), 1);
    assert_false(peeked);
    lua_settop(f->to, 0);
}

static void
handles_may_be_upvalues(void **state)
{
    struct fixture *f = *state;
    copies(f, "local h = handle(4) return function() return h end",
           "same(handle_value((...)()), 4)");
}

/* -- Errors ----------------------------------------------------------------------- */

static void
errors_name_the_path(void **state)
{
    struct fixture *f = *state;
    refuses(f, "return print", "message: C function cannot be sent");
    refuses(f, "return coroutine.create(print)",
            "message: coroutine cannot be sent");
    refuses(f, "return newproxy()", "message: userdata cannot be sent");
    refuses(f, "return pid(0)", "message: light userdata cannot be sent");
    refuses(f, "return {pid(2^40)}",
            "message[1]: light userdata cannot be sent");
    refuses(f, "return require 'ffi'.new('int[2]')",
            "message: cdata cannot be sent");
    refuses(f, "return {conn = {1, io.stdout}}",
            "message.conn[2]: userdata cannot be sent");
    refuses(f, "return {a = {b = {{c = print}}}}",
            "message.a.b[1].c: C function cannot be sent");
    refuses(f, "return {['two words'] = print}",
            "message[\"two words\"]: C function cannot be sent");
    refuses(f, "return {['q\"\\\\\\n\\0'] = print}",
            "message[\"q\\\"\\\\\\010\\000\"]: C function cannot be sent");
    refuses(f, "return {[1.5] = {[-3] = {[true] = {[false] = print}}}}",
            "message[1.5][-3][true][false]: C function cannot be sent");
    refuses(f, "return {[2^40] = print}",
            "message[1099511627776]: C function cannot be sent");
    refuses(f, "return {[pid(3)] = print}",
            "message[<pid>]: C function cannot be sent");
    refuses(f, "return {[{}] = print}",
            "message[<table>]: C function cannot be sent");
    refuses(f, "return {[handle(1)] = print}",
            "message[<userdata>]: C function cannot be sent");
    refuses(f, "return {[function() end] = print}",
            "message[<function>]: C function cannot be sent");
    refuses(f, "return {[print] = 1}",
            "message[<key>]: C function cannot be sent");
    refuses(f, "return {x = {[io.stdout] = 1}}",
            "message.x[<key>]: userdata cannot be sent");
    refuses(f, "return {[{x = print}] = 1}",
            "message[<key>].x: C function cannot be sent");
    refuses(f, "return {nil, nil, print}",
            "message[3]: C function cannot be sent");
    refuses(f, "return {[0] = print}", "message[0]: C function cannot be sent");
    refuses(f, "return {['end\\0'] = print}",
            "message[\"end\\000\"]: C function cannot be sent");
}

static void
errors_name_upvalues(void **state)
{
    struct fixture *f = *state;
    refuses(f, "local conn = newproxy() return function() return conn end",
            "message<upvalue conn>: userdata cannot be sent");
    refuses(f,
            "local conn = {newproxy()} "
            "return {on = function() return conn end}",
            "message.on<upvalue conn>[1]: userdata cannot be sent");
    refuses(f,
            "local c = coroutine.create(print) local function g() return c end "
            "return {function() return g end}",
            "message[1]<upvalue g><upvalue c>: coroutine cannot be sent");
    refuses(f, "local p = {print} return function() return p end",
            "message<upvalue p>[1]: C function cannot be sent");
    refuses(f, "local p = pid(0) return function() return p end",
            "message<upvalue p>: light userdata cannot be sent");
    refuses(f,
            "local c = require 'ffi'.typeof('int') "
            "return function() return c end",
            "message<upvalue c>: cdata cannot be sent");
}

static void
long_paths_are_cut(void **state)
{
    struct fixture *f = *state;
    refuses(f, "local t = print for i = 1, 16 do t = {t} end return t",
            "message[1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1]: "
            "C function cannot be sent");
    refuses(f, "local t = print for i = 1, 17 do t = {t} end return t",
            "message[1][1][1][1][1][1][1][1]...(1 levels)..."
            "[1][1][1][1][1][1][1][1]: C function cannot be sent");
    refuses(f,
            "local t = {last = print} for i = 1, 100000 do t = {[i] = t} end "
            "return {first = t}",
            "message.first[100000][99999][99998][99997][99996][99995][99994]"
            "...(99986 levels)...[7][6][5][4][3][2][1].last: "
            "C function cannot be sent");
    assert_int_equal(encode(f,
                            "local t = print for i = 1, 40 do "
                            "t = {[('\\1'):rep(100) .. i] = t} end return t"),
                     TROUPE_EINVAL);
    assert_in_range(lua_objlen(f->from, -1), 200, 6000);
    assert_non_null(
        strstr(lua_tostring(f->from, -1), ": C function cannot be sent"));
}

static void
long_names_are_cut(void **state)
{
    struct fixture *f = *state;
    refuses(f, "return {[('x'):rep(50)] = print}",
            "message[\"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx...\"]: "
            "C function cannot be sent");
    refuses(f, "local k = ('y'):rep(200) return {k, [k] = print}",
            "message[\"yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy...\"]: "
            "C function cannot be sent");
}

static void
a_table_and_an_empty_userdata_are_not_confused(void **state)
{
    struct fixture *f = *state;
    refuses(f,
            "local t = {} for i = 1, 1000 do t[i] = {} end "
            "t[1001] = empty() return t",
            "message[1001]: userdata cannot be sent");
}

/* -- Several values ------------------------------------------------------------------ */

static int
encode_n(struct fixture *f, const char *source)
{
    lua_settop(f->from, 0);
    run(f->from, source);
    tp_buf_reset(&f->buf);
    return tp_encode_n(f->from, 1, lua_gettop(f->from), "argument", &f->buf);
}

static void
several_values_arrive(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(encode_n(f, "local t = {} return nil, t, 5, {t}, nil"), 0);
    assert_int_equal(decode(f), 0);
    assert_int_equal(lua_gettop(f->to), 5);
    assert_true(lua_isnil(f->to, 1));
    assert_true(lua_isnil(f->to, 5));
    lua_rawgeti(f->to, 4, 1);
    assert_true(lua_rawequal(f->to, 2, -1));
    assert_int_equal(encode_n(f, "return"), 0);
    assert_int_equal(decode(f), 0);
    assert_int_equal(lua_gettop(f->to), 0);
    assert_int_equal(encode_n(f, "return 1"), 0);
    assert_int_equal(decode(f), 0);
    assert_int_equal(lua_gettop(f->to), 1);
    assert_int_equal(encode_n(f, "return unpack({}, 1, 500)"), 0);
    assert_int_equal(decode(f), 0);
    assert_int_equal(lua_gettop(f->to), 500);
}

static void
errors_number_the_values(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(encode_n(f, "return 1, {conn = print}"), TROUPE_EINVAL);
    assert_string_equal(lua_tostring(f->from, -1),
                        "argument 2.conn: C function cannot be sent");
    assert_int_equal(encode_n(f, "return 1, 2, print"), TROUPE_EINVAL);
    assert_string_equal(lua_tostring(f->from, -1),
                        "argument 3: C function cannot be sent");
    assert_int_equal(encode_n(f, "return {print}"), TROUPE_EINVAL);
    assert_string_equal(lua_tostring(f->from, -1),
                        "argument[1]: C function cannot be sent");
}

static void
an_encode_leaves_room_before_it(void **state)
{
    struct fixture *f = *state;
    static const char *const sources[] = {
        "return 1", "local t = {} return {t, t, handle(2), 5LL}",
        "local t = {} for i = 1, 100 do t = {t} end return t"};
    for (size_t i = 0; i < 3; i++) {
        uint64_t seen = 0;
        lua_settop(f->from, 0);
        run(f->from, sources[i]);
        tp_buf_reset(&f->buf);
        assert_true(tp_buf_put(&f->buf, "header", 6));
        assert_int_equal(tp_encode(f->from, -1, "message", &f->buf), 0);
        assert_memory_equal(f->buf.p, "header", 6);
        lua_settop(f->to, 0);
        assert_int_equal(tp_decode(f->to, f->buf.p + 6, f->buf.len - 6), 1);
        tp_each_handle(f->buf.p + 6, f->buf.len - 6, collect_handle, &seen);
        assert_int_equal(seen, i == 1 ? 2 : 0);
    }
    lua_settop(f->from, 0);
    run(f->from, "return {1, print}");
    assert_int_equal(f->buf.len > 6, 1);
    size_t len = f->buf.len;
    assert_int_equal(tp_encode(f->from, 1, "message", &f->buf), TROUPE_EINVAL);
    assert_int_equal(f->buf.len, len);
}

/* -- Memory ---------------------------------------------------------------------------- */

static void
failed_sends_keep_memory_flat(void **state)
{
    struct fixture *f = *state;
    run(f->from, "big = {} for i = 1, 30 do big[i] = {i, name = 'n' .. i} end "
                 "local t = print for i = 1, 40 do t = {t} end big.zz = t");
    lua_settop(f->from, 0);
    lua_getglobal(f->from, "big");
    size_t used = 0, cap = 0, seen = 0;
    for (int i = 0; i < 100000; i++) {
        tp_buf_reset(&f->buf);
        assert_int_equal(tp_encode(f->from, 1, "message", &f->buf),
                         TROUPE_EINVAL);
        lua_settop(f->from, 1);
        if (i == 100) {
            lua_gc(f->from, LUA_GCCOLLECT, 0);
            used = f->from_heap.used;
            cap = f->buf.cap;
            seen = f->buf.seen_cap + f->buf.index_cap;
        }
    }
    lua_gc(f->from, LUA_GCCOLLECT, 0);
    assert_in_range(f->from_heap.used, used - 4096, used + 4096);
    assert_int_equal(f->buf.cap, cap);
    assert_int_equal(f->buf.seen_cap + f->buf.index_cap, seen);
}

static const char *const rich_source =
    "local shared, m = {1}, require 'test.module' local n = 0 "
    "local deep = {} for i = 1, 100 do deep = {deep} end "
    "local t = {shared, shared, deep = deep, long = ('s'):rep(500), "
    "f = function() n = n + 1 return m, print, shared end, "
    "g = function() return n end, h = handle(3), [pid(4)] = 5LL} "
    "t.me = t for i = 1, 50 do t[i] = {i, tostring(i)} end return t";

/* Is this the outcome of a call that ran out of memory? Text on the stack. */
static bool
is_memory_error(lua_State *L, int status)
{
    const char *text = status != 0 ? lua_tostring(L, -1) : NULL;
    return text != NULL && strcmp(text, "not enough memory") == 0;
}

/* A receiver with less and less memory gets an error, never a crash. */
static void
receivers_may_run_out_of_memory(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(encode(f, rich_source), 0);
    assert_int_equal(decode(f), 0);
    lua_settop(f->to, 0);
    int failures = 0;
    for (long n = 1;; n++) {
        lua_gc(f->to, LUA_GCCOLLECT, 0);
        f->to_heap.fail_at = n;
        int rc = decode(f);
        bool fired = f->to_heap.fail_at == 0;
        f->to_heap.fail_at = 0;
        if (rc == 0 && !fired) {
            break;
        }
        failures += rc != 0;
        if (rc != 0 && !is_memory_error(f->to, rc)) {
            fail_msg("allocation %ld: %s", n, lua_tostring(f->to, -1));
        }
    }
    assert_true(failures > 100);
    lua_gc(f->to, LUA_GCCOLLECT, 0);
    f->to_heap.limit = f->to_heap.used + 64 * 1024;
    assert_int_equal(encode(f, "return ('x'):rep(65536)"), 0);
    assert_int_equal(decode(f), LUA_ERRMEM);
    assert_int_equal(
        encode(f, "local t = {} for i = 1, 10000 do t[i] = {i} end return t"),
        0);
    assert_int_equal(decode(f), LUA_ERRMEM);
    assert_int_equal(encode(f, "return {[1] = 1, [2^30] = 2}"), 0);
    assert_int_equal(decode(f), 0);
}

/* Encode from[1] in a protected call; returns its status. */
static int
encode_in_pcall(struct fixture *f, int *out_rc)
{
    lua_State *L = f->from;
    lua_settop(L, 1);
    lua_getglobal(L, "encode_protected");
    lua_pushvalue(L, 1);
    lua_pushlightuserdata(L, f);
    tp_buf_reset(&f->buf);
    int status = lua_pcall(L, 2, 1, 0);
    *out_rc = status == 0 ? (int)lua_tonumber(L, -1) : 0;
    return status;
}

static void
senders_may_run_out_of_memory(void **state)
{
    struct fixture *f = *state;
    const char *const sources[] = {
        rich_source,
        "local t = {print} for i = 1, 100 do t = {t, 5LL} end return t"};
    for (int i = 0; i < 2; i++) {
        int rc = encode(f, sources[i]);
        assert_int_equal(rc, i == 0 ? 0 : TROUPE_EINVAL);
        for (long n = 1;; n++) {
            lua_gc(f->from, LUA_GCCOLLECT, 0);
            f->from_heap.fail_at = n;
            int status = encode_in_pcall(f, &rc);
            bool fired = f->from_heap.fail_at == 0;
            f->from_heap.fail_at = 0;
            assert_true(status == 0 || status == LUA_ERRMEM);
            if (!fired) {
                assert_int_equal(status, 0);
                assert_int_equal(rc, i == 0 ? 0 : TROUPE_EINVAL);
                break;
            }
        }
    }
    copies(f, "return {1, {2}}", "same((...)[2][1], 2)");
}

#ifdef TROUPE_CHECKED
static void
a_buffer_that_cannot_grow_is_reported(void **state)
{
    struct fixture *f = *state;
    bool fired = true;
    for (long n = 1; fired; n++) {
        lua_settop(f->from, 0);
        run(f->from, rich_source);
        tp_buf_fini(&f->buf);
        tp_fault_arm(n);
        int rc = tp_encode(f->from, 1, "message", &f->buf);
        fired = tp_fault_fired();
        tp_fault_arm(0);
        assert_int_equal(rc, fired ? TROUPE_ENOMEM : 0);
        assert_int_equal(lua_gettop(f->from), 1);
        assert_true(rc == 0 || f->buf.len == 0);
    }
    assert_int_equal(decode(f), 0);
}
#endif

/* -- Robustness ------------------------------------------------------------------------ */

static int
decode_bytes(lua_State *L)
{
    tp_decode(L, lua_touserdata(L, 1), (size_t)lua_tonumber(L, 2));
    return 0;
}

/* Each prefix lies at the end of its own allocation: ASan sees a read past. */
static void
truncated_messages_are_refused(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(encode(f, rich_source), 0);
    for (size_t n = 0; n < f->buf.len; n++) {
        unsigned char *copy = malloc(n + 1);
        assert_non_null(copy);
        memcpy(copy + 1, f->buf.p, n);
        lua_settop(f->to, 0);
        lua_pushcfunction(f->to, decode_bytes);
        lua_pushlightuserdata(f->to, copy + 1);
        lua_pushnumber(f->to, (lua_Number)n);
        int rc = lua_pcall(f->to, 2, 0, 0);
        free(copy);
        /* Only the last put-off table can be missing without a trace. */
        assert_true(rc == LUA_ERRRUN || n > 1000);
    }
}

/* A finalizer that sends through the same buffer, at the worst moment. */
static struct fixture *finalizer_fixture;
static long finalizer_runs;

static int
finalizer_sends(lua_State *L)
{
    struct fixture *f = finalizer_fixture;
    tp_buf_reset(&f->buf);
    run(L, "return {other = {1, 2, 3}, s = ('!'):rep(1000)}");
    assert_int_equal(tp_encode(L, -1, "message", &f->buf), 0);
    if (++finalizer_runs % 3 == 0) {
        tp_buf_fini(&f->buf);
    }
    return 0;
}

static void
finalizers_may_send_through_the_same_buffer(void **state)
{
    struct fixture *f = *state;
    finalizer_fixture = f;
    finalizer_runs = 0;
    lua_register(f->from, "finalizer_sends", finalizer_sends);
    run(f->from,
        "local p = newproxy(true) getmetatable(p).__gc = finalizer_sends "
        "function litter() for i = 1, 10 do newproxy(p) end end "
        "deep = {5LL} for i = 1, 70 do deep = {deep} end "
        "collectgarbage('setpause', 1)");
    for (int i = 0; i < 300; i++) {
        copies(f, "litter() return deep",
               "local t, n = ..., 0 while type(t) == 'table' do "
               "t = t[1] n = n + 1 end assert(t == 5LL) same(n, 71)");
    }
    assert_true(finalizer_runs > 100);
    run(f->from, "collectgarbage()");
    lua_gc(f->from, LUA_GCSTOP, 0);
    run(f->from, "getmetatable = nil");
}

static void
buffers_can_be_trimmed(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(encode(f, "return ('x'):rep(100000)"), 0);
    tp_buf_trim(&f->buf, 1 << 20);
    assert_true(f->buf.cap >= 100000);
    tp_buf_trim(&f->buf, 1000);
    assert_int_equal(f->buf.cap, 0);
    copies(f, "return {1}", "same((...)[1], 1)");
}

static void
encoding_works_in_a_coroutine(void **state)
{
    struct fixture *f = *state;
    lua_settop(f->from, 0);
    lua_State *co = lua_newthread(f->from);
    run(co, "local t = {} for i = 1, 200 do t = {t, print and 1LL} end "
            "return t");
    tp_buf_reset(&f->buf);
    assert_int_equal(tp_encode(co, 1, "message", &f->buf), 0);
    assert_int_equal(lua_gettop(co), 1);
    assert_int_equal(decode(f), 0);
}

/* -- Property test ----------------------------------------------------------------------- */

/*
 * make(seed) builds a random graph; describe(v) turns a value into text that
 * is equal for equal shapes: objects and upvalue cells are numbered as they
 * are met, entries go by sorted keys.
 */
static const char property_source[] =
    "local seed "
    "local function rnd(n) seed = (seed * 16807) % 2147483647 "
    "  return seed % n + 1 end "
    "local objects, strings "
    "local function scalar() local k = rnd(9) "
    "  if k == 1 then return rnd(100) elseif k == 2 then return -rnd(9) / 8 "
    "  elseif k == 3 then return rnd(2) == 1 "
    "  elseif k == 4 then return ('s'):rep(rnd(300)) "
    "  elseif k == 5 then return 'k' .. rnd(20) .. '\\0' "
    "  elseif k == 6 then return pid(rnd(4000)) "
    "  elseif k == 7 then return rnd(9) * 2^(rnd(100) - 50) "
    "  else return 'k' .. rnd(50) end end "
    "local value "
    "local function func() "
    "  local a, b = value(), objects[rnd(#objects)] "
    "  local f = function(x) if x then a, b = x, x end return a, b end "
    "  local g = function() return b, f, string, rnd and a end "
    "  objects[#objects + 1] = f objects[#objects + 1] = g "
    "  return rnd(2) == 1 and f or g end "
    "local budget, depth "
    "function value() budget = budget - 1 "
    "  if budget < 0 then return scalar() end "
    "  local k = rnd(12) "
    "  if k <= 4 then return scalar() end "
    "  if k == 5 then return objects[rnd(#objects)] end "
    "  if k == 6 then return rnd(2) == 1 and -5LL or 7ULL end "
    "  if k == 7 and rnd(3) == 1 then return func() end "
    "  if k == 8 and rnd(3) == 1 then return handle(rnd(1000)) end "
    "  local t = {} objects[#objects + 1] = t "
    "  if rnd(12) == 1 then local c = t "
    "    for i = 1, rnd(90) do local n = {} c[rnd(2) == 1 and 1 or 'n'] = n "
    "      c = n end c.v = value() end "
    "  for i = 1, rnd(6) - 1 do t[i] = value() end "
    "  if rnd(6) == 1 then t[0] = value() end "
    "  if rnd(6) == 1 then t[{}] = value() end "
    "  for i = 1, rnd(5) - 1 do local s = scalar() "
    "    if type(s) ~= 'userdata' or rnd(2) == 1 then t[s] = value() end end "
    "  if rnd(8) == 1 then t[rnd(20)] = nil end "
    "  return t end "
    "function make(s) seed = s objects = {{}} budget = 150 "
    "  return {value(), value(), value()} end "
    "function describe(root) "
    "  local ids, n, out = {}, 0, {} "
    "  local function put(s) out[#out + 1] = s end "
    "  local function flat(v) local t = type(v) "
    "    if t == 'number' then return ('n%.17g'):format(v) .. "
    "      (v == 0 and (1 / v < 0 and '-' or '+') or '') end "
    "    if t == 'userdata' and debug.getmetatable(v) == nil and "
    "      pcall(pid_value, v) and light(v) then return 'p' .. pid_value(v) "
    "end "
    "    if t == 'string' then return 's' .. v end "
    "    if t == 'boolean' or t == 'nil' then return tostring(v) end "
    "    if t == 'cdata' then return 'c' .. tostring(v) end end "
    "  local function visit(v) "
    "    local s = flat(v) if s then return put(s) end "
    "    if ids[v] then return put('@' .. ids[v]) end "
    "    n = n + 1 ids[v] = n "
    "    if v == string then return put('M') end "
    "    if type(v) == 'userdata' then "
    "      return put('h' .. handle_value(v)) end "
    "    if type(v) == 'function' then put('f(') "
    "      for i = 1, 255 do local name, u = debug.getupvalue(v, i) "
    "        if not name then break end "
    "        local c = 'cell' .. tostring(debug.upvalueid(v, i)) "
    "        if name == 'rnd' then put('rnd') "
    "        elseif ids[c] then put('^' .. ids[c]) "
    "        else n = n + 1 ids[c] = n visit(u) end end "
    "      return put(')') end "
    "    local keys, odd = {}, nil "
    "    for k in pairs(v) do local s = flat(k) "
    "      if s then keys[#keys + 1] = s keys[s] = k else odd = k end end "
    "    table.sort(keys) put('{') "
    "    for _, s in ipairs(keys) do put(s) put('=') visit(v[keys[s]]) "
    "      put(',') end "
    "    if odd then visit(odd) put('=') visit(v[odd]) end "
    "    put('}') end "
    "  visit(root) return table.concat(out, ' ') end ";

static int
is_light(lua_State *L)
{
    lua_pushboolean(L, lua_islightuserdata(L, 1));
    return 1;
}

static void
compare_descriptions(struct fixture *f, unsigned long seed)
{
    size_t n, m;
    lua_getglobal(f->from, "describe");
    lua_pushvalue(f->from, 1);
    lua_call(f->from, 1, 1);
    lua_getglobal(f->to, "describe");
    lua_pushvalue(f->to, 1);
    if (lua_pcall(f->to, 1, 1, 0) != 0) {
        fail_msg("seed %lu: %s", seed, lua_tostring(f->to, -1));
    }
    const char *a = lua_tolstring(f->from, -1, &n);
    const char *b = lua_tolstring(f->to, -1, &m);
    if (n != m || memcmp(a, b, n) != 0) {
        fail_msg("seed %lu: shapes differ:\n%s\n%s", seed, a, b);
    }
}

static void
random_values_keep_their_shape(void **state)
{
    struct fixture *f = *state;
    const char *fixed = getenv("CODEC_SEED");
    unsigned long first = (unsigned long)(tp_now_ns() % 1000000000) + 1;
    unsigned long rounds = 300;
    if (fixed != NULL) {
        first = strtoul(fixed, NULL, 10);
        rounds = 1;
    }
    print_message("codec_test: seeds from %lu\n", first);
    lua_register(f->from, "light", is_light);
    lua_register(f->to, "light", is_light);
    run(f->from, property_source);
    run(f->to, property_source);
    for (unsigned long seed = first; seed < first + rounds; seed++) {
        char source[64];
        snprintf(source, sizeof source, "return make(%lu)", seed);
        if (encode(f, source) != 0) {
            fail_msg("seed %lu: %s", seed, lua_tostring(f->from, -1));
        }
        if (decode(f) != 0) {
            fail_msg("seed %lu: %s", seed, lua_tostring(f->to, -1));
        }
        compare_descriptions(f, seed);
    }
}

static void
both_ways_of_reading_tables_agree(void **state)
{
    struct fixture *f = *state;
    bool was = tp_codec_use_raw(true);
    lua_register(f->from, "light", is_light);
    run(f->from, property_source);
    for (int seed = 1; seed < 100; seed++) {
        char source[100];
        tp_codec_use_raw(false);
        snprintf(source, sizeof source, "value = make(%d) return value", seed);
        assert_int_equal(encode(f, source), 0);
        assert_int_equal(tp_decode(f->from, f->buf.p, f->buf.len), 1);
        lua_setglobal(f->from, "by_api");
        tp_codec_use_raw(was);
        assert_int_equal(encode(f, "return value"), 0);
        assert_int_equal(tp_decode(f->from, f->buf.p, f->buf.len), 1);
        lua_setglobal(f->from, "direct");
        run(f->from, "assert(describe(by_api) == describe(direct))");
    }
}

/* -- Main ------------------------------------------------------------------------------ */

static bool use_raw;

static int
choose_path(void **state)
{
    (void)state;
    tp_codec_init(&ops);
    bool raw = tp_codec_use_raw(use_raw);
#if defined(__x86_64__)
    assert_int_equal(raw, use_raw); /* Debian's LuaJIT is known to do */
#endif
    print_message("codec_test: tables are read %s\n",
                  raw ? "directly" : "through the Lua API");
    return 0;
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int
main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(scalars_arrive),
        TEST(numbers_are_bit_exact),
        TEST(small_values_need_no_buffer),
        TEST(pids_arrive_by_value),
        TEST(cdata_numbers_arrive),
        TEST(cdata_arrives_where_ffi_is_closed),
        TEST(tables_arrive),
        TEST(metatables_stay_behind),
        TEST(cost_follows_the_entries),
        TEST(lists_are_made_as_lists),
        TEST(sharing_and_cycles_keep_their_shape),
        TEST(doubling_is_linear_work),
        TEST(nesting_of_any_depth_arrives),
        TEST(deep_values_need_little_stack),
        TEST(many_deep_branches_arrive),
        TEST(functions_arrive_with_their_upvalues),
        TEST(names_and_lines_of_functions_survive),
        TEST(functions_share_their_upvalues),
        TEST(modules_are_found_again_by_name),
        TEST(named_things_are_looked_up),
        TEST(a_module_that_is_missing_there_is_named),
        TEST(many_upvalues_arrive),
        TEST(handles_arrive_and_can_be_listed),
        TEST(a_look_at_a_handle_is_told_apart),
        TEST(handles_may_be_upvalues),
        TEST(errors_name_the_path),
        TEST(errors_name_upvalues),
        TEST(long_paths_are_cut),
        TEST(long_names_are_cut),
        TEST(a_table_and_an_empty_userdata_are_not_confused),
        TEST(several_values_arrive),
        TEST(errors_number_the_values),
        TEST(an_encode_leaves_room_before_it),
        TEST(failed_sends_keep_memory_flat),
        TEST(receivers_may_run_out_of_memory),
        TEST(senders_may_run_out_of_memory),
#ifdef TROUPE_CHECKED
        TEST(a_buffer_that_cannot_grow_is_reported),
#endif
        TEST(truncated_messages_are_refused),
        TEST(finalizers_may_send_through_the_same_buffer),
        TEST(buffers_can_be_trimmed),
        TEST(encoding_works_in_a_coroutine),
        TEST(random_values_keep_their_shape),
        TEST(both_ways_of_reading_tables_agree),
    };
    use_raw = true;
    int failed =
        cmocka_run_group_tests_name("codec, raw", tests, choose_path, NULL);
    use_raw = false;
    failed +=
        cmocka_run_group_tests_name("codec, Lua API", tests, choose_path, NULL);
    return failed == 0 ? 0 : 1;
}
