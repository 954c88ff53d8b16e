/*
 * wait.h - park an actor until a file descriptor is ready.
 *
 * Idea:     a table by fd, in shards. An entry holds at most one waiter for
 *           each direction, and the two share one one-shot registration in the
 *           epoll set, which stays there and is armed anew for each wait.
 *
 *   entry of fd 7            the actor's waits
 *     waiter[READ]  ------>  { pid, epoch, state }   alive until the actor
 *     waiter[WRITE] -> NULL                          has taken it back
 *     seq = 42               in the event's data, with the fd
 *
 *           Each arm gives the registration a new seq. An event with another
 *           one is of an earlier arm, or of an earlier file of that number
 *           whose description lives on elsewhere, and is ignored: if the fd is
 *           ready still, the arm itself has made a new event.
 *           Of an fd that is our own (tp_fd_own) the registration stays armed,
 *           edge-triggered. An event that meets no waiter is kept for the next
 *           one, who does not park then; the end of a stream for all.
 *           Whoever takes a waiter out of its entry, under the shard's lock, is
 *           the one who ends its wait or calls it off: the consumer of an
 *           event, a close, or the actor itself.
 *
 * Threads:  wait, arm, disarm: the running actor. close: any. consume: one that
 *           has taken events.
 * Locks:    TP_RANK_IO.
 * Memory:   the waits of an actor are its own (struct tp_resource) and die with
 *           it; entries live until the end of the run.
 * Parks:    wait.
 * Rejected: EPOLL_CTL_DEL at each end of a wait - two more system calls for
 *           each wait that is not the last (docs/design/io.md).
 * Tests:    spec/unit/driver_test.c, spec/unit/driver_stress.c
 */
#ifndef TP_IO_WAIT_H
#define TP_IO_WAIT_H

#include "actor/actor.h"

enum tp_fd_dir {
    TP_FD_READ,
    TP_FD_WRITE
};

/*
 * Parks the running actor until fd is ready for dir (error and hang-up count as
 * ready) or deadline_ns comes; 0, or one that has passed: looks, and does not
 * park. 0; TROUPE_ETIMEOUT; TROUPE_EBUSY: another actor waits there;
 * TROUPE_ECLOSED: tp_fd_close came meanwhile; TROUPE_EINVAL: no such fd, or a
 * regular file or directory, which cannot be waited for (errno EBADF, EPERM);
 * TROUPE_ENOMEM; TROUPE_ELIMIT, TROUPE_ESYSTEM, with errno; else as
 * tp_actor_park. A device that is always ready is.
 */
int tp_fd_wait(struct tp_actor *self, int fd, enum tp_fd_dir dir,
               uint64_t deadline_ns);

/* The same in two steps, for who waits for other things too: fd will end the
 * running actor's current wait epoch. 0: armed; 1: is ready already, nothing is
 * armed; errors as above. */
int tp_fd_arm(struct tp_actor *self, int fd, enum tp_fd_dir dir);

/* Takes the arm back, if there is one; leaves nothing behind. True: it had
 * fired, or the fd was closed. */
bool tp_fd_disarm(struct tp_actor *self, int fd, enum tp_fd_dir dir);

/*
 * From here on fd is closed by tp_fd_close alone. It must be new: nobody waits
 * there. Returns its id, by which it is told from the next fd of this number,
 * for tp_fd_wait_own; 0, which stands for any fd: there is no memory.
 */
uint32_t tp_fd_own(int fd);

/*
 * As tp_fd_wait, without a system call: the registration is edge-triggered and
 * is made once. Hence the caller must have used up what there was: its last
 * read, accept or write of fd said EAGAIN, or moved less than it could have. It
 * may return 0 for what the caller has used up meanwhile. TROUPE_ECLOSED also
 * when id was closed before.
 */
int tp_fd_wait_own(struct tp_actor *self, int fd, uint32_t id,
                   enum tp_fd_dir dir, uint64_t deadline_ns);

/* Closes fd, which is forgotten first; whoever waits is woken with
 * TROUPE_ECLOSED. */
void tp_fd_close(int fd);

/* Is fd ready now? 1, 0 or an error as above. */
int tp_fd_poll(int fd, enum tp_fd_dir dir);

/* -- for the driver -------------------------------------------------------- */

/* At most so many waits are ended by one event. */
#define TP_FD_DIRS 2

/* The event that seq arrived for fd: whose waits it ends goes to out_wakes; for
 * each, tp_external_end is owed once it was made runnable. Returns how many. */
size_t tp_fd_consume(int fd, uint32_t seq, uint32_t events,
                     struct tp_wake *out_wakes);

/* Nobody waits any more: frees all entries. */
void tp_fds_fini(void);

/* Statistics, for tests: fds that are known to the epoll set, and waits. */
void tp_fds_count(size_t *out_known, size_t *out_waits);

#endif
