/*
 * slot.c - the slot table. See slot.h.
 *
 * Idea:  freed slots queue up first in, first out, and a fresh slot is taken
 *        while fewer than FREE_MIN wait, so that a generation lasts and the
 *        16 generation bits in the inbox word cannot come round while a
 *        sender is between two of its steps.
 * Tests: spec/unit/slot_test.c
 */
#define _GNU_SOURCE
#include "sched/slot.h"

#include <string.h>
#include <sys/mman.h>

#define FREE_MIN 1024

struct tp_slot_table tp_slots;

int
tp_slots_init(uint32_t capacity)
{
    memset(&tp_slots, 0, sizeof tp_slots);
    if (capacity == 0 || capacity > TP_MAX_ACTORS) {
        return TROUPE_EINVAL;
    }
    tp_slots.base = tp_mmap(sizeof(struct tp_slot) * (size_t)capacity,
                            PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE);
    if (tp_slots.base == NULL) {
        return TROUPE_ENOMEM;
    }
    tp_slots.capacity = capacity;
    return 0;
}

void
tp_slots_fini(void)
{
    if (tp_slots.base != NULL) {
        tp_munmap(tp_slots.base,
                  sizeof(struct tp_slot) * (size_t)tp_slots.capacity);
        tp_slots.base = NULL;
    }
    /* relaxed: no other thread is left. */
    atomic_store_explicit(&tp_slots.used, 0, memory_order_relaxed);
}

static struct tp_slot *
take_fresh_locked(void)
{
    /* relaxed: written under the lock that we hold. */
    uint32_t used = atomic_load_explicit(&tp_slots.used, memory_order_relaxed);
    if (used == tp_slots.capacity) {
        return NULL;
    }
    struct tp_slot *s = &tp_slots.base[used];
    /* relaxed: nobody knows this slot yet. */
    atomic_store_explicit(&s->state, 1ull << TP_STATE_GEN_SHIFT,
                          memory_order_relaxed);
    /* relaxed: see tp_slot_at. */
    atomic_store_explicit(&tp_slots.used, used + 1, memory_order_relaxed);
    return s;
}

static struct tp_slot *
take_freed_locked(void)
{
    struct tp_runq_node *n = tp_slots.free_head;
    if (n == NULL) {
        return NULL;
    }
    tp_slots.free_head = n->next;
    tp_slots.free_count--;
    return tp_container_of(n, struct tp_slot, qnode);
}

struct tp_slot *
tp_slot_alloc(void)
{
    struct tp_slot *s = NULL;
    tp_mutex_lock(&tp_slots.lock, TP_RANK_FREELIST);
    if (tp_slots.free_count < FREE_MIN) {
        s = take_fresh_locked();
    }
    if (s == NULL) {
        s = take_freed_locked();
    }
    if (s == NULL) {
        s = take_fresh_locked();
    }
    tp_mutex_unlock(&tp_slots.lock, TP_RANK_FREELIST);
    return s;
}

uint32_t
tp_slots_used(void)
{
    tp_mutex_lock(&tp_slots.lock, TP_RANK_FREELIST);
    /* relaxed: written under the lock that we hold. */
    uint32_t used = atomic_load_explicit(&tp_slots.used, memory_order_relaxed);
    tp_mutex_unlock(&tp_slots.lock, TP_RANK_FREELIST);
    return used;
}

void
tp_slot_free(struct tp_slot *s)
{
    /* relaxed: only the owner changes the word of a slot that is done. */
    uint64_t word = atomic_load_explicit(&s->state, memory_order_relaxed);
    uint32_t gen = (tp_state_gen(word) + 1) & TP_GEN_MASK;
    if (gen == 0) {
        gen = 1; /* pid 0 stays nobody */
    }
    /* relaxed: the free list's lock orders this before the next owner; a late
     * waker sees either word and fails with both. */
    atomic_store_explicit(&s->state, (uint64_t)gen << TP_STATE_GEN_SHIFT,
                          memory_order_relaxed);
    tp_mutex_lock(&tp_slots.lock, TP_RANK_FREELIST);
    s->qnode.next = NULL;
    if (tp_slots.free_head == NULL) {
        tp_slots.free_head = &s->qnode;
    } else {
        tp_slots.free_tail->next = &s->qnode;
    }
    tp_slots.free_tail = &s->qnode;
    tp_slots.free_count++;
    tp_mutex_unlock(&tp_slots.lock, TP_RANK_FREELIST);
}

bool
tp_pid_was_issued(troupe_pid pid)
{
    if (pid >> (TP_PID_INDEX_BITS + TP_PID_GEN_BITS) != 0) {
        return false;
    }
    struct tp_slot *s = tp_slot_at(pid);
    uint32_t gen = tp_pid_gen(pid);
    if (s == NULL || gen == 0) {
        return false;
    }
    /* relaxed: a pid reached this thread after its generation was set. */
    uint64_t word = atomic_load_explicit(&s->state, memory_order_relaxed);
    /* Vacant: the generation is the next actor's, which is not born yet. */
    return tp_state_of(word) == TP_VACANT ? gen < tp_state_gen(word)
                                          : gen <= tp_state_gen(word);
}
