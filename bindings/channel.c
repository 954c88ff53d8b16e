/*
 * channel.c - channels, for Lua.
 *
 * Idea:  a function that may run the collector, and so somebody's finalizer,
 *        looks at its handle again afterwards: it may be closed by then.
 * Parks: recv, recv_match; send to a channel that is full.
 * Tests: spec/lua/channel_spec.lua
 */
#include "actor/channel.h"
#include "handle.h"

/* -- sending ------------------------------------------------------------- */

static int
send_result(lua_State *L, int rc)
{
    if (TP_LIKELY(rc == 0)) {
        tp_actor_checkpoint();
        lua_pushboolean(L, true);
        return 1;
    }
    return rc == TROUPE_EKILLED || rc == TROUPE_EINVAL ? tp_raise_wait(L, rc)
                                                       : tp_push_error(L, rc);
}

/* The value at 2 as a message; *out_ch, where to: NULL if that is closed. */
static struct tp_msg *
encode(lua_State *L, struct tp_actor *a, struct tp_channel **out_ch)
{
    tp_handle_check(L, a, 1, &tp_handle_tx);
    if (TP_UNLIKELY(lua_isnoneornil(L, 2))) {
        luaL_argerror(L, 2, "value expected, got nil");
    }
    struct tp_msg *m = tp_encode_message(L, 2, a->pid);
    *out_ch = tp_handle_object(lua_touserdata(L, 1), a);
    if ((m->flags & TP_MSG_HAS_OBJECTS) != 0 &&
        tp_names_object(m, *out_ch, &tp_handle_rx)) { /* nobody could take it */
        tp_msg_unsend(m);
        luaL_argerror(L, 2, "a receiver cannot be sent into its own channel");
    }
    return m;
}

/* tx:send(value [, timeout]) -> true; or nil, err */
static int
tx_send(lua_State *L)
{
    struct tp_actor *a = tp_check_actor(L);
    struct tp_channel *ch;
    uint64_t deadline = TP_NEVER;
    if (TP_UNLIKELY(lua_gettop(L) > 2)) {
        deadline = tp_check_deadline(L, 3, "timeout");
    }
    struct tp_msg *m = encode(L, a, &ch);
    int rc =
        ch == NULL ? TROUPE_ECLOSED : tp_channel_send_dl(a, ch, m, deadline);
    if (TP_UNLIKELY(rc != 0)) {
        tp_msg_unsend(m);
    }
    return send_result(L, rc);
}

/* tx:try_send(value) -> true; or nil, "full" or "closed" */
static int
tx_try_send(lua_State *L)
{
    struct tp_channel *ch;
    struct tp_msg *m = encode(L, tp_check_actor(L), &ch);
    int rc = ch == NULL ? TROUPE_ECLOSED : tp_channel_push(ch, m);
    if (rc != 0) {
        tp_msg_unsend(m);
    }
    return send_result(L, rc);
}

static int
tx_close(lua_State *L)
{
    return tp_handle_close(L, 1, &tp_handle_tx);
}

/* -- receiving ----------------------------------------------------------- */

/* The channel of the receiver at 1; NULL: closed. */
static struct tp_channel *
check_rx(lua_State *L, struct tp_actor *a)
{
    struct tp_channel *ch = tp_handle_check(L, a, 1, &tp_handle_rx);
    tp_refuse_in_scan(L, tp_lua_of(a));
    return ch;
}

static int
wait_failed(lua_State *L, int rc)
{
    return rc == TROUPE_ETIMEOUT || rc == TROUPE_ECLOSED ? tp_push_error(L, rc)
                                                         : tp_raise_wait(L, rc);
}

/* rx:recv([timeout]) -> value; or nil, "timeout" or "closed" */
static int
rx_recv(lua_State *L)
{
    struct tp_actor *a = tp_check_actor(L);
    uint64_t deadline = TP_NEVER;
    if (lua_gettop(L) > 1) {
        deadline = tp_check_deadline(L, 2, "timeout");
    }
    tp_actor_checkpoint(); /* may be the end: not with a message in hand */
    struct tp_channel *ch = check_rx(L, a);
    struct tp_msg *m = ch == NULL ? NULL : tp_channel_pop(ch);
    if (m == NULL) {
        tp_lua_tier_up(L, a);
        ch = tp_handle_object(lua_touserdata(L, 1), a);
        int rc = ch == NULL ? TROUPE_ECLOSED : tp_channel_wait(a, ch, deadline);
        if (TP_UNLIKELY(rc != 0)) {
            return wait_failed(L, rc);
        }
        m = tp_channel_pop(ch); /* nobody else takes */
    }
    return tp_deliver_value(L, tp_lua_of(a), m);
}

/* rx:try_recv() -> value; or nil, "empty" or "closed" */
static int
rx_try_recv(lua_State *L)
{
    struct tp_actor *a = tp_check_actor(L);
    tp_actor_checkpoint(); /* may be the end: not with a message in hand */
    struct tp_channel *ch = check_rx(L, a);
    bool ended = ch == NULL || tp_channel_is_ended(ch);
    struct tp_msg *m = ch == NULL ? NULL : tp_channel_pop(ch);
    if (m != NULL) {
        return tp_deliver_value(L, tp_lua_of(a), m);
    }
    if (ended) {
        return tp_push_error(L, TROUPE_ECLOSED);
    }
    lua_pushnil(L);
    lua_pushliteral(L, "empty");
    return 2;
}

