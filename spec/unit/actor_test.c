/*
 * actor_test.c - birth, life and end of an actor.
 */
#include "run_in.h"

#include <pthread.h>
#include <setjmp.h>

#include <cmocka.h>

static void
run(unsigned schedulers, actor_fn root)
{
    assert_int_equal(run_in(schedulers, root, NULL), TP_REASON_NORMAL);
}

static const struct tp_spawn_opts unkillable = {.unkillable = true};

/* What an actor left behind. */
static counter mark, mark2, finished;

static void
clear_marks(void)
{
    set(&mark, 0);
    set(&mark2, 0);
    set(&finished, 0);
}

/* --- birth --- */

static void
child(struct tp_actor *self, void *arg)
{
    tp_check(tp_actor_self() == self);
    tp_check(tp_slot_self() == self->slot);
    tp_check(tp_slot_pid(self->slot) == self->pid);
    tp_check(self->parent == *(troupe_pid *)arg);
    tp_check(self->started_ns <= tp_now_ns());
    tp_check(tp_pid_is_alive(self->pid) && tp_pid_was_issued(self->pid));
    CHECK_EQ(state_of(self->pid), TP_RUNNING);
    add(&mark, 1);
}

static void
spawn_root(struct tp_actor *self, void *unused)
{
    (void)unused;
    clear_marks();
    CHECK_EQ(self->parent, 0);
    troupe_pid p = spawn(child, &self->pid);
    tp_check(p != self->pid && tp_pid_is_alive(p));
    CHECK_EQ(state_of(p), TP_QUEUED);
    CHECK_EQ(get(&mark), 0); /* the spawner goes on */
    CHECK_EQ(join_kind(self, p), TP_REASON_NORMAL);
    CHECK_EQ(get(&mark), 1);
}

static void
a_child_runs_and_knows_who_it_is(void **state)
{
    (void)state;
    run(1, spawn_root);
    assert_null(tp_actor_self());
}

static void
grandchildren(struct tp_actor *self, void *arg)
{
    uintptr_t depth = (uintptr_t)arg;
    if (depth > 0) {
        troupe_pid a = spawn(grandchildren, (void *)(depth - 1));
        troupe_pid b = spawn(grandchildren, (void *)(depth - 1));
        join_kind(self, a);
        join_kind(self, b);
    }
    add(&mark, 1);
}

static void
a_tree_of_actors_is_born_and_joined(void **state)
{
    (void)state;
    for (unsigned n = 1; n <= 4; n *= 2) {
        clear_marks();
        uintptr_t depth = FEWER(10) == 10 ? 9 : 4;
        assert_int_equal(run_in(n, grandchildren, (void *)depth),
                         TP_REASON_NORMAL);
        assert_int_equal(get(&mark), (2u << depth) - 1);
    }
}

static void
limit_root(struct tp_actor *self, void *unused)
{
    troupe_pid p[9], q;
    (void)unused;
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 9; i++) {
            CHECK_EQ(try_spawn(NULL, body_wait, NULL, NULL, &p[i]), 0);
        }
        for (int i = 0; i < 3; i++) {
            CHECK_EQ(try_spawn(NULL, body_wait, NULL, NULL, &q), TROUPE_ELIMIT);
        }
        for (int i = 0; i < 9; i++) {
            end_with(p[i], TP_REASON_KILLED);
            join_kind(self, p[i]);
        }
        /* A slot comes back after its body was freed. */
        YIELD_UNTIL(self, atomic_load_explicit(&tp_actor_live,
                                               memory_order_seq_cst) == 1);
        CHECK_EQ(get(&bodies_freed), (round + 1) * 9);
    }
}

static void
max_actors_is_a_limit_on_the_living(void **state)
{
    struct tp_run_config config = {.schedulers = 2, .max_actors = 10};
    (void)state;
    struct tp_reason *r = run_config(&config, limit_root, NULL);
    assert_int_equal(r->kind, TP_REASON_NORMAL);
}

static __attribute__((noinline)) size_t
dive(size_t bytes)
{
    char frame[4096];
    __asm__ volatile("" : : "r"(frame) : "memory");
    if (bytes > sizeof frame) {
        bytes = dive(bytes - sizeof frame);
    }
    __asm__ volatile("" : : "r"(frame) : "memory");
    return bytes;
}

