/*
 * blocking_test.c - actors on the blocking pool: there, back, and their ends.
 */
#define _GNU_SOURCE
#include "run_in.h"

#include "actor/delay.h"
#include "actor/inspect.h"
#include "actor/registry.h"
#include "base/thread_errno.h"
#include "sched/blocking.h"

#include <pthread.h>
#include <setjmp.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static void
run(unsigned schedulers, actor_fn root)
{
    assert_int_equal(run_in(schedulers, root, NULL), TP_REASON_NORMAL);
}

static void
run_limited(unsigned schedulers, unsigned threads, actor_fn root)
{
    struct tp_run_config config = {.schedulers = schedulers,
                                   .blocking_threads = threads};
    struct tp_reason *r = run_config(&config, root, NULL);
    assert_int_equal(r->kind, TP_REASON_NORMAL);
    tp_reason_unref(r);
}

static bool
in_pool(void)
{
    return tp_worker_self()->pool;
}

static struct tp_blocking_stats
stats(void)
{
    struct tp_blocking_stats s;
    tp_blocking_get_stats(&s);
    return s;
}

static void
begin(struct tp_actor *self)
{
    CHECK_EQ(tp_blocking_begin(self), 0);
    tp_check(in_pool());
}

static void
end(struct tp_actor *self)
{
    tp_check(in_pool());
    CHECK_EQ(tp_blocking_end(self), 0);
    tp_check(!in_pool());
}

/* --- there and back --- */

static void
root_there_and_back(struct tp_actor *self, void *unused)
{
    char name[16];
    (void)unused;
    for (int i = 0; i < 100; i++) {
        tp_check(!in_pool());
        begin(self);
        tp_check(tp_actor_self() == self);
        pthread_getname_np(pthread_self(), name, sizeof name);
        tp_check(strcmp(name, "troupe-block-0") == 0);
        end(self);
    }
    CHECK_EQ(stats().threads, 1);
    CHECK_EQ(stats().sections, 100);
    CHECK_EQ(tp_blocking_sections(), 0);
}

static void
an_actor_moves_there_and_back(void **state)
{
    (void)state;
    run(1, root_there_and_back);
    run(2, root_there_and_back);
}

static void
root_nests(struct tp_actor *self, void *unused)
{
    (void)unused;
    begin(self);
    begin(self);
    CHECK_EQ(tp_blocking_end(self), 0);
    end(self);
    CHECK_EQ(stats().sections, 1);
}

static void
sections_nest(void **state)
{
    (void)state;
    run(1, root_nests);
}

/* --- what an actor may do there --- */

static void
echo_once(struct tp_actor *self, void *unused)
{
    (void)unused;
    struct tp_msg *m = recv_msg(self);
    troupe_pid to = m->from;
    m->from = self->pid;
    CHECK_EQ(tp_mailbox_send(self, to, m), 0);
}

static void
echo_once_in_pool(struct tp_actor *self, void *unused)
{
    begin(self);
    echo_once(self, unused);
    tp_check(in_pool());
    end(self);
}

static void
root_waits_within(struct tp_actor *self, void *unused)
{
    (void)unused;
    for (int i = 0; i < FEWER(50); i++) {
        begin(self);
        troupe_pid p = spawn(i % 2 == 0 ? echo_once : echo_once_in_pool, NULL);
        CHECK_EQ(send_num(self, p, 5), 0);
        CHECK_EQ(recv_num(self), 5);
        tp_check(in_pool());
        CHECK_EQ(tp_actor_yield(self), 0);
        tp_check(in_pool());
        CHECK_EQ(tp_actor_sleep(self, tp_now_ns() + MS), 0);
        tp_check(in_pool());
        join_kind(self, p);
        tp_check(in_pool());
        end(self);
    }
}

static void
it_may_wait_and_wake_others_within(void **state)
{
    (void)state;
    run(1, root_waits_within);
    run(2, root_waits_within);
    run(4, root_waits_within);
}

