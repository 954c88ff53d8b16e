/*
 * link_test.c - links, monitors and join: told once, and told the truth.
 */
#define _GNU_SOURCE
#include "actor/call.h"
#include "actor/registry.h"
#include "run_in.h"

#include <setjmp.h>
#include <time.h>

#include <cmocka.h>

static void
run(unsigned schedulers, actor_fn root)
{
    assert_int_equal(run_in(schedulers, root, NULL), TP_REASON_NORMAL);
}

static uint64_t
monitor(struct tp_actor *self, troupe_pid target)
{
    uint64_t ref;
    CHECK_EQ(tp_monitor(self, target, &ref), 0);
    tp_check(ref != 0);
    return ref;
}

/* The next message is the down that is wanted; its reason's kind. */
static enum tp_reason_kind
expect_down(struct tp_actor *self, uint64_t ref, troupe_pid dead)
{
    struct tp_msg *m = recv_msg(self);
    CHECK_EQ(m->kind, TP_MSG_DOWN);
    CHECK_EQ(m->ref, ref);
    CHECK_EQ(m->from, dead);
    enum tp_reason_kind kind = (enum tp_reason_kind)tp_notice_reason(m)->kind;
    tp_check(tp_monitor_take_down(self, m));
    tp_msg_drop(m);
    return kind;
}

/* --- down --- */

static void
once_root(struct tp_actor *self, void *unused)
{
    (void)unused;
    troupe_pid p = spawn(body_wait, NULL), q = spawn(body_nothing, NULL);
    uint64_t a = monitor(self, p), b = monitor(self, q), c = monitor(self, p);
    tp_check(a != b && b != c && a != c);
    CHECK_EQ(expect_down(self, b, q), TP_REASON_NORMAL);
    expect_no_mail(self);
    tp_check(end_with(p, TP_REASON_KILLED));
    CHECK_EQ(expect_down(self, a, p), TP_REASON_KILLED);
    CHECK_EQ(expect_down(self, c, p), TP_REASON_KILLED);
    expect_no_mail(self);
    CHECK_EQ(self->monitor_count, 0);
}

static void
each_monitor_is_told_once(void **state)
{
    (void)state;
    run(1, once_root);
}

static void
noproc_root(struct tp_actor *self, void *unused)
{
    troupe_pid dead = spawn(body_nothing, NULL);
    (void)unused;
    join_kind(self, dead);
    troupe_pid nobody[] = {dead, 0, UINT64_MAX, 1ull << 40, TP_MAX_ACTORS - 1};
    for (size_t i = 0; i < sizeof nobody / sizeof *nobody; i++) {
        uint64_t ref = monitor(self, nobody[i]);
        CHECK_EQ(expect_down(self, ref, nobody[i]), TP_REASON_NOPROC);
        if (i > 0) {
            CHECK_EQ(join_kind(self, nobody[i]), TP_REASON_NOPROC);
        }
    }
    expect_no_mail(self);
}

static void
a_monitor_of_nobody_is_told_at_once(void **state)
{
    (void)state;
    run(1, noproc_root);
}

static counter let_go;

/* Runs on until it is let go, so that its watcher runs on another scheduler. */
static void
linger(struct tp_actor *self, void *arg)
{
    CHECK_EQ(send_num(self, *(troupe_pid *)arg, 1), 0);
    SPIN_UNTIL(get(&let_go) != 0);
}

/* What a supervisor may count on when it is told. */
static void
gone_root(struct tp_actor *self, void *unused)
{
    (void)unused;
    for (int i = 0; i < FEWER(50); i++) {
        set(&let_go, 0);
        troupe_pid p = spawn(linger, &self->pid);
        uint64_t ref = monitor(self, p);
        CHECK_EQ(recv_num(self), 1);
        set(&let_go, 1);
        while (!tp_mailbox_fetch(self)) {
        }
        tp_check(!tp_pid_is_alive(p));
        tp_check(!tp_mailbox_is_open(p));
        CHECK_EQ(push_num(p, 1), TROUPE_ENOPROC);
        tp_check(!end_with(p, TP_REASON_KILLED));
        CHECK_EQ(join_kind(self, p), TP_REASON_NORMAL);
        CHECK_EQ(expect_down(self, ref, p), TP_REASON_NORMAL);
    }
}

static void
who_was_reported_down_is_dead(void **state)
{
    (void)state;
    run(2, gone_root);
}

static void
fail_with_value(struct tp_actor *self, void *arg)
{
    tp_actor_exit(self, tp_reason_new(arg, strlen(arg)));
}

static void
value_root(struct tp_actor *self, void *unused)
{
    static char text[] = "out of cheese";
    struct tp_msg *m[3], *down;
    (void)unused;
    troupe_pid p = spawn(fail_with_value, text);
    for (int i = 0; i < 3; i++) {
        monitor(self, p);
    }
    CHECK_EQ(tp_join(self, p, TP_NEVER, &down), 0);
    for (int i = 0; i < 3; i++) {
        m[i] = recv_msg(self);
        tp_check(tp_monitor_take_down(self, m[i]));
        tp_check(tp_notice_reason(m[i]) == tp_notice_reason(down)); /* shared */
        tp_msg_drop(m[i]);
    }
    struct tp_reason *r = tp_notice_reason(down);
    CHECK_EQ(r->kind, TP_REASON_VALUE);
    CHECK_EQ(r->size, strlen(text));
    CHECK_EQ(memcmp(r->data, text, r->size), 0);
    tp_msg_drop(down);
}

