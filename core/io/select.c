/*
 * select.c - wait for the first of several things. See select.h.
 *
 * Tests: spec/unit/select_test.c
 */
#include "io/select.h"

#include "actor/group.h"
#include "actor/link.h"
#include "actor/mailbox.h"
#include "base/thread_errno.h"

/* What an arm may be, but for an error. */
#define WAITS 0
#define READY 1

/* Something that a receive would return; notices that are not for it are
 * dropped or set aside. */
static bool
has_mail(struct tp_actor *self)
{
    tp_mailbox_fetch(self);
    for (;;) {
        struct tp_msg *m = self->slot->mail_head;
        if (m == NULL) {
            return false;
        }
        bool down = m->kind == TP_MSG_DOWN;
        bool wanted = down                      ? tp_monitor_wants(self, m->ref)
                      : m->kind == TP_MSG_GROUP ? tp_group_wants(self, m)
                                                : true;
        if (wanted) {
            return true;
        }
        m = tp_mailbox_take(self, &self->slot->mail_head);
        if (down) {
            tp_monitor_take_down(self, m);
        } else {
            tp_msg_drop(m);
        }
    }
}

/* What poll or arm have said of an fd; one that is closed is ready. */
static int
fd_state(int rc)
{
    bool closed =
        rc == TROUPE_ECLOSED || (rc == TROUPE_EINVAL && errno == EBADF);
    return closed ? READY : rc;
}

static int
look(struct tp_actor *self, const struct tp_arm *arm)
{
    struct tp_channel *ch = arm->channel;
    bool ready = arm->fired;
    switch (arm->kind) {
    case TP_ARM_INBOX:
        ready = has_mail(self);
        break;
    case TP_ARM_CHANNEL:
        ready = ch == NULL || ch->head != NULL || tp_channel_fetch(ch) ||
                tp_channel_is_ended(ch);
        break;
    case TP_ARM_FD:
        return ready ? READY : fd_state(tp_fd_poll(arm->fd, arm->dir));
    }
    return ready ? READY : WAITS;
}

static int
set(struct tp_actor *self, const struct tp_arm *arm)
{
    bool armed = false;
    switch (arm->kind) {
    case TP_ARM_INBOX:
        armed = tp_mailbox_arm(self);
        break;
    case TP_ARM_CHANNEL:
        armed = tp_channel_arm(self, arm->channel);
        break;
    case TP_ARM_FD:
        return fd_state(tp_fd_arm(self, arm->fd, arm->dir));
    }
    return armed ? WAITS : READY;
}

/* Until the first that does not just wait: what it is, and *out_index. */
static int
each(struct tp_actor *self, struct tp_arm *arms, size_t n,
     int (*fn)(struct tp_actor *, const struct tp_arm *), size_t *out_index)
{
    int rc = WAITS;
    size_t i = 0;
    while (i < n && (rc = fn(self, &arms[i])) == WAITS) {
        i++;
    }
    *out_index = i;
    return rc;
}

/* The first n arms were set. */
static void
unset(struct tp_actor *self, struct tp_arm *arms, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (arms[i].kind == TP_ARM_FD) {
            arms[i].fired = tp_fd_disarm(self, arms[i].fd, arms[i].dir);
        }
    }
}

/* 0: something may have become ready. */
static int
wait(struct tp_actor *self, struct tp_arm *arms, size_t n, uint64_t deadline_ns,
     size_t *out_index)
{
    int rc = each(self, arms, n, set, out_index);
    if (rc == WAITS) {
        rc = tp_actor_park(self, deadline_ns);
    } else {
        tp_wait_abandon(self->slot);
    }
    int err = errno;
    unset(self, arms, *out_index);
    errno = err;
    return rc == READY ? 0 : rc;
}

int
tp_select(struct tp_actor *self, struct tp_arm *arms, size_t n,
          uint64_t deadline_ns, size_t *out_index)
{
    int rc = 0;
    for (size_t i = 0; i < n; i++) {
        arms[i].fired = false;
    }
    while (rc == 0) {
        rc = each(self, arms, n, look, out_index);
        if (rc != WAITS) {
            return rc == READY ? 0 : rc;
        }
        if (deadline_ns != TP_NEVER && tp_now_ns() >= deadline_ns) {
            return TROUPE_ETIMEOUT;
        }
        rc = self->finishing ? TROUPE_EINVAL
                             : wait(self, arms, n, deadline_ns, out_index);
    }
    return rc;
}
