/*
 * registry_test.c - names: who has one, since when, and until when.
 */
#include "run_in.h"

#include "actor/delay.h"
#include "actor/registry.h"

#include <setjmp.h>

#include <cmocka.h>

static void
run(unsigned schedulers, actor_fn root)
{
    assert_int_equal(run_in(schedulers, root, NULL), TP_REASON_NORMAL);
}

static int
name_it(const char *name, troupe_pid pid)
{
    troupe_pid holder = 77;
    int rc = tp_register(name, strlen(name), pid, &holder);
    tp_check((holder != 0) == (rc == TROUPE_ENAME_TAKEN));
    return rc;
}

static troupe_pid
who(const char *name)
{
    return tp_whereis(name, strlen(name));
}

static bool
unname(const char *name)
{
    return tp_unregister(name, strlen(name));
}

/* pid has ended, and we know it. */
static void
end_one(struct tp_actor *self, troupe_pid pid)
{
    end_with(pid, TP_REASON_KILLED);
    enum tp_reason_kind kind = join_kind(self, pid);
    tp_check(kind == TP_REASON_KILLED || kind == TP_REASON_NOPROC);
}

/* The names of pid are these, in this order, each followed by a comma. */
static void
check_names(troupe_pid pid, const char *expected)
{
    struct tp_msg *m;
    char text[1024] = "";
    size_t n = 0;
    CHECK_EQ(tp_names(pid, &m), 0);
    for (size_t at = 0; at < m->size; at += 1 + (size_t)m->data[at]) {
        n += (size_t)snprintf(text + n, sizeof text - n, "%.*s,",
                              (int)m->data[at], (const char *)&m->data[at + 1]);
    }
    if (strcmp(text, expected) != 0) {
        fprintf(stderr, "names are %s, not %s\n", text, expected);
        abort();
    }
    tp_msg_free(m);
}

/* --- one actor a name, several names an actor --- */

static void
basics_root(struct tp_actor *self, void *unused)
{
    troupe_pid p = spawn(body_wait, NULL), holder;
    (void)unused;
    CHECK_EQ(who("a"), 0);
    CHECK_EQ(name_it("a", self->pid), 0);
    CHECK_EQ(name_it("a", self->pid), 0); /* again: nothing new */
    CHECK_EQ(name_it("b", self->pid), 0);
    CHECK_EQ(name_it("c", p), 0);
    CHECK_EQ(who("a"), self->pid);
    CHECK_EQ(who("b"), self->pid);
    CHECK_EQ(who("c"), p);
    check_names(self->pid, "a,b,");
    check_names(p, "c,");
    CHECK_EQ(tp_register("a", 1, p, &holder), TROUPE_ENAME_TAKEN);
    CHECK_EQ(holder, self->pid);
    CHECK_EQ(tp_register("a", 1, p, NULL), TROUPE_ENAME_TAKEN);
    tp_check(unname("a") && !unname("a") && !unname("zzz"));
    CHECK_EQ(who("a"), 0);
    CHECK_EQ(name_it("a", p), 0);
    check_names(p, "c,a,");
    check_names(self->pid, "b,");
    end_one(self, p);
    CHECK_EQ(who("a"), 0);
    CHECK_EQ(who("c"), 0);
    check_names(p, "");
    check_names(0, "b,");
    CHECK_EQ(name_it("a", p), TROUPE_ENOPROC);
    CHECK_EQ(name_it("b", p), TROUPE_ENOPROC); /* rather than taken */
    CHECK_EQ(name_it("a", 0), TROUPE_ENOPROC);
}

static void
one_actor_a_name_and_several_names_an_actor(void **state)
{
    (void)state;
    run(1, basics_root);
    run(2, basics_root);
}

static void
bytes_root(struct tp_actor *self, void *unused)
{
    char longest[TP_NAME_MAX + 1];
    (void)unused;
    memset(longest, 0, sizeof longest);
    CHECK_EQ(tp_register("", 0, self->pid, NULL), TROUPE_EINVAL);
    CHECK_EQ(tp_register(longest, sizeof longest, self->pid, NULL),
             TROUPE_EINVAL);
    CHECK_EQ(tp_register(longest, TP_NAME_MAX, self->pid, NULL), 0);
    CHECK_EQ(tp_register(longest, 1, self->pid, NULL), 0);
    CHECK_EQ(tp_whereis(longest, TP_NAME_MAX), self->pid);
    CHECK_EQ(tp_whereis(longest, 2), 0);
    CHECK_EQ(tp_whereis(longest, 0), 0);
    CHECK_EQ(tp_whereis(longest, sizeof longest), 0);
    tp_check(tp_unregister(longest, TP_NAME_MAX));
    CHECK_EQ(tp_whereis(longest, 1), self->pid);
    struct tp_msg *m;
    CHECK_EQ(tp_names(self->pid, &m), 0);
    CHECK_EQ(m->size, 2);
    tp_msg_free(m);
}