static void
root_uses_all(struct tp_actor *self, void *unused)
{
    static const char name[] = "somebody";
    struct tp_msg *down;
    (void)unused;
    begin(self);
    troupe_pid p = spawn(body_wait, NULL);
    CHECK_EQ(tp_register(name, sizeof name - 1, p, NULL), 0);
    CHECK_EQ(tp_whereis(name, sizeof name - 1), p);
    tp_check(end_with(p, TP_REASON_KILLED));
    CHECK_EQ(tp_join(self, p, tp_now_ns() + PATIENCE_NS, &down), 0);
    tp_msg_drop(down);
    CHECK_EQ(tp_whereis(name, sizeof name - 1), 0);
    end(self);
}

static void
all_calls_of_the_core_work_there(void **state)
{
    (void)state;
    run(1, root_uses_all);
    run(2, root_uses_all);
}

static void
wait_number(struct tp_actor *self, void *to)
{
    *(uint64_t *)to = recv_num_ever(self);
}

/* All schedulers sleep: the injected one must wake one of them. */
static void
root_wakes_sleepers(struct tp_actor *self, void *unused)
{
    uint64_t got = 0;
    (void)unused;
    for (uint64_t i = 1; i <= FEWER(100); i++) {
        troupe_pid p = spawn(wait_number, &got);
        begin(self);
        SPIN_UNTIL(state_of(p) == TP_PARKED && tp_sched_all_sleep());
        CHECK_EQ(push_num(p, i), 0);
        SPIN_UNTIL(!tp_pid_is_alive(p));
        CHECK_EQ(got, i);
        end(self);
    }
}

static void
a_sleeping_scheduler_is_woken_from_there(void **state)
{
    (void)state;
    run(1, root_wakes_sleepers);
    run(2, root_wakes_sleepers);
}

static void
root_arms_timer(struct tp_actor *self, void *unused)
{
    uint64_t got = 0, id;
    troupe_pid p = spawn(wait_number, &got);
    (void)unused;
    begin(self);
    SPIN_UNTIL(state_of(p) == TP_PARKED && tp_sched_all_sleep());
    CHECK_EQ(tp_send_after(p, num_msg(9), tp_now_ns() + MS, 0, &id), 0);
    SPIN_UNTIL(!tp_pid_is_alive(p));
    CHECK_EQ(got, 9);
    end(self);
}

static void
a_timer_set_there_wakes_a_scheduler(void **state)
{
    (void)state;
    run(1, root_arms_timer);
    run(2, root_arms_timer);
}

/* --- schedulers go on --- */

static counter gate, entered, most, ended;

static void
pass_gate(struct tp_actor *self, void *unused)
{
    (void)unused;
    begin(self);
    add(&entered, 1);
    SPIN_UNTIL(get(&gate) != 0);
    end(self);
    add(&ended, 1);
}

static void
reset(void)
{
    set(&gate, 0);
    set(&entered, 0);
    set(&most, 0);
    set(&ended, 0);
}

#define BLOCKED 20

static void
root_goes_on(struct tp_actor *self, void *unused)
{
    troupe_pid pids[BLOCKED];
    (void)unused;
    reset();
    for (int i = 0; i < BLOCKED; i++) {
        pids[i] = spawn(pass_gate, NULL);
    }
    YIELD_UNTIL(self, get(&entered) == BLOCKED);
    CHECK_EQ(stats().threads, BLOCKED);
    CHECK_EQ(tp_blocking_sections(), BLOCKED);
    troupe_pid p = spawn(echo_once, NULL);
    CHECK_EQ(send_num(self, p, 1), 0);
    CHECK_EQ(recv_num(self), 1);
    struct tp_actor_info info;
    CHECK_EQ(tp_actor_inspect(pids[0], &info, NULL, NULL), 0);
    tp_check(info.blocking && info.state == TP_RUNNING);
    CHECK_EQ(tp_actor_inspect(self->pid, &info, NULL, NULL), 0);
    tp_check(!info.blocking);
    set(&gate, 1);
    YIELD_UNTIL(self, get(&ended) == BLOCKED);
}

static void
those_who_block_do_not_stop_the_others(void **state)
{
    (void)state;
    run(1, root_goes_on);
    run(2, root_goes_on);
}

