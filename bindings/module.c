/*
 * module.c - the table "troupe", pids, and running from a plain LuaJIT.
 *
 * Idea:  the table holds a function only once it has been asked for, so that
 *        100,000 actors do not pay for what they do not call.
 * Parks: run does not; it returns when all actors are gone.
 * Tests: spec/lua/module_spec.lua, spec/lua/run_spec.lua
 */
#include "actor/registry.h"
#include "bind.h"
#include "run/runtime.h"
#include "sched/blocking.h"

#include <stdlib.h>
#include <string.h>

/* -- arguments ----------------------------------------------------------- */

static void
refuse_type(lua_State *L, int arg, int type, const char *name)
{
    const char *got = lua_isnone(L, arg) ? "nil" : luaL_typename(L, arg);
    lua_pushfstring(L, "%s must be a %s, not %s", name, lua_typename(L, type),
                    got);
    luaL_argerror(L, arg, lua_tostring(L, -1));
}

void
tp_check_type(lua_State *L, int arg, int type, const char *name)
{
    if (lua_type(L, arg) != type) {
        refuse_type(L, arg, type, name);
    }
}

lua_Number
tp_check_number(lua_State *L, int arg, const char *name)
{
    if (!lua_isnumber(L, arg)) {
        refuse_type(L, arg, LUA_TNUMBER, name);
    }
    return lua_tonumber(L, arg);
}

const char *
tp_check_string(lua_State *L, int arg, const char *name, size_t *out_len)
{
    if (!lua_isstring(L, arg)) {
        refuse_type(L, arg, LUA_TSTRING, name);
    }
    return lua_tolstring(L, arg, out_len);
}

/* -- pids ---------------------------------------------------------------- */

void
tp_push_pid(lua_State *L, troupe_pid pid)
{
    lua_pushlightuserdata(L, (void *)(uintptr_t)pid);
}

troupe_pid
tp_check_pid(lua_State *L, int arg)
{
    if (TP_LIKELY(lua_islightuserdata(L, arg))) {
        troupe_pid pid = (uintptr_t)lua_touserdata(L, arg);
        if (TP_LIKELY(tp_pid_was_issued(pid))) {
            return pid;
        }
    }
    if (lua_type(L, arg) == LUA_TSTRING) {
        size_t len;
        const char *name = lua_tolstring(L, arg, &len);
        return tp_whereis(name, len);
    }
    luaL_argerror(L, arg, "pid or registered name expected");
    return 0;
}

static int
pid_tostring(lua_State *L)
{
    troupe_pid pid = (uintptr_t)lua_touserdata(L, 1);
    if (lua_islightuserdata(L, 1) && tp_pid_was_issued(pid)) {
        lua_pushfstring(L, "<0.%d.%d>", (int)tp_pid_index(pid),
                        (int)tp_pid_gen(pid));
    } else {
        lua_pushfstring(L, "userdata: %p", lua_touserdata(L, 1));
    }
    return 1;
}

/* -- lazy functions ------------------------------------------------------ */

static int l_run(lua_State *L);
static int get_log(lua_State *L);
static int get_version(lua_State *L);
static int get_inbox(lua_State *L);
static int get_task(lua_State *L);
static int get_all(lua_State *L);
static int get_race(lua_State *L);

struct lazy_entry {
    const char *name;
    lua_CFunction function; /* the value, or what makes it */
    bool make;
};

