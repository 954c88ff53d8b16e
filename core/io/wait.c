/*
 * wait.c - park an actor until a file descriptor is ready. See wait.h.
 *
 * Tests: spec/unit/driver_test.c, spec/unit/driver_stress.c
 */
#define _GNU_SOURCE
#include "io/wait.h"

#include "base/thread_errno.h"
#include "io/driver.h"
#include "run/runtime.h"

#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <unistd.h>

/* Neighbours are in different shards. */
#define SHARDS 16
/* Entries never move: those of a shard come in chunks. */
#define CHUNK    64

#define HAS(dir) (1u << (dir))

enum wait_state {
    WAITING, /* in its entry */
    FIRED,
    CLOSED
};

struct fd_wait {
    struct fd_wait *next; /* owner only */
    /* set by the owner before it is in an entry */
    troupe_pid pid;
    uint32_t epoch;
    int fd;
    uint32_t id; /* of tp_fd_own; 0: any fd */
    enum tp_fd_dir dir;
    /* the shard's lock */
    enum wait_state state;
};

/* All waits of an actor. */
struct tp_fd_waits {
    struct tp_resource resource;
    struct tp_actor *owner;
    struct fd_wait *armed; /* armed, and not taken back yet */
    struct fd_wait *spare;
};

/* The shard's lock. Sets of directions are made of HAS. */
struct entry {
    struct fd_wait *waiter[TP_FD_DIRS];
    uint32_t seq;    /* of the last arm */
    uint32_t own_id; /* tp_fd_own; 0: nobody's */
    uint32_t own_count;
    bool known;      /* it is in the epoll set, unless others have closed it */
    uint8_t watched; /* own: the directions that are registered */
    uint8_t ready;   /* own: there was an event and nobody waited */
    uint8_t ended;   /* own: ready for good */
};

static struct shard {
    alignas(TP_CACHELINE) struct tp_mutex lock; /* rank IO */
    /* lock */
    struct entry **chunks;
    size_t chunk_count;
} shards[SHARDS];

/* Waits that were taken out of an entry, to be ended without the lock. */
struct ended {
    struct tp_wake wakes[TP_FD_DIRS];
    size_t count;
};

/* -- the table ------------------------------------------------------------- */

static struct shard *
lock_shard(int fd)
{
    struct shard *s = &shards[(unsigned)fd % SHARDS];
    tp_mutex_lock(&s->lock, TP_RANK_IO);
    return s;
}

static void
unlock_shard(struct shard *s)
{
    tp_mutex_unlock(&s->lock, TP_RANK_IO);
}

/* NULL: nobody has ever waited near it. */
static struct entry *
entry_at(const struct shard *s, int fd)
{
    size_t i = (unsigned)fd / SHARDS, c = i / CHUNK;
    return fd < 0 || c >= s->chunk_count || s->chunks[c] == NULL
               ? NULL
               : &s->chunks[c][i % CHUNK];
}

static bool
grow(struct shard *s, size_t count)
{
    size_t more = s->chunk_count == 0 ? 4 : s->chunk_count * 2;
    count = count < more ? more : count;
    struct entry **p = tp_realloc(s->chunks, count * sizeof *p);
    if (p == NULL) {
        return false;
    }
    memset(p + s->chunk_count, 0, (count - s->chunk_count) * sizeof *p);
    s->chunks = p;
    s->chunk_count = count;
    return true;
}

/* Fails: a number that is no fd shall cost no memory. */
static int
entry_make(struct shard *s, int fd, struct entry **out_e)
{
    size_t c = (unsigned)fd / SHARDS / CHUNK;
    *out_e = entry_at(s, fd);
    if (*out_e != NULL) {
        return 0;
    }
    if (fcntl(fd, F_GETFD) < 0) {
        return TROUPE_EINVAL;
    }
    if (c >= s->chunk_count && !grow(s, c + 1)) {
        return TROUPE_ENOMEM;
    }
    s->chunks[c] = tp_calloc(CHUNK, sizeof(struct entry));
    *out_e = entry_at(s, fd);
    return *out_e == NULL ? TROUPE_ENOMEM : 0;
}

static unsigned
waiting(const struct entry *e)
{
    return (e->waiter[TP_FD_READ] != NULL ? HAS(TP_FD_READ) : 0) |
           (e->waiter[TP_FD_WRITE] != NULL ? HAS(TP_FD_WRITE) : 0);
}

static uint32_t
events_of(unsigned dirs)
{
    return ((dirs & HAS(TP_FD_READ)) != 0 ? (uint32_t)EPOLLIN : 0) |
           ((dirs & HAS(TP_FD_WRITE)) != 0 ? (uint32_t)EPOLLOUT : 0);
}

