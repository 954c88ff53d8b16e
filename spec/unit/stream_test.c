/*
 * stream_test.c - streams, listeners and datagrams: what comes, what goes out,
 * and every end of a wait.
 */
#define _GNU_SOURCE
#include "run_in.h"

#include "io/datagram.h"
#include "io/listener.h"
#include "io/stream.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

static void
run_on_all(actor_fn root)
{
    for (unsigned n = 1; n <= 2; n++) {
        assert_int_equal(run_in(n, root, NULL), TP_REASON_NORMAL);
    }
}

/* A test is a root actor; afterwards no descriptor is left. */
static int
lowest_fd(void)
{
    int fd = dup(0);
    close(fd);
    return fd;
}

#define TEST(name)                                                             \
    static void name##_root(struct tp_actor *self, void *arg);                 \
    static void name(void **state)                                             \
    {                                                                          \
        (void)state;                                                           \
        int before = lowest_fd();                                              \
        run_on_all(name##_root);                                               \
        assert_int_equal(lowest_fd(), before);                                 \
    }                                                                          \
    static void name##_root(struct tp_actor *self, void *arg)

/* -- helpers --------------------------------------------------------------- */

/* An actor's hold of an endpoint; not on a stack that may be given up. */
struct hold {
    struct tp_resource resource;
    struct tp_endpoint *endpoint; /* NULL: it holds nothing */
    bool owner;
};

static void
hold_release(struct tp_resource *r)
{
    struct hold *h = tp_container_of(r, struct hold, resource);
    struct tp_endpoint *e = h->endpoint;
    h->endpoint = NULL;
    if (h->owner) {
        tp_endpoint_close(e, true);
    }
    tp_endpoint_unref(e);
}

/* Takes the caller's reference. */
static void
hold_own(struct tp_actor *self, struct hold *h, struct tp_endpoint *e)
{
    h->resource.release = hold_release;
    h->endpoint = e;
    h->owner = true;
    tp_resource_add(self, &h->resource);
}

static void
hold_drop(struct hold *h)
{
    if (h->endpoint != NULL) {
        tp_resource_remove(&h->resource);
        hold_release(&h->resource);
    }
}

/* It is another's from here on, with the reference that comes out. */
static struct tp_endpoint *
hold_give(struct hold *h)
{
    tp_endpoint_share(h->endpoint);
    h->owner = false;
    return h->endpoint;
}

/* The test's end of a connection is a plain descriptor, the other a stream. */
struct rig {
    struct hold hold;
    struct tp_stream *stream;
    int peer;
};

static uint64_t
in_ms(uint64_t ms)
{
    return tp_now_ns() + ms * MS;
}

static uint64_t
patience(void)
{
    return tp_now_ns() + PATIENCE_NS;
}

static void
rig_of(struct tp_actor *self, struct rig *r, int fd, int peer, bool is_pipe)
{
    memset(r, 0, sizeof *r);
    r->stream = tp_stream_new(fd, is_pipe);
    tp_check(r->stream != NULL);
    hold_own(self, &r->hold, &r->stream->endpoint);
    r->peer = peer;
}

static void
rig_unix(struct tp_actor *self, struct rig *r)
{
    int p[2];
    CHECK_EQ(
        socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, p),
        0);
    rig_of(self, r, p[0], p[1], false);
}

static void
await(int fd, short events)
{
    struct pollfd p = {.fd = fd, .events = events};
    CHECK_EQ(poll(&p, 1, (int)(PATIENCE_NS / MS)), 1);
}

static int
listen_tcp(struct tp_addr *out_at)
{
    int fd;
    tp_check(tp_addr_ip(out_at, "127.0.0.1", 9, 0) == 0);
    CHECK_EQ(tp_socket_listen(out_at, 16, false, &fd), 0);
    CHECK_EQ(tp_socket_sockname(fd, out_at), 0);
    return fd;
}

static void
rig_tcp(struct tp_actor *self, struct rig *r)
{
    struct tp_addr at;
    int peer, fd, listener = listen_tcp(&at);
    bool done;
    CHECK_EQ(tp_socket_connect(&at, &peer, &done), 0);
    await(listener, POLLIN);
    CHECK_EQ(tp_socket_accept(listener, &fd), 0);
    await(peer, POLLOUT);
    close(listener);
    rig_of(self, r, fd, peer, false);
}

static void
rig_end(struct rig *r)
{
    hold_drop(&r->hold);
    if (r->peer >= 0) {
        close(r->peer);
    }
}

static void
peer_says(struct rig *r, const char *text)
{
    CHECK_EQ(write(r->peer, text, strlen(text)), strlen(text));
}

/* The next len bytes are text, and are used up. */
static void
take(struct rig *r, const char *text)
{
    size_t n = strlen(text);
    tp_check(tp_stream_len(r->stream) >= n);
    tp_check(memcmp(tp_stream_data(r->stream), text, n) == 0);
    tp_stream_skip(r->stream, n);
}

static void
take_line(struct tp_actor *self, struct rig *r, const char *text)
{
    size_t len, skip;
    CHECK_EQ(tp_stream_line(self, r->stream, patience(), &len, &skip), 0);
    CHECK_EQ(len, strlen(text));
    tp_check(memcmp(tp_stream_data(r->stream), text, len) == 0);
    tp_stream_skip(r->stream, skip);
}

static int
write_bytes(struct tp_actor *self, struct rig *r, const void *p, size_t n,
            uint64_t deadline_ns, size_t *out_written)
{
    struct iovec piece = {(void *)(uintptr_t)p, n};
    return tp_stream_write(self, r->stream, &piece, 1, deadline_ns,
                           out_written);
}

/* -- reading --------------------------------------------------------------- */

