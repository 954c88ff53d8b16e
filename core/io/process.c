/*
 * process.c - child processes. See process.h.
 *
 * Tests: spec/unit/process_test.c
 */
#define _GNU_SOURCE
#include "io/process.h"

#include "actor/mailbox.h"
#include "base/thread_errno.h"
#include "io/wait.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* So long the end of a run waits for one that was killed. It takes longer only
 * where a device driver holds it. */
#define REAP_MS 1000

extern char **environ;

/* -- end ------------------------------------------------------------------ */

void
tp_process_unref(struct tp_process *p)
{
    /* PRC-1 acq_rel: the last one frees after all others have used it. Both
     * sides are this decrement. */
    if (atomic_fetch_sub_explicit(&p->refs, 1, memory_order_acq_rel) != 1) {
        return;
    }
    if (p->pidfd >= 0) {
        tp_fd_close(p->pidfd);
    }
    if (p->notice != NULL) {
        tp_msg_free(p->notice);
    }
    tp_free(p);
}

/* A child may leave the group that it led, and others may stay there. 0 or an
 * errno. */
static int
signal_locked(struct tp_process *p, int signal)
{
    bool leads = p->group && getpgid(p->pid) == p->pid;
    int err = 0;
    if (p->group && kill(-p->pid, signal) != 0) {
        err = errno;
    }
    if (!leads || err == ESRCH) { /* ESRCH: it has left since then */
        err = kill(p->pid, signal) != 0 ? errno : 0;
    }
    return err;
}

int
tp_process_signal(struct tp_process *p, int signal)
{
    tp_mutex_lock(&p->lock, TP_RANK_PROCESS);
    int err = p->reaped ? ESRCH : signal_locked(p, signal);
    tp_mutex_unlock(&p->lock, TP_RANK_PROCESS);
    return err;
}

/* Reaps it if it has ended. */
static bool
reap(struct tp_process *p)
{
    siginfo_t info = {.si_pid = 0};
    struct tp_process_end end = {p->pid, -1, 0, 0};
    int rc;
    tp_mutex_lock(&p->lock, TP_RANK_PROCESS);
    do {
        rc = waitid(P_PID, (id_t)p->pid, &info, WEXITED | WNOHANG);
    } while (rc != 0 && errno == EINTR);
    if (rc != 0) {
        end.error = errno;
    } else if (info.si_code == CLD_EXITED) {
        end.status = info.si_status;
    } else {
        end.signal = info.si_status;
    }
    p->reaped = rc != 0 || info.si_pid != 0;
    tp_mutex_unlock(&p->lock, TP_RANK_PROCESS);
    memcpy(p->notice->data, &end, sizeof end);
    return p->reaped;
}

/* -- the keeper ----------------------------------------------------------- */

static void
keeper_tell(struct tp_process *p)
{
    if (tp_mailbox_force(p->owner, p->notice) == 0) {
        p->notice = NULL;
    } /* else the owner is gone */
}

static void
keeper_main(struct tp_actor *self, void *arg)
{
    struct tp_process *p = arg;
    do {
        int rc = tp_fd_wait(self, p->pidfd, TP_FD_READ, TP_NEVER);
        if (rc != 0) { /* no memory for a wait: by looking, then */
            tp_actor_sleep(self, tp_now_ns() + 100000000u);
        }
    } while (!reap(p));
    keeper_tell(p);
}

/* The keeper may have been ended before its child, even before it ran. */
static void
keeper_finish(struct tp_actor *self, void *arg)
{
    struct tp_process *p = arg;
    struct pollfd poll_fd = {.fd = p->pidfd, .events = POLLIN};
    (void)self;
    if (p->notice == NULL || tp_process_signal(p, SIGKILL) == ESRCH) {
        return;
    }
    while (poll(&poll_fd, 1, REAP_MS) < 0 && errno == EINTR) {
    }
    reap(p);
}

static void
keeper_free(void *arg)
{
    tp_process_unref(arg);
}

static const struct tp_actor_class keeper_class = {
    .main = keeper_main, .finish = keeper_finish, .free = keeper_free};

/* -- start ---------------------------------------------------------------- */

/* All that a start needs; what is closed or gone is -1. */
struct start {
    int child[3]; /* the child's side of each descriptor, or -1: inherited */
    int *ends;
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attr;
};

static void
close_one(int *fd)
{
    if (*fd >= 0) {
        close(*fd);
        *fd = -1;
    }
}

