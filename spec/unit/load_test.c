/*
 * load_test.c - the parts of troupe_load that need no network: its histogram,
 * its tape and its reader of HTTP responses.
 */
#include "run_in.h"

#include "../load/histogram.h"
#include "../load/http.h"
#include "../load/tape.h"

#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* -- Histogram -------------------------------------------------------------- */

static struct histogram h;

static void
an_empty_histogram_has_zeros(void **state)
{
    (void)state;
    histogram_init(&h);
    assert_int_equal(histogram_at(&h, 0.5), 0);
    assert_int_equal(histogram_at(&h, 1), 0);
    assert_true(histogram_mean(&h) == 0);
}

static void
small_values_are_exact(void **state)
{
    (void)state;
    histogram_init(&h);
    for (uint64_t i = 1; i <= 100; i++)
        histogram_add(&h, i);
    assert_int_equal(histogram_at(&h, 0.5), 50);
    assert_int_equal(histogram_at(&h, 0.9), 90);
    assert_int_equal(histogram_at(&h, 0.99), 99);
    assert_int_equal(histogram_at(&h, 0.999), 100);
    assert_int_equal(h.max, 100);
    assert_int_equal(h.min, 1);
    assert_true(histogram_mean(&h) == 50.5);
}

static void
any_value_is_found_within_one_per_cent_and_never_below(void **state)
{
    (void)state;
    for (unsigned bit = 0; bit < 64; bit++) {
        for (int off = -1; off <= 1; off++) {
            uint64_t v = (UINT64_C(1) << bit) + (uint64_t)off;
            if (v == UINT64_MAX)
                continue;
            histogram_init(&h);
            histogram_add(&h, v);
            histogram_add(&h, UINT64_MAX);
            uint64_t found = histogram_at(&h, 0.5);
            assert_true(found >= v);
            assert_true(found - v <= v / 100);
            assert_int_equal(histogram_at(&h, 1), UINT64_MAX);
        }
    }
}

static void
one_outlier_is_the_maximum_and_moves_no_median(void **state)
{
    (void)state;
    histogram_init(&h);
    for (int i = 0; i < 9999; i++)
        histogram_add(&h, 1000);
    histogram_add(&h, 5000000);
    assert_in_range(histogram_at(&h, 0.5), 1000, 1010);
    assert_in_range(histogram_at(&h, 0.999), 1000, 1010);
    assert_int_equal(histogram_at(&h, 1), 5000000);
}

/* -- Tape ------------------------------------------------------------------- */

static void
a_tape_matches_itself_at_any_position_and_over_its_end(void **state)
{
    struct tape t;
    static char copy[3 * TAPE_SPAN];
    (void)state;
    assert_int_equal(tape_count(&t), 0);
    const uint64_t places[] = {0,
                               1,
                               4711,
                               t.period - 1,
                               t.period,
                               t.period - TAPE_SPAN,
                               10 * t.period + 17};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        for (size_t k = 0; k < sizeof copy; k++)
            copy[k] = (char)*tape_at(&t, places[i] + k);
        assert_int_equal(tape_match(&t, places[i], copy, sizeof copy),
                         sizeof copy);
        assert_true(tape_match(&t, places[i] + 1, copy, sizeof copy) < 8);
    }
    tape_free(&t);
}

static void
the_first_wrong_byte_is_found(void **state)
{
    struct tape t;
    static char copy[2 * TAPE_SPAN];
    const size_t places[] = {0, 1, TAPE_SPAN - 1, TAPE_SPAN, sizeof copy - 1};
    (void)state;
    assert_int_equal(tape_count(&t), 0);
    for (size_t k = 0; k < sizeof copy; k++)
        copy[k] = (char)*tape_at(&t, 99 + k);
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        copy[places[i]] ^= 1;
        assert_int_equal(tape_match(&t, 99, copy, sizeof copy), places[i]);
        copy[places[i]] ^= 1;
    }
    tape_free(&t);
}

