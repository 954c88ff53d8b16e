/*
 * main.c - troupe_load: load on a TCP, unix or HTTP server, and what came of it.
 *
 * A process of its own, on libuv, so that it shares no code and no fault with
 * what it measures. --help has the options, docs/reference/load.md the rest.
 *
 * Fails: see the exit status in --help. It never hangs: an alarm ends it when
 *        even the deadline of the run did not.
 * Tests: spec/load/load_test.sh, spec/unit/load_test.c
 */
#define _GNU_SOURCE
#include "client.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

#define GRACE 10 /* seconds between the deadline and the alarm */

static const char *const error_names[] = {
#define X(name, text) text,
    LOAD_ERRORS(X)
#undef X
};

static const char *const mode_names[] = {"echo", "idle", "churn", "http"};

static uint64_t
sum_of_errors(const struct result *r)
{
    uint64_t sum = 0;
    for (unsigned i = 0; i < LOAD_ERROR_COUNT; i++)
        sum += r->errors[i];
    return sum;
}

static double
cpu_seconds(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

static double
micros(const struct histogram *h, double share)
{
    return (double)histogram_at(h, share) / 1e3;
}

static void
print_latency(const struct histogram *h)
{
    printf("\"latency_us\":{\"mean\":%.1f,\"p50\":%.1f,\"p90\":%.1f,"
           "\"p99\":%.1f,\"p999\":%.1f,\"max\":%.1f},",
           histogram_mean(h) / 1e3, micros(h, 0.5), micros(h, 0.9),
           micros(h, 0.99), micros(h, 0.999), (double)h->max / 1e3);
}

static void
print_errors(const struct result *r)
{
    printf("\"errors\":{\"all\":%" PRIu64, sum_of_errors(r));
    for (unsigned i = 0; i < LOAD_ERROR_COUNT; i++)
        if (r->errors[i] > 0)
            printf(",\"%s\":%" PRIu64, error_names[i], r->errors[i]);
    printf("}}\n");
}

static void
print_result(const struct options *o, const struct result *r)
{
    double rate = r->seconds > 0 ? (double)r->latency.count / r->seconds : 0;
    printf("{\"mode\":\"%s\",\"loop\":\"%s\",\"connections\":%u,"
           "\"size\":%" PRIu64 ",\"pipeline\":%u,",
           mode_names[o->mode], o->rate > 0 ? "open" : "closed", o->connections,
           o->mode == MODE_HTTP ? 0 : o->size, o->pipeline);
    printf("\"seconds\":%.3f,\"opened\":%" PRIu64 ",\"requests\":%" PRIu64
           ",\"requests_per_s\":%.1f,\"cpu\":%.3f,",
           r->seconds, r->opened, r->requests, rate, cpu_seconds());
    printf("\"sent\":%" PRIu64 ",\"received\":%" PRIu64 ",\"verified\":%" PRIu64
           ",\"lost\":%" PRIu64 ",",
           r->sent, r->received, r->verified, r->lost);
    print_latency(&r->latency);
    print_errors(r);
}

static void
prepare(const struct options *o)
{
    struct rlimit files;
    double limit = (o->serving ? o->duration : o->deadline) + GRACE;
    signal(SIGPIPE, SIG_IGN);
    alarm((unsigned)limit + 1);
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
}

int
main(int argc, char **argv)
{
    static struct options options;
    static struct result result;
    options_parse(&options, argc, argv);
    prepare(&options);
    if (options.serving)
        return serve(&options);
    if (client_run(&options, &result) != 0)
        return 1;
    print_result(&options, &result);
    return sum_of_errors(&result) > 0 || result.lost > 0;
}
