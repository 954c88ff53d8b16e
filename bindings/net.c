/*
 * net.c - sockets, for Lua: the table behind troupe.net, and its objects.
 *
 * Idea:    an object is a hold (core/io/endpoint.h) in a userdata. It is on the
 *          actor's list from birth to its collection, so an end without
 *          finalizers lets go of it as well. Bytes are taken out of the
 *          stream's buffer before they become a string: that may run a
 *          finalizer, which may use the same connection.
 * Threads: the running actor's.
 * Parks:   read, write, accept, connect, send_to, recv_from.
 * Tests:   spec/lua/net_spec.lua, spec/lua/net_udp_spec.lua
 */
#include "base/errnames.h"
#include "bind.h"
#include "io/datagram.h"
#include "io/listener.h"
#include "io/resolve.h"
#include "io/stream.h"

#include <errno.h>
#include <string.h>

#define CONN     "troupe.conn"
#define LISTENER "troupe.listener"
#define UDP      "troupe.udp"

/* Up to so many bytes go to Lua by way of the C stack. */
#define TAKE_SMALL 512
/* Pieces of one write that are handed on together. */
#define PIECES_MAX 64
/* No string is longer. */
#define STRING_MAX 0x7fffff00

/* -- errors --------------------------------------------------------------- */

/* nil and a short name; or an error, where the actor cannot wait. */
static int
push_failure(lua_State *L, int rc)
{
    switch (rc) {
    case TROUPE_ESYSTEM:
        lua_pushnil(L);
        lua_pushstring(L, tp_errno_short(errno));
        return 2;
    case TROUPE_EFULL:
        lua_pushnil(L);
        lua_pushliteral(L, "line_too_long");
        return 2;
    case TROUPE_EKILLED:
    case TROUPE_EINVAL:
        return tp_raise_wait(L, rc);
    default:
        return tp_push_error(L, rc);
    }
}

static int
push_result(lua_State *L, int rc)
{
    if (rc != 0) {
        return push_failure(L, rc);
    }
    lua_pushboolean(L, true);
    return 1;
}

/* -- objects -------------------------------------------------------------- */

static void push_metatable(lua_State *L, const char *type);

/* Pushes an object that holds nothing yet. */
static struct tp_hold *
push_object(lua_State *L, const char *type)
{
    struct tp_hold *h = lua_newuserdata(L, sizeof *h);
    memset(h, 0, sizeof *h);
    push_metatable(L, type);
    lua_setmetatable(L, -2);
    return h;
}

/* Any of the three at 1. */
static struct tp_hold *
check_any(lua_State *L)
{
    static const char *const types[] = {CONN, LISTENER, UDP};
    bool ours = false;
    if (lua_type(L, 1) == LUA_TUSERDATA && lua_getmetatable(L, 1)) {
        for (size_t i = 0; i < 3 && !ours; i++) {
            luaL_getmetatable(L, types[i]);
            ours = lua_rawequal(L, -1, -2);
            lua_pop(L, 1);
        }
        lua_pop(L, 1);
    }
    luaL_argcheck(L, ours, 1, "connection, listener or udp socket expected");
    return lua_touserdata(L, 1);
}

static int
object_gc(lua_State *L)
{
    tp_hold_drop(check_any(L));
    return 0;
}

/* The open endpoint of the object at 1; NULL: it is closed, or another's. */
static struct tp_endpoint *
check_object(lua_State *L, const char *type)
{
    struct tp_hold *h = luaL_checkudata(L, 1, type);
    return h->owner ? h->endpoint : NULL;
}

static struct tp_stream *
check_conn(lua_State *L)
{
    struct tp_endpoint *e = check_object(L, CONN);
    return e == NULL ? NULL : tp_stream_of(e);
}

static int
push_closed(lua_State *L)
{
    return tp_push_error(L, TROUPE_ECLOSED);
}

