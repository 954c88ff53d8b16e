/*
 * process_test.c - child processes: started, told of, killed, never left.
 */
#define _GNU_SOURCE
#include "run_in.h"

#include "actor/mailbox.h"
#include "io/process.h"

#include <dirent.h>
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static void
run(unsigned schedulers, actor_fn root)
{
    assert_int_equal(run_in(schedulers, root, NULL), TP_REASON_NORMAL);
    /* No child is left, be it as a zombie. */
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
    assert_int_equal(errno, ECHILD);
}

static const char *const sleep_argv[] = {"sleep", "1000", NULL};
static const char *const exit_argv[] = {"sh", "-c", "exit 6", NULL};
static const char *const cat_argv[] = {"cat", NULL};

static struct tp_process_spec
spec_of(const char *const *argv)
{
    struct tp_process_spec spec = {
        .ref = tp_process_next_ref(),
        .argv = argv,
        .stdio = {TP_STDIO_NULL, TP_STDIO_NULL, TP_STDIO_INHERIT}};
    return spec;
}

/* Starts it in the pool; our ends are closed. 0 or an errno. */
static int
start(struct tp_actor *self, const struct tp_process_spec *spec,
      struct tp_process **out)
{
    int ends[3];
    CHECK_EQ(tp_blocking_begin(self), 0);
    int err = tp_process_start(self, spec, ends, out);
    CHECK_EQ(tp_blocking_end(self), 0);
    for (int i = 0; i < 3; i++) {
        tp_check((ends[i] >= 0) ==
                 (err == 0 && spec->stdio[i] == TP_STDIO_PIPE));
        if (ends[i] >= 0) {
            close(ends[i]);
        }
    }
    return err;
}

static struct tp_process_end
receive_end(struct tp_actor *self, uint64_t ref)
{
    struct tp_process_end end;
    struct tp_msg *m = recv_msg(self);
    CHECK_EQ(m->kind, TP_MSG_PROCESS);
    CHECK_EQ(m->ref, ref);
    memcpy(&end, m->data, sizeof end);
    tp_msg_free(m);
    return end;
}

/* --- ends --- */

static void
root_hears(struct tp_actor *self, void *unused)
{
    struct tp_process *p;
    (void)unused;
    struct tp_process_spec spec = spec_of(exit_argv);
    CHECK_EQ(start(self, &spec, &p), 0);
    pid_t pid = p->pid;
    struct tp_process_end end = receive_end(self, spec.ref);
    CHECK_EQ(end.pid, pid);
    CHECK_EQ(end.status, 6);
    CHECK_EQ(end.signal, 0);
    CHECK_EQ(tp_process_signal(p, SIGTERM), ESRCH);
    tp_process_unref(p);
    spec = spec_of(sleep_argv);
    CHECK_EQ(start(self, &spec, &p), 0);
    CHECK_EQ(tp_process_signal(p, SIGINT), 0);
    end = receive_end(self, spec.ref);
    CHECK_EQ(end.signal, SIGINT);
    CHECK_EQ(end.status, -1);
    tp_process_unref(p);
}

static void
the_owner_is_told_of_the_end(void **state)
{
    (void)state;
    run(1, root_hears);
    run(2, root_hears);
}

static counter started;

static void
own_child(struct tp_actor *self, void *wait)
{
    struct tp_process *p;
    struct tp_process_spec spec = spec_of(sleep_argv);
    CHECK_EQ(start(self, &spec, &p), 0);
    tp_process_unref(p); /* the keeper has it */
    add(&started, 1);
    if (wait != NULL) {
        body_wait(self, NULL);
    }
}

/* The keepers are ended with all others, and take their children along. */
static void
root_stops(struct tp_actor *self, void *unused)
{
    set(&started, 0);
    for (int i = 0; i < 5; i++) {
        spawn(own_child, self);
    }
    YIELD_UNTIL(self, get(&started) == 5);
    tp_halt(1);
    body_wait(self, unused);
}

