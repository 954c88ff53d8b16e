/*
 * mcode_test.c - the call of next that LuaJIT compiles wrongly now and then.
 *
 * Which registers a trace uses can't be told from outside, so the wrong code is
 * written here, with a call to where a real trace calls.
 */
#define _GNU_SOURCE
#include "bindings/bind.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

#include <lauxlib.h>
#include <lualib.h>

#if defined(__x86_64__)

static const char SOURCE[] =
    "local util, found = require 'jit.util', nil\n"
    "jit.attach(function(what, tr)\n"
    "  if what == 'stop' then found = tr end\n"
    "end, 'trace')\n"
    "local t, n = {}, 0\n"
    "for i = 1, 100 do t['k' .. i] = i end\n"
    "for _ = 1, 100 do for _, v in pairs(t) do n = n + v end end\n"
    "local at = 1\n"
    "while true do\n"
    "  local code, address = util.tracemc(at)\n"
    "  if not code then return end\n"
    "  see(code, address)\n"
    "  at = at + 1\n"
    "end\n";

static uintptr_t next; /* where traces call for it; 0: not found */

/* see(code, address) */
static int
l_see(lua_State *L)
{
    size_t n;
    const unsigned char *code = (const void *)lua_tolstring(L, 1, &n);
    uintptr_t at = (uintptr_t)lua_tonumber(L, 2);
    for (size_t i = 0; i + 5 <= n; i++) {
        uintptr_t target = tp_mcode_target(code + i, at + i);
        if (code[i] == 0xe8 && tp_mcode_is_next(target)) {
            next = target;
        }
    }
    return 0;
}

static lua_State *
setup_state(void)
{
    lua_State *L = luaL_newstate();
    assert_non_null(L);
    luaL_openlibs(L);
    lua_register(L, "see", l_see);
    assert_int_equal(luaL_dostring(L, SOURCE), 0);
    return L;
}

/* A page that traces could be in. */
static unsigned char *
page_near(uintptr_t near)
{
    for (uintptr_t step = 1 << 20; step < 1 << 29; step += 1 << 16) {
        void *hint = (void *)((near & ~(uintptr_t)4095) - step);
        void *p =
            mmap(hint, 4096, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
        if (p == hint) {
            return p;
        }
    }
    fail_msg("no page near LuaJIT");
    return NULL;
}

/* What a trace does with a pair that it wants the other way round. */
static const unsigned char WRONG[] = {
    0x48, 0x83, 0xec, 0x28,       /* sub rsp, 40 */
    0xe8, 0,    0,    0,    0,    /* call lj_vm_next */
    0x92,                         /* xchg eax, edx */
    0x48, 0x83, 0xc4, 0x28, 0xc3, /* add rsp, 40; ret */
};

static void
write_wrong(unsigned char *p)
{
    int32_t rel = (int32_t)(uint32_t)(next - (uintptr_t)(p + 9));
    memcpy(p, WRONG, sizeof WRONG);
    memcpy(p + 5, &rel, sizeof rel);
    assert_int_equal(mprotect(p, 4096, PROT_READ | PROT_EXEC), 0);
}

/* As the pair is after the exchange: the index in rax, the value in rdx. */
struct pair {
    uint64_t index;
    const double *value;
};

static struct pair
call(const unsigned char *p, const void *table, uint32_t index)
{
    struct pair (*fn)(const void *, uint32_t);
    memcpy(&fn, &p, sizeof fn);
    return fn(table, index);
}

static void
a_pair_that_is_exchanged_keeps_its_pointer(void **state)
{
    (void)state;
    lua_State *L = setup_state();
    if (next == 0) {
        lua_close(L);
        skip(); /* another LuaJIT */
    }
    unsigned char *p = page_near(next), copy[sizeof WRONG];
    write_wrong(p);
    memcpy(copy, p, sizeof copy);
    assert_int_equal(luaL_dostring(L, "return { one = 0.5 }"), 0);
    const void *table = lua_topointer(L, -1);
    struct pair cut = call(p, table, 0);
    assert_int_equal(tp_mcode_mend(copy, sizeof copy, (uintptr_t)p), 1);
    struct pair whole = call(p, table, 0);
    assert_int_equal(whole.index, cut.index);
    assert_int_equal((uint32_t)(uintptr_t)whole.value, (uintptr_t)cut.value);
    assert_true(whole.value != cut.value);
    assert_true(*whole.value == 0.5);
    munmap(p, 4096);
    lua_close(L);
}

static void
what_is_right_stays_as_it_is(void **state)
{
    (void)state;
    lua_State *L = setup_state();
    if (next == 0) {
        lua_close(L);
        skip();
    }
    unsigned char *p = page_near(next), copy[sizeof WRONG];
    write_wrong(p);
    memcpy(copy, p, sizeof copy);
    copy[9] = 0x90; /* nothing is exchanged */
    assert_int_equal(tp_mcode_mend(copy, sizeof copy, (uintptr_t)p), 0);
    copy[9] = 0x92;
    copy[5] ^= 1; /* a call of something else */
    assert_int_equal(tp_mcode_mend(copy, sizeof copy, (uintptr_t)p), 0);
    assert_int_equal(tp_mcode_mend(copy, 5, (uintptr_t)p), 0);
    assert_int_equal(p[9], 0x92);
    munmap(p, 4096);
    lua_close(L);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_pair_that_is_exchanged_keeps_its_pointer),
        cmocka_unit_test(what_is_right_stays_as_it_is),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
int
main(void)
{
    return 0;
}
#endif