/* close() -> was it open. Who has handed it on may close it still. */
static int
object_close(lua_State *L)
{
    struct tp_hold *h = check_any(L);
    bool open = h->endpoint != NULL && tp_endpoint_close(h->endpoint, h->owner);
    tp_hold_drop(h);
    lua_pushboolean(L, open);
    return 1;
}

/* The open descriptor at 1, or -1 after pushing nil, "closed". */
static int
check_fd(lua_State *L)
{
    struct tp_hold *h = check_any(L);
    int fd = -1;
    if (h->owner && tp_endpoint_enter(h->endpoint) == 0) {
        fd = h->endpoint->fd;
        if (tp_endpoint_leave(h->endpoint, 0) != 0) {
            fd = -1;
        }
    }
    if (fd < 0) {
        push_closed(L);
    }
    return fd;
}

/* fd() -> number, for troupe.wait_readable and select */
static int
object_fd(lua_State *L)
{
    int fd = check_fd(L);
    if (fd < 0) {
        return 2;
    }
    lua_pushinteger(L, fd);
    return 1;
}

/* host, port; or path */
static int
push_address(lua_State *L, const struct tp_addr *a)
{
    char text[TP_ADDR_TEXT];
    size_t len = tp_addr_text(a, text);
    lua_pushlstring(L, text, len);
    if (tp_addr_port(a) < 0) {
        return 1;
    }
    lua_pushinteger(L, tp_addr_port(a));
    return 2;
}

static int
push_name(lua_State *L, int (*name)(int fd, struct tp_addr *out))
{
    struct tp_addr a;
    int fd = check_fd(L);
    if (fd < 0) {
        return 2;
    }
    int rc = name(fd, &a);
    return rc == 0 ? push_address(L, &a) : push_failure(L, rc);
}

static int
object_peername(lua_State *L)
{
    return push_name(L, tp_socket_peername);
}

static int
object_sockname(lua_State *L)
{
    return push_name(L, tp_socket_sockname);
}

/* port() -> number; nil where there is none */
static int
object_port(lua_State *L)
{
    struct tp_addr a;
    int fd = check_fd(L);
    if (fd < 0) {
        return 2;
    }
    int rc = tp_socket_sockname(fd, &a);
    if (rc != 0) {
        return push_failure(L, rc);
    }
    if (tp_addr_port(&a) < 0) {
        return 0;
    }
    lua_pushinteger(L, tp_addr_port(&a));
    return 1;
}

/* set_timeout(seconds): nil, math.huge: for ever; 0: poll */
static int
object_set_timeout(lua_State *L)
{
    struct tp_hold *h = check_any(L);
    uint64_t deadline = tp_check_deadline(L, 2, "timeout"), now = tp_now_ns();
    if (h->owner) {
        h->endpoint->timeout_ns = deadline == TP_NEVER ? TP_NEVER
                                  : deadline > now     ? deadline - now
                                                       : 0;
    }
    return 0;
}

/* The time at arg, or the object's own. */
static uint64_t
check_deadline(lua_State *L, int arg, const struct tp_endpoint *e)
{
    if (!lua_isnoneornil(L, arg)) {
        return tp_check_deadline(L, arg, "timeout");
    }
    if (TP_LIKELY(e == NULL || e->timeout_ns == TP_NEVER)) {
        return TP_NEVER;
    }
    return e->timeout_ns == 0 ? 0 : tp_sat_add(tp_now_ns(), e->timeout_ns);
}

/* -- addresses ------------------------------------------------------------ */

/* A host and a port at arg and arg + 1, or a path and nil. False: the error is
 * on the stack, with *out_n values. */
