/*
 * link.c - links, monitors and exit signals, for Lua.
 *
 * Parks: functions that may end the caller switch away for good.
 * Tests: spec/lua/link_spec.lua, spec/lua/monitor_spec.lua
 */
#include "actor/link.h"
#include "bind.h"

/* Its address is the key in the registry: a name would have to be allocated. */
static char before_exit;

/* The caller may have ended itself by what it did: then it stops here. */
static int
survive(lua_State *L, struct tp_actor *a, int results)
{
    if (TP_UNLIKELY(tp_actor_is_doomed(a)) && !a->finishing) {
        int rc = tp_actor_yield(a);
        if (rc != 0) {
            return tp_raise_wait(L, rc);
        }
    }
    return results;
}

int
tp_l_link(lua_State *L)
{
    struct tp_actor *a = tp_check_actor(L);
    int rc = tp_link(a, tp_check_pid(L, 1));
    if (rc != 0) {
        return tp_push_error(L, rc);
    }
    lua_pushboolean(L, true);
    return survive(L, a, 1);
}

int
tp_l_unlink(lua_State *L)
{
    tp_unlink(tp_check_actor(L), tp_check_pid(L, 1));
    lua_pushboolean(L, true);
    return 1;
}

int
tp_l_trap_exit(lua_State *L)
{
    struct tp_actor *a = tp_check_actor(L);
    tp_check_type(L, 1, LUA_TBOOLEAN, "on");
    bool old = a->trap_exit;
    tp_trap_exit(a, lua_toboolean(L, 1));
    lua_pushboolean(L, old);
    return 1;
}

int
tp_l_monitor(lua_State *L)
{
    struct tp_actor *a = tp_check_actor(L);
    uint64_t ref;
    int rc = tp_monitor(a, tp_check_pid(L, 1), &ref);
    if (rc != 0) {
        return tp_push_error(L, rc);
    }
    lua_pushnumber(L, (lua_Number)ref);
    return 1;
}

/* A reference at 1; 0, which is none, for other numbers. */
static uint64_t
check_ref(lua_State *L)
{
    lua_Number ref = tp_check_number(L, 1, "ref");
    return ref >= 1 && ref < 9007199254740992.0 ? (uint64_t)ref : 0;
}

int
tp_l_demonitor(lua_State *L)
{
    struct tp_actor *a = tp_check_actor(L);
    lua_pushboolean(L, tp_demonitor(a, check_ref(L)));
    return 1;
}

/* _reserve(ref, on) -> is there such a monitor? On: its down is no message. */
int
tp_l_reserve(lua_State *L)
{
    struct tp_actor *a = tp_check_actor(L);
    uint64_t ref = check_ref(L);
    lua_pushboolean(L, tp_monitor_reserve(a, ref, lua_toboolean(L, 2)));
    return 1;
}

/* await_down(ref [, timeout]) -> reason; or nil, err */
int
tp_l_await_down(lua_State *L)
{
    struct tp_actor *a = tp_check_actor(L);
    struct tp_lua *t = tp_lua_of(a);
    uint64_t ref = check_ref(L);
    uint64_t deadline = tp_check_deadline(L, 2, "timeout");
    struct tp_msg *down;
    tp_refuse_in_scan(L, t);
    tp_lua_tier_up(L, a);
    int rc = tp_await_down(a, ref, deadline, &down);
    if (rc == TROUPE_ETIMEOUT || rc == TROUPE_ENOTFOUND) {
        return tp_push_error(L, rc);
    }
    if (rc != 0) {
        return tp_raise_wait(L, rc);
    }
    tp_own(t, down);
    tp_push_reason(L, tp_notice_reason(down));
    tp_disown(t, down);
    tp_msg_drop(down);
    return 1;
}

/* _before_exit(fn | nil): what exit() does first, once: fn(reason), which may
 * end the actor in its own way. Not for what others do to it. */
int
tp_l_before_exit(lua_State *L)
{
    tp_check_actor(L);
    lua_settop(L, 1);
    lua_pushlightuserdata(L, &before_exit);
    lua_insert(L, 1);
    lua_rawset(L, LUA_REGISTRYINDEX);
    return 0;
}

/* Calls what a server has to do before it ends, for the reason at index 1. */
static void
run_before_exit(lua_State *L)
{
    lua_pushlightuserdata(L, &before_exit);
    lua_rawget(L, LUA_REGISTRYINDEX);
    if (lua_isnil(L, 2)) {
        return;
    }
    lua_pushlightuserdata(L, &before_exit);
    lua_pushnil(L);
    lua_rawset(L, LUA_REGISTRYINDEX);
    if (lua_isnil(L, 1)) {
        lua_pushliteral(L, "normal");
    } else {
        lua_pushvalue(L, 1);
    }
    lua_call(L, 1, 0);
}

/* The end that the caller wants for itself, for the reason at index 1. */
static int
leave(lua_State *L, struct tp_actor *a)
{
    lua_settop(L, 1);
    if (!a->finishing) {
        run_before_exit(L);
    }
    return tp_leave(L, a,
                    lua_isnil(L, 1) ? tp_reason_const(TP_REASON_NORMAL)
                                    : tp_to_reason(L, 1));
}

/* exit(pid, reason); exit(reason) and exit() are for the caller itself. */
int
tp_l_exit(lua_State *L)
{
    struct tp_actor *a = tp_check_actor(L);
    if (lua_gettop(L) < 2) {
        return leave(L, a);
    }
    troupe_pid pid = tp_check_pid(L, 1);
    if (lua_isnil(L, 2)) {
        return luaL_argerror(L, 2, "reason expected, got nil");
    }
    struct tp_reason *reason = tp_to_reason(L, 2);
    if (pid == a->pid && !a->trap_exit) {
        return tp_leave(L, a, reason);
    }
    bool alive = tp_exit_signal(a->pid, pid, reason);
    tp_reason_unref(reason);
    tp_actor_checkpoint();
    lua_pushboolean(L, alive);
    return 1;
}

/* pid:exit(reason): of no reason but this one's it would be the caller's end. */
int
tp_l_exit_pid(lua_State *L)
{
    if (lua_isnone(L, 2)) {
        return luaL_argerror(L, 2, "reason expected");
    }
    return tp_l_exit(L);
}

int
tp_l_kill(lua_State *L)
{
    struct tp_actor *a = tp_check_actor(L);
    troupe_pid pid = tp_check_pid(L, 1);
    bool alive = tp_mailbox_is_open(pid);
    tp_actor_end(pid, tp_reason_const(TP_REASON_KILLED));
    tp_actor_checkpoint();
    lua_pushboolean(L, alive);
    return survive(L, a, 1);
}
