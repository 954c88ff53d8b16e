/*
 * state.c - the life of one actor's Lua state: create, run, limit, close.
 *
 * Idea:     the state is made on the actor's own green stack, so a spawn costs
 *           the parent no more than a message, and want of memory at birth is
 *           the child's end only. It is closed there too.
 * Threads:  the running actor only.
 * Memory:   the state's blocks are the arena's; messages that a C frame works
 *           on are on t->owned, since the frame may be abandoned.
 * Parks:    main, as Lua code does.
 * Tests:    spec/lua/spawn_spec.lua, spec/lua/errors_spec.lua,
 *           spec/lua/memory_spec.lua
 */
#include "actor/call.h"
#include "actor/registry.h"
#include "actor/slice.h"
#include "bind.h"
#include "handle.h"
#include "run/runtime.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

/* LuaJIT does not collect when an allocation fails, and lets the heap double
 * before it does. A state with a limit collects more eagerly, in percent. */
#define LIMITED_GC_PAUSE   105
#define LIMITED_GC_STEPMUL 400

/* Of an actor's names so many bytes are logged. */
#define NAMES_MAX 256
#define WHY_MAX   200

/* -- scratch ------------------------------------------------------------- */

#define SCRATCH_KEEP (1u << 20)

static pthread_key_t scratch_key;
static pthread_once_t scratch_once = PTHREAD_ONCE_INIT;
static _Thread_local struct tp_buf *scratch
    __attribute__((tls_model("initial-exec")));
static _Thread_local bool scratch_known
    __attribute__((tls_model("initial-exec")));

static void
scratch_free(struct tp_buf *b)
{
    if (b != NULL) {
        tp_buf_fini(b);
        tp_free(b);
    }
}

/* The thread ends; slot is its variable. */
static void
scratch_thread_end(void *slot)
{
    scratch_free(*(struct tp_buf **)slot);
}

static void
scratch_init(void)
{
    pthread_key_create(&scratch_key, scratch_thread_end);
}

static struct tp_lua *
self_lua(void)
{
    struct tp_actor *a = tp_actor_self();
    return a == NULL || a->class != &tp_lua_class ? NULL : tp_lua_of(a);
}

/* noinline: the address of a thread-local must not outlive a switch. */
__attribute__((noinline)) static struct tp_buf *
scratch_take(void)
{
    struct tp_buf *b = scratch;
    if (b != NULL) {
        scratch = NULL;
    } else {
        b = tp_calloc(1, sizeof *b);
    }
    return b;
}

__attribute__((noinline)) static void
scratch_give(struct tp_buf *b)
{
    tp_buf_trim(b, SCRATCH_KEEP);
    if (scratch == NULL) {
        scratch = b;
        if (!scratch_known) {
            pthread_once(&scratch_once, scratch_init);
            scratch_known = pthread_setspecific(scratch_key, &scratch) == 0;
        }
    } else {
        scratch_free(b);
    }
}

/* Outside of an actor (a host before or after a run) the thread keeps one. */
struct tp_buf *
tp_scratch(void)
{
    struct tp_lua *t = self_lua();
    struct tp_buf *b = t == NULL ? NULL : t->scratch;
    if (b == NULL) {
        b = scratch_take();
    }
    if (t != NULL) {
        t->scratch = b;
    } else if (b != NULL) {
        scratch_give(b);
    }
    if (b != NULL) {
        tp_buf_reset(b);
    }
    return b;
}

void
tp_scratch_done(void)
{
    struct tp_lua *t = self_lua();
    if (t != NULL && t->scratch != NULL) {
        struct tp_buf *b = t->scratch;
        t->scratch = NULL;
        scratch_give(b);
    }
}

/* -- owned messages ------------------------------------------------------ */

void
tp_own(struct tp_lua *t, struct tp_msg *m)
{
    m->next = t->owned;
    t->owned = m;
}

void
tp_disown(struct tp_lua *t, struct tp_msg *m)
{
    for (struct tp_msg **p = &t->owned; *p != NULL; p = &(*p)->next) {
        if (*p == m) {
            *p = m->next;
            m->next = NULL;
            return;
        }
    }
}

/* -- reasons ------------------------------------------------------------- */

