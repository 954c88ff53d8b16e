/*
 * actor.c - spawn, self, exit, join, yield and the like, for Lua.
 *
 * Parks: join, yield, sleep.
 * Tests: spec/lua/spawn_spec.lua, spec/lua/join_spec.lua
 */
#include "actor/link.h"
#include "actor/registry.h"
#include "bind.h"
#include "handle.h"
#include "run/runtime.h"

#include <stdlib.h>
#include <string.h>

/* -- options ------------------------------------------------------------- */

struct spawn_args {
    struct tp_spawn_opts core;
    size_t memory_limit;
    enum tp_jit_mode jit;
};

/* A whole number of at least min at the top of the stack; popped. */
static uint64_t
check_count(lua_State *L, const char *key, double min, double max)
{
    double v = lua_tonumber(L, -1);
    if (lua_type(L, -1) != LUA_TNUMBER || !(v >= min && v <= max) ||
        !tp_is_whole(v)) {
        luaL_error(L, "option '%s' must be a whole number from %d on", key,
                   (int)min);
    }
    lua_pop(L, 1);
    return (uint64_t)v;
}

#define BYTES_MAX 1e15

static void
opt_stack(lua_State *L, struct spawn_args *s)
{
    luaL_argcheck(L, lua_istable(L, -1), 1, "option 'stack' must be a table");
    lua_pushnil(L);
    while (lua_next(L, -2) != 0) {
        const char *key =
            lua_type(L, -2) == LUA_TSTRING ? lua_tostring(L, -2) : "?";
        size_t *to = strcmp(key, "reserve") == 0 ? &s->core.stack_reserve
                     : strcmp(key, "guard") == 0 ? &s->core.stack_guard
                                                 : NULL;
        if (to == NULL) {
            luaL_error(L, "unknown option 'stack.%s'", key);
        }
        *to = check_count(L, key, 1, BYTES_MAX);
    }
}

static void
opt_mailbox(lua_State *L, struct spawn_args *s)
{
    static const char *const policies[] = {"error", "block", "drop_new"};
    luaL_argcheck(L, lua_istable(L, -1), 1, "option 'mailbox' must be a table");
    lua_pushnil(L);
    while (lua_next(L, -2) != 0) {
        const char *key =
            lua_type(L, -2) == LUA_TSTRING ? lua_tostring(L, -2) : "?";
        if (strcmp(key, "limit") == 0) {
            s->core.mail_limit =
                (uint32_t)check_count(L, "mailbox.limit", 1, UINT32_MAX - 1);
            continue;
        }
        if (strcmp(key, "on_full") != 0) {
            luaL_error(L, "unknown option 'mailbox.%s'", key);
        }
        const char *v = lua_tostring(L, -1);
        int i = 0;
        while (i < 3 && (v == NULL || strcmp(v, policies[i]) != 0)) {
            i++;
        }
        if (i == 3) {
            luaL_error(L, "option 'mailbox.on_full' must be \"error\", "
                          "\"block\" or \"drop_new\"");
        }
        s->core.mail_policy = (uint8_t)i;
        lua_pop(L, 1);
    }
}

static void
opt_memory_limit(lua_State *L, struct spawn_args *s)
{
    lua_pushvalue(L, -1);
    s->memory_limit = check_count(L, "memory_limit", 1, BYTES_MAX);
}

static void
opt_jit(lua_State *L, struct spawn_args *s)
{
    const char *v = lua_tostring(L, -1);
    if (lua_isboolean(L, -1)) {
        s->jit = lua_toboolean(L, -1) ? TP_JIT_ON : TP_JIT_OFF;
    } else if (v == NULL || strcmp(v, "auto") != 0) {
        luaL_error(L, "option 'jit' must be true, false or \"auto\"");
    }
}

static bool
check_flag(lua_State *L, const char *key)
{
    if (!lua_isboolean(L, -1)) {
        luaL_error(L, "option '%s' must be a boolean", key);
    }
    return lua_toboolean(L, -1);
}

static void
opt_link(lua_State *L, struct spawn_args *s)
{
    s->core.link = check_flag(L, "link");
}

static void
opt_monitor(lua_State *L, struct spawn_args *s)
{
    s->core.monitor = check_flag(L, "monitor");
}

