/*
 * mailbox.c - send, receive and receive_match, for Lua.
 *
 * Idea:  a message that is a number, a short string, a boolean or a pid goes
 *        straight into the message; all else through the thread's scratch
 *        buffer, so that a value that cannot be sent leaves nothing behind.
 * Parks: receive, receive_match; send to a full mailbox that blocks.
 * Tests: spec/lua/send_spec.lua, spec/lua/receive_spec.lua,
 *        spec/lua/codec_spec.lua
 */
#include "actor/delay.h"
#include "actor/group.h"
#include "actor/link.h"
#include "bind.h"
#include "handle.h"

#include <string.h>

/* -- send ---------------------------------------------------------------- */

static struct tp_msg *
message_of(lua_State *L, const void *bytes, size_t n, troupe_pid from)
{
    struct tp_msg *m = tp_msg_new(n);
    if (m == NULL) {
        luaL_error(L, "not enough memory");
    }
    memcpy(m->data, bytes, n);
    m->from = from;
    return m;
}

/* A value that is not small. */
static struct tp_msg *
encode_big(lua_State *L, int idx, const char *what, enum tp_handles handles,
           troupe_pid from)
{
    struct tp_buf *b = tp_scratch();
    int rc = TROUPE_ENOMEM;
    if (b != NULL) {
        b->handles = handles;
        rc = tp_encode(L, idx, what, b);
    }
    if (rc == TROUPE_EINVAL) {
        luaL_where(L, 1);
        lua_insert(L, -2);
        lua_concat(L, 2);
        lua_error(L);
    }
    if (rc != 0) {
        luaL_error(L, "not enough memory");
    }
    struct tp_msg *m = message_of(L, b->p, b->len, from);
    tp_scratch_done();
    tp_take_objects(m);
    return m;
}

static inline struct tp_msg *
encode(lua_State *L, int idx, const char *what, enum tp_handles handles,
       troupe_pid from)
{
    unsigned char small[TP_SCALAR_MAX];
    size_t n = tp_encode_scalar(L, idx, small);
    return n == 0 ? encode_big(L, idx, what, handles, from)
                  : message_of(L, small, n, from);
}

struct tp_msg *
tp_encode_message(lua_State *L, int idx, troupe_pid from)
{
    return encode(L, idx, "message", TP_HANDLES_ALL, from);
}

struct tp_msg *
tp_encode_to_many(lua_State *L, int idx, const char *what, troupe_pid from)
{
    return encode(L, idx, what, TP_HANDLES_SHARED, from);
}

/* The mailbox was full; it may be one that blocks. m is the actor's while it
 * waits, since the wait may be its end. */
static int
send_waiting(struct tp_actor *a, troupe_pid to, struct tp_msg *m)
{
    struct tp_lua *t = tp_lua_of(a);
    tp_own(t, m);
    /* A push writes next, too; m is the first of the list. */
    struct tp_msg *rest = m->next;
    int rc = tp_mailbox_send(a, to, m);
    t->owned = rest;
    return rc;
}

static int
send_as(lua_State *L, enum tp_msg_kind kind)
{
    struct tp_actor *a = tp_check_actor(L);
    troupe_pid to = tp_check_pid(L, 1);
    if (TP_UNLIKELY(lua_isnoneornil(L, 2))) {
        return luaL_argerror(L, 2, "message expected, got nil");
    }
    struct tp_msg *m = tp_encode_message(L, 2, a->pid);
    m->kind = (uint16_t)kind;
    int rc = tp_mailbox_push(to, m);
    if (TP_UNLIKELY(rc == TROUPE_EFULL)) {
        rc = send_waiting(a, to, m);
    }
    if (TP_UNLIKELY(rc != 0)) {
        tp_msg_unsend(m);
        if (rc == TROUPE_EKILLED) {
            return tp_raise_wait(L, rc);
        }
        return tp_push_error(L, rc);
    }
    tp_actor_checkpoint();
    lua_pushboolean(L, true);
    return 1;
}

int
tp_l_send(lua_State *L)
{
    return send_as(L, TP_MSG_USER);
}

/* cast(dest, request): as send; receive says "cast". */
int
tp_l_cast(lua_State *L)
{
    return send_as(L, TP_MSG_CAST);
}

/* _send_system(dest, message): what _next takes before all else. */
int
tp_l_send_system(lua_State *L)
{
    return send_as(L, TP_MSG_SYSTEM);
}

