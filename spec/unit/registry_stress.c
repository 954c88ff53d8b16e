/*
 * registry_stress.c - three actors end, look up and register one name.
 *
 * What is checked: the name is never "taken" by an actor, and a look-up never
 * gives one, whose end was known before the question was asked. "Known" is a
 * stamp: whoever was told of an end takes the next number and writes it down.
 */
#include "run_in.h"

#include "actor/group.h"

#include <pthread.h>
#include <setjmp.h>

#include <cmocka.h>

#define ACTORS 3
#ifdef TP_TSAN /* where a birth costs a millisecond */
#define ROUNDS 4000u
#define LIVES  500
#else
#define ROUNDS 100000u
#define LIVES  3000
#endif
#define INDEXES 8192u

static counter stamps;            /* the last one given */
static counter gone_pid[INDEXES]; /* by slot: who was told of last, */
static counter gone_at[INDEXES];  /* and the stamp of that */
static counter rounds_left, taken_count, held_count;
static uint64_t seeds[ACTORS];
static troupe_pid root_pid;

static const char name[] = "the name";

static pthread_mutex_t note_lock = PTHREAD_MUTEX_INITIALIZER;

static void
note_end(troupe_pid pid)
{
    uint32_t i = tp_pid_index(pid);
    tp_check(i < INDEXES);
    pthread_mutex_lock(&note_lock);
    if (get(&gone_pid[i]) >> TP_PID_INDEX_BITS < pid >> TP_PID_INDEX_BITS) {
        set(&gone_at[i], UINT64_MAX); /* not known yet */
        set(&gone_pid[i], pid);
        set(&gone_at[i], add(&stamps, 1));
    }
    pthread_mutex_unlock(&note_lock);
}

/* Was pid's end known at the time of that stamp? */
static bool
was_gone(troupe_pid pid, uint64_t stamp)
{
    uint32_t i = tp_pid_index(pid);
    return get(&gone_pid[i]) == pid && get(&gone_at[i]) <= stamp;
}

static void
finish_off(struct tp_actor *self, troupe_pid pid)
{
    end_with(pid, TP_REASON_KILLED);
    join_kind(self, pid);
    note_end(pid);
    tp_check(tp_whereis(name, sizeof name) != pid);
}

static void
try_to_hold(struct tp_actor *self, bool at_birth)
{
    troupe_pid pid, holder = 0;
    struct tp_spawn_opts opts = {
        .name = name, .name_len = sizeof name, .out_holder = &holder};
    int rc;
    uint64_t before = get(&stamps);
    if (at_birth) {
        rc = try_spawn(&opts, body_wait, NULL, NULL, &pid);
    } else {
        pid = spawn(body_wait, NULL);
        before = get(&stamps);
        rc = tp_register(name, sizeof name, pid, &holder);
    }
    if (rc == TROUPE_ENAME_TAKEN) {
        tp_check(!was_gone(holder, before));
        add(&taken_count, 1);
        if (!at_birth) {
            finish_off(self, pid);
        }
    } else if (rc == TROUPE_ENOPROC) {
        tp_check(false && "a child that nobody knows of is dead");
    } else {
        CHECK_EQ(rc, 0);
        add(&held_count, 1);
    }
}

static void
one_round(struct tp_actor *self, uint64_t *x)
{
    uint64_t before = get(&stamps);
    troupe_pid pid;
    switch (random_next(x) % 6) {
    case 0:
        try_to_hold(self, false);
        break;
    case 1:
        try_to_hold(self, true);
        break;
    case 2:
        pid = tp_whereis(name, sizeof name);
        tp_check(pid == 0 || !was_gone(pid, before));
        break;
    default:
        pid = tp_whereis(name, sizeof name);
        tp_check(pid == 0 || !was_gone(pid, before));
        if (pid != 0) {
            finish_off(self, pid);
        }
    }
    if (random_next(x) % 4 == 0) {
        tp_actor_yield(self);
    }
}

