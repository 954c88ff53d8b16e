/*
 * group.c - process groups, for Lua: the table behind troupe.pg.
 *
 * Idea:  what the core hands out is a message that was never sent, so that the
 *        actor can own it while Lua memory is asked for, and while a long
 *        broadcast lets others run.
 * Parks: never; broadcast may give way between two members.
 * Tests: spec/lua/pg_spec.lua
 */
#include "actor/group.h"

#include "bind.h"

#include <string.h>

#define GROUP "group"

static troupe_pid
pid_at(const struct tp_msg *pids, size_t i)
{
    troupe_pid pid;
    memcpy(&pid, pids->data + i * sizeof pid, sizeof pid);
    return pid;
}

static size_t
pid_count(const struct tp_msg *pids)
{
    return pids->size / sizeof(troupe_pid);
}

/* Pushes an array; frees pids. */
static void
push_pids(lua_State *L, struct tp_msg *pids)
{
    struct tp_lua *t = tp_lua_of(tp_check_actor(L));
    size_t n = pid_count(pids);
    tp_own(t, pids);
    lua_createtable(L, (int)n, 0);
    for (size_t i = 0; i < n; i++) {
        tp_push_pid(L, pid_at(pids, i));
        lua_rawseti(L, -2, (int)i + 1);
    }
    tp_disown(t, pids);
    tp_msg_free(pids);
}

static troupe_pid
self_or_pid(lua_State *L, int arg)
{
    troupe_pid self = tp_check_actor(L)->pid;
    return lua_isnoneornil(L, arg) ? self : tp_check_pid(L, arg);
}

/* join(group [, pid]) -> true, is it new there; or nil, err */
static int
l_join(lua_State *L)
{
    size_t len;
    bool is_new;
    const char *name = tp_check_name(L, 1, GROUP, &len);
    int rc = tp_group_join(name, len, self_or_pid(L, 2), &is_new);
    if (rc != 0) {
        return tp_push_error(L, rc);
    }
    lua_pushboolean(L, true);
    lua_pushboolean(L, is_new);
    return 2;
}

/* leave(group [, pid]) -> was it there */
static int
l_leave(lua_State *L)
{
    size_t len;
    const char *name = tp_check_name(L, 1, GROUP, &len);
    lua_pushboolean(L, tp_group_leave(name, len, self_or_pid(L, 2)));
    return 1;
}

/* members(group) -> array of pids */
static int
l_members(lua_State *L)
{
    size_t len;
    struct tp_msg *pids;
    tp_check_actor(L);
    const char *name = tp_check_name(L, 1, GROUP, &len);
    int rc = tp_group_members(name, len, &pids);
    if (rc != 0) {
        return tp_push_error(L, rc);
    }
    push_pids(L, pids);
    return 1;
}

/* pick(group) -> pid or nil */
static int
l_pick(lua_State *L)
{
    size_t len;
    uint32_t count;
    tp_check_actor(L);
    const char *name = tp_check_name(L, 1, GROUP, &len);
    troupe_pid pid = tp_group_pick(name, len, &count);
    if (pid == 0) {
        lua_pushnil(L);
    } else {
        tp_push_pid(L, pid);
    }
    return 1;
}

static void
check_message(lua_State *L, int arg)
{
    if (lua_isnoneornil(L, arg)) {
        luaL_argerror(L, arg, "message expected, got nil");
    }
}

/* Gives m to the next member that takes it; each is asked once. 0, or *out_rc
 * says why nobody did. */
static troupe_pid
give(const char *name, size_t len, struct tp_msg *m, int *out_rc)
{
    uint32_t left, tried = 0;
    *out_rc = TROUPE_ENOPROC;
    do {
        troupe_pid pid = tp_group_pick(name, len, &left);
        if (pid == 0) {
            return 0;
        }
        int rc = tp_mailbox_push(pid, m);
        if (rc == 0) {
            return pid;
        }
        if (rc == TROUPE_EFULL) {
            *out_rc = rc;
        }
    } while (++tried < left);
    return 0;
}

