/*
 * counter.c - numbers that actors share, for Lua.
 *
 * Parks: never.
 * Tests: spec/lua/counter_spec.lua
 */
#include "actor/counter.h"

#include "handle.h"

#define INTEGER_MAX 9007199254740992.0 /* 2^53 */

static struct tp_counter *
check_counter(lua_State *L)
{
    struct tp_counter *c =
        tp_handle_check(L, tp_actor_self(), 1, &tp_handle_counter);
    if (c == NULL) {
        luaL_argerror(L, 1, "counter is gone: its actor has ended");
    }
    return c;
}

static int64_t
check_integer(lua_State *L, int arg)
{
    lua_Number v = lua_tonumber(L, arg);
    if (lua_type(L, arg) != LUA_TNUMBER ||
        !(v >= -INTEGER_MAX && v <= INTEGER_MAX) ||
        v != (lua_Number)(int64_t)v) {
        luaL_argerror(L, arg, "whole number from -2^53 to 2^53 expected");
    }
    return (int64_t)v;
}

static int
push(lua_State *L, int64_t value)
{
    lua_pushnumber(L, (lua_Number)value);
    return 1;
}

/* counter:add([n = 1]) -> what it is then */
static int
counter_add(lua_State *L)
{
    struct tp_counter *c = check_counter(L);
    int64_t n = lua_isnoneornil(L, 2) ? 1 : check_integer(L, 2);
    return push(L, tp_counter_add(c, n));
}

/* counter:get() */
static int
counter_get(lua_State *L)
{
    return push(L, tp_counter_get(check_counter(L)));
}

/* counter:set(n) -> what it was */
static int
counter_set(lua_State *L)
{
    struct tp_counter *c = check_counter(L);
    return push(L, tp_counter_set(c, check_integer(L, 2)));
}

/* counter:cas(expected, n) -> true; or false, what it is */
static int
counter_cas(lua_State *L)
{
    struct tp_counter *c = check_counter(L);
    int64_t expected = check_integer(L, 2);
    bool done = tp_counter_cas(c, &expected, check_integer(L, 3));
    lua_pushboolean(L, done);
    return done ? 1 : 1 + push(L, expected);
}

static void
counter_ref(void *c)
{
    tp_counter_ref(c);
}

static void
counter_unref(void *c)
{
    tp_counter_unref(c);
}

static const luaL_Reg methods[] = {{"add", counter_add},
                                   {"get", counter_get},
                                   {"set", counter_set},
                                   {"cas", counter_cas},
                                   {NULL, NULL}};

const struct tp_handle_kind tp_handle_counter = {.name = "troupe.counter",
                                                 TP_HANDLE_TEXTS("counter"),
                                                 .ref = counter_ref,
                                                 .unref = counter_unref,
                                                 .methods = methods};

/* counter([n = 0]) -> counter; or nil, "nomem" */
int
tp_l_counter(lua_State *L)
{
    tp_check_actor(L);
    int64_t n = lua_isnoneornil(L, 1) ? 0 : check_integer(L, 1);
    struct tp_handle *h = tp_handle_new(L, &tp_handle_counter);
    struct tp_counter *c = tp_counter_new(n);
    if (c == NULL) {
        return tp_push_error(L, TROUPE_ENOMEM);
    }
    tp_handle_set(h, c);
    return 1;
}
