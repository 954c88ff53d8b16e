/*
 * blocking.c - troupe.blocking: a function that may block its thread.
 *
 * Idea:    the actor itself moves to a thread of the pool and back
 *          (core/sched/blocking.h); here is what surrounds the call. An error
 *          is caught, so that the section ends, and raised again as it is. Its
 *          traceback is noted where it was raised: who makes a failure of it
 *          later, and finds that we raised it, takes that one.
 * Parks:   blocking does.
 * Tests:   spec/lua/blocking_pool_spec.lua
 */
#include "bind.h"

#include "sched/blocking.h"

#define TRACE_KEY "troupe.blocking"

static int
note(lua_State *L)
{
    tp_push_traceback(L, 2); /* note, on_error, who raised it */
    lua_setfield(L, LUA_REGISTRYINDEX, TRACE_KEY);
    return 0;
}

/* Message handler; the value stays what it is. */
static int
on_error(lua_State *L)
{
    lua_settop(L, 1);
    lua_pushcfunction(L, note);
    lua_pcall(L, 0, 0, 0); /* without memory there is no trace */
    lua_settop(L, 1);
    return 1;
}

void
tp_push_blocking_trace(lua_State *L)
{
    lua_getfield(L, LUA_REGISTRYINDEX, TRACE_KEY);
    lua_pushnil(L);
    lua_setfield(L, LUA_REGISTRYINDEX, TRACE_KEY);
}

/* blocking(fn, ...) -> what fn returned */
int
tp_l_blocking(lua_State *L)
{
    struct tp_actor *a = tp_check_actor(L);
    int args = lua_gettop(L) - 1;
    tp_check_type(L, 1, LUA_TFUNCTION, "fn");
    if (tp_slot_blocks(a->slot)) { /* it is there already */
        lua_call(L, args, LUA_MULTRET);
        return lua_gettop(L);
    }
    lua_pushcfunction(L, on_error);
    lua_insert(L, 1);
    tp_lua_tier_up(L, a);
    int rc = tp_blocking_begin(a);
    if (rc != 0) {
        return tp_raise_wait(L, rc);
    }
    tp_vm_count_hot(tp_lua_of(a), true);
    int status = lua_pcall(L, args, LUA_MULTRET, 1);
    tp_vm_count_hot(tp_lua_of(a), false);
    rc = tp_blocking_end(a);
    if (rc != 0) {
        return tp_raise_wait(L, rc);
    }
    return status == 0 ? lua_gettop(L) - 1 : lua_error(L);
}
