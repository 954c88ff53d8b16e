/*
 * registry.c - names, for Lua.
 *
 * Parks: never.
 * Tests: spec/lua/registry_spec.lua
 */
#include "actor/registry.h"

#include "bind.h"

const char *
tp_check_name(lua_State *L, int arg, const char *what, size_t *out_len)
{
    const char *s =
        lua_type(L, arg) == LUA_TSTRING ? lua_tolstring(L, arg, out_len) : NULL;
    if (s == NULL || *out_len == 0 || *out_len > TP_NAME_MAX) {
        lua_pushfstring(L, "%s must be a string of 1 to %d bytes", what,
                        TP_NAME_MAX);
        luaL_argerror(L, arg, lua_tostring(L, -1));
    }
    return s;
}

int
tp_push_names(lua_State *L, struct tp_msg *m)
{
    struct tp_lua *t = tp_lua_of(tp_check_actor(L));
    int n = 0;
    tp_own(t, m); /* a push may raise */
    lua_newtable(L);
    for (size_t at = 0; at < m->size; at += 1 + (size_t)m->data[at]) {
        lua_pushlstring(L, (const char *)&m->data[at + 1], m->data[at]);
        lua_rawseti(L, -2, ++n);
    }
    tp_disown(t, m);
    tp_msg_free(m);
    return 1;
}

int
tp_push_taken(lua_State *L, int code, troupe_pid holder)
{
    int n = tp_push_error(L, code);
    if (code == TROUPE_ENAME_TAKEN) {
        tp_push_pid(L, holder);
        n++;
    }
    return n;
}

/* register(name [, pid]) -> true; or nil, "name_taken", holder; nil, err */
int
tp_l_register(lua_State *L)
{
    struct tp_actor *a = tp_check_actor(L);
    size_t len;
    const char *name = tp_check_name(L, 1, "name", &len);
    troupe_pid pid = lua_isnoneornil(L, 2) ? a->pid : tp_check_pid(L, 2);
    troupe_pid holder;
    int rc = tp_register(name, len, pid, &holder);
    if (rc != 0) {
        return tp_push_taken(L, rc, holder);
    }
    lua_pushboolean(L, true);
    return 1;
}

int
tp_l_unregister(lua_State *L)
{
    size_t len;
    tp_check_actor(L);
    const char *name = tp_check_name(L, 1, "name", &len);
    lua_pushboolean(L, tp_unregister(name, len));
    return 1;
}

int
tp_l_whereis(lua_State *L)
{
    size_t len;
    tp_check_actor(L);
    const char *name = tp_check_name(L, 1, "name", &len);
    troupe_pid pid = tp_whereis(name, len);
    if (pid == 0) {
        lua_pushnil(L);
    } else {
        tp_push_pid(L, pid);
    }
    return 1;
}

/* names([pid]) -> array */
int
tp_l_names(lua_State *L)
{
    struct tp_msg *m;
    tp_check_actor(L);
    troupe_pid pid = lua_isnoneornil(L, 1) ? 0 : tp_check_pid(L, 1);
    if (pid == 0 && !lua_isnoneornil(L, 1)) {
        lua_newtable(L); /* of a name that nobody has */
        return 1;
    }
    int rc = tp_names(pid, &m);
    return rc == 0 ? tp_push_names(L, m) : tp_push_error(L, rc);
}
