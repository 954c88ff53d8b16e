/*
 * select.c - wait for the first of several things, for Lua.
 *
 * Parks: select.
 * Tests: spec/lua/select_spec.lua
 */
#include "io/select.h"

#include "base/thread_errno.h"
#include "handle.h"

#include <string.h>

/* So many arms need no memory of the Lua state. */
#define FEW_ARMS 16

static bool
is_inbox(lua_State *L, int idx)
{
    return lua_type(L, idx) == LUA_TSTRING &&
           strcmp(lua_tostring(L, idx), TP_INBOX) == 0;
}

/* Raises an argument error about the i-th arm. */
static int
refuse(lua_State *L, size_t i, const char *why)
{
    lua_pushfstring(L, "arm %d %s", (int)i + 1, why);
    return luaL_argerror(L, 1, lua_tostring(L, -1));
}

/* { readable = fd } or { writable = fd }, at idx? */
static bool
read_fd(lua_State *L, int idx, const char *field, enum tp_fd_dir dir,
        struct tp_arm *arm)
{
    lua_pushstring(L, field);
    lua_rawget(L, idx - 1);
    bool is = lua_type(L, -1) == LUA_TNUMBER;
    if (is) {
        arm->kind = TP_ARM_FD;
        arm->fd = (int)lua_tointeger(L, -1);
        arm->dir = dir;
    }
    lua_pop(L, 1);
    return is;
}

/* The value on top, popped. */
static void
read_arm(lua_State *L, struct tp_actor *a, size_t i, struct tp_arm *arm)
{
    struct tp_handle *h;
    *arm = (struct tp_arm){0};
    if (is_inbox(L, -1)) {
        arm->kind = TP_ARM_INBOX;
    } else if ((h = tp_handle_to(L, -1, &tp_handle_rx)) != NULL) {
        arm->kind = TP_ARM_CHANNEL;
        arm->channel = tp_handle_object(h, a);
        if (arm->channel == NULL && tp_holder_of(h, a) != NULL) {
            refuse(L, i, "was sent to another actor");
        }
    } else if (!lua_istable(L, -1) ||
               !(read_fd(L, -1, "readable", TP_FD_READ, arm) ||
                 read_fd(L, -1, "writable", TP_FD_WRITE, arm))) {
        refuse(L, i, "is no receiver, inbox, readable or writable");
    }
    lua_pop(L, 1);
}

static bool
same(const struct tp_arm *a, const struct tp_arm *b)
{
    return a->kind == b->kind && a->channel == b->channel && a->fd == b->fd &&
           a->dir == b->dir &&
           (a->kind != TP_ARM_CHANNEL || a->channel != NULL);
}

static void
read_arms(lua_State *L, struct tp_actor *a, struct tp_arm *arms, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        lua_rawgeti(L, 1, (int)i + 1);
        read_arm(L, a, i, &arms[i]);
        for (size_t k = 0; k < i; k++) {
            if (same(&arms[k], &arms[i])) {
                lua_pushfstring(L, "is the same as arm %d", (int)k + 1);
                refuse(L, i, lua_tostring(L, -1));
            }
        }
    }
}

static int
push_fd_arm(lua_State *L, const char *field)
{
    int fd = tp_check_fd(L, 1);
    lua_createtable(L, 0, 2);
    lua_pushinteger(L, fd);
    lua_setfield(L, -2, field);
    if (!lua_isnumber(L, 1)) { /* a file, which shall not be collected */
        lua_pushvalue(L, 1);
        lua_setfield(L, -2, "file");
    }
    return 1;
}

/* readable(fd) -> arm */
int
tp_l_readable(lua_State *L)
{
    return push_fd_arm(L, "readable");
}

/* writable(fd) -> arm */
int
tp_l_writable(lua_State *L)
{
    return push_fd_arm(L, "writable");
}

/* Is it arms 1 to n and nothing else? Behind a hole there may be more of them
 * than # says. */
static bool
is_list(lua_State *L, size_t n)
{
    size_t entries = 0;
    lua_pushnil(L);
    while (entries <= n && lua_next(L, 1) != 0) {
        lua_pop(L, 1);
        entries++;
    }
    lua_settop(L, 2);
    return entries == n;
}

/* select(arms [, timeout]) -> index; or nil, err */
int
tp_l_select(lua_State *L)
{
    struct tp_actor *a = tp_check_actor(L);
    struct tp_arm few[FEW_ARMS], *arms = few;
    size_t index;
    tp_check_type(L, 1, LUA_TTABLE, "arms");
    size_t n = lua_objlen(L, 1);
    luaL_argcheck(L, n > 0, 1, "no arms");
    lua_settop(L, 2);
    luaL_argcheck(L, is_list(L, n), 1, "arms must be a list without holes");
    uint64_t deadline = tp_check_deadline(L, 2, "timeout");
    tp_refuse_in_scan(L, tp_lua_of(a));
    if (a->finishing) {
        return tp_raise_wait(L, TROUPE_EINVAL);
    }
    tp_lua_tier_up(L, a);
    if (n > FEW_ARMS) {
        arms = lua_newuserdata(L, n * sizeof *arms);
    }
    read_arms(L, a, arms, n);
    int rc = tp_select(a, arms, n, deadline, &index), err = errno;
    if (rc != 0) {
        return tp_push_fd_result(L, rc, err);
    }
    tp_actor_checkpoint();
    lua_pushinteger(L, (lua_Integer)index + 1);
    return 1;
}
