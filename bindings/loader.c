/*
 * loader.c - libraries and modules of an actor's state.
 *
 * Idea:    a new state opens only what nearly all programs use. io, os, debug,
 *          jit and package are tables that open themselves at the first look
 *          into them, and ffi and the rest are preloaded. Lua files come from
 *          a process-wide cache of bytecode, keyed by path, time and size.
 * Threads: states are their actor's; the cache is for any thread.
 * Locks:   TP_RANK_CACHE, never while Lua runs.
 * Memory:  cache entries are counted; one that was replaced lives until its
 *          last reader is done.
 * Parks:   require may, since it runs Lua code.
 * Tests:   spec/lua/require_spec.lua, spec/lua/libraries_spec.lua
 */
#define _GNU_SOURCE
#include "bind.h"

#include "base/thread_errno.h"
#include "embed.h"

#include <fcntl.h>
#include <luajit.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* -- bytecode cache ------------------------------------------------------ */

#define CACHE_BUCKETS 256
#define CACHE_MAX     4096

struct code {
    struct code *next; /* lock */
    uint64_t hash;
    int64_t mtime_ns;
    int64_t size;
    uint64_t inode;
    _Atomic uint32_t refs;
    size_t path_len;
    size_t len;
    unsigned char data[]; /* path, then bytecode */
};

static struct {
    struct tp_mutex lock;
    struct code *buckets[CACHE_BUCKETS];
    size_t count;
} cache;

static void
code_unref(struct code *c)
{
    /* CODE-1 acq_rel: the last one frees after all others have read. Both
     * sides are this decrement. */
    if (atomic_fetch_sub_explicit(&c->refs, 1, memory_order_acq_rel) == 1) {
        tp_free(c);
    }
}

static uint64_t
hash_text(const char *s)
{
    uint64_t h = 14695981039346656037ull;
    for (; *s != '\0'; s++) {
        h = (h ^ (unsigned char)*s) * 1099511628211ull;
    }
    return h;
}

static int64_t
mtime_ns(const struct stat *st)
{
    return (int64_t)st->st_mtim.tv_sec * 1000000000 + st->st_mtim.tv_nsec;
}

static bool
code_matches(const struct code *c, const char *path, const struct stat *st)
{
    return strcmp((const char *)c->data, path) == 0 &&
           c->mtime_ns == mtime_ns(st) && c->size == st->st_size &&
           c->inode == st->st_ino;
}

static struct code *
cache_get(const char *path, const struct stat *st)
{
    uint64_t h = hash_text(path);
    struct code *c;
    tp_mutex_lock(&cache.lock, TP_RANK_CACHE);
    for (c = cache.buckets[h % CACHE_BUCKETS]; c != NULL; c = c->next) {
        if (c->hash == h && code_matches(c, path, st)) {
            /* relaxed: the lock orders it. */
            atomic_fetch_add_explicit(&c->refs, 1, memory_order_relaxed);
            break;
        }
    }
    tp_mutex_unlock(&cache.lock, TP_RANK_CACHE);
    return c;
}

/* Takes one reference of c; an older entry of the same path goes. */
static void
cache_put(struct code *c)
{
    struct code *old = NULL;
    tp_mutex_lock(&cache.lock, TP_RANK_CACHE);
    struct code **p = &cache.buckets[c->hash % CACHE_BUCKETS];
    while (*p != NULL && strcmp((char *)(*p)->data, (char *)c->data) != 0) {
        p = &(*p)->next;
    }
    if (*p != NULL) {
        old = *p;
        *p = old->next;
        cache.count--;
    }
    if (cache.count < CACHE_MAX) {
        p = &cache.buckets[c->hash % CACHE_BUCKETS];
        c->next = *p;
        *p = c;
        cache.count++;
        c = NULL;
    }
    tp_mutex_unlock(&cache.lock, TP_RANK_CACHE);
    if (old != NULL) {
        code_unref(old);
    }
    if (c != NULL) {
        code_unref(c);
    }
}

/* -- reading and compiling ----------------------------------------------- */

static char *
read_file(const char *path, struct stat *st, size_t *out_size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    char *p = NULL;
    if (fd < 0) {
        return NULL;
    }
    if (fstat(fd, st) == 0 && S_ISDIR(st->st_mode)) {
        errno = EISDIR;
    } else {
        size_t cap = (size_t)st->st_size + 1, n = 0;
        p = tp_malloc(cap);
        for (ssize_t got = 1; p != NULL && got > 0; n += (size_t)got) {
            if (n == cap) {
                char *q = tp_realloc(p, cap *= 2);
                if (q == NULL) {
                    tp_free(p);
                    p = NULL;
                    break;
                }
                p = q;
            }
            do {
                got = read(fd, p + n, cap - n);
            } while (got < 0 && errno == EINTR);
            if (got < 0) {
                tp_free(p);
                p = NULL;
                break;
            }
        }
        *out_size = n;
    }
    int saved = errno;
    close(fd);
    errno = saved;
    return p;
}