static void
opt_name(lua_State *L, struct spawn_args *s)
{
    size_t len = 0;
    const char *name =
        lua_type(L, -1) == LUA_TSTRING ? lua_tolstring(L, -1, &len) : NULL;
    if (name == NULL || len == 0 || len > TP_NAME_MAX) {
        luaL_error(L, "option 'name' must be a string of 1 to %d bytes",
                   TP_NAME_MAX);
    }
    s->core.name = name; /* the options table keeps it */
    s->core.name_len = len;
}

static void
opt_priority(lua_State *L, struct spawn_args *s)
{
    const char *v = lua_tostring(L, -1);
    (void)s;
    if (v == NULL || strcmp(v, "normal") != 0) {
        luaL_error(L, "option 'priority' must be \"normal\"");
    }
}

static const struct {
    const char *key;
    void (*read)(lua_State *L, struct spawn_args *s);
} spawn_options[] = {
    {"stack", opt_stack},
    {"mailbox", opt_mailbox},
    {"memory_limit", opt_memory_limit},
    {"jit", opt_jit},
    {"priority", opt_priority},
    {"link", opt_link},
    {"monitor", opt_monitor},
    {"name", opt_name},
};

static void
read_options(lua_State *L, int arg, struct spawn_args *s)
{
    size_t n = sizeof spawn_options / sizeof *spawn_options, i;
    tp_check_type(L, arg, LUA_TTABLE, "opts");
    lua_pushnil(L);
    while (lua_next(L, arg) != 0) {
        const char *key =
            lua_type(L, -2) == LUA_TSTRING ? lua_tostring(L, -2) : "?";
        for (i = 0; i < n && strcmp(key, spawn_options[i].key) != 0; i++) {
        }
        if (i < n) {
            spawn_options[i].read(L, s);
        } else {
            luaL_error(L, "unknown option '%s'", key);
        }
        lua_pop(L, 1);
    }
}

/* -- spawn --------------------------------------------------------------- */

/* What to run and its arguments, from index first on, as a message. */
static struct tp_msg *
encode_boot(lua_State *L, int first)
{
    struct tp_buf *b = tp_scratch();
    if (b == NULL) {
        luaL_error(L, "not enough memory");
    }
    int rc = tp_encode_n(L, first, lua_gettop(L) - first + 1, "argument", b);
    if (rc == TROUPE_EINVAL) {
        luaL_where(L, 1);
        lua_insert(L, -2);
        lua_concat(L, 2);
        lua_error(L);
    }
    struct tp_msg *m = rc == 0 ? tp_msg_new(b->len) : NULL;
    if (m == NULL) {
        luaL_error(L, "not enough memory");
    }
    memcpy(m->data, b->p, b->len);
    tp_scratch_done();
    tp_take_objects(m);
    return m;
}

static void
check_what(lua_State *L, int arg)
{
    if (lua_type(L, arg) != LUA_TSTRING && !lua_isfunction(L, arg)) {
        luaL_argerror(L, arg, "function, module name or path expected");
    }
    if (lua_iscfunction(L, arg)) {
        luaL_argerror(L, arg, "a C function cannot be sent");
    }
}

/* Kept by the parent, since what comes after it may raise. */
static struct tp_env *
child_env(lua_State *L, struct tp_lua *t)
{
    struct tp_env *env = tp_env_of(L, t->env), *old = t->child_env;
    t->child_env = env;
    if (old != NULL) {
        tp_env_unref(old);
    }
    return env;
}

/* There is no child: what its arguments moved is the parent's again. */
static void
give_up(struct tp_lua *child)
{
    struct tp_msg *m = child->boot;
    child->boot = NULL;
    tp_lua_free(child);
    tp_msg_unsend(m);
}

static int
spawn(lua_State *L, struct spawn_args *s, int first)
{
    struct tp_actor *self = tp_check_actor(L);
    troupe_pid pid;
    troupe_pid holder = 0;
    uint64_t ref = 0;
    check_what(L, first);
    struct tp_env *env = child_env(L, tp_lua_of(self));
    struct tp_msg *m = encode_boot(L, first);
    struct tp_lua *t = tp_lua_new(m, env, s->memory_limit, s->jit);
    if (t == NULL) {
        tp_msg_unsend(m);
        return tp_push_error(L, TROUPE_ENOMEM);
    }
    s->core.out_ref = &ref;
    s->core.out_holder = &holder;
    int rc = tp_spawn(&s->core, &tp_lua_class, t, &pid);
    if (rc != 0) {
        give_up(t);
        return tp_push_taken(L, rc, holder);
    }
    tp_actor_checkpoint();
    tp_push_pid(L, pid);
    if (s->core.monitor) {
        lua_pushnumber(L, (lua_Number)ref);
    }
    return s->core.monitor ? 2 : 1;
}

