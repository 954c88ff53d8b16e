/*
 * jit.c - which actors compile, and what of their code must not be.
 *
 * Idea:     a state compiles once its actor has used some CPU, as long as not
 *           too many do; docs/design/jit.md says why.
 *           LuaJIT of 2021-09 to 2023-08 (Debian 12 has one) compiles loops over
 *           pairs wrongly, in several rare ways that end the process. Such a
 *           release calls back before it records an instruction for a trace;
 *           where that is the head of such a loop, or a next that finds nothing
 *           more, recording is given up. LuaJIT then tries again, later and later,
 *           and at last makes a plain call of the loop's head, which it compiles
 *           well.
 * Threads:  the one that runs the state; jit_states by all. flaw: set before
 *           any state is guarded, not by an actor, which may be stopped or killed.
 * Parks:    never.
 * Rejected: to mend the machine code when a trace is ready: LuaJIT's event for
 *           that comes with one for given-up traces, which walks off the stack
 *           after an error (LuaJIT's issue 1087).
 * Tests:    spec/lua/jit_spec.lua, spec/regress/2_finalizer_hot_spec.lua
 */
#include "bind.h"

#include <luajit.h>

/* Used CPU after which an actor compiles: some milliseconds. */
#define TIER_UP_CYCLES 6000000ull
/* States that may hold machine code at once; see docs/design/jit.md. */
#define JIT_BUDGET 8192

/* relaxed: a budget, not a lock. */
static _Atomic int jit_states;

/* -- what is compiled wrongly -------------------------------------------- */

#define OPCODE(instruction) ((int)(lua_tointeger(L, instruction) & 0xff))

static struct {
    bool known;
    int itern; /* opcode of a loop's head */
    int next;  /* number of LuaJIT's function next */
} flaw;

/* What jit.version says of releases since then is another. The head is followed
 * by ITERL and RET0. */
static const char find_flaw[] =
    "local util = require 'jit.util'\n"
    "if jit.version ~= 'LuaJIT 2.1.0-beta3' then return end\n"
    "local function loop() for _ in pairs({}) do end end\n"
    "local head = util.funcinfo(loop).bytecodes - 3\n"
    "return util.funcbc(loop, head), util.funcinfo(next).ffid\n";

void
tp_jit_init(lua_State *L)
{
    if (luaL_dostring(L, find_flaw) == 0 && lua_isnumber(L, -1)) {
        flaw.itern = OPCODE(-2);
        flaw.next = (int)lua_tointeger(L, -1);
        flaw.known = true;
    }
}

/* Upvalues of on_record. */
enum {
    FUNCBC = 1,
    FUNCINFO
};

/* Of the function at index 2 at the place at index 3. */
static bool
is_loop_head(lua_State *L)
{
    lua_pushvalue(L, lua_upvalueindex(FUNCBC));
    lua_pushvalue(L, 2);
    lua_pushvalue(L, 3);
    return lua_pcall(L, 2, 1, 0) != 0 || OPCODE(-1) == flaw.itern;
}

/* Of the function at index 2, which is not written in Lua. */
static bool
is_next(lua_State *L)
{
    if (lua_tocfunction(L, 2) != NULL) {
        return false; /* next is one of LuaJIT's own */
    }
    lua_pushvalue(L, lua_upvalueindex(FUNCINFO));
    lua_pushvalue(L, 2);
    if (lua_pcall(L, 1, 1, 0) != 0) {
        return true;
    }
    lua_getfield(L, -1, "ffid");
    return lua_tointeger(L, -1) == flaw.next;
}

/* The next at index 2 is about to run; its arguments are in the frame below. */
static bool
finds_nothing(lua_State *L)
{
    lua_Debug ar;
    lua_settop(L, 2);
    if (lua_getstack(L, 1, &ar) == 0 || lua_getlocal(L, &ar, 1) == NULL) {
        return true;
    }
    if (lua_getlocal(L, &ar, 2) == NULL) {
        lua_pushnil(L);
    }
    return lua_pcall(L, 2, 1, 0) != 0 || lua_isnil(L, -1);
}

/* LuaJIT's callback: trace, function, place of the instruction in it or -1. A
 * change of its mode, also one that changes nothing, ends a recording. */