/* A first line that begins with # is for the shell; its newline stays, so that
 * line numbers are right. */
static const char *
skip_shebang(const char *text, size_t *size)
{
    if (*size > 0 && text[0] == '#') {
        const char *nl = memchr(text, '\n', *size);
        const char *from = nl == NULL ? text + *size : nl;
        *size -= (size_t)(from - text);
        return from;
    }
    return text;
}

static int
dump_writer(lua_State *L, const void *p, size_t n, void *ud)
{
    (void)L;
    return tp_buf_put(ud, p, n) ? 0 : 1;
}

/* The chunk on top of the stack into the cache; failing is no error. */
static void
remember(lua_State *L, const char *path, const struct stat *st)
{
    struct tp_buf *b = tp_scratch();
    if (b == NULL || lua_dump(L, dump_writer, b) != 0) {
        return;
    }
    size_t path_len = strlen(path) + 1;
    struct code *c = tp_malloc(sizeof *c + path_len + b->len);
    if (c == NULL) {
        tp_scratch_done();
        return;
    }
    c->hash = hash_text(path);
    c->mtime_ns = mtime_ns(st);
    c->size = st->st_size;
    c->inode = st->st_ino;
    atomic_init(&c->refs, 1);
    c->path_len = path_len;
    c->len = b->len;
    memcpy(c->data, path, path_len);
    memcpy(c->data + path_len, b->p, b->len);
    tp_scratch_done();
    cache_put(c);
}

struct text {
    char *data;
    const char *start;
    size_t size;
};

/* Lua pulls the text piece by piece; all at once here. */
static const char *
text_reader(lua_State *L, void *ud, size_t *size)
{
    struct text *t = ud;
    (void)L;
    *size = t->size;
    t->size = 0;
    return *size == 0 ? NULL : t->start;
}

static bool
compile(lua_State *L, const char *path)
{
    struct stat st;
    struct text t;
    t.data = read_file(path, &st, &t.size);
    if (t.data == NULL) {
        lua_pushfstring(L, "cannot open %s: %s", path, strerror(errno));
        return false;
    }
    t.start = skip_shebang(t.data, &t.size);
    lua_pushfstring(L, "@%s", path);
    /* lua_load raises nothing: the text cannot leak. */
    int rc = lua_load(L, text_reader, &t, lua_tostring(L, -1));
    tp_free(t.data);
    lua_remove(L, -2);
    if (rc != 0) {
        return false;
    }
    remember(L, path, &st);
    return true;
}

bool
tp_load_file(lua_State *L, const char *path)
{
    struct stat st;
    if (stat(path, &st) == 0) {
        struct code *c = cache_get(path, &st);
        if (c != NULL) {
            struct text t = {NULL, (char *)c->data + c->path_len, c->len};
            int rc = lua_load(L, text_reader, &t, path);
            code_unref(c);
            return rc == 0;
        }
    }
    return compile(L, path);
}

/* -- searching ----------------------------------------------------------- */

static bool
is_readable(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && !S_ISDIR(st.st_mode) &&
           access(path, R_OK) == 0;
}

/* Pushes the file that a module is in, or the list of those tried. */
static bool
search_path(lua_State *L, const char *name, const char *path)
{
    luaL_Buffer tried;
    luaL_gsub(L, name, ".", "/");
    const char *file_name = lua_tostring(L, -1);
    luaL_buffinit(L, &tried);
    while (*path != '\0') {
        const char *end = strchrnul(path, ';');
        if (end > path) {
            lua_pushlstring(L, path, (size_t)(end - path));
            luaL_gsub(L, lua_tostring(L, -1), "?", file_name);
            lua_remove(L, -2);
            if (is_readable(lua_tostring(L, -1))) {
                return true;
            }
            lua_pushfstring(L, "\n\tno file '%s'", lua_tostring(L, -1));
            lua_remove(L, -2);
            luaL_addvalue(&tried);
        }
        path = *end == '\0' ? end : end + 1;
    }
    luaL_pushresult(&tried);
    return false;
}

static int
lua_searcher(lua_State *L)
{
    const char *name = luaL_checkstring(L, 1);
    lua_getfield(L, LUA_REGISTRYINDEX, "_LOADED");
    lua_getfield(L, -1, "package");
    lua_getfield(L, -1, "path");
    const char *path = lua_tostring(L, -1);
    if (path == NULL) {
        return luaL_error(L, "'package.path' must be a string");
    }
    if (!search_path(L, name, path)) {
        return 1;
    }
    lua_pushvalue(L, -1);
    if (!tp_load_file(L, lua_tostring(L, -1))) {
        return luaL_error(L, "error loading module '%s' from file '%s':\n\t%s",
                          name, lua_tostring(L, -2), lua_tostring(L, -1));
    }
    return 1;
}