static void
dive_deep(struct tp_actor *self, void *arg)
{
    size_t reserve = *(size_t *)arg;
    tp_check((size_t)(self->stack.hi - self->stack.lo) >= reserve);
    dive(reserve / 2);
    tp_actor_yield(self);
    add(&mark, 1);
}

static void
stack_root(struct tp_actor *self, void *unused)
{
    static size_t sizes[] = {65536, 256 << 10, 1 << 20, 4 << 20};
    (void)unused;
    for (size_t i = 0; i < 4; i++) {
        struct tp_spawn_opts opts = {.stack_reserve = sizes[i],
                                     .stack_guard = 65536};
        troupe_pid p = spawn_opts(&opts, dive_deep, &sizes[i]);
        CHECK_EQ(join_kind(self, p), TP_REASON_NORMAL);
    }
}

static void
a_stack_has_the_size_that_was_asked_for(void **state)
{
    (void)state;
    clear_marks();
    run(1, stack_root);
    assert_int_equal(get(&mark), 4);
}

/* --- reasons --- */

static void
say_value_and_return(struct tp_actor *self, void *unused)
{
    (void)unused;
    tp_actor_set_reason(self, tp_reason_new("first", 5));
    tp_actor_set_reason(self, tp_reason_new("second", 6));
    tp_actor_set_reason(self, tp_reason_const(TP_REASON_KILLED));
}

static void
say_value_and_exit(struct tp_actor *self, void *unused)
{
    say_value_and_return(self, unused);
    tp_actor_exit(self, tp_reason_new("third", 5));
}

static void
exit_shutdown(struct tp_actor *self, void *unused)
{
    (void)unused;
    tp_actor_exit(self, tp_reason_const(TP_REASON_SHUTDOWN));
}

static void
join_value(struct tp_actor *self, troupe_pid p, const char *text)
{
    struct tp_msg *down;
    CHECK_EQ(tp_join(self, p, TP_NEVER, &down), 0);
    struct tp_reason *r = tp_notice_reason(down);
    CHECK_EQ(r->kind, TP_REASON_VALUE);
    CHECK_EQ(r->size, strlen(text));
    CHECK_EQ(memcmp(r->data, text, r->size), 0);
    tp_msg_drop(down);
}

static void
reason_root(struct tp_actor *self, void *unused)
{
    (void)unused;
    CHECK_EQ(join_kind(self, spawn(body_nothing, NULL)), TP_REASON_NORMAL);
    CHECK_EQ(join_kind(self, spawn(exit_shutdown, NULL)), TP_REASON_SHUTDOWN);
    join_value(self, spawn(say_value_and_return, NULL), "first");
    join_value(self, spawn(say_value_and_exit, NULL), "first");
}

static void
the_first_reason_stays(void **state)
{
    (void)state;
    run(1, reason_root);
}

/* --- told to end --- */

static void
count_finish(struct tp_actor *self, void *unused)
{
    (void)self;
    (void)unused;
    add(&finished, 1);
}

static troupe_pid
spawn_counted(const struct tp_spawn_opts *opts, actor_fn fn)
{
    troupe_pid p;
    clear_marks();
    CHECK_EQ(try_spawn(opts, fn, count_finish, NULL, &p), 0);
    return p;
}

static void
park_for_ever(struct tp_actor *self, void *unused)
{
    (void)unused;
    add(&mark, 1);
    tp_actor_park(self, TP_NEVER);
    add(&mark2, 1);
}

static void
yield_for_ever(struct tp_actor *self, void *unused)
{
    (void)unused;
    for (;;) {
        add(&mark, 1);
        tp_actor_yield(self);
    }
}

/* Ends p, which must notice; it is finished once. */
static void
end_and_join(struct tp_actor *self, troupe_pid p)
{
    uint64_t end = get(&finished) + 1;
    tp_check(end_with(p, TP_REASON_KILLED));
    tp_check(!end_with(p, TP_REASON_SHUTDOWN));
    CHECK_EQ(join_kind(self, p), TP_REASON_KILLED);
    CHECK_EQ(get(&finished), end);
    tp_check(!end_with(p, TP_REASON_SHUTDOWN));
}

