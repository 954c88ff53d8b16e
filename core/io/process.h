/*
 * process.h - child processes: started, signalled, waited for, never lost.
 *
 * Idea:     each child has a keeper, an actor that waits for its pidfd, reaps
 *           it, and tells the owner by a TP_MSG_PROCESS. Both hold the struct;
 *           the owner's end kills the child, the keeper still reaps it. Where
 *           the keeper itself is ended, at the end of the run, it kills and
 *           reaps before it goes. So no child outlives its owner or becomes a
 *           zombie.
 * Threads:  start: any that may block, within an actor. signal, unref: any.
 * Locks:    TP_RANK_PROCESS: a pid is signalled only while it is not reaped.
 * Ordering: PRC-1.
 * Memory:   counted.
 * Parks:    never; the keeper does.
 * Fails:    start: an errno.
 * Rejected: fork and exec of our own - posix_spawn does not copy page tables,
 *           and the child runs no code of ours. SIGCHLD - it is the host's.
 * Tests:    spec/unit/process_test.c, spec/lua/process_spec.lua
 */
#ifndef TP_IO_PROCESS_H
#define TP_IO_PROCESS_H

#include "actor/actor.h"
#include "base/mutex.h"

#include <sys/types.h>

/* What a standard descriptor of the child is. */
enum tp_stdio {
    TP_STDIO_INHERIT, /* that of this process */
    TP_STDIO_NULL,
    TP_STDIO_PIPE,
    TP_STDIO_INPUT, /* 0 only: bytes, then its end */
    TP_STDIO_STDOUT /* 2 only: where 1 goes */
};

struct tp_process_spec {
    uint64_t ref;            /* of its notice */
    const char *const *argv; /* [0] is looked up in this process's PATH */
    const char *const *env;  /* NULL: this process's */
    const char *cwd;         /* NULL: this process's */
    enum tp_stdio stdio[3];
    const char *input;
    size_t input_size;
};

struct tp_process {
    /* set at birth */
    pid_t pid;
    bool group; /* it was made the leader of a process group */
    troupe_pid owner;
    /* keeper only */
    int pidfd;
    struct tp_msg *notice; /* for the owner, with room for how it ended */
    /* any thread, atomic */
    _Atomic uint32_t refs;
    /* under lock */
    struct tp_mutex lock;
    bool reaped;
};

/* How one ended: the data of a TP_MSG_PROCESS; ref is the process's. */
struct tp_process_end {
    pid_t pid;
    int status; /* exit status, or -1 */
    int signal; /* that ended it, or 0 */
    int error;  /* errno: it is not known, somebody else has reaped it */
};

uint64_t tp_process_next_ref(void);

/* Starts a child of the running actor, which gets one reference. ends: our side
 * of each pipe, non-blocking, or -1; the caller's. A child that does not
 * inherit stdin leads a process group. */
int tp_process_start(struct tp_actor *self, const struct tp_process_spec *spec,
                     int ends[3], struct tp_process **out);

/* To the child, and the group that was made for it. 0, ESRCH: it has ended, or
 * another errno. */
int tp_process_signal(struct tp_process *p, int signal);

void tp_process_unref(struct tp_process *p);

#endif
