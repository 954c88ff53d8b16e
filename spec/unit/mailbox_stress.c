/*
 * mailbox_stress.c - many senders, few readers, on several schedulers.
 *
 * Each sender sends rising numbers to readers that it chooses by chance, each
 * reader checks that nobody's numbers ever fall and that none is lost. Some
 * mailboxes have a limit, some readers read selectively, with deadlines that
 * pass, or end in the middle. A thread outside sends too.
 *
 *   mailbox_stress [--seed N] [--rounds N] [--messages N]
 */
#include "run_in.h"

#include <pthread.h>

#define SENDERS 8
#define READERS 5
#define OUTSIDE SENDERS /* number of the thread that is no worker */

struct reader {
    troupe_pid pid;
    uint64_t random;
    uint64_t last[SENDERS + 1]; /* highest number read of each sender */
    uint64_t count[SENDERS + 1];
    counter accepted[SENDERS + 1]; /* pushes that returned 0 */
    bool drops;                    /* its mailbox drops what is too much */
    bool dies;
};

static struct load {
    uint64_t seed, messages;
    struct reader reader[READERS];
    counter senders_left;
} load;

static uint64_t
mix(uint64_t x)
{
    x ^= x >> 31;
    x *= 0x9e3779b97f4a7c15u;
    x ^= x >> 29;
    return x | 1;
}

/* A message says who sends, and its how many-th it is to this reader. */
static int
send_next(struct tp_actor *self, struct reader *r, uint64_t sender,
          uint64_t *next)
{
    uint64_t n = (sender << 32) | ++next[r - load.reader];
    int rc = self == NULL ? push_num(r->pid, n) : send_num(self, r->pid, n);
    if (rc == 0) {
        add(&r->accepted[sender], 1);
    } else {
        tp_check(rc == TROUPE_EFULL || (rc == TROUPE_ENOPROC && r->dies));
    }
    return rc;
}

static void
send_all(struct tp_actor *self, void *arg)
{
    uint64_t me = (uintptr_t)arg, next[READERS] = {0};
    uint64_t x = mix(load.seed + me);
    for (uint64_t i = 0; i < load.messages; i++) {
        send_next(self, &load.reader[random_next(&x) % READERS], me, next);
        if (random_next(&x) % 32 == 0) {
            tp_actor_yield(self);
        }
    }
    add(&load.senders_left, (uint64_t)-1);
}

static void *
send_from_outside(void *unused)
{
    uint64_t next[READERS] = {0}, x = mix(load.seed + 99);
    for (uint64_t i = 0; i < load.messages / 4; i++) {
        send_next(NULL, &load.reader[random_next(&x) % READERS], OUTSIDE, next);
    }
    tp_msg_thread_flush();
    add(&load.senders_left, (uint64_t)-1);
    tp_external_end();
    return unused;
}

static void
read_one(struct reader *r, struct tp_msg *m)
{
    uint64_t n = msg_num(m), sender = n >> 32;
    tp_check(sender <= OUTSIDE);
    tp_check((uint32_t)n > r->last[sender]); /* order is kept */
    r->last[sender] = (uint32_t)n;
    r->count[sender]++;
    tp_msg_free(m);
}

/* The first message of a sender chosen by chance, wherever it stands. */
static bool
read_selectively(struct tp_actor *self, struct reader *r)
{
    uint64_t sender = random_next(&r->random) % (OUTSIDE + 1);
    tp_mailbox_fetch(self);
    struct tp_msg **link = &self->slot->mail_head;
    for (int i = 0; *link != NULL && i < 100; link = &(*link)->next, i++) {
        if (msg_num(*link) >> 32 == sender) {
            read_one(r, tp_mailbox_take(self, link));
            return true;
        }
    }
    return false;
}