/* Takes those of dirs who wait out of the entry. */
static void
take_locked(struct entry *e, unsigned dirs, enum wait_state why,
            struct ended *out)
{
    for (int dir = 0; dir < TP_FD_DIRS; dir++) {
        struct fd_wait *w = e->waiter[dir];
        if (w != NULL && (dirs & HAS(dir)) != 0) {
            e->waiter[dir] = NULL;
            out->wakes[out->count++] = (struct tp_wake){w->pid, w->epoch};
            w->state = why;
        }
    }
}

/* The file has gone, or is about to: a registration is not its any more. */
static void
forget_locked(struct entry *e)
{
    e->known = false;
    e->own_id = 0;
    e->watched = e->ready = e->ended = 0;
}

/* Arms the registration for dirs, once; that of an own fd for good. If it is
 * ready now there will be an event. 0 or an errno; then it is as before. */
static int
watch_locked(struct entry *e, int fd, unsigned dirs)
{
    bool own = e->own_id != 0;
    dirs |= own ? e->watched : 0;
    uint32_t events =
        events_of(dirs) | (uint32_t)(own ? EPOLLET | EPOLLRDHUP : EPOLLONESHOT);
    int rc = tp_driver_watch(fd, e->known, events, e->seq + 1);
    if (rc == EEXIST && !e->known) {
        rc = tp_driver_watch(fd, true, events, e->seq + 1);
    }
    if (rc == 0) {
        e->seq++;
        e->known = true;
        e->watched = own ? (uint8_t)dirs : 0;
    }
    return rc;
}

/*
 * Is the registration that of the file which has this number now? If not, the
 * file was closed behind our back, and who waits for it waits in vain. 0, or an
 * errno that says nothing of it.
 */
static int
verify_locked(struct entry *e, int fd, unsigned dirs, struct ended *out)
{
    int rc = e->known ? watch_locked(e, fd, dirs) : 0;
    if (rc == ENOENT || rc == EBADF || rc == EPERM) {
        take_locked(e, waiting(e), CLOSED, out);
        forget_locked(e);
        rc = 0;
    }
    return rc;
}

static void
end_waits(const struct ended *ended)
{
    for (size_t i = 0; i < ended->count; i++) {
        tp_unpark_at(ended->wakes[i].pid, ended->wakes[i].epoch);
        tp_external_end();
    }
}

static unsigned
dirs_of(uint32_t events)
{
    bool both = (events & (EPOLLERR | EPOLLHUP)) != 0;
    bool in = (events & (EPOLLIN | EPOLLRDHUP)) != 0;
    bool out = (events & EPOLLOUT) != 0;
    return (both || in ? HAS(TP_FD_READ) : 0) |
           (both || out ? HAS(TP_FD_WRITE) : 0);
}

/* The registration was for one event: what is still waited for is armed anew.
 */
static void
fire_once_locked(struct entry *e, int fd, unsigned dirs, struct ended *out)
{
    take_locked(e, dirs, FIRED, out);
    unsigned rest = waiting(e);
    if (rest != 0 && watch_locked(e, fd, rest) != 0) {
        take_locked(e, rest, FIRED, out); /* it sees what is wrong */
    }
}

/* Does its owner wait? */
static bool
owner_waits(const struct entry *e, enum tp_fd_dir dir)
{
    return e->waiter[dir] != NULL && e->waiter[dir]->id != 0;
}

/* The next event comes when more has arrived: what the owner does not wait for
 * is noted. What has come to its end makes no more events, and its reader need
 * not have seen the end when it waits again. */
static void
fire_own_locked(struct entry *e, unsigned dirs, uint32_t events,
                struct ended *out)
{
    for (int dir = 0; dir < TP_FD_DIRS; dir++) {
        if (!owner_waits(e, (enum tp_fd_dir)dir)) {
            e->ready |= (uint8_t)(dirs & HAS(dir));
        }
    }
    if ((events & EPOLLRDHUP) != 0) {
        e->ended |= HAS(TP_FD_READ);
    }
    if ((events & EPOLLHUP) != 0) {
        e->ended |= HAS(TP_FD_READ) | HAS(TP_FD_WRITE);
    }
    take_locked(e, dirs, FIRED, out);
}