TEST(a_count_may_come_in_pieces)
{
    struct rig r;
    (void)arg;
    rig_unix(self, &r);
    peer_says(&r, "abc");
    CHECK_EQ(tp_stream_need(self, r.stream, 5, in_ms(5)), TROUPE_ETIMEOUT);
    CHECK_EQ(tp_stream_len(r.stream), 3); /* it is there for the next one */
    peer_says(&r, "defg");
    CHECK_EQ(tp_stream_need(self, r.stream, 5, patience()), 0);
    take(&r, "abcde");
    CHECK_EQ(tp_stream_need(self, r.stream, 2, 0), 0);
    take(&r, "fg");
    CHECK_EQ(tp_stream_need(self, r.stream, 0, 0), 0);
    CHECK_EQ(tp_stream_need(self, r.stream, 1, 0), TROUPE_ETIMEOUT);
    rig_end(&r);
}

TEST(lines_end_in_either_way)
{
    struct rig r;
    (void)arg;
    rig_unix(self, &r);
    peer_says(&r, "one\ntwo\r\n\n\r\nfo\rur\n");
    take_line(self, &r, "one");
    take_line(self, &r, "two");
    take_line(self, &r, "");
    take_line(self, &r, "");
    take_line(self, &r, "fo\rur");
    peer_says(&r, "rest");
    shutdown(r.peer, SHUT_WR);
    size_t len, skip;
    CHECK_EQ(tp_stream_line(self, r.stream, patience(), &len, &skip),
             TROUPE_ECLOSED);
    take(&r, "rest");
    rig_end(&r);
}

struct drip {
    struct rig *r;
    const char *text;
    counter done;
};

/* Writes one byte, waits until it was taken from the socket, and so on. */
static void
drip_body(struct tp_actor *self, void *arg)
{
    struct drip *d = arg;
    for (const char *p = d->text; *p != '\0'; p++) {
        int left = 1;
        CHECK_EQ(write(d->r->peer, p, 1), 1);
        while (left > 0) {
            tp_actor_yield(self);
            CHECK_EQ(ioctl(d->r->stream->endpoint.fd, FIONREAD, &left), 0);
        }
    }
    set(&d->done, 1);
}

TEST(a_pattern_may_be_cut_anywhere)
{
    struct rig r;
    size_t at;
    (void)arg;
    rig_unix(self, &r);
    struct drip d = {&r, "a\r\n\rb\r\n\r\r\n\r\ntail", 0};
    spawn(drip_body, &d);
    CHECK_EQ(
        tp_stream_find(self, r.stream, "\r\n\r\n", 4, 100, patience(), &at), 0);
    CHECK_EQ(at, 8);
    take(&r, "a\r\n\rb\r\n\r\r\n\r\n");
    CHECK_EQ(tp_stream_find(self, r.stream, "tail", 4, 100, patience(), &at),
             0);
    CHECK_EQ(at, 0);
    YIELD_UNTIL(self, get(&d.done) == 1);
    rig_end(&r);
}

TEST(a_pattern_beyond_the_limit_is_not_looked_for)
{
    struct rig r;
    size_t at;
    (void)arg;
    rig_unix(self, &r);
    peer_says(&r, "12345;");
    CHECK_EQ(tp_stream_find(self, r.stream, ";", 1, 4, patience(), &at),
             TROUPE_EFULL);
    CHECK_EQ(tp_stream_find(self, r.stream, ";", 1, 5, patience(), &at), 0);
    CHECK_EQ(at, 5);
    take(&r, "12345;");
    peer_says(&r, "123456");
    CHECK_EQ(tp_stream_find(self, r.stream, ";", 1, 5, patience(), &at),
             TROUPE_EFULL);
    rig_end(&r);
}

TEST(a_line_has_a_limit_and_the_stream_goes_on)
{
    struct rig r;
    size_t len, skip;
    (void)arg;
    rig_unix(self, &r);
    r.stream->max_line = 4;
    peer_says(&r, "1234\r\n1234\n12345\n");
    take_line(self, &r, "1234");
    take_line(self, &r, "1234");
    CHECK_EQ(tp_stream_line(self, r.stream, patience(), &len, &skip),
             TROUPE_EFULL);
    r.stream->max_line = 5;
    take_line(self, &r, "12345");
    peer_says(&r, "123456"); /* no end in sight */
    peer_says(&r, "7");
    CHECK_EQ(tp_stream_line(self, r.stream, patience(), &len, &skip),
             TROUPE_EFULL);
    take(&r, "123456");
    rig_end(&r);
}

struct flood {
    int fd;
    size_t bytes;
    counter sent, done;
};

/* What the i-th byte of much data is; none ends a line. */
static unsigned char
byte_at(size_t i)
{
    return (unsigned char)(32 + i % 211);
}

/* Writes so many bytes, or until nobody reads any more. */
static void
flood_body(struct tp_actor *self, void *arg)
{
    struct flood *f = arg;
    unsigned char block[8192];
    size_t sent = 0;
    while (sent < f->bytes) {
        size_t n = sizeof block, left = f->bytes - sent;
        n = n > left ? left : n;
        for (size_t i = 0; i < n; i++) {
            block[i] = byte_at(sent + i);
        }
        ssize_t w = send(f->fd, block, n, MSG_NOSIGNAL);
        if (w < 0 && errno != EAGAIN) {
            break;
        }
        sent += w < 0 ? 0 : (size_t)w;
        set(&f->sent, sent);
        if (w < 0) {
            tp_actor_yield(self);
        }
    }
    set(&f->done, 1);
}

TEST(a_line_without_end_costs_no_more_than_its_limit)
{
    struct rig r;
    size_t len, skip;
    (void)arg;
    rig_unix(self, &r);
    struct flood f = {.fd = r.peer, .bytes = 1u << 30};
    spawn(flood_body, &f);
    CHECK_EQ(tp_stream_line(self, r.stream, patience(), &len, &skip),
             TROUPE_EFULL);
    tp_check(r.stream->cap <= 4 * TP_MAX_LINE_DEFAULT);
    hold_drop(&r.hold);
    YIELD_UNTIL(self, get(&f.done) == 1);
    rig_end(&r);
}

