/*
 * driver_test.c - waits for file descriptors: all kinds, and every end of one.
 */
#define _GNU_SOURCE
#include "run_in.h"

#include "io/driver.h"
#include "io/wait.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

extern char **environ;

static void
run(unsigned schedulers, actor_fn root)
{
    assert_int_equal(run_in(schedulers, root, NULL), TP_REASON_NORMAL);
}

/* Waits of those who use ids, of pipes and sockets, are tp_fd_wait_own. */
static bool own;
static uint32_t ids[2048];

/* On one, two and four schedulers, one run after the other. */
static void
run_on_all(actor_fn root)
{
    for (unsigned n = 1; n <= 4; n *= 2) {
        run(n, root);
    }
}

#define TEST_ON_ALL(name, root)                                                \
    static void name(void **state)                                             \
    {                                                                          \
        (void)state;                                                           \
        run_on_all(root);                                                      \
    }

/* Twice: the fds are any, and our own. */
#define TEST_BOTH(name, root)                                                  \
    static void name(void **state)                                             \
    {                                                                          \
        (void)state;                                                           \
        run_on_all(root);                                                      \
        own = true;                                                            \
        run_on_all(root);                                                      \
        own = false;                                                           \
    }

/* -- helpers --------------------------------------------------------------- */

static uint64_t
patience(void)
{
    return tp_now_ns() + PATIENCE_NS;
}

static size_t
known(void)
{
    size_t n, w;
    tp_fds_count(&n, &w);
    return n;
}

static size_t
waits(void)
{
    size_t n, w;
    tp_fds_count(&n, &w);
    return w;
}

static void
note_ids(const int p[2])
{
    for (int i = 0; i < 2; i++) {
        tp_check(p[i] < 2048);
        ids[p[i]] = own ? tp_fd_own(p[i]) : 0;
        tp_check(own == (ids[p[i]] != 0));
    }
}

static void
make_pipe(int p[2])
{
    CHECK_EQ(pipe2(p, O_NONBLOCK | O_CLOEXEC), 0);
    note_ids(p);
}

static void
make_pair(int p[2])
{
    int type = SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC;
    CHECK_EQ(socketpair(AF_UNIX, type, 0, p), 0);
    note_ids(p);
}

static void
close_both(int p[2])
{
    tp_fd_close(p[0]);
    tp_fd_close(p[1]);
}

static void
put_byte(int fd)
{
    CHECK_EQ(write(fd, "x", 1), 1);
}

static bool
has_byte(int fd)
{
    char c;
    return read(fd, &c, 1) == 1;
}

static void
fill(int fd)
{
    static const char block[4096];
    while (write(fd, block, sizeof block) > 0) {
    }
    while (write(fd, block, 1) > 0) {
    }
    CHECK_EQ(errno, EAGAIN);
}

static void
drain(int fd)
{
    char block[4096];
    while (read(fd, block, sizeof block) > 0) {
    }
}

/* An actor that waits once, and what came of it. */
struct waiter {
    int fd;
    enum tp_fd_dir dir;
    int rc;
    int err;
    counter woken;
    troupe_pid pid;
};

static void
body_wait_fd(struct tp_actor *self, void *arg)
{
    struct waiter *w = arg;
    w->rc = tp_fd_wait_own(self, w->fd, ids[w->fd], w->dir, patience());
    w->err = errno;
    add(&w->woken, 1);
}

/* It stands in the table when this returns. */
static void
start_waiter(struct tp_actor *self, struct waiter *w, int fd,
             enum tp_fd_dir dir)
{
    w->fd = fd;
    w->dir = dir;
    w->rc = 1;
    w->pid = spawn(body_wait_fd, w);
    YIELD_UNTIL(self, state_of(w->pid) == TP_PARKED);
    tp_check(waits() > 0);
}

static void
end_of_waiter(struct tp_actor *self, struct waiter *w, int rc)
{
    CHECK_EQ(join_kind(self, w->pid), TP_REASON_NORMAL);
    CHECK_EQ(w->rc, rc);
}

/* --- kinds of fds --- */

static void
expect_wake(struct tp_actor *self, int fd, enum tp_fd_dir dir,
            void (*make_ready)(int), int arg)
{
    struct waiter w = {0};
    start_waiter(self, &w, fd, dir);
    CHECK_EQ(get(&w.woken), 0);
    make_ready(arg);
    end_of_waiter(self, &w, 0);
    CHECK_EQ(waits(), 0);
}

static void
add_one(int fd)
{
    CHECK_EQ(eventfd_write(fd, 1), 0);
}

static void
set_timer(int fd)
{
    struct itimerspec soon = {.it_value.tv_nsec = 1};
    CHECK_EQ(timerfd_settime(fd, 0, &soon, NULL), 0);
}

static void
kill_child(int child)
{
    CHECK_EQ(kill(child, SIGKILL), 0);
}

static void
close_fd(int fd)
{
    close(fd);
}

static void
wait_for_a_child(struct tp_actor *self)
{
    char *argv[] = {(char *)"sleep", (char *)"1000", NULL};
    pid_t child;
    CHECK_EQ(posix_spawnp(&child, "sleep", NULL, NULL, argv, environ), 0);
    int fd = (int)syscall(SYS_pidfd_open, child, 0);
    tp_check(fd >= 0);
    expect_wake(self, fd, TP_FD_READ, kill_child, child);
    tp_fd_close(fd);
    CHECK_EQ(waitpid(child, NULL, 0), child);
}