static void
end_root(struct tp_actor *self, void *unused)
{
    (void)unused;
    troupe_pid p = spawn_counted(NULL, park_for_ever);
    end_and_join(self, p); /* before its first run, on one scheduler */
    p = spawn_counted(NULL, park_for_ever);
    YIELD_UNTIL(self, get(&mark) == 1 && state_of(p) == TP_PARKED);
    end_and_join(self, p);
    CHECK_EQ(get(&mark2), 0);
    p = spawn_counted(NULL, yield_for_ever);
    YIELD_UNTIL(self, get(&mark) > 3);
    end_and_join(self, p);
}

static void
an_end_reaches_the_parked_and_the_queued(void **state)
{
    (void)state;
    run(1, end_root);
    run(2, end_root);
}

static void
unborn_root(struct tp_actor *self, void *unused)
{
    (void)unused;
    troupe_pid p = spawn_counted(NULL, park_for_ever);
    end_and_join(self, p);
    CHECK_EQ(get(&mark), 0); /* main has not run, finish and free have */
    YIELD_UNTIL(self, get(&bodies_freed) == 1);
}

static void
an_end_before_the_first_run_skips_main(void **state)
{
    (void)state;
    run(1, unborn_root);
}

/* Says so when it runs, goes on until let go, then waits as told. */
static counter let_go;

static void
busy_then_park(struct tp_actor *self, void *unused)
{
    (void)unused;
    set(&mark, 1);
    SPIN_UNTIL(get(&let_go) != 0);
    tp_actor_park(self, TP_NEVER);
    set(&mark2, 1);
}

static void
busy_then_yield(struct tp_actor *self, void *unused)
{
    (void)unused;
    set(&mark, 1);
    SPIN_UNTIL(get(&let_go) != 0);
    tp_actor_yield(self);
    set(&mark2, 1);
}

/* A thread outside ends an actor that is running right now. */
struct outside {
    troupe_pid target;
    bool ended;
};

static void *
end_from_outside(void *arg)
{
    struct outside *o = arg;
    SPIN_UNTIL(get(&mark) == 1);
    o->ended = end_with(o->target, TP_REASON_KILLED);
    set(&let_go, 1);
    tp_external_end();
    return NULL;
}

static void
end_running(struct tp_actor *self, actor_fn fn)
{
    pthread_t t;
    struct outside o;
    set(&let_go, 0);
    tp_external_begin();
    o.target = spawn_counted(NULL, fn);
    CHECK_EQ(pthread_create(&t, NULL, end_from_outside, &o), 0);
    CHECK_EQ(join_kind(self, o.target), TP_REASON_KILLED);
    pthread_join(t, NULL);
    tp_check(o.ended);
    CHECK_EQ(get(&mark2), 0); /* the wait did not return */
    CHECK_EQ(get(&finished), 1);
}

static void
running_root(struct tp_actor *self, void *unused)
{
    (void)unused;
    for (int i = 0; i < FEWER(20); i++) {
        end_running(self, busy_then_park);
        end_running(self, busy_then_yield);
    }
}

static void
an_end_reaches_the_running_at_the_next_wait(void **state)
{
    (void)state;
    run(1, running_root);
    run(2, running_root);
}

static void
end_self(struct tp_actor *self, void *unused)
{
    (void)unused;
    tp_check(end_with(self->pid, TP_REASON_KILLED));
    add(&mark, 1); /* not yet */
    tp_actor_yield(self);
    add(&mark2, 1);
}

static void
end_self_root(struct tp_actor *self, void *unused)
{
    (void)unused;
    troupe_pid p = spawn_counted(NULL, end_self);
    CHECK_EQ(join_kind(self, p), TP_REASON_KILLED);
    CHECK_EQ(get(&mark), 1);
    CHECK_EQ(get(&mark2), 0);
    CHECK_EQ(get(&finished), 1);
}

static void
an_actor_can_end_itself_from_outside(void **state)
{
    (void)state;
    run(1, end_self_root);
}