static void
a_reason_with_a_value_is_shared_by_all(void **state)
{
    (void)state;
    run(1, value_root);
}

/* --- reserved --- */

/* The next mail is set aside. */
static void
set_aside(struct tp_actor *self, uint64_t ref)
{
    struct tp_msg *m = recv_msg(self);
    CHECK_EQ(m->ref, ref);
    tp_check(!tp_monitor_wants(self, ref));
    tp_check(!tp_monitor_take_down(self, m));
}

static void
reserved_root(struct tp_actor *self, void *unused)
{
    (void)unused;
    uint64_t ref[4];
    struct tp_msg *down;
    for (int i = 0; i < 4; i++) {
        ref[i] = monitor(self, 0); /* nobody: told at once */
        tp_check(tp_monitor_reserve(self, ref[i], true));
        set_aside(self, ref[i]);
    }
    tp_check(!tp_monitor_reserve(self, UINT64_MAX, true));
    expect_no_mail(self);
    CHECK_EQ(tp_await_down(self, ref[0], 0, &down), 0);
    CHECK_EQ(down->ref, ref[0]);
    tp_msg_drop(down);
    CHECK_EQ(tp_await_down(self, ref[0], 0, &down), TROUPE_ENOTFOUND);
    tp_check(!tp_demonitor(self, ref[1]));
    uint64_t other = monitor(self, 0);
    tp_check(tp_monitor_reserve(self, ref[2], false)); /* goes before it */
    CHECK_EQ(expect_down(self, ref[2], 0), TP_REASON_NOPROC);
    CHECK_EQ(expect_down(self, other, 0), TP_REASON_NOPROC);
    tp_check(tp_monitor_reserve(self, ref[3], false)); /* the only one */
    other = monitor(self, 0);
    CHECK_EQ(expect_down(self, ref[3], 0), TP_REASON_NOPROC);
    CHECK_EQ(expect_down(self, other, 0), TP_REASON_NOPROC);
    other = monitor(self, 0); /* ends with it set aside */
    tp_monitor_reserve(self, other, true);
    set_aside(self, other);
}

static void
a_reserved_down_is_for_await_alone(void **state)
{
    (void)state;
    run(1, reserved_root);
}

/* --- demonitor --- */

static void
demonitor_root(struct tp_actor *self, void *unused)
{
    (void)unused;
    troupe_pid p = spawn(body_wait, NULL);
    uint64_t a = monitor(self, p), b = monitor(self, p);
    tp_check(tp_demonitor(self, a));
    tp_check(!tp_demonitor(self, a)); /* no more */
    tp_check(!tp_demonitor(self, 0));
    tp_check(!tp_demonitor(self, UINT64_MAX));
    tp_check(end_with(p, TP_REASON_KILLED));
    CHECK_EQ(expect_down(self, b, p), TP_REASON_KILLED);
    tp_check(!tp_demonitor(self, b));
    expect_no_mail(self);
}

static void
a_demonitor_in_time_prevents_the_down(void **state)
{
    (void)state;
    run(1, demonitor_root);
}

static void
flush_root(struct tp_actor *self, void *unused)
{
    (void)unused;
    troupe_pid p = spawn(body_nothing, NULL);
    uint64_t a = monitor(self, p), b = monitor(self, p);
    YIELD_UNTIL(self, state_of(p) == TP_VACANT); /* both are queued */
    tp_check(tp_mailbox_fetch(self));
    tp_check(!tp_demonitor(self, a)); /* too late to prevent, not to forget */
    int wanted = 0;
    for (int i = 0; i < 2; i++) {
        struct tp_msg *m = tp_mailbox_pop(self);
        tp_check(m != NULL && m->kind == TP_MSG_DOWN);
        if (tp_monitor_take_down(self, m)) {
            CHECK_EQ(m->ref, b);
            tp_msg_drop(m);
            wanted++;
        }
    }
    CHECK_EQ(wanted, 1);
    CHECK_EQ(self->monitor_count, 0);
}

static void
a_down_that_is_queued_can_still_be_refused(void **state)
{
    (void)state;
    run(1, flush_root);
}

/* --- many --- */

#define MANY 5000

static void
many_root(struct tp_actor *self, void *unused)
{
    static uint64_t ref[MANY];
    (void)unused;
    troupe_pid p = spawn(body_wait, NULL);
    uint64_t sum = 0, left = 0;
    for (size_t i = 0; i < MANY; i++) {
        ref[i] = monitor(self, p);
    }
    for (size_t i = 0; i < MANY; i += 3) {
        tp_check(tp_demonitor(self, ref[i]));
        ref[i] = 0;
    }
    for (size_t i = 0; i < MANY; i++) {
        sum += ref[i];
        left += ref[i] != 0;
    }
    CHECK_EQ(self->monitor_count, left);
    end_with(p, TP_REASON_KILLED);
    for (; left > 0; left--) {
        struct tp_msg *m = recv_msg(self);
        sum -= m->ref;
        tp_check(tp_monitor_take_down(self, m));
        tp_msg_drop(m);
    }
    CHECK_EQ(sum, 0);
    expect_no_mail(self);
}

