/*
 * message.h - the memory of one message.
 *
 * Threads: any.
 * Memory:  new hands a message out; free or drop takes it back, on any thread.
 * Parks:   never.
 * Tests:   spec/unit/message_test.c
 */
#ifndef TP_ACTOR_MESSAGE_H
#define TP_ACTOR_MESSAGE_H

#include <stddef.h>
#include <stdint.h>

enum tp_msg_flag {
    TP_MSG_HAS_HANDLES = 1 << 0, /* drop has something to release */
    TP_MSG_HAS_OBJECTS = 1 << 1, /* namely what data, of the bindings, names; in
                                    addition to what goes with the kind */
    TP_MSG_UNSENT = 1 << 2       /* for the hook: nobody got it, what it moved
                                    is the sender's again */
};

struct tp_msg {
    struct tp_msg *next; /* who owns the message links it */
    uint64_t from;       /* pid of the sender, 0: none */
    uint64_t ref;        /* what this answers or asks; 0: none */
    uint32_t size;       /* bytes of data, set by new */
    uint16_t kind;
    uint8_t flags;      /* enum tp_msg_flag */
    uint8_t size_class; /* private to message.c */
    _Alignas(16) unsigned char data[];
};

_Static_assert(sizeof(struct tp_msg) == 32, "the header is half a cache line");

/* A message with data[size]; next, from, ref, kind and flags are 0, data is
 * not set. NULL without memory, or when size is more than UINT32_MAX. */
struct tp_msg *tp_msg_new(size_t size);

/* Free the memory of a message; what data names was taken over by someone. */
void tp_msg_free(struct tp_msg *m);

/* Destroy a message: release what it still names, free it. What it names may
 * be messages in turn; those are dropped after it, however deep they nest. */
void tp_msg_drop(struct tp_msg *m);

/* The same by its sender, the running actor: the message went to nobody, and
 * what it moved is where it was. */
void tp_msg_unsend(struct tp_msg *m);

/* A message with the same from, data and references to the objects there. NULL
 * without memory. Nothing in m may be of a kind that moves. */
struct tp_msg *tp_msg_copy(const struct tp_msg *m);

/* What tp_msg_drop calls for a message with TP_MSG_HAS_HANDLES; it must not
 * free the message. NULL: nothing is called. */
void tp_msg_set_drop(void (*drop)(struct tp_msg *));

/* What tp_msg_copy calls for one with TP_MSG_HAS_OBJECTS. */
void tp_msg_set_retain(void (*retain)(struct tp_msg *));

/* Move this thread's cache to the shared depot. A thread that ends does so by
 * itself. */
void tp_msg_thread_flush(void);

/* Flush this thread and free what the shared depot keeps. */
void tp_msg_trim(void);

#endif
