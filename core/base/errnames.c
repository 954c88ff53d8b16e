/*
 * errnames.c - names of errors of the system. See errnames.h.
 *
 * Tests: spec/unit/errors_test.c
 */
#define _GNU_SOURCE
#include "base/errnames.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>

const char *
tp_errno_name(int err)
{
    const char *name = err == 0 ? NULL : strerrorname_np(err);
    return name == NULL ? "EUNKNOWN" : name;
}

const char *
tp_errno_short(int err)
{
    switch (err) {
#define X(number, name)                                                        \
    case number:                                                               \
        return name;
        TP_SHORT_ERRORS(X)
#undef X
    default:
        return tp_errno_name(err);
    }
}
