/*
 * service.c - what a C host calls to run Lua services.
 *
 * Threads: the one that runs; it becomes scheduler 0.
 * Memory:  see troupe.h.
 * Fails:   see troupe.h.
 * Tests:   spec/unit/service_test.c, spec/lua/command_spec.lua
 */
#define _GNU_SOURCE
#include "bind.h"
#include "run/runtime.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void
troupe_config_init(struct troupe_config *c)
{
    memset(c, 0, sizeof *c);
    c->size = sizeof *c;
}

const char *
troupe_version(void)
{
    return TROUPE_VERSION;
}

static char *
copy_text(const char *text, size_t n)
{
    char *p = tp_malloc(n + 1);
    if (p != NULL) {
        memcpy(p, text, n);
        p[n] = '\0';
    }
    return p;
}

/* The text of a reason: of a table its entries, not what is inside of those. */
static const char shallow[] =
    "local value = ...\n"
    "if type(value) ~= 'table' then return tostring(value) end\n"
    "local function plain(v)\n"
    "  return type(v) == 'string' and ('%q'):format(v) or tostring(v)\n"
    "end\n"
    "local out = {}\n"
    "for i, v in ipairs(value) do out[i] = plain(v) end\n"
    "local n = #out\n"
    "for k, v in pairs(value) do\n"
    "  if #out >= 20 then out[#out + 1] = '...' break end\n"
    "  if type(k) == 'string' and k:find '^[%a_][%w_]*$' then\n"
    "    out[#out + 1] = k .. ' = ' .. plain(v)\n"
    "  elseif not (type(k) == 'number' and k >= 1 and k <= n) then\n"
    "    out[#out + 1] = '[' .. plain(k) .. '] = ' .. plain(v)\n"
    "  end\n"
    "end\n"
    "return '{' .. table.concat(out, ', ') .. '}'\n";

/* Replaces the value on top with a text about it: message and traceback of a
 * failure, else the value. */
static int
describe(lua_State *L)
{
    if (lua_istable(L, 1)) {
        lua_getfield(L, 1, "message");
        lua_getfield(L, 1, "traceback");
        if (lua_isstring(L, -2)) {
            const char *trace = lua_tostring(L, -1);
            lua_pushfstring(L, "%s%s%s", lua_tostring(L, -2),
                            trace == NULL ? "" : "\n",
                            trace == NULL ? "" : trace);
            return 1;
        }
    }
    if (luaL_loadstring(L, shallow) != 0) {
        return lua_error(L);
    }
    lua_pushvalue(L, 1);
    lua_call(L, 1, 1);
    lua_pushfstring(L, "ended with reason: %s", lua_tostring(L, -1));
    return 1;
}

static int
decode_and_describe(lua_State *L)
{
    struct tp_reason *reason = lua_touserdata(L, 1);
    lua_settop(L, 0);
    tp_push_reason(L, reason);
    lua_settop(L, 1);
    return describe(L);
}

static char *
reason_text(struct tp_reason *reason)
{
    lua_State *L = luaL_newstate();
    const char *text = "out of memory";
    size_t n = strlen(text);
    if (L != NULL) {
        luaL_openlibs(L);
        lua_pushcfunction(L, decode_and_describe);
        lua_pushlightuserdata(L, reason);
        lua_pcall(L, 1, 1, 0);
        text = lua_tolstring(L, -1, &n);
    }
    char *copy = copy_text(text == NULL ? "?" : text, text == NULL ? 1 : n);
    if (L != NULL) {
        lua_close(L);
    }
    return copy;
}

/* Compiles path once, so that what is wrong with the file is said before
 * anything runs. The result waits in the cache. */
static int
check_file(const char *path, struct troupe_result *out)
{
    lua_State *L = luaL_newstate();
    int rc = 0;
    if (L == NULL) {
        return TROUPE_ENOMEM;
    }
    /* A literal such as 5LL makes the parser open ffi, whose tables only
     * _LOADED holds: without it they are collected while in use. */
    lua_newtable(L);
    lua_setfield(L, LUA_REGISTRYINDEX, "_LOADED");
    if (!tp_load_file(L, path)) {
        size_t n;
        const char *text = lua_tolstring(L, -1, &n);
        rc = strncmp(text, "cannot open ", 12) == 0 ? TROUPE_ENOTFOUND
                                                    : TROUPE_ESYNTAX;
        out->error = copy_text(text, n);
    }
    lua_close(L);
    return rc;
}

