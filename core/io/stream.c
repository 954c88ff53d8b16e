/*
 * stream.c - bytes in and out of a descriptor. See stream.h.
 *
 * Tests: spec/unit/stream_test.c
 */
#define _GNU_SOURCE
#include "io/stream.h"

#include "base/thread_errno.h"
#include "mem/slab.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* The buffer is a chunk of one of two sizes, or, beyond them, a block. */
#define SMALL TP_SLAB_SMALL_BYTES
#define LARGE TP_SLAB_LARGE_BYTES
/* With less room than this a buffer grows before it is read into. */
#define ROOM_MIN 1024
/* More pieces than this are written in several calls. */
#define PIECES_MAX 64

/* -- the buffer ----------------------------------------------------------- */

static void *
buf_get(size_t cap)
{
    switch (cap) {
    case SMALL:
        return tp_slab_get(TP_SLAB_SMALL);
    case LARGE:
        return tp_slab_get(TP_SLAB_LARGE);
    default:
        return tp_malloc(cap);
    }
}

static void
buf_put(void *buf, size_t cap)
{
    switch (cap) {
    case 0:
        break;
    case SMALL:
        tp_slab_put(TP_SLAB_SMALL, buf);
        break;
    case LARGE:
        tp_slab_put(TP_SLAB_LARGE, buf);
        break;
    default:
        tp_free(buf);
    }
}

static void
drop_buffer(struct tp_stream *s)
{
    buf_put(s->buf, s->cap);
    s->buf = NULL;
    s->start = s->end = s->cap = 0;
}

/* Moves what is there into a buffer of cap bytes. */
static bool
move_to(struct tp_stream *s, size_t cap)
{
    size_t len = tp_stream_len(s);
    unsigned char *buf = buf_get(cap);
    if (buf == NULL) {
        return false;
    }
    if (len > 0) {
        memcpy(buf, s->buf + s->start, len);
    }
    buf_put(s->buf, s->cap);
    s->buf = buf;
    s->start = 0;
    s->end = len;
    s->cap = cap;
    return true;
}

/* A block grows where it lies, if it can: a hundred megabytes are not copied
 * again and again. */
static bool
grow_block(struct tp_stream *s, size_t cap)
{
    if (s->cap <= LARGE || s->start > 0) {
        return move_to(s, cap);
    }
    unsigned char *buf = tp_realloc(s->buf, cap);
    if (buf == NULL) {
        return false;
    }
    s->buf = buf;
    s->cap = cap;
    return true;
}

/* Room for more, of want bytes in all. */
static bool
make_room(struct tp_stream *s, size_t want)
{
    size_t len = tp_stream_len(s);
    if (s->cap - s->end >= ROOM_MIN) {
        return true;
    }
    if (s->cap - len >= s->cap / 2 && s->cap >= 2 * ROOM_MIN) {
        memmove(s->buf, s->buf + s->start, len);
        s->start = 0;
        s->end = len;
        return true;
    }
    size_t cap = s->cap < LARGE ? LARGE : s->cap * 2;
    /* Not twice what is wanted, but for what else may have come. */
    if (want > len && want < cap / 2) {
        cap = want + LARGE;
    }
    return grow_block(s, cap);
}

/* A buffer with little in it is exchanged for one of cap bytes. Without memory
 * it stays as it is. */
static void
shrink_to(struct tp_stream *s, size_t cap)
{
    size_t len = tp_stream_len(s);
    if (len == 0) {
        drop_buffer(s);
    } else if (s->cap > cap && len <= cap - ROOM_MIN) {
        move_to(s, cap);
    }
}

void
tp_stream_skip(struct tp_stream *s, size_t n)
{
    tp_assert(n <= tp_stream_len(s));
    s->start += n;
    shrink_to(s, LARGE);
}

/* -- birth and end -------------------------------------------------------- */

