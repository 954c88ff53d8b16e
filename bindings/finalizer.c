/*
 * finalizer.c - what fails in a finalizer ends that finalizer alone.
 *
 * Idea:     LuaJIT of before April 2023 passes an error of a finalizer on to
 *           whatever code it interrupts, and crashes where that has just left a
 *           trace. So a __gc that a script sets is called by one of ours, which
 *           logs the error: that of a proxy, seen as its metatable gets it, of
 *           ffi.gc and of ffi.metatype.
 * Threads:  the one that runs the state.
 * Memory:   a closure for each function that is set.
 * Parks:    never, but the finalizers may be preempted.
 * Remains:  a __gc that takes the place of another in a metatable, or gets there
 *           by rawset.
 * Tests:    spec/lua/finalizer_spec.lua, spec/regress/4_finalizer_error_spec.lua
 */
#include "bind.h"

#include <string.h>

/* Registry key of the metatable that metatables of proxies have. */
#define GUARD "troupe.finalizers"

/* Upvalues of run_finalizer. All is there beforehand: an error of memory that
 * it raised itself would go where that of the finalizer shall not. */
enum {
    FINALIZER = 1,
    HANDLER,
    LOG
};

static const char failed[] = "has a finalizer that failed";

/* What tp_error_handler made of the error, or a text where that failed. */
static int
log_error(lua_State *L)
{
    struct tp_actor *a = tp_actor_self();
    if (lua_istable(L, 1)) {
        tp_log_failure(a, L, 1, failed);
    } else {
        const char *text = lua_tostring(L, 1);
        tp_log_bare(a, failed, text == NULL ? "?" : text);
    }
    return 0;
}

static int
run_finalizer(lua_State *L)
{
    int n = lua_gettop(L);
    lua_pushvalue(L, lua_upvalueindex(HANDLER));
    lua_insert(L, 1);
    lua_pushvalue(L, lua_upvalueindex(FINALIZER));
    lua_insert(L, 2);
    if (lua_pcall(L, n, 0, 1) != 0) {
        lua_pushvalue(L, lua_upvalueindex(LOG));
        lua_insert(L, -2);
        if (lua_pcall(L, 1, 0, 0) != 0) {
            tp_log_bare(tp_actor_self(), failed, "not enough memory");
        }
    }
    return 0;
}

/* Replaces the function on top by one that calls it; leaves all else. */
static void
protect(lua_State *L)
{
    if (lua_isfunction(L, -1) && lua_tocfunction(L, -1) != run_finalizer) {
        lua_pushcfunction(L, tp_error_handler);
        lua_pushcfunction(L, log_error);
        lua_pushcclosure(L, run_finalizer, 3);
    }
}

/* -- proxies ------------------------------------------------------------- */

void
tp_note_finalizers(void)
{
    struct tp_actor *a = tp_actor_self();
    if (a != NULL && a->class == &tp_lua_class) {
        tp_lua_of(a)->may_finalize = true;
    }
}

/* __newindex of a proxy's metatable. */
static int
set_event(lua_State *L)
{
    lua_settop(L, 3);
    if (lua_type(L, 2) == LUA_TSTRING &&
        strcmp(lua_tostring(L, 2), "__gc") == 0) {
        protect(L);
    }
    lua_rawset(L, 1);
    return 0;
}

static void
push_guard(lua_State *L)
{
    lua_getfield(L, LUA_REGISTRYINDEX, GUARD);
    if (lua_isnil(L, -1)) {
        lua_pop(L, 1);
        lua_createtable(L, 0, 1);
        lua_pushcfunction(L, set_event);
        lua_setfield(L, -2, "__newindex");
        lua_pushvalue(L, -1);
        lua_setfield(L, LUA_REGISTRYINDEX, GUARD);
    }
}

/* newproxy; the upvalue is LuaJIT's own. */
int
tp_l_newproxy(lua_State *L)
{
    tp_note_finalizers();
    int n = lua_gettop(L);
    lua_pushvalue(L, lua_upvalueindex(1));
    lua_insert(L, 1);
    lua_call(L, n, 1);
    if (lua_getmetatable(L, 1) && !lua_getmetatable(L, 2)) {
        push_guard(L);
        lua_setmetatable(L, 2);
    }
    lua_settop(L, 1);
    return 1;
}

/* -- ffi ----------------------------------------------------------------- */

static int
l_ffi_gc(lua_State *L)
{
    if (lua_gettop(L) >= 2) {
        lua_settop(L, 2);
        protect(L);
    }
    return tp_call_in_place(L);
}

static int
l_ffi_metatype(lua_State *L)
{
    if (lua_istable(L, 2)) {
        lua_settop(L, 2);
        lua_pushliteral(L, "__gc");
        lua_pushliteral(L, "__gc");
        lua_rawget(L, 2);
        protect(L);
        lua_rawset(L, 2);
    }
    return tp_call_in_place(L);
}

/* A chunk with a 64-bit literal opens ffi by itself, so it may be found open. */
void
tp_guard_ffi(lua_State *L, int lib)
{
    tp_put_in_place(L, lib, "gc", l_ffi_gc);
    tp_put_in_place(L, lib, "metatype", l_ffi_metatype);
}
