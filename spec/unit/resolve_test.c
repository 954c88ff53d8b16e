/*
 * resolve_test.c - names of hosts: what is asked, known, shared and forgotten.
 */
#define _GNU_SOURCE
#include "run_in.h"

#include "io/resolve.h"
#include "sched/blocking.h"

#include <errno.h>
#include <netdb.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <unistd.h>

#include <cmocka.h>

/* -- a system that answers as it is told ----------------------------------- */

static counter asked;   /* calls so far */
static counter asking;  /* calls that have not returned */
static counter most;    /* of them at once */
static counter release; /* what "hangs" returns when this is set */

/* "a.b.c.d.test" is a.b.c.d; "error-N.test" is the error -N. */
static int
fake_ask(const char *host, const char *service, const struct addrinfo *hints,
         struct addrinfo **out)
{
    char text[64];
    int n = 0;
    struct addrinfo numeric = *hints;
    numeric.ai_flags = AI_NUMERICHOST;
    add(&asked, 1);
    uint64_t now = add(&asking, 1), old = get(&most);
    while (now > old &&
           !atomic_compare_exchange_weak_explicit(
               &most, &old, now, memory_order_seq_cst, memory_order_seq_cst)) {
    }
    if (strncmp(host, "hangs", 5) == 0) {
        SPIN_UNTIL(get(&release) == 1);
    }
    add(&asking, (uint64_t)-1);
    if (sscanf(host, "error%d.test", &n) == 1) {
        errno = EMFILE;
        return n;
    }
    if (sscanf(host, "%63[0-9.]test", text) != 1) {
        return EAI_NONAME;
    }
    text[strlen(text) - 1] = '\0';
    return getaddrinfo(text, service, &numeric, out);
}

static char hosts_file[] = "/tmp/tp_resolve_XXXXXX";

static int
set_up(void **state)
{
    (void)state;
    set(&asked, 0);
    set(&most, 0);
    set(&release, 0);
    return 0;
}

static int
group_set_up(void **state)
{
    (void)state;
    int fd = mkstemp(hosts_file);
    if (fd < 0) {
        return -1;
    }
    close(fd);
    tp_resolve_ask = fake_ask;
    tp_resolve_hosts = hosts_file;
    tp_resolve_known_ns = tp_resolve_unknown_ns = PATIENCE_NS;
    return 0;
}

static int
group_tear_down(void **state)
{
    (void)state;
    return unlink(hosts_file);
}

/* -- helpers --------------------------------------------------------------- */

static uint64_t
patience(void)
{
    return tp_now_ns() + PATIENCE_NS;
}

static int
resolve(struct tp_actor *self, const char *host, uint64_t deadline_ns,
        struct tp_msg **out)
{
    return tp_resolve(self, host, strlen(host), deadline_ns, out);
}

static void
check_address(struct tp_actor *self, const char *host, const char *want)
{
    struct tp_msg *m;
    CHECK_EQ(resolve(self, host, patience(), &m), 0);
    CHECK_EQ(m->size, strlen(want) + 1);
    tp_check(strcmp((char *)m->data, want) == 0);
    tp_msg_free(m);
}

static void
check_error(struct tp_actor *self, const char *host, int rc, int err)
{
    struct tp_msg *m;
    CHECK_EQ(resolve(self, host, patience(), &m), rc);
    CHECK_EQ(rc == TROUPE_ESYSTEM ? errno : 0, err);
}

static void
run(actor_fn root)
{
    for (unsigned n = 1; n <= 2; n++) {
        set_up(NULL);
        assert_int_equal(run_in(n, root, NULL), TP_REASON_NORMAL);
    }
}

