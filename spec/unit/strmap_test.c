/*
 * strmap_test.c - against a model; growth; want of memory.
 */
#include "base/strmap.h"

#include "base/check.h"
#include "base/sys.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define KEYS 5000u

struct item {
    struct tp_strnode node;
    char key[16];
    bool in;
};

static struct item items[KEYS];

static void
item_init(uint32_t i)
{
    struct item *it = &items[i];
    it->node.len = (uint32_t)snprintf(it->key, sizeof it->key, "k%u", i);
    it->node.key = it->key;
    it->in = false;
}

static void
check_all(const struct tp_strmap *m)
{
    size_t in = 0, walked = 0;
    for (uint32_t i = 0; i < KEYS; i++) {
        struct tp_strnode *n =
            tp_strmap_find(m, items[i].key, items[i].node.len);
        assert_ptr_equal(n, items[i].in ? &items[i].node : NULL);
        in += items[i].in;
    }
    assert_int_equal(m->count, in);
    struct tp_strnode *n = NULL;
    while ((n = tp_strmap_next(m, n)) != NULL) {
        walked++;
    }
    assert_int_equal(walked, in);
}

static void
agrees_with_a_model(void **state)
{
    struct tp_strmap m = {0};
    uint64_t x = 88172645463325252ull;
    (void)state;
    for (uint32_t i = 0; i < KEYS; i++) {
        item_init(i);
    }
    check_all(&m);
    assert_true(tp_strmap_reserve(&m));
    for (int step = 0; step < 200000; step++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        /* The span grows: few keys at first, so that each size is met. */
        struct item *it = &items[x % (1 + (unsigned)step / 40)];
        if (it->in) {
            tp_strmap_remove(&m, &it->node);
        } else {
            tp_strmap_add(&m, &it->node);
        }
        it->in = !it->in;
        if (step % 10000 == 0) {
            check_all(&m);
        }
    }
    check_all(&m);
    tp_strmap_fini(&m);
    assert_int_equal(m.count, 0);
}

static void
keys_are_bytes(void **state)
{
    struct tp_strmap m = {0};
    struct tp_strnode a = {.key = "a\0b", .len = 3};
    struct tp_strnode b = {.key = "a\0c", .len = 3};
    struct tp_strnode c = {.key = "a", .len = 1};
    (void)state;
    assert_true(tp_strmap_reserve(&m));
    tp_strmap_add(&m, &a);
    tp_strmap_add(&m, &b);
    tp_strmap_add(&m, &c);
    assert_ptr_equal(tp_strmap_find(&m, "a\0b", 3), &a);
    assert_ptr_equal(tp_strmap_find(&m, "a\0c", 3), &b);
    assert_ptr_equal(tp_strmap_find(&m, "a", 1), &c);
    assert_null(tp_strmap_find(&m, "a\0", 2));
    tp_strmap_fini(&m);
}

static void
without_memory_chains_get_longer(void **state)
{
    struct tp_strmap m = {0};
    (void)state;
    tp_fault_arm(1);
    assert_false(tp_strmap_reserve(&m));
    assert_true(tp_fault_fired());
    assert_true(tp_strmap_reserve(&m));
    for (uint32_t i = 0; i < KEYS; i++) {
        item_init(i);
        tp_fault_arm(1);
        tp_strmap_add(&m, &items[i].node);
        items[i].in = true;
    }
    tp_fault_arm(0);
    assert_int_equal(m.used, 16);
    check_all(&m);
    tp_strmap_fini(&m);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees_with_a_model),
        cmocka_unit_test(keys_are_bytes),
        cmocka_unit_test(without_memory_chains_get_longer),
    };
    return cmocka_run_group_tests_name("strmap", tests, NULL, NULL);
}
