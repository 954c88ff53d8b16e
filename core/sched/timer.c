/*
 * timer.c - deadlines. See timer.h.
 *
 * Ordering, wait entries: the owner stores wait_deadline, then loads armed;
 * the holder of the lock stores armed, then loads wait_deadline (TMR-1, all
 * seq_cst). So either the owner sees that its entry has left the heap and puts
 * it back, or the other side sees the new deadline and does. Both may happen;
 * the lock makes the second one find the entry in place.
 *
 * Tests: spec/unit/timer_test.c
 */
#include "sched/timer.h"

#include "sched/worker.h"

#include <string.h>

#define ARITY         4u
#define FIRE_BATCH    64
#define FIRE_MAX      256 /* seen by a call, so that a crowd keeps nobody waiting */
#define WAIT_BLOCK    100 /* wait entries made at once, 4 KB */
#define ID_INDEX_BITS 24
#define ID_GEN_MASK   ((1u << 28) - 1)

struct id_entry {
    struct tp_event *event; /* NULL: free */
    uint32_t gen;
    uint32_t next_free; /* index + 1 */
};

/* Has all that sifting looks at: the nodes are in their actors' stacks, each in
 * a page that was not touched since its owner fell asleep. */
struct item {
    uint64_t key; /* the node's */
    struct tp_timer_node *node;
    uint32_t seat; /* the node's */
};

/* Never freed before the end: an actor's first deadline and its last moment
 * come in crowds, and malloc would have them all at one of its locks. */
struct wait_block {
    struct wait_block *next;
    struct tp_wait_timer waits[WAIT_BLOCK];
};

/* All under lock, but for tp_timer_earliest. */
static struct {
    struct tp_mutex lock;
    struct item *heap;
    uint32_t count, capacity;
    /* By seat: index in the heap; of a free one: the next free seat, or 0. */
    uint32_t *seats;
    uint32_t seat_count, seat_capacity, seat_free;
    struct wait_block *wait_blocks;
    struct tp_wait_timer *wait_free;
    struct id_entry *ids;
    uint32_t id_count, id_capacity, id_free;
} timers;

_Atomic uint64_t tp_timer_earliest = TP_NEVER;
void (*tp_timer_on_earlier)(uint64_t deadline_ns);

/* -- heap ---------------------------------------------------------------- */

static void
place(uint32_t i, const struct item *it)
{
    timers.heap[i] = *it;
    timers.seats[it->seat] = i;
}

/* it is a copy: its place in the heap is free. */
static void
sift_up(uint32_t i, const struct item *it)
{
    while (i > 0) {
        uint32_t parent = (i - 1) / ARITY;
        if (timers.heap[parent].key <= it->key) {
            break;
        }
        place(i, &timers.heap[parent]);
        i = parent;
    }
    place(i, it);
}

static void
sift_down(uint32_t i, const struct item *it)
{
    for (;;) {
        uint32_t first = i * ARITY + 1, best = i;
        uint64_t key = it->key;
        for (uint32_t c = first; c < first + ARITY && c < timers.count; c++) {
            if (timers.heap[c].key < key) {
                best = c;
                key = timers.heap[c].key;
            }
        }
        if (best == i) {
            break;
        }
        place(i, &timers.heap[best]);
        i = best;
    }
    place(i, it);
}

static int
grow(void **array, uint32_t *capacity, size_t item)
{
    uint32_t want = *capacity == 0 ? 64 : *capacity * 2;
    void *p = tp_realloc(*array, want * item);
    if (p == NULL) {
        return TROUPE_ENOMEM;
    }
    *array = p;
    *capacity = want;
    return 0;
}

/* Seat 0 stands for none. heap_reserve has made room for one more. */
static uint32_t
seat_take(void)
{
    uint32_t seat = timers.seat_free;
    if (seat == 0) {
        return ++timers.seat_count;
    }
    timers.seat_free = timers.seats[seat];
    return seat;
}

static void
seat_leave(uint32_t seat)
{
    timers.seats[seat] = timers.seat_free;
    timers.seat_free = seat;
}

static void
heap_remove(struct tp_timer_node *n)
{
    uint32_t i = timers.seats[n->seat];
    struct item last = timers.heap[--timers.count];
    seat_leave(n->seat);
    n->seat = 0;
    if (last.node == n) {
        return;
    }
    if (i > 0 && timers.heap[(i - 1) / ARITY].key > last.key) {
        sift_up(i, &last);
    } else {
        sift_down(i, &last);
    }
}

