/*
 * group_test.c - process groups: members, turns, monitors, and the dead.
 */
#include "run_in.h"

#include "actor/group.h"

#include <setjmp.h>

#include <cmocka.h>

static void
run(unsigned schedulers, actor_fn root)
{
    assert_int_equal(run_in(schedulers, root, NULL), TP_REASON_NORMAL);
}

static bool
join(const char *g, troupe_pid pid)
{
    bool is_new;
    CHECK_EQ(tp_group_join(g, strlen(g), pid, &is_new), 0);
    return is_new;
}

static bool
leave(const char *g, troupe_pid pid)
{
    return tp_group_leave(g, strlen(g), pid);
}

static troupe_pid
pid_at(const struct tp_msg *m, size_t i)
{
    troupe_pid pid;
    memcpy(&pid, m->data + i * sizeof pid, sizeof pid);
    return pid;
}

static void
check_pids(struct tp_msg *m, const troupe_pid *expected, size_t n)
{
    CHECK_EQ(m->size, n * sizeof(troupe_pid));
    for (size_t i = 0; i < n; i++) {
        CHECK_EQ(pid_at(m, i), expected[i]);
    }
    tp_msg_free(m);
}

/* The members of g are these n pids in this order. */
static void
check_members(const char *g, const troupe_pid *expected, size_t n)
{
    struct tp_msg *m;
    CHECK_EQ(tp_group_members(g, strlen(g), &m), 0);
    check_pids(m, expected, n);
}

static troupe_pid
pick(const char *g)
{
    uint32_t count;
    return tp_group_pick(g, strlen(g), &count);
}

static size_t
bytes_of_groups(void)
{
    struct tp_msg *m;
    CHECK_EQ(tp_groups(&m), 0);
    size_t n = m->size;
    tp_msg_free(m);
    return n;
}

/* pid has ended, and we know it. */
static void
end_one(struct tp_actor *self, troupe_pid pid)
{
    end_with(pid, TP_REASON_KILLED);
    enum tp_reason_kind kind = join_kind(self, pid);
    tp_check(kind == TP_REASON_KILLED || kind == TP_REASON_NOPROC);
}

static uint64_t
watch(struct tp_actor *self, const char *g, const troupe_pid *expected,
      size_t n)
{
    struct tp_msg *m;
    uint64_t ref;
    CHECK_EQ(tp_group_monitor(self, g, strlen(g), &ref, &m), 0);
    check_pids(m, expected, n);
    return ref;
}

/* The next message is this event. */
static void
check_event(struct tp_actor *self, uint64_t ref, const char *g, bool is_join,
            troupe_pid pid)
{
    size_t len;
    struct tp_msg *m = recv_msg(self);
    CHECK_EQ(m->kind, TP_MSG_GROUP);
    CHECK_EQ(m->ref, ref);
    CHECK_EQ(m->from, pid);
    CHECK_EQ(tp_group_event_is_join(m), is_join);
    tp_check(tp_group_wants(self, m));
    const char *name = tp_group_event_name(m, &len);
    tp_check(len == strlen(g) && memcmp(name, g, len) == 0);
    tp_msg_drop(m);
}

/* --- members --- */

static void
members_root(struct tp_actor *self, void *unused)
{
    troupe_pid p[4];
    bool is_new;
    (void)unused;
    for (int i = 0; i < 4; i++) {
        p[i] = spawn(body_wait, NULL);
        tp_check(join("g", p[i]));
        tp_check(!join("g", p[i]));
    }
    check_members("g", p, 4);
    check_members("h", NULL, 0);
    tp_check(leave("g", p[1]) && !leave("g", p[1]) && !leave("h", p[1]));
    tp_check(join("g", p[1])); /* now the last */
    check_members("g", (troupe_pid[]){p[0], p[2], p[3], p[1]}, 4);
    end_one(self, p[2]);
    check_members("g", (troupe_pid[]){p[0], p[3], p[1]}, 3);
    tp_check(!leave("g", p[2]));
    CHECK_EQ(tp_group_join("g", 1, p[2], &is_new), TROUPE_ENOPROC);
    CHECK_EQ(tp_group_join("g", 1, 0, &is_new), TROUPE_ENOPROC);
    CHECK_EQ(tp_group_join("", 0, p[0], &is_new), TROUPE_EINVAL);
    char longest[TP_NAME_MAX + 1] = "";
    CHECK_EQ(tp_group_join(longest, sizeof longest, p[0], &is_new),
             TROUPE_EINVAL);
    CHECK_EQ(tp_group_join(longest, TP_NAME_MAX, p[0], &is_new), 0);
    CHECK_EQ(bytes_of_groups(), 2 + 1 + TP_NAME_MAX);
    end_one(self, p[0]);
    CHECK_EQ(bytes_of_groups(), 2);
    tp_check(leave("g", p[1]) && leave("g", p[3]));
    CHECK_EQ(bytes_of_groups(), 0);
    tp_check(join("g", p[1]));
}