static bool
check_address(lua_State *L, int arg, struct tp_addr *out, int *out_n)
{
    size_t len;
    const char *text = luaL_checklstring(L, arg, &len);
    int rc;
    if (lua_isnoneornil(L, arg + 1)) {
        rc = tp_addr_unix(out, text, len);
        luaL_argcheck(L, rc != TROUPE_EINVAL, arg, "path expected");
    } else {
        lua_Number port = luaL_checknumber(L, arg + 1);
        luaL_argcheck(L, port >= 0 && port <= 65535 && port == (int)port,
                      arg + 1, "port must be an integer from 0 to 65535");
        rc = tp_addr_ip(out, text, len, (uint16_t)port);
        luaL_argcheck(L, rc != TROUPE_EINVAL, arg, "numeric address expected");
    }
    if (rc != 0) {
        *out_n = push_failure(L, rc);
    }
    return rc == 0;
}

/* -- reading -------------------------------------------------------------- */

/* A copy, owned by the actor, of bytes that are about to become a string. */
static int
push_big(lua_State *L, struct tp_actor *a, struct tp_stream *s, size_t n,
         size_t skip)
{
    struct tp_lua *t = tp_lua_of(a);
    struct tp_msg *m = tp_msg_new(n);
    if (m == NULL) {
        return tp_push_error(L, TROUPE_ENOMEM);
    }
    memcpy(m->data, tp_stream_data(s), n);
    tp_own(t, m);
    tp_stream_skip(s, skip);
    lua_pushlstring(L, (const char *)m->data, n);
    tp_disown(t, m);
    tp_msg_free(m);
    return 1;
}

/* Pushes the first n bytes and skips so many, skip >= n or 0. The stream may
 * be gone afterwards. */
static int
push_bytes(lua_State *L, struct tp_actor *a, struct tp_stream *s, size_t n,
           size_t skip)
{
    char small[TAKE_SMALL];
    if (n > sizeof small) {
        return push_big(L, a, s, n, skip);
    }
    if (n > 0) {
        memcpy(small, tp_stream_data(s), n);
    }
    tp_stream_skip(s, skip);
    lua_pushlstring(L, small, n);
    return 1;
}

/* nil, err, and what is there, which stays. */
static int
read_failed(lua_State *L, struct tp_actor *a, struct tp_stream *s, int rc)
{
    int n = push_failure(L, rc);
    if (rc == TROUPE_EFULL || tp_endpoint_is_closed(&s->endpoint) ||
        tp_stream_len(s) == 0) {
        return n;
    }
    return n + push_bytes(L, a, s, tp_stream_len(s), 0);
}

static int
read_count(lua_State *L, struct tp_actor *a, struct tp_stream *s,
           uint64_t deadline)
{
    size_t n = (size_t)lua_tonumber(L, 2);
    int rc = tp_stream_need(a, s, n, deadline);
    return rc == 0 ? push_bytes(L, a, s, n, n) : read_failed(L, a, s, rc);
}

static int
read_line(lua_State *L, struct tp_actor *a, struct tp_stream *s,
          uint64_t deadline)
{
    size_t len, skip;
    int rc = tp_stream_line(a, s, deadline, &len, &skip);
    return rc == 0 ? push_bytes(L, a, s, len, skip) : read_failed(L, a, s, rc);
}

static int
read_all(lua_State *L, struct tp_actor *a, struct tp_stream *s,
         uint64_t deadline)
{
    int rc = tp_stream_all(a, s, deadline);
    size_t n = tp_stream_len(s);
    if (rc == 0 && n <= STRING_MAX) {
        return push_bytes(L, a, s, n, n);
    }
    return rc == 0 ? push_failure(L, TROUPE_ENOMEM) : read_failed(L, a, s, rc);
}

/* With nothing in the buffer it is likely to wait. */
static void
before_read(lua_State *L, struct tp_actor *a, struct tp_stream *s)
{
    if (tp_stream_len(s) == 0) {
        tp_lua_tier_up(L, a);
    }
}

typedef int (*read_fn)(lua_State *L, struct tp_actor *a, struct tp_stream *s,
                       uint64_t deadline);