static int
push_boot(lua_State *L)
{
    int argc = (int)lua_tointeger(L, 1);
    const char *const *argv = lua_touserdata(L, 2);
    struct tp_msg **out = lua_touserdata(L, 3);
    luaL_checkstack(L, argc + 1, "too many arguments");
    int first = lua_gettop(L) + 1;
    for (int i = 0; i < argc; i++) {
        lua_pushstring(L, argv[i]);
    }
    struct tp_buf *b = tp_scratch();
    if (b == NULL || tp_encode_n(L, first, argc, "argument", b) != 0 ||
        (*out = tp_msg_new(b->len)) == NULL) {
        return luaL_error(L, "not enough memory");
    }
    memcpy((*out)->data, b->p, b->len);
    return 0;
}

/* The message that starts the root: path and arguments, all strings. */
static struct tp_msg *
boot_message(int argc, const char *const *argv)
{
    struct tp_msg *m = NULL;
    lua_State *L = luaL_newstate();
    if (L == NULL) {
        return NULL;
    }
    lua_pushcfunction(L, push_boot);
    lua_pushinteger(L, argc);
    lua_pushlightuserdata(L, (void *)(uintptr_t)argv);
    lua_pushlightuserdata(L, &m);
    lua_pcall(L, 3, 0, 0);
    lua_close(L);
    return m;
}

static struct tp_run_config
core_config(const struct troupe_config *c)
{
    struct tp_run_config r = {.schedulers = c->schedulers,
                              .max_actors = c->max_actors,
                              .stack_reserve = c->stack_reserve,
                              .stack_guard = c->stack_guard,
                              .slice_ns = c->slice_ns,
                              .blocking_threads = c->blocking_threads,
                              .preemption = tp_vm_preemption(c->preemption),
                              .interruptible = c->handle_signals,
                              .exits_after = c->exits_after};
    return r;
}

/* -- signals ------------------------------------------------------------- */

/* One thread takes SIGINT and SIGTERM; all others have them blocked, since
 * they come from one that had. */
struct signals {
    pthread_t thread;
    sigset_t set, old;
    _Atomic int first;       /* the first one that came */
    _Atomic uint32_t over;   /* 1: the run is over */
    _Atomic uint32_t let_go; /* 1: the thread takes no more signals */
};

static bool
is_over(struct signals *s)
{
    /* SIG-1 seq_cst: after let_go was stored. Partner: signals_end. */
    return atomic_load_explicit(&s->over, memory_order_seq_cst) != 0;
}

/*
 * From the third signal on the system decides: it ends the process. Not once
 * the run is over: signals_end, which has not seen let_go, sends this thread a
 * signal then.
 */
static void
let_go(struct signals *s)
{
    /* SIG-1 seq_cst: stored before over is read. Partner: signals_end stores
     * over, then reads this. */
    atomic_store_explicit(&s->let_go, 1, memory_order_seq_cst);
    if (!is_over(s)) {
        pthread_sigmask(SIG_UNBLOCK, &s->set, NULL);
    }
    while (!is_over(s)) {
        tp_futex_wait(&s->over, 0, TP_NEVER);
    }
}

static void *
signals_main(void *arg)
{
    struct signals *s = arg;
    int sig;
    pthread_setname_np(pthread_self(), "troupe-signals");
    for (unsigned nth = 1; sigwait(&s->set, &sig) == 0 && !is_over(s); nth++) {
        int none = 0;
        /* relaxed: read after the thread was joined. */
        atomic_compare_exchange_strong_explicit(
            &s->first, &none, sig, memory_order_relaxed, memory_order_relaxed);
        tp_interrupt();
        if (nth == 2) {
            let_go(s);
            break;
        }
    }
    return NULL;
}

