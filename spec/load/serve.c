/*
 * serve.c - small servers, right ones and wrong ones, to try the generator on.
 *
 * Idea:    one loop; what a kind does with bytes that come is one function.
 * Threads: one.
 * Memory:  a connection and each of its writes are of malloc, freed when libuv
 *          is done with them.
 * Fails:   what cannot be started ends the process, with status 1.
 * Tests:   spec/load/load_test.sh
 */
#define _GNU_SOURCE
#include "serve.h"

#include "options.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <uv.h>

#define BACKLOG 1024
#define SLOW_MS 20

const char *const serve_kinds[] = {"echo",  "drop",    "short", "garbage",
                                   "extra", "silent",  "slow",  "deaf",
                                   "http",  "chunked", "close", NULL};

union handle {
    uv_handle_t handle;
    uv_stream_t stream;
    uv_tcp_t tcp;
    uv_pipe_t pipe;
};

struct peer {
    union handle uv;
    uv_shutdown_t shutdown;
    enum serve_kind kind;
    unsigned matched; /* of "\r\n\r\n" */
};

struct reply {
    uv_write_t request;
    bool last; /* the connection is closed after it */
    char bytes[];
};

static enum serve_kind kind;
static bool is_unix;
static char input[64 << 10];

static _Noreturn void
give_up(const char *what, int err)
{
    fprintf(stderr, "troupe_load: %s: %s\n", what, uv_strerror(err));
    exit(1);
}

static void
must(const char *what, int err)
{
    if (err < 0)
        give_up(what, err);
}

static void
on_closed(uv_handle_t *handle)
{
    free(handle);
}

static void
close_peer(struct peer *p)
{
    if (!uv_is_closing(&p->uv.handle))
        uv_close(&p->uv.handle, on_closed);
}

static void
on_shutdown(uv_shutdown_t *request, int status)
{
    (void)status;
    close_peer(request->handle->data);
}

/* The peer says no more: what is still to be written is, then it ends. */
static void
end_peer(struct peer *p)
{
    uv_read_stop(&p->uv.stream);
    if (uv_shutdown(&p->shutdown, &p->uv.stream, on_shutdown) != 0)
        close_peer(p);
}

static void
on_written(uv_write_t *request, int status)
{
    struct reply *r = (struct reply *)request;
    bool last = r->last;
    struct peer *p = request->handle->data;
    free(r);
    if (last || status < 0)
        close_peer(p);
}

static void
answer(struct peer *p, const char *bytes, size_t n, bool last)
{
    struct reply *r = malloc(sizeof *r + n);
    if (r == NULL)
        give_up("malloc", UV_ENOMEM);
    memcpy(r->bytes, bytes, n);
    r->last = last;
    uv_buf_t buf = uv_buf_init(r->bytes, (unsigned)n);
    must("write", uv_write(&r->request, &p->uv.stream, &buf, 1, on_written));
}

static void
answer_http(struct peer *p)
{
    static const char length[] = "HTTP/1.1 200 OK\r\nContent-Length: 12\r\n"
                                 "\r\nHello there\n";
    static const char chunked[] =
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        "6\r\nHello \r\n6;x=y\r\nthere\n\r\n0\r\nX-Sum: 1\r\n\r\n";
    static const char closing[] =
        "HTTP/1.1 200 OK\r\nContent-Length: 12\r\nConnection: close\r\n"
        "\r\nHello there\n";
    if (p->kind == SERVE_HTTP)
        answer(p, length, sizeof length - 1, false);
    else if (p->kind == SERVE_CHUNKED)
        answer(p, chunked, sizeof chunked - 1, false);
    else
        answer(p, closing, sizeof closing - 1, true);
}

/* An answer for each empty line, where a request without body ends. */
static void
take_http(struct peer *p, const char *bytes, size_t n)
{
    static const char end[] = "\r\n\r\n";
    for (size_t i = 0; i < n; i++) {
        if (bytes[i] == end[p->matched])
            p->matched++;
        else
            p->matched = bytes[i] == '\r';
        if (p->matched == 4) {
            p->matched = 0;
            answer_http(p);
            if (p->kind == SERVE_CLOSE)
                return;
        }
    }
}

