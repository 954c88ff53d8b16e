/*
 * main.c - the troupe command: a host that uses troupe.h and nothing else.
 *
 * Tests: spec/lua/command_spec.lua
 */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <troupe.h>
#include <unistd.h>

#define EXIT_USAGE 2

static const char usage[] =
    "usage: troupe run [options] file.lua [arguments...]\n"
    "       troupe --version\n"
    "       troupe --help\n"
    "\n"
    "options of run:\n"
    "  --schedulers N   scheduler threads, 1 to 64 (default: usable CPUs)\n"
    "  --max-actors N   live actors at most, 1 to 1048576\n"
    "  --slice-ms MS    longest run of an actor while others wait, 0.1 to "
    "1000\n"
    "                   (default: 2)\n"
    "  --blocking-threads N\n"
    "                   threads for calls that block, 1 to 1024 (default: "
    "64)\n"
    "  --preemption MODE\n"
    "                   how loops are cut short: signal (default), hook, off\n";

static int
usage_error(const char *what, const char *which)
{
    fprintf(stderr, "troupe: %s%s%s (see troupe --help)\n", what,
            which == NULL ? "" : ": ", which == NULL ? "" : which);
    return EXIT_USAGE;
}

/* A whole number from min to max, or -1. */
static long
parse_number(const char *text, long min, long max)
{
    char *end;
    errno = 0;
    long v = strtol(text, &end, 10);
    return errno != 0 || end == text || *end != '\0' || v < min || v > max ? -1
                                                                           : v;
}

/* Each sets what its option is about. False: text is no such value. */

static bool
set_schedulers(struct troupe_config *config, const char *text)
{
    long v = parse_number(text, 1, 64);
    config->schedulers = (unsigned)v;
    return v >= 0;
}

static bool
set_max_actors(struct troupe_config *config, const char *text)
{
    long v = parse_number(text, 1, 1048576);
    config->max_actors = (uint32_t)v;
    return v >= 0;
}

/* Milliseconds, with a fraction. */
static bool
set_slice(struct troupe_config *config, const char *text)
{
    char *end;
    double ms = strtod(text, &end);
    bool fits = end != text && *end == '\0' && ms >= 0.1 && ms <= 1000;
    config->slice_ns = fits ? (uint64_t)(ms * 1e6) : 0;
    return fits;
}

static bool
set_blocking_threads(struct troupe_config *config, const char *text)
{
    long v = parse_number(text, 1, 1024);
    config->blocking_threads = (unsigned)v;
    return v >= 0;
}

static bool
set_preemption(struct troupe_config *config, const char *text)
{
    static const char *const names[] = {"signal", "hook", "off"};
    int mode = TROUPE_PREEMPT_SIGNAL;
    while (mode <= TROUPE_PREEMPT_OFF && strcmp(text, names[mode]) != 0) {
        mode++;
    }
    config->preemption = (enum troupe_preemption)mode;
    return mode <= TROUPE_PREEMPT_OFF;
}

static const struct option {
    const char *name;
    const char *wants;
    bool (*set)(struct troupe_config *config, const char *text);
} options[] = {
    {"--schedulers", "--schedulers wants 1 to 64, not", set_schedulers},
    {"--max-actors", "--max-actors wants 1 to 1048576, not", set_max_actors},
    {"--slice-ms", "--slice-ms wants 0.1 to 1000, not", set_slice},
    {"--blocking-threads", "--blocking-threads wants 1 to 1024, not",
     set_blocking_threads},
    {"--preemption", "--preemption wants signal, hook or off, not",
     set_preemption},
};
#define OPTIONS ((int)(sizeof options / sizeof *options))

/* Reads the option at argv[*at] and its value. 0, or an exit status. */
static int
read_option(int argc, char **argv, int *at, struct troupe_config *config)
{
    const char *name = argv[*at];
    int which = 0;
    while (which < OPTIONS && strcmp(name, options[which].name) != 0) {
        which++;
    }
    if (which == OPTIONS) {
        return usage_error("unknown option", name);
    }
    if (++*at == argc) {
        return usage_error("a value is missing after", name);
    }
    if (!options[which].set(config, argv[*at])) {
        return usage_error(options[which].wants, argv[*at]);
    }
    ++*at;
    return 0;
}

/* Ends the process without a wait for a thread that may hold stdout's lock. */
static _Noreturn void
leave(int status)
{
    if (ftrylockfile(stdout) == 0) {
        fflush(stdout);
        funlockfile(stdout);
    }
    _exit(status);
}

static bool
is_help(const char *word)
{
    return strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0;
}

static int
run(int argc, char **argv)
{
    struct troupe_config config;
    struct troupe_result result;
    int at = 0;
    troupe_config_init(&config);
    config.handle_signals = config.exits_after = true;
    while (at < argc && argv[at][0] == '-' && argv[at][1] != '\0') {
        if (is_help(argv[at])) {
            fputs(usage, stdout);
            return EXIT_SUCCESS;
        }
        int status = read_option(argc, argv, &at, &config);
        if (status != 0) {
            return status;
        }
    }
    if (at == argc) {
        return usage_error("a file to run is missing", NULL);
    }
    int rc = troupe_run_file(&config, argv[at], argc - at - 1,
                             (const char *const *)argv + at + 1, &result);
    int status = result.exited        ? result.exit_code
                 : rc != 0            ? EXIT_FAILURE
                 : result.signal != 0 ? 128 + result.signal
                                      : EXIT_SUCCESS;
    if (result.left_behind == 0) {
        fflush(stdout);
    }
    if (rc != 0) {
        fprintf(stderr, "troupe: %s\n",
                result.error == NULL ? troupe_strerror(rc) : result.error);
    }
    if (result.left_behind > 0) {
        leave(status);
    }
    troupe_result_fini(&result);
    return status;
}

int
main(int argc, char **argv)
{
    signal(SIGPIPE, SIG_IGN);
    if (argc < 2) {
        fputs(usage, stderr);
        return EXIT_USAGE;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("troupe %s\n", troupe_version());
        return EXIT_SUCCESS;
    }
    if (is_help(argv[1])) {
        fputs(usage, stdout);
        return EXIT_SUCCESS;
    }
    if (strcmp(argv[1], "run") == 0) {
        return run(argc - 2, argv + 2);
    }
    return usage_error("unknown command", argv[1]);
}