static bool
signals_begin(struct signals *s)
{
    memset(s, 0, sizeof *s);
    sigemptyset(&s->set);
    sigaddset(&s->set, SIGINT);
    sigaddset(&s->set, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &s->set, &s->old);
    if (pthread_create(&s->thread, NULL, signals_main, s) == 0) {
        return true;
    }
    pthread_sigmask(SIG_SETMASK, &s->old, NULL);
    return false;
}

static int
signals_end(struct signals *s)
{
    /* SIG-1 seq_cst: see let_go. */
    atomic_store_explicit(&s->over, 1, memory_order_seq_cst);
    tp_futex_wake(&s->over, 1);
    /* SIG-1 seq_cst: see let_go. */
    if (atomic_load_explicit(&s->let_go, memory_order_seq_cst) == 0) {
        pthread_kill(s->thread, SIGTERM); /* out of sigwait */
    }
    pthread_join(s->thread, NULL);
    /* relaxed: the thread was joined. */
    int first = atomic_load_explicit(&s->first, memory_order_relaxed);
    /* What came too late for it must not end the process out of order. */
    const struct timespec now = {0, 0};
    for (int sig; (sig = sigtimedwait(&s->set, NULL, &now)) > 0;) {
        first = first == 0 ? sig : first;
    }
    pthread_sigmask(SIG_SETMASK, &s->old, NULL);
    return first;
}

static bool
is_ordinary(const struct tp_reason *r)
{
    return r->kind == TP_REASON_NORMAL || r->kind == TP_REASON_SHUTDOWN;
}

static int
run_root(const struct troupe_config *config, struct tp_lua *t,
         struct troupe_result *out)
{
    struct tp_run_config core = core_config(config);
    struct tp_reason *reason;
    struct signals signals;
    t->silent = t->by_path = true;
    if (config->handle_signals && !signals_begin(&signals)) {
        tp_lua_free(t);
        return TROUPE_ESYSTEM;
    }
    int rc = tp_run(&core, NULL, &tp_lua_class, t, &reason);
    out->left_behind = rc == 0 ? tp_left_behind() : 0;
    tp_log_flush();
    if (config->handle_signals) {
        out->signal = signals_end(&signals);
    }
    if (rc != 0) {
        tp_lua_free(t);
        return rc;
    }
    if (tp_halted(&out->exit_code)) {
        out->exited = true;
    } else if (!is_ordinary(reason) &&
               (out->signal == 0 || reason->kind != TP_REASON_KILLED)) {
        out->exit_code = EXIT_FAILURE;
        out->error = reason_text(reason);
        rc = TROUPE_EFAILED;
    }
    tp_reason_unref(reason);
    return rc;
}

int
troupe_run_file(const struct troupe_config *config, const char *path, int argc,
                const char *const *argv, struct troupe_result *out)
{
    memset(out, 0, sizeof *out);
    if (config == NULL || config->size != sizeof *config || path == NULL ||
        argc < 0 || (unsigned)config->preemption > TROUPE_PREEMPT_OFF) {
        return TROUPE_EINVAL;
    }
    tp_bindings_init();
    int rc = check_file(path, out);
    if (rc != 0) {
        return rc;
    }
    const char **all = tp_calloc((size_t)argc + 1, sizeof *all);
    if (all == NULL) {
        return TROUPE_ENOMEM;
    }
    all[0] = path;
    for (int i = 0; i < argc; i++) {
        all[i + 1] = argv[i];
    }
    struct tp_msg *m = boot_message(argc + 1, all);
    tp_set_args(argc + 1, all);
    tp_free(all);
    enum tp_jit_mode jit =
        tp_vm_preemption(config->preemption) == TROUPE_PREEMPT_HOOK ? TP_JIT_OFF
                                                                    : TP_JIT_ON;
    struct tp_lua *t = m == NULL ? NULL : tp_lua_new(m, NULL, 0, jit);
    if (t == NULL && m != NULL) {
        tp_msg_drop(m);
    }
    return t == NULL ? TROUPE_ENOMEM : run_root(config, t, out);
}

void
troupe_result_fini(struct troupe_result *r)
{
    tp_free(r->error);
    memset(r, 0, sizeof *r);
}
