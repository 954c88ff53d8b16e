/*
 * net.c - sockets, for Lua: the table behind troupe.net, and its objects.
 *
 * Idea:    an object is a handle (handle.h) on an endpoint (io/endpoint.h).
 *          Whatever makes a Lua value may run a finalizer, which may close the
 *          very connection that is being read: an endpoint is looked up after
 *          that, and bytes are taken out of its buffer before it.
 * Threads: the running actor's.
 * Parks:   read, write, accept, connect, resolve, send_to, recv_from.
 * Tests:   spec/lua/net_spec.lua, spec/lua/net_read_spec.lua,
 *          spec/lua/net_write_spec.lua, spec/lua/net_udp_spec.lua,
 *          spec/lua/net_move_spec.lua
 */
#include "base/errnames.h"

#include "base/thread_errno.h"
#include "bind.h"
#include "handle.h"
#include "io/datagram.h"
#include "io/listener.h"
#include "io/resolve.h"
#include "io/stream.h"

#include <string.h>

#define CONN     (&tp_handle_conn)
#define LISTENER (&tp_handle_listener)
#define UDP      (&tp_handle_udp)

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
    case TROUPE_ELIMIT: /* of what, errno says */
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

/* Which of the three is at 1. */
static const struct tp_handle_kind *
check_kind(lua_State *L)
{
    static const struct tp_handle_kind *const kinds[] = {CONN, LISTENER, UDP};
    for (size_t i = 0; i < 3; i++) {
        if (tp_handle_to(L, 1, kinds[i]) != NULL) {
            return kinds[i];
        }
    }
    luaL_argerror(L, 1, "connection, listener or udp socket expected");
    return NULL;
}

/* The open endpoint at 1, of any of the three; NULL: it is closed. */
static struct tp_endpoint *
check_any(lua_State *L)
{
    return tp_handle_check(L, tp_actor_self(), 1, check_kind(L));
}

static struct tp_stream *
check_conn(lua_State *L)
{
    struct tp_endpoint *e = tp_handle_check(L, tp_actor_self(), 1, CONN);
    return e == NULL ? NULL : tp_stream_of(e);
}

static int
push_closed(lua_State *L)
{
    return tp_push_error(L, TROUPE_ECLOSED);
}

/* close() -> was it open. Who has sent it away may do this, too. */
static int
object_close(lua_State *L)
{
    const struct tp_handle_kind *kind = check_kind(L);
    struct tp_endpoint *sent = tp_handle_sent(L, 1, kind);
    struct tp_endpoint *e =
        sent != NULL ? sent : tp_handle_check(L, tp_actor_self(), 1, kind);
    bool open = e != NULL && tp_endpoint_close(e, sent == NULL);
    tp_handle_close(L, 1, kind);
    lua_pushboolean(L, open);
    return 1;
}

