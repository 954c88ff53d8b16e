/*
 * process.c - child processes, for Lua: what troupe.process is made of.
 *
 * Idea:    a handle is a userdata that holds the process for its owner, on the
 *          owner's list: the owner's end kills the child. The registry keeps
 *          the handle until Lua has got the notice of the child's end.
 *          start is called through troupe.blocking. All that may raise is done
 *          before the child is there.
 * Threads: the running actor's.
 * Parks:   never.
 * Tests:   spec/lua/process_spec.lua
 */
#define _GNU_SOURCE
#include "io/process.h"

#include "base/thread_errno.h"
#include "bind.h"
#include "io/stream.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

#define PROCESS "troupe.process"
#define TABLE   "troupe.processes"

/* Arguments of start. */
enum {
    ARG_ARGV = 1,
    ARG_ENV,
    ARG_CWD,
    ARG_STDIN,
    ARG_STDOUT,
    ARG_STDERR,
    ARG_INPUT,
    ARG_COUNT = ARG_INPUT
};

struct handle {
    struct tp_resource resource;
    struct tp_process *process; /* NULL: not any more */
    struct tp_process_end end;  /* once ended: the notice was taken */
    bool ended;
};

static void
handle_drop(struct handle *h)
{
    if (h->process != NULL) {
        tp_process_unref(h->process);
        h->process = NULL;
    }
}

/* The owner ends. The keeper reaps it. */
static void
handle_release(struct tp_resource *r)
{
    struct handle *h = tp_container_of(r, struct handle, resource);
    if (h->process != NULL) {
        tp_process_signal(h->process, SIGKILL);
        handle_drop(h);
    }
}

static int
handle_gc(lua_State *L)
{
    struct handle *h = luaL_checkudata(L, 1, PROCESS);
    if (h->process != NULL) {
        tp_resource_remove(&h->resource);
        handle_drop(h);
    }
    return 0;
}

static struct handle *
push_handle(lua_State *L)
{
    struct handle *h = lua_newuserdata(L, sizeof *h);
    memset(h, 0, sizeof *h);
    h->resource.release = handle_release;
    tp_list_init(&h->resource.node);
    if (luaL_newmetatable(L, PROCESS)) {
        lua_pushcfunction(L, handle_gc);
        lua_setfield(L, -2, "__gc");
    }
    lua_setmetatable(L, -2);
    return h;
}

/* -- the table of those whose end was not told yet ------------------------ */

static void
push_table(lua_State *L)
{
    lua_getfield(L, LUA_REGISTRYINDEX, TABLE);
    if (lua_isnil(L, -1)) {
        lua_pop(L, 1);
        lua_newtable(L);
        lua_pushvalue(L, -1);
        lua_setfield(L, LUA_REGISTRYINDEX, TABLE);
    }
}

/* The value on top, which is popped. */
static void
set_known(lua_State *L, uint64_t ref)
{
    push_table(L);
    lua_insert(L, -2);
    lua_pushnumber(L, (lua_Number)ref);
    lua_insert(L, -2);
    lua_rawset(L, -3);
    lua_pop(L, 1);
}

static struct handle *
find_known(lua_State *L, uint64_t ref)
{
    push_table(L);
    lua_pushnumber(L, (lua_Number)ref);
    lua_rawget(L, -2);
    struct handle *h = lua_touserdata(L, -1);
    lua_pop(L, 2);
    return h;
}

static void
set_number(lua_State *L, const char *key, double v)
{
    lua_pushnumber(L, v);
    lua_setfield(L, -2, key);
}

void
tp_push_process_event(lua_State *L, const struct tp_msg *m)
{
    struct tp_process_end end;
    memcpy(&end, m->data, sizeof end);
    lua_createtable(L, 0, 4);
    lua_pushliteral(L, "process_exit");
    lua_setfield(L, -2, "type");
    set_number(L, "pid", end.pid);
    set_number(L, "ref", (lua_Number)m->ref);
    if (end.error != 0) {
        lua_pushstring(L, strerrorname_np(end.error));
        lua_setfield(L, -2, "error");
    } else if (end.signal != 0) {
        set_number(L, "signal", end.signal);
    } else {
        set_number(L, "status", end.status);
    }
}

