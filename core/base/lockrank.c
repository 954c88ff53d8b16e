/*
 * lockrank.c - checker of the lock order, checked builds only.
 *
 * Threads: each thread its own stack of ranks.
 * Tests:   spec/unit/mutex_test.c
 */
#include "base/lockrank.h"

#include "base/check.h"

static const char *const names[] = {
#define X(name, what) #name,
    TP_LOCK_RANKS(X)
#undef X
};

const char *
tp_lockrank_name(enum tp_lock_rank rank)
{
    return rank < TP_RANK_COUNT ? names[rank] : "?";
}

#ifdef TROUPE_CHECKED
#define HELD_MAX 16

static _Thread_local enum tp_lock_rank held[HELD_MAX];
static _Thread_local unsigned held_count;

void
tp_lockrank_acquire(enum tp_lock_rank rank, bool same_ok)
{
    if (held_count > 0) {
        enum tp_lock_rank top = held[held_count - 1];
        if (top > rank || (top == rank && !same_ok)) {
            fprintf(stderr, "troupe: lock order: %s taken while %s is held\n",
                    tp_lockrank_name(rank), tp_lockrank_name(top));
            abort();
        }
    }
    tp_check(held_count < HELD_MAX);
    held[held_count++] = rank;
}

void
tp_lockrank_release(enum tp_lock_rank rank)
{
    for (unsigned i = held_count; i-- > 0;) {
        if (held[i] == rank) {
            for (unsigned k = i + 1; k < held_count; k++) {
                held[k - 1] = held[k];
            }
            held_count--;
            return;
        }
    }
    tp_check(false && "a lock that is not held was released");
}

bool
tp_lockrank_none_held(void)
{
    return held_count == 0;
}
#endif
