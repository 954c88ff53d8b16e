/*
 * message.c - the memory of one message.
 *
 * Idea:     six size classes, 64 to 2,048 bytes with the header, each with a
 *           magazine per thread and a shared depot (mem/magazine.h): sender
 *           and receiver on two threads pay one lock per batch of 64. What the
 *           depot does not take, and larger messages, go to malloc.
 * Threads:  any. The thread-local magazines are read only inside functions
 *           that are not inlined and do not switch, so a green stack may
 *           change its thread between two calls.
 * Locks:    TP_RANK_SLAB, one mutex per class; no malloc under it.
 * Ordering: MSG-1, MSG-2.
 * Memory:   as in message.h. At most 64 batches per class stay in the depot
 *           and two per thread.
 * Parks:    never.
 * Fails:    tp_msg_new: NULL.
 * Rejected: sending each block home to the thread that made it - a third party
 *           to synchronise with, for nothing that a depot does not give.
 * Tests:    spec/unit/message_test.c
 */
#include "actor/message.h"

#include "mem/magazine.h"

#include <pthread.h>
#include <string.h>

#define CLASSES       6
#define CLASS_MIN     64u
#define CLASS_MAX     (CLASS_MIN << (CLASSES - 1))
#define NO_CLASS      0xff
#define DEPOT_BATCHES 64

_Static_assert(sizeof(struct tp_mag_item) <= offsetof(struct tp_msg, size),
               "a free message keeps its class");

/* Any thread, atomic; set once at start. */
static _Atomic(void (*)(struct tp_msg *)) drop_hook, retain_hook;

/* What this thread is about to drop, while it drops another one. */
static _Thread_local struct {
    bool busy;
    struct tp_msg *next;
} dropping __attribute__((tls_model("initial-exec")));

void
tp_msg_set_drop(void (*drop)(struct tp_msg *))
{
    /* MSG-1 release: publishes what the hook's owner set up before. Partner:
     * tp_msg_drop. */
    atomic_store_explicit(&drop_hook, drop, memory_order_release);
}

void
tp_msg_set_retain(void (*retain)(struct tp_msg *))
{
    /* MSG-2 release: as MSG-1. Partner: tp_msg_copy. */
    atomic_store_explicit(&retain_hook, retain, memory_order_release);
}

static void
drop_one(struct tp_msg *m)
{
    /* MSG-1 acquire: sees the set-up behind the hook. Partner:
     * tp_msg_set_drop. */
    void (*drop)(struct tp_msg *) =
        atomic_load_explicit(&drop_hook, memory_order_acquire);
    if (drop != NULL) {
        drop(m);
    }
    tp_msg_free(m);
}

/* Not by recursion: the depth is the user's. Nobody switches in here. */
static __attribute__((noinline)) void
drop_with_handles(struct tp_msg *m)
{
    if (dropping.busy) {
        m->next = dropping.next;
        dropping.next = m;
        return;
    }
    dropping.busy = true;
    do {
        drop_one(m);
        m = dropping.next;
        if (m != NULL) {
            dropping.next = m->next;
        }
    } while (m != NULL);
    dropping.busy = false;
}

void
tp_msg_drop(struct tp_msg *m)
{
    if (m->flags & TP_MSG_HAS_HANDLES) {
        drop_with_handles(m);
    } else {
        tp_msg_free(m);
    }
}

void
tp_msg_unsend(struct tp_msg *m)
{
    m->flags |= TP_MSG_UNSENT;
    tp_msg_drop(m);
}

struct tp_msg *
tp_msg_copy(const struct tp_msg *m)
{
    struct tp_msg *copy = tp_msg_new(m->size);
    if (copy == NULL) {
        return NULL;
    }
    memcpy(copy->data, m->data, m->size);
    copy->from = m->from;
    if (m->flags & TP_MSG_HAS_OBJECTS) {
        copy->flags = TP_MSG_HAS_HANDLES | TP_MSG_HAS_OBJECTS;
        /* MSG-2 acquire: as in drop_one. Partner: tp_msg_set_retain. */
        atomic_load_explicit(&retain_hook, memory_order_acquire)(copy);
    }
    return copy;
}

static inline struct tp_msg *
msg_init(void *p, size_t size, unsigned size_class)
{
    struct tp_msg *m = p;
    if (TP_LIKELY(m != NULL)) {
        m->next = NULL;
        m->from = 0;
        m->ref = 0;
        m->size = (uint32_t)size;
        m->kind = 0;
        m->flags = 0;
        m->size_class = (uint8_t)size_class;
    }
    return m;
}

static struct tp_msg *
new_plain(size_t size)
{
    return msg_init(tp_malloc(sizeof(struct tp_msg) + size), size, NO_CLASS);
}

#if defined(TP_ASAN) || defined(TP_TSAN)