void
tp_note_process_end(lua_State *L, const struct tp_msg *m)
{
    struct handle *h = find_known(L, m->ref);
    if (h != NULL) {
        memcpy(&h->end, m->data, sizeof h->end);
        h->ended = true;
        lua_pushnil(L);
        set_known(L, m->ref);
    }
}

/* -- start ---------------------------------------------------------------- */

static const char *
check_plain(lua_State *L, int idx, const char *what)
{
    size_t n;
    const char *s =
        lua_type(L, idx) == LUA_TSTRING ? lua_tolstring(L, idx, &n) : NULL;
    if (s == NULL || strlen(s) != n) {
        luaL_error(L, "%s must be a string without zero bytes", what);
    }
    return s;
}

/* Pushes the memory of an array of so many texts, zero-filled. */
static const char **
push_array(lua_State *L, size_t n)
{
    const char **a = lua_newuserdata(L, n * sizeof *a);
    memset(a, 0, n * sizeof *a);
    return a;
}

/* Pushes what the texts live in. */
static const char *const *
push_argv(lua_State *L)
{
    size_t n = lua_objlen(L, ARG_ARGV);
    const char **argv = push_array(L, n + 1);
    for (size_t i = 0; i < n; i++) {
        lua_rawgeti(L, ARG_ARGV, (int)i + 1);
        argv[i] = check_plain(L, -1, "an argument of the command");
        lua_pop(L, 1); /* the table keeps it */
    }
    return argv;
}

/* Is the name of the text "name=value" a key of the table at idx? */
static bool
is_set_anew(lua_State *L, int idx, const char *text)
{
    const char *equals = strchr(text, '=');
    size_t n = equals == NULL ? strlen(text) : (size_t)(equals - text);
    lua_pushlstring(L, text, n);
    lua_rawget(L, idx);
    bool is = !lua_isnil(L, -1);
    lua_pop(L, 1);
    return is;
}

/* Appends to the array at at; the texts are kept by the table on top. */
static void
append_own(lua_State *L, const char **env, size_t at)
{
    int keep = lua_gettop(L);
    lua_pushnil(L);
    while (lua_next(L, ARG_ENV) != 0) {
        const char *name = check_plain(L, -2, "a name in env");
        if (name[0] == '\0' || strchr(name, '=') != NULL) {
            luaL_error(L, "'%s' cannot be a name in env", name);
        }
        if (lua_toboolean(L, -1)) {
            const char *value = check_plain(L, -1, "a value in env");
            env[at++] = lua_pushfstring(L, "%s=%s", name, value);
            lua_rawseti(L, keep, (int)at);
        }
        lua_pop(L, 1);
    }
}

/* This process's environment, with the changes in the table at ARG_ENV. Pushes
 * what the texts live in. */
static const char *const *
push_env(lua_State *L)
{
    size_t n = 0, own = 0, at = 0;
    if (lua_isnil(L, ARG_ENV)) {
        return NULL;
    }
    while (environ[n] != NULL) {
        n++;
    }
    for (lua_pushnil(L); lua_next(L, ARG_ENV) != 0; lua_pop(L, 1)) {
        own++;
    }
    const char **env = push_array(L, n + own + 1);
    for (size_t i = 0; i < n && environ[i] != NULL; i++) {
        if (!is_set_anew(L, ARG_ENV, environ[i])) {
            env[at++] = environ[i];
        }
    }
    lua_newtable(L);
    append_own(L, env, at);
    return env;
}

/* Pushes our side of a pipe, closed, or nil. */
static struct tp_stream *
push_end(lua_State *L, enum tp_stdio how)
{
    if (how != TP_STDIO_PIPE) {
        lua_pushnil(L);
        return NULL;
    }
    return tp_push_pipe(L);
}

/* start(argv, env, cwd, stdin, stdout, stderr, input) -> handle, pid, ref, our
 * ends of the three; or nil, err */
