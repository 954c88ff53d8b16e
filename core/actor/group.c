/*
 * group.c - process groups. See group.h.
 *
 * Tests: spec/unit/group_test.c
 */
#include "actor/group.h"

#include "actor/link.h"

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

/* A member of a group, or a subscription to one; in a map by key or by ref. */
struct tie {
    struct tp_strnode node;
    struct tp_list on_group;
    struct tp_list on_actor; /* groups of struct tp_actor */
    struct group *group;
    bool is_member;
    troupe_pid pid;
    uint64_t ref; /* of a subscription */
    struct {
        uint64_t group;
        uint64_t pid;
    } key; /* of a member */
};

static struct tp_strmap groups;  /* lock */
static struct tp_strmap members; /* lock */
static struct tp_strmap subs;    /* lock */

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

/* One join for each subscription, in their order; false without memory. */
static bool
joins_new(const struct group *g, troupe_pid pid, struct tp_msg **out_first)
{
    struct tp_msg **tail = out_first;
    struct tp_list *l = g->subs.next;
    for (; l != &g->subs; l = l->next) {
        *tail = event_new(g, pid, tie_of(l)->ref, true);
        if (*tail == NULL) {
            while (*out_first != NULL) {
                struct tp_msg *m = *out_first;
                *out_first = m->next;
                tp_msg_free(m);
            }
            return false;
        }
        tail = &(*tail)->next;
    }
    *tail = NULL;
    return true;
}

static void
push(troupe_pid to, struct tp_msg *event)
{
    if (tp_mailbox_push(to, event) != 0) {
        tp_msg_drop(event);
    }
}

static void
tell_joins_locked(const struct group *g, struct tp_msg *events)
{
    struct tp_list *l = g->subs.next;
    for (; l != &g->subs; l = l->next) {
        struct tp_msg *m = events;
        events = m->next;
        push(tie_of(l)->pid, m);
    }
}

/* A leave cannot fail. Who cannot be told of it, for want of memory, would
 * never know: as in link.c, that is its end. */