size_t
tp_fd_consume(int fd, uint32_t seq, uint32_t events, struct tp_wake *out_wakes)
{
    struct ended ended = {.count = 0};
    struct shard *s = lock_shard(fd);
    struct entry *e = entry_at(s, fd);
    if (e != NULL && e->known && e->seq == seq) {
        if (e->own_id == 0) {
            fire_once_locked(e, fd, dirs_of(events), &ended);
        } else {
            fire_own_locked(e, dirs_of(events), events, &ended);
        }
    }
    unlock_shard(s);
    memcpy(out_wakes, ended.wakes, ended.count * sizeof *out_wakes);
    return ended.count;
}

void
tp_fd_close(int fd)
{
    struct ended ended = {.count = 0};
    struct shard *s = lock_shard(fd);
    struct entry *e = entry_at(s, fd);
    if (e != NULL) {
        take_locked(e, waiting(e), CLOSED, &ended);
        if (e->known) {
            tp_driver_forget(fd);
        }
        forget_locked(e);
    }
    unlock_shard(s);
    close(fd);
    end_waits(&ended);
    /* Somebody may have come in between, for this file or for the next one that
     * got its number. The lock is not held while close takes its time. */
    ended.count = 0;
    lock_shard(fd);
    e = entry_at(s, fd);
    if (e != NULL && waiting(e) != 0) {
        verify_locked(e, fd, waiting(e), &ended);
    }
    unlock_shard(s);
    end_waits(&ended);
}

/* A registration that there is can only be of an earlier file. */
uint32_t
tp_fd_own(int fd)
{
    struct ended ended = {.count = 0};
    struct entry *e;
    uint32_t id = 0;
    if (fd < 0) {
        return 0;
    }
    struct shard *s = lock_shard(fd);
    if (entry_make(s, fd, &e) == 0) {
        take_locked(e, waiting(e), CLOSED, &ended);
        forget_locked(e);
        e->own_count += e->own_count == UINT32_MAX ? 2 : 1;
        id = e->own_id = e->own_count;
    }
    unlock_shard(s);
    end_waits(&ended);
    return id;
}

void
tp_fds_fini(void)
{
    for (struct shard *s = shards; s < shards + SHARDS; s++) {
        tp_mutex_lock(&s->lock, TP_RANK_IO);
        for (size_t c = 0; c < s->chunk_count; c++) {
            tp_free(s->chunks[c]);
        }
        tp_free(s->chunks);
        s->chunks = NULL;
        s->chunk_count = 0;
        unlock_shard(s);
    }
}

void
tp_fds_count(size_t *out_known, size_t *out_waits)
{
    *out_known = *out_waits = 0;
    for (struct shard *s = shards; s < shards + SHARDS; s++) {
        tp_mutex_lock(&s->lock, TP_RANK_IO);
        for (size_t c = 0; c < s->chunk_count; c++) {
            for (size_t i = 0; s->chunks[c] != NULL && i < CHUNK; i++) {
                const struct entry *e = &s->chunks[c][i];
                *out_known += e->known;
                *out_waits += e->waiter[TP_FD_READ] != NULL;
                *out_waits += e->waiter[TP_FD_WRITE] != NULL;
            }
        }
        unlock_shard(s);
    }
}

/* -- an actor's waits ------------------------------------------------------ */

/* An event has ended a wait that nobody comes back from. There may be no other
 * one, so it is for the next who waits. */
static void
pass_on_locked(struct entry *e, enum tp_fd_dir dir, struct ended *out)
{
    if (e->own_id != 0) {
        e->ready |= (uint8_t)(HAS(dir) & ~waiting(e));
        take_locked(e, HAS(dir), FIRED, out);
    }
}

static void
leave_locked(struct entry *e, const struct fd_wait *w, bool last)
{
    e->waiter[w->dir] = NULL;
    if (last && waiting(e) == 0 && e->own_id == 0) {
        tp_driver_forget(w->fd);
        forget_locked(e);
    }
}

/* Out of its entry, if it is there still. last: it was for nothing, and shall
 * leave nothing in the set. */
static enum wait_state
call_off(struct fd_wait *w, bool last)
{
    struct ended ended = {.count = 0};
    struct shard *s = lock_shard(w->fd);
    struct entry *e = entry_at(s, w->fd);
    enum wait_state state = w->state;
    if (state == WAITING) {
        leave_locked(e, w, last);
    } else if (state == FIRED && last) {
        pass_on_locked(e, w->dir, &ended);
    }
    unlock_shard(s);
    end_waits(&ended);
    if (state == WAITING) {
        tp_external_end();
    }
    return state;
}

static void
free_list(struct fd_wait *w)
{
    while (w != NULL) {
        struct fd_wait *next = w->next;
        tp_free(w);
        w = next;
    }
}