static const struct lazy_entry troupe_entries[] = {
    {"run", l_run, false},
    {"spawn", tp_l_spawn, false},
    {"spawn_opt", tp_l_spawn_opt, false},
    {"self", tp_l_self, false},
    {"send", tp_l_send, false},
    {"receive", tp_l_receive, false},
    {"receive_match", tp_l_receive_match, false},
    {"sleep", tp_l_sleep, false},
    {"yield", tp_l_yield, false},
    {"blocking", tp_l_blocking, false},
    {"now", tp_l_now, false},
    {"send_after", tp_l_send_after, false},
    {"send_every", tp_l_send_every, false},
    {"cancel", tp_l_cancel, false},
    {"wait_readable", tp_l_wait_readable, false},
    {"wait_writable", tp_l_wait_writable, false},
    {"exit", tp_l_exit, false},
    {"join", tp_l_join, false},
    {"kill", tp_l_kill, false},
    {"link", tp_l_link, false},
    {"unlink", tp_l_unlink, false},
    {"trap_exit", tp_l_trap_exit, false},
    {"monitor", tp_l_monitor, false},
    {"demonitor", tp_l_demonitor, false},
    {"spawn_link", tp_l_spawn_link, false},
    {"spawn_monitor", tp_l_spawn_monitor, false},
    {"call", tp_l_call, false},
    {"cast", tp_l_cast, false},
    {"reply", tp_l_reply, false},
    {"await_down", tp_l_await_down, false},
    {"sendable", tp_l_sendable, false},
    {"channel", tp_l_channel, false},
    {"select", tp_l_select, false},
    {"inbox", get_inbox, true},
    {"readable", tp_l_readable, false},
    {"writable", tp_l_writable, false},
    {"mutex", tp_l_mutex, false},
    {"counter", tp_l_counter, false},
    {"task", get_task, true},
    {"all", get_all, true},
    {"race", get_race, true},
    {"info", tp_l_info, false},
    {"stats", tp_l_stats, false},
    {"register", tp_l_register, false},
    {"unregister", tp_l_unregister, false},
    {"whereis", tp_l_whereis, false},
    {"names", tp_l_names, false},
    {"_pg", tp_open_pg, true},
    {"_fs", tp_open_fs, true},
    {"_process", tp_open_process, true},
    {"_net", tp_open_net, true},
    {"_fail", tp_l_fail, false},
    {"_next", tp_l_next, false},
    {"_serve", tp_l_serve, false},
    {"_before_exit", tp_l_before_exit, false},
    {"_reserve", tp_l_reserve, false},
    {"_send_system", tp_l_send_system, false},
    {"log", get_log, true},
    {"args", tp_push_args, true},
    {"version", get_version, true},
    {NULL, NULL, false},
};

static const struct lazy_entry pid_entries[] = {
    {"send", tp_l_send, false},     {"alive", tp_l_alive, false},
    {"call", tp_l_call, false},     {"cast", tp_l_cast, false},
    {"exit", tp_l_exit_pid, false}, {"kill", tp_l_kill, false},
    {"link", tp_l_link, false},     {"monitor", tp_l_monitor, false},
    {"info", tp_l_info, false},     {NULL, NULL, false},
};

/* __index(table, key): the entry, which is kept in the table. */
static int
lazy_index(lua_State *L)
{
    const struct lazy_entry *e = lua_touserdata(L, lua_upvalueindex(1));
    const char *key = lua_type(L, 2) == LUA_TSTRING ? lua_tostring(L, 2) : "";
    while (e->name != NULL && strcmp(e->name, key) != 0) {
        e++;
    }
    if (e->name == NULL) {
        return 0;
    }
    lua_pushvalue(L, 2);
    lua_pushcfunction(L, e->function);
    if (e->make) {
        lua_call(L, 0, 1);
    }
    lua_pushvalue(L, -1);
    lua_insert(L, -3);
    lua_rawset(L, 1);
    return 1;
}

/* Pushes an empty table that fills itself from entries. */
static void
push_lazy_table(lua_State *L, const struct lazy_entry *entries)
{
    lua_createtable(L, 0, 0);
    lua_createtable(L, 0, 1);
    lua_pushlightuserdata(L, (void *)(uintptr_t)entries);
    lua_pushcclosure(L, lazy_index, 1);
    lua_setfield(L, -2, "__index");
    lua_setmetatable(L, -2);
}

void
tp_open_pids(lua_State *L)
{
    lua_pushlightuserdata(L, NULL);
    lua_createtable(L, 0, 3);
    push_lazy_table(L, pid_entries);
    lua_setfield(L, -2, "__index");
    lua_pushcfunction(L, pid_tostring);
    lua_setfield(L, -2, "__tostring");
    lua_pushliteral(L, "troupe.pid");
    lua_setfield(L, -2, "__name");
    lua_setmetatable(L, -2);
    lua_pop(L, 1);
}

#define TABLE_KEY "troupe.table"

int
tp_open_troupe(lua_State *L)
{
    lua_getfield(L, LUA_REGISTRYINDEX, TABLE_KEY);
    if (lua_isnil(L, -1)) {
        lua_pop(L, 1);
        push_lazy_table(L, troupe_entries);
        lua_pushvalue(L, -1);
        lua_setfield(L, LUA_REGISTRYINDEX, TABLE_KEY);
    }
    lua_getfield(L, LUA_REGISTRYINDEX, "_LOADED");
    lua_pushvalue(L, -2);
    lua_setfield(L, -2, "troupe");
    lua_pushvalue(L, -2);
    lua_setfield(L, -2, "troupe.core");
    lua_pop(L, 1);
    return 1;
}

static int
get_log(lua_State *L)
{
    return tp_open_log(L);
}

static int
get_version(lua_State *L)
{
    lua_pushliteral(L, TROUPE_VERSION);
    return 1;
}

static int
get_inbox(lua_State *L)
{
    lua_pushliteral(L, TP_INBOX);
    return 1;
}