/* --- the limit --- */

static uint64_t order[BLOCKED];

static void
note_turn(struct tp_actor *self, void *number)
{
    begin(self);
    uint64_t now = add(&entered, 1);
    order[get(&ended)] = (uintptr_t)number;
    if (now > get(&most)) {
        set(&most, now);
    }
    SPIN_UNTIL(get(&gate) != 0);
    add(&entered, (uint64_t)-1);
    add(&ended, 1);
    end(self);
}

static void
root_one_at_a_time(struct tp_actor *self, void *unused)
{
    (void)unused;
    reset();
    for (uintptr_t i = 0; i < BLOCKED; i++) {
        spawn(note_turn, (void *)i);
        YIELD_UNTIL(self, tp_blocking_sections() == i + 1);
        YIELD_UNTIL(self, get(&entered) == 1 && stats().queued == i);
    }
    CHECK_EQ(stats().threads, 1);
    set(&gate, 1);
    YIELD_UNTIL(self, get(&ended) == BLOCKED);
    for (uintptr_t i = 0; i < BLOCKED; i++) {
        CHECK_EQ(order[i], i);
    }
    CHECK_EQ(get(&most), 1);
}

static void
at_the_limit_they_take_turns_in_order(void **state)
{
    (void)state;
    run_limited(1, 1, root_one_at_a_time);
    run_limited(2, 1, root_one_at_a_time);
}

static void
root_three_at_a_time(struct tp_actor *self, void *unused)
{
    (void)unused;
    reset();
    for (int i = 0; i < BLOCKED; i++) {
        spawn(pass_gate, NULL);
    }
    YIELD_UNTIL(self, get(&entered) == 3 && stats().queued == BLOCKED - 3);
    CHECK_EQ(stats().threads, 3);
    set(&gate, 1);
    YIELD_UNTIL(self, get(&ended) == BLOCKED);
    tp_check(stats().threads <= 3); /* who is idle may have ended */
}

static void
the_pool_grows_up_to_its_limit(void **state)
{
    struct tp_run_config bad = {
        .schedulers = 1, .blocking_threads = TP_BLOCKING_THREADS_MAX + 1};
    struct body *b = body_new(body_nothing, NULL, NULL);
    struct tp_reason *r;
    (void)state;
    run_limited(1, 3, root_three_at_a_time);
    run_limited(4, 3, root_three_at_a_time);
    assert_int_equal(tp_run(&bad, NULL, &body_class, b, &r), TROUPE_EINVAL);
    free(b);
}

/* --- idle threads end --- */

static void
set_idle(uint64_t ns)
{
    atomic_store_explicit(&tp_blocking_idle_ns, ns, memory_order_seq_cst);
}

static void
root_shrinks(struct tp_actor *self, void *unused)
{
    (void)unused;
    for (int round = 0; round < 3; round++) {
        reset();
        for (int i = 0; i < BLOCKED; i++) {
            spawn(pass_gate, NULL);
        }
        YIELD_UNTIL(self, get(&entered) == BLOCKED);
        set(&gate, 1);
        YIELD_UNTIL(self, get(&ended) == BLOCKED && stats().threads == 0);
        CHECK_EQ(stats().idle, 0);
    }
    /* One for the actor that waits within: it may be woken. */
    troupe_pid p = spawn(echo_once_in_pool, NULL);
    YIELD_UNTIL(self, state_of(p) == TP_PARKED && stats().idle == 1);
    CHECK_EQ(tp_actor_sleep(self, tp_now_ns() + 10 * MS), 0);
    CHECK_EQ(stats().threads, 1);
    CHECK_EQ(send_num(self, p, 1), 0);
    CHECK_EQ(recv_num(self), 1);
    YIELD_UNTIL(self, stats().threads == 0);
}

static void
idle_threads_end_and_new_ones_take_their_place(void **state)
{
    uint64_t before = tp_blocking_idle_ns;
    (void)state;
    set_idle(MS);
    run(1, root_shrinks);
    run(2, root_shrinks);
    set_idle(before);
}

/* --- no thread can be had --- */