static void
check_for_ever(struct tp_actor *self, void *unused)
{
    uint64_t give_up = tp_now_ns() + PATIENCE_NS;
    (void)self;
    (void)unused;
    set(&mark, 1);
    while (tp_now_ns() < give_up) {
        tp_actor_checkpoint();
    }
    set(&mark2, 1);
}

/* Alone in the run: nobody else to yield to. */
static void
checkpoint_root(struct tp_actor *self, void *unused)
{
    (void)self;
    (void)unused;
    tp_external_begin(); /* the thread will end it */
    spawn_counted(NULL, check_for_ever);
}

static void *
end_second_actor(void *unused)
{
    (void)unused;
    SPIN_UNTIL(get(&mark) == 1 && get(&bodies_freed) == 1);
    troupe_pid p = tp_slot_pid(&tp_slots.base[1]);
    tp_check(end_with(p, TP_REASON_KILLED));
    tp_external_end();
    return NULL;
}

static void
an_end_reaches_a_loop_of_checkpoints(void **state)
{
    pthread_t t;
    (void)state;
    clear_marks();
    set(&bodies_freed, 0);
    assert_int_equal(pthread_create(&t, NULL, end_second_actor, NULL), 0);
    run(1, checkpoint_root);
    pthread_join(t, NULL);
    assert_int_equal(get(&mark2), 0);
    assert_int_equal(get(&finished), 1);
}

static void
value_end_root(struct tp_actor *self, void *unused)
{
    (void)unused;
    troupe_pid p = spawn(body_wait, NULL);
    tp_check(tp_actor_end(p, tp_reason_new("one", 3)));
    tp_check(!tp_actor_end(p, tp_reason_new("two", 3)));
    join_value(self, p, "one");
    tp_check(!tp_actor_end(p, tp_reason_new("three", 5)));
    tp_check(!tp_actor_end(0, tp_reason_new("four", 4)));
    tp_check(!tp_actor_end(UINT64_MAX, tp_reason_new("five", 4)));
}

/* No reference is lost or used twice: the sanitizers watch. */
static void
an_end_takes_its_reason_in_any_case(void **state)
{
    (void)state;
    run(1, value_end_root);
}

/* --- unkillable --- */

static void
refuse_to_die(struct tp_actor *self, void *unused)
{
    (void)unused;
    set(&mark, 1);
    CHECK_EQ(tp_actor_park(self, TP_NEVER), TROUPE_EKILLED);
    CHECK_EQ(tp_actor_park(self, TP_NEVER), TROUPE_EKILLED);
    CHECK_EQ(tp_actor_park(self, tp_now_ns() + S), TROUPE_EKILLED);
    CHECK_EQ(tp_actor_yield(self), TROUPE_EKILLED);
    CHECK_EQ(tp_actor_sleep(self, TP_NEVER), TROUPE_EKILLED);
    CHECK_EQ(tp_mailbox_wait(self, TP_NEVER), TROUPE_EKILLED);
    CHECK_EQ(push_num(self->pid, 5), 0); /* it lives, and may still read */
    CHECK_EQ(tp_mailbox_wait(self, TP_NEVER), 0);
    CHECK_EQ(recv_num(self), 5);
    set(&mark2, 1);
}

static void
unkillable_root(struct tp_actor *self, void *unused)
{
    (void)unused;
    troupe_pid p = spawn_counted(&unkillable, refuse_to_die);
    YIELD_UNTIL(self, get(&mark) == 1 && state_of(p) == TP_PARKED);
    tp_check(end_with(p, TP_REASON_SHUTDOWN));
    tp_check(!end_with(p, TP_REASON_KILLED));
    CHECK_EQ(join_kind(self, p), TP_REASON_SHUTDOWN);
    CHECK_EQ(get(&mark2), 1);
    CHECK_EQ(get(&finished), 1);
}

static void
the_unkillable_is_told_and_goes_on(void **state)
{
    (void)state;
    run(1, unkillable_root);
    run(2, unkillable_root);
}

static void
unkillable_exit(struct tp_actor *self, void *unused)
{
    (void)unused;
    add(&mark, 1);
    CHECK_EQ(tp_actor_yield(self), 0);
    tp_actor_exit(self, tp_reason_const(TP_REASON_MEMORY));
}

