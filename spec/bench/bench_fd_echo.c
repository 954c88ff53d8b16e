/*
 * bench_fd_echo.c - what it costs that an fd becomes ready.
 *
 * Actors echo 64 bytes each to a client over a pair of unix sockets; the client
 * is a process of its own that sends the next request when it has the answer.
 * Prints one JSON line for each number of connections and of schedulers:
 * requests per second, and what the process of the actors needed for one: CPU
 * time in microseconds and voluntary context switches.
 *   fd_echo          nothing else runs
 *   fd_echo_own      the same, the driver knows that the fds are ours
 *   fd_echo_busy     an actor per scheduler computes and yields all the time
 * Usage: bench_fd_echo [seconds]      per figure, 0.4 by default
 */
#define _GNU_SOURCE
#include "actor/actor.h"
#include "io/wait.h"
#include "run/runtime.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define SIZE            64
#define CONNECTIONS_MAX 100

struct figure {
    const char *name;
    int connections;
    unsigned schedulers;
    bool busy;
    bool own;
};

static int server_ends[CONNECTIONS_MAX], client_ends[CONNECTIONS_MAX];
static uint64_t duration_ns = 400000000;
static _Atomic int open_connections;
static _Atomic uint64_t answers;
static const struct figure *figure;

/* -- the client ------------------------------------------------------------ */

static void
ask(int fd)
{
    static const char request[SIZE];
    tp_check(write(fd, request, SIZE) == SIZE);
}

static void
client(void)
{
    struct epoll_event events[CONNECTIONS_MAX];
    int set = epoll_create1(0), n;
    uint64_t end = tp_now_ns() + duration_ns;
    char answer[SIZE];
    for (int i = 0; i < figure->connections; i++) {
        struct epoll_event e = {.events = EPOLLIN, .data.fd = client_ends[i]};
        tp_check(epoll_ctl(set, EPOLL_CTL_ADD, client_ends[i], &e) == 0);
        ask(client_ends[i]);
    }
    while (tp_now_ns() < end) {
        n = epoll_wait(set, events, CONNECTIONS_MAX, 1000);
        for (int i = 0; i < n; i++) {
            tp_check(read(events[i].data.fd, answer, SIZE) == SIZE);
            ask(events[i].data.fd);
        }
    }
}

/* -- the actors ------------------------------------------------------------ */

static void
echo(struct tp_actor *self, void *arg)
{
    int fd = *(int *)arg;
    uint32_t id = figure->own ? tp_fd_own(fd) : 0;
    char request[2 * SIZE];
    uint64_t n = 0;
    ssize_t got;
    while ((got = read(fd, request, sizeof request)) != 0) {
        if (got < 0) {
            tp_check(errno == EAGAIN || errno == ECONNRESET);
        } else if (write(fd, request, SIZE) == SIZE) {
            n++;
        }
        /* There was less than there was room for. */
        tp_fd_wait_own(self, fd, id, TP_FD_READ, TP_NEVER);
    }
    /* relaxed: read when all is over. */
    atomic_fetch_add_explicit(&answers, n, memory_order_relaxed);
    /* relaxed: a request to end. */
    atomic_fetch_sub_explicit(&open_connections, 1, memory_order_relaxed);
}

static void
compute(struct tp_actor *self, void *unused)
{
    (void)unused;
    /* relaxed: as above. */
    while (atomic_load_explicit(&open_connections, memory_order_relaxed) > 0) {
        uint64_t until = tp_now_ns() + 20000;
        while (tp_now_ns() < until) {
        }
        tp_actor_yield(self);
    }
}

static const struct tp_actor_class echo_class = {.main = echo};
static const struct tp_actor_class compute_class = {.main = compute};

static void
root(struct tp_actor *self, void *unused)
{
    troupe_pid pid;
    (void)self;
    (void)unused;
    for (int i = 0; i < figure->connections; i++) {
        tp_check(tp_spawn(NULL, &echo_class, &server_ends[i], &pid) == 0);
    }
    for (unsigned i = 0; figure->busy && i < figure->schedulers; i++) {
        tp_check(tp_spawn(NULL, &compute_class, NULL, &pid) == 0);
    }
}

static const struct tp_actor_class root_class = {.main = root};

/* -- a figure -------------------------------------------------------------- */

static double
cpu_us(const struct rusage *r)
{
    return ((double)r->ru_utime.tv_sec + (double)r->ru_stime.tv_sec) * 1e6 +
           (double)r->ru_utime.tv_usec + (double)r->ru_stime.tv_usec;
}

static void
connect_all(void)
{
    for (int i = 0; i < figure->connections; i++) {
        int p[2];
        tp_check(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, p) == 0);
        server_ends[i] = p[0];
        client_ends[i] = p[1];
    }
}

static void
close_all(const int *ends)
{
    for (int i = 0; i < figure->connections; i++) {
        close(ends[i]);
    }
}

static void
measure(void)
{
    struct tp_run_config config = {.schedulers = figure->schedulers};
    struct tp_reason *reason;
    struct rusage before, after;
    connect_all();
    pid_t child = fork();
    tp_check(child >= 0);
    if (child == 0) {
        close_all(server_ends);
        client();
        _exit(0);
    }
    close_all(client_ends);
    atomic_store_explicit(&answers, 0, memory_order_seq_cst);
    atomic_store_explicit(&open_connections, figure->connections,
                          memory_order_seq_cst);
    getrusage(RUSAGE_SELF, &before);
    tp_check(tp_run(&config, NULL, &root_class, NULL, &reason) == 0);
    getrusage(RUSAGE_SELF, &after);
    tp_reason_unref(reason);
    waitpid(child, NULL, 0);
    close_all(server_ends);
    double n = (double)atomic_load_explicit(&answers, memory_order_seq_cst);
    printf("{\"bench\":\"%s\",\"connections\":%d,\"schedulers\":%u,"
           "\"requests_per_s\":%.0f,\"cpu_us\":%.2f,\"switches\":%.3f}\n",
           figure->name, figure->connections, figure->schedulers,
           n / ((double)duration_ns / 1e9),
           (cpu_us(&after) - cpu_us(&before)) / n,
           (double)(after.ru_nvcsw - before.ru_nvcsw) / n);
    fflush(stdout);
}

int
main(int argc, char **argv)
{
    static const struct figure figures[] = {
        {"fd_echo", 1, 1, false, false},
        {"fd_echo", 1, 2, false, false},
        {"fd_echo", 100, 1, false, false},
        {"fd_echo", 100, 2, false, false},
        {"fd_echo_own", 1, 1, false, true},
        {"fd_echo_own", 1, 2, false, true},
        {"fd_echo_own", 100, 1, false, true},
        {"fd_echo_own", 100, 2, false, true},
        {"fd_echo_busy", 100, 1, true, true},
        {"fd_echo_busy", 100, 2, true, true},
    };
    if (argc > 1) {
        duration_ns = (uint64_t)(strtod(argv[1], NULL) * 1e9);
    }
    signal(SIGPIPE, SIG_IGN);
    for (size_t i = 0; i < sizeof figures / sizeof *figures; i++) {
        figure = &figures[i];
        measure();
    }
    return 0;
}