static void
root_without_thread(struct tp_actor *self, void *unused)
{
    (void)unused;
    tp_fault_arm(1);
    CHECK_EQ(tp_blocking_begin(self), TROUPE_ELIMIT);
    tp_check(tp_fault_fired() && !in_pool());
    CHECK_EQ(tp_blocking_sections(), 0);
    begin(self);
    end(self);
}

static void
without_any_thread_the_call_is_refused(void **state)
{
    (void)state;
    run(1, root_without_thread);
    run(2, root_without_thread);
}

static void
root_short_of_threads(struct tp_actor *self, void *unused)
{
    (void)unused;
    reset();
    spawn(pass_gate, NULL);
    YIELD_UNTIL(self, get(&entered) == 1);
    troupe_pid p = spawn(echo_once_in_pool, NULL);
    /* Each thread that would be created fails to be: it takes turns. */
    tp_fault_arm_all(1);
    YIELD_UNTIL(self, stats().queued == 1);
    tp_check(tp_fault_fired());
    tp_fault_arm_all(0);
    CHECK_EQ(stats().threads, 1);
    set(&gate, 1);
    CHECK_EQ(send_num(self, p, 4), 0);
    CHECK_EQ(recv_num(self), 4);
}

static void
short_of_threads_they_take_turns(void **state)
{
    (void)state;
    run(1, root_short_of_threads);
}

/* --- ends --- */

static void
root_kills_in_call(struct tp_actor *self, void *unused)
{
    (void)unused;
    reset();
    troupe_pid p = spawn(pass_gate, NULL);
    YIELD_UNTIL(self, get(&entered) == 1);
    tp_check(end_with(p, TP_REASON_KILLED));
    tp_check(tp_pid_is_alive(p));
    set(&gate, 1);
    enum tp_reason_kind kind = join_kind(self, p);
    tp_check(kind == TP_REASON_KILLED || kind == TP_REASON_NOPROC);
    CHECK_EQ(get(&ended), 0);
    YIELD_UNTIL(self, tp_blocking_sections() == 0);
}

static void
one_killed_in_a_call_ends_when_it_returns(void **state)
{
    (void)state;
    run(1, root_kills_in_call);
    run(2, root_kills_in_call);
}

/* As compiled or interpreted Lua code that comes by checkpoints. */
static void
loop_in_pool(struct tp_actor *self, void *unused)
{
    (void)unused;
    begin(self);
    add(&entered, 1);
    for (;;) {
        tp_actor_checkpoint();
    }
}

static void
wait_in_pool(struct tp_actor *self, void *unused)
{
    begin(self);
    add(&entered, 1);
    body_wait(self, unused);
}

static void
kill_within(struct tp_actor *self, actor_fn fn)
{
    reset();
    troupe_pid p = spawn(fn, NULL);
    YIELD_UNTIL(self, get(&entered) == 1);
    if (fn == wait_in_pool) {
        YIELD_UNTIL(self, state_of(p) == TP_PARKED);
    }
    tp_check(end_with(p, TP_REASON_KILLED));
    join_kind(self, p);
    tp_check(!tp_pid_is_alive(p));
    CHECK_EQ(tp_blocking_sections(), in_pool() ? 1 : 0);
}

static void
root_kills_within(struct tp_actor *self, void *unused)
{
    (void)unused;
    for (int i = 0; i < FEWER(20); i++) {
        kill_within(self, loop_in_pool);
        kill_within(self, wait_in_pool);
        /* The killer is in the pool itself, and all schedulers sleep. */
        begin(self);
        kill_within(self, loop_in_pool);
        end(self);
    }
}

static void
one_killed_in_a_loop_or_a_wait_ends(void **state)
{
    (void)state;
    run(1, root_kills_within);
    run(2, root_kills_within);
}

