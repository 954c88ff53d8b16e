/*
 * client.c - the connections of a run: ask, check what comes, count.
 *
 * Idea:    what all requests of a connection are made of is a tape (tape.h);
 *          request i is its bytes from i * size on. Echoes are compared with
 *          the same tape. How many requests a connection may ask for is one
 *          number, its limit, which is what the modes differ by:
 *
 *            closed loop  no limit
 *            open loop    raised by a clock, at times fixed beforehand
 *            churn        so many in each life of the connection
 *            idle         one when it is open, one at the end
 *
 *          A slot is a place for one connection after another (its lives).
 *
 *            WAITING -> CONNECTING -> OPEN -> ENDING -> CLOSING -> GONE
 *            WAITING <------- RESTING <----------------' (the next life)
 *
 *          Once the run is draining, nothing new is asked for; what was due in
 *          an open loop still is. When the last slot is gone the run is over.
 * Threads: one.
 * Memory:  slots in one array; a closed connection's memory is used again only
 *          after libuv has called on_closed().
 * Fails:   errors of connections are counted, never the end of the run; but
 *          each wait has its limit, and the whole has one.
 * Rejected: libuv's timers for the open loop: they know milliseconds only.
 * Tests:   spec/load/load_test.sh
 */
#define _GNU_SOURCE
#include "client.h"

#include "http.h"
#include "tape.h"

#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/timerfd.h>
#include <unistd.h>
#include <uv.h>

#define SECOND   UINT64_C(1000000000)
#define SWEEP_MS 50
#define INPUT    (256U << 10)

enum slot_state {
    WAITING,    /* no connection, to be opened */
    RESTING,    /* the same, after a failure: at the next sweep */
    CONNECTING, /* since progress */
    OPEN,
    ENDING,  /* shut down, waits for the peer's end */
    CLOSING, /* until on_closed() */
    GONE     /* no connection any more */
};

struct slot {
    union {
        uv_handle_t handle;
        uv_stream_t stream;
        uv_tcp_t tcp;
        uv_pipe_t pipe;
    } uv;
    uv_connect_t connect;
    uv_write_t write;
    uv_shutdown_t shutdown;
    struct run *run;
    enum slot_state state;
    bool writing;   /* write is in use */
    bool failed;    /* this life */
    bool renew;     /* the server ends it, as it said */
    uint64_t limit; /* see above; of all lives, as the next three */
    uint64_t asked;
    uint64_t answered;
    uint64_t born;            /* asked when this life began */
    uint64_t handed;          /* bytes of this life given to libuv */
    uint64_t received;        /* bytes of this life */
    uint64_t progress;        /* when something last happened, ns */
    uint64_t *started;        /* when request i began, at i % pipeline */
    struct http_reply *reply; /* http */
};

struct run {
    const struct options *o;
    struct result *result;
    uv_loop_t loop;
    uv_timer_t sweep, duration, deadline;
    uv_poll_t clock; /* open loop: a timerfd */
    int clock_fd;
    struct tape tape;
    struct slot *slots;
    struct sockaddr_storage address;
    unsigned connecting, waiting, gone; /* slots in these states */
    unsigned next;                      /* where to look for one that waits */
    unsigned settled;   /* idle: have done their first request, or failed */
    bool begun;         /* requests are asked for */
    bool draining;      /* no new ones */
    bool held;          /* idle: the time of holding has begun */
    bool opening;       /* in open_slots() */
    uint64_t size;      /* of a request */
    uint64_t left;      /* requests that may still be asked for */
    uint64_t scheduled; /* open loop: requests that were due so far, */
    uint64_t planned;   /* and all that will be */
    uint64_t begin;     /* ns */
    uint64_t measured;  /* ns, begin and the warm-up */
    uint64_t last;      /* ns, the last answer */
    char input[INPUT];
};

static void open_slot(struct slot *s);
static void open_slots(struct run *run);
static void begin_if_ready(struct run *run);
static void drain(struct run *run);
static void on_duration(uv_timer_t *timer);
static void pump(struct slot *s, uint64_t now);

static uint64_t
to_ns(double seconds)
{
    return (uint64_t)(seconds * (double)SECOND);
}

static uint64_t
to_ms(double seconds)
{
    return (uint64_t)(seconds * 1000 + 1);
}

static bool
is_open_loop(const struct run *run)
{
    return run->o->rate > 0;
}

static void
count_error(struct run *run, enum load_error kind, uint64_t n)
{
    run->result->errors[kind] += n;
}