/* The open descriptor at 1, or -1 after pushing nil, "closed". */
static int
check_fd(lua_State *L)
{
    struct tp_endpoint *e = check_any(L);
    int fd = -1;
    if (e != NULL && tp_endpoint_enter(e) == 0) {
        fd = e->fd;
        if (tp_endpoint_leave(e, 0) != 0) {
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
    struct tp_endpoint *e = check_any(L);
    uint64_t deadline = tp_check_deadline(L, 2, "timeout"), now = tp_now_ns();
    if (e != NULL) {
        e->timeout_ns = deadline == TP_NEVER ? TP_NEVER
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

static uint16_t
check_port(lua_State *L, int arg)
{
    lua_Number port = tp_check_number(L, arg, "port");
    luaL_argcheck(L, port >= 0 && port <= 65535 && port == (int)port, arg,
                  "port must be an integer from 0 to 65535");
    return (uint16_t)port;
}

/* A host and a port at arg and arg + 1, or a path and nil. False: the error is
 * on the stack, with *out_n values. */
static bool
check_address(lua_State *L, int arg, struct tp_addr *out, int *out_n)
{
    size_t len;
    const char *text = tp_check_string(L, arg, "host", &len);
    int rc;
    if (lua_isnoneornil(L, arg + 1)) {
        rc = tp_addr_unix(out, text, len);
        luaL_argcheck(L, rc != TROUPE_EINVAL, arg, "path must not be empty");
    } else {
        rc = tp_addr_ip(out, text, len, check_port(L, arg + 1));
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

/* Pushes the first n bytes and skips so many. The stream may be gone
 * afterwards. */
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
    struct tp_lua *t = tp_lua_of(a);
    struct tp_msg *m = NULL;
    size_t len = tp_stream_len(s);
    int err = errno;
    if (len > 0 && rc != TROUPE_EFULL && rc != TROUPE_ENOMEM &&
        !tp_endpoint_is_closed(&s->endpoint)) {
        m = tp_msg_new(len); /* without memory there is none */
    }
    if (m == NULL) {
        errno = err;
        return push_failure(L, rc);
    }
    memcpy(m->data, tp_stream_data(s), len);
    tp_own(t, m);
    errno = err;
    int n = push_failure(L, rc);
    lua_pushlstring(L, (const char *)m->data, len);
    tp_disown(t, m);
    tp_msg_free(m);
    return n + 1;
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

/* The connection at 1, about to be read from: with nothing in its buffer, the
 * actor is likely to wait. */
static struct tp_stream *
ready_conn(lua_State *L, struct tp_actor *a)
{
    struct tp_stream *s = check_conn(L);
    if (s == NULL || tp_stream_len(s) > 0) {
        return s;
    }
    tp_lua_tier_up(L, a);
    s = check_conn(L);
    if (s != NULL) {
        size_t limit = tp_lua_of(a)->memory_limit;
        s->max_bytes = limit == 0 ? SIZE_MAX : limit;
    }
    return s;
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
    luaL_argerror(L, 2, "what must be a number of bytes, \"line\" or \"all\"");
    return NULL;
}

/* read(n | "line" | "all" [, timeout]) -> data; or nil, err, what is there */
static int
conn_read(lua_State *L)
{
    struct tp_actor *a = tp_check_actor(L);
    struct tp_stream *s = ready_conn(L, a);
    read_fn read = check_what(L);
    uint64_t deadline = check_deadline(L, 3, s == NULL ? NULL : &s->endpoint);
    return s == NULL ? push_closed(L) : read(L, a, s, deadline);
}

/* read_some([max [, timeout]]) -> 1 to max bytes; or nil, err */
static int
conn_read_some(lua_State *L)
{
    struct tp_actor *a = tp_check_actor(L);
    struct tp_stream *s = ready_conn(L, a);
    lua_Number max =
        lua_isnoneornil(L, 2) ? STRING_MAX : tp_check_number(L, 2, "max");
    luaL_argcheck(L, max >= 1, 2, "max must be a number of bytes, 1 or more");
    uint64_t deadline = check_deadline(L, 3, s == NULL ? NULL : &s->endpoint);
    if (s == NULL) {
        return push_closed(L);
    }
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
    size_t len, at;
    check_conn(L);
    const char *bytes = tp_check_string(L, 2, "bytes", &len);
    struct tp_stream *s = ready_conn(L, a);
    luaL_argcheck(L, len > 0, 2, "bytes must be one or more");
    uint64_t deadline = check_deadline(L, 3, s == NULL ? NULL : &s->endpoint);
    if (s == NULL) {
        return push_closed(L);
    }
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
    struct iovec pieces[PIECES_MAX];
    lua_Number total = 0;
    int top = lua_gettop(L);
    check_conn(L);
    tp_check_string(L, 2, "data", NULL);
    for (int i = 3; i <= top; i++) {
        tp_check_string(L, i, "data", NULL);
    }
    struct tp_stream *s = check_conn(L);
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
    struct tp_stream *s = check_conn(L);
    const char *what = lua_tostring(L, 2);
    luaL_argcheck(L, what != NULL && strcmp(what, "send") == 0, 2,
                  "what must be \"send\"");
    return s == NULL ? push_closed(L)
                     : push_result(L, tp_stream_shutdown_send(s));
}

/* set_max_line(n) */
static int
conn_set_max_line(lua_State *L)
{
    struct tp_stream *s = check_conn(L);
    lua_Number n = tp_check_number(L, 2, "n");
    luaL_argcheck(L, n >= 1 && n <= STRING_MAX, 2,
                  "n must be a number of bytes, 1 or more");
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
    tp_check_type(L, 2, LUA_TBOOLEAN, "on");
    int fd = check_fd(L);
    return fd < 0 ? 2
                  : push_result(L, tp_socket_nodelay(fd, lua_toboolean(L, 2)));
}

/* -- making them ---------------------------------------------------------- */

/* The actor owns a new stream through h; NULL without memory. */
static struct tp_stream *
own_stream(struct tp_handle *h, int fd, bool is_pipe)
{
    struct tp_stream *s = tp_stream_new(fd, is_pipe);
    if (s != NULL) {
        tp_handle_set(h, &s->endpoint);
    }
    return s;
}

struct tp_stream *
tp_push_pipe(lua_State *L)
{
    struct tp_stream *s = own_stream(tp_handle_new(L, CONN), -1, true);
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
    int fd;
    lua_settop(L, 2);
    uint64_t deadline =
        check_deadline(L, 2, tp_handle_check(L, tp_actor_self(), 1, LISTENER));
    struct tp_handle *h = tp_handle_new(L, CONN); /* before a fd can be lost */
    tp_lua_tier_up(L, a);
    struct tp_endpoint *e = tp_handle_check(L, tp_actor_self(), 1, LISTENER);
    if (e == NULL) {
        return push_closed(L);
    }
    int rc = tp_listener_accept(a, tp_listener_of(e), deadline, &fd);
    if (rc != 0) {
        return push_failure(L, rc);
    }
    if (own_stream(h, fd, false) == NULL) {
        tp_fd_close(fd);
        return push_failure(L, TROUPE_ENOMEM);
    }
    tp_actor_checkpoint(); /* not before the fd has an owner */
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
    struct tp_handle *h = tp_handle_new(L, CONN);
    struct tp_stream *s = own_stream(h, -1, false);
    if (s == NULL) {
        return push_failure(L, TROUPE_ENOMEM);
    }
    int rc = tp_stream_connect(a, s, &to, deadline);
    if (rc != 0) {
        int err = errno;
        tp_handle_close(L, lua_gettop(L), CONN);
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
    struct tp_addr at;
    struct tp_listener *l;
    int n;
    tp_check_actor(L);
    if (!check_address(L, 1, &at, &n)) {
        return n;
    }
    struct tp_handle *h = tp_handle_new(L, LISTENER);
    int rc = tp_listener_new(&at, (int)luaL_checkinteger(L, 3),
                             lua_toboolean(L, 4), &l);
    if (rc != 0) {
        return push_failure(L, rc);
    }
    tp_handle_set(h, &l->endpoint);
    return 1;
}

/* udp(host or path, port or nil, reuseport) -> socket; or nil, err */
static int
net_udp(lua_State *L)
{
    struct tp_addr at;
    struct tp_endpoint *e;
    int n;
    tp_check_actor(L);
    if (!check_address(L, 1, &at, &n)) {
        return n;
    }
    struct tp_handle *h = tp_handle_new(L, UDP);
    int rc = tp_datagram_new(&at, lua_toboolean(L, 3), &e);
    if (rc != 0) {
        return push_failure(L, rc);
    }
    tp_handle_set(h, e);
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
    const char *host = tp_check_string(L, 1, "host", &len);
    uint64_t deadline = tp_check_deadline(L, 2, "timeout");
    int rc = tp_resolve(a, host, len, deadline, &m);
    if (rc == TROUPE_ENOTFOUND) {
        lua_pushnil(L);
        lua_pushliteral(L, "unknown_host");
        return 2;
    }
    if (rc == TROUPE_ELIMIT) { /* of the pool */
        return tp_push_error(L, rc);
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

/* send_to(socket, data, host or path, port or nil) -> true; or nil, err */
static int
net_send_to(lua_State *L)
{
    struct tp_actor *a = tp_check_actor(L);
    struct tp_addr to;
    size_t len;
    int n;
    const char *data = tp_check_string(L, 2, "data", &len);
    if (!check_address(L, 3, &to, &n)) {
        return n;
    }
    struct tp_endpoint *e = tp_handle_check(L, tp_actor_self(), 1, UDP);
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
    struct tp_addr from;
    struct tp_msg *m;
    uint64_t deadline =
        check_deadline(L, 2, tp_handle_check(L, tp_actor_self(), 1, UDP));
    tp_lua_tier_up(L, a);
    struct tp_endpoint *e = tp_handle_check(L, tp_actor_self(), 1, UDP);
    if (e == NULL) {
        return push_closed(L);
    }
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

/* send_to(data, host, port) or (data, path): it may have to resolve a name,
 * which is Lua's business. */
static int
udp_send_to(lua_State *L)
{
    int n = lua_gettop(L);
    tp_handle_check(L, tp_actor_self(), 1, UDP);
    tp_check_string(L, 2, "data", NULL);
    tp_check_string(L, 3, "host", NULL);
    if (!lua_isnoneornil(L, 4)) {
        check_port(L, 4);
    }
    tp_push_from_module(L, "troupe.net", "_send_to");
    lua_insert(L, 1);
    lua_settop(L, n + 1);
    lua_call(L, n, LUA_MULTRET);
    return lua_gettop(L);
}

/* -- kinds ---------------------------------------------------------------- */

static void
endpoint_end(void *object)
{
    tp_endpoint_close(object, true);
    tp_endpoint_unref(object);
}

static void
endpoint_share(void *object)
{
    tp_endpoint_share(object);
}

static void
endpoint_unref(void *object)
{
    tp_endpoint_unref(object);
}

static const luaL_Reg conn_methods[] = {
    {"read", conn_read},
    {"read_some", conn_read_some},
    {"read_until", conn_read_until},
    {"write", conn_write},
    {"shutdown", conn_shutdown},
    {"close", object_close},
    {"set_timeout", object_set_timeout},
    {"set_max_line", conn_set_max_line},
    {"peername", object_peername},
    {"sockname", object_sockname},
    {"nodelay", conn_nodelay},
    {"fd", object_fd},
    {NULL, NULL},
};

static const luaL_Reg listener_methods[] = {
    {"accept", listener_accept},
    {"port", object_port},
    {"sockname", object_sockname},
    {"set_timeout", object_set_timeout},
    {"close", object_close},
    {"fd", object_fd},
    {NULL, NULL},
};

static const luaL_Reg udp_methods[] = {
    {"send_to", udp_send_to},
    {"recv_from", udp_recv_from},
    {"port", object_port},
    {"sockname", object_sockname},
    {"set_timeout", object_set_timeout},
    {"close", object_close},
    {"fd", object_fd},
    {NULL, NULL},
};

#define ENDPOINT                                                               \
    .unref = endpoint_end, .keep = endpoint_share, .forget = endpoint_unref

const struct tp_handle_kind tp_handle_conn = {
    .name = "troupe.conn",
    TP_HANDLE_TEXTS("connection"),
    ENDPOINT,
    .methods = conn_methods,
};

const struct tp_handle_kind tp_handle_listener = {
    .name = "troupe.listener",
    TP_HANDLE_TEXTS("listener"),
    ENDPOINT,
    .methods = listener_methods,
};

const struct tp_handle_kind tp_handle_udp = {
    .name = "troupe.udp",
    TP_HANDLE_TEXTS("udp socket"),
    ENDPOINT,
    .methods = udp_methods,
};

/* _net: what lua/troupe/net.lua is made of. */
int
tp_open_net(lua_State *L)
{
    static const luaL_Reg functions[] = {
        {"listen", net_listen},   {"connect", net_connect}, {"udp", net_udp},
        {"resolve", net_resolve}, {"send_to", net_send_to}, {NULL, NULL},
    };
    lua_createtable(L, 0, 5);
    for (const luaL_Reg *f = functions; f->name != NULL; f++) {
        lua_pushcfunction(L, f->func);
        lua_setfield(L, -2, f->name);
    }
    return 1;
}
