/*
 * resolve.c - names of hosts. See resolve.h.
 *
 * Tests: spec/unit/resolve_test.c
 */
#define _GNU_SOURCE
#include "io/resolve.h"

#include "base/thread_errno.h"
#include "io/socket.h"
#include "run/runtime.h"
#include "sched/blocking.h"

#include <netdb.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#define BUCKETS 256
/* No name is longer (RFC 1035). */
#define NAME_MAX_LEN 253

int (*tp_resolve_ask)(const char *host, const char *service,
                      const struct addrinfo *hints,
                      struct addrinfo **out) = getaddrinfo;
const char *tp_resolve_hosts = "/etc/hosts";
uint64_t tp_resolve_known_ns = 30000000000ull;
uint64_t tp_resolve_unknown_ns = 1000000000ull;

/* The lock guards all of it but the name of one that is being looked up. */
struct name {
    struct name *next;      /* in its bucket */
    struct name *next_line; /* those to be asked for */
    bool pending;           /* in line, or asked */
    uint64_t until_ns;      /* not pending: so long it is of use */
    int rc, err;            /* of the answer; errno */
    struct tp_msg *answer;  /* with rc 0 */
    struct tp_wake *waiters;
    size_t waiter_count, waiter_capacity;
    char text[NAME_MAX_LEN + 1];
};

static struct {
    struct tp_mutex lock; /* rank RESOLVE */
    struct name *buckets[BUCKETS];
    size_t count;
    struct name *line, **line_end;
    unsigned resolvers; /* actors that ask */
    struct timespec hosts_time;
    off_t hosts_size;
    bool hooked; /* reset at the end of the run */
    struct tp_run_hook hook;
} table;

/* -- the table ------------------------------------------------------------- */

static void
lock(void)
{
    tp_mutex_lock(&table.lock, TP_RANK_RESOLVE);
}

static void
unlock(void)
{
    tp_mutex_unlock(&table.lock, TP_RANK_RESOLVE);
}

static struct name **
bucket_of(const char *text)
{
    uint32_t h = 2166136261u;
    for (const char *p = text; *p != '\0'; p++) {
        h = (h ^ (unsigned char)*p) * 16777619u;
    }
    return &table.buckets[h % BUCKETS];
}

static void
name_free(struct name *n)
{
    if (n->answer != NULL) {
        tp_msg_free(n->answer);
    }
    tp_free(n->waiters);
    tp_free(n);
}

/* Frees all names that fn says are of no use. */
static void
forget_locked(bool (*fn)(const struct name *n, uint64_t now), uint64_t now)
{
    for (size_t i = 0; i < BUCKETS; i++) {
        struct name **link = &table.buckets[i];
        while (*link != NULL) {
            struct name *n = *link;
            if (n->pending || !fn(n, now)) {
                link = &n->next;
                continue;
            }
            *link = n->next;
            table.count--;
            name_free(n);
        }
    }
}

static bool
is_old(const struct name *n, uint64_t now)
{
    return n->until_ns <= now;
}

static bool
is_any(const struct name *n, uint64_t now)
{
    (void)n;
    (void)now;
    return true;
}

/* Whoever changes the file wants to see it used. */
static void
check_hosts_locked(const struct stat *st)
{
    if (st->st_mtim.tv_sec != table.hosts_time.tv_sec ||
        st->st_mtim.tv_nsec != table.hosts_time.tv_nsec ||
        st->st_size != table.hosts_size) {
        table.hosts_time = st->st_mtim;
        table.hosts_size = st->st_size;
        forget_locked(is_any, 0);
    }
}

static void
put_in_line_locked(struct name *n)
{
    n->pending = true;
    n->next_line = NULL;
    *table.line_end = n;
    table.line_end = &n->next_line;
}

static struct name *
find_locked(const char *text)
{
    struct name *n = *bucket_of(text);
    while (n != NULL && strcmp(n->text, text) != 0) {
        n = n->next;
    }
    return n;
}

/* A new one, in line; NULL without memory. */
static struct name *
add_locked(const char *text, uint64_t now)
{
    if (table.count >= TP_RESOLVE_MAX) {
        forget_locked(is_old, now);
    }
    if (table.count >= TP_RESOLVE_MAX) {
        forget_locked(is_any, now);
    }
    struct name *n = tp_calloc(1, sizeof *n);
    if (n == NULL) {
        return NULL;
    }
    strcpy(n->text, text);
    struct name **bucket = bucket_of(text);
    n->next = *bucket;
    *bucket = n;
    table.count++;
    put_in_line_locked(n);
    return n;
}

static bool
add_waiter_locked(struct name *n, struct tp_actor *self)
{
    if (n->waiter_count == n->waiter_capacity) {
        size_t want = n->waiter_capacity * 2 + 4;
        struct tp_wake *w = tp_realloc(n->waiters, want * sizeof *w);
        if (w == NULL) {
            return false;
        }
        n->waiters = w;
        n->waiter_capacity = want;
    }
    n->waiters[n->waiter_count++] =
        (struct tp_wake){self->pid, tp_wait_epoch(self->slot)};
    return true;
}