static void
each_kind(struct tp_actor *self, void *unused)
{
    int p[2], q[2];
    (void)unused;
    make_pipe(p);
    expect_wake(self, p[0], TP_FD_READ, put_byte, p[1]);
    tp_check(has_byte(p[0]));
    expect_wake(self, p[0], TP_FD_READ, put_byte, p[1]);
    fill(p[1]);
    expect_wake(self, p[1], TP_FD_WRITE, drain, p[0]);
    fill(p[1]);
    expect_wake(self, p[1], TP_FD_WRITE, close_fd, p[0]);
    tp_fd_close(p[1]);

    make_pair(q);
    expect_wake(self, q[0], TP_FD_READ, put_byte, q[1]);
    fill(q[0]);
    expect_wake(self, q[0], TP_FD_WRITE, drain, q[1]);
    drain(q[0]);
    expect_wake(self, q[0], TP_FD_READ, close_fd, q[1]);
    tp_fd_close(q[0]);

    int e = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    expect_wake(self, e, TP_FD_READ, add_one, e);
    tp_fd_close(e);
    int t = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    expect_wake(self, t, TP_FD_READ, set_timer, t);
    tp_fd_close(t);
    wait_for_a_child(self);
    CHECK_EQ(known(), 0);
}

TEST_ON_ALL(pipes_sockets_events_timers_and_children_wake_who_waits, each_kind)

static void
what_is_ready(struct tp_actor *self, void *unused)
{
    int p[2];
    (void)unused;
    make_pipe(p);
    put_byte(p[1]);
    for (int i = 0; i < 100; i++) {
        CHECK_EQ(tp_fd_wait(self, p[0], TP_FD_READ, TP_NEVER), 0);
        CHECK_EQ(tp_fd_wait(self, p[1], TP_FD_WRITE, TP_NEVER), 0);
    }
    CHECK_EQ(known(), 2);
    close_both(p);
    CHECK_EQ(known(), 0);
}

TEST_BOTH(what_is_ready_already_ends_the_wait, what_is_ready)

static void
expect_error(struct tp_actor *self, int fd, int err)
{
    uint64_t deadlines[] = {TP_NEVER, 0, patience()};
    for (int dir = 0; dir < TP_FD_DIRS; dir++) {
        for (size_t i = 0; i < 3; i++) {
            errno = 0;
            CHECK_EQ(tp_fd_wait(self, fd, (enum tp_fd_dir)dir, deadlines[i]),
                     TROUPE_EINVAL);
            CHECK_EQ(errno, err);
        }
        errno = 0;
        CHECK_EQ(tp_fd_arm(self, fd, (enum tp_fd_dir)dir), TROUPE_EINVAL);
        CHECK_EQ(errno, err);
    }
}

static void
no_fds(struct tp_actor *self, void *unused)
{
    int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    int dir = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    (void)unused;
    tp_check(file >= 0 && dir >= 0);
    expect_error(self, file, EPERM);
    expect_error(self, dir, EPERM);
    tp_fd_close(file);
    tp_fd_close(dir);
    expect_error(self, file, EBADF);
    expect_error(self, -1, EBADF);
    expect_error(self, INT_MAX, EBADF);
    expect_error(self, INT_MIN, EBADF);
    CHECK_EQ(known(), 0);
    CHECK_EQ(waits(), 0);
}

TEST_ON_ALL(files_directories_and_what_is_no_fd_are_refused, no_fds)

static void
null_device(struct tp_actor *self, void *unused)
{
    int fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    (void)unused;
    CHECK_EQ(tp_fd_wait(self, fd, TP_FD_READ, TP_NEVER), 0);
    CHECK_EQ(tp_fd_wait(self, fd, TP_FD_WRITE, 0), 0);
    CHECK_EQ(tp_fd_arm(self, fd, TP_FD_READ), 1);
    tp_fd_close(fd);
    CHECK_EQ(waits(), 0);
}

TEST_ON_ALL(the_null_device_is_always_ready, null_device)

/* --- who waits --- */

/* Two wait for p[0]: r to read it, w to write. */
static void
start_both(struct tp_actor *self, int p[2], struct waiter *r, struct waiter *w)
{
    *r = *w = (struct waiter){0};
    make_pair(p);
    fill(p[0]);
    start_waiter(self, r, p[0], TP_FD_READ);
    start_waiter(self, w, p[0], TP_FD_WRITE);
}

static void
second_waiter(struct tp_actor *self, void *unused)
{
    struct waiter w = {0};
    int p[2];
    (void)unused;
    make_pipe(p);
    start_waiter(self, &w, p[0], TP_FD_READ);
    for (int i = 0; i < 3; i++) {
        CHECK_EQ(tp_fd_wait(self, p[0], TP_FD_READ, TP_NEVER), TROUPE_EBUSY);
        CHECK_EQ(tp_fd_arm(self, p[0], TP_FD_READ), TROUPE_EBUSY);
    }
    CHECK_EQ(get(&w.woken), 0);
    put_byte(p[1]);
    end_of_waiter(self, &w, 0);
    CHECK_EQ(tp_fd_wait(self, p[0], TP_FD_READ, TP_NEVER), 0);
    close_both(p);
}

TEST_BOTH(a_second_waiter_is_refused_and_the_first_one_stays, second_waiter)

