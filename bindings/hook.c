/*
 * hook.c - preemption by a count hook, and the script's own hook beside it.
 *
 * Idea:     a state has one hook. Ours is called each so many instructions and
 *           yields if that was asked for; what a script sets by debug.sethook
 *           is called from it, with the events that it asked for.
 * Threads:  the running actor only.
 * Parks:    the hook may switch.
 * Rejected: to set the hook from the monitor's signal when a slice is used up:
 *           who wants no signals, or has none, gets a hook for just that.
 * Tests:    spec/lua/hook_spec.lua, spec/lua/preempt_spec.lua
 */
#include "bind.h"

#include "actor/slice.h"

#include <string.h>

/* Instructions between two looks: some 50 microseconds. */
#define HOOK_COUNT 10000

const char *const tp_preemption_names[3] = {
    [TROUPE_PREEMPT_SIGNAL] = "signal",
    [TROUPE_PREEMPT_HOOK] = "hook",
    [TROUPE_PREEMPT_OFF] = "off",
};

static void hook(lua_State *L, lua_Debug *ar);

static void
set(lua_State *L, struct tp_hook *h)
{
    h->step = HOOK_COUNT;
    if ((h->mask & LUA_MASKCOUNT) != 0 && h->left < HOOK_COUNT) {
        h->step = h->left;
    }
    lua_sethook(L, hook, h->mask | LUA_MASKCOUNT, h->step);
}

/* So many instructions are over. Is that an event of the script's? */
static bool
counts(lua_State *L, struct tp_hook *h)
{
    if ((h->mask & LUA_MASKCOUNT) == 0) {
        return false;
    }
    h->left -= h->step;
    bool due = h->left <= 0;
    if (due) {
        h->left = h->count;
    }
    if (h->count > HOOK_COUNT) {
        set(L, h);
    }
    return due;
}

static void
hook(lua_State *L, lua_Debug *ar)
{
    struct tp_actor *a = tp_actor_self();
    bool wanted = true;
    if (a == NULL || a->class != &tp_lua_class) {
        return;
    }
    struct tp_hook *h = &tp_lua_of(a)->hook;
    if (ar->event == LUA_HOOKCOUNT) {
        tp_slice_hook();
        wanted = counts(L, h);
    }
    if (wanted && h->function != NULL) {
        h->function(L, ar);
    }
}

void
tp_hook_begin(struct tp_lua *t)
{
    if (tp_hook_preempts() && lua_gethook(t->L) == NULL) {
        memset(&t->hook, 0, sizeof t->hook);
        set(t->L, &t->hook);
    }
}

void
tp_hook_end(struct tp_lua *t)
{
    if (lua_gethook(t->L) == hook) {
        lua_sethook(t->L, NULL, 0, 0);
    }
}

/* sethook([thread,] hook, mask [, count]): LuaJIT's own sets its hook in place
 * of ours, which then takes it in. */
int
tp_l_sethook(lua_State *L)
{
    struct tp_hook *h = &tp_lua_of(tp_check_actor(L))->hook;
    int n = lua_gettop(L);
    lua_pushvalue(L, lua_upvalueindex(1));
    lua_insert(L, 1);
    lua_call(L, n, 0);
    h->function = lua_gethook(L);
    h->mask = h->function == NULL ? 0 : lua_gethookmask(L);
    h->count = h->left = h->function == NULL ? 0 : lua_gethookcount(L);
    set(L, h);
    return 0;
}

/* gethook([thread]): as if ours were not there. */
int
tp_l_gethook(lua_State *L)
{
    struct tp_hook *h = &tp_lua_of(tp_check_actor(L))->hook;
    int n = lua_gettop(L);
    lua_pushvalue(L, lua_upvalueindex(1));
    lua_insert(L, 1);
    lua_sethook(L, h->function, h->mask, h->count);
    int status = lua_pcall(L, n, LUA_MULTRET, 0);
    set(L, h);
    return status == 0 ? lua_gettop(L) : lua_error(L);
}