static void
a_name_is_1_to_255_bytes_of_any_kind(void **state)
{
    (void)state;
    run(1, bytes_root);
}

#define MANY 10000

static void
many_root(struct tp_actor *self, void *unused)
{
    char name[32];
    troupe_pid p = spawn(body_wait, NULL);
    (void)unused;
    for (int i = 0; i < MANY; i++) {
        snprintf(name, sizeof name, "name %d", i);
        CHECK_EQ(name_it(name, i % 2 == 0 ? p : self->pid), 0);
    }
    end_one(self, p);
    for (int i = 0; i < MANY; i++) {
        snprintf(name, sizeof name, "name %d", i);
        CHECK_EQ(who(name), i % 2 == 0 ? 0 : self->pid);
    }
}

static void
all_names_of_the_dead_are_free(void **state)
{
    (void)state;
    run(1, many_root);
}

/* --- when a name is free --- */

static void
restart_root(struct tp_actor *self, void *unused)
{
    troupe_pid p = spawn(body_wait, NULL);
    (void)unused;
    CHECK_EQ(name_it("server", p), 0);
    for (int i = 0; i < 1000; i++) {
        end_one(self, p);
        CHECK_EQ(who("server"), 0);
        p = spawn(body_wait, NULL);
        CHECK_EQ(name_it("server", p), 0);
        CHECK_EQ(who("server"), p);
    }
}

static void
a_name_is_free_before_monitors_hear(void **state)
{
    (void)state;
    run(1, restart_root);
    run(2, restart_root);
}

static void
old_generation_root(struct tp_actor *self, void *unused)
{
    (void)unused;
    for (int i = 0; i < 50; i++) {
        troupe_pid p = spawn(body_wait, NULL);
        CHECK_EQ(tp_pid_index(p), 1); /* there is one slot but the root's */
        CHECK_EQ(name_it("old", p), 0);
        end_one(self, p);
        YIELD_UNTIL(self, state_of(p) == TP_VACANT);
        troupe_pid next = spawn(body_wait, NULL);
        CHECK_EQ(tp_pid_index(next), 1);
        CHECK_EQ(who("old"), 0);
        CHECK_EQ(name_it("old", p), TROUPE_ENOPROC);
        check_names(p, "");
        check_names(next, "");
        CHECK_EQ(name_it("old", next), 0);
        end_one(self, next);
        YIELD_UNTIL(self, state_of(next) == TP_VACANT);
    }
}

static void
a_slots_next_actor_is_not_its_last(void **state)
{
    struct tp_run_config config = {.schedulers = 1, .max_actors = 2};
    (void)state;
    struct tp_reason *r = run_config(&config, old_generation_root, NULL);
    assert_int_equal(r->kind, TP_REASON_NORMAL);
}

static counter refused;

static void
finish_with_a_name(struct tp_actor *self, void *unused)
{
    (void)unused;
    CHECK_EQ(who("mine"), 0);
    CHECK_EQ(name_it("mine", self->pid), TROUPE_ENOPROC);
    add(&refused, 1);
}

static void
finish_root(struct tp_actor *self, void *unused)
{
    troupe_pid p;
    (void)unused;
    set(&refused, 0);
    CHECK_EQ(try_spawn(NULL, body_wait, finish_with_a_name, NULL, &p), 0);
    CHECK_EQ(name_it("mine", p), 0);
    end_one(self, p);
    CHECK_EQ(get(&refused), 1);
    CHECK_EQ(name_it("mine", self->pid), 0);
}

static void
a_finalizer_has_no_name_and_gets_none(void **state)
{
    (void)state;
    run(1, finish_root);
}

/* --- spawn with a name --- */

static void
knows_itself(struct tp_actor *self, void *unused)
{
    (void)unused;
    CHECK_EQ(who("born"), self->pid);
    body_wait(self, NULL);
}

static void
spawn_root(struct tp_actor *self, void *unused)
{
    troupe_pid p, q, holder;
    uint64_t ref;
    struct tp_spawn_opts opts = {.name = "born",
                                 .name_len = 4,
                                 .monitor = true,
                                 .link = true,
                                 .out_ref = &ref,
                                 .out_holder = &holder};
    (void)unused;
    tp_trap_exit(self, true);
    for (int i = 0; i < 100; i++) {
        CHECK_EQ(try_spawn(&opts, knows_itself, NULL, NULL, &p), 0);
        CHECK_EQ(who("born"), p);
        check_names(p, "born,");
        CHECK_EQ(try_spawn(&opts, body_wait, NULL, NULL, &q),
                 TROUPE_ENAME_TAKEN);
        CHECK_EQ(holder, p);
        CHECK_EQ(atomic_load_explicit(&tp_actor_live, memory_order_seq_cst), 2);
        end_with(p, TP_REASON_KILLED);
        for (int k = 0; k < 2; k++) { /* exit and down, of p only */
            struct tp_msg *m = recv_msg(self);
            CHECK_EQ(m->from, p);
            if (m->kind == TP_MSG_DOWN) {
                CHECK_EQ(m->ref, ref);
                tp_check(tp_monitor_take_down(self, m));
            }
            tp_msg_drop(m);
        }
        CHECK_EQ(who("born"), 0);
        YIELD_UNTIL(self, atomic_load_explicit(&tp_actor_live,
                                               memory_order_seq_cst) == 1);
    }
    tp_check(tp_mailbox_pop(self) == NULL);
    opts.name_len = 0;
    CHECK_EQ(try_spawn(&opts, body_wait, NULL, NULL, &q), TROUPE_EINVAL);
}

