/*
 * mutex.c - values that one actor has at a time, for Lua.
 *
 * Idea:  the value stays in the core as bytes; lock copies it out, and unlock
 *        or with copies a new one in. Whoever locks next decodes it again, so
 *        nothing in it may be of a kind that moves.
 * Parks: lock, with.
 * Tests: spec/lua/mutex_spec.lua
 */
#include "actor/value_mutex.h"
#include "handle.h"

#define TIMEOUT_DEFAULT_NS 30000000000ull

static struct tp_value_mutex *
check_mutex(lua_State *L, struct tp_actor *a)
{
    struct tp_value_mutex *m = tp_handle_check(L, a, 1, &tp_handle_mutex);
    if (m == NULL) {
        luaL_argerror(L, 1, "mutex is gone: its actor has ended");
    }
    return m;
}

/* -- lock and unlock ----------------------------------------------------- */

static int
decode_protected(lua_State *L)
{
    struct tp_value_mutex *m = lua_touserdata(L, 1);
    if (!tp_decode_scalar(L, m->value->data, m->value->size)) {
        tp_decode(L, m->value->data, m->value->size);
    }
    return 1;
}

/* The caller has just locked m: pushes its value. Without memory for that it
 * is unlocked again. */
static void
push_value(lua_State *L, struct tp_actor *a, struct tp_value_mutex *m)
{
    const struct tp_msg *v = m->value;
    if (v->data[0] != TP_TAG_STR8 && tp_decode_scalar(L, v->data, v->size)) {
        return; /* that cannot fail */
    }
    lua_pushcfunction(L, decode_protected);
    lua_pushlightuserdata(L, m);
    if (lua_pcall(L, 1, 1, 0) != 0) {
        tp_value_mutex_unlock(a, m);
        lua_error(L);
    }
}

/* Locks m until the timeout at arg; 0, or nil and err are pushed. */
static int
lock(lua_State *L, struct tp_actor *a, struct tp_value_mutex *m, int arg,
     bool *out_abandoned)
{
    uint64_t deadline = lua_isnoneornil(L, arg)
                            ? tp_now_ns() + TIMEOUT_DEFAULT_NS
                            : tp_check_deadline(L, arg, "timeout");
    int rc = tp_value_mutex_try_lock(a, m, out_abandoned);
    if (TP_LIKELY(rc == 0)) {
        return 0;
    }
    tp_lua_tier_up(L, a);
    rc = tp_value_mutex_lock(a, m, deadline, out_abandoned);
    if (rc == TROUPE_EBUSY) {
        return luaL_error(L, "the mutex is locked already, by this very actor");
    }
    if (rc == TROUPE_EKILLED || rc == TROUPE_EINVAL) {
        return tp_raise_wait(L, rc);
    }
    if (rc != 0) {
        tp_push_error(L, rc);
    }
    return rc;
}

static int
push_locked(lua_State *L, struct tp_actor *a, struct tp_value_mutex *m,
            bool abandoned)
{
    push_value(L, a, m);
    if (abandoned) {
        lua_pushliteral(L, "abandoned");
    }
    return abandoned ? 2 : 1;
}

/* m:lock([timeout = 30]) -> value [, "abandoned"]; or nil, "timeout" */
static int
mutex_lock(lua_State *L)
{
    struct tp_actor *a = tp_check_actor(L);
    struct tp_value_mutex *m = check_mutex(L, a);
    bool abandoned;
    int rc = lock(L, a, m, 2, &abandoned);
    return rc == 0 ? push_locked(L, a, m, abandoned) : 2;
}

/* m:try_lock() -> value [, "abandoned"]; or nil, "busy" */
static int
mutex_try_lock(lua_State *L)
{
    struct tp_actor *a = tp_check_actor(L);
    struct tp_value_mutex *m = check_mutex(L, a);
    bool abandoned;
    int rc = tp_value_mutex_try_lock(a, m, &abandoned);
    return rc == 0 ? push_locked(L, a, m, abandoned) : tp_push_error(L, rc);
}

static int
not_held(lua_State *L)
{
    return luaL_error(L, "the mutex is not locked by this actor");
}