int
tp_l_spawn(lua_State *L)
{
    struct spawn_args s = {0};
    return spawn(L, &s, 1);
}

int
tp_l_spawn_link(lua_State *L)
{
    struct spawn_args s = {.core.link = true};
    return spawn(L, &s, 1);
}

int
tp_l_spawn_monitor(lua_State *L)
{
    struct spawn_args s = {.core.monitor = true};
    return spawn(L, &s, 1);
}

int
tp_l_spawn_opt(lua_State *L)
{
    struct spawn_args s = {0};
    read_options(L, 1, &s);
    return spawn(L, &s, 2);
}

/* -- the running actor --------------------------------------------------- */

int
tp_l_self(lua_State *L)
{
    tp_push_pid(L, tp_check_actor(L)->pid);
    return 1;
}

int
tp_l_yield(lua_State *L)
{
    struct tp_actor *a = tp_check_actor(L);
    tp_lua_tier_up(L, a);
    int rc = tp_actor_yield(a);
    return rc == 0 ? 0 : tp_raise_wait(L, rc);
}

int
tp_l_sleep(lua_State *L)
{
    struct tp_actor *a = tp_check_actor(L);
    tp_check_type(L, 1, LUA_TNUMBER, "seconds");
    uint64_t deadline = tp_check_deadline(L, 1, "seconds");
    tp_lua_tier_up(L, a);
    int rc = deadline == 0 ? tp_actor_yield(a) : tp_actor_sleep(a, deadline);
    return rc == 0 ? 0 : tp_raise_wait(L, rc);
}

static const char exit_mark;

bool
tp_is_exit_mark(lua_State *L, int idx)
{
    return lua_touserdata(L, idx) == &exit_mark;
}

/* Ends the running actor. One whose state is the host's has to unwind. */
int
tp_leave(lua_State *L, struct tp_actor *a, struct tp_reason *reason)
{
    if (a->finishing) {
        tp_reason_unref(reason);
        return luaL_error(L, "a finalizer cannot exit");
    }
    if (!a->unkillable) {
        tp_actor_exit(a, reason);
    }
    tp_actor_set_reason(a, reason);
    lua_pushlightuserdata(L, (void *)&exit_mark);
    return lua_error(L);
}

int
tp_exit_process(lua_State *L, struct tp_actor *a, int code)
{
    tp_halt(code);
    return tp_leave(L, a, tp_reason_const(TP_REASON_SHUTDOWN));
}

/* -- others -------------------------------------------------------------- */

int
tp_l_alive(lua_State *L)
{
    lua_pushboolean(L, tp_mailbox_is_open(tp_check_pid(L, 1)));
    return 1;
}

int
tp_l_join(lua_State *L)
{
    struct tp_actor *a = tp_check_actor(L);
    troupe_pid pid = tp_check_pid(L, 1);
    uint64_t deadline = tp_check_deadline(L, 2, "timeout");
    struct tp_lua *t = tp_lua_of(a);
    struct tp_msg *down;
    if (pid == a->pid) {
        return luaL_argerror(L, 1, "an actor cannot wait for its own end");
    }
    tp_refuse_in_scan(L, t);
    tp_lua_tier_up(L, a);
    int rc = tp_join(a, pid, deadline, &down);
    if (rc == TROUPE_ETIMEOUT) {
        return tp_push_error(L, rc);
    }
    if (rc != 0) {
        return tp_raise_wait(L, rc);
    }
    bool normal = tp_notice_reason(down)->kind == TP_REASON_NORMAL;
    if (normal) {
        lua_pushboolean(L, true);
    } else {
        lua_pushnil(L);
        tp_own(t, down);
        tp_push_reason(L, tp_notice_reason(down));
        tp_disown(t, down);
    }
    tp_msg_drop(down);
    return normal ? 1 : 2;
}