static void
a_named_child_has_its_name_before_it_runs(void **state)
{
    (void)state;
    run(1, spawn_root);
    run(2, spawn_root);
}

/* --- want of memory --- */

static void
fault_root(struct tp_actor *self, void *unused)
{
    struct tp_msg *m;
    troupe_pid p;
    uint64_t ref;
    struct tp_spawn_opts opts = {
        .name = "faulty", .name_len = 6, .monitor = true, .out_ref = &ref};
    (void)unused;
    tp_fault_arm(1);
    CHECK_EQ(name_it("x", self->pid), TROUPE_ENOMEM);
    tp_fault_arm(2); /* the first buckets of the map */
    CHECK_EQ(name_it("x", self->pid), TROUPE_ENOMEM);
    tp_fault_arm(0);
    CHECK_EQ(who("x"), 0);
    long n = 0;
    bool fired = true;
    while (fired) {
        tp_fault_arm(++n);
        int rc = try_spawn(&opts, body_wait, NULL, NULL, &p);
        fired = tp_fault_fired();
        tp_fault_arm(0);
        CHECK_EQ(who("faulty"), rc == 0 ? p : 0);
        if (rc == 0) {
            end_one(self, p);
        }
    }
    tp_check(n > 3);
    CHECK_EQ(tp_names(0, &m), 0);
    CHECK_EQ(m->size, 0);
    tp_msg_free(m);
}

static void
without_memory_nothing_has_changed(void **state)
{
    (void)state;
    run(1, fault_root);
}

/* --- delayed messages to a name --- */

static counter dropped;

static void
count_dropped(struct tp_msg *m)
{
    (void)m;
    add(&dropped, 1);
}

/* At once, for nobody; of two schedulers one may be held up where it fires. */
static void
to_nobody(struct tp_actor *self)
{
    uint64_t id;
    struct tp_msg *m = num_msg(1);
    m->flags = TP_MSG_HAS_HANDLES | TP_MSG_HAS_OBJECTS;
    set(&dropped, 0);
    CHECK_EQ(tp_send_after_name("later", 5, m, 0, &id), 0);
    YIELD_UNTIL(self, get(&dropped) == 1);
    tp_check(tp_mailbox_pop(self) == NULL);
}

static void
later(uint64_t n, uint64_t at_ns)
{
    uint64_t id;
    CHECK_EQ(tp_send_after_name("later", 5, num_msg(n), at_ns, &id), 0);
}

static void
later_root(struct tp_actor *self, void *unused)
{
    (void)unused;
    uint64_t n = 1, at_ns;
    to_nobody(self);
    do { /* named after the timer was made, but before it fires */
        tp_unregister("later", 5);
        at_ns = tp_now_ns() + 20 * MS;
        later(++n, at_ns);
        CHECK_EQ(name_it("later", self->pid), 0);
    } while (tp_now_ns() >= at_ns);
    uint64_t got;
    while ((got = recv_num(self)) < n) {
        tp_check(got > 1); /* that one was for nobody */
    }
    CHECK_EQ(got, n);
    tp_check(tp_mailbox_pop(self) == NULL);
    struct tp_msg *m = num_msg(3);
    uint64_t id;
    CHECK_EQ(tp_send_after_name("", 0, m, 0, &id), TROUPE_EINVAL);
    CHECK_EQ(tp_send_after_name("later", 5, m, tp_now_ns() + 100 * S, &id), 0);
    tp_check(tp_send_cancel(id) && !tp_send_cancel(id));
}

static void
a_delayed_message_goes_to_who_has_the_name_then(void **state)
{
    (void)state;
    tp_user_release = count_dropped;
    run(1, later_root);
    run(2, later_root);
    tp_user_release = NULL;
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_actor_a_name_and_several_names_an_actor),
        cmocka_unit_test(a_name_is_1_to_255_bytes_of_any_kind),
        cmocka_unit_test(all_names_of_the_dead_are_free),
        cmocka_unit_test(a_name_is_free_before_monitors_hear),
        cmocka_unit_test(a_slots_next_actor_is_not_its_last),
        cmocka_unit_test(a_finalizer_has_no_name_and_gets_none),
        cmocka_unit_test(a_named_child_has_its_name_before_it_runs),
        cmocka_unit_test(without_memory_nothing_has_changed),
        cmocka_unit_test(a_delayed_message_goes_to_who_has_the_name_then),
    };
    return cmocka_run_group_tests_name("registry", tests, NULL, NULL);
}