static void
thousands_of_monitors_of_one_actor(void **state)
{
    (void)state;
    run(1, many_root);
}

static counter watching, told;

static void
watch(struct tp_actor *self, void *arg)
{
    troupe_pid p = *(troupe_pid *)arg;
    uint64_t ref = monitor(self, p);
    add(&watching, 1);
    CHECK_EQ(expect_down(self, ref, p), TP_REASON_SHUTDOWN);
    add(&told, 1);
}

static void
watchers_root(struct tp_actor *self, void *unused)
{
    troupe_pid p = spawn(body_wait, NULL);
    (void)unused;
    set(&watching, 0);
    set(&told, 0);
    for (int i = 0; i < FEWER(1000); i++) {
        spawn(watch, &p);
    }
    YIELD_UNTIL(self, get(&watching) == FEWER(1000));
    end_with(p, TP_REASON_SHUTDOWN);
    YIELD_UNTIL(self, get(&told) == FEWER(1000));
}

static void
a_thousand_watchers_are_all_told(void **state)
{
    (void)state;
    run(1, watchers_root);
    run(2, watchers_root);
}

/* --- the watcher ends first --- */

static void
watch_and_leave(struct tp_actor *self, void *arg)
{
    for (int i = 0; i < 10; i++) {
        monitor(self, *(troupe_pid *)arg);
    }
    add(&watching, 1);
}

static void
watcher_dies_root(struct tp_actor *self, void *unused)
{
    troupe_pid p = spawn(body_wait, NULL);
    (void)unused;
    set(&watching, 0);
    for (int i = 0; i < FEWER(100); i++) {
        spawn(watch_and_leave, &p);
    }
    YIELD_UNTIL(self, get(&watching) == FEWER(100));
    YIELD_UNTIL(self, get(&bodies_freed) == FEWER(100));
    uint64_t ref = monitor(self, p);
    end_with(p, TP_REASON_KILLED);
    CHECK_EQ(expect_down(self, ref, p), TP_REASON_KILLED);
}

static void
a_watcher_that_ends_first_is_forgotten(void **state)
{
    (void)state;
    run(1, watcher_dies_root);
    run(2, watcher_dies_root);
}

static void
self_monitor(struct tp_actor *self, void *unused)
{
    (void)unused;
    monitor(self, self->pid);
}

static void
self_monitor_root(struct tp_actor *self, void *unused)
{
    (void)unused;
    CHECK_EQ(join_kind(self, spawn(self_monitor, NULL)), TP_REASON_NORMAL);
    monitor(self, self->pid);
}

static void
an_actor_can_monitor_itself(void **state)
{
    (void)state;
    run(1, self_monitor_root);
}

/* What watches when the monitors are dropped would never be told. */
static void
monitor_in_finish(struct tp_actor *self, void *arg)
{
    uint64_t ref;
    CHECK_EQ(tp_monitor(self, *(troupe_pid *)arg, &ref), TROUPE_EINVAL);
    struct tp_msg *down;
    CHECK_EQ(tp_join(self, *(troupe_pid *)arg, TP_NEVER, &down), TROUPE_EINVAL);
}

static void
finish_root(struct tp_actor *self, void *unused)
{
    troupe_pid p = spawn(body_wait, NULL), q;
    (void)unused;
    CHECK_EQ(try_spawn(NULL, body_nothing, monitor_in_finish, &p, &q), 0);
    join_kind(self, q);
    end_with(p, TP_REASON_KILLED);
    join_kind(self, p);
}

static void
a_finalizer_cannot_monitor(void **state)
{
    (void)state;
    run(1, finish_root);
}

/* --- join --- */

static void
join_timeout_root(struct tp_actor *self, void *unused)
{
    troupe_pid p = spawn(body_wait, NULL);
    struct tp_msg *down;
    (void)unused;
    for (int i = 0; i < 20; i++) {
        uint64_t deadline = tp_now_ns() + (uint64_t)i * 50000;
        CHECK_EQ(tp_join(self, p, deadline, &down), TROUPE_ETIMEOUT);
        tp_check(tp_now_ns() >= deadline);
        CHECK_EQ(self->monitor_count, 0);
    }
    CHECK_EQ(tp_join(self, p, 0, &down), TROUPE_ETIMEOUT);
    end_with(p, TP_REASON_KILLED);
    CHECK_EQ(join_kind(self, p), TP_REASON_KILLED);
    expect_no_mail(self);
}

static void
a_join_that_times_out_leaves_no_monitor(void **state)
{
    (void)state;
    run(1, join_timeout_root);
}

static void
join_mail_root(struct tp_actor *self, void *unused)
{
    troupe_pid p = spawn(body_wait, NULL);
    uint64_t other = monitor(self, p);
    (void)unused;
    for (uint64_t i = 0; i < 100; i++) {
        CHECK_EQ(push_num(self->pid, i), 0);
        if (i == 30) {
            tp_mailbox_fetch(self);
        }
    }
    end_with(p, TP_REASON_KILLED);
    CHECK_EQ(join_kind(self, p), TP_REASON_KILLED);
    for (uint64_t i = 0; i < 100; i++) {
        CHECK_EQ(recv_num(self), i);
    }
    CHECK_EQ(expect_down(self, other, p), TP_REASON_KILLED);
    expect_no_mail(self);
}