/* dispatch(group, message) -> pid; or nil, "no_member" or "full" */
static int
l_dispatch(lua_State *L)
{
    struct tp_actor *a = tp_check_actor(L);
    size_t len;
    int rc;
    const char *name = tp_check_name(L, 1, GROUP, &len);
    check_message(L, 2);
    struct tp_msg *m = tp_encode_message(L, 2, a->pid);
    troupe_pid pid = give(name, len, m, &rc);
    if (pid == 0) {
        tp_msg_unsend(m);
        if (rc == TROUPE_EFULL) {
            return tp_push_error(L, rc);
        }
        lua_pushnil(L);
        lua_pushliteral(L, "no_member");
        return 2;
    }
    tp_actor_checkpoint();
    tp_push_pid(L, pid);
    return 1;
}

/* A copy of m for pid; false if it could not be delivered. */
static bool
send_copy(const struct tp_msg *m, troupe_pid pid)
{
    struct tp_msg *copy = tp_msg_copy(m);
    if (copy == NULL) {
        return false;
    }
    if (tp_mailbox_push(pid, copy) != 0) {
        tp_msg_drop(copy);
        return false;
    }
    return true;
}

/* broadcast(group, message) -> how many got it */
static int
l_broadcast(lua_State *L)
{
    struct tp_actor *a = tp_check_actor(L);
    struct tp_lua *t = tp_lua_of(a);
    size_t len;
    struct tp_msg *pids;
    lua_Number sent = 0;
    const char *name = tp_check_name(L, 1, GROUP, &len);
    check_message(L, 2);
    struct tp_msg *m = tp_encode_to_many(L, 2, "message", a->pid);
    tp_own(t, m);
    int rc = tp_group_members(name, len, &pids);
    if (rc == 0) {
        tp_own(t, pids); /* a checkpoint may be the end */
        for (size_t i = 0; i < pid_count(pids); i++) {
            sent += send_copy(m, pid_at(pids, i));
            tp_actor_checkpoint();
        }
        tp_disown(t, pids);
        tp_msg_free(pids);
    }
    tp_disown(t, m);
    tp_msg_drop(m);
    if (rc != 0) {
        return tp_push_error(L, rc);
    }
    lua_pushnumber(L, sent);
    return 1;
}

/* monitor(group) -> ref, members; or nil, err */
static int
l_monitor(lua_State *L)
{
    struct tp_actor *a = tp_check_actor(L);
    size_t len;
    uint64_t ref;
    struct tp_msg *pids;
    const char *name = tp_check_name(L, 1, GROUP, &len);
    int rc = tp_group_monitor(a, name, len, &ref, &pids);
    if (rc != 0) {
        return tp_push_error(L, rc);
    }
    lua_pushnumber(L, (lua_Number)ref);
    push_pids(L, pids);
    return 2;
}

/* demonitor(ref) -> was there one */
static int
l_demonitor(lua_State *L)
{
    struct tp_actor *a = tp_check_actor(L);
    lua_Number ref = tp_check_number(L, 1, "ref");
    bool known = ref >= 1 && ref < 9007199254740992.0;
    lua_pushboolean(L, known && tp_group_demonitor(a, (uint64_t)ref));
    return 1;
}

/* groups() -> array of names */
static int
l_groups(lua_State *L)
{
    struct tp_msg *m;
    tp_check_actor(L);
    int rc = tp_groups(&m);
    return rc == 0 ? tp_push_names(L, m) : tp_push_error(L, rc);
}

/* {type="join" or "leave", ref=, group=, pid=} */
void
tp_push_group_event(lua_State *L, const struct tp_msg *m)
{
    size_t len;
    const char *name = tp_group_event_name(m, &len);
    lua_createtable(L, 0, 4);
    lua_pushstring(L, tp_group_event_is_join(m) ? "join" : "leave");
    lua_setfield(L, -2, "type");
    lua_pushnumber(L, (lua_Number)m->ref);
    lua_setfield(L, -2, "ref");
    lua_pushlstring(L, name, len);
    lua_setfield(L, -2, GROUP);
    tp_push_pid(L, m->from);
    lua_setfield(L, -2, "pid");
}

int
tp_open_pg(lua_State *L)
{
    static const luaL_Reg functions[] = {
        {"join", l_join},         {"leave", l_leave},
        {"members", l_members},   {"pick", l_pick},
        {"dispatch", l_dispatch}, {"broadcast", l_broadcast},
        {"monitor", l_monitor},   {"demonitor", l_demonitor},
        {"groups", l_groups},     {NULL, NULL},
    };
    lua_createtable(L, 0, 9);
    for (const luaL_Reg *f = functions; f->name != NULL; f++) {
        lua_pushcfunction(L, f->func);
        lua_setfield(L, -2, f->name);
    }
    return 1;
}