/* Compiled once; the cache knows it by a path that no file has. */
static int
load_own(lua_State *L, const struct tp_lua_module *m)
{
    struct stat st = {.st_size = (off_t)m->size};
    const char *name = lua_pushfstring(L, "=%s", m->name);
    struct code *c = cache_get(name, &st);
    struct text t = {NULL, m->data, m->size};
    if (c != NULL) {
        t.start = (char *)c->data + c->path_len;
        t.size = c->len;
    }
    int rc = lua_load(L, text_reader, &t, name);
    if (c != NULL) {
        code_unref(c);
    }
    if (rc != 0) {
        return lua_error(L);
    }
    if (c == NULL) {
        remember(L, name, &st);
    }
    return 1;
}

/* The modules that come with the library. */
static int
own_searcher(lua_State *L)
{
    const char *name = luaL_checkstring(L, 1);
    if (strcmp(name, "troupe") == 0 || strcmp(name, "troupe.core") == 0) {
        lua_pushcfunction(L, tp_open_troupe);
        return 1;
    }
    for (size_t i = 0; i < tp_lua_module_count; i++) {
        const struct tp_lua_module *m = &tp_lua_modules[i];
        if (strcmp(name, m->name) == 0) {
            return load_own(L, m);
        }
    }
    lua_pushfstring(L, "\n\tno module '%s' in troupe", name);
    return 1;
}

/* -- environment --------------------------------------------------------- */

struct tp_env {
    _Atomic uint32_t refs;
    size_t path_len, cpath_len, preload_len;
    char data[]; /* path, cpath, both with a 0, encoded preload table */
};

struct tp_env *
tp_env_ref(struct tp_env *e)
{
    if (e != NULL) {
        /* relaxed: who takes a reference has one already. */
        atomic_fetch_add_explicit(&e->refs, 1, memory_order_relaxed);
    }
    return e;
}

void
tp_env_unref(struct tp_env *e)
{
    if (e == NULL) {
        return;
    }
    /* ENV-1 acq_rel: the last one frees after all others have read. Both sides
     * are this decrement. */
    if (atomic_fetch_sub_explicit(&e->refs, 1, memory_order_acq_rel) == 1) {
        tp_free(e);
    }
}

static const char *
env_cpath(const struct tp_env *e)
{
    return e->data + e->path_len + 1;
}

static struct tp_env *
env_new(const char *path, const char *cpath, const void *preload,
        size_t preload_len)
{
    size_t pl = strlen(path), cl = strlen(cpath);
    struct tp_env *e = tp_malloc(sizeof *e + pl + cl + 2 + preload_len);
    if (e == NULL) {
        return NULL;
    }
    atomic_init(&e->refs, 1);
    e->path_len = pl;
    e->cpath_len = cl;
    e->preload_len = preload_len;
    memcpy(e->data, path, pl + 1);
    memcpy(e->data + pl + 1, cpath, cl + 1);
    if (preload_len != 0) {
        memcpy(e->data + pl + cl + 2, preload, preload_len);
    }
    return e;
}

static bool
is_builtin_preload(const char *name)
{
    static const char *const names[] = {
        "ffi",         "troupe",       "troupe.core", "string.buffer",
        "table.new",   "table.clear",  "jit.util",    "jit.opt",
        "jit.profile", "thread.exdata"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strcmp(name, names[i]) == 0) {
            return true;
        }
    }
    return false;
}

/* Pushes what stands for the function on top in a message: itself; a C
 * function's address; or why it cannot be sent, after a '!'. */
static void
push_preload(lua_State *L)
{
    if (lua_iscfunction(L, -1)) {
        lua_pushfstring(L, "%p", (void *)(uintptr_t)lua_tocfunction(L, -1));
        return;
    }
    struct tp_buf *b = tp_scratch();
    int rc = TROUPE_ENOMEM;
    if (b != NULL) {
        b->handles = TP_HANDLES_NONE;
        rc = tp_encode(L, -1, "function", b);
    }
    tp_scratch_done();
    if (rc == TROUPE_EINVAL) {
        lua_pushliteral(L, "!");
        lua_insert(L, -2);
        lua_concat(L, 2);
    } else if (rc != 0) {
        luaL_error(L, "not enough memory");
    } else {
        lua_pushvalue(L, -1);
    }
}