static void
a_join_leaves_other_mail_in_order(void **state)
{
    (void)state;
    run(1, join_mail_root);
}

static void
join_root(struct tp_actor *self, void *unused)
{
    static troupe_pid p[500];
    (void)unused;
    for (size_t i = 0; i < FEWER(500); i++) {
        p[i] = spawn(body_nothing, NULL);
    }
    for (size_t i = FEWER(500); i-- > 0;) {
        enum tp_reason_kind kind = join_kind(self, p[i]);
        tp_check(kind == TP_REASON_NORMAL || kind == TP_REASON_NOPROC);
    }
    expect_no_mail(self);
}

static void
many_joins_in_any_order(void **state)
{
    (void)state;
    run(1, join_root);
    run(2, join_root);
}

static void
late_join_root(struct tp_actor *self, void *unused)
{
    static char text[] = "gone";
    (void)unused;
    troupe_pid p = spawn(body_nothing, NULL), q = spawn(body_wait, NULL);
    troupe_pid r = spawn(fail_with_value, text);
    end_with(q, TP_REASON_SHUTDOWN);
    YIELD_UNTIL(self, get(&bodies_freed) == 3);
    CHECK_EQ(join_kind(self, p), TP_REASON_NORMAL);
    CHECK_EQ(join_kind(self, q), TP_REASON_SHUTDOWN);
    CHECK_EQ(join_kind(self, r), TP_REASON_NOPROC); /* values are not kept */
    /* Nor is what the slot's next actor has overwritten. */
    troupe_pid next = p;
    for (int i = 0; tp_pid_index(next) != tp_pid_index(p) || next == p; i++) {
        next = spawn(body_nothing, NULL);
        join_kind(self, next);
        YIELD_UNTIL(self, state_of(next) == TP_VACANT);
        tp_check(i < 100);
    }
    CHECK_EQ(join_kind(self, p), TP_REASON_NOPROC);
    CHECK_EQ(join_kind(self, next), TP_REASON_NORMAL);
}

static void
a_late_join_is_told_while_the_slot_remembers(void **state)
{
    struct tp_run_config config = {.schedulers = 1, .max_actors = 5};
    (void)state;
    struct tp_reason *r = run_config(&config, late_join_root, NULL);
    assert_int_equal(r->kind, TP_REASON_NORMAL);
}

/* --- without memory --- */

static void
fault_root(struct tp_actor *self, void *unused)
{
    troupe_pid p = spawn(body_wait, NULL), dead = spawn(body_nothing, NULL);
    uint64_t ref = 0;
    (void)unused;
    YIELD_UNTIL(self, state_of(dead) == TP_VACANT);
    for (int k = 0; k < 20; k++) {
        troupe_pid target = k % 2 == 0 ? p : dead;
        int rc = TROUPE_ENOMEM;
        for (long n = 1; rc != 0; n++) {
            uint32_t before = self->monitor_count;
            tp_msg_trim();
            tp_fault_arm(n);
            rc = tp_monitor(self, target, &ref);
            bool hit = tp_fault_fired();
            tp_fault_arm(0);
            tp_check(rc == 0 || (rc == TROUPE_ENOMEM && hit));
            CHECK_EQ(self->monitor_count, before + (rc == 0));
        }
    }
    end_with(p, TP_REASON_KILLED);
    for (int k = 0; k < 20; k++) {
        struct tp_msg *m = recv_msg(self);
        tp_check(tp_monitor_take_down(self, m));
        tp_msg_drop(m);
    }
    expect_no_mail(self);
}

static void
a_monitor_without_memory_says_so(void **state)
{
    (void)state;
    run(1, fault_root);
}

/* A join that fails must not take another monitor with it. */
static void
fault_join_root(struct tp_actor *self, void *unused)
{
    troupe_pid p = spawn(body_wait, NULL);
    uint64_t ref[4];
    struct tp_msg *down;
    (void)unused;
    for (size_t i = 0; i < 4; i++) {
        ref[i] = monitor(self, p); /* the table is full: a fifth one grows it */
    }
    for (long n = 1;; n++) {
        tp_msg_trim();
        tp_fault_arm(n);
        int rc = tp_join(self, p, 0, &down);
        bool hit = tp_fault_fired();
        tp_fault_arm(0);
        CHECK_EQ(self->monitor_count, 4);
        CHECK_EQ(rc, hit ? TROUPE_ENOMEM : TROUPE_ETIMEOUT);
        if (!hit) {
            break;
        }
    }
    for (size_t i = 0; i < 4; i++) {
        tp_check(tp_demonitor(self, ref[i]));
    }
    end_with(p, TP_REASON_KILLED);
}

static void
a_join_without_memory_says_so(void **state)
{
    (void)state;
    run(1, fault_join_root);
}

/* Every allocation fails from the moment the target is told to end. */
static void
fault_down_root(struct tp_actor *self, void *unused)
{
    (void)unused;
    for (long n = 1; n < 10; n++) {
        troupe_pid p = spawn(body_wait, NULL);
        uint64_t ref = monitor(self, p);
        tp_msg_trim();
        end_with(p, TP_REASON_KILLED);
        tp_fault_arm(n);
        YIELD_UNTIL(self, state_of(p) == TP_VACANT);
        tp_fault_arm(0);
        CHECK_EQ(expect_down(self, ref, p), TP_REASON_KILLED);
    }
}

