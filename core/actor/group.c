/*
 * group.c - process groups. See group.h.
 *
 * Tests: spec/unit/group_test.c
 */
#include "actor/group.h"

#include "actor/mailbox.h"

#include <string.h>

/* All under the registry's lock. */
struct group {
    struct tp_strnode node;
    struct tp_list members; /* struct tie, in the order they joined */
    struct tp_list subs;    /* struct tie */
    struct tp_list *next;   /* member to pick, or &members: the first */
    uint32_t count;         /* members */
    char name[];
};

/* A member of a group, or a subscription to one. The key in the map is the
 * group's address and the pid, or the reference. */
struct tie {
    struct tp_strnode node;
    struct tp_list on_group;
    struct tp_list on_actor; /* groups of struct tp_actor */
    struct group *group;
    bool is_member;
    troupe_pid pid;
    uint64_t ref; /* subscription */
    struct {
        uint64_t group;
        uint64_t pid;
    } key;
};

static struct tp_strmap groups;  /* lock */
static struct tp_strmap members; /* lock */
static struct tp_strmap subs;    /* lock */

/* References of group monitors lie above all of link.c, so that none can be
 * mistaken; a Lua number still holds them. lock */
#define FIRST_REF (1ull << 52)
static uint64_t last_ref = FIRST_REF;

static void
lock(void)
{
    tp_mutex_lock(&tp_registry_lock, TP_RANK_REGISTRY);
}

static void
unlock(void)
{
    tp_mutex_unlock(&tp_registry_lock, TP_RANK_REGISTRY);
}

static struct tie *
tie_of(struct tp_list *on_group)
{
    return tp_container_of(on_group, struct tie, on_group);
}

/* -- groups -------------------------------------------------------------- */

static struct group *
find_locked(const char *name, size_t len)
{
    struct tp_strnode *n = tp_strmap_find(&groups, name, len);
    return n == NULL ? NULL : tp_container_of(n, struct group, node);
}

/* The group, made if there is none; NULL without memory. */
static struct group *
open_locked(const char *name, size_t len)
{
    struct group *g = find_locked(name, len);
    if (g != NULL) {
        return g;
    }
    if (!tp_strmap_reserve(&groups)) {
        return NULL;
    }
    g = tp_malloc(sizeof *g + len);
    if (g == NULL) {
        return NULL;
    }
    memcpy(g->name, name, len);
    g->node.key = g->name;
    g->node.len = (uint32_t)len;
    tp_list_init(&g->members);
    tp_list_init(&g->subs);
    g->next = &g->members;
    g->count = 0;
    tp_strmap_add(&groups, &g->node);
    return g;
}

static void
close_if_empty_locked(struct group *g)
{
    if (tp_list_is_empty(&g->members) && tp_list_is_empty(&g->subs)) {
        tp_strmap_remove(&groups, &g->node);
        tp_free(g);
    }
}

/* -- telling ------------------------------------------------------------- */

/* data: one byte, 1 for a join, and the group's name. */
static struct tp_msg *
event_new(const struct group *g, troupe_pid pid, uint64_t ref, bool join)
{
    struct tp_msg *m = tp_msg_new(1 + (size_t)g->node.len);
    if (m != NULL) {
        m->kind = TP_MSG_GROUP;
        m->from = pid;
        m->ref = ref;
        m->data[0] = join;
        memcpy(m->data + 1, g->name, g->node.len);
    }
    return m;
}

bool
tp_group_event_is_join(const struct tp_msg *m)
{
    return m->data[0] == 1;
}

const char *
tp_group_event_name(const struct tp_msg *m, size_t *out_len)
{
    *out_len = m->size - 1;
    return (const char *)m->data + 1;
}

/* As in link.c: what a subscriber is not told it would never learn. */
static void
tell_locked(struct group *g, troupe_pid pid, bool join)
{
    for (struct tp_list *l = g->subs.next; l != &g->subs; l = l->next) {
        struct tie *s = tie_of(l);
        struct tp_msg *m = event_new(g, pid, s->ref, join);
        tp_check(m != NULL);
        if (tp_mailbox_push(s->pid, m) != 0) {
            tp_msg_drop(m);
        }
    }
}

/* -- members ------------------------------------------------------------- */

static void
set_key(struct tie *t, struct group *g, troupe_pid pid)
{
    t->key.group = (uintptr_t)g;
    t->key.pid = pid;
    t->node.key = &t->key;
    t->node.len = sizeof t->key;
}

static struct tie *
find_member_locked(struct group *g, troupe_pid pid)
{
    struct tie t;
    set_key(&t, g, pid);
    struct tp_strnode *n = tp_strmap_find(&members, &t.key, sizeof t.key);
    return n == NULL ? NULL : tp_container_of(n, struct tie, node);
}

/* t is a member. Its group goes with the last one. */
static void
leave_locked(struct tie *t)
{
    struct group *g = t->group;
    if (g->next == &t->on_group) {
        g->next = t->on_group.next;
    }
    g->count--;
    tp_strmap_remove(&members, &t->node);
    tp_list_remove(&t->on_group);
    tp_list_remove(&t->on_actor);
    tell_locked(g, t->pid, false);
    tp_free(t);
    close_if_empty_locked(g);
}

static void
join_locked(struct tie *t, struct group *g, struct tp_actor *a)
{
    t->group = g;
    t->pid = a->pid;
    t->is_member = true;
    set_key(t, g, a->pid);
    tp_strmap_add(&members, &t->node);
    tp_list_push_back(&g->members, &t->on_group);
    tp_list_push_back(&a->groups, &t->on_actor);
    g->count++;
    tell_locked(g, a->pid, true);
}

int
tp_group_join(const char *name, size_t len, troupe_pid pid, bool *out_new)
{
    *out_new = false;
    if (len == 0 || len > TP_NAME_MAX) {
        return TROUPE_EINVAL;
    }
    int rc = TROUPE_ENOMEM;
    struct tie *t = tp_calloc(1, sizeof *t);
    if (t == NULL) {
        return rc;
    }
    lock();
    struct tp_actor *a = tp_registry_actor_locked(pid);
    struct group *g = NULL;
    if (a == NULL) {
        rc = TROUPE_ENOPROC;
    } else if (tp_strmap_reserve(&members)) {
        g = open_locked(name, len);
    }
    if (g != NULL) {
        rc = 0;
        *out_new = find_member_locked(g, pid) == NULL;
        if (*out_new) {
            join_locked(t, g, a);
            t = NULL;
        }
    }
    unlock();
    tp_free(t);
    return rc;
}

bool
tp_group_leave(const char *name, size_t len, troupe_pid pid)
{
    bool was_member = false;
    lock();
    struct group *g = find_locked(name, len);
    struct tie *t = g == NULL ? NULL : find_member_locked(g, pid);
    if (t != NULL) {
        was_member = tp_mailbox_is_open(pid);
        leave_locked(t);
    }
    unlock();
    return was_member;
}

/* -- reading ------------------------------------------------------------- */

/* Takes out who is ending. g may be gone after this: false. */
static bool
purge_locked(struct group *g)
{
    struct tp_list *l = g->members.next, *next;
    bool keep = !tp_list_is_empty(&g->subs);
    uint32_t left = g->count;
    for (; left > 0; l = next, left--) {
        next = l->next;
        ...
    }
}