/*
 * Pushes a table of what package.preload (at idx) holds beyond the built-in
 * names, in a form that can be sent: Lua functions as they are, C functions by
 * address, since a process has them at one. Returns how many.
 */
static int
collect_preload(lua_State *L, int idx)
{
    int n = 0;
    lua_newtable(L);
    int out = lua_gettop(L);
    lua_pushnil(L);
    while (lua_next(L, idx) != 0) {
        if (lua_type(L, -2) == LUA_TSTRING && lua_isfunction(L, -1) &&
            !is_builtin_preload(lua_tostring(L, -2))) {
            push_preload(L);
            lua_pushvalue(L, -3);
            lua_insert(L, -2);
            lua_rawset(L, out);
            n++;
        }
        lua_pop(L, 1);
    }
    return n;
}

/* Pushes field of the loaded package library; false if it is not open yet. */
static bool
package_field(lua_State *L, const char *field)
{
    int top = lua_gettop(L);
    lua_getfield(L, LUA_REGISTRYINDEX, "_LOADED");
    lua_getfield(L, -1, "package");
    if (lua_istable(L, -1)) {
        lua_pushstring(L, field);
        lua_rawget(L, -2);
        lua_replace(L, top + 1);
        lua_settop(L, top + 1);
        return !lua_isnil(L, -1);
    }
    lua_settop(L, top);
    lua_pushnil(L);
    return false;
}

struct tp_env *
tp_env_of(lua_State *L, struct tp_env *inherited)
{
    int top = lua_gettop(L);
    if (!package_field(L, "path")) {
        lua_settop(L, top);
        return tp_env_ref(inherited);
    }
    package_field(L, "cpath");
    const char *path = lua_tostring(L, top + 1);
    const char *cpath = lua_tostring(L, top + 2);
    path = path == NULL ? "" : path;
    cpath = cpath == NULL ? "" : cpath;
    int extra = 0;
    if (package_field(L, "preload") && lua_istable(L, -1)) {
        extra = collect_preload(L, top + 3);
    }
    struct tp_env *e;
    if (extra == 0 && inherited != NULL && inherited->preload_len == 0 &&
        strcmp(path, inherited->data) == 0 &&
        strcmp(cpath, env_cpath(inherited)) == 0) {
        e = tp_env_ref(inherited);
    } else if (extra == 0) {
        e = env_new(path, cpath, NULL, 0);
    } else {
        struct tp_buf *b = tp_scratch();
        if (b == NULL || tp_encode(L, -1, "package.preload", b) != 0) {
            lua_error(L);
        }
        e = env_new(path, cpath, b->p, b->len);
        tp_scratch_done();
    }
    lua_settop(L, top);
    if (e == NULL) {
        luaL_error(L, "not enough memory");
    }
    return e;
}

/* In place of a loader that could not be sent: says why when it is needed. */
static int
refuse_preload(lua_State *L)
{
    return luaL_error(L, "module '%s' cannot be loaded in an actor: %s",
                      luaL_checkstring(L, 1),
                      lua_tostring(L, lua_upvalueindex(1)));
}

/* Fills package.preload (at idx) from an encoded table. */
static void
apply_preload(lua_State *L, int idx, const struct tp_env *e)
{
    if (e->preload_len == 0) {
        return;
    }
    tp_decode(L, env_cpath(e) + e->cpath_len + 1, e->preload_len);
    int in = lua_gettop(L);
    lua_pushnil(L);
    while (lua_next(L, in) != 0) {
        lua_pushvalue(L, -2);
        const char *text =
            lua_type(L, -2) == LUA_TSTRING ? lua_tostring(L, -2) : NULL;
        if (text != NULL && text[0] == '!') {
            lua_pushstring(L, text + 1);
            lua_pushcclosure(L, refuse_preload, 1);
        } else if (text != NULL) {
            void *address = NULL;
            sscanf(text, "%p", &address);
            lua_pushcfunction(L, (lua_CFunction)(uintptr_t)address);
        } else {
            lua_pushvalue(L, -2);
        }
        lua_rawset(L, idx);
        lua_pop(L, 1);
    }
    lua_pop(L, 1);
}

/* Registry key of LuaJIT's own require, once package is open. */
#define REAL_REQUIRE "troupe.require"

/* -- lazy libraries ------------------------------------------------------ */

static void
push_loaded(lua_State *L, const char *name)
{
    lua_getfield(L, LUA_REGISTRYINDEX, "_LOADED");
    lua_getfield(L, -1, name);
    lua_remove(L, -2);
}

static void
wrap(lua_State *L, int lib, const char *name, lua_CFunction ours)
{
    lua_getfield(L, lib, name);
    lua_pushcclosure(L, ours, 1);
    lua_setfield(L, lib, name);
}