/* Looks at the messages from *link on; moves *link to the end. With the value
 * pushed and the message taken when one fits. The predicate may have closed
 * the receiver, or sent it away: *out_ch is NULL then, and nothing touched. */
static struct tp_msg *
find(lua_State *L, struct tp_actor *a, struct tp_channel **ch,
     struct tp_msg ***link)
{
    const struct tp_handle *h = lua_touserdata(L, 1);
    while (**link != NULL) {
        struct tp_msg *m = **link;
        tp_push_peeked(L, m);
        bool fits = tp_handle_object(h, a) == *ch && tp_matches(L, 2, m);
        if (tp_handle_object(h, a) != *ch) {
            *ch = NULL;
            return NULL;
        }
        if (fits) {
            return tp_channel_take(*ch, *link);
        }
        lua_pop(L, 1);
        *link = &m->next;
    }
    return NULL;
}

/* m fits; a look at it is on top. */
static int
deliver_found(lua_State *L, struct tp_lua *t, struct tp_msg *m)
{
    if ((m->flags & TP_MSG_HAS_OBJECTS) != 0) {
        lua_pop(L, 1);
        return tp_deliver_value(L, t, m);
    }
    tp_msg_free(m);
    return 1;
}

/* rx:recv_match(matcher [, timeout]) -> value; or nil, "timeout" or "closed" */
int
tp_l_recv_match(lua_State *L)
{
    struct tp_actor *a = tp_check_actor(L);
    struct tp_lua *t = tp_lua_of(a);
    struct tp_channel *ch = check_rx(L, a);
    tp_check_matcher(L, 2);
    uint64_t deadline = tp_check_deadline(L, 3, "timeout");
    struct tp_msg **link = ch == NULL ? NULL : &ch->head;
    lua_settop(L, 2);
    while (ch != NULL) {
        tp_channel_fetch(ch);
        tp_begin_scan(L, t);
        struct tp_msg *m = find(L, a, &ch, &link);
        t->scan = NULL;
        if (m != NULL) {
            return deliver_found(L, t, m);
        }
        tp_lua_tier_up(L, a);
        ch = ch == NULL ? NULL : tp_handle_check(L, a, 1, &tp_handle_rx);
        if (ch == NULL) {
            break;
        }
        int rc = tp_channel_wait(a, ch, deadline);
        if (rc != 0) {
            return wait_failed(L, rc);
        }
    }
    tp_handle_check(L, a, 1, &tp_handle_rx); /* raises if it was sent away */
    return tp_push_error(L, TROUPE_ECLOSED);
}

static int
rx_len(lua_State *L)
{
    struct tp_channel *ch =
        tp_handle_check(L, tp_actor_self(), 1, &tp_handle_rx);
    lua_pushinteger(L, ch == NULL ? 0 : (lua_Integer)tp_channel_len(ch));
    return 1;
}

static int
rx_close(lua_State *L)
{
    return tp_handle_close(L, 1, &tp_handle_rx);
}

/* -- kinds --------------------------------------------------------------- */

static void
tx_ref(void *ch)
{
    tp_channel_tx_ref(ch);
}

static void
tx_unref(void *ch)
{
    tp_channel_tx_unref(ch);
}

static void
rx_unref(void *ch)
{
    tp_channel_rx_close(ch);
}

static const luaL_Reg tx_methods[] = {{"send", tx_send},
                                      {"try_send", tx_try_send},
                                      {"close", tx_close},
                                      {NULL, NULL}};

static const luaL_Reg rx_methods[] = {{"recv", rx_recv},
                                      {"try_recv", rx_try_recv},
                                      {"recv_match", tp_l_recv_match},
                                      {"close", rx_close},
                                      {NULL, NULL}};

static const luaL_Reg rx_meta[] = {{"__len", rx_len}, {NULL, NULL}};

const struct tp_handle_kind tp_handle_tx = {.name = "troupe.channel.tx",
                                            TP_HANDLE_TEXTS("channel sender"),
                                            .ref = tx_ref,
                                            .unref = tx_unref,
                                            .methods = tx_methods};

const struct tp_handle_kind tp_handle_rx = {.name = "troupe.channel.rx",
                                            TP_HANDLE_TEXTS("channel receiver"),
                                            .unref = rx_unref,
                                            .methods = rx_methods,
                                            .meta = rx_meta};

/* channel([capacity]) -> tx, rx; or nil, "nomem" */
int
tp_l_channel(lua_State *L)
{
    tp_check_actor(L);
    lua_Number capacity =
        lua_isnoneornil(L, 1) ? 0 : tp_check_number(L, 1, "capacity");
    if (!lua_isnoneornil(L, 1) &&
        (!(capacity >= 1 && capacity < UINT32_MAX) || !tp_is_whole(capacity))) {
        return luaL_argerror(L, 1, "capacity must be a whole number from 1 on");
    }
    struct tp_handle *tx = tp_handle_new(L, &tp_handle_tx);
    struct tp_handle *rx = tp_handle_new(L, &tp_handle_rx);
    struct tp_channel *ch = tp_channel_new((uint32_t)capacity);
    if (ch == NULL) {
        return tp_push_error(L, TROUPE_ENOMEM);
    }
    tp_handle_set(tx, ch);
    tp_handle_set(rx, ch);
    return 2;
}
