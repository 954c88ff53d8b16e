/*
 * lockrank.h - the lock order, as one list, low to high.
 *
 * A thread takes locks in rising rank only; two locks of one rank are taken
 * lower address first (slots: lower pid first) through tp_mutex_lock_pair.
 * Checked builds keep a per-thread stack of the ranks held and abort, naming
 * both, on a wrong order. A fiber switch and a parker assert that nothing is
 * held. docs/design/locks.md is generated from this list.
 */
#ifndef TP_BASE_LOCKRANK_H
#define TP_BASE_LOCKRANK_H

#include <stdbool.h>

#define TP_LOCK_RANKS(X)                                                       \
    X(RUNTIME, "start and stop of the runtime")                                \
    X(REGISTRY, "names and groups")                                            \
    X(SLOT, "one actor's links, monitors, exit reason and blocked senders")    \
    X(CHANNEL, "the line of a full channel, or of a value's mutex")            \
    X(ENDPOINT, "one socket that was handed on to another actor")              \
    X(RESOLVE, "names of hosts, known and asked for")                          \
    X(PROCESS, "one child process, which is signalled or reaped")              \
    X(IO, "one shard of the waits for file descriptors")                       \
    X(TIMER, "the timer heap")                                                 \
    X(POOL, "the blocking pool: its queue and its threads")                    \
    X(INJECT, "the run queue that other threads push to")                      \
    X(STRIPE, "one worker's run queue in the striped and mutex backends")      \
    X(FREELIST, "vacant slots")                                                \
    X(STACK, "the stack pool")                                                 \
    X(SLAB, "process-wide memory slabs and message magazines")                 \
    X(CACHE, "the bytecode cache")                                             \
    X(LOG, "the log; leaf")

enum tp_lock_rank {
#define X(name, what) TP_RANK_##name,
    TP_LOCK_RANKS(X)
#undef X
    TP_RANK_COUNT
};

#ifdef TROUPE_CHECKED
void tp_lockrank_acquire(enum tp_lock_rank rank, bool same_ok);
void tp_lockrank_release(enum tp_lock_rank rank);
bool tp_lockrank_none_held(void);
#else
#define tp_lockrank_acquire(rank, same_ok) ((void)(rank))
#define tp_lockrank_release(rank)          ((void)(rank))
#define tp_lockrank_none_held()            true
#endif

const char *tp_lockrank_name(enum tp_lock_rank rank);

#endif
