/*
 * inspect.c - info and stats, for Lua.
 *
 * Parks: never.
 * Tests: spec/lua/inspect_spec.lua
 */
#include "actor/inspect.h"
#include "bind.h"
#include "sched/blocking.h"

#include <string.h>

#define FORMAT_VERSION 1

static void
set_number(lua_State *L, const char *key, double v)
{
    lua_pushnumber(L, v);
    lua_setfield(L, -2, key);
}

static void
set_flag(lua_State *L, const char *key, bool v)
{
    lua_pushboolean(L, v);
    lua_setfield(L, -2, key);
}

static void
set_string(lua_State *L, const char *key, const char *v)
{
    lua_pushstring(L, v);
    lua_setfield(L, -2, key);
}

/* -- info ---------------------------------------------------------------- */

/* What the bindings know of an actor, copied under its slot's lock. */
struct lua_info {
    bool is_lua;
    size_t memory, memory_limit;
    bool jit;
    char source[sizeof((struct tp_lua *)0)->source];
};

static void
copy_lua(struct tp_actor *a, void *ud)
{
    struct lua_info *out = ud;
    struct tp_lua *t = a->arg;
    out->is_lua = a->class == &tp_lua_class;
    if (out->is_lua) {
        out->memory = t->arena.used;
        out->memory_limit = t->memory_limit;
        out->jit = t->jit_on;
        memcpy(out->source, t->source, sizeof out->source);
        out->source[sizeof out->source - 1] = '\0';
    }
}

static const char *const state_names[] = {
    [TP_VACANT] = "done",     [TP_QUEUED] = "queued",
    [TP_RUNNING] = "running", [TP_NOTIFIED] = "notified",
    [TP_PARKED] = "parked",   [TP_DONE] = "done",
};

static void
push_stack(lua_State *L, const struct tp_actor_info *i)
{
    lua_createtable(L, 0, 4);
    set_number(L, "reserve", (double)i->stack_reserve);
    set_number(L, "guard", (double)i->stack_guard);
    set_number(L, "high_water", (double)i->stack_high_water);
    set_number(L, "shrinks", i->stack_shrinks);
}

static void
push_info(lua_State *L, troupe_pid pid, const struct tp_actor_info *i,
          const struct lua_info *l)
{
    lua_createtable(L, 0, 20);
    set_number(L, "format_version", FORMAT_VERSION);
    tp_push_pid(L, pid);
    lua_setfield(L, -2, "pid");
    set_string(L, "state", state_names[i->state]);
    if (i->parent != 0) {
        tp_push_pid(L, i->parent);
        lua_setfield(L, -2, "parent");
    }
    set_number(L, "started_at", (double)i->started_ns / 1e9);
    set_number(L, "links", i->links);
    set_number(L, "monitored_by", i->monitored_by);
    set_flag(L, "trap_exit", i->trap_exit);
    set_flag(L, "in_c", i->in_c);
    set_flag(L, "blocking", i->blocking);
    set_number(L, "overruns", (double)i->overruns);
    if (i->mail_limit != 0) {
        set_number(L, "mailbox_limit", i->mail_limit);
        set_number(L, "mailbox", i->mail_count);
    }
    push_stack(L, i);
    lua_setfield(L, -2, "stack");
    if (l->is_lua) {
        set_number(L, "memory", (double)l->memory);
        if (l->memory_limit != 0) {
            set_number(L, "memory_limit", (double)l->memory_limit);
        }
        set_flag(L, "jit", l->jit);
        set_string(L, "source", l->source);
    }
}

/* info(pid) -> table; nil, "noproc" */
int
tp_l_info(lua_State *L)
{
    struct tp_actor_info info;
    struct lua_info lua = {0};
    tp_check_actor(L);
    troupe_pid pid = tp_check_pid(L, 1);
    int rc = pid == 0 ? TROUPE_ENOPROC
                      : tp_actor_inspect(pid, &info, copy_lua, &lua);
    if (rc != 0) {
        return tp_push_error(L, rc);
    }
    push_info(L, pid, &info, &lua);
    lua_pushcfunction(L, tp_l_names);
    tp_push_pid(L, pid);
    lua_call(L, 1, 1);
    lua_setfield(L, -2, "names");
    return 1;
}

/* -- stats --------------------------------------------------------------- */

static void
push_worker(lua_State *L, struct tp_worker *w)
{
    static const char *const keys[] = {"switches", "steals", "parks",
                                       "wakes",    "timers", "preemptions"};
    _Atomic uint64_t *values[] = {&w->stats.switches, &w->stats.steals,
                                  &w->stats.parks,    &w->stats.wakes,
                                  &w->stats.timers,   &w->stats.preemptions};
    lua_createtable(L, 0, 8);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        /* relaxed: a statistic. */
        uint64_t v = atomic_load_explicit(values[i], memory_order_relaxed);
        set_number(L, keys[i], (double)v);
    }
    set_number(L, "queue", (double)tp_runq_len(tp_sched.runq, w->index));
}

static void
push_blocking(lua_State *L)
{
    struct tp_blocking_stats s;
    tp_blocking_get_stats(&s);
    lua_createtable(L, 0, 5);
    set_number(L, "limit", s.limit);
    set_number(L, "threads", s.threads);
    set_number(L, "idle", s.idle);
    set_number(L, "queue", s.queued);
    set_number(L, "calls", (double)s.sections);
}

/* stats() -> table: process totals, and one entry per scheduler */
int
tp_l_stats(lua_State *L)
{
    tp_check_actor(L);
    lua_createtable(L, 0, 8);
    set_number(L, "format_version", FORMAT_VERSION);
    set_string(L, "preemption", tp_preemption_names[tp_sched.preemption]);
    set_string(L, "run_queue", tp_runq_backend());
    set_number(L, "slice", (double)tp_sched.slice_ns / 1e9);
    /* relaxed: a sample. */
    uint32_t live = atomic_load_explicit(&tp_actor_live, memory_order_relaxed);
    set_number(L, "actors", live);
    /* relaxed: a statistic. */
    set_number(
        L, "given_up",
        (double)atomic_load_explicit(&tp_actor_given_up, memory_order_relaxed));
    lua_createtable(L, (int)tp_sched.count, 0);
    for (unsigned i = 0; i < tp_sched.count; i++) {
        push_worker(L, &tp_sched.workers[i]);
        lua_rawseti(L, -2, (int)i + 1);
    }
    lua_setfield(L, -2, "schedulers");
    push_blocking(L);
    lua_setfield(L, -2, "blocking");
    return 1;
}