int
tp_call_in_place(lua_State *L)
{
    lua_CFunction code =
        (lua_CFunction)(uintptr_t)lua_touserdata(L, lua_upvalueindex(1));
    return code(L);
}

void
tp_put_in_place(lua_State *L, int lib, const char *name, lua_CFunction ours)
{
    int top = lua_gettop(L);
    lua_pushstring(L, name);
    lua_pushvalue(L, -1);
    lua_rawget(L, lib);
    lua_CFunction code = lua_tocfunction(L, -1);
    if (code != NULL && lua_getupvalue(L, -1, 1) == NULL) {
        lua_pushlightuserdata(L, (void *)(uintptr_t)code);
        lua_pushcclosure(L, ours, 1);
        lua_getfenv(L, top + 2);
        lua_setfenv(L, -2);
        lua_replace(L, top + 2);
        lua_rawset(L, lib);
    }
    lua_settop(L, top);
}

/* buffer.decode leaves it to its caller to collect garbage, which compiled code
 * does and the interpreter may not for long: to push a string does. */
static int
untraced(lua_State *L)
{
    int n = tp_call_in_place(L);
    lua_pushliteral(L, "");
    lua_pop(L, 1);
    return n;
}

/*
 * Some of LuaJIT's functions raise errors from within compiled code, by their
 * arguments alone, and LuaJIT then writes to the Lua stack where no frame may be
 * (docs/design/jit.md). A C function in place of one is called by the
 * interpreter, between two traces.
 */
static void
keep_from_traces(lua_State *L, int lib, const char *const *names)
{
    for (; *names != NULL; names++) {
        tp_put_in_place(L, lib, *names, untraced);
    }
}

static void
after_string(lua_State *L)
{
    static const char *const names[] = {"rep", NULL};
    lua_getglobal(L, LUA_STRLIBNAME);
    keep_from_traces(L, lua_gettop(L), names);
    lua_pop(L, 1);
}

/* The upvalue: LuaJIT's own, which also puts the function into table. */
static int
open_table_new(lua_State *L)
{
    static const char *const names[] = {"new", NULL};
    lua_pushvalue(L, lua_upvalueindex(1));
    lua_call(L, 0, 0);
    lua_getfield(L, LUA_REGISTRYINDEX, "_LOADED");
    lua_getfield(L, -1, LUA_TABLIBNAME);
    keep_from_traces(L, lua_gettop(L), names);
    lua_getfield(L, -1, "new");
    return 1;
}

static int
open_buffer(lua_State *L)
{
    static const char *const names[] = {"encode", "decode", NULL};
    static const char *const methods[] = {"encode", "decode", "reserve",
                                          "putcdata", NULL};
    lua_pushcfunction(L, luaopen_string_buffer);
    lua_call(L, 0, 1);
    int lib = lua_gettop(L);
    keep_from_traces(L, lib, names);
    lua_getfield(L, lib, "new");
    lua_call(L, 0, 1);
    if (lua_getmetatable(L, -1)) {
        lua_getfield(L, -1, "__index");
        keep_from_traces(L, lua_gettop(L), methods);
    }
    lua_settop(L, lib);
    return 1;
}

static void
after_io(lua_State *L, int lib)
{
    tp_note_finalizers();
    wrap(L, lib, "write", tp_l_write);
    wrap(L, lib, "popen", tp_l_popen);
}

static void
after_os(lua_State *L, int lib)
{
    lua_pushcfunction(L, tp_l_os_exit);
    lua_setfield(L, lib, "exit");
    lua_pushcfunction(L, tp_l_os_execute);
    lua_setfield(L, lib, "execute");
}

static void
after_debug(lua_State *L, int lib)
{
    tp_guard_debug(L, lib);
    if (tp_hook_preempts()) {
        wrap(L, lib, "sethook", tp_l_sethook);
        wrap(L, lib, "gethook", tp_l_gethook);
    }
}

/* LuaJIT's profiler has one timer, and one state, for the whole process. */
static int
refuse_profile(lua_State *L)
{
    return luaL_error(L, "jit.profile.start: not in an actor");
}

/* The upvalue: LuaJIT's own. */
static int
open_profile(lua_State *L)
{
    lua_pushvalue(L, lua_upvalueindex(1));
    lua_call(L, 0, 1);
    if (lua_istable(L, -1)) {
        lua_pushcfunction(L, refuse_profile);
        lua_setfield(L, -2, "start");
    }
    return 1;
}

