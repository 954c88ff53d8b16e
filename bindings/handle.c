/*
 * handle.c - userdata that stand for objects of the core. See handle.h.
 *
 * Memory: a holder is the actor's, on its list of resources. The userdata names
 *         it only while that very actor runs and has not come to its end: the
 *         state of troupe.run's caller outlives its actor.
 * Tests:  spec/lua/channel_spec.lua, spec/unit/handle_stress.c
 */
#include "handle.h"

#include "actor/slice.h"
#include "run/runtime.h"

#include <string.h>

/* A handle in a message. */
struct payload {
    void *object;          /* NULL: taken out */
    struct tp_holder *was; /* of a kind that moves: where it was */
};

#define X(name) &tp_handle_##name,
static const struct tp_handle_kind *const kinds[] = {TP_HANDLE_KINDS(X)};
#undef X
#define KINDS (sizeof kinds / sizeof *kinds)

/* -- holders ------------------------------------------------------------- */

static void
forget(struct tp_holder *o)
{
    if (o->kept != NULL) {
        o->kind->forget(o->kept);
        o->kept = NULL;
    }
}

static void
holder_release(struct tp_resource *r)
{
    struct tp_holder *o = tp_container_of(r, struct tp_holder, resource);
    if (o->object != NULL) {
        o->kind->unref(o->object);
    }
    forget(o);
    tp_free(o);
}

static void
close_handle(struct tp_handle *h)
{
    struct tp_holder *o = tp_holder_of(h, tp_actor_self());
    h->holder = NULL;
    if (o != NULL) {
        tp_resource_remove(&o->resource);
        holder_release(&o->resource);
    }
}

static int
handle_gc(lua_State *L)
{
    if (tp_stack_has_room()) { /* else it goes with the actor */
        close_handle(lua_touserdata(L, 1));
    }
    return 0;
}

/* -- userdata ------------------------------------------------------------ */

/* A userdata of ours, of whatever kind; else NULL. */
static struct tp_handle *
to_handle(lua_State *L, int idx)
{
    if (lua_type(L, idx) != LUA_TUSERDATA ||
        lua_objlen(L, idx) != sizeof(struct tp_handle)) {
        return NULL;
    }
    struct tp_handle *h = lua_touserdata(L, idx);
    size_t i = 0;
    while (i < KINDS && h->kind != kinds[i]) {
        i++;
    }
    return i == KINDS ? NULL : h;
}

static int
handle_tostring(lua_State *L)
{
    struct tp_handle *h = to_handle(L, 1);
    luaL_argcheck(L, h != NULL, 1, "handle expected");
    struct tp_holder *o = tp_holder_of(h, tp_actor_self());
    lua_pushfstring(L, "%s: ", h->kind->name);
    if (o == NULL) {
        lua_pushliteral(L, "closed");
    } else if (o->object == NULL) {
        lua_pushliteral(L, "sent away");
    } else {
        lua_pushfstring(L, "%p", o->object);
    }
    lua_concat(L, 2);
    return 1;
}

static void
metatable_new(lua_State *L, const struct tp_handle_kind *kind)
{
    lua_createtable(L, 0, 6);
    lua_createtable(L, 0, 8);
    for (const luaL_Reg *f = kind->methods; f->name != NULL; f++) {
        lua_pushcfunction(L, f->func);
        lua_setfield(L, -2, f->name);
    }
    lua_pushvalue(L, -1);
    lua_setfield(L, -3, "__index");
    lua_pushcfunction(L, handle_tostring);
    lua_setfield(L, -3, "__tostring");
    for (const luaL_Reg *f = kind->meta; f != NULL && f->name != NULL; f++) {
        lua_pushvalue(L, -1);
        lua_pushcclosure(L, f->func, 1);
        lua_setfield(L, -3, f->name);
    }
    lua_pop(L, 1);
    lua_pushstring(L, kind->name);
    lua_pushvalue(L, -1);
    lua_setfield(L, -3, "__name");
    lua_setfield(L, -2, "__metatable");
}

/* The metatable of open handles, or of closed ones, for which the collector has
 * nothing to do. In the registry by an address: that is found fastest. */
static void
push_metatable(lua_State *L, const struct tp_handle_kind *kind, bool open)
{
    const void *key = open ? (const void *)kind : (const void *)&kind->what;
    lua_pushlightuserdata(L, (void *)(uintptr_t)key);
    lua_rawget(L, LUA_REGISTRYINDEX);
    if (TP_LIKELY(!lua_isnil(L, -1))) {
        return;
    }
    lua_pop(L, 1);
    metatable_new(L, kind);
    if (open) {
        lua_pushcfunction(L, handle_gc);
        lua_setfield(L, -2, "__gc");
    }
    lua_pushlightuserdata(L, (void *)(uintptr_t)key);
    lua_pushvalue(L, -2);
    lua_rawset(L, LUA_REGISTRYINDEX);
}

/* Pushes one without a holder. */
static struct tp_handle *
push_handle(lua_State *L, const struct tp_handle_kind *kind, bool open)
{
    struct tp_handle *h = lua_newuserdata(L, sizeof *h);
    *h = (struct tp_handle){.kind = kind};
    push_metatable(L, kind, open);
    lua_setmetatable(L, -2);
    return h;
}

struct tp_handle *
tp_handle_new(lua_State *L, const struct tp_handle_kind *kind)
{
    struct tp_actor *a = tp_check_actor(L);
    if (TP_UNLIKELY(a->finishing)) { /* nobody would release it */
        luaL_error(L, "a finalizer cannot make a %s", kind->what);
    }
    struct tp_handle *h = push_handle(L, kind, true);
    struct tp_holder *o = tp_malloc(sizeof *o);
    if (o == NULL) {
        luaL_error(L, "not enough memory");
    }
    *o = (struct tp_holder){.resource.release = holder_release, .kind = kind};
    tp_resource_add(a, &o->resource);
    h->holder = o;
    h->owner = a->started_ns;
    return h;
}