static void
unkillable_exit_root(struct tp_actor *self, void *unused)
{
    (void)unused;
    troupe_pid p = spawn_counted(&unkillable, unkillable_exit);
    CHECK_EQ(join_kind(self, p), TP_REASON_MEMORY);
    CHECK_EQ(get(&finished), 1);
}

static void
the_unkillable_can_exit(void **state)
{
    (void)state;
    run(1, unkillable_exit_root);
}

/* --- finish --- */

static void
finish_waits(struct tp_actor *self, void *unused)
{
    (void)unused;
    CHECK_EQ(tp_actor_park(self, TP_NEVER), TROUPE_EINVAL);
    CHECK_EQ(tp_actor_park(self, tp_now_ns() + S), TROUPE_EINVAL);
    CHECK_EQ(tp_actor_yield(self), TROUPE_EINVAL);
    CHECK_EQ(tp_actor_sleep(self, tp_now_ns() + S), TROUPE_EINVAL);
    CHECK_EQ(tp_actor_sleep(self, 0), 0);
    add(&finished, 1);
}

static void
finish_root(struct tp_actor *self, void *unused)
{
    troupe_pid p;
    (void)unused;
    clear_marks();
    CHECK_EQ(try_spawn(NULL, body_nothing, finish_waits, NULL, &p), 0);
    CHECK_EQ(join_kind(self, p), TP_REASON_NORMAL);
    CHECK_EQ(try_spawn(NULL, body_wait, finish_waits, NULL, &p), 0);
    end_with(p, TP_REASON_KILLED);
    CHECK_EQ(join_kind(self, p), TP_REASON_KILLED);
    CHECK_EQ(try_spawn(&unkillable, body_wait, finish_waits, NULL, &p), 0);
    end_with(p, TP_REASON_KILLED);
    CHECK_EQ(join_kind(self, p), TP_REASON_KILLED);
    CHECK_EQ(get(&finished), 3);
}

static void
a_finalizer_cannot_wait(void **state)
{
    (void)state;
    run(1, finish_root);
}

/* How far below the top finish runs. */
static counter finish_depth;

static void
measure_depth(struct tp_actor *self, void *unused)
{
    (void)unused;
    set(&finish_depth,
        (uint64_t)(self->stack.hi - (char *)__builtin_frame_address(0)));
}

static __attribute__((noinline)) void
deep(struct tp_actor *self, int levels, actor_fn fn)
{
    char frame[1000];
    __asm__ volatile("" : : "r"(frame) : "memory");
    if (levels > 0) {
        deep(self, levels - 1, fn);
    } else {
        set(&mark, 1);
        fn(self, NULL);
    }
    __asm__ volatile("" : : "r"(frame) : "memory");
}

static void
wait_in_the_deep(struct tp_actor *self, void *unused)
{
    (void)unused;
    deep(self, 100, body_wait);
}

static void
exit_killed(struct tp_actor *self, void *unused)
{
    (void)unused;
    tp_actor_exit(self, tp_reason_const(TP_REASON_KILLED));
}

static void
exit_in_the_deep(struct tp_actor *self, void *unused)
{
    (void)unused;
    deep(self, 100, exit_killed);
}

static void
depth_root(struct tp_actor *self, void *unused)
{
    static const actor_fn fn[] = {wait_in_the_deep, exit_in_the_deep};
    troupe_pid p;
    (void)unused;
    for (size_t i = 0; i < 2; i++) {
        clear_marks();
        set(&finish_depth, 0);
        CHECK_EQ(try_spawn(NULL, fn[i], measure_depth, NULL, &p), 0);
        YIELD_UNTIL(self, get(&mark) == 1);
        end_with(p, TP_REASON_KILLED);
        YIELD_UNTIL(self, get(&finish_depth) != 0);
        tp_check(get(&finish_depth) < 8192);
    }
}

static void
finish_runs_on_a_stack_that_is_reset(void **state)
{
    (void)state;
    run(1, depth_root);
    run(2, depth_root);
}

static void
yield_once(struct tp_actor *self, void *unused)
{
    (void)unused;
    tp_actor_yield(self);
}

/* Without a park above. */
static void
go_deep(struct tp_actor *self)
{
    deep(self, 190, yield_once);
}