static void
root_kills_queued(struct tp_actor *self, void *unused)
{
    troupe_pid pids[BLOCKED];
    (void)unused;
    reset();
    spawn(pass_gate, NULL);
    YIELD_UNTIL(self, get(&entered) == 1);
    for (int i = 0; i < BLOCKED; i++) {
        pids[i] = spawn(pass_gate, NULL);
    }
    YIELD_UNTIL(self, stats().queued == BLOCKED);
    for (int i = 1; i < BLOCKED; i += 2) {
        tp_check(end_with(pids[i], TP_REASON_KILLED));
    }
    for (int i = 1; i < BLOCKED; i += 2) {
        join_kind(self, pids[i]);
    }
    CHECK_EQ(get(&entered), 1); /* the only thread is still busy */
    CHECK_EQ(stats().queued, BLOCKED / 2);
    set(&gate, 1);
    YIELD_UNTIL(self, get(&ended) == 1 + BLOCKED / 2);
}

static void
one_killed_while_it_waits_for_a_thread_ends_at_once(void **state)
{
    (void)state;
    run_limited(1, 1, root_kills_queued);
    run_limited(2, 1, root_kills_queued);
}

static void
exit_in_pool(struct tp_actor *self, void *unused)
{
    (void)unused;
    begin(self);
    tp_actor_exit(self, tp_reason_const(TP_REASON_SHUTDOWN));
}

static void
return_in_pool(struct tp_actor *self, void *unused)
{
    (void)unused;
    begin(self);
}

static void
root_sees_ends(struct tp_actor *self, void *unused)
{
    (void)unused;
    for (int i = 0; i < FEWER(50); i++) {
        enum tp_reason_kind kind = join_kind(self, spawn(exit_in_pool, NULL));
        tp_check(kind == TP_REASON_SHUTDOWN || kind == TP_REASON_NOPROC);
        join_kind(self, spawn(return_in_pool, NULL));
        YIELD_UNTIL(self, tp_blocking_sections() == 0);
    }
    tp_check(stats().threads <= 2);
}

static void
an_end_within_leaves_nothing(void **state)
{
    (void)state;
    run(1, root_sees_ends);
    run(2, root_sees_ends);
}

static counter refused;

static void
finish_in_pool(struct tp_actor *self, void *unused)
{
    (void)unused;
    CHECK_EQ(tp_blocking_begin(self), TROUPE_EINVAL);
    add(&refused, 1);
}

static void
root_finishes(struct tp_actor *self, void *unused)
{
    troupe_pid pid;
    (void)unused;
    set(&refused, 0);
    CHECK_EQ(try_spawn(NULL, body_nothing, finish_in_pool, NULL, &pid), 0);
    join_kind(self, pid);
    CHECK_EQ(get(&refused), 1);
}

static void
a_finalizer_is_refused(void **state)
{
    (void)state;
    run(1, root_finishes);
}

/* --- one that cannot be killed --- */

static const struct tp_spawn_opts unkillable = {.unkillable = true};

static void
stubborn(struct tp_actor *self, void *unused)
{
    (void)unused;
    begin(self);
    add(&entered, 1);
    while (tp_mailbox_wait(self, TP_NEVER) == 0) {
    }
    tp_check(in_pool()); /* and goes on there */
    CHECK_EQ(tp_mailbox_wait(self, TP_NEVER), TROUPE_EKILLED);
    tp_check(in_pool());
    CHECK_EQ(tp_blocking_end(self), TROUPE_EKILLED);
    tp_check(!in_pool());
    CHECK_EQ(tp_blocking_begin(self), TROUPE_EKILLED);
    tp_check(!in_pool());
    add(&ended, 1);
}

static void
root_kills_stubborn(struct tp_actor *self, void *unused)
{
    (void)unused;
    for (int i = 0; i < FEWER(20); i++) {
        reset();
        troupe_pid p = spawn_opts(&unkillable, stubborn, NULL);
        YIELD_UNTIL(self, get(&entered) == 1);
        if (i % 2 == 0) {
            YIELD_UNTIL(self, state_of(p) == TP_PARKED);
        }
        tp_check(end_with(p, TP_REASON_KILLED));
        join_kind(self, p);
        CHECK_EQ(get(&ended), 1);
    }
}

static void
one_that_cannot_be_killed_goes_on_in_the_pool(void **state)
{
    (void)state;
    run(1, root_kills_stubborn);
    run(2, root_kills_stubborn);
}

