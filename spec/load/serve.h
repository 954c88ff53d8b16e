/*
 * serve.h - small servers, right ones and wrong ones, to try the generator on.
 */
#ifndef LOAD_SERVE_H
#define LOAD_SERVE_H

struct options;

enum serve_kind {
    SERVE_ECHO,
    SERVE_DROP,    /* closes when the first bytes come */
    SERVE_SHORT,   /* echoes all but the last byte of what it gets, closes */
    SERVE_GARBAGE, /* echoes other bytes */
    SERVE_EXTRA,   /* echoes, and one byte more */
    SERVE_SILENT,  /* reads, never answers */
    SERVE_SLOW,    /* echoes 20 ms later, one piece after the other */
    SERVE_DEAF,    /* listens, never accepts */
    SERVE_HTTP,    /* a response with a length for each request */
    SERVE_CHUNKED, /* the same in chunks */
    SERVE_CLOSE    /* a response, then the end of the connection */
};

/* The names of the kinds, in order; NULL at the end. */
extern const char *const serve_kinds[];

/* Serves until standard input ends or the duration is over. Exit status. */
int serve(const struct options *o);

#endif
