/*
 * errors.c - texts of TROUPE_E*, from the list in troupe.h.
 *
 * Tests: spec/unit/errors_test.c
 */
#include "troupe.h"

const char *
troupe_strerror(int code)
{
    switch (code) {
    case TROUPE_OK:
        return "success";
#define X(name, value, text)                                                   \
    case value:                                                                \
        return text;
        TROUPE_ERRORS(X)
#undef X
    default:
        return "unknown error";
    }
}
