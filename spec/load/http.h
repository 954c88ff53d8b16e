/*
 * http.h - where one HTTP/1.1 response ends and the next begins.
 *
 * Reads statuses, lengths and chunks of any number of responses to GET, in
 * pieces of any size. Bodies are counted, not kept.
 */
#ifndef LOAD_HTTP_H
#define LOAD_HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HTTP_LINE 8192

enum http_state {
    HTTP_STATUS, /* in the status line */
    HTTP_HEADER, /* in a header line */
    HTTP_BODY,   /* left: bytes of the body */
    HTTP_SIZE,   /* in the line with the size of a chunk */
    HTTP_CHUNK,  /* left: bytes of the chunk */
    HTTP_AFTER,  /* in the line end after a chunk */
    HTTP_TRAILER /* in a line after the last chunk */
};

enum http_result {
    HTTP_MORE,
    HTTP_DONE,
    HTTP_BAD
};

struct http_reply {
    enum http_state state;
    int status;
    bool close; /* "Connection: close" */
    bool has_length;
    bool chunked;
    uint64_t left;
    uint64_t body; /* bytes of it so far */
    size_t used;   /* of line */
    char line[HTTP_LINE];
};

/* Ready for a new response. */
void http_init(struct http_reply *r);

/* Takes bytes up to the end of one response; *out_used is how many.
   HTTP_DONE: status, close and body are those of the response; call http_init
   before the next. HTTP_BAD: no HTTP, or a response whose end is that of the
   connection. */
enum http_result http_feed(struct http_reply *r, const char *bytes, size_t n,
                           size_t *out_used);

#endif