/* --- overflow --- */

static volatile int zero;

__attribute__((noinline)) static int
deep(int n)
{
    volatile char frame[512];
    frame[n % 512] = (char)n;
    return zero == 1 ? 0 : deep(n + 1) + frame[0];
}

static bool
may_abandon(struct tp_actor *a, uintptr_t pc)
{
    (void)a;
    return pc >= (uintptr_t)deep && pc < (uintptr_t)deep + 4096;
}

static void
deep_main(struct tp_actor *self, void *unused)
{
    (void)unused;
    begin(self);
    deep(0);
}

static const struct tp_actor_class deep_class = {.main = deep_main,
                                                 .may_abandon = may_abandon};

static void
root_overflows(struct tp_actor *self, void *unused)
{
    troupe_pid pid;
    (void)unused;
    for (int i = 0; i < FEWER(20); i++) {
        CHECK_EQ(tp_spawn(NULL, &deep_class, NULL, &pid), 0);
        enum tp_reason_kind kind = join_kind(self, pid);
        tp_check(kind == TP_REASON_OVERFLOW || kind == TP_REASON_NOPROC);
    }
    YIELD_UNTIL(self, tp_blocking_sections() == 0);
    begin(self);
    end(self);
}

static void
an_overflow_there_ends_the_actor_only(void **state)
{
    (void)state;
    run(1, root_overflows);
    run(2, root_overflows);
}

/* --- the run --- */

static void
body_pass_later(struct tp_actor *self, void *unused)
{
    (void)unused;
    begin(self);
    /* Nobody but this thread is awake now and then. */
    SPIN_UNTIL(tp_sched_all_sleep());
    end(self);
    add(&ended, 1);
}

static void
root_leaves(struct tp_actor *self, void *unused)
{
    (void)self;
    (void)unused;
    reset();
    spawn(body_pass_later, NULL);
}

static void
a_run_goes_on_while_somebody_blocks(void **state)
{
    (void)state;
    for (unsigned i = 0; i < FEWER(20); i++) {
        run(1 + i % 3, root_leaves);
        assert_int_equal(get(&ended), 1);
    }
}

static void
root_waits_for_ever_within(struct tp_actor *self, void *unused)
{
    begin(self);
    body_wait(self, unused);
}

static void
a_wait_within_that_cannot_end_is_found(void **state)
{
    (void)state;
    for (unsigned i = 0; i < FEWER(20); i++) {
        assert_int_equal(run_in(1 + i % 3, root_waits_for_ever_within, NULL),
                         TP_REASON_DEADLOCK);
    }
}

static void
halt_now(struct tp_actor *self, void *unused)
{
    (void)self;
    (void)unused;
    tp_halt(2);
}

static void
wait_for_doom(struct tp_actor *self, void *unused)
{
    begin(self);
    add(&entered, 1);
    SPIN_UNTIL(tp_actor_is_doomed(self));
    end(self);
    body_wait(self, unused);
}

static void
root_stops_with_blocked(struct tp_actor *self, void *unused)
{
    reset();
    for (int i = 0; i < BLOCKED; i++) {
        spawn(wait_for_doom, NULL);
    }
    YIELD_UNTIL(self, get(&entered) == 4);
    spawn(halt_now, NULL);
    body_wait(self, unused);
}

static void
a_stop_waits_for_those_who_block(void **state)
{
    struct tp_run_config config = {.blocking_threads = 4};
    (void)state;
    for (unsigned i = 0; i < FEWER(30); i++) {
        config.schedulers = 1u << (i % 3);
        struct tp_reason *r =
            run_config(&config, root_stops_with_blocked, NULL);
        assert_int_equal(r->kind, TP_REASON_SHUTDOWN);
        assert_int_equal(get(&bodies_freed), BLOCKED + 2);
        assert_int_equal(tp_left_behind(), 0);
        tp_reason_unref(r);
    }
}

/* What exits_after does cannot be undone: in a process of its own. */

