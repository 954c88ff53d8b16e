/*
 * stream.h - bytes in and out of a descriptor, with a buffer for what came.
 *
 * Idea:     a read asks the stream to get so much into its buffer: a count, a
 *           byte pattern, something, all. When it has succeeded the caller
 *           looks at the bytes and skips those it has used. One that fails
 *           takes nothing: what has come stays for the next one. Reads and
 *           writes try first and wait when there is nothing to be had.
 *
 *             buf: |..used..|start ... end|..room..cap|
 *
 *           The buffer is there only while it holds something: an idle stream
 *           has none, one that waits for the rest of a line a small one.
 * Threads:  the owner of the endpoint; it may have migrated at each park.
 * Memory:   the buffer is the stream's, the stream its endpoint's.
 * Parks:    read and write functions; the actor may end there.
 * Fails:    TROUPE_ECLOSED: closed by either side; TROUPE_ETIMEOUT;
 *           TROUPE_ESYSTEM with errno; TROUPE_ENOMEM, also beyond max_bytes;
 *           else as tp_fd_wait.
 * Tests:    spec/unit/stream_test.c
 */
#ifndef TP_IO_STREAM_H
#define TP_IO_STREAM_H

#include "io/endpoint.h"
#include "io/socket.h"

#include <sys/uio.h>

#define TP_MAX_LINE_DEFAULT (64u << 10)

struct tp_stream {
    struct tp_endpoint endpoint;
    /* owner only */
    unsigned char *buf;
    size_t start, end, cap; /* cap 0: no buffer */
    size_t max_line;        /* bytes of a line without its end */
    size_t max_bytes;       /* that it keeps in the buffer at most */
    int read_error;         /* errno that ended the reading side */
    bool eof;               /* the other side sends no more */
    bool is_drained;        /* the last read got less than it could have */
    bool is_pipe;           /* read and write, not recv and send */
};

/* One reference, the caller's, which has taken fd on success. fd may be -1: to
 * be connected. */
struct tp_stream *tp_stream_new(int fd, bool is_pipe);

static inline struct tp_stream *
tp_stream_of(struct tp_endpoint *e)
{
    return tp_container_of(e, struct tp_stream, endpoint);
}

/* Connects a stream that was made with fd -1. */
int tp_stream_connect(struct tp_actor *self, struct tp_stream *s,
                      const struct tp_addr *a, uint64_t deadline_ns);

/* -- reading -------------------------------------------------------------- */

/* At least n bytes. */
int tp_stream_need(struct tp_actor *self, struct tp_stream *s, size_t n,
                   uint64_t deadline_ns);

/* Up to the first occurrence of pattern, which has len > 0 bytes; *out_at is
 * where it begins. TROUPE_EFULL: not within the first limit bytes. */
int tp_stream_find(struct tp_actor *self, struct tp_stream *s,
                   const char *pattern, size_t len, size_t limit,
                   uint64_t deadline_ns, size_t *out_at);

/* A line: *out_len bytes, which *out_skip follow up to the next one. Its end
 * is "\n" or "\r\n". TROUPE_EFULL: it is longer than max_line. */
int tp_stream_line(struct tp_actor *self, struct tp_stream *s,
                   uint64_t deadline_ns, size_t *out_len, size_t *out_skip);

/* Until the other side sends no more. */
int tp_stream_all(struct tp_actor *self, struct tp_stream *s,
                  uint64_t deadline_ns);

/* What has come and was not used yet; no longer valid after the next call. */
static inline const char *
tp_stream_data(const struct tp_stream *s)
{
    return (const char *)s->buf + s->start;
}

static inline size_t
tp_stream_len(const struct tp_stream *s)
{
    return s->end - s->start;
}

/* The first n bytes were used. */
void tp_stream_skip(struct tp_stream *s, size_t n);

/* -- writing -------------------------------------------------------------- */

/* All of the pieces, in order, or as many bytes as *out_written says. Changes
 * the pieces. What they point to must live as long as the actor does. */
int tp_stream_write(struct tp_actor *self, struct tp_stream *s,
                    struct iovec *pieces, size_t count, uint64_t deadline_ns,
                    size_t *out_written);

/* The other side reads to the end; reading goes on. A pipe is closed. */
int tp_stream_shutdown_send(struct tp_stream *s);

#endif