static void
members_are_in_the_order_they_joined(void **state)
{
    (void)state;
    run(1, members_root);
    run(2, members_root);
}

/* --- picking --- */

static void
pick_root(struct tp_actor *self, void *unused)
{
    troupe_pid p[4];
    (void)unused;
    CHECK_EQ(pick("g"), 0);
    for (int i = 0; i < 4; i++) {
        p[i] = spawn(body_wait, NULL);
        join("g", p[i]);
    }
    for (int i = 0; i < 12; i++) {
        CHECK_EQ(pick("g"), p[i % 4]);
    }
    CHECK_EQ(pick("g"), p[0]);
    leave("g", p[1]); /* whose turn it is */
    CHECK_EQ(pick("g"), p[2]);
    end_one(self, p[3]);
    CHECK_EQ(pick("g"), p[0]);
    CHECK_EQ(pick("g"), p[2]);
    join("g", p[1]); /* its turn comes last */
    CHECK_EQ(pick("g"), p[0]);
    CHECK_EQ(pick("g"), p[2]);
    CHECK_EQ(pick("g"), p[1]);
    leave("g", p[1]);
    leave("g", p[2]);
    CHECK_EQ(pick("g"), p[0]);
    CHECK_EQ(pick("g"), p[0]);
    end_one(self, p[0]);
    CHECK_EQ(pick("g"), 0);
    CHECK_EQ(bytes_of_groups(), 0);
}

static void
members_are_picked_in_turn(void **state)
{
    (void)state;
    run(1, pick_root);
    run(2, pick_root);
}

/* --- the dead --- */

static counter hundred_joined;

static void
in_a_hundred(struct tp_actor *self, void *unused)
{
    char g[16];
    for (int i = 0; i < 100; i++) {
        snprintf(g, sizeof g, "group %d", i);
        tp_check(join(g, self->pid));
    }
    add(&hundred_joined, 1);
    body_wait(self, unused);
}

static void
hundred_root(struct tp_actor *self, void *unused)
{
    char g[16];
    struct tp_msg *pids;
    (void)unused;
    set(&hundred_joined, 0);
    troupe_pid a = spawn(in_a_hundred, NULL);
    YIELD_UNTIL(self, get(&hundred_joined) == 1);
    troupe_pid b = spawn(in_a_hundred, NULL);
    YIELD_UNTIL(self, get(&hundred_joined) == 2);
    uint64_t ref = watch(self, "group 99", (troupe_pid[]){a, b}, 2);
    /* The list of a broadcast was made, then one of them dies. */
    CHECK_EQ(tp_group_members("group 0", 7, &pids), 0);
    end_one(self, a);
    for (int i = 0; i < 100; i++) {
        snprintf(g, sizeof g, "group %d", i);
        check_members(g, &b, 1);
        CHECK_EQ(pick(g), b);
    }
    CHECK_EQ(push_num(pid_at(pids, 0), 1), TROUPE_ENOPROC);
    CHECK_EQ(push_num(pid_at(pids, 1), 1), 0);
    tp_msg_free(pids);
    check_event(self, ref, "group 99", false, a);
    end_one(self, b);
    check_event(self, ref, "group 99", false, b);
    CHECK_EQ(bytes_of_groups(), 0);
    tp_check(tp_mailbox_pop(self) == NULL);
}

static void
who_dies_is_out_of_all_its_groups(void **state)
{
    (void)state;
    run(1, hundred_root);
    run(2, hundred_root);
}

static counter finished;