/* -- The end of a connection ---------------------------------------------- */

static void
stop_handle(void *handle)
{
    if (!uv_is_closing(handle))
        uv_close(handle, NULL);
}

/* The loop ends when its last handle is closed. */
static void
stop_run(struct run *run)
{
    stop_handle(&run->sweep);
    stop_handle(&run->duration);
    stop_handle(&run->deadline);
    if (run->clock_fd >= 0)
        stop_handle(&run->clock);
}

static void
set_gone(struct slot *s)
{
    struct run *run = s->run;
    s->state = GONE;
    run->gone++;
    if (is_open_loop(run)) /* due, never asked for */
        count_error(run, LOAD_UNANSWERED, s->limit - s->asked);
    if (run->gone < run->o->connections)
        return;
    if (is_open_loop(run)) /* nobody is left to be asked */
        count_error(run, LOAD_UNANSWERED, run->planned - run->scheduled);
    stop_run(run);
}

/* Whether there will be another life. */
static bool
lives_on(const struct slot *s)
{
    const struct run *run = s->run;
    if (run->o->mode == MODE_CHURN)
        return !run->draining;
    return s->renew && !s->failed &&
           (!run->draining || (is_open_loop(run) && s->asked < s->limit));
}

static void
on_closed(uv_handle_t *handle)
{
    struct slot *s = handle->data;
    struct run *run = s->run;
    if (!lives_on(s)) {
        set_gone(s);
        return;
    }
    if (s->failed) { /* no hot loop of failures */
        s->state = RESTING;
        return;
    }
    s->state = WAITING;
    run->waiting++;
    if (run->connecting < run->o->connecting)
        open_slot(s);
}

static void
balance(struct slot *s)
{
    struct run *run = s->run;
    uint64_t sent = s->handed - uv_stream_get_write_queue_size(&s->uv.stream);
    run->result->sent += sent;
    if (run->o->mode != MODE_HTTP && sent > s->received)
        run->result->lost += sent - s->received;
    count_error(run, LOAD_UNANSWERED, s->asked - s->answered);
    s->answered = s->asked;
}

static void
close_slot(struct slot *s)
{
    bool reset = s->run->o->ending == END_RESET && !s->failed;
    if (s->state == CONNECTING)
        s->run->connecting--;
    else
        balance(s);
    s->state = CLOSING;
    if (!reset || uv_tcp_close_reset(&s->uv.tcp, on_closed) != 0)
        uv_close(&s->uv.handle, on_closed);
}

/* Idle: one slot more has done its first request, or never will. */
static void
settle(struct run *run)
{
    run->settled++;
    if (run->settled < run->o->connections || run->held)
        return;
    run->held = true;
    fprintf(stderr, "troupe_load: %u connections are open\n",
            run->o->connections - run->gone);
    if (!run->draining)
        uv_timer_start(&run->duration, on_duration, to_ms(run->o->duration), 0);
}

static void
fail(struct slot *s, enum load_error kind)
{
    struct run *run = s->run;
    if (s->state == CLOSING || s->state == GONE)
        return;
    count_error(run, kind, 1);
    s->failed = true;
    bool early = run->o->mode == MODE_IDLE &&
                 (s->state == CONNECTING || s->answered < s->limit);
    close_slot(s);
    if (early)
        settle(run);
    open_slots(run);
    begin_if_ready(run);
}

static void
on_shutdown(uv_shutdown_t *request, int status)
{
    (void)request; /* an error of it is one of reading, too */
    (void)status;
}

/* All answers are there. */
static void
finish(struct slot *s)
{
    s->progress = uv_hrtime();
    if (s->run->o->ending == END_HALF &&
        uv_shutdown(&s->shutdown, &s->uv.stream, on_shutdown) == 0)
        s->state = ENDING;
    else
        close_slot(s);
}

static bool
is_done(const struct slot *s)
{
    const struct run *run = s->run;
    if (s->asked > s->answered || s->writing)
        return false;
    if (run->o->mode == MODE_CHURN)
        return run->draining || s->asked == s->limit;
    if (run->o->mode == MODE_IDLE || is_open_loop(run))
        return run->draining && s->asked == s->limit;
    return run->draining;
}

/* -- Asking ---------------------------------------------------------------- */

static void
on_written(uv_write_t *request, int status)
{
    struct slot *s = request->handle->data;
    s->writing = false;
    if (s->state != OPEN)
        return;
    s->progress = uv_hrtime();
    if (status < 0)
        fail(s, LOAD_RESET);
    else
        pump(s, s->progress);
}