/* sendable(value [, to_many]) -> true; or false, why not */
int
tp_l_sendable(lua_State *L)
{
    luaL_checkany(L, 1);
    struct tp_buf *b = tp_scratch();
    int rc = TROUPE_ENOMEM;
    if (b != NULL) {
        b->handles = lua_toboolean(L, 2) ? TP_HANDLES_SHARED : TP_HANDLES_ALL;
        rc = tp_encode(L, 1, "value", b);
    }
    if (rc == TROUPE_ENOMEM) {
        return luaL_error(L, "not enough memory");
    }
    tp_scratch_done();
    lua_pushboolean(L, rc == 0);
    if (rc == 0) {
        return 1;
    }
    lua_insert(L, -2);
    return 2;
}

/* -- receive ------------------------------------------------------------- */

/* {type="down", ref=, pid=, reason=} or {type="exit", pid=, reason=} */
static void
push_notice(lua_State *L, struct tp_msg *m)
{
    bool down = m->kind == TP_MSG_DOWN;
    lua_createtable(L, 0, 4);
    lua_pushstring(L, down ? "down" : "exit");
    lua_setfield(L, -2, "type");
    if (down) {
        lua_pushnumber(L, (lua_Number)m->ref);
        lua_setfield(L, -2, "ref");
    }
    if (m->from != 0) { /* 0: a name that nobody had */
        tp_push_pid(L, m->from);
        lua_setfield(L, -2, "pid");
    }
    tp_push_reason(L, tp_notice_reason(m));
    lua_setfield(L, -2, "reason");
}

static void
push_value(lua_State *L, struct tp_msg *m, bool peek)
{
    if (m->kind == TP_MSG_DOWN || m->kind == TP_MSG_EXIT) {
        push_notice(L, m);
    } else if (m->kind == TP_MSG_GROUP) {
        tp_push_group_event(L, m);
    } else if (m->kind == TP_MSG_PROCESS) {
        tp_push_process_event(L, m);
    } else if (peek) {
        tp_push_peeked(L, m);
    } else if (!tp_decode_scalar(L, m->data, m->size)) {
        tp_decode(L, m->data, m->size);
    }
}

void
tp_push_peeked(lua_State *L, struct tp_msg *m)
{
    if (!tp_decode_scalar(L, m->data, m->size)) {
        tp_peek(L, m->data, m->size);
    }
}

int
tp_deliver_value(lua_State *L, struct tp_lua *t, struct tp_msg *m)
{
    if (!tp_decode_scalar(L, m->data, m->size)) {
        tp_own(t, m);
        tp_decode(L, m->data, m->size);
        tp_disown(t, m);
    }
    tp_msg_drop(m);
    return 1;
}

static void
push_from(lua_State *L, troupe_pid from)
{
    if (from == 0) {
        lua_pushnil(L);
    } else {
        tp_push_pid(L, from);
    }
}

/* What receive returns after the value: the sender, for a request its handle;
 * and what kind of message it is, where it is not a plain one. */
static int
push_sender(lua_State *L, struct tp_actor *a, struct tp_msg *m)
{
    static const char *const kinds[] = {
        [TP_MSG_CALL] = "call",      [TP_MSG_CAST] = "cast",
        [TP_MSG_SYSTEM] = "system",  [TP_MSG_DOWN] = "down",
        [TP_MSG_EXIT] = "exit",      [TP_MSG_GROUP] = "group",
        [TP_MSG_PROCESS] = "process"};
    const char *kind = kinds[m->kind];
    if (m->kind == TP_MSG_CALL) {
        tp_push_from(L, a, m);
    } else {
        if (m->kind == TP_MSG_PROCESS) {
            tp_note_process_end(L, m);
        }
        push_from(L, m->from);
    }
    if (kind == NULL) {
        return 2;
    }
    lua_pushstring(L, kind);
    return 3;
}

/* m was taken out of the mailbox: pushes its value and its sender. A decode
 * may fail or even park, so m is the actor's meanwhile. */
static int
deliver(lua_State *L, struct tp_actor *a, struct tp_msg *m)
{
    struct tp_lua *t = tp_lua_of(a);
    if (TP_LIKELY(m->kind == TP_MSG_USER) &&
        tp_decode_scalar(L, m->data, m->size)) {
        push_from(L, m->from);
        tp_msg_free(m);
        return 2;
    }
    tp_own(t, m);
    int n = push_sender(L, a, m); /* first: who asks is told if 2 fails */
    push_value(L, m, false);
    lua_insert(L, -n);
    tp_disown(t, m);
    tp_msg_drop(m);
    return n;
}