static read_fn
check_what(lua_State *L)
{
    if (lua_type(L, 2) == LUA_TNUMBER) {
        lua_Number n = lua_tonumber(L, 2);
        if (n >= 0 && n <= STRING_MAX && n == (lua_Number)(uint32_t)n) {
            return read_count;
        }
    } else if (lua_type(L, 2) == LUA_TSTRING) {
        const char *what = lua_tostring(L, 2);
        if (strcmp(what, "line") == 0) {
            return read_line;
        }
        if (strcmp(what, "all") == 0) {
            return read_all;
        }
    }
    luaL_argerror(L, 2, "number of bytes, \"line\" or \"all\" expected");
    return NULL;
}

/* read(n | "line" | "all" [, timeout]) -> data; or nil, err, what is there */
static int
conn_read(lua_State *L)
{
    struct tp_actor *a = tp_check_actor(L);
    struct tp_stream *s = check_conn(L);
    read_fn read = check_what(L);
    uint64_t deadline = check_deadline(L, 3, s == NULL ? NULL : &s->endpoint);
    if (s == NULL) {
        return push_closed(L);
    }
    before_read(L, a, s);
    return read(L, a, s, deadline);
}

/* read_some([max [, timeout]]) -> 1 to max bytes; or nil, err */
static int
conn_read_some(lua_State *L)
{
    struct tp_actor *a = tp_check_actor(L);
    struct tp_stream *s = check_conn(L);
    lua_Number max = luaL_optnumber(L, 2, STRING_MAX);
    luaL_argcheck(L, max >= 1, 2, "max must be a number of bytes, 1 or more");
    uint64_t deadline = check_deadline(L, 3, s == NULL ? NULL : &s->endpoint);
    if (s == NULL) {
        return push_closed(L);
    }
    before_read(L, a, s);
    int rc = tp_stream_need(a, s, 1, deadline);
    if (rc != 0) {
        return push_failure(L, rc);
    }
    size_t n = tp_stream_len(s);
    n = (lua_Number)n > max ? (size_t)max : n;
    return push_bytes(L, a, s, n, n);
}

/* read_until(bytes [, timeout]) -> what comes before them; or nil, err, what
 * is there */
static int
conn_read_until(lua_State *L)
{
    struct tp_actor *a = tp_check_actor(L);
    struct tp_stream *s = check_conn(L);
    size_t len, at;
    const char *bytes = luaL_checklstring(L, 2, &len);
    luaL_argcheck(L, len > 0, 2, "at least one byte expected");
    uint64_t deadline = check_deadline(L, 3, s == NULL ? NULL : &s->endpoint);
    if (s == NULL) {
        return push_closed(L);
    }
    before_read(L, a, s);
    int rc = tp_stream_find(a, s, bytes, len, s->max_line, deadline, &at);
    return rc == 0 ? push_bytes(L, a, s, at, at + len)
                   : read_failed(L, a, s, rc);
}

/* -- writing -------------------------------------------------------------- */

static int
write_failed(lua_State *L, int rc, lua_Number written)
{
    int n = push_failure(L, rc);
    lua_pushnumber(L, written);
    return n + 1;
}

/* The strings at first.. as pieces; returns how many. */
static size_t
collect(lua_State *L, int first, int last, struct iovec *pieces)
{
    size_t count = 0;
    for (int i = first; i <= last && count < PIECES_MAX; i++, count++) {
        pieces[count].iov_base =
            (void *)(uintptr_t)lua_tolstring(L, i, &pieces[count].iov_len);
    }
    return count;
}

/* write(data, ...) -> true; or nil, err, bytes written. The strings stay on
 * the Lua stack while the actor waits. */
static int
conn_write(lua_State *L)
{
    struct tp_actor *a = tp_check_actor(L);
    struct tp_stream *s = check_conn(L);
    struct iovec pieces[PIECES_MAX];
    lua_Number total = 0;
    size_t len;
    int top = lua_gettop(L);
    luaL_checklstring(L, 2, &len);
    for (int i = 3; i <= top; i++) {
        luaL_checklstring(L, i, &len);
    }
    if (s == NULL) {
        return write_failed(L, TROUPE_ECLOSED, 0);
    }
    uint64_t deadline = check_deadline(L, top + 1, &s->endpoint);
    for (int i = 2; i <= top; i += PIECES_MAX) {
        size_t written, count = collect(L, i, top, pieces);
        int rc = tp_stream_write(a, s, pieces, count, deadline, &written);
        total += (lua_Number)written;
        if (rc != 0) {
            return write_failed(L, rc, total);
        }
    }
    lua_pushboolean(L, true);
    return 1;
}