/* The run is over, no actor is left. */
static void
stop(void)
{
    lock();
    for (struct name *n = table.line; n != NULL; n = n->next_line) {
        n->pending = false;
    }
    table.line = NULL;
    table.line_end = &table.line;
    table.hooked = false;
    forget_locked(is_any, 0);
    unlock();
}

/* -- answers --------------------------------------------------------------- */

static int
of_eai(int eai, int *out_err)
{
    switch (eai) {
    case 0:
        return 0;
    case EAI_AGAIN:
        *out_err = EAGAIN;
        return TROUPE_ESYSTEM;
    case EAI_SYSTEM:
        *out_err = errno;
        return TROUPE_ESYSTEM;
    case EAI_MEMORY:
        return TROUPE_ENOMEM;
    default:
        return TROUPE_ENOTFOUND;
    }
}

static bool
contains(const char *texts, size_t size, const char *text)
{
    for (size_t at = 0; at < size; at += strlen(texts + at) + 1) {
        if (strcmp(texts + at, text) == 0) {
            return true;
        }
    }
    return false;
}

/* The text of an address that is not in texts yet; its length with the NUL. */
static size_t
add_text(const struct addrinfo *ai, char *texts, size_t size)
{
    struct tp_addr a;
    char text[TP_ADDR_TEXT];
    if ((ai->ai_family != AF_INET && ai->ai_family != AF_INET6) ||
        ai->ai_addrlen > sizeof a.at) {
        return 0;
    }
    a.size = ai->ai_addrlen;
    memcpy(&a.at, ai->ai_addr, ai->ai_addrlen);
    size_t n = tp_addr_text(&a, text) + 1;
    if (contains(texts, size, text)) {
        return 0;
    }
    memcpy(texts + size, text, n);
    return n;
}

/* NULL without memory; a message of size 0 when there is no address. */
static struct tp_msg *
message_of(const struct addrinfo *list)
{
    size_t count = 0, size = 0;
    for (const struct addrinfo *ai = list; ai != NULL; ai = ai->ai_next) {
        count++;
    }
    struct tp_msg *m = tp_msg_new(count * TP_ADDR_TEXT);
    if (m == NULL) {
        return NULL;
    }
    for (const struct addrinfo *ai = list; ai != NULL; ai = ai->ai_next) {
        size += add_text(ai, (char *)m->data, size);
    }
    m->size = (uint32_t)size;
    return m;
}

static struct tp_msg *
copy_of(const void *data, size_t size)
{
    struct tp_msg *m = tp_msg_new(size);
    if (m != NULL) {
        memcpy(m->data, data, size);
    }
    return m;
}

/* This host has both, whatever its tables say (RFC 6761). */
static const char *const localhost[] = {"127.0.0.1", "::1"};

/* Adds those that are missing; m may be NULL, and NULL comes back without
 * memory. */
static struct tp_msg *
complete_localhost(struct tp_msg *m)
{
    size_t size = m == NULL ? 0 : m->size;
    struct tp_msg *all = tp_msg_new(size + 2 * TP_ADDR_TEXT);
    if (all != NULL) {
        char *texts = (char *)all->data;
        if (size > 0) {
            memcpy(texts, m->data, size);
        }
        for (size_t i = 0; i < 2; i++) {
            if (!contains(texts, size, localhost[i])) {
                strcpy(texts + size, localhost[i]);
                size += strlen(localhost[i]) + 1;
            }
        }
        all->size = (uint32_t)size;
    }
    if (m != NULL) {
        tp_msg_free(m);
    }
    return all;
}

/* Asks the system for a name; blocks the thread. */
static int
ask_system(const char *text, struct tp_msg **out, int *out_err)
{
    static const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *list = NULL;
    int rc = of_eai(tp_resolve_ask(text, NULL, &hints, &list), out_err);
    *out = NULL;
    if (rc != 0) {
        return rc;
    }
    *out = message_of(list);
    freeaddrinfo(list);
    if (*out == NULL) {
        return TROUPE_ENOMEM;
    }
    if ((*out)->size == 0) {
        tp_msg_free(*out);
        *out = NULL;
        return TROUPE_ENOTFOUND;
    }
    return 0;
}

static int
ask(const char *text, struct tp_msg **out, int *out_err)
{
    int rc = ask_system(text, out, out_err);
    if (strcasecmp(text, "localhost") == 0) {
        *out = complete_localhost(*out);
        rc = *out == NULL ? TROUPE_ENOMEM : 0;
    }
    return rc;
}

/* -- the resolvers --------------------------------------------------------- */

/* Stores the answer, and wakes all who wait for it. */
static void
settle(struct name *n, int rc, int err, struct tp_msg *answer)
{
    lock();
    struct tp_wake *waiters = n->waiters;
    size_t count = n->waiter_count;
    if (n->answer != NULL) {
        tp_msg_free(n->answer);
    }
    n->waiters = NULL;
    n->waiter_count = n->waiter_capacity = 0;
    n->rc = rc;
    n->err = err;
    n->answer = answer;
    n->until_ns = tp_sat_add(tp_now_ns(), rc == 0 ? tp_resolve_known_ns
                                                  : tp_resolve_unknown_ns);
    n->pending = false;
    unlock();
    for (size_t i = 0; i < count; i++) {
        tp_unpark_at(waiters[i].pid, waiters[i].epoch);
    }
    tp_free(waiters);
}