/* At once what the socket takes, the rest by libuv; one rest at a time. */
static void
hand_over(struct slot *s)
{
    struct run *run = s->run;
    uint64_t wanted = (s->asked - s->born) * run->size;
    while (s->handed < wanted && !s->writing) {
        const unsigned char *at = tape_at(&run->tape, s->handed);
        uint64_t n = wanted - s->handed;
        if (n > TAPE_SPAN)
            n = TAPE_SPAN;
        uv_buf_t buf = uv_buf_init((char *)(uintptr_t)at, (unsigned)n);
        int done = uv_try_write(&s->uv.stream, &buf, 1);
        if (done > 0) {
            s->handed += (uint64_t)done;
            continue;
        }
        if (done != UV_EAGAIN ||
            uv_write(&s->write, &s->uv.stream, &buf, 1, on_written) != 0) {
            fail(s, LOAD_RESET);
            return;
        }
        s->handed += n;
        s->writing = true;
    }
}

/* When request number i of this slot was due. */
static uint64_t
due(const struct run *run, uint64_t i, const struct slot *s)
{
    uint64_t number = i * run->o->connections + (uint64_t)(s - run->slots);
    return run->begin +
           (uint64_t)((double)number * ((double)SECOND / run->o->rate));
}

static bool
may_ask(const struct slot *s)
{
    const struct run *run = s->run;
    if (s->asked == s->limit || s->asked - s->answered == run->o->pipeline)
        return false;
    if (is_open_loop(run) || run->o->mode == MODE_IDLE)
        return true;
    return !run->draining && run->left > 0;
}

static void
ask(struct slot *s, uint64_t now)
{
    struct run *run = s->run;
    if (s->asked == s->answered)
        s->progress = now;
    s->started[s->asked % run->o->pipeline] =
        is_open_loop(run) ? due(run, s->asked, s) : now;
    s->asked++;
    run->left--;
}

/* Asks for what may be asked for, or ends the connection. */
static void
pump(struct slot *s, uint64_t now)
{
    struct run *run = s->run;
    if (!run->begun || s->state != OPEN)
        return;
    while (!s->renew && may_ask(s))
        ask(s, now);
    hand_over(s);
    if (s->state != OPEN)
        return;
    if (run->left == 0 && !run->draining && !is_open_loop(run))
        drain(run);
    else if (is_done(s))
        finish(s);
}

/* -- What comes ------------------------------------------------------------ */

static void
take_answer(struct slot *s, uint64_t now)
{
    struct run *run = s->run;
    uint64_t since = s->started[s->answered % run->o->pipeline];
    s->answered++;
    run->result->requests++;
    run->last = now;
    if (now >= run->measured)
        histogram_add(&run->result->latency, now > since ? now - since : 0);
    if (run->o->mode == MODE_IDLE && s->answered == 1)
        settle(run);
}

static void
take_echo(struct slot *s, const char *bytes, size_t n, uint64_t now)
{
    struct run *run = s->run;
    uint64_t due_bytes = s->handed - s->received;
    size_t good = n <= due_bytes ? n : (size_t)due_bytes;
    size_t same = tape_match(&run->tape, s->received, bytes, good);
    s->received += same;
    run->result->verified += same;
    while (s->answered < s->asked &&
           (s->answered - s->born + 1) * run->size <= s->received)
        take_answer(s, now);
    if (same < good)
        fail(s, LOAD_MISMATCH);
    else if (good < n)
        fail(s, LOAD_EXTRA);
}

static void
take_response(struct slot *s, uint64_t now)
{
    if (s->reply->status >= 400)
        count_error(s->run, LOAD_STATUS, 1);
    s->renew = s->reply->close;
    http_init(s->reply);
    take_answer(s, now);
}

static void
take_http(struct slot *s, const char *bytes, size_t n, uint64_t now)
{
    s->received += n;
    while (n > 0) {
        size_t used;
        if (s->asked == s->answered || s->renew) {
            fail(s, LOAD_EXTRA);
            return;
        }
        enum http_result result = http_feed(s->reply, bytes, n, &used);
        if (result == HTTP_BAD) {
            fail(s, LOAD_MALFORMED);
            return;
        }
        if (result == HTTP_DONE)
            take_response(s, now);
        bytes += used;
        n -= used;
    }
}