/* shutdown("send") -> true; or nil, err */
static int
conn_shutdown(lua_State *L)
{
    static const char *const what[] = {"send", NULL};
    struct tp_stream *s = check_conn(L);
    luaL_checkoption(L, 2, NULL, what);
    return s == NULL ? push_closed(L)
                     : push_result(L, tp_stream_shutdown_send(s));
}

/* set_max_line(n) */
static int
conn_set_max_line(lua_State *L)
{
    struct tp_stream *s = check_conn(L);
    lua_Number n = luaL_checknumber(L, 2);
    luaL_argcheck(L, n >= 1 && n <= STRING_MAX, 2,
                  "a number of bytes, 1 or more, expected");
    if (s != NULL) {
        s->max_line = (size_t)n;
    }
    return 0;
}

/* nodelay(on) -> true; or nil, err */
static int
conn_nodelay(lua_State *L)
{
    check_conn(L);
    luaL_checktype(L, 2, LUA_TBOOLEAN);
    int fd = check_fd(L);
    return fd < 0 ? 2
                  : push_result(L, tp_socket_nodelay(fd, lua_toboolean(L, 2)));
}

/* -- making them ---------------------------------------------------------- */

/* The actor owns a new stream through h; NULL without memory. */
static struct tp_stream *
own_stream(struct tp_actor *a, struct tp_hold *h, int fd, bool is_pipe)
{
    struct tp_stream *s = tp_stream_new(fd, is_pipe);
    if (s != NULL) {
        size_t limit = tp_lua_of(a)->memory_limit;
        s->max_bytes = limit == 0 ? SIZE_MAX : limit;
        tp_hold_own(a, h, &s->endpoint);
    }
    return s;
}

struct tp_stream *
tp_push_pipe(lua_State *L, struct tp_actor *a)
{
    struct tp_stream *s = own_stream(a, push_object(L, CONN), -1, true);
    if (s == NULL) {
        luaL_error(L, "not enough memory");
    }
    return s;
}

/* accept([timeout]) -> conn; or nil, err */
static int
listener_accept(lua_State *L)
{
    struct tp_actor *a = tp_check_actor(L);
    struct tp_endpoint *e = check_object(L, LISTENER);
    int fd;
    uint64_t deadline = check_deadline(L, 2, e);
    if (e == NULL) {
        return push_closed(L);
    }
    struct tp_hold *h = push_object(L, CONN); /* before there is a fd to lose */
    tp_lua_tier_up(L, a);
    int rc = tp_listener_accept(a, tp_listener_of(e), deadline, &fd);
    if (rc != 0) {
        return push_failure(L, rc);
    }
    if (own_stream(a, h, fd, false) == NULL) {
        tp_fd_close(fd);
        return push_failure(L, TROUPE_ENOMEM);
    }
    tp_actor_checkpoint();
    return 1;
}

/* connect(host or path, port or nil, timeout) -> conn; or nil, err */
static int
net_connect(lua_State *L)
{
    struct tp_actor *a = tp_check_actor(L);
    struct tp_addr to;
    int n;
    uint64_t deadline = tp_check_deadline(L, 3, "timeout");
    if (!check_address(L, 1, &to, &n)) {
        return n;
    }
    struct tp_hold *h = push_object(L, CONN);
    struct tp_stream *s = own_stream(a, h, -1, false);
    int rc = s == NULL ? TROUPE_ENOMEM : tp_stream_connect(a, s, &to, deadline);
    if (rc != 0) {
        int err = errno;
        tp_hold_drop(h);
        errno = err;
        return push_failure(L, rc);
    }
    return 1;
}