/* All bytes are there, in order. */
static void
check_flood(const struct tp_stream *s, size_t n)
{
    const unsigned char *p = (const unsigned char *)tp_stream_data(s);
    CHECK_EQ(tp_stream_len(s), n);
    for (size_t i = 0; i < n; i++) {
        CHECK_EQ(p[i], byte_at(i));
    }
}

TEST(large_data_is_read_whole)
{
    struct rig r;
    size_t bytes = FEWER(20000000);
    (void)arg;
    rig_unix(self, &r);
    struct flood f = {.fd = r.peer, .bytes = bytes};
    spawn(flood_body, &f);
    CHECK_EQ(tp_stream_need(self, r.stream, bytes, patience()), 0);
    check_flood(r.stream, bytes);
    tp_stream_skip(r.stream, bytes);
    CHECK_EQ(r.stream->cap, 0);
    YIELD_UNTIL(self, get(&f.done) == 1);
    set(&f.done, 0);
    set(&f.sent, 0);
    spawn(flood_body, &f);
    YIELD_UNTIL(self, get(&f.sent) > 0);
    while (tp_stream_all(self, r.stream, in_ms(1)) == TROUPE_ETIMEOUT) {
        if (get(&f.done) == 1) {
            shutdown(r.peer, SHUT_WR);
        }
    }
    check_flood(r.stream, bytes);
    rig_end(&r);
}

TEST(one_deadline_is_for_the_whole_read)
{
    struct rig r;
    (void)arg;
    rig_unix(self, &r);
    uint64_t deadline = in_ms(60);
    for (int i = 0; tp_now_ns() < deadline; i++) {
        peer_says(&r, "x");
        /* Each byte comes in time, the whole does not. */
        CHECK_EQ(tp_stream_need(self, r.stream, 1000, in_ms(5)),
                 TROUPE_ETIMEOUT);
        CHECK_EQ(tp_stream_len(r.stream), i + 1);
    }
    rig_end(&r);
}

TEST(a_buffer_is_there_only_while_it_holds_something)
{
    struct rig r;
    (void)arg;
    rig_unix(self, &r);
    CHECK_EQ(r.stream->cap, 0);
    CHECK_EQ(tp_stream_need(self, r.stream, 1, in_ms(2)), TROUPE_ETIMEOUT);
    CHECK_EQ(r.stream->cap, 0);
    peer_says(&r, "ab");
    CHECK_EQ(tp_stream_need(self, r.stream, 5, in_ms(2)), TROUPE_ETIMEOUT);
    tp_check(r.stream->cap > 0 && r.stream->cap <= 4096); /* it waits: small */
    take(&r, "ab");
    CHECK_EQ(r.stream->cap, 0);
    rig_end(&r);
}

TEST(more_than_its_share_of_memory_is_refused)
{
    struct rig r;
    (void)arg;
    rig_unix(self, &r);
    struct flood f = {.fd = r.peer, .bytes = 1u << 30};
    spawn(flood_body, &f);
    r.stream->max_bytes = 1u << 20;
    CHECK_EQ(tp_stream_all(self, r.stream, patience()), TROUPE_ENOMEM);
    tp_check(r.stream->cap <= 4u << 20);
    CHECK_EQ(tp_stream_need(self, r.stream, 1000, 0), 0);
    hold_drop(&r.hold);
    YIELD_UNTIL(self, get(&f.done) == 1);
    rig_end(&r);
}

/* -- ends ------------------------------------------------------------------ */

static void
reset_by_peer(struct rig *r)
{
    struct linger now = {.l_onoff = 1, .l_linger = 0};
    CHECK_EQ(setsockopt(r->peer, SOL_SOCKET, SO_LINGER, &now, sizeof now), 0);
    close(r->peer);
    r->peer = -1;
}

TEST(data_before_an_end_is_delivered_first)
{
    struct rig r;
    (void)arg;
    rig_tcp(self, &r);
    peer_says(&r, "abc");
    close(r.peer);
    r.peer = -1;
    CHECK_EQ(tp_stream_need(self, r.stream, 4, patience()), TROUPE_ECLOSED);
    take(&r, "abc");
    CHECK_EQ(tp_stream_need(self, r.stream, 1, patience()), TROUPE_ECLOSED);
    CHECK_EQ(tp_stream_all(self, r.stream, patience()), 0);
    rig_end(&r);
}

TEST(data_before_a_reset_is_delivered_first)
{
    struct rig r;
    (void)arg;
    rig_tcp(self, &r);
    peer_says(&r, "abc");
    await(r.stream->endpoint.fd, POLLIN);
    reset_by_peer(&r);
    CHECK_EQ(tp_stream_need(self, r.stream, 4, patience()), TROUPE_ESYSTEM);
    CHECK_EQ(errno, ECONNRESET);
    take(&r, "abc");
    CHECK_EQ(tp_stream_all(self, r.stream, patience()), TROUPE_ESYSTEM);
    CHECK_EQ(errno, ECONNRESET); /* it stays one */
    rig_end(&r);
}