int
tp_push_from_module(lua_State *L, const char *module, const char *name)
{
    lua_getglobal(L, "require");
    lua_pushstring(L, module);
    lua_call(L, 1, 1);
    lua_getfield(L, -1, name);
    return 1;
}

static int
get_task(lua_State *L)
{
    return tp_push_from_module(L, "troupe.task", "task");
}

static int
get_all(lua_State *L)
{
    return tp_push_from_module(L, "troupe.task", "all");
}

static int
get_race(lua_State *L)
{
    return tp_push_from_module(L, "troupe.task", "race");
}

/* -- arguments ----------------------------------------------------------- */

/* Set before a run, read during it. */
static struct {
    int argc;
    char **argv;
} script;

void
tp_set_args(int argc, const char *const *argv)
{
    for (int i = 0; i < script.argc; i++) {
        tp_free(script.argv[i]);
    }
    tp_free(script.argv);
    script.argc = 0;
    script.argv = argc == 0 ? NULL : tp_calloc((size_t)argc, sizeof(char *));
    for (int i = 0; script.argv != NULL && i < argc; i++) {
        size_t n = strlen(argv[i]) + 1;
        script.argv[i] = tp_malloc(n);
        if (script.argv[i] == NULL) {
            return;
        }
        memcpy(script.argv[i], argv[i], n);
        script.argc = i + 1;
    }
}

int
tp_push_args(lua_State *L)
{
    lua_createtable(L, script.argc > 0 ? script.argc - 1 : 0, 1);
    for (int i = 0; i < script.argc; i++) {
        lua_pushstring(L, script.argv[i]);
        lua_rawseti(L, -2, i);
    }
    return 1;
}

/* -- run ----------------------------------------------------------------- */

static lua_Number
option_number(lua_State *L, int arg, const char *key, double min, double max)
{
    lua_getfield(L, arg, key);
    lua_Number v = lua_tonumber(L, -1);
    if (lua_isnil(L, -1)) {
        v = 0;
    } else if (lua_type(L, -1) != LUA_TNUMBER || !(v >= min && v <= max)) {
        luaL_error(L, "option '%s' must be a number from %f to %f", key, min,
                   max);
    }
    lua_pop(L, 1);
    return v;
}

static enum troupe_preemption
option_preemption(lua_State *L, int arg)
{
    int mode = TROUPE_PREEMPT_SIGNAL;
    lua_getfield(L, arg, "preemption");
    if (!lua_isnil(L, -1)) {
        const char *name =
            lua_type(L, -1) == LUA_TSTRING ? lua_tostring(L, -1) : "";
        while (mode <= TROUPE_PREEMPT_OFF &&
               strcmp(name, tp_preemption_names[mode]) != 0) {
            mode++;
        }
    }
    if (mode > TROUPE_PREEMPT_OFF) {
        luaL_error(L, "option 'preemption' must be 'signal', 'hook' or 'off'");
    }
    lua_pop(L, 1);
    return tp_vm_preemption((enum troupe_preemption)mode);
}

static void
check_keys(lua_State *L, int arg)
{
    static const char *const known[] = {"schedulers", "max_actors", "slice",
                                        "blocking_threads", "preemption"};
    const size_t count = sizeof known / sizeof *known;
    lua_pushnil(L);
    while (lua_next(L, arg) != 0) {
        const char *key =
            lua_type(L, -2) == LUA_TSTRING ? lua_tostring(L, -2) : "?";
        size_t i = 0;
        while (i < count && strcmp(key, known[i]) != 0) {
            i++;
        }
        if (i == count) {
            luaL_error(L, "unknown option '%s'", key);
        }
        lua_pop(L, 1);
    }
}

static void
read_run_options(lua_State *L, int arg, struct tp_run_config *c)
{
    c->preemption = tp_vm_preemption(TROUPE_PREEMPT_SIGNAL);
    if (lua_isnoneornil(L, arg)) {
        return;
    }
    tp_check_type(L, arg, LUA_TTABLE, "opts");
    check_keys(L, arg);
    c->schedulers =
        (unsigned)option_number(L, arg, "schedulers", 1, TP_WORKERS_MAX);
    c->max_actors =
        (uint32_t)option_number(L, arg, "max_actors", 1, TP_MAX_ACTORS);
    c->slice_ns = (uint64_t)(option_number(L, arg, "slice", 0.0001, 1) * 1e9);
    c->blocking_threads = (unsigned)option_number(L, arg, "blocking_threads", 1,
                                                  TP_BLOCKING_THREADS_MAX);
    c->preemption = option_preemption(L, arg);
}

/* What runs other than the host's, while its state is the root's. */
static const struct {
    const char *lib, *name;
    lua_CFunction function;
} borrowed[] = {{NULL, "print", tp_l_print},
                {"io", "write", tp_l_write},
                {"io", "popen", tp_l_popen},
                {"os", "execute", tp_l_os_execute},
                {"os", "exit", tp_l_os_exit}};