/* listen(host or path, port or nil, backlog, reuseport) -> listener; or nil,
 * err */
static int
net_listen(lua_State *L)
{
    struct tp_actor *a = tp_check_actor(L);
    struct tp_addr at;
    struct tp_listener *l;
    int n;
    if (!check_address(L, 1, &at, &n)) {
        return n;
    }
    struct tp_hold *h = push_object(L, LISTENER);
    int rc = tp_listener_new(&at, (int)luaL_checkinteger(L, 3),
                             lua_toboolean(L, 4), &l);
    if (rc != 0) {
        return push_failure(L, rc);
    }
    tp_hold_own(a, h, &l->endpoint);
    return 1;
}

/* udp(host or path, port or nil, reuseport) -> socket; or nil, err */
static int
net_udp(lua_State *L)
{
    struct tp_actor *a = tp_check_actor(L);
    struct tp_addr at;
    struct tp_endpoint *e;
    int n;
    if (!check_address(L, 1, &at, &n)) {
        return n;
    }
    struct tp_hold *h = push_object(L, UDP);
    int rc = tp_datagram_new(&at, lua_toboolean(L, 3), &e);
    if (rc != 0) {
        return push_failure(L, rc);
    }
    tp_hold_own(a, h, e);
    return 1;
}

/* Pushes an array of the texts in m, an actor's own. */
static void
push_texts(lua_State *L, const struct tp_msg *m)
{
    const char *text = (const char *)m->data;
    int n = 0;
    lua_newtable(L);
    for (size_t at = 0; at < m->size; at += strlen(text + at) + 1) {
        lua_pushstring(L, text + at);
        lua_rawseti(L, -2, ++n);
    }
}

/* resolve(host [, timeout]) -> array of addresses; or nil, err */
static int
net_resolve(lua_State *L)
{
    struct tp_actor *a = tp_check_actor(L);
    size_t len;
    struct tp_msg *m;
    const char *host = luaL_checklstring(L, 1, &len);
    uint64_t deadline = tp_check_deadline(L, 2, "timeout");
    int rc = tp_resolve(a, host, len, deadline, &m);
    if (rc == TROUPE_ENOTFOUND) {
        lua_pushnil(L);
        lua_pushliteral(L, "unknown_host");
        return 2;
    }
    if (rc != 0) {
        return push_failure(L, rc);
    }
    tp_own(tp_lua_of(a), m);
    push_texts(L, m);
    tp_disown(tp_lua_of(a), m);
    tp_msg_free(m);
    return 1;
}

/* -- datagrams ------------------------------------------------------------ */

/* _send_to(data, host or path, port or nil) -> true; or nil, err */
static int
udp_send_to(lua_State *L)
{
    struct tp_actor *a = tp_check_actor(L);
    struct tp_endpoint *e = check_object(L, UDP);
    struct tp_addr to;
    size_t len;
    int n;
    const char *data = luaL_checklstring(L, 2, &len);
    if (!check_address(L, 3, &to, &n)) {
        return n;
    }
    if (e == NULL) {
        return push_closed(L);
    }
    int rc = tp_datagram_send(a, e, data, len, &to, check_deadline(L, 5, e));
    tp_actor_checkpoint();
    return push_result(L, rc);
}

/* recv_from([timeout]) -> data, host, port; or nil, err */
static int
udp_recv_from(lua_State *L)
{
    struct tp_actor *a = tp_check_actor(L);
    struct tp_endpoint *e = check_object(L, UDP);
    struct tp_addr from;
    struct tp_msg *m;
    uint64_t deadline = check_deadline(L, 2, e);
    if (e == NULL) {
        return push_closed(L);
    }
    tp_lua_tier_up(L, a);
    int rc = tp_datagram_receive(a, e, deadline, &m, &from);
    if (rc != 0) {
        return push_failure(L, rc);
    }
    tp_own(tp_lua_of(a), m);
    lua_pushlstring(L, (const char *)m->data, m->size);
    tp_disown(tp_lua_of(a), m);
    tp_msg_free(m);
    tp_actor_checkpoint();
    return 1 + push_address(L, &from);
}

