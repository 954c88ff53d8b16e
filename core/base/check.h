/*
 * check.h - assertions.
 *
 * tp_check    always on: a broken invariant that would corrupt memory.
 * tp_assert   checked builds only (TROUPE_CHECKED): everything else.
 * Both print file, line and the broken condition, then abort.
 */
#ifndef TP_BASE_CHECK_H
#define TP_BASE_CHECK_H

#include <stdio.h>
#include <stdlib.h>

#define tp_check(cond)                                                         \
    ((cond) ? (void)0                                                          \
            : (fprintf(stderr, "troupe: %s:%d: broken invariant: %s\n",        \
                       __FILE__, __LINE__, #cond),                             \
               abort()))

#ifdef TROUPE_CHECKED
#define tp_assert(cond) tp_check(cond)
#else
#define tp_assert(cond) ((void)sizeof(!(cond)))
#endif

#define TP_LIKELY(x)   __builtin_expect(!!(x), 1)
#define TP_UNLIKELY(x) __builtin_expect(!!(x), 0)
#define TP_CACHELINE   64

#if defined(__SANITIZE_ADDRESS__)
#define TP_ASAN 1
#endif
#if defined(__SANITIZE_THREAD__)
#define TP_TSAN 1
#endif
#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define TP_ASAN 1
#endif
#if __has_feature(thread_sanitizer)
#define TP_TSAN 1
#endif
#endif

#endif
