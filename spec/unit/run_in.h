/*
 * run_in.h - run a C function as the root actor, from a test.
 *
 * Idea:    an actor of a test is one function and one argument. Inside of it
 *          cmocka's asserts cannot be used: they jump to the test's own stack,
 *          maybe on another thread. CHECK_EQ and tp_check abort instead.
 * Threads: helpers that take self are for the running actor, the rest for any.
 */
#ifndef SPEC_RUN_IN_H
#define SPEC_RUN_IN_H

#include "actor/actor.h"
#include "actor/call.h"
#include "actor/link.h"
#include "actor/mailbox.h"
#include "run/runtime.h"

#include <inttypes.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "patience.h"

/* For ThreadSanitizer each new actor costs many milliseconds: fewer will do. */
#ifdef TP_TSAN
#define FEWER(n) ((n) / 10)
#else
#define FEWER(n) (n)
#endif

typedef void (*actor_fn)(struct tp_actor *self, void *arg);

/* -- checks that may be used in an actor ---------------------------------- */

static inline void
check_eq_at(uint64_t a, uint64_t b, const char *what, const char *file,
            int line)
{
    if (a != b) {
        fprintf(stderr, "%s:%d: %s: %" PRId64 " != %" PRId64 "\n", file, line,
                what, (int64_t)a, (int64_t)b);
        abort();
    }
}