static void
two_directions(struct tp_actor *self, void *unused)
{
    struct waiter r, w;
    int p[2];
    (void)unused;
    start_both(self, p, &r, &w);
    CHECK_EQ(known(), 1);
    drain(p[1]);
    end_of_waiter(self, &w, 0);
    CHECK_EQ(get(&r.woken), 0);
    CHECK_EQ(waits(), 1);
    put_byte(p[1]);
    end_of_waiter(self, &r, 0);
    close_both(p);
}

TEST_BOTH(both_directions_of_an_fd_wait_apart, two_directions)

static void
hang_up(struct tp_actor *self, void *unused)
{
    struct waiter r, w;
    int p[2];
    (void)unused;
    start_both(self, p, &r, &w);
    close(p[1]);
    end_of_waiter(self, &w, 0);
    end_of_waiter(self, &r, 0);
    tp_fd_close(p[0]);
}

TEST_BOTH(a_hang_up_wakes_both_directions, hang_up)

#define CROWD 300

static void
crowd(struct tp_actor *self, void *unused)
{
    static struct waiter w[CROWD];
    static int p[CROWD][2];
    (void)unused;
    memset(w, 0, sizeof w);
    for (int i = 0; i < CROWD; i++) {
        make_pipe(p[i]);
        start_waiter(self, &w[i], p[i][0], TP_FD_READ);
    }
    CHECK_EQ(known(), CROWD);
    for (int i = 0; i < CROWD; i++) {
        put_byte(p[i][1]);
    }
    for (int i = 0; i < CROWD; i++) {
        end_of_waiter(self, &w[i], 0);
        close_both(p[i]);
    }
    CHECK_EQ(known(), 0);
}

TEST_BOTH(a_crowd_is_woken_one_by_one, crowd)

/* --- the end of a wait --- */

static void
timeouts(struct tp_actor *self, void *unused)
{
    struct waiter w = {0};
    int p[2];
    (void)unused;
    make_pipe(p);
    CHECK_EQ(tp_fd_wait(self, p[0], TP_FD_READ, 0), TROUPE_ETIMEOUT);
    CHECK_EQ(tp_fd_wait(self, p[0], TP_FD_READ, 1), TROUPE_ETIMEOUT);
    CHECK_EQ(known(), 0); /* a look is no wait */
    uint64_t soon = tp_now_ns() + MS;
    CHECK_EQ(tp_fd_wait(self, p[0], TP_FD_READ, soon), TROUPE_ETIMEOUT);
    tp_check(tp_now_ns() >= soon);
    CHECK_EQ(waits(), 0);
    put_byte(p[1]); /* the next one hears of it */
    CHECK_EQ(tp_fd_wait(self, p[0], TP_FD_READ, 0), 0);
    CHECK_EQ(tp_fd_wait(self, p[0], TP_FD_READ, patience()), 0);
    tp_check(has_byte(p[0]));
    start_waiter(self, &w, p[0], TP_FD_READ);
    put_byte(p[1]);
    end_of_waiter(self, &w, 0);
    close_both(p);
}

TEST_ON_ALL(after_a_timeout_the_next_waiter_hears_of_the_event, timeouts)

static void
killed(struct tp_actor *self, void *unused)
{
    struct waiter r, w;
    int p[2];
    (void)unused;
    start_both(self, p, &r, &w);
    end_with(r.pid, TP_REASON_KILLED);
    CHECK_EQ(join_kind(self, r.pid), TP_REASON_KILLED);
    CHECK_EQ(waits(), 1);
    CHECK_EQ(known(), 1);
    end_with(w.pid, TP_REASON_KILLED);
    CHECK_EQ(join_kind(self, w.pid), TP_REASON_KILLED);
    CHECK_EQ(waits(), 0);
    CHECK_EQ(known(), own); /* it is the fd's, not the wait's */
    CHECK_EQ(get(&r.woken) + get(&w.woken), 0);
    put_byte(p[1]);
    CHECK_EQ(tp_fd_wait(self, p[0], TP_FD_READ, patience()), 0);
    close_both(p);
}

TEST_BOTH(the_end_of_an_actor_leaves_no_trace_of_its_waits, killed)

static void
closed(struct tp_actor *self, void *unused)
{
    struct waiter r, w;
    int p[2];
    (void)unused;
    start_both(self, p, &r, &w);
    tp_fd_close(p[0]);
    end_of_waiter(self, &r, TROUPE_ECLOSED);
    end_of_waiter(self, &w, TROUPE_ECLOSED);
    CHECK_EQ(known(), 0);
    tp_fd_close(p[1]);
    tp_fd_close(p[1]); /* is not open: nothing happens */
    tp_fd_close(-1);
}

TEST_BOTH(a_close_wakes_both_directions, closed)

/* --- numbers that are used again --- */

/* A new pipe, its reading end at number fd. */
static void
pipe_at(int fd, int p[2])
{
    CHECK_EQ(pipe2(p, O_NONBLOCK | O_CLOEXEC), 0);
    if (p[1] == fd) {
        p[1] = fcntl(fd, F_DUPFD_CLOEXEC, fd + 1);
    }
    if (p[0] != fd) {
        CHECK_EQ(dup3(p[0], fd, O_CLOEXEC), fd);
        close(p[0]);
        p[0] = fd;
    }
    note_ids(p);
}