/* Room for one more entry, so that heap_insert cannot fail. */
static int
heap_reserve(void)
{
    int rc = 0;
    if (timers.count == timers.capacity) {
        rc = grow((void **)&timers.heap, &timers.capacity, sizeof *timers.heap);
    }
    if (rc == 0 && timers.seat_free == 0 &&
        timers.seat_count + 1 >= timers.seat_capacity) {
        rc = grow((void **)&timers.seats, &timers.seat_capacity,
                  sizeof *timers.seats);
    }
    return rc;
}

static void
heap_insert(struct tp_timer_node *n, uint64_t key)
{
    n->key = key;
    n->seat = seat_take();
    struct item it = {key, n, n->seat};
    sift_up(timers.count++, &it);
}

static void
publish_earliest(void)
{
    uint64_t key = timers.count == 0 ? TP_NEVER : timers.heap[0].key;
    /* IDLE-2 seq_cst: the deadline is stored before the timekeeper is looked
     * up (tp_timer_on_earlier). Partner: a parker names itself timekeeper,
     * then reads this. */
    atomic_store_explicit(&tp_timer_earliest, key, memory_order_seq_cst);
}

static void
lock(void)
{
    tp_mutex_lock(&timers.lock, TP_RANK_TIMER);
}

/* Unlocks; tells the scheduler when the earliest deadline has moved up. */
static void
unlock_and_tell(uint64_t before)
{
    uint64_t now_earliest = timers.count == 0 ? TP_NEVER : timers.heap[0].key;
    bool earlier = now_earliest < before;
    if (now_earliest != before) {
        publish_earliest();
    }
    tp_mutex_unlock(&timers.lock, TP_RANK_TIMER);
    if (earlier && tp_timer_on_earlier != NULL) {
        tp_timer_on_earlier(now_earliest);
    }
}

static uint64_t
head_key_locked(void)
{
    return timers.count == 0 ? TP_NEVER : timers.heap[0].key;
}

/* -- waits --------------------------------------------------------------- */

/* None is free. */
static int
make_waits_locked(void)
{
    struct wait_block *b = tp_malloc(sizeof *b);
    if (b == NULL) {
        return TROUPE_ENOMEM;
    }
    b->next = timers.wait_blocks;
    timers.wait_blocks = b;
    for (unsigned i = WAIT_BLOCK; i-- > 0;) {
        b->waits[i].next_free = timers.wait_free;
        timers.wait_free = &b->waits[i];
    }
    return 0;
}

struct tp_wait_timer *
tp_wait_timer_new(struct tp_slot *slot)
{
    lock();
    struct tp_wait_timer *t = NULL;
    if (timers.wait_free != NULL || make_waits_locked() == 0) {
        t = timers.wait_free;
        timers.wait_free = t->next_free;
    }
    tp_mutex_unlock(&timers.lock, TP_RANK_TIMER);
    if (t != NULL) {
        memset(t, 0, sizeof *t);
        t->node.kind = TP_TIMER_WAIT;
        t->slot = slot;
        atomic_init(&t->armed, TP_NEVER);
        atomic_init(&t->wait_deadline, TP_NEVER);
    }
    return t;
}

static void
set_armed(struct tp_wait_timer *t, uint64_t key)
{
    /* TMR-1 seq_cst: stored before wait_deadline is read. Partner:
     * tp_wait_timer_set, which stores wait_deadline, then reads armed. */
    atomic_store_explicit(&t->armed, key, memory_order_seq_cst);
}

static int
wait_timer_insert(struct tp_wait_timer *t, uint64_t deadline_ns)
{
    lock();
    uint64_t before = head_key_locked();
    int rc = 0;
    if (t->node.seat != 0) {
        if (t->node.key > deadline_ns) {
            heap_remove(&t->node);
            heap_insert(&t->node, deadline_ns);
            set_armed(t, deadline_ns);
        }
    } else if ((rc = heap_reserve()) == 0) {
        heap_insert(&t->node, deadline_ns);
        set_armed(t, deadline_ns);
    }
    unlock_and_tell(before);
    return rc;
}

int
tp_wait_timer_set(struct tp_wait_timer *t, uint64_t deadline_ns)
{
    /* The usual case: no deadline, none before. One that is over may still
     * wake us once, too early. */
    if (deadline_ns == TP_NEVER) {
        /* relaxed: the owner alone writes it. */
        if (atomic_load_explicit(&t->wait_deadline, memory_order_relaxed) !=
            TP_NEVER) {
            /* relaxed: as above. */
            atomic_store_explicit(&t->wait_deadline, TP_NEVER,
                                  memory_order_relaxed);
        }
        return 0;
    }
    /* TMR-1 seq_cst: stored before armed is read. Partner: set_armed, then
     * wanted_deadline. A weaker order would let both sides rely on the other.
     */
    atomic_store_explicit(&t->wait_deadline, deadline_ns, memory_order_seq_cst);
    /* TMR-1 seq_cst: see above. */
    if (atomic_load_explicit(&t->armed, memory_order_seq_cst) <= deadline_ns) {
        return 0;
    }
    return wait_timer_insert(t, deadline_ns);
}