static const char *const constant_names[] = {
    [TP_REASON_NORMAL] = "normal",
    [TP_REASON_SHUTDOWN] = "shutdown",
    [TP_REASON_KILLED] = "killed",
    [TP_REASON_NOPROC] = "noproc",
};

static const char overflow_text[] = "stack overflow (in C code called by Lua)";

static void
push_failure(lua_State *L, const char *kind, const char *message)
{
    lua_createtable(L, 0, 2);
    lua_pushstring(L, kind);
    lua_setfield(L, -2, "kind");
    lua_pushstring(L, message);
    lua_setfield(L, -2, "message");
}

void
tp_push_reason(lua_State *L, struct tp_reason *reason)
{
    switch (reason->kind) {
    case TP_REASON_MEMORY:
        push_failure(L, "memory", "not enough memory");
        break;
    case TP_REASON_OVERFLOW:
        push_failure(L, "stack_overflow", overflow_text);
        break;
    case TP_REASON_DEADLOCK:
        push_failure(L, "error", troupe_strerror(TROUPE_EDEADLOCK));
        break;
    case TP_REASON_VALUE:
        if (!tp_decode_scalar(L, reason->data, reason->size)) {
            tp_decode(L, reason->data, reason->size);
        }
        break;
    default:
        lua_pushstring(L, constant_names[reason->kind]);
    }
}

static struct tp_reason *
reason_from_string(const char *s)
{
    for (int k = TP_REASON_NORMAL; k <= TP_REASON_NOPROC; k++) {
        if (strcmp(s, constant_names[k]) == 0) {
            return tp_reason_const((enum tp_reason_kind)k);
        }
    }
    return NULL;
}

/* A C function for lua_cpcall: encodes the value at index 2 to the buffer at
 * index 1; returns a text instead when it cannot be sent. */
static int
encode_protected(lua_State *L)
{
    struct tp_buf *b = lua_touserdata(L, 1);
    b->handles = TP_HANDLES_SHARED;
    int rc = tp_encode(L, 2, "reason", b);
    if (rc == TROUPE_ENOMEM) {
        return luaL_error(L, "not enough memory");
    }
    return rc == 0 ? 0 : 1;
}

/* Encodes the value on top, which stays there. NULL: it cannot be sent, the
 * reason why is not kept. */
static struct tp_reason *
encode_reason(lua_State *L)
{
    struct tp_buf *b = tp_scratch();
    int top = lua_gettop(L);
    if (b == NULL) {
        return tp_reason_const(TP_REASON_MEMORY);
    }
    lua_pushcfunction(L, encode_protected);
    lua_pushlightuserdata(L, b);
    lua_pushvalue(L, top);
    int status = lua_pcall(L, 2, 1, 0);
    bool sent = status == 0 && lua_isnil(L, -1);
    lua_settop(L, top);
    if (status != 0) {
        return tp_reason_const(TP_REASON_MEMORY);
    }
    struct tp_reason *r = NULL;
    if (sent) {
        r = tp_reason_new(b->p, b->len);
        tp_take_reason_objects(r);
    }
    tp_scratch_done();
    return r;
}

/* Pushes tostring(value at idx) even where __tostring fails. */
static void
push_text(lua_State *L, int idx)
{
    int abs = idx < 0 ? lua_gettop(L) + 1 + idx : idx;
    if (luaL_callmeta(L, abs, "__tostring") && lua_isstring(L, -1)) {
        return;
    }
    switch (lua_type(L, abs)) {
    case LUA_TSTRING:
    case LUA_TNUMBER:
        lua_pushvalue(L, abs);
        lua_tostring(L, -1);
        break;
    case LUA_TNIL:
        lua_pushliteral(L, "nil");
        break;
    case LUA_TBOOLEAN:
        lua_pushstring(L, lua_toboolean(L, abs) ? "true" : "false");
        break;
    default:
        lua_pushfstring(L, "(error object is a %s value)",
                        luaL_typename(L, abs));
    }
}

static int
text_protected(lua_State *L)
{
    push_text(L, 1);
    return 1;
}

/* What tostring makes of it. */
static int
string_protected(lua_State *L)
{
    if (lua_isstring(L, 1) || luaL_getmetafield(L, 1, "__tostring") != 0) {
        push_text(L, 1);
    } else {
        lua_pushfstring(L, "%s: %p", luaL_typename(L, 1), lua_topointer(L, 1));
    }
    return 1;
}

