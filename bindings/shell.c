/*
 * shell.c - os.execute and io.popen, whose commands start as from a shell.
 *
 * Idea:    threads of the runtime have nearly all signals blocked, and a child
 *          takes that over: a command that no Ctrl-C ends. So os.execute starts
 *          the shell itself, with no signal blocked or ignored. popen's stream
 *          is the C library's, which starts the shell from the thread as it is:
 *          signals are open for that long.
 * Threads: the running actor's; they block it.
 * Parks:   never.
 * Tests:   spec/lua/blocking_pool_spec.lua
 */
#define _GNU_SOURCE
#include "bind.h"

#include "base/thread_errno.h"

#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

static int
start_shell(const char *command, pid_t *out_pid)
{
    const char *const argv[] = {"sh", "-c", command, NULL};
    posix_spawnattr_t attr;
    sigset_t set;
    posix_spawnattr_init(&attr);
    sigemptyset(&set);
    posix_spawnattr_setsigmask(&attr, &set);
    sigfillset(&set);
    posix_spawnattr_setsigdefault(&attr, &set);
    posix_spawnattr_setflags(&attr,
                             POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    int err = posix_spawn(out_pid, "/bin/sh", NULL, &attr,
                          (char *const *)(uintptr_t)argv, environ);
    posix_spawnattr_destroy(&attr);
    return err;
}

/* What system returns. */
static int
run_shell(const char *command)
{
    pid_t pid;
    int status;
    if (start_shell(command, &pid) != 0) {
        return -1;
    }
    while (waitpid(pid, &status, 0) < 0) {
        if (errno != EINTR) {
            return -1;
        }
    }
    return status;
}

/* Was LuaJIT built to follow Lua 5.2? There goto is no name. */
static bool
is_lua52(lua_State *L)
{
    bool is = luaL_loadstring(L, "goto = 1") != 0;
    lua_pop(L, 1);
    return is;
}

/* os.execute([command]), with the results of LuaJIT's own */
int
tp_l_os_execute(lua_State *L)
{
    const char *command = luaL_optstring(L, 1, NULL);
    bool lua52 = is_lua52(L);
    if (command == NULL) { /* is there a shell? */
        lua52 ? lua_pushboolean(L, true) : lua_pushinteger(L, 1);
        return 1;
    }
    int status = run_shell(command);
    if (lua52) {
        return luaL_execresult(L, status);
    }
    lua_pushinteger(L, status);
    return 1;
}

/* io.popen(...); upvalue: LuaJIT's own */
int
tp_l_popen(lua_State *L)
{
    sigset_t none, old;
    lua_pushvalue(L, lua_upvalueindex(1));
    lua_insert(L, 1);
    sigemptyset(&none);
    pthread_sigmask(SIG_SETMASK, &none, &old);
    int status = lua_pcall(L, lua_gettop(L) - 1, LUA_MULTRET, 0);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return status == 0 ? lua_gettop(L) : lua_error(L);
}