/* luaopen_jit switches compilation on; whoever wanted that says so. */
static void
after_jit(lua_State *L, int lib)
{
    struct tp_actor *a = tp_actor_self();
    tp_jit_guard(L, lib);
    lua_getfield(L, LUA_REGISTRYINDEX, "_PRELOAD");
    wrap(L, lua_gettop(L), "jit.profile", open_profile);
    lua_pop(L, 1);
    if (a != NULL && a->class == &tp_lua_class && !tp_lua_of(a)->jit_on) {
        luaJIT_setmode(L, 0, LUAJIT_MODE_ENGINE | LUAJIT_MODE_OFF);
    }
}

/* LuaJIT cannot close a state in which ffi is only half open: that crashes. So
 * the limit is off meanwhile; it strikes at the next allocation. */
static int
open_ffi(lua_State *L)
{
    struct tp_actor *a = tp_actor_self();
    if (a == NULL || a->class != &tp_lua_class) {
        return luaopen_ffi(L);
    }
    struct tp_arena *arena = &tp_lua_of(a)->arena;
    size_t limit = arena->limit;
    arena->limit = SIZE_MAX;
    lua_pushcfunction(L, luaopen_ffi);
    int status = lua_pcall(L, 0, 1, 0);
    arena->limit = limit;
    return status == 0 ? 1 : lua_error(L);
}

/* The module name is on top. ffi may not have been opened by open_ffi: a chunk
 * with a 64-bit literal opens it by itself. */
static void
guard_module(lua_State *L, const char *name)
{
    if (lua_istable(L, -1) && strcmp(name, "ffi") == 0) {
        tp_guard_ffi(L, lua_gettop(L));
    }
}

/* LuaJIT's own require. */
static int
real_require(lua_State *L)
{
    int n = tp_call_in_place(L);
    guard_module(L, lua_tostring(L, 1));
    return n;
}

/* require "jit.util" and the like: what stands for it until jit is opened. That
 * preloads or loads the real one. */
static int
open_with_jit(lua_State *L)
{
    lua_settop(L, 1);
    tp_open_lazy(L, "jit");
    push_loaded(L, lua_tostring(L, 1));
    if (lua_istable(L, -1)) {
        return 1;
    }
    lua_getfield(L, LUA_REGISTRYINDEX, "_PRELOAD");
    lua_pushvalue(L, 1);
    lua_rawget(L, -2);
    if (!lua_iscfunction(L, -1) || lua_tocfunction(L, -1) == open_with_jit) {
        return luaL_error(L, "module '%s' not found", lua_tostring(L, 1));
    }
    lua_pushvalue(L, 1);
    lua_call(L, 1, 1);
    return 1;
}

static void
preload_with_jit(lua_State *L, int preload)
{
    static const char *const names[] = {"jit.util", "jit.opt", "jit.profile"};
    push_loaded(L, "jit");
    bool open = !lua_getmetatable(L, -1);
    lua_settop(L, preload);
    for (size_t i = 0; i < 3 && !open; i++) {
        lua_pushcfunction(L, open_with_jit);
        lua_setfield(L, preload, names[i]);
    }
}

/* Own searchers, and the parent's paths and preloads. */
static void
after_package(lua_State *L, int lib)
{
    tp_note_finalizers();
    static const lua_CFunction own[] = {own_searcher, lua_searcher};
    struct tp_actor *a = tp_actor_self();
    lua_getfield(L, lib, "loaders");
    for (int i = (int)lua_objlen(L, -1); i >= 3; i--) { /* room for one more */
        lua_rawgeti(L, -1, i);
        lua_rawseti(L, -2, i + 1);
    }
    for (int i = 0; i < 2; i++) { /* 2: own modules, 3: files, cached */
        lua_pushcfunction(L, own[i]);
        lua_rawseti(L, -2, i + 2);
    }
    lua_pop(L, 1);
    lua_getfield(L, lib, "preload");
    int preload = lua_gettop(L);
    lua_pushcfunction(L, open_ffi);
    lua_setfield(L, preload, "ffi");
    lua_pushcfunction(L, open_buffer);
    lua_setfield(L, preload, "string.buffer");
    wrap(L, preload, "table.new", open_table_new);
    preload_with_jit(L, preload);
    struct tp_env *e =
        a == NULL || a->class != &tp_lua_class ? NULL : tp_lua_of(a)->env;
    if (e != NULL) {
        lua_pushstring(L, e->data);
        lua_setfield(L, lib, "path");
        lua_pushstring(L, env_cpath(e));
        lua_setfield(L, lib, "cpath");
        apply_preload(L, preload, e);
    }
    lua_settop(L, preload - 1);
    tp_put_in_place(L, LUA_GLOBALSINDEX, "require", real_require);
    lua_getglobal(L, "require");
    lua_setfield(L, LUA_REGISTRYINDEX, REAL_REQUIRE); /* last: all is there */
}