static void
closed_behind_our_back(struct tp_actor *self, void *unused)
{
    struct waiter old = {0}, w = {0};
    int p[2], q[2];
    (void)unused;
    make_pipe(p);
    start_waiter(self, &old, p[0], TP_FD_READ);
    close(p[0]);
    pipe_at(p[0], q);
    start_waiter(self, &w, q[0], TP_FD_WRITE); /* which a reader never is */
    end_of_waiter(self, &old, TROUPE_ECLOSED);
    start_waiter(self, &old, q[0], TP_FD_READ);
    put_byte(q[1]);
    end_of_waiter(self, &old, 0);
    close(q[1]); /* hang-up */
    end_of_waiter(self, &w, 0);
    close(p[1]);
    tp_fd_close(q[0]);

    /* The same direction, and a file in place of the pipe. */
    pipe_at(p[0], q);
    start_waiter(self, &old, q[0], TP_FD_WRITE);
    int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    CHECK_EQ(dup3(file, q[0], O_CLOEXEC), q[0]);
    CHECK_EQ(tp_fd_wait(self, q[0], TP_FD_WRITE, TP_NEVER), TROUPE_EINVAL);
    CHECK_EQ(errno, EPERM);
    end_of_waiter(self, &old, TROUPE_ECLOSED);
    tp_fd_close(file);
    close_both(q);
    CHECK_EQ(known(), 0);
}

TEST_ON_ALL(an_fd_closed_by_others_is_found_out, closed_behind_our_back)

/* The file lives on under another number, and so does its registration. */
static void
stray(struct tp_actor *self, void *unused)
{
    struct waiter w = {0};
    int p[2], q[2];
    (void)unused;
    make_pipe(p);
    CHECK_EQ(tp_fd_wait(self, p[0], TP_FD_READ, tp_now_ns() + MS),
             TROUPE_ETIMEOUT);
    int other = dup(p[0]);
    close(p[0]);
    pipe_at(p[0], q);
    start_waiter(self, &w, q[0], TP_FD_READ);
    put_byte(p[1]);
    /* An event that comes later is taken later. */
    CHECK_EQ(tp_fd_wait(self, other, TP_FD_READ, patience()), 0);
    CHECK_EQ(get(&w.woken), 0);
    CHECK_EQ(waits(), 1);
    put_byte(q[1]);
    end_of_waiter(self, &w, 0);
    close(other);
    close(p[1]);
    close_both(q);
}

TEST_ON_ALL(an_event_of_an_earlier_file_wakes_nobody, stray)

#define CYCLES FEWER(100000)

static void
cycles(struct tp_actor *self, void *unused)
{
    (void)unused;
    for (int i = 0; i < CYCLES; i++) {
        int p[2];
        make_pipe(p);
        if (i % 2 == 0) {
            put_byte(p[1]);
        }
        CHECK_EQ(tp_fd_wait(self, p[i % 2], i % 2 ? TP_FD_WRITE : TP_FD_READ,
                            patience()),
                 0);
        if (i % 3 == 0) {
            close(p[0]);
            close(p[1]);
        } else {
            close_both(p);
        }
    }
    CHECK_EQ(waits(), 0);
    tp_check(known() <= 2);
}

static void
an_fd_is_opened_again_and_again(void **state)
{
    (void)state;
    run(2, cycles);
}

/* --- fds of our own --- */

/* Events come in the order in which they were made: those of before are
 * delivered when this returns. */
static void
let_events_come(struct tp_actor *self)
{
    int e = eventfd(1, EFD_NONBLOCK | EFD_CLOEXEC);
    CHECK_EQ(tp_fd_wait(self, e, TP_FD_READ, patience()), 0);
    tp_fd_close(e);
}

static int
wait_own(struct tp_actor *self, int fd, uint64_t ns)
{
    return tp_fd_wait_own(self, fd, ids[fd], TP_FD_READ, tp_now_ns() + ns);
}

static void
early_event(struct tp_actor *self, void *unused)
{
    int p[2];
    (void)unused;
    make_pair(p);
    CHECK_EQ(wait_own(self, p[0], MS), TROUPE_ETIMEOUT);
    put_byte(p[1]);
    let_events_come(self);
    CHECK_EQ(wait_own(self, p[0], PATIENCE_NS), 0);
    tp_check(has_byte(p[0]));
    CHECK_EQ(wait_own(self, p[0], MS), TROUPE_ETIMEOUT);
    /* What was used up meanwhile is told all the same, once. */
    put_byte(p[1]);
    let_events_come(self);
    tp_check(has_byte(p[0]));
    CHECK_EQ(wait_own(self, p[0], PATIENCE_NS), 0);
    tp_check(!has_byte(p[0]));
    CHECK_EQ(wait_own(self, p[0], MS), TROUPE_ETIMEOUT);
    /* One who does not own it takes nothing away. */
    CHECK_EQ(tp_fd_arm(self, p[0], TP_FD_READ), 0);
    put_byte(p[1]);
    CHECK_EQ(tp_actor_park(self, patience()), 0);
    tp_check(tp_fd_disarm(self, p[0], TP_FD_READ));
    CHECK_EQ(wait_own(self, p[0], PATIENCE_NS), 0);
    close_both(p);
}