/* A sanitizer must see each message's birth and death. */
struct tp_msg *
tp_msg_new(size_t size)
{
    return size > UINT32_MAX ? NULL : new_plain(size);
}

void
tp_msg_free(struct tp_msg *m)
{
    tp_free(m);
}

void
tp_msg_thread_flush(void)
{
}

void
tp_msg_trim(void)
{
}

#else

/* A batch is 32 KiB at most. */
static const uint32_t batch_of[CLASSES] = {64, 64, 64, 64, 32, 16};

#define DEPOT(batch)                                                           \
    {                                                                          \
        .max_items = (size_t)DEPOT_BATCHES * (batch)                           \
    }

static struct tp_depot depots[CLASSES] = {DEPOT(64), DEPOT(64), DEPOT(64),
                                          DEPOT(64), DEPOT(32), DEPOT(16)};

static _Thread_local struct tp_mag mags[CLASSES]
    __attribute__((tls_model("initial-exec")));

static pthread_key_t exit_key;
static pthread_once_t exit_once = PTHREAD_ONCE_INIT;

static void
flush_at_exit(void *unused)
{
    (void)unused;
    tp_msg_thread_flush();
}

static void
make_exit_key(void)
{
    tp_check(pthread_key_create(&exit_key, flush_at_exit) == 0);
}

static void
register_thread(struct tp_mag *mag, unsigned c)
{
    pthread_once(&exit_once, make_exit_key);
    pthread_setspecific(exit_key, &exit_key);
    mag->room = batch_of[c];
}

static void
free_batch(struct tp_mag_item *it)
{
    while (it != NULL) {
        struct tp_mag_item *next = it->next;
        tp_free(it);
        it = next;
    }
}

static void
give_batch(unsigned c, struct tp_mag_item *batch)
{
    if (!tp_depot_put(&depots[c], batch)) {
        free_batch(batch);
    }
}

/* The loaded list is empty: the spare batch, one from the depot, or malloc. */
static __attribute__((noinline)) void *
refill(struct tp_mag *mag, unsigned c)
{
    struct tp_mag_item *batch = mag->spare;
    mag->spare = NULL;
    if (batch == NULL) {
        if (mag->room == 0) {
            register_thread(mag, c);
        }
        batch = tp_depot_take(&depots[c]);
    }
    if (batch == NULL) {
        return tp_malloc((size_t)CLASS_MIN << c);
    }
    tp_mag_load(mag, batch, batch_of[c]);
    return tp_mag_pop(mag);
}

/* The loaded list is full, or this is the thread's first put. */
static __attribute__((noinline)) void
unload(struct tp_mag *mag, unsigned c)
{
    struct tp_mag_item *old = mag->spare;
    if (!tp_mag_close(mag, batch_of[c], &mag->spare)) {
        register_thread(mag, c);
    } else if (old != NULL) {
        give_batch(c, old);
    }
}

/* total <= CLASS_MAX */
static inline unsigned
class_of(size_t total)
{
    return 58u - (unsigned)__builtin_clzll((total - 1) | (CLASS_MIN - 1));
}

__attribute__((noinline)) struct tp_msg *
tp_msg_new(size_t size)
{
    if (TP_UNLIKELY(size > CLASS_MAX - sizeof(struct tp_msg))) {
        return size > UINT32_MAX ? NULL : new_plain(size);
    }
    unsigned c = class_of(sizeof(struct tp_msg) + size);
    void *p = tp_mag_pop(&mags[c]);
    if (TP_UNLIKELY(p == NULL)) {
        p = refill(&mags[c], c);
    }
    return msg_init(p, size, c);
}

__attribute__((noinline)) void
tp_msg_free(struct tp_msg *m)
{
    unsigned c = m->size_class;
    if (TP_UNLIKELY(c == NO_CLASS)) {
        tp_free(m);
        return;
    }
    tp_assert(c < CLASSES);
    while (TP_UNLIKELY(!tp_mag_push(&mags[c], (struct tp_mag_item *)m))) {
        unload(&mags[c], c);
    }
}

__attribute__((noinline)) void
tp_msg_thread_flush(void)
{
    for (unsigned c = 0; c < CLASSES; c++) {
        struct tp_mag *mag = &mags[c];
        struct tp_mag_item *batch;
        if (tp_mag_close(mag, batch_of[c], &batch)) {
            give_batch(c, batch);
        }
        if (mag->spare != NULL) {
            give_batch(c, mag->spare);
        }
        *mag = (struct tp_mag){0};
    }
}

void
tp_msg_trim(void)
{
    tp_msg_thread_flush();
    for (unsigned c = 0; c < CLASSES; c++) {
        struct tp_mag_item *batch;
        while ((batch = tp_depot_take(&depots[c])) != NULL) {
            free_batch(batch);
        }
    }
}

#endif
