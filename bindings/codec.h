/*
 * codec.h - copy Lua values from one LuaJIT state to another through bytes.
 *
 * Sendable: nil, booleans, numbers, strings, tables (cycles and sharing keep
 * their shape; metatables stay behind), 64-bit integer and complex cdata,
 * pids, Lua functions with their upvalues, and full userdata that
 * tp_codec_ops.encode_handle accepts. codec.c describes the byte format.
 *
 * Threads: a tp_buf belongs to one encoder at a time; decoding only reads.
 * Memory:  a tp_buf is the caller's and outlives every Lua error. Nothing else
 *          is allocated outside the Lua heaps.
 * Parks:   tp_encode never. tp_decode may, where a function needs a module
 *          that has to be required: own the bytes so that they are released
 *          if it does not come back.
 * Fails:   memory errors of the Lua state are raised, see each function.
 */
#ifndef TP_BINDINGS_CODEC_H
#define TP_BINDINGS_CODEC_H

#include "base/check.h"

#include <lauxlib.h>
#include <lua.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct tp_seen;

/* Which handles an encode lets through. */
enum tp_handles {
    TP_HANDLES_ALL,
    TP_HANDLES_SHARED, /* for many readers: nothing that moves */
    TP_HANDLES_NONE    /* for whoever comes: nobody holds references */
};

/*
 * Bytes written by an encoder, and the encoder's notes. All zero is a valid,
 * empty buffer. Reuse it: it keeps its memory.
 *
 * It may serve all actors of a thread if the thread does not switch actors
 * inside tp_encode: hold preemption off. No finalizer and no Lua function runs
 * while the buffer holds a half-done message.
 */
struct tp_buf {
    unsigned char *p;     /* the bytes; moves when it grows */
    size_t len;           /* bytes in use */
    size_t cap;           /* bytes allocated */
    struct tp_seen *seen; /* objects met by the encode under way */
    uint32_t *index;      /* hash over seen, once there are many */
    size_t seen_cap;      /* entries allocated */
    size_t index_cap;     /* entries allocated */
    enum tp_handles handles;
};

static inline void
tp_buf_init(struct tp_buf *b)
{
    memset(b, 0, sizeof *b);
}

/* Free all memory; the buffer is empty and valid again. */
void tp_buf_fini(struct tp_buf *b);

/* Forget the bytes, keep the memory. Do this before each message. */
static inline void
tp_buf_reset(struct tp_buf *b)
{
    b->len = 0;
    b->handles = TP_HANDLES_ALL;
}

/* Free the memory if the buffer has grown beyond max_bytes in all. */
void tp_buf_trim(struct tp_buf *b, size_t max_bytes);

/* Append n bytes. False if out of memory; then nothing has changed. */
bool tp_buf_put(struct tp_buf *b, const void *bytes, size_t n);

/* What the codec asks of its surroundings. A NULL entry means "none". */
struct tp_codec_ops {
    /* Is a light userdata with these bits a pid? Never asked about 0. */
    bool (*is_pid)(uint64_t bits);

    /*
     * Write the full userdata at idx: append a uint32_t kind, then the
     * payload, with tp_buf_put. NULL, or what it is that cannot be sent (also
     * when out of memory), as a text that stays. It must not raise, run Lua or
     * change anything: the encode may still fail, or run twice. Take
     * references and move sockets afterwards, with tp_each_handle.
     */
    const char *(*encode_handle)(lua_State *L, int idx, struct tp_buf *out);

    /* Push the value that a handle has become. peek: of tp_peek; what moves
     * stays in the message. May raise; handles earlier in the message may have
     * been decoded by then. */
    void (*decode_handle)(lua_State *L, uint32_t kind, void *payload, size_t n,
                          bool peek);

    /* Push the module ffi, opening it if need be. Default: require "ffi". */
    void (*open_ffi)(lua_State *L);
};

/*
 * Set the hooks (kept by address, NULL for none) and find out once whether
 * tables may be read directly (codec_raw.h). Call it before any other
 * function here, again only while nobody encodes or decodes.
 */
void tp_codec_init(const struct tp_codec_ops *ops);

/* For tests: read tables through the Lua API only (false), or directly where
 * that is proven to work (true). Returns what is in force now. */
bool tp_codec_use_raw(bool on);

/*
 * Append an encoded value to out. "what" begins the path in an error text.
 * The Lua stack is as before, except for an error text.
 * 0; TROUPE_EINVAL: it cannot be sent, the text is on the Lua stack
 * ("message.conn[2]: userdata cannot be sent"); TROUPE_ENOMEM: nothing is on
 * the stack. In both cases out->len is as before.
 * Raises: memory and stack errors of L. Then out->len is undefined, nothing
 * is lost: reset and go on.
 */
int tp_encode(lua_State *L, int idx, const char *what, struct tp_buf *out);