static const struct lazy {
    const char *name;
    lua_CFunction open;
    void (*after)(lua_State *L, int lib);
} lazies[] = {
    {"io", luaopen_io, after_io},
    {"os", luaopen_os, after_os},
    {"debug", luaopen_debug, after_debug},
    {"jit", luaopen_jit, after_jit},
    {"package", luaopen_package, after_package},
};

static int l_require(lua_State *L);

/* Of a lazy library and its table. */
static int
open_whole(lua_State *L)
{
    const struct lazy *z = lua_touserdata(L, 1);
    lua_pushcfunction(L, z->open); /* registers into _LOADED[name]: this one */
    lua_pushstring(L, z->name);
    lua_call(L, 1, 0);
    z->after(L, 2);
    return 0;
}

/* Fills the table on top, a lazy one; it then is like any other. If that fails
 * it stays lazy, and is filled anew the next time. */
static void
open_now(lua_State *L, const struct lazy *z)
{
    int lib = lua_gettop(L), lazy = lib + 2, globals = lib + 3;
    lua_pushcfunction(L, open_whole);
    lua_getmetatable(L, lib); /* at lazy */
    lua_pushnil(L);
    lua_setmetatable(L, lib);
    lua_pushvalue(L, LUA_GLOBALSINDEX);
    bool guarded = lua_getmetatable(L, -1); /* a strict one refuses globals */
    if (guarded) {
        lua_pushnil(L);
        lua_setmetatable(L, globals);
    }
    lua_getglobal(L, "require"); /* the user's, perhaps; package sets its own */
    int require = lua_gettop(L);
    lua_pushvalue(L, lib + 1);
    lua_pushlightuserdata(L, (void *)(uintptr_t)z);
    lua_pushvalue(L, lib);
    int status = lua_pcall(L, 2, 0, 0);
    if (status != 0 || lua_tocfunction(L, require) != l_require) {
        lua_pushvalue(L, require);
        lua_setglobal(L, "require");
    }
    if (guarded) {
        lua_pushvalue(L, globals + 1);
        lua_setmetatable(L, globals);
    }
    if (status != 0) {
        lua_pushvalue(L, lazy);
        lua_setmetatable(L, lib);
        lua_pushvalue(L, require + 1);
        lua_error(L);
    }
    lua_settop(L, lib);
}

static void
open_if_lazy(lua_State *L, const struct lazy *z)
{
    if (lua_getmetatable(L, -1)) {
        lua_pop(L, 1);
        open_now(L, z);
    }
}

void
tp_open_lazy(lua_State *L, const char *name)
{
    for (size_t i = 0; i < sizeof lazies / sizeof *lazies; i++) {
        if (strcmp(lazies[i].name, name) == 0) {
            push_loaded(L, name);
            if (lua_istable(L, -1)) {
                open_if_lazy(L, &lazies[i]);
            }
            lua_pop(L, 1);
        }
    }
}

static const struct lazy *
lazy_of(lua_State *L, int idx)
{
    for (size_t i = 0; i < sizeof lazies / sizeof *lazies; i++) {
        push_loaded(L, lazies[i].name);
        bool same = lua_rawequal(L, -1, idx);
        lua_pop(L, 1);
        if (same) {
            return &lazies[i];
        }
    }
    return NULL;
}

static int
lazy_index(lua_State *L)
{
    const struct lazy *z = lazy_of(L, 1);
    if (z != NULL) {
        lua_pushvalue(L, 1);
        open_if_lazy(L, z);
        lua_pop(L, 1);
    }
    lua_pushvalue(L, 2);
    lua_rawget(L, 1);
    return 1;
}

static int
lazy_newindex(lua_State *L)
{
    const struct lazy *z = lazy_of(L, 1);
    if (z != NULL) {
        lua_pushvalue(L, 1);
        open_if_lazy(L, z);
        lua_pop(L, 1);
    }
    lua_settop(L, 3);
    lua_rawset(L, 1);
    return 0;
}

static void
install_lazies(lua_State *L)
{
    lua_getfield(L, LUA_REGISTRYINDEX, "_LOADED");
    int loaded = lua_gettop(L);
    lua_createtable(L, 0, 2);
    lua_pushcfunction(L, lazy_index);
    lua_setfield(L, -2, "__index");
    lua_pushcfunction(L, lazy_newindex);
    lua_setfield(L, -2, "__newindex");
    for (size_t i = 0; i < sizeof lazies / sizeof *lazies; i++) {
        lua_createtable(L, 0, 0);
        lua_pushvalue(L, loaded + 1);
        lua_setmetatable(L, -2);
        lua_pushvalue(L, -1);
        lua_setfield(L, loaded, lazies[i].name);
        lua_setglobal(L, lazies[i].name);
    }
    lua_settop(L, loaded - 1);
}