static void
take_end(struct slot *s, ssize_t status)
{
    bool expected = s->state == ENDING || s->renew;
    if (status == UV_EOF && expected && s->asked == s->answered)
        close_slot(s);
    else
        fail(s, status == UV_EOF ? LOAD_CLOSED : LOAD_RESET);
}

static void
on_alloc(uv_handle_t *handle, size_t wanted, uv_buf_t *buf)
{
    struct slot *s = handle->data;
    (void)wanted;
    *buf = uv_buf_init(s->run->input, INPUT);
}

static void
on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
    struct slot *s = stream->data;
    if (n == 0 || (s->state != OPEN && s->state != ENDING))
        return;
    if (n < 0) {
        take_end(s, n);
        return;
    }
    uint64_t now = uv_hrtime();
    s->run->result->received += (uint64_t)n;
    s->progress = now;
    if (s->run->o->mode == MODE_HTTP)
        take_http(s, buf->base, (size_t)n, now);
    else
        take_echo(s, buf->base, (size_t)n, now);
    pump(s, now);
}

/* -- The beginning of a connection ------------------------------------------ */

static void
start_life(struct slot *s)
{
    struct run *run = s->run;
    s->state = OPEN;
    s->failed = s->renew = s->writing = false;
    s->born = s->asked;
    s->handed = s->received = 0;
    if (run->o->mode == MODE_CHURN)
        s->limit = s->asked + run->o->requests;
    if (run->o->mode == MODE_HTTP)
        http_init(s->reply);
    run->result->opened++;
}

static void
on_connected(uv_connect_t *request, int status)
{
    struct slot *s = request->handle->data;
    struct run *run = s->run;
    if (s->state != CONNECTING)
        return; /* timed out */
    if (status < 0) {
        fail(s, LOAD_CONNECT);
        return;
    }
    run->connecting--;
    start_life(s);
    uv_read_start(&s->uv.stream, on_alloc, on_read);
    open_slots(run);
    if (!run->begun)
        begin_if_ready(run);
    else
        pump(s, uv_hrtime());
    if (run->o->mode == MODE_IDLE && run->size == 0)
        settle(run);
}

/* From 127.0.0.2, 127.0.0.3, ... in turn; the port is chosen by connect, which
   can use one again that another destination or address has. */
static int
bind_source(struct slot *s)
{
    const struct run *run = s->run;
    unsigned index = (unsigned)(s - run->slots);
    struct sockaddr_in a = {.sin_family = AF_INET};
    int fd, one = 1;
    if (run->o->sources == 0)
        return 0;
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1 + index % run->o->sources);
    if (uv_fileno(&s->uv.handle, &fd) != 0 ||
        setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &one, sizeof one) !=
            0)
        return UV_EINVAL;
    return uv_tcp_bind(&s->uv.tcp, (const struct sockaddr *)&a, 0);
}

static int
connect_tcp(struct slot *s)
{
    const struct sockaddr *to = (const struct sockaddr *)&s->run->address;
    int err = bind_source(s);
    if (err != 0)
        return err;
    uv_tcp_nodelay(&s->uv.tcp, 1);
    return uv_tcp_connect(&s->connect, &s->uv.tcp, to, on_connected);
}

/* The slot has a handle from here on, whatever happens: fail() closes it. */
static int
create_handle(struct slot *s)
{
    struct run *run = s->run;
    int err;
    if (run->o->path != NULL) {
        err = uv_pipe_init(&run->loop, &s->uv.pipe, 0);
    } else {
        err = uv_tcp_init_ex(&run->loop, &s->uv.tcp, run->address.ss_family);
        if (err != 0) /* no descriptor */
            uv_tcp_init(&run->loop, &s->uv.tcp);
    }
    s->uv.handle.data = s;
    return err;
}

static void
open_slot(struct slot *s)
{
    struct run *run = s->run;
    run->waiting--;
    run->connecting++;
    s->state = CONNECTING;
    s->progress = uv_hrtime();
    int err = create_handle(s);
    if (err == 0 && run->o->path != NULL)
        uv_pipe_connect(&s->connect, &s->uv.pipe, run->o->path, on_connected);
    else if (err == 0)
        err = connect_tcp(s);
    if (err != 0)
        fail(s, LOAD_CONNECT);
}

/* Not from within itself: each failure would be one call deeper. */
static void
open_slots(struct run *run)
{
    if (run->opening)
        return;
    run->opening = true;
    while (run->waiting > 0 && run->connecting < run->o->connecting) {
        struct slot *s = &run->slots[run->next];
        run->next = (run->next + 1) % run->o->connections;
        if (s->state == WAITING)
            open_slot(s);
    }
    run->opening = false;
}

