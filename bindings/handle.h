/*
 * handle.h - userdata that stand for objects of the core, and how they travel.
 *
 * Idea:   a handle is a userdata that names a holder, a piece of core memory on
 *         the running actor's list of resources, which names the object. So
 *         the object is released when the handle is closed or collected, or,
 *         before the Lua state goes, at the actor's end.
 *         In a message a handle is the object's address. One whose kind has a
 *         ref is shared: the message takes a reference, and whoever decodes it
 *         another one. One without moves: its holder is left empty, and the
 *         receiver's decode takes it out of the message. Whatever is still
 *         there when the message is dropped is released.
 *
 *   a new kind: a struct tp_handle_kind, and one line in TP_HANDLE_KINDS
 *   making one: h = tp_handle_new(L, kind), make the object, tp_handle_set
 *   sending   : encode; make the message; tp_take_objects(m); deliver, or
 *               tp_msg_unsend(m), after which all is the sender's again
 *   receiving : decode, then tp_msg_drop(m)
 *   to many   : buf->handles = TP_HANDLES_SHARED before the encode; tp_msg_copy
 *
 * Threads: release of what is in a message: any. The rest: the running actor.
 * Parks:   never.
 * Tests:   spec/lua/channel_spec.lua, spec/lua/mutex_spec.lua
 */
#ifndef TP_BINDINGS_HANDLE_H
#define TP_BINDINGS_HANDLE_H

#include "bind.h"

/* Each is a tp_handle_<name>. Their order is their number in messages. */
#define TP_HANDLE_KINDS(X)                                                     \
    X(tx)                                                                      \
    X(rx)                                                                      \
    X(mutex)                                                                   \
    X(counter)                                                                 \
    X(conn)                                                                    \
    X(listener)                                                                \
    X(udp)                                                                     \
    X(from)

struct tp_handle_kind {
    const char *name;           /* of the metatable: "troupe.channel.tx" */
    const char *what;           /* in errors; see TP_HANDLE_TEXTS */
    const char *gone, *to_many; /* what cannot be sent */
    void (*ref)(void *object);  /* NULL: it moves */
    /* Gives back a reference, or ends what moves. Any thread, no lock but those
     * below TP_RANK_CHANNEL; one that does not move: below TP_RANK_TIMER. Must
     * not park or run Lua. */
    void (*unref)(void *object);
    /* Shared, yet not with many: its unref takes TP_RANK_SLOT, and exit reasons
     * are released under that. */
    bool to_one;
    const luaL_Reg *methods;
    /* Metamethods beside or in place of the common ones, or NULL. Upvalue 1 is
     * the table of methods. */
    const luaL_Reg *meta;
    troupe_pid (*pid)(const void *object); /* or NULL: see struct tp_handle */
    /* Of one that moves, or NULL: who sends it away keeps a reference of a
     * lesser kind, see tp_handle_sent; keep takes it, forget gives it back. */
    void (*keep)(void *object);
    void (*forget)(void *object);
};

#define TP_HANDLE_TEXTS(text)                                                  \
    .what = text, .gone = text " that is closed or was sent away",             \
    .to_many = text " in a message to many"

#define X(name) extern const struct tp_handle_kind tp_handle_##name;
TP_HANDLE_KINDS(X)
#undef X

/* On the actor's list of resources. */
struct tp_holder {
    struct tp_resource resource;
    const struct tp_handle_kind *kind;
    void *object; /* NULL: none yet, or it was sent away */
    void *kept;   /* what was sent away, of a kind that keeps that */
};

/* The userdata. */
struct tp_handle {
    const struct tp_handle_kind *kind;
    struct tp_holder *holder; /* NULL: closed */
    uint64_t owner;           /* when the actor of the holder was born */
    troupe_pid pid; /* whom its object is about; stays when it is closed */
};

/* The holder, if it still is there; a is the running actor, or NULL. */
static inline struct tp_holder *
tp_holder_of(const struct tp_handle *h, const struct tp_actor *a)
{
    return a != NULL && !a->finishing && a->started_ns == h->owner ? h->holder
                                                                   : NULL;
}

/* NULL: it is closed or was sent away. */
static inline void *
tp_handle_object(const struct tp_handle *h, const struct tp_actor *a)
{
    struct tp_holder *o = tp_holder_of(h, a);
    return o == NULL ? NULL : o->object;
}

/* Pushes a handle without an object. Raises for want of memory. */
struct tp_handle *tp_handle_new(lua_State *L,
                                const struct tp_handle_kind *kind);

/* Gives it an object; takes the caller's reference. */
void tp_handle_set(struct tp_handle *h, void *object);

/* Raises an argument error that begins with what the kind is. */
void tp_handle_refuse(lua_State *L, int arg, const struct tp_handle_kind *kind,
                      const char *why);

/* A handle of that kind, or NULL. */
static inline struct tp_handle *
tp_handle_to(lua_State *L, int idx, const struct tp_handle_kind *kind)
{
    struct tp_handle *h = lua_touserdata(L, idx);
    bool is = h != NULL && lua_objlen(L, idx) == sizeof *h && h->kind == kind;
    return is ? h : NULL;
}

/* The object; NULL: it is closed, or the actor ends. Raises an argument error
 * for another value, and for what was sent away. */
static inline void *
tp_handle_check(lua_State *L, const struct tp_actor *a, int arg,
                const struct tp_handle_kind *kind)
{
    struct tp_handle *h = tp_handle_to(L, arg, kind);
    if (TP_UNLIKELY(h == NULL)) {
        tp_handle_refuse(L, arg, kind, "expected");
    }
    struct tp_holder *o = tp_holder_of(h, a);
    if (TP_UNLIKELY(o != NULL && o->object == NULL)) {
        tp_handle_refuse(L, arg, kind, "was sent to another actor");
    }
    return o == NULL ? NULL : o->object;
}

/* What the handle has sent away, if its kind keeps that; else NULL. */
void *tp_handle_sent(lua_State *L, int idx, const struct tp_handle_kind *kind);

/* A method: close(handle). */
int tp_handle_close(lua_State *L, int arg, const struct tp_handle_kind *kind);

/* m was just encoded by the running actor: what it names is the message's now.
 * Each message of bytes from tp_encode needs it, but for the small values. */
void tp_take_objects(struct tp_msg *m);

/* Does m name that object? */
bool tp_names_object(const struct tp_msg *m, const void *object,
                     const struct tp_handle_kind *kind);

/* The same as tp_take_objects for a reason. */
void tp_take_reason_objects(struct tp_reason *r);

/* For tp_codec_ops. */
const char *tp_handle_encode(lua_State *L, int idx, struct tp_buf *out);
void tp_handle_decode(lua_State *L, uint32_t kind, void *payload, size_t n,
                      bool peek);

/* Sets the hooks of messages and reasons. */
void tp_handles_init(void);

#endif