TEST(after_our_end_the_other_side_may_go_on)
{
    struct rig r;
    size_t written;
    char text[8];
    (void)arg;
    rig_tcp(self, &r);
    CHECK_EQ(write_bytes(self, &r, "last", 4, patience(), &written), 0);
    CHECK_EQ(tp_stream_shutdown_send(r.stream), 0);
    await(r.peer, POLLIN);
    CHECK_EQ(read(r.peer, text, sizeof text), 4);
    await(r.peer, POLLIN);
    CHECK_EQ(read(r.peer, text, sizeof text), 0);
    peer_says(&r, "answer");
    shutdown(r.peer, SHUT_WR);
    CHECK_EQ(tp_stream_all(self, r.stream, patience()), 0);
    take(&r, "answer");
    CHECK_EQ(write_bytes(self, &r, "x", 1, patience(), &written),
             TROUPE_ESYSTEM);
    CHECK_EQ(errno, EPIPE);
    rig_end(&r);
}

TEST(writing_to_who_is_gone_kills_nobody)
{
    struct rig r;
    size_t written;
    (void)arg;
    signal(SIGPIPE, SIG_DFL);
    rig_unix(self, &r);
    close(r.peer);
    r.peer = -1;
    struct iovec two[] = {{(void *)(uintptr_t) "a", 1},
                          {(void *)(uintptr_t) "b", 1}};
    CHECK_EQ(write_bytes(self, &r, "x", 1, patience(), &written),
             TROUPE_ESYSTEM);
    CHECK_EQ(errno, EPIPE);
    CHECK_EQ(tp_stream_write(self, r.stream, two, 2, patience(), &written),
             TROUPE_ESYSTEM);
    CHECK_EQ(errno, EPIPE);
    rig_end(&r);
}

TEST(a_pipe_is_a_stream_too)
{
    struct rig in, out;
    int p[2], q[2];
    size_t written;
    (void)arg;
    signal(SIGPIPE, SIG_DFL);
    CHECK_EQ(pipe2(p, O_NONBLOCK | O_CLOEXEC), 0);
    CHECK_EQ(pipe2(q, O_NONBLOCK | O_CLOEXEC), 0);
    rig_of(self, &in, p[0], p[1], true);
    rig_of(self, &out, q[1], q[0], true);
    peer_says(&in, "line\n");
    take_line(self, &in, "line");
    CHECK_EQ(write_bytes(self, &out, "x", 1, patience(), &written), 0);
    close(out.peer);
    out.peer = -1;
    CHECK_EQ(write_bytes(self, &out, "x", 1, patience(), &written),
             TROUPE_ESYSTEM);
    CHECK_EQ(errno, EPIPE);
    CHECK_EQ(tp_stream_shutdown_send(out.stream), 0);
    CHECK_EQ(tp_stream_shutdown_send(out.stream), TROUPE_ECLOSED);
    close(in.peer);
    in.peer = -1;
    CHECK_EQ(tp_stream_all(self, in.stream, patience()), 0);
    rig_end(&in);
    rig_end(&out);
}

/* -- writing --------------------------------------------------------------- */

TEST(a_write_that_times_out_tells_what_went)
{
    struct rig r;
    size_t bytes = 64u << 20, written, got = 0;
    (void)arg;
    rig_tcp(self, &r);
    char *data = calloc(1, bytes);
    tp_check(data != NULL);
    memset(data, 'x', bytes);
    CHECK_EQ(write_bytes(self, &r, data, bytes, in_ms(50), &written),
             TROUPE_ETIMEOUT);
    tp_check(written > 0 && written < bytes);
    hold_drop(&r.hold); /* what was taken is sent all the same */
    for (ssize_t n = 1; n != 0; got += (size_t)n) {
        await(r.peer, POLLIN);
        n = read(r.peer, data, bytes);
        tp_check(n >= 0);
    }
    CHECK_EQ(got, written);
    free(data);
    rig_end(&r);
}

struct drain {
    int fd;
    counter got, stop, done;
};

static void
drain_body(struct tp_actor *self, void *arg)
{
    struct drain *d = arg;
    unsigned char block[5000];
    size_t got = 0;
    while (get(&d->stop) == 0) {
        ssize_t n = read(d->fd, block, sizeof block);
        for (ssize_t i = 0; i < n; i++) {
            CHECK_EQ(block[i], byte_at(got + (size_t)i));
        }
        got += n > 0 ? (size_t)n : 0;
        set(&d->got, got);
        tp_actor_yield(self);
    }
    set(&d->done, 1);
}

TEST(writes_follow_each_other_whatever_became_of_them)
{
    struct rig r;
    size_t bytes = FEWER(3000000), sent = 0;
    (void)arg;
    rig_unix(self, &r);
    unsigned char *data = malloc(bytes);
    tp_check(data != NULL);
    for (size_t i = 0; i < bytes; i++) {
        data[i] = byte_at(i);
    }
    struct drain d = {.fd = r.peer};
    spawn(drain_body, &d);
    uint64_t give_up = patience();
    while (sent < bytes) { /* the next goes on where the last one stopped */
        size_t written;
        int rc = write_bytes(self, &r, data + sent, bytes - sent, in_ms(1),
                             &written);
        tp_check(rc == 0 || rc == TROUPE_ETIMEOUT);
        tp_check(tp_now_ns() < give_up);
        sent += written;
    }
    YIELD_UNTIL(self, get(&d.got) == bytes);
    set(&d.stop, 1);
    YIELD_UNTIL(self, get(&d.done) == 1);
    free(data);
    rig_end(&r);
}

TEST(many_pieces_go_out_in_order)
{
    struct rig r;
    enum {
        PIECES = 1000
    };
    struct iovec *pieces = calloc(PIECES, sizeof *pieces);
    unsigned char *data = malloc(PIECES * 300);
    size_t at = 0, written;
    (void)arg;
    tp_check(pieces != NULL && data != NULL);
    rig_unix(self, &r);
    for (size_t i = 0; i < PIECES; i++) {
        pieces[i] = (struct iovec){data + at, i % 300}; /* some are empty */
        for (size_t k = 0; k < i % 300; k++, at++) {
            data[at] = byte_at(at);
        }
    }
    struct drain d = {.fd = r.peer};
    spawn(drain_body, &d);
    CHECK_EQ(
        tp_stream_write(self, r.stream, pieces, PIECES, patience(), &written),
        0);
    CHECK_EQ(written, at);
    YIELD_UNTIL(self, get(&d.got) == at);
    set(&d.stop, 1);
    YIELD_UNTIL(self, get(&d.done) == 1);
    free(pieces);
    free(data);
    rig_end(&r);
}

