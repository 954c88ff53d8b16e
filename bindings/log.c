/*
 * log.c - one line each to standard error, never torn.
 *
 * Idea:    a line is put together first. While standard error takes it at once
 *          it is written by one write(2) here; when it does not, it waits in a
 *          bounded buffer for a thread that is started then. What the buffer
 *          cannot hold is dropped and counted.
 * Threads: any.
 * Locks:   TP_RANK_LOG, held during a write that does not block.
 * Parks:   never.
 * Fails:   never.
 * Tests:   spec/lua/log_spec.lua
 */
#define _GNU_SOURCE
#include "bind.h"

#include "base/thread_errno.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* A pipe that says it is writable takes this much in one piece. */
#define PIECE             4096u
#define BUFFER_MAX        (1u << 20)
#define FLUSH_PATIENCE_NS 1000000000ull

static const char *const level_names[] = {"debug", "info", "warn", "error",
                                          "off"};

/* All under lock. The thread takes the whole buffer and writes it unlocked. */
static struct {
    struct tp_mutex lock;
    char *buffer;
    size_t size, capacity;
    uint64_t dropped;
    bool thread_runs;      /* then all lines go through the buffer, in order */
    _Atomic uint32_t idle; /* 1: the thread has written all and is gone */
} out;

/* -- level --------------------------------------------------------------- */

/* The level of TROUPE_LOG; info if that is unset or unknown. */
static enum tp_log_level
threshold(void)
{
    const char *s = getenv("TROUPE_LOG");
    for (int i = TP_LOG_DEBUG; s != NULL && i <= TP_LOG_OFF; i++) {
        if (strcmp(s, level_names[i]) == 0) {
            return (enum tp_log_level)i;
        }
    }
    return TP_LOG_INFO;
}

bool
tp_log_enabled(enum tp_log_level level)
{
    return level >= threshold();
}

/* -- output -------------------------------------------------------------- */

static void
write_all(const char *p, size_t n)
{
    while (n > 0) {
        ssize_t done = write(STDERR_FILENO, p, n < PIECE ? n : PIECE);
        if (done < 0 && errno == EINTR) {
            continue;
        }
        if (done < 0 && errno == EAGAIN) {
            struct pollfd fd = {STDERR_FILENO, POLLOUT, 0};
            poll(&fd, 1, -1);
            continue;
        }
        if (done <= 0) {
            return; /* closed: nobody reads the log */
        }
        p += done;
        n -= (size_t)done;
    }
}

/* Would a write of n bytes go through without waiting? */
static bool
takes_now(size_t n)
{
    struct pollfd fd = {STDERR_FILENO, POLLOUT, 0};
    return n <= PIECE && poll(&fd, 1, 0) == 1 &&
           (fd.revents & (POLLOUT | POLLERR | POLLNVAL)) != 0;
}

static char *
take_buffer_locked(size_t *size)
{
    char *p = out.buffer;
    *size = out.size;
    out.buffer = NULL;
    out.size = out.capacity = 0;
    return p;
}

/* Writes until nothing is left, then ends. */
static void *
writer_main(void *unused)
{
    (void)unused;
    pthread_setname_np(pthread_self(), "troupe-log");
    for (;;) {
        size_t n;
        char note[64];
        tp_mutex_lock(&out.lock, TP_RANK_LOG);
        char *p = take_buffer_locked(&n);
        uint64_t dropped = out.dropped;
        out.dropped = 0;
        out.thread_runs = p != NULL || dropped > 0;
        if (!out.thread_runs) {
            /* LOG-1 release: what was written is out. Partner: tp_log_flush. */
            atomic_store_explicit(&out.idle, 1, memory_order_release);
        }
        tp_mutex_unlock(&out.lock, TP_RANK_LOG);
        if (p == NULL && dropped == 0) {
            break;
        }
        write_all(p, n);
        tp_free(p);
        if (dropped > 0) {
            int k = snprintf(note, sizeof note, "(%llu log lines dropped)\n",
                             (unsigned long long)dropped);
            write_all(note, (size_t)k);
        }
    }
    tp_futex_wake(&out.idle, INT32_MAX);
    return NULL;
}

static bool
start_writer(void)
{
    sigset_t all, old;
    pthread_t thread;
    pthread_attr_t attr;
    sigfillset(&all);
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    /* relaxed: the thread is not there yet. */
    atomic_store_explicit(&out.idle, 0, memory_order_relaxed);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int rc = pthread_create(&thread, &attr, writer_main, NULL);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&attr);
    return rc == 0;
}