/* Replaces the value on top with a text for it. */
static void
to_text(lua_State *L, lua_CFunction text)
{
    int top = lua_gettop(L);
    lua_pushcfunction(L, text);
    lua_pushvalue(L, top);
    if (lua_pcall(L, 1, 1, 0) != 0) {
        lua_pop(L, 1);
        lua_pushfstring(L, "(error object is a %s value)",
                        luaL_typename(L, top));
    }
    lua_replace(L, top);
}

struct tp_reason *
tp_to_reason(lua_State *L, int idx)
{
    struct tp_reason *r = NULL;
    if (lua_type(L, idx) == LUA_TSTRING) {
        r = reason_from_string(lua_tostring(L, idx));
    }
    if (r == NULL) {
        lua_pushvalue(L, idx);
        r = encode_reason(L);
        if (r == NULL) {
            to_text(L, string_protected);
            r = encode_reason(L);
        }
        lua_pop(L, 1);
    }
    return r;
}

/* Pushes the traceback of L. It is put together on a stack of its own, since
 * L's may have just overflowed. */
void
tp_push_traceback(lua_State *L, int level)
{
    lua_State *aside = lua_newthread(L);
    luaL_traceback(aside, L, NULL, level);
    lua_xmove(aside, L, 1);
    lua_remove(L, -2);
}

/* Pushes where the error that is being handled comes from. */
static void
push_origin(lua_State *L)
{
    lua_Debug ar;
    if (lua_getstack(L, 1, &ar) && lua_getinfo(L, "f", &ar)) {
        bool again = lua_tocfunction(L, -1) == tp_l_blocking;
        lua_pop(L, 1);
        if (again) {
            tp_push_blocking_trace(L);
            if (lua_isstring(L, -1)) {
                return;
            }
            lua_pop(L, 1);
        }
    }
    tp_push_traceback(L, 1);
}

/* The handler runs where the error was raised, so the traceback is whole. The
 * value goes along as it is; whether it can be sent is seen later. */
int
tp_error_handler(lua_State *L)
{
    lua_settop(L, 1);
    lua_createtable(L, 0, 4);
    lua_pushliteral(L, "error");
    lua_setfield(L, 2, "kind");
    lua_pushvalue(L, 1);
    lua_setfield(L, 2, "value");
    lua_pushvalue(L, 1);
    to_text(L, text_protected);
    push_origin(L);
    lua_setfield(L, 2, "traceback");
    lua_setfield(L, 2, "message");
    return 1;
}

static struct tp_reason *
error_reason(lua_State *L)
{
    struct tp_reason *r = encode_reason(L);
    if (r == NULL) { /* the value cannot be sent: its string instead */
        lua_getfield(L, -1, "message");
        lua_setfield(L, -2, "value");
        r = encode_reason(L);
    }
    return r == NULL ? tp_reason_const(TP_REASON_MEMORY) : r;
}

/* Is the failure on top one of memory that became a text on its way, in
 * require, coroutine.wrap or through a pcall and error? */
static bool
is_memory_text(lua_State *L)
{
    static const char memory[] = "not enough memory";
    size_t n, m = sizeof memory - 1;
    lua_getfield(L, -1, "value");
    const char *s =
        lua_type(L, -1) == LUA_TSTRING ? lua_tolstring(L, -1, &n) : NULL;
    bool is = s != NULL && n >= m && strcmp(s + n - m, memory) == 0 &&
              (n == m || s[n - m - 1] == '\t' ||
               (n > m + 1 && strncmp(s + n - m - 2, ": ", 2) == 0));
    lua_pop(L, 1);
    return is;
}

/* Pushes the failure of an error that is a text, where the stack is gone. */
static void
push_text_failure(lua_State *L, const char *text)
{
    push_failure(L, "error", text);
    lua_pushliteral(L, "");
    lua_setfield(L, -2, "traceback");
    lua_getfield(L, -1, "message");
    lua_setfield(L, -2, "value");
}