/* -- who holds it ---------------------------------------------------------- */

struct handover {
    struct tp_endpoint *gift;
    struct hold mine;
    counter ready, rc;
};

/* Reads from what it was given. */
static void
reader_body(struct tp_actor *self, void *arg)
{
    struct handover *h = arg;
    hold_own(self, &h->mine, h->gift);
    set(&h->ready, 1);
    int rc = tp_stream_need(self, tp_stream_of(h->gift), 1, patience());
    set(&h->rc, (uint64_t)(int64_t)rc);
    hold_drop(&h->mine);
    set(&h->ready, 2);
}

static size_t
waits(void)
{
    size_t n, w;
    tp_fds_count(&n, &w);
    return w;
}

static size_t
known(void)
{
    size_t n, w;
    tp_fds_count(&n, &w);
    return n;
}

TEST(who_has_handed_it_on_may_close_it_under_a_reader)
{
    struct rig r;
    (void)arg;
    rig_tcp(self, &r);
    struct handover h = {.gift = hold_give(&r.hold)};
    spawn(reader_body, &h);
    YIELD_UNTIL(self, waits() == 1);
    tp_check(tp_endpoint_close(&r.stream->endpoint, false));
    tp_check(!tp_endpoint_close(&r.stream->endpoint, false));
    YIELD_UNTIL(self, get(&h.ready) == 2);
    CHECK_EQ(get(&h.rc), TROUPE_ECLOSED);
    CHECK_EQ(r.stream->endpoint.fd, -1);
    char c;
    await(r.peer, POLLIN);
    CHECK_EQ(read(r.peer, &c, 1), 0);
    rig_end(&r);
}

TEST(a_close_meets_its_reader_at_any_moment)
{
    (void)arg;
    for (int i = 0; i < 300; i++) {
        struct rig r;
        rig_unix(self, &r);
        struct handover h = {.gift = hold_give(&r.hold)};
        troupe_pid pid = spawn(reader_body, &h);
        for (int k = 0; k < i % 7; k++) {
            tp_actor_yield(self);
        }
        tp_endpoint_close(&r.stream->endpoint, false);
        CHECK_EQ(join_kind(self, pid), TP_REASON_NORMAL);
        CHECK_EQ(get(&h.rc), TROUPE_ECLOSED);
        rig_end(&r);
    }
    CHECK_EQ(known(), 0);
}

TEST(one_that_waits_for_nothing_is_closed_at_once)
{
    struct rig r;
    (void)arg;
    rig_unix(self, &r);
    struct tp_endpoint *gift = hold_give(&r.hold);
    tp_check(tp_endpoint_close(gift, false));
    CHECK_EQ(gift->fd, -1);
    CHECK_EQ(tp_endpoint_enter(gift), TROUPE_ECLOSED);
    tp_endpoint_unref(gift);
    rig_end(&r);
}

TEST(who_is_killed_in_a_read_leaves_nothing)
{
    (void)arg;
    for (int i = 0; i < 100; i++) {
        struct rig r;
        rig_tcp(self, &r);
        struct handover h = {.gift = hold_give(&r.hold)};
        hold_drop(&r.hold);
        troupe_pid pid = spawn(reader_body, &h);
        if (i % 2 == 0) {
            YIELD_UNTIL(self, waits() == 1);
        } else {
            YIELD_UNTIL(self, get(&h.ready) == 1);
        }
        end_with(pid, TP_REASON_KILLED);
        CHECK_EQ(join_kind(self, pid), TP_REASON_KILLED);
        CHECK_EQ(waits(), 0); /* at the latest when its monitors hear of it */
        char c;
        await(r.peer, POLLIN);
        CHECK_EQ(read(r.peer, &c, 1), 0);
        peer_says(&r, "too late");
        rig_end(&r);
    }
    CHECK_EQ(known(), 0);
}

TEST(nothing_is_waited_for_in_a_finalizer)
{
    struct rig r;
    (void)arg;
    rig_unix(self, &r);
    self->finishing = true;
    CHECK_EQ(tp_stream_need(self, r.stream, 1, TP_NEVER), TROUPE_EINVAL);
    peer_says(&r, "x");
    CHECK_EQ(tp_stream_need(self, r.stream, 1, TP_NEVER), 0);
    self->finishing = false;
    rig_end(&r);
}

/* -- connections ----------------------------------------------------------- */

static int
connect_to(struct tp_actor *self, const struct tp_addr *at, struct hold *h,
           uint64_t deadline_ns)
{
    struct tp_stream *s = tp_stream_new(-1, false);
    tp_check(s != NULL);
    memset(h, 0, sizeof *h);
    hold_own(self, h, &s->endpoint);
    return tp_stream_connect(self, s, at, deadline_ns);
}

static struct tp_listener *
listen_in(struct tp_actor *self, struct hold *h, struct tp_addr *at,
          int backlog)
{
    struct tp_listener *l;
    memset(h, 0, sizeof *h);
    CHECK_EQ(tp_listener_new(at, backlog, false, &l), 0);
    hold_own(self, h, &l->endpoint);
    CHECK_EQ(tp_socket_sockname(l->endpoint.fd, at), 0);
    return l;
}

static struct tp_addr
loopback(void)
{
    struct tp_addr at;
    tp_check(tp_addr_ip(&at, "127.0.0.1", 9, 0) == 0);
    return at;
}

