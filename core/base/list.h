/*
 * list.h - intrusive, circular, doubly linked list.
 *
 * Threads: as the owner of the list says.
 */
#ifndef TP_BASE_LIST_H
#define TP_BASE_LIST_H

#include <stdbool.h>
#include <stddef.h>

struct tp_list {
    struct tp_list *next;
    struct tp_list *prev;
};

#define tp_container_of(ptr, type, member)                                     \
    ((type *)(void *)((char *)(ptr)-offsetof(type, member)))

static inline void
tp_list_init(struct tp_list *l)
{
    l->next = l->prev = l;
}

static inline bool
tp_list_is_empty(const struct tp_list *l)
{
    return l->next == l;
}

static inline void
tp_list_push_back(struct tp_list *l, struct tp_list *n)
{
    n->prev = l->prev;
    n->next = l;
    l->prev->next = n;
    l->prev = n;
}

/* Unlinks n; n is then an empty list of its own, so a second call is safe. */
static inline void
tp_list_remove(struct tp_list *n)
{
    n->prev->next = n->next;
    n->next->prev = n->prev;
    tp_list_init(n);
}

/* Moves all of from to the empty list to. */
static inline void
tp_list_move_all(struct tp_list *from, struct tp_list *to)
{
    tp_list_init(to);
    if (!tp_list_is_empty(from)) {
        *to = *from;
        to->next->prev = to;
        to->prev->next = to;
        tp_list_init(from);
    }
}

#endif