#define BORROWED ((int)(sizeof borrowed / sizeof *borrowed))

static void
push_library(lua_State *L, const char *lib)
{
    if (lib == NULL) {
        lua_pushvalue(L, LUA_GLOBALSINDEX);
    } else {
        lua_getglobal(L, lib);
    }
}

/* Puts ours in place of LuaJIT's own; pushes what was there, nil where nothing
 * was replaced. */
static void
borrow_functions(lua_State *L)
{
    for (int i = 0; i < BORROWED; i++) {
        push_library(L, borrowed[i].lib);
        if (!lua_istable(L, -1)) {
            lua_pop(L, 1);
            lua_pushnil(L);
            continue;
        }
        lua_getfield(L, -1, borrowed[i].name);
        if (lua_iscfunction(L, -1)) {
            lua_pushvalue(L, -1);
            lua_pushcclosure(L, borrowed[i].function, 1);
            lua_setfield(L, -3, borrowed[i].name);
        } else {
            lua_pop(L, 1);
            lua_pushnil(L);
        }
        lua_remove(L, -2);
    }
}

static void
return_functions(lua_State *L, int first)
{
    for (int i = 0; i < BORROWED; i++) {
        if (!lua_isnil(L, first + i)) {
            push_library(L, borrowed[i].lib);
            lua_pushvalue(L, first + i);
            lua_setfield(L, -2, borrowed[i].name);
            lua_pop(L, 1);
        }
    }
}

/* What the root's coroutine left: its results or its error. */
static int
root_results(lua_State *L, lua_State *co, int status, struct tp_reason *reason)
{
    if (status == 0) {
        tp_reason_unref(reason);
        int n = lua_gettop(co);
        luaL_checkstack(L, n, "too many results");
        lua_xmove(co, L, n);
        return n;
    }
    if (tp_is_exit_mark(co, -1)) {
        bool normal = reason->kind == TP_REASON_NORMAL;
        tp_push_reason(L, reason);
        tp_reason_unref(reason);
        return normal ? 0 : lua_error(L);
    }
    tp_reason_unref(reason);
    lua_xmove(co, L, 1);
    return lua_error(L);
}

static int
do_nothing(lua_State *L)
{
    (void)L;
    return 0;
}

/*
 * LuaJIT notes the coroutine that runs when it calls a function and when a C
 * function returns, but not when one raises an error: compiled code that goes
 * on in L would leave its trace with the stack of the root's coroutine.
 */
static void
come_back(lua_State *L)
{
    lua_pushcfunction(L, do_nothing);
    lua_call(L, 0, 0);
}

/* troupe.run(fn [, opts]): fn runs in a coroutine of this very state. */
static int
l_run(lua_State *L)
{
    struct tp_run_config config = {0};
    struct tp_spawn_opts opts = {.unkillable = true};
    struct tp_reason *reason;
    int code;
    tp_check_type(L, 1, LUA_TFUNCTION, "fn");
    read_run_options(L, 2, &config);
    if (tp_actor_self() != NULL) {
        return luaL_error(L, "troupe.run: %s", troupe_strerror(TROUPE_EBUSY));
    }
    lua_settop(L, 2);
    tp_bindings_init();
    struct tp_env *env = tp_env_of(L, NULL); /* may raise */
    borrow_functions(L);                     /* from 3 on */
    lua_State *co = lua_newthread(L);
    lua_pushvalue(L, 1);
    lua_xmove(L, co, 1);
    struct tp_lua *t = tp_lua_new(NULL, env, 0, TP_JIT_AUTO);
    tp_env_unref(env);
    if (t == NULL) {
        return luaL_error(L, "not enough memory");
    }
    t->L = co;
    t->borrowed = t->silent = true;
    int status = 0;
    t->out_status = &status;
    tp_vm_open(L, t); /* raises for want of memory only */
    int rc = tp_run(&config, &opts, &tp_lua_class, t, &reason);
    come_back(L);
    return_functions(L, 3);
    if (rc != 0) {
        tp_lua_free(t);
        return luaL_error(L, "troupe.run: %s", troupe_strerror(rc));
    }
    if (tp_halted(&code)) {
        exit(code);
    }
    return root_results(L, co, status, reason);
}

/* require "troupe.core" from a plain LuaJIT, or in an actor. */
TROUPE_API int luaopen_troupe_core(lua_State *L);

int
luaopen_troupe_core(lua_State *L)
{
    tp_bindings_init();
    tp_jit_guard_host(L); /* it compiles already */
    tp_open_pids(L);
    return tp_open_troupe(L);
}
