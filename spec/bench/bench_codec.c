/*
 * bench_codec.c - how long one way of copying a message takes.
 *
 * Prints a line of JSON per figure: nanoseconds to encode and to decode, with
 * tables read directly (where that is proven) and through the Lua API.
 * Each figure is CPU time, the best of several rounds; decoding includes the
 * receiver's garbage collection.
 */
#include "codec.h"

#include "base/sys.h"

#include <lualib.h>
#include <stdio.h>

#define ROUNDS 60

static bool
any_pid(uint64_t bits)
{
    return bits >> 47 == 0;
}

static const struct tp_codec_ops ops = {.is_pid = any_pid};

struct figure {
    const char *name, *source;
    int times;
};

static const struct figure figures[] = {
    {"number", "return 42", 5000},
    {"boolean", "return true", 5000},
    {"string10", "return 'abcdefghij'", 5000},
    {"string4k", "return ('x'):rep(4096)", 5000},
    {"pair", "return {'ping', 17}", 20000},
    {"record3", "return {type = 'add', n = 5, key = 'abc'}", 20000},
    {"table20",
     "return {name='abcdefghij', id=1, x=1.5, list={1,2,3,4,5},"
     "k5='abcdefghij', k6='abcdefghij', k7=7, k8=8, k9=9, k10=10,"
     "k11='abcdefghij', k12=1.25, k13='abcdefghij', k14=14, k15=15, k16=16,"
     "k17=17, k18='abcdefghij', k19=19, k20=20}",
     5000},
    {"list1000", "local t = {} for i = 1, 1000 do t[i] = i / 3 end return t",
     200},
    {"rows100",
     "local t = {} for i = 1, 100 do t[i] = {id = i, tags = {'a', 'b'}} end "
     "return t",
     100},
    {"deep1000", "local t = {} for i = 1, 1000 do t = {t} end return t", 50},
    {"function0", "return function(a, b) return a + b end", 5000},
    {"function3",
     "local insert, n, string = table.insert, 1, string "
     "return function(t) n = n + 1 insert(t, string.rep('x', n)) end",
     5000},
};

static void
fail(const char *why)
{
    fprintf(stderr, "bench_codec: %s\n", why);
    exit(1);
}

static double
time_encode(lua_State *L, struct tp_buf *b, int times)
{
    uint64_t start = tp_thread_cpu_ns();
    for (int i = 0; i < times; i++) {
        tp_buf_reset(b);
        if (tp_encode(L, 1, "message", b) != 0) {
            fail(lua_tostring(L, -1));
        }
    }
    return (double)(tp_thread_cpu_ns() - start) / times;
}

static double
time_decode(lua_State *L, const struct tp_buf *b, int times)
{
    uint64_t start = tp_thread_cpu_ns();
    for (int i = 0; i < times; i++) {
        tp_decode(L, b->p, b->len);
        lua_settop(L, 0);
    }
    return (double)(tp_thread_cpu_ns() - start) / times;
}

/* What a mailbox of small messages does: no buffer at all. */
static void
time_scalar(lua_State *from, lua_State *to, int times, double *out_encode,
            double *out_decode)
{
    unsigned char bytes[TP_SCALAR_MAX];
    size_t n = 0;
    uint64_t start = tp_thread_cpu_ns();
    for (int i = 0; i < times; i++) {
        n = tp_encode_scalar(from, 1, bytes);
        __asm__ volatile("" ::"r"(bytes) : "memory");
    }
    *out_encode = (double)(tp_thread_cpu_ns() - start) / times;
    start = tp_thread_cpu_ns();
    for (int i = 0; i < times; i++) {
        tp_decode_scalar(to, bytes, n);
        lua_settop(to, 0);
    }
    *out_decode = (double)(tp_thread_cpu_ns() - start) / times;
}

static void
print_figure(const char *name, const char *path, double encode, double decode,
             size_t bytes)
{
    printf("{\"bench\":\"codec.%s%s\",\"encode_ns\":%.1f,\"decode_ns\":%.1f,"
           "\"bytes\":%zu}\n",
           name, path, encode, decode, bytes);
    fflush(stdout);
}

static void
run(const struct figure *f, const char *path)
{
    lua_State *from = luaL_newstate(), *to = luaL_newstate();
    struct tp_buf b;
    unsigned char bytes[TP_SCALAR_MAX];
    double encode = 1e12, decode = 1e12;
    tp_buf_init(&b);
    luaL_openlibs(from);
    luaL_openlibs(to);
    if (luaL_dostring(from, f->source) != 0) {
        fail(lua_tostring(from, -1));
    }
    bool scalar = tp_encode_scalar(from, 1, bytes) != 0;
    for (int i = 0; i < ROUNDS; i++) {
        double e, d;
        if (scalar) {
            time_scalar(from, to, f->times, &e, &d);
            b.len = tp_encode_scalar(from, 1, bytes);
        } else {
            e = time_encode(from, &b, f->times);
            d = time_decode(to, &b, f->times);
        }
        encode = e < encode ? e : encode;
        decode = d < decode ? d : decode;
    }
    print_figure(f->name, path, encode, decode, b.len);
    tp_buf_fini(&b);
    lua_close(from);
    lua_close(to);
}

int
main(void)
{
    tp_codec_init(&ops);
    if (!tp_codec_use_raw(true)) {
        fprintf(stderr, "bench_codec: tables cannot be read directly here\n");
    }
    for (size_t i = 0; i < sizeof figures / sizeof *figures; i++) {
        run(&figures[i], "");
    }
    tp_codec_use_raw(false);
    for (size_t i = 4; i < sizeof figures / sizeof *figures; i++) {
        run(&figures[i], ".api");
    }
    return 0;
}