/* -- require ------------------------------------------------------------- */

/* What is loaded, and Troupe itself; for all else the package library is
 * opened and the real one is asked. */
static int
l_require(lua_State *L)
{
    const char *name = luaL_checkstring(L, 1);
    lua_settop(L, 1);
    lua_getfield(L, LUA_REGISTRYINDEX, REAL_REQUIRE);
    if (lua_isnil(L, -1)) {
        push_loaded(L, name);
        if (lua_toboolean(L, -1)) {
            guard_module(L, name);
            return 1;
        }
        if (strcmp(name, "troupe") == 0 || strcmp(name, "troupe.core") == 0) {
            return tp_open_troupe(L);
        }
        tp_open_lazy(L, "package");
        lua_getfield(L, LUA_REGISTRYINDEX, REAL_REQUIRE);
    }
    lua_pushvalue(L, 1);
    lua_call(L, 1, 1);
    return 1;
}

void
tp_find_module(lua_State *L, const char *name)
{
    tp_open_lazy(L, "package");
    package_field(L, "loaders");
    int loaders = lua_gettop(L);
    lua_pushliteral(L, "");
    for (int i = 1;; i++) {
        lua_rawgeti(L, loaders, i);
        if (lua_isnil(L, -1)) {
            luaL_error(L, "module '%s' not found:%s", name,
                       lua_tostring(L, -2));
        }
        lua_pushstring(L, name);
        lua_call(L, 1, 1);
        if (lua_isfunction(L, -1)) {
            break;
        }
        if (lua_isstring(L, -1)) {
            lua_concat(L, 2);
        } else {
            lua_pop(L, 1);
        }
    }
    lua_replace(L, loaders);
    lua_settop(L, loaders);
}

/* -- output and exit ----------------------------------------------------- */

/* print, with one fwrite for one call. */
int
tp_l_print(lua_State *L)
{
    int n = lua_gettop(L);
    luaL_Buffer b;
    lua_getglobal(L, "tostring");
    for (int i = 1; i <= n; i++) { /* first: tostring may run Lua code */
        lua_pushvalue(L, n + 1);
        lua_pushvalue(L, i);
        lua_call(L, 1, 1);
        if (!lua_isstring(L, -1)) {
            return luaL_error(L, "'tostring' must return a string to 'print'");
        }
        lua_replace(L, i);
    }
    luaL_buffinit(L, &b);
    for (int i = 1; i <= n; i++) {
        lua_pushvalue(L, i);
        luaL_addvalue(&b);
        luaL_addchar(&b, i == n ? '\n' : '\t');
    }
    if (n == 0) {
        luaL_addchar(&b, '\n');
    }
    luaL_pushresult(&b);
    size_t size;
    const char *text = lua_tolstring(L, -1, &size);
    fwrite(text, 1, size, stdout);
    return 0;
}

/* io.write, with its arguments put together first. */
int
tp_l_write(lua_State *L)
{
    int n = lua_gettop(L);
    for (int i = 1; i <= n; i++) {
        luaL_checkstring(L, i);
    }
    if (n > 1) {
        lua_concat(L, n);
    }
    lua_pushvalue(L, lua_upvalueindex(1));
    lua_insert(L, 1);
    lua_call(L, lua_gettop(L) - 1, LUA_MULTRET);
    return lua_gettop(L);
}

/* os.exit: ends the runtime in order. */
int
tp_l_os_exit(lua_State *L)
{
    struct tp_actor *a = tp_check_actor(L);
    int code = lua_isboolean(L, 1)
                   ? (lua_toboolean(L, 1) ? EXIT_SUCCESS : EXIT_FAILURE)
                   : luaL_optint(L, 1, EXIT_SUCCESS);
    return tp_exit_process(L, a, code);
}

void
tp_open_libs(lua_State *L)
{
    static const luaL_Reg libs[] = {
        {"", luaopen_base},
        {LUA_TABLIBNAME, luaopen_table},
        {LUA_STRLIBNAME, luaopen_string},
        {LUA_MATHLIBNAME, luaopen_math},
        {LUA_BITLIBNAME, luaopen_bit},
    };
    for (size_t i = 0; i < sizeof libs / sizeof *libs; i++) {
        lua_pushcfunction(L, libs[i].func);
        lua_pushstring(L, libs[i].name);
        lua_call(L, 1, 0);
    }
    after_string(L);
    install_lazies(L);
    lua_pushcfunction(L, l_require);
    lua_setglobal(L, "require");
    lua_pushcfunction(L, tp_l_print);
    lua_setglobal(L, "print");
    lua_getglobal(L, "newproxy");
    lua_pushcclosure(L, tp_l_newproxy, 1);
    lua_setglobal(L, "newproxy");
}
