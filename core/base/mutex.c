/*
 * mutex.c - the contended path of the futex mutex.
 *
 * Tests: spec/unit/mutex_test.c
 */
#include "base/mutex.h"

#define SPINS 100

static inline void
cpu_relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

void
tp_mutex_lock_slow(struct tp_mutex *m)
{
    for (int i = 0; i < SPINS; i++) {
        uint32_t free_word = 0;
        /* relaxed: a hint whether an exchange is worth trying. */
        if (atomic_load_explicit(&m->word, memory_order_relaxed) == 0 &&
            /* MTX-1 acquire: as in tp_mutex_lock_raw.
             * relaxed: a failed exchange decides nothing. */
            atomic_compare_exchange_weak_explicit(&m->word, &free_word, 1,
                                                  memory_order_acquire,
                                                  memory_order_relaxed)) {
            return;
        }
        cpu_relax();
    }
    /* MTX-1 acquire: as in tp_mutex_lock_raw. From here on the word stays 2
     * until an unlock, which then wakes one sleeper. */
    while (atomic_exchange_explicit(&m->word, 2, memory_order_acquire) != 0) {
        tp_futex_wait(&m->word, 2, UINT64_MAX);
    }
}