/* The actor ends. */
static void
release(struct tp_resource *r)
{
    struct tp_fd_waits *waits =
        tp_container_of(r, struct tp_fd_waits, resource);
    for (struct fd_wait *w = waits->armed; w != NULL; w = w->next) {
        call_off(w, true);
    }
    free_list(waits->armed);
    free_list(waits->spare);
    waits->owner->fd_waits = NULL;
    tp_free(waits);
}

static struct tp_fd_waits *
waits_of(struct tp_actor *self)
{
    if (self->fd_waits == NULL) {
        struct tp_fd_waits *waits = tp_calloc(1, sizeof *waits);
        if (waits == NULL) {
            return NULL;
        }
        waits->owner = self;
        waits->resource.release = release;
        tp_list_init(&waits->resource.node);
        tp_resource_add(self, &waits->resource);
        self->fd_waits = waits;
    }
    return self->fd_waits;
}

/* A wait that is ready to be armed, on the list of the armed; or NULL. */
static struct fd_wait *
wait_new(struct tp_actor *self, int fd, uint32_t id, enum tp_fd_dir dir)
{
    struct tp_fd_waits *waits = waits_of(self);
    struct fd_wait *w;
    if (waits == NULL) {
        return NULL;
    }
    if (waits->spare != NULL) {
        w = waits->spare;
        waits->spare = w->next;
    } else if ((w = tp_malloc(sizeof *w)) == NULL) {
        return NULL;
    }
    *w = (struct fd_wait){.next = waits->armed,
                          .pid = self->pid,
                          .epoch = tp_wait_epoch(self->slot),
                          .fd = fd,
                          .id = id,
                          .dir = dir,
                          .state = WAITING};
    waits->armed = w;
    return w;
}

static void
wait_put(struct tp_fd_waits *waits, struct fd_wait *w)
{
    struct fd_wait **link = &waits->armed;
    while (*link != w) {
        link = &(*link)->next;
    }
    *link = w->next;
    w->next = waits->spare;
    waits->spare = w;
}

/* -- arm ------------------------------------------------------------------- */

/* Epoll refuses files that are always ready. Of those devices are as they say,
 * while who waits for a regular file means something else. */
static int
refused(int fd)
{
    struct stat st;
    if (fstat(fd, &st) == 0 && S_ISCHR(st.st_mode)) {
        return 1;
    }
    errno = EPERM;
    return TROUPE_EINVAL;
}

/* 0 or an errno; EBUSY: another waits there. */
static int
put_any_locked(struct entry *e, struct fd_wait *w, struct ended *out)
{
    unsigned dirs = waiting(e) | HAS(w->dir);
    int rc = verify_locked(e, w->fd, dirs, out);
    if (rc == 0 && e->waiter[w->dir] != NULL) {
        rc = EBUSY;
    }
    if (rc == 0 && !e->known) {
        rc = watch_locked(e, w->fd, HAS(w->dir));
    }
    return rc;
}

/* The same; EBADF: it was closed; EALREADY: there was an event. */
static int
put_own_locked(struct entry *e, const struct fd_wait *w)
{
    unsigned dir = HAS(w->dir);
    if (e->own_id != w->id) {
        return EBADF;
    }
    if (((e->ready | e->ended) & dir) != 0) {
        e->ready &= (uint8_t)~dir;
        return EALREADY;
    }
    if (e->waiter[w->dir] != NULL) {
        return EBUSY;
    }
    return (e->watched & dir) != 0 ? 0 : watch_locked(e, w->fd, dir);
}

static int
put_locked(struct entry *e, struct fd_wait *w, struct ended *out)
{
    int rc = w->id == 0 ? put_any_locked(e, w, out) : put_own_locked(e, w);
    if (rc == 0) {
        e->waiter[w->dir] = w;
    }
    return rc;
}

/* The answer for errno err of put_locked. */
static int
answer(const struct fd_wait *w, int err)
{
    errno = err;
    switch (err) {
    case 0:
        return 0;
    case EALREADY:
        return 1;
    case EBUSY:
        return TROUPE_EBUSY;
    case EBADF:
        return w->id == 0 ? TROUPE_EINVAL : TROUPE_ECLOSED;
    case EPERM:
        return refused(w->fd);
    default:
        return tp_driver_error();
    }
}

/* As tp_fd_arm, w is taken back by the caller unless it is 0. */
static int
put(struct fd_wait *w)
{
    struct ended ended = {.count = 0};
    struct entry *e;
    struct shard *s = lock_shard(w->fd);
    int rc = entry_make(s, w->fd, &e);
    int err = rc == 0 ? put_locked(e, w, &ended) : errno;
    unlock_shard(s);
    end_waits(&ended);
    return rc == TROUPE_ENOMEM ? rc : answer(w, err);
}

