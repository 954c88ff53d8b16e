/*
 * registry.c - names. See registry.h.
 *
 * Tests: spec/unit/registry_test.c, spec/unit/registry_stress.c
 */
#include "actor/registry.h"

#include "actor/mailbox.h"

#include <string.h>

/* All of it under the lock. */
struct name {
    struct tp_strnode node;
    struct tp_list on_actor; /* names of struct tp_actor */
    troupe_pid pid;
    char bytes[];
};

struct tp_mutex tp_registry_lock;
static struct tp_strmap names; /* lock */

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

struct tp_actor *
tp_registry_actor_locked(troupe_pid pid)
{
    struct tp_slot *s = tp_slot_at(pid);
    if (s == NULL) {
        return NULL;
    }
    tp_mutex_lock(&s->lock, TP_RANK_SLOT);
    struct tp_actor *a = s->actor;
    if (a != NULL && a->pid == pid && tp_mailbox_is_open(pid)) {
        a->listed = true;
    } else {
        a = NULL;
    }
    tp_mutex_unlock(&s->lock, TP_RANK_SLOT);
    return a;
}

bool
tp_registry_is_listed(struct tp_actor *self)
{
    tp_mutex_lock(&self->slot->lock, TP_RANK_SLOT);
    bool listed = self->listed;
    tp_mutex_unlock(&self->slot->lock, TP_RANK_SLOT);
    return listed;
}

static struct name *
name_of(struct tp_strnode *n)
{
    return n == NULL ? NULL : tp_container_of(n, struct name, node);
}

static struct name *
find_locked(const char *bytes, size_t len)
{
    return name_of(tp_strmap_find(&names, bytes, len));
}

static struct name *
name_new(const char *bytes, size_t len)
{
    struct name *n = tp_malloc(sizeof *n + len);
    if (n == NULL) {
        return NULL;
    }
    memcpy(n->bytes, bytes, len);
    n->node.key = n->bytes;
    n->node.len = (uint32_t)len;
    tp_list_init(&n->on_actor);
    return n;
}

static void
remove_locked(struct name *n)
{
    tp_strmap_remove(&names, &n->node);
    tp_list_remove(&n->on_actor);
    tp_free(n);
}

/* Puts n, which is taken, into the map and on a's list; a stale entry of that
 * name goes. */
static int
add_locked(struct name *n, struct tp_actor *a, troupe_pid *out_holder)
{
    struct name *old = find_locked(n->bytes, n->node.len);
    int rc = 0;
    if (old != NULL && old->pid != a->pid && tp_mailbox_is_open(old->pid)) {
        *out_holder = old->pid;
        rc = TROUPE_ENAME_TAKEN;
    } else if (old == NULL || old->pid != a->pid) {
        if (!tp_strmap_reserve(&names)) {
            rc = TROUPE_ENOMEM;
        } else {
            if (old != NULL) {
                remove_locked(old);
            }
            n->pid = a->pid;
            tp_strmap_add(&names, &n->node);
            tp_list_push_back(&a->names, &n->on_actor);
            return 0;
        }
    }
    tp_free(n);
    return rc;
}

int
tp_register(const char *bytes, size_t len, troupe_pid pid,
            troupe_pid *out_holder)
{
    troupe_pid unused = 0;
    out_holder = out_holder == NULL ? &unused : out_holder;
    *out_holder = 0;
    if (len == 0 || len > TP_NAME_MAX) {
        return TROUPE_EINVAL;
    }
    struct name *n = name_new(bytes, len);
    if (n == NULL) {
        return TROUPE_ENOMEM;
    }
    int rc = TROUPE_ENOPROC;
    lock();
    struct tp_actor *a = tp_registry_actor_locked(pid);
    if (a != NULL) {
        rc = add_locked(n, a, out_holder);
        n = NULL;
    }
    unlock();
    tp_free(n);
    return rc;
}

int
tp_name_claim(struct tp_actor *a, const char *bytes, size_t len,
              troupe_pid *out_holder)
{
    troupe_pid unused = 0;
    out_holder = out_holder == NULL ? &unused : out_holder;
    *out_holder = 0;
    if (len == 0 || len > TP_NAME_MAX) {
        return TROUPE_EINVAL;
    }
    struct name *n = name_new(bytes, len);
    if (n == NULL) {
        return TROUPE_ENOMEM;
    }
    a->listed = true; /* not started: nobody else looks */
    lock();
    int rc = add_locked(n, a, out_holder);
    if (rc != 0) {
        unlock();
    }
    return rc;
}

static void
release_locked(struct tp_actor *a)
{
    while (!tp_list_is_empty(&a->names)) {
        remove_locked(tp_container_of(a->names.next, struct name, on_actor));
    }
}

void
tp_name_born(struct tp_actor *a, bool born)
{
    if (!born) {
        release_locked(a);
    }
    unlock();
}

bool
tp_unregister(const char *bytes, size_t len)
{
    bool was_held = false;
    lock();
    struct name *n = find_locked(bytes, len);
    if (n != NULL) {
        was_held = tp_mailbox_is_open(n->pid);
        remove_locked(n);
    }
    unlock();
    return was_held;
}

troupe_pid
tp_whereis(const char *bytes, size_t len)
{
    troupe_pid pid = 0;
    lock();
    struct name *n = find_locked(bytes, len);
    if (n != NULL && tp_mailbox_is_open(n->pid)) {
        pid = n->pid;
    }
    unlock();
    return pid;
}

void
tp_names_release(struct tp_actor *self)
{
    if (!tp_registry_is_listed(self)) {
        return;
    }
    lock();
    release_locked(self);
    unlock();
}

void
tp_names_fini(void)
{
    tp_assert(names.count == 0);
    tp_strmap_fini(&names);
}

/* -- lists --------------------------------------------------------------- */

void
tp_name_sink_add(struct tp_name_sink *s, const struct tp_strnode *n)
{
    if (s->m != NULL) {
        s->m->data[s->size] = (unsigned char)n->len;
        memcpy(s->m->data + s->size + 1, n->key, n->len);
    }
    s->size += 1 + n->len;
}

/* A mailbox may close between the two passes, so the second may add less. */
int
tp_names_collect_locked(void (*each)(struct tp_name_sink *s, void *arg),
                        void *arg, struct tp_msg **out_names)
{
    struct tp_name_sink s = {NULL, 0};
    each(&s, arg);
    s.m = *out_names = tp_msg_new(s.size);
    if (s.m == NULL) {
        return TROUPE_ENOMEM;
    }
    s.size = 0;
    each(&s, arg);
    s.m->size = (uint32_t)s.size;
    return 0;
}

static void
each_name(struct tp_name_sink *s, void *unused)
{
    struct tp_strnode *n = NULL;
    (void)unused;
    while ((n = tp_strmap_next(&names, n)) != NULL) {
        if (tp_mailbox_is_open(name_of(n)->pid)) {
            tp_name_sink_add(s, n);
        }
    }
}

static void
each_own_name(struct tp_name_sink *s, void *arg)
{
    struct tp_actor *a = arg;
    struct tp_list *l = a == NULL ? NULL : a->names.next;
    for (; a != NULL && l != &a->names; l = l->next) {
        tp_name_sink_add(s, &tp_container_of(l, struct name, on_actor)->node);
    }
}

int
tp_names(troupe_pid pid, struct tp_msg **out_names)
{
    lock();
    int rc = pid == 0 ? tp_names_collect_locked(each_name, NULL, out_names)
                      : tp_names_collect_locked(each_own_name,
                                                tp_registry_actor_locked(pid),
                                                out_names);
    unlock();
    return rc;
}