/* -- metatables ----------------------------------------------------------- */

static int
object_tostring(lua_State *L)
{
    struct tp_hold *h = check_any(L);
    lua_getmetatable(L, 1);
    lua_getfield(L, -1, "__name");
    const char *type = lua_tostring(L, -1);
    if (h->endpoint == NULL || tp_endpoint_is_closed(h->endpoint)) {
        lua_pushfstring(L, "%s (closed)", type);
    } else if (!h->owner) {
        lua_pushfstring(L, "%s (moved)", type);
    } else {
        lua_pushfstring(L, "%s (fd %d)", type, h->endpoint->fd);
    }
    return 1;
}

static const struct tp_lazy_entry conn_entries[] = {
    {"read", conn_read, false},
    {"read_some", conn_read_some, false},
    {"read_until", conn_read_until, false},
    {"write", conn_write, false},
    {"shutdown", conn_shutdown, false},
    {"close", object_close, false},
    {"set_timeout", object_set_timeout, false},
    {"set_max_line", conn_set_max_line, false},
    {"peername", object_peername, false},
    {"sockname", object_sockname, false},
    {"nodelay", conn_nodelay, false},
    {"fd", object_fd, false},
    {NULL, NULL, false},
};

static const struct tp_lazy_entry listener_entries[] = {
    {"accept", listener_accept, false},
    {"port", object_port, false},
    {"sockname", object_sockname, false},
    {"set_timeout", object_set_timeout, false},
    {"close", object_close, false},
    {"fd", object_fd, false},
    {NULL, NULL, false},
};

static int get_send_to(lua_State *L);

static const struct tp_lazy_entry udp_entries[] = {
    {"send_to", get_send_to, true},
    {"_send_to", udp_send_to, false},
    {"recv_from", udp_recv_from, false},
    {"port", object_port, false},
    {"sockname", object_sockname, false},
    {"set_timeout", object_set_timeout, false},
    {"close", object_close, false},
    {"fd", object_fd, false},
    {NULL, NULL, false},
};

/* It may have to resolve a name, which is Lua's business. */
static int
get_send_to(lua_State *L)
{
    return tp_push_from_module(L, "troupe.net", "_send_to");
}

static const struct tp_lazy_entry *
entries_of(const char *type)
{
    return strcmp(type, CONN) == 0       ? conn_entries
           : strcmp(type, LISTENER) == 0 ? listener_entries
                                         : udp_entries;
}

static void
push_metatable(lua_State *L, const char *type)
{
    luaL_getmetatable(L, type);
    if (!lua_isnil(L, -1)) {
        return;
    }
    lua_pop(L, 1);
    lua_createtable(L, 0, 4);
    tp_push_lazy_table(L, entries_of(type));
    lua_setfield(L, -2, "__index");
    lua_pushcfunction(L, object_tostring);
    lua_setfield(L, -2, "__tostring");
    lua_pushstring(L, type);
    lua_setfield(L, -2, "__name");
    lua_pushcfunction(L, object_gc);
    lua_setfield(L, -2, "__gc");
    /* Only now: an object without __gc would stay on the actor's list. */
    lua_pushvalue(L, -1);
    lua_setfield(L, LUA_REGISTRYINDEX, type);
}

/* _net: what lua/troupe/net.lua is made of. */
int
tp_open_net(lua_State *L)
{
    static const luaL_Reg functions[] = {
        {"listen", net_listen}, {"connect", net_connect},
        {"udp", net_udp},       {"resolve", net_resolve},
        {NULL, NULL},
    };
    lua_createtable(L, 0, 4);
    for (const luaL_Reg *f = functions; f->name != NULL; f++) {
        lua_pushcfunction(L, f->func);
        lua_setfield(L, -2, f->name);
    }
    return 1;
}
