/*
 * driver_stress.c - many pipes: waits that end by an event, a timeout, a kill
 * and a close, all at once and as chance will have it.
 *
 * Each lane is a pair of sockets with a reader at one end. Writers write to any
 * lane, close it and open a new one, or kill its reader, which is replaced. Each
 * byte is accounted for before a lane is closed. A wait without a deadline whose
 * event or close got lost stops the test.
 *
 *   driver_stress [--rounds N]
 */
#define _GNU_SOURCE
#include "run_in.h"

#include "io/wait.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#define LANES   24
#define WRITERS 3
#ifdef TP_TSAN
#define ROUNDS 3000u
#else
#define ROUNDS 60000u
#endif

static uint64_t rounds = ROUNDS, seed;

/* One connected pair; the reader's end is used by who holds the lane. */
struct lane {
    counter reader_end; /* fd, and above it its id; 0: it is not our own */
    counter writer_end;
    counter written, got; /* bytes */
    counter busy;         /* a writer is at it */
    _Atomic troupe_pid reader;
};

static struct lane lanes[LANES];
static counter events, timeouts, kills, closes, stop;

static uint64_t
soon(uint64_t chance)
{
    return tp_now_ns() + chance % (2 * MS);
}

static bool
enter(struct lane *l)
{
    return atomic_exchange_explicit(&l->busy, 1, memory_order_seq_cst) == 0;
}

static void
leave(struct lane *l)
{
    set(&l->busy, 0);
}

static int
fd_of(counter *end)
{
    return (int)(uint32_t)get(end);
}

/* Some are our own. A reader of the others may come to the number of an fd that
 * is being closed, which ThreadSanitizer takes for a race. */
static void
open_lane(struct lane *l, bool own)
{
#ifdef TP_TSAN
    own = true;
#endif
    int type = SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, p[2];
    CHECK_EQ(socketpair(AF_UNIX, type, 0, p), 0);
    uint64_t id = own ? tp_fd_own(p[0]) : 0;
    set(&l->reader_end, id << 32 | (uint32_t)p[0]);
    set(&l->writer_end, (uint32_t)p[1]);
}

static void
drain(struct lane *l)
{
    char block[256];
    ssize_t n;
    while ((n = read(fd_of(&l->reader_end), block, sizeof block)) > 0) {
        add(&l->got, (uint64_t)n);
    }
}

/* The lane is the caller's. */
static void
close_lane(struct lane *l)
{
    drain(l);
    CHECK_EQ(get(&l->got), get(&l->written));
    tp_fd_close(fd_of(&l->reader_end));
    tp_fd_close(fd_of(&l->writer_end));
    add(&closes, 1);
}

/* Another may have closed the fd a moment ago, and it may be anybody's now: a
 * wait there ends by a timeout, or is refused. */
static void
reader(struct tp_actor *self, void *arg)
{
    struct lane *l = arg;
    uint64_t x = seed ^ self->pid * 0x9e3779b97f4a7c15ull;
    while (get(&stop) == 0) {
        uint64_t chance = random_next(&x);
        uint64_t deadline = chance % 3 == 0 ? soon(chance >> 8) : TP_NEVER;
        uint64_t end = get(&l->reader_end);
        int rc = tp_fd_wait_own(self, (int)(uint32_t)end, (uint32_t)(end >> 32),
                                TP_FD_READ, deadline);
        tp_check(rc == 0 || rc == TROUPE_ETIMEOUT || rc == TROUPE_ECLOSED ||
                 rc == TROUPE_EBUSY || rc == TROUPE_EINVAL);
        add(rc == 0 ? &events : &timeouts, 1);
        YIELD_UNTIL(self, enter(l));
        drain(l);
        leave(l);
        if (rc != 0) {
            tp_actor_yield(self);
        }
    }
}