static void
a_down_needs_no_memory(void **state)
{
    (void)state;
    run(1, fault_down_root);
}

/* --- links --- */

/* The next message is the exit of a linked actor; its reason's kind. */
static enum tp_reason_kind
expect_exit(struct tp_actor *self, troupe_pid dead)
{
    struct tp_msg *m = recv_msg(self);
    CHECK_EQ(m->kind, TP_MSG_EXIT);
    CHECK_EQ(m->from, dead);
    enum tp_reason_kind kind = (enum tp_reason_kind)tp_notice_reason(m)->kind;
    tp_msg_drop(m);
    return kind;
}

static const struct tp_spawn_opts linked = {.link = true};

static void
fails(struct tp_actor *self, void *unused)
{
    (void)unused;
    tp_actor_exit(self, tp_reason_const(TP_REASON_MEMORY));
}

static void
link_and_wait(struct tp_actor *self, void *arg)
{
    CHECK_EQ(tp_link(self, *(troupe_pid *)arg), 0);
    add(&watching, 1);
    body_wait(self, NULL);
}

static void
link_root(struct tp_actor *self, void *unused)
{
    (void)unused;
    /* The child's end ends the parent, with its reason. */
    troupe_pid p = spawn(body_wait, NULL);
    set(&watching, 0);
    troupe_pid q = spawn(link_and_wait, &p);
    YIELD_UNTIL(self, get(&watching) == 1);
    end_with(p, TP_REASON_SHUTDOWN);
    CHECK_EQ(join_kind(self, q), TP_REASON_SHUTDOWN);
    /* And the other way round. */
    p = spawn(body_wait, NULL);
    set(&watching, 0);
    q = spawn(link_and_wait, &p);
    YIELD_UNTIL(self, get(&watching) == 1);
    uint64_t ref = monitor(self, p);
    end_with(q, TP_REASON_KILLED);
    CHECK_EQ(expect_down(self, ref, p), TP_REASON_KILLED);
}

static void
a_link_ends_the_other(void **state)
{
    (void)state;
    run(1, link_root);
    run(2, link_root);
}

static void
normal_root(struct tp_actor *self, void *unused)
{
    (void)unused;
    for (int i = 0; i < 20; i++) {
        troupe_pid p = spawn_opts(&linked, body_nothing, NULL);
        join_kind(self, p);
        CHECK_EQ(self->links.count, 0);
    }
    troupe_pid p = spawn(body_wait, NULL);
    tp_check(tp_exit_signal(self->pid, p, tp_reason_const(TP_REASON_NORMAL)));
    for (int i = 0; i < 10; i++) {
        tp_actor_yield(self);
    }
    tp_check(tp_mailbox_is_open(p));
    end_with(p, TP_REASON_KILLED);
}

static void
a_normal_end_ends_nobody(void **state)
{
    (void)state;
    run(1, normal_root);
    run(2, normal_root);
}

static void
trap_root(struct tp_actor *self, void *unused)
{
    (void)unused;
    tp_trap_exit(self, true);
    troupe_pid p = spawn_opts(&linked, fails, NULL);
    CHECK_EQ(expect_exit(self, p), TP_REASON_MEMORY);
    p = spawn_opts(&linked, body_nothing, NULL);
    CHECK_EQ(expect_exit(self, p), TP_REASON_NORMAL); /* told, too */
    CHECK_EQ(self->links.count, 0);
    /* Twice is once; with oneself, nothing. */
    p = spawn(body_wait, NULL);
    for (int i = 0; i < 3; i++) {
        CHECK_EQ(tp_link(self, p), 0);
        CHECK_EQ(tp_link(self, self->pid), 0);
    }
    CHECK_EQ(self->links.count, 1);
    end_with(p, TP_REASON_KILLED);
    CHECK_EQ(expect_exit(self, p), TP_REASON_KILLED);
    expect_no_mail(self);
    /* Without a link: exit/2. */
    tp_check(tp_exit_signal(7, self->pid, tp_reason_const(TP_REASON_SHUTDOWN)));
    CHECK_EQ(expect_exit(self, 7), TP_REASON_SHUTDOWN);
}

static void
who_traps_exits_is_told_instead(void **state)
{
    (void)state;
    run(1, trap_root);
    run(2, trap_root);
}

static void
link_dead_root(struct tp_actor *self, void *unused)
{
    (void)unused;
    troupe_pid dead = spawn(body_nothing, NULL);
    join_kind(self, dead);
    set(&watching, 0);
    troupe_pid q = spawn(link_and_wait, &dead);
    CHECK_EQ(join_kind(self, q), TP_REASON_NOPROC);
    tp_trap_exit(self, true);
    troupe_pid nobody[] = {dead, 0, UINT64_MAX, TP_MAX_ACTORS - 1};
    for (size_t i = 0; i < sizeof nobody / sizeof *nobody; i++) {
        CHECK_EQ(tp_link(self, nobody[i]), 0);
        CHECK_EQ(expect_exit(self, nobody[i]), TP_REASON_NOPROC);
        tp_unlink(self, nobody[i]);
    }
    CHECK_EQ(self->links.count, 0);
}

static void
a_link_to_the_dead_is_an_exit_at_once(void **state)
{
    (void)state;
    run(1, link_dead_root);
    run(2, link_dead_root);
}