static void
contender(struct tp_actor *self, void *arg)
{
    uint64_t x = *(uint64_t *)arg;
    while (get(&rounds_left) != 0) {
        if (add(&rounds_left, UINT64_MAX) >= UINT64_MAX / 2) {
            set(&rounds_left, 0);
            break;
        }
        one_round(self, &x);
    }
    CHECK_EQ(push_num(root_pid, 1), 0);
}

/* As recv_num; the test's time limit is the only one. */
static void
await_one(struct tp_actor *self)
{
    struct tp_msg *m;
    while ((m = tp_mailbox_pop(self)) == NULL) {
        CHECK_EQ(tp_mailbox_wait(self, TP_NEVER), 0);
    }
    CHECK_EQ(msg_num(m), 1);
    tp_msg_free(m);
}

static void
stress_root(struct tp_actor *self, void *unused)
{
    (void)unused;
    root_pid = self->pid;
    set(&rounds_left, ROUNDS);
    for (int i = 0; i < ACTORS; i++) {
        spawn(contender, &seeds[i]);
    }
    for (int i = 0; i < ACTORS; i++) {
        await_one(self);
    }
    troupe_pid last = tp_whereis(name, sizeof name);
    if (last != 0) {
        finish_off(self, last);
    }
    CHECK_EQ(tp_register(name, sizeof name, self->pid, NULL), 0);
}

static void
a_name_is_never_held_by_the_dead(unsigned schedulers)
{
    for (uint32_t i = 0; i < INDEXES; i++) {
        set(&gone_pid[i], 0);
        set(&gone_at[i], UINT64_MAX);
    }
    set(&taken_count, 0);
    set(&held_count, 0);
    assert_int_equal(run_in(schedulers, stress_root, NULL), TP_REASON_NORMAL);
    printf("%u schedulers: held %" PRIu64 ", taken %" PRIu64 "\n", schedulers,
           get(&held_count), get(&taken_count));
    assert_true(get(&held_count) > ROUNDS / 100);
}

static void
on_one_scheduler(void **state)
{
    (void)state;
    a_name_is_never_held_by_the_dead(1);
}

static void
on_three_schedulers(void **state)
{
    (void)state;
    a_name_is_never_held_by_the_dead(3);
}

/* --- groups: readers, while members come and go --- */

#define GROUPS 100

static counter members_gone;

static void
group_name(char *out, unsigned i)
{
    snprintf(out, 16, "g%u", i % GROUPS);
}

/* Joins all groups, of which some are left again, and dies. */
static void
comes_and_goes(struct tp_actor *self, void *arg)
{
    char g[16];
    bool is_new;
    uint64_t x = (uintptr_t)arg * 2654435761u + 1;
    for (unsigned i = 0; i < GROUPS; i++) {
        group_name(g, i);
        CHECK_EQ(tp_group_join(g, strlen(g), self->pid, &is_new), 0);
        tp_check(is_new);
        if (random_next(&x) % 4 == 0) {
            tp_check(tp_group_leave(g, strlen(g), self->pid));
        }
    }
    if (random_next(&x) % 2 == 0) {
        body_wait(self, NULL);
    }
}

static void
reader(struct tp_actor *self, void *arg)
{
    uint64_t x = *(uint64_t *)arg;
    char g[16];
    while (get(&members_gone) == 0) {
        struct tp_msg *m;
        uint32_t count;
        uint64_t before = get(&stamps);
        group_name(g, (unsigned)random_next(&x));
        CHECK_EQ(tp_group_members(g, strlen(g), &m), 0);
        for (size_t i = 0; i < m->size / sizeof(troupe_pid); i++) {
            troupe_pid pid;
            memcpy(&pid, m->data + i * sizeof pid, sizeof pid);
            tp_check(!was_gone(pid, before));
            if (random_next(&x) % 4 == 0) {
                push_num(pid, 1);
            }
        }
        tp_msg_free(m);
        before = get(&stamps);
        troupe_pid pid = tp_group_pick(g, strlen(g), &count);
        tp_check(pid == 0 || !was_gone(pid, before));
        tp_actor_yield(self);
    }
    CHECK_EQ(push_num(root_pid, 1), 0);
}

