/*
 * options.c - what the command line of troupe_load says.
 *
 * Fails: a wrong option ends the process, with status 2.
 * Tests: spec/load/load_test.sh
 */
#define _GNU_SOURCE
#include "options.h"

#include <getopt.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>

static const char usage[] =
    "usage: troupe_load --port N | --unix PATH [options]\n"
    "       troupe_load --serve KIND [--port N | --unix PATH] [--duration S]\n"
    "\n"
    "  --host ADDRESS       numeric, IPv4 or IPv6 (127.0.0.1)\n"
    "  --port N             \n"
    "  --unix PATH          a unix socket instead\n"
    "  --mode MODE          echo (default), idle, churn, http\n"
    "  --connections N      (1)\n"
    "  --size BYTES         of a request, and of its echo (64)\n"
    "  --pipeline N         requests in flight on a connection (1)\n"
    "  --duration S         stop asking after so many seconds (1, unless\n"
    "                       there is a count)\n"
    "  --count N            stop asking after so many requests\n"
    "  --rate R             open loop: requests per second of all connections\n"
    "                       together, at fixed times; latency counts from the\n"
    "                       time that was fixed. Default: closed loop\n"
    "  --warmup S           seconds at the start that are not measured (0)\n"
    "  --requests N         churn: requests of one connection (1)\n"
    "  --end HOW            close (default), half (shut down, then wait for\n"
    "                       the end of the peer), reset\n"
    "  --path PATH          http: what is asked for (/)\n"
    "  --connecting N       connections being opened at once (512; churn: "
    "all)\n"
    "  --sources N          spread over N local addresses from 127.0.0.2 on\n"
    "  --connect-timeout S  (5)\n"
    "  --timeout S          without any progress while an answer is due (5)\n"
    "  --deadline S         of everything (duration + both timeouts + 10; 60\n"
    "                       without a duration)\n"
    "\n"
    "One line of JSON on standard output. Exit status 0 if there was no error\n"
    "and no byte was lost, 1 if there was, 2 for wrong options.\n"
    "\n"
    "--serve KIND: a server to try it on, until standard input ends or\n"
    "--duration (60) is over; prints its port. KIND: echo, drop, short,\n"
    "garbage, extra, silent, slow, deaf, http, chunked, close\n";

enum {
    OPT_HOST = 1,
    OPT_PORT,
    OPT_UNIX,
    OPT_MODE,
    OPT_CONNECTIONS,
    OPT_SIZE,
    OPT_PIPELINE,
    OPT_DURATION,
    OPT_COUNT,
    OPT_RATE,
    OPT_WARMUP,
    OPT_REQUESTS,
    OPT_END,
    OPT_PATH,
    OPT_CONNECTING,
    OPT_SOURCES,
    OPT_CONNECT_TIMEOUT,
    OPT_TIMEOUT,
    OPT_DEADLINE,
    OPT_SERVE,
    OPT_HELP
};

static const struct option long_options[] = {
    {"host", 1, NULL, OPT_HOST},
    {"port", 1, NULL, OPT_PORT},
    {"unix", 1, NULL, OPT_UNIX},
    {"mode", 1, NULL, OPT_MODE},
    {"connections", 1, NULL, OPT_CONNECTIONS},
    {"size", 1, NULL, OPT_SIZE},
    {"pipeline", 1, NULL, OPT_PIPELINE},
    {"duration", 1, NULL, OPT_DURATION},
    {"count", 1, NULL, OPT_COUNT},
    {"rate", 1, NULL, OPT_RATE},
    {"warmup", 1, NULL, OPT_WARMUP},
    {"requests", 1, NULL, OPT_REQUESTS},
    {"end", 1, NULL, OPT_END},
    {"path", 1, NULL, OPT_PATH},
    {"connecting", 1, NULL, OPT_CONNECTING},
    {"sources", 1, NULL, OPT_SOURCES},
    {"connect-timeout", 1, NULL, OPT_CONNECT_TIMEOUT},
    {"timeout", 1, NULL, OPT_TIMEOUT},
    {"deadline", 1, NULL, OPT_DEADLINE},
    {"serve", 1, NULL, OPT_SERVE},
    {"help", 0, NULL, OPT_HELP},
    {NULL, 0, NULL, 0},
};

/* In the order of their enums. */
static const char *const modes[] = {"echo", "idle", "churn", "http", NULL};
static const char *const endings[] = {"close", "half", "reset", NULL};

static _Noreturn void __attribute__((format(printf, 1, 2)))
refuse(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fputs("troupe_load: ", stderr);
    vfprintf(stderr, format, args);
    fputs("; see --help\n", stderr);
    va_end(args);
    exit(2);
}

static uint64_t
integer(const char *text, uint64_t least, uint64_t most)
{
    char *end;
    unsigned long long n = strtoull(text, &end, 10);
    if (*text < '0' || *text > '9' || *end != '\0' || n < least || n > most)
        refuse("%s is no whole number from %llu to %llu", text,
               (unsigned long long)least, (unsigned long long)most);
    return n;
}