static void
a_short_text_is_repeated(void **state)
{
    struct tape t;
    (void)state;
    assert_int_equal(tape_repeat(&t, "abc", 3), 0);
    assert_int_equal(tape_match(&t, 1, "bcabcabca", 9), 9);
    assert_int_equal(tape_match(&t, 0, "abcabd", 6), 5);
    assert_int_equal(*tape_at(&t, 3000000 + 2), 'c');
    tape_free(&t);
}

/* -- HTTP ------------------------------------------------------------------- */

static const char *const responses[] = {
    "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
    "HTTP/1.1 204 No Content\r\n\r\n",
    "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length:0\r\n\r\n",
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    "5\r\nhello\r\n0\r\n\r\n",
    "HTTP/1.1 404 Not Found\r\nTransfer-Encoding: Chunked\r\n\r\n"
    "3;a=b\r\nhel\r\n00002\r\nlo\r\n0\r\nX: y\r\n\r\n",
    "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello"};
static const int statuses[] = {200, 204, 200, 200, 404, 200};
static const uint64_t bodies[] = {5, 0, 0, 5, 5, 5};

#define RESPONSES (sizeof responses / sizeof *responses)

static void
check_response(const struct http_reply *r, size_t i)
{
    assert_int_equal(r->status, statuses[i]);
    assert_int_equal(r->body, bodies[i]);
    assert_int_equal(r->close, i == RESPONSES - 1);
}

static void
responses_one_after_the_other_are_taken_apart(void **state)
{
    static struct http_reply r;
    char all[1024] = "";
    size_t at = 0, used;
    (void)state;
    for (size_t i = 0; i < RESPONSES; i++)
        strcat(all, responses[i]);
    for (size_t i = 0; i < RESPONSES; i++) {
        http_init(&r);
        assert_int_equal(http_feed(&r, all + at, strlen(all) - at, &used),
                         HTTP_DONE);
        assert_int_equal(used, strlen(responses[i]));
        check_response(&r, i);
        at += used;
    }
}

static void
a_response_may_come_byte_by_byte(void **state)
{
    static struct http_reply r;
    (void)state;
    for (size_t i = 0; i < RESPONSES; i++) {
        size_t n = strlen(responses[i]), used;
        http_init(&r);
        for (size_t k = 0; k < n; k++)
            assert_int_equal(http_feed(&r, responses[i] + k, 1, &used),
                             k + 1 == n ? HTTP_DONE : HTTP_MORE);
        check_response(&r, i);
    }
}

static void
what_is_no_http_is_refused(void **state)
{
    static struct http_reply r;
    static const char *const wrong[] = {
        "hello\r\n",
        "HTTP/1.1 OK\r\n",
        "HTTP/1.1 99 Low\r\n",
        "HTTP/1.1 200 OK\n\n",
        "HTTP/1.1 200 OK\r\nno header\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: x\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n",
        "HTTP/1.1 200 OK\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n"};
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        size_t used;
        http_init(&r);
        assert_int_equal(http_feed(&r, wrong[i], strlen(wrong[i]), &used),
                         HTTP_BAD);
    }
}

static void
a_line_without_end_is_refused(void **state)
{
    static struct http_reply r;
    static char line[HTTP_LINE];
    size_t used;
    (void)state;
    memset(line, 'a', sizeof line);
    http_init(&r);
    assert_int_equal(http_feed(&r, line, sizeof line / 2, &used), HTTP_MORE);
    assert_int_equal(http_feed(&r, line, sizeof line / 2, &used), HTTP_BAD);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_empty_histogram_has_zeros),
        cmocka_unit_test(small_values_are_exact),
        cmocka_unit_test(
            any_value_is_found_within_one_per_cent_and_never_below),
        cmocka_unit_test(one_outlier_is_the_maximum_and_moves_no_median),
        cmocka_unit_test(
            a_tape_matches_itself_at_any_position_and_over_its_end),
        cmocka_unit_test(the_first_wrong_byte_is_found),
        cmocka_unit_test(a_short_text_is_repeated),
        cmocka_unit_test(responses_one_after_the_other_are_taken_apart),
        cmocka_unit_test(a_response_may_come_byte_by_byte),
        cmocka_unit_test(what_is_no_http_is_refused),
        cmocka_unit_test(a_line_without_end_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