static void
act(struct lane *l, uint64_t chance)
{
    if (chance % 16 == 0) {
        close_lane(l);
        open_lane(l, chance & 1 << 8);
    } else if (chance % 16 == 1) {
        end_with(atomic_load_explicit(&l->reader, memory_order_seq_cst),
                 TP_REASON_KILLED);
        add(&kills, 1);
    } else if (write(fd_of(&l->writer_end), "xyz", 1 + chance % 3) > 0) {
        add(&l->written, 1 + chance % 3);
    }
}

static void
writer(struct tp_actor *self, void *unused)
{
    uint64_t x = seed + self->pid;
    (void)unused;
    for (uint64_t i = 0; i < rounds / WRITERS; i++) {
        uint64_t chance = random_next(&x);
        struct lane *l = &lanes[chance % LANES];
        if (enter(l)) {
            act(l, chance >> 32);
            leave(l);
        }
        if (chance >> 60 == 0) {
            tp_actor_sleep(self, soon(chance >> 16));
        } else {
            tp_actor_yield(self);
        }
    }
}

/* Keeps a reader at the lane. */
static void
keeper(struct tp_actor *self, void *arg)
{
    struct lane *l = arg;
    while (get(&stop) == 0) {
        troupe_pid pid = spawn(reader, l);
        struct tp_msg *down;
        atomic_store_explicit(&l->reader, pid, memory_order_seq_cst);
        CHECK_EQ(tp_join(self, pid, TP_NEVER, &down), 0);
        tp_msg_drop(down);
    }
}

/* No fd is opened any more: whoever waits somewhere is woken by a close, and
 * whoever comes later is refused. */
static void
stop_all(struct tp_actor *self, const troupe_pid *keepers)
{
    set(&stop, 1);
    for (size_t i = 0; i < LANES; i++) {
        YIELD_UNTIL(self, enter(&lanes[i]));
        close_lane(&lanes[i]);
        leave(&lanes[i]);
    }
    for (size_t i = 0; i < LANES; i++) {
        CHECK_EQ(join_kind(self, keepers[i]), TP_REASON_NORMAL);
    }
}

static void
root(struct tp_actor *self, void *unused)
{
    troupe_pid keepers[LANES], writers[WRITERS];
    size_t known, waits;
    (void)unused;
    for (size_t i = 0; i < LANES; i++) {
        memset(&lanes[i], 0, sizeof lanes[i]);
        open_lane(&lanes[i], i % 2);
        keepers[i] = spawn(keeper, &lanes[i]);
    }
    for (size_t i = 0; i < WRITERS; i++) {
        writers[i] = spawn(writer, NULL);
    }
    for (size_t i = 0; i < WRITERS; i++) {
        CHECK_EQ(join_kind(self, writers[i]), TP_REASON_NORMAL);
    }
    stop_all(self, keepers);
    tp_fds_count(&known, &waits);
    CHECK_EQ(waits, 0);
    CHECK_EQ(known, 0);
}

static void
stress(unsigned schedulers)
{
    seed = random_seed();
    set(&events, 0);
    set(&timeouts, 0);
    set(&kills, 0);
    set(&closes, 0);
    set(&stop, 0);
    assert_int_equal(run_in(schedulers, root, NULL), TP_REASON_NORMAL);
    printf("%" PRIu64 " events, %" PRIu64 " others, %" PRIu64 " kills, %" PRIu64
           " closes\n",
           get(&events), get(&timeouts), get(&kills), get(&closes));
}

static void
on_one_scheduler(void **state)
{
    (void)state;
    stress(1);
}

static void
on_two_schedulers(void **state)
{
    (void)state;
    stress(2);
}

static void
on_four_schedulers(void **state)
{
    (void)state;
    stress(4);
}

int
main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(on_one_scheduler),
        cmocka_unit_test(on_two_schedulers),
        cmocka_unit_test(on_four_schedulers),
    };
    rounds = option(argc, argv, "--rounds", rounds);
    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests_name("driver_stress", tests, NULL, NULL);
}