#define CHECK_EQ(a, b)                                                         \
    check_eq_at((uint64_t)(a), (uint64_t)(b), #a " == " #b, __FILE__, __LINE__)

/* Gives way to others until cond holds; aborts when it does not come true. */
#define YIELD_UNTIL(self, cond)                                                \
    do {                                                                       \
        uint64_t give_up_ns = tp_now_ns() + PATIENCE_NS;                       \
        while (!(cond)) {                                                      \
            tp_check(tp_now_ns() < give_up_ns);                                \
            tp_actor_yield(self);                                              \
        }                                                                      \
    } while (0)

/* The same for a thread, or for an actor that must not leave its worker. */
#define SPIN_UNTIL(cond)                                                       \
    do {                                                                       \
        uint64_t give_up_ns = tp_now_ns() + PATIENCE_NS;                       \
        while (!(cond)) {                                                      \
            tp_check(tp_now_ns() < give_up_ns);                                \
            sched_yield();                                                     \
        }                                                                      \
    } while (0)

/* Counts that others on the machine disturb: now and then nobody does, so one try
 * is enough, and one that is wrong each time never passes. */
#define ONE_OF_MANY_TRIES(cond)                                                \
    for (int tries_left = 30; !(cond); tries_left--) {                         \
        tp_check(tries_left > 1);                                              \
    }

/* A race is tried so often, or so long where other work has the CPUs. */
#define FOR_A_WHILE(i, most)                                                   \
    for (uint64_t i = 1, end_ns = tp_now_ns() + S;                             \
         i <= (most) && (i == 1 || tp_now_ns() < end_ns); i++)

/* -- counters: seq_cst, since what they order is not what is tested -------- */

typedef _Atomic uint64_t counter;

static inline uint64_t
get(counter *c)
{
    return atomic_load_explicit(c, memory_order_seq_cst);
}

static inline void
set(counter *c, uint64_t value)
{
    atomic_store_explicit(c, value, memory_order_seq_cst);
}

static inline uint64_t
add(counter *c, uint64_t n)
{
    return atomic_fetch_add_explicit(c, n, memory_order_seq_cst) + n;
}

/* -- random numbers -------------------------------------------------------- */

static inline uint64_t
random_next(uint64_t *x)
{
    *x ^= *x << 13;
    *x ^= *x >> 7;
    *x ^= *x << 17;
    return *x;
}

/* TROUPE_SEED, or a new one; printed, so that a run can be had again. */
static inline uint64_t
random_seed(void)
{
    const char *s = getenv("TROUPE_SEED");
    uint64_t seed =
        s != NULL ? strtoull(s, NULL, 10) : tp_now_ns() % 1000000007u;
    printf("TROUPE_SEED=%" PRIu64 "\n", seed);
    fflush(stdout);
    return seed * 2654435761u + 1;
}

/* The number behind name on the command line. */
static inline uint64_t
option(int argc, char **argv, const char *name, uint64_t otherwise)
{
    for (int i = 1; i + 1 < argc; i++) {
        if (strcmp(argv[i], name) == 0) {
            return strtoull(argv[i + 1], NULL, 0);
        }
    }
    return otherwise;
}

/* -- actors ---------------------------------------------------------------- */

/* Calls of the class functions, over all actors of body_class. */
static counter bodies_begun, bodies_finished, bodies_freed;

struct body {
    actor_fn fn;
    actor_fn finish;
    void *arg;
};

static inline void
body_main(struct tp_actor *a, void *arg)
{
    struct body *b = arg;
    add(&bodies_begun, 1);
    b->fn(a, b->arg);
}

static inline void
body_finish(struct tp_actor *a, void *arg)
{
    struct body *b = arg;
    if (b->finish != NULL) {
        b->finish(a, b->arg);
    }
    add(&bodies_finished, 1);
}

static inline void
body_free(void *arg)
{
    free(arg);
    add(&bodies_freed, 1);
}

static const struct tp_actor_class body_class = {
    .main = body_main, .finish = body_finish, .free = body_free};

static inline struct body *
body_new(actor_fn fn, actor_fn finish, void *arg)
{
    struct body *b = malloc(sizeof *b);
    tp_check(b != NULL);
    *b = (struct body){fn, finish, arg};
    return b;
}

/* finish: run in the actor's finish; may be NULL, as opts. */
static inline int
try_spawn(const struct tp_spawn_opts *opts, actor_fn fn, actor_fn finish,
          void *arg, troupe_pid *out_pid)
{
    struct body *b = body_new(fn, finish, arg);
    int rc = tp_spawn(opts, &body_class, b, out_pid);
    if (rc != 0) {
        free(b);
    }
    return rc;
}

static inline troupe_pid
spawn_opts(const struct tp_spawn_opts *opts, actor_fn fn, void *arg)
{
    troupe_pid pid;
    CHECK_EQ(try_spawn(opts, fn, NULL, arg, &pid), 0);
    return pid;
}

static inline troupe_pid
spawn(actor_fn fn, void *arg)
{
    return spawn_opts(NULL, fn, arg);
}

/* Waits for pid's end; the kind of its reason. */
static inline enum tp_reason_kind
join_kind(struct tp_actor *self, troupe_pid pid)
{
    struct tp_msg *down;
    CHECK_EQ(tp_join(self, pid, tp_now_ns() + PATIENCE_NS, &down), 0);
    enum tp_reason_kind kind =
        (enum tp_reason_kind)tp_notice_reason(down)->kind;
    tp_msg_drop(down);
    return kind;
}

static inline bool
end_with(troupe_pid pid, enum tp_reason_kind kind)
{
    return tp_actor_end(pid, tp_reason_const(kind));
}

/* Nothing has come, when all that is runnable has had its turn. */
static inline void
expect_no_mail(struct tp_actor *self)
{
    for (int i = 0; i < 10; i++) {
        tp_actor_yield(self);
    }
    tp_check(tp_mailbox_pop(self) == NULL);
}

struct held_owed {
    struct tp_resource resource;
    struct tp_owed *owed;
};

static inline void
held_owed_release(struct tp_resource *r)
{
    struct held_owed *h = tp_container_of(r, struct held_owed, resource);
    tp_owed_unref(h->owed);
    tp_free(h);
}

/* The running actor gives its reference back when it ends, as one does that has
 * it in a handle. */
static inline struct held_owed *
hold_owed(struct tp_actor *self, struct tp_owed *o)
{
    struct held_owed *h = tp_calloc(1, sizeof *h);
    tp_check(h != NULL);
    h->resource.release = held_owed_release;
    h->owed = o;
    tp_resource_add(self, &h->resource);
    return h;
}

/* Now. */
static inline void
let_go_owed(struct held_owed *h)
{
    tp_resource_remove(&h->resource);
    held_owed_release(&h->resource);
}

/* Parks until somebody ends the actor. */
static inline void
body_wait(struct tp_actor *self, void *unused)
{
    (void)unused;
    while (tp_mailbox_wait(self, TP_NEVER) == 0) {
    }
}

static inline void
body_nothing(struct tp_actor *self, void *unused)
{
    (void)self;
    (void)unused;
}

static inline enum tp_state
state_of(troupe_pid pid)
{
    /* relaxed: a look from outside. */
    return tp_state_of(
        atomic_load_explicit(&tp_slot_at(pid)->state, memory_order_relaxed));
}

/* -- messages of one number ------------------------------------------------ */

static inline struct tp_msg *
num_msg(uint64_t n)
{
    struct tp_msg *m = tp_msg_new(sizeof n);
    tp_check(m != NULL);
    struct tp_actor *self = tp_actor_self();
    m->from = self == NULL ? 0 : self->pid;
    memcpy(m->data, &n, sizeof n);
    return m;
}

static inline uint64_t
msg_num(const struct tp_msg *m)
{
    uint64_t n;
    memcpy(&n, m->data, sizeof n);
    return n;
}

/* The code of tp_mailbox_push; the message is gone in any case. */
static inline int
push_num(troupe_pid to, uint64_t n)
{
    struct tp_msg *m = num_msg(n);
    int rc = tp_mailbox_push(to, m);
    if (rc != 0) {
        tp_msg_drop(m);
    }
    return rc;
}

static inline int
send_num(struct tp_actor *self, troupe_pid to, uint64_t n)
{
    struct tp_msg *m = num_msg(n);
    int rc = tp_mailbox_send(self, to, m);
    if (rc != 0) {
        tp_msg_drop(m);
    }
    return rc;
}

/* The next message, which must come. */
static inline struct tp_msg *
recv_msg(struct tp_actor *self)
{
    struct tp_msg *m;
    while ((m = tp_mailbox_pop(self)) == NULL) {
        CHECK_EQ(tp_mailbox_wait(self, tp_now_ns() + PATIENCE_NS), 0);
    }
    return m;
}

static inline uint64_t
recv_num(struct tp_actor *self)
{
    struct tp_msg *m = recv_msg(self);
    CHECK_EQ(m->kind, TP_MSG_USER);
    uint64_t n = msg_num(m);
    tp_msg_free(m);
    return n;
}

/* The same without a deadline, which would keep the run alive. */
static inline uint64_t
recv_num_ever(struct tp_actor *self)
{
    struct tp_msg *m;
    while ((m = tp_mailbox_pop(self)) == NULL) {
        CHECK_EQ(tp_mailbox_wait(self, TP_NEVER), 0);
    }
    uint64_t n = msg_num(m);
    tp_msg_free(m);
    return n;
}

/* -- runs ------------------------------------------------------------------ */

/* The root's reason; the caller's reference. */
static inline struct tp_reason *
run_config(const struct tp_run_config *config, actor_fn fn, void *arg)
{
    struct tp_reason *reason = NULL;
    set(&bodies_begun, 0);
    set(&bodies_finished, 0);
    set(&bodies_freed, 0);
    CHECK_EQ(
        tp_run(config, NULL, &body_class, body_new(fn, NULL, arg), &reason), 0);
    /* Whoever was born was finished and freed. */
    CHECK_EQ(get(&bodies_freed), get(&bodies_finished));
    tp_check(get(&bodies_begun) <= get(&bodies_freed));
    CHECK_EQ(atomic_load_explicit(&tp_actor_live, memory_order_seq_cst), 0);
    return reason;
}

/* Runs fn(self, arg) as root on so many schedulers; how it ended. */
static inline enum tp_reason_kind
run_in(unsigned schedulers, actor_fn fn, void *arg)
{
    struct tp_run_config config = {.schedulers = schedulers};
    struct tp_reason *r = run_config(&config, fn, arg);
    enum tp_reason_kind kind = (enum tp_reason_kind)r->kind;
    tp_reason_unref(r);
    return kind;
}

#endif
