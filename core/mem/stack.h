/*
 * stack.h - the stacks that actors run on.
 *
 * Idea:     default-shaped stacks are carved from large mappings, each above
 *           a guard that faults, and are reused last in, first out. Any other
 *           shape has a mapping of its own.
 * Threads:  any. A thread between tp_stack_thread_begin and _end keeps a few
 *           free stacks to itself.
 * Locks:    TP_RANK_STACK.
 * Parks:    never.
 * Tests:    spec/unit/stack_test.c
 */
#ifndef TP_MEM_STACK_H
#define TP_MEM_STACK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TP_STACK_RESERVE_DEFAULT ((size_t)256 << 10)
#define TP_STACK_GUARD_DEFAULT   ((size_t)256 << 10)

/* Kept resident, at most, when a stack is reused. */
#define TP_STACK_KEEP ((size_t)64 << 10)

/* The smallest dead span that is worth a system call. */
#define TP_STACK_SHRINK_MIN ((size_t)64 << 10)

/* No-access bytes below the guard of a custom-shaped stack. */
#define TP_STACK_GAP ((size_t)1 << 20)

struct tp_stack {
    char *lo;       /* lowest usable byte */
    char *hi;       /* one past the highest; page-aligned, as lo */
    size_t guard;   /* bytes below lo that fault */
    size_t reserve; /* hi - lo */
    size_t gap;     /* bytes below the guard that fault; 0: from the pool */
    size_t lent;    /* bytes right below lo that do not fault; see lend */
};

/* How the guard of a pooled stack is made. */
enum tp_stack_guard {
    TP_STACK_GUARD_AUTO,    /* ask the kernel, once, in tp_stacks_init */
    TP_STACK_GUARD_MADVISE, /* page table markers, Linux 6.13 and later */
    TP_STACK_GUARD_MPROTECT /* a mapping each: at most vm.max_map_count / 2 */
};

struct tp_stack_stats {
    size_t mapped; /* pooled shape: stacks that the mappings have room for */
    size_t mapped_bytes; /* pooled shape: address space of those mappings */
    size_t live;         /* handed out now, custom shapes included */
    size_t pooled;       /* free for reuse, thread caches included */
    size_t custom;       /* handed out now with a shape of their own */
};

/*
 * Set the default shape; 0 means the constants above. Both are rounded up to
 * pages. Once, before any other call; again after tp_stacks_fini.
 * TROUPE_ENOMEM: out of memory, or the sizes are beyond the address space.
 */
int tp_stacks_init(size_t reserve, size_t guard);

/* Unmap all pooled stacks. None is in use, and no thread has a cache. */
void tp_stacks_fini(void);

/* For tests: what the next tp_stacks_init decides. */
void tp_stacks_force_guard(enum tp_stack_guard how);

/* What it has decided: MADVISE or MPROTECT. */
enum tp_stack_guard tp_stacks_guard(void);

/*
 * A stack for the caller, returned with tp_stack_put. 0 means the default
 * size; sizes are rounded up to pages; equal to the default shape means
 * pooled. TROUPE_ENOMEM: out of memory, or sizes beyond the address space.
 * TROUPE_ELIMIT: the system's limit of mappings (vm.max_map_count).
 */
int tp_stack_get(size_t reserve, size_t guard, struct tp_stack *out);

/*
 * Give a stack back; nobody runs on it. low_water is the lowest sp ever seen
 * on it, NULL when not known: a pooled stack that went deeper than
 * TP_STACK_KEEP loses what lies below that. Zeroes s. May be called with *s
 * zero already.
 */
void tp_stack_put(struct tp_stack *s, void *low_water);

/*
 * Of a suspended fiber at sp: tell the kernel that what lies deeper than a page
 * below sp is not needed, when at least TP_STACK_SHRINK_MIN of that is above
 * low_water. Returns whether it did; then low_water starts anew.
 */
bool tp_stack_shrink(struct tp_stack *s, void *low_water, void *sp);

/* The most that is lent of a guard. */
#define TP_STACK_LEND ((size_t)64 << 10)

/*
 * Make the upper half of the guard, TP_STACK_LEND at most, usable until the
 * stack is put back, once, if addr lies in it. Async-signal-safe.
 */
bool tp_stack_lend(struct tp_stack *s, const void *addr);

/* Begin and end this thread's cache. end before the thread ends. */
void tp_stack_thread_begin(void);
void tp_stack_thread_end(void);

void tp_stacks_stats(struct tp_stack_stats *out);

/* Has an access to addr overrun s? Async-signal-safe. */
static inline bool
tp_stack_is_overrun(const struct tp_stack *s, const void *addr)
{
    return (uintptr_t)s->lo - (uintptr_t)addr - 1 < s->guard + s->gap;
}

#endif