static bool
read_first(struct tp_actor *self, struct reader *r)
{
    struct tp_msg *m = tp_mailbox_pop(self);
    if (m == NULL) {
        uint64_t wait = random_next(&r->random) % 200000;
        uint64_t deadline = wait % 3 == 0 ? TP_NEVER : tp_now_ns() + wait;
        int rc = tp_mailbox_wait(self, deadline);
        tp_check(rc == 0 || (rc == TROUPE_ETIMEOUT && deadline != TP_NEVER));
        return false;
    }
    read_one(r, m);
    return true;
}

static void
read_all(struct tp_actor *self, void *arg)
{
    struct reader *r = arg;
    uint64_t left = load.messages;
    while (!r->dies || left > 0) {
        bool read = random_next(&r->random) % 4 == 0 ? read_selectively(self, r)
                                                     : read_first(self, r);
        left -= read;
        if (random_next(&r->random) % 64 == 0) {
            tp_actor_yield(self);
        }
    }
}

static void
start_readers(void)
{
    static const struct tp_spawn_opts opts[READERS] = {
        {.mail_limit = 0},
        {.mail_limit = 1, .mail_policy = TP_MAIL_BLOCK},
        {.mail_limit = 50, .mail_policy = TP_MAIL_BLOCK},
        {.mail_limit = 20, .mail_policy = TP_MAIL_DROP_NEW},
        {.mail_limit = 5, .mail_policy = TP_MAIL_BLOCK}};
    for (size_t i = 0; i < READERS; i++) {
        struct reader *r = &load.reader[i];
        memset(r, 0, sizeof *r);
        r->random = mix(load.seed + 1000 + i);
        r->drops = opts[i].mail_policy == TP_MAIL_DROP_NEW;
        r->dies = i == 4;
        r->pid = spawn_opts(&opts[i], read_all, r);
    }
}

/* All that was accepted was read, but by those who dropped or died. */
static bool
is_read(struct reader *r)
{
    for (size_t s = 0; s <= OUTSIDE; s++) {
        uint64_t sent = get(&r->accepted[s]);
        tp_check(r->count[s] <= sent);
        if (r->count[s] < sent && !r->drops && !r->dies) {
            return false;
        }
    }
    return true;
}

static void
root(struct tp_actor *self, void *unused)
{
    pthread_t t;
    (void)unused;
    start_readers();
    set(&load.senders_left, SENDERS + 1);
    tp_external_begin();
    for (uintptr_t i = 0; i < SENDERS; i++) {
        spawn(send_all, (void *)i);
    }
    CHECK_EQ(pthread_create(&t, NULL, send_from_outside, NULL), 0);
    YIELD_UNTIL(self, get(&load.senders_left) == 0);
    pthread_join(t, NULL);
    /* Nobody is left but readers: this one returns, they are stopped when all
     * of them wait. */
}

static void
run_round(uint64_t seed, unsigned schedulers, uint64_t messages)
{
    uint64_t read = 0, start = tp_now_ns();
    load.seed = seed;
    load.messages = messages;
    CHECK_EQ(run_in(schedulers, root, NULL), TP_REASON_NORMAL);
    for (size_t i = 0; i < READERS; i++) {
        tp_check(is_read(&load.reader[i]));
        for (size_t s = 0; s <= OUTSIDE; s++) {
            read += load.reader[i].count[s];
        }
    }
    printf("seed %" PRIu64 " schedulers %u read %" PRIu64 " in %" PRIu64
           " ms\n",
           seed, schedulers, read, (uint64_t)((tp_now_ns() - start) / MS));
    fflush(stdout);
}

int
main(int argc, char **argv)
{
    uint64_t seed = option(argc, argv, "--seed", tp_now_ns() % 1000000007u);
    uint64_t rounds = option(argc, argv, "--rounds", 6);
    uint64_t messages = option(argc, argv, "--messages", FEWER(10000));
    printf("mailbox_stress --seed %" PRIu64 " --rounds %" PRIu64
           " --messages %" PRIu64 "\n",
           seed, rounds, messages);
    fflush(stdout);
    for (uint64_t r = 0; r < rounds; r++) {
        run_round(seed + r, 1u << (r % 3), messages);
    }
    return 0;
}
