/*
 * codec_raw.c - prove, or not, that LuaJIT's tables look as assumed.
 *
 * Threads: any; uses a Lua state of its own.
 * Memory:  all given back before it returns.
 * Fails:   never; a doubt means "not proven".
 * Tests:   spec/unit/codec_test.c
 */
#include "codec_raw.h"

#include <lauxlib.h>
#include <lua.h>
#include <math.h>
#include <unistd.h>

/*
 * Copy n bytes from an address that may be wrong: the kernel refuses to read
 * there where a plain copy would crash. n must fit a pipe.
 */
static bool
peek(void *dst, const void *src, size_t n)
{
    int fds[2];
    if (pipe(fds) != 0) {
        return false;
    }
    bool ok = write(fds[1], src, n) == (ssize_t)n &&
              read(fds[0], dst, n) == (ssize_t)n;
    close(fds[0]);
    close(fds[1]);
    return ok;
}

/* Copies of a table and of its parts. */
struct shape {
    unsigned char table[TP_RAW_TAB_BYTES];
    uint64_t array[16];
    struct tp_raw_node nodes[16];
    uint32_t array_slots, node_count;
};

/* Copy the table at idx. False: it cannot look as assumed. */
static bool
peek_table(lua_State *L, int idx, struct shape *out)
{
    if (!peek(out->table, lua_topointer(L, idx), sizeof out->table)) {
        return false;
    }
    struct tp_raw_table t = tp_raw_table(out->table);
    out->array_slots = t.array_slots;
    out->node_count = t.node_count;
    return t.array_slots <= 16 && t.node_count >= 1 && t.node_count <= 16 &&
           (t.array_slots == 0 ||
            peek(out->array, t.array, t.array_slots * sizeof *t.array)) &&
           peek(out->nodes, t.nodes, t.node_count * sizeof *t.nodes);
}

/* Is value the string s[0..n), which lies at address "at"? */
static bool
is_string(uint64_t value, const char *s, size_t n)
{
    unsigned char object[TP_RAW_STR_BYTES];
    uint64_t mask = ((uint64_t)1 << TP_RAW_TAG_SHIFT) - 1;
    const char *at = (const char *)(uintptr_t)(value & mask);
    return tp_raw_kind(value) == TP_RAW_STRING && at + TP_RAW_STR_BYTES == s &&
           peek(object, at, sizeof object) &&
           tp_raw_u32(object, TP_RAW_STR_LEN) == n;
}

/* Sizes: an empty table, lists and maps of known room. */
static bool
sizes_agree(lua_State *L)
{
    static const struct {
        int list, map;
        uint32_t array_slots, node_count;
    } cases[] = {{0, 0, 0, 1}, {0, 1, 0, 2},   {0, 2, 0, 2},  {0, 5, 0, 8},
                 {3, 0, 4, 1}, {12, 3, 13, 4}, {1, 16, 2, 16}};
    bool ok = true;
    for (size_t i = 0; ok && i < sizeof cases / sizeof *cases; i++) {
        struct shape s;
        lua_createtable(L, cases[i].list, cases[i].map);
        ok = peek_table(L, -1, &s) && s.array_slots == cases[i].array_slots &&
             s.node_count == cases[i].node_count;
        for (uint32_t j = 0; ok && j < s.array_slots; j++) {
            ok = tp_raw_kind(s.array[j]) == TP_RAW_NIL;
        }
        for (uint32_t j = 0; ok && j < s.node_count; j++) {
            ok = tp_raw_kind(s.nodes[j].value) == TP_RAW_NIL;
        }
        lua_pop(L, 1);
    }
    return ok;
}

static const double numbers[] = {
    0.0, -0.0, 1.0, -1.0, 0.5, 1e300, -1e-300, (double)INT32_MIN, 4294967296.0,
};

#define NUMBERS (int)(sizeof numbers / sizeof *numbers)

/* Numbers are the bits of a double, whole ones too. */
static bool
numbers_agree(lua_State *L)
{
    struct shape s;
    lua_createtable(L, NUMBERS + 1, 0);
    for (int i = 0; i < NUMBERS; i++) {
        lua_pushnumber(L, numbers[i]);
        lua_rawseti(L, -2, i + 1);
    }
    lua_pushnumber(L, (double)NAN);
    lua_rawseti(L, -2, NUMBERS + 1);
    bool ok = peek_table(L, -1, &s) && s.array_slots == NUMBERS + 2;
    for (int i = 0; ok && i < NUMBERS; i++) {
        uint64_t v = s.array[i + 1];
        ok = tp_raw_kind(v) == TP_RAW_NUMBER &&
             memcmp(&v, &numbers[i], sizeof v) == 0;
    }
    if (ok) {
        double nan = tp_raw_number(s.array[NUMBERS + 1]);
        ok = tp_raw_kind(s.array[NUMBERS + 1]) == TP_RAW_NUMBER && nan != nan;
    }
    lua_pop(L, 1);
    return ok;
}

/* Whole numbers as Lua code makes them: of the other kind, where there is one.
 * In an array, as keys and as values of a map. */
