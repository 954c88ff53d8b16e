/*
 * reason.c - why an actor ended. See reason.h.
 *
 * Tests: spec/unit/reason_test.c
 */
#include "actor/reason.h"

#include "base/check.h"
#include "base/sys.h"

#include <string.h>

void (*tp_reason_release)(struct tp_reason *r);

static struct tp_reason constants[] = {
    {.kind = TP_REASON_NORMAL},   {.kind = TP_REASON_SHUTDOWN},
    {.kind = TP_REASON_KILLED},   {.kind = TP_REASON_NOPROC},
    {.kind = TP_REASON_MEMORY},   {.kind = TP_REASON_OVERFLOW},
    {.kind = TP_REASON_DEADLOCK},
};

struct tp_reason *
tp_reason_const(enum tp_reason_kind kind)
{
    tp_check(kind < TP_REASON_VALUE);
    return &constants[kind];
}

struct tp_reason *
tp_reason_new(const void *data, size_t size)
{
    struct tp_reason *r = NULL;
    if (size <= UINT32_MAX) {
        r = tp_malloc(sizeof *r + size);
    }
    if (r == NULL) {
        return tp_reason_const(TP_REASON_MEMORY);
    }
    atomic_init(&r->refs, 1);
    r->kind = TP_REASON_VALUE;
    r->has_objects = false;
    r->size = (uint32_t)size;
    r->data = (unsigned char *)(r + 1);
    memcpy(r->data, data, size);
    return r;
}

struct tp_reason *
tp_reason_ref(struct tp_reason *r)
{
    if (r->kind == TP_REASON_VALUE) {
        /* relaxed: who takes a reference has one already. */
        atomic_fetch_add_explicit(&r->refs, 1, memory_order_relaxed);
    }
    return r;
}

void
tp_reason_unref(struct tp_reason *r)
{
    /* REA-1 acq_rel: the last one frees after all others have read. Both sides
     * are this decrement. */
    if (r->kind == TP_REASON_VALUE &&
        atomic_fetch_sub_explicit(&r->refs, 1, memory_order_acq_rel) == 1) {
        if (r->has_objects) {
            tp_reason_release(r);
        }
        tp_free(r);
    }
}