static void
stream_free(struct tp_endpoint *e)
{
    struct tp_stream *s = tp_stream_of(e);
    drop_buffer(s);
    tp_free(s);
}

struct tp_stream *
tp_stream_new(int fd, bool is_pipe)
{
    struct tp_stream *s = tp_calloc(1, sizeof *s);
    if (s != NULL) {
        tp_endpoint_init(&s->endpoint, fd);
        s->endpoint.free = stream_free;
        s->max_line = TP_MAX_LINE_DEFAULT;
        s->max_bytes = SIZE_MAX;
        s->is_pipe = is_pipe;
    }
    return s;
}

/* -- connect -------------------------------------------------------------- */

#define QUEUE_PAUSE_MIN_NS 1000000ull
#define QUEUE_PAUSE_MAX_NS 50000000ull

static uint64_t
earlier(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* The queue of a unix socket is full, and nothing tells when it is not. */
static int
pause_for_queue(struct tp_actor *self, uint64_t *pause_ns, uint64_t deadline_ns)
{
    uint64_t now = tp_now_ns();
    if (now >= deadline_ns) {
        return TROUPE_ETIMEOUT;
    }
    int rc = tp_actor_sleep(self, earlier(now + *pause_ns, deadline_ns));
    *pause_ns = earlier(*pause_ns * 2, QUEUE_PAUSE_MAX_NS);
    return rc;
}

int
tp_stream_connect(struct tp_actor *self, struct tp_stream *s,
                  const struct tp_addr *a, uint64_t deadline_ns)
{
    int fd, rc;
    bool done;
    uint64_t pause_ns = QUEUE_PAUSE_MIN_NS;
    while ((rc = tp_socket_connect(a, &fd, &done)) != 0) {
        if (rc != TROUPE_ESYSTEM || errno != EAGAIN) {
            return rc;
        }
        rc = pause_for_queue(self, &pause_ns, deadline_ns);
        if (rc != 0) {
            return rc;
        }
    }
    tp_endpoint_open(&s->endpoint, fd);
    if (done) {
        return 0;
    }
    rc = tp_endpoint_enter(&s->endpoint);
    while (rc == 0) {
        rc = tp_endpoint_wait(self, &s->endpoint, TP_FD_WRITE, deadline_ns);
        if (rc != 0) {
            break;
        }
        rc = tp_socket_connected(fd);
        if (rc == 0 || errno != EAGAIN) {
            break;
        }
        rc = 0;
    }
    return tp_endpoint_leave(&s->endpoint, rc);
}

/* -- reading -------------------------------------------------------------- */

/* Reads once, if something is there. 0; TROUPE_ECLOSED: the end;
 * TROUPE_ESYSTEM with errno. */
static int
read_once(struct tp_stream *s)
{
    ssize_t n;
    size_t room = s->cap - s->end;
    do {
        unsigned char *to = s->buf + s->end;
        n = s->is_pipe ? read(s->endpoint.fd, to, room)
                       : recv(s->endpoint.fd, to, room, 0);
    } while (n < 0 && errno == EINTR);
    s->is_drained = n < 0 || (size_t)n < room;
    if (n > 0) {
        s->end += (size_t)n;
        return 0;
    }
    if (n == 0) {
        s->eof = true;
        return TROUPE_ECLOSED;
    }
    if (errno != EAGAIN) {
        s->read_error = errno;
    }
    return TROUPE_ESYSTEM;
}

static int
how_it_ended(struct tp_stream *s)
{
    if (s->read_error != 0) {
        errno = s->read_error;
        return TROUPE_ESYSTEM;
    }
    return TROUPE_ECLOSED;
}

/*
 * Gets some more into the buffer, between enter and leave. want: how many
 * bytes shall be there in all, as far as that is known. A connection that was
 * reset gives what had come before. After a read that got less than it could
 * have there is no second try: what has come since has made an event.
 */
static int
fill(struct tp_actor *self, struct tp_stream *s, size_t want,
     uint64_t deadline_ns)
{
    if (s->eof || s->read_error != 0) {
        return how_it_ended(s);
    }
    if (tp_stream_len(s) >= s->max_bytes) {
        return TROUPE_ENOMEM;
    }
    for (;;) {
        if (!s->is_drained || self->finishing) {
            if (!make_room(s, want)) {
                return TROUPE_ENOMEM;
            }
            int rc = read_once(s);
            if (rc != TROUPE_ESYSTEM || errno != EAGAIN) {
                return rc;
            }
        }
        shrink_to(s, SMALL); /* or to nothing, while it waits */
        int rc = tp_endpoint_wait(self, &s->endpoint, TP_FD_READ, deadline_ns);
        if (rc != 0) {
            return rc;
        }
        s->is_drained = false;
    }
}

/* What is looked for; returns whether it is there. */
struct goal {
    size_t want; /* bytes, as far as known */
    const char *pattern;
    size_t pattern_len;
    size_t limit; /* the pattern begins before this */
    size_t seen;  /* so far it does not */
    size_t at;    /* found here */
};

static bool
find_in(struct tp_stream *s, struct goal *g)
{
    size_t len = tp_stream_len(s);
    if (len < g->pattern_len) {
        return false;
    }
    const char *data = tp_stream_data(s);
    const char *found =
        memmem(data + g->seen, len - g->seen, g->pattern, g->pattern_len);
    if (found == NULL) {
        g->seen = len - (g->pattern_len - 1);
        return false;
    }
    g->at = (size_t)(found - data);
    return true;
}

/* 0: it is there; 1: not yet. */
static int
look(struct tp_stream *s, struct goal *g)
{
    if (g->pattern == NULL) {
        return tp_stream_len(s) >= g->want ? 0 : 1;
    }
    if (find_in(s, g)) {
        return g->at <= g->limit ? 0 : TROUPE_EFULL;
    }
    return g->seen > g->limit ? TROUPE_EFULL : 1;
}

static int
reach(struct tp_actor *self, struct tp_stream *s, struct goal *g,
      uint64_t deadline_ns)
{
    int rc = tp_endpoint_enter(&s->endpoint);
    if (rc != 0) {
        return rc;
    }
    while ((rc = look(s, g)) > 0) {
        rc = fill(self, s, g->want, deadline_ns);
        if (rc != 0) {
            break;
        }
        tp_actor_checkpoint(); /* who sends fast does not keep others waiting */
    }
    shrink_to(s, LARGE);
    return tp_endpoint_leave(&s->endpoint, rc);
}

int
tp_stream_need(struct tp_actor *self, struct tp_stream *s, size_t n,
               uint64_t deadline_ns)
{
    struct goal g = {.want = n};
    return reach(self, s, &g, deadline_ns);
}

int
tp_stream_find(struct tp_actor *self, struct tp_stream *s, const char *pattern,
               size_t len, size_t limit, uint64_t deadline_ns, size_t *out_at)
{
    struct goal g = {.pattern = pattern, .pattern_len = len, .limit = limit};
    int rc = reach(self, s, &g, deadline_ns);
    *out_at = g.at;
    return rc;
}

int
tp_stream_line(struct tp_actor *self, struct tp_stream *s, uint64_t deadline_ns,
               size_t *out_len, size_t *out_skip)
{
    size_t at;
    /* One more, for a "\r". */
    int rc =
        tp_stream_find(self, s, "\n", 1, s->max_line + 1, deadline_ns, &at);
    if (rc != 0) {
        return rc;
    }
    *out_skip = at + 1;
    if (at > 0 && tp_stream_data(s)[at - 1] == '\r') {
        at--;
    }
    *out_len = at;
    return at <= s->max_line ? 0 : TROUPE_EFULL;
}

int
tp_stream_all(struct tp_actor *self, struct tp_stream *s, uint64_t deadline_ns)
{
    struct goal g = {.want = SIZE_MAX};
    int rc = reach(self, s, &g, deadline_ns);
    bool at_end = rc == TROUPE_ECLOSED && s->eof;
    return at_end && !tp_endpoint_is_closed(&s->endpoint) ? 0 : rc;
}

/* -- writing -------------------------------------------------------------- */

/* The first n bytes of the pieces are done. */
static void
advance(struct iovec **pieces, size_t *count, size_t n)
{
    while (*count > 0 && n >= (*pieces)->iov_len) {
        n -= (*pieces)->iov_len;
        (*pieces)++;
        (*count)--;
    }
    if (*count > 0) {
        (*pieces)->iov_base = (char *)(*pieces)->iov_base + n;
        (*pieces)->iov_len -= n;
    }
}

/* A pipe that nobody reads raises SIGPIPE, which a host may die of. */
static ssize_t
write_pipe(int fd, const struct iovec *pieces, size_t count)
{
    static const struct timespec now;
    sigset_t sigpipe, old, pending;
    sigemptyset(&sigpipe);
    sigaddset(&sigpipe, SIGPIPE);
    sigpending(&pending);
    pthread_sigmask(SIG_BLOCK, &sigpipe, &old);
    ssize_t n = writev(fd, pieces, (int)count);
    int err = errno;
    if (n < 0 && err == EPIPE && !sigismember(&pending, SIGPIPE)) {
        while (sigtimedwait(&sigpipe, NULL, &now) < 0 && errno == EINTR) {
        }
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    errno = err;
    return n;
}

static ssize_t
write_once(struct tp_stream *s, struct iovec *pieces, size_t count)
{
    int fd = s->endpoint.fd;
    ssize_t n;
    count = count > PIECES_MAX ? PIECES_MAX : count;
    struct msghdr m = {.msg_iov = pieces, .msg_iovlen = count};
    do {
        if (s->is_pipe) {
            n = write_pipe(fd, pieces, count);
        } else if (count == 1) {
            n = send(fd, pieces->iov_base, pieces->iov_len, MSG_NOSIGNAL);
        } else {
            n = sendmsg(fd, &m, MSG_NOSIGNAL);
        }
    } while (n < 0 && errno == EINTR);
    return n;
}

static int
write_all(struct tp_actor *self, struct tp_stream *s, struct iovec *pieces,
          size_t count, uint64_t deadline_ns, size_t *out_written)
{
    advance(&pieces, &count, 0); /* empty ones */
    while (count > 0) {
        ssize_t n = write_once(s, pieces, count);
        if (n >= 0) {
            *out_written += (size_t)n;
            advance(&pieces, &count, (size_t)n);
            tp_actor_checkpoint();
            continue;
        }
        if (errno != EAGAIN) {
            return TROUPE_ESYSTEM;
        }
        int rc = tp_endpoint_wait(self, &s->endpoint, TP_FD_WRITE, deadline_ns);
        if (rc != 0) {
            return rc;
        }
    }
    return 0;
}

int
tp_stream_write(struct tp_actor *self, struct tp_stream *s,
                struct iovec *pieces, size_t count, uint64_t deadline_ns,
                size_t *out_written)
{
    *out_written = 0;
    int rc = tp_endpoint_enter(&s->endpoint);
    if (rc != 0) {
        return rc;
    }
    rc = write_all(self, s, pieces, count, deadline_ns, out_written);
    return tp_endpoint_leave(&s->endpoint, rc);
}

int
tp_stream_shutdown_send(struct tp_stream *s)
{
    int rc = tp_endpoint_enter(&s->endpoint);
    if (rc != 0) {
        return rc;
    }
    if (s->is_pipe) {
        tp_endpoint_leave(&s->endpoint, 0);
        tp_endpoint_close(&s->endpoint, true);
        return 0;
    }
    rc = tp_socket_shutdown_send(s->endpoint.fd);
    return tp_endpoint_leave(&s->endpoint, rc);
}
