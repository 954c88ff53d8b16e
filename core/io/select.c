/*
 * select.c - wait for the first of several things. See select.h.
 *
 * Tests: spec/unit/select_test.c
 */
#include "io/select.h"

#include "actor/group.h"
#include "actor/link.h"
#include "actor/mailbox.h"

/* Something that a receive would return; notices that nobody wants any more
 * are dropped. */
static bool
has_mail(struct tp_actor *self)
{
    tp_mailbox_fetch(self);
    for (;;) {
        struct tp_msg *m = self->slot->mail_head;
        if (m == NULL) {
            return false;
        }
        bool wanted = m->kind == TP_MSG_DOWN    ? tp_monitor_wants(self, m->ref)
                      : m->kind == TP_MSG_GROUP ? tp_group_wants(self, m)
                                                : true;
        if (wanted) {
            return true;
        }
        tp_msg_drop(tp_mailbox_take(self, &self->slot->mail_head));
    }
}

static bool
is_ready(struct tp_actor *self, const struct tp_arm *arm)
{
    struct tp_channel *ch = arm->channel;
    if (arm->kind == TP_ARM_INBOX) {
        return has_mail(self);
    }
    return ch == NULL || ch->head != NULL || tp_channel_fetch(ch) ||
           tp_channel_is_ended(ch);
}

/* The first arm that is ready; n: none. */
static size_t
first_ready(struct tp_actor *self, const struct tp_arm *arms, size_t n)
{
    size_t i = 0;
    while (i < n && !is_ready(self, &arms[i])) {
        i++;
    }
    return i;
}

/* False: one is ready. */
static bool
set_all(struct tp_actor *self, const struct tp_arm *arms, size_t n)
{
    size_t i = 0;
    while (i < n && (arms[i].kind == TP_ARM_INBOX
                         ? tp_mailbox_arm(self)
                         : tp_channel_arm(self, arms[i].channel))) {
        i++;
    }
    return i == n;
}

int
tp_select(struct tp_actor *self, const struct tp_arm *arms, size_t n,
          uint64_t deadline_ns, size_t *out_index)
{
    for (;;) {
        *out_index = first_ready(self, arms, n);
        if (*out_index < n) {
            return 0;
        }
        if (deadline_ns != TP_NEVER && tp_now_ns() >= deadline_ns) {
            return TROUPE_ETIMEOUT;
        }
        if (self->finishing) {
            return TROUPE_EINVAL;
        }
        int rc = 0;
        if (set_all(self, arms, n)) {
            rc = tp_actor_park(self, deadline_ns);
        } else {
            tp_wait_abandon(self->slot);
        }
        if (rc != 0) {
            return rc;
        }
    }
}