struct tp_reason *
tp_reason_of_error(lua_State *L, int status)
{
    if (status == LUA_ERRMEM || (lua_istable(L, -1) && is_memory_text(L))) {
        return tp_reason_const(TP_REASON_MEMORY);
    }
    if (!lua_istable(L, -1)) { /* the handler itself failed */
        const char *text = lua_tostring(L, -1);
        if (text != NULL && strstr(text, "not enough memory") != NULL) {
            return tp_reason_const(TP_REASON_MEMORY);
        }
        push_text_failure(L, text == NULL ? "error in error handling" : text);
    }
    return error_reason(L);
}

/* -- boot ---------------------------------------------------------------- */

static void
note_source(struct tp_lua *t, lua_State *L, int idx)
{
    lua_Debug ar;
    if (lua_type(L, idx) == LUA_TSTRING) {
        snprintf(t->source, sizeof t->source, "%s", lua_tostring(L, idx));
    } else {
        lua_pushvalue(L, idx);
        lua_getinfo(L, ">S", &ar);
        snprintf(t->source, sizeof t->source, "%s:%d", ar.short_src,
                 ar.linedefined);
    }
}

static bool
ends_in_lua(const char *s)
{
    size_t n = strlen(s);
    return n > 4 && strcmp(s + n - 4, ".lua") == 0;
}

/* Replaces the name at index 1 with the chunk that it names. */
static void
load_what(lua_State *L, bool by_path)
{
    const char *name = lua_tostring(L, 1);
    if (!by_path && !ends_in_lua(name)) {
        tp_find_module(L, name);
    } else if (!tp_load_file(L, name)) {
        lua_error(L);
    }
    lua_replace(L, 1);
}

/* Has the table on top a field that makes it a supervisor's specification or a
 * server's behaviour? */
static bool
is_service(lua_State *L)
{
    static const char *const marks[] = {"children", "_dynamic", "_behaviour"};
    bool is = false;
    for (size_t i = 0; i < 3 && !is; i++) {
        lua_pushstring(L, marks[i]);
        lua_rawget(L, -2);
        is = !lua_isnil(L, -1);
        lua_pop(L, 1);
    }
    return is;
}

/* The table on top is what the actor is to be; arguments at 2.. */
static void
run_service(lua_State *L, int n)
{
    lua_getglobal(L, "require");
    lua_pushliteral(L, "troupe.supervisor");
    lua_call(L, 1, 1);
    lua_getfield(L, -1, "_returned");
    lua_pushvalue(L, n + 2);
    for (int i = 2; i <= n + 1; i++) {
        lua_pushvalue(L, i);
    }
    lua_call(L, n + 1, 0);
}

/* Stack: what, arguments. Runs it; a chunk that returns a function is called
 * with the same arguments; one that returns a specification or a behaviour
 * becomes a supervisor or a server. */
static void
run_what(lua_State *L, bool by_name)
{
    int n = lua_gettop(L) - 1;
    if (!by_name) {
        lua_call(L, n, 0);
        return;
    }
    luaL_checkstack(L, 2 * n + 8, "too many arguments");
    for (int i = 1; i <= n + 1; i++) {
        lua_pushvalue(L, i);
    }
    lua_call(L, n, 1);
    if (lua_isfunction(L, -1)) {
        lua_replace(L, 1);
        lua_call(L, n, 0);
    } else if (lua_istable(L, -1) && is_service(L)) {
        run_service(L, n);
    }
}

/* The actor's life, under tp_error_handler. */
static int
boot(lua_State *L)
{
    struct tp_lua *t = lua_touserdata(L, 1);
    lua_settop(L, 0);
    struct tp_msg *m = t->boot;
    tp_decode(L, m->data, m->size);
    t->boot = NULL;
    tp_msg_drop(m);
    bool by_name = lua_type(L, 1) == LUA_TSTRING;
    note_source(t, L, 1);
    if (t->by_path) { /* a script: has the global that Lua's command gives */
        tp_push_args(L);
        lua_setglobal(L, "arg");
    }
    if (by_name) {
        load_what(L, t->by_path);
    }
    run_what(L, by_name);
    return 0;
}

static int
open_all(lua_State *L)
{
    lua_gc(L, LUA_GCSTOP, 0);
    tp_open_libs(L);
    tp_open_pids(L);
    struct tp_lua *t = lua_touserdata(L, 1);
    tp_vm_open(L, t);
    tp_hook_begin(t);
    if (t->jit_mode == TP_JIT_AUTO && tp_hook_preempts()) {
        t->jit_mode = TP_JIT_OFF; /* compiled code looks at no hook */
    }
    if (t->jit_mode == TP_JIT_ON) {
        tp_jit_enable(L, t);
    }
    lua_gc(L, LUA_GCRESTART, 0);
    return 0;
}