void
tp_handle_set(struct tp_handle *h, void *object)
{
    h->holder->object = object;
    h->pid = h->kind->pid == NULL ? 0 : h->kind->pid(object);
}

void *
tp_handle_sent(lua_State *L, int idx, const struct tp_handle_kind *kind)
{
    struct tp_handle *h = tp_handle_to(L, idx, kind);
    struct tp_holder *o = h == NULL ? NULL : tp_holder_of(h, tp_actor_self());
    return o == NULL ? NULL : o->kept;
}

void
tp_handle_refuse(lua_State *L, int arg, const struct tp_handle_kind *kind,
                 const char *why)
{
    lua_pushfstring(L, "%s %s", kind->what, why);
    luaL_argerror(L, arg, lua_tostring(L, -1));
}

int
tp_handle_close(lua_State *L, int arg, const struct tp_handle_kind *kind)
{
    if (tp_handle_sent(L, arg, kind) == NULL) {
        tp_handle_check(L, tp_actor_self(), arg, kind);
    }
    close_handle(lua_touserdata(L, arg));
    push_metatable(L, kind, false);
    lua_setmetatable(L, arg);
    return 0;
}

/* -- in messages --------------------------------------------------------- */

const char *
tp_handle_encode(lua_State *L, int idx, struct tp_buf *out)
{
    struct tp_handle *h = to_handle(L, idx);
    if (h == NULL) {
        return "userdata";
    }
    struct tp_holder *o = tp_holder_of(h, tp_actor_self());
    if (o == NULL || o->object == NULL) {
        return h->kind->gone;
    }
    if (out->handles == TP_HANDLES_NONE) {
        return h->kind->what;
    }
    if ((h->kind->ref == NULL || h->kind->to_one) &&
        out->handles == TP_HANDLES_SHARED) {
        return h->kind->to_many;
    }
    uint32_t kind = 0;
    while (kinds[kind] != h->kind) {
        kind++;
    }
    struct payload p = {o->object, o};
    return tp_buf_put(out, &kind, sizeof kind) && tp_buf_put(out, &p, sizeof p)
               ? NULL
               : h->kind->what;
}

void
tp_handle_decode(lua_State *L, uint32_t kind, void *payload, size_t n,
                 bool peek)
{
    struct payload p;
    tp_check(kind < KINDS && n == sizeof p);
    const struct tp_handle_kind *k = kinds[kind];
    struct tp_actor *a = tp_actor_self();
    if (a == NULL || a->finishing || (peek && k->ref == NULL)) {
        push_handle(L, k, false);
        return;
    }
    struct tp_handle *h = tp_handle_new(L, k);
    memcpy(&p, payload, sizeof p);
    tp_handle_set(h, p.object);
    if (k->ref != NULL) {
        k->ref(p.object);
    } else {
        p.object = NULL;
        memcpy(payload, &p, sizeof p);
    }
}

static void
take(uint32_t kind, void *payload, size_t n, void *unused)
{
    struct payload p;
    (void)unused;
    memcpy(&p, payload, n);
    if (kinds[kind]->ref != NULL) {
        kinds[kind]->ref(p.object);
    } else {
        p.was->object = NULL;
        if (kinds[kind]->keep != NULL) {
            kinds[kind]->keep(p.object);
            p.was->kept = p.object;
        }
    }
}

static void
release(uint32_t kind, void *payload, size_t n, void *unused)
{
    struct payload p;
    (void)unused;
    memcpy(&p, payload, n);
    if (p.object != NULL) {
        kinds[kind]->unref(p.object);
    }
}

static void
give_back(uint32_t kind, void *payload, size_t n, void *unused)
{
    struct payload p;
    memcpy(&p, payload, n);
    if (kinds[kind]->ref == NULL) {
        p.was->object = p.object;
        forget(p.was);
    } else {
        release(kind, payload, n, unused);
    }
}

void
tp_take_objects(struct tp_msg *m)
{
    if (tp_each_handle(m->data, m->size, take, NULL) != 0) {
        m->flags |= TP_MSG_HAS_HANDLES | TP_MSG_HAS_OBJECTS;
    }
}

struct search {
    const void *object;
    const struct tp_handle_kind *kind;
    bool found;
};

static void
compare(uint32_t kind, void *payload, size_t n, void *ud)
{
    struct search *s = ud;
    struct payload p;
    memcpy(&p, payload, n);
    s->found |= p.object == s->object && kinds[kind] == s->kind;
}

bool
tp_names_object(const struct tp_msg *m, const void *object,
                const struct tp_handle_kind *kind)
{
    struct search s = {object, kind, false};
    tp_each_handle(m->data, m->size, compare, &s);
    return s.found;
}

void
tp_take_reason_objects(struct tp_reason *r)
{
    r->has_objects = r->kind == TP_REASON_VALUE &&
                     tp_each_handle(r->data, r->size, take, NULL) != 0;
}

static void
release_message(struct tp_msg *m)
{
    bool unsent = (m->flags & TP_MSG_UNSENT) != 0;
    tp_each_handle(m->data, m->size, unsent ? give_back : release, NULL);
}

static void
retain_message(struct tp_msg *m)
{
    tp_each_handle(m->data, m->size, take, NULL);
}

static void
release_reason(struct tp_reason *r)
{
    tp_each_handle(r->data, r->size, release, NULL);
}

void
tp_handles_init(void)
{
    tp_user_release = release_message;
    tp_msg_set_retain(retain_message);
    tp_reason_release = release_reason;
}