/* An abstract one that no other process has. */
static void
own_name(struct tp_addr *at, const char *what)
{
    char path[64];
    int n = snprintf(path, sizeof path, "@tp_stream_test_%s_%d", what,
                     (int)getpid());
    CHECK_EQ(tp_addr_unix(at, path, (size_t)n), 0);
}

TEST(a_connection_is_made_and_accepted)
{
    struct hold listener, client;
    struct tp_addr at = loopback();
    int fd;
    (void)arg;
    struct tp_listener *l = listen_in(self, &listener, &at, 16);
    CHECK_EQ(tp_listener_accept(self, l, in_ms(2), &fd), TROUPE_ETIMEOUT);
    CHECK_EQ(connect_to(self, &at, &client, patience()), 0);
    CHECK_EQ(tp_listener_accept(self, l, patience(), &fd), 0);
    tp_fd_close(fd);
    hold_drop(&client);
    hold_drop(&listener);
    CHECK_EQ(connect_to(self, &at, &client, patience()), TROUPE_ESYSTEM);
    CHECK_EQ(errno, ECONNREFUSED);
    hold_drop(&client);
}

TEST(a_connection_that_nobody_answers_times_out)
{
    struct hold listener, clients[8];
    struct tp_addr at = loopback();
    int n = 0, rc;
    (void)arg;
    listen_in(self, &listener, &at, 0);
    while ((rc = connect_to(self, &at, &clients[n++], in_ms(50))) == 0) {
        tp_check(n < 8); /* the queue is full sooner */
    }
    CHECK_EQ(rc, TROUPE_ETIMEOUT);
    while (n > 0) {
        hold_drop(&clients[--n]);
    }
    hold_drop(&listener);
}

struct late {
    struct tp_listener *l;
    counter accepted;
};

static void
late_body(struct tp_actor *self, void *arg)
{
    struct late *late = arg;
    for (int i = 0; i < 4; i++) {
        int fd;
        do {
            tp_actor_sleep(self, in_ms(5));
        } while (tp_socket_accept(late->l->endpoint.fd, &fd) != 0);
        tp_fd_close(fd);
        add(&late->accepted, 1);
    }
}

TEST(a_full_unix_queue_is_waited_for)
{
    struct hold listener, client;
    struct tp_addr at;
    (void)arg;
    own_name(&at, "full");
    struct late late = {listen_in(self, &listener, &at, 0), 0};
    CHECK_EQ(connect_to(self, &at, &client, patience()), 0);
    hold_drop(&client);
    CHECK_EQ(connect_to(self, &at, &client, in_ms(5)), TROUPE_ETIMEOUT);
    hold_drop(&client);
    spawn(late_body, &late);
    for (int i = 0; i < 3; i++) {
        CHECK_EQ(connect_to(self, &at, &client, patience()), 0);
        hold_drop(&client);
    }
    YIELD_UNTIL(self, get(&late.accepted) == 4);
    hold_drop(&listener);
}

struct acceptor {
    struct tp_listener *l;
    struct hold mine;
    counter rc, done;
};

static void
acceptor_body(struct tp_actor *self, void *arg)
{
    struct acceptor *a = arg;
    int fd;
    hold_own(self, &a->mine, &a->l->endpoint);
    int rc = tp_listener_accept(self, a->l, patience(), &fd);
    if (rc == 0) {
        tp_fd_close(fd);
    }
    set(&a->rc, (uint64_t)(int64_t)rc);
    hold_drop(&a->mine);
    set(&a->done, 1);
}

TEST(a_close_wakes_who_accepts)
{
    static const char *const where[] = {NULL, "close"};
    (void)arg;
    for (int i = 0; i < 2; i++) {
        struct hold listener;
        struct tp_addr at = loopback();
        if (where[i] != NULL) {
            own_name(&at, where[i]);
        }
        struct acceptor a = {.l = listen_in(self, &listener, &at, 16)};
        tp_check(hold_give(&listener) == &a.l->endpoint);
        spawn(acceptor_body, &a);
        YIELD_UNTIL(self, waits() == 1);
        tp_check(tp_endpoint_close(&a.l->endpoint, false));
        YIELD_UNTIL(self, get(&a.done) == 1);
        CHECK_EQ(get(&a.rc), TROUPE_ECLOSED);
        hold_drop(&listener);
    }
}

/* Sets the soft limit of descriptors to those that are open. */
static void
limit_fds(struct rlimit *old)
{
    struct rlimit low;
    getrlimit(RLIMIT_NOFILE, old);
    low = *old;
    low.rlim_cur = (rlim_t)lowest_fd();
    setrlimit(RLIMIT_NOFILE, &low);
}

TEST(accept_pauses_while_there_is_no_descriptor)
{
    struct hold listener, clients[2];
    struct tp_addr at = loopback();
    struct rlimit old;
    int fd;
    (void)arg;
    struct tp_listener *l = listen_in(self, &listener, &at, 16);
    CHECK_EQ(tp_listener_accept(self, l, in_ms(1), &fd), TROUPE_ETIMEOUT);
    for (int i = 0; i < 2; i++) {
        CHECK_EQ(connect_to(self, &at, &clients[i], patience()), 0);
    }
    limit_fds(&old);
    uint64_t parks = self->parks;
    CHECK_EQ(tp_listener_accept(self, l, in_ms(200), &fd), TROUPE_ETIMEOUT);
    tp_check(self->parks - parks < 30); /* it does not spin */
    setrlimit(RLIMIT_NOFILE, &old);
    for (int i = 0; i < 2; i++) {
        CHECK_EQ(tp_listener_accept(self, l, patience(), &fd), 0);
        tp_fd_close(fd);
        hold_drop(&clients[i]);
    }
    hold_drop(&listener);
}