/* -- class --------------------------------------------------------------- */

/* Writes " (name, name)" for an actor that has names, else nothing. */
static void
names_text(struct tp_actor *a, char *to, size_t size)
{
    struct tp_msg *m;
    size_t n = 0;
    to[0] = '\0';
    if (tp_names(a->pid, &m) != 0) {
        return;
    }
    for (size_t at = 0; at < m->size && n + 4 < size;) {
        size_t len = m->data[at];
        n += (size_t)snprintf(to + n, size - n, "%s%.*s", n == 0 ? "(" : ", ",
                              (int)len, (const char *)m->data + at + 1);
        n = n < size - 3 ? n : size - 3;
        at += len + 1;
    }
    if (n > 0) {
        memcpy(to + n, ") ", 3);
    }
    tp_msg_free(m);
}

void
tp_log_failure(struct tp_actor *a, lua_State *L, int idx, const char *what)
{
    char names[NAMES_MAX];
    names_text(a, names, sizeof names);
    lua_getfield(L, idx, "message");
    lua_getfield(L, idx, "traceback");
    const char *message = lua_tostring(L, -2), *trace = lua_tostring(L, -1);
    lua_pushfstring(L, "%s%s %s: %s\n%s", names, tp_lua_of(a)->source, what,
                    message == NULL ? "?" : message,
                    trace == NULL ? "" : trace);
    size_t n;
    const char *text = lua_tolstring(L, -1, &n);
    tp_log(TP_LOG_ERROR, a->pid, text, n, true);
    lua_settop(L, idx);
}

void
tp_log_bare(struct tp_actor *a, const char *what, const char *why)
{
    struct tp_lua *t = tp_lua_of(a);
    char names[NAMES_MAX], line[NAMES_MAX + sizeof t->source + WHY_MAX + 80];
    names_text(a, names, sizeof names);
    int n = snprintf(line, sizeof line, "%s%s %s: %.*s", names, t->source, what,
                     WHY_MAX, why);
    tp_log(TP_LOG_ERROR, a->pid, line, (size_t)n, false);
}

static const char ended[] = "ended by an error";

static int
log_protected(lua_State *L)
{
    tp_log_failure(lua_touserdata(L, 2), L, 1, ended);
    return 0;
}

/* One log entry for an actor that failed; err is on top of the stack. */
static void
tell_failure(struct tp_actor *a, struct tp_lua *t, lua_State *L,
             struct tp_reason *r)
{
    if (t->silent) {
        return;
    }
    if (r->kind != TP_REASON_MEMORY && lua_istable(L, -1)) {
        lua_pushcfunction(L, log_protected);
        lua_pushvalue(L, -2);
        lua_pushlightuserdata(L, a);
        if (lua_pcall(L, 2, 0, 0) == 0) {
            return;
        }
    }
    tp_log_bare(a, ended, "not enough memory");
}

static void
failed(struct tp_actor *a, struct tp_lua *t, int status)
{
    struct tp_reason *r = tp_reason_of_error(t->L, status);
    tell_failure(a, t, t->L, r);
    tp_actor_set_reason(a, r);
}

/* _fail(failure [, source]): the running actor ends as by that error: logged,
 * a value that cannot be sent becomes its text. A failure that is no table is
 * one of memory. */
int
tp_l_fail(lua_State *L)
{
    struct tp_actor *a = tp_check_actor(L);
    struct tp_lua *t = tp_lua_of(a);
    struct tp_reason *r = tp_reason_const(TP_REASON_MEMORY);
    if (lua_isstring(L, 2)) {
        snprintf(t->source, sizeof t->source, "%s", lua_tostring(L, 2));
    }
    lua_settop(L, 1);
    if (lua_istable(L, 1)) {
        r = error_reason(L);
    }
    tell_failure(a, t, L, r);
    return tp_leave(L, a, r);
}

/* troupe.run: t->L is a coroutine of the host's with the function on it. The
 * error stays there for the host; the reason is for those who join. */
