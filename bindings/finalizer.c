/*
 * finalizer.c - what fails in a finalizer ends that finalizer alone.
 *
 * Idea:     LuaJIT of before April 2023 passes an error of a finalizer on to
 *           whatever code it interrupts, and crashes where that has just left a
 *           trace. So a __gc that a script sets is called by one of ours, which
 *           logs the error, or ends the actor for want of memory: that of a
 *           proxy or of ffi.metatype, seen as the metatable gets it, and that of
 *           ffi.gc.
 * Threads:  the one that runs the state.
 * Memory:   a closure for each function that is set.
 * Parks:    never, but the finalizers may be preempted.
 * Remains:  a __gc that takes the place of another in a metatable, or gets there
 *           by rawset; in a metatable that has got one itself; of a userdata
 *           of C. One that is called by hand has no results and raises nothing.
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

const char tp_finalizer_failed[] = "has a finalizer that failed";

/* What tp_error_handler made of the error, or a text where that failed. */
static int
log_error(lua_State *L)
{
    struct tp_actor *a = tp_actor_self();
    if (lua_istable(L, 1)) {
        tp_log_failure(a, L, 1, tp_finalizer_failed);
    } else {
        const char *text = lua_tostring(L, 1);
        tp_log_bare(a, tp_finalizer_failed, text == NULL ? "?" : text);
    }
    return 0;
}

/* Ends the actor, as anywhere else; where it ends already its other finalizers
 * have their turn. */
static void
no_memory(struct tp_actor *a)
{
    if (!a->finishing) {
        tp_end_memory(a);
    }
    tp_log_bare(a, tp_finalizer_failed, "not enough memory");
}

static int
run_finalizer(lua_State *L)
{
    int n = lua_gettop(L);
    lua_pushvalue(L, lua_upvalueindex(HANDLER));
    lua_insert(L, 1);
    lua_pushvalue(L, lua_upvalueindex(FINALIZER));
    lua_insert(L, 2);
    int status = lua_pcall(L, n, 0, 1);
    if (status != 0 && status != LUA_ERRMEM) {
        lua_pushvalue(L, lua_upvalueindex(LOG));
        lua_insert(L, -2);
        status = lua_pcall(L, 1, 0, 0);
    }
    if (status != 0) {
        no_memory(tp_actor_self());
    }
    return 0;
}

/* Replaces what is on top by a function that calls it; leaves nil. */
static void
protect(lua_State *L)
{
    if (!lua_isnil(L, -1) && lua_tocfunction(L, -1) != run_finalizer) {
        lua_pushcfunction(L, tp_error_handler);
        lua_pushcfunction(L, log_error);
        lua_pushcclosure(L, run_finalizer, 3);
    }
}

/* -- metatables ---------------------------------------------------------- */

/* __newindex of a metatable. */
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

/* The __gc that the metatable on top has, and one that it gets later. */
static void
guard_metatable(lua_State *L)
{
    int mt = lua_gettop(L);
    lua_pushliteral(L, "__gc");
    lua_pushvalue(L, -1);
    lua_rawget(L, mt);
    protect(L);
    if (lua_isnil(L, -1)) {
        lua_pop(L, 2);
    } else {
        lua_rawset(L, mt);
    }
    if (!lua_getmetatable(L, mt)) {
        push_guard(L);
        lua_setmetatable(L, mt);
    }
    lua_settop(L, mt);
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

/* newproxy; the upvalue is LuaJIT's own. */
int
tp_l_newproxy(lua_State *L)
{
    tp_note_finalizers();
    int n = lua_gettop(L);
    lua_pushvalue(L, lua_upvalueindex(1));
    lua_insert(L, 1);
    lua_call(L, n, 1);
    if (lua_getmetatable(L, 1)) {
        guard_metatable(L);
    }
    lua_settop(L, 1);
    return 1;
}

/* In place of a function whose second argument is a metatable. */
static int
set_metatable(lua_State *L)
{
    if (lua_istable(L, 2)) {
        lua_settop(L, 2);
        guard_metatable(L);
    }
    return tp_call_in_place(L);
}

static int
l_debug_setmetatable(lua_State *L)
{
    return lua_type(L, 1) == LUA_TUSERDATA ? set_metatable(L)
                                           : tp_call_in_place(L);
}

void
tp_guard_debug(lua_State *L, int lib)
{
    tp_put_in_place(L, lib, "setmetatable", l_debug_setmetatable);
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

/* A chunk with a 64-bit literal opens ffi by itself, so it may be found open. */
void
tp_guard_ffi(lua_State *L, int lib)
{
    tp_put_in_place(L, lib, "gc", l_ffi_gc);
    tp_put_in_place(L, lib, "metatype", set_metatable);
}
