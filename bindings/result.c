/*
 * result.c - the only place that makes nil, err of an error code.
 *
 * Tests: spec/lua/send_spec.lua, spec/lua/fs_spec.lua
 */
#include "bind.h"

#include "base/errnames.h"

#include <ctype.h>

/* "noproc" of TROUPE_ENOPROC: the name in lower case, without the E. */
static void
push_short_name(lua_State *L, const char *name)
{
    char out[24];
    size_t n = 0;
    for (const char *p = name + 1; *p != '\0' && n < sizeof out - 1; p++) {
        out[n++] = (char)tolower((unsigned char)*p);
    }
    lua_pushlstring(L, out, n);
}

int
tp_push_error(lua_State *L, int code)
{
    lua_pushnil(L);
    switch (code) {
#define X(name, value, text)                                                   \
    case value:                                                                \
        push_short_name(L, #name);                                             \
        break;
        TROUPE_ERRORS(X)
#undef X
    default:
        lua_pushliteral(L, "unknown");
    }
    return 2;
}

int
tp_push_errno(lua_State *L, int err)
{
    lua_pushnil(L);
    lua_pushstring(L, tp_errno_short(err));
    return 2;
}