static void
borrowed_main(struct tp_actor *a, struct tp_lua *t)
{
    tp_hook_begin(t);
    int status = lua_pcall(t->L, 0, LUA_MULTRET, 0);
    tp_hook_end(t);
    *t->out_status = status;
    if (status == 0 || tp_is_exit_mark(t->L, -1)) {
        return;
    }
    struct tp_reason *r = tp_reason_const(TP_REASON_MEMORY);
    int top = lua_gettop(t->L);
    lua_pushcfunction(t->L, tp_error_handler);
    lua_pushvalue(t->L, top);
    if (status != LUA_ERRMEM && lua_pcall(t->L, 1, 1, 0) == 0) {
        r = tp_reason_of_error(t->L, LUA_ERRRUN);
    }
    lua_settop(t->L, top);
    tp_actor_set_reason(a, r);
}

static int
complete_ffi(lua_State *L)
{
    lua_getfield(L, LUA_REGISTRYINDEX, "_LOADED");
    lua_getfield(L, -1, "ffi");
    if (lua_isnil(L, -1)) {
        lua_pushcfunction(L, luaopen_ffi);
        lua_call(L, 0, 0);
    }
    return 0;
}

/* A chunk with a 64-bit literal opens ffi by itself. If memory ran short half
 * way through, lua_close would crash on it: it is opened again, whole. */
static void
prepare_close(lua_State *L, struct tp_lua *t)
{
    size_t limit = t->arena.limit;
    t->arena.limit = SIZE_MAX;
    lua_cpcall(L, complete_ffi, NULL);
    t->arena.limit = limit;
}

/* What a state may use beyond its limit once it had to while LuaJIT recorded: as
 * much as LuaJIT needs to compile, so that this ends no actor. */
#define RECORDER_ROOM ((size_t)128 << 10)

static bool
give_room(struct tp_lua *t)
{
    if (t->has_recorder_room || t->arena.limit == SIZE_MAX) {
        return false;
    }
    t->has_recorder_room = true;
    t->arena.limit += RECORDER_ROOM;
    return true;
}

void
tp_end_memory(struct tp_actor *a)
{
    tell_failure(a, tp_lua_of(a), NULL, tp_reason_const(TP_REASON_MEMORY));
    tp_actor_exit(a, tp_reason_const(TP_REASON_MEMORY));
}

/*
 * LuaJIT raises an error now. Within a trace it may take what it finds there for
 * a frame of the Lua stack, and where it records one it may leave the stack with
 * a frame too many: it would crash, sooner or later (docs/design/jit.md). The
 * actor ends here, or what its finish still has to do. Its state can be closed,
 * as after an error.
 */
static bool
on_refusal(struct tp_arena *arena)
{
    struct tp_lua *t = tp_container_of(arena, struct tp_lua, arena);
    struct tp_actor *a = tp_actor_self();
    bool in_trace = tp_vm_is_in_trace(t);
    if (a == NULL || t->borrowed || !(in_trace || tp_vm_is_recording(t))) {
        return false;
    }
    if (!in_trace && give_room(t)) {
        return true;
    }
    if (a->finishing) {
        tp_finish_give_up(a);
    }
    tp_end_memory(a);
}

struct bare {
    const char *text;
    struct tp_reason *reason;
};

static int
make_bare(lua_State *L)
{
    struct bare *b = lua_touserdata(L, 1);
    push_text_failure(L, b->text);
    b->reason = encode_reason(L);
    return 0;
}

/* Without the state of the actor, which can run nothing any more. */
static struct tp_reason *
bare_reason(const char *text)
{
    lua_State *L = luaL_newstate();
    struct bare b = {text, NULL};
    if (L != NULL) {
        lua_cpcall(L, make_bare, &b);
        lua_close(L);
    }
    return b.reason == NULL ? tp_reason_const(TP_REASON_MEMORY) : b.reason;
}

void
tp_end_bare(struct tp_actor *a, const char *text)
{
    if (a->finishing) {
        tp_log_bare(a, tp_finalizer_failed, text);
        tp_finish_give_up(a);
    }
    if (!tp_lua_of(a)->silent) {
        tp_log_bare(a, ended, text);
    }
    tp_actor_exit(a, bare_reason(text));
}

/*
 * LuaJIT is about to end the process, over an error that no frame can catch:
 * compiled code has called C code that calls back, or C code without unwind
 * tables is on the stack. The actor ends instead.
 */