static counter late_signals, early_signals;

/* After unlink has returned no signal of that link comes. */
static void
unlink_body(struct tp_actor *self, void *arg)
{
    uint64_t x = (uint64_t)(uintptr_t)arg;
    tp_trap_exit(self, true);
    for (int i = 0; i < FEWER(500); i++) {
        troupe_pid p = spawn_opts(&linked, body_wait, NULL);
        end_with(p, TP_REASON_KILLED);
        for (uint64_t k = random_next(&x) % 400; k > 0; k--) {
            atomic_signal_fence(memory_order_seq_cst);
        }
        if (random_next(&x) % 2 == 0) {
            tp_actor_yield(self);
        }
        tp_unlink(self, p);
        CHECK_EQ(self->links.count, 0);
        struct tp_msg *m = tp_mailbox_pop(self); /* what came before */
        if (m != NULL) {
            tp_msg_drop(m);
            add(&early_signals, 1);
        }
        join_kind(self, p);
        m = tp_mailbox_pop(self);
        if (m != NULL) {
            tp_msg_drop(m);
            add(&late_signals, 1);
        }
    }
}

static void
unlink_root(struct tp_actor *self, void *seed)
{
    uint64_t x = (uint64_t)(uintptr_t)seed;
    troupe_pid p[4];
    for (int i = 0; i < 4; i++) {
        p[i] = spawn(unlink_body, (void *)(uintptr_t)(random_next(&x) | 1));
    }
    for (int i = 0; i < 4; i++) {
        tp_check(join_kind(self, p[i]) != TP_REASON_KILLED);
    }
}

static void
after_unlink_no_signal_comes(void **state)
{
    (void)state;
    void *seed = (void *)(uintptr_t)random_seed();
    for (unsigned n = 1; n <= 4; n *= 2) {
        set(&late_signals, 0);
        set(&early_signals, 0);
        assert_int_equal(run_in(n, unlink_root, seed), TP_REASON_NORMAL);
        printf("%u schedulers: %" PRIu64 " of %d signals came before\n", n,
               get(&early_signals), FEWER(2000));
        assert_int_equal(get(&late_signals), 0);
    }
}

/* The one that unlinks in time is not ended by its dying partner. */
static void
unlink_root_2(struct tp_actor *self, void *unused)
{
    (void)unused;
    troupe_pid p = spawn_opts(&linked, body_wait, NULL);
    tp_unlink(self, p);
    end_with(p, TP_REASON_KILLED);
    CHECK_EQ(join_kind(self, p), TP_REASON_KILLED);
    expect_no_mail(self);
}

static void
an_unlink_in_time_saves_the_caller(void **state)
{
    (void)state;
    run(1, unlink_root_2);
    run(2, unlink_root_2);
}

#define RING FEWER(1000)

static troupe_pid ring[RING];

static void
ring_member(struct tp_actor *self, void *arg)
{
    uintptr_t i = (uintptr_t)arg;
    CHECK_EQ(recv_num(self), 1);
    CHECK_EQ(tp_link(self, ring[(i + 1) % RING]), 0);
    add(&watching, 1);
    body_wait(self, NULL);
}

static void
ring_root(struct tp_actor *self, void *unused)
{
    (void)unused;
    set(&watching, 0);
    for (uintptr_t i = 0; i < RING; i++) {
        ring[i] = spawn(ring_member, (void *)i);
        monitor(self, ring[i]);
    }
    for (size_t i = 0; i < RING; i++) {
        CHECK_EQ(push_num(ring[i], 1), 0);
    }
    YIELD_UNTIL(self, get(&watching) == RING);
    end_with(ring[RING / 3], TP_REASON_SHUTDOWN);
    for (size_t i = 0; i < RING; i++) {
        struct tp_msg *m = recv_msg(self);
        CHECK_EQ(m->kind, TP_MSG_DOWN);
        CHECK_EQ(tp_notice_reason(m)->kind, TP_REASON_SHUTDOWN);
        tp_check(tp_monitor_take_down(self, m));
        tp_msg_drop(m);
    }
    expect_no_mail(self);
}

static void
one_death_ends_a_ring_of_a_thousand(void **state)
{
    (void)state;
    run(1, ring_root);
    run(2, ring_root);
    run(4, ring_root);
}

/* Answers each exit with an exit; ends when it hears of the other's end. */
static void
exit_back(struct tp_actor *self, void *arg)
{
    troupe_pid first = *(troupe_pid *)arg, other = 0;
    tp_trap_exit(self, true);
    if (first != 0) {
        other = first;
        CHECK_EQ(tp_link(self, other), 0);
        tp_exit_signal(self->pid, other, tp_reason_const(TP_REASON_SHUTDOWN));
    }
    for (int i = 0; i < 100; i++) {
        struct tp_msg *m;
        while ((m = tp_mailbox_pop(self)) == NULL) {
            if (tp_mailbox_wait(self, TP_NEVER) != 0) {
                return;
            }
        }
        CHECK_EQ(m->kind, TP_MSG_EXIT);
        other = m->from;
        tp_msg_drop(m);
        if (!tp_exit_signal(self->pid, other,
                            tp_reason_const(TP_REASON_SHUTDOWN))) {
            return; /* it is gone */
        }
    }
}

