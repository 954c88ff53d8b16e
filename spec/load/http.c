/*
 * http.c - where one HTTP/1.1 response ends and the next begins.
 *
 * Memory: the caller's; a line is kept until it is whole, at most HTTP_LINE.
 * Fails:  HTTP_BAD, for good.
 * Tests:  spec/unit/load_test.c
 */
#define _GNU_SOURCE
#include "http.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

void
http_init(struct http_reply *r)
{
    memset(r, 0, offsetof(struct http_reply, line));
}

/* A number of digits of this base, the whole of text up to one of ends. */
static bool
number(const char *text, int base, const char *ends, uint64_t *out)
{
    static const char digits[] = "0123456789abcdefABCDEF";
    size_t n = strspn(text, digits);
    char *end;
    if (n == 0 || n > 15)
        return false;
    *out = strtoull(text, &end, base);
    return end == text + n && (*end == '\0' || strchr(ends, *end) != NULL);
}

static enum http_result
status_line(struct http_reply *r)
{
    uint64_t status;
    if (strncmp(r->line, "HTTP/1.", 7) != 0 || r->line[8] != ' ' ||
        !number(r->line + 9, 10, " ", &status) || status < 100 || status > 599)
        return HTTP_BAD;
    r->status = (int)status;
    r->close = r->line[7] == '0';
    r->state = HTTP_HEADER;
    return HTTP_MORE;
}

/* The value of the header line if it has this name, else NULL. */
static const char *
value_of(const char *line, const char *name)
{
    size_t n = strlen(name);
    if (strncasecmp(line, name, n) != 0 || line[n] != ':')
        return NULL;
    return line + n + 1 + strspn(line + n + 1, " \t");
}

static enum http_result
header_line(struct http_reply *r)
{
    const char *value;
    if (strchr(r->line, ':') == NULL)
        return HTTP_BAD;
    if ((value = value_of(r->line, "Content-Length")) != NULL) {
        if (!number(value, 10, " \t", &r->left))
            return HTTP_BAD;
        r->has_length = true;
    } else if ((value = value_of(r->line, "Transfer-Encoding")) != NULL) {
        r->chunked = strcasecmp(value, "chunked") == 0;
    } else if ((value = value_of(r->line, "Connection")) != NULL) {
        r->close = strcasecmp(value, "close") == 0;
    }
    return HTTP_MORE;
}

/* The empty line after the headers. */
static enum http_result
headers_end(struct http_reply *r)
{
    if (r->status < 200) { /* the real one follows */
        http_init(r);
        return HTTP_MORE;
    }
    if (r->status == 204 || r->status == 304)
        return HTTP_DONE;
    if (r->chunked) {
        r->state = HTTP_SIZE;
        return HTTP_MORE;
    }
    r->state = HTTP_BODY;
    if (!r->has_length)
        return HTTP_BAD;
    return r->left == 0 ? HTTP_DONE : HTTP_MORE;
}

static enum http_result
size_line(struct http_reply *r)
{
    if (!number(r->line, 16, "; \t", &r->left))
        return HTTP_BAD;
    r->state = r->left == 0 ? HTTP_TRAILER : HTTP_CHUNK;
    return HTTP_MORE;
}

/* A whole line, without its end. */
static enum http_result
take_line(struct http_reply *r)
{
    bool empty = r->line[0] == '\0';
    switch (r->state) {
    case HTTP_STATUS:
        return status_line(r);
    case HTTP_HEADER:
        return empty ? headers_end(r) : header_line(r);
    case HTTP_SIZE:
        return size_line(r);
    case HTTP_AFTER:
        r->state = HTTP_SIZE;
        return empty ? HTTP_MORE : HTTP_BAD;
    case HTTP_TRAILER:
        return empty ? HTTP_DONE : HTTP_MORE;
    case HTTP_BODY:
    case HTTP_CHUNK:
        break;
    }
    return HTTP_BAD;
}

/* Bytes of a line: up to its end if that is among them. */
static enum http_result
feed_line(struct http_reply *r, const char *bytes, size_t n, size_t *out_used)
{
    const char *end = memchr(bytes, '\n', n);
    size_t part = end != NULL ? (size_t)(end - bytes) + 1 : n;
    *out_used = part;
    if (part >= HTTP_LINE - r->used)
        return HTTP_BAD;
    memcpy(r->line + r->used, bytes, part);
    r->used += part;
    if (end == NULL)
        return HTTP_MORE;
    if (r->used < 2 || r->line[r->used - 2] != '\r' ||
        memchr(r->line, '\0', r->used) != NULL)
        return HTTP_BAD;
    r->line[r->used - 2] = '\0';
    r->used = 0;
    return take_line(r);
}

static enum http_result
feed_body(struct http_reply *r, size_t n, size_t *out_used)
{
    size_t part = n < r->left ? n : (size_t)r->left;
    *out_used = part;
    r->body += part;
    r->left -= part;
    if (r->left > 0)
        return HTTP_MORE;
    if (r->state == HTTP_BODY)
        return HTTP_DONE;
    r->state = HTTP_AFTER;
    return HTTP_MORE;
}

enum http_result
http_feed(struct http_reply *r, const char *bytes, size_t n, size_t *out_used)
{
    enum http_result result = HTTP_MORE;
    size_t used = 0, part;
    while (used < n && result == HTTP_MORE) {
        if (r->state == HTTP_BODY || r->state == HTTP_CHUNK)
            result = feed_body(r, n - used, &part);
        else
            result = feed_line(r, bytes + used, n - used, &part);
        used += part;
    }
    *out_used = used;
    return result;
}