TEST(a_close_wakes_who_pauses)
{
    struct hold listener, client;
    struct tp_addr at = loopback();
    struct rlimit old;
    (void)arg;
    struct acceptor a = {.l = listen_in(self, &listener, &at, 16)};
    int fd;
    CHECK_EQ(tp_listener_accept(self, a.l, in_ms(1), &fd), TROUPE_ETIMEOUT);
    CHECK_EQ(connect_to(self, &at, &client, patience()), 0);
    tp_check(hold_give(&listener) == &a.l->endpoint);
    limit_fds(&old);
    spawn(acceptor_body, &a);
    YIELD_UNTIL(self, waits() == 1);
    tp_check(tp_endpoint_close(&a.l->endpoint, false));
    YIELD_UNTIL(self, get(&a.done) == 1);
    setrlimit(RLIMIT_NOFILE, &old);
    CHECK_EQ(get(&a.rc), TROUPE_ECLOSED);
    hold_drop(&client);
    hold_drop(&listener);
}

TEST(the_file_of_a_listener_goes_with_it)
{
    char dir[] = "/tmp/tp_stream_XXXXXX", path[64];
    struct tp_addr at;
    struct hold listener;
    (void)arg;
    tp_check(mkdtemp(dir) != NULL);
    size_t n = (size_t)snprintf(path, sizeof path, "%s/s", dir);
    for (int i = 0; i < 2; i++) { /* a second time at once */
        CHECK_EQ(tp_addr_unix(&at, path, n), 0);
        listen_in(self, &listener, &at, 1);
        CHECK_EQ(access(path, F_OK), 0);
        hold_drop(&listener);
        CHECK_EQ(access(path, F_OK), -1);
    }
    listen_in(self, &listener, &at, 1);
    unlink(path);
    int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    hold_drop(&listener); /* that file is another's */
    CHECK_EQ(access(path, F_OK), 0);
    close(fd);
    unlink(path);
    rmdir(dir);
}

/* -- datagrams ------------------------------------------------------------- */

static struct tp_endpoint *
datagram_in(struct tp_actor *self, struct hold *h, struct tp_addr *at)
{
    struct tp_endpoint *e;
    *at = loopback();
    memset(h, 0, sizeof *h);
    CHECK_EQ(tp_datagram_new(at, false, &e), 0);
    hold_own(self, h, e);
    CHECK_EQ(tp_socket_sockname(e->fd, at), 0);
    return e;
}

TEST(datagrams_keep_their_borders)
{
    static const size_t sizes[] = {0, 1, 1472, 9000, 65507};
    struct hold a, b;
    struct tp_addr at, from_at, from;
    (void)arg;
    struct tp_endpoint *to = datagram_in(self, &a, &at);
    struct tp_endpoint *e = datagram_in(self, &b, &from_at);
    struct tp_msg *m;
    CHECK_EQ(tp_datagram_receive(self, to, in_ms(2), &m, &from),
             TROUPE_ETIMEOUT);
    unsigned char *data = calloc(1, 65508);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        memset(data, (int)i + 1, sizes[i]);
        CHECK_EQ(tp_datagram_send(self, e, data, sizes[i], &at, patience()), 0);
    }
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        CHECK_EQ(tp_datagram_receive(self, to, patience(), &m, &from), 0);
        CHECK_EQ(m->size, sizes[i]);
        CHECK_EQ(sizes[i] == 0 ? i + 1 : m->data[m->size - 1], i + 1);
        CHECK_EQ(tp_addr_port(&from), tp_addr_port(&from_at));
        tp_msg_free(m);
    }
    CHECK_EQ(tp_datagram_send(self, e, data, 65508, &at, patience()),
             TROUPE_ESYSTEM);
    CHECK_EQ(errno, EMSGSIZE);
    free(data);
    hold_drop(&a);
    hold_drop(&b);
}

struct receiver {
    struct tp_endpoint *e;
    struct hold mine;
    counter rc, done;
};

static void
receiver_body(struct tp_actor *self, void *arg)
{
    struct receiver *r = arg;
    struct tp_msg *m;
    struct tp_addr from;
    hold_own(self, &r->mine, r->e);
    int rc = tp_datagram_receive(self, r->e, patience(), &m, &from);
    set(&r->rc, (uint64_t)(int64_t)rc);
    hold_drop(&r->mine);
    set(&r->done, 1);
}

TEST(a_close_wakes_who_waits_for_a_datagram)
{
    struct hold h;
    struct tp_addr at;
    (void)arg;
    struct receiver r = {.e = datagram_in(self, &h, &at)};
    tp_check(hold_give(&h) == r.e);
    spawn(receiver_body, &r);
    YIELD_UNTIL(self, waits() == 1);
    tp_check(tp_endpoint_close(r.e, false));
    YIELD_UNTIL(self, get(&r.done) == 1);
    CHECK_EQ(get(&r.rc), TROUPE_ECLOSED);
    hold_drop(&h);
}

/* -- want of memory -------------------------------------------------------- */

/* Reads a line and some bytes; true: nothing went wrong. */
static bool
read_both(struct tp_actor *self, struct rig *r)
{
    size_t len, skip;
    int rc = tp_stream_line(self, r->stream, patience(), &len, &skip);
    if (rc == 0) {
        tp_stream_skip(r->stream, skip);
        rc = tp_stream_need(self, r->stream, 8000, patience());
    }
    tp_check(rc == 0 || rc == TROUPE_ENOMEM || rc == TROUPE_ELIMIT ||
             rc == TROUPE_ESYSTEM);
    return rc == 0;
}

