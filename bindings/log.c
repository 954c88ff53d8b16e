/*
 * log.c - one line each to standard error, never torn.
 *
 * Idea:    a line is put together first and written by one write(2).
 * Threads: any.
 * Parks:   never; a slow standard error holds the thread up.
 * Fails:   never; what cannot be written is lost.
 * Tests:   spec/lua/log_spec.lua
 */
#define _GNU_SOURCE
#include "bind.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static const char *const level_names[] = {"debug", "info", "warn", "error",
                                          "off"};

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

static size_t
head(char *out, size_t size, enum tp_log_level level, troupe_pid pid)
{
    struct timespec ts;
    struct tm tm;
    clock_gettime(CLOCK_REALTIME, &ts);
    gmtime_r(&ts.tv_sec, &tm);
    size_t n = strftime(out, size, "%Y-%m-%dT%H:%M:%S", &tm);
    n += (size_t)snprintf(out + n, size - n, ".%03ldZ %-5s ",
                          ts.tv_nsec / 1000000, level_names[level]);
    if (pid != 0) {
        n += (size_t)snprintf(out + n, size - n, "<0.%u.%u> ",
                              tp_pid_index(pid), tp_pid_gen(pid));
    }
    return n;
}

/* Copies text; a newline becomes \n in one line, or an indented new line. */
static size_t
body(char *out, const char *text, size_t size, bool multi)
{
    size_t n = 0;
    for (size_t i = 0; i < size; i++) {
        if (text[i] != '\n') {
            out[n++] = text[i];
        } else if (multi) {
            memcpy(out + n, "\n    ", 5);
            n += 5;
        } else {
            memcpy(out + n, "\\n", 2);
            n += 2;
        }
    }
    out[n++] = '\n';
    return n;
}

void
tp_log(enum tp_log_level level, troupe_pid pid, const char *text, size_t size,
       bool multi)
{
    enum { HEAD = 96 };
    if (!tp_log_enabled(level)) {
        return;
    }
    char *line = tp_malloc(HEAD + size * 5 + 1);
    if (line == NULL) {
        return;
    }
    size_t n = head(line, HEAD, level, pid);
    n += body(line + n, text, size, multi);
    for (size_t at = 0; at < n;) {
        ssize_t done = write(STDERR_FILENO, line + at, n - at);
        if (done <= 0) {
            break;
        }
        at += (size_t)done;
    }
    tp_free(line);
}

/* log.<level>(fmt, ...): string.format with arguments, the text without. */
static int
l_log(lua_State *L)
{
    enum tp_log_level level =
        (enum tp_log_level)lua_tointeger(L, lua_upvalueindex(1));
    luaL_checkstring(L, 1);
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