static int
on_record(lua_State *L)
{
    bool flawed = lua_tointeger(L, 3) >= 0 ? is_loop_head(L)
                                           : is_next(L) && finds_nothing(L);
    if (flawed) {
        luaJIT_setmode(L, 0, LUAJIT_MODE_ENGINE | LUAJIT_MODE_ON);
    }
    return 0;
}

/* Pushes functions of jit.util, which does not become known to require. */
static void
push_util(lua_State *L)
{
    lua_getfield(L, LUA_REGISTRYINDEX, "_PRELOAD");
    lua_getfield(L, -1, "jit.util");
    lua_remove(L, -2);
    lua_call(L, 0, 1);
    lua_getfield(L, -1, "funcbc");
    lua_getfield(L, -2, "funcinfo");
    lua_remove(L, -3);
}

void
tp_jit_guard(lua_State *L, int jit)
{
    if (flaw.known) {
        lua_getfield(L, jit, "attach");
        push_util(L);
        lua_pushcclosure(L, on_record, 2);
        lua_pushliteral(L, "record");
        lua_call(L, 2, 0);
    }
}

static int
guard_host(lua_State *L)
{
    lua_getfield(L, LUA_REGISTRYINDEX, "_LOADED");
    lua_getfield(L, -1, "jit");
    tp_jit_guard(L, lua_gettop(L));
    return 0;
}

/* LuaJIT has one callback for each kind of event: what is there was put there by
 * the script, or by luajit -jdump. */
static bool
has_callbacks(lua_State *L)
{
    int top = lua_gettop(L);
    lua_getfield(L, LUA_REGISTRYINDEX, "_VMEVENTS");
    lua_pushnil(L);
    bool any = lua_istable(L, top + 1) && lua_next(L, top + 1) != 0;
    lua_settop(L, top);
    return any;
}

void
tp_jit_guard_host(lua_State *L)
{
    if (!has_callbacks(L) && lua_cpcall(L, guard_host, NULL) != 0) {
        lua_pop(L, 1);
    }
}

/* -- who compiles -------------------------------------------------------- */

/* May raise: for want of memory, and within a __gc metamethod, where LuaJIT
 * lets nobody switch. Both are no concern of the one who happens to call. */
static int
jit_start(lua_State *L)
{
    bool *may_switch = lua_touserdata(L, 1);
    luaJIT_setmode(L, 0, LUAJIT_MODE_ENGINE | LUAJIT_MODE_OFF);
    *may_switch = true;
    tp_open_lazy(L, "jit");
    luaJIT_setmode(L, 0, LUAJIT_MODE_ENGINE | LUAJIT_MODE_ON);
    return 0;
}

void
tp_jit_release(struct tp_lua *t)
{
    if (t->jit_on) {
        /* relaxed: see jit_states. */
        atomic_fetch_sub_explicit(&jit_states, 1, memory_order_relaxed);
        t->jit_on = false;
    }
}

void
tp_jit_enable(lua_State *L, struct tp_lua *t)
{
    /* relaxed: see jit_states. */
    if (atomic_fetch_add_explicit(&jit_states, 1, memory_order_relaxed) >=
        JIT_BUDGET) {
        /* relaxed: see jit_states. */
        atomic_fetch_sub_explicit(&jit_states, 1, memory_order_relaxed);
        return;
    }
    t->jit_on = true;
    bool may_switch = false;
    if (lua_cpcall(L, jit_start, &may_switch) != 0) {
        lua_pop(L, 1);
        /* The library, once open, compiles; but what is not jit_on is dropped
         * at its end, and its code would stay known to the unwinder. */
        if (may_switch) {
            luaJIT_setmode(L, 0, LUAJIT_MODE_ENGINE | LUAJIT_MODE_OFF);
        }
        tp_jit_release(t);
    }
}

void
tp_lua_tier_up(lua_State *L, struct tp_actor *a)
{
    struct tp_lua *t = tp_lua_of(a);
    if (t->jit_on || t->jit_mode != TP_JIT_AUTO || t->borrowed) {
        return;
    }
    t->hot_cycles += tp_cycles() - tp_worker_self()->slice_start_cycles;
    if (t->hot_cycles > TIER_UP_CYCLES) {
        tp_jit_enable(L, t);
        t->hot_cycles = 0;
    }
}
