/*
 * counter.c - a number that actors share. See counter.h.
 *
 * Tests: spec/unit/counter_test.c
 */
#include "actor/counter.h"

#include "base/sys.h"

struct tp_counter *
tp_counter_new(int64_t value)
{
    struct tp_counter *c = tp_malloc(sizeof *c);
    if (c != NULL) {
        atomic_init(&c->value, value);
        atomic_init(&c->refs, 1);
    }
    return c;
}

void
tp_counter_ref(struct tp_counter *c)
{
    /* relaxed: who takes a reference has one already. */
    atomic_fetch_add_explicit(&c->refs, 1, memory_order_relaxed);
}

void
tp_counter_unref(struct tp_counter *c)
{
    /* CNT-2 acq_rel: the last one frees after all others are done. Both sides
     * are this decrement. */
    if (atomic_fetch_sub_explicit(&c->refs, 1, memory_order_acq_rel) == 1) {
        tp_free(c);
    }
}