static void
tell_leave_locked(const struct group *g, troupe_pid pid)
{
    struct tp_list *l = g->subs.next;
    for (; l != &g->subs; l = l->next) {
        const struct tie *sub = tie_of(l);
        struct tp_msg *m = event_new(g, pid, sub->ref, false);
        if (m != NULL) {
            push(sub->pid, m);
        } else {
            tp_actor_end(sub->pid, tp_reason_const(TP_REASON_MEMORY));
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

/* t is a member, and is freed. Who calls this closes the group if it is empty
 * now. */
static void
take_out_locked(struct tie *t)
{
    struct group *g = t->group;
    if (g->next == &t->on_group) {
        g->next = t->on_group.next;
    }
    g->count--;
    tp_strmap_remove(&members, &t->node);
    tp_list_remove(&t->on_group);
    tp_list_remove(&t->on_actor);
    tell_leave_locked(g, t->pid);
    tp_free(t);
}

/* Takes t on success only. */
static int
put_in_locked(struct tie *t, struct group *g, struct tp_actor *a)
{
    struct tp_msg *joins;
    if (!tp_strmap_reserve(&members) || !joins_new(g, a->pid, &joins)) {
        return TROUPE_ENOMEM;
    }
    t->group = g;
    t->pid = a->pid;
    t->is_member = true;
    set_key(t, g, a->pid);
    tp_strmap_add(&members, &t->node);
    tp_list_push_back(&g->members, &t->on_group);
    tp_list_push_back(&a->groups, &t->on_actor);
    g->count++;
    tell_joins_locked(g, joins);
    return 0;
}

/* Takes t if it becomes a member. */
static int
join_locked(struct tie *t, const char *name, size_t len, troupe_pid pid,
            bool *out_new)
{
    struct tp_actor *a = tp_registry_actor_locked(pid);
    if (a == NULL) {
        return TROUPE_ENOPROC;
    }
    struct group *g = open_locked(name, len);
    if (g == NULL) {
        return TROUPE_ENOMEM;
    }
    if (find_member_locked(g, pid) != NULL) {
        return 0;
    }
    int rc = put_in_locked(t, g, a);
    *out_new = rc == 0;
    close_if_empty_locked(g);
    return rc;
}

int
tp_group_join(const char *name, size_t len, troupe_pid pid, bool *out_new)
{
    *out_new = false;
    if (len == 0 || len > TP_NAME_MAX) {
        return TROUPE_EINVAL;
    }
    struct tie *t = tp_calloc(1, sizeof *t);
    if (t == NULL) {
        return TROUPE_ENOMEM;
    }
    lock();
    int rc = join_locked(t, name, len, pid, out_new);
    unlock();
    if (!*out_new) {
        tp_free(t);
    }
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
        take_out_locked(t);
        close_if_empty_locked(g);
    }
    unlock();
    return was_member;
}

/* -- reading ------------------------------------------------------------- */

/* The living members; the others are taken out. g may be NULL, and may be
 * empty after this. NULL without memory. */
static struct tp_msg *
members_locked(struct group *g)
{
    size_t n = 0;
    struct tp_msg *m =
        tp_msg_new(g == NULL ? 0 : g->count * sizeof(troupe_pid));
    if (m == NULL) {
        return NULL;
    }
    struct tp_list *l = g == NULL ? NULL : g->members.next, *next;
    for (; g != NULL && l != &g->members; l = next) {
        struct tie *t = tie_of(l);
        next = l->next;
        if (tp_mailbox_is_open(t->pid)) {
            memcpy(m->data + n++ * sizeof t->pid, &t->pid, sizeof t->pid);
        } else {
            take_out_locked(t);
        }
    }
    m->size = (uint32_t)(n * sizeof(troupe_pid));
    return m;
}

int
tp_group_members(const char *name, size_t len, struct tp_msg **out_pids)
{
    lock();
    struct group *g = find_locked(name, len);
    *out_pids = members_locked(g);
    if (g != NULL) {
        close_if_empty_locked(g);
    }
    unlock();
    return *out_pids == NULL ? TROUPE_ENOMEM : 0;
}

static troupe_pid
pick_locked(struct group *g)
{
    while (g->count > 0) {
        struct tp_list *l = g->next == &g->members ? g->members.next : g->next;
        struct tie *t = tie_of(l);
        if (tp_mailbox_is_open(t->pid)) {
            g->next = l->next;
            return t->pid;
        }
        take_out_locked(t);
    }
    return 0;
}

troupe_pid
tp_group_pick(const char *name, size_t len, uint32_t *out_count)
{
    troupe_pid pid = 0;
    *out_count = 0;
    lock();
    struct group *g = find_locked(name, len);
    if (g != NULL) {
        pid = pick_locked(g);
        *out_count = g->count;
        close_if_empty_locked(g);
    }
    unlock();
    return pid;
}

static bool
has_member_locked(const struct group *g)
{
    struct tp_list *l = g->members.next;
    while (l != &g->members && !tp_mailbox_is_open(tie_of(l)->pid)) {
        l = l->next;
    }
    return l != &g->members;
}

static void
each_group(struct tp_name_sink *s, void *unused)
{
    struct tp_strnode *n = NULL;
    (void)unused;
    while ((n = tp_strmap_next(&groups, n)) != NULL) {
        if (has_member_locked(tp_container_of(n, struct group, node))) {
            tp_name_sink_add(s, n);
        }
    }
}

int
tp_groups(struct tp_msg **out_names)
{
    lock();
    int rc = tp_names_collect_locked(each_group, NULL, out_names);
    unlock();
    return rc;
}

/* -- monitors ------------------------------------------------------------ */

static void
unsubscribe_locked(struct tie *t)
{
    struct group *g = t->group;
    tp_strmap_remove(&subs, &t->node);
    tp_list_remove(&t->on_group);
    tp_list_remove(&t->on_actor);
    tp_free(t);
    close_if_empty_locked(g);
}

/* Takes t on success only. */
static int
subscribe_locked(struct tie *t, struct tp_actor *self, const char *name,
                 size_t len, struct tp_msg **out_pids)
{
    if (tp_registry_actor_locked(self->pid) == NULL) {
        return TROUPE_ENOPROC;
    }
    struct group *g = tp_strmap_reserve(&subs) ? open_locked(name, len) : NULL;
    if (g == NULL) {
        return TROUPE_ENOMEM;
    }
    *out_pids = members_locked(g);
    if (*out_pids == NULL) {
        close_if_empty_locked(g);
        return TROUPE_ENOMEM;
    }
    t->group = g;
    t->pid = self->pid;
    t->ref = tp_ref_new();
    t->node.key = &t->ref;
    t->node.len = sizeof t->ref;
    tp_strmap_add(&subs, &t->node);
    tp_list_push_back(&g->subs, &t->on_group);
    tp_list_push_back(&self->groups, &t->on_actor);
    return 0;
}

int
tp_group_monitor(struct tp_actor *self, const char *name, size_t len,
                 uint64_t *out_ref, struct tp_msg **out_pids)
{
    *out_pids = NULL;
    if (len == 0 || len > TP_NAME_MAX) {
        return TROUPE_EINVAL;
    }
    if (self->finishing) {
        return TROUPE_ENOPROC; /* its references are gone */
    }
    if (!tp_pidset_reserve(&self->group_refs)) {
        return TROUPE_ENOMEM;
    }
    struct tie *t = tp_calloc(1, sizeof *t);
    if (t == NULL) {
        return TROUPE_ENOMEM;
    }
    lock();
    int rc = subscribe_locked(t, self, name, len, out_pids);
    if (rc == 0) {
        *out_ref = t->ref;
    }
    unlock();
    if (rc == 0) {
        tp_pidset_add(&self->group_refs, *out_ref);
    } else {
        tp_free(t);
    }
    return rc;
}

bool
tp_group_demonitor(struct tp_actor *self, uint64_t ref)
{
    if (!tp_pidset_remove(&self->group_refs, ref)) {
        return false;
    }
    lock();
    struct tp_strnode *n = tp_strmap_find(&subs, &ref, sizeof ref);
    if (n != NULL) {
        unsubscribe_locked(tp_container_of(n, struct tie, node));
    }
    unlock();
    return true;
}

/* -- end ----------------------------------------------------------------- */

static void
drop_locked(struct tie *t)
{
    if (!t->is_member) {
        unsubscribe_locked(t);
        return;
    }
    struct group *g = t->group;
    take_out_locked(t);
    close_if_empty_locked(g);
}

/* One at a time, so that others get the lock in between. */
void
tp_groups_release(struct tp_actor *self)
{
    bool more = tp_registry_is_listed(self);
    while (more) {
        lock();
        more = !tp_list_is_empty(&self->groups);
        if (more) {
            drop_locked(
                tp_container_of(self->groups.next, struct tie, on_actor));
        }
        unlock();
    }
    tp_pidset_fini(&self->group_refs);
}

void
tp_groups_fini(void)
{
    tp_assert(groups.count == 0 && members.count == 0 && subs.count == 0);
    tp_strmap_fini(&groups);
    tp_strmap_fini(&members);
    tp_strmap_fini(&subs);
}
