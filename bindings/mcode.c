/*
 * mcode.c - mends machine code that some releases of LuaJIT get wrong.
 *
 * Idea:     LuaJIT of 2021-09 to 2022-04 (Debian 12 has one) compiles pairs and
 *           next as a call that returns a pointer in rax and an index in edx.
 *           When it wants them the other way round it swaps 32 bits of each,
 *           and the pointer is cut (LuaJIT's issue 829). It is rare, and it
 *           ends the process. So each new trace is looked through:
 *
 *               E8 rel32   call lj_vm_next      call swapped
 *               92         xchg edx, eax        nop
 *
 *           where swapped does the same and swaps 64 bits. Where LuaJIT is
 *           right the byte after the call is another, and nothing is done.
 *           A host's own state, of which troupe.run borrows a thread, compiles
 *           on that host's behalf; it is watched, too.
 * Threads:  the one that runs the state. swapped: made once, by any.
 * Memory:   one page for swapped, for the life of the process.
 * Parks:    never.
 * Fails:    without a page near LuaJIT, or without /proc, the trace stays as it
 *           is. A state with a memory limit is not watched (state.c), nor one
 *           that has callbacks of its own.
 * Rejected: pairs that cannot be compiled: five times slower. mprotect in place
 *           of /proc/self/mem: LuaJIT keeps track of its pages' protection.
 * Tests:    spec/unit/mcode_test.c
 */
#define _GNU_SOURCE
#include "bind.h"

#if defined(__x86_64__)
#include "base/sys.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define CALL       0xe8
#define XCHG_EAX   0x92
#define NOP        0x90
#define CALL_BYTES 5
/* A trace is within 1 GiB of LuaJIT; a call reaches 2. */
#define REACH ((uintptr_t)1 << 29)
#define STEP  ((uintptr_t)1 << 16)

/* How lj_vm_next(table, index) begins. It leaves r11 alone. */
static const unsigned char vm_next_head[] = {0x8b, 0x4f, 0x30, 0x39, 0xce, 0x73,
                                             0x28, 0x48, 0x8b, 0x57, 0x10, 0x48,
                                             0x8b, 0x14, 0xf2, 0x48};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static _Atomic uintptr_t vm_next; /* set by whoever finds it, before once */
static uintptr_t swapped;         /* once; 0: could not be made */

/* rel32 of a call at `at`. */
static int32_t
distance(uintptr_t at, uintptr_t target)
{
    return (int32_t)(uint32_t)(target - at - CALL_BYTES);
}

uintptr_t
tp_mcode_target(const unsigned char *code, uintptr_t at)
{
    int32_t rel;
    memcpy(&rel, code + 1, sizeof rel);
    return at + CALL_BYTES + (uintptr_t)(intptr_t)rel;
}

/* lj_vm_next looks at its caller's stack, so the return address is kept in a
 * register meanwhile. */
static void
write_swapped(unsigned char *p, uintptr_t next)
{
    unsigned char code[] = {0x41, 0x5b,                /* pop r11 */
                            CALL, 0,        0,   0, 0, /* call lj_vm_next */
                            0x48, XCHG_EAX,            /* xchg rax, rdx */
                            0x41, 0xff,     0xe3};     /* jmp r11 */
    int32_t rel = distance((uintptr_t)p + 2, next);
    memcpy(code + 3, &rel, sizeof rel);
    memcpy(p, code, sizeof code);
}

static void
make_swapped(void)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    /* relaxed: there is one value, and this thread has stored it, too. */
    uintptr_t next = atomic_load_explicit(&vm_next, memory_order_relaxed);
    uintptr_t at = next & ~(STEP - 1);
    for (uintptr_t step = STEP; step < REACH; step += STEP) {
        void *p =
            mmap((void *)(at - step), page, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
        if (p == MAP_FAILED) {
            continue;
        }
        if (next - (uintptr_t)p < REACH) { /* an old kernel goes elsewhere */
            write_swapped(p, next);
            if (mprotect(p, page, PROT_READ | PROT_EXEC) == 0) {
                swapped = (uintptr_t)p;
                return;
            }
        }
        munmap(p, page);
    }
}