/* The byte and the end come at once, and the reader takes the byte. */
static void
end_of_stream(struct tp_actor *self, void *unused)
{
    int p[2], q[2];
    (void)unused;
    make_pair(p);
    make_pipe(q);
    CHECK_EQ(wait_own(self, p[0], MS), TROUPE_ETIMEOUT);
    CHECK_EQ(wait_own(self, q[0], MS), TROUPE_ETIMEOUT);
    put_byte(p[1]);
    put_byte(q[1]);
    tp_fd_close(p[1]);
    tp_fd_close(q[1]);
    for (int i = 0; i < 3; i++) {
        CHECK_EQ(wait_own(self, p[0], PATIENCE_NS), 0);
        CHECK_EQ(wait_own(self, q[0], PATIENCE_NS), 0);
        CHECK_EQ(has_byte(p[0]), i == 0);
        CHECK_EQ(has_byte(q[0]), i == 0);
    }
    tp_fd_close(p[0]);
    tp_fd_close(q[0]);
}

static void
stale_id(struct tp_actor *self, void *unused)
{
    int p[2];
    (void)unused;
    make_pipe(p);
    uint32_t old = ids[p[0]];
    CHECK_EQ(wait_own(self, p[0], MS), TROUPE_ETIMEOUT);
    close_both(p);
    for (int again = 0; again < 2; again++) {
        CHECK_EQ(tp_fd_wait_own(self, p[0], old, TP_FD_READ, TP_NEVER),
                 TROUPE_ECLOSED);
        CHECK_EQ(tp_fd_wait_own(self, p[0], old, TP_FD_READ, 0),
                 TROUPE_ECLOSED);
        if (again == 0) {
            pipe_at(p[0], p);
        }
    }
    close_both(p);
    CHECK_EQ(known(), 0);
}

/* It was told of the event, and ends before it has looked. */
static void
arm_park_and_end(struct tp_actor *self, void *arg)
{
    int *fd = arg;
    CHECK_EQ(tp_fd_arm(self, *fd, TP_FD_READ), 0);
    CHECK_EQ(tp_actor_park(self, patience()), 0);
}

static void
passed_on(struct tp_actor *self, void *unused)
{
    int p[2];
    (void)unused;
    make_pair(p);
    CHECK_EQ(wait_own(self, p[0], MS), TROUPE_ETIMEOUT);
    troupe_pid pid = spawn(arm_park_and_end, &p[0]);
    YIELD_UNTIL(self, state_of(pid) == TP_PARKED);
    put_byte(p[1]);
    join_kind(self, pid);
    CHECK_EQ(wait_own(self, p[0], PATIENCE_NS), 0);
    close_both(p);
}

#define MUCH FEWER(4000000)

struct flow {
    int ends[2];
    uint64_t sent;
};

static void
send_much(struct tp_actor *self, void *arg)
{
    static const char block[3000];
    struct flow *f = arg;
    int fd = f->ends[1];
    while (f->sent < MUCH) {
        ssize_t n = write(fd, block, 1 + f->sent % sizeof block);
        if (n > 0) {
            f->sent += (uint64_t)n;
        } else {
            CHECK_EQ(tp_fd_wait_own(self, fd, ids[fd], TP_FD_WRITE, patience()),
                     0);
        }
    }
    tp_fd_close(fd);
}

/* A read that did not fill its room is as good as one that failed. */
static void
much(struct tp_actor *self, void *unused)
{
    struct flow f = {.sent = 0};
    uint64_t got = 0;
    char block[5000];
    ssize_t n;
    (void)unused;
    make_pair(f.ends);
    troupe_pid pid = spawn(send_much, &f);
    while ((n = read(f.ends[0], block, sizeof block)) != 0) {
        got += n > 0 ? (uint64_t)n : 0;
        if (n < (ssize_t)sizeof block) {
            CHECK_EQ(wait_own(self, f.ends[0], PATIENCE_NS), 0);
        }
    }
    CHECK_EQ(join_kind(self, pid), TP_REASON_NORMAL);
    CHECK_EQ(got, f.sent);
    tp_fd_close(f.ends[0]);
}

#define TEST_OWN(name, root)                                                   \
    static void name(void **state)                                             \
    {                                                                          \
        (void)state;                                                           \
        own = true;                                                            \
        run_on_all(root);                                                      \
        own = false;                                                           \
    }

TEST_OWN(an_event_that_meets_nobody_is_kept, early_event)
TEST_OWN(the_end_of_a_stream_is_told_again_and_again, end_of_stream)
TEST_OWN(an_id_does_not_outlive_its_fd, stale_id)
TEST_OWN(an_event_is_passed_on_by_who_ends, passed_on)
TEST_OWN(much_flows_without_a_lost_event, much)

/* --- who takes events --- */

/* One that never waits, only looks whether it should give way. */
static void
loop_of_checkpoints(struct tp_actor *self, void *unused)
{
    struct waiter w = {0};
    int p[2];
    (void)unused;
    make_pipe(p);
    start_waiter(self, &w, p[0], TP_FD_READ);
    put_byte(p[1]);
    uint64_t give_up_ns = patience();
    while (get(&w.woken) == 0) {
        tp_check(tp_now_ns() < give_up_ns);
        tp_actor_checkpoint();
    }
    end_of_waiter(self, &w, 0);
    close_both(p);
}

TEST_BOTH(a_loop_of_checkpoints_lets_events_through, loop_of_checkpoints)

static void
loop_without_checkpoints(struct tp_actor *self, void *unused)
{
    struct waiter w = {0};
    int p[2];
    (void)unused;
    make_pipe(p);
    for (int i = 0; i < 10; i++) {
        start_waiter(self, &w, p[0], TP_FD_READ);
        put_byte(p[1]);
        SPIN_UNTIL(get(&w.woken) == 1);
        end_of_waiter(self, &w, 0);
        tp_check(has_byte(p[0]));
        set(&w.woken, 0);
    }
    close_both(p);
}

