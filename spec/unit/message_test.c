/*
 * message_test.c - the memory of one message.
 */
#include "actor/message.h"
#include "base/mutex.h"
#include "base/sys.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#ifdef TROUPE_CHECKED
#define needs_faults() ((void)0)
#else
#define needs_faults() skip() /* tp_fault_arm does nothing here */
#endif

static void
sizes_around_every_class(void **state)
{
    (void)state;
    for (size_t n = 0; n < 5000; n++) {
        struct tp_msg *m = tp_msg_new(n);
        assert_non_null(m);
        assert_int_equal((uintptr_t)m->data % 16, 0);
        assert_int_equal(m->size, n);
        assert_null(m->next);
        assert_int_equal(m->from | m->ref | m->kind | m->flags, 0);
        memset(m->data, 0xff, n);
        m->next = m;
        m->from = m->ref = UINT64_MAX;
        m->kind = UINT16_MAX;
        m->flags = UINT8_MAX;
        tp_msg_free(m);
    }
}

static void
size_beyond_32_bits_fails(void **state)
{
    (void)state;
    assert_null(tp_msg_new((size_t)UINT32_MAX + 1));
    assert_null(tp_msg_new(SIZE_MAX));
}

static void
no_memory_is_null(void **state)
{
    (void)state;
    needs_faults();
    for (size_t n = 1; n < 100000; n *= 3) {
        tp_msg_trim();
        tp_fault_arm(1);
        assert_null(tp_msg_new(n));
        tp_fault_arm(0);
        struct tp_msg *m = tp_msg_new(n);
        assert_non_null(m);
        tp_msg_free(m);
    }
}

static int dropped;

static void
count_drop(struct tp_msg *m)
{
    assert_true(m->flags & TP_MSG_HAS_HANDLES);
    dropped++;
}

static void
drop_calls_the_hook_for_handles_only(void **state)
{
    (void)state;
    dropped = 0;
    struct tp_msg *m = tp_msg_new(8), *h = tp_msg_new(8), *f = tp_msg_new(8);
    h->flags = f->flags = TP_MSG_HAS_HANDLES;
    tp_msg_set_drop(count_drop);
    tp_msg_drop(m);
    assert_int_equal(dropped, 0);
    tp_msg_drop(h);
    assert_int_equal(dropped, 1);
    tp_msg_free(f);
    assert_int_equal(dropped, 1);
    tp_msg_set_drop(NULL);
}

/* A message that names another one, as a channel that is queued in a channel
 * does. */
static void
drop_nested(struct tp_msg *m)
{
    struct tp_msg *inner;
    memcpy(&inner, m->data, sizeof inner);
    dropped++;
    if (inner != NULL) {
        tp_msg_drop(inner);
    }
}

static void
drop_needs_no_stack_for_what_is_nested(void **state)
{
    struct tp_msg *outer = NULL;
    (void)state;
    dropped = 0;
    for (int i = 0; i < 1000000; i++) {
        struct tp_msg *m = tp_msg_new(sizeof outer);
        assert_non_null(m);
        m->flags = TP_MSG_HAS_HANDLES;
        memcpy(m->data, &outer, sizeof outer);
        outer = m;
    }
    tp_msg_set_drop(drop_nested);
    tp_msg_drop(outer);
    assert_int_equal(dropped, 1000000);
    tp_msg_set_drop(NULL);
}

static int unsent, retained;

static void
note_unsent(struct tp_msg *m)
{
    unsent += (m->flags & TP_MSG_UNSENT) != 0;
    dropped++;
}

static void
note_retained(struct tp_msg *m)
{
    assert_int_equal(m->data[0], 'x');
    retained++;
}

static void
what_was_not_sent_is_told_to_the_hook(void **state)
{
    struct tp_msg *m[2];
    (void)state;
    dropped = unsent = 0;
    tp_msg_set_drop(note_unsent);
    for (int i = 0; i < 2; i++) {
        m[i] = tp_msg_new(1);
        m[i]->flags = TP_MSG_HAS_HANDLES | TP_MSG_HAS_OBJECTS;
    }
    tp_msg_drop(m[0]);
    assert_int_equal(unsent, 0);
    tp_msg_unsend(m[1]);
    assert_int_equal(unsent, 1);
    assert_int_equal(dropped, 2);
    tp_msg_unsend(tp_msg_new(1)); /* one that names nothing */
    assert_int_equal(dropped, 2);
    tp_msg_set_drop(NULL);
}