/*
 * The same for count values, from stack index first on, nil allowed. What
 * they share stays shared. Paths begin with "what", followed by the number of
 * the value if there are several: "argument 2.conn".
 */
int tp_encode_n(lua_State *L, int first, int count, const char *what,
                struct tp_buf *out);

/*
 * Push the values in p[0..n); returns how many. Raises: memory errors of L
 * (inside bytecode and require as an ordinary error with the text "not enough
 * memory"), a module that a function needs and that cannot be loaded here,
 * damaged input. A function gets this state's globals as its environment.
 */
int tp_decode(lua_State *L, const void *p, size_t n);

/* The same for a look at a message that may be decoded again. */
int tp_peek(lua_State *L, const void *p, size_t n);

/* Call fn for each handle in an encoded message, newest first; it may write to
 * the payload. Returns how many. */
size_t tp_each_handle(const void *p, size_t n,
                      void (*fn)(uint32_t kind, void *payload, size_t n,
                                 void *ud),
                      void *ud);

/* -- Single small values, inline ---------------------------------------- */

/*
 * A message that is one number, boolean, pid or short string is just its tag
 * and its value. These two functions know nothing else; what they write can
 * be read by tp_decode as well, and the other way round.
 */
#define TP_SHORT_STRING 62                    /* longest string, in bytes */
#define TP_SCALAR_MAX   (2 + TP_SHORT_STRING) /* longest encoding */

enum tp_scalar_tag {
    TP_TAG_NIL = 1,
    TP_TAG_FALSE,
    TP_TAG_TRUE,
    TP_TAG_NUMBER, /* 8 bytes */
    TP_TAG_PID,    /* 8 bytes */
    TP_TAG_STR8,   /* length in 1 byte, bytes */
    TP_TAG_SCALARS /* first tag of codec.c */
};

/* Is the light userdata at idx a pid? Its bits go to *out_bits. */
bool tp_codec_to_pid(lua_State *L, int idx, uint64_t *out_bits);

/*
 * Write the value at idx to dst, which has room for TP_SCALAR_MAX bytes.
 * Returns the bytes written; 0: not a small value, use tp_encode.
 * Never raises, never allocates.
 */
static inline size_t
tp_encode_scalar(lua_State *L, int idx, unsigned char *dst)
{
    switch (lua_type(L, idx)) {
    case LUA_TNIL:
        dst[0] = TP_TAG_NIL;
        return 1;
    case LUA_TBOOLEAN:
        dst[0] = lua_toboolean(L, idx) ? TP_TAG_TRUE : TP_TAG_FALSE;
        return 1;
    case LUA_TNUMBER: {
        lua_Number v = lua_tonumber(L, idx);
        dst[0] = TP_TAG_NUMBER;
        memcpy(dst + 1, &v, sizeof v);
        return 1 + sizeof v;
    }
    case LUA_TSTRING: {
        size_t n;
        const char *s = lua_tolstring(L, idx, &n);
        if (n > TP_SHORT_STRING) {
            return 0;
        }
        dst[0] = TP_TAG_STR8;
        dst[1] = (unsigned char)n;
        memcpy(dst + 2, s, n);
        return 2 + n;
    }
    case LUA_TLIGHTUSERDATA: {
        uint64_t bits;
        if (!tp_codec_to_pid(L, idx, &bits)) {
            return 0;
        }
        dst[0] = TP_TAG_PID;
        memcpy(dst + 1, &bits, sizeof bits);
        return 1 + sizeof bits;
    }
    default:
        return 0;
    }
}

/*
 * Push the value in p[0..n) if it is a small one. False: it is not, use
 * tp_decode. Raises: memory errors (strings only).
 */
static inline bool
tp_decode_scalar(lua_State *L, const void *p, size_t n)
{
    const unsigned char *b = p;
    if (n == 0) {
        return false;
    }
    if (b[0] == TP_TAG_NUMBER && n == 1 + sizeof(lua_Number)) {
        lua_Number v;
        memcpy(&v, b + 1, sizeof v);
        lua_pushnumber(L, v);
        return true;
    }
    if (b[0] == TP_TAG_STR8 && n >= 2 && n == (size_t)b[1] + 2) {
        lua_pushlstring(L, (const char *)b + 2, b[1]);
        return true;
    }
    if (b[0] == TP_TAG_PID && n == 1 + sizeof(uint64_t)) {
        uint64_t bits;
        memcpy(&bits, b + 1, sizeof bits);
        lua_pushlightuserdata(L, (void *)(uintptr_t)bits);
        return true;
    }
    if (n == 1 && (b[0] == TP_TAG_TRUE || b[0] == TP_TAG_FALSE)) {
        lua_pushboolean(L, b[0] == TP_TAG_TRUE);
        return true;
    }
    if (n == 1 && b[0] == TP_TAG_NIL) {
        lua_pushnil(L);
        return true;
    }
    return false;
}

#endif