bool
tp_mcode_is_next(uintptr_t target)
{
    struct dl_find_object here, there;
    return _dl_find_object((void *)(uintptr_t)lua_newstate, &here) == 0 &&
           _dl_find_object((void *)target, &there) == 0 &&
           here.dlfo_map_start == there.dlfo_map_start &&
           memcmp((void *)target, vm_next_head, sizeof vm_next_head) == 0;
}

/* Whatever protection the page has, and without changing it. */
static bool
patch(uintptr_t at, const unsigned char *code, size_t n)
{
    int fd = open("/proc/self/mem", O_WRONLY | O_CLOEXEC);
    if (fd < 0) {
        return false;
    }
    bool ok = pwrite(fd, code, n, (off_t)at) == (ssize_t)n;
    close(fd);
    return ok;
}

static bool
mend_call(uintptr_t at, uintptr_t next)
{
    /* relaxed: see make_swapped. */
    atomic_store_explicit(&vm_next, next, memory_order_relaxed);
    pthread_once(&once, make_swapped);
    unsigned char code[] = {CALL, 0, 0, 0, 0, NOP};
    int32_t rel = distance(at, swapped);
    memcpy(code + 1, &rel, sizeof rel);
    return swapped != 0 && patch(at, code, sizeof code);
}

unsigned
tp_mcode_mend(const unsigned char *code, size_t n, uintptr_t at)
{
    unsigned mended = 0;
    for (size_t i = 0; i + CALL_BYTES < n; i++) {
        if (code[i] == CALL && code[i + CALL_BYTES] == XCHG_EAX) {
            uintptr_t target = tp_mcode_target(code + i, at + i);
            mended += tp_mcode_is_next(target) && mend_call(at + i, target);
        }
    }
    return mended;
}

/* A callback of jit.attach: what, number of the trace. Upvalue: tracemc. */
static int
on_trace(lua_State *L)
{
    if (strcmp(luaL_checkstring(L, 1), "stop") != 0) {
        return 0;
    }
    lua_settop(L, 2);
    lua_pushvalue(L, lua_upvalueindex(1));
    lua_pushvalue(L, 2);
    if (lua_pcall(L, 1, 2, 0) == 0 && lua_type(L, -2) == LUA_TSTRING) {
        size_t n;
        const char *code = lua_tolstring(L, -2, &n);
        tp_mcode_mend((const unsigned char *)code, n,
                      (uintptr_t)lua_tonumber(L, -1));
    }
    return 0;
}

/* jit.util is not loaded for that: its opener is called, and only the function
 * is kept. */
static void
push_tracemc(lua_State *L)
{
    lua_getfield(L, LUA_REGISTRYINDEX, "_PRELOAD");
    lua_getfield(L, -1, "jit.util");
    lua_call(L, 0, 1);
    lua_getfield(L, -1, "tracemc");
    lua_replace(L, -3);
    lua_pop(L, 1);
}

/* LuaJIT has one callback for each kind of event: what is there was put there by
 * the script, or by luajit -jv. */
static bool
has_callbacks(lua_State *L)
{
    int top = lua_gettop(L);
    lua_getfield(L, LUA_REGISTRYINDEX, "_VMEVENTS");
    lua_pushnil(L);
    bool any = lua_istable(L, top + 1) && lua_next(L, top + 1) != 0;
    lua_settop(L, top);
    return any;
}

static int
watch(lua_State *L)
{
    lua_getfield(L, LUA_REGISTRYINDEX, "_LOADED");
    lua_getfield(L, -1, "jit");
    lua_getfield(L, -1, "attach");
    push_tracemc(L);
    lua_pushcclosure(L, on_trace, 1);
    lua_pushliteral(L, "trace");
    lua_call(L, 2, 0);
    return 0;
}

/* A host's state may have no jit, or a part of it only: then it is left alone. */
void
tp_mcode_watch(lua_State *L)
{
    if (!has_callbacks(L) && lua_cpcall(L, watch, NULL) != 0) {
        lua_pop(L, 1);
    }
}
#else
void
tp_mcode_watch(lua_State *L)
{
    (void)L;
}
#endif