static int
on_panic(lua_State *L)
{
    struct tp_actor *a = tp_actor_self();
    char text[WHY_MAX];
    if (a == NULL || a->class != &tp_lua_class) {
        return 0;
    }
    const char *s = lua_type(L, -1) == LUA_TSTRING ? lua_tostring(L, -1) : "?";
    snprintf(text, sizeof text, "%s", s);
    tp_end_bare(a, text);
}

/* Under lua_cpcall, since an error that nobody catches ends the process, and
 * each push of a function may raise one of memory. */
static int
live(lua_State *L)
{
    struct tp_lua *t = lua_touserdata(L, 1);
    lua_settop(L, 0);
    lua_pushcfunction(L, tp_error_handler);
    lua_pushcfunction(L, boot);
    lua_pushlightuserdata(L, t);
    int status = lua_pcall(L, 1, 0, 1);
    if (status != 0) {
        failed(tp_actor_self(), t, status);
    }
    return 0;
}

static void
lua_main(struct tp_actor *a, void *arg)
{
    struct tp_lua *t = arg;
    if (t->borrowed) {
        borrowed_main(a, t);
        return;
    }
    t->L = lua_newstate(tp_arena_alloc, &t->arena);
    if (t->L == NULL) {
        tell_failure(a, t, NULL, tp_reason_const(TP_REASON_MEMORY));
        tp_actor_set_reason(a, tp_reason_const(TP_REASON_MEMORY));
        return;
    }
    lua_State *L = t->L;
    /* Not before: lua_newstate crashes when its second block is refused. With
     * no limit all its blocks come from the first chunk, or the first fails. */
    tp_arena_set_limit(&t->arena, t->memory_limit);
    t->arena.on_refusal = on_refusal;
    lua_atpanic(L, on_panic);
    int status = lua_cpcall(L, open_all, t);
    if (t->arena.limit != SIZE_MAX) { /* garbage shall not count for much */
        lua_gc(L, LUA_GCSETPAUSE, LIMITED_GC_PAUSE);
        lua_gc(L, LUA_GCSETSTEPMUL, LIMITED_GC_STEPMUL);
    }
    if (status == 0) {
        status = lua_cpcall(L, live, t);
    }
    if (status != 0) { /* not even that much memory */
        tell_failure(a, t, L, tp_reason_const(TP_REASON_MEMORY));
        tp_actor_set_reason(a, tp_reason_const(TP_REASON_MEMORY));
    }
    if (t->arena.refused) {
        prepare_close(L, t);
    }
}

static void
drop_messages(struct tp_lua *t)
{
    while (t->owned != NULL) {
        struct tp_msg *m = t->owned;
        t->owned = m->next;
        tp_msg_drop(m);
    }
    if (t->boot != NULL) {
        tp_msg_drop(t->boot);
        t->boot = NULL;
    }
}

/* What frames that are no more had in hand. */
static void
drop_left(struct tp_actor *a, struct tp_lua *t)
{
    /* Taken by such a frame: its caller shall learn the reason. */
    for (struct tp_msg *m = t->owned; m != NULL; m = m->next) {
        if (m->kind == TP_MSG_CALL && m->ref != 0) {
            tp_owed_queued(a, m);
            m->ref = 0;
        }
    }
    drop_messages(t);
}

static void
lua_finish(struct tp_actor *a, void *arg)
{
    struct tp_lua *t = arg;
    drop_left(a, t);
    if (t->L != NULL && !t->borrowed && (t->may_finalize || t->jit_on)) {
        tp_vm_settle(t, a->stopped_result);
        lua_close(t->L);
        t->L = NULL;
    } /* else nothing outside its arena hangs on it: see may_finalize */
}

static void
lua_overflowed(struct tp_actor *a, void *arg)
{
    struct tp_lua *t = arg;
    static const char given_up[] =
        "its finalizers did not come to an end and were given up";
    if (a->given_up) {
        tp_log(TP_LOG_WARN, a->pid, given_up, sizeof given_up - 1, false);
    } else if (!t->silent) {
        tp_log_bare(a, ended, overflow_text);
    }
    drop_left(a, t);
}

static void
lua_class_free(void *arg)
{
    tp_lua_free(arg);
}