static void
loop_root(struct tp_actor *self, void *unused)
{
    troupe_pid nobody = 0;
    (void)unused;
    troupe_pid p = spawn(exit_back, &nobody);
    uint64_t a = monitor(self, p);
    for (int i = 0; i < 3; i++) {
        tp_actor_yield(self); /* p traps */
    }
    troupe_pid q = spawn(exit_back, &p);
    uint64_t b = monitor(self, q);
    for (int i = 0; i < 2; i++) {
        struct tp_msg *m = recv_msg(self);
        tp_check(m->ref == a || m->ref == b);
        tp_check(tp_monitor_take_down(self, m));
        tp_msg_drop(m);
    }
}

static void
an_exit_loop_of_two_that_trap_ends(void **state)
{
    (void)state;
    run(1, loop_root);
}

/* --- many links and monitors --- */

#define CROWD FEWER(10000)

static void
crowd_member(struct tp_actor *self, void *arg)
{
    troupe_pid p = *(troupe_pid *)arg;
    tp_trap_exit(self, true);
    CHECK_EQ(tp_link(self, p), 0);
    uint64_t ref = monitor(self, p);
    add(&watching, 1);
    CHECK_EQ(expect_exit(self, p), TP_REASON_SHUTDOWN); /* links first */
    CHECK_EQ(expect_down(self, ref, p), TP_REASON_SHUTDOWN);
    add(&told, 1);
}

static uint64_t tell_from, tell_to;

/* Of this thread, since others use the machine too. */
static uint64_t
cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * S + (uint64_t)t.tv_nsec;
}

static void
timed_finish(struct tp_actor *a, void *arg)
{
    body_finish(a, arg);
    tell_from = cpu_ns();
}

static void
timed_free(void *arg)
{
    tell_to = cpu_ns();
    body_free(arg);
}

/* What comes between the two is that others are told. */
static const struct tp_actor_class timed_class = {
    .main = body_main, .finish = timed_finish, .free = timed_free};

/* The CPU time it takes to tell n. */
static uint64_t
crowd(struct tp_actor *self, uint64_t n)
{
    troupe_pid p;
    CHECK_EQ(tp_spawn(NULL, &timed_class, body_new(body_wait, NULL, NULL), &p),
             0);
    set(&watching, 0);
    set(&told, 0);
    for (uint64_t i = 0; i < n; i++) {
        spawn(crowd_member, &p);
    }
    YIELD_UNTIL(self, get(&watching) == n);
    end_with(p, TP_REASON_SHUTDOWN);
    YIELD_UNTIL(self, get(&told) == n);
    YIELD_UNTIL(self, state_of(p) == TP_VACANT);
    return tell_to - tell_from;
}

static void
crowd_root(struct tp_actor *self, void *unused)
{
    uint64_t few, many;
    (void)unused;
    few = crowd(self, CROWD / 10);
    many = crowd(self, CROWD);
    /* That it is linear is for bench_monitor to say; here each is told once. */
    printf("told: %d in %.2f ms, %d in %.2f ms\n", CROWD / 10,
           (double)few / 1e6, CROWD, (double)many / 1e6);
}

static void
ten_thousand_links_and_monitors_are_all_told(void **state)
{
    (void)state;
    run(1, crowd_root);
    run(2, crowd_root);
}

/* --- the order of an end --- */

static const char name[] = "order";
static counter finish_ran, hold_on, slow_told;
static troupe_pid caller_pid;

static bool
is_calling(troupe_pid pid)
{
    struct tp_slot *s = tp_slot_at(pid);
    tp_mutex_lock(&s->lock, TP_RANK_SLOT);
    bool calls =
        s->actor != NULL && s->actor->pid == pid && s->actor->call_id != 0;
    tp_mutex_unlock(&s->lock, TP_RANK_SLOT);
    return calls;
}

static void
ask(struct tp_actor *self, void *arg)
{
    struct tp_msg *reply;
    struct tp_reason *reason;
    caller_pid = self->pid; /* known before the other one ends */
    CHECK_EQ(tp_call(self, *(troupe_pid *)arg, num_msg(1), TP_NEVER, &reply,
                     &reason),
             TROUPE_ENOPROC);
    CHECK_EQ(reason->kind, TP_REASON_SHUTDOWN);
    tp_reason_unref(reason);
    add(&told, 1);
}

/* Takes one request, then ends with it unanswered. */
static void
holder(struct tp_actor *self, void *arg)
{
    CHECK_EQ(tp_register(name, sizeof name, self->pid, NULL), 0);
    CHECK_EQ(tp_link(self, *(troupe_pid *)arg), 0);
    struct tp_msg *m = recv_msg(self);
    CHECK_EQ(m->kind, TP_MSG_CALL);
    hold_owed(self, tp_owed_new(self, m));
    m->ref = 0;
    tp_msg_drop(m);
    tp_actor_exit(self, tp_reason_const(TP_REASON_SHUTDOWN));
}

/* Names and mailbox are gone, nobody else knows yet. */
static void
look_in_finish(struct tp_actor *self, void *arg)
{
    (void)arg;
    CHECK_EQ(tp_whereis(name, sizeof name), 0);
    tp_check(!tp_mailbox_is_open(self->pid));
    tp_check(is_calling(caller_pid));
    set(&finish_ran, 1);
}

