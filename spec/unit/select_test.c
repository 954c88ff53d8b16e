/*
 * select_test.c - the first ready arm; nothing is left behind.
 */
#define _GNU_SOURCE
#include "io/select.h"
#include "run_in.h"

#include <fcntl.h>
#include <setjmp.h>
#include <unistd.h>

#include <cmocka.h>

/* A test: root, on one and two schedulers. */
#define TEST(name, root)                                                       \
    static void name(void **state)                                             \
    {                                                                          \
        (void)state;                                                           \
        for (unsigned n = 1; n <= 2; n++) {                                    \
            assert_int_equal(run_in(n, root, NULL), TP_REASON_NORMAL);         \
        }                                                                      \
    }

/* The same of a function that gets a struct scene. */
#define TEST_SCENE(name, body)                                                 \
    static void body##_root(struct tp_actor *self, void *unused)               \
    {                                                                          \
        struct scene s;                                                        \
        (void)unused;                                                          \
        scene_init(&s, self);                                                  \
        body(self, &s);                                                        \
        scene_fini(&s);                                                        \
    }                                                                          \
    TEST(name, body##_root)

#define CHANNELS 3

struct scene {
    struct tp_channel *ch[CHANNELS];
    struct tp_arm arms[CHANNELS + 1];
    troupe_pid who; /* selects */
    size_t which;   /* gets a message, CHANNELS: the inbox */
};

static void
scene_init(struct scene *s, struct tp_actor *self)
{
    memset(s, 0, sizeof *s);
    for (size_t i = 0; i < CHANNELS; i++) {
        s->ch[i] = tp_channel_new(0);
        s->arms[i] =
            (struct tp_arm){.kind = TP_ARM_CHANNEL, .channel = s->ch[i]};
    }
    s->arms[CHANNELS].kind = TP_ARM_INBOX;
    s->who = self->pid;
}

static void
scene_fini(struct scene *s)
{
    for (size_t i = 0; i < CHANNELS; i++) {
        tp_channel_tx_unref(s->ch[i]);
        tp_channel_rx_close(s->ch[i]);
    }
}

static void
tell(struct scene *s, size_t which)
{
    if (which == CHANNELS) {
        CHECK_EQ(push_num(s->who, which), 0);
    } else {
        CHECK_EQ(tp_channel_push(s->ch[which], num_msg(which)), 0);
    }
}

/* Select must say which; takes what is there. */
static void
expect(struct tp_actor *self, struct scene *s, size_t which)
{
    size_t index;
    CHECK_EQ(tp_select(self, s->arms, CHANNELS + 1, tp_now_ns() + PATIENCE_NS,
                       &index),
             0);
    CHECK_EQ(index, which);
    struct tp_msg *m =
        which == CHANNELS ? tp_mailbox_pop(self) : tp_channel_pop(s->ch[which]);
    CHECK_EQ(msg_num(m), which);
    tp_msg_free(m);
}

static bool
times_out(struct tp_actor *self, struct scene *s, uint64_t deadline_ns)
{
    size_t index;
    return tp_select(self, s->arms, CHANNELS + 1, deadline_ns, &index) ==
           TROUPE_ETIMEOUT;
}

/* -- ready already ------------------------------------------------------------ */

static void
ready(struct tp_actor *self, struct scene *s)
{
    tp_check(times_out(self, s, 0));
    for (size_t i = CHANNELS + 1; i-- > 0;) {
        tell(s, i);
    }
    for (size_t i = 0; i <= CHANNELS; i++) {
        expect(self, s, i);
    }
    tp_check(times_out(self, s, tp_now_ns() + MS));
}

TEST_SCENE(the_first_ready_arm_in_order_is_told, ready)

/* -- waiting ------------------------------------------------------------------ */

static void
tell_parked(struct tp_actor *self, void *arg)
{
    struct scene *s = arg;
    YIELD_UNTIL(self, state_of(s->who) == TP_PARKED);
    tell(s, s->which);
}

static void
wait_for_each(struct tp_actor *self, struct scene *s)
{
    for (s->which = 0; s->which <= CHANNELS; s->which++) {
        troupe_pid pid = spawn(tell_parked, s);
        expect(self, s, s->which);
        join_kind(self, pid);
    }
}

TEST_SCENE(any_arm_ends_the_wait, wait_for_each)

/* All others are pushed to after the one that has won: none of them may end
 * the sleep that follows. */
static void
lose(struct tp_actor *self, struct scene *s)
{
    for (s->which = 0; s->which <= CHANNELS; s->which++) {
        troupe_pid pid = spawn(tell_parked, s);
        expect(self, s, s->which);
        join_kind(self, pid);
        tp_wait_abandon(self->slot);
        uint32_t epoch = tp_wait_epoch(self->slot);
        for (size_t i = 0; i <= CHANNELS; i++) {
            tell(s, i);
        }
        /* relaxed would do: nobody else is there. */
        uint64_t word =
            atomic_load_explicit(&self->slot->state, memory_order_seq_cst);
        CHECK_EQ(tp_state_of(word), TP_RUNNING); /* not notified */
        CHECK_EQ(tp_state_epoch(word), epoch);
        for (size_t i = 0; i <= CHANNELS; i++) {
            expect(self, s, i);
        }
    }
}

TEST_SCENE(losing_arms_end_no_later_wait, lose)

/* The second arm is found ready when the first one has been set. */
static void
abandon(struct tp_actor *self, struct scene *s)
{
    tp_check(tp_channel_arm(self, s->ch[0]));
    tp_wait_abandon(self->slot);
    tell(s, 0);
    uint64_t word =
        atomic_load_explicit(&self->slot->state, memory_order_seq_cst);
    CHECK_EQ(tp_state_of(word), TP_RUNNING);
    expect(self, s, 0);
}

TEST_SCENE(an_abandoned_arm_wakes_nobody, abandon)

static void
close_two(struct tp_actor *self, void *arg)
{
    struct scene *s = arg;
    YIELD_UNTIL(self, state_of(s->who) == TP_PARKED);
    tp_channel_tx_unref(s->ch[2]);
    tp_channel_tx_unref(s->ch[1]);
}

static void
closed_root(struct tp_actor *self, void *unused)
{
    struct scene s;
    size_t index;
    (void)unused;
    scene_init(&s, self);
    troupe_pid pid = spawn(close_two, &s);
    CHECK_EQ(tp_select(self, s.arms, CHANNELS + 1, tp_now_ns() + PATIENCE_NS,
                       &index),
             0);
    tp_check(index == 1 || index == 2);
    join_kind(self, pid);
    CHECK_EQ(tp_select(self, s.arms, CHANNELS + 1, TP_NEVER, &index), 0);
    CHECK_EQ(index, 1);
    tell(&s, 0);
    CHECK_EQ(tp_select(self, s.arms, CHANNELS + 1, TP_NEVER, &index), 0);
    CHECK_EQ(index, 0);
    for (size_t i = 0; i < CHANNELS; i++) {
        tp_channel_rx_close(s.ch[i]);
    }
    tp_channel_tx_unref(s.ch[0]);
}

TEST(two_of_three_arms_close_while_it_waits, closed_root)

static void
select_ever(struct tp_actor *self, void *arg)
{
    struct scene *s = arg;
    struct tp_arm arms[CHANNELS + 1];
    size_t index;
    memcpy(arms, s->arms, sizeof arms);
    tp_select(self, arms, CHANNELS + 1, TP_NEVER, &index);
    tp_check(!"it was to be killed");
}

static void
kill_selecting(struct tp_actor *self, struct scene *s)
{
    troupe_pid pid = spawn(select_ever, s);
    YIELD_UNTIL(self, state_of(pid) == TP_PARKED);
    tp_check(end_with(pid, TP_REASON_KILLED));
    CHECK_EQ(join_kind(self, pid), TP_REASON_KILLED);
    for (size_t i = 0; i <= CHANNELS; i++) {
        tell(s, i);
        expect(self, s, i);
    }
}

TEST_SCENE(who_is_killed_in_it_leaves_nothing_behind, kill_selecting)

/* -- file descriptors ---------------------------------------------------------- */

struct pipe_scene {
    int r, w;
    troupe_pid who;
    struct tp_arm arms[2]; /* the pipe, a channel that stays empty */
};

static void
pipe_init(struct pipe_scene *p, struct tp_actor *self)
{
    int fds[2];
    CHECK_EQ(pipe2(fds, O_NONBLOCK | O_CLOEXEC), 0);
    *p = (struct pipe_scene){.r = fds[0], .w = fds[1], .who = self->pid};
    p->arms[0] =
        (struct tp_arm){.kind = TP_ARM_FD, .fd = p->r, .dir = TP_FD_READ};
    p->arms[1] =
        (struct tp_arm){.kind = TP_ARM_CHANNEL, .channel = tp_channel_new(0)};
}

static void
pipe_fini(struct pipe_scene *p)
{
    size_t known, waits;
    tp_fds_count(&known, &waits);
    CHECK_EQ(waits, 0);
    tp_channel_tx_unref(p->arms[1].channel);
    tp_channel_rx_close(p->arms[1].channel);
    tp_fd_close(p->r);
    tp_fd_close(p->w);
}

static void
write_one(int fd)
{
    CHECK_EQ(write(fd, "x", 1), 1);
}

static void
write_parked(struct tp_actor *self, void *arg)
{
    struct pipe_scene *p = arg;
    YIELD_UNTIL(self, state_of(p->who) == TP_PARKED);
    write_one(p->w);
}

static void
push_parked(struct tp_actor *self, void *arg)
{
    struct pipe_scene *p = arg;
    YIELD_UNTIL(self, state_of(p->who) == TP_PARKED);
    CHECK_EQ(tp_channel_push(p->arms[1].channel, num_msg(1)), 0);
}

static size_t
select_pipe(struct tp_actor *self, struct pipe_scene *p)
{
    size_t index;
    CHECK_EQ(tp_select(self, p->arms, 2, tp_now_ns() + PATIENCE_NS, &index), 0);
    return index;
}

static void
fd_root(struct tp_actor *self, void *unused)
{
    struct pipe_scene p;
    size_t index;
    char byte;
    (void)unused;
    pipe_init(&p, self);
    CHECK_EQ(tp_select(self, p.arms, 2, 0, &index), TROUPE_ETIMEOUT);
    CHECK_EQ(tp_select(self, p.arms, 2, tp_now_ns() + MS, &index),
             TROUPE_ETIMEOUT);
    troupe_pid pid = spawn(write_parked, &p);
    CHECK_EQ(select_pipe(self, &p), 0);
    join_kind(self, pid);
    CHECK_EQ(select_pipe(self, &p), 0);
    CHECK_EQ(read(p.r, &byte, 1), 1);
    pid = spawn(push_parked, &p);
    CHECK_EQ(select_pipe(self, &p), 1);
    join_kind(self, pid);
    tp_msg_free(tp_channel_pop(p.arms[1].channel));
    /* The arm that lost is gone. */
    uint32_t epoch = tp_wait_epoch(self->slot);
    write_one(p.w);
    CHECK_EQ(tp_fd_wait(self, p.r, TP_FD_READ, 0), 0);
    CHECK_EQ(tp_wait_epoch(self->slot), epoch);
    p.arms[0].fd = 1000000; /* no such fd: closed */
    CHECK_EQ(select_pipe(self, &p), 0);
    pipe_fini(&p);
}

TEST(an_fd_is_an_arm_like_others, fd_root)

static void
select_pipe_ever(struct tp_actor *self, void *arg)
{
    struct pipe_scene *p = arg;
    struct tp_arm arms[2];
    size_t index;
    memcpy(arms, p->arms, sizeof arms);
    tp_select(self, arms, 2, TP_NEVER, &index);
    tp_check(!"it was to be killed");
}

static void
fd_killed_root(struct tp_actor *self, void *unused)
{
    struct pipe_scene p;
    size_t index;
    (void)unused;
    pipe_init(&p, self);
    troupe_pid pid = spawn(select_pipe_ever, &p);
    YIELD_UNTIL(self, state_of(pid) == TP_PARKED);
    CHECK_EQ(tp_select(self, p.arms, 1, TP_NEVER, &index), TROUPE_EBUSY);
    CHECK_EQ(index, 0);
    tp_check(end_with(pid, TP_REASON_KILLED));
    CHECK_EQ(join_kind(self, pid), TP_REASON_KILLED);
    write_one(p.w);
    CHECK_EQ(select_pipe(self, &p), 0);
    pipe_fini(&p);
}

TEST(who_is_killed_in_it_leaves_no_fd_armed, fd_killed_root)

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_ready_arm_in_order_is_told),
        cmocka_unit_test(any_arm_ends_the_wait),
        cmocka_unit_test(losing_arms_end_no_later_wait),
        cmocka_unit_test(an_abandoned_arm_wakes_nobody),
        cmocka_unit_test(two_of_three_arms_close_while_it_waits),
        cmocka_unit_test(who_is_killed_in_it_leaves_nothing_behind),
        cmocka_unit_test(an_fd_is_an_arm_like_others),
        cmocka_unit_test(who_is_killed_in_it_leaves_no_fd_armed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