const struct tp_actor_class tp_lua_class = {
    .main = lua_main,
    .finish = lua_finish,
    .overflowed = lua_overflowed,
    .free = lua_class_free,
    .may_stop = tp_vm_may_stop,
    .meant_fault = tp_vm_meant_fault,
    .may_abandon = tp_vm_may_abandon,
    .end_soon = tp_vm_end_soon,
    .may_give_up = tp_vm_may_give_up,
};

struct tp_lua *
tp_lua_new(struct tp_msg *boot_msg, struct tp_env *env, size_t memory_limit,
           enum tp_jit_mode jit)
{
    struct tp_lua *t = tp_calloc(1, sizeof *t);
    if (t == NULL) {
        return NULL;
    }
    tp_arena_init(&t->arena, 0);
    t->memory_limit = memory_limit;
    t->boot = boot_msg;
    t->env = env == NULL ? NULL : tp_env_ref(env);
    t->jit_mode = (uint8_t)jit;
    return t;
}

void
tp_lua_free(struct tp_lua *t)
{
    drop_messages(t);
    if (t->scratch != NULL) {
        scratch_free(t->scratch);
    }
    if (t->borrowed) {
        tp_vm_unfence(t);
    } else if (t->L != NULL) {
        tp_vm_free_code(t); /* a state that was given up, not closed */
    }
    tp_jit_release(t);
    if (t->env != NULL) {
        tp_env_unref(t->env);
    }
    if (t->child_env != NULL) {
        tp_env_unref(t->child_env);
    }
    tp_arena_fini(&t->arena);
    tp_free(t);
}

/* -- hooks --------------------------------------------------------------- */

static const struct tp_codec_ops codec_ops = {
    .is_pid = tp_pid_was_issued,
    .encode_handle = tp_handle_encode,
    .decode_handle = tp_handle_decode,
};

static void
slow_finish(troupe_pid pid)
{
    static const char text[] =
        "is still in its finalizers; others were told of its end without it";
    tp_log(TP_LOG_WARN, pid, text, sizeof text - 1, false);
}

static void
left_behind(unsigned actors)
{
    char text[80];
    int n = snprintf(text, sizeof text,
                     "left behind in calls that block: %u actor%s", actors,
                     actors == 1 ? "" : "s");
    tp_log(TP_LOG_WARN, 0, text, (size_t)n, false);
}

static void
init_once(void)
{
    tp_on_left_behind = left_behind;
    tp_actor_on_slow_finish = slow_finish;
    tp_codec_init(&codec_ops);
    tp_handles_init();
    lua_State *L = luaL_newstate(); /* for what there is to find out */
    if (L != NULL) {
        luaL_openlibs(L);
    }
    tp_vm_init(L);
    if (L != NULL) {
        tp_throw_init(L);
        tp_jit_init(L);
        lua_close(L);
    }
}

void
tp_bindings_init(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, init_once);
}

/* -- checks -------------------------------------------------------------- */

struct tp_actor *
tp_check_actor(lua_State *L)
{
    struct tp_actor *a = tp_actor_self();
    if (TP_UNLIKELY(a == NULL || a->class != &tp_lua_class)) {
        luaL_error(L, "%s", troupe_strerror(TROUPE_ENOTACTOR));
    }
    if (TP_UNLIKELY(!tp_stack_has_room())) {
        luaL_error(L, "stack overflow");
    }
    return a;
}

/* An unkillable root learns why it shall end. */
static int
raise_killed(lua_State *L)
{
    struct tp_actor *a = tp_actor_self();
    tp_mutex_lock(&a->slot->lock, TP_RANK_SLOT);
    bool deadlock = a->reason != NULL && a->reason->kind == TP_REASON_DEADLOCK;
    tp_mutex_unlock(&a->slot->lock, TP_RANK_SLOT);
    return luaL_error(
        L, "%s", troupe_strerror(deadlock ? TROUPE_EDEADLOCK : TROUPE_EKILLED));
}

int
tp_raise_wait(lua_State *L, int rc)
{
    if (rc == TROUPE_EKILLED) {
        return raise_killed(L);
    }
    if (rc == TROUPE_EINVAL) {
        return luaL_error(L, "a finalizer cannot wait");
    }
    return luaL_error(L, "%s", troupe_strerror(rc));
}