static bool
integers_agree(lua_State *L)
{
    static const int32_t wanted[] = {0, 1, -1, INT32_MAX, -INT32_MAX};
    struct shape s;
    uint32_t found = 0;
    if (luaL_loadstring(L, "return {1, -1, 2147483647, -2147483647}, "
                           "{[-1] = 1.5, [2147483647] = -1, [0.5] = 7}") != 0 ||
        lua_pcall(L, 0, 2, 0) != 0) {
        lua_pop(L, 1);
        return false;
    }
    bool ok = peek_table(L, -2, &s) && s.array_slots >= 5;
    for (int i = 1; ok && i < 5; i++) {
        ok = tp_raw_kind(s.array[i]) == TP_RAW_NUMBER &&
             tp_raw_number(s.array[i]) == wanted[i];
    }
    ok = ok && peek_table(L, -1, &s);
    for (uint32_t j = 0; ok && j < s.node_count; j++) {
        if (tp_raw_kind(s.nodes[j].value) == TP_RAW_NIL) {
            continue;
        }
        double key = tp_raw_number(s.nodes[j].key);
        double value = tp_raw_number(s.nodes[j].value);
        ok = tp_raw_kind(s.nodes[j].key) == TP_RAW_NUMBER &&
             tp_raw_kind(s.nodes[j].value) == TP_RAW_NUMBER &&
             ((key == -1 && value == 1.5) ||
              (key == INT32_MAX && value == -1) || (key == 0.5 && value == 7));
        found++;
    }
    lua_pop(L, 2);
    return ok && found == 3;
}

static int
nothing(lua_State *L)
{
    (void)L;
    return 0;
}

/* Each other type has its own kind, and strings are where the API says. */
static bool
types_agree(lua_State *L)
{
    static const char text[] = "a string with \0 in it";
    struct shape s;
    size_t n;
    lua_createtable(L, 9, 0);
    lua_pushboolean(L, 0);
    lua_rawseti(L, -2, 1);
    lua_pushboolean(L, 1);
    lua_rawseti(L, -2, 2);
    lua_pushlstring(L, text, sizeof text);
    const char *string = lua_tolstring(L, -1, &n);
    lua_rawseti(L, -2, 3);
    lua_pushboolean(L, 1);
    lua_rawseti(L, -2, 0);
    /* 4 stays nil, the rest is for the Lua API. */
    lua_newtable(L);
    lua_rawseti(L, -2, 5);
    lua_pushlightuserdata(L, (void *)(uintptr_t)0x123456789a);
    lua_rawseti(L, -2, 6);
    lua_newuserdata(L, 8);
    lua_rawseti(L, -2, 7);
    lua_pushcfunction(L, nothing);
    lua_rawseti(L, -2, 8);
    lua_newthread(L);
    lua_rawseti(L, -2, 9);
    bool ok = peek_table(L, -1, &s) && s.array_slots == 10 &&
              tp_raw_kind(s.array[0]) == TP_RAW_TRUE &&
              tp_raw_kind(s.array[1]) == TP_RAW_FALSE &&
              tp_raw_kind(s.array[2]) == TP_RAW_TRUE &&
              is_string(s.array[3], string, n) &&
              tp_raw_kind(s.array[4]) == TP_RAW_NIL;
    for (int i = 5; ok && i <= 9; i++) {
        ok = tp_raw_kind(s.array[i]) == TP_RAW_OTHER;
    }
    lua_pop(L, 1);
    return ok;
}

/* A map: each of its keys is found in one node, with its value. */
static bool
nodes_agree(lua_State *L)
{
    static const char *const keys[] = {"", "b", "another key", "d", "fifth"};
    const char *strings[5];
    struct shape s;
    uint32_t found = 0;
    lua_createtable(L, 0, 8);
    for (int i = 0; i < 5; i++) {
        lua_pushstring(L, keys[i]);
        strings[i] = lua_tostring(L, -1);
        lua_pushnumber(L, i + 0.5);
        lua_rawset(L, -3);
    }
    lua_pushnumber(L, 7.25);
    lua_pushboolean(L, 1);
    lua_rawset(L, -3);
    bool ok = peek_table(L, -1, &s) && s.node_count == 8;
    for (uint32_t j = 0; ok && j < s.node_count; j++) {
        struct tp_raw_node *node = &s.nodes[j];
        if (tp_raw_kind(node->value) == TP_RAW_NIL) {
            continue;
        }
        if (tp_raw_kind(node->key) == TP_RAW_NUMBER) {
            ok = tp_raw_number(node->key) == 7.25 &&
                 tp_raw_kind(node->value) == TP_RAW_TRUE;
            found |= 1u << 5;
            continue;
        }
        int i = (int)tp_raw_number(node->value);
        ok = i >= 0 && i < 5 && tp_raw_number(node->value) == i + 0.5 &&
             is_string(node->key, strings[i], strlen(keys[i]));
        found |= ok ? 1u << i : 0;
    }
    lua_pop(L, 1);
    return ok && found == 0x3f;
}

bool
tp_raw_probe(void)
{
    if (sizeof(void *) != sizeof(uint64_t)) {
        return false;
    }
    lua_State *L = luaL_newstate();
    if (L == NULL) {
        return false;
    }
    bool ok = lua_checkstack(L, 8) && sizes_agree(L) && numbers_agree(L) &&
              integers_agree(L) && types_agree(L) && nodes_agree(L);
    lua_close(L);
    return ok;
}