static void
park_shortly(struct tp_actor *self, unsigned times)
{
    for (unsigned i = 0; i < times; i++) {
        CHECK_EQ(tp_actor_park(self, tp_now_ns() + MS / 100), 0);
    }
}

/* At the first park that finds 64 KiB of dead stack, then each 64th. */
static void
shrink_root(struct tp_actor *self, void *unused)
{
    (void)unused;
    park_shortly(self, 70);
    CHECK_EQ(self->shrinks, 0); /* shallow */
    go_deep(self);
    tp_check(self->low_water < self->stack.hi - 180000);
    CHECK_EQ(self->shrinks, 0);
    park_shortly(self, 1);
    CHECK_EQ(self->shrinks, 1);
    tp_check(self->low_water > self->stack.hi - 20000);
    go_deep(self);
    park_shortly(self, 63);
    CHECK_EQ(self->shrinks, 1);
    park_shortly(self, 1);
    CHECK_EQ(self->shrinks, 2);
}

static void
shrink_at_first_park(struct tp_actor *self, void *unused)
{
    (void)unused;
    go_deep(self);
    park_shortly(self, 1);
    CHECK_EQ(self->shrinks, 1);
}

static void
what_a_deep_stack_leaves_dead_is_given_back_at_a_park(void **state)
{
    (void)state;
    run(1, shrink_root);
    run(1, shrink_at_first_park);
}

/* The steps of a death, as another actor and the finalizer see them. */
static void
finish_sees(struct tp_actor *self, void *arg)
{
    troupe_pid root = *(troupe_pid *)arg;
    tp_check(tp_pid_is_alive(self->pid)); /* still there, but no mail */
    tp_check(!tp_mailbox_is_open(self->pid));
    CHECK_EQ(push_num(self->pid, 1), TROUPE_ENOPROC);
    CHECK_EQ(self->monitor_count, 0);
    CHECK_EQ(push_num(root, 1), 0); /* before the down */
    CHECK_EQ(get(&bodies_freed), 0);
}

static void
order_body(struct tp_actor *self, void *arg)
{
    uint64_t ref;
    CHECK_EQ(tp_monitor(self, *(troupe_pid *)arg, &ref), 0);
    CHECK_EQ(tp_mailbox_wait(self, tp_now_ns() + S / 10), TROUPE_ETIMEOUT);
}

static void
order_root(struct tp_actor *self, void *unused)
{
    troupe_pid p;
    uint64_t ref;
    (void)unused;
    CHECK_EQ(try_spawn(NULL, order_body, finish_sees, &self->pid, &p), 0);
    CHECK_EQ(tp_monitor(self, p, &ref), 0);
    CHECK_EQ(recv_num(self), 1);
    struct tp_msg *m = recv_msg(self);
    CHECK_EQ(m->kind, TP_MSG_DOWN);
    tp_check(!tp_pid_is_alive(p));
    tp_msg_drop(m);
}

static void
resources_go_before_the_finalizer_and_notices_after(void **state)
{
    (void)state;
    run(1, order_root);
}

struct held {
    struct tp_resource resource;
    troupe_pid root;
    uint64_t number;
};

static void
held_release(struct tp_resource *r)
{
    struct held *h = tp_container_of(r, struct held, resource);
    CHECK_EQ(push_num(h->root, h->number), 0);
}

static struct held held[3];

static void
hold_body(struct tp_actor *self, void *unused)
{
    (void)unused;
    for (uint64_t i = 0; i < 3; i++) {
        held[i].resource.release = held_release;
        held[i].root = self->parent;
        held[i].number = i;
        tp_resource_add(self, &held[i].resource);
    }
    tp_resource_remove(&held[1].resource);
    tp_resource_remove(&held[1].resource);
    CHECK_EQ(tp_actor_park(self, TP_NEVER), 0);
}

static void
hold_finish(struct tp_actor *self, void *unused)
{
    (void)unused;
    tp_check(tp_list_is_empty(&self->resources));
    CHECK_EQ(push_num(self->parent, 100), 0);
}