TEST(a_read_survives_want_of_memory)
{
    static char text[8000];
    (void)arg;
    memset(text, 'x', sizeof text);
    for (long n = 1;; n++) {
        struct rig r;
        rig_unix(self, &r);
        CHECK_EQ(write(r.peer, "line\n", 5), 5);
        CHECK_EQ(write(r.peer, text, sizeof text), sizeof text);
        tp_fault_arm(n);
        bool good = read_both(self, &r);
        bool fired = tp_fault_fired();
        tp_fault_arm(0);
        if (!good) { /* nothing is lost by it */
            size_t all = tp_stream_len(r.stream);
            CHECK_EQ(tp_stream_need(self, r.stream, all + 1, in_ms(1)) == 0 ||
                         all >= sizeof text,
                     true);
        }
        rig_end(&r);
        if (good && !fired) {
            return;
        }
    }
}

/* A connection is made, accepted and used, and a datagram sent; the first code
 * that is not 0. */
static int
use_all(struct tp_actor *self, struct hold holds[4])
{
    struct tp_listener *l;
    struct tp_addr at = loopback(), from;
    struct tp_endpoint *e;
    struct tp_msg *m;
    size_t written;
    int fd, rc = tp_listener_new(&at, 4, false, &l);
    if (rc != 0) {
        return rc;
    }
    hold_own(self, &holds[0], &l->endpoint);
    CHECK_EQ(tp_socket_sockname(l->endpoint.fd, &at), 0);
    struct tp_stream *s = tp_stream_new(-1, false);
    if (s == NULL) {
        return TROUPE_ENOMEM;
    }
    hold_own(self, &holds[1], &s->endpoint);
    rc = tp_stream_connect(self, s, &at, patience());
    if (rc == 0) {
        rc = tp_listener_accept(self, l, patience(), &fd);
    }
    if (rc != 0) {
        return rc;
    }
    struct tp_stream *t = tp_stream_new(fd, false);
    if (t == NULL) {
        tp_fd_close(fd);
        return TROUPE_ENOMEM;
    }
    hold_own(self, &holds[2], &t->endpoint);
    struct iovec piece = {(void *)(uintptr_t) "x", 1};
    rc = tp_stream_write(self, s, &piece, 1, patience(), &written);
    if (rc == 0) {
        rc = tp_stream_need(self, t, 1, patience());
    }
    at = loopback();
    if (rc == 0) {
        rc = tp_datagram_new(&at, false, &e);
    }
    if (rc != 0) {
        return rc;
    }
    hold_own(self, &holds[3], e);
    CHECK_EQ(tp_socket_sockname(e->fd, &at), 0);
    rc = tp_datagram_send(self, e, "x", 1, &at, patience());
    if (rc == 0) {
        rc = tp_datagram_receive(self, e, patience(), &m, &from);
    }
    if (rc == 0) {
        tp_msg_free(m);
    }
    return rc;
}

TEST(all_survives_want_of_memory)
{
    (void)arg;
    for (long n = 1;; n++) {
        struct hold holds[4];
        memset(holds, 0, sizeof holds);
        tp_fault_arm(n);
        int rc = use_all(self, holds);
        bool fired = tp_fault_fired();
        tp_fault_arm(0);
        tp_check(rc == 0 || rc == TROUPE_ENOMEM || rc == TROUPE_ELIMIT ||
                 rc == TROUPE_ESYSTEM);
        for (int i = 0; i < 4; i++) {
            hold_drop(&holds[i]);
        }
        if (!fired) {
            CHECK_EQ(rc, 0);
            return;
        }
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_count_may_come_in_pieces),
        cmocka_unit_test(lines_end_in_either_way),
        cmocka_unit_test(a_pattern_may_be_cut_anywhere),
        cmocka_unit_test(a_pattern_beyond_the_limit_is_not_looked_for),
        cmocka_unit_test(a_line_has_a_limit_and_the_stream_goes_on),
        cmocka_unit_test(a_line_without_end_costs_no_more_than_its_limit),
        cmocka_unit_test(large_data_is_read_whole),
        cmocka_unit_test(one_deadline_is_for_the_whole_read),
        cmocka_unit_test(a_buffer_is_there_only_while_it_holds_something),
        cmocka_unit_test(more_than_its_share_of_memory_is_refused),
        cmocka_unit_test(data_before_an_end_is_delivered_first),
        cmocka_unit_test(data_before_a_reset_is_delivered_first),
        cmocka_unit_test(after_our_end_the_other_side_may_go_on),
        cmocka_unit_test(writing_to_who_is_gone_kills_nobody),
        cmocka_unit_test(a_pipe_is_a_stream_too),
        cmocka_unit_test(a_write_that_times_out_tells_what_went),
        cmocka_unit_test(writes_follow_each_other_whatever_became_of_them),
        cmocka_unit_test(many_pieces_go_out_in_order),
        cmocka_unit_test(who_has_handed_it_on_may_close_it_under_a_reader),
        cmocka_unit_test(a_close_meets_its_reader_at_any_moment),
        cmocka_unit_test(one_that_waits_for_nothing_is_closed_at_once),
        cmocka_unit_test(who_is_killed_in_a_read_leaves_nothing),
        cmocka_unit_test(nothing_is_waited_for_in_a_finalizer),
        cmocka_unit_test(a_connection_is_made_and_accepted),
        cmocka_unit_test(a_connection_that_nobody_answers_times_out),
        cmocka_unit_test(a_full_unix_queue_is_waited_for),
        cmocka_unit_test(a_close_wakes_who_accepts),
        cmocka_unit_test(accept_pauses_while_there_is_no_descriptor),
        cmocka_unit_test(a_close_wakes_who_pauses),
        cmocka_unit_test(the_file_of_a_listener_goes_with_it),
        cmocka_unit_test(datagrams_keep_their_borders),
        cmocka_unit_test(a_close_wakes_who_waits_for_a_datagram),
        cmocka_unit_test(a_read_survives_want_of_memory),
        cmocka_unit_test(all_survives_want_of_memory),
    };
    return cmocka_run_group_tests_name("stream", tests, NULL, NULL);
}