#define TEST(name)                                                             \
    static void name##_root(struct tp_actor *self, void *arg);                 \
    static void name(void **state)                                             \
    {                                                                          \
        (void)state;                                                           \
        run(name##_root);                                                      \
    }                                                                          \
    static void name##_root(struct tp_actor *self, void *arg)

/* -- tests ----------------------------------------------------------------- */

TEST(a_numeric_host_is_its_own_answer)
{
    (void)arg;
    check_address(self, "127.0.0.1", "127.0.0.1");
    check_address(self, "[::1]", "::1");
    check_address(self, "0:0::1", "::1");
    CHECK_EQ(get(&asked), 0);
}

TEST(a_name_is_asked_for_once)
{
    (void)arg;
    for (int i = 0; i < 5; i++) {
        check_address(self, "1.2.3.4.test", "1.2.3.4");
        check_address(self, "1.2.3.5.test", "1.2.3.5");
    }
    CHECK_EQ(get(&asked), 2);
}

TEST(what_is_unknown_is_said_so)
{
    (void)arg;
    check_error(self, "nobody.test", TROUPE_ENOTFOUND, 0);
    check_error(self, "nobody.test", TROUPE_ENOTFOUND, 0);
    CHECK_EQ(get(&asked), 1); /* that is known for a moment */
    check_error(self, "error-3.test", TROUPE_ESYSTEM, EAGAIN);
    check_error(self, "error-10.test", TROUPE_ENOMEM, 0);
    check_error(self, "error-11.test", TROUPE_ESYSTEM, EMFILE);
    check_error(self, "", TROUPE_ENOTFOUND, 0);
    struct tp_msg *m;
    CHECK_EQ(tp_resolve(self, "a\0b", 3, patience(), &m), TROUPE_ENOTFOUND);
    char longest[300];
    memset(longest, 'x', sizeof longest);
    CHECK_EQ(tp_resolve(self, longest, sizeof longest, patience(), &m),
             TROUPE_ENOTFOUND);
    CHECK_EQ(get(&asked), 4);
}

TEST(localhost_has_both_families)
{
    struct tp_msg *m;
    (void)arg;
    CHECK_EQ(resolve(self, "localhost", patience(), &m), 0);
    CHECK_EQ(m->size, 14);
    tp_check(memcmp(m->data, "127.0.0.1\0::1", 14) == 0);
    tp_msg_free(m);
}

TEST(a_change_of_the_hosts_file_makes_all_unknown)
{
    (void)arg;
    check_address(self, "1.2.3.4.test", "1.2.3.4");
    FILE *f = fopen(hosts_file, "a");
    tp_check(f != NULL);
    fputs("# changed\n", f);
    fclose(f);
    check_address(self, "1.2.3.4.test", "1.2.3.4");
    CHECK_EQ(get(&asked), 2);
}

TEST(only_so_many_names_are_kept)
{
    (void)arg;
    for (int i = 0; i < TP_RESOLVE_MAX + 10; i++) {
        char host[48], want[32];
        snprintf(want, sizeof want, "10.0.%d.%d", i / 256, i % 256);
        snprintf(host, sizeof host, "%s.test", want);
        check_address(self, host, want);
    }
    CHECK_EQ(get(&asked), TP_RESOLVE_MAX + 10);
    check_address(self, "10.0.0.0.test", "10.0.0.0"); /* forgotten */
    CHECK_EQ(get(&asked), TP_RESOLVE_MAX + 11);
}

struct asker {
    char host[32];
    uint64_t deadline_ns;
    counter *done;
};

static void
asker_body(struct tp_actor *self, void *arg)
{
    struct asker *a = arg;
    struct tp_msg *m;
    int rc = resolve(self, a->host, a->deadline_ns, &m);
    CHECK_EQ(rc, TROUPE_ENOTFOUND);
    add(a->done, 1);
}

TEST(many_who_ask_the_same_wait_for_one_answer)
{
    static struct asker a;
    static counter done;
    (void)arg;
    set(&done, 0);
    snprintf(a.host, sizeof a.host, "hangs");
    a.deadline_ns = TP_NEVER;
    a.done = &done;
    for (int i = 0; i < 100; i++) {
        spawn(asker_body, &a);
    }
    YIELD_UNTIL(self, get(&asking) == 1);
    CHECK_EQ(get(&done), 0);
    set(&release, 1);
    YIELD_UNTIL(self, get(&done) == 100);
    CHECK_EQ(get(&asked), 1);
}

TEST(who_asks_may_give_up)
{
    struct tp_msg *m;
    (void)arg;
    CHECK_EQ(resolve(self, "hangs", tp_now_ns() + 5 * MS, &m), TROUPE_ETIMEOUT);
    CHECK_EQ(resolve(self, "hangs", 0, &m), TROUPE_ETIMEOUT);
    set(&release, 1);
    check_error(self, "hangs", TROUPE_ENOTFOUND, 0);
    CHECK_EQ(get(&asked), 1);
}

TEST(who_asks_may_be_killed)
{
    static struct asker a;
    static counter done;
    (void)arg;
    snprintf(a.host, sizeof a.host, "hangs");
    a.deadline_ns = TP_NEVER;
    a.done = &done;
    for (int i = 0; i < 20; i++) {
        troupe_pid pid = spawn(asker_body, &a);
        YIELD_UNTIL(self, get(&asking) == 1);
        end_with(pid, TP_REASON_KILLED);
        CHECK_EQ(join_kind(self, pid), TP_REASON_KILLED);
    }
    set(&release, 1);
    check_error(self, "hangs", TROUPE_ENOTFOUND, 0);
    CHECK_EQ(get(&asked), 1);
}

/* Does something that needs a thread of the pool. */
static void
blocker_body(struct tp_actor *self, void *arg)
{
    CHECK_EQ(tp_blocking_begin(self), 0);
    CHECK_EQ(tp_blocking_end(self), 0);
    add(arg, 1);
}

TEST(names_that_hang_leave_threads_to_others)
{
    static struct asker askers[50];
    static counter done, blocked;
    (void)arg;
    set(&done, 0);
    set(&blocked, 0);
    for (size_t i = 0; i < 50; i++) {
        snprintf(askers[i].host, sizeof askers[i].host, "hangs%zu", i);
        askers[i].deadline_ns = TP_NEVER;
        askers[i].done = &done;
        spawn(asker_body, &askers[i]);
    }
    YIELD_UNTIL(self, get(&asking) == TP_RESOLVERS);
    for (int i = 0; i < 50; i++) {
        spawn(blocker_body, &blocked);
    }
    YIELD_UNTIL(self, get(&blocked) == 50);
    check_address(self, "127.0.0.1", "127.0.0.1");
    CHECK_EQ(get(&done), 0);
    set(&release, 1);
    YIELD_UNTIL(self, get(&done) == 50);
    CHECK_EQ(get(&most), TP_RESOLVERS);
    CHECK_EQ(get(&asked), 50);
}

TEST(want_of_memory_is_told)
{
    (void)arg;
    for (long n = 1;; n++) {
        struct tp_msg *m = NULL;
        char host[32];
        snprintf(host, sizeof host, "10.1.0.%ld.test", n);
        tp_fault_arm(n);
        int rc = resolve(self, host, patience(), &m);
        bool fired = tp_fault_fired();
        tp_fault_arm(0);
        if (rc == 0) {
            tp_msg_free(m);
        } else {
            tp_check(rc == TROUPE_ENOMEM || rc == TROUPE_ELIMIT);
        }
        if (!fired) {
            CHECK_EQ(rc, 0);
            return;
        }
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_numeric_host_is_its_own_answer),
        cmocka_unit_test(a_name_is_asked_for_once),
        cmocka_unit_test(what_is_unknown_is_said_so),
        cmocka_unit_test(localhost_has_both_families),
        cmocka_unit_test(a_change_of_the_hosts_file_makes_all_unknown),
        cmocka_unit_test(only_so_many_names_are_kept),
        cmocka_unit_test(many_who_ask_the_same_wait_for_one_answer),
        cmocka_unit_test(who_asks_may_give_up),
        cmocka_unit_test(who_asks_may_be_killed),
        cmocka_unit_test(names_that_hang_leave_threads_to_others),
        cmocka_unit_test(want_of_memory_is_told),
    };
    return cmocka_run_group_tests_name("resolve", tests, group_set_up,
                                       group_tear_down);
}