static void
join_in_finish(struct tp_actor *self, void *unused)
{
    bool is_new;
    uint64_t ref;
    struct tp_msg *m;
    (void)unused;
    CHECK_EQ(tp_group_join("g", 1, self->pid, &is_new), TROUPE_ENOPROC);
    CHECK_EQ(tp_group_monitor(self, "g", 1, &ref, &m), TROUPE_ENOPROC);
    tp_check(m == NULL);
    add(&finished, 1);
}

static void
finish_root(struct tp_actor *self, void *unused)
{
    troupe_pid p;
    (void)unused;
    set(&finished, 0);
    CHECK_EQ(try_spawn(NULL, body_wait, join_in_finish, NULL, &p), 0);
    end_one(self, p);
    CHECK_EQ(get(&finished), 1);
    CHECK_EQ(bytes_of_groups(), 0);
}

static void
a_finalizer_joins_nothing(void **state)
{
    (void)state;
    run(1, finish_root);
}

/* --- monitors --- */

static void
monitor_root(struct tp_actor *self, void *unused)
{
    troupe_pid me = self->pid, p = spawn(body_wait, NULL);
    (void)unused;
    uint64_t ref = watch(self, "g", NULL, 0);
    join("g", me); /* the watcher itself */
    join("g", me);
    join("h", me);
    join("g", p);
    leave("g", me);
    join("g", me);
    end_one(self, p);
    check_event(self, ref, "g", true, me);
    check_event(self, ref, "g", true, p);
    check_event(self, ref, "g", false, me);
    check_event(self, ref, "g", true, me);
    check_event(self, ref, "g", false, p);
    tp_check(tp_mailbox_pop(self) == NULL);
    /* A second one of the same group has events of its own. */
    uint64_t second = watch(self, "g", &me, 1);
    tp_check(second != ref);
    leave("g", me);
    check_event(self, ref, "g", false, me);
    check_event(self, second, "g", false, me);
    join("g", me);
    tp_check(tp_group_demonitor(self, ref));
    tp_check(!tp_group_demonitor(self, ref));
    struct tp_msg *m = recv_msg(self); /* queued, and not wanted any more */
    CHECK_EQ(m->ref, ref);
    tp_check(!tp_group_wants(self, m));
    tp_msg_drop(m);
    check_event(self, second, "g", true, me);
    tp_check(!tp_group_demonitor(self, 0) &&
             !tp_group_demonitor(self, UINT64_MAX));
}

static void
monitors_hear_of_each_join_and_leave_once(void **state)
{
    (void)state;
    run(1, monitor_root);
    run(2, monitor_root);
}

static void
watch_and_wait(struct tp_actor *self, void *unused)
{
    struct tp_msg *m;
    uint64_t ref;
    for (int i = 0; i < 10; i++) {
        CHECK_EQ(tp_group_monitor(self, "g", 1, &ref, &m), 0);
        tp_msg_free(m);
    }
    add(&finished, 1);
    body_wait(self, unused);
}

static void
watcher_root(struct tp_actor *self, void *unused)
{
    (void)unused;
    set(&finished, 0);
    troupe_pid p = spawn(watch_and_wait, NULL);
    YIELD_UNTIL(self, get(&finished) == 1);
    CHECK_EQ(bytes_of_groups(), 0); /* no members */
    join("g", self->pid);
    end_one(self, p);
    leave("g", self->pid);
    /* The end of a run checks that nothing is left of the group. */
}

static void
a_monitor_goes_with_its_owner(void **state)
{
    (void)state;
    run(1, watcher_root);
    run(2, watcher_root);
}

/* The events of a group are in one order for all. */
static uint64_t orders[2][2000];

static void
record(struct tp_actor *self, void *arg)
{
    uint64_t *out = arg;
    struct tp_msg *m;
    uint64_t ref;
    CHECK_EQ(tp_group_monitor(self, "g", 1, &ref, &m), 0);
    tp_msg_free(m);
    add(&finished, 1);
    for (int i = 0; i < 2000; i++) {
        m = recv_msg(self);
        out[i] = m->from * 2 + tp_group_event_is_join(m);
        tp_msg_drop(m);
    }
    add(&finished, 1);
}

