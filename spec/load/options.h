/*
 * options.h - what the command line of troupe_load says.
 */
#ifndef LOAD_OPTIONS_H
#define LOAD_OPTIONS_H

#include "serve.h"

#include <stdbool.h>
#include <stdint.h>

enum mode {
    MODE_ECHO,
    MODE_IDLE,
    MODE_CHURN,
    MODE_HTTP
};

/* How a connection that has done its work ends. */
enum ending {
    END_CLOSE, /* close() */
    END_HALF,  /* shutdown(), then the peer's end is awaited */
    END_RESET  /* RST */
};

struct options {
    const char *host; /* a numeric address */
    const char *path; /* of a unix socket, instead of host and port */
    const char *url;
    unsigned port;
    enum mode mode;
    enum ending ending;
    bool serving;
    enum serve_kind serve;
    unsigned connections;
    unsigned connecting; /* at once */
    unsigned sources;    /* local addresses, 127.0.0.2 and following */
    unsigned pipeline;
    unsigned requests; /* of each connection, churn */
    uint64_t size;
    uint64_t count;  /* of all requests; 0: no limit */
    double rate;     /* requests per second of all connections; 0: closed */
    double duration; /* seconds; 0: no limit */
    double warmup;   /* seconds that are not measured */
    double timeout;  /* seconds without progress */
    double connecting_timeout;
    double deadline; /* seconds, of everything */
};

/* Exits with status 2 where the command line makes no sense. */
void options_parse(struct options *o, int argc, char **argv);

struct sockaddr_storage;

/* The address of host and port. 0, or an error of libuv's. */
int options_address(const struct options *o, struct sockaddr_storage *out);

#endif