/* One of two schedulers is stuck; whoever of them polled last. */
static void
a_loop_without_checkpoints_does_not_hold_up_events(void **state)
{
    (void)state;
    run(2, loop_without_checkpoints);
    run(4, loop_without_checkpoints);
}

static void
sleepers(struct tp_actor *self, void *unused)
{
    struct waiter w = {0};
    int p[2];
    (void)unused;
    make_pipe(p);
    start_waiter(self, &w, p[0], TP_FD_READ);
    for (uint64_t i = 0; i < 100; i++) {
        uint64_t until = tp_now_ns() + i * 10000;
        CHECK_EQ(tp_actor_sleep(self, until), 0);
        tp_check(tp_now_ns() >= until);
    }
    put_byte(p[1]);
    end_of_waiter(self, &w, 0);
    close_both(p);
}

TEST_BOTH(timers_go_off_while_an_fd_is_waited_for, sleepers)

/* What is no event wakes who polls, too. */
static void *
push_numbers(void *arg)
{
    const troupe_pid *to = arg;
    for (uint64_t i = 0; i < 200; i++) {
        SPIN_UNTIL(tp_sched_all_sleep());
        CHECK_EQ(push_num(*to, i), 0);
    }
    return NULL;
}

static void
mail_from_outside(struct tp_actor *self, void *unused)
{
    struct waiter w = {0};
    pthread_t thread;
    int p[2];
    (void)unused;
    make_pipe(p);
    start_waiter(self, &w, p[0], TP_FD_READ);
    pthread_create(&thread, NULL, push_numbers, &self->pid);
    for (uint64_t i = 0; i < 200; i++) {
        CHECK_EQ(recv_num_ever(self), i);
    }
    pthread_join(thread, NULL);
    put_byte(p[1]);
    end_of_waiter(self, &w, 0);
    close_both(p);
}

TEST_BOTH(mail_from_outside_wakes_who_polls, mail_from_outside)

static bool
is_driver_fd(int fd)
{
    char path[32], name[64] = "";
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return readlink(path, name, sizeof name - 1) > 0 &&
           (strcmp(name, "anon_inode:[eventpoll]") == 0 ||
            strcmp(name, "anon_inode:[eventfd]") == 0);
}

static void
fds_of_the_driver(struct tp_actor *self, void *unused)
{
    struct waiter w = {0};
    int p[2], met = 0;
    (void)unused;
    make_pipe(p);
    start_waiter(self, &w, p[0], TP_FD_READ);
    for (int fd = 0; fd < 1000; fd++) {
        if (is_driver_fd(fd)) {
            CHECK_EQ(tp_fd_wait(self, fd, TP_FD_READ, TP_NEVER), TROUPE_EINVAL);
            CHECK_EQ(errno, EBADF);
            met++;
        }
    }
    CHECK_EQ(met, 2);
    put_byte(p[1]);
    end_of_waiter(self, &w, 0);
    close_both(p);
}

TEST_ON_ALL(the_fds_of_the_driver_are_nobodys_business, fds_of_the_driver)

/* --- two steps --- */

static void
two_steps(struct tp_actor *self, void *unused)
{
    int p[2], q[2];
    (void)unused;
    make_pipe(p);
    make_pipe(q);
    for (int i = 0; i < 100; i++) {
        bool first = i % 2 == 0;
        CHECK_EQ(tp_fd_arm(self, p[0], TP_FD_READ), 0);
        CHECK_EQ(tp_fd_arm(self, q[0], TP_FD_READ), 0);
        CHECK_EQ(waits(), 2);
        put_byte(first ? p[1] : q[1]);
        CHECK_EQ(tp_actor_park(self, patience()), 0);
        CHECK_EQ(tp_fd_disarm(self, p[0], TP_FD_READ), first);
        CHECK_EQ(tp_fd_disarm(self, q[0], TP_FD_READ), !first);
        CHECK_EQ(waits(), 0);
        CHECK_EQ(tp_fd_arm(self, first ? p[0] : q[0], TP_FD_READ), 1);
        CHECK_EQ(waits(), 0);
        tp_check(has_byte(first ? p[0] : q[0]));
    }
    tp_check(!tp_fd_disarm(self, q[0], TP_FD_READ)); /* is not armed */
    CHECK_EQ(tp_fd_arm(self, p[0], TP_FD_READ), 0);
    tp_fd_close(p[0]);
    CHECK_EQ(tp_actor_park(self, patience()), 0);
    tp_check(tp_fd_disarm(self, p[0], TP_FD_READ));
    tp_fd_close(p[1]);
    close_both(q);
}

TEST_BOTH(an_actor_waits_for_several_fds_at_once, two_steps)

static void
arm_and_end(struct tp_actor *self, void *arg)
{
    int *fds = arg;
    CHECK_EQ(tp_fd_arm(self, fds[0], TP_FD_READ), 0);
    CHECK_EQ(tp_fd_arm(self, fds[1], TP_FD_READ), 0);
}

static void
armed_at_the_end(struct tp_actor *self, void *unused)
{
    int p[2], q[2];
    (void)unused;
    make_pipe(p);
    make_pipe(q);
    int fds[] = {p[0], q[0]};
    join_kind(self, spawn(arm_and_end, fds));
    CHECK_EQ(waits(), 0);
    CHECK_EQ(known(), 0);
    close_both(p);
    close_both(q);
}