/* Appends to the buffer, or counts a line that does not fit. */
static void
keep_locked(const char *line, size_t n)
{
    if (out.size + n > out.capacity) {
        size_t want = out.capacity == 0 ? PIECE : out.capacity;
        while (want < out.size + n) {
            want *= 2;
        }
        char *p = want > BUFFER_MAX ? NULL : tp_realloc(out.buffer, want);
        if (p == NULL) {
            out.dropped++;
            return;
        }
        out.buffer = p;
        out.capacity = want;
    }
    memcpy(out.buffer + out.size, line, n);
    out.size += n;
}

static void
emit(const char *line, size_t n)
{
    tp_mutex_lock(&out.lock, TP_RANK_LOG);
    if (!out.thread_runs && takes_now(n)) {
        write_all(line, n);
    } else {
        keep_locked(line, n);
        if (!out.thread_runs) {
            out.thread_runs = start_writer();
        }
    }
    tp_mutex_unlock(&out.lock, TP_RANK_LOG);
}

void
tp_log_flush(void)
{
    uint64_t deadline = tp_now_ns() + FLUSH_PATIENCE_NS;
    tp_mutex_lock(&out.lock, TP_RANK_LOG);
    bool runs = out.thread_runs;
    tp_mutex_unlock(&out.lock, TP_RANK_LOG);
    /* LOG-1 acquire: sees the thread's last write. */
    while (runs && atomic_load_explicit(&out.idle, memory_order_acquire) == 0 &&
           tp_futex_wait(&out.idle, 0, deadline) == 0) {
    }
}

/* -- lines --------------------------------------------------------------- */

static size_t
head(char *to, size_t size, enum tp_log_level level, troupe_pid pid)
{
    struct timespec ts;
    struct tm tm;
    clock_gettime(CLOCK_REALTIME, &ts);
    gmtime_r(&ts.tv_sec, &tm);
    size_t n = strftime(to, size, "%Y-%m-%dT%H:%M:%S", &tm);
    n += (size_t)snprintf(to + n, size - n, ".%03ldZ %-5s ",
                          ts.tv_nsec / 1000000, level_names[level]);
    if (pid != 0) {
        n += (size_t)snprintf(to + n, size - n, "<0.%u.%u> ", tp_pid_index(pid),
                              tp_pid_gen(pid));
    }
    return n;
}

/* Copies text; a newline becomes \n in one line, or an indented new line. */
static size_t
body(char *to, const char *text, size_t size, bool multi)
{
    size_t n = 0;
    for (size_t i = 0; i < size; i++) {
        if (text[i] != '\n') {
            to[n++] = text[i];
        } else if (multi) {
            memcpy(to + n, "\n    ", 5);
            n += 5;
        } else {
            memcpy(to + n, "\\n", 2);
            n += 2;
        }
    }
    to[n++] = '\n';
    return n;
}

void
tp_log(enum tp_log_level level, troupe_pid pid, const char *text, size_t size,
       bool multi)
{
    enum {
        HEAD = 96
    };
    if (!tp_log_enabled(level)) {
        return;
    }
    char *line = tp_malloc(HEAD + size * 5 + 1);
    if (line == NULL) {
        return;
    }
    size_t n = head(line, HEAD, level, pid);
    n += body(line + n, text, size, multi);
    emit(line, n);
    tp_free(line);
}

/* -- Lua ----------------------------------------------------------------- */

/* log.<level>(fmt, ...): string.format with arguments, the text without. */
static int
l_log(lua_State *L)
{
    enum tp_log_level level =
        (enum tp_log_level)lua_tointeger(L, lua_upvalueindex(1));
    tp_check_string(L, 1, "format", NULL);
    if (!tp_log_enabled(level)) {
        return 0;
    }
    if (lua_gettop(L) > 1) {
        lua_getglobal(L, "string");
        lua_getfield(L, -1, "format");
        lua_insert(L, 1);
        lua_pop(L, 1);
        lua_call(L, lua_gettop(L) - 1, 1);
    }
    size_t n;
    const char *text = lua_tolstring(L, -1, &n);
    struct tp_actor *a = tp_actor_self();
    tp_log(level, a == NULL ? 0 : a->pid, text, n, false);
    return 0;
}

int
tp_open_log(lua_State *L)
{
    lua_createtable(L, 0, 4);
    for (int i = TP_LOG_DEBUG; i < TP_LOG_OFF; i++) {
        lua_pushinteger(L, i);
        lua_pushcclosure(L, l_log, 1);
        lua_setfield(L, -2, level_names[i]);
    }
    return 1;
}