void
tp_wait_timer_free(struct tp_wait_timer *t)
{
    /* Not without the lock, by a look at armed: it is TP_NEVER for a moment
     * while the entry goes back into the heap (wait_came_up). */
    lock();
    uint64_t before = head_key_locked();
    if (t->node.seat != 0) {
        heap_remove(&t->node);
    }
    t->next_free = timers.wait_free;
    timers.wait_free = t;
    unlock_and_tell(before);
}

/* -- events -------------------------------------------------------------- */

static int
id_new(struct tp_event *e)
{
    uint32_t i;
    if (timers.id_free != 0) {
        i = timers.id_free - 1;
        timers.id_free = timers.ids[i].next_free;
    } else {
        if (timers.id_count == 1u << ID_INDEX_BITS ||
            (timers.id_count == timers.id_capacity &&
             grow((void **)&timers.ids, &timers.id_capacity,
                  sizeof *timers.ids) != 0)) {
            return TROUPE_ENOMEM;
        }
        i = timers.id_count++;
        timers.ids[i].gen = 1;
    }
    timers.ids[i].event = e;
    e->id = ((uint64_t)timers.ids[i].gen << ID_INDEX_BITS) | i;
    return 0;
}

static struct id_entry *
id_find(uint64_t id)
{
    uint32_t i = (uint32_t)id & ((1u << ID_INDEX_BITS) - 1);
    if (i >= timers.id_count || timers.ids[i].event == NULL ||
        timers.ids[i].gen != id >> ID_INDEX_BITS) {
        return NULL;
    }
    return &timers.ids[i];
}

static void
id_free(struct id_entry *entry)
{
    entry->event = NULL;
    entry->gen = (entry->gen & ID_GEN_MASK) == ID_GEN_MASK ? 1 : entry->gen + 1;
    entry->next_free = timers.id_free;
    timers.id_free = (uint32_t)(entry - timers.ids) + 1;
}

int
tp_event_start(struct tp_event *e, uint64_t deadline_ns, uint64_t *out_id)
{
    e->node.kind = TP_TIMER_EVENT;
    e->node.seat = 0;
    lock();
    uint64_t before = head_key_locked();
    int rc = heap_reserve();
    if (rc == 0) {
        rc = id_new(e);
    }
    if (rc == 0) {
        *out_id = e->id;
        heap_insert(&e->node, deadline_ns);
    }
    unlock_and_tell(before);
    return rc;
}

bool
tp_event_cancel(uint64_t id, struct tp_event **out_e)
{
    bool won = false;
    *out_e = NULL;
    lock();
    uint64_t before = head_key_locked();
    struct id_entry *entry = id_find(id);
    if (entry != NULL) {
        struct tp_event *e = entry->event;
        won = true;
        id_free(entry);
        heap_remove(&e->node);
        *out_e = e;
    }
    unlock_and_tell(before);
    return won;
}

/* -- firing -------------------------------------------------------------- */

struct due {
    struct tp_event *event; /* NULL: a wait */
    troupe_pid pid;
    uint32_t epoch;
};

static uint64_t
wanted_deadline(struct tp_wait_timer *t)
{
    /* TMR-1 seq_cst: read after armed was stored. Partner:
     * tp_wait_timer_set. */
    return atomic_load_explicit(&t->wait_deadline, memory_order_seq_cst);
}

/* A wait's entry came up at now_ns: back into the heap, or due, or nothing. */
static bool
wait_came_up(struct tp_wait_timer *t, uint64_t now_ns, struct due *d)
{
    heap_remove(&t->node);
    set_armed(t, TP_NEVER);
    uint64_t wanted = wanted_deadline(t);
    if (wanted == TP_NEVER) {
        return false;
    }
    if (wanted > now_ns) {
        heap_insert(&t->node, wanted); /* room: it has just left */
        set_armed(t, wanted);
        return false;
    }
    /* ST-1 acquire: the epoch is read after the deadline that belongs to it
     * or to an earlier wait; a mismatch can only wake a wait too early, and
     * waits look at the clock. Partner: tp_worker_slice, which moves the epoch on. */
    uint64_t word = atomic_load_explicit(&t->slot->state, memory_order_acquire);
    d->event = NULL;
    d->pid = tp_slot_pid(t->slot);
    d->epoch = tp_state_epoch(word);
    return true;
}