TEST_ON_ALL(what_is_armed_at_an_end_is_released, armed_at_the_end)

/* --- the end of a run --- */

static int left[2];

static void
body_read_one(struct tp_actor *self, void *unused)
{
    (void)unused;
    CHECK_EQ(tp_fd_wait(self, left[0], TP_FD_READ, TP_NEVER), 0);
    tp_check(has_byte(left[0]));
}

static void *
write_later(void *unused)
{
    (void)unused;
    SPIN_UNTIL(waits() == 1 && tp_sched_all_sleep());
    put_byte(left[1]);
    return NULL;
}

static void
leave_a_reader(struct tp_actor *self, void *unused)
{
    (void)self;
    (void)unused;
    spawn(body_read_one, NULL);
}

static void
read_as_root(struct tp_actor *self, void *unused)
{
    body_read_one(self, unused);
}

/* Neither the root's end nor that all sleep ends the run. */
static void
a_run_goes_on_while_an_actor_waits_for_an_fd(void **state)
{
    actor_fn roots[] = {leave_a_reader, read_as_root};
    (void)state;
    for (unsigned i = 0; i < 12; i++) {
        pthread_t thread;
        make_pipe(left);
        pthread_create(&thread, NULL, write_later, NULL);
        run(1u << (i % 3), roots[i % 2]);
        pthread_join(thread, NULL);
        tp_check(!has_byte(left[0]));
        close_both(left);
    }
}

static void
body_wait_for_ever(struct tp_actor *self, void *unused)
{
    (void)unused;
    tp_fd_wait(self, left[0], TP_FD_READ, TP_NEVER);
    tp_check(!"it was killed");
}

static void
kill_the_last(struct tp_actor *self, void *unused)
{
    (void)unused;
    troupe_pid pid = spawn(body_wait_for_ever, NULL);
    YIELD_UNTIL(self, waits() == 1);
    end_with(pid, TP_REASON_KILLED);
}

static void
a_run_ends_when_the_last_waiter_is_killed(void **state)
{
    (void)state;
    make_pipe(left);
    run_on_all(kill_the_last);
    close_both(left);
}

static void *
halt_later(void *unused)
{
    (void)unused;
    SPIN_UNTIL(waits() == 1 && tp_sched_all_sleep());
    tp_halt(0);
    return NULL;
}

static void
leave_one_for_ever(struct tp_actor *self, void *unused)
{
    (void)self;
    (void)unused;
    spawn(body_wait_for_ever, NULL);
}

static void
a_halt_ends_those_who_wait(void **state)
{
    (void)state;
    for (unsigned n = 1; n <= 4; n *= 2) {
        pthread_t thread;
        make_pipe(left);
        pthread_create(&thread, NULL, halt_later, NULL);
        run(n, leave_one_for_ever);
        pthread_join(thread, NULL);
        close_both(left);
    }
}

static void
close_the_last(struct tp_actor *self, void *unused)
{
    struct waiter w = {0};
    (void)unused;
    make_pipe(left);
    start_waiter(self, &w, left[0], TP_FD_READ);
    close_both(left);
    end_of_waiter(self, &w, TROUPE_ECLOSED);
    body_wait(self, NULL);
}

/* What is not awaited any more does not keep a run alive. */
static void
a_wait_that_is_over_is_not_waited_for(void **state)
{
    (void)state;
    for (unsigned n = 1; n <= 4; n *= 2) {
        assert_int_equal(run_in(n, close_the_last, NULL), TP_REASON_DEADLOCK);
    }
}

static void
finish_and_wait(struct tp_actor *self, void *arg)
{
    (void)arg;
    CHECK_EQ(tp_fd_wait(self, left[0], TP_FD_READ, TP_NEVER), TROUPE_EINVAL);
    CHECK_EQ(tp_fd_arm(self, left[0], TP_FD_READ), TROUPE_EINVAL);
}

static void
wait_in_finalizer(struct tp_actor *self, void *unused)
{
    troupe_pid pid;
    (void)unused;
    CHECK_EQ(try_spawn(NULL, body_nothing, finish_and_wait, NULL, &pid), 0);
    join_kind(self, pid);
    CHECK_EQ(waits(), 0);
}

static void
a_finalizer_cannot_wait(void **state)
{
    (void)state;
    make_pipe(left);
    run_on_all(wait_in_finalizer);
    close_both(left);
}

/* --- want --- */

static size_t
open_fds(void)
{
    size_t n = 0;
    for (int fd = 0; fd < 1000; fd++) {
        n += fcntl(fd, F_GETFD) >= 0;
    }
    return n;
}

static void
try_waits(struct tp_actor *self, void *arg)
{
    int *p = arg;
    for (int i = 0; i < 2; i++) {
        int rc = tp_fd_wait(self, p[1], TP_FD_WRITE, TP_NEVER);
        tp_check(rc == 0 || rc == TROUPE_ENOMEM || rc == TROUPE_ELIMIT);
        rc = tp_fd_wait(self, p[0], TP_FD_READ, tp_now_ns() + MS);
        tp_check(rc == TROUPE_ETIMEOUT || rc == TROUPE_ENOMEM ||
                 rc == TROUPE_ELIMIT);
        rc = tp_fd_wait(self, p[0], TP_FD_READ, 0);
        tp_check(rc == TROUPE_ETIMEOUT || rc == TROUPE_ENOMEM);
        rc = tp_fd_arm(self, p[1], TP_FD_READ);
        if (rc == 0) {
            tp_fd_disarm(self, p[1], TP_FD_READ);
        }
        tp_check(rc == 0 || rc == TROUPE_ENOMEM || rc == TROUPE_ELIMIT);
        CHECK_EQ(waits(), 0);
    }
}

