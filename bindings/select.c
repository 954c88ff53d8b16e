/*
 * select.c - wait for the first of several things, for Lua.
 *
 * Parks: select.
 * Tests: spec/lua/select_spec.lua
 */
#include "io/select.h"

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

/* The value on top, popped. */
static void
read_arm(lua_State *L, size_t i, struct tp_arm *arm)
{
    *arm = (struct tp_arm){0};
    if (is_inbox(L, -1)) {
        arm->kind = TP_ARM_INBOX;
    } else if (tp_is_handle(L, -1, &tp_handle_rx)) {
        arm->kind = TP_ARM_CHANNEL;
        arm->channel = tp_handle_to(L, -1, &tp_handle_rx);
        if (arm->channel == NULL && tp_is_sent(L, -1)) {
            refuse(L, i, "was sent to another actor");
        }
    } else {
        refuse(L, i, "is no receiver, inbox, readable or writable");
    }
    lua_pop(L, 1);
}

static bool
same(const struct tp_arm *a, const struct tp_arm *b)
{
    return a->kind == b->kind && a->channel == b->channel &&
           (a->kind != TP_ARM_CHANNEL || a->channel != NULL);
}

static void
read_arms(lua_State *L, struct tp_arm *arms, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        lua_rawgeti(L, 1, (int)i + 1);
        read_arm(L, i, &arms[i]);
        for (size_t k = 0; k < i; k++) {
            if (same(&arms[k], &arms[i])) {
                lua_pushfstring(L, "is the same as arm %d", (int)k + 1);
                refuse(L, i, lua_tostring(L, -1));
            }
        }
    }
}

/* select(arms [, timeout]) -> index; or nil, "timeout" */
int
tp_l_select(lua_State *L)
{
    struct tp_actor *a = tp_check_actor(L);
    struct tp_arm few[FEW_ARMS], *arms = few;
    size_t index;
    luaL_checktype(L, 1, LUA_TTABLE);
    size_t n = lua_objlen(L, 1);
    luaL_argcheck(L, n > 0, 1, "no arms");
    uint64_t deadline = tp_check_deadline(L, 2, "timeout");
    tp_refuse_in_scan(L, tp_lua_of(a));
    tp_lua_tier_up(L, a);
    if (n > FEW_ARMS) {
        arms = lua_newuserdata(L, n * sizeof *arms);
    }
    read_arms(L, arms, n);
    int rc = tp_select(a, arms, n, deadline, &index);
    if (rc == TROUPE_ETIMEOUT) {
        return tp_push_error(L, rc);
    }
    if (rc != 0) {
        return tp_raise_wait(L, rc);
    }
    tp_actor_checkpoint();
    lua_pushinteger(L, (lua_Integer)index + 1);
    return 1;
}