/*
 * An event with an interval fires here, under the lock, so that a cancel that
 * has returned is final; when it wants no more it is due to be dropped.
 */
static bool
event_came_up(struct tp_event *e, uint64_t now_ns, struct due *d, size_t *fired)
{
    heap_remove(&e->node);
    d->event = e;
    if (e->interval_ns != 0 && e->fire(e)) {
        uint64_t next = tp_sat_add(e->node.key, e->interval_ns);
        heap_insert(&e->node, next > now_ns ? next : now_ns + 1);
        ++*fired;
        return false;
    }
    id_free(id_find(e->id));
    return true;
}

/* The head is due. True: *d says what is left to do without the lock. Counts
 * what has been done here. */
static bool
came_up(struct tp_timer_node *n, uint64_t now_ns, struct due *d, size_t *fired)
{
    if (n->kind == TP_TIMER_WAIT) {
        return wait_came_up(tp_container_of(n, struct tp_wait_timer, node),
                            now_ns, d);
    }
    return event_came_up(tp_container_of(n, struct tp_event, node), now_ns, d,
                         fired);
}

static void
fire(struct due *d)
{
    if (d->event == NULL) {
        tp_unpark_at(d->pid, d->epoch);
    } else if (d->event->interval_ns == 0) {
        d->event->fire(d->event);
    } else {
        d->event->drop(d->event);
    }
}

size_t
tp_timers_run(uint64_t now_ns)
{
    size_t total = 0;
    uint32_t n, seen = 0;
    do {
        struct due due[FIRE_BATCH];
        n = 0;
        lock();
        uint64_t before = head_key_locked();
        for (; n < FIRE_BATCH && seen < FIRE_MAX && head_key_locked() <= now_ns;
             seen++) {
            n += came_up(timers.heap[0].node, now_ns, &due[n], &total);
        }
        unlock_and_tell(before);
        for (uint32_t i = 0; i < n; i++) {
            fire(&due[i]);
        }
        total += n;
    } while (n == FIRE_BATCH && seen < FIRE_MAX);
    return total;
}

/* -- start and end ------------------------------------------------------- */

int
tp_timers_init(void)
{
    memset(&timers, 0, sizeof timers);
    tp_timer_on_earlier = NULL;
    publish_earliest();
    return 0;
}

void
tp_timers_fini(void)
{
    for (uint32_t i = 0; i < timers.count; i++) {
        if (timers.heap[i].node->kind == TP_TIMER_EVENT) {
            struct tp_event *e =
                tp_container_of(timers.heap[i].node, struct tp_event, node);
            e->drop(e);
        }
    }
    while (timers.wait_blocks != NULL) {
        struct wait_block *b = timers.wait_blocks;
        timers.wait_blocks = b->next;
        tp_free(b);
    }
    tp_free(timers.heap);
    tp_free(timers.seats);
    tp_free(timers.ids);
    tp_timers_init();
}

static bool
node_matters(struct tp_timer_node *n)
{
    if (n->kind == TP_TIMER_WAIT) {
        return wanted_deadline(
                   tp_container_of(n, struct tp_wait_timer, node)) != TP_NEVER;
    }
    struct tp_event *e = tp_container_of(n, struct tp_event, node);
    return e->matters(e);
}

static void
prune_head(struct tp_event **dropped)
{
    struct tp_timer_node *n = timers.heap[0].node;
    heap_remove(n);
    if (n->kind == TP_TIMER_WAIT) {
        struct tp_wait_timer *t =
            tp_container_of(n, struct tp_wait_timer, node);
        set_armed(t, TP_NEVER);
        uint64_t wanted = wanted_deadline(t);
        if (wanted != TP_NEVER) { /* it has just begun, and relies on us */
            heap_insert(n, wanted);
            set_armed(t, wanted);
        }
        return;
    }
    struct tp_event *e = tp_container_of(n, struct tp_event, node);
    id_free(id_find(e->id));
    e->next_dropped = *dropped;
    *dropped = e;
}

bool
tp_timers_prune(void)
{
    lock();
    uint64_t before = head_key_locked();
    struct tp_event *dropped = NULL;
    while (timers.count > 0 && !node_matters(timers.heap[0].node)) {
        prune_head(&dropped);
    }
    bool left = timers.count > 0;
    unlock_and_tell(before);
    while (dropped != NULL) {
        struct tp_event *e = dropped;
        dropped = e->next_dropped;
        e->drop(e);
    }
    return left;
}