/* -- The run ---------------------------------------------------------------- */

static void
pump_all(struct run *run)
{
    for (unsigned i = 0; i < run->o->connections; i++)
        pump(&run->slots[i], uv_hrtime());
}

/* No new requests, but those that are due. */
static void
drain(struct run *run)
{
    bool again = run->o->mode == MODE_IDLE && run->size > 0;
    if (run->draining)
        return;
    run->draining = true;
    for (unsigned i = 0; i < run->o->connections; i++) {
        struct slot *s = &run->slots[i];
        bool waits = s->state == WAITING || s->state == RESTING;
        if (again && s->state == OPEN)
            s->limit++;
        if (!waits || lives_on(s))
            continue;
        if (s->state == WAITING)
            run->waiting--;
        set_gone(s);
    }
    pump_all(run);
}

static void
on_duration(uv_timer_t *timer)
{
    drain(timer->data);
}

/* Whatever is still there is cut off. */
static void
on_deadline(uv_timer_t *timer)
{
    struct run *run = timer->data;
    count_error(run, LOAD_DEADLINE, 1);
    drain(run);
    for (unsigned i = 0; i < run->o->connections; i++) {
        struct slot *s = &run->slots[i];
        s->failed = true;
        if (s->state == CONNECTING || s->state == OPEN || s->state == ENDING) {
            close_slot(s);
        } else if (s->state == WAITING) { /* open loop, between two lives */
            run->waiting--;
            set_gone(s);
        }
    }
}

static void
sweep_slot(struct slot *s, uint64_t now)
{
    const struct options *o = s->run->o;
    bool due_now = s->asked > s->answered || s->renew;
    uint64_t quiet = now - s->progress;
    if (s->state == CONNECTING && quiet > to_ns(o->connecting_timeout)) {
        fail(s, LOAD_CONNECT_TIMEOUT);
    } else if ((s->state == ENDING || (s->state == OPEN && due_now)) &&
               quiet > to_ns(o->timeout)) {
        fail(s, LOAD_TIMEOUT);
    } else if (s->state == RESTING) {
        s->state = WAITING;
        s->run->waiting++;
    }
}

static void
on_sweep(uv_timer_t *timer)
{
    struct run *run = timer->data;
    uint64_t now = uv_hrtime();
    for (unsigned i = 0; i < run->o->connections; i++)
        sweep_slot(&run->slots[i], now);
    open_slots(run);
}

/* -- The open loop ---------------------------------------------------------- */

/* When the next request is due, in absolute time. */
static void
set_clock(struct run *run)
{
    unsigned n = run->o->connections;
    uint64_t at = due(run, run->scheduled / n, &run->slots[run->scheduled % n]);
    struct itimerspec when = {.it_value = {.tv_sec = (time_t)(at / SECOND),
                                           .tv_nsec = (long)(at % SECOND)}};
    timerfd_settime(run->clock_fd, TFD_TIMER_ABSTIME, &when, NULL);
}

static void
schedule(struct run *run, struct slot *s, uint64_t now)
{
    run->scheduled++;
    if (s->state == GONE) {
        count_error(run, LOAD_UNANSWERED, 1);
        return;
    }
    s->limit++;
    pump(s, now);
}

static void
on_clock(uv_poll_t *poll, int status, int events)
{
    struct run *run = poll->data;
    unsigned n = run->o->connections;
    uint64_t ticks, now = uv_hrtime();
    (void)status;
    (void)events;
    if (read(run->clock_fd, &ticks, sizeof ticks) < 0 || run->draining)
        return;
    while (run->scheduled < run->planned) {
        struct slot *s = &run->slots[run->scheduled % n];
        if (due(run, run->scheduled / n, s) > now)
            break;
        schedule(run, s, now);
    }
    if (run->scheduled < run->planned)
        set_clock(run);
    else
        drain(run);
}

static int
create_clock(struct run *run)
{
    run->clock_fd = -1;
    if (!is_open_loop(run))
        return 0;
    run->clock_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    if (run->clock_fd < 0 ||
        uv_poll_init(&run->loop, &run->clock, run->clock_fd) != 0)
        return -1;
    run->clock.data = run;
    run->planned = run->o->count > 0 ? run->o->count : UINT64_MAX;
    if (run->o->duration > 0) {
        double all = run->o->duration * run->o->rate + 1;
        if (all < (double)run->planned)
            run->planned = (uint64_t)all;
    }
    return 0;
}