/* The next in line; NULL, and one resolver less, when there is none. */
static struct name *
next_in_line(void)
{
    lock();
    struct name *n = table.line;
    if (n == NULL) {
        table.resolvers--;
    } else {
        table.line = n->next_line;
        if (table.line == NULL) {
            table.line_end = &table.line;
        }
    }
    unlock();
    return n;
}

static void
resolver_main(struct tp_actor *self, void *arg)
{
    struct name *n;
    (void)arg;
    int failed = tp_blocking_begin(self);
    while ((n = next_in_line()) != NULL) {
        int err = 0;
        struct tp_msg *answer = NULL;
        int rc = failed != 0 ? failed : ask(n->text, &answer, &err);
        settle(n, rc, err, answer);
    }
    if (failed == 0) {
        tp_blocking_end(self);
    }
}

static const struct tp_actor_class resolver_class = {.main = resolver_main};

/* One more; it was counted. If there is none at all, those in line learn it. */
static void
start_resolver(void)
{
    static const struct tp_spawn_opts opts = {.unkillable = true};
    troupe_pid pid;
    int rc = tp_spawn(&opts, &resolver_class, NULL, &pid);
    if (rc == 0) {
        return;
    }
    lock();
    bool alone = table.resolvers == 1;
    table.resolvers -= !alone;
    unlock();
    struct name *n;
    while (alone && (n = next_in_line()) != NULL) {
        settle(n, rc, 0, NULL);
    }
}

/* -- asking ---------------------------------------------------------------- */

/* Names that hang shall leave half of the pool to others. */
static unsigned
resolvers_max(void)
{
    struct tp_blocking_stats st;
    tp_blocking_get_stats(&st);
    unsigned half = st.limit < 2 ? 1 : st.limit / 2;
    return half < TP_RESOLVERS ? half : TP_RESOLVERS;
}

/* Something to wait for. */
#define PENDING 1

/* As tp_resolve, or PENDING: self is among those who will be woken.
 * *out_start: a resolver is wanted. */
static int
look_locked(struct tp_actor *self, const char *text, struct tp_msg **out,
            bool *out_start)
{
    uint64_t now = tp_now_ns();
    struct name *n = find_locked(text);
    if (n == NULL) {
        n = add_locked(text, now);
        if (n == NULL) {
            return TROUPE_ENOMEM;
        }
    } else if (!n->pending && is_old(n, now)) {
        put_in_line_locked(n);
    }
    if (n->pending) {
        *out_start = table.line != NULL && table.resolvers < resolvers_max();
        table.resolvers += *out_start;
        return add_waiter_locked(n, self) ? PENDING : TROUPE_ENOMEM;
    }
    if (n->rc == 0) {
        *out = copy_of(n->answer->data, n->answer->size);
        return *out == NULL ? TROUPE_ENOMEM : 0;
    }
    errno = n->err;
    return n->rc;
}

static int
look(struct tp_actor *self, const char *text, struct tp_msg **out)
{
    struct stat st = {0};
    bool start = false, hook = false;
    stat(tp_resolve_hosts, &st);
    lock();
    if (!table.hooked) {
        hook = table.hooked = true;
        table.line_end = &table.line;
        table.resolvers = 0;
        table.hook.stop = stop;
    }
    check_hosts_locked(&st);
    int rc = look_locked(self, text, out, &start);
    int err = errno;
    unlock();
    if (hook) {
        tp_run_at_stop(&table.hook);
    }
    if (start) {
        start_resolver();
    }
    errno = err;
    return rc;
}

static int
wait_for(struct tp_actor *self, const char *text, uint64_t deadline_ns,
         struct tp_msg **out)
{
    for (;;) {
        int rc = look(self, text, out);
        if (rc != PENDING) {
            return rc;
        }
        if (deadline_ns != TP_NEVER && tp_now_ns() >= deadline_ns) {
            tp_wait_abandon(self->slot);
            return TROUPE_ETIMEOUT;
        }
        rc = tp_actor_park(self, deadline_ns);
        if (rc != 0) {
            return rc;
        }
    }
}

int
tp_resolve(struct tp_actor *self, const char *host, size_t len,
           uint64_t deadline_ns, struct tp_msg **out)
{
    struct tp_addr a;
    char text[TP_ADDR_TEXT];
    if (tp_addr_ip(&a, host, len, 0) == 0) {
        *out = copy_of(text, tp_addr_text(&a, text) + 1);
        return *out == NULL ? TROUPE_ENOMEM : 0;
    }
    if (len == 0 || len > NAME_MAX_LEN || memchr(host, '\0', len) != NULL) {
        return TROUPE_ENOTFOUND;
    }
    char name[NAME_MAX_LEN + 1];
    memcpy(name, host, len);
    name[len] = '\0';
    return wait_for(self, name, deadline_ns, out);
}
