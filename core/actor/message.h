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
    TP_MSG_HAS_HANDLES = 1 << 0 /* data names objects that drop must release */
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

/* Destroy a message that nobody received: release what it names, free it. */
void tp_msg_drop(struct tp_msg *m);

/* What tp_msg_drop calls for a message with TP_MSG_HAS_HANDLES; it must not
 * free the message. NULL: nothing is called. */
void tp_msg_set_drop(void (*drop)(struct tp_msg *));

/* Move this thread's cache to the shared depot. A thread that ends does so by
 * itself. */
void tp_msg_thread_flush(void);

/* Flush this thread and free what the shared depot keeps. */
void tp_msg_trim(void);

#endif