static void
the_end_of_the_run_kills_and_reaps(void **state)
{
    (void)state;
    for (unsigned n = 1; n <= 4; n *= 2) {
        assert_int_equal(run_in(n, root_stops, NULL), TP_REASON_SHUTDOWN);
        assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
    }
}

/* Somebody else has reaped it: a host that ignores SIGCHLD. */
static void
root_unknown(struct tp_actor *self, void *unused)
{
    struct tp_process *p;
    (void)unused;
    struct tp_process_spec spec = spec_of(cat_argv);
    spec.stdio[0] = TP_STDIO_PIPE;
    CHECK_EQ(start(self, &spec, &p), 0);
    tp_process_unref(p);
    CHECK_EQ(receive_end(self, spec.ref).error, ECHILD);
}

static void
an_end_that_others_have_taken_is_told_as_unknown(void **state)
{
    (void)state;
    void (*before)(int) = signal(SIGCHLD, SIG_IGN);
    run(1, root_unknown);
    signal(SIGCHLD, before);
}

/* --- failures --- */

static unsigned
open_fds(void)
{
    unsigned n = 0;
    DIR *dir = opendir("/proc/self/fd");
    tp_check(dir != NULL);
    while (readdir(dir) != NULL) {
        n++;
    }
    closedir(dir);
    return n;
}

/* Each allocation fails once; at the end it works. */
static void
root_sweeps(struct tp_actor *self, void *unused)
{
    struct tp_process_spec spec = spec_of(cat_argv);
    struct tp_process *p = NULL;
    int ends[3], err;
    long n = 1;
    (void)unused;
    spec.stdio[0] = spec.stdio[1] = spec.stdio[2] = TP_STDIO_PIPE;
    CHECK_EQ(tp_blocking_begin(self), 0);
    unsigned before = open_fds();
    do {
        tp_fault_arm(n++);
        err = tp_process_start(self, &spec, ends, &p);
        tp_fault_arm(0);
        tp_check(err == 0 || err == ENOMEM || err == EAGAIN);
        tp_check(err == 0 || open_fds() == before);
    } while (err != 0);
    tp_check(n > 3);
    CHECK_EQ(tp_blocking_end(self), 0);
    for (int i = 0; i < 3; i++) {
        close(ends[i]);
    }
    CHECK_EQ(receive_end(self, spec.ref).status, 0);
    tp_process_unref(p);
}

static void
no_failure_leaves_anything(void **state)
{
    (void)state;
    run(1, root_sweeps);
    run(2, root_sweeps);
}

/* Our own standard descriptors may be closed: a pipe then gets their numbers. */
static void
root_without_stdio(struct tp_actor *self, void *unused)
{
    static const char *const argv[] = {"sh", "-c", "read x && test \"$x\" = hi",
                                       NULL};
    struct tp_process_spec spec = spec_of(argv);
    struct tp_process *p;
    (void)unused;
    spec.stdio[0] = TP_STDIO_INPUT;
    spec.input = "hi\n";
    spec.input_size = 3;
    spec.stdio[1] = TP_STDIO_PIPE;
    CHECK_EQ(start(self, &spec, &p), 0);
    tp_process_unref(p);
    CHECK_EQ(receive_end(self, spec.ref).status, 0);
}

static void
closed_standard_descriptors_do_no_harm(void **state)
{
    int saved[2] = {dup(0), dup(1)};
    (void)state;
    fflush(stdout);
    close(0);
    close(1);
    enum tp_reason_kind kind = run_in(1, root_without_stdio, NULL);
    for (int i = 0; i < 2; i++) {
        dup2(saved[i], i);
        close(saved[i]);
    }
    assert_int_equal(kind, TP_REASON_NORMAL);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_owner_is_told_of_the_end),
        cmocka_unit_test(the_end_of_the_run_kills_and_reaps),
        cmocka_unit_test(an_end_that_others_have_taken_is_told_as_unknown),
        cmocka_unit_test(no_failure_leaves_anything),
        cmocka_unit_test(closed_standard_descriptors_do_no_harm),
    };
    return cmocka_run_group_tests_name("process", tests, NULL, NULL);
}