/* The number is above those that the child gets. Takes fd. 0 or an errno. */
static int
lift(int *fd)
{
    if (*fd > STDERR_FILENO) {
        return 0;
    }
    int high = fcntl(*fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    int err = high < 0 ? errno : 0;
    close(*fd);
    *fd = high;
    return err;
}

/* fds[0] is read from. */
static int
make_pipe(struct start *s, int i)
{
    int fds[2];
    if (pipe2(fds, O_CLOEXEC) != 0) {
        return errno;
    }
    s->child[i] = fds[i == 0 ? 0 : 1];
    s->ends[i] = fds[i == 0 ? 1 : 0];
    int err = lift(&s->child[i]);
    if (err == 0) {
        err = lift(&s->ends[i]);
    }
    /* The child's side stays as programs expect it. */
    if (err == 0 && fcntl(s->ends[i], F_SETFL, O_NONBLOCK) != 0) {
        err = errno;
    }
    return err;
}

static int
make_input(struct start *s, const char *data, size_t n)
{
    s->child[0] = memfd_create("troupe-stdin", MFD_CLOEXEC);
    if (s->child[0] < 0) {
        return errno;
    }
    for (size_t at = 0; at < n;) {
        ssize_t put = write(s->child[0], data + at, n - at);
        if (put < 0 && errno != EINTR) {
            return errno;
        }
        at += put < 0 ? 0 : (size_t)put;
    }
    return lseek(s->child[0], 0, SEEK_SET) == 0 ? lift(&s->child[0]) : errno;
}

static int
make_stdio(struct start *s, const struct tp_process_spec *spec, int i)
{
    switch (spec->stdio[i]) {
    case TP_STDIO_PIPE:
        return make_pipe(s, i);
    case TP_STDIO_INPUT:
        return make_input(s, spec->input, spec->input_size);
    case TP_STDIO_NULL:
        s->child[i] =
            open("/dev/null", (i == 0 ? O_RDONLY : O_WRONLY) | O_CLOEXEC);
        return s->child[i] < 0 ? errno : lift(&s->child[i]);
    default:
        return 0;
    }
}

/* The child has its three descriptors and no other. */
static int
add_actions(struct start *s, const struct tp_process_spec *spec)
{
    int err = 0;
    for (int i = 0; i < 3 && err == 0; i++) {
        if (s->child[i] >= 0) {
            err = posix_spawn_file_actions_adddup2(&s->actions, s->child[i], i);
        }
    }
    if (err == 0 && spec->stdio[2] == TP_STDIO_STDOUT) {
        err = posix_spawn_file_actions_adddup2(&s->actions, 1, 2);
    }
    if (err == 0) {
        err = posix_spawn_file_actions_addclosefrom_np(&s->actions, 3);
    }
    if (err == 0 && spec->cwd != NULL) {
        err = posix_spawn_file_actions_addchdir_np(&s->actions, spec->cwd);
    }
    return err;
}

/* Signals as after a login: none blocked, none ignored. */
static void
set_attr(struct start *s, bool group)
{
    sigset_t set;
    short flags = POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF;
    sigemptyset(&set);
    posix_spawnattr_setsigmask(&s->attr, &set);
    sigfillset(&set);
    posix_spawnattr_setsigdefault(&s->attr, &set);
    if (group) {
        flags |= POSIX_SPAWN_SETPGROUP;
        posix_spawnattr_setpgroup(&s->attr, 0);
    }
    posix_spawnattr_setflags(&s->attr, flags);
}

static int
launch(struct start *s, const struct tp_process_spec *spec,
       struct tp_process *p)
{
    int err = posix_spawn_file_actions_init(&s->actions);
    if (err != 0) {
        return err;
    }
    posix_spawnattr_init(&s->attr);
    set_attr(s, p->group);
    err = add_actions(s, spec);
    if (err == 0) {
        err = posix_spawnp(
            &p->pid, spec->argv[0], &s->actions, &s->attr,
            (char *const *)(uintptr_t)spec->argv,
            spec->env == NULL ? environ : (char *const *)(uintptr_t)spec->env);
    }
    posix_spawnattr_destroy(&s->attr);
    posix_spawn_file_actions_destroy(&s->actions);
    return err;
}

uint64_t
tp_process_next_ref(void)
{
    static _Atomic uint64_t last;
    /* relaxed: only different each time. */
    return atomic_fetch_add_explicit(&last, 1, memory_order_relaxed) + 1;
}

static struct tp_process *
process_new(struct tp_actor *self, const struct tp_process_spec *spec)
{
    struct tp_process *p = tp_calloc(1, sizeof *p);
    struct tp_msg *m = tp_msg_new(sizeof(struct tp_process_end));
    if (p == NULL || m == NULL) {
        tp_free(p);
        if (m != NULL) {
            tp_msg_free(m);
        }
        return NULL;
    }
    p->group = spec->stdio[0] != TP_STDIO_INHERIT;
    p->owner = self->pid;
    p->pidfd = -1;
    p->notice = m;
    m->kind = TP_MSG_PROCESS;
    m->ref = spec->ref;
    tp_mutex_init(&p->lock);
    atomic_init(&p->refs, 1);
    return p;
}

/* The child is there; from here on somebody reaps it. */
static int
keep(struct tp_process *p)
{
    troupe_pid pid;
    p->pidfd = (int)syscall(SYS_pidfd_open, p->pid, 0);
    int err = p->pidfd < 0 ? errno : 0;
    if (err == 0) {
        /* relaxed: the keeper gets it through tp_spawn. */
        atomic_fetch_add_explicit(&p->refs, 1, memory_order_relaxed);
        if (tp_spawn(NULL, &keeper_class, p, &pid) == 0) {
            return 0;
        }
        tp_process_unref(p);
        err = EAGAIN;
    }
    tp_process_signal(p, SIGKILL);
    while (waitpid(p->pid, NULL, 0) < 0 && errno == EINTR) {
    }
    p->reaped = true;
    return err;
}

int
tp_process_start(struct tp_actor *self, const struct tp_process_spec *spec,
                 int ends[3], struct tp_process **out)
{
    struct start s = {.child = {-1, -1, -1}, .ends = ends};
    ends[0] = ends[1] = ends[2] = -1;
    struct tp_process *p = process_new(self, spec);
    int err = p == NULL ? ENOMEM : 0;
    for (int i = 0; i < 3 && err == 0; i++) {
        err = make_stdio(&s, spec, i);
    }
    if (err == 0) {
        err = launch(&s, spec, p);
    }
    for (int i = 0; i < 3; i++) {
        close_one(&s.child[i]);
    }
    if (err == 0) {
        err = keep(p);
    }
    if (err == 0) {
        *out = p;
        return 0;
    }
    for (int i = 0; i < 3; i++) {
        close_one(&ends[i]);
    }
    if (p != NULL) {
        tp_process_unref(p);
    }
    return err;
}