/* -- Begin and end ---------------------------------------------------------- */

static void
begin(struct run *run)
{
    run->begun = true;
    run->begin = run->last = uv_hrtime();
    run->measured = run->begin + to_ns(run->o->warmup);
    uv_update_time(&run->loop);
    if (is_open_loop(run)) {
        set_clock(run);
        uv_poll_start(&run->clock, UV_READABLE, on_clock);
    } else if (run->o->duration > 0 && run->o->mode != MODE_IDLE) {
        uv_timer_start(&run->duration, on_duration, to_ms(run->o->duration), 0);
    }
    pump_all(run);
}

static void
begin_if_ready(struct run *run)
{
    if (!run->begun && run->waiting == 0 && run->connecting == 0)
        begin(run);
}

static int
create_tape(struct run *run)
{
    char text[HTTP_LINE];
    int n;
    run->size = run->o->size;
    if (run->o->mode != MODE_HTTP)
        return tape_count(&run->tape);
    n = snprintf(text, sizeof text, "GET %s HTTP/1.1\r\nHost: %s\r\n\r\n",
                 run->o->url,
                 run->o->path != NULL ? "localhost" : run->o->host);
    if (n < 0 || (size_t)n >= sizeof text)
        return -1;
    run->size = (uint64_t)n;
    return tape_repeat(&run->tape, text, (size_t)n);
}

static int
create_slots(struct run *run)
{
    unsigned n = run->o->connections;
    bool endless = !is_open_loop(run) && run->o->mode != MODE_IDLE;
    run->slots = calloc(n, sizeof *run->slots);
    for (unsigned i = 0; run->slots != NULL && i < n; i++) {
        struct slot *s = &run->slots[i];
        s->run = run;
        s->limit = endless ? UINT64_MAX : 0;
        if (run->o->mode == MODE_IDLE && run->size > 0)
            s->limit = 1;
        s->started = calloc(run->o->pipeline, sizeof *s->started);
        if (run->o->mode == MODE_HTTP)
            s->reply = malloc(sizeof *s->reply);
        if (s->started == NULL ||
            (s->reply == NULL && run->o->mode == MODE_HTTP))
            return -1;
    }
    run->waiting = n;
    return run->slots == NULL ? -1 : 0;
}

static void
start_timers(struct run *run)
{
    uv_timer_t *all[] = {&run->sweep, &run->duration, &run->deadline};
    for (unsigned i = 0; i < 3; i++) {
        uv_timer_init(&run->loop, all[i]);
        all[i]->data = run;
    }
    uv_timer_start(&run->sweep, on_sweep, SWEEP_MS, SWEEP_MS);
    uv_timer_start(&run->deadline, on_deadline, to_ms(run->o->deadline), 0);
}

static void
free_run(struct run *run)
{
    for (unsigned i = 0; run->slots != NULL && i < run->o->connections; i++) {
        free(run->slots[i].reply);
        free(run->slots[i].started);
    }
    free(run->slots);
    tape_free(&run->tape);
    if (run->clock_fd >= 0)
        close(run->clock_fd);
    free(run);
}

static int
go(struct run *run)
{
    if (run->o->path == NULL && options_address(run->o, &run->address) != 0) {
        fprintf(stderr, "troupe_load: %s is no numeric address\n",
                run->o->host);
        return -1;
    }
    if (create_tape(run) != 0 || create_slots(run) != 0 ||
        uv_loop_init(&run->loop) != 0 || create_clock(run) != 0) {
        fprintf(stderr, "troupe_load: no memory or no descriptor\n");
        return -1;
    }
    start_timers(run);
    if (run->o->mode == MODE_CHURN)
        begin(run);
    open_slots(run);
    uv_run(&run->loop, UV_RUN_DEFAULT);
    uv_loop_close(&run->loop);
    return 0;
}

int
client_run(const struct options *o, struct result *out)
{
    struct run *run = calloc(1, sizeof *run);
    if (run == NULL)
        return -1;
    memset(out, 0, sizeof *out);
    histogram_init(&out->latency);
    run->o = o;
    run->result = out;
    run->clock_fd = -1;
    run->left = o->count > 0 ? o->count : UINT64_MAX;
    int err = go(run);
    if (run->last > run->measured)
        out->seconds = (double)(run->last - run->measured) / (double)SECOND;
    free_run(run);
    return err;
}