static void
in_and_out(struct tp_actor *self, void *unused)
{
    (void)unused;
    for (int i = 0; i < 250; i++) {
        join("g", self->pid);
        tp_actor_yield(self);
        if (i < 249) {
            leave("g", self->pid);
        }
    }
}

static void
order_root(struct tp_actor *self, void *unused)
{
    (void)unused;
    set(&finished, 0);
    for (int i = 0; i < 2; i++) {
        spawn(record, orders[i]);
    }
    YIELD_UNTIL(self, get(&finished) == 2);
    for (int i = 0; i < 4; i++) {
        spawn(in_and_out, NULL);
    }
    YIELD_UNTIL(self, get(&finished) == 4);
    CHECK_EQ(memcmp(orders[0], orders[1], sizeof orders[0]), 0);
}

static void
all_monitors_see_one_order(void **state)
{
    (void)state;
    run(1, order_root);
    run(3, order_root);
}

/* --- want of memory --- */

static void
fault_root(struct tp_actor *self, void *unused)
{
    struct tp_msg *m;
    uint64_t ref;
    bool is_new, fired = true;
    troupe_pid me = self->pid;
    (void)unused;
    long n = 0;
    while (fired) {
        tp_msg_trim(); /* so that a message needs memory */
        tp_fault_arm(++n);
        int rc = tp_group_monitor(self, "g", 1, &ref, &m);
        fired = tp_fault_fired();
        tp_fault_arm(0);
        tp_check(rc == 0 || rc == TROUPE_ENOMEM);
        if (rc == 0) {
            tp_msg_free(m);
            if (fired) {
                tp_check(tp_group_demonitor(self, ref));
            }
        }
    }
    tp_check(n > 4);
    for (n = 0, fired = true; fired;) {
        tp_msg_trim();
        tp_fault_arm(++n);
        int rc = tp_group_join("g", 1, me, &is_new);
        fired = tp_fault_fired();
        tp_fault_arm(0);
        tp_check(is_new == (rc == 0));
        if (rc == 0) {
            check_event(self, ref, "g", true, me);
            check_members("g", &me, 1);
            leave("g", me);
            check_event(self, ref, "g", false, me);
        } else {
            CHECK_EQ(rc, TROUPE_ENOMEM);
            check_members("g", NULL, 0);
        }
        tp_check(tp_mailbox_pop(self) == NULL);
    }
    tp_check(n > 3);
    join("g", me);
}

static void
without_memory_nothing_has_changed(void **state)
{
    (void)state;
    run(1, fault_root);
}

static counter watching;

static void
watch_for_ever(struct tp_actor *self, void *arg)
{
    watch(self, "g", arg, 1);
    add(&watching, 1);
    tp_actor_park(self, TP_NEVER);
}

/* Two watch; the first one's event finds no memory, the other one hears. */
static void
leave_fault_root(struct tp_actor *self, void *unused)
{
    troupe_pid me = self->pid;
    (void)unused;
    join("g", me);
    set(&watching, 0);
    troupe_pid p = spawn(watch_for_ever, &me);
    YIELD_UNTIL(self, get(&watching) == 1);
    uint64_t ref = watch(self, "g", &me, 1);
    tp_msg_trim();
    tp_fault_arm(1);
    tp_check(leave("g", me));
    tp_check(tp_fault_fired());
    tp_fault_arm(0);
    CHECK_EQ(join_kind(self, p), TP_REASON_MEMORY);
    check_event(self, ref, "g", false, me);
}

static void
who_cannot_be_told_of_a_leave_ends(void **state)
{
    (void)state;
    run(1, leave_fault_root);
    run(2, leave_fault_root);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(members_are_in_the_order_they_joined),
        cmocka_unit_test(members_are_picked_in_turn),
        cmocka_unit_test(who_dies_is_out_of_all_its_groups),
        cmocka_unit_test(a_finalizer_joins_nothing),
        cmocka_unit_test(monitors_hear_of_each_join_and_leave_once),
        cmocka_unit_test(a_monitor_goes_with_its_owner),
        cmocka_unit_test(all_monitors_see_one_order),
        cmocka_unit_test(without_memory_nothing_has_changed),
        cmocka_unit_test(who_cannot_be_told_of_a_leave_ends),
    };
    return cmocka_run_group_tests_name("group", tests, NULL, NULL);
}
