/*
 * codec_raw.h - read LuaJIT tables directly, where that is proven to work.
 *
 * Idea:     walking a table through the Lua API takes some seven calls for an
 *           entry. A table of this LuaJIT is two plain arrays:
 *
 *             GCtab +16 array -> value, value, ...   (slot 0 is key 0)
 *                   +40 node  -> { value, key, link } ...
 *                   +48 slots of array, +52 nodes - 1
 *             GCstr +20 length, +24 bytes
 *
 *           A value is 64 bits: a double, or a type in the upper 17 bits. Where
 *           LuaJIT has two kinds of numbers (AArch64), a whole one is a type
 *           and 32 bits.
 *           tp_raw_probe builds tables with known contents and compares what
 *           these offsets show; unless all of it agrees the encoder keeps to
 *           the Lua API. Nothing is ever written here, and values of other
 *           types than the five below are left to the Lua API.
 * Threads:  any; the table must not change meanwhile, so no allocation by Lua
 *           that could run a finalizer.
 * Rejected: including LuaJIT's own headers - they are not installed, and a
 *           wrong version would be found out by a crash.
 * Tests:    spec/unit/codec_test.c runs every case with and without.
 */
#ifndef TP_BINDINGS_CODEC_RAW_H
#define TP_BINDINGS_CODEC_RAW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum tp_raw_kind {
    TP_RAW_NIL,
    TP_RAW_FALSE,
    TP_RAW_TRUE,
    TP_RAW_NUMBER,
    TP_RAW_STRING,
    TP_RAW_OTHER /* ask the Lua API */
};

struct tp_raw_node {
    uint64_t value;
    uint64_t key;
    uint64_t link;
};

struct tp_raw_table {
    const uint64_t *array; /* slots 0 .. array_slots - 1 */
    const struct tp_raw_node *nodes;
    uint32_t array_slots;
    uint32_t node_count; /* at least 1; free nodes hold nil */
};

#define TP_RAW_TAB_ARRAY 16
#define TP_RAW_TAB_NODE  40
#define TP_RAW_TAB_ASIZE 48
#define TP_RAW_TAB_HMASK 52
#define TP_RAW_TAB_BYTES 64
#define TP_RAW_STR_LEN   20
#define TP_RAW_STR_BYTES 24
#define TP_RAW_TAG_SHIFT 47
#define TP_RAW_NO_DOUBLE 0xfff9000000000000u /* from here on a type */
#define TP_RAW_INT_TAG   13

/* Is all of the above true for the LuaJIT that this process runs? */
bool tp_raw_probe(void);

static inline uint32_t
tp_raw_u32(const void *object, size_t offset)
{
    uint32_t v;
    memcpy(&v, (const unsigned char *)object + offset, sizeof v);
    return v;
}

static inline uint64_t
tp_raw_u64(const void *object, size_t offset)
{
    uint64_t v;
    memcpy(&v, (const unsigned char *)object + offset, sizeof v);
    return v;
}

/* table: what lua_topointer says. */
static inline struct tp_raw_table
tp_raw_table(const void *table)
{
    return (struct tp_raw_table){
        .array =
            (const uint64_t *)(uintptr_t)tp_raw_u64(table, TP_RAW_TAB_ARRAY),
        .nodes = (const struct tp_raw_node *)(uintptr_t)tp_raw_u64(
            table, TP_RAW_TAB_NODE),
        .array_slots = tp_raw_u32(table, TP_RAW_TAB_ASIZE),
        .node_count = tp_raw_u32(table, TP_RAW_TAB_HMASK) + 1,
    };
}

static inline enum tp_raw_kind
tp_raw_kind(uint64_t value)
{
    uint32_t tag = (uint32_t)(value >> TP_RAW_TAG_SHIFT) | 0xfffe0000u;
    if (value < TP_RAW_NO_DOUBLE) {
        return TP_RAW_NUMBER;
    }
    switch (~tag) {
    case 0:
        return TP_RAW_NIL;
    case 1:
        return TP_RAW_FALSE;
    case 2:
        return TP_RAW_TRUE;
    case 4:
        return TP_RAW_STRING;
    case TP_RAW_INT_TAG:
        return TP_RAW_NUMBER;
    default:
        return TP_RAW_OTHER;
    }
}

static inline double
tp_raw_number(uint64_t value)
{
    double d;
    if (value >= TP_RAW_NO_DOUBLE) {
        return (int32_t)(uint32_t)value;
    }
    memcpy(&d, &value, sizeof d);
    return d;
}

/* The string's bytes (a zero byte follows them) and its length. */
static inline const char *
tp_raw_string(uint64_t value, size_t *out_len)
{
    uint64_t mask = ((uint64_t)1 << TP_RAW_TAG_SHIFT) - 1;
    const char *object = (const char *)(uintptr_t)(value & mask);
    *out_len = tp_raw_u32(object, TP_RAW_STR_LEN);
    return object + TP_RAW_STR_BYTES;
}

#endif