/* Follows one group by its events alone. */
static void
follower(struct tp_actor *self, void *unused)
{
    struct tp_pidset now = {0};
    struct tp_msg *m, *pids;
    uint64_t ref;
    (void)unused;
    CHECK_EQ(tp_group_monitor(self, "g7", 2, &ref, &pids), 0);
    for (size_t i = 0; i < pids->size / sizeof(troupe_pid); i++) {
        troupe_pid pid;
        memcpy(&pid, pids->data + i * sizeof pid, sizeof pid);
        tp_check(tp_pidset_reserve(&now) && tp_pidset_add(&now, pid));
    }
    tp_msg_free(pids);
    while ((m = recv_msg(self))->kind == TP_MSG_GROUP) {
        CHECK_EQ(m->ref, ref);
        if (tp_group_event_is_join(m)) {
            tp_check(tp_pidset_reserve(&now) && tp_pidset_add(&now, m->from));
        } else {
            tp_check(tp_pidset_remove(&now, m->from)); /* each leave once */
        }
        tp_msg_free(m);
    }
    tp_msg_free(m);
    CHECK_EQ(now.count, 0);
    tp_pidset_fini(&now);
    CHECK_EQ(push_num(root_pid, 1), 0);
}

#define AT_ONCE 10

static void
groups_root(struct tp_actor *self, void *unused)
{
    troupe_pid p[AT_ONCE] = {0}, followers[2] = {0};
    struct tp_msg *m;
    uint64_t x = seeds[0];
    (void)unused;
    root_pid = self->pid;
    set(&members_gone, 0);
    spawn(reader, &seeds[1]);
    spawn(reader, &seeds[2]);
    followers[0] = spawn(follower, NULL);
    for (uintptr_t i = 0; i < LIVES; i++) {
        unsigned k = (unsigned)(random_next(&x) % AT_ONCE);
        if (p[k] != 0) {
            end_with(p[k], TP_REASON_KILLED);
            join_kind(self, p[k]);
            note_end(p[k]);
        }
        p[k] = spawn(comes_and_goes, (void *)i);
        if (i == LIVES / 2) {
            followers[1] = spawn(follower, NULL);
        }
    }
    for (unsigned k = 0; k < AT_ONCE; k++) {
        if (p[k] != 0) {
            end_with(p[k], TP_REASON_KILLED);
            join_kind(self, p[k]);
            note_end(p[k]);
        }
    }
    set(&members_gone, 1);
    CHECK_EQ(push_num(followers[0], 1), 0);
    CHECK_EQ(push_num(followers[1], 1), 0);
    for (int i = 0; i < 4; i++) {
        await_one(self);
    }
    CHECK_EQ(tp_groups(&m), 0);
    CHECK_EQ(m->size, 0);
    tp_msg_free(m);
}

static void
no_read_of_a_group_sees_the_dead(void **state)
{
    (void)state;
    for (unsigned schedulers = 1; schedulers <= 3; schedulers += 2) {
        for (uint32_t i = 0; i < INDEXES; i++) {
            set(&gone_pid[i], 0);
            set(&gone_at[i], UINT64_MAX);
        }
        assert_int_equal(run_in(schedulers, groups_root, NULL),
                         TP_REASON_NORMAL);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(on_one_scheduler),
        cmocka_unit_test(on_three_schedulers),
        cmocka_unit_test(no_read_of_a_group_sees_the_dead),
    };
    uint64_t x = random_seed();
    for (int i = 0; i < ACTORS; i++) {
        seeds[i] = random_next(&x);
    }
    return cmocka_run_group_tests_name("registry_stress", tests, NULL, NULL);
}