struct sweep {
    int pair[2];
    long n;
    bool hit;
};

static void
wait_with_fault(struct tp_actor *self, void *arg)
{
    struct sweep *s = arg;
    tp_fault_arm_all(s->n);
    try_waits(self, s->pair);
    s->hit = tp_fault_fired();
    tp_fault_arm(0);
    try_waits(self, s->pair);
}

static void
any_call_that_fails_is_an_error_of_the_wait(void **state)
{
    struct sweep s = {.n = 0, .hit = true};
    (void)state;
    make_pair(s.pair);
    size_t fds = open_fds();
    while (s.hit) {
        s.n++;
        assert_int_equal(run_in(1, wait_with_fault, &s), TP_REASON_NORMAL);
        assert_int_equal(open_fds(), fds);
        assert_true(s.n < 200);
    }
    printf("%ld calls failed in turn\n", s.n - 1);
    assert_true(s.n > 8);
    close_both(s.pair);
}

static void
wait_without_fds(struct tp_actor *self, void *arg)
{
    struct rlimit old, none = {0};
    int *p = arg;
    CHECK_EQ(getrlimit(RLIMIT_NOFILE, &old), 0);
    none.rlim_max = old.rlim_max;
    for (rlim_t spare = 0; spare < 2; spare++) {
        none.rlim_cur = (rlim_t)p[1] + 1 + spare;
        CHECK_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
        CHECK_EQ(tp_fd_wait(self, p[1], TP_FD_WRITE, TP_NEVER), TROUPE_ELIMIT);
        CHECK_EQ(errno, EMFILE);
    }
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &old), 0);
    CHECK_EQ(tp_fd_wait(self, p[1], TP_FD_WRITE, TP_NEVER), 0);
}

static void
want_of_fds_is_an_error_of_the_wait(void **state)
{
    int p[2];
    (void)state;
    make_pair(p);
    size_t fds = open_fds();
    assert_int_equal(run_in(1, wait_without_fds, p), TP_REASON_NORMAL);
    assert_int_equal(open_fds(), fds);
    close_both(p);
}

static void
a_run_without_waits_makes_no_epoll_set(void **state)
{
    size_t fds = open_fds();
    (void)state;
    run(2, body_nothing);
    assert_int_equal(open_fds(), fds);
    run_on_all(what_is_ready);
    assert_int_equal(open_fds(), fds);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(
            pipes_sockets_events_timers_and_children_wake_who_waits),
        cmocka_unit_test(what_is_ready_already_ends_the_wait),
        cmocka_unit_test(files_directories_and_what_is_no_fd_are_refused),
        cmocka_unit_test(the_null_device_is_always_ready),
        cmocka_unit_test(a_second_waiter_is_refused_and_the_first_one_stays),
        cmocka_unit_test(both_directions_of_an_fd_wait_apart),
        cmocka_unit_test(a_hang_up_wakes_both_directions),
        cmocka_unit_test(a_crowd_is_woken_one_by_one),
        cmocka_unit_test(after_a_timeout_the_next_waiter_hears_of_the_event),
        cmocka_unit_test(the_end_of_an_actor_leaves_no_trace_of_its_waits),
        cmocka_unit_test(a_close_wakes_both_directions),
        cmocka_unit_test(an_fd_closed_by_others_is_found_out),
        cmocka_unit_test(an_event_of_an_earlier_file_wakes_nobody),
        cmocka_unit_test(an_fd_is_opened_again_and_again),
        cmocka_unit_test(an_event_that_meets_nobody_is_kept),
        cmocka_unit_test(the_end_of_a_stream_is_told_again_and_again),
        cmocka_unit_test(an_id_does_not_outlive_its_fd),
        cmocka_unit_test(an_event_is_passed_on_by_who_ends),
        cmocka_unit_test(much_flows_without_a_lost_event),
        cmocka_unit_test(a_loop_of_checkpoints_lets_events_through),
        cmocka_unit_test(a_loop_without_checkpoints_does_not_hold_up_events),
        cmocka_unit_test(timers_go_off_while_an_fd_is_waited_for),
        cmocka_unit_test(mail_from_outside_wakes_who_polls),
        cmocka_unit_test(the_fds_of_the_driver_are_nobodys_business),
        cmocka_unit_test(an_actor_waits_for_several_fds_at_once),
        cmocka_unit_test(what_is_armed_at_an_end_is_released),
        cmocka_unit_test(a_run_goes_on_while_an_actor_waits_for_an_fd),
        cmocka_unit_test(a_run_ends_when_the_last_waiter_is_killed),
        cmocka_unit_test(a_halt_ends_those_who_wait),
        cmocka_unit_test(a_wait_that_is_over_is_not_waited_for),
        cmocka_unit_test(a_finalizer_cannot_wait),
        cmocka_unit_test(any_call_that_fails_is_an_error_of_the_wait),
        cmocka_unit_test(want_of_fds_is_an_error_of_the_wait),
        cmocka_unit_test(a_run_without_waits_makes_no_epoll_set),
    };
    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests_name("driver", tests, NULL, NULL);
}