/* Replaces the value by the one at idx. */
static void
store(lua_State *L, struct tp_actor *a, struct tp_value_mutex *m, int idx)
{
    if (!tp_value_mutex_is_held_by(m, a->pid)) {
        not_held(L);
    }
    tp_value_mutex_set(m, tp_encode_to_many(L, idx, "value", a->pid));
}

/* m:unlock([value]) -> true */
static int
mutex_unlock(lua_State *L)
{
    struct tp_actor *a = tp_check_actor(L);
    struct tp_value_mutex *m = check_mutex(L, a);
    if (!lua_isnoneornil(L, 2)) {
        store(L, a, m, 2);
    }
    if (tp_value_mutex_unlock(a, m) != 0) {
        return not_held(L);
    }
    tp_actor_checkpoint();
    lua_pushboolean(L, true);
    return 1;
}

/* -- with ---------------------------------------------------------------- */

/* The mutex, fn, value, "abandoned" or nil: calls fn, stores what it returns;
 * returns the value. */
static int
with_protected(lua_State *L)
{
    struct tp_value_mutex *m = lua_touserdata(L, 1);
    lua_pushvalue(L, 2);
    lua_pushvalue(L, 3);
    lua_pushvalue(L, 4);
    lua_call(L, 2, 1);
    if (lua_isnil(L, 5)) {
        lua_settop(L, 3);
    } else {
        store(L, tp_check_actor(L), m, 5);
    }
    return 1;
}

/* m:with(fn [, timeout = 30]) -> value [, "abandoned"]; or nil, "timeout" */
static int
mutex_with(lua_State *L)
{
    struct tp_actor *a = tp_check_actor(L);
    struct tp_value_mutex *m = check_mutex(L, a);
    bool abandoned;
    tp_check_type(L, 2, LUA_TFUNCTION, "fn");
    if (lock(L, a, m, 3, &abandoned) != 0) {
        return 2;
    }
    lua_pushcfunction(L, with_protected);
    lua_pushlightuserdata(L, m);
    lua_pushvalue(L, 2);
    push_value(L, a, m);
    if (abandoned) {
        lua_pushliteral(L, "abandoned");
    } else {
        lua_pushnil(L);
    }
    int status = lua_pcall(L, 4, 1, 0);
    int rc = tp_value_mutex_unlock(a, m);
    if (status != 0) {
        return lua_error(L);
    }
    if (rc != 0) {
        return not_held(L);
    }
    tp_actor_checkpoint();
    if (abandoned) {
        lua_pushliteral(L, "abandoned");
    }
    return abandoned ? 2 : 1;
}

/* -- kind ---------------------------------------------------------------- */

static void
mutex_ref(void *m)
{
    tp_value_mutex_ref(m);
}

static void
mutex_unref(void *m)
{
    tp_value_mutex_unref(m);
}

static const luaL_Reg methods[] = {{"with", mutex_with},
                                   {"lock", mutex_lock},
                                   {"try_lock", mutex_try_lock},
                                   {"unlock", mutex_unlock},
                                   {NULL, NULL}};

const struct tp_handle_kind tp_handle_mutex = {.name = "troupe.mutex",
                                               TP_HANDLE_TEXTS("mutex"),
                                               .ref = mutex_ref,
                                               .unref = mutex_unref,
                                               .methods = methods};

/* mutex([value = true]) -> mutex; or nil, "nomem" */
int
tp_l_mutex(lua_State *L)
{
    struct tp_actor *a = tp_check_actor(L);
    if (lua_isnoneornil(L, 1)) {
        lua_settop(L, 0);
        lua_pushboolean(L, true);
    }
    struct tp_handle *h = tp_handle_new(L, &tp_handle_mutex);
    struct tp_msg *value = tp_encode_to_many(L, 1, "value", a->pid);
    struct tp_value_mutex *m = tp_value_mutex_new(value);
    if (m == NULL) {
        tp_msg_drop(value);
        return tp_push_error(L, TROUPE_ENOMEM);
    }
    tp_handle_set(h, m);
    return 1;
}
