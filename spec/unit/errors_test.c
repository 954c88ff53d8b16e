/*
 * errors_test.c - texts of TROUPE_E*, names of errno.
 */
#include "troupe.h"

#include "base/errnames.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static const int codes[] = {
#define X(name, value, text) TROUPE_##name,
    TROUPE_ERRORS(X)
#undef X
};

#define CODES (sizeof codes / sizeof codes[0])

static void
every_code_is_negative_and_unique(void **state)
{
    (void)state;
    for (size_t i = 0; i < CODES; i++) {
        assert_true(codes[i] < 0);
        for (size_t k = 0; k < i; k++) {
            assert_int_not_equal(codes[i], codes[k]);
        }
    }
}

static void
every_code_has_its_own_text(void **state)
{
    (void)state;
    for (size_t i = 0; i < CODES; i++) {
        const char *text = troupe_strerror(codes[i]);
        assert_true(strlen(text) > 0);
        assert_string_not_equal(text, "unknown error");
        for (size_t k = 0; k < i; k++) {
            assert_string_not_equal(text, troupe_strerror(codes[k]));
        }
    }
}

static void
success_and_strangers_have_a_text(void **state)
{
    (void)state;
    assert_int_equal(TROUPE_OK, 0);
    assert_string_equal(troupe_strerror(TROUPE_OK), "success");
    assert_string_equal(troupe_strerror(1), "unknown error");
    assert_string_equal(troupe_strerror(-1000000), "unknown error");
}

static void
an_errno_has_its_name_and_some_a_short_one(void **state)
{
    (void)state;
    assert_string_equal(tp_errno_name(ENOENT), "ENOENT");
    assert_string_equal(tp_errno_name(EAGAIN), "EAGAIN");
    assert_string_equal(tp_errno_short(ENOENT), "ENOENT");
    assert_string_equal(tp_errno_name(ECONNREFUSED), "ECONNREFUSED");
    assert_string_equal(tp_errno_short(ECONNREFUSED), "refused");
    assert_string_equal(tp_errno_short(ENFILE), "too_many_files");
    assert_string_equal(tp_errno_name(0), "EUNKNOWN");
    assert_string_equal(tp_errno_name(1 << 20), "EUNKNOWN");
    assert_string_equal(tp_errno_short(-1), "EUNKNOWN");
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_code_is_negative_and_unique),
        cmocka_unit_test(every_code_has_its_own_text),
        cmocka_unit_test(success_and_strangers_have_a_text),
        cmocka_unit_test(an_errno_has_its_name_and_some_a_short_one),
    };
    return cmocka_run_group_tests_name("errors", tests, NULL, NULL);
}
