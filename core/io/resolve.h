/*
 * resolve.h - names of hosts, looked up by threads of the blocking pool.
 *
 * Idea:     one table for the process. Who asks for a name that is not in it,
 *           or too old, puts it in line and waits; who asks for one that is
 *           being looked up waits for the same answer. A few actors, for half
 *           of the pool's threads at most, take names from the line and ask the system,
 *           each on a thread of the pool: names that hang may take those
 *           threads, but never all of the pool's.
 *
 *             name -> in line -> asked -> known 30 s, or unknown 1 s
 *
 * Threads:  any actor.
 * Locks:    TP_RANK_RESOLVE.
 * Memory:   at most TP_RESOLVE_MAX names that are not being looked up stay, all
 *           until the end of the run. All are forgotten when /etc/hosts has
 *           changed.
 * Parks:    resolve; the actor may end there. Nobody is told that it gave up.
 * Fails:    TROUPE_ENOTFOUND; TROUPE_ETIMEOUT; TROUPE_ESYSTEM with errno:
 *           EAGAIN where the name server does not answer; TROUPE_ENOMEM; else
 *           as tp_actor_park.
 * Rejected: the asker itself on a thread of the pool - its timeout would have
 *           to wait for the system's.
 * Tests:    spec/unit/resolve_test.c
 */
#ifndef TP_IO_RESOLVE_H
#define TP_IO_RESOLVE_H

#include "actor/actor.h"
#include "actor/message.h"

/* Look-ups at once, at most. */
#define TP_RESOLVERS   32
#define TP_RESOLVE_MAX 1024

/*
 * The numeric addresses of host, in the order in which to try them: one after
 * the other in the data of a message, each with a NUL; the message is the
 * caller's. One that is numeric already is its own, at once.
 */
int tp_resolve(struct tp_actor *self, const char *host, size_t len,
               uint64_t deadline_ns, struct tp_msg **out);

struct addrinfo;

/* What asks the system: getaddrinfo; tests may set another. */
extern int (*tp_resolve_ask)(const char *host, const char *service,
                             const struct addrinfo *hints,
                             struct addrinfo **out);
/* The file whose change makes all known names unknown; tests may set it. */
extern const char *tp_resolve_hosts;
/* So long an answer is kept; tests may set it. */
extern uint64_t tp_resolve_known_ns, tp_resolve_unknown_ns;

#endif