static unsigned
small(const char *text, unsigned least, unsigned most)
{
    return (unsigned)integer(text, least, most);
}

static double
positive(const char *text)
{
    char *end;
    double x = strtod(text, &end);
    if (end == text || *end != '\0' || !isfinite(x) || x < 0 || x > 1e9)
        refuse("%s is no number from 0 to 1e9", text);
    return x;
}

static unsigned
word(const char *text, const char *const *list)
{
    for (unsigned i = 0; list[i] != NULL; i++)
        if (strcmp(text, list[i]) == 0)
            return i;
    refuse("what is %s?", text);
}

static void
defaults(struct options *o)
{
    memset(o, 0, sizeof *o);
    o->host = "127.0.0.1";
    o->url = "/";
    o->connections = 1;
    o->pipeline = 1;
    o->requests = 1;
    o->size = 64;
    o->timeout = 5;
    o->connecting_timeout = 5;
}

/* One case a line, hence its length. */
static void
set(struct options *o, int option, const char *value)
{
    switch (option) {
    case OPT_HOST:
        o->host = value;
        break;
    case OPT_PORT:
        o->port = small(value, 0, 65535);
        break;
    case OPT_UNIX:
        o->path = value;
        break;
    case OPT_MODE:
        o->mode = word(value, modes);
        break;
    case OPT_CONNECTIONS:
        o->connections = small(value, 1, 1000000);
        break;
    case OPT_SIZE:
        o->size = integer(value, 0, UINT64_C(1) << 40);
        break;
    case OPT_PIPELINE:
        o->pipeline = small(value, 1, 65536);
        break;
    case OPT_DURATION:
        o->duration = positive(value);
        break;
    case OPT_COUNT:
        o->count = integer(value, 1, UINT64_C(1) << 62);
        break;
    case OPT_RATE:
        o->rate = positive(value);
        break;
    case OPT_WARMUP:
        o->warmup = positive(value);
        break;
    case OPT_REQUESTS:
        o->requests = small(value, 1, 1000000000);
        break;
    case OPT_END:
        o->ending = word(value, endings);
        break;
    case OPT_PATH:
        o->url = value;
        break;
    case OPT_CONNECTING:
        o->connecting = small(value, 1, 1000000);
        break;
    case OPT_SOURCES:
        o->sources = small(value, 0, 250);
        break;
    case OPT_CONNECT_TIMEOUT:
        o->connecting_timeout = positive(value);
        break;
    case OPT_TIMEOUT:
        o->timeout = positive(value);
        break;
    case OPT_DEADLINE:
        o->deadline = positive(value);
        break;
    case OPT_SERVE:
        o->serving = true;
        o->serve = word(value, serve_kinds);
        break;
    case OPT_HELP:
        fputs(usage, stdout);
        exit(0);
    default:
        refuse("a wrong option");
    }
}

static void
fill_in(struct options *o)
{
    if (o->duration <= 0 && o->serving)
        o->duration = 60;
    if (o->duration <= 0 && o->count == 0)
        o->duration = 1;
    if (o->deadline <= 0)
        o->deadline = o->duration > 0 ? o->duration + o->timeout +
                                            o->connecting_timeout + 10
                                      : 60;
    if (o->connecting == 0)
        o->connecting = o->mode == MODE_CHURN ? o->connections : 512;
}

static void
check(const struct options *o)
{
    if (!o->serving && (o->port == 0) == (o->path == NULL))
        refuse("give --port or --unix");
    if (o->path != NULL && strlen(o->path) > 107)
        refuse("the path of a unix socket is at most 107 bytes long");
    if (o->size == 0 && o->mode != MODE_IDLE)
        refuse("--size 0 is for --mode idle");
    if (o->rate > 0 && (o->mode == MODE_IDLE || o->mode == MODE_CHURN))
        refuse("--rate is for --mode echo and http");
    if (o->mode == MODE_IDLE && o->duration <= 0)
        refuse("--mode idle wants a --duration");
    if (o->mode == MODE_IDLE && o->count > 0)
        refuse("--mode idle has no --count");
    if (o->ending == END_RESET && o->path != NULL)
        refuse("a unix socket has no --end reset");
}

void
options_parse(struct options *o, int argc, char **argv)
{
    int option;
    defaults(o);
    while ((option = getopt_long(argc, argv, "", long_options, NULL)) != -1)
        set(o, option, optarg);
    if (optind < argc)
        refuse("what is %s?", argv[optind]);
    fill_in(o);
    check(o);
}

int
options_address(const struct options *o, struct sockaddr_storage *out)
{
    memset(out, 0, sizeof *out);
    if (strchr(o->host, ':') != NULL)
        return uv_ip6_addr(o->host, (int)o->port, (struct sockaddr_in6 *)out);
    return uv_ip4_addr(o->host, (int)o->port, (struct sockaddr_in *)out);
}
