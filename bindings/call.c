/*
 * call.c - call and reply, for Lua.
 *
 * Idea:  who receives a request gets, in the sender's place, a handle that
 *        answers it, and may be sent on: the first answer counts. The caller
 *        is told when the last one was collected, or its actor has ended.
 * Parks: call.
 * Tests: spec/lua/call_spec.lua
 */
#include "actor/call.h"
#include "handle.h"

#include <string.h>

#define TIMEOUT_DEFAULT_NS 5000000000ull

/* -- handles ------------------------------------------------------------- */

/* The caller gets "no_reply" now, if this was the last handle, not when it is
 * collected. */
static int
from_drop(lua_State *L)
{
    return tp_handle_close(L, 1, &tp_handle_from);
}

static const struct tp_handle *
check_from(lua_State *L)
{
    struct tp_handle *h = tp_handle_to(L, 1, &tp_handle_from);
    if (h == NULL) {
        tp_handle_refuse(L, 1, &tp_handle_from, "expected");
    }
    return h;
}

static int
from_tostring(lua_State *L)
{
    const struct tp_handle *h = check_from(L);
    bool open = tp_handle_object(h, tp_actor_self()) != NULL;
    lua_pushfstring(L, "from <0.%d.%d>%s", (int)tp_pid_index(h->pid),
                    (int)tp_pid_gen(h->pid), open ? "" : " (answered)");
    return 1;
}

/* handle.pid, and the methods */
static int
from_index(lua_State *L)
{
    const struct tp_handle *h = check_from(L);
    const char *key = lua_tostring(L, 2);
    if (key != NULL && strcmp(key, "pid") == 0) {
        tp_push_pid(L, h->pid);
    } else {
        lua_pushvalue(L, 2);
        lua_rawget(L, lua_upvalueindex(1));
    }
    return 1;
}

static void
from_ref(void *owed)
{
    tp_owed_ref(owed);
}

static void
from_unref(void *owed)
{
    tp_owed_unref(owed);
}

static troupe_pid
from_pid(const void *owed)
{
    return ((const struct tp_owed *)owed)->caller;
}

static const luaL_Reg from_methods[] = {
    {"reply", tp_l_reply}, {"drop", from_drop}, {NULL, NULL}};

static const luaL_Reg from_meta[] = {
    {"__index", from_index}, {"__tostring", from_tostring}, {NULL, NULL}};

const struct tp_handle_kind tp_handle_from = {
    .name = "troupe.from",
    .what = "request handle",
    .gone = "request handle that was answered",
    .to_many = "request handle in a message to many",
    .ref = from_ref,
    .unref = from_unref,
    .to_one = true,
    .methods = from_methods,
    .meta = from_meta,
    .pid = from_pid};

void
tp_push_from(lua_State *L, struct tp_actor *a, struct tp_msg *m)
{
    struct tp_handle *h = tp_handle_new(L, &tp_handle_from);
    struct tp_owed *o = tp_owed_new(a, m);
    if (o == NULL) {
        luaL_error(L, "not enough memory");
    }
    m->ref = 0; /* from here on the handle answers, not the message */
    tp_handle_set(h, o);
}

/* -- reply and call ------------------------------------------------------ */

/* reply(from, value) -> true, or false: nobody waits any more. */
int
tp_l_reply(lua_State *L)
{
    struct tp_actor *a = tp_check_actor(L);
    if (tp_handle_check(L, a, 1, &tp_handle_from) == NULL) {
        lua_pushboolean(L, false);
        return 1;
    }
    if (lua_isnone(L, 2)) {
        lua_pushnil(L);
    }
    struct tp_msg *m = tp_encode_message(L, 2, a->pid);
    struct tp_owed *o = tp_handle_object(lua_touserdata(L, 1), a);
    bool waits = o != NULL && tp_owed_reply(o, m);
    if (o == NULL) { /* a finalizer was faster */
        tp_msg_unsend(m);
    } else {
        tp_handle_close(L, 1, &tp_handle_from);
    }
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