static void
take(struct peer *p, char *bytes, size_t n)
{
    switch (p->kind) {
    case SERVE_ECHO:
        answer(p, bytes, n, false);
        break;
    case SERVE_DROP:
        close_peer(p);
        break;
    case SERVE_SHORT:
        answer(p, bytes, n - 1, true);
        break;
    case SERVE_GARBAGE:
        bytes[n - 1] = (char)(bytes[n - 1] + 1);
        answer(p, bytes, n, false);
        break;
    case SERVE_EXTRA:
        answer(p, bytes, n, false);
        answer(p, "x", 1, false);
        break;
    case SERVE_SLOW:
        uv_sleep(SLOW_MS);
        answer(p, bytes, n, false);
        break;
    case SERVE_SILENT:
    case SERVE_DEAF:
        break;
    case SERVE_HTTP:
    case SERVE_CHUNKED:
    case SERVE_CLOSE:
        take_http(p, bytes, n);
        break;
    }
}

static void
on_alloc(uv_handle_t *handle, size_t wanted, uv_buf_t *buf)
{
    (void)handle;
    (void)wanted;
    *buf = uv_buf_init(input, sizeof input);
}

static void
on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
    struct peer *p = stream->data;
    if (n == UV_EOF)
        end_peer(p);
    else if (n < 0)
        close_peer(p);
    else if (n > 0)
        take(p, buf->base, (size_t)n);
}

static void
init_handle(uv_loop_t *loop, union handle *h)
{
    if (is_unix)
        uv_pipe_init(loop, &h->pipe, 0);
    else
        uv_tcp_init(loop, &h->tcp);
}

static void
on_connection(uv_stream_t *listener, int status)
{
    if (status < 0)
        return; /* out of descriptors: the next one is reported anew */
    struct peer *p = calloc(1, sizeof *p);
    if (p == NULL)
        give_up("malloc", UV_ENOMEM);
    p->kind = kind;
    init_handle(listener->loop, &p->uv);
    p->uv.handle.data = p;
    if (uv_accept(listener, &p->uv.stream) != 0) {
        close_peer(p);
        return;
    }
    if (!is_unix)
        uv_tcp_nodelay(&p->uv.tcp, 1);
    uv_read_start(&p->uv.stream, on_alloc, on_read);
}

static void
on_end_of_time(uv_timer_t *timer)
{
    uv_stop(timer->loop);
}

static void
on_stdin(uv_poll_t *poll, int status, int events)
{
    char byte;
    (void)events;
    if (status < 0 || read(STDIN_FILENO, &byte, 1) <= 0)
        uv_stop(poll->loop);
}

/* A file or /dev/null cannot be waited for; then time alone counts. */
static void
watch_stdin(uv_loop_t *loop, uv_poll_t *poll)
{
    if (uv_poll_init(loop, poll, STDIN_FILENO) == 0)
        uv_poll_start(poll, UV_READABLE | UV_DISCONNECT, on_stdin);
}

static void
print_port(const uv_tcp_t *tcp)
{
    struct sockaddr_storage a;
    int size = sizeof a;
    uint16_t port = 0;
    if (!is_unix) {
        must("port", uv_tcp_getsockname(tcp, (struct sockaddr *)&a, &size));
        port = a.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&a)->sin6_port
                                       : ((struct sockaddr_in *)&a)->sin_port;
    }
    printf("%u\n", (unsigned)ntohs(port));
    fflush(stdout);
}

static void
bind_to(const struct options *o, union handle *h)
{
    struct sockaddr_storage address;
    if (is_unix) {
        must(o->path, uv_pipe_bind(&h->pipe, o->path));
        return;
    }
    must(o->host, options_address(o, &address));
    must("bind", uv_tcp_bind(&h->tcp, (struct sockaddr *)&address, 0));
}

/* Behind libuv's back, which would accept: then nobody does. */
static void
be_deaf(const union handle *h)
{
    int fd;
    must("socket", uv_fileno(&h->handle, &fd));
    if (listen(fd, 0) != 0)
        give_up("listen", uv_translate_sys_error(errno));
}

int
serve(const struct options *o)
{
    uv_loop_t *loop = uv_default_loop();
    union handle listener;
    uv_timer_t timer;
    uv_poll_t poll;
    kind = o->serve;
    is_unix = o->path != NULL;
    init_handle(loop, &listener);
    bind_to(o, &listener);
    if (kind == SERVE_DEAF)
        be_deaf(&listener);
    else
        must("listen", uv_listen(&listener.stream, BACKLOG, on_connection));
    print_port(&listener.tcp);
    uv_timer_init(loop, &timer);
    uv_timer_start(&timer, on_end_of_time, (uint64_t)(o->duration * 1000), 0);
    watch_stdin(loop, &poll);
    uv_run(loop, UV_RUN_DEFAULT);
    uv_close(&listener.handle, NULL); /* takes away the unix socket */
    uv_run(loop, UV_RUN_NOWAIT);
    return 0;
}
