/*
 * call.c - call and reply, for Lua.
 *
 * Idea:  who receives a request gets, in the sender's place, a handle that
 *        answers it. A handle that is collected unanswered tells the caller
 *        so; one that has answered changes to a metatable without __gc, so
 *        that the collector has nothing to do for it.
 * Parks: call.
 * Tests: spec/lua/call_spec.lua
 */
#include "actor/call.h"
#include "bind.h"

#include <stdlib.h>
#include <string.h>

#define OPEN               "troupe.from"
#define CLOSED             "troupe.answered"
#define TIMEOUT_DEFAULT_NS 5000000000ull

struct handle {
    struct tp_owed *owed; /* see owed_of */
    uint64_t owner;       /* started_ns of the actor that was asked */
    troupe_pid caller;
};

/* NULL: answered, or h is of an actor that has ended: the state of
 * troupe.run's caller outlives its actor. */
static struct tp_owed *
owed_of(const struct handle *h, const struct tp_actor *a)
{
    return a != NULL && a->started_ns == h->owner ? h->owed : NULL;
}

static int
handle_gc(lua_State *L)
{
    struct handle *h = lua_touserdata(L, 1);
    struct tp_actor *a = tp_actor_self();
    struct tp_owed *o = owed_of(h, a);
    h->owed = NULL;
    if (o != NULL) {
        tp_owed_drop(a, o);
    }
    return 0;
}

static struct handle *check_handle(lua_State *L, int arg);

/* The caller gets "no_reply" now, not when the handle is collected. */
static int
handle_drop(lua_State *L)
{
    check_handle(L, 1);
    return handle_gc(L);
}

static int
handle_tostring(lua_State *L)
{
    struct handle *h = lua_touserdata(L, 1);
    lua_pushfstring(L, "from <0.%d.%d>%s", (int)tp_pid_index(h->caller),
                    (int)tp_pid_gen(h->caller),
                    owed_of(h, tp_actor_self()) == NULL ? " (answered)" : "");
    return 1;
}

/* handle.pid, handle:reply(value), handle:drop() */
static int
handle_index(lua_State *L)
{
    struct handle *h = lua_touserdata(L, 1);
    const char *key = lua_tostring(L, 2);
    if (key != NULL && strcmp(key, "pid") == 0) {
        tp_push_pid(L, h->caller);
    } else if (key != NULL && strcmp(key, "reply") == 0) {
        lua_pushcfunction(L, tp_l_reply);
    } else if (key != NULL && strcmp(key, "drop") == 0) {
        lua_pushcfunction(L, handle_drop);
    } else {
        lua_pushnil(L);
    }
    return 1;
}

static void
push_metatable(lua_State *L, const char *name)
{
    if (luaL_newmetatable(L, name) == 0) {
        return;
    }
    lua_pushcfunction(L, handle_index);
    lua_setfield(L, -2, "__index");
    lua_pushcfunction(L, handle_tostring);
    lua_setfield(L, -2, "__tostring");
    lua_pushliteral(L, OPEN);
    lua_pushvalue(L, -1);
    lua_setfield(L, -3, "__metatable");
    lua_setfield(L, -2, "__name");
    if (strcmp(name, OPEN) == 0) {
        lua_pushcfunction(L, handle_gc);
        lua_setfield(L, -2, "__gc");
    }
}

void
tp_push_from(lua_State *L, struct tp_actor *a, struct tp_msg *m)
{
    struct handle *h = lua_newuserdata(L, sizeof *h);
    h->owed = NULL;
    h->owner = a->started_ns;
    h->caller = m->from;
    push_metatable(L, OPEN);
    lua_setmetatable(L, -2);
    h->owed = tp_owed_new(a, m);
    if (h->owed == NULL) {
        luaL_error(L, "not enough memory");
    }
    m->ref = 0; /* from here on the handle answers, not the message */
}

static struct handle *
check_handle(lua_State *L, int arg)
{
    struct handle *h = lua_touserdata(L, arg);
    bool ours = false;
    if (h != NULL && lua_objlen(L, arg) == sizeof *h &&
        lua_getmetatable(L, arg)) {
        lua_getfield(L, -1, "__name");
        ours = lua_type(L, -1) == LUA_TSTRING &&
               strcmp(lua_tostring(L, -1), OPEN) == 0;
        lua_pop(L, 2);
    }
    luaL_argcheck(L, ours, arg, "request handle expected");
    return h;
}

/* reply(from, value) -> true, or false: nobody waits any more. */
int
tp_l_reply(lua_State *L)
{
    struct tp_actor *a = tp_check_actor(L);
    struct handle *h = check_handle(L, 1);
    if (owed_of(h, a) == NULL) {
        lua_pushboolean(L, false);
        return 1;
    }
    if (lua_isnone(L, 2)) {
        lua_settop(L, 1);
        lua_pushnil(L);
    }
    struct tp_msg *m = tp_encode_message(L, 2, a->pid);
    struct tp_owed *o = h->owed; /* a finalizer may have answered by now */
    h->owed = NULL;
    bool waits = false;
    if (o != NULL) {
        waits = tp_owed_reply(a, o, m);
    } else {
        tp_msg_unsend(m);
    }
    push_metatable(L, CLOSED);
    lua_setmetatable(L, 1);
    tp_actor_checkpoint();
    lua_pushboolean(L, waits);
    return 1;
}

/* Pushes what came: the reply, or nil and why there is none. */
static int
push_outcome(lua_State *L, struct tp_lua *t, int rc, struct tp_msg *reply,
             struct tp_reason *reason)
{
    if (rc == 0) {
        return tp_deliver_value(L, t, reply);
    }
    if (reason != NULL) {
        lua_pushnil(L);
        tp_push_reason(L, reason);
        tp_reason_unref(reason);
        return 2;
    }
    if (rc == TROUPE_EKILLED || rc == TROUPE_EINVAL) {
        return tp_raise_wait(L, rc);
    }
    return tp_push_error(L, rc);
}

/* call(dest, request [, timeout = 5]) -> reply; or nil, err */
int
tp_l_call(lua_State *L)
{
    struct tp_actor *a = tp_check_actor(L);
    troupe_pid to = tp_check_pid(L, 1);
    struct tp_msg *reply;
    struct tp_reason *reason;
    if (lua_isnoneornil(L, 2)) {
        return luaL_argerror(L, 2, "request expected, got nil");
    }
    uint64_t deadline = lua_isnoneornil(L, 3)
                            ? tp_now_ns() + TIMEOUT_DEFAULT_NS
                            : tp_check_deadline(L, 3, "timeout");
    struct tp_msg *m = tp_encode_message(L, 2, a->pid);
    tp_lua_tier_up(L, a);
    int rc = tp_call(a, to, m, deadline, &reply, &reason);
    return push_outcome(L, tp_lua_of(a), rc, reply, reason);
}
