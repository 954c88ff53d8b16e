/*
 * timer.c - now, send_after, send_every and cancel, for Lua.
 *
 * Parks: never.
 * Tests: spec/lua/timer_spec.lua
 */
#include "actor/delay.h"
#include "bind.h"

#include <math.h>

#define NS_PER_S 1e9
/* Beyond this many seconds a finite time is as late as can be said. */
#define SECONDS_MAX 1.8e10

static uint64_t
to_ns(double seconds)
{
    return seconds >= SECONDS_MAX ? TP_NEVER - 1
                                  : (uint64_t)(seconds * NS_PER_S);
}

/* The last moment that is not "never": a finite wait is one for a timer. */
static uint64_t
deadline_in(double seconds)
{
    uint64_t at = tp_sat_add(tp_now_ns(), to_ns(seconds));
    return at == TP_NEVER ? TP_NEVER - 1 : at;
}

static double
check_seconds(lua_State *L, int arg, const char *name)
{
    double s = lua_tonumber(L, arg);
    if (lua_type(L, arg) != LUA_TNUMBER || isnan(s)) {
        lua_pushfstring(L, "%s must be a number of seconds", name);
        luaL_argerror(L, arg, lua_tostring(L, -1));
    }
    return s;
}

uint64_t
tp_check_deadline(lua_State *L, int arg, const char *name)
{
    if (lua_isnoneornil(L, arg)) {
        return TP_NEVER;
    }
    double s = check_seconds(L, arg, name);
    if (s <= 0) {
        return 0;
    }
    return isinf(s) ? TP_NEVER : deadline_in(s);
}

int
tp_l_now(lua_State *L)
{
    lua_pushnumber(L, (lua_Number)tp_now_ns() / NS_PER_S);
    return 1;
}

/* A message to a name is for who has it when it is sent; an interval is one of
 * the actor that has it now. */
static int
start_core(lua_State *L, struct tp_msg *m, uint64_t deadline_ns,
           uint64_t interval_ns, uint64_t *out_id)
{
    if (interval_ns == 0 && lua_type(L, 2) == LUA_TSTRING) {
        size_t len;
        const char *name = lua_tolstring(L, 2, &len);
        return tp_send_after_name(name, len, m, deadline_ns, out_id);
    }
    return tp_send_after(tp_check_pid(L, 2), m, deadline_ns, interval_ns,
                         out_id);
}

/* Arguments: seconds, destination, message. */
static int
start(lua_State *L, uint64_t deadline_ns, uint64_t interval_ns)
{
    struct tp_actor *a = tp_check_actor(L);
    if (lua_type(L, 2) == LUA_TSTRING) {
        size_t len;
        tp_check_name(L, 2, "name", &len);
    } else {
        tp_check_pid(L, 2); /* before there is a message to lose */
    }
    uint64_t id;
    if (lua_isnoneornil(L, 3)) {
        return luaL_argerror(L, 3, "message expected, got nil");
    }
    struct tp_msg *m = interval_ns == 0
                           ? tp_encode_message(L, 3, a->pid)
                           : tp_encode_to_many(L, 3, "message", a->pid);
    int rc = start_core(L, m, deadline_ns, interval_ns, &id);
    if (rc != 0) {
        tp_msg_unsend(m);
        return tp_push_error(L, rc);
    }
    lua_pushnumber(L, (lua_Number)id);
    return 1;
}

int
tp_l_send_after(lua_State *L)
{
    double s = check_seconds(L, 1, "seconds");
    return start(L, s <= 0 ? tp_now_ns() : deadline_in(s), 0);
}

int
tp_l_send_every(lua_State *L)
{
    double s = check_seconds(L, 1, "seconds");
    if (!(s > 0)) {
        return luaL_argerror(L, 1, "seconds must be more than 0");
    }
    uint64_t ns = to_ns(s);
    return start(L, deadline_in(s), ns == 0 ? 1 : ns);
}

int
tp_l_cancel(lua_State *L)
{
    lua_Number id = tp_check_number(L, 1, "timer");
    bool won =
        id >= 1 && id < 9007199254740992.0 && tp_send_cancel((uint64_t)id);
    lua_pushboolean(L, won);
    return 1;
}