/* As tp_fd_arm, but does not look whether fd is ready. id: as tp_fd_own, 0 for
 * any fd. */
static int
arm(struct tp_actor *self, int fd, uint32_t id, enum tp_fd_dir dir)
{
    if (fd < 0) {
        errno = EBADF;
        return TROUPE_EINVAL;
    }
    int rc = tp_driver_start();
    if (rc != 0) {
        return rc;
    }
    struct fd_wait *w = wait_new(self, fd, id, dir);
    if (w == NULL) {
        return TROUPE_ENOMEM;
    }
    tp_external_begin();
    rc = put(w);
    if (rc != 0) {
        int err = errno;
        wait_put(self->fd_waits, w);
        tp_external_end();
        errno = err;
    }
    return rc;
}

/* Takes back what is armed; WAITING also if nothing is. */
static enum wait_state
take_back(struct tp_actor *self, int fd, enum tp_fd_dir dir, bool last)
{
    struct fd_wait *w = self->fd_waits == NULL ? NULL : self->fd_waits->armed;
    while (w != NULL && (w->fd != fd || w->dir != dir)) {
        w = w->next;
    }
    if (w == NULL) {
        return WAITING;
    }
    enum wait_state state = call_off(w, last);
    wait_put(self->fd_waits, w);
    return state;
}

int
tp_fd_poll(int fd, enum tp_fd_dir dir)
{
    struct stat st;
    if (fstat(fd, &st) < 0) {
        return TROUPE_EINVAL;
    }
    if (S_ISREG(st.st_mode) || S_ISDIR(st.st_mode) || S_ISBLK(st.st_mode)) {
        errno = EPERM;
        return TROUPE_EINVAL;
    }
    int events = tp_poll_now(fd, dir == TP_FD_READ ? POLLIN : POLLOUT);
    if (events < 0) {
        return tp_driver_error();
    }
    return events != 0;
}

int
tp_fd_arm(struct tp_actor *self, int fd, enum tp_fd_dir dir)
{
    if (self->finishing) {
        return TROUPE_EINVAL;
    }
    int rc = tp_fd_poll(fd, dir);
    return rc != 0 ? rc : arm(self, fd, 0, dir);
}

bool
tp_fd_disarm(struct tp_actor *self, int fd, enum tp_fd_dir dir)
{
    return take_back(self, fd, dir, false) != WAITING;
}

/* One park. 0: go on waiting; 1: ready; or an error. */
static int
wait_once(struct tp_actor *self, int fd, uint32_t id, enum tp_fd_dir dir,
          uint64_t deadline_ns)
{
    int rc = arm(self, fd, id, dir);
    if (rc != 0) {
        return rc;
    }
    rc = tp_actor_park(self, deadline_ns);
    enum wait_state state = take_back(self, fd, dir, rc != 0);
    if (rc != 0) {
        return rc;
    }
    return state == CLOSED ? TROUPE_ECLOSED : state == FIRED;
}

/* Under the lock, since a close begins there: the file is the one with that id.
 */
static int
poll_own(int fd, uint32_t id, enum tp_fd_dir dir)
{
    struct shard *s = lock_shard(fd);
    struct entry *e = entry_at(s, fd);
    bool open = e != NULL && e->own_id == id;
    int rc = open ? tp_fd_poll(fd, dir) : TROUPE_ECLOSED;
    unlock_shard(s);
    return rc;
}

/* The deadline has passed. */
static int
last_look(int fd, uint32_t id, enum tp_fd_dir dir)
{
    int rc = id == 0 ? tp_fd_poll(fd, dir) : poll_own(fd, id, dir);
    return rc == 0 ? TROUPE_ETIMEOUT : rc;
}

int
tp_fd_wait_own(struct tp_actor *self, int fd, uint32_t id, enum tp_fd_dir dir,
               uint64_t deadline_ns)
{
    int rc;
    if (self->finishing) {
        return TROUPE_EINVAL;
    }
    do {
        if (deadline_ns != TP_NEVER && tp_now_ns() >= deadline_ns) {
            rc = last_look(fd, id, dir);
        } else {
            rc = wait_once(self, fd, id, dir, deadline_ns);
        }
    } while (rc == 0);
    return rc == 1 ? 0 : rc;
}

int
tp_fd_wait(struct tp_actor *self, int fd, enum tp_fd_dir dir,
           uint64_t deadline_ns)
{
    return tp_fd_wait_own(self, fd, 0, dir, deadline_ns);
}