static void
root_left_behind(struct tp_actor *self, void *unused)
{
    (void)unused;
    reset();
    spawn(pass_gate, NULL);
    spawn(pass_gate, NULL);
    spawn(body_wait, NULL);
    YIELD_UNTIL(self, get(&entered) == 2);
    tp_halt(4);
    begin(self);
    SPIN_UNTIL(get(&gate) != 0);
}

static void
run_and_leave_behind(void)
{
    struct tp_run_config config = {.schedulers = 2, .exits_after = true};
    struct tp_reason *r;
    int code = 0;
    atomic_store_explicit(&tp_blocking_patience_ns, MS, memory_order_seq_cst);
    CHECK_EQ(tp_run(&config, NULL, &body_class,
                    body_new(root_left_behind, NULL, NULL), &r),
             0);
    CHECK_EQ(r->kind, TP_REASON_SHUTDOWN);
    tp_check(tp_left_behind() == 2 || tp_left_behind() == 3);
    tp_check(tp_halted(&code) && code == 4);
    /* Nothing was taken apart: they may go on, and find nobody to run them. */
    set(&gate, 1);
    SPIN_UNTIL(!tp_blocking_is_busy());
    CHECK_EQ(tp_run(&config, NULL, &body_class, NULL, &r), TROUPE_EBUSY);
}

static void
those_who_block_are_left_behind_where_the_process_exits(void **state)
{
    int status;
    (void)state;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        run_and_leave_behind();
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

/* In one function, where a compiler would look up once where errno lies. */
static void
errno_root(struct tp_actor *self, void *unused)
{
    (void)unused;
    errno = 7;
    CHECK_EQ(tp_blocking_begin(self), 0);
    CHECK_EQ(errno, 7);
    close(-1);
    CHECK_EQ(errno, EBADF);
    tp_blocking_end(self);
    CHECK_EQ(errno, EBADF);
    errno = 8;
    CHECK_EQ(tp_blocking_begin(self), 0);
    CHECK_EQ(errno, 8);
    tp_blocking_end(self);
}

static void
errno_is_the_actors_on_any_thread(void **state)
{
    (void)state;
    assert_int_equal(run_in(1, errno_root, NULL), TP_REASON_NORMAL);
    assert_int_equal(run_in(2, errno_root, NULL), TP_REASON_NORMAL);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_actor_moves_there_and_back),
        cmocka_unit_test(sections_nest),
        cmocka_unit_test(errno_is_the_actors_on_any_thread),
        cmocka_unit_test(it_may_wait_and_wake_others_within),
        cmocka_unit_test(all_calls_of_the_core_work_there),
        cmocka_unit_test(a_sleeping_scheduler_is_woken_from_there),
        cmocka_unit_test(a_timer_set_there_wakes_a_scheduler),
        cmocka_unit_test(those_who_block_do_not_stop_the_others),
        cmocka_unit_test(at_the_limit_they_take_turns_in_order),
        cmocka_unit_test(the_pool_grows_up_to_its_limit),
        cmocka_unit_test(idle_threads_end_and_new_ones_take_their_place),
        cmocka_unit_test(without_any_thread_the_call_is_refused),
        cmocka_unit_test(short_of_threads_they_take_turns),
        cmocka_unit_test(one_killed_in_a_call_ends_when_it_returns),
        cmocka_unit_test(one_killed_in_a_loop_or_a_wait_ends),
        cmocka_unit_test(one_killed_while_it_waits_for_a_thread_ends_at_once),
        cmocka_unit_test(an_end_within_leaves_nothing),
        cmocka_unit_test(a_finalizer_is_refused),
        cmocka_unit_test(one_that_cannot_be_killed_goes_on_in_the_pool),
        cmocka_unit_test(an_overflow_there_ends_the_actor_only),
        cmocka_unit_test(a_run_goes_on_while_somebody_blocks),
        cmocka_unit_test(a_wait_within_that_cannot_end_is_found),
        cmocka_unit_test(a_stop_waits_for_those_who_block),
        cmocka_unit_test(
            those_who_block_are_left_behind_where_the_process_exits),
    };
    return cmocka_run_group_tests_name("blocking", tests, NULL, NULL);
}