static void
a_copy_has_its_own_references(void **state)
{
    struct tp_msg *m = tp_msg_new(1);
    (void)state;
    retained = 0;
    tp_msg_set_retain(note_retained);
    m->data[0] = 'x';
    m->from = 7;
    m->ref = 9;
    m->kind = 3;
    struct tp_msg *copy = tp_msg_copy(m);
    assert_int_equal(copy->data[0], 'x');
    assert_int_equal(copy->from, 7);
    assert_int_equal(copy->ref, 0);
    assert_int_equal(copy->kind, 0);
    assert_int_equal(copy->flags, 0);
    assert_int_equal(retained, 0);
    tp_msg_free(copy);
    m->flags = TP_MSG_HAS_HANDLES | TP_MSG_HAS_OBJECTS;
    copy = tp_msg_copy(m);
    assert_int_equal(copy->flags, m->flags);
    assert_int_equal(retained, 1);
    tp_msg_free(copy);
    tp_msg_free(m);
    tp_msg_set_retain(NULL);
}

static void
many_live_messages_are_apart(void **state)
{
    (void)state;
    static struct tp_msg *m[10000];
    for (int round = 0; round < 3; round++) {
        for (size_t i = 0; i < 10000; i++) {
            m[i] = tp_msg_new(i % 400);
            memset(m[i]->data, (int)i & 0xff, i % 400);
        }
        for (size_t i = 0; i < 10000; i++) {
            for (size_t j = 0; j < i % 400; j++) {
                assert_int_equal(m[i]->data[j], i & 0xff);
            }
            tp_msg_free(m[i]);
        }
    }
}

/* --- Two threads -------------------------------------------------------- */

#define COUNT 1000000

struct pipe {
    struct tp_mutex lock;
    struct tp_msg *head; /* under lock, newest first */
    uint64_t seed;
};

static uint64_t
next_random(uint64_t *x)
{
    *x ^= *x << 13;
    *x ^= *x >> 7;
    *x ^= *x << 17;
    return *x;
}

static void
pipe_push(struct pipe *p, struct tp_msg *m)
{
    tp_mutex_lock(&p->lock, TP_RANK_SLOT);
    m->next = p->head;
    p->head = m;
    tp_mutex_unlock(&p->lock, TP_RANK_SLOT);
}

static struct tp_msg *
pipe_take_all(struct pipe *p)
{
    tp_mutex_lock(&p->lock, TP_RANK_SLOT);
    struct tp_msg *m = p->head;
    p->head = NULL;
    tp_mutex_unlock(&p->lock, TP_RANK_SLOT);
    return m;
}

static void *
produce(void *arg)
{
    struct pipe *p = arg;
    uint64_t x = p->seed;
    for (int i = 0; i < COUNT; i++) {
        size_t n = 8 + next_random(&x) % (i % 64 == 0 ? 5000 : 200);
        struct tp_msg *m = tp_msg_new(n);
        tp_check(m != NULL);
        m->from = (uint64_t)i;
        memset(m->data, i & 0xff, n);
        pipe_push(p, m);
    }
    return NULL;
}

static uint64_t
consume(struct pipe *p)
{
    uint64_t sum = 0;
    for (int got = 0; got < COUNT;) {
        for (struct tp_msg *m = pipe_take_all(p), *next; m != NULL; m = next) {
            next = m->next;
            tp_check(m->data[0] == (m->from & 0xff));
            tp_check(m->data[m->size - 1] == (m->from & 0xff));
            sum += m->from;
            tp_msg_free(m);
            got++;
        }
    }
    return sum;
}

static void
a_million_from_one_thread_to_another(void **state)
{
    (void)state;
    struct pipe p = {.seed = tp_now_ns() | 1};
    const char *s = getenv("TROUPE_SEED");
    pthread_t t;
    if (s != NULL) {
        p.seed = strtoull(s, NULL, 10);
    }
    printf("TROUPE_SEED=%llu\n", (unsigned long long)p.seed);
    assert_int_equal(pthread_create(&t, NULL, produce, &p), 0);
    uint64_t sum = consume(&p);
    pthread_join(t, NULL);
    assert_true(sum == (uint64_t)COUNT * (COUNT - 1) / 2);
    tp_msg_thread_flush();
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_around_every_class),
        cmocka_unit_test(size_beyond_32_bits_fails),
        cmocka_unit_test(no_memory_is_null),
        cmocka_unit_test(drop_calls_the_hook_for_handles_only),
        cmocka_unit_test(drop_needs_no_stack_for_what_is_nested),
        cmocka_unit_test(what_was_not_sent_is_told_to_the_hook),
        cmocka_unit_test(a_copy_has_its_own_references),
        cmocka_unit_test(many_live_messages_are_apart),
        cmocka_unit_test(a_million_from_one_thread_to_another),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    tp_msg_trim();
    return failed;
}