/* Takes *link; NULL if it is a notice that is not for who receives. */
static struct tp_msg *
take(struct tp_actor *a, struct tp_msg **link)
{
    struct tp_msg *m = tp_mailbox_take(a, link);
    if (m->kind == TP_MSG_DOWN && !tp_monitor_take_down(a, m)) {
        return NULL;
    }
    if (m->kind == TP_MSG_GROUP && !tp_group_wants(a, m)) {
        tp_msg_drop(m);
        return NULL;
    }
    return m;
}

/* A scan that was left by an error is over: its frame is gone. */
static bool
is_scanning(lua_State *L, lua_State *co)
{
    lua_Debug ar;
    bool found = false;
    if (lua_status(co) > LUA_YIELD || !lua_checkstack(co, 1)) {
        return false;
    }
    for (int level = co == L; !found && lua_getstack(co, level, &ar); level++) {
        lua_getinfo(co, "f", &ar);
        found = lua_tocfunction(co, -1) == tp_l_receive_match ||
                lua_tocfunction(co, -1) == tp_l_recv_match;
        lua_pop(co, 1);
    }
    return found;
}

void
tp_refuse_in_scan(lua_State *L, struct tp_lua *t)
{
    if (TP_UNLIKELY(t->scan != NULL)) {
        if (is_scanning(L, t->scan)) {
            luaL_error(L, "a predicate of receive_match or recv_match must "
                          "not receive");
        }
        t->scan = NULL;
    }
}

static int
wait_failed(lua_State *L, int rc)
{
    return rc == TROUPE_ETIMEOUT ? tp_push_error(L, rc) : tp_raise_wait(L, rc);
}

int
tp_l_receive(lua_State *L)
{
    struct tp_actor *a = tp_check_actor(L);
    struct tp_lua *t = tp_lua_of(a);
    uint64_t deadline = TP_NEVER;
    bool timed = lua_gettop(L) > 0;
    if (timed) {
        deadline = tp_check_deadline(L, 1, "timeout");
    }
    tp_refuse_in_scan(L, t);
    tp_actor_checkpoint(); /* may be the end: not with a message in hand */
    for (;;) {
        if (a->slot->mail_head == NULL && !tp_mailbox_fetch(a)) {
            tp_lua_tier_up(L, a);
            int rc = tp_mailbox_wait(a, deadline);
            if (TP_UNLIKELY(rc != 0)) {
                return wait_failed(L, rc);
            }
        }
        struct tp_msg *m = take(a, &a->slot->mail_head);
        if (TP_LIKELY(m != NULL)) {
            return deliver(L, a, m);
        }
    }
}

/* _serve([master]): whose exit _next takes first. Before any receive. */
int
tp_l_serve(lua_State *L)
{
    struct tp_actor *a = tp_check_actor(L);
    a->master = lua_isnoneornil(L, 1) ? 0 : tp_check_pid(L, 1);
    return 0;
}

/*
 * _next([timeout [, urgent_only]]): as receive, for the loop of a server:
 * messages for the loop itself and the master's exit come first.
 */
int
tp_l_next(lua_State *L)
{
    struct tp_actor *a = tp_check_actor(L);
    uint64_t deadline = TP_NEVER;
    bool urgent_only = lua_toboolean(L, 2);
    if (!lua_isnoneornil(L, 1)) {
        deadline = tp_check_deadline(L, 1, "timeout");
    }
    tp_refuse_in_scan(L, tp_lua_of(a));
    tp_actor_checkpoint(); /* as in receive */
    tp_mailbox_fetch(a);
    for (;;) {
        struct tp_msg **link = tp_mailbox_urgent(a);
        if (link == NULL && !urgent_only && a->slot->mail_head != NULL) {
            link = &a->slot->mail_head;
        }
        if (link == NULL) {
            tp_lua_tier_up(L, a);
            int rc = tp_mailbox_wait(a, deadline);
            if (TP_UNLIKELY(rc != 0)) {
                return wait_failed(L, rc);
            }
            continue;
        }
        struct tp_msg *m = take(a, link);
        if (TP_LIKELY(m != NULL)) {
            return deliver(L, a, m);
        }
    }
}

/* -- receive_match ------------------------------------------------------- */

#define PATTERN_DEPTH 100

#define EQUAL_KEY     "troupe.equal"
#define CDATA_TYPE    10 /* LuaJIT's own */