static void
order_root(struct tp_actor *self, void *unused)
{
    (void)unused;
    troupe_pid me = self->pid, p;
    tp_trap_exit(self, true);
    for (int i = 0; i < 50; i++) {
        set(&finish_ran, 0);
        set(&told, 0);
        CHECK_EQ(try_spawn(NULL, holder, look_in_finish, &me, &p), 0);
        uint64_t ref = monitor(self, p);
        spawn(ask, &p);
        CHECK_EQ(expect_exit(self, p), TP_REASON_SHUTDOWN);
        CHECK_EQ(get(&finish_ran), 1);
        tp_check(!is_calling(caller_pid));
        CHECK_EQ(tp_register(name, sizeof name, self->pid, NULL), 0);
        tp_check(tp_unregister(name, sizeof name));
        CHECK_EQ(expect_down(self, ref, p), TP_REASON_SHUTDOWN);
        YIELD_UNTIL(self, get(&told) == 1);
    }
    expect_no_mail(self);
}

static void
an_end_goes_in_order(void **state)
{
    (void)state;
    run(1, order_root);
    run(2, order_root);
}

static void
note_slow(troupe_pid pid)
{
    (void)pid;
    add(&slow_told, 1);
}

static void
slow_finish(struct tp_actor *self, void *arg)
{
    SPIN_UNTIL(get(&hold_on) == 0);
    /* It is too late for a link that nobody would tell. */
    CHECK_EQ(tp_link(self, *(troupe_pid *)arg), TROUPE_EINVAL);
}

static void
slow_root(struct tp_actor *self, void *unused)
{
    (void)unused;
    troupe_pid me = self->pid, p;
    tp_trap_exit(self, true);
    for (int i = 0; i < 3; i++) {
        uint64_t before = get(&slow_told);
        set(&hold_on, 1);
        set(&told, 0);
        CHECK_EQ(try_spawn(NULL, holder, slow_finish, &me, &p), 0);
        uint64_t ref = monitor(self, p);
        spawn(ask, &p);
        CHECK_EQ(expect_exit(self, p), TP_REASON_SHUTDOWN);
        CHECK_EQ(expect_down(self, ref, p), TP_REASON_SHUTDOWN);
        YIELD_UNTIL(self, get(&told) == 1);
        YIELD_UNTIL(self, get(&slow_told) == before + 1);
        CHECK_EQ(join_kind(self, p), TP_REASON_SHUTDOWN);
        CHECK_EQ(state_of(p), TP_RUNNING); /* still at it */
        set(&hold_on, 0);
        YIELD_UNTIL(self, state_of(p) == TP_VACANT);
    }
    expect_no_mail(self); /* and not a second time */
}

static void
a_finalizer_that_never_ends_holds_nobody_up(void **state)
{
    (void)state;
    set(&slow_told, 0);
    tp_actor_on_slow_finish = note_slow;
    uint64_t patience = atomic_exchange_explicit(&tp_finish_patience_ns, 5 * MS,
                                                 memory_order_relaxed);
    run(2, slow_root);
    run(4, slow_root);
    atomic_store_explicit(&tp_finish_patience_ns, patience,
                          memory_order_relaxed);
    tp_actor_on_slow_finish = NULL;
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_monitor_is_told_once),
        cmocka_unit_test(a_monitor_of_nobody_is_told_at_once),
        cmocka_unit_test(who_was_reported_down_is_dead),
        cmocka_unit_test(a_reason_with_a_value_is_shared_by_all),
        cmocka_unit_test(a_reserved_down_is_for_await_alone),
        cmocka_unit_test(a_demonitor_in_time_prevents_the_down),
        cmocka_unit_test(a_down_that_is_queued_can_still_be_refused),
        cmocka_unit_test(thousands_of_monitors_of_one_actor),
        cmocka_unit_test(a_thousand_watchers_are_all_told),
        cmocka_unit_test(a_watcher_that_ends_first_is_forgotten),
        cmocka_unit_test(an_actor_can_monitor_itself),
        cmocka_unit_test(a_finalizer_cannot_monitor),
        cmocka_unit_test(a_join_that_times_out_leaves_no_monitor),
        cmocka_unit_test(a_join_leaves_other_mail_in_order),
        cmocka_unit_test(many_joins_in_any_order),
        cmocka_unit_test(a_late_join_is_told_while_the_slot_remembers),
        cmocka_unit_test(a_monitor_without_memory_says_so),
        cmocka_unit_test(a_join_without_memory_says_so),
        cmocka_unit_test(a_down_needs_no_memory),
        cmocka_unit_test(a_link_ends_the_other),
        cmocka_unit_test(a_normal_end_ends_nobody),
        cmocka_unit_test(who_traps_exits_is_told_instead),
        cmocka_unit_test(a_link_to_the_dead_is_an_exit_at_once),
        cmocka_unit_test(after_unlink_no_signal_comes),
        cmocka_unit_test(an_unlink_in_time_saves_the_caller),
        cmocka_unit_test(one_death_ends_a_ring_of_a_thousand),
        cmocka_unit_test(an_exit_loop_of_two_that_trap_ends),
        cmocka_unit_test(ten_thousand_links_and_monitors_are_all_told),
        cmocka_unit_test(an_end_goes_in_order),
        cmocka_unit_test(a_finalizer_that_never_ends_holds_nobody_up),
    };
    return cmocka_run_group_tests_name("link", tests, NULL, NULL);
}
