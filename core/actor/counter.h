/*
 * counter.h - a number that actors share: one word, no lock.
 *
 * Threads:  any.
 * Ordering: CNT-1 here, CNT-2 in counter.c. Who sees a value sees what its
 *           writer did before.
 * Memory:   counted.
 * Parks:    never.
 * Tests:    spec/unit/counter_test.c
 */
#ifndef TP_ACTOR_COUNTER_H
#define TP_ACTOR_COUNTER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct tp_counter {
    _Atomic int64_t value;
    _Atomic uint32_t refs;
};

/* NULL without memory. */
struct tp_counter *tp_counter_new(int64_t value);
void tp_counter_ref(struct tp_counter *c);
void tp_counter_unref(struct tp_counter *c);

/* What it is after n was added; wraps around. */
static inline int64_t
tp_counter_add(struct tp_counter *c, int64_t n)
{
    /* CNT-1 acq_rel: Both sides are this and the three below. */
    uint64_t old =
        (uint64_t)atomic_fetch_add_explicit(&c->value, n, memory_order_acq_rel);
    return (int64_t)(old + (uint64_t)n);
}

static inline int64_t
tp_counter_get(struct tp_counter *c)
{
    /* CNT-1 acquire: sees what the writer did before. */
    return atomic_load_explicit(&c->value, memory_order_acquire);
}

/* What it was. */
static inline int64_t
tp_counter_set(struct tp_counter *c, int64_t value)
{
    /* CNT-1 acq_rel: Both sides are this and the ones around it. */
    return atomic_exchange_explicit(&c->value, value, memory_order_acq_rel);
}

/* Sets it if it is *expected; else *expected is what it is. */
static inline bool
tp_counter_cas(struct tp_counter *c, int64_t *expected, int64_t value)
{
    /* CNT-1 acq_rel: Both sides are this and the ones above. CNT-1 acquire: a
     * failure sees what the writer did, too. */
    return atomic_compare_exchange_strong_explicit(
        &c->value, expected, value, memory_order_acq_rel, memory_order_acquire);
}

#endif