static int
l_start(lua_State *L)
{
    struct tp_actor *a = tp_check_actor(L);
    struct tp_process_spec spec = {.ref = tp_process_next_ref()};
    struct tp_stream *streams[3];
    int ends[3];
    lua_settop(L, ARG_COUNT);
    spec.argv = push_argv(L);
    spec.env = push_env(L);
    spec.cwd = lua_isnil(L, ARG_CWD) ? NULL : check_plain(L, ARG_CWD, "cwd");
    spec.input = lua_tolstring(L, ARG_INPUT, &spec.input_size);
    struct handle *h = push_handle(L);
    lua_pushvalue(L, -1);
    set_known(L, spec.ref);
    lua_pushnumber(L, 0); /* pid */
    int pid_at = lua_gettop(L);
    lua_pushnumber(L, (lua_Number)spec.ref);
    for (int i = 0; i < 3; i++) {
        spec.stdio[i] = (enum tp_stdio)lua_tointeger(L, ARG_STDIN + i);
        streams[i] = push_end(L, spec.stdio[i]);
    }
    int err = tp_process_start(a, &spec, ends, &h->process);
    if (err != 0) {
        lua_pushnil(L);
        set_known(L, spec.ref);
        return tp_push_errno(L, err);
    }
    tp_resource_add(a, &h->resource);
    for (int i = 0; i < 3; i++) {
        if (streams[i] != NULL) {
            tp_endpoint_open(&streams[i]->endpoint, ends[i]);
        }
    }
    lua_pushnumber(L, h->process->pid);
    lua_replace(L, pid_at);
    return 6;
}

/* ended(handle) -> true, status, signal, error: the notice was taken; or
 * false */
static int
l_ended(lua_State *L)
{
    struct handle *h = luaL_checkudata(L, 1, PROCESS);
    lua_pushboolean(L, h->ended);
    if (!h->ended) {
        return 1;
    }
    lua_pushinteger(L, h->end.status);
    lua_pushinteger(L, h->end.signal);
    lua_pushstring(L, h->end.error == 0 ? NULL : strerrorname_np(h->end.error));
    return 4;
}

/* kill(handle, signal) -> true; or nil, err */
static int
l_kill(lua_State *L)
{
    struct handle *h = luaL_checkudata(L, 1, PROCESS);
    int signal = (int)luaL_checkinteger(L, 2);
    int err =
        h->process == NULL ? ESRCH : tp_process_signal(h->process, signal);
    if (err == ESRCH) {
        return tp_push_error(L, TROUPE_ENOPROC);
    }
    if (err != 0) {
        return tp_push_errno(L, err);
    }
    lua_pushboolean(L, true);
    return 1;
}

/* signal(name) -> number or nil; with or without "SIG" */
static int
l_signal(lua_State *L)
{
    const char *name = luaL_checkstring(L, 1);
    name += strncmp(name, "SIG", 3) == 0 ? 3 : 0;
    for (int i = 1; i < NSIG; i++) {
        const char *known = sigabbrev_np(i);
        if (known != NULL && strcmp(known, name) == 0) {
            lua_pushinteger(L, i);
            return 1;
        }
    }
    return 0;
}

int
tp_open_process(lua_State *L)
{
    static const luaL_Reg functions[] = {
        {"start", l_start},   {"ended", l_ended}, {"kill", l_kill},
        {"signal", l_signal}, {NULL, NULL},
    };
    static const struct {
        const char *name;
        enum tp_stdio how;
    } hows[] = {{"inherit", TP_STDIO_INHERIT},
                {"null", TP_STDIO_NULL},
                {"pipe", TP_STDIO_PIPE},
                {"input", TP_STDIO_INPUT},
                {"stdout", TP_STDIO_STDOUT}};
    lua_createtable(L, 0, 5);
    luaL_register(L, NULL, functions);
    lua_createtable(L, 0, 5);
    for (size_t i = 0; i < sizeof hows / sizeof *hows; i++) {
        lua_pushinteger(L, (int)hows[i].how);
        lua_setfield(L, -2, hows[i].name);
    }
    lua_setfield(L, -2, "stdio");
    return 1;
}
