/*
 * io.c - wait_readable and wait_writable, for Lua.
 *
 * Parks: both.
 * Tests: spec/lua/io_spec.lua
 */
#define _GNU_SOURCE
#include "bind.h"

#include "base/thread_errno.h"
#include "io/wait.h"

#include <limits.h>
#include <stdio.h>

/* The FILE of a handle of LuaJIT's io library begins its userdata. */
static FILE *
to_file(lua_State *L, int arg)
{
    FILE **f = lua_touserdata(L, arg);
    bool is_file = false;
    if (lua_type(L, arg) == LUA_TUSERDATA && lua_getmetatable(L, arg)) {
        luaL_getmetatable(L, LUA_FILEHANDLE);
        is_file = lua_rawequal(L, -1, -2) != 0;
        lua_pop(L, 2);
    }
    if (!is_file) {
        luaL_argerror(L, arg, "fd must be a number or a file");
    }
    if (*f == NULL) {
        luaL_argerror(L, arg, "fd is a closed file");
    }
    return *f;
}

int
tp_check_fd(lua_State *L, int arg)
{
    if (lua_type(L, arg) != LUA_TNUMBER) {
        return fileno(to_file(L, arg));
    }
    lua_Number n = lua_tonumber(L, arg);
    if (!(n >= 0 && n <= INT_MAX && n == (lua_Number)(int)n)) {
        luaL_argerror(L, arg, "fd must be a whole number, not negative");
    }
    return (int)n;
}

int
tp_push_fd_result(lua_State *L, int rc, int err)
{
    if (rc == TROUPE_EINVAL && err == EPERM) {
        return luaL_argerror(
            L, 1,
            "fd is a file or a folder, which cannot be waited for: it "
            "is always ready; troupe.blocking keeps its reads from "
            "holding up others");
    }
    if (rc == TROUPE_EKILLED) {
        return tp_raise_wait(L, rc);
    }
    if (rc == TROUPE_EINVAL && err == EBADF) {
        rc = TROUPE_ECLOSED;
    }
    if (rc != 0) {
        return tp_push_error(L, rc);
    }
    lua_pushboolean(L, true);
    return 1;
}

static int
wait_for(lua_State *L, enum tp_fd_dir dir)
{
    struct tp_actor *a = tp_check_actor(L);
    int fd = tp_check_fd(L, 1);
    uint64_t deadline = tp_check_deadline(L, 2, "timeout");
    if (a->finishing) {
        return tp_raise_wait(L, TROUPE_EINVAL);
    }
    tp_lua_tier_up(L, a);
    int rc = tp_fd_wait(a, fd, dir, deadline);
    int err = errno;
    tp_actor_checkpoint();
    return tp_push_fd_result(L, rc, err);
}

int
tp_l_wait_readable(lua_State *L)
{
    return wait_for(L, TP_FD_READ);
}

int
tp_l_wait_writable(lua_State *L)
{
    return wait_for(L, TP_FD_WRITE);
}