static void
hold_root(struct tp_actor *self, void *unused)
{
    troupe_pid p;
    (void)unused;
    CHECK_EQ(try_spawn(NULL, hold_body, hold_finish, NULL, &p), 0);
    YIELD_UNTIL(self, state_of(p) == TP_PARKED);
    tp_check(tp_actor_end(p, tp_reason_const(TP_REASON_KILLED)));
    CHECK_EQ(recv_num(self), 2);
    CHECK_EQ(recv_num(self), 0);
    CHECK_EQ(recv_num(self), 100);
}

static void
what_it_holds_is_given_up_once_and_first(void **state)
{
    (void)state;
    run(1, hold_root);
}

/* Once it ends, nobody can change why. */
static void
linger_in_finish(struct tp_actor *self, void *unused)
{
    (void)self;
    (void)unused;
    set(&mark, 1);
    SPIN_UNTIL(get(&let_go) != 0);
}

static void
late_end_root(struct tp_actor *self, void *unused)
{
    pthread_t t;
    struct outside o;
    (void)unused;
    clear_marks();
    set(&let_go, 0);
    tp_external_begin();
    CHECK_EQ(try_spawn(NULL, body_nothing, linger_in_finish, NULL, &o.target),
             0);
    CHECK_EQ(pthread_create(&t, NULL, end_from_outside, &o), 0);
    CHECK_EQ(join_kind(self, o.target), TP_REASON_NORMAL);
    pthread_join(t, NULL);
    tp_check(!o.ended);
}

static void
an_end_comes_too_late_for_one_that_ends(void **state)
{
    (void)state;
    run(1, late_end_root);
    run(2, late_end_root);
}

/* --- sleep --- */

static void
sleep_root(struct tp_actor *self, void *unused)
{
    (void)unused;
    CHECK_EQ(tp_actor_sleep(self, 0), 0);
    CHECK_EQ(tp_actor_sleep(self, tp_now_ns()), 0);
    for (uint64_t i = 0; i < 20; i++) {
        uint64_t until = tp_now_ns() + i * 100000;
        CHECK_EQ(tp_actor_sleep(self, until), 0);
        tp_check(tp_now_ns() >= until);
    }
}

static void
a_sleep_is_never_too_short(void **state)
{
    (void)state;
    run(1, sleep_root);
    run(2, sleep_root);
}

static void
oversleep(struct tp_actor *self, void *arg)
{
    add(&mark, 1);
    tp_actor_sleep(self, *(uint64_t *)arg);
    add(&mark2, 1);
}

static void
long_sleep_root(struct tp_actor *self, void *unused)
{
    static uint64_t until[] = {TP_NEVER, TP_NEVER - 1, TP_NEVER / 2};
    troupe_pid p[3];
    (void)unused;
    clear_marks();
    for (size_t i = 0; i < 3; i++) {
        p[i] = spawn(oversleep, &until[i]);
    }
    YIELD_UNTIL(self, get(&mark) == 3);
    CHECK_EQ(tp_actor_sleep(self, tp_now_ns() + 3 * MS), 0);
    CHECK_EQ(get(&mark2), 0);
    for (size_t i = 0; i < 3; i++) {
        end_with(p[i], TP_REASON_KILLED);
        CHECK_EQ(join_kind(self, p[i]), TP_REASON_KILLED);
    }
}

static void
a_very_long_sleep_is_not_a_short_one(void **state)
{
    (void)state;
    run(1, long_sleep_root);
}

/* --- from other threads --- */

static void *
spawn_from_outside(void *unused)
{
    (void)unused;
    for (int i = 0; i < FEWER(200); i++) {
        spawn(body_nothing, NULL);
    }
    tp_external_end();
    return NULL;
}

static void
outside_root(struct tp_actor *self, void *unused)
{
    pthread_t t;
    (void)unused;
    tp_external_begin();
    CHECK_EQ(pthread_create(&t, NULL, spawn_from_outside, NULL), 0);
    YIELD_UNTIL(self, get(&bodies_freed) == FEWER(200));
    pthread_join(t, NULL);
}

static void
a_thread_that_is_no_worker_can_spawn(void **state)
{
    (void)state;
    run(1, outside_root);
    run(2, outside_root);
}

/* --- everything fails in turn --- */