/* lua_equal knows nothing of 64-bit integers; Lua code does. */
static bool
is_equal(lua_State *L, int p, int v)
{
    if (lua_type(L, p) != CDATA_TYPE && lua_type(L, v) != CDATA_TYPE) {
        return lua_equal(L, p, v);
    }
    lua_getfield(L, LUA_REGISTRYINDEX, EQUAL_KEY);
    if (lua_isnil(L, -1)) {
        lua_pop(L, 1);
        if (luaL_loadstring(L, "local a, b = ... return a == b") != 0) {
            lua_error(L);
        }
        lua_pushvalue(L, -1);
        lua_setfield(L, LUA_REGISTRYINDEX, EQUAL_KEY);
    }
    lua_pushvalue(L, p);
    lua_pushvalue(L, v);
    lua_call(L, 2, 1);
    bool equal = lua_toboolean(L, -1);
    lua_pop(L, 1);
    return equal;
}

/* Is the pattern at p a subset of the value at v? Both absolute. */
static bool
is_subset(lua_State *L, int p, int v, int depth)
{
    if (!lua_istable(L, p) || !lua_istable(L, v)) {
        return is_equal(L, p, v);
    }
    if (depth == PATTERN_DEPTH) {
        luaL_error(L, "pattern is nested deeper than %d levels", PATTERN_DEPTH);
    }
    luaL_checkstack(L, 4, "pattern");
    lua_pushnil(L);
    while (lua_next(L, p) != 0) {
        int top = lua_gettop(L);
        lua_pushvalue(L, top - 1);
        lua_rawget(L, v);
        bool same = is_subset(L, top, top + 1, depth + 1);
        lua_settop(L, top - 1);
        if (!same) {
            lua_settop(L, top - 2);
            return false;
        }
    }
    return true;
}

void
tp_check_matcher(lua_State *L, int arg)
{
    luaL_argcheck(L, lua_istable(L, arg) || lua_isfunction(L, arg), arg,
                  "predicate or table expected");
}

bool
tp_matches(lua_State *L, int matcher, struct tp_msg *m)
{
    int value = lua_gettop(L);
    if (lua_istable(L, matcher)) {
        return is_subset(L, matcher, value, 0);
    }
    lua_pushvalue(L, matcher);
    lua_pushvalue(L, value);
    push_from(L, m->from);
    lua_call(L, 2, 1);
    bool fits = lua_toboolean(L, -1);
    lua_settop(L, value);
    return fits;
}

static bool
is_wanted(struct tp_actor *a, const struct tp_msg *m)
{
    switch (m->kind) {
    case TP_MSG_DOWN:
        return tp_monitor_wants(a, m->ref);
    case TP_MSG_GROUP:
        return tp_group_wants(a, m);
    default:
        return true;
    }
}

void
tp_begin_scan(lua_State *L, struct tp_lua *t)
{
    if (L != t->L) {
        lua_pushthread(L);
        lua_setfield(L, LUA_REGISTRYINDEX, "troupe.scan");
    }
    t->scan = L;
}

/* Looks at the messages from *link on; moves *link to the end. With the value
 * pushed and the message taken when one fits. */
static struct tp_msg *
find(lua_State *L, struct tp_actor *a, struct tp_msg ***link)
{
    while (**link != NULL) {
        struct tp_msg *m = **link;
        if (!is_wanted(a, m)) {
            take(a, *link);
            continue;
        }
        push_value(L, m, true);
        bool fits = tp_matches(L, 1, m);
        if (fits && (m = take(a, *link)) != NULL) {
            return m;
        }
        lua_pop(L, 1);
        if (fits) {
            continue; /* the predicate has just demonitored it */
        }
        *link = &m->next;
    }
    return NULL;
}

int
tp_l_receive_match(lua_State *L)
{
    struct tp_actor *a = tp_check_actor(L);
    tp_check_matcher(L, 1);
    uint64_t deadline = tp_check_deadline(L, 2, "timeout");
    struct tp_msg **link = &a->slot->mail_head;
    struct tp_lua *t = tp_lua_of(a);
    lua_settop(L, 1);
    tp_refuse_in_scan(L, t);
    for (;;) {
        tp_begin_scan(L, t);
        struct tp_msg *m = find(L, a, &link);
        t->scan = NULL;
        if (m != NULL) {
            tp_own(t, m);
            if ((m->flags & TP_MSG_HAS_OBJECTS) != 0) {
                lua_pop(L, 1); /* that was a look only */
                push_value(L, m, false);
            }
            int n = push_sender(L, a, m);
            tp_disown(t, m);
            tp_msg_drop(m);
            return n;
        }
        tp_lua_tier_up(L, a);
        int rc = tp_mailbox_wait(a, deadline);
        if (rc != 0) {
            return wait_failed(L, rc);
        }
    }
}