static void
fault_child(struct tp_actor *self, void *unused)
{
    struct tp_msg *m = tp_msg_new(100);
    (void)unused;
    if (m != NULL && tp_mailbox_push(self->parent, m) != 0) {
        tp_msg_drop(m);
    }
    tp_actor_sleep(self, tp_now_ns() + 1000);
    tp_actor_exit(self, tp_reason_new("x", 1));
}

static void
fault_root(struct tp_actor *self, void *unused)
{
    static const struct tp_spawn_opts odd = {.stack_reserve = 1 << 17};
    troupe_pid p;
    struct tp_msg *m;
    (void)unused;
    for (int i = 0; i < 4; i++) {
        int rc =
            try_spawn(i % 2 == 0 ? NULL : &odd, fault_child, NULL, NULL, &p);
        if (rc == 0) {
            rc = tp_join(self, p, TP_NEVER, &m);
            if (rc == 0) {
                tp_msg_drop(m);
            }
        }
        tp_check(rc == 0 || rc == TROUPE_ENOMEM || rc == TROUPE_ELIMIT);
    }
    while ((m = tp_mailbox_pop(self)) != NULL) {
        tp_msg_drop(m);
    }
}

/* True while there was a call to fail. */
static bool
run_with_fault(long n)
{
    struct tp_run_config config = {.schedulers = 1};
    struct body *root = body_new(fault_root, NULL, NULL);
    struct tp_reason *reason;
    set(&bodies_freed, 0);
    set(&bodies_finished, 0);
    tp_msg_trim();
    tp_fault_arm_all(n);
    int rc = tp_run(&config, NULL, &body_class, root, &reason);
    bool hit = tp_fault_fired();
    tp_fault_arm(0);
    if (rc == 0) {
        assert_int_equal(reason->kind, TP_REASON_NORMAL);
    } else {
        assert_true(hit);
        assert_true(rc == TROUPE_ENOMEM || rc == TROUPE_ELIMIT ||
                    rc == TROUPE_ESYSTEM);
        free(root);
    }
    assert_int_equal(get(&bodies_freed), get(&bodies_finished));
    assert_false(tp_is_running());
    return hit;
}

static void
a_run_survives_any_call_that_fails(void **state)
{
    long n = 1;
    (void)state;
    while (run_with_fault(n)) {
        n++;
        assert_true(n < 500);
    }
    printf("%ld calls failed in turn\n", n - 1);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_child_runs_and_knows_who_it_is),
        cmocka_unit_test(a_tree_of_actors_is_born_and_joined),
        cmocka_unit_test(max_actors_is_a_limit_on_the_living),
        cmocka_unit_test(a_stack_has_the_size_that_was_asked_for),
        cmocka_unit_test(the_first_reason_stays),
        cmocka_unit_test(an_end_reaches_the_parked_and_the_queued),
        cmocka_unit_test(an_end_before_the_first_run_skips_main),
        cmocka_unit_test(an_end_reaches_the_running_at_the_next_wait),
        cmocka_unit_test(an_actor_can_end_itself_from_outside),
        cmocka_unit_test(an_end_reaches_a_loop_of_checkpoints),
        cmocka_unit_test(an_end_takes_its_reason_in_any_case),
        cmocka_unit_test(the_unkillable_is_told_and_goes_on),
        cmocka_unit_test(the_unkillable_can_exit),
        cmocka_unit_test(a_finalizer_cannot_wait),
        cmocka_unit_test(finish_runs_on_a_stack_that_is_reset),
        cmocka_unit_test(what_a_deep_stack_leaves_dead_is_given_back_at_a_park),
        cmocka_unit_test(resources_go_before_the_finalizer_and_notices_after),
        cmocka_unit_test(what_it_holds_is_given_up_once_and_first),
        cmocka_unit_test(an_end_comes_too_late_for_one_that_ends),
        cmocka_unit_test(a_sleep_is_never_too_short),
        cmocka_unit_test(a_very_long_sleep_is_not_a_short_one),
        cmocka_unit_test(a_thread_that_is_no_worker_can_spawn),
        cmocka_unit_test(a_run_survives_any_call_that_fails),
    };
    return cmocka_run_group_tests_name("actor", tests, NULL, NULL);
}
